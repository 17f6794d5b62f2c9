// A test program's `--list`: the names of its tests, a line each, for tests/test_case_table.c.
#ifndef DRAFTWOOD_LIST_TESTS_H
#define DRAFTWOOD_LIST_TESTS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

// True where they were asked for, and printed.
static inline bool list_tests(int argc, char **argv, const struct CMUnitTest *tests, size_t count) {
  if (argc != 2 || strcmp(argv[1], "--list") != 0) return false;
  for (size_t i = 0; i < count; i++) puts(tests[i].name);
  return true;
}

#endif
