// Keys and bytes. Knows nothing of templates, compilers or drivers.
//
// Two keys. The request key names what was asked (canonical shape + variant + template digest + ABI number + compile target)
// and needs no compiler; the build key names what was compiled (source bytes, ordered options, target, NVRTC version and build
// id). man/ maps request -> build, obj/ holds the entries. See ARCHITECTURE.md for the directory.
#ifndef DRAFTWOOD_CACHE_H
#define DRAFTWOOD_CACHE_H

#include "core.h"

#define DW__CACHE_SCHEMA 1

typedef struct dw__request_key_input {
  const char *shape, *variant;  // canonical texts
  const char *compile_target;   // "sm_120f"
  dw__digest templates;
  int abi;  // layout number of dw_params
} dw__request_key_input;
dw__digest dw__request_key(const dw__request_key_input *input);

typedef struct dw__build_key_input {
  const char *source;
  size_t source_size;
  const char *const *options;  // in the order they are passed
  size_t option_count;
  const char *compile_target;
  const char *compiler;        // "nvrtc 13.0.88"
  const char *compiler_build;  // build id of the shared object, hex; "" if it has none
} dw__build_key_input;
dw__digest dw__build_key(const dw__build_key_input *input);

// What an entry holds. `metadata` is a JSON object (shape, variant, target, compiler, resources, compile_ms).
typedef struct dw__entry {
  dw__digest request, build;
  char *metadata;  // 0-terminated
  void *cubin;
  size_t cubin_size;
} dw__entry;
void dw__entry_free(dw__entry *entry);

typedef struct dw__cache dw__cache;
typedef void (*dw__warn_fn)(void *user, const char *message);

typedef struct dw__cache_options {
  // NULL = the default rules (DRAFTWOOD_CACHE_DIR, XDG_CACHE_HOME/draftwood, HOME/.cache/draftwood), "" = memory only. Empty variables
  // count as unset, the last two must be absolute.
  const char *directory;
  const char *system_directories;  // parted by colons; NULL: $DRAFTWOOD_SYSTEM_CACHE, "": none
  int shared;                      // 1: the directory's group is trusted; 0: as $DRAFTWOOD_CACHE_SHARED says (1 or 0)
  uint64_t limit;                  // bytes; 0: $DRAFTWOOD_CACHE_LIMIT, else 512 MiB
  int slots;                       // compiles at once on this host; 0: $DRAFTWOOD_COMPILE_SLOTS, else after cores and memory
  int failure_seconds;             // how long a failed compile is believed; 0: an hour
  int remote;                      // 0: ask the filesystem; 1: it is shared with other hosts (for tests)
  dw__warn_fn warn;
  void *warn_user;
} dw__cache_options;
// Never fails for want of a directory, or of one that nobody else can write: it then keeps entries in memory and warns once
// with the reason. The first publish creates it. DW_OUT_OF_MEMORY, or DW_BAD_ARGUMENT for a variable that cannot be read.
dw_status dw__cache_open_with(const dw__cache_options *options, dw__cache **cache, dw_error *error);
// The same with a directory alone.
dw_status dw__cache_open(const char *directory, dw__warn_fn warn, void *user, dw__cache **cache, dw_error *error);
void dw__cache_close(dw__cache *cache);
// The directory in use, or NULL with the reason in *why when memory only.
const char *dw__cache_directory(const dw__cache *cache, const char **why);
bool dw__cache_is_remote(const dw__cache *cache);
bool dw__cache_is_shared(const dw__cache *cache);
uint64_t dw__cache_limit(const dw__cache *cache);
// "512M" -> bytes; K, M and G are powers of 1024.
bool dw__size_parse(const char *text, uint64_t *bytes);

// DW_OK with a copy of the entry (free with dw__entry_free), or DW_NOT_FOUND. A damaged entry is DW_NOT_FOUND and is counted.
dw_status dw__cache_find(dw__cache *cache, const dw__digest *request, dw__entry *entry, dw_error *error);
// The same, and where it was.
typedef struct dw__found {
  enum { DW__NOWHERE, DW__IN_MEMORY, DW__IN_DIRECTORY } place;
  const char *layer;  // the layer's name, or NULL
} dw__found;
dw_status dw__cache_find_where(dw__cache *cache, const dw__digest *request, dw__entry *entry, dw__found *found,
                               dw_error *error);
// Finds by build key (another request may have produced the same source). entry->request stays zero: publish with yours.
dw_status dw__cache_find_build(dw__cache *cache, const dw__digest *build, dw__entry *entry, dw_error *error);
// Publishes atomically. A failure to write is a counter and one warning, never an error; only out of memory is returned.
dw_status dw__cache_publish(dw__cache *cache, const dw__entry *entry, dw_error *error);

// A compile that failed, and what to say of it; peers read it too, until it expires. Losing it is no error.
void dw__cache_fail(dw__cache *cache, const dw__digest *build, const char *text);
// The text (dw__release), or NULL: not known to fail.
char *dw__cache_failure(dw__cache *cache, const dw__digest *build);

// From here on finding is a look into this process's memory, without lock, file or allocation but the copy it returns; publishing
// and failures do nothing. No call that changes something may be in progress.
void dw__cache_freeze(dw__cache *cache);

// ---- locks: they save work, never correctness -----------------------------------------------------------------
// Bytes of one file, locked by open file description: a process that ends, however, has none. Where there is no directory for
// such a file (memory only, a filesystem of several hosts), or no right to lock, the answer is UNLOCKABLE: go on without.
typedef enum dw__lock_state { DW__LOCKED, DW__BUSY, DW__UNLOCKABLE } dw__lock_state;
typedef struct dw__lock {
  int fd;  // -1: nothing is held
} dw__lock;
// The right to compile a request. Never waits.
dw__lock_state dw__cache_try_lock(dw__cache *cache, const dw__digest *request, dw__lock *lock);
// One of the host's compile slots. Where the directory has no locks they are kept in $XDG_RUNTIME_DIR/draftwood, else in
// /tmp/draftwood-<user id>. Never waits.
dw__lock_state dw__cache_try_slot(dw__cache *cache, dw__lock *lock);
int dw__cache_slots(const dw__cache *cache);
void dw__lock_release(dw__lock *lock);

// ---- layers: what is only read --------------------------------------------------------------------------------
// A place that entries come from and that is never written: a bundle, a directory of the system. No locks are taken for it.
typedef struct dw__layer {
  const char *name;  // for messages and `explain`: a path, or "bundle in memory". Copied
  void *user;
  // DW_OK with a copy of the entry, request key included (freed with dw__entry_free); DW_NOT_FOUND; DW_OUT_OF_MEMORY; or DW_BAD_CUBIN
  // with the reason in *damaged, which counts as a miss and is told once. Called by many threads at once.
  dw_status (*find)(void *user, const dw__digest *request, dw__entry *entry, const char **damaged);
  void (*close)(void *user);  // by dw__cache_close, or by a dw__cache_add_layer that fails. May be NULL
} dw__layer;
// Bundles of the host are asked before the directory, directories of the system after it; within a place the first added is
// asked first and the first hit wins.
typedef enum dw__layer_place { DW__LAYER_BUNDLE, DW__LAYER_SYSTEM, DW__LAYER_PLACES } dw__layer_place;
#define DW__LAYERS_MAX 32  // of a place
// Takes over the layer's user, also where it fails (out of memory, too many). May be called while others find.
dw_status dw__cache_add_layer(dw__cache *cache, const dw__layer *layer, dw__layer_place place, dw_error *error);
// The i-th layer's name in the order they are asked, NULL past the end; *place may be NULL.
const char *dw__cache_layer_name(const dw__cache *cache, size_t i, dw__layer_place *place);

// Does the open file lie on a filesystem that other hosts may share (NFS, SMB, Lustre, FUSE...)? There nothing is mapped into
// memory, where a file cut short by somebody else would end the process, and no lock is relied on.
bool dw__file_is_remote(int fd);

typedef struct dw__cache_stats {
  uint64_t hits_memory, hits_disk, hits_layers, misses, damaged, publish_failures, published, evicted;
  uint64_t entries, bytes;  // on disk; filled by dw__cache_scan only
} dw__cache_stats;
void dw__cache_counters(dw__cache *cache, dw__cache_stats *stats);

// Calls visit for every entry on disk, sorted by file name; entry->cubin is NULL if !with_cubin. visit returns false to stop.
// entry->request is the lowest request key that leads there, zero if none does.
// path: the entry's file. damaged: NULL, or why the file cannot be read (entry then has only what its name says).
typedef bool (*dw__cache_visit)(void *user, const char *path, uint64_t file_size, const dw__entry *entry, const char *damaged);
dw_status dw__cache_scan(dw__cache *cache, bool with_cubin, dw__cache_visit visit, void *user, dw_error *error);
// Removes every entry and failure (not the directory itself, not tune/). Returns how many entries.
dw_status dw__cache_clear(dw__cache *cache, uint64_t *removed, dw_error *error);

typedef struct dw__trimmed {
  uint64_t removed, removed_bytes, kept, kept_bytes;  // entries
} dw__trimmed;
// Removes the entries that were used longest ago until the others have at most `limit` bytes, but none younger than an hour; then
// manifests that lead nowhere, failures that have expired and what killed processes left. dry_run: only says what it would do.
dw_status dw__cache_trim(dw__cache *cache, uint64_t limit, bool dry_run, dw__trimmed *trimmed, dw_error *error);

#endif
