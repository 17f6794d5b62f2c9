// Keys, entries and the cache directory. Tests that need a user without privileges, or a mount, run in a child of their own.
// Names that begin with O_c are cases of that number from the list of reports we test against.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <grp.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>
#include <zstd.h>

#include <cmocka.h>

#include "list_tests.h"
#include "parts.h"
#include "support.h"

// ---- the clock ------------------------------------------------------------------------------------------------

static long clock_offset;

// In front of the C library's: a clock that jumps.
time_t time(time_t *at) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  time_t told = now.tv_sec + clock_offset;
  if (at) *at = told;
  return told;
}

// ---- helpers --------------------------------------------------------------------------------------------------

// A folder per test; the cache goes into a folder of it.
typedef struct scratch {
  char folder[64], cache[80];
} scratch;

static int set_up(void **state) {
  scratch *s = calloc(1, sizeof *s);
  snprintf(s->folder, sizeof s->folder, "/tmp/test_cache.XXXXXX");
  if (!mkdtemp(s->folder) || chmod(s->folder, 0755)) return -1;
  snprintf(s->cache, sizeof s->cache, "%s/cache", s->folder);
  *state = s;
  return 0;
}

static int remove_one(const char *path, const struct stat *status, int type, struct FTW *walk) {
  (void)status, (void)type, (void)walk;
  return remove(path);
}

static int open_up(const char *path, const struct stat *status, int type, struct FTW *walk) {
  (void)status, (void)walk;
  return type == FTW_D || type == FTW_DNR ? chmod(path, 0700) : 0;
}

static void remove_tree(const char *path) {
  nftw(path, open_up, 16, FTW_PHYS);
  nftw(path, remove_one, 16, FTW_PHYS | FTW_DEPTH);
}

static int tear_down(void **state) {
  scratch *s = *state;
  dw__alloc_fail_after(0);
  clock_offset = 0;
  remove_tree(s->folder);
  free(s);
  return 0;
}

typedef struct warnings {
  atomic_int count;
  char last[1024];
} warnings;

static void record_warning(void *user, const char *message) {
  warnings *w = user;
  atomic_fetch_add(&w->count, 1);
  snprintf(w->last, sizeof w->last, "%s", message);
}

// Entry number n. Large ones do not compress, small ones do, as cubins do.
static dw__entry make_entry(int n, size_t size) {
  dw__entry entry = {.cubin_size = size};
  char text[64];
  snprintf(text, sizeof text, "request %d", n);
  entry.request = dw__sha256(text, strlen(text));
  snprintf(text, sizeof text, "build %d", n);
  entry.build = dw__sha256(text, strlen(text));
  snprintf(text, sizeof text, "{\"n\": %d, \"target\": \"sm_120f\"}", n);
  entry.metadata = strdup(text);
  unsigned char *bytes = malloc(size);
  uint64_t random = (uint64_t)n * 2654435761u + 1;
  for (size_t i = 0; i < size; i++) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    bytes[i] = (unsigned char)(size > 4096 ? random >> 56 : random >> 62);
  }
  entry.cubin = bytes;
  return entry;
}

static bool same_entry(const dw__entry *a, const dw__entry *b) {
  return !memcmp(&a->request, &b->request, 32) && !memcmp(&a->build, &b->build, 32) && !strcmp(a->metadata, b->metadata) &&
         a->cubin_size == b->cubin_size && !memcmp(a->cubin, b->cubin, a->cubin_size);
}

static dw__cache *open_cache(const char *directory, warnings *w) {
  dw__cache *cache = NULL;
  if (w) *w = (warnings){0};
  dw__cache_open(directory, w ? record_warning : NULL, w, &cache, NULL);
  if (!cache) abort();
  return cache;
}

static dw__cache_stats counters(dw__cache *cache) {
  dw__cache_stats stats;
  dw__cache_counters(cache, &stats);
  return stats;
}

static void publish_at(const char *directory, const dw__entry *entry) {
  dw__cache *cache = open_cache(directory, NULL);
  assert_int_equal(dw__cache_publish(cache, entry, NULL), DW_OK);
  assert_int_equal(counters(cache).published, 1);
  dw__cache_close(cache);
}

// What another process would see: true if the very entry is found; a miss is false; a wrong entry fails the test.
static bool found_at(const char *directory, const dw__entry *entry, uint64_t *damaged) {
  dw__cache *cache = open_cache(directory, NULL);
  dw__entry found;
  dw_status status = dw__cache_find(cache, &entry->request, &found, NULL);
  if (damaged) *damaged = counters(cache).damaged;
  dw__cache_close(cache);
  if (status == DW_NOT_FOUND) {
    assert_null(found.cubin);
    return false;
  }
  assert_int_equal(status, DW_OK);
  assert_true(same_entry(entry, &found));
  dw__entry_free(&found);
  return true;
}

static void file_of(const char *directory, const char *kind, const dw__digest *key, char path[256]) {
  char hex[65];
  dw__hex(key, hex);
  snprintf(path, 256, "%s/v1/%s/%.2s/%s", directory, kind, hex, hex);
}

static void write_whole(const char *path, const char *bytes, size_t size) {
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  assert_int_equal(dw__fd_write(fd, bytes, size), 0);
  close(fd);
}

static char *read_whole(const char *path, size_t *size) {
  char *bytes = NULL;
  assert_int_equal(dw__file_read(path, &bytes, size, NULL), DW_OK);
  return bytes;
}

static int files_in(const char *directory, const char *below) {
  char path[256];
  int count = 0;
  snprintf(path, sizeof path, "%s/%s", directory, below);
  DIR *stream = opendir(path);
  if (!stream) return -1;
  for (const struct dirent *item; (item = readdir(stream));) count += item->d_name[0] != '.';
  closedir(stream);
  return count;
}

enum { CHILD_CANNOT = 77 };

static pid_t start_child(void (*body)(void *), void *user) {
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // a failed test must not leave its children running
    body(user);
    _exit(0);
  }
  assert_true(child > 0);
  return child;
}

static int end_child(pid_t child) {
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void run_child(void (*body)(void *), void *user) {
  int code = end_child(start_child(body, user));
  if (code == CHILD_CANNOT) skip();
  assert_int_equal(code, 0);
}

// Root may write anywhere; only somebody else can show what a refusal looks like.
static void become_nobody(const char *owned) {
  if (geteuid()) return;
  if (owned) CHECK(chown(owned, 65534, 65534) == 0);
  CHECK(setgroups(0, NULL) == 0 && setgid(65534) == 0 && setuid(65534) == 0);
}

// A filesystem for this child alone.
static void mount_for_child(const char *path, const char *options) {
  if (geteuid() || unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL)) _exit(CHILD_CANNOT);
  CHECK(mkdir(path, 0700) == 0 || errno == EEXIST);
  if (mount("none", path, "tmpfs", 0, options)) _exit(CHILD_CANNOT);
}

// ---- keys -----------------------------------------------------------------------------------------------------

static dw__request_key_input some_request(void) {
  return (dw__request_key_input){.shape = "mla:h=8",
                                 .variant = "family=split",
                                 .compile_target = "sm_120f",
                                 .templates = dw__sha256("templates", 9),
                                 .abi = 7};
}

static const char *const some_options[] = {"-arch=sm_120f", "--no-cache"};

static dw__build_key_input some_build(void) {
  return (dw__build_key_input){.source = "__global__ void f() {}",
                               .source_size = 22,
                               .options = some_options,
                               .option_count = 2,
                               .compile_target = "sm_120f",
                               .compiler = "nvrtc 13.0.88",
                               .compiler_build = "abcdef"};
}

// Made with another implementation of the encoding. A change here orphans every cache: raise the schema number instead.
static void keys_are_what_they_always_were(void **state) {
  (void)state;
  char hex[65];
  dw__request_key_input request = some_request();
  dw__digest key = dw__request_key(&request);
  dw__hex(&key, hex);
  assert_string_equal(hex, "a5840cfbce0085830deeb1b312536a1c0c983d9b3ecdf6eecb755e492d3d7d27");
  dw__build_key_input build = some_build();
  key = dw__build_key(&build);
  dw__hex(&key, hex);
  assert_string_equal(hex, "5f5f370ef1d560c819c6e9e146a1265e51d2b0a7b8f92a8456f331d543bc67f2");
}

static void assert_all_differ(const dw__digest *keys, size_t count) {
  for (size_t i = 0; i < count; i++) {
    for (size_t k = 0; k < i; k++) {
      if (!memcmp(&keys[i], &keys[k], sizeof keys[i])) fail_msg("inputs %zu and %zu have the same key", i, k);
    }
  }
}

// Other templates, another ABI and another target each ask for another kernel.
static void O_c22_O_c23_O_c08_every_field_changes_the_request_key(void **state) {
  (void)state;
  dw__digest keys[9];
  dw__request_key_input in[DW__COUNT(keys)];
  for (size_t i = 0; i < DW__COUNT(in); i++) in[i] = some_request();
  in[1].shape = "mla:h=16";
  in[2].variant = "family=rowsplit";
  in[3].compile_target = "sm_120";
  in[4].templates.bytes[31] ^= 1;
  in[5].abi = 8;
  in[6].shape = "mla:h=8f", in[6].variant = "amily=split";
  in[7].compile_target = "sm_120a";
  in[8].variant = "family=splits", in[8].compile_target = "m_120f";
  for (size_t i = 0; i < DW__COUNT(in); i++) keys[i] = dw__request_key(&in[i]);
  assert_all_differ(keys, DW__COUNT(keys));
}

static void O_c22_O_c23_every_field_changes_the_build_key(void **state) {
  (void)state;
  static const char *const turned[] = {"--no-cache", "-arch=sm_120f"}, *const joined[] = {"-arch=sm_120f--no-cache"};
  static const char *const split[] = {"-arch=sm_120f--no-cach", "e"}, *const one[] = {"-arch=sm_120f"};
  dw__digest keys[13];
  dw__build_key_input in[DW__COUNT(keys)];
  for (size_t i = 0; i < DW__COUNT(in); i++) in[i] = some_build();
  in[1].source = "__global__ void g() {}";
  in[2].source_size = 21;
  in[3].options = turned;
  in[4].options = joined, in[4].option_count = 1;
  in[5].options = split;
  in[6].options = one, in[6].option_count = 1;
  in[7].options = NULL, in[7].option_count = 0;
  in[8].compile_target = "sm_120a";
  in[9].compiler = "nvrtc 13.0.89";
  in[10].compiler_build = "abcdee";
  in[11].compiler_build = "";
  in[12].compiler = "nvrtc 13.0.88a", in[12].compiler_build = "bcdef";
  for (size_t i = 0; i < DW__COUNT(in); i++) keys[i] = dw__build_key(&in[i]);
  assert_all_differ(keys, DW__COUNT(keys));
}

// ---- finding and publishing -----------------------------------------------------------------------------------

static void published_is_found_by_both_keys(void **state) {
  const scratch *s = *state;
  warnings w;
  dw__entry entry = make_entry(1, 50000), found;
  dw__cache *cache = open_cache(s->cache, &w);
  assert_string_equal(dw__cache_directory(cache, NULL), s->cache);
  assert_int_equal(dw__cache_find(cache, &entry.request, &found, NULL), DW_NOT_FOUND);
  assert_int_equal(dw__cache_find_build(cache, &entry.build, &found, NULL), DW_NOT_FOUND);
  assert_int_equal(dw__cache_publish(cache, &entry, NULL), DW_OK);
  assert_int_equal(dw__cache_find(cache, &entry.request, &found, NULL), DW_OK);
  assert_true(same_entry(&entry, &found));
  dw__entry_free(&found);
  dw__cache_stats stats = counters(cache);
  assert_int_equal(stats.misses, 2);
  assert_int_equal(stats.hits_memory, 1);
  assert_int_equal(stats.published, 1);
  dw__cache_close(cache);

  cache = open_cache(s->cache, &w);
  assert_int_equal(dw__cache_find_build(cache, &entry.build, &found, NULL), DW_OK);
  assert_memory_equal(found.cubin, entry.cubin, entry.cubin_size);
  dw__entry_free(&found);
  for (int i = 0; i < 3; i++) {
    assert_int_equal(dw__cache_find(cache, &entry.request, &found, NULL), DW_OK);
    assert_true(same_entry(&entry, &found));
    dw__entry_free(&found);
  }
  stats = counters(cache);
  assert_int_equal(stats.hits_disk, 2);
  assert_int_equal(stats.hits_memory, 2);
  assert_int_equal(stats.misses + stats.damaged + stats.publish_failures, 0);
  assert_int_equal(w.count, 0);
  dw__cache_close(cache);
  dw__entry_free(&entry);
}

static void a_miss_names_the_key(void **state) {
  const scratch *s = *state;
  dw__entry entry = make_entry(1, 10), found;
  dw_error e = {0};
  char hex[65];
  dw__cache *cache = open_cache(s->cache, NULL);
  assert_int_equal(dw__cache_find(cache, &entry.request, &found, &e), DW_NOT_FOUND);
  dw__hex(&entry.request, hex);
  assert_string_equal(e.field, "request key");
  assert_string_equal(e.found, hex);
  dw__cache_close(cache);
  dw__entry_free(&entry);
}

static void two_requests_may_lead_to_one_build(void **state) {
  const scratch *s = *state;
  dw__entry entry = make_entry(1, 600), other = make_entry(1, 600);
  other.request = dw__sha256("another", 7);
  publish_at(s->cache, &entry);
  publish_at(s->cache, &other);
  assert_true(found_at(s->cache, &entry, NULL));
  assert_true(found_at(s->cache, &other, NULL));
  dw__cache *cache = open_cache(s->cache, NULL);
  assert_int_equal(dw__cache_scan(cache, false, NULL, NULL, NULL), DW_OK);
  assert_int_equal(counters(cache).entries, 1);
  dw__cache_close(cache);
  dw__entry_free(&entry);
  dw__entry_free(&other);
}

// Capability 8.6, then 12.0: both kernels live in one folder and neither is served for the other.
static void O_c09_O_c11_targets_share_a_folder(void **state) {
  const scratch *s = *state;
  dw__request_key_input input = some_request();
  dw__entry first = make_entry(1, 600), second = make_entry(2, 600);
  input.compile_target = "sm_86";
  first.request = dw__request_key(&input);
  input.compile_target = "sm_120f";
  second.request = dw__request_key(&input);
  publish_at(s->cache, &first);
  assert_false(found_at(s->cache, &second, NULL));
  publish_at(s->cache, &second);
  assert_true(found_at(s->cache, &first, NULL));
  assert_true(found_at(s->cache, &second, NULL));
  dw__entry_free(&first);
  dw__entry_free(&second);
}

// A cubin that the driver rejected is made again under the same keys.
static void O_c23_publish_replaces(void **state) {
  const scratch *s = *state;
  dw__entry old = make_entry(1, 600), new = make_entry(1, 700), found;
  dw__cache *cache = open_cache(s->cache, NULL);
  assert_int_equal(dw__cache_publish(cache, &old, NULL), DW_OK);
  assert_int_equal(dw__cache_publish(cache, &new, NULL), DW_OK);
  assert_int_equal(dw__cache_find(cache, &new.request, &found, NULL), DW_OK);
  assert_true(same_entry(&new, &found));
  dw__entry_free(&found);
  dw__cache_close(cache);
  assert_true(found_at(s->cache, &new, NULL));
  dw__entry_free(&old);
  dw__entry_free(&new);
}

static void what_cannot_be_stored_is_counted(void **state) {
  const scratch *s = *state;
  warnings w;
  dw__entry entry = make_entry(1, 600), found;
  dw__cache *cache = open_cache(s->cache, &w);
  size_t size = entry.cubin_size;
  entry.cubin_size = 0;
  assert_int_equal(dw__cache_publish(cache, &entry, NULL), DW_OK);
  entry.cubin_size = ((size_t)64 << 20) + 1;
  assert_int_equal(dw__cache_publish(cache, &entry, NULL), DW_OK);
  entry.cubin_size = size;
  char *metadata = entry.metadata;
  entry.metadata = calloc(1, ((size_t)1 << 20) + 2);
  memset(entry.metadata, ' ', ((size_t)1 << 20) + 1);
  assert_int_equal(dw__cache_publish(cache, &entry, NULL), DW_OK);
  free(metadata);
  assert_int_equal(dw__cache_find(cache, &entry.request, &found, NULL), DW_NOT_FOUND);
  assert_int_equal(counters(cache).publish_failures, 3);
  assert_int_equal(w.count, 1);
  dw__cache_close(cache);
  dw__entry_free(&entry);
}

static void opening_and_looking_create_nothing(void **state) {
  const scratch *s = *state;
  dw__entry entry = make_entry(1, 600);
  uint64_t removed;
  assert_false(found_at(s->cache, &entry, NULL));
  dw__cache *cache = open_cache(s->cache, NULL);
  assert_int_equal(dw__cache_scan(cache, true, NULL, NULL, NULL), DW_OK);
  assert_int_equal(dw__cache_clear(cache, &removed, NULL), DW_OK);
  assert_int_equal(removed, 0);
  dw__cache_close(cache);
  assert_int_equal(access(s->cache, F_OK), -1);
  dw__entry_free(&entry);
}

static void layout_and_modes(void **state) {
  const scratch *s = *state;
  dw__entry entry = make_entry(1, 600);
  mode_t mask = umask(0);
  publish_at(s->cache, &entry);
  umask(mask);
  char path[256], object[256], manifest[256];
  static const char *const folders[] = {"", "/v1", "/v1/obj", "/v1/man", "/v1/tmp"};
  struct stat status;
  for (size_t i = 0; i < DW__COUNT(folders); i++) {
    snprintf(path, sizeof path, "%s%s", s->cache, folders[i]);
    assert_int_equal(stat(path, &status), 0);
    assert_int_equal(status.st_mode & 07777, 0700);
  }
  file_of(s->cache, "obj", &entry.build, object);
  file_of(s->cache, "man", &entry.request, manifest);
  assert_int_equal(stat(object, &status), 0);
  assert_int_equal(status.st_mode & 07777, 0600);
  assert_int_equal(stat(manifest, &status), 0);
  assert_int_equal(status.st_size, 96);
  assert_int_equal(files_in(s->cache, "v1/tmp"), 0);
  assert_int_equal(files_in(s->cache, "v1"), 3);
  size_t size;
  snprintf(path, sizeof path, "%s/CACHEDIR.TAG", s->cache);
  char *tag = read_whole(path, &size);
  assert_memory_equal(tag, "Signature: 8a477f597d28d172789f06886806bc55", 43);
  dw_free(tag);
  dw__entry_free(&entry);
}

static void same_entry_same_bytes(void **state) {
  const scratch *s = *state;
  dw__entry entry = make_entry(1, 30000);
  char other[100], a[256], b[256];
  snprintf(other, sizeof other, "%s/elsewhere", s->folder);
  publish_at(s->cache, &entry);
  sleep(1);
  publish_at(other, &entry);
  for (int i = 0; i < 2; i++) {
    size_t size_a, size_b;
    file_of(s->cache, i ? "man" : "obj", i ? &entry.request : &entry.build, a);
    file_of(other, i ? "man" : "obj", i ? &entry.request : &entry.build, b);
    char *bytes_a = read_whole(a, &size_a), *bytes_b = read_whole(b, &size_b);
    assert_int_equal(size_a, size_b);
    assert_memory_equal(bytes_a, bytes_b, size_a);
    if (!i) assert_memory_equal(bytes_a, "DWENTRY\n\1\0\0\0\0\0\0\0", 16);
    if (!i) assert_memory_equal(bytes_a + 72, entry.metadata, strlen(entry.metadata));
    dw_free(bytes_a);
    dw_free(bytes_b);
  }
  dw__entry_free(&entry);
}

// ---- damage ---------------------------------------------------------------------------------------------------

// Each change of the file must be a counted miss; then a publish must mend it.
static void try_damage(const scratch *s, const char *kind, const dw__entry *entry) {
  char path[256];
  size_t size;
  uint64_t damaged;
  file_of(s->cache, kind, kind[0] == 'o' ? &entry->build : &entry->request, path);
  char *bytes = read_whole(path, &size);
  for (size_t n = 0; n < size; n++) {
    write_whole(path, bytes, n);
    assert_false(found_at(s->cache, entry, &damaged));
    assert_int_equal(damaged, 1);
  }
  for (size_t i = 0; i < size * 8; i++) {
    bytes[i / 8] = (char)(bytes[i / 8] ^ 1 << i % 8);
    write_whole(path, bytes, size);
    assert_false(found_at(s->cache, entry, &damaged));
    assert_int_equal(damaged, 1);
    bytes[i / 8] = (char)(bytes[i / 8] ^ 1 << i % 8);
  }
  for (size_t i = 0; i < size; i++) {  // zeroed from here on, as after a crash without sync
    char *zeroed = calloc(1, size);
    memcpy(zeroed, bytes, i);
    write_whole(path, zeroed, size);
    if (memcmp(zeroed, bytes, size)) assert_false(found_at(s->cache, entry, NULL));
    free(zeroed);
  }
  char *longer = calloc(1, size + 1);
  memcpy(longer, bytes, size);
  write_whole(path, longer, size + 1);
  assert_false(found_at(s->cache, entry, &damaged));
  assert_int_equal(damaged, 1);
  publish_at(s->cache, entry);
  assert_true(found_at(s->cache, entry, &damaged));
  assert_int_equal(damaged, 0);
  free(longer);
  dw_free(bytes);
}

static void O_c21_a_damaged_entry_is_a_miss(void **state) {
  const scratch *s = *state;
  dw__entry entry = make_entry(1, 600);
  publish_at(s->cache, &entry);
  try_damage(s, "obj", &entry);
  dw__entry_free(&entry);
}

static void O_c21_a_damaged_manifest_is_a_miss(void **state) {
  const scratch *s = *state;
  dw__entry entry = make_entry(1, 600);
  publish_at(s->cache, &entry);
  try_damage(s, "man", &entry);
  dw__entry_free(&entry);
}

static void O_c21_damage_is_told_once(void **state) {
  const scratch *s = *state;
  warnings w;
  dw__entry entry = make_entry(1, 600), found;
  char path[256];
  publish_at(s->cache, &entry);
  file_of(s->cache, "obj", &entry.build, path);
  assert_int_equal(truncate(path, 100), 0);
  dw__cache *cache = open_cache(s->cache, &w);
  for (int i = 0; i < 3; i++) assert_int_equal(dw__cache_find(cache, &entry.request, &found, NULL), DW_NOT_FOUND);
  assert_int_equal(counters(cache).damaged, 3);
  assert_int_equal(w.count, 1);
  assert_non_null(strstr(w.last, s->cache));
  dw__cache_close(cache);
  dw__entry_free(&entry);
}

static void O_c21_swapped_entries_are_misses(void **state) {
  const scratch *s = *state;
  dw__entry a = make_entry(1, 600), b = make_entry(2, 600);
  static const char *const kinds[] = {"obj", "man"};
  for (size_t i = 0; i < DW__COUNT(kinds); i++) {
    char path_a[256], path_b[256];
    size_t size_a, size_b;
    uint64_t damaged;
    publish_at(s->cache, &a);
    publish_at(s->cache, &b);
    file_of(s->cache, kinds[i], i ? &a.request : &a.build, path_a);
    file_of(s->cache, kinds[i], i ? &b.request : &b.build, path_b);
    char *bytes_a = read_whole(path_a, &size_a), *bytes_b = read_whole(path_b, &size_b);
    write_whole(path_a, bytes_b, size_b);
    write_whole(path_b, bytes_a, size_a);
    assert_false(found_at(s->cache, &a, &damaged));
    assert_int_equal(damaged, 1);
    assert_false(found_at(s->cache, &b, &damaged));
    assert_int_equal(damaged, 1);
    dw_free(bytes_a);
    dw_free(bytes_b);
  }
  dw__entry_free(&a);
  dw__entry_free(&b);
}

static void O_c21_wrong_permissions_are_misses(void **state) {
  const scratch *s = *state;
  dw__entry entry = make_entry(1, 600);
  char path[256], aside[100];
  uint64_t damaged;
  publish_at(s->cache, &entry);
  file_of(s->cache, "obj", &entry.build, path);
  assert_int_equal(chmod(path, 0622), 0);
  assert_false(found_at(s->cache, &entry, &damaged));
  assert_int_equal(damaged, 1);
  publish_at(s->cache, &entry);
  assert_true(found_at(s->cache, &entry, NULL));

  snprintf(aside, sizeof aside, "%s/aside", s->folder);
  assert_int_equal(rename(path, aside), 0);
  assert_int_equal(symlink(aside, path), 0);
  assert_false(found_at(s->cache, &entry, &damaged));
  assert_int_equal(damaged, 1);
  publish_at(s->cache, &entry);  // replaces the link, not what it points to
  assert_true(found_at(s->cache, &entry, NULL));

  assert_int_equal(unlink(path), 0);
  assert_int_equal(mkfifo(path, 0600), 0);  // must not wait for a writer
  assert_false(found_at(s->cache, &entry, &damaged));
  assert_int_equal(damaged, 1);
  dw__entry_free(&entry);
}

// Recomputes the checksum, so that what lies behind it is reached.
static void reseal(char *bytes, size_t size) {
  XXH128_canonical_t checksum;
  XXH128_canonicalFromHash(&checksum, XXH3_128bits(bytes, size - 16));
  memcpy(bytes + size - 16, &checksum, 16);
}

typedef void (*forge_fn)(char *bytes, size_t size);
static void forge_magic(char *bytes, size_t size) { (void)size, bytes[0] = 'X'; }
static void forge_schema(char *bytes, size_t size) { (void)size, bytes[8] = 2; }
static void forge_zero(char *bytes, size_t size) { (void)size, bytes[12] = 1; }
static void forge_key(char *bytes, size_t size) { (void)size, bytes[16] ^= 1; }
static void forge_metadata_size(char *bytes, size_t size) { (void)size, memset(bytes + 48, 0xFF, 8); }
static void forge_metadata_smaller(char *bytes, size_t size) { (void)size, bytes[48]--, bytes[64]++; }
static void forge_metadata_larger(char *bytes, size_t size) { (void)size, bytes[48]++, bytes[64]--; }
static void forge_cubin_huge(char *bytes, size_t size) { (void)size, bytes[60] = 1; }
static void forge_cubin_empty(char *bytes, size_t size) { (void)size, memset(bytes + 56, 0, 8); }
static void forge_cubin_size(char *bytes, size_t size) { (void)size, bytes[56]++; }
static void forge_packed_size(char *bytes, size_t size) { (void)size, memset(bytes + 64, 0xFF, 8); }
static uint64_t load(const char *at) {
  uint64_t number;
  memcpy(&number, at, sizeof number);
  return number;
}
static void store(char *at, uint64_t number) { memcpy(at, &number, sizeof number); }
// Sizes that add up only since the sum wraps round.
static void forge_metadata_wraps(char *bytes, size_t size) {
  (void)size;
  store(bytes + 64, load(bytes + 64) + load(bytes + 48) + 1);
  store(bytes + 48, UINT64_MAX);
}
static void forge_packed_wraps(char *bytes, size_t size) {
  (void)size;
  store(bytes + 48, load(bytes + 48) + load(bytes + 64) + 1);
  store(bytes + 64, UINT64_MAX);
}
static void forge_metadata_text(char *bytes, size_t size) { (void)size, bytes[75] = 0; }
// A block that uses a Huffman table nobody sent.
static void forge_frame(char *bytes, size_t size) { (void)size, memset(bytes + 72 + bytes[48] + 10, 0xFF, 4); }
static void forge_frame_magic(char *bytes, size_t size) { (void)size, bytes[72 + bytes[48]] = 0; }

// Whole and with a good checksum, but not what we would write. Also entries of another schema (O-c23).
static void O_c23_forged_entries_are_misses(void **state) {
  const scratch *s = *state;
  static const forge_fn forgeries[] = {forge_magic,
                                       forge_schema,
                                       forge_zero,
                                       forge_key,
                                       forge_metadata_size,
                                       forge_metadata_smaller,
                                       forge_metadata_larger,
                                       forge_cubin_huge,
                                       forge_cubin_empty,
                                       forge_cubin_size,
                                       forge_packed_size,
                                       forge_metadata_wraps,
                                       forge_packed_wraps,
                                       forge_metadata_text,
                                       forge_frame,
                                       forge_frame_magic};
  dw__entry entry = make_entry(1, 600);
  char path[256];
  size_t size;
  uint64_t damaged;
  publish_at(s->cache, &entry);
  file_of(s->cache, "obj", &entry.build, path);
  char *bytes = read_whole(path, &size), *forged = malloc(size);
  for (size_t i = 0; i < DW__COUNT(forgeries); i++) {
    memcpy(forged, bytes, size);
    forgeries[i](forged, size);
    reseal(forged, size);
    write_whole(path, forged, size);
    if (found_at(s->cache, &entry, &damaged)) fail_msg("forgery %zu was taken", i);
    assert_int_equal(damaged, 1);
  }
  memcpy(forged, bytes, size);
  reseal(forged, size);
  write_whole(path, forged, size);
  assert_true(found_at(s->cache, &entry, NULL));
  free(forged);
  dw_free(bytes);
  dw__entry_free(&entry);
}

// Two frames whose sizes add up are still not what the header promises.
static void two_frames_are_not_one(void **state) {
  const scratch *s = *state;
  dw__entry entry = make_entry(1, 600);
  char path[256], file[2048] = {0};
  publish_at(s->cache, &entry);
  file_of(s->cache, "obj", &entry.build, path);
  size_t size, at = 72 + strlen(entry.metadata);
  char *bytes = read_whole(path, &size);
  memcpy(file, bytes, at);
  size_t first = ZSTD_compress(file + at, 900, entry.cubin, 600, 1);
  size_t second = ZSTD_compress(file + at + first, 900, "", 0, 1);
  file[64] = (char)(first + second), file[65] = (char)((first + second) >> 8);
  reseal(file, at + first + second + 16);
  write_whole(path, file, at + first + second + 16);
  assert_false(found_at(s->cache, &entry, NULL));
  dw_free(bytes);
  dw__entry_free(&entry);
}

static void a_sparse_giant_is_refused_before_reading(void **state) {
  const scratch *s = *state;
  dw__entry entry = make_entry(1, 600);
  char path[256];
  uint64_t damaged;
  publish_at(s->cache, &entry);
  file_of(s->cache, "obj", &entry.build, path);
  assert_int_equal(truncate(path, (off_t)1 << 40), 0);
  double start = dw__seconds();
  assert_false(found_at(s->cache, &entry, &damaged));
  assert_int_equal(damaged, 1);
  assert_true(dw__seconds() - start < 1);
  file_of(s->cache, "man", &entry.request, path);
  assert_int_equal(truncate(path, (off_t)1 << 40), 0);
  assert_false(found_at(s->cache, &entry, &damaged));
  assert_int_equal(damaged, 1);
  dw__entry_free(&entry);
}

// ---- out of memory --------------------------------------------------------------------------------------------

typedef struct sweep {
  const char *directory;
  dw__entry entry;
} sweep;

static dw_status sweep_open(const sweep *with, dw__cache *cache) {
  (void)cache;
  dw__cache *other = NULL;
  dw_status status = dw__cache_open(with->directory, NULL, NULL, &other, NULL);
  assert_true((status == DW_OK) == (other != NULL));
  dw__cache_close(other);
  return status;
}

static dw_status sweep_publish(const sweep *with, dw__cache *cache) { return dw__cache_publish(cache, &with->entry, NULL); }

static dw_status sweep_find(const sweep *with, dw__cache *cache) {
  dw__entry found;
  dw_status status = dw__cache_find(cache, &with->entry.request, &found, NULL);
  if (!status) assert_true(same_entry(&found, &with->entry));
  dw__entry_free(&found);
  return status;
}

static dw_status sweep_find_build(const sweep *with, dw__cache *cache) {
  dw__entry found;
  dw_status status = dw__cache_find_build(cache, &with->entry.build, &found, NULL);
  dw__entry_free(&found);
  return status;
}

static bool see(void *user, const char *path, uint64_t file_size, const dw__entry *entry, const char *damaged) {
  (void)path, (void)file_size, (void)entry;
  if (damaged) *(bool *)user = true;
  return true;
}

static dw_status sweep_scan(const sweep *with, dw__cache *cache) {
  (void)with;
  bool any_damage = false;
  dw_status status = dw__cache_scan(cache, true, see, &any_damage, NULL);
  assert_false(any_damage);
  return status;
}

static dw_status sweep_clear(const sweep *with, dw__cache *cache) {
  (void)with;
  return dw__cache_clear(cache, NULL, NULL);
}

// Every allocation of a step fails in turn. The step says so or does without, and works again afterwards.
static void allocation_failures_are_survived(void **state) {
  const scratch *s = *state;
  static dw_status (*const steps[])(const sweep *, dw__cache *) = {sweep_open,       sweep_publish, sweep_find,
                                                                   sweep_find_build, sweep_scan,    sweep_clear};
  sweep with = {s->cache, make_entry(1, 600)};
  for (size_t i = 0; i < DW__COUNT(steps); i++) {
    long made = 1;
    for (long n = 1; n <= made; n++) {
      publish_at(s->cache, &with.entry);
      dw__cache *cache = open_cache(s->cache, NULL);
      dw__alloc_fail_after(n);
      dw_status status = steps[i](&with, cache);
      long seen = dw__alloc_fail_after(0);
      if (status) assert_int_equal(status, DW_OUT_OF_MEMORY);
      if (seen >= n) made = n + 1;  // one more to try
      assert_int_equal(steps[i](&with, cache), DW_OK);
      dw__cache_close(cache);
    }
    assert_true(made > 3);
  }
  dw__entry_free(&with.entry);
}

// ---- several processes and threads ----------------------------------------------------------------------------

typedef struct race {
  const char *directory;
  atomic_int *waiting;  // shared by the processes: all start at once
  int processes, keys, first;
} race;

static void run_race(void *user) {
  const race *r = user;
  atomic_fetch_add(r->waiting, 1);
  while (atomic_load(r->waiting) < r->processes) sched_yield();
  dw__cache *cache = open_cache(r->directory, NULL);
  for (int i = 0; i < r->keys; i++) {
    dw__entry entry = make_entry((r->first + i) % r->keys, 20000), found;
    if (dw__cache_find(cache, &entry.request, &found, NULL)) {
      CHECK(!dw__cache_publish(cache, &entry, NULL));
      CHECK(!dw__cache_find(cache, &entry.request, &found, NULL));
    }
    CHECK(same_entry(&entry, &found));
    dw__entry_free(&found);
    dw__entry_free(&entry);
  }
  CHECK(counters(cache).damaged == 0 && counters(cache).publish_failures == 0);
  dw__cache_close(cache);
}

static void race_rounds(const scratch *s, int processes, int keys, int rounds) {
  atomic_int *waiting = mmap(NULL, sizeof *waiting, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  for (int round = 0; round < rounds; round++) {
    pid_t children[32];
    atomic_store(waiting, 0);
    for (int i = 0; i < processes; i++) {
      race r = {s->cache, waiting, processes, keys, i};
      children[i] = start_child(run_race, &r);
    }
    for (int i = 0; i < processes; i++) assert_int_equal(end_child(children[i]), 0);
    dw__cache *cache = open_cache(s->cache, NULL);
    uint64_t removed;
    bool any_damage = false;
    assert_int_equal(dw__cache_scan(cache, true, see, &any_damage, NULL), DW_OK);
    assert_false(any_damage);
    assert_int_equal(files_in(s->cache, "v1/tmp"), 0);
    assert_int_equal(dw__cache_clear(cache, &removed, NULL), DW_OK);
    assert_int_equal(removed, keys);
    dw__cache_close(cache);
  }
  munmap(waiting, sizeof *waiting);
}

static void O_c13_two_processes_publish_one_key(void **state) { race_rounds(*state, 2, 1, 50); }
static void O_c13_many_processes_publish_many_keys(void **state) { race_rounds(*state, 16, 8, 5); }

static void publish_for_ever(void *user) {
  dw__cache *cache = open_cache(user, NULL);
  for (int i = 0;; i = (i + 1) % 16) {
    dw__entry entry = make_entry(i, 200000);
    CHECK(!dw__cache_publish(cache, &entry, NULL));
    dw__entry_free(&entry);
  }
}

static void age(const char *directory) {
  char path[400];
  DIR *stream = opendir(directory);
  const struct timespec old[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
  for (const struct dirent *item; (item = readdir(stream));) {
    snprintf(path, sizeof path, "%s/%s", directory, item->d_name);
    if (item->d_name[0] != '.') assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
  }
  closedir(stream);
}

static void a_killed_publisher_leaves_only_whole_entries(void **state) {
  const scratch *s = *state;
  char tmp[128];
  snprintf(tmp, sizeof tmp, "%s/v1/tmp", s->cache);
  unsigned seed = 1;
  int found = 0;
  for (int round = 0; round < 50; round++) {
    char directory[80];
    memcpy(directory, s->cache, sizeof directory);
    pid_t child = start_child(publish_for_ever, directory);
    usleep((useconds_t)(rand_r(&seed) % 20000));
    kill(child, SIGKILL);
    assert_int_equal(end_child(child), -SIGKILL);
    dw__cache *cache = open_cache(s->cache, NULL);
    bool any_damage = false;
    assert_int_equal(dw__cache_scan(cache, true, see, &any_damage, NULL), DW_OK);
    assert_false(any_damage);
    dw__cache_close(cache);
    uint64_t damaged;
    dw__entry entry = make_entry(round % 16, 200000);
    found += found_at(s->cache, &entry, &damaged);
    assert_int_equal(damaged, 0);
    dw__entry_free(&entry);
  }
  print_message("%d of 50 looked for were there, %d left in tmp\n", found, files_in(s->cache, "v1/tmp"));
  dw__entry entry = make_entry(99, 600);
  publish_at(s->cache, &entry);
  assert_true(found_at(s->cache, &entry, NULL));
  char left[256];
  snprintf(left, sizeof left, "%s/%064d", tmp, 0);
  write_whole(left, "half a file", 11);
  dw__cache *cache = open_cache(s->cache, NULL);
  int before = files_in(s->cache, "v1/tmp");
  assert_int_equal(dw__cache_clear(cache, NULL, NULL), DW_OK);
  assert_int_equal(files_in(s->cache, "v1/tmp"), before);  // young ones may be somebody's
  age(tmp);
  assert_int_equal(dw__cache_clear(cache, NULL, NULL), DW_OK);
  assert_int_equal(files_in(s->cache, "v1/tmp"), 0);
  // A process's first publish sees to them, too.
  write_whole(left, "half a file", 11);
  age(tmp);
  publish_at(s->cache, &entry);
  assert_int_equal(files_in(s->cache, "v1/tmp"), 0);
  dw__cache_close(cache);
  dw__entry_free(&entry);
}

static void clear_and_publish(void *user) {
  dw__cache *cache = open_cache(user, NULL);
  dw__entry entry = make_entry(1, 20000);
  for (;;) {
    CHECK(!dw__cache_clear(cache, NULL, NULL));
    CHECK(!dw__cache_publish(cache, &entry, NULL));
  }
}

static void O_c15_loading_while_another_rebuilds(void **state) {
  const scratch *s = *state;
  char directory[80];
  memcpy(directory, s->cache, sizeof directory);
  pid_t children[2] = {start_child(clear_and_publish, directory), start_child(clear_and_publish, directory)};
  dw__entry entry = make_entry(1, 20000);
  int found = 0, missed = 0;
  for (double end = dw__seconds() + 2; dw__seconds() < end;) {
    uint64_t damaged;
    if (found_at(s->cache, &entry, &damaged)) found++;
    else missed++;
    assert_int_equal(damaged, 0);
  }
  print_message("%d found, %d missed\n", found, missed);
  for (int i = 0; i < 2; i++) {
    kill(children[i], SIGKILL);
    assert_int_equal(end_child(children[i]), -SIGKILL);
  }
  assert_true(found > 0 && missed > 0);
  dw__entry_free(&entry);
}

// Somebody removes the whole directory again and again: misses and failed writes, at most, and one warning.
static void remove_for_ever(void *user) {
  for (unsigned seed = 1;; usleep((useconds_t)(rand_r(&seed) % 60000))) remove_tree(user);
}

static void a_directory_that_is_removed_while_in_use(void **state) {
  const scratch *s = *state;
  char directory[80];
  warnings w;
  memcpy(directory, s->cache, sizeof directory);
  dw__cache *cache = open_cache(s->cache, &w);
  pid_t child = start_child(remove_for_ever, directory);
  uint64_t damaged;
  int count = 0;
  for (double end = dw__seconds() + 2; dw__seconds() < end; count++) {
    dw__entry entry = make_entry(count, 3000), found;
    dw__lock lock;
    assert_int_equal(dw__cache_publish(cache, &entry, NULL), DW_OK);
    assert_int_equal(dw__cache_find(cache, &entry.request, &found, NULL), DW_OK);
    assert_true(same_entry(&entry, &found));
    dw__entry_free(&found);
    found_at(s->cache, &entry, &damaged);
    assert_int_equal(damaged, 0);
    dw__cache_try_lock(cache, &entry.request, &lock);
    dw__lock_release(&lock);
    assert_int_equal(dw__cache_scan(cache, true, NULL, NULL, NULL), DW_OK);
    dw__entry_free(&entry);
  }
  kill(child, SIGKILL);
  assert_int_equal(end_child(child), -SIGKILL);
  dw__cache_stats stats = counters(cache);
  print_message("%d published, %d of them in vain\n", count, (int)stats.publish_failures);
  assert_int_equal(stats.published + stats.publish_failures, count);
  assert_true(stats.published > 0);
  assert_int_equal(stats.damaged, 0);
  assert_true(w.count <= 1);
  assert_non_null(dw__cache_directory(cache, NULL));
  dw__entry entry = make_entry(1, 600);
  assert_int_equal(dw__cache_publish(cache, &entry, NULL), DW_OK);
  dw__cache_close(cache);
  assert_true(found_at(s->cache, &entry, NULL));
  dw__entry_free(&entry);
}

// Signals whose handlers do not restart what they interrupt.
static atomic_int signals;
static void count_signal(int number) {
  (void)number;
  atomic_fetch_add(&signals, 1);
}

static void signals_disturb_nothing(void **state) {
  const scratch *s = *state;
  warnings w;
  struct sigaction action = {.sa_handler = count_signal}, before;
  const struct itimerval often = {{0, 200}, {0, 200}}, never = {0};
  dw__cache *cache = open_cache(s->cache, &w);
  assert_int_equal(sigaction(SIGALRM, &action, &before), 0);
  assert_int_equal(setitimer(ITIMER_REAL, &often, NULL), 0);
  for (int i = 0; i < 40; i++) {
    dw__entry entry = make_entry(i, 300000);
    dw__lock lock;
    assert_int_equal(dw__cache_publish(cache, &entry, NULL), DW_OK);
    assert_true(found_at(s->cache, &entry, NULL));
    assert_int_equal(dw__cache_try_lock(cache, &entry.request, &lock), DW__LOCKED);
    dw__lock_release(&lock);
    dw__entry_free(&entry);
  }
  assert_int_equal(setitimer(ITIMER_REAL, &never, NULL), 0);
  sigaction(SIGALRM, &before, NULL);
  assert_true(atomic_load(&signals) > 40);
  assert_int_equal(w.count, 0);
  assert_int_equal(counters(cache).published, 40);
  dw__cache_close(cache);
}

static void *use_from_thread(void *user) {
  dw__cache *cache = user;
  for (int round = 0; round < 3; round++) {
    for (int i = 0; i < 40; i++) {
      dw__entry entry = make_entry(i, 3000), found;
      dw_status status = dw__cache_find(cache, &entry.request, &found, NULL);
      if (status) {
        status = dw__cache_publish(cache, &entry, NULL) || dw__cache_find(cache, &entry.request, &found, NULL);
      }
      bool right = !status && same_entry(&entry, &found);
      dw__entry_free(&found);
      dw__entry_free(&entry);
      if (!right) return cache;
    }
  }
  return NULL;
}

static void threads_share_a_cache(void **state) {
  const scratch *s = *state;
  const char *const places[] = {s->cache, ""};
  for (size_t p = 0; p < DW__COUNT(places); p++) {
    dw__cache *cache = open_cache(places[p], NULL);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, use_from_thread, cache), 0);
    for (int i = 0; i < 4; i++) {
      void *wrong;
      pthread_join(threads[i], &wrong);
      assert_null(wrong);
    }
    assert_int_equal(counters(cache).damaged + counters(cache).publish_failures, 0);
    dw__cache_close(cache);
  }
}

static void no_descriptor_stays_open(void **state) {
  const scratch *s = *state;
  dw__entry entry = make_entry(1, 600), found;
  int before = files_in("/proc/self", "fd");
  dw__cache *cache = open_cache(s->cache, NULL);
  assert_int_equal(dw__cache_publish(cache, &entry, NULL), DW_OK);
  assert_int_equal(dw__cache_find_build(cache, &entry.build, &found, NULL), DW_OK);
  dw__entry_free(&found);
  assert_true(found_at(s->cache, &entry, NULL));
  assert_int_equal(dw__cache_scan(cache, true, NULL, NULL, NULL), DW_OK);
  assert_int_equal(dw__cache_clear(cache, NULL, NULL), DW_OK);
  assert_int_equal(files_in("/proc/self", "fd"), before);
  dw__cache_close(cache);
  dw__entry_free(&entry);
}

// ---- which directory ------------------------------------------------------------------------------------------

static void set_variables(const char *own, const char *xdg, const char *home) {
  const char *const names[] = {"DRAFTWOOD_CACHE_DIR", "XDG_CACHE_HOME", "HOME"}, *const values[] = {own, xdg, home};
  for (size_t i = 0; i < DW__COUNT(names); i++) {
    if (values[i]) setenv(names[i], values[i], 1);
    else unsetenv(names[i]);
  }
}

static void check_directory(const char *given, const char *expected, int warned, const char *reason) {
  warnings w;
  const char *why = "unset";
  dw__cache *cache = open_cache(given, &w);
  const char *directory = dw__cache_directory(cache, &why);
  CHECK((directory == NULL) == (expected == NULL));
  if (expected) CHECK(!strcmp(directory, expected) && !why);
  if (reason) CHECK(why && strstr(why, reason));
  CHECK(w.count == warned);
  dw__entry entry = make_entry(1, 600), found;
  if (!expected) {  // memory serves all the same
    CHECK(!dw__cache_publish(cache, &entry, NULL));
    CHECK(!dw__cache_find(cache, &entry.request, &found, NULL) && same_entry(&entry, &found));
    dw__entry_free(&found);
    CHECK(!dw__cache_find_build(cache, &entry.build, &found, NULL));
    dw__entry_free(&found);
    CHECK(!dw__cache_scan(cache, true, NULL, NULL, NULL));
    uint64_t removed;
    CHECK(!dw__cache_clear(cache, &removed, NULL) && removed == 1);
    CHECK(w.count == warned && counters(cache).publish_failures == 0);
  }
  dw__cache_close(cache);
  dw__entry_free(&entry);
}

static void child_directory_rules(void *user) {
  const scratch *s = user;
  char own[128], xdg[128], home[128], in_xdg[160], in_home[160];
  snprintf(own, sizeof own, "%s/own", s->folder);
  snprintf(xdg, sizeof xdg, "%s/xdg", s->folder);
  snprintf(home, sizeof home, "%s/home", s->folder);
  snprintf(in_xdg, sizeof in_xdg, "%s/draftwood", xdg);
  snprintf(in_home, sizeof in_home, "%s/.cache/draftwood", home);
  set_variables(own, xdg, home);
  check_directory(s->cache, s->cache, 0, NULL);
  check_directory(NULL, own, 0, NULL);
  check_directory("", NULL, 0, "asked for");
  set_variables("", xdg, home);
  check_directory(NULL, in_xdg, 0, NULL);
  set_variables(NULL, "relative/xdg", home);
  check_directory(NULL, in_home, 0, NULL);
  set_variables(NULL, "", home);
  check_directory(NULL, in_home, 0, NULL);
  set_variables(NULL, NULL, NULL);
  check_directory(NULL, NULL, 1, "HOME");
  set_variables(NULL, "relative", "relative");
  check_directory(NULL, NULL, 1, "HOME");
  char *endless = malloc(100000);
  memset(endless, 'x', 99999);
  endless[0] = '/', endless[99999] = 0;
  set_variables(endless, NULL, NULL);
  check_directory(NULL, NULL, 1, "too long");
  free(endless);
}

static void directory_rules(void **state) { run_child(child_directory_rules, *state); }

// Named on purpose, a relative one counts.
static void relative_directory_body(void *user) {
  const scratch *s = user;
  char expected[128];
  CHECK(chdir(s->folder) == 0);
  snprintf(expected, sizeof expected, "%s/here/cache", s->folder);
  dw__entry entry = make_entry(1, 600), found;
  dw__cache *cache = open_cache("here/cache//", NULL);
  CHECK(!strcmp(dw__cache_directory(cache, NULL), expected));
  CHECK(chdir("/") == 0);
  CHECK(!dw__cache_publish(cache, &entry, NULL));
  dw__cache_close(cache);
  cache = open_cache(expected, NULL);
  CHECK(!dw__cache_find(cache, &entry.request, &found, NULL));
  dw__cache_close(cache);
}

static void a_relative_directory_stays_where_it_was(void **state) { run_child(relative_directory_body, *state); }

static void home_unwritable_body(void *user) {
  (void)user;
  become_nobody(NULL);
  set_variables(NULL, NULL, "/");
  check_directory(NULL, NULL, 1, "denied");
  set_variables(NULL, NULL, "/nonexistent/user");
  check_directory(NULL, NULL, 1, "denied");
}

static void a_home_that_cannot_be_written(void **state) { run_child(home_unwritable_body, *state); }

// The directory seems possible, and then is not.
static void a_directory_that_cannot_be_made(void **state) {
  (void)state;
  warnings w;
  dw__entry entry = make_entry(1, 600), found;
  dw__cache *cache = open_cache("/proc/self/net/draftwood", &w);
  for (int i = 0; i < 2; i++) assert_int_equal(dw__cache_publish(cache, &entry, NULL), DW_OK);
  assert_int_equal(dw__cache_find(cache, &entry.request, &found, NULL), DW_OK);
  assert_int_equal(w.count, 1);
  dw__entry_free(&found);
  dw__cache_close(cache);
  dw__entry_free(&entry);
}

static void a_file_in_place_of_a_directory(void **state) {
  const scratch *s = *state;
  warnings w;
  const char *why;
  char below[100];
  write_whole(s->cache, "x", 1);
  dw__cache *cache = open_cache(s->cache, &w);
  assert_null(dw__cache_directory(cache, &why));
  assert_int_equal(w.count, 1);
  dw__cache_close(cache);
  snprintf(below, sizeof below, "%s/below", s->cache);
  cache = open_cache(below, &w);
  assert_null(dw__cache_directory(cache, &why));
  assert_int_equal(w.count, 1);
  dw__cache_close(cache);
}

// ---- which directory to trust ---------------------------------------------------------------------------------

// Memory only, with this reason, told once; and nothing is read or written there.
static void assert_refused(const char *directory, const char *reason) {
  warnings w;
  const char *why = NULL;
  dw__entry old = make_entry(1, 600), new = make_entry(2, 600), found;
  dw__cache *cache = open_cache(directory, &w);
  assert_int_equal(dw__cache_find(cache, &old.request, &found, NULL), DW_NOT_FOUND);
  for (int i = 0; i < 2; i++) assert_int_equal(dw__cache_publish(cache, &new, NULL), DW_OK);
  assert_int_equal(dw__cache_find(cache, &new.request, &found, NULL), DW_OK);
  dw__entry_free(&found);
  assert_null(dw__cache_directory(cache, &why));
  if (!strstr(why, reason)) fail_msg("'%s' lacks '%s'", why, reason);
  assert_int_equal(w.count, 1);
  assert_non_null(strstr(w.last, why));
  assert_int_equal(counters(cache).published, 0);
  dw__cache_close(cache);
  dw__entry_free(&old);
  dw__entry_free(&new);
}

static void O_c21_directories_that_others_can_write(void **state) {
  const scratch *s = *state;
  dw__entry entry = make_entry(1, 600);
  char object[256], path[256];
  publish_at(s->cache, &entry);
  file_of(s->cache, "obj", &entry.build, object);
  *strrchr(object, '/') = 0;
  static const char *const below[] = {"", "/v1", "/v1/obj", "/v1/man", "/v1/tmp", NULL};
  static const mode_t modes[] = {0777, 0770, 0720, 0702, 01777};
  for (size_t i = 0; i < DW__COUNT(below); i++) {
    snprintf(path, sizeof path, "%s%s", s->cache, below[i] ? below[i] : "");
    const char *target = below[i] ? path : object;
    for (size_t m = 0; m < DW__COUNT(modes); m++) {
      assert_int_equal(chmod(target, modes[m]), 0);
      assert_refused(s->cache, "writable by others");
    }
    assert_int_equal(chmod(target, 0700), 0);
    assert_true(found_at(s->cache, &entry, NULL));
  }
  dw__entry_free(&entry);
}

static void links_are_not_followed(void **state) {
  const scratch *s = *state;
  dw__entry entry = make_entry(1, 600);
  char shard[256], path[256], aside[100];
  publish_at(s->cache, &entry);
  file_of(s->cache, "obj", &entry.build, shard);
  *strrchr(shard, '/') = 0;
  snprintf(aside, sizeof aside, "%s/aside", s->folder);
  static const char *const below[] = {"", "/v1", "/v1/obj", "/v1/man", "/v1/tmp", NULL};
  for (size_t i = 0; i < DW__COUNT(below); i++) {
    snprintf(path, sizeof path, "%s%s", s->cache, below[i] ? below[i] : "");
    const char *target = below[i] ? path : shard;
    assert_int_equal(rename(target, aside), 0);
    assert_int_equal(symlink(aside, target), 0);
    assert_refused(s->cache, "symbolic link");
    if (i == 0) {
      strcat(path, "/");
      assert_refused(path, "symbolic link");  // a closing slash does not change that
      path[strlen(path) - 1] = 0;
    }
    assert_int_equal(unlink(target), 0);
    assert_int_equal(rename(aside, target), 0);
    assert_true(found_at(s->cache, &entry, NULL));
  }
  dw__entry_free(&entry);
}

// Links above the cache are the user's own business: a home on another disk.
static void links_above_are_followed(void **state) {
  const scratch *s = *state;
  dw__entry entry = make_entry(1, 600);
  char real[100], link[100], inside[120];
  snprintf(real, sizeof real, "%s/real", s->folder);
  snprintf(link, sizeof link, "%s/link", s->folder);
  snprintf(inside, sizeof inside, "%s/cache", link);
  assert_int_equal(mkdir(real, 0755), 0);
  assert_int_equal(symlink(real, link), 0);
  publish_at(inside, &entry);
  assert_true(found_at(inside, &entry, NULL));
  dw__entry_free(&entry);
}

static void a_directory_of_somebody_else(void **state) {
  const scratch *s = *state;
  if (geteuid()) skip();
  dw__entry entry = make_entry(1, 600);
  char path[256];
  publish_at(s->cache, &entry);
  static const char *const below[] = {"", "/v1", "/v1/obj"};
  for (size_t i = 0; i < DW__COUNT(below); i++) {
    snprintf(path, sizeof path, "%s%s", s->cache, below[i]);
    assert_int_equal(chown(path, 12345, 12345), 0);
    assert_refused(s->cache, "belongs to user 12345");
    assert_int_equal(chown(path, 0, 0), 0);
  }
  uint64_t damaged;
  file_of(s->cache, "obj", &entry.build, path);
  assert_int_equal(chown(path, 12345, 12345), 0);
  assert_false(found_at(s->cache, &entry, &damaged));
  assert_int_equal(damaged, 1);
  dw__entry_free(&entry);
}

// It turns bad while we use it.
static void trust_is_checked_each_time(void **state) {
  const scratch *s = *state;
  warnings w;
  dw__entry entry = make_entry(1, 600), other = make_entry(2, 600), found;
  publish_at(s->cache, &entry);
  dw__cache *cache = open_cache(s->cache, &w);
  assert_non_null(dw__cache_directory(cache, NULL));
  assert_int_equal(chmod(s->cache, 0777), 0);
  assert_int_equal(dw__cache_find(cache, &entry.request, &found, NULL), DW_NOT_FOUND);
  assert_null(dw__cache_directory(cache, NULL));
  assert_int_equal(dw__cache_publish(cache, &other, NULL), DW_OK);
  assert_int_equal(counters(cache).published, 0);
  assert_int_equal(w.count, 1);
  dw__cache_close(cache);
  dw__entry_free(&entry);
  dw__entry_free(&other);
}

static void a_directory_that_vanishes_is_made_again(void **state) {
  const scratch *s = *state;
  dw__entry entry = make_entry(1, 600), other = make_entry(2, 600), found;
  dw__cache *cache = open_cache(s->cache, NULL);
  assert_int_equal(dw__cache_publish(cache, &entry, NULL), DW_OK);
  remove_tree(s->cache);
  assert_int_equal(dw__cache_find(cache, &other.request, &found, NULL), DW_NOT_FOUND);
  assert_int_equal(dw__cache_publish(cache, &other, NULL), DW_OK);
  assert_int_equal(counters(cache).published, 2);
  dw__cache_close(cache);
  assert_false(found_at(s->cache, &entry, NULL));
  assert_true(found_at(s->cache, &other, NULL));
  dw__entry_free(&entry);
  dw__entry_free(&other);
}

// ---- disks that refuse ----------------------------------------------------------------------------------------

// Warm entries serve; new ones live in memory, with a counter and one warning.
static void check_read_only(const char *directory) {
  warnings w;
  dw__entry warm = make_entry(1, 600), cold = make_entry(2, 600), found;
  dw__cache *cache = open_cache(directory, &w);
  CHECK(dw__cache_directory(cache, NULL));
  CHECK(!dw__cache_find(cache, &warm.request, &found, NULL) && same_entry(&warm, &found));
  dw__entry_free(&found);
  CHECK(w.count == 0);
  CHECK(dw__cache_find(cache, &cold.request, &found, NULL) == DW_NOT_FOUND);
  for (int i = 0; i < 3; i++) CHECK(!dw__cache_publish(cache, &cold, NULL));
  CHECK(!dw__cache_find(cache, &cold.request, &found, NULL) && same_entry(&cold, &found));
  CHECK(w.count == 1 && counters(cache).publish_failures == 3 && counters(cache).published == 0);
  CHECK(dw__cache_clear(cache, NULL, NULL) == DW_IO);  // asked for by name, so this one is an error
  dw__entry_free(&found);
  dw__cache_close(cache);
  dw__entry_free(&warm);
  dw__entry_free(&cold);
}

static int lock_one(const char *path, const struct stat *status, int type, struct FTW *walk) {
  (void)status, (void)walk;
  return type == FTW_D ? chmod(path, 0500) : 0;
}

static void fill_in_child(const char *directory) {
  dw__entry warm = make_entry(1, 600);
  dw__cache *cache = open_cache(directory, NULL);
  CHECK(!dw__cache_publish(cache, &warm, NULL) && counters(cache).published == 1);
  dw__cache_close(cache);
  dw__entry_free(&warm);
}

static void read_only_modes_body(void *user) {
  const scratch *s = user;
  become_nobody(s->folder);
  fill_in_child(s->cache);
  CHECK(nftw(s->cache, lock_one, 16, FTW_PHYS) == 0);
  check_read_only(s->cache);
}

static void O_c18_a_directory_without_write_permission(void **state) { run_child(read_only_modes_body, *state); }

static void read_only_mount_body(void *user) {
  const scratch *s = user;
  mount_for_child(s->cache, "size=1m,mode=700");
  fill_in_child(s->cache);
  if (mount("none", s->cache, NULL, MS_REMOUNT | MS_RDONLY, "size=1m")) _exit(CHILD_CANNOT);
  check_read_only(s->cache);
  char below[128];
  snprintf(below, sizeof below, "%s/not/there", s->cache);
  check_directory(below, NULL, 1, "Read-only");
}

static void O_c18_a_read_only_mount(void **state) { run_child(read_only_mount_body, *state); }

// Made by root for everybody: readable, trusted, not ours to write.
static void root_made_body(void *user) {
  const scratch *s = user;
  become_nobody(NULL);
  check_read_only(s->cache);
}

static int publish_to_all(const char *path, const struct stat *status, int type, struct FTW *walk) {
  (void)status, (void)walk;
  return chmod(path, type == FTW_D ? 0755 : 0644);
}

static void a_directory_made_by_root(void **state) {
  scratch *s = *state;
  if (geteuid()) skip();
  dw__entry warm = make_entry(1, 600);
  publish_at(s->cache, &warm);
  assert_int_equal(nftw(s->cache, publish_to_all, 16, FTW_PHYS), 0);
  run_child(root_made_body, s);
  dw__entry_free(&warm);
}

static void unreadable_body(void *user) {
  const scratch *s = user;
  warnings w;
  become_nobody(NULL);
  dw__entry warm = make_entry(1, 600), found;
  dw__cache *cache = open_cache(s->cache, &w);
  for (int i = 0; i < 2; i++) CHECK(dw__cache_find(cache, &warm.request, &found, NULL) == DW_NOT_FOUND);
  CHECK(w.count == 1 && counters(cache).damaged == 0);
  dw__cache_close(cache);
}

static void files_that_cannot_be_read(void **state) {
  scratch *s = *state;
  if (geteuid()) skip();
  dw__entry warm = make_entry(1, 600);
  char path[256];
  publish_at(s->cache, &warm);
  assert_int_equal(nftw(s->cache, publish_to_all, 16, FTW_PHYS), 0);
  file_of(s->cache, "obj", &warm.build, path);
  assert_int_equal(chmod(path, 0600), 0);
  run_child(unreadable_body, s);
  dw__entry_free(&warm);
}

static void disk_full_body(void *user) {
  const scratch *s = user;
  warnings w;
  mount_for_child(s->cache, "size=256k,mode=700");
  dw__cache *cache = open_cache(s->cache, &w);
  for (int i = 0; i < 20; i++) {
    dw__entry entry = make_entry(i, 30000), found;
    CHECK(!dw__cache_publish(cache, &entry, NULL));
    CHECK(!dw__cache_find(cache, &entry.request, &found, NULL) && same_entry(&entry, &found));
    dw__entry_free(&found);
    dw__entry_free(&entry);
  }
  dw__cache_stats stats = counters(cache);
  CHECK(stats.published > 2 && stats.publish_failures > 2 && stats.published + stats.publish_failures == 20);
  CHECK(w.count == 1 && strstr(w.last, "No space"));
  CHECK(files_in(s->cache, "v1/tmp") == 0);
  bool any_damage = false;
  CHECK(!dw__cache_scan(cache, true, see, &any_damage, NULL) && !any_damage);
  dw__cache_close(cache);
}

static void a_full_disk(void **state) { run_child(disk_full_body, *state); }

// Room for bytes, none for names: folders cannot be made, and of some entries the manifest has no place.
static void names_run_out_body(void *user) {
  const scratch *s = user;
  mount_for_child(s->cache, "size=64m,mode=700,nr_inodes=24");
  warnings w;
  dw__cache *cache = open_cache(s->cache, &w);
  for (int i = 0; i < 20; i++) {
    dw__entry entry = make_entry(i, 600), found;
    CHECK(!dw__cache_publish(cache, &entry, NULL));
    CHECK(!dw__cache_find(cache, &entry.request, &found, NULL) && same_entry(&entry, &found));
    dw__entry_free(&found);
    dw__entry_free(&entry);
  }
  dw__cache_stats stats = counters(cache);
  CHECK(stats.published > 0 && stats.publish_failures > 2 && stats.published + stats.publish_failures == 20);
  CHECK(w.count == 1 && strstr(w.last, "No space"));
  bool any_damage = false;
  CHECK(!dw__cache_scan(cache, true, see, &any_damage, NULL) && !any_damage);
  dw__cache_close(cache);
}

static void a_disk_without_room_for_names(void **state) { run_child(names_run_out_body, *state); }

// No descriptor is to be had: misses and one warning for each kind of trouble, and all is well once there are some.
static void no_descriptors_body(void *user) {
  const scratch *s = user;
  warnings w;
  dw__entry warm = make_entry(1, 600), cold = make_entry(2, 600), found;
  dw__lock lock;
  struct rlimit limit, before;
  fill_in_child(s->cache);
  dw__cache *cache = open_cache(s->cache, &w);
  int next = open("/dev/null", O_RDONLY | O_CLOEXEC);
  CHECK(next >= 0 && close(next) == 0 && getrlimit(RLIMIT_NOFILE, &before) == 0);
  limit = before;
  limit.rlim_cur = (rlim_t)next;
  CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  CHECK(dw__cache_find(cache, &warm.request, &found, NULL) == DW_NOT_FOUND);
  CHECK(!dw__cache_publish(cache, &cold, NULL) && !dw__cache_find(cache, &cold.request, &found, NULL));
  dw__entry_free(&found);
  CHECK(dw__cache_try_lock(cache, &cold.request, &lock) == DW__UNLOCKABLE);
  CHECK(w.count == 2 && counters(cache).publish_failures == 1 && counters(cache).damaged == 0);
  CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(!dw__cache_find(cache, &warm.request, &found, NULL) && same_entry(&warm, &found));
  dw__entry_free(&found);
  CHECK(!dw__cache_publish(cache, &cold, NULL) && counters(cache).published == 1);
  dw__cache_close(cache);
}

static void a_process_out_of_descriptors(void **state) { run_child(no_descriptors_body, *state); }

// A rename that is refused, as by a network filesystem: the loser goes on with its own bytes.
static void O_c14_a_rename_that_fails(void **state) {
  const scratch *s = *state;
  warnings w;
  dw__entry first = make_entry(1, 600), entry = make_entry(2, 600), found;
  char path[256], inside[300];
  publish_at(s->cache, &first);
  file_of(s->cache, "obj", &entry.build, path);
  char *slash = strrchr(path, '/');
  *slash = 0;
  assert_true(mkdir(path, 0700) == 0 || errno == EEXIST);
  *slash = '/';
  snprintf(inside, sizeof inside, "%s/occupied", path);
  assert_int_equal(mkdir(path, 0700), 0);
  assert_int_equal(mkdir(inside, 0700), 0);
  dw__cache *cache = open_cache(s->cache, &w);
  assert_int_equal(dw__cache_publish(cache, &entry, NULL), DW_OK);
  assert_int_equal(dw__cache_find(cache, &entry.request, &found, NULL), DW_OK);
  assert_true(same_entry(&entry, &found));
  assert_int_equal(counters(cache).publish_failures, 1);
  assert_int_equal(w.count, 1);
  assert_int_equal(files_in(s->cache, "v1/tmp"), 0);
  dw__entry_free(&found);
  dw__cache_close(cache);
  assert_true(found_at(s->cache, &first, NULL));
  dw__entry_free(&first);
  dw__entry_free(&entry);
}

// ---- scan and clear -------------------------------------------------------------------------------------------

typedef struct seen {
  int count, damaged, with_cubin, with_request, stop_after;
  uint64_t bytes;
  char last[256];
} seen;

static bool record(void *user, const char *path, uint64_t file_size, const dw__entry *entry, const char *damaged) {
  seen *all = user;
  char expected[65];
  assert_true(strcmp(all->last, path) < 0);
  snprintf(all->last, sizeof all->last, "%s", path);
  dw__hex(&entry->build, expected);
  assert_string_equal(strrchr(path, '/') + 1, expected);
  if (damaged) assert_true(!entry->cubin && !entry->metadata);
  else assert_true(entry->metadata[0] == '{' && entry->cubin_size == 600);
  const dw__digest none = {0};
  all->count++;
  all->damaged += damaged != NULL;
  all->with_cubin += entry->cubin != NULL;
  all->with_request += memcmp(&entry->request, &none, sizeof none) != 0;
  all->bytes += file_size;
  return all->count != all->stop_after;
}

static void scan_visits_every_entry_in_order(void **state) {
  const scratch *s = *state;
  enum { COUNT = 40 };
  dw__cache *cache = open_cache(s->cache, NULL);
  char path[256];
  for (int i = 0; i < COUNT; i++) {
    dw__entry entry = make_entry(i, 600);
    assert_int_equal(dw__cache_publish(cache, &entry, NULL), DW_OK);
    file_of(s->cache, i == 3 ? "man" : "obj", i == 3 ? &entry.request : &entry.build, path);
    if (i == 3 || i == 5) assert_int_equal(truncate(path, 50), 0);
    dw__entry_free(&entry);
  }
  snprintf(path, sizeof path, "%s/v1/obj/README", s->cache);
  write_whole(path, "not ours", 8);
  seen all = {0}, light = {0}, some = {.stop_after = 7};
  assert_int_equal(dw__cache_scan(cache, true, record, &all, NULL), DW_OK);
  assert_int_equal(all.count, COUNT);
  assert_int_equal(all.damaged, 1);
  assert_int_equal(all.with_cubin, COUNT - 1);
  assert_int_equal(all.with_request, COUNT - 2);
  assert_int_equal(counters(cache).entries, COUNT);
  assert_int_equal(counters(cache).bytes, all.bytes);
  assert_int_equal(counters(cache).damaged, 0);
  assert_int_equal(dw__cache_scan(cache, false, record, &light, NULL), DW_OK);
  assert_int_equal(light.count, COUNT);
  assert_int_equal(light.with_cubin, 0);
  assert_int_equal(dw__cache_scan(cache, false, record, &some, NULL), DW_OK);
  assert_int_equal(some.count, 7);

  uint64_t removed;
  dw__entry entry = make_entry(1, 600), found;
  assert_int_equal(dw__cache_clear(cache, &removed, NULL), DW_OK);
  assert_int_equal(removed, COUNT);
  assert_int_equal(dw__cache_find(cache, &entry.request, &found, NULL), DW_NOT_FOUND);
  assert_int_equal(access(path, F_OK), 0);
  assert_int_equal(dw__cache_scan(cache, false, NULL, NULL, NULL), DW_OK);
  assert_int_equal(counters(cache).entries, 0);
  assert_int_equal(dw__cache_publish(cache, &entry, NULL), DW_OK);
  dw__cache_close(cache);
  assert_true(found_at(s->cache, &entry, NULL));
  dw__entry_free(&entry);
}

// What a warm start pays for each kernel; the bar is three times what is expected of a slow disk.
static void O_c26_a_warm_entry_is_found_in_milliseconds(void **state) {
  const scratch *s = *state;
  dw__entry entry = make_entry(1, 100000), found;
  publish_at(s->cache, &entry);
  double least = 1e9;
  for (int i = 0; i < 10; i++) {
    dw__cache *cache = open_cache(s->cache, NULL);
    double start = dw__seconds();
    assert_int_equal(dw__cache_find(cache, &entry.request, &found, NULL), DW_OK);
    double took = dw__seconds() - start;
    if (took < least) least = took;
    dw__entry_free(&found);
    dw__cache_close(cache);
  }
  print_message("%.3f ms\n", 1e3 * least);
  assert_true(least < 0.015);
  dw__entry_free(&entry);
}

// ---- layers ---------------------------------------------------------------------------------------------------

typedef struct stand_in {
  dw__entry entry;   // what it has
  dw_status answer;  // DW_OK: as it has it; else this
  int asked, closed;
} stand_in;

static dw_status stand_in_find(void *user, const dw__digest *request, dw__entry *entry, const char **damaged) {
  stand_in *own = user;
  own->asked++;
  *damaged = "checksum differs";
  if (own->answer) return own->answer;
  if (memcmp(request, &own->entry.request, sizeof *request)) return DW_NOT_FOUND;
  *entry = own->entry;
  entry->metadata = dw__strdup(own->entry.metadata);
  entry->cubin = dw__alloc(own->entry.cubin_size);
  memcpy(entry->cubin, own->entry.cubin, own->entry.cubin_size);
  return DW_OK;
}

static void stand_in_close(void *user) { ((stand_in *)user)->closed++; }

static void add_stand_in(dw__cache *cache, stand_in *own, const char *name, dw__layer_place place) {
  dw__layer layer = {name, own, stand_in_find, stand_in_close};
  assert_int_equal(dw__cache_add_layer(cache, &layer, place, NULL), DW_OK);
}

// Entry n with another cubin: tells which layer answered.
static dw__entry other_entry(int n, int mark) {
  dw__entry entry = make_entry(n, 600);
  memset(entry.cubin, mark, entry.cubin_size);
  return entry;
}

static int found_mark(dw__cache *cache, const dw__entry *asked, const char *layer, int place) {
  dw__entry entry;
  dw__found found;
  if (dw__cache_find_where(cache, &asked->request, &entry, &found, NULL)) return -1;
  assert_int_equal(found.place, place);
  if (layer) assert_string_equal(found.layer, layer);
  else assert_null(found.layer);
  int mark = ((unsigned char *)entry.cubin)[0];
  dw__entry_free(&entry);
  return mark;
}

static void O_c35_the_first_layer_that_has_it_wins(void **state) {
  const scratch *s = *state;
  stand_in first = {.answer = DW_NOT_FOUND}, second = {.entry = other_entry(1, 2)}, last = {.entry = other_entry(2, 4)};
  dw__entry own = other_entry(1, 3), miss = make_entry(9, 600);
  publish_at(s->cache, &own);
  dw__cache *cache = open_cache(s->cache, NULL);
  add_stand_in(cache, &last, "system", DW__LAYER_SYSTEM);
  add_stand_in(cache, &first, "one", DW__LAYER_BUNDLE);
  add_stand_in(cache, &second, "two", DW__LAYER_BUNDLE);
  dw__layer_place place;
  assert_string_equal(dw__cache_layer_name(cache, 0, &place), "one");
  assert_string_equal(dw__cache_layer_name(cache, 1, &place), "two");
  assert_int_equal(place, DW__LAYER_BUNDLE);
  assert_string_equal(dw__cache_layer_name(cache, 2, &place), "system");
  assert_int_equal(place, DW__LAYER_SYSTEM);
  assert_null(dw__cache_layer_name(cache, 3, NULL));
  assert_int_equal(found_mark(cache, &own, "two", DW__NOWHERE), 2);
  assert_int_equal(found_mark(cache, &last.entry, "system", DW__NOWHERE), 4);
  assert_int_equal(found_mark(cache, &last.entry, NULL, DW__IN_MEMORY), 4);
  assert_int_equal(found_mark(cache, &miss, NULL, 0), -1);
  assert_int_equal(first.asked, 3);
  assert_int_equal(counters(cache).hits_layers, 2);
  assert_int_equal(files_in(s->cache, "v1/obj"), 1);  // what a layer has is not written down again
  dw__cache_close(cache);
  assert_true(first.closed == 1 && second.closed == 1 && last.closed == 1);
  dw__entry_free(&second.entry);
  dw__entry_free(&last.entry);
  dw__entry_free(&own);
  dw__entry_free(&miss);
}

static void O_c21_a_damaged_layer_is_passed_over(void **state) {
  const scratch *s = *state;
  warnings w;
  stand_in bad = {.answer = DW_BAD_CUBIN}, unreadable = {.answer = DW_IO};
  dw__entry own = other_entry(1, 3), missing = other_entry(2, 3);
  publish_at(s->cache, &own);
  dw__cache *cache = open_cache(s->cache, &w);
  add_stand_in(cache, &bad, "/some/bundle", DW__LAYER_BUNDLE);
  add_stand_in(cache, &unreadable, "/another", DW__LAYER_BUNDLE);
  assert_int_equal(found_mark(cache, &own, NULL, DW__IN_DIRECTORY), 3);
  assert_int_equal(found_mark(cache, &missing, NULL, 0), -1);
  assert_int_equal(counters(cache).damaged, 4);
  assert_int_equal(w.count, 1);
  assert_non_null(strstr(w.last, "/some/bundle: damaged, will be made again"));
  assert_int_equal(dw__cache_publish(cache, &missing, NULL), DW_OK);
  dw__cache_close(cache);
  assert_true(found_at(s->cache, &missing, NULL));
  dw__entry_free(&own);
  dw__entry_free(&missing);
}

static void too_many_layers_are_refused(void **state) {
  const scratch *s = *state;
  stand_in own = {.answer = DW_NOT_FOUND};
  dw__cache *cache = open_cache(s->cache, NULL);
  dw_error error = {0};
  for (int i = 0; i < DW__LAYERS_MAX; i++) add_stand_in(cache, &own, "one of many", DW__LAYER_BUNDLE);
  dw__layer more = {"one more", &own, stand_in_find, stand_in_close};
  assert_int_equal(dw__cache_add_layer(cache, &more, DW__LAYER_BUNDLE, &error), DW_BAD_ARGUMENT);
  assert_int_equal(own.closed, 1);
  dw__cache_close(cache);
  assert_int_equal(own.closed, 1 + DW__LAYERS_MAX);
  dw_error_clear(&error);
}

static dw__cache *open_with(const dw__cache_options *options) {
  dw__cache *cache = NULL;
  dw_error error = {0};
  if (dw__cache_open_with(options, &cache, &error)) fail_msg("%s", error.message);
  return cache;
}

// Directories of the system: found, trusted as ours are, never touched.
static void system_directories_are_only_read(void **state) {
  const scratch *s = *state;
  warnings w = {0};
  char system[96], list[320], path[256];
  dw__entry entry = make_entry(1, 600), second = make_entry(2, 600);
  snprintf(system, sizeof system, "%s/system", s->folder);
  publish_at(system, &entry);
  publish_at(system, &second);
  snprintf(list, sizeof list, ":%s/none::relative:%s/:", s->folder, system);
  file_of(system, "obj", &entry.build, path);
  const struct timespec old[2] = {{1000000000, 0}, {1000000000, 0}};
  assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
  dw__cache_options options = {.directory = s->cache, .system_directories = list, .warn = record_warning, .warn_user = &w};
  dw__cache *cache = open_with(&options);
  assert_string_equal(dw__cache_layer_name(cache, 1, NULL), system);
  assert_null(dw__cache_layer_name(cache, 2, NULL));
  dw__entry found;
  assert_int_equal(dw__cache_find(cache, &entry.request, &found, NULL), DW_OK);
  assert_true(same_entry(&entry, &found));
  dw__entry_free(&found);
  struct stat file;
  assert_int_equal(stat(path, &file), 0);
  assert_int_equal(file.st_mtime, 1000000000);
  assert_int_equal(files_in(s->folder, "cache"), -1);
  assert_int_equal(w.count, 0);
  // Not one that others can write.
  file_of(system, "obj", &second.build, path);
  assert_int_equal(chmod(path, 0666), 0);
  assert_int_equal(dw__cache_find(cache, &second.request, &found, NULL), DW_NOT_FOUND);
  assert_int_equal(w.count, 1);
  assert_non_null(strstr(w.last, "not to be trusted"));
  dw__cache_close(cache);
  dw__entry_free(&entry);
  dw__entry_free(&second);
}

// ---- locks ----------------------------------------------------------------------------------------------------

static void O_c13_a_request_has_one_holder(void **state) {
  const scratch *s = *state;
  dw__entry one = make_entry(1, 600), two = make_entry(2, 600);
  dw__cache *cache = open_cache(s->cache, NULL), *other = open_cache(s->cache, NULL);
  dw__lock held, second, third;
  assert_int_equal(dw__cache_try_lock(cache, &one.request, &held), DW__LOCKED);
  assert_int_equal(dw__cache_try_lock(cache, &one.request, &second), DW__BUSY);  // threads too
  assert_int_equal(second.fd, -1);
  assert_int_equal(dw__cache_try_lock(other, &one.request, &second), DW__BUSY);
  assert_int_equal(dw__cache_try_lock(other, &two.request, &third), DW__LOCKED);
  dw__lock_release(&held);
  dw__lock_release(&held);
  assert_int_equal(dw__cache_try_lock(other, &one.request, &second), DW__LOCKED);
  dw__lock_release(&second);
  dw__lock_release(&third);
  char path[128];
  struct stat file;
  snprintf(path, sizeof path, "%s/v1/locks", s->cache);
  assert_int_equal(stat(path, &file), 0);
  assert_int_equal(file.st_size, 0);
  assert_int_equal(file.st_mode & 07777, 0600);
  dw__cache_close(cache);
  dw__cache_close(other);
  dw__entry_free(&one);
  dw__entry_free(&two);
}

static void hold_for_ever(void *user) {
  const scratch *s = user;
  dw__entry entry = make_entry(1, 600);
  dw__cache *cache = open_cache(s->cache, NULL);
  dw__lock held, slot;
  CHECK(dw__cache_try_lock(cache, &entry.request, &held) == DW__LOCKED);
  CHECK(dw__cache_try_slot(cache, &slot) == DW__LOCKED);
  publish_at(s->cache, &entry);  // seen by the parent
  pause();
}

static void O_c16_a_lock_dies_with_its_holder(void **state) {
  scratch *s = *state;
  dw__entry entry = make_entry(1, 600);
  dw__cache_options options = {.directory = s->cache, .slots = 1};
  dw__lock lock;
  setenv("DRAFTWOOD_COMPILE_SLOTS", "1", 1);
  pid_t child = start_child(hold_for_ever, s);
  while (!found_at(s->cache, &entry, NULL)) usleep(1000);
  dw__cache *cache = open_with(&options);
  assert_int_equal(dw__cache_try_lock(cache, &entry.request, &lock), DW__BUSY);
  assert_int_equal(dw__cache_try_slot(cache, &lock), DW__BUSY);
  assert_int_equal(kill(child, SIGKILL), 0);
  assert_int_equal(end_child(child), -SIGKILL);
  assert_int_equal(dw__cache_try_lock(cache, &entry.request, &lock), DW__LOCKED);
  dw__lock_release(&lock);
  assert_int_equal(dw__cache_try_slot(cache, &lock), DW__LOCKED);
  dw__lock_release(&lock);
  dw__cache_close(cache);
  unsetenv("DRAFTWOOD_COMPILE_SLOTS");
  dw__entry_free(&entry);
}

static void O_c24_slots_are_counted_out(void **state) {
  const scratch *s = *state;
  dw__cache_options options = {.directory = s->cache, .slots = 3};
  dw__cache *cache = open_with(&options);
  dw__lock slots[4];
  assert_int_equal(dw__cache_slots(cache), 3);
  for (int i = 0; i < 3; i++) assert_int_equal(dw__cache_try_slot(cache, &slots[i]), DW__LOCKED);
  assert_int_equal(dw__cache_try_slot(cache, &slots[3]), DW__BUSY);
  dw__lock_release(&slots[1]);
  assert_int_equal(dw__cache_try_slot(cache, &slots[3]), DW__LOCKED);
  for (int i = 0; i < 4; i++) dw__lock_release(&slots[i]);
  dw__cache_close(cache);
  cache = open_cache(s->cache, NULL);
  long cores = sysconf(_SC_NPROCESSORS_ONLN);
  assert_in_range(dw__cache_slots(cache), 1, (unsigned long)cores);
  dw__cache_close(cache);
}

// A child that is forked while a lock is held has its descriptor too; giving it back in the parent is enough.
static void a_fork_does_not_keep_a_lock(void **state) {
  const scratch *s = *state;
  dw__entry entry = make_entry(1, 600);
  dw__cache *cache = open_cache(s->cache, NULL);
  dw__lock held, other;
  assert_int_equal(dw__cache_try_lock(cache, &entry.request, &held), DW__LOCKED);
  pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) pause();
  }
  assert_int_equal(dw__cache_try_lock(cache, &entry.request, &other), DW__BUSY);
  dw__lock_release(&held);
  assert_int_equal(dw__cache_try_lock(cache, &entry.request, &other), DW__LOCKED);
  dw__lock_release(&other);
  kill(child, SIGKILL);
  assert_int_equal(end_child(child), -SIGKILL);
  dw__cache_close(cache);
  dw__entry_free(&entry);
}

// What the control group allows, with files of our own in place of the kernel's.
typedef struct group_case {
  const char *memory, *cpu, *cpuset;
  int slots;  // of a host with many cores
} group_case;

static void group_body(void *user) {
  const group_case *c = user;
  const char *const names[] = {"memory.max", "cpu.max", "cpuset.cpus.effective"}, *const texts[] = {c->memory, c->cpu,
                                                                                                    c->cpuset};
  mount_for_child("/sys/fs/cgroup", "size=1m");
  for (size_t i = 0; i < DW__COUNT(names); i++) {
    char path[128];
    snprintf(path, sizeof path, "/sys/fs/cgroup/%s", names[i]);
    if (!texts[i]) continue;
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    CHECK(!dw__fd_write(fd, texts[i], strlen(texts[i])));
    close(fd);
  }
  long cores = sysconf(_SC_NPROCESSORS_ONLN);
  int allowed = c->slots < cores ? c->slots : (int)cores;
  uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE) / ((uint64_t)512 << 20);
  if (memory < (uint64_t)allowed) allowed = memory ? (int)memory : 1;
  CHECK(dw__host_slots() == allowed);
}

static void O_c24_slots_follow_the_control_group(void **state) {
  (void)state;
  static const group_case cases[] = {
    {NULL, NULL, NULL, 1024},
    {"max\n", "max 100000\n", "0-127\n", 128},
    {"4294967296\n", "max 100000\n", "0-19\n", 8},
    {"600000000\n", NULL, NULL, 1},
    {"1000\n", NULL, NULL, 1},
    {NULL, "50000 100000\n", NULL, 1},
    {NULL, "150000 100000\n", NULL, 2},
    {"max\n", "max 100000\n", "7\n", 1},
    {"nonsense\n", "1 0\n", "\n", 1024},
  };
  for (size_t i = 0; i < DW__COUNT(cases); i++) run_child(group_body, (void *)&cases[i]);
}

// The lock file is as suspect as any other.
static void links_and_strangers_files_are_no_locks(void **state) {
  const scratch *s = *state;
  char path[128], target[128];
  dw__entry entry = make_entry(1, 600);
  publish_at(s->cache, &entry);
  dw__cache *cache = open_cache(s->cache, NULL);
  dw__lock lock;
  snprintf(path, sizeof path, "%s/v1/locks", s->cache);
  snprintf(target, sizeof target, "%s/target", s->folder);
  assert_int_equal(symlink(target, path), 0);
  assert_int_equal(dw__cache_try_lock(cache, &entry.request, &lock), DW__UNLOCKABLE);
  assert_int_equal(access(target, F_OK), -1);
  assert_int_equal(unlink(path), 0);
  assert_int_equal(mkfifo(path, 0600), 0);
  assert_int_equal(dw__cache_try_lock(cache, &entry.request, &lock), DW__UNLOCKABLE);
  assert_int_equal(unlink(path), 0);
  write_whole(path, "", 0);
  assert_int_equal(chmod(path, 0666), 0);
  assert_int_equal(dw__cache_try_lock(cache, &entry.request, &lock), DW__UNLOCKABLE);
  dw__cache_close(cache);
  dw__entry_free(&entry);
}

static void memory_only_has_no_files_for_locks(void **state) {
  (void)state;
  dw__cache *cache = open_cache("", NULL);
  dw__entry entry = make_entry(1, 600);
  dw__lock lock;
  assert_int_equal(dw__cache_try_lock(cache, &entry.request, &lock), DW__UNLOCKABLE);
  assert_int_equal(dw__cache_try_slot(cache, &lock), DW__UNLOCKABLE);
  dw__cache_close(cache);
  dw__entry_free(&entry);
}

// ---- several hosts, several users -----------------------------------------------------------------------------

static void O_c17_no_lock_is_relied_on_between_hosts(void **state) {
  const scratch *s = *state;
  dw__entry entry = make_entry(1, 600), other = make_entry(2, 600), found;
  dw__cache_options options = {.directory = s->cache, .remote = 1, .slots = 1};
  char run[96];
  snprintf(run, sizeof run, "%s/run", s->folder);
  assert_int_equal(mkdir(run, 0700), 0);
  setenv("XDG_RUNTIME_DIR", run, 1);
  dw__cache *a = open_with(&options), *b = open_with(&options);
  dw__lock lock, second;
  assert_true(dw__cache_is_remote(a));
  assert_int_equal(dw__cache_try_lock(a, &entry.request, &lock), DW__UNLOCKABLE);
  assert_int_equal(dw__cache_publish(a, &entry, NULL), DW_OK);
  assert_int_equal(dw__cache_publish(b, &other, NULL), DW_OK);
  assert_int_equal(dw__cache_find(b, &entry.request, &found, NULL), DW_OK);
  assert_true(same_entry(&entry, &found));
  dw__entry_free(&found);
  // The slots are this host's.
  assert_int_equal(dw__cache_try_slot(a, &lock), DW__LOCKED);
  assert_int_equal(dw__cache_try_slot(b, &second), DW__BUSY);
  assert_int_equal(files_in(run, "draftwood/v1"), 1);
  dw__lock_release(&lock);
  char path[128];
  snprintf(path, sizeof path, "%s/v1/locks", s->cache);
  assert_int_equal(access(path, F_OK), -1);
  unsetenv("XDG_RUNTIME_DIR");
  dw__cache_close(a);
  dw__cache_close(b);
  dw__entry_free(&entry);
  dw__entry_free(&other);
}

static void filesystems_of_several_hosts_are_known(void **state) {
  const scratch *s = *state;
  static const unsigned long remote[] = {0x6969, 0xFF534D42, 0x0BD00BD0, 0x65735546, 0x47504653, 0x01021997, 0x00C36400};
  static const unsigned long local[] = {0xEF53, 0x58465342, 0x9123683E, 0x01021994, 0x794C7630, 0x2FC12FC1, 0x73717368};
  for (size_t i = 0; i < DW__COUNT(remote); i++) assert_true(dw__filesystem_is_remote(remote[i]));
  for (size_t i = 0; i < DW__COUNT(local); i++) assert_false(dw__filesystem_is_remote(local[i]));
  // Signed in struct statfs of some systems.
  assert_true(dw__filesystem_is_remote((unsigned long)(long)(int)0xFF534D42));
  assert_true(dw__file_is_remote(-1));
  dw__cache *cache = open_cache(s->cache, NULL);
  int fd = open(s->folder, O_RDONLY | O_CLOEXEC);
  assert_int_equal(dw__cache_is_remote(cache), dw__file_is_remote(fd));
  close(fd);
  dw__cache_close(cache);
}

static void become(uid_t user, gid_t group) { CHECK(!setgroups(1, &group) && !setgid(group) && !setuid(user)); }

static void shared_body(void *user) {
  const scratch *s = user;
  static const gid_t group = 40000;
  dw__entry one = make_entry(1, 600), two = make_entry(2, 600), found;
  dw__cache_options options = {.directory = s->cache, .shared = 1};
  warnings w = {0};
  if (geteuid()) _exit(CHILD_CANNOT);
  CHECK(!chown(s->folder, 40001, group) && !chmod(s->folder, 02775));
  for (uid_t who = 40001; who <= 40002; who++) {
    pid_t child = fork();
    if (child == 0) {
      umask(077);
      become(who, group);
      options.warn = record_warning;
      options.warn_user = &w;
      dw__cache *cache = NULL;
      CHECK(!dw__cache_open_with(&options, &cache, NULL));
      CHECK(!dw__cache_publish(cache, who == 40001 ? &one : &two, NULL));
      CHECK(!dw__cache_find(cache, &one.request, &found, NULL) && same_entry(&one, &found));
      dw__lock lock;
      CHECK(dw__cache_try_lock(cache, &one.request, &lock) == DW__LOCKED);
      if (w.count) fprintf(stderr, "%s\n", w.last);
      CHECK(w.count == 0 && counters(cache).publish_failures == 0 && counters(cache).published == 1);
      _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  // Who did not ask for a shared one does not trust it, and who is not of the group cannot write it.
  become(40002, group);
  dw__cache *cache = open_cache(s->cache, &w);
  CHECK(!dw__cache_directory(cache, NULL) && w.count == 1 && strstr(w.last, "belongs to user"));
  dw__cache_close(cache);
}

// Of a group that may write: another name of a file of ours, put where the lock file belongs to have its mode changed.
static void a_link_in_place_of_the_lock_file_changes_no_mode(void **state) {
  const scratch *s = *state;
  char secret[96], path[128];
  struct stat file;
  dw__entry entry = make_entry(1, 600);
  dw__cache_options options = {.directory = s->cache, .shared = 1};
  dw__cache *cache = open_with(&options);
  assert_int_equal(dw__cache_publish(cache, &entry, NULL), DW_OK);
  snprintf(secret, sizeof secret, "%s/secret", s->folder);
  snprintf(path, sizeof path, "%s/v1/locks", s->cache);
  for (int empty = 0; empty < 2; empty++) {
    dw__lock lock;
    write_whole(secret, "secret", empty ? 0 : 6);
    assert_int_equal(link(secret, path), 0);
    dw__cache_try_lock(cache, &entry.request, &lock);
    dw__lock_release(&lock);
    assert_int_equal(stat(secret, &file), 0);
    assert_int_equal(file.st_mode & 07777, 0600);
    assert_int_equal(unlink(path), 0);
  }
  dw__cache_close(cache);
  dw__entry_free(&entry);
}

static void a_shared_directory_is_its_groups(void **state) {
  scratch *s = *state;
  run_child(shared_body, s);
  dw__cache_options options = {.directory = s->cache, .shared = 1};
  assert_int_equal(chmod(s->cache, 0777), 0);
  dw__cache *cache = open_with(&options);
  assert_null(dw__cache_directory(cache, NULL));  // the world is no group
  dw__cache_close(cache);
}

// ---- failures -------------------------------------------------------------------------------------------------

static char *failure_at(const char *directory, const dw__digest *build) {
  dw__cache *cache = open_cache(directory, NULL);
  char *text = dw__cache_failure(cache, build);
  dw__cache_close(cache);
  return text;
}

static void failures_are_known_until_they_expire(void **state) {
  const scratch *s = *state;
  dw__entry entry = make_entry(1, 600);
  dw__cache_options options = {.directory = s->cache, .failure_seconds = 1000};
  dw__cache *cache = open_with(&options);
  assert_null(dw__cache_failure(cache, &entry.build));
  dw__cache_fail(cache, &entry.build, "why");
  char *text = dw__cache_failure(cache, &entry.build);
  assert_string_equal(text, "why");
  dw__release(text);
  dw__cache_close(cache);
  static const struct {
    long offset;
    bool known;
  } clocks[] = {{0, true}, {900, true}, {1001, false}, {1000000, false}, {-10, false}, {-1000000000, false}, {50, true}};
  for (size_t i = 0; i < DW__COUNT(clocks); i++) {
    clock_offset = clocks[i].offset;
    text = failure_at(s->cache, &entry.build);
    clock_offset = 0;
    if ((text != NULL) != clocks[i].known) fail_msg("clock %+ld: %s", clocks[i].offset, text ? text : "not known");
    dw__release(text);
  }
  // Every bit of it.
  char path[256];
  size_t size;
  file_of(s->cache, "neg", &entry.build, path);
  char *bytes = read_whole(path, &size);
  for (size_t i = 0; i < 8 * size; i++) {
    bytes[i / 8] = (char)(bytes[i / 8] ^ 1 << i % 8);
    write_whole(path, bytes, size);
    assert_null(failure_at(s->cache, &entry.build));
    bytes[i / 8] = (char)(bytes[i / 8] ^ 1 << i % 8);
  }
  for (size_t n = 0; n < size; n++) {
    write_whole(path, bytes, n);
    assert_null(failure_at(s->cache, &entry.build));
  }
  dw_free(bytes);
  dw__entry_free(&entry);
}

// ---- eviction -------------------------------------------------------------------------------------------------

static void make_older(const char *directory, const dw__entry *entry, long hours) {
  char path[256];
  file_of(directory, "obj", &entry->build, path);
  const struct timespec times[2] = {{time(NULL) - 3600 * hours, 0}, {time(NULL) - 3600 * hours, 0}};
  assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
  file_of(directory, "man", &entry->request, path);
  assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

static void O_c20_trim_takes_the_oldest_and_spares_the_young(void **state) {
  const scratch *s = *state;
  enum { COUNT = 10, BYTES = 20000 };
  dw__entry entries[COUNT], found;
  dw__trimmed result;
  dw__cache *cache = open_cache(s->cache, NULL);
  for (int i = 0; i < COUNT; i++) {
    entries[i] = make_entry(i, BYTES);
    assert_int_equal(dw__cache_publish(cache, &entries[i], NULL), DW_OK);
    if (i < 8) make_older(s->cache, &entries[i], 2 + (i * 3) % 8);  // ages 2, 5, 8, 3, 6, 9, 4, 7 hours
  }
  char path[256];
  snprintf(path, sizeof path, "%s/v1/tune", s->cache);
  assert_int_equal(mkdir(path, 0700), 0);
  snprintf(path, sizeof path, "%s/v1/tune/record", s->cache);
  write_whole(path, "tuned", 5);
  const struct timespec ancient[2] = {{1, 0}, {1, 0}};
  assert_int_equal(utimensat(AT_FDCWD, path, ancient, 0), 0);

  assert_int_equal(dw__cache_trim(cache, 6 * (BYTES + 1000), true, &result, NULL), DW_OK);
  assert_int_equal(result.removed, 4);
  assert_int_equal(result.kept, 6);
  for (int i = 0; i < COUNT; i++)
    assert_true(found_at(s->cache, &entries[i], NULL));  // dry; and 4 hours old and more were used now
  for (int i = 0; i < 8; i++) make_older(s->cache, &entries[i], 2 + (i * 3) % 8);
  assert_true(found_at(s->cache, &entries[5], NULL));  // the oldest is used
  assert_int_equal(dw__cache_trim(cache, 6 * (BYTES + 1000), false, &result, NULL), DW_OK);
  assert_int_equal(result.removed, 4);
  assert_true(result.kept_bytes <= 6 * (BYTES + 1000) && result.removed_bytes > 4 * BYTES);
  static const bool stays[COUNT] = {true, false, false, true, false, true, true, false, true, true};
  for (int i = 0; i < COUNT; i++) {
    file_of(s->cache, "man", &entries[i].request, path);
    assert_int_equal(access(path, F_OK) == 0, stays[i]);
    assert_int_equal(found_at(s->cache, &entries[i], NULL), stays[i]);
  }
  assert_int_equal(counters(cache).evicted, 4);
  assert_int_equal(dw__cache_find(cache, &entries[1].request, &found, NULL), DW_OK);  // this process has it still
  dw__entry_free(&found);
  assert_int_equal(dw__cache_trim(cache, 0, false, &result, NULL), DW_OK);
  assert_int_equal(files_in(s->cache, "v1/tune"), 1);
  dw__cache_close(cache);
  for (int i = 0; i < COUNT; i++) dw__entry_free(&entries[i]);
}

// A clock that was set back, or forth: nothing is lost that is used, nothing stays for ever.
static void eviction_survives_clocks_that_jump(void **state) {
  const scratch *s = *state;
  dw__entry entry = make_entry(1, 20000), ahead = make_entry(2, 20000);
  dw__trimmed result;
  publish_at(s->cache, &entry);
  publish_at(s->cache, &ahead);
  make_older(s->cache, &ahead, -1000);
  dw__cache *cache = open_cache(s->cache, NULL);
  assert_int_equal(dw__cache_trim(cache, 30000, true, &result, NULL), DW_OK);
  assert_int_equal(result.removed, 1);
  assert_true(found_at(s->cache, &ahead, NULL));  // sets its time right
  assert_int_equal(dw__cache_trim(cache, 0, true, &result, NULL), DW_OK);
  assert_int_equal(result.removed, 0);
  clock_offset = -1000000000;
  assert_int_equal(dw__cache_trim(cache, UINT64_MAX, false, &result, NULL), DW_OK);
  assert_int_equal(result.removed, 0);
  clock_offset = 1000000000;
  assert_int_equal(dw__cache_trim(cache, UINT64_MAX, false, &result, NULL), DW_OK);
  assert_int_equal(result.removed, 0);
  assert_true(found_at(s->cache, &entry, NULL));
  clock_offset = 0;
  assert_true(found_at(s->cache, &ahead, NULL));
  dw__cache_close(cache);
  dw__entry_free(&entry);
  dw__entry_free(&ahead);
}

static uint64_t bytes_at(const char *directory) {
  dw__cache *cache = open_cache(directory, NULL);
  assert_int_equal(dw__cache_scan(cache, false, NULL, NULL, NULL), DW_OK);
  uint64_t bytes = counters(cache).bytes;
  dw__cache_close(cache);
  return bytes;
}

enum { CROWD_LIMIT = 4 << 20, CROWD_BYTES = 16000, CROWD_OLD = 300, CROWD_EACH = 30 };
typedef struct crowd {
  const scratch *s;
  int number;
} crowd;

// Publishes, and loads what others have: whatever is evicted meanwhile is whole or a miss.
static void crowd_body(void *user) {
  const crowd *own = user;
  dw__cache_options options = {.directory = own->s->cache, .limit = CROWD_LIMIT};
  dw__cache *cache = NULL;
  CHECK(!dw__cache_open_with(&options, &cache, NULL));
  for (int i = 0; i < CROWD_EACH; i++) {
    dw__entry entry = make_entry(1000 * (own->number + 1) + i, CROWD_BYTES), old = make_entry(i * 10, CROWD_BYTES), found;
    CHECK(!dw__cache_publish(cache, &entry, NULL));
    if (!dw__cache_find(cache, &old.request, &found, NULL)) CHECK(same_entry(&old, &found));
    dw__entry_free(&found);
    dw__entry_free(&entry);
    dw__entry_free(&old);
  }
  CHECK(counters(cache).damaged == 0 && counters(cache).publish_failures == 0);
  dw__cache_close(cache);
}

static void O_c20_O_c15_the_limit_holds_while_four_processes_write(void **state) {
  scratch *s = *state;
  pid_t children[4];
  crowd each[4];
  dw__cache *cache = open_cache(s->cache, NULL);
  for (int i = 0; i < CROWD_OLD; i++) {
    dw__entry entry = make_entry(i, CROWD_BYTES);
    assert_int_equal(dw__cache_publish(cache, &entry, NULL), DW_OK);
    make_older(s->cache, &entry, 5);
    dw__entry_free(&entry);
  }
  dw__cache_close(cache);
  assert_true(bytes_at(s->cache) > CROWD_LIMIT);
  for (int i = 0; i < 4; i++) {
    each[i] = (crowd){s, i};
    children[i] = start_child(crowd_body, &each[i]);
  }
  for (int i = 0; i < 4; i++) assert_int_equal(end_child(children[i]), 0);
  uint64_t bytes = bytes_at(s->cache);
  print_message("%llu bytes with a limit of %d\n", (unsigned long long)bytes, CROWD_LIMIT);
  // Each process may write a 64th of the limit before it looks again.
  assert_true(bytes < CROWD_LIMIT + 4 * (CROWD_LIMIT / 64 + 2 * CROWD_BYTES));
  for (int i = 0; i < 4 * CROWD_EACH; i++) {
    dw__entry entry = make_entry(1000 * (i / CROWD_EACH + 1) + i % CROWD_EACH, CROWD_BYTES);
    assert_true(found_at(s->cache, &entry, NULL));  // the young ones
    dw__entry_free(&entry);
  }
}

static void sizes_are_read(void **state) {
  (void)state;
  static const struct {
    const char *text;
    uint64_t bytes;  // 0: refused
  } cases[] = {{"1", 1},
               {"1000000", 1000000},
               {"4K", 4096},
               {"512M", 512 << 20},
               {"3G", 3ull << 30},
               {"", 0},
               {"-1", 0},
               {"1T", 0},
               {"1KB", 0},
               {"1 K", 0},
               {" 1", 0},
               {"0x10", 0},
               {"1e6", 0},
               {"18446744073709551616", 0},
               {"17179869184G", 0},
               {"K", 0}};
  for (size_t i = 0; i < DW__COUNT(cases); i++) {
    uint64_t bytes = 0;
    bool read = dw__size_parse(cases[i].text, &bytes);
    if (read != (cases[i].bytes != 0) || (read && bytes != cases[i].bytes)) fail_msg("%s", cases[i].text);
  }
}

static void bad_variables_are_named(void **state) {
  const scratch *s = *state;
  static const char *const names[] = {"DRAFTWOOD_CACHE_LIMIT", "DRAFTWOOD_CACHE_SHARED", "DRAFTWOOD_COMPILE_SLOTS"};
  for (size_t i = 0; i < DW__COUNT(names); i++) {
    dw__cache *cache = NULL;
    dw_error error = {0};
    setenv(names[i], "many", 1);
    assert_int_equal(dw__cache_open(s->cache, NULL, NULL, &cache, &error), DW_BAD_ARGUMENT);
    assert_string_equal(error.field, names[i]);
    assert_string_equal(error.found, "many");
    assert_null(cache);
    setenv(names[i], "", 1);
    assert_int_equal(dw__cache_open(s->cache, NULL, NULL, &cache, &error), DW_OK);
    dw__cache_close(cache);
    unsetenv(names[i]);
    dw_error_clear(&error);
  }
}

// ---- another schema -------------------------------------------------------------------------------------------

static void a_newer_schema_is_left_alone(void **state) {
  const scratch *s = *state;
  char folder[128], path[160];
  dw__entry entry = make_entry(1, 600);
  publish_at(s->cache, &entry);
  snprintf(folder, sizeof folder, "%s/v2", s->cache);
  assert_int_equal(mkdir(folder, 0700), 0);
  snprintf(path, sizeof path, "%s/obj", folder);
  write_whole(path, "not a folder here", 17);
  assert_true(found_at(s->cache, &entry, NULL));
  dw__cache *cache = open_cache(s->cache, NULL);
  assert_int_equal(dw__cache_clear(cache, NULL, NULL), DW_OK);
  assert_int_equal(dw__cache_trim(cache, 0, false, NULL, NULL), DW_OK);
  assert_int_equal(access(path, F_OK), 0);
  dw__cache_close(cache);
  dw__entry_free(&entry);
}

// ---- freezing -------------------------------------------------------------------------------------------------

static void a_frozen_cache_knows_its_memory_alone(void **state) {
  const scratch *s = *state;
  dw__entry known = make_entry(1, 600), other = make_entry(2, 600), found;
  publish_at(s->cache, &known);
  publish_at(s->cache, &other);
  stand_in layer = {.answer = DW_NOT_FOUND};
  dw__cache *cache = open_cache(s->cache, NULL);
  add_stand_in(cache, &layer, "bundle", DW__LAYER_BUNDLE);
  assert_int_equal(dw__cache_find(cache, &known.request, &found, NULL), DW_OK);
  dw__entry_free(&found);
  int asked = layer.asked;
  dw__cache_freeze(cache);
  assert_int_equal(dw__cache_find(cache, &known.request, &found, NULL), DW_OK);
  assert_true(same_entry(&known, &found));
  dw__entry_free(&found);
  assert_int_equal(dw__cache_find_build(cache, &known.build, &found, NULL), DW_OK);
  dw__entry_free(&found);
  assert_int_equal(dw__cache_find(cache, &other.request, &found, NULL), DW_NOT_FOUND);
  assert_int_equal(layer.asked, asked);
  dw__entry late = make_entry(3, 600);
  assert_int_equal(dw__cache_publish(cache, &late, NULL), DW_OK);
  assert_int_equal(dw__cache_find(cache, &late.request, &found, NULL), DW_NOT_FOUND);
  dw__cache_fail(cache, &late.build, "why");
  assert_null(dw__cache_failure(cache, &late.build));
  dw__cache_close(cache);
  assert_false(found_at(s->cache, &late, NULL));
  dw__entry_free(&known);
  dw__entry_free(&other);
  dw__entry_free(&late);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
    TEST(keys_are_what_they_always_were),
    TEST(O_c22_O_c23_O_c08_every_field_changes_the_request_key),
    TEST(O_c22_O_c23_every_field_changes_the_build_key),
    TEST(published_is_found_by_both_keys),
    TEST(a_miss_names_the_key),
    TEST(two_requests_may_lead_to_one_build),
    TEST(O_c09_O_c11_targets_share_a_folder),
    TEST(O_c23_publish_replaces),
    TEST(what_cannot_be_stored_is_counted),
    TEST(opening_and_looking_create_nothing),
    TEST(layout_and_modes),
    TEST(same_entry_same_bytes),
    TEST(O_c21_a_damaged_entry_is_a_miss),
    TEST(O_c21_a_damaged_manifest_is_a_miss),
    TEST(O_c21_damage_is_told_once),
    TEST(O_c21_swapped_entries_are_misses),
    TEST(O_c21_wrong_permissions_are_misses),
    TEST(O_c23_forged_entries_are_misses),
    TEST(two_frames_are_not_one),
    TEST(a_sparse_giant_is_refused_before_reading),
    TEST(allocation_failures_are_survived),
    TEST(O_c13_two_processes_publish_one_key),
    TEST(O_c13_many_processes_publish_many_keys),
    TEST(a_killed_publisher_leaves_only_whole_entries),
    TEST(O_c15_loading_while_another_rebuilds),
    TEST(a_directory_that_is_removed_while_in_use),
    TEST(signals_disturb_nothing),
    TEST(threads_share_a_cache),
    TEST(no_descriptor_stays_open),
    TEST(directory_rules),
    TEST(a_relative_directory_stays_where_it_was),
    TEST(a_home_that_cannot_be_written),
    TEST(a_directory_that_cannot_be_made),
    TEST(a_file_in_place_of_a_directory),
    TEST(O_c21_directories_that_others_can_write),
    TEST(links_are_not_followed),
    TEST(links_above_are_followed),
    TEST(a_directory_of_somebody_else),
    TEST(trust_is_checked_each_time),
    TEST(a_directory_that_vanishes_is_made_again),
    TEST(O_c18_a_directory_without_write_permission),
    TEST(O_c18_a_read_only_mount),
    TEST(a_directory_made_by_root),
    TEST(files_that_cannot_be_read),
    TEST(a_full_disk),
    TEST(a_disk_without_room_for_names),
    TEST(a_process_out_of_descriptors),
    TEST(O_c14_a_rename_that_fails),
    TEST(scan_visits_every_entry_in_order),
    TEST(O_c26_a_warm_entry_is_found_in_milliseconds),
    TEST(O_c35_the_first_layer_that_has_it_wins),
    TEST(O_c21_a_damaged_layer_is_passed_over),
    TEST(too_many_layers_are_refused),
    TEST(system_directories_are_only_read),
    TEST(O_c13_a_request_has_one_holder),
    TEST(O_c16_a_lock_dies_with_its_holder),
    TEST(O_c24_slots_are_counted_out),
    TEST(a_fork_does_not_keep_a_lock),
    TEST(O_c24_slots_follow_the_control_group),
    TEST(links_and_strangers_files_are_no_locks),
    TEST(memory_only_has_no_files_for_locks),
    TEST(O_c17_no_lock_is_relied_on_between_hosts),
    TEST(filesystems_of_several_hosts_are_known),
    TEST(a_link_in_place_of_the_lock_file_changes_no_mode),
    TEST(a_shared_directory_is_its_groups),
    TEST(failures_are_known_until_they_expire),
    TEST(O_c20_trim_takes_the_oldest_and_spares_the_young),
    TEST(eviction_survives_clocks_that_jump),
    TEST(O_c20_O_c15_the_limit_holds_while_four_processes_write),
    TEST(sizes_are_read),
    TEST(bad_variables_are_named),
    TEST(a_newer_schema_is_left_alone),
    TEST(a_frozen_cache_knows_its_memory_alone),
  };
  if (list_tests(argc, argv, tests, DW__COUNT(tests))) return 0;
  return cmocka_run_group_tests_name("cache", tests, NULL, NULL);
}
