// What several test programs share. Every function ends the test that calls it when something is wrong.
#ifndef DRAFTWOOD_TESTS_SUPPORT_H
#define DRAFTWOOD_TESTS_SUPPORT_H

#include <stdio.h>
#include <unistd.h>

#include "core.h"

#ifndef TEST_SOURCE_DIR
#define TEST_SOURCE_DIR "."
#endif

dw_shape shape_of(const char *text);
dw_variant variant_of(const char *text);

// A file of tests/data; free with dw__release.
char *read_data(const char *name, size_t *size);

// cmocka fixtures: an empty folder for each test, gone after it.
extern char test_folder[64];
int make_folder(void **state);
int remove_folder(void **state);
// A place in it; good until the fourth call after this.
const char *path_of(const char *name);
void write_bytes(const char *name, const void *data, size_t size);
void write_text(const char *name, const char *text);

// In a child process: says where, and ends it. cmocka's own asserts must not run there.
#define CHECK(condition)                                              \
  do {                                                                \
    if (!(condition)) {                                               \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      _exit(1);                                                       \
    }                                                                 \
  } while (0)

#endif
