// Bundles: many cubins in one file, made beforehand and only ever read. See bundle.c for the layout.
//
// A bundle is immutable once it is open and may be read by many threads. Nothing is mapped: the index of a file is read into
// memory, a payload is read when it is used. So a file that shrinks, or a network that fails, is an error and never a signal.
#ifndef DRAFTWOOD_BUNDLE_H
#define DRAFTWOOD_BUNDLE_H

#include "cache.h"

#define DW__BUNDLE_SCHEMA 1
#define DW__BUNDLE_KEY_SIZE 32    // an Ed25519 public key, and the seed of a secret one
#define DW__BUNDLE_NONE SIZE_MAX  // no such entry

// What decides whether a library can find anything in a bundle.
typedef struct dw__bundle_facts {
  char version[32];  // of the library that made it
  int abi;           // layout number of dw_params
  dw__digest templates;
} dw__bundle_facts;

typedef struct dw__bundle_item {
  dw__digest request, build;
  dw__digest metadata_digest, packed_digest;  // SHA-256 of the bytes in the file
  char target[16];
  uint64_t metadata_size, packed_size, cubin_size;
} dw__bundle_item;

// ---- reading --------------------------------------------------------------------------------------------------
typedef struct dw__bundle dw__bundle;

// Checks header, index and, with a public key, who signed them; payloads are checked when they are read. DW_BAD_BUNDLE with what is
// wrong, DW_IO or DW_OUT_OF_MEMORY. Without a key a file that everybody can write is refused.
dw_status dw__bundle_open_file(const char *path, const unsigned char *public_key, dw__bundle **bundle, dw_error *error);
// The bytes stay the caller's, unchanged until dw__bundle_close; any alignment.
dw_status dw__bundle_open_memory(const void *data, size_t size, const unsigned char *public_key, dw__bundle **bundle,
                                 dw_error *error);
void dw__bundle_close(dw__bundle *bundle);

const char *dw__bundle_name(const dw__bundle *bundle);  // the path, or "bundle in memory"
uint64_t dw__bundle_size(const dw__bundle *bundle);     // bytes
const dw__bundle_facts *dw__bundle_facts_of(const dw__bundle *bundle);
// The key that signed it, with a signature that holds; NULL: not signed. Only a key given at opening says that it is the right one.
const unsigned char *dw__bundle_signer(const dw__bundle *bundle);

// Entries are numbered in ascending order of their request keys. Finding allocates and reads nothing.
size_t dw__bundle_count(const dw__bundle *bundle);
size_t dw__bundle_find(const dw__bundle *bundle, const dw__digest *request);
void dw__bundle_item_at(const dw__bundle *bundle, size_t i, dw__bundle_item *item);
// DW_BAD_BUNDLE names the entry that is damaged. Free with dw__entry_free; without the cubin, entry->cubin is NULL.
dw_status dw__bundle_read(const dw__bundle *bundle, size_t i, bool with_cubin, dw__entry *entry, dw_error *error);

// The cache asks it before its directory from now on. It is the cache's, also where this fails.
dw_status dw__cache_add_bundle(dw__cache *cache, dw__bundle *bundle, dw_error *error);

// ---- writing --------------------------------------------------------------------------------------------------
// The bytes are a pure function of facts, entries and key: the order of adding, threads, time and place do not show.
typedef struct dw__bundle_writer dw__bundle_writer;
dw__bundle_writer *dw__bundle_writer_create(const dw__bundle_facts *facts);  // NULL: out of memory
void dw__bundle_writer_free(dw__bundle_writer *writer);
size_t dw__bundle_writer_count(const dw__bundle_writer *writer);  // entries
// Both keep copies. The same request twice is no harm where it led to the same bytes; else DW_BAD_BUNDLE names it.
dw_status dw__bundle_writer_add(dw__bundle_writer *writer, const dw__entry *entry, const char *target, dw_error *error);
dw_status dw__bundle_writer_copy(dw__bundle_writer *writer, const dw__bundle *from, size_t i, dw_error *error);
// Takes the next bytes of the file; 0 or an errno value, which ends it.
typedef int (*dw__bundle_emit)(void *user, const void *bytes, size_t size);
// seed: of the Ed25519 key to sign with, or NULL. *size: of the whole.
dw_status dw__bundle_writer_finish(dw__bundle_writer *writer, const unsigned char *seed, dw__bundle_emit emit, void *user,
                                   size_t *size, dw_error *error);

#endif
