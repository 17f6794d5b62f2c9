// Every file: scan, clear and trim.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "parts.h"

// What is younger may be in use, or belong to a process that is writing.
enum { YOUNG_SECONDS = 3600 };

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
  int directory = dw__directory_open(&cache->root, parts, false, fault);
  if (directory < 0) return fault_status(fault);
  bool listed = dw__directory_list(directory, "", 2, &shards, fault);
  close(directory);
  if (!listed) return fault_status(fault);
  dw_status status = DW_OK;
  for (size_t i = 0; i < shards.count && !status; i++) {
    int shard = dw__shard_open(&cache->root, kind, shards.name[i], false, fault);
    status = shard < 0 ? fault_status(fault) : each_of_shard(shard, shards.name[i], visit, user, fault);
    if (shard >= 0) close(shard);
  }
  dw__release(shards.name);
  return status;
}

static dw_status walk_status(dw__cache *cache, dw_status status, const dw__fault *fault, dw_error *error) {
  if (status == DW_OUT_OF_MEMORY) return dw__cache_no_memory(error);
  if (status != DW_IO) return DW_OK;
  return dw__fail(error, DW_IO, "cache", cache->root.path, "", "%s", fault->text);
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
  dw__file file;
  // One that cannot be read links nothing; finding, not scanning, counts it.
  if (!dw__directory_read(shard, name, scan->cache->root.shared, DW__MANIFEST_SIZE, &file, fault)) {
    return fault->kind == DW__FAULT_MEMORY ? DW_OUT_OF_MEMORY : DW_OK;
  }
  if (!dw__manifest_unpack(file.bytes, file.size, &made.request, &made.build)) dw__buf_append(&scan->links, &made, sizeof made);
  dw__release(file.bytes);
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
  dw__file file;
  *entry = (dw__entry){.build = digest_of_name(name)};
  if (!dw__directory_read(shard, name, scan->cache->root.shared, dw__entry_file_most(), &file, fault)) {
    *damaged = fault->text;
    return fault->kind == DW__FAULT_MEMORY ? DW_OUT_OF_MEMORY : fault->kind == DW__FAULT_ABSENT ? DW_NOT_FOUND : DW_OK;
  }
  dw__digest build = entry->build;
  dw_status status = dw__entry_unpack(file.bytes, file.size, &build, scan->with_cubin, entry, damaged);
  dw__release(file.bytes);
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
  dw__buf_printf(&path, "%s/" DW__CACHE_VERSION "/obj/%.2s/%s", scan->cache->root.path, name, name);
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
  if (fstatat(directory, name, &file, AT_SYMLINK_NOFOLLOW) || time(NULL) - file.st_mtime < YOUNG_SECONDS) return DW_OK;
  return remove_file(user, directory, name, fault);
}

static dw_status clear_temporary(const dw__cache *cache, dw__fault *fault) {
  static const char *const parts[] = {DW__CACHE_VERSION, "tmp", NULL};
  uint64_t ignored = 0;
  int directory = dw__directory_open(&cache->root, parts, false, fault);
  if (directory < 0) return fault_status(fault);
  dw_status status = each_of_shard(directory, "", remove_stale, &ignored, fault);
  close(directory);
  return status;
}

// Manifests first: one that is left behind would cost a look-up each time. Shard folders stay, somebody may be writing there.
dw_status dw__cache_clear(dw__cache *cache, uint64_t *removed, dw_error *error) {
  uint64_t entries = 0, others = 0, seen = dw__index_clear(cache->index);
  dw__fault fault = {0};
  dw_status status = DW_OK;
  if (atomic_load(&cache->memory_only)) {
    entries = seen;
  } else {
    status = each_file(cache, "man", remove_file, &others, &fault);
    if (!status) status = each_file(cache, "obj", remove_file, &entries, &fault);
    if (!status) status = each_file(cache, "neg", remove_file, &others, &fault);
    if (!status) status = clear_temporary(cache, &fault);
  }
  if (removed) *removed = entries;
  return walk_status(cache, status, &fault, error);
}

// ---- trim -----------------------------------------------------------------------------------------------------
// Approximately the entries used longest ago: a file's time is that of its last use, give or take an hour (store.c).

typedef struct item {
  dw__digest build;
  uint64_t bytes;
  int64_t age;  // seconds; INT64_MAX for a time that lies ahead: the clock has been set back, and nothing is known
  bool kept;
} item;

typedef struct trim_state {
  dw__cache *cache;
  time_t now;
  bool dry_run;
  dw__buf items;  // item
} trim_state;

static int64_t age_of(const struct stat *file, time_t now) {
  int64_t age = (int64_t)now - file->st_mtime;
  return age < -YOUNG_SECONDS ? INT64_MAX : age;
}

static dw_status collect_item(void *user, int shard, const char *name, dw__fault *fault) {
  (void)fault;
  trim_state *trim = user;
  struct stat file;
  if (fstatat(shard, name, &file, AT_SYMLINK_NOFOLLOW)) return DW_OK;
  item made = {digest_of_name(name), (uint64_t)file.st_size, age_of(&file, trim->now), true};
  dw__buf_append(&trim->items, &made, sizeof made);
  return trim->items.failed ? DW_OUT_OF_MEMORY : DW_OK;
}

static int oldest_first(const void *a, const void *b) {
  const item *x = a, *y = b;
  if (x->age != y->age) return x->age > y->age ? -1 : 1;
  return memcmp(&x->build, &y->build, sizeof x->build);
}

static int by_build(const void *a, const void *b) {
  const item *x = a, *y = b;
  return memcmp(&x->build, &y->build, sizeof x->build);
}

// Looked at again: it may have been used or written anew since it was listed.
static bool evict(const trim_state *trim, const dw__digest *build) {
  char name[65];
  dw__fault fault;
  struct stat file;
  dw__hex(build, name);
  if (trim->dry_run) return true;
  int shard = dw__shard_open(&trim->cache->root, "obj", name, false, &fault);
  if (shard < 0) return false;
  bool old = !fstatat(shard, name, &file, AT_SYMLINK_NOFOLLOW) && age_of(&file, trim->now) >= YOUNG_SECONDS;
  bool gone = old && !unlinkat(shard, name, 0);
  close(shard);
  return gone;
}

static void evict_down_to(trim_state *trim, uint64_t limit, dw__trimmed *result) {
  item *items = (item *)(void *)trim->items.data;
  size_t count = trim->items.size / sizeof *items;
  for (size_t i = 0; i < count; i++) result->kept_bytes += items[i].bytes;
  result->kept = count;
  if (count) qsort(items, count, sizeof *items, oldest_first);
  for (size_t i = 0; i < count && result->kept_bytes > limit && items[i].age >= YOUNG_SECONDS; i++) {
    if (!evict(trim, &items[i].build)) continue;
    items[i].kept = false;
    result->kept--;
    result->kept_bytes -= items[i].bytes;
    result->removed++;
    result->removed_bytes += items[i].bytes;
  }
  if (count) qsort(items, count, sizeof *items, by_build);
}

// A young manifest may belong to an entry that came after the listing.
static dw_status remove_lost_manifest(void *user, int shard, const char *name, dw__fault *fault) {
  const trim_state *trim = user;
  dw__digest request = digest_of_name(name);
  item wanted = {0};
  dw__file file;
  uint64_t ignored = 0;
  if (!dw__directory_read(shard, name, trim->cache->root.shared, DW__MANIFEST_SIZE, &file, fault)) {
    return fault->kind == DW__FAULT_MEMORY ? DW_OUT_OF_MEMORY : DW_OK;
  }
  const char *damaged = dw__manifest_unpack(file.bytes, file.size, &request, &wanted.build);
  dw__release(file.bytes);
  size_t count = trim->items.size / sizeof(item);
  const item *found = damaged || !count ? NULL : bsearch(&wanted, trim->items.data, count, sizeof(item), by_build);
  bool young = (int64_t)trim->now - file.modified < YOUNG_SECONDS;
  return (found && found->kept) || young ? DW_OK : remove_file(&ignored, shard, name, fault);
}

static dw_status remove_old_failure(void *user, int shard, const char *name, dw__fault *fault) {
  const trim_state *trim = user;
  dw__digest build = digest_of_name(name);
  dw__file file;
  const char *text;
  uint64_t ignored = 0;
  if (!dw__directory_read(shard, name, trim->cache->root.shared, DW__FAILURE_MOST + 128, &file, fault)) {
    return fault->kind == DW__FAULT_MEMORY ? DW_OUT_OF_MEMORY : DW_OK;
  }
  bool known = !dw__failure_unpack(file.bytes, file.size, &build, trim->now, &text) && text;
  dw__release(file.bytes);
  return known ? DW_OK : remove_file(&ignored, shard, name, fault);
}

dw_status dw__cache_trim(dw__cache *cache, uint64_t limit, bool dry_run, dw__trimmed *trimmed, dw_error *error) {
  trim_state trim = {.cache = cache, .now = time(NULL), .dry_run = dry_run};
  dw__trimmed result = {0};
  dw__fault fault = {0};
  dw_status status = DW_OK;
  if (!atomic_load(&cache->memory_only)) {
    status = each_file(cache, "obj", collect_item, &trim, &fault);
    if (!status) evict_down_to(&trim, limit, &result);
    if (!status && !dry_run) status = each_file(cache, "man", remove_lost_manifest, &trim, &fault);
    if (!status && !dry_run) status = each_file(cache, "neg", remove_old_failure, &trim, &fault);
    if (!status && !dry_run) status = clear_temporary(cache, &fault);
    if (!dry_run) atomic_fetch_add(&cache->evicted, result.removed);
  }
  dw__buf_free(&trim.items);
  if (trimmed) *trimmed = result;
  return walk_status(cache, status, &fault, error);
}

static dw_status add_size(void *user, int shard, const char *name, dw__fault *fault) {
  (void)fault;
  uint64_t *sum = user;
  struct stat file;
  if (!fstatat(shard, name, &file, AT_SYMLINK_NOFOLLOW)) *sum += (uint64_t)file.st_size;
  return DW_OK;
}

// Keys are spread evenly, so one of the 256 folders tells of all.
static uint64_t estimate_bytes(dw__cache *cache, const dw__digest *build) {
  char name[65];
  dw__fault fault;
  uint64_t sum = 0;
  dw__hex(build, name);
  int shard = dw__shard_open(&cache->root, "obj", name, false, &fault);
  if (shard < 0) return 0;
  name[2] = 0;
  each_of_shard(shard, name, add_size, &sum, &fault);
  close(shard);
  return sum * 256;
}

// Measuring everything is dear: it takes a folder that looks full, and at least a 64th of the limit from us since the last time
// (`written` starts full). A tenth of room is left, or the next entry would bring us here again.
void dw__trim_after(dw__cache *cache, const dw__digest *build, uint64_t written) {
  uint64_t since = atomic_fetch_add(&cache->written, written) + written;
  dw__lock lock;
  dw__fault fault;
  // What killed processes left is in no estimate. Looked at once, by the first publish.
  if (!atomic_exchange(&cache->swept, true)) clear_temporary(cache, &fault);
  if (since < cache->limit / 64 || estimate_bytes(cache, build) <= cache->limit) return;
  if (dw__lock_trim(cache, &lock) == DW__BUSY) return;
  atomic_store(&cache->written, 0);
  dw__trimmed seen;
  if (!dw__cache_trim(cache, UINT64_MAX, true, &seen, NULL) && seen.kept_bytes > cache->limit) {
    dw__cache_trim(cache, cache->limit / 10 * 9, false, NULL, NULL);
  }
  dw__lock_release(&lock);
}
