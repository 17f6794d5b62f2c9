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
//   128  SHA-256 of all before and of the index
//   160  index: entries, ascending by request key
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
  const char *head;    // header, index, signature
  char *owned;         // `head` of a file
  uint64_t size;
  dw__bundle_layout at;
  dw__bundle_facts facts;
  bool is_signed;
  unsigned char signer[DW__BUNDLE_KEY_SIZE];
};

// Everything below says what is wrong in a text that lives for ever.
static dw_status bad(const char **why, const char *text) {
  *why = text;
  return DW_BAD_BUNDLE;
}

static dw_status system_error(const char **why, int error) {
  const char *text = strerrordesc_np(error);
  *why = text ? text : "it cannot be read";
  return error == ENOENT ? DW_NOT_FOUND : error == ENOMEM ? DW_OUT_OF_MEMORY : DW_IO;
}

static dw_status tell(dw_status status, const char *name, const char *why, dw_error *error) {
  if (status == DW_OUT_OF_MEMORY) return dw__fail(error, status, "bundle", "", "", "out of memory");
  return status ? dw__fail(error, status, "bundle", name, "", "%s", why) : DW_OK;
}

// ---- the bytes ------------------------------------------------------------------------------------------------

static dw_status read_at(int file, uint64_t offset, char *to, size_t size, const char **why) {
  while (size) {
    ssize_t got = pread(file, to, size, (off_t)offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_error(why, errno);
    if (got == 0) return bad(why, "the file ends too early");
    to += got;
    size -= (size_t)got;
    offset += (uint64_t)got;
  }
  return DW_OK;
}

// Bytes of the file, which the layout says are there. *owned has to be released; it is NULL where they lie in memory anyway.
static dw_status fetch(const dw__bundle *bundle, uint64_t offset, uint64_t size, const char **bytes, char **owned,
                       const char **why) {
  *owned = NULL;
  if (bundle->file < 0) {
    *bytes = bundle->memory + offset;
    return DW_OK;
  }
  *bytes = *owned = dw__alloc(size);
  if (!*owned) return DW_OUT_OF_MEMORY;
  dw_status status = read_at(bundle->file, offset, *owned, size, why);
  if (!status) return DW_OK;
  dw__release(*owned);
  *owned = NULL;
  return status;
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

// As in "sm_120f": it becomes part of names of files.
static bool is_target(const char *bytes) {
  for (size_t i = 0; i < 16 && bytes[i]; i++) {
    bool fine = (bytes[i] >= 'a' && bytes[i] <= 'z') || (bytes[i] >= '0' && bytes[i] <= '9') || bytes[i] == '_';
    if (!fine) return false;
  }
  return is_text(bytes, 16);
}

// Limits first: the sums cannot overflow after them.
static dw_status read_header(const char *bytes, uint64_t size, dw__bundle_layout *at, dw__bundle_facts *facts,
                             const char **why) {
  if (memcmp(bytes, DW__BUNDLE_MAGIC, 8)) return bad(why, "it is no bundle of draftwood");
  if (dw__get(bytes + 8, 4) != DW__BUNDLE_SCHEMA) return bad(why, "another version of draftwood made it: the schema differs");
  uint64_t count = dw__get(bytes + 16, 8), metadata = dw__get(bytes + 24, 8), packed = dw__get(bytes + 32, 8);
  if (count > DW__BUNDLE_ENTRIES_MOST || metadata > DW__BUNDLE_BYTES_MOST || packed > DW__BUNDLE_BYTES_MOST)
    return bad(why, "a size in its header is out of range");
  *at = dw__bundle_lay_out((size_t)count, metadata, packed);
  if (dw__get(bytes + 40, 8) != at->size) return bad(why, "the sizes in its header do not add up");
  if (at->size > size) return bad(why, "the file ends too early");
  if (at->size < size) return bad(why, "the file is longer than its header says");
  uint64_t abi = dw__get(bytes + 48, 4);
  if (abi > INT32_MAX || !is_zero(bytes + 12, 4) || !is_zero(bytes + 52, 12) || !is_text(bytes + 96, sizeof facts->version))
    return bad(why, "its header is damaged");
  facts->abi = (int)abi;
  memcpy(facts->templates.bytes, bytes + 64, 32);
  memcpy(facts->version, bytes + 96, sizeof facts->version);
  return DW_OK;
}

// ---- index ----------------------------------------------------------------------------------------------------

static const char *item_bytes(const dw__bundle *bundle, size_t i) {
  return bundle->head + DW__BUNDLE_HEADER + i * DW__BUNDLE_ITEM;
}

static bool lies_in(uint64_t offset, uint64_t size, uint64_t begin, uint64_t end) {
  return offset >= begin && offset <= end && size <= end - offset;
}

static dw_status check_item(const dw__bundle *bundle, const char *item, const char **why) {
  uint64_t metadata = dw__get(item + 152, 8), packed = dw__get(item + 168, 8), cubin = dw__get(item + 176, 8);
  if (!is_target(item + 128)) return bad(why, "the target of an entry is damaged");
  if (!lies_in(dw__get(item + 144, 8), metadata, bundle->at.metadata, bundle->at.packed) || metadata > DW__METADATA_MOST)
    return bad(why, "the metadata of an entry is out of range");
  if (!lies_in(dw__get(item + 160, 8), packed, bundle->at.packed, bundle->at.size) || !packed ||
      packed > ZSTD_compressBound(DW__CUBIN_MOST))
    return bad(why, "the cubin of an entry is out of range");
  if (!cubin || cubin > DW__CUBIN_MOST) return bad(why, "the size of a cubin is out of range");
  return is_zero(item + 184, 8) ? DW_OK : bad(why, "an entry is damaged");
}

static dw_status check_index(const dw__bundle *bundle, const char **why) {
  dw_status status = DW_OK;
  for (size_t i = 0; i < bundle->at.count && !status; i++) {
    status = check_item(bundle, item_bytes(bundle, i), why);
    if (i && memcmp(item_bytes(bundle, i - 1), item_bytes(bundle, i), 32) >= 0) return bad(why, "its index is not sorted");
  }
  return status;
}

// ---- digest and signature -------------------------------------------------------------------------------------

static dw_status check_digest(const dw__bundle *bundle, const char **why) {
  dw__digest digest = dw__bundle_digest(bundle->head, &bundle->at);
  bool same = !memcmp(digest.bytes, bundle->head + DW__BUNDLE_DIGEST, 32);
  return same ? DW_OK : bad(why, "header or index is damaged");
}

static dw_status check_signature(dw__bundle *bundle, const unsigned char *public_key, const char **why) {
  const unsigned char *head = (const unsigned char *)bundle->head, *block = head + bundle->at.signature;
  bundle->is_signed = !sodium_is_zero(block, DW__BUNDLE_SIGNATURE);
  if (!bundle->is_signed) return public_key ? bad(why, "it is not signed") : DW_OK;
  memcpy(bundle->signer, block, DW__BUNDLE_KEY_SIZE);
  if (public_key && memcmp(public_key, bundle->signer, DW__BUNDLE_KEY_SIZE)) return bad(why, "it is signed with another key");
  if (crypto_sign_verify_detached(block + DW__BUNDLE_KEY_SIZE, head, bundle->at.signature, bundle->signer))
    return bad(why, "its signature is wrong");
  return DW_OK;
}

// ---- opening --------------------------------------------------------------------------------------------------

static dw_status read_head(dw__bundle *bundle, const unsigned char *public_key, const char **why) {
  const char *bytes;
  char *owned;
  if (bundle->size < DW__BUNDLE_HEADER) return bad(why, "it is shorter than a header");
  dw_status status = fetch(bundle, 0, DW__BUNDLE_HEADER, &bytes, &owned, why);
  if (!status) status = read_header(bytes, bundle->size, &bundle->at, &bundle->facts, why);
  dw__release(owned);
  if (!status) status = fetch(bundle, 0, bundle->at.metadata, &bundle->head, &bundle->owned, why);
  if (!status) status = check_digest(bundle, why);
  if (!status) status = check_index(bundle, why);
  return status ? status : check_signature(bundle, public_key, why);
}

static dw_status check_file(dw__bundle *bundle, const unsigned char *public_key, const char **why) {
  struct stat status;
  if (bundle->file < 0 || fstat(bundle->file, &status)) return system_error(why, errno);
  if (!S_ISREG(status.st_mode)) return bad(why, "it is not a regular file");
  // A cubin is code.
  if (!public_key && status.st_mode & S_IWOTH)
    return bad(why, "everybody can write it: take that right away, or give the public key it is signed with");
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

static dw_status finish(dw__bundle *made, dw_status status, const char *why, dw__bundle **bundle, dw_error *error) {
  tell(status, made->name, why, error);
  if (status) dw__bundle_close(made);
  else *bundle = made;
  return status;
}

dw_status dw__bundle_open_file(const char *path, const unsigned char *public_key, dw__bundle **bundle, dw_error *error) {
  const char *why = "";
  *bundle = NULL;
  dw__bundle *made = create(path);
  if (!made) return tell(DW_OUT_OF_MEMORY, "", why, error);
  // Without O_NONBLOCK the name of a pipe would hold us up.
  made->file = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  dw_status status = check_file(made, public_key, &why);
  if (!status) status = read_head(made, public_key, &why);
  return finish(made, status, why, bundle, error);
}

dw_status dw__bundle_open_memory(const void *data, size_t size, const unsigned char *public_key, dw__bundle **bundle,
                                 dw_error *error) {
  const char *why = "";
  *bundle = NULL;
  dw__bundle *made = create("bundle in memory");
  if (!made) return tell(DW_OUT_OF_MEMORY, "", why, error);
  made->memory = data;
  made->size = size;
  dw_status status = read_head(made, public_key, &why);
  return finish(made, status, why, bundle, error);
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

// ---- entries --------------------------------------------------------------------------------------------------

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

void dw__bundle_item_at(const dw__bundle *bundle, size_t i, dw__bundle_item *item) {
  const char *bytes = item_bytes(bundle, i);
  memcpy(item, bytes, 128);  // four digests
  memcpy(item->target, bytes + 128, sizeof item->target);
  item->target[sizeof item->target - 1] = 0;
  item->metadata_size = dw__get(bytes + 152, 8);
  item->packed_size = dw__get(bytes + 168, 8);
  item->cubin_size = dw__get(bytes + 176, 8);
}

// One part of an entry, `at` this place of its index entry; its digest is checked. A bundle in memory is the host's and may have
// been changed since it was opened, so the place is looked at again.
static dw_status fetch_part(const dw__bundle *bundle, size_t i, size_t at, const dw__digest *digest, const char **bytes,
                            char **owned, const char **why) {
  uint64_t offset = dw__get(item_bytes(bundle, i) + at, 8), size = dw__get(item_bytes(bundle, i) + at + 8, 8);
  *owned = NULL;
  if (!lies_in(offset, size, bundle->at.metadata, bundle->size)) return bad(why, "its place is out of range");
  dw_status status = fetch(bundle, offset, size, bytes, owned, why);
  if (status) return status;
  dw__digest found = dw__sha256(*bytes, size);
  if (dw__digest_equal(&found, digest)) return DW_OK;
  dw__release(*owned);
  *owned = NULL;
  return bad(why, at == 144 ? "the metadata is damaged" : "the cubin is damaged");
}

static dw_status read_metadata(const dw__bundle *bundle, size_t i, const dw__bundle_item *item, dw__entry *entry,
                               const char **why) {
  const char *bytes;
  char *owned;
  dw_status status = fetch_part(bundle, i, 144, &item->metadata_digest, &bytes, &owned, why);
  if (status) return status;
  entry->metadata = dw__alloc(item->metadata_size + 1);
  if (entry->metadata) {
    memcpy(entry->metadata, bytes, item->metadata_size);
    entry->metadata[item->metadata_size] = 0;
  }
  dw__release(owned);
  return entry->metadata ? DW_OK : DW_OUT_OF_MEMORY;
}

// One frame that says its size and fills its place: unpacking needs exactly the memory that the index names.
static dw_status unpack(const dw__bundle_item *item, const char *packed, dw__entry *entry, const char **why) {
  if (item->cubin_size > DW__CUBIN_MOST || ZSTD_findFrameCompressedSize(packed, item->packed_size) != item->packed_size ||
      ZSTD_getFrameContentSize(packed, item->packed_size) != item->cubin_size)
    return bad(why, "the cubin has another size");
  entry->cubin_size = item->cubin_size;
  entry->cubin = dw__alloc(item->cubin_size);
  if (!entry->cubin) return DW_OUT_OF_MEMORY;
  size_t got = ZSTD_decompress(entry->cubin, item->cubin_size, packed, item->packed_size);
  if (got == item->cubin_size) return DW_OK;
  if (ZSTD_isError(got) && ZSTD_getErrorCode(got) == ZSTD_error_memory_allocation) return DW_OUT_OF_MEMORY;
  return bad(why, "the cubin cannot be unpacked");
}

static dw_status take(const dw__bundle *bundle, size_t i, bool with_cubin, dw__entry *entry, const char **why) {
  const char *packed;
  char *owned = NULL;
  dw__bundle_item item;
  dw__bundle_item_at(bundle, i, &item);
  *entry = (dw__entry){.request = item.request, .build = item.build, .cubin_size = item.cubin_size};
  dw_status status = read_metadata(bundle, i, &item, entry, why);
  if (!status && with_cubin) {
    status = fetch_part(bundle, i, 160, &item.packed_digest, &packed, &owned, why);
    if (!status) status = unpack(&item, packed, entry, why);
    dw__release(owned);
  }
  if (status) dw__entry_free(entry);
  return status;
}

static dw_status tell_entry(const dw__bundle *bundle, size_t i, dw_status status, const char *why, dw_error *error) {
  char build[65], text[256];
  dw__bundle_item item;
  if (!status) return DW_OK;
  dw__bundle_item_at(bundle, i, &item);
  dw__hex(&item.build, build);
  snprintf(text, sizeof text, "entry %.12s (%s): %s", build, item.target, why);
  return tell(status, bundle->name, text, error);
}

dw_status dw__bundle_read(const dw__bundle *bundle, size_t i, bool with_cubin, dw__entry *entry, dw_error *error) {
  const char *why = "";
  dw_status status = take(bundle, i, with_cubin, entry, &why);
  return tell_entry(bundle, i, status, why, error);
}

dw_status dw__bundle_packed(const dw__bundle *bundle, size_t i, const char **bytes, char **owned, dw_error *error) {
  const char *why = "";
  dw__bundle_item item;
  dw__bundle_item_at(bundle, i, &item);
  dw_status status = fetch_part(bundle, i, 160, &item.packed_digest, bytes, owned, &why);
  return tell_entry(bundle, i, status, why, error);
}

// ---- a layer of the cache -------------------------------------------------------------------------------------

static dw_status layer_find(void *user, const dw__digest *request, dw__entry *entry, const char **damaged) {
  const dw__bundle *bundle = user;
  size_t i = dw__bundle_find(bundle, request);
  if (i == DW__BUNDLE_NONE) return DW_NOT_FOUND;
  dw_status status = take(bundle, i, true, entry, damaged);
  return status == DW_OK || status == DW_OUT_OF_MEMORY ? status : DW_BAD_CUBIN;
}

static void layer_close(void *user) { dw__bundle_close(user); }

dw_status dw__cache_add_bundle(dw__cache *cache, dw__bundle *bundle, dw_error *error) {
  dw__layer layer = {.name = bundle->name, .user = bundle, .find = layer_find, .close = layer_close};
  return dw__cache_add_layer(cache, &layer, DW__LAYER_BUNDLE, error);
}
