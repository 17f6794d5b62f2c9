// An entry as bytes, and the manifest that leads to it. Pure functions: no file, no clock, no process id, so the same entry has
// the same bytes everywhere. All numbers little-endian.
//
//   entry     0  "DWENTRY\n"       manifest  0  "DWBUILD\n"
//             8  schema, u32                 8  schema, u32
//            12  zero, u32                  12  zero, u32
//            16  build key, 32              16  request key, 32
//            48  metadata size, u64         48  build key, 32
//            56  cubin size, u64            80  XXH3-128 of all before, canonical
//            64  packed size, u64           96
//            72  metadata (JSON, no closing 0)
//             .  cubin, one zstd frame       failure   0  "DWFAIL!\n"
//             .  XXH3-128 of all before                8  schema, u32
//                                                     12  zero, u32
//                                                     16  build key, 32
//                                                     48  time, i64: seconds since 1970
//                                                     56  seconds it is believed, i64
//                                                     64  text, no closing 0
//                                                      .  XXH3-128 of all before
//
// The checksum finds damage; it is no protection against malice. That is what the checks in directory.c are for.
#include <string.h>
#include <xxhash.h>
#include <zstd.h>
#include <zstd_errors.h>

#include "parts.h"

#define ENTRY_MAGIC "DWENTRY\n"
#define MANIFEST_MAGIC "DWBUILD\n"
#define FAILURE_MAGIC "DWFAIL!\n"
enum { FAILURE_HEADER_SIZE = 64, HEADER_SIZE = 72, CHECKSUM_SIZE = 16, ZSTD_LEVEL = 9 };

_Static_assert(sizeof(XXH128_canonical_t) == CHECKSUM_SIZE, "XXH3-128 has 16 bytes");

// ---- what both files share ------------------------------------------------------------------------------------

static void put_prefix(char *bytes, const char *magic) {
  memcpy(bytes, magic, 8);
  dw__put(bytes + 8, DW__CACHE_SCHEMA, 4);
  dw__put(bytes + 12, 0, 4);
}

static void put_checksum(char *bytes, size_t size) {
  XXH128_canonical_t checksum;
  XXH128_canonicalFromHash(&checksum, XXH3_128bits(bytes, size));
  memcpy(bytes + size, &checksum, sizeof checksum);
}

static const char *refuse_prefix(const char *bytes, size_t size, const char *magic, size_t least) {
  if (size < least) return "too short";
  if (memcmp(bytes, magic, 8)) return "not a file of this cache";
  if (dw__get(bytes + 8, 4) != DW__CACHE_SCHEMA || dw__get(bytes + 12, 4)) return "of another schema";
  return NULL;
}

static const char *refuse_checksum(const char *bytes, size_t size) {
  XXH128_canonical_t checksum;
  XXH128_canonicalFromHash(&checksum, XXH3_128bits(bytes, size - CHECKSUM_SIZE));
  return memcmp(&checksum, bytes + size - CHECKSUM_SIZE, CHECKSUM_SIZE) ? "checksum differs" : NULL;
}

bool dw__digest_equal(const dw__digest *a, const dw__digest *b) { return !memcmp(a->bytes, b->bytes, sizeof a->bytes); }

// ---- manifest -------------------------------------------------------------------------------------------------

void dw__manifest_pack(const dw__digest *request, const dw__digest *build, char bytes[DW__MANIFEST_SIZE]) {
  put_prefix(bytes, MANIFEST_MAGIC);
  memcpy(bytes + 16, request->bytes, 32);
  memcpy(bytes + 48, build->bytes, 32);
  put_checksum(bytes, DW__MANIFEST_SIZE - CHECKSUM_SIZE);
}

const char *dw__manifest_unpack(const char *bytes, size_t size, const dw__digest *request, dw__digest *build) {
  const char *damaged = refuse_prefix(bytes, size, MANIFEST_MAGIC, DW__MANIFEST_SIZE);
  if (!damaged && size != DW__MANIFEST_SIZE) damaged = "sizes do not add up";
  if (!damaged) damaged = refuse_checksum(bytes, size);
  if (!damaged && memcmp(bytes + 16, request->bytes, 32)) damaged = "holds another key than its name says";
  if (!damaged) memcpy(build->bytes, bytes + 48, 32);
  return damaged;
}

// ---- failure --------------------------------------------------------------------------------------------------

dw_status dw__failure_pack(const dw__digest *build, int64_t time, int64_t seconds, const char *text, char **bytes,
                           size_t *size) {
  size_t length = strnlen(text, DW__FAILURE_MOST);
  *size = FAILURE_HEADER_SIZE + length + CHECKSUM_SIZE;
  char *made = *bytes = dw__alloc(*size);
  if (!made) return DW_OUT_OF_MEMORY;
  put_prefix(made, FAILURE_MAGIC);
  memcpy(made + 16, build->bytes, 32);
  dw__put(made + 48, (uint64_t)time, 8);
  dw__put(made + 56, (uint64_t)seconds, 8);
  memcpy(made + FAILURE_HEADER_SIZE, text, length);
  put_checksum(made, FAILURE_HEADER_SIZE + length);
  return DW_OK;
}

// A time that lies ahead was written by a clock that has been set back since: not believed either.
static bool is_over(int64_t time, int64_t seconds, int64_t now) {
  const int64_t most = (int64_t)1 << 40;
  bool sound = time >= 0 && time < most && seconds >= 0 && seconds < most;
  return !sound || now < time || now - time >= seconds;
}

const char *dw__failure_unpack(char *bytes, size_t size, const dw__digest *build, int64_t now, const char **text) {
  const char *damaged = refuse_prefix(bytes, size, FAILURE_MAGIC, FAILURE_HEADER_SIZE + CHECKSUM_SIZE);
  *text = NULL;
  if (!damaged) damaged = refuse_checksum(bytes, size);
  if (!damaged && memcmp(bytes + 16, build->bytes, 32)) damaged = "holds another key than its name says";
  if (damaged || is_over((int64_t)dw__get(bytes + 48, 8), (int64_t)dw__get(bytes + 56, 8), now)) return damaged;
  bytes[size - CHECKSUM_SIZE] = 0;
  *text = bytes + FAILURE_HEADER_SIZE;
  return NULL;
}

// ---- entry ----------------------------------------------------------------------------------------------------

size_t dw__entry_file_most(void) {
  return HEADER_SIZE + DW__METADATA_MOST + ZSTD_compressBound(DW__CUBIN_MOST) + CHECKSUM_SIZE;
}

const char *dw__entry_refuse(const dw__entry *entry) {
  if (!entry->cubin || !entry->cubin_size) return "the cubin is empty";
  if (entry->cubin_size > DW__CUBIN_MOST) return "the cubin is too large";
  if (entry->metadata && strlen(entry->metadata) > DW__METADATA_MOST) return "the metadata is too large";
  return NULL;
}

dw_status dw__entry_pack(const dw__entry *entry, char **bytes, size_t *size) {
  const char *metadata = entry->metadata ? entry->metadata : "";
  size_t metadata_size = strlen(metadata), bound = ZSTD_compressBound(entry->cubin_size);
  char *made = dw__alloc(HEADER_SIZE + metadata_size + bound + CHECKSUM_SIZE);
  if (!made) return DW_OUT_OF_MEMORY;

  char *packed = made + HEADER_SIZE + metadata_size;
  size_t packed_size = ZSTD_compress(packed, bound, entry->cubin, entry->cubin_size, ZSTD_LEVEL);
  if (ZSTD_isError(packed_size)) {  // the room is enough, so memory is all that can be missing
    dw__release(made);
    return DW_OUT_OF_MEMORY;
  }
  put_prefix(made, ENTRY_MAGIC);
  memcpy(made + 16, entry->build.bytes, 32);
  dw__put(made + 48, metadata_size, 8);
  dw__put(made + 56, entry->cubin_size, 8);
  dw__put(made + 64, packed_size, 8);
  memcpy(made + HEADER_SIZE, metadata, metadata_size);
  put_checksum(made, HEADER_SIZE + metadata_size + packed_size);
  *bytes = made;
  *size = HEADER_SIZE + metadata_size + packed_size + CHECKSUM_SIZE;
  return DW_OK;
}

typedef struct layout {
  const char *metadata, *packed;
  size_t metadata_size, packed_size, cubin_size;
} layout;

// Everything that can be said without unpacking. The limits come first: the sums below them cannot overflow.
static const char *read_layout(const char *bytes, size_t size, const dw__digest *build, layout *parts) {
  const char *damaged = refuse_prefix(bytes, size, ENTRY_MAGIC, HEADER_SIZE + CHECKSUM_SIZE);
  if (damaged) return damaged;
  uint64_t metadata_size = dw__get(bytes + 48, 8), cubin_size = dw__get(bytes + 56, 8), packed_size = dw__get(bytes + 64, 8);
  if (metadata_size > DW__METADATA_MOST) return "metadata size out of range";
  if (cubin_size == 0 || cubin_size > DW__CUBIN_MOST) return "cubin size out of range";
  if (packed_size > size) return "packed size out of range";
  if (HEADER_SIZE + metadata_size + packed_size + CHECKSUM_SIZE != size) return "sizes do not add up";
  if ((damaged = refuse_checksum(bytes, size))) return damaged;
  if (memcmp(bytes + 16, build->bytes, 32)) return "holds another key than its name says";
  if (memchr(bytes + HEADER_SIZE, 0, metadata_size)) return "metadata is not text";

  *parts = (layout){bytes + HEADER_SIZE, bytes + HEADER_SIZE + metadata_size, metadata_size, packed_size, cubin_size};
  // One frame that says its size and fills its place: then unpacking needs exactly the memory that the header names.
  if (ZSTD_findFrameCompressedSize(parts->packed, packed_size) != packed_size) return "not one zstd frame";
  if (ZSTD_getFrameContentSize(parts->packed, packed_size) != cubin_size) return "zstd frame is of another size";
  return NULL;
}

static dw_status unpack_cubin(const layout *parts, dw__entry *entry, const char **damaged) {
  entry->cubin = dw__alloc(parts->cubin_size);
  if (!entry->cubin) return DW_OUT_OF_MEMORY;
  size_t got = ZSTD_decompress(entry->cubin, parts->cubin_size, parts->packed, parts->packed_size);
  if (got == parts->cubin_size) return DW_OK;
  if (ZSTD_isError(got) && ZSTD_getErrorCode(got) == ZSTD_error_memory_allocation) return DW_OUT_OF_MEMORY;
  *damaged = "zstd frame cannot be unpacked";
  return DW_BAD_CUBIN;
}

dw_status dw__entry_unpack(const char *bytes, size_t size, const dw__digest *build, bool with_cubin, dw__entry *entry,
                           const char **damaged) {
  layout parts;
  *entry = (dw__entry){.build = *build};
  *damaged = read_layout(bytes, size, build, &parts);
  if (*damaged) return DW_BAD_CUBIN;

  dw_status status = DW_OUT_OF_MEMORY;
  entry->cubin_size = parts.cubin_size;
  entry->metadata = dw__alloc(parts.metadata_size + 1);
  if (entry->metadata) {
    memcpy(entry->metadata, parts.metadata, parts.metadata_size);
    entry->metadata[parts.metadata_size] = 0;
    status = with_cubin ? unpack_cubin(&parts, entry, damaged) : DW_OK;
  }
  if (status) dw__entry_free(entry);
  return status;
}

dw_status dw__entry_copy(const dw__entry *from, dw__entry *to) {
  *to = (dw__entry){.request = from->request, .build = from->build, .cubin_size = from->cubin_size};
  to->metadata = dw__strdup(from->metadata ? from->metadata : "");
  to->cubin = dw__alloc(from->cubin_size);
  if (!to->metadata || !to->cubin) {
    dw__entry_free(to);
    return DW_OUT_OF_MEMORY;
  }
  memcpy(to->cubin, from->cubin, from->cubin_size);
  return DW_OK;
}

void dw__entry_free(dw__entry *entry) {
  if (!entry) return;
  dw__release(entry->metadata);
  dw__release(entry->cubin);
  *entry = (dw__entry){0};
}
