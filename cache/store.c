// Find, publish, scan and clear: memory first, then the layers, of which the directory is the one that is written.
//
//   <directory>/CACHEDIR.TAG        tells backup programs to pass by
//   <directory>/v1/obj/ab/<build>   entries (entry.c), by build key
//   <directory>/v1/man/ab/<request> manifests: which build a request led to
//   <directory>/v1/tmp/             files being written; what a killed process left here is never read
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
enum { STALE_SECONDS = 3600 };

typedef struct layers {
  dw__layer list[DW__LAYERS_MAX];
  atomic_size_t count;  // those below it are complete and stay
} layers;

struct dw__cache {
  char *root;  // NULL: memory only was asked for, or there is no directory
  layers layers[DW__LAYER_PLACES];
  dw__index *index;
  dw__warn_fn warn;
  void *warn_user;
  atomic_uint warned;
  atomic_bool memory_only;  // set once, after `reason`
  pthread_mutex_t lock;     // of `reason` and of adding layers
  char reason[768];
  atomic_uint_fast64_t hits_memory, hits_disk, hits_layers, misses, damaged, publish_failures, published, entries, bytes;
};

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

static void count_damaged_at(dw__cache *cache, const char *where, const char *name, const char *why) {
  atomic_fetch_add(&cache->damaged, 1);
  warn_once(cache, WARN_DAMAGED, "kernel cache %s: damaged, will be made again: %s: %s", where, name, why);
}

static void count_damaged(dw__cache *cache, const char *name, const char *why) {
  count_damaged_at(cache, cache->root, name, why);
}

static dw_status count_publish_failure(dw__cache *cache, const char *why) {
  atomic_fetch_add(&cache->publish_failures, 1);
  warn_once(cache, WARN_PUBLISH, "kernel cache: could not store an entry: %s", why);
  return DW_OK;
}

static dw_status out_of_memory(dw_error *error) { return dw__fail(error, DW_OUT_OF_MEMORY, "cache", "", "", "out of memory"); }

// ---- layers ---------------------------------------------------------------------------------------------------

static void close_layer(dw__layer *layer) {
  if (layer->close) layer->close(layer->user);
  dw__release((void *)layer->name);
}

dw_status dw__cache_add_layer(dw__cache *cache, const dw__layer *layer, dw__layer_place place, dw_error *error) {
  dw__layer own = *layer;
  own.name = dw__strdup(layer->name);
  pthread_mutex_lock(&cache->lock);
  layers *all = &cache->layers[place];
  size_t count = atomic_load(&all->count);
  bool added = own.name && count < DW__LAYERS_MAX;
  if (added) {
    all->list[count] = own;
    atomic_store(&all->count, count + 1);
  }
  pthread_mutex_unlock(&cache->lock);
  if (added) return DW_OK;
  bool full = own.name != NULL;
  close_layer(&own);
  return full ? dw__fail_int(error, DW_BAD_ARGUMENT, "layers", DW__LAYERS_MAX + 1, "up to 32", "bundles or system directories")
              : out_of_memory(error);
}

const char *dw__cache_layer_name(const dw__cache *cache, size_t i, dw__layer_place *place) {
  for (int p = 0; p < DW__LAYER_PLACES; p++) {
    size_t count = atomic_load(&cache->layers[p].count);
    if (place) *place = (dw__layer_place)p;
    if (i < count) return cache->layers[p].list[i].name;
    i -= count;
  }
  return NULL;
}

static dw_status find_in_layers(dw__cache *cache, dw__layer_place place, const dw__digest *request, dw__entry *entry) {
  const layers *all = &cache->layers[place];
  size_t count = atomic_load(&all->count);
  for (size_t i = 0; i < count; i++) {
    const dw__layer *layer = &all->list[i];
    const char *damaged = "damaged";
    dw_status status = layer->find(layer->user, request, entry, &damaged);
    if (!status) atomic_fetch_add(&cache->hits_layers, 1);
    if (status == DW_OK || status == DW_OUT_OF_MEMORY) return status;
    *entry = (dw__entry){0};
    if (status == DW_NOT_FOUND) continue;
    char name[65];
    dw__hex(request, name);
    count_damaged_at(cache, layer->name, name, damaged);
  }
  return DW_NOT_FOUND;
}

// ---- opening --------------------------------------------------------------------------------------------------

// What is there already must be sound; what is not there must be possible. Changes nothing on the disk.
static bool directory_usable(const char *root, dw__fault *fault) {
  static const char *const places[][3] = {
    {NULL}, {DW__CACHE_VERSION, "obj", NULL}, {DW__CACHE_VERSION, "man", NULL}, {DW__CACHE_VERSION, "tmp", NULL}};
  for (size_t i = 0; i < DW__COUNT(places); i++) {
    int fd = dw__directory_open(root, places[i], false, fault);
    if (fd >= 0) close(fd);
    else if (fault->kind != DW__FAULT_ABSENT) return false;
    else if (i == 0) return dw__directory_probe(root, fault);
  }
  return true;
}

dw_status dw__cache_open(const char *directory, dw__warn_fn warn, void *user, dw__cache **out, dw_error *error) {
  dw__cache *cache = dw__calloc(1, sizeof *cache);
  dw__index *index = dw__index_create();
  dw__fault fault = {0};
  char *root = NULL;
  *out = NULL;
  if (!cache || !index || pthread_mutex_init(&cache->lock, NULL)) goto failed;
  cache->index = index;
  cache->warn = warn;
  cache->warn_user = user;

  root = dw__directory_choose(directory, &fault);
  bool usable = root && directory_usable(root, &fault);
  if (fault.kind == DW__FAULT_MEMORY) goto failed_late;
  cache->root = root;
  // Memory only on request is nothing to warn of.
  if (directory && !directory[0]) atomic_store(&cache->warned, WARN_DIRECTORY);
  if (!usable) leave_disk(cache, &fault);
  *out = cache;
  return DW_OK;

failed_late:
  pthread_mutex_destroy(&cache->lock);
failed:
  dw__release(root);
  dw__index_free(index);
  dw__release(cache);
  return out_of_memory(error);
}

void dw__cache_close(dw__cache *cache) {
  if (!cache) return;
  for (int place = 0; place < DW__LAYER_PLACES; place++) {
    layers *all = &cache->layers[place];
    for (size_t i = 0; i < atomic_load(&all->count); i++) close_layer(&all->list[i]);
  }
  dw__index_free(cache->index);
  pthread_mutex_destroy(&cache->lock);
  dw__release(cache->root);
  dw__release(cache);
}

const char *dw__cache_directory(const dw__cache *cache, const char **why) {
  bool memory_only = atomic_load(&cache->memory_only);
  if (why) *why = memory_only ? cache->reason : NULL;
  return memory_only ? NULL : cache->root;
}

// ---- one file -------------------------------------------------------------------------------------------------

// v1/<kind>/<first two digits of the key>
static int open_shard(const dw__cache *cache, const char *kind, const char *name, bool create, dw__fault *fault) {
  const char shard[3] = {name[0], name[1], 0};
  const char *const parts[] = {DW__CACHE_VERSION, kind, shard, NULL};
  return dw__directory_open(cache->root, parts, create, fault);
}

// DW_OK, DW_NOT_FOUND (whatever the reason, which is counted and told here) or DW_OUT_OF_MEMORY.
static dw_status read_file(dw__cache *cache, const char *kind, const char *name, size_t most, char **bytes, size_t *size) {
  dw__fault fault;
  int shard = open_shard(cache, kind, name, false, &fault);
  bool opened = shard >= 0;
  bool read = opened && dw__directory_read(shard, name, most, bytes, size, &fault);
  if (opened) close(shard);
  if (read) return DW_OK;
  if (fault.kind == DW__FAULT_MEMORY) return DW_OUT_OF_MEMORY;
  if (fault.kind == DW__FAULT_ABSENT) return DW_NOT_FOUND;
  // A bad file can be replaced by a good one; a bad directory cannot be trusted again.
  if (opened && (fault.kind == DW__FAULT_UNSAFE || fault.error == EFBIG)) count_damaged(cache, name, fault.text);
  else if (fault.kind == DW__FAULT_UNSAFE) leave_disk(cache, &fault);
  else warn_once(cache, WARN_READ, "kernel cache %s: cannot be read: %s", cache->root, fault.text);
  return DW_NOT_FOUND;
}

static bool write_file(const dw__cache *cache, const char *kind, const dw__digest *key, const char *bytes, size_t size,
                       dw__fault *fault) {
  static const char *const tmp[] = {DW__CACHE_VERSION, "tmp", NULL};
  char name[65];
  dw__hex(key, name);
  int temporary = dw__directory_open(cache->root, tmp, true, fault);
  int shard = temporary < 0 ? -1 : open_shard(cache, kind, name, true, fault);
  bool written = shard >= 0 && dw__directory_write(temporary, shard, name, bytes, size, fault);
  if (shard >= 0) close(shard);
  if (temporary >= 0) close(temporary);
  return written;
}

// ---- find -----------------------------------------------------------------------------------------------------

static dw_status read_manifest(dw__cache *cache, const dw__digest *request, dw__digest *build) {
  char name[65], *bytes;
  size_t size;
  dw__hex(request, name);
  dw_status status = read_file(cache, "man", name, DW__MANIFEST_SIZE, &bytes, &size);
  if (status) return status;
  const char *damaged = dw__manifest_unpack(bytes, size, request, build);
  dw__release(bytes);
  if (!damaged) return DW_OK;
  count_damaged(cache, name, damaged);
  return DW_NOT_FOUND;
}

static dw_status read_entry(dw__cache *cache, const dw__digest *build, dw__entry *entry) {
  char name[65], *bytes;
  const char *damaged;
  size_t size;
  dw__hex(build, name);
  dw_status status = read_file(cache, "obj", name, dw__entry_file_most(), &bytes, &size);
  if (status) return status;
  status = dw__entry_unpack(bytes, size, build, true, entry, &damaged);
  dw__release(bytes);
  if (status != DW_BAD_CUBIN) return status;
  count_damaged(cache, name, damaged);
  return DW_NOT_FOUND;
}

static dw_status find_on_disk(dw__cache *cache, const dw__digest *request, const dw__digest *build, dw__entry *entry) {
  dw__digest named;
  if (atomic_load(&cache->memory_only)) return DW_NOT_FOUND;
  if (request) {
    dw_status status = read_manifest(cache, request, &named);
    if (status) return status;
    build = &named;
  }
  dw_status status = read_entry(cache, build, entry);
  if (status) return status;
  if (request) entry->request = *request;
  atomic_fetch_add(&cache->hits_disk, 1);
  return DW_OK;
}

// Bundles, the directory, the system's. Layers know requests only.
static dw_status find_below(dw__cache *cache, const dw__digest *request, const dw__digest *build, dw__entry *entry) {
  dw_status status = request ? find_in_layers(cache, DW__LAYER_BUNDLE, request, entry) : DW_NOT_FOUND;
  if (status == DW_NOT_FOUND) status = find_on_disk(cache, request, build, entry);
  if (status == DW_NOT_FOUND && request) status = find_in_layers(cache, DW__LAYER_SYSTEM, request, entry);
  // A favour to the next caller; want of memory is no loss to this one.
  if (!status && request) dw__index_put(cache->index, entry);
  return status;
}

static dw_status find(dw__cache *cache, const dw__digest *request, const dw__digest *build, dw__entry *entry, dw_error *error) {
  *entry = (dw__entry){0};
  dw_status status = request ? dw__index_find(cache->index, request, entry) : dw__index_find_build(cache->index, build, entry);
  if (!status) atomic_fetch_add(&cache->hits_memory, 1);
  if (status == DW_NOT_FOUND) status = find_below(cache, request, build, entry);
  if (status == DW_OUT_OF_MEMORY) return out_of_memory(error);
  if (status != DW_NOT_FOUND) return status;
  atomic_fetch_add(&cache->misses, 1);
  char name[65];
  dw__hex(request ? request : build, name);
  return dw__fail(error, DW_NOT_FOUND, request ? "request key" : "build key", name, "", "not in the cache");
}

dw_status dw__cache_find(dw__cache *cache, const dw__digest *request, dw__entry *entry, dw_error *error) {
  return find(cache, request, NULL, entry, error);
}

dw_status dw__cache_find_build(dw__cache *cache, const dw__digest *build, dw__entry *entry, dw_error *error) {
  return find(cache, NULL, build, entry, error);
}

// ---- publish --------------------------------------------------------------------------------------------------

// A nicety; the cache works without.
static void write_tag(const dw__cache *cache) {
  static const char text[] = "Signature: 8a477f597d28d172789f06886806bc55\n# Compiled kernels of draftwood; safe to delete.\n";
  static const char *const here[] = {NULL}, *const tmp[] = {DW__CACHE_VERSION, "tmp", NULL};
  struct stat status;
  dw__fault fault;
  int root = dw__directory_open(cache->root, here, true, &fault);
  if (root < 0) return;
  if (fstatat(root, "CACHEDIR.TAG", &status, AT_SYMLINK_NOFOLLOW)) {
    int temporary = dw__directory_open(cache->root, tmp, true, &fault);
    if (temporary >= 0) {
      dw__directory_write(temporary, root, "CACHEDIR.TAG", text, sizeof text - 1, &fault);
      close(temporary);
    }
  }
  close(root);
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
  return DW_OK;
}

dw_status dw__cache_publish(dw__cache *cache, const dw__entry *entry, dw_error *error) {
  const char *refused = dw__entry_refuse(entry);
  if (refused) return count_publish_failure(cache, refused);
  if (dw__index_put(cache->index, entry)) return out_of_memory(error);
  if (atomic_load(&cache->memory_only)) return DW_OK;

  dw__fault fault = {0};
  dw_status status = write_entry(cache, entry, &fault);
  if (status == DW_OUT_OF_MEMORY) return out_of_memory(error);
  if (!status) {
    atomic_fetch_add(&cache->published, 1);
    return DW_OK;
  }
  if (fault.kind == DW__FAULT_UNSAFE) {  // said there, no need to say it twice
    leave_disk(cache, &fault);
    atomic_fetch_add(&cache->publish_failures, 1);
    return DW_OK;
  }
  return count_publish_failure(cache, fault.text);
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
    .entries = atomic_load(&cache->entries),
    .bytes = atomic_load(&cache->bytes),
  };
}

// ---- every file -----------------------------------------------------------------------------------------------

// Returns DW_OK to go on, DW_NOT_FOUND to stop, else an error.
typedef dw_status (*file_fn)(void *user, int shard, const char *name, dw__fault *fault);

static dw_status fault_status(const dw__fault *fault) {
  return fault->kind == DW__FAULT_ABSENT ? DW_OK : fault->kind == DW__FAULT_MEMORY ? DW_OUT_OF_MEMORY : DW_IO;
}

static dw_status each_of_shard(int shard, const char *prefix, file_fn visit, void *user, dw__fault *fault) {
  dw__names names;
  if (!dw__directory_list(shard, prefix, 64, &names, fault)) return fault_status(fault);
  dw_status status = DW_OK;
  for (size_t i = 0; i < names.count && !status; i++) status = visit(user, shard, names.name[i], fault);
  dw__release(names.name);
  return status;
}

// Sorted by name: shards are the names' first two digits.
static dw_status each_file(const dw__cache *cache, const char *kind, file_fn visit, void *user, dw__fault *fault) {
  const char *const parts[] = {DW__CACHE_VERSION, kind, NULL};
  dw__names shards;
  int directory = dw__directory_open(cache->root, parts, false, fault);
  if (directory < 0) return fault_status(fault);
  bool listed = dw__directory_list(directory, "", 2, &shards, fault);
  close(directory);
  if (!listed) return fault_status(fault);
  dw_status status = DW_OK;
  for (size_t i = 0; i < shards.count && !status; i++) {
    int shard = open_shard(cache, kind, shards.name[i], false, fault);
    status = shard < 0 ? fault_status(fault) : each_of_shard(shard, shards.name[i], visit, user, fault);
    if (shard >= 0) close(shard);
  }
  dw__release(shards.name);
  return status;
}

static dw_status walk_status(dw__cache *cache, dw_status status, const dw__fault *fault, dw_error *error) {
  if (status == DW_OUT_OF_MEMORY) return out_of_memory(error);
  if (status != DW_IO) return DW_OK;
  return dw__fail(error, DW_IO, "cache", cache->root, "", "%s", fault->text);
}

static dw__digest digest_of_name(const char *name) {
  dw__digest digest;
  for (size_t i = 0; i < sizeof digest.bytes; i++) {
    char pair[3] = {name[2 * i], name[2 * i + 1], 0};
    digest.bytes[i] = (unsigned char)strtoul(pair, NULL, 16);
  }
  return digest;
}

// ---- scan -----------------------------------------------------------------------------------------------------

typedef struct link_t {
  dw__digest build, request;
} link_t;

typedef struct scan_state {
  dw__cache *cache;
  bool with_cubin;
  dw__cache_visit visit;
  void *user;
  dw__buf links;  // link_t, sorted
  uint64_t entries, bytes;
} scan_state;

static dw_status collect_link(void *user, int shard, const char *name, dw__fault *fault) {
  scan_state *scan = user;
  link_t made = {.request = digest_of_name(name)};
  char *bytes;
  size_t size;
  // One that cannot be read links nothing; finding, not scanning, counts it.
  if (!dw__directory_read(shard, name, DW__MANIFEST_SIZE, &bytes, &size, fault)) {
    return fault->kind == DW__FAULT_MEMORY ? DW_OUT_OF_MEMORY : DW_OK;
  }
  if (!dw__manifest_unpack(bytes, size, &made.request, &made.build)) dw__buf_append(&scan->links, &made, sizeof made);
  dw__release(bytes);
  return scan->links.failed ? DW_OUT_OF_MEMORY : DW_OK;
}

static int compare_links(const void *a, const void *b) { return memcmp(a, b, sizeof(link_t)); }

// The lowest request that leads to this build; zero where none does.
static dw__digest request_of(const scan_state *scan, const dw__digest *build) {
  const link_t *links = (const link_t *)(const void *)scan->links.data;
  size_t low = 0, high = scan->links.size / sizeof *links;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (memcmp(&links[middle].build, build, sizeof *build) < 0) low = middle + 1;
    else high = middle;
  }
  bool found = low < scan->links.size / sizeof *links && dw__digest_equal(&links[low].build, build);
  return found ? links[low].request : (dw__digest){0};
}

static dw_status scan_read(const scan_state *scan, int shard, const char *name, dw__entry *entry, const char **damaged,
                           dw__fault *fault) {
  char *bytes;
  size_t size;
  *entry = (dw__entry){.build = digest_of_name(name)};
  if (!dw__directory_read(shard, name, dw__entry_file_most(), &bytes, &size, fault)) {
    *damaged = fault->text;
    return fault->kind == DW__FAULT_MEMORY ? DW_OUT_OF_MEMORY : fault->kind == DW__FAULT_ABSENT ? DW_NOT_FOUND : DW_OK;
  }
  dw__digest build = entry->build;
  dw_status status = dw__entry_unpack(bytes, size, &build, scan->with_cubin, entry, damaged);
  dw__release(bytes);
  if (status == DW_BAD_CUBIN) *entry = (dw__entry){.build = build};
  else entry->request = request_of(scan, &build);
  return status == DW_OUT_OF_MEMORY ? status : DW_OK;
}

static dw_status scan_file(void *user, int shard, const char *name, dw__fault *fault) {
  scan_state *scan = user;
  const char *damaged = NULL;
  struct stat file;
  dw__entry entry;
  if (fstatat(shard, name, &file, AT_SYMLINK_NOFOLLOW)) return DW_OK;  // gone since it was listed
  dw_status status = scan_read(scan, shard, name, &entry, &damaged, fault);
  if (status) return status == DW_NOT_FOUND ? DW_OK : status;

  dw__buf path = {0};
  dw__buf_printf(&path, "%s/" DW__CACHE_VERSION "/obj/%.2s/%s", scan->cache->root, name, name);
  bool go_on = true;
  if (!path.failed) {
    scan->entries++;
    scan->bytes += (uint64_t)file.st_size;
    if (scan->visit) go_on = scan->visit(scan->user, path.data, (uint64_t)file.st_size, &entry, damaged);
  }
  status = path.failed ? DW_OUT_OF_MEMORY : go_on ? DW_OK : DW_NOT_FOUND;
  dw__buf_free(&path);
  dw__entry_free(&entry);
  return status;
}

dw_status dw__cache_scan(dw__cache *cache, bool with_cubin, dw__cache_visit visit, void *user, dw_error *error) {
  if (atomic_load(&cache->memory_only)) return DW_OK;
  scan_state scan = {.cache = cache, .with_cubin = with_cubin, .visit = visit, .user = user};
  dw__fault fault = {0};
  dw_status status = each_file(cache, "man", collect_link, &scan, &fault);
  if (!status && scan.links.size) {
    qsort(scan.links.data, scan.links.size / sizeof(link_t), sizeof(link_t), compare_links);
  }
  if (!status) status = each_file(cache, "obj", scan_file, &scan, &fault);
  dw__buf_free(&scan.links);
  atomic_store(&cache->entries, scan.entries);
  atomic_store(&cache->bytes, scan.bytes);
  return walk_status(cache, status, &fault, error);
}

// ---- clear ----------------------------------------------------------------------------------------------------

static dw_status remove_file(void *user, int shard, const char *name, dw__fault *fault) {
  uint64_t *removed = user;
  if (!unlinkat(shard, name, 0)) {
    ++*removed;
    return DW_OK;
  }
  if (errno == ENOENT) return DW_OK;  // somebody else clears too
  snprintf(fault->text, sizeof fault->text, "%s: %s", name, strerror(errno));
  return DW_IO;
}

// Young ones may belong to a process that is writing.
static dw_status remove_stale(void *user, int directory, const char *name, dw__fault *fault) {
  struct stat file;
  if (fstatat(directory, name, &file, AT_SYMLINK_NOFOLLOW) || time(NULL) - file.st_mtime < STALE_SECONDS) return DW_OK;
  return remove_file(user, directory, name, fault);
}

static dw_status clear_temporary(const dw__cache *cache, dw__fault *fault) {
  static const char *const parts[] = {DW__CACHE_VERSION, "tmp", NULL};
  uint64_t ignored = 0;
  int directory = dw__directory_open(cache->root, parts, false, fault);
  if (directory < 0) return fault_status(fault);
  dw_status status = each_of_shard(directory, "", remove_stale, &ignored, fault);
  close(directory);
  return status;
}

// Manifests first: one that is left behind would cost a look-up each time. Shard folders stay, somebody may be writing there.
dw_status dw__cache_clear(dw__cache *cache, uint64_t *removed, dw_error *error) {
  uint64_t entries = 0, manifests = 0, seen = dw__index_clear(cache->index);
  dw__fault fault = {0};
  dw_status status = DW_OK;
  if (atomic_load(&cache->memory_only)) {
    entries = seen;
  } else {
    status = each_file(cache, "man", remove_file, &manifests, &fault);
    if (!status) status = each_file(cache, "obj", remove_file, &entries, &fault);
    if (!status) status = clear_temporary(cache, &fault);
  }
  if (removed) *removed = entries;
  return walk_status(cache, status, &fault, error);
}
