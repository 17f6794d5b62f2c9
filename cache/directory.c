// Which directory, whether to trust it, and whole files in it.
//
// A cubin is code. So every directory from the cache's own down, and every file, must belong to us or to root, must not be
// writable by others and must not be a symbolic link. A shared cache trusts its group: any owner, group-writable, but still not
// writable by all. What is checked is the open descriptor, never a name. Directories are
// opened anew for each operation: one that was removed and made again, or a process that forked, is then nothing special.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "parts.h"

// ---- faults ---------------------------------------------------------------------------------------------------

// A path without end must not push the reason out of the text.
enum { PATH_SHOWN = 500 };
static const char *dots(const char *path) { return strlen(path) > PATH_SHOWN ? "..." : ""; }

static void fault_system(dw__fault *fault, const char *path, int error) {
  fault->kind = error == ENOENT ? DW__FAULT_ABSENT : error == ENOMEM ? DW__FAULT_MEMORY : DW__FAULT_SYSTEM;
  fault->error = error;
  snprintf(fault->text, sizeof fault->text, "%.*s%s: %s", PATH_SHOWN, path, dots(path), strerror(error));
}

static void fault_unsafe(dw__fault *fault, const char *path, const char *text) {
  fault->kind = DW__FAULT_UNSAFE;
  fault->error = 0;
  snprintf(fault->text, sizeof fault->text, "%.*s%s %s", PATH_SHOWN, path, dots(path), text);
}

// ---- the rules ------------------------------------------------------------------------------------------------

static char *print_path(const char *a, const char *b, const char *c) {
  dw__buf path = {0};
  dw__buf_puts(&path, a);
  dw__buf_puts(&path, b);
  dw__buf_puts(&path, c);
  if (path.failed) dw__buf_free(&path);
  // A closing slash would make the system follow a link before we can see it.
  while (path.size > 1 && path.data[path.size - 1] == '/') path.data[--path.size] = 0;
  return path.data;
}

// A later chdir must not move the cache.
static char *absolute_path(const char *path, dw__fault *fault) {
  if (path[0] == '/') return print_path(path, "", "");
  char *here = getcwd(NULL, 0);
  if (!here) {
    fault_system(fault, path, errno);
    if (fault->kind == DW__FAULT_ABSENT) fault->kind = DW__FAULT_SYSTEM;
    return NULL;
  }
  char *whole = print_path(here, "/", path);
  free(here);
  return whole;
}

// Set and not empty. Programs with raised rights take no directory from the environment.
static const char *variable(const char *name) {
  const char *value = secure_getenv(name);
  return value && value[0] ? value : NULL;
}

static const char *absolute_variable(const char *name) {
  const char *value = variable(name);
  return value && value[0] == '/' ? value : NULL;
}

char *dw__directory_choose(const char *directory, dw__fault *fault) {
  char *path = NULL;
  const char *base;
  *fault = (dw__fault){0};
  if (directory && !directory[0]) {
    fault->kind = DW__FAULT_SYSTEM;
    snprintf(fault->text, sizeof fault->text, "memory only was asked for");
    return NULL;
  }
  if (directory || (directory = variable("DRAFTWOOD_CACHE_DIR"))) {
    path = absolute_path(directory, fault);
  } else if ((base = absolute_variable("XDG_CACHE_HOME"))) {
    path = print_path(base, "/draftwood", "");
  } else if ((base = absolute_variable("HOME"))) {
    path = print_path(base, "/.cache/draftwood", "");
  } else {
    fault->kind = DW__FAULT_SYSTEM;
    snprintf(fault->text, sizeof fault->text,
             "none of DRAFTWOOD_CACHE_DIR, XDG_CACHE_HOME and HOME names a directory (the last two must be absolute)");
    return NULL;
  }
  if (!path && !fault->kind) fault->kind = DW__FAULT_MEMORY;
  return path;
}

bool dw__directory_probe(const char *root, bool *remote, dw__fault *fault) {
  char *path = print_path(root, "", "");
  struct stat status;
  int error = path ? 0 : ENOMEM;
  // The nearest directory that is there decides.
  while (!error && stat(path, &status)) {
    if (errno != ENOENT) error = errno;
    char *slash = strrchr(path, '/');
    slash[slash == path] = 0;
  }
  if (!error && faccessat(AT_FDCWD, path, W_OK | X_OK, AT_EACCESS)) error = errno;
  if (!error && !S_ISDIR(status.st_mode)) error = ENOTDIR;
  if (error) fault_system(fault, path ? path : root, error);
  else *remote = dw__path_is_remote(path);
  dw__release(path);
  return !error;
}

// ---- filesystems ----------------------------------------------------------------------------------------------

// Numbers as statfs reports them (linux/magic.h, and modules outside of the kernel).
bool dw__filesystem_is_remote(unsigned long type) {
  static const unsigned remote[] = {
    0x6969,      // NFS
    0x517B,      // SMB
    0xFE534D42,  // SMB 2
    0xFF534D42,  // CIFS
    0x5346414F,  // AFS
    0x6B414653,  // kAFS
    0x73757245,  // Coda
    0x00C36400,  // Ceph
    0x0BD00BD0,  // Lustre
    0x47504653,  // GPFS
    0x19830326,  // BeeGFS
    0xAAD7AAEA,  // PanFS
    0x7461636F,  // OCFS2
    0x01161970,  // GFS2
    0x01021997,  // 9p
    0x65735546,  // FUSE: what is behind it cannot be told
    0x786F4256,  // VirtualBox
    0xBACBACBC,  // VMware
    0x564C,      // NCP
    0x20030528,  // OrangeFS
  };
  for (size_t i = 0; i < DW__COUNT(remote); i++) {
    if ((unsigned)type == remote[i]) return true;
  }
  return false;
}

bool dw__file_is_remote(int fd) {
  struct statfs system;
  return fstatfs(fd, &system) || dw__filesystem_is_remote((unsigned long)system.f_type);
}

bool dw__path_is_remote(const char *path) {
  struct statfs system;
  return statfs(path, &system) || dw__filesystem_is_remote((unsigned long)system.f_type);
}

// ---- directories ----------------------------------------------------------------------------------------------

// The descriptor is what we checked, so a swap of the name behind our back changes nothing.
static bool is_safe(int fd, mode_t type, const char *path, bool shared, dw__fault *fault) {
  struct stat status;
  char text[96];
  if (fstat(fd, &status)) {
    fault_system(fault, path, errno);
  } else if ((status.st_mode & S_IFMT) != type) {
    fault_unsafe(fault, path, type == S_IFDIR ? "is not a directory" : "is not a regular file");
  } else if (!shared && status.st_uid != geteuid() && status.st_uid != 0) {
    snprintf(text, sizeof text, "belongs to user %lu, not to user %lu or root", (unsigned long)status.st_uid,
             (unsigned long)geteuid());
    fault_unsafe(fault, path, text);
  } else if (status.st_mode & (shared ? S_IWOTH : S_IWGRP | S_IWOTH)) {
    snprintf(text, sizeof text, "is writable by others (mode %04o)", (unsigned)(status.st_mode & 07777));
    fault_unsafe(fault, path, text);
  } else {
    return true;
  }
  return false;
}

static int open_directory(int at, const char *name) {
  return openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

static void open_fault(int at, const char *name, const char *path, int error, dw__fault *fault) {
  struct stat status;
  bool link =
    (error == ENOTDIR || error == ELOOP) && !fstatat(at, name, &status, AT_SYMLINK_NOFOLLOW) && S_ISLNK(status.st_mode);
  if (link) fault_unsafe(fault, path, "is a symbolic link");
  else fault_system(fault, path, error);
}

// Some filesystems cannot sync a directory, and say so; they do what they can.
static int sync_file(int fd) { return fsync(fd) && errno != EINVAL && errno != ENOTSUP && errno != EROFS ? errno : 0; }

// A directory of the group: what is made below it is the group's too, whatever the umask says.
static void make_shared(int fd) {
  struct stat status;
  if (!fstat(fd, &status) && status.st_uid == geteuid() && fchmod(fd, 02770)) return;  // it then serves us alone
}

// One step down. `path` is for messages.
static int enter(int at, const char *name, const char *path, bool shared, bool create, dw__fault *fault) {
  int fd = open_directory(at, name);
  if (fd < 0 && errno == ENOENT && create) {
    if (mkdirat(at, name, 0700) && errno != EEXIST) {
      fault_system(fault, path, errno);
      if (fault->kind == DW__FAULT_ABSENT) fault->kind = DW__FAULT_SYSTEM;
      return -1;
    }
    if (at != AT_FDCWD) sync_file(at);
    fd = open_directory(at, name);
    if (fd >= 0 && shared) make_shared(fd);
  }
  if (fd < 0) {
    open_fault(at, name, path, errno, fault);
  } else if (!is_safe(fd, S_IFDIR, path, shared, fault)) {
    close(fd);
    fd = -1;
  }
  return fd;
}

// Directories above the cache's own; they are the user's, links and all.
static bool make_parents(const char *root, dw__fault *fault) {
  char *path = print_path(root, "", "");
  int error = path ? 0 : ENOMEM;
  for (char *slash = path ? strchr(path + 1, '/') : NULL; slash && !error; slash = strchr(slash + 1, '/')) {
    struct stat status;
    *slash = 0;
    if (stat(path, &status) && errno == ENOENT && mkdir(path, 0700) && errno != EEXIST) {
      error = errno;
      fault_system(fault, path, error);
      if (fault->kind == DW__FAULT_ABSENT) fault->kind = DW__FAULT_SYSTEM;
    }
    *slash = '/';
  }
  if (!path) fault_system(fault, root, error);
  dw__release(path);
  return !error;
}

int dw__directory_open(const dw__root *at, const char *const *parts, bool create, dw__fault *fault) {
  const char *root = at->path;
  *fault = (dw__fault){.directory = true};
  if (create && !make_parents(root, fault)) return -1;
  int fd = enter(AT_FDCWD, root, root, at->shared, create, fault);
  char path[512];
  int used = snprintf(path, sizeof path, "%s", root);
  for (; fd >= 0 && *parts; parts++) {
    if (used < (int)sizeof path) used += snprintf(path + used, sizeof path - (size_t)used, "/%s", *parts);
    int next = enter(fd, *parts, path, at->shared, create, fault);
    close(fd);
    fd = next;
  }
  return fd;
}

// ---- files ----------------------------------------------------------------------------------------------------

bool dw__directory_read(int directory, const char *name, bool shared, size_t most, dw__file *file, dw__fault *fault) {
  *fault = (dw__fault){0};
  // NONBLOCK: a FIFO of that name must not hold us.
  int fd = openat(directory, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (fd < 0) {
    open_fault(directory, name, name, errno, fault);
    return false;
  }
  int error = 0;
  struct stat status = {0};
  bool safe = is_safe(fd, S_IFREG, name, shared, fault);
  if (safe) error = dw__fd_read(fd, most, &file->bytes, &file->size);
  if (safe && !error && fstat(fd, &status)) dw__release(file->bytes), error = errno;
  file->modified = status.st_mtime;
  if (error) fault_system(fault, name, error);
  close(fd);
  return safe && !error;
}

static bool random_name(char name[65]) {
  dw__digest bits;
  if (getrandom(bits.bytes, sizeof bits.bytes, 0) != (ssize_t)sizeof bits.bytes) return false;
  dw__hex(&bits, name);
  return true;
}

// Where files may grow to a size at most (setrlimit), one byte more would end the host by a signal.
static int refuse_size(size_t size) {
  struct rlimit most;
  return !getrlimit(RLIMIT_FSIZE, &most) && most.rlim_cur != RLIM_INFINITY && size > most.rlim_cur ? EFBIG : 0;
}

bool dw__directory_write(int temporary, int directory, const char *name, bool shared, const char *bytes, size_t size,
                         dw__fault *fault) {
  char aside[65];
  *fault = (dw__fault){0};
  int fd = random_name(aside) ? openat(temporary, aside, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600) : -1;
  int error = fd < 0 ? errno : 0;
  if (!error) {
    error = refuse_size(size);
    if (!error) error = dw__fd_write(fd, bytes, size);
    if (!error && shared && fchmod(fd, 0640)) error = errno;
    if (!error) error = sync_file(fd);
    if (close(fd) && !error) error = errno;  // network filesystems report a full disk here
    if (!error && renameat(temporary, aside, directory, name)) error = errno;
    if (error) unlinkat(temporary, aside, 0);
  }
  if (!error) sync_file(directory);  // the entry is whole either way; at worst a crash forgets it
  if (error) {
    fault_system(fault, name, error);
    if (fault->kind == DW__FAULT_ABSENT) fault->kind = DW__FAULT_SYSTEM;
  }
  return !error;
}

int dw__directory_lock_file(int directory, const char *name, bool shared, dw__fault *fault) {
  *fault = (dw__fault){0};
  int fd = openat(directory, name, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0600);
  struct stat status;
  if (fd < 0) {
    open_fault(directory, name, name, errno, fault);
    return -1;
  }
  // The umask may have taken the group's right to lock. A file that has another name, or content, is none that we made: somebody of the
  // group may have put it here to have its mode changed.
  bool ours = shared && !fstat(fd, &status) && status.st_uid == geteuid() && (status.st_mode & 0777) != 0660;
  ours = ours && S_ISREG(status.st_mode) && status.st_nlink == 1 && status.st_size == 0;
  if ((ours && fchmod(fd, 0660)) || !is_safe(fd, S_IFREG, name, shared, fault)) {
    close(fd);
    return -1;
  }
  return fd;
}

// ---- v1/<kind>/<first two digits of the key>/<key> ------------------------------------------------------------

int dw__shard_open(const dw__root *root, const char *kind, const char *name, bool create, dw__fault *fault) {
  const char shard[3] = {name[0], name[1], 0};
  const char *const parts[] = {DW__CACHE_VERSION, kind, shard, NULL};
  return dw__directory_open(root, parts, create, fault);
}

bool dw__tree_read(const dw__root *root, const char *kind, const char *name, size_t most, dw__file *file, dw__fault *fault) {
  int shard = dw__shard_open(root, kind, name, false, fault);
  bool read = shard >= 0 && dw__directory_read(shard, name, root->shared, most, file, fault);
  if (shard >= 0) close(shard);
  return read;
}

bool dw__tree_write(const dw__root *root, const char *kind, const char *name, const char *bytes, size_t size,
                    dw__fault *fault) {
  static const char *const tmp[] = {DW__CACHE_VERSION, "tmp", NULL};
  int temporary = dw__directory_open(root, tmp, true, fault);
  int shard = temporary < 0 ? -1 : dw__shard_open(root, kind, name, true, fault);
  bool written = shard >= 0 && dw__directory_write(temporary, shard, name, root->shared, bytes, size, fault);
  if (shard >= 0) close(shard);
  if (temporary >= 0) close(temporary);
  return written;
}

// ---- listing --------------------------------------------------------------------------------------------------

static bool is_key_name(const char *name, const char *prefix, size_t length) {
  return strlen(name) == length && strspn(name, "0123456789abcdef") == length && !strncmp(name, prefix, strlen(prefix));
}

static bool names_add(dw__names *names, const char *name) {
  if (names->count == names->capacity) {
    size_t capacity = names->capacity ? 2 * names->capacity : 32;
    void *larger = dw__realloc(names->name, capacity * sizeof *names->name);
    if (!larger) return false;
    names->name = larger;
    names->capacity = capacity;
  }
  snprintf(names->name[names->count++], sizeof *names->name, "%.64s", name);
  return true;
}

static int compare_names(const void *a, const void *b) { return strcmp(a, b); }

bool dw__directory_list(int directory, const char *prefix, size_t length, dw__names *names, dw__fault *fault) {
  *fault = (dw__fault){0};
  *names = (dw__names){0};
  int fd = open_directory(directory, ".");  // a stream of its own: the position of a dup would be shared
  DIR *stream = fd < 0 ? NULL : fdopendir(fd);
  int error = stream ? 0 : errno;
  if (!stream && fd >= 0) close(fd);
  while (!error) {
    errno = 0;
    const struct dirent *item = readdir(stream);
    if (!item) {
      error = errno;
      break;
    }
    if (is_key_name(item->d_name, prefix, length) && !names_add(names, item->d_name)) error = ENOMEM;
  }
  if (stream) closedir(stream);
  if (!error) {
    if (names->count) qsort(names->name, names->count, sizeof *names->name, compare_names);
    return true;
  }
  dw__release(names->name);
  *names = (dw__names){0};
  fault_system(fault, "listing the cache", error);
  return false;
}
