// A bundle, written; see bundle.c for the layout.
#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "bundle_layout.h"
#include "parts.h"

// Bundles are made once and shipped often.
enum { ZSTD_LEVEL = 19 };

// An entry on its way in.
typedef struct part {
  dw__bundle_item item;
  char *metadata, *packed;
  uint64_t metadata_offset, packed_offset;  // given when the bundle is finished
} part;

struct dw__bundle_writer {
  dw__bundle_facts facts;
  part *parts;  // ascending by request key
  size_t count, capacity;
};

static dw_status no_memory(dw_error *error) { return dw__fail(error, DW_OUT_OF_MEMORY, "bundle", "", "", "out of memory"); }

dw__bundle_writer *dw__bundle_writer_create(const dw__bundle_facts *facts) {
  dw__bundle_writer *writer = dw__calloc(1, sizeof *writer);
  if (writer) writer->facts = *facts;
  return writer;
}

static void free_part(part *p) {
  dw__release(p->metadata);
  dw__release(p->packed);
}

void dw__bundle_writer_free(dw__bundle_writer *writer) {
  if (!writer) return;
  for (size_t i = 0; i < writer->count; i++) free_part(&writer->parts[i]);
  dw__release(writer->parts);
  dw__release(writer);
}

size_t dw__bundle_writer_count(const dw__bundle_writer *writer) { return writer->count; }

// ---- adding ---------------------------------------------------------------------------------------------------

// The first part whose request key is not below this one.
static size_t place_of(const dw__bundle_writer *writer, const dw__digest *request) {
  size_t low = 0, high = writer->count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (memcmp(&writer->parts[middle].item.request, request, sizeof *request) < 0) low = middle + 1;
    else high = middle;
  }
  return low;
}

static dw_status conflict(const part *a, const part *b, dw_error *error) {
  char found[65], other[65];
  bool same_build = dw__digest_equal(&a->item.build, &b->item.build);
  dw__hex(&a->item.build, found);
  dw__hex(&b->item.build, other);
  return dw__fail(error, DW_BAD_BUNDLE, "bundle", "", "", "entries %.12s and %.12s (%s) serve the same request with %s: %.400s",
                  other, found, a->item.target, same_build ? "different bytes" : "different builds", a->metadata);
}

static bool reserve(dw__bundle_writer *writer) {
  if (writer->count < writer->capacity) return true;
  size_t capacity = writer->capacity ? 2 * writer->capacity : 64;
  part *grown = dw__realloc(writer->parts, capacity * sizeof *grown);
  if (!grown) return false;
  writer->parts = grown;
  writer->capacity = capacity;
  return true;
}

// Takes the part's memory, also where it fails.
static dw_status put(dw__bundle_writer *writer, part *made, dw_error *error) {
  size_t at = place_of(writer, &made->item.request);
  part *there = at < writer->count ? &writer->parts[at] : NULL;
  dw_status status = DW_OK;
  if (there && dw__digest_equal(&there->item.request, &made->item.request)) {
    if (memcmp(&there->item, &made->item, sizeof made->item)) status = conflict(made, there, error);
    free_part(made);
    return status;
  }
  if (writer->count == DW__BUNDLE_ENTRIES_MOST) {
    status = dw__fail_int(error, DW_BAD_BUNDLE, "bundle", (long long)writer->count + 1, "up to 262144", "entries");
  } else if (!reserve(writer)) {
    status = no_memory(error);
  }
  if (status) {
    free_part(made);
    return status;
  }
  memmove(&writer->parts[at + 1], &writer->parts[at], (writer->count - at) * sizeof *made);
  writer->parts[at] = *made;
  writer->count++;
  return DW_OK;
}

static bool pack(part *made, const dw__entry *entry) {
  size_t bound = ZSTD_compressBound(entry->cubin_size);
  char *room = dw__alloc(bound), *packed = NULL;
  size_t size = room ? ZSTD_compress(room, bound, entry->cubin, entry->cubin_size, ZSTD_LEVEL) : 0;
  if (room && !ZSTD_isError(size)) packed = dw__alloc(size);  // the room is enough, so memory is all that can be missing
  if (packed) {
    memcpy(packed, room, size);
    made->packed = packed;
    made->item.packed_size = size;
    made->item.packed_digest = dw__sha256(packed, size);
  }
  dw__release(room);
  return packed != NULL;
}

dw_status dw__bundle_writer_add(dw__bundle_writer *writer, const dw__entry *entry, const char *target, dw_error *error) {
  const char *refused = dw__entry_refuse(entry), *metadata = entry->metadata ? entry->metadata : "";
  if (!refused && (!*target || strlen(target) >= sizeof((dw__bundle_item *)0)->target)) refused = "the target has no name";
  if (refused) return dw__fail(error, DW_BAD_ARGUMENT, "entry", target, "", "%s", refused);
  part made = {.item = {.request = entry->request, .build = entry->build, .cubin_size = entry->cubin_size}};
  memcpy(made.item.target, target, strlen(target));
  made.item.metadata_size = strlen(metadata);
  made.item.metadata_digest = dw__sha256(metadata, made.item.metadata_size);
  made.metadata = dw__strdup(metadata);
  if (made.metadata && pack(&made, entry)) return put(writer, &made, error);
  free_part(&made);
  return no_memory(error);
}

// As it is packed: the same bytes as in the bundle it comes from.
dw_status dw__bundle_writer_copy(dw__bundle_writer *writer, const dw__bundle *from, size_t i, dw_error *error) {
  const char *packed;
  char *owned;
  dw__entry entry;
  part made = {0};
  dw__bundle_item_at(from, i, &made.item);
  dw_status status = dw__bundle_packed(from, i, &packed, &owned, error);
  if (status) return status;
  status = dw__bundle_read(from, i, false, &entry, error);
  if (!status) {
    made.metadata = entry.metadata;
    made.packed = dw__alloc(made.item.packed_size);
    if (made.packed) memcpy(made.packed, packed, made.item.packed_size);
    else status = no_memory(error);
  }
  dw__release(owned);
  if (!status) return put(writer, &made, error);
  free_part(&made);
  return status;
}

// ---- finishing ------------------------------------------------------------------------------------------------

static int compare_builds(const void *a, const void *b, void *user) {
  const part *parts = user;
  const uint32_t *i = a, *j = b;
  int sign = memcmp(&parts[*i].item.build, &parts[*j].item.build, sizeof(dw__digest));
  return sign ? sign : *i < *j ? -1 : *i > *j;
}

// Numbers ascending by build key.
static uint32_t *make_order(const dw__bundle_writer *writer) {
  uint32_t *order = dw__alloc((writer->count + 1) * sizeof *order);
  if (!order) return NULL;
  for (size_t i = 0; i < writer->count; i++) order[i] = (uint32_t)i;
  qsort_r(order, writer->count, sizeof *order, compare_builds, writer->parts);
  return order;
}

// Metadata in the order of the index, cubins by build key; what is the same is there once.
static dw__bundle_layout place_parts(dw__bundle_writer *writer, const uint32_t *order) {
  uint64_t metadata = 0, packed = 0;
  for (size_t i = 0; i < writer->count; i++) metadata += writer->parts[i].item.metadata_size;
  dw__bundle_layout at = dw__bundle_lay_out(writer->count, metadata, 0);
  for (size_t i = 0, offset = at.metadata; i < writer->count; i++) {
    writer->parts[i].metadata_offset = offset;
    offset += writer->parts[i].item.metadata_size;
  }
  const part *before = NULL;
  for (size_t i = 0; i < writer->count; i++) {
    part *p = &writer->parts[order[i]];
    bool shared = before && dw__digest_equal(&before->item.packed_digest, &p->item.packed_digest);
    p->packed_offset = shared ? before->packed_offset : at.packed + packed;
    if (!shared) packed += p->item.packed_size;
    before = p;
  }
  return dw__bundle_lay_out(writer->count, metadata, packed);
}

static void put_header(const dw__bundle_writer *writer, const dw__bundle_layout *at, char *bytes) {
  memcpy(bytes, DW__BUNDLE_MAGIC, 8);
  dw__put(bytes + 8, DW__BUNDLE_SCHEMA, 4);
  dw__put(bytes + 16, at->count, 8);
  dw__put(bytes + 24, at->packed - at->metadata, 8);
  dw__put(bytes + 32, at->size - at->packed, 8);
  dw__put(bytes + 40, at->size, 8);
  dw__put(bytes + 48, (uint64_t)writer->facts.abi, 4);
  memcpy(bytes + 64, writer->facts.templates.bytes, 32);
  memcpy(bytes + 96, writer->facts.version, sizeof writer->facts.version);
}

static void put_item(const part *p, char *item) {
  memcpy(item, &p->item, 128);  // four digests
  memcpy(item + 128, p->item.target, sizeof p->item.target);
  dw__put(item + 144, p->metadata_offset, 8);
  dw__put(item + 152, p->item.metadata_size, 8);
  dw__put(item + 160, p->packed_offset, 8);
  dw__put(item + 168, p->item.packed_size, 8);
  dw__put(item + 176, p->item.cubin_size, 8);
}

static void sign(char *bytes, const dw__bundle_layout *at, const unsigned char *seed) {
  unsigned char public_key[crypto_sign_PUBLICKEYBYTES], secret[crypto_sign_SECRETKEYBYTES];
  unsigned char *block = (unsigned char *)bytes + at->signature;
  crypto_sign_seed_keypair(public_key, secret, seed);
  memcpy(block, public_key, sizeof public_key);
  crypto_sign_detached(block + sizeof public_key, NULL, (unsigned char *)bytes, at->signature, secret);
  sodium_memzero(secret, sizeof secret);
}

// Header, index and signature.
static char *make_head(const dw__bundle_writer *writer, const dw__bundle_layout *at, const unsigned char *seed) {
  char *head = dw__calloc(1, at->metadata);
  if (!head) return NULL;
  put_header(writer, at, head);
  for (size_t i = 0; i < at->count; i++) put_item(&writer->parts[i], head + DW__BUNDLE_HEADER + i * DW__BUNDLE_ITEM);
  dw__digest digest = dw__bundle_digest(head, at);
  memcpy(head + DW__BUNDLE_DIGEST, digest.bytes, sizeof digest.bytes);
  if (seed) sign(head, at, seed);
  return head;
}

static int emit_all(const dw__bundle_writer *writer, const dw__bundle_layout *at, const char *head, const uint32_t *order,
                    dw__bundle_emit emit, void *user) {
  int why = emit(user, head, at->metadata);
  for (size_t i = 0; i < at->count && !why; i++) {
    why = emit(user, writer->parts[i].metadata, writer->parts[i].item.metadata_size);
  }
  uint64_t offset = at->packed;
  for (size_t i = 0; i < at->count && !why; i++) {
    const part *p = &writer->parts[order[i]];
    if (p->packed_offset < offset) continue;  // shared, and there already
    why = emit(user, p->packed, p->item.packed_size);
    offset += p->item.packed_size;
  }
  return why;
}

dw_status dw__bundle_writer_finish(dw__bundle_writer *writer, const unsigned char *seed, dw__bundle_emit emit, void *user,
                                   size_t *size, dw_error *error) {
  uint32_t *order = make_order(writer);
  if (!order) return no_memory(error);
  dw__bundle_layout at = place_parts(writer, order);
  char *head = make_head(writer, &at, seed);
  int why = head ? emit_all(writer, &at, head, order, emit, user) : ENOMEM;
  dw__release(head);
  dw__release(order);
  *size = at.size;
  if (why == ENOMEM) return no_memory(error);
  return why ? dw__fail(error, DW_IO, "bundle", "", "", "it cannot be written: %s", strerror(why)) : DW_OK;
}
