// Who compiles what, and how many at once.
//
// Locks are bytes of one empty file, v1/locks, held by an open file description of their own: they end with the process that
// holds them, however it ends, and threads of one process exclude each other too. Nothing is ever written there.
//
//      0 to 1023   compile slots
//           1024   the right to evict
//   from 4096 on   a byte a request key
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "parts.h"

enum { SLOTS_MOST = 1024, TRIM_BYTE = 1024, FIRST_KEY_BYTE = 4096 };
// What NVRTC needs for our largest kernel, with room.
#define COMPILE_BYTES ((uint64_t)512 << 20)

// ---- the file -------------------------------------------------------------------------------------------------

static int open_below(const dw__root *root) {
  static const char *const version[] = {DW__CACHE_VERSION, NULL};
  dw__fault fault;
  int directory = dw__directory_open(root, version, true, &fault);
  int fd = directory < 0 ? -1 : dw__directory_lock_file(directory, "locks", root->shared, &fault);
  if (directory >= 0) close(directory);
  return fd;
}

static bool has_own_file(const dw__cache *cache) { return !cache->remote && !atomic_load(&cache->memory_only); }

// A folder of this host and user, for caches that have no place for locks.
static int open_of_host(const dw__cache *cache) {
  char path[PATH_MAX];
  const char *run = secure_getenv("XDG_RUNTIME_DIR");
  if (cache->without_files) return -1;
  if (run && run[0] == '/') snprintf(path, sizeof path, "%s/draftwood", run);
  else snprintf(path, sizeof path, "/tmp/draftwood-%lu", (unsigned long)geteuid());
  return open_below(&(dw__root){.path = path});
}

// ---- one byte -------------------------------------------------------------------------------------------------

static dw__lock_state try_byte(int fd, off_t byte) {
  struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
  while (fcntl(fd, F_OFD_SETLK, &lock)) {
    if (errno == EAGAIN || errno == EACCES) return DW__BUSY;
    if (errno != EINTR) return DW__UNLOCKABLE;
  }
  return DW__LOCKED;
}

// Keeps fd where the byte was locked, closes it otherwise.
static dw__lock_state settle(int fd, dw__lock_state state, dw__lock *lock) {
  if (state == DW__LOCKED) lock->fd = fd;
  else if (fd >= 0) close(fd);
  return state;
}

static dw__lock_state lock_byte(int fd, off_t byte, dw__lock *lock) {
  return settle(fd, fd < 0 ? DW__UNLOCKABLE : try_byte(fd, byte), lock);
}

dw__lock_state dw__cache_try_lock(dw__cache *cache, const dw__digest *request, dw__lock *lock) {
  uint64_t number = 0;
  for (int i = 0; i < 7; i++) number = number << 8 | request->bytes[i];
  *lock = (dw__lock){-1};
  if (!has_own_file(cache)) return DW__UNLOCKABLE;
  return lock_byte(open_below(&cache->root), (off_t)(FIRST_KEY_BYTE + number), lock);
}

dw__lock_state dw__lock_trim(dw__cache *cache, dw__lock *lock) {
  *lock = (dw__lock){-1};
  if (!has_own_file(cache)) return DW__UNLOCKABLE;
  return lock_byte(open_below(&cache->root), TRIM_BYTE, lock);
}

dw__lock_state dw__cache_try_slot(dw__cache *cache, dw__lock *lock) {
  *lock = (dw__lock){-1};
  int fd = has_own_file(cache) ? open_below(&cache->root) : -1;
  if (fd < 0) fd = open_of_host(cache);
  dw__lock_state state = fd < 0 ? DW__UNLOCKABLE : DW__BUSY;
  for (int i = 0; i < cache->slots && state == DW__BUSY; i++) state = try_byte(fd, i);
  return settle(fd, state, lock);
}

int dw__cache_slots(const dw__cache *cache) { return cache->slots; }

// Unlocked by name first: a child that was forked meanwhile holds the same file description, and would keep the lock.
void dw__lock_release(dw__lock *lock) {
  if (lock->fd < 0) return;
  struct flock all = {.l_type = F_UNLCK, .l_whence = SEEK_SET};
  fcntl(lock->fd, F_OFD_SETLK, &all);
  close(lock->fd);
  lock->fd = -1;
}

// ---- what this host has ---------------------------------------------------------------------------------------

static bool read_text(const char *path, char *text, size_t capacity) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t got = fd < 0 ? -1 : read(fd, text, capacity - 1);
  if (fd >= 0) close(fd);
  text[got > 0 ? got : 0] = 0;
  return got > 0;
}

// "0-3,8" -> 5; 0 where there is none.
static uint64_t count_cpus(const char *list) {
  uint64_t count = 0;
  for (char *end; *list >= '0' && *list <= '9'; list = *end == ',' ? end + 1 : end) {
    long first = strtol(list, &end, 10), last = first;
    if (*end == '-') last = strtol(end + 1, &end, 10);
    count += last >= first ? (uint64_t)(last - first + 1) : 0;
  }
  return count;
}

static void lower(uint64_t *value, uint64_t limit) {
  if (limit && limit < *value) *value = limit;
}

// One control group; files that are not there limit nothing, nor does "max".
static void read_group(const char *folder, uint64_t *cores, uint64_t *memory) {
  char path[PATH_MAX + 32], text[4096];
  unsigned long long quota, period;
  snprintf(path, sizeof path, "%s/memory.max", folder);
  if (read_text(path, text, sizeof text)) lower(memory, strtoull(text, NULL, 10));
  snprintf(path, sizeof path, "%s/cpu.max", folder);
  if (read_text(path, text, sizeof text) && sscanf(text, "%llu %llu", &quota, &period) == 2 && period) {
    lower(cores, (quota + period - 1) / period);
  }
  snprintf(path, sizeof path, "%s/cpuset.cpus.effective", folder);
  if (read_text(path, text, sizeof text)) lower(cores, count_cpus(text));
}

// From our own control group up to the root: each may limit us. The older hierarchy shows a container its own limits at the root.
static void read_groups(uint64_t *cores, uint64_t *memory) {
  char own[4096], folder[PATH_MAX], text[64];
  const char *line = read_text("/proc/self/cgroup", own, sizeof own) ? strstr(own, "0::/") : NULL;
  snprintf(folder, sizeof folder, "/sys/fs/cgroup");
  size_t root = strlen(folder);
  if (line) snprintf(folder + root, sizeof folder - root, "%.*s", (int)strcspn(line + 3, "\n"), line + 3);
  for (char *slash; strlen(folder) > root; *slash = 0) {
    read_group(folder, cores, memory);
    slash = strrchr(folder, '/');
  }
  read_group(folder, cores, memory);
  if (read_text("/sys/fs/cgroup/memory/memory.limit_in_bytes", text, sizeof text)) lower(memory, strtoull(text, NULL, 10));
}

// Not our affinity: ranks that are pinned to different cores still share the host.
int dw__host_slots(void) {
  long online = sysconf(_SC_NPROCESSORS_ONLN), pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
  uint64_t cores = online > 0 ? (uint64_t)online : 1;
  uint64_t memory = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : COMPILE_BYTES;
  read_groups(&cores, &memory);
  lower(&cores, memory / COMPILE_BYTES ? memory / COMPILE_BYTES : 1);
  return cores > SLOTS_MOST ? SLOTS_MOST : (int)cores;
}
