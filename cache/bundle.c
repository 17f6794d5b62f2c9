// A bundle, read. All numbers little-endian; offsets count from the start of the file.
//
//     0  "DWBUNDLE"                                   entry   0  request key, 32
//     8  schema, u32                                         32  build key, 32
//    12  zero, u32                                           64  SHA-256 of its metadata
//    16  entries, u64                                        96  SHA-256 of its packed cubin
//    24  bytes of metadata, u64                             128  target, 16, zeros behind it
//    32  bytes of packed cubins, u64                        144  metadata: offset, size, u64 each
//    40  bytes of the file, u64                             160  packed cubin: offset, size, u64 each
//    48  layout number of dw_params, u32                    176  bytes of the cubin, u64
//    52  zero, 12                                           184  zero, u64
//    64  digest of the templates, 32                        192
//    96  version of the library, 32, zeros behind it
//   128  SHA-256 of all before and of index and order
//   160  index: entries, ascending by request key
//     .  order: their numbers, u32, ascending by build key; zeros up to a multiple of 8
//     .  signer's Ed25519 public key, 32, and its signature of all before it, 64; zeros where nobody signed
//     .  metadata (JSON texts)
//     .  packed cubins, a zstd frame each; entries with the same one share it
//
// The digest covers header and index, they hold the digests of everything else: a signature of the two covers every byte.
// Everything about sizes and places is checked once, when a bundle is opened; digests of entries when they are read.
#include "bundle.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>
#include <zstd_errors.h>

#include "bundle_layout.h"
#include "parts.h"

struct dw__bundle {
  char *name;
  int file;            // -1: `memory` has it all
  const char *memory;  // the host's
  const char *head;    // header, index, order
  char *owned;         // `head` of a file
  uint64_t size;
  dw__bundle_layout at;
  dw__bundle_facts facts;
  bool is_signed;
  unsigned char signer[DW__BUNDLE_KEY_SIZE];
};

static dw_status no_memory(dw_error *error) { return dw__fail(error, DW_OUT_OF_MEMORY, "bundle", "", "", "out of memory"); }

static dw_status refuse(const dw__bundle *bundle, dw_error *error, const char *why) {
  return dw__fail(error, DW_BAD_BUNDLE, "bundle", bundle->name, "", "%s", why);
}

// ---- the bytes ------------------------------------------------------------------------------------------------

// All of it, or false with an errno value; 0 there means that the file ended.
static bool read_at(int file, uint64_t offset, char *to, size_t size, int *why) {
  while (size) {
    ssize_t got = pread(file, to, size, (off_t)offset);
    if (got < 0 && errno == EINTR) continue;
    *why = got < 0 ? errno : 0;
    if (got <= 0) return false;
    to += got;
    size -= (size_t)got;
    offset += (uint64_t)got;
  }
  return true;
}

static dw_status cannot_read(const dw__bundle *bundle, int why, dw_error *error) {
  if (!why) return refuse(bundle, error, "the file ends too early");
  return dw__fail(error, DW_IO, "bundle", bundle->name, "", "it cannot be read: %s", strerror(why));
}

// Bytes of the file, which the layout says are there. *owned has to be released; it is NULL where they lie in memory anyway.
static dw_status fetch(const dw__bundle *bundle, uint64_t offset, uint64_t size, const char **bytes, char **owned,
                       dw_error *error) {
  int why = 0;
  *owned = NULL;
  if (bundle->file < 0) {
    *bytes = bundle->memory + offset;
    return DW_OK;
  }
  *bytes = *owned = dw__alloc(size);
  if (!*owned) return no_memory(error);
  if (read_at(bundle->file, offset, *owned, size, &why)) return DW_OK;
  dw__release(*owned);
  *owned = NULL;
  return cannot_read(bundle, why, error);
}

// ---- header ---------------------------------------------------------------------------------------------------

static bool is_zero(const char *bytes, size_t size) { return sodium_is_zero((const unsigned char *)bytes, size); }

// A text of printable characters, then zeros to the end.
static bool is_text(const char *bytes, size_t capacity) {
  size_t length = strnlen(bytes, capacity);
  for (size_t i = 0; i < length; i++)
    if (bytes[i] <= ' ' || bytes[i] > '~') return false;
  return length && length < capacity && is_zero(bytes + length, capacity - length);
}

// Limits first: the sums cannot overflow after them.
static const char *read_header(const char *bytes, uint64_t size, dw__bundle_layout *at, dw__bundle_facts *facts) {
  if (memcmp(bytes, DW__BUNDLE_MAGIC, 8)) return "it is no bundle of draftwood";
  if (dw__get(bytes + 8, 4) != DW__BUNDLE_SCHEMA || dw__get(bytes + 12, 4))
    return "it has another schema, so another version made it";
  uint64_t count = dw__get(bytes + 16, 8), metadata = dw__get(bytes + 24, 8), packed = dw__get(bytes + 32, 8);
  if (count > DW__BUNDLE_ENTRIES_MOST || metadata > DW__BUNDLE_BYTES_MOST || packed > DW__BUNDLE_BYTES_MOST)
    return "a size in its header is out of range";
  *at = dw__bundle_lay_out((size_t)count, metadata, packed);
  if (dw__get(bytes + 40, 8) != at->size) return "the sizes in its header do not add up";
  if (at->size != size) return at->size > size ? "the file ends too early" : "the file is longer than its header says";
  uint64_t abi = dw__get(bytes + 48, 4);
  if (abi > INT32_MAX || !is_zero(bytes + 52, 12) || !is_text(bytes + 96, sizeof facts->version))
    return "its header is damaged";
  facts->abi = (int)abi;
  memcpy(facts->templates.bytes, bytes + 64, 32);
  memcpy(facts->version, bytes + 96, sizeof facts->version);
  return NULL;
}

// ---- index ----------------------------------------------------------------------------------------------------

static const char *item_bytes(const dw__bundle *bundle, size_t i) {
  return bundle->head + DW__BUNDLE_HEADER + i * DW__BUNDLE_ITEM;
}

static size_t order_at(const dw__bundle *bundle, size_t i) {
  return (size_t)dw__get(bundle->head + bundle->at.order + 4 * i, 4);
}

static bool lies_in(uint64_t offset, uint64_t size, uint64_t begin, uint64_t end) {
  return offset >= begin && offset <= end && size <= end - offset;
}

static const char *check_item(const dw__bundle *bundle, const char *item) {
  uint64_t metadata = dw__get(item + 152, 8), packed = dw__get(item + 168, 8), cubin = dw__get(item + 176, 8);
  if (!is_text(item + 128, 16)) return "the target of an entry is damaged";
  if (!lies_in(dw__get(item + 144, 8), metadata, bundle->at.metadata, bundle->at.packed) || metadata > DW__METADATA_MOST)
    return "the metadata of an entry is out of range";
  if (!lies_in(dw__get(item + 160, 8), packed, bundle->at.packed, bundle->at.size) || !packed)
    return "the cubin of an entry is out of range";
  if (!cubin || cubin > DW__CUBIN_MOST) return "the size of a cubin is out of range";
  return is_zero(item + 184, 8) ? NULL : "an entry is damaged";
}

// Ascending by build key and number, so none comes twice.
static bool order_ascends(const dw__bundle *bundle, size_t i) {
  size_t here = order_at(bundle, i), before = i ? order_at(bundle, i - 1) : 0;
  if (here >= bundle->at.count) return false;
  int sign = i ? memcmp(item_bytes(bundle, before) + 32, item_bytes(bundle, here) + 32, 32) : -1;
  return sign < 0 || (sign == 0 && before < here);
}

static const char *check_index(const dw__bundle *bundle) {
  for (size_t i = 0; i < bundle->at.count; i++) {
    const char *wrong = check_item(bundle, item_bytes(bundle, i));
    if (wrong) return wrong;
    if (i && memcmp(item_bytes(bundle, i - 1), item_bytes(bundle, i), 32) >= 0) return "its index is not sorted";
  }
  for (size_t i = 0; i < bundle->at.count; i++)
    if (!order_ascends(bundle, i)) return "its order by build key is damaged";
  size_t end = bundle->at.order + 4 * bundle->at.count;
  return is_zero(bundle->head + end, bundle->at.signature - end) ? NULL : "its order by build key is damaged";
}

// ---- digest and signature -------------------------------------------------------------------------------------

static const char *check_signature(dw__bundle *bundle, const unsigned char *block, const unsigned char *public_key) {
  bundle->is_signed = !is_zero((const char *)block, DW__BUNDLE_SIGNATURE);
  if (!bundle->is_signed) return public_key ? "it is not signed" : NULL;
  memcpy(bundle->signer, block, DW__BUNDLE_KEY_SIZE);
  if (public_key && memcmp(public_key, bundle->signer, DW__BUNDLE_KEY_SIZE)) return "it is signed with another key";
  if (crypto_sign_verify_detached(block + DW__BUNDLE_KEY_SIZE, (const unsigned char *)bundle->head, bundle->at.signature,
                                  bundle->signer))
    return "its signature is wrong";
  return NULL;
}

// ---- opening --------------------------------------------------------------------------------------------------

static dw_status read_head(dw__bundle *bundle, const unsigned char *public_key, dw_error *error) {
  const char *bytes;
  char *owned;
  if (bundle->size < DW__BUNDLE_HEADER) return refuse(bundle, error, "it is shorter than a header");
  dw_status status = fetch(bundle, 0, DW__BUNDLE_HEADER, &bytes, &owned, error);
  if (status) return status;
  const char *wrong = read_header(bytes, bundle->size, &bundle->at, &bundle->facts);
  dw__release(owned);
  if (wrong) return refuse(bundle, error, wrong);

  status = fetch(bundle, 0, bundle->at.metadata, &bundle->head, &bundle->owned, error);
  if (status) return status;
  dw__digest digest = dw__bundle_digest(bundle->head, &bundle->at);
  if (memcmp(digest.bytes, bundle->head + DW__BUNDLE_DIGEST, 32)) wrong = "header or index is damaged";
  if (!wrong) wrong = check_index(bundle);
  if (!wrong) wrong = check_signature(bundle, (const unsigned char *)bundle->head + bundle->at.signature, public_key);
  return wrong ? refuse(bundle, error, wrong) : DW_OK;
}

static dw_status check_file(dw__bundle *bundle, const unsigned char *public_key, dw_error *error) {
  struct stat status;
  if (bundle->file < 0 || fstat(bundle->file, &status))
    return dw__fail(error, errno == ENOENT ? DW_NOT_FOUND : DW_IO, "bundle", bundle->name, "", "it cannot be opened: %s",
                    strerror(errno));
  if (!S_ISREG(status.st_mode)) return refuse(bundle, error, "it is not a regular file");
  // A cubin is code.
  if (!public_key && status.st_mode & S_IWOTH)
    return refuse(bundle, error, "everybody can write it: take that right away, or give the public key it is signed with");
  bundle->size = (uint64_t)status.st_size;
  return DW_OK;
}

static dw__bundle *create(const char *name) {
  dw__bundle *bundle = dw__calloc(1, sizeof *bundle);
  if (!bundle) return NULL;
  bundle->file = -1;
  bundle->name = dw__strdup(name);
  if (bundle->name) return bundle;
  dw__release(bundle);
  return NULL;
}

static dw_status finish(dw__bundle *made, dw_status status, dw__bundle **bundle) {
  if (status) dw__bundle_close(made);
  else *bundle = made;
  return status;
}

dw_status dw__bundle_open_file(const char *path, const unsigned char *public_key, dw__bundle **bundle, dw_error *error) {
  *bundle = NULL;
  dw__bundle *made = create(path);
  if (!made) return no_memory(error);
  // Without O_NONBLOCK the name of a pipe would hold us up.
  made->file = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  dw_status status = check_file(made, public_key, error);
  if (!status) status = read_head(made, public_key, error);
  return finish(made, status, bundle);
}

dw_status dw__bundle_open_memory(const void *data, size_t size, const unsigned char *public_key, dw__bundle **bundle,
                                 dw_error *error) {
  *bundle = NULL;
  dw__bundle *made = create("memory");
  if (!made) return no_memory(error);
  made->memory = data;
  made->size = size;
  return finish(made, read_head(made, public_key, error), bundle);
}

void dw__bundle_close(dw__bundle *bundle) {
  if (!bundle) return;
  if (bundle->file >= 0) close(bundle->file);
  dw__release(bundle->owned);
  dw__release(bundle->name);
  dw__release(bundle);
}

const char *dw__bundle_name(const dw__bundle *bundle) { return bundle->name; }
uint64_t dw__bundle_size(const dw__bundle *bundle) { return bundle->size; }
size_t dw__bundle_count(const dw__bundle *bundle) { return bundle->at.count; }
const dw__bundle_facts *dw__bundle_facts_of(const dw__bundle *bundle) { return &bundle->facts; }
const unsigned char *dw__bundle_signer(const dw__bundle *bundle) { return bundle->is_signed ? bundle->signer : NULL; }

// ---- finding --------------------------------------------------------------------------------------------------

size_t dw__bundle_find(const dw__bundle *bundle, const dw__digest *request) {
  size_t low = 0, high = bundle->at.count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    int sign = memcmp(item_bytes(bundle, middle), request->bytes, 32);
    if (sign == 0) return middle;
    if (sign < 0) low = middle + 1;
    else high = middle;
  }
  return DW__BUNDLE_NONE;
}

size_t dw__bundle_find_build(const dw__bundle *bundle, const dw__digest *build) {
  size_t low = 0, high = bundle->at.count;
  while (low < high) {
    size_t middle = low + (high - low) / 2, i = order_at(bundle, middle);
    // A bundle in memory is the host's: what was checked once may have been changed since.
    int sign = i < bundle->at.count ? memcmp(item_bytes(bundle, i) + 32, build->bytes, 32) : -1;
    if (sign == 0) return i;
    if (sign < 0) low = middle + 1;
    else high = middle;
  }
  return DW__BUNDLE_NONE;
}

// ---- entries --------------------------------------------------------------------------------------------------

void dw__bundle_item_at(const dw__bundle *bundle, size_t i, dw__bundle_item *item) {
  const char *bytes = item_bytes(bundle, i);
  memcpy(item, bytes, 128);  // four digests
  memcpy(item->target, bytes + 128, sizeof item->target);
  item->target[sizeof item->target - 1] = 0;
  item->metadata_size = dw__get(bytes + 152, 8);
  item->packed_size = dw__get(bytes + 168, 8);
  item->cubin_size = dw__get(bytes + 176, 8);
}

static dw_status damaged(const dw__bundle *bundle, const dw__bundle_item *item, const char *why, dw_error *error) {
  char build[65];
  dw__hex(&item->build, build);
  return dw__fail(error, DW_BAD_BUNDLE, "bundle", bundle->name, "", "entry %.12s (%s): %s", build, item->target, why);
}

// One part of an entry, with its digest checked.
static dw_status fetch_part(const dw__bundle *bundle, const dw__bundle_item *item, uint64_t offset, uint64_t size,
                            const dw__digest *digest, const char *wrong, const char **bytes, char **owned, dw_error *error) {
  *owned = NULL;
  if (!lies_in(offset, size, bundle->at.metadata, bundle->size)) return damaged(bundle, item, wrong, error);
  dw_status status = fetch(bundle, offset, size, bytes, owned, error);
  if (status) return status;
  dw__digest found = dw__sha256(*bytes, size);
  if (dw__digest_equal(&found, digest)) return DW_OK;
  dw__release(*owned);
  *owned = NULL;
  return damaged(bundle, item, wrong, error);
}

dw_status dw__bundle_packed(const dw__bundle *bundle, size_t i, const char **bytes, char **owned, dw_error *error) {
  dw__bundle_item item;
  dw__bundle_item_at(bundle, i, &item);
  return fetch_part(bundle, &item, dw__get(item_bytes(bundle, i) + 160, 8), item.packed_size, &item.packed_digest,
                    "the cubin is damaged", bytes, owned, error);
}

static dw_status read_metadata(const dw__bundle *bundle, size_t i, const dw__bundle_item *item, dw__entry *entry,
                               dw_error *error) {
  const char *bytes;
  char *owned;
  dw_status status = fetch_part(bundle, item, dw__get(item_bytes(bundle, i) + 144, 8), item->metadata_size,
                                &item->metadata_digest, "the metadata is damaged", &bytes, &owned, error);
  if (status) return status;
  entry->metadata = dw__alloc(item->metadata_size + 1);
  if (entry->metadata) {
    memcpy(entry->metadata, bytes, item->metadata_size);
    entry->metadata[item->metadata_size] = 0;
  }
  dw__release(owned);
  return entry->metadata ? DW_OK : no_memory(error);
}

// One frame that says its size and fills its place: unpacking needs exactly the memory that the index names.
static dw_status unpack(const dw__bundle *bundle, const dw__bundle_item *item, const char *packed, dw__entry *entry,
                        dw_error *error) {
  if (item->cubin_size > DW__CUBIN_MOST || ZSTD_findFrameCompressedSize(packed, item->packed_size) != item->packed_size ||
      ZSTD_getFrameContentSize(packed, item->packed_size) != item->cubin_size)
    return damaged(bundle, item, "the cubin has another size", error);
  entry->cubin_size = item->cubin_size;
  entry->cubin = dw__alloc(item->cubin_size);
  if (!entry->cubin) return no_memory(error);
  size_t got = ZSTD_decompress(entry->cubin, item->cubin_size, packed, item->packed_size);
  if (got == item->cubin_size) return DW_OK;
  if (ZSTD_isError(got) && ZSTD_getErrorCode(got) == ZSTD_error_memory_allocation) return no_memory(error);
  return damaged(bundle, item, "the cubin cannot be unpacked", error);
}

dw_status dw__bundle_read(const dw__bundle *bundle, size_t i, bool with_cubin, dw__entry *entry, dw_error *error) {
  dw__bundle_item item;
  dw__bundle_item_at(bundle, i, &item);
  *entry = (dw__entry){.request = item.request, .build = item.build, .cubin_size = item.cubin_size};
  dw_status status = read_metadata(bundle, i, &item, entry, error);
  if (!status && with_cubin) {
    const char *packed;
    char *owned;
    status = dw__bundle_packed(bundle, i, &packed, &owned, error);
    if (!status) status = unpack(bundle, &item, packed, entry, error);
    dw__release(owned);
  }
  if (status) dw__entry_free(entry);
  return status;
}
