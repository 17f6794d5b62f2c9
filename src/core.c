// What every folder shares, and the error and status functions of the public header. See core.h.
#include "core.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

// ---- status ---------------------------------------------------------------------------------------------------

const char *dw_status_name(dw_status status) {
  static const char *const names[] = {
#define X(name, text) "DW_" #name,
    DW_STATUS_MAP(X)
#undef X
  };
  return (unsigned)status < DW__COUNT(names) ? names[status] : "DW_UNKNOWN";
}

const char *dw_status_text(dw_status status) {
  static const char *const texts[] = {
#define X(name, text) text,
    DW_STATUS_MAP(X)
#undef X
  };
  return (unsigned)status < DW__COUNT(texts) ? texts[status] : "unknown status";
}

const char *dw_version(void) { return DW_VERSION; }

void dw_free(void *p) { dw__release(p); }

// ---- errors ---------------------------------------------------------------------------------------------------

// A full buffer may end inside a UTF-8 character, which readers such as Python refuse: drop the part of one.
static void drop_partial_character(char *text, size_t capacity) {
  size_t end = strlen(text), start = end;
  if (end + 1 < capacity) return;
  while (start > 0 && ((unsigned char)text[start - 1] & 0xC0) == 0x80) start--;
  if (start == 0) return;
  unsigned char lead = (unsigned char)text[start - 1];
  size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
  if (length > 1 && start - 1 + length > end) text[start - 1] = 0;
}

static void copy_part(char *to, size_t capacity, const char *from) {
  snprintf(to, capacity, "%s", from ? from : "");
  drop_partial_character(to, capacity);
}

// Appends to a fixed message; what does not fit is cut.
static void message_add(dw_error *error, const char *separator, const char *label, const char *part) {
  size_t used = strlen(error->message);
  if (!part[0]) return;
  snprintf(error->message + used, sizeof error->message - used, "%s%s%s", used ? separator : "", label, part);
}

static dw_status fail(dw_error *error, dw_status status, const char *field, const char *found, const char *allowed,
                      const char *format, va_list arguments) {
  if (!error) return status;
  // Made aside, since the parts may point into the record itself.
  dw_error made = {.status = status};
  char text[sizeof made.message] = "";
  copy_part(made.field, sizeof made.field, field);
  copy_part(made.found, sizeof made.found, found);
  copy_part(made.allowed, sizeof made.allowed, allowed);
  for (char *c = made.found; *c; c++)
    if ((unsigned char)*c < 32 || *c == 127) *c = '?';  // somebody's input: one line, and nothing a terminal would obey
  if (format) vsnprintf(text, sizeof text, format, arguments);

  message_add(&made, "", "", made.field);
  message_add(&made, ": ", "found ", made.found);
  message_add(&made, made.found[0] ? ", " : ": ", "allowed ", made.allowed);
  message_add(&made, ": ", "", text);
  if (!made.message[0]) message_add(&made, "", "", dw_status_text(status));
  drop_partial_character(made.message, sizeof made.message);

  free(error->log);
  *error = made;
  return status;
}

dw_status dw__fail(dw_error *error, dw_status status, const char *field, const char *found, const char *allowed,
                   const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fail(error, status, field, found, allowed, format, arguments);
  va_end(arguments);
  return status;
}

dw_status dw__fail_int(dw_error *error, dw_status status, const char *field, long long found, const char *allowed,
                       const char *format, ...) {
  char text[24];
  snprintf(text, sizeof text, "%lld", found);
  va_list arguments;
  va_start(arguments, format);
  fail(error, status, field, text, allowed, format, arguments);
  va_end(arguments);
  return status;
}

dw_status dw__no_argument(dw_error *error, const char *field) {
  return dw__fail(error, DW_BAD_ARGUMENT, field, "NULL", "a pointer", "this argument must be given");
}

void dw__error_log(dw_error *error, char *log) {
  if (!error) {
    free(log);
    return;
  }
  if (error->log != log) free(error->log);
  error->log = log;
}

void dw_error_clear(dw_error *error) {
  if (!error) return;
  free(error->log);
  *error = (dw_error){0};
}

// ---- memory ---------------------------------------------------------------------------------------------------

// Of the test hook alone; 0 in every other process.
static atomic_long fail_from;
static atomic_long allocations;

static bool allocation_fails(void) {
  long from = atomic_load_explicit(&fail_from, memory_order_relaxed);
  if (from == 0) return false;
  return atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed) + 1 >= from;
}

// libc may answer NULL for a size of 0, which callers would take for a failure.
static size_t at_least_one(size_t size) { return size ? size : 1; }

void *dw__alloc(size_t size) { return allocation_fails() ? NULL : malloc(at_least_one(size)); }

void *dw__calloc(size_t count, size_t size) {
  bool overflows = size && count > PTRDIFF_MAX / size;
  return overflows || allocation_fails() ? NULL : calloc(at_least_one(count), at_least_one(size));
}

void *dw__realloc(void *p, size_t size) { return allocation_fails() ? NULL : realloc(p, at_least_one(size)); }

void dw__release(void *p) { free(p); }

char *dw__strdup(const char *text) {
  if (!text) return NULL;
  size_t size = strlen(text) + 1;
  char *copy = dw__alloc(size);
  return copy ? memcpy(copy, text, size) : NULL;
}

long dw__alloc_fail_after(long n) {
  atomic_store_explicit(&fail_from, n, memory_order_relaxed);
  return atomic_exchange_explicit(&allocations, 0, memory_order_relaxed);
}

// ---- text buffer ----------------------------------------------------------------------------------------------

// Room for `more` bytes and the closing 0.
static bool buf_reserve(dw__buf *buf, size_t more) {
  if (buf->failed) return false;
  if (more < buf->capacity - buf->size) return true;
  size_t capacity = buf->capacity ? buf->capacity : 128;
  buf->failed = more > SIZE_MAX / 4 - buf->size;
  while (!buf->failed && capacity - buf->size <= more) capacity *= 2;
  char *data = buf->failed ? NULL : dw__realloc(buf->data, capacity);
  if (!data) {
    buf->failed = true;
    return false;
  }
  buf->data = data;
  buf->capacity = capacity;
  return true;
}

void dw__buf_append(dw__buf *buf, const void *data, size_t size) {
  if (!buf_reserve(buf, size)) return;
  if (size) memcpy(buf->data + buf->size, data, size);
  buf->size += size;
  buf->data[buf->size] = 0;
}

void dw__buf_puts(dw__buf *buf, const char *text) { dw__buf_append(buf, text, strlen(text)); }

void dw__buf_printf(dw__buf *buf, const char *format, ...) {
  va_list arguments, again;
  va_start(arguments, format);
  va_copy(again, arguments);
  int length = vsnprintf(NULL, 0, format, arguments);
  if (length < 0) buf->failed = true;
  if (length >= 0 && buf_reserve(buf, (size_t)length)) {
    vsnprintf(buf->data + buf->size, (size_t)length + 1, format, again);
    buf->size += (size_t)length;
  }
  va_end(again);
  va_end(arguments);
}

void dw__buf_free(dw__buf *buf) {
  dw__release(buf->data);
  *buf = (dw__buf){0};
}

// ---- hashing --------------------------------------------------------------------------------------------------

dw__digest dw__sha256(const void *data, size_t size) {
  dw__digest digest;
  _Static_assert(sizeof digest.bytes == crypto_hash_sha256_BYTES, "SHA-256 has 32 bytes");
  crypto_hash_sha256(digest.bytes, data, size);
  return digest;
}

void dw__hex(const dw__digest *digest, char text[65]) {
  static const char digits[] = "0123456789abcdef";
  for (size_t i = 0; i < sizeof digest->bytes; i++) {
    text[2 * i] = digits[digest->bytes[i] >> 4];
    text[2 * i + 1] = digits[digest->bytes[i] & 15];
  }
  text[64] = 0;
}

// ---- files ----------------------------------------------------------------------------------------------------

int dw__fd_read(int fd, size_t limit, char **data, size_t *size) {
  dw__buf buf = {0};
  struct stat status;
  int why = 0;
  if (fstat(fd, &status)) why = errno;
  // The size is a hint that saves regrowth; files under /proc say 0.
  if (!why && S_ISREG(status.st_mode) && (uintmax_t)status.st_size > limit) why = EFBIG;
  if (!why && !buf_reserve(&buf, S_ISREG(status.st_mode) ? (size_t)status.st_size + 1 : 4096)) why = ENOMEM;
  while (!why) {
    if (!buf_reserve(&buf, 1)) {
      why = ENOMEM;
      break;
    }
    ssize_t got = read(fd, buf.data + buf.size, buf.capacity - buf.size - 1);
    if (got == 0) break;
    if (got > 0) buf.size += (size_t)got;
    if (got < 0 && errno != EINTR) why = errno;
    if (buf.size > limit) why = EFBIG;
  }
  if (why) {
    dw__buf_free(&buf);
    return why;
  }
  buf.data[buf.size] = 0;
  *data = buf.data;
  *size = buf.size;
  return 0;
}

int dw__fd_write(int fd, const void *data, size_t size) {
  const char *at = data;
  while (size) {
    ssize_t put = write(fd, at, size);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return put ? errno : EIO;
    at += put;
    size -= (size_t)put;
  }
  return 0;
}

dw_status dw__file_read(const char *path, char **data, size_t *size, dw_error *error) {
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
  int why = fd < 0 ? errno : dw__fd_read(fd, PTRDIFF_MAX, data, size);
  if (fd >= 0) close(fd);
  if (!why) return DW_OK;
  dw_status status = why == ENOENT || why == ENOTDIR ? DW_NOT_FOUND : why == ENOMEM ? DW_OUT_OF_MEMORY : DW_IO;
  return dw__fail(error, status, "file", path, "", "%s", strerror(why));
}

dw_status dw__read_sized(const char *name, const void *from, void *to, size_t size, dw_error *error) {
  size_t given;
  memcpy(&given, from, sizeof given);
  if (given < 2 * sizeof given || given > (1u << 16)) {
    return dw__fail_int(error, DW_BAD_ARGUMENT, name, (long long)given, "its sizeof", "the size field is not set");
  }
  for (size_t i = size; i < given; i++) {
    if (!((const char *)from)[i]) continue;
    return dw__fail_int(error, DW_BAD_ARGUMENT, name, (long long)given, "zeros past what this version knows",
                        "this struct comes from a newer draftwood and asks for something unknown to %s", DW_VERSION);
  }
  memset(to, 0, size);
  memcpy(to, from, given < size ? given : size);
  return DW_OK;
}

double dw__seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}
