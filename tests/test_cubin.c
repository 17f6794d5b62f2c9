// runtime/cubin.c: what is read from cubins of tests/data (made by NVRTC 13.0.88, those named nvrtc12 by 12.9.86, from the .cu
// files beside them with the options of every compile), and that no bytes, however damaged, are read out of bounds.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "list_tests.h"
#include "runtime.h"
#include "support.h"

typedef struct cubin {
  char *data;
  size_t size;
} cubin;

static cubin open_data(const char *name) {
  char file[128];
  cubin read;
  snprintf(file, sizeof file, "%s.cubin", name);
  read.data = read_data(file, &read.size);
  return read;
}

static const dw_resources *named(const dw_resources *kernels, int count, const char *name) {
  for (int i = 0; i < count; i++) {
    if (strcmp(kernels[i].name, name) == 0) return &kernels[i];
  }
  fail_msg("no kernel %s", name);
  return NULL;
}

// ---- what is read ---------------------------------------------------------------------------------------------

typedef struct expected {
  const char *file;
  int arch;
  bool specific;
  const char *kernel;
  int registers, stack, shared, barriers, threads, setmaxnreg;
} expected;

// As the compiler's log said when the files were made.
static const expected table[] = {
  {"two_sm_120f", 120, false, "shared", 10, 0, 400, 4, 128, 0},
  {"two_sm_120f", 120, false, "local", 10, 400, 0, 0, 256, 0},
  {"two_sm_90_nvrtc12", 90, false, "shared", 10, 0, 400, 4, 128, 0},
  {"two_sm_90_nvrtc12", 90, false, "local", 8, 400, 0, 0, 256, 0},
  {"grow_sm_120a", 120, true, "grow", 160, 0, 0, 0, 128, 1},
  {"grow_sm_90a", 90, true, "grow", 160, 0, 0, 0, 128, 1},
  {"grow_sm_90a_nvrtc12", 90, true, "grow", 160, 0, 0, 0, 128, 1},
  {"syscall_sm_120", 120, false, "copy", 24, 0, 264, 0, 0, 0},
};

static void reads_resources(void **state) {
  (void)state;
  for (size_t i = 0; i < DW__COUNT(table); i++) {
    const expected *want = &table[i];
    cubin file = open_data(want->file);
    int arch = 0, count = 0;
    bool specific = !want->specific;
    dw_resources kernels[DW_KERNELS_MAX];
    dw_error error = {0};
    if (dw__cubin_read(file.data, file.size, &arch, &specific, kernels, &count, &error))
      fail_msg("%s: %s", want->file, error.message);
    const dw_resources *got = named(kernels, count, want->kernel);
    print_message("%s %s: sm_%d%s, %d registers, %d stack, %d shared, %d barriers, %d threads\n", want->file, got->name, arch,
                  specific ? "a" : "", got->registers, got->stack_bytes, got->shared_static, got->barriers, got->max_threads);
    assert_int_equal(arch, want->arch);
    assert_int_equal(specific, want->specific);
    assert_int_equal(got->registers, want->registers);
    assert_int_equal(got->stack_bytes, want->stack);
    assert_int_equal(got->shared_static, want->shared);
    assert_int_equal(got->barriers, want->barriers);
    assert_int_equal(got->max_threads, want->threads);
    assert_int_equal(got->uses_setmaxnreg, want->setmaxnreg);
    assert_int_equal(got->spill_stores, -1);
    assert_int_equal(got->spill_loads, -1);
    dw__release(file.data);
  }
}

static void finds_calls_into_the_driver(void **state) {
  (void)state;
  char name[64];
  cubin calls = open_data("syscall_sm_120"), plain = open_data("two_sm_120f");
  assert_true(dw__cubin_calls_driver(calls.data, calls.size, name));
  assert_memory_equal(name, "__cuda_syscall_", strlen("__cuda_syscall_"));
  assert_false(dw__cubin_calls_driver(plain.data, plain.size, name));
  assert_string_equal(name, "");
  dw__release(calls.data);
  dw__release(plain.data);
}

// ---- damage ---------------------------------------------------------------------------------------------------

// In a block of its own size, so that a sanitizer sees the first byte too many.
static dw_status read_copy(const char *data, size_t size, dw_error *error) {
  char *copy = malloc(size ? size : 1), name[64];
  assert_non_null(copy);
  if (size) memcpy(copy, data, size);
  int arch, count;
  bool specific;
  dw_resources kernels[DW_KERNELS_MAX];
  dw_status status = dw__cubin_read(copy, size, &arch, &specific, kernels, &count, error);
  dw__cubin_calls_driver(copy, size, name);
  free(copy);
  return status;
}

static void O_c21_refuses_every_truncation(void **state) {
  (void)state;
  for (size_t i = 0; i < DW__COUNT(table); i++) {
    cubin file = open_data(table[i].file);
    dw_error error = {0};
    for (size_t size = 0; size < file.size; size++) {
      if (read_copy(file.data, size, &error) != DW_BAD_CUBIN)
        fail_msg("%s: %zu of %zu bytes pass", table[i].file, size, file.size);
      assert_non_null(strstr(error.message, "cubin"));
    }
    assert_int_equal(read_copy(file.data, file.size, &error), DW_OK);
    dw_error_clear(&error);
    dw__release(file.data);
  }
  assert_int_equal(dw__cubin_read(NULL, 0, NULL, NULL, NULL, NULL, NULL), DW_BAD_CUBIN);
}

static void O_c21_refuses_a_damaged_header(void **state) {
  (void)state;
  static const struct {
    size_t offset, size;
    const char *what;
  } fields[] = {{0, 4, "magic"}, {4, 1, "class"},    {5, 1, "byte order"},
                {16, 2, "type"}, {18, 2, "machine"}, {58, 2, "section size"}};
  for (size_t i = 0; i < DW__COUNT(fields); i++) {
    cubin file = open_data("two_sm_120f");
    for (size_t b = 0; b < fields[i].size; b++) file.data[fields[i].offset + b] ^= 0x55;
    if (read_copy(file.data, file.size, NULL) != DW_BAD_CUBIN) fail_msg("a wrong %s passes", fields[i].what);
    dw__release(file.data);
  }
}

// A small generator of our own: the same damage on every machine.
static unsigned random_next(unsigned *seed) {
  *seed ^= *seed << 13;
  *seed ^= *seed >> 17;
  *seed ^= *seed << 5;
  return *seed;
}

// One of: a few flipped bits, a run of one byte, an extreme number on a word of the tables.
static void damage(char *data, size_t size, unsigned *seed) {
  static const uint64_t extremes[] = {0, 1, 0x7fffffff, 0x80000000, 0xffffffff, 0xfffffffffffffff0, UINT64_MAX, 1ull << 63};
  unsigned kind = random_next(seed) % 3;
  size_t at = random_next(seed) % size;
  if (kind == 0) {
    for (unsigned n = 1 + random_next(seed) % 8; n > 0; n--)
      data[random_next(seed) % size] ^= (char)(1u << random_next(seed) % 8);
  } else if (kind == 1) {
    size_t run = 1 + random_next(seed) % 64;
    memset(data + at, random_next(seed) % 2 ? 0xff : 0, run < size - at ? run : size - at);
  } else {
    // Header, section table or symbol table: a third each, roughly.
    size_t width = 2u << random_next(seed) % 3;
    if (random_next(seed) % 3 == 0) at = random_next(seed) % 64;
    at -= at % width;
    if (at + width <= size) memcpy(data + at, &extremes[random_next(seed) % DW__COUNT(extremes)], width);
  }
}

static void survives_random_damage(void **state) {
  (void)state;
  enum { ROUNDS = 6000 };
  unsigned seed = 20240229, passed = 0, refused = 0;
  for (size_t i = 0; i < DW__COUNT(table); i++) {
    cubin file = open_data(table[i].file);
    char *copy = malloc(file.size);
    assert_non_null(copy);
    for (int round = 0; round < ROUNDS; round++) {
      memcpy(copy, file.data, file.size);
      for (unsigned n = 1 + random_next(&seed) % 3; n > 0; n--) damage(copy, file.size, &seed);
      size_t size = random_next(&seed) % 8 ? file.size : random_next(&seed) % (file.size + 1);
      dw_error error = {0};
      dw_status status = read_copy(copy, size, &error);
      if (status != DW_OK && status != DW_BAD_CUBIN) fail_msg("status %s", dw_status_name(status));
      if (status) refused++;
      else passed++;
      dw_error_clear(&error);
    }
    free(copy);
    dw__release(file.data);
  }
  print_message("%u damaged images: %u refused, %u still readable\n", passed + refused, refused, passed);
  assert_true(refused > 0 && passed > 0);
}

// ---- the log --------------------------------------------------------------------------------------------------

static void reads_spills_of_both_log_forms(void **state) {
  (void)state;
  static const char *const logs[] = {
    "ptxas info    : 0 bytes gmem\n"
    "ptxas info    : Compiling entry function 'one' for 'sm_120'\n"
    "ptxas info    : Function properties for one\n"
    "ptxas         .     136 bytes stack frame, 224 bytes spill stores, 216 bytes spill loads\n"
    "ptxas info    : Used 128 registers, used 1 barriers, 400 bytes smem, 136 bytes cumulative stack size\n"
    "ptxas info    : Function properties for two\n"
    "ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n",
    "ptxas info    : Compiling entry function 'one' for 'sm_120'\r\n"
    "ptxas info    : Function properties for one\r\n"
    "    136 bytes stack frame, 224 bytes spill stores, 216 bytes spill loads\r\n"
    "ptxas info    : Function properties for two\r\n"
    "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads",
  };
  for (size_t i = 0; i < DW__COUNT(logs); i++) {
    dw_resources kernels[] = {{.name = "two", .spill_stores = -1, .spill_loads = -1},
                              {.name = "one", .spill_stores = -1, .spill_loads = -1},
                              {.name = "three", .spill_stores = -1, .spill_loads = -1}};
    dw__cubin_read_log(logs[i], kernels, 3);
    assert_int_equal(kernels[0].spill_stores, 0);
    assert_int_equal(kernels[0].spill_loads, 0);
    assert_int_equal(kernels[1].spill_stores, 224);
    assert_int_equal(kernels[1].spill_loads, 216);
    assert_int_equal(kernels[2].spill_stores, -1);
    assert_int_equal(kernels[2].spill_loads, -1);
  }
}

static void counts_spills_of_called_functions(void **state) {
  (void)state;
  dw_resources kernel = {.name = "k", .spill_stores = -1, .spill_loads = -1};
  dw__cubin_read_log("ptxas info    : Function properties for k\n"
                     "ptxas         .     0 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads\n"
                     "ptxas info    : Function properties for _Z6calledv\n"
                     "ptxas         .     0 bytes stack frame, 16 bytes spill stores, 32 bytes spill loads\n",
                     &kernel, 1);
  assert_int_equal(kernel.spill_stores, 20);
  assert_int_equal(kernel.spill_loads, 40);
}

static void odd_logs_tell_nothing(void **state) {
  (void)state;
  static const char *const logs[] = {"",
                                     "Function properties for ",
                                     "Function properties for k",
                                     "Function properties for k\n",
                                     "Function properties for k\nptxas . 1 bytes stack frame, x bytes spill stores",
                                     "1 bytes stack frame, 2 bytes spill stores, 3 bytes spill loads"};
  for (size_t i = 0; i < DW__COUNT(logs); i++) {
    dw_resources kernel = {.name = "k", .spill_stores = -1, .spill_loads = -1};
    dw__cubin_read_log(logs[i], &kernel, 1);
    assert_int_equal(kernel.spill_stores, -1);
  }
  dw__cubin_read_log(NULL, NULL, 0);
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(reads_resources),
    cmocka_unit_test(finds_calls_into_the_driver),
    cmocka_unit_test(O_c21_refuses_every_truncation),
    cmocka_unit_test(O_c21_refuses_a_damaged_header),
    cmocka_unit_test(survives_random_damage),
    cmocka_unit_test(reads_spills_of_both_log_forms),
    cmocka_unit_test(counts_spills_of_called_functions),
    cmocka_unit_test(odd_logs_tell_nothing),
  };
  if (list_tests(argc, argv, tests, DW__COUNT(tests))) return 0;
  return cmocka_run_group_tests(tests, NULL, NULL);
}
