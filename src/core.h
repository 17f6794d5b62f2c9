// What every folder shares: error records, memory, text buffers, files, hashing. Depends on nothing but libc and libsodium.
#ifndef DRAFTWOOD_CORE_H
#define DRAFTWOOD_CORE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "draftwood.h"

#define DW__PRINTF(f, a) __attribute__((format(printf, f, a)))
#define DW__COUNT(array) (sizeof(array) / sizeof((array)[0]))

// ---- errors ---------------------------------------------------------------------------------------------------
// Fills the record (if any) and returns status, so that a check reads `return dw__fail(e, DW_BAD_SHAPE, "heads", ...)`.
// The message is made from the parts: "heads: found 0, allowed 1 to 128: <text>". Parts may be NULL. A fresh record: an older
// log in it is freed, so hand over a log after dw__fail.
dw_status dw__fail(dw_error *error, dw_status status, const char *field, const char *found, const char *allowed,
                   const char *format, ...) DW__PRINTF(6, 7);
// The same with `found` printed from an integer.
dw_status dw__fail_int(dw_error *error, dw_status status, const char *field, long long found, const char *allowed,
                       const char *format, ...) DW__PRINTF(6, 7);
// For a pointer that the caller left out.
dw_status dw__no_argument(dw_error *error, const char *field);
// Structs that start with their size may come from a caller built against another version: what an older one lacks is 0, and
// what a newer one adds must be 0, since we do not know what it asks for.
dw_status dw__read_sized(const char *name, const void *from, void *to, size_t size, dw_error *error);
// Hands a malloc'ed log to the record (freed if there is no record).
void dw__error_log(dw_error *error, char *log);

// ---- memory: one door, so that tests can make it fail ---------------------------------------------------------
void *dw__alloc(size_t size);  // NULL when out of memory
void *dw__calloc(size_t count, size_t size);
void *dw__realloc(void *p, size_t size);
void dw__release(void *p);
char *dw__strdup(const char *text);
// Test hook: allocations from the n-th (1-based) on fail; 0 switches it off. Returns allocations made since the last call,
// counted only while it is on (LONG_MAX counts and fails none). Compiled in always, costs one relaxed load.
long dw__alloc_fail_after(long n);

// ---- text buffer ----------------------------------------------------------------------------------------------
// Grows as needed; after a failed growth `failed` is set and appends do nothing, so one check at the end is enough.
typedef struct dw__buf {
  char *data;  // 0-terminated once anything was appended
  size_t size, capacity;
  bool failed;
} dw__buf;
void dw__buf_append(dw__buf *buf, const void *data, size_t size);
void dw__buf_puts(dw__buf *buf, const char *text);
void dw__buf_printf(dw__buf *buf, const char *format, ...) DW__PRINTF(2, 3);
void dw__buf_free(dw__buf *buf);

// ---- hashing --------------------------------------------------------------------------------------------------
typedef struct dw__digest {
  unsigned char bytes[32];
} dw__digest;
dw__digest dw__sha256(const void *data, size_t size);
void dw__hex(const dw__digest *digest, char text[65]);

// ---- files ----------------------------------------------------------------------------------------------------
// Whole file into a 0-terminated dw__alloc'ed block. DW_NOT_FOUND or DW_IO.
dw_status dw__file_read(const char *path, char **data, size_t *size, dw_error *error);
// The same on an open file, from its position on; more than `limit` bytes are refused (EFBIG). 0 or an errno value.
int dw__fd_read(int fd, size_t limit, char **data, size_t *size);
// All of it, through short writes and signals. 0 or an errno value.
int dw__fd_write(int fd, const void *data, size_t size);

double dw__seconds(void);  // monotonic

// As a shape's text has it; NULL for none of them.
const char *dw__dtype_name(dw_dtype type);
// Bytes of an element; a record's elements, of which its strides are, are its bytes.
static inline size_t dw__dtype_size(dw_dtype type) {
  return type == DW_F32 ? 4 : type == DW_E4M3 || type == DW_RECORD656 ? 1 : 2;
}
// DW_RECORD656: where the scales and the rope of a token begin, its bytes, and latents a scale.
enum { DW__RECORD_SCALES = 512, DW__RECORD_ROPE = 528, DW__RECORD_BYTES = 656, DW__RECORD_GROUP = 128 };
// Elements of a token of MLA, and of the part of it that is not in a pool of the rope's own.
static inline int dw__kv_record(const dw_shape *shape) {
  return shape->kv == DW_RECORD656 ? DW__RECORD_BYTES : shape->head_dim_qk;
}
static inline int dw__kv_part(const dw_shape *shape, bool rope_apart) {
  return rope_apart ? shape->head_dim_v : dw__kv_record(shape);
}
// A value that 0 leaves to its default.
static inline int64_t dw__or_else(int64_t value, int64_t normal) { return value ? value : normal; }
// a / b, rounded up; neither negative.
static inline int64_t dw__ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

#endif
