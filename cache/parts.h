// What the files of this folder share; nobody else includes it.
//
//   key.c        what decides a cubin
//   entry.c      an entry as bytes
//   directory.c  which directory, and whether to trust it
//   index.c      entries seen by this process
//   store.c      cache.h: find, publish, scan, clear
//   bundle*.c    bundle.h: many entries in one file
#ifndef DRAFTWOOD_CACHE_PARTS_H
#define DRAFTWOOD_CACHE_PARTS_H

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
  char text[768];  // a sentence with the path in it
} dw__fault;

// The absolute path by the rules of cache.h, dw__alloc'ed; NULL with a reason in the fault (UNSAFE is never given here).
char *dw__directory_choose(const char *directory, dw__fault *fault);
// Of the f_type that statfs reports.
bool dw__filesystem_is_remote(unsigned long type);
// Could the directory be made or written? Touches nothing.
bool dw__directory_probe(const char *root, dw__fault *fault);
// Opens root/parts[0]/parts[1]..., NULL-terminated, checking each; with `create` makes what is missing. -1 with a fault.
int dw__directory_open(const char *root, const char *const *parts, bool create, dw__fault *fault);
// A file of it: regular, ours or root's, no link, at most `most` bytes.
bool dw__directory_read(int directory, const char *name, size_t most, char **bytes, size_t *size, dw__fault *fault);
// Whole or not at all: written aside in `temporary`, synced, renamed.
bool dw__directory_write(int temporary, int directory, const char *name, const char *bytes, size_t size, dw__fault *fault);

typedef struct dw__names {
  char (*name)[65];
  size_t count, capacity;
} dw__names;
// Names of `length` lower-case hex digits that start with prefix, sorted. Free with dw__release(names->name).
bool dw__directory_list(int directory, const char *prefix, size_t length, dw__names *names, dw__fault *fault);

// ---- index.c --------------------------------------------------------------------------------------------------
typedef struct dw__index dw__index;
dw__index *dw__index_create(void);
void dw__index_free(dw__index *index);
// Keeps a copy; replaces what was there for the same keys.
dw_status dw__index_put(dw__index *index, const dw__entry *entry);
// DW_OK with a copy, DW_NOT_FOUND or DW_OUT_OF_MEMORY.
dw_status dw__index_find(dw__index *index, const dw__digest *request, dw__entry *entry);
dw_status dw__index_find_build(dw__index *index, const dw__digest *build, dw__entry *entry);
// Forgets everything; returns how many entries there were.
uint64_t dw__index_clear(dw__index *index);

#endif
