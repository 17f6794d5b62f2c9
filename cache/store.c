// Open, find and publish: memory first, then the layers, of which the directory is the one that is written.
//
//   <directory>/CACHEDIR.TAG        tells backup programs to pass by
//   <directory>/v1/obj/ab/<build>   entries (entry.c), by build key
//   <directory>/v1/man/ab/<request> manifests: which build a request led to
//   <directory>/v1/neg/ab/<build>   failed compiles
//   <directory>/v1/tmp/             files being written; what a killed process left here is never read
//   <directory>/v1/locks            locks.c
//
// The disk only ever saves work. Whatever goes wrong with it is a miss or a counter and one warning; memory serves on. Opening
// creates nothing: the first publish does.
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "parts.h"

// Each is said once, or a bad disk would fill the host's log.
enum { WARN_DIRECTORY = 1, WARN_DAMAGED = 2, WARN_READ = 4, WARN_PUBLISH = 8 };
enum { USED_SECONDS = 3600 };  // how exact the time of last use has to be
#define NORMAL_LIMIT ((uint64_t)512 << 20)

// ---- reporting ------------------------------------------------------------------------------------------------

static void warn_once(dw__cache *cache, unsigned what, const char *format, ...) DW__PRINTF(3, 4);
static void warn_once(dw__cache *cache, unsigned what, const char *format, ...) {
  if (!cache->warn || (atomic_fetch_or(&cache->warned, what) & what)) return;
  char message[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  cache->warn(cache->warn_user, message);
}

// For good: a directory that others can write does not become trustworthy by waiting.
static void leave_disk(dw__cache *cache, const dw__fault *fault) {
  pthread_mutex_lock(&cache->lock);
  if (!atomic_load(&cache->memory_only)) {
    snprintf(cache->reason, sizeof cache->reason, "%s", fault->text);
    atomic_store(&cache->memory_only, true);
  }
  pthread_mutex_unlock(&cache->lock);
  warn_once(cache, WARN_DIRECTORY, "kernel cache: kept in memory only: %s", fault->text);
}

void dw__count_damaged(dw__cache *cache, const char *where, const char *name, const char *why) {
  atomic_fetch_add(&cache->damaged, 1);
  warn_once(cache, WARN_DAMAGED, "kernel cache %s: damaged, will be made again: %s: %s", where, name, why);
}

static dw_status count_publish_failure(dw__cache *cache, const char *why) {
  atomic_fetch_add(&cache->publish_failures, 1);
  warn_once(cache, WARN_PUBLISH, "kernel cache: could not store an entry: %s", why);
  return DW_OK;
}

dw_status dw__cache_no_memory(dw_error *error) { return dw__fail(error, DW_OUT_OF_MEMORY, "cache", "", "", "out of memory"); }

// ---- opening --------------------------------------------------------------------------------------------------

// What is there already must be sound; what is not there must be possible. Changes nothing on the disk.
static bool directory_usable(dw__cache *cache, dw__fault *fault) {
  static const char *const places[][3] = {
    {NULL}, {DW__CACHE_VERSION, "obj", NULL}, {DW__CACHE_VERSION, "man", NULL}, {DW__CACHE_VERSION, "tmp", NULL}};
  for (size_t i = 0; i < DW__COUNT(places); i++) {
    int fd = dw__directory_open(&cache->root, places[i], false, fault);
    if (fd >= 0) close(fd);
    else if (fault->kind != DW__FAULT_ABSENT) return false;
    else if (i == 0) return dw__directory_probe(cache->root.path, &cache->remote, fault);
    if (i == 0) cache->remote = dw__path_is_remote(cache->root.path);
  }
  return true;
}

bool dw__size_parse(const char *text, uint64_t *bytes) {
  static const char units[] = "KMG";
  char *end;
  if (text[0] < '0' || text[0] > '9') return false;
  errno = 0;
  unsigned long long number = strtoull(text, &end, 10);
  const char *unit = *end ? strchr(units, *end) : NULL;
  if (unit) end++;
  int shift = unit ? 10 * (int)(unit - units + 1) : 0;
  *bytes = (uint64_t)number << shift;
  return !errno && !*end && *bytes >> shift == number;
}

// From the environment where the option is 0. Programs with raised rights take options only.
static dw_status read_variables(const dw__cache_options *options, dw__cache *cache, dw_error *error) {
  const char *limit = secure_getenv("DRAFTWOOD_CACHE_LIMIT"), *shared = secure_getenv("DRAFTWOOD_CACHE_SHARED");
  const char *slots = secure_getenv("DRAFTWOOD_COMPILE_SLOTS");
  uint64_t number = NORMAL_LIMIT;
  if (!options->limit && limit && *limit && !dw__size_parse(limit, &number)) {
    return dw__fail(error, DW_BAD_ARGUMENT, "DRAFTWOOD_CACHE_LIMIT", limit, "bytes, as 1000000 or 512M", "the cache's size");
  }
  cache->limit = options->limit ? options->limit : number;
  if (!options->shared && shared && *shared && strcmp(shared, "0") != 0 && strcmp(shared, "1") != 0) {
    return dw__fail(error, DW_BAD_ARGUMENT, "DRAFTWOOD_CACHE_SHARED", shared, "0 or 1", "1 trusts the directory's group");
  }
  cache->root.shared = options->shared || (shared && !strcmp(shared, "1"));
  number = 0;
  if (!options->slots && slots && *slots && (!dw__size_parse(slots, &number) || number < 1 || number > 1024)) {
    return dw__fail(error, DW_BAD_ARGUMENT, "DRAFTWOOD_COMPILE_SLOTS", slots, "1 to 1024", "compiles at once on this host");
  }
  cache->slots = options->slots ? options->slots : number ? (int)number : dw__host_slots();
  return DW_OK;
}

// Without a usable directory the cache is one of memory only.
static dw_status choose_directory(dw__cache *cache, const dw__cache_options *options, dw_error *error) {
  dw__fault fault = {0};
  cache->root.path = dw__directory_choose(options->directory, &fault);
  bool usable = cache->root.path && directory_usable(cache, &fault);
  if (fault.kind == DW__FAULT_MEMORY) return dw__cache_no_memory(error);
  cache->remote |= options->remote != 0;
  // Memory only on request is nothing to warn of.
  cache->without_files = options->directory && !options->directory[0];
  if (cache->without_files) atomic_store(&cache->warned, WARN_DIRECTORY);
  if (!usable) leave_disk(cache, &fault);
  return DW_OK;
}

dw_status dw__cache_open_with(const dw__cache_options *options, dw__cache **out, dw_error *error) {
  *out = NULL;
  dw__cache *cache = dw__calloc(1, sizeof *cache);
  if (!cache || pthread_mutex_init(&cache->lock, NULL)) {
    dw__release(cache);
    return dw__cache_no_memory(error);
  }
  cache->index = dw__index_create();
  cache->warn = options->warn;
  cache->warn_user = options->warn_user;
  cache->failure_seconds = options->failure_seconds ? options->failure_seconds : 3600;
  const char *system = options->system_directories ? options->system_directories : secure_getenv("DRAFTWOOD_SYSTEM_CACHE");
  dw_status status = cache->index ? read_variables(options, cache, error) : dw__cache_no_memory(error);
  if (!status) status = choose_directory(cache, options, error);
  if (!status && system) status = dw__layers_add_directories(cache, system, error);
  atomic_store(&cache->written, cache->limit);
  if (status) dw__cache_close(cache);
  else *out = cache;
  return status;
}

dw_status dw__cache_open(const char *directory, dw__warn_fn warn, void *user, dw__cache **cache, dw_error *error) {
  return dw__cache_open_with(&(dw__cache_options){.directory = directory, .warn = warn, .warn_user = user}, cache, error);
}

void dw__cache_close(dw__cache *cache) {
  if (!cache) return;
  dw__layers_close(cache);
  dw__index_free(cache->index);
  pthread_mutex_destroy(&cache->lock);
  dw__release(cache->root.path);
  dw__release(cache);
}

const char *dw__cache_directory(const dw__cache *cache, const char **why) {
  bool memory_only = atomic_load(&cache->memory_only);
  if (why) *why = memory_only ? cache->reason : NULL;
  return memory_only ? NULL : cache->root.path;
}

bool dw__cache_is_remote(const dw__cache *cache) { return cache->remote; }
bool dw__cache_is_shared(const dw__cache *cache) { return cache->root.shared; }
uint64_t dw__cache_limit(const dw__cache *cache) { return cache->limit; }

void dw__cache_freeze(dw__cache *cache) {
  dw__index_freeze(cache->index);
  atomic_store(&cache->frozen, true);
}

// ---- find -----------------------------------------------------------------------------------------------------

// What could not be read is a miss, counted and told here. A bad file can be replaced by a good one; a bad directory cannot be
// trusted again.
static dw_status settle(dw__cache *cache, const dw__digest *key, dw_status status, const char *damaged,
                        const dw__fault *fault) {
  char name[65];
  if (status != DW_BAD_CUBIN && status != DW_IO) return status;
  dw__hex(key, name);
  if (status == DW_BAD_CUBIN && fault->kind == DW__FAULT_UNSAFE && fault->directory) leave_disk(cache, fault);
  else if (status == DW_BAD_CUBIN) dw__count_damaged(cache, cache->root.path, name, fault->kind ? fault->text : damaged);
  else warn_once(cache, WARN_READ, "kernel cache %s: cannot be read: %s", cache->root.path, fault->text);
  return DW_NOT_FOUND;
}

// So that eviction sees what is used. A time that lies ahead is set right too.
static void note_use(const dw__cache *cache, const dw__digest *build, time_t modified) {
  time_t now = time(NULL);
  char name[65];
  dw__fault fault;
  if (now - modified < USED_SECONDS && modified <= now) return;
  dw__hex(build, name);
  int shard = dw__shard_open(&cache->root, "obj", name, false, &fault);
  if (shard < 0) return;
  utimensat(shard, name, NULL, AT_SYMLINK_NOFOLLOW);  // of a read-only directory: its keeper sees to its size
  close(shard);
}

static dw_status find_on_disk(dw__cache *cache, const dw__digest *request, const dw__digest *build, dw__entry *entry) {
  dw__digest named;
  dw__fault fault = {0};
  time_t modified;
  const char *damaged = NULL;
  if (atomic_load(&cache->memory_only)) return DW_NOT_FOUND;
  if (request) {
    dw_status status = dw__tree_manifest(&cache->root, request, &named, &damaged, &fault);
    if (status) return settle(cache, request, status, damaged, &fault);
    build = &named;
  }
  dw_status status = dw__tree_entry(&cache->root, build, entry, &modified, &damaged, &fault);
  if (status) return settle(cache, build, status, damaged, &fault);
  if (request) entry->request = *request;
  atomic_fetch_add(&cache->hits_disk, 1);
  note_use(cache, build, modified);
  return DW_OK;
}

// Bundles, the directory, the system's. Layers know requests only.
static dw_status find_below(dw__cache *cache, const dw__digest *request, const dw__digest *build, dw__entry *entry,
                            dw__found *found) {
  if (atomic_load_explicit(&cache->frozen, memory_order_relaxed)) return DW_NOT_FOUND;
  dw_status status = request ? dw__layers_find(cache, DW__LAYER_BUNDLE, request, entry, &found->layer) : DW_NOT_FOUND;
  if (status == DW_NOT_FOUND) {
    status = find_on_disk(cache, request, build, entry);
    if (!status) found->place = DW__IN_DIRECTORY;
  }
  if (status == DW_NOT_FOUND && request) status = dw__layers_find(cache, DW__LAYER_SYSTEM, request, entry, &found->layer);
  // A favour to the next caller; want of memory is no loss to this one.
  if (!status && request) dw__index_put(cache->index, entry);
  return status;
}

static dw_status find(dw__cache *cache, const dw__digest *request, const dw__digest *build, dw__entry *entry, dw__found *found,
                      dw_error *error) {
  *entry = (dw__entry){0};
  *found = (dw__found){0};
  dw_status status = request ? dw__index_find(cache->index, request, entry) : dw__index_find_build(cache->index, build, entry);
  if (!status) atomic_fetch_add(&cache->hits_memory, 1), found->place = DW__IN_MEMORY;
  if (status == DW_NOT_FOUND) status = find_below(cache, request, build, entry, found);
  if (status == DW_OUT_OF_MEMORY) return dw__cache_no_memory(error);
  if (status != DW_NOT_FOUND) return status;
  atomic_fetch_add(&cache->misses, 1);
  char name[65];
  dw__hex(request ? request : build, name);
  return dw__fail(error, DW_NOT_FOUND, request ? "request key" : "build key", name, "", "not in the cache");
}

dw_status dw__cache_find_where(dw__cache *cache, const dw__digest *request, dw__entry *entry, dw__found *found,
                               dw_error *error) {
  return find(cache, request, NULL, entry, found, error);
}

dw_status dw__cache_find(dw__cache *cache, const dw__digest *request, dw__entry *entry, dw_error *error) {
  dw__found found;
  return find(cache, request, NULL, entry, &found, error);
}

dw_status dw__cache_find_build(dw__cache *cache, const dw__digest *build, dw__entry *entry, dw_error *error) {
  dw__found found;
  return find(cache, NULL, build, entry, &found, error);
}

// ---- publish --------------------------------------------------------------------------------------------------

// A nicety; the cache works without.
static void write_tag(const dw__cache *cache) {
  static const char text[] = "Signature: 8a477f597d28d172789f06886806bc55\n# Compiled kernels of draftwood; safe to delete.\n";
  static const char *const here[] = {NULL}, *const tmp[] = {DW__CACHE_VERSION, "tmp", NULL};
  struct stat status;
  dw__fault fault;
  int root = dw__directory_open(&cache->root, here, true, &fault);
  if (root < 0) return;
  if (fstatat(root, "CACHEDIR.TAG", &status, AT_SYMLINK_NOFOLLOW)) {
    int temporary = dw__directory_open(&cache->root, tmp, true, &fault);
    if (temporary >= 0) {
      dw__directory_write(temporary, root, "CACHEDIR.TAG", cache->root.shared, text, sizeof text - 1, &fault);
      close(temporary);
    }
  }
  close(root);
}

static bool write_file(const dw__cache *cache, const char *kind, const dw__digest *key, const char *bytes, size_t size,
                       dw__fault *fault) {
  char name[65];
  dw__hex(key, name);
  return dw__tree_write(&cache->root, kind, name, bytes, size, fault);
}

// The entry first: a manifest then never names what was not there yet.
static dw_status write_entry(dw__cache *cache, const dw__entry *entry, dw__fault *fault) {
  char *bytes, manifest[DW__MANIFEST_SIZE];
  size_t size;
  dw_status status = dw__entry_pack(entry, &bytes, &size);
  if (status) return status;
  bool written = write_file(cache, "obj", &entry->build, bytes, size, fault);
  dw__release(bytes);
  dw__manifest_pack(&entry->request, &entry->build, manifest);
  if (!written || !write_file(cache, "man", &entry->request, manifest, sizeof manifest, fault)) {
    return fault->kind == DW__FAULT_MEMORY ? DW_OUT_OF_MEMORY : DW_IO;
  }
  write_tag(cache);
  dw__trim_after(cache, &entry->build, size);
  return DW_OK;
}

// An unsafe directory is told of once, as such.
static void settle_write(dw__cache *cache, const dw__fault *fault) {
  if (fault->kind == DW__FAULT_UNSAFE) {
    leave_disk(cache, fault);
    atomic_fetch_add(&cache->publish_failures, 1);
  } else {
    count_publish_failure(cache, fault->text);
  }
}

dw_status dw__cache_publish(dw__cache *cache, const dw__entry *entry, dw_error *error) {
  const char *refused = dw__entry_refuse(entry);
  if (refused) return count_publish_failure(cache, refused);
  if (dw__index_put(cache->index, entry)) return dw__cache_no_memory(error);
  if (atomic_load(&cache->memory_only) || atomic_load(&cache->frozen)) return DW_OK;

  dw__fault fault = {0};
  dw_status status = write_entry(cache, entry, &fault);
  if (status == DW_OUT_OF_MEMORY) return dw__cache_no_memory(error);
  if (status) settle_write(cache, &fault);
  else atomic_fetch_add(&cache->published, 1);
  return DW_OK;
}

// ---- failures -------------------------------------------------------------------------------------------------

void dw__cache_fail(dw__cache *cache, const dw__digest *build, const char *text) {
  char *bytes;
  size_t size;
  dw__fault fault = {0};
  if (atomic_load(&cache->frozen)) return;
  dw__index_fail(cache->index, build, text, cache->failure_seconds);
  if (atomic_load(&cache->memory_only)) return;
  if (dw__failure_pack(build, time(NULL), cache->failure_seconds, text, &bytes, &size)) return;
  if (!write_file(cache, "neg", build, bytes, size, &fault)) settle_write(cache, &fault);
  dw__release(bytes);
}

static char *failure_on_disk(dw__cache *cache, const dw__digest *build) {
  char name[65], *copy = NULL;
  dw__fault fault;
  dw__file file;
  const char *text;
  dw__hex(build, name);
  // Whatever is wrong with it, one more compile is all it costs.
  if (!dw__tree_read(&cache->root, "neg", name, DW__FAILURE_MOST + 128, &file, &fault)) return NULL;
  const char *damaged = dw__failure_unpack(file.bytes, file.size, build, time(NULL), &text);
  if (damaged) dw__count_damaged(cache, cache->root.path, name, damaged);
  else if (text) copy = dw__strdup(text);
  dw__release(file.bytes);
  return copy;
}

char *dw__cache_failure(dw__cache *cache, const dw__digest *build) {
  char *text = dw__index_failure(cache->index, build);
  if (text || atomic_load(&cache->memory_only) || atomic_load(&cache->frozen)) return text;
  return failure_on_disk(cache, build);
}

void dw__cache_counters(dw__cache *cache, dw__cache_stats *stats) {
  *stats = (dw__cache_stats){
    .hits_memory = atomic_load(&cache->hits_memory),
    .hits_disk = atomic_load(&cache->hits_disk),
    .hits_layers = atomic_load(&cache->hits_layers),
    .misses = atomic_load(&cache->misses),
    .damaged = atomic_load(&cache->damaged),
    .publish_failures = atomic_load(&cache->publish_failures),
    .published = atomic_load(&cache->published),
    .evicted = atomic_load(&cache->evicted),
    .entries = atomic_load(&cache->entries),
    .bytes = atomic_load(&cache->bytes),
  };
}
