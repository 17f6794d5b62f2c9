// What the files of this folder share; nobody else includes it.
//
//   key.c        what decides a cubin
//   entry.c      an entry as bytes
//   directory.c  which directory, and whether to trust it
//   index.c      entries and failures seen by this process
//   layers.c     bundles and directories that are only read
//   locks.c      who compiles what, and how many at once
//   store.c      cache.h: open, find, publish
//   walk.c       cache.h: scan, clear, trim
//   bundle*.c    bundle.h: many entries in one file
#ifndef DRAFTWOOD_CACHE_PARTS_H
#define DRAFTWOOD_CACHE_PARTS_H

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "cache.h"

#define DW__TEXT_OF(value) #value
#define DW__TEXT_OF_VALUE(value) DW__TEXT_OF(value)
// A new schema is a new folder, so that two versions never meet in one file.
#define DW__CACHE_VERSION "v" DW__TEXT_OF_VALUE(DW__CACHE_SCHEMA)

// ---- numbers in files, little-endian ----------------------------------------------------------------------------
static inline void dw__put(char *at, uint64_t number, int size) {
  for (int i = 0; i < size; i++) at[i] = (char)(unsigned char)(number >> 8 * i);
}

static inline uint64_t dw__get(const char *at, int size) {
  uint64_t number = 0;
  for (int i = 0; i < size; i++) number |= (uint64_t)(unsigned char)at[i] << 8 * i;
  return number;
}

// ---- entry.c --------------------------------------------------------------------------------------------------
// Larger than any kernel; a size above these is damage, and is refused before memory is asked for.
#define DW__METADATA_MOST ((size_t)1 << 20)
#define DW__CUBIN_MOST ((size_t)64 << 20)
#define DW__MANIFEST_SIZE 96

bool dw__digest_equal(const dw__digest *a, const dw__digest *b);
size_t dw__entry_file_most(void);
// Is this something that can be stored? NULL, or why not.
const char *dw__entry_refuse(const dw__entry *entry);
// The file's bytes, a pure function of build key, metadata and cubin. DW_OK or DW_OUT_OF_MEMORY.
dw_status dw__entry_pack(const dw__entry *entry, char **bytes, size_t *size);
// DW_OK, DW_OUT_OF_MEMORY, or DW_BAD_CUBIN with the reason in *damaged. The request key stays zero: many may share an entry.
dw_status dw__entry_unpack(const char *bytes, size_t size, const dw__digest *build, bool with_cubin, dw__entry *entry,
                           const char **damaged);
// A failed compile: when it was (seconds since 1970), for how long it is believed, and a text.
#define DW__FAILURE_MOST ((size_t)1 << 20)
dw_status dw__failure_pack(const dw__digest *build, int64_t time, int64_t seconds, const char *text, char **bytes,
                           size_t *size);
// The text within the bytes is closed by a 0 of their own. NULL with *text NULL: sound, but it has expired.
const char *dw__failure_unpack(char *bytes, size_t size, const dw__digest *build, int64_t now, const char **text);
// A manifest says which build a request led to.
void dw__manifest_pack(const dw__digest *request, const dw__digest *build, char bytes[DW__MANIFEST_SIZE]);
const char *dw__manifest_unpack(const char *bytes, size_t size, const dw__digest *request, dw__digest *build);
dw_status dw__entry_copy(const dw__entry *from, dw__entry *to);

// ---- directory.c ----------------------------------------------------------------------------------------------
typedef enum dw__fault_kind {
  DW__FAULT_NONE,
  DW__FAULT_ABSENT,  // not there, which is no fault of anybody's
  DW__FAULT_UNSAFE,  // somebody else could have written it
  DW__FAULT_SYSTEM,  // the system refused; error says why
  DW__FAULT_MEMORY
} dw__fault_kind;

typedef struct dw__fault {
  dw__fault_kind kind;
  int error;       // errno value of FAULT_SYSTEM
  bool directory;  // it is about a directory, not about a file in it
  char text[768];  // a sentence with the path in it
} dw__fault;

// The absolute path by the rules of cache.h, dw__alloc'ed; NULL with a reason in the fault (UNSAFE is never given here).
char *dw__directory_choose(const char *directory, dw__fault *fault);
// Of the f_type that statfs reports.
bool dw__filesystem_is_remote(unsigned long type);
// Could the directory be made or written? Touches nothing. *remote: of the filesystem it would be on.
bool dw__directory_probe(const char *root, bool *remote, dw__fault *fault);
bool dw__path_is_remote(const char *path);
typedef struct dw__root {
  char *path;   // absolute
  bool shared;  // its group is trusted
} dw__root;
// Opens root/parts[0]/parts[1]..., NULL-terminated, checking each; with `create` makes what is missing. -1 with a fault.
int dw__directory_open(const dw__root *root, const char *const *parts, bool create, dw__fault *fault);
typedef struct dw__file {
  char *bytes;  // dw__release
  size_t size;
  time_t modified;
} dw__file;
// A file of it: regular, ours or root's (or, shared, anybody's), no link, at most `most` bytes.
bool dw__directory_read(int directory, const char *name, bool shared, size_t most, dw__file *file, dw__fault *fault);
// Whole or not at all: written aside in `temporary`, synced, renamed.
bool dw__directory_write(int temporary, int directory, const char *name, bool shared, const char *bytes, size_t size,
                         dw__fault *fault);
// Opens, or makes, an empty file for locks. -1 with a fault.
int dw__directory_lock_file(int directory, const char *name, bool shared, dw__fault *fault);
// The same for v1/<kind>/<first two digits of the key>/<key>.
int dw__shard_open(const dw__root *root, const char *kind, const char *name, bool create, dw__fault *fault);
bool dw__tree_read(const dw__root *root, const char *kind, const char *name, size_t most, dw__file *file, dw__fault *fault);
bool dw__tree_write(const dw__root *root, const char *kind, const char *name, const char *bytes, size_t size, dw__fault *fault);

typedef struct dw__names {
  char (*name)[65];
  size_t count, capacity;
} dw__names;
// Names of `length` lower-case hex digits that start with prefix, sorted. Free with dw__release(names->name).
bool dw__directory_list(int directory, const char *prefix, size_t length, dw__names *names, dw__fault *fault);

// ---- the cache ------------------------------------------------------------------------------------------------
typedef struct dw__layers {
  dw__layer list[DW__LAYERS_MAX];
  atomic_size_t count;  // those below it are complete and stay
} dw__layers;

struct dw__cache {
  dw__root root;  // path NULL: memory only was asked for, or there is no directory
  dw__layers layers[DW__LAYER_PLACES];
  struct dw__index *index;
  bool remote;                   // the directory is on a filesystem that other hosts may share
  bool without_files;            // memory only was asked for: nothing is written anywhere
  uint64_t limit;                // bytes of the directory
  int slots;                     // compiles at once on this host
  int failure_seconds;           // how long a failed compile is believed
  atomic_uint_fast64_t written;  // bytes since the directory was last measured
  atomic_bool swept;             // old files in tmp/ have been removed
  dw__warn_fn warn;
  void *warn_user;
  atomic_uint warned;
  atomic_bool frozen;
  atomic_bool memory_only;  // set once, after `reason`
  pthread_mutex_t lock;     // of `reason` and of adding layers
  char reason[768];
  atomic_uint_fast64_t hits_memory, hits_disk, hits_layers, misses, damaged, publish_failures, published, evicted, entries,
    bytes;
};

dw_status dw__cache_no_memory(dw_error *error);
// Counted, and the first told.
void dw__count_damaged(dw__cache *cache, const char *where, const char *name, const char *why);

// ---- layers.c -------------------------------------------------------------------------------------------------
// *name: of the layer that has it.
dw_status dw__layers_find(dw__cache *cache, dw__layer_place place, const dw__digest *request, dw__entry *entry,
                          const char **name);
dw_status dw__layers_add_directories(dw__cache *cache, const char *list, dw_error *error);
void dw__layers_close(dw__cache *cache);
// A directory of ours or of the system. DW_OK, DW_NOT_FOUND, DW_OUT_OF_MEMORY, or with the reason in *damaged DW_BAD_CUBIN (it has
// to be made again) or DW_IO (it could not be read).
dw_status dw__tree_manifest(const dw__root *root, const dw__digest *request, dw__digest *build, const char **damaged,
                            dw__fault *fault);
dw_status dw__tree_entry(const dw__root *root, const dw__digest *build, dw__entry *entry, time_t *modified,
                         const char **damaged, dw__fault *fault);

// ---- locks.c --------------------------------------------------------------------------------------------------
// How many compiles this host has cores and memory for; 1 or more.
int dw__host_slots(void);
// For measuring and evicting: one process at a time.
dw__lock_state dw__lock_trim(dw__cache *cache, dw__lock *lock);

// ---- walk.c ---------------------------------------------------------------------------------------------------
// After an entry of this build was written: evicts if the directory has become too large. Errors are nobody's concern here.
void dw__trim_after(dw__cache *cache, const dw__digest *build, uint64_t written);

// ---- index.c --------------------------------------------------------------------------------------------------
typedef struct dw__index dw__index;
dw__index *dw__index_create(void);
void dw__index_free(dw__index *index);
// Keeps a copy; replaces what was there for the same keys.
dw_status dw__index_put(dw__index *index, const dw__entry *entry);
// DW_OK with a copy, DW_NOT_FOUND or DW_OUT_OF_MEMORY.
dw_status dw__index_find(dw__index *index, const dw__digest *request, dw__entry *entry);
dw_status dw__index_find_build(dw__index *index, const dw__digest *build, dw__entry *entry);
// Failed compiles, `seconds` long. Finding gives a copy (dw__release), or NULL.
dw_status dw__index_fail(dw__index *index, const dw__digest *build, const char *text, double seconds);
char *dw__index_failure(dw__index *index, const dw__digest *build);
// From here on finding takes no lock, and nothing changes: puts do nothing. No put may be in progress.
void dw__index_freeze(dw__index *index);
// Forgets everything; returns how many entries there were.
uint64_t dw__index_clear(dw__index *index);

#endif
