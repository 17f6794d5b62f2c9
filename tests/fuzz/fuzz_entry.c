// Entries of the cache's directory (obj/), as they come and with a checksum that fits, which no fuzzer would guess.
#include <string.h>

#include "fuzz.h"
#include "parts.h"

long fuzz_accepted;

static void try_bytes(const char *bytes, size_t size) {
  dw__digest build = {0};
  dw__entry entry;
  const char *damaged;
  if (size >= 48) memcpy(build.bytes, bytes + 16, sizeof build.bytes);
  for (int with_cubin = 0; with_cubin < 2; with_cubin++) {
    dw_status status = dw__entry_unpack(bytes, size, &build, with_cubin, &entry, &damaged);
    FUZZ_CHECK(status == DW_OK || (status == DW_BAD_CUBIN && damaged));
    if (status) continue;
    FUZZ_CHECK(!memcmp(&entry.build, &build, sizeof build) && entry.metadata && !entry.cubin == !with_cubin);
    // What was accepted can be stored, and is the same again.
    dw__entry again;
    char *packed;
    size_t packed_size;
    if (with_cubin && entry.cubin_size < 1 << 20) {
      FUZZ_CHECK(!dw__entry_refuse(&entry) && !dw__entry_pack(&entry, &packed, &packed_size));
      FUZZ_CHECK(!dw__entry_unpack(packed, packed_size, &build, true, &again, &damaged));
      FUZZ_CHECK(again.cubin_size == entry.cubin_size && !memcmp(again.cubin, entry.cubin, entry.cubin_size));
      dw__entry_free(&again);
      dw__release(packed);
    }
    dw__entry_free(&entry);
    fuzz_accepted++;
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  fuzz_with_checksum(data, size, try_bytes);
  return 0;
}

void fuzz_seeds(const char *folder) {
  static char cubin[300] = "a cubin", metadata[] = "{\"shape\":\"s\"}", none[] = "";
  dw__entry entries[] = {{.build = {{1}}, .metadata = metadata, .cubin = cubin, .cubin_size = sizeof cubin},
                         {.build = {{2}}, .metadata = none, .cubin = cubin, .cubin_size = 1}};
  for (int i = 0; i < 2; i++) {
    char *bytes, name[16];
    size_t size;
    snprintf(name, sizeof name, "seed%d", i);
    FUZZ_CHECK(!dw__entry_pack(&entries[i], &bytes, &size));
    fuzz_write_seed(folder, name, bytes, size);
    dw__release(bytes);
  }
}
