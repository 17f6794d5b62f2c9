// Bundles, as they come and with digests that fit: of header and index, and of every part that an entry names.
#include <sodium.h>
#include <string.h>

#include "bundle_layout.h"
#include "fuzz.h"
#include "parts.h"

long fuzz_accepted;

static void try_entry(const dw__bundle *bundle, size_t i) {
  dw__bundle_item item;
  dw__entry entry;
  dw_error error = {0};
  dw__bundle_item_at(bundle, i, &item);
  FUZZ_CHECK(dw__bundle_find(bundle, &item.request) == i);
  for (int with_cubin = 0; with_cubin < 2; with_cubin++) {
    dw_status status = dw__bundle_read(bundle, i, with_cubin, &entry, &error);
    FUZZ_CHECK(status == DW_OK || status == DW_BAD_BUNDLE);
    if (!status) {
      FUZZ_CHECK(entry.cubin_size == item.cubin_size && entry.metadata && !entry.cubin == !with_cubin);
      dw__entry_free(&entry);
      fuzz_accepted++;
    }
    dw_error_clear(&error);
  }
}

static void try_bytes(const char *bytes, size_t size) {
  dw__bundle *bundle;
  dw_status status = dw__bundle_open_memory(bytes, size, NULL, &bundle, NULL);
  FUZZ_CHECK(status == DW_OK || status == DW_BAD_BUNDLE);
  if (status) return;
  for (size_t i = 0; i < dw__bundle_count(bundle); i++) try_entry(bundle, i);
  dw__bundle_close(bundle);
}

static void mend_part(char *bytes, size_t size, const char *place, char *digest) {
  uint64_t offset = dw__get(place, 8), length = dw__get(place + 8, 8);
  if (offset > size || length > size - offset) return;
  dw__digest made = dw__sha256(bytes + offset, length);
  memcpy(digest, made.bytes, sizeof made.bytes);
}

static void mend(char *bytes, size_t size) {
  uint64_t count = dw__get(bytes + 16, 8);
  memcpy(bytes, DW__BUNDLE_MAGIC, 8);
  dw__put(bytes + 40, size, 8);
  if (count > (size - DW__BUNDLE_HEADER) / DW__BUNDLE_ITEM) return;
  dw__bundle_layout at = dw__bundle_lay_out(count, 0, 0);
  for (size_t i = 0; i < count; i++) {
    char *item = bytes + DW__BUNDLE_HEADER + i * DW__BUNDLE_ITEM;
    mend_part(bytes, size, item + 144, item + 64);
    mend_part(bytes, size, item + 160, item + 96);
  }
  dw__digest digest = dw__bundle_digest(bytes, &at);
  memcpy(bytes + DW__BUNDLE_DIGEST, digest.bytes, sizeof digest.bytes);
  // A signature would never fit again.
  if (at.metadata <= size) memset(bytes + at.signature, 0, DW__BUNDLE_SIGNATURE);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  try_bytes((const char *)data, size);
  if (size < DW__BUNDLE_HEADER) return 0;
  char *mended = malloc(size);
  memcpy(mended, data, size);
  mend(mended, size);
  try_bytes(mended, size);
  free(mended);
  return 0;
}

static int append(void *user, const void *bytes, size_t size) {
  dw__buf_append(user, bytes, size);
  return 0;
}

void fuzz_seeds(const char *folder) {
  static char cubin[200] = "a cubin", metadata[] = "{\"shape\":\"s\",\"variant\":\"v\"}";
  const dw__bundle_facts facts = {"0.1.0", 1, {{9}}};
  const unsigned char seed[DW__BUNDLE_KEY_SIZE] = {7};  // no secret: it signs nothing but this
  for (int count = 0; count < 4; count++) {
    dw__bundle_writer *writer = dw__bundle_writer_create(&facts);
    dw__buf bytes = {0};
    char name[16];
    size_t size;
    for (int i = 0; i < count; i++) {
      dw__entry entry = {{{(unsigned char)(40 * i)}}, {{(unsigned char)(i / 2)}}, metadata, cubin, sizeof cubin - (size_t)i};
      FUZZ_CHECK(!dw__bundle_writer_add(writer, &entry, i ? "sm_120f" : "sm_90", NULL));
    }
    FUZZ_CHECK(!dw__bundle_writer_finish(writer, count == 3 ? seed : NULL, append, &bytes, &size, NULL) && !bytes.failed);
    snprintf(name, sizeof name, "seed%d", count);
    fuzz_write_seed(folder, name, bytes.data, bytes.size);
    dw__buf_free(&bytes);
    dw__bundle_writer_free(writer);
  }
}
