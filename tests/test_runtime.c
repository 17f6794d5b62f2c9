// runtime/nvrtc.c, driver.c and module.c. NVRTC is used where there is one, else those tests skip by name; the driver is a
// stand-in. Names that start with O_ settle a case that users of such systems reported.
#include <dirent.h>
#include <elf.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "fake_driver.h"
#include "fake_nvrtc.h"
#include "list_tests.h"
#include "runtime.h"
#include "support.h"

// ---- NVRTC: the library itself --------------------------------------------------------------------------------

static dw__nvrtc *real;  // NULL where there is none

static int open_real(void **state) {
  (void)state;
  dw_error error = {0};
  double start = dw__seconds();
  if (dw__nvrtc_open(NULL, &real, &error) == DW_OK) {
    print_message("%s at %s, build %s, opened in %.1f ms\n", dw__nvrtc_version(real), dw__nvrtc_path(real),
                  dw__nvrtc_build_id(real), 1e3 * (dw__seconds() - start));
  } else {
    print_message("no NVRTC: %s\n%s", error.message, error.log ? error.log : "");
  }
  dw_error_clear(&error);
  return 0;
}

static int close_real(void **state) {
  (void)state;
  dw__nvrtc_close(real);
  return 0;
}

#define NEEDS_NVRTC()                       \
  do {                                      \
    (void)state;                            \
    if (!real) {                            \
      print_message("skipped: no NVRTC\n"); \
      skip();                               \
    }                                       \
  } while (0)

typedef struct built {
  dw_status status;
  void *cubin;
  size_t size;
  char *log;
  dw_error error;
} built;

static built build(const char *source, const char *target) {
  built made = {0};
  dw__options options;
  dw__compile_options(target, &options);
  made.status = dw__nvrtc_compile(real, "test.cu", source, &options, &made.cubin, &made.size, &made.log, &made.error);
  return made;
}

static void built_free(built *made) {
  dw__release(made->cubin);
  dw__release(made->log);
  dw_error_clear(&made->error);
}

static void version_and_build_are_known(void **state) {
  NEEDS_NVRTC();
  int major, minor, patch;
  assert_int_equal(sscanf(dw__nvrtc_version(real), "nvrtc %d.%d.%d", &major, &minor, &patch), 3);
  assert_true(major > 12 || (major == 12 && minor >= 9));
  assert_true(strlen(dw__nvrtc_build_id(real)) >= 16);
  assert_int_equal(access(dw__nvrtc_path(real), R_OK), 0);
}

// "Used 10 registers, used 4 barriers, 400 bytes smem" after "Compiling entry function 'NAME'".
static void check_against_log(const dw_resources *kernel, const char *log) {
  char anchor[128];
  int registers = -1, barriers = 0, shared = 0, stack = -1, stores = -1, loads = -1;
  snprintf(anchor, sizeof anchor, "Compiling entry function '%.63s'", kernel->name);
  const char *part = strstr(log, anchor), *frame = part ? strstr(part, "bytes stack frame") : NULL;
  const char *used = part ? strstr(part, "Used ") : NULL;
  assert_non_null(frame);
  assert_non_null(used);
  while (frame[-1] == ' ' || (frame[-1] >= '0' && frame[-1] <= '9')) frame--;
  assert_int_equal(sscanf(frame, "%d bytes stack frame, %d bytes spill stores, %d bytes spill loads", &stack, &stores, &loads),
                   3);
  assert_int_equal(sscanf(used, "Used %d registers, used %d barriers", &registers, &barriers), 2);
  const char *end = strchr(used, '\n'), *smem = strstr(used, " bytes smem");
  if (smem && smem < end) {
    while (smem[-1] >= '0' && smem[-1] <= '9') smem--;
    shared = atoi(smem);
  }
  assert_int_equal(kernel->registers, registers);
  assert_int_equal(kernel->barriers, barriers);
  assert_int_equal(kernel->shared_static, shared);
  assert_int_equal(kernel->stack_bytes, stack);
  assert_int_equal(kernel->spill_stores, stores);
  assert_int_equal(kernel->spill_loads, loads);
}

static void compile_and_compare(const char *file, const char *target, int arch, bool specific) {
  size_t size;
  char *source = read_data(file, &size);
  double start = dw__seconds();
  built made = build(source, target);
  double seconds = dw__seconds() - start;
  if (made.status) fail_msg("%s for %s: %s", file, target, made.error.message);
  int found_arch, count;
  bool found_specific;
  dw_resources kernels[DW_KERNELS_MAX];
  dw_status status = dw__cubin_read(made.cubin, made.size, &found_arch, &found_specific, kernels, &count, &made.error);
  if (status) fail_msg("%s for %s: %s", file, target, made.error.message);
  assert_int_equal(found_arch, arch);
  assert_int_equal(found_specific, specific);
  assert_true(count > 0);
  dw__cubin_read_log(made.log, kernels, count);
  for (int i = 0; i < count; i++) check_against_log(&kernels[i], made.log);
  print_message("%s for %s: %.1f ms, %zu bytes, %s %d registers\n", file, target, 1e3 * seconds, made.size, kernels[0].name,
                kernels[0].registers);
  built_free(&made);
  dw__release(source);
}

static void O_c08_every_target_gives_the_cubin_the_log_tells_of(void **state) {
  NEEDS_NVRTC();
  static const struct {
    const char *target;
    int arch;
    bool specific;
  } targets[] = {{"sm_120", 120, false}, {"sm_120f", 120, false}, {"sm_120a", 120, true}, {"sm_121", 121, false},
                 {"sm_90", 90, false},   {"sm_90a", 90, true},    {"sm_80", 80, false}};
  for (size_t i = 0; i < DW__COUNT(targets); i++) {
    assert_true(dw__nvrtc_has_target(real, targets[i].target));
    compile_and_compare("two.cu", targets[i].target, targets[i].arch, targets[i].specific);
    compile_and_compare("spill.cu", targets[i].target, targets[i].arch, targets[i].specific);
  }
}

static void setmaxnreg_shows(void **state) {
  NEEDS_NVRTC();
  static const char *const targets[] = {"sm_120f", "sm_90a"};
  size_t size;
  char *source = read_data("grow.cu", &size);
  for (size_t i = 0; i < DW__COUNT(targets); i++) {
    built made = build(source, targets[i]);
    int count;
    dw_resources kernels[DW_KERNELS_MAX];
    assert_int_equal(made.status, DW_OK);
    assert_int_equal(dw__cubin_read(made.cubin, made.size, NULL, NULL, kernels, &count, NULL), DW_OK);
    assert_int_equal(kernels[0].uses_setmaxnreg, 1);
    built_free(&made);
  }
  dw__release(source);
}

static void a_failed_compile_is_an_error_with_its_log(void **state) {
  NEEDS_NVRTC();
  built made = build("#line 7 \"kernel.cu.lua\"\n"
                     "extern \"C\" __global__ void k(int *p) { int unused; }\n"
                     "extern \"C\" __global__ void l(int *p) { *p = nothing; }\n",
                     "sm_120");
  assert_int_equal(made.status, DW_COMPILE);
  assert_null(made.cubin);
  assert_int_equal(made.size, 0);
  assert_null(made.log);
  print_message("%s\n", made.error.message);
  // The template's file and line, though a warning comes first in the log.
  assert_non_null(strstr(made.error.message, "kernel.cu.lua(8): error: identifier \"nothing\" is undefined"));
  assert_non_null(strstr(made.error.log, "warning"));
  assert_non_null(strstr(made.error.log, "1 error detected"));
  built_free(&made);
}

static void an_assembler_error_is_one_too(void **state) {
  NEEDS_NVRTC();
  built made = build("extern \"C\" __global__ void k() { asm volatile(\"no.such;\"); }", "sm_120");
  assert_int_equal(made.status, DW_COMPILE);
  assert_null(made.cubin);
  print_message("%s\n", made.error.message);
  assert_non_null(strstr(made.error.message, "error   :"));
  built_free(&made);
  // Without a record there is nowhere to put the log: it must not be lost in memory.
  dw__options options;
  dw__compile_options("sm_120", &options);
  assert_int_equal(dw__nvrtc_compile(real, "test.cu", "nonsense", &options, &made.cubin, &made.size, &made.log, NULL),
                   DW_COMPILE);
}

static void O_c06_unknown_targets_are_refused_by_name(void **state) {
  NEEDS_NVRTC();
  static const char *const targets[] = {"sm_55", "sm_120b", "sm_90f", "compute_90", "sm_", "", "sm_999999999999", "sm_120ff"};
  for (size_t i = 0; i < DW__COUNT(targets); i++) {
    assert_false(dw__nvrtc_has_target(real, targets[i]));
    built made = build("extern \"C\" __global__ void k() {}", targets[i]);
    assert_int_equal(made.status, DW_UNSUPPORTED_TARGET);
    assert_string_equal(made.error.field, "target");
    assert_string_equal(made.error.found, targets[i]);
    assert_non_null(strstr(made.error.allowed, "sm_120"));
    assert_non_null(strstr(made.error.message, dw__nvrtc_version(real)));
    built_free(&made);
  }
}

// ---- NVRTC: what a compile leaves alone -----------------------------------------------------------------------

static int count_files(const char *folder) {
  int count = -2;  // . and ..
  DIR *entries = opendir(folder);
  assert_non_null(entries);
  while (readdir(entries)) count++;
  closedir(entries);
  return count;
}

static void restore_variable(const char *name, char *value) {
  if (value) setenv(name, value, 1);
  else unsetenv(name);
  free(value);
}

static char *save_variable(const char *name, const char *value) {
  char *saved = getenv(name) ? strdup(getenv(name)) : NULL;
  setenv(name, value, 1);
  return saved;
}

static void a_compile_touches_no_file_and_no_limit(void **state) {
  NEEDS_NVRTC();
  char folder[] = "/tmp/dw_test_XXXXXX", before[4096];
  struct rlimit stack[2];
  assert_non_null(mkdtemp(folder));
  assert_non_null(getcwd(before, sizeof before));
  char *home = save_variable("HOME", folder), *temp = save_variable("TMPDIR", folder);
  assert_int_equal(chdir(folder), 0);
  assert_int_equal(getrlimit(RLIMIT_STACK, &stack[0]), 0);
  built made = build("extern \"C\" __global__ void k(int *p) { *p = 1; }", "sm_120f");
  assert_int_equal(made.status, DW_OK);
  built_free(&made);
  assert_int_equal(getrlimit(RLIMIT_STACK, &stack[1]), 0);
  assert_int_equal(stack[0].rlim_cur, stack[1].rlim_cur);
  assert_int_equal(count_files(folder), 0);

  // Nor does it read one that lies about: the working directory is no include path.
  FILE *file = fopen("lies_about.h", "w");
  assert_non_null(file);
  fclose(file);
  made = build("#include \"lies_about.h\"\nextern \"C\" __global__ void k() {}", "sm_120");
  assert_int_equal(made.status, DW_COMPILE);
  built_free(&made);
  assert_int_equal(unlink("lies_about.h"), 0);
  assert_int_equal(chdir(before), 0);
  assert_int_equal(rmdir(folder), 0);
  restore_variable("HOME", home);
  restore_variable("TMPDIR", temp);
}

// ---- NVRTC: threads -------------------------------------------------------------------------------------------

enum { THREADS = 4, ROUNDS = 3 };

static void *compile_again(void *expected) {
  const built *first = expected;
  size_t size;
  char *source = read_data("two.cu", &size), *wrong = NULL;
  for (int i = 0; i < ROUNDS && !wrong; i++) {
    if (!dw__nvrtc_has_target(real, "sm_120f")) wrong = "the target is unknown";
    built made = build(source, "sm_120f");
    if (made.status) wrong = "it does not compile";
    else if (made.size != first->size || memcmp(made.cubin, first->cubin, made.size) != 0) wrong = "other bytes";
    built_free(&made);
  }
  dw__release(source);
  return wrong;
}

static void threads_compile_at_once_to_the_same_bytes(void **state) {
  NEEDS_NVRTC();
  pthread_t threads[THREADS];
  size_t size;
  char *source = read_data("two.cu", &size);
  double start = dw__seconds();
  built first = build(source, "sm_120f");
  double alone = dw__seconds() - start;
  assert_int_equal(first.status, DW_OK);
  start = dw__seconds();
  for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, compile_again, &first), 0);
  for (int i = 0; i < THREADS; i++) {
    void *wrong;
    pthread_join(threads[i], &wrong);
    if (wrong) fail_msg("%s", (const char *)wrong);
  }
  print_message("one compile %.1f ms, %d from %d threads %.1f ms\n", 1e3 * alone, THREADS * ROUNDS, THREADS,
                1e3 * (dw__seconds() - start));
  built_free(&first);
  dw__release(source);
}

// ---- NVRTC: a stand-in ----------------------------------------------------------------------------------------

static void O_c06_an_old_nvrtc_is_refused_by_its_version(void **state) {
  (void)state;
  static const struct {
    int major, minor;
    const char *text;
    bool good;
  } versions[] = {
    {11, 8, "11.8", false}, {12, 4, "12.4", false}, {12, 8, "12.8", false}, {12, 9, "12.9", true}, {14, 0, "14.0", true}};
  for (size_t i = 0; i < DW__COUNT(versions); i++) {
    dw__nvrtc *nvrtc;
    dw_error error = {0};
    fake_nvrtc_reset(versions[i].major, versions[i].minor);
    dw_status status = dw__nvrtc_open_table(&fake_nvrtc_table, &nvrtc, &error);
    assert_int_equal(status, versions[i].good ? DW_OK : DW_NO_COMPILER);
    if (!versions[i].good) {
      assert_null(nvrtc);
      assert_string_equal(error.field, "nvrtc version");
      assert_string_equal(error.found, versions[i].text);
      assert_string_equal(error.allowed, "12.9 or newer");
      assert_int_equal(fake_nvrtc.compiles, 0);
    }
    dw__nvrtc_close(nvrtc);
    dw_error_clear(&error);
  }
}

static void the_version_comes_from_the_compilers_own_text(void **state) {
  (void)state;
  dw__nvrtc *nvrtc;
  fake_nvrtc_reset(13, 0);
  assert_int_equal(dw__nvrtc_open_table(&fake_nvrtc_table, &nvrtc, NULL), DW_OK);
  assert_string_equal(dw__nvrtc_version(nvrtc), "nvrtc 13.0.88");
  dw__nvrtc_close(nvrtc);
  fake_nvrtc.ptx = ".version 9.0\n";
  assert_int_equal(dw__nvrtc_open_table(&fake_nvrtc_table, &nvrtc, NULL), DW_OK);
  assert_string_equal(dw__nvrtc_version(nvrtc), "nvrtc 13.0");
  dw__nvrtc_close(nvrtc);
}

static void O_c04_missing_builtins_are_named(void **state) {
  (void)state;
  dw__nvrtc *nvrtc;
  dw_error error = {0};
  fake_nvrtc_reset(13, 0);
  fake_nvrtc.compile_result = DW__NVRTC_BUILTINS;
  assert_int_equal(dw__nvrtc_open_table(&fake_nvrtc_table, &nvrtc, &error), DW_NO_COMPILER);
  assert_null(nvrtc);
  assert_string_equal(error.field, "libnvrtc-builtins.so.13.0");
  assert_int_equal(fake_nvrtc.compiles, 1);
  dw_error_clear(&error);
}

static void success_with_size_0_after_a_failure_is_no_cubin(void **state) {
  (void)state;
  dw__nvrtc *nvrtc;
  dw__options options;
  dw_error error = {0};
  void *cubin;
  size_t size;
  char *log;
  fake_nvrtc_reset(13, 0);
  assert_int_equal(dw__nvrtc_open_table(&fake_nvrtc_table, &nvrtc, NULL), DW_OK);
  dw__compile_options("sm_120", &options);

  fake_nvrtc.compile_result = DW__NVRTC_COMPILATION;
  fake_nvrtc.log = "a.cu(1): warning #177-D: x\na.cu(3): error: first\na.cu(4): error: second\n";
  assert_int_equal(dw__nvrtc_compile(nvrtc, "a.cu", "x", &options, &cubin, &size, &log, &error), DW_COMPILE);
  assert_string_equal(error.message, "source: a.cu(3): error: first");
  assert_string_equal(error.log, fake_nvrtc.log);
  assert_null(cubin);

  fake_nvrtc.compile_result = DW__NVRTC_OUT_OF_MEMORY;
  assert_int_equal(dw__nvrtc_compile(nvrtc, "a.cu", "x", &options, &cubin, &size, &log, &error), DW_OUT_OF_MEMORY);

  // A success without bytes is none.
  fake_nvrtc.compile_result = DW__NVRTC_SUCCESS;
  assert_int_equal(dw__nvrtc_compile(nvrtc, "a.cu", "x", &options, &cubin, &size, &log, &error), DW_COMPILE);
  assert_null(cubin);
  assert_null(log);

  fake_nvrtc.cubin = "bytes";
  fake_nvrtc.cubin_size = 5;
  assert_int_equal(dw__nvrtc_compile(nvrtc, "a.cu", "x", &options, &cubin, &size, &log, &error), DW_OK);
  assert_int_equal(size, 5);
  assert_memory_equal(cubin, "bytes", 5);
  dw__release(cubin);
  dw__release(log);
  dw_error_clear(&error);
  dw__nvrtc_close(nvrtc);
}

static void a_suffix_is_tried_once(void **state) {
  (void)state;
  dw__nvrtc *nvrtc;
  fake_nvrtc_reset(13, 0);
  assert_int_equal(dw__nvrtc_open_table(&fake_nvrtc_table, &nvrtc, NULL), DW_OK);
  int before = fake_nvrtc.compiles;
  assert_true(dw__nvrtc_has_target(nvrtc, "sm_120"));
  assert_false(dw__nvrtc_has_target(nvrtc, "sm_121f"));
  assert_int_equal(fake_nvrtc.compiles, before);
  for (int i = 0; i < 3; i++) assert_true(dw__nvrtc_has_target(nvrtc, "sm_120f"));
  assert_int_equal(fake_nvrtc.compiles, before + 1);
  fake_nvrtc.compile_result = DW__NVRTC_INVALID_OPTION;
  for (int i = 0; i < 3; i++) assert_false(dw__nvrtc_has_target(nvrtc, "sm_90f"));
  assert_true(dw__nvrtc_has_target(nvrtc, "sm_120f"));
  assert_int_equal(fake_nvrtc.compiles, before + 2);
  dw__nvrtc_close(nvrtc);
}

static void memory_that_runs_out_is_reported(void **state) {
  (void)state;
  dw__options options;
  dw__compile_options("sm_120", &options);
  for (long n = 1; n < 12; n++) {
    dw__nvrtc *nvrtc;
    void *cubin = NULL;
    size_t size;
    char *log = NULL;
    fake_nvrtc_reset(13, 0);
    fake_nvrtc.cubin = "bytes";
    fake_nvrtc.cubin_size = 5;
    dw__alloc_fail_after(n);
    dw_status status = dw__nvrtc_open_table(&fake_nvrtc_table, &nvrtc, NULL);
    if (!status) status = dw__nvrtc_compile(nvrtc, "a.cu", "x", &options, &cubin, &size, &log, NULL);
    dw__alloc_fail_after(0);
    if (status != DW_OK && status != DW_OUT_OF_MEMORY && status != DW_NO_COMPILER)
      fail_msg("%ld: %s", n, dw_status_name(status));
    assert_true(status == DW_OK ? cubin && log : !cubin && !log);
    dw__release(cubin);
    dw__release(log);
    dw__nvrtc_close(nvrtc);
  }
}

static void options_name_a_real_architecture(void **state) {
  (void)state;
  dw__options options;
  dw__compile_options("sm_120f", &options);
  assert_string_equal(options.list[0], "-arch=sm_120f");
  assert_true(options.count <= DW__OPTIONS_MAX);
  static const char *const wanted[] = {"--modify-stack-limit=false", "--no-source-include", "--no-cache", "--ptxas-options=-v",
                                       "--std=c++17"};
  for (size_t i = 0; i < DW__COUNT(wanted); i++) {
    bool found = false;
    for (size_t j = 0; j < options.count; j++) found |= strcmp(options.list[j], wanted[i]) == 0;
    if (!found) fail_msg("%s is not passed", wanted[i]);
  }
}

// ---- NVRTC: finding it ----------------------------------------------------------------------------------------

static void O_c02_a_given_place_that_holds_none_is_reported(void **state) {
  (void)state;
  char folder[] = "/tmp/dw_test_XXXXXX", file[64];
  assert_non_null(mkdtemp(folder));
  snprintf(file, sizeof file, "%s/libnvrtc.so.13", folder);
  const char *const places[] = {"/nonexistent/libnvrtc.so.13", folder, file};
  for (size_t i = 0; i < DW__COUNT(places); i++) {
    dw__nvrtc *nvrtc;
    dw_error error = {0};
    if (places[i] == file) {
      FILE *text = fopen(file, "w");
      assert_non_null(text);
      fputs("not a library", text);
      fclose(text);
    }
    char *saved = save_variable("DRAFTWOOD_NVRTC", places[i]);
    assert_int_equal(dw__nvrtc_open(NULL, &nvrtc, &error), DW_NO_COMPILER);
    restore_variable("DRAFTWOOD_NVRTC", saved);
    assert_null(nvrtc);
    assert_string_equal(error.found, places[i]);
    assert_string_equal(error.allowed, "12.9 or newer");
    assert_non_null(strstr(error.message, "DRAFTWOOD_NVRTC"));
    assert_non_null(strstr(error.log, places[i]));
    dw_error_clear(&error);
    assert_int_equal(dw__nvrtc_open(places[i], &nvrtc, NULL), DW_NO_COMPILER);
  }
  unlink(file);
  rmdir(folder);
}

// This program again, with a loader that looks at no cache of installed libraries; prints where NVRTC was found, or the report.
static int find_and_print(void) {
  dw__nvrtc *nvrtc;
  dw_error error = {0};
  dw_status status = dw__nvrtc_open(NULL, &nvrtc, &error);
  if (status) printf("%s\n%s", error.message, error.log ? error.log : "");
  else printf("found %s\n", dw__nvrtc_path(nvrtc));
  dw_error_clear(&error);
  dw__nvrtc_close(nvrtc);
  return status != DW_OK;
}

static const char *find_loader(void) {
  static const char *const paths[] = {"/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"};
  for (size_t i = 0; i < DW__COUNT(paths); i++) {
    if (access(paths[i], X_OK) == 0) return paths[i];
  }
  return NULL;
}

static void run_find(const char *variables, char *output, size_t capacity) {
  char self[1024], command[4096];
  ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
  assert_true(length > 0);
  self[length] = 0;
  snprintf(command, sizeof command,
           "env -u DRAFTWOOD_NVRTC -u LD_LIBRARY_PATH -u CUDA_PATH %s %s --inhibit-cache %s --find 2>&1", variables,
           find_loader(), self);
  FILE *pipe = popen(command, "r");
  assert_non_null(pipe);
  output[fread(output, 1, capacity - 1, pipe)] = 0;
  pclose(pipe);
}

static void O_c02_toolkit_variables_with_stray_parts_are_walked(void **state) {
  NEEDS_NVRTC();
#if defined(__SANITIZE_ADDRESS__)
  print_message("skipped: the sanitizer's runtime does not start this way\n");
  skip();
#endif
  char output[16384], real_folder[1024], variables[2048], toolkit[] = "/tmp/dw test XXXXXX";
  if (!find_loader()) skip();
  // A toolkit in a folder with a blank in its name, made of links to the NVRTC at hand.
  assert_non_null(mkdtemp(toolkit));
  snprintf(real_folder, sizeof real_folder, "%s", dw__nvrtc_path(real));
  char *slash = strrchr(real_folder, '/');
  assert_non_null(slash);
  *slash = 0;
  char link[128];
  snprintf(link, sizeof link, "%s/lib64", toolkit);
  assert_int_equal(symlink(real_folder, link), 0);
  snprintf(variables, sizeof variables, "CUDA_HOME='::relative:/nonexistent:/etc/passwd:%s::'", toolkit);
  run_find(variables, output, sizeof output);
  unlink(link);
  rmdir(toolkit);
  print_message("%s", output);
  assert_non_null(strstr(output, "found "));
  assert_non_null(strstr(output, toolkit));
}

// Two toolkits, both orders: the first named is taken, and one that holds no library is passed over.
static void O_c05_the_first_place_that_works_is_taken(void **state) {
  NEEDS_NVRTC();
#if defined(__SANITIZE_ADDRESS__)
  print_message("skipped: the sanitizer's runtime does not start this way\n");
  skip();
#endif
  static const char *const orders[][3] = {{"one", "two", "one"}, {"two", "one", "two"}, {"bad", "two", "two"}};
  char output[16384], real_folder[1024], folder[] = "/tmp/dw_test_XXXXXX", path[128], variables[512];
  if (!find_loader()) skip();
  assert_non_null(mkdtemp(folder));
  snprintf(real_folder, sizeof real_folder, "%s", dw__nvrtc_path(real));
  *strrchr(real_folder, '/') = 0;
  static const char *const names[] = {"one", "two", "bad", "bad/lib64"};
  for (size_t i = 0; i < DW__COUNT(names); i++) {
    snprintf(path, sizeof path, "%s/%s", folder, names[i]);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/%s/lib64", folder, names[i]);
    if (i < 2) assert_int_equal(symlink(real_folder, path), 0);
  }
  snprintf(path, sizeof path, "%s/bad/lib64/libnvrtc.so.13", folder);
  FILE *text = fopen(path, "w");
  assert_non_null(text);
  fputs("not a library", text);
  assert_int_equal(fclose(text), 0);
  for (size_t i = 0; i < DW__COUNT(orders); i++) {
    snprintf(variables, sizeof variables, "CUDA_HOME='%s/%s:%s/%s'", folder, orders[i][0], folder, orders[i][1]);
    run_find(variables, output, sizeof output);
    snprintf(path, sizeof path, "found %s/%s/", folder, orders[i][2]);
    if (!strstr(output, path)) fail_msg("%s lacks %s", output, path);
  }
  snprintf(variables, sizeof variables, "rm -r '%s'", folder);
  assert_int_equal(system(variables), 0);
}

// ---- driver ---------------------------------------------------------------------------------------------------

static int reset_driver(void **state) {
  (void)state;
  fake_driver_reset();
  return 0;
}

static dw__driver *open_fake(void) {
  dw__driver *driver;
  dw__driver_table table = fake_driver_table();
  assert_int_equal(dw__driver_open_table(&table, &driver, NULL), DW_OK);
  return driver;
}

static void O_c01_a_missing_driver_is_reported(void **state) {
  (void)state;
  dw__driver *driver;
  dw_error error = {0};
  assert_int_equal(dw__driver_open("/nonexistent/libcuda.so.1", &driver, &error), DW_NO_DRIVER);
  assert_null(driver);
  assert_string_equal(error.allowed, "/nonexistent/libcuda.so.1");
  assert_non_null(strstr(error.message, "install the NVIDIA driver"));
  // A library, but not this one.
  assert_int_equal(dw__driver_open("libm.so.6", &driver, &error), DW_NO_DRIVER);
  assert_non_null(strstr(error.message, "it lacks cuInit"));
  dw_error_clear(&error);
}

static void the_toolkits_stub_is_no_driver(void **state) {
  (void)state;
  static const char stub[] = "/usr/local/cuda/lib64/stubs/libcuda.so";
  dw__driver *driver;
  dw_error error = {0};
  int count;
  if (access(stub, R_OK) != 0) {
    print_message("skipped: no %s\n", stub);
    skip();
  }
  assert_int_equal(dw__driver_open(stub, &driver, &error), DW_OK);
  assert_int_equal(dw__driver_device_count(driver, &count, &error), DW_NO_DRIVER);
  print_message("%s\n", error.message);
  assert_non_null(strstr(error.message, "stub"));
  dw_error_clear(&error);
  dw__driver_close(driver);
}

static void the_driver_starts_on_first_use(void **state) {
  (void)state;
  dw__device device;
  int count = 0;
  dw__driver *driver = open_fake();
  assert_int_equal(fake_driver_calls(), 0);
  assert_int_equal(dw__driver_device_count(driver, &count, NULL), DW_OK);
  assert_int_equal(dw__driver_device(driver, 0, &device, NULL), DW_OK);
  assert_int_equal(count, 1);
  assert_int_equal(fake.calls[FAKE_cuInit], 1);
  assert_int_equal(device.cc, 90);
  assert_int_equal(device.sm_count, 132);
  assert_int_equal(device.shared_optin, 232448);
  assert_int_equal(device.driver_version, 13000);
  assert_int_equal(device.l2_bytes, 60 << 20);
  assert_true(device.memory_bytes == (int64_t)141 << 30);
  assert_string_equal(device.name, "Fake GPU");
  assert_int_equal(dw__driver_device(driver, 7, &device, NULL), DW_DRIVER);
  dw__driver_close(driver);
}

static void a_failed_start_is_tried_again(void **state) {
  (void)state;
  dw_error error = {0};
  int count;
  dw__driver *driver = open_fake();
  fake.result[FAKE_cuInit] = DW__CU_NO_DEVICE;
  assert_int_equal(dw__driver_device_count(driver, &count, &error), DW_DRIVER);
  assert_non_null(strstr(error.message, "cuInit answered 100"));
  assert_non_null(strstr(error.message, "no GPU is visible"));
  fake.result[FAKE_cuInit] = 0;
  assert_int_equal(dw__driver_device_count(driver, &count, &error), DW_OK);
  dw_error_clear(&error);
  dw__driver_close(driver);
}

static void the_current_context_decides(void **state) {
  (void)state;
  dw__device device;
  dw_error error = {0};
  void *context = NULL;
  dw__driver *driver = open_fake();
  assert_int_equal(dw__driver_current(driver, &device, &context, &error), DW_OK);
  assert_ptr_equal(context, fake.context);
  fake.context = NULL;
  assert_int_equal(dw__driver_current(driver, &device, &context, &error), DW_DRIVER);
  assert_string_equal(error.field, "CUDA context");
  assert_string_equal(error.found, "none");
  dw_error_clear(&error);
  dw__driver_close(driver);
}

static void capture_is_seen(void **state) {
  (void)state;
  dw__driver *driver = open_fake();
  assert_false(dw__driver_capturing(driver, NULL));
  fake.capture_status = 1;
  assert_true(dw__driver_capturing(driver, NULL));
  fake.capture_status = 2;  // invalidated, but not ended
  assert_true(dw__driver_capturing(driver, NULL));
  fake.capture_status = 0;
  fake.result[FAKE_cuStreamIsCapturing] = DW__CU_CAPTURE_IMPLICIT;
  assert_true(dw__driver_capturing(driver, NULL));
  fake.result[FAKE_cuStreamIsCapturing] = 400;
  assert_false(dw__driver_capturing(driver, NULL));
  dw__driver_close(driver);
}

// ---- modules --------------------------------------------------------------------------------------------------

static void O_c07_load_errors_have_names_and_both_versions(void **state) {
  (void)state;
  static const struct {
    int result;
    dw_status status;
  } cases[] = {{2, DW_OUT_OF_MEMORY}, {200, DW_BAD_CUBIN}, {209, DW_WRONG_ARCH}, {999, DW_DRIVER}};
  size_t size;
  char *cubin = read_data("grow_sm_90a.cubin", &size);
  dw__driver *driver = open_fake();
  fake.version = 12080;
  for (size_t i = 0; i < DW__COUNT(cases); i++) {
    dw__module *module;
    dw_error error = {0};
    fake.result[FAKE_cuLibraryLoadData] = fake.result[FAKE_cuModuleLoadData] = cases[i].result;
    assert_int_equal(dw__module_load(driver, cubin, size, &module, &error), cases[i].status);
    assert_null(module);
    if (i == 0) print_message("%s\n", error.message);
    assert_non_null(
      strstr(error.message, cases[i].result == 2 ? "CUDA_ERROR_OUT_OF_MEMORY (out of memory)" : "CUDA_ERROR_FAKE"));
    // A driver too old for the compiler's output is recognised by the two versions.
    assert_non_null(strstr(error.message, "CUDA 12.8"));
    assert_non_null(strstr(error.message, "V13.0.88"));
    dw_error_clear(&error);
  }
  assert_int_equal(fake.loaded, 0);
  dw__driver_close(driver);
  dw__release(cubin);
}

static void O_c21_a_damaged_cubin_never_reaches_the_driver(void **state) {
  (void)state;
  size_t size;
  char *cubin = read_data("grow_sm_90a.cubin", &size);
  dw__driver *driver = open_fake();
  dw__module *module;
  dw_error error = {0};
  assert_int_equal(dw__module_load(driver, cubin, size - 1, &module, &error), DW_BAD_CUBIN);
  assert_int_equal(dw__module_load(driver, cubin, 0, &module, &error), DW_BAD_CUBIN);
  cubin[1] ^= 1;
  assert_int_equal(dw__module_load(driver, cubin, size, &module, &error), DW_BAD_CUBIN);
  assert_null(module);
  assert_int_equal(fake_driver_calls(), 0);
  dw_error_clear(&error);
  dw__driver_close(driver);
  dw__release(cubin);
}

static void O_c08_O_c09_a_cubin_loads_where_it_can_run(void **state) {
  (void)state;
  static const struct {
    const char *file;
    int cc;
    bool loads;
  } cases[] = {
    {"two_sm_120f.cubin", 120, true},        {"two_sm_120f.cubin", 121, true},        {"two_sm_120f.cubin", 90, false},
    {"two_sm_120f.cubin", 100, false},       {"two_sm_120f.cubin", 86, false},        {"two_sm_120f.cubin", 130, false},
    {"grow_sm_120a.cubin", 120, true},       {"grow_sm_120a.cubin", 121, false},      {"grow_sm_90a.cubin", 90, true},
    {"grow_sm_90a.cubin", 120, false},       {"two_sm_90_nvrtc12.cubin", 90, true},   {"two_sm_90_nvrtc12.cubin", 89, false},
    {"two_sm_90_nvrtc12.cubin", 100, false}, {"grow_sm_90a_nvrtc12.cubin", 90, true}, {"grow_sm_90a_nvrtc12.cubin", 100, false},
  };
  dw__driver *driver = open_fake();
  for (size_t i = 0; i < DW__COUNT(cases); i++) {
    size_t size;
    char *cubin = read_data(cases[i].file, &size), device[16];
    dw__module *module;
    dw_error error = {0};
    int before = fake.calls[FAKE_cuLibraryLoadData];
    fake.cc = cases[i].cc;
    dw_status status = dw__module_load(driver, cubin, size, &module, &error);
    if (status != (cases[i].loads ? DW_OK : DW_WRONG_ARCH)) fail_msg("%s on sm_%d: %s", cases[i].file, fake.cc, error.message);
    if (status) {
      // Both are named, and the driver was not asked.
      snprintf(device, sizeof device, "sm_%d", fake.cc);
      assert_int_equal(strncmp(error.found, "sm_", 3), 0);
      assert_non_null(strstr(cases[i].file, error.found));
      assert_non_null(strstr(error.allowed, device));
      assert_int_equal(fake.calls[FAKE_cuLibraryLoadData], before);
    }
    dw__module_unload(module);
    dw_error_clear(&error);
    dw__release(cubin);
  }
  // A later minor version may not run what was made for an earlier device's successor.
  size_t size;
  char *cubin = read_data("two_sm_120f.cubin", &size);
  Elf64_Ehdr header;
  dw__module *module;
  memcpy(&header, cubin, sizeof header);
  header.e_flags = (header.e_flags & ~0xff00u) | 121u << 8;
  memcpy(cubin, &header, sizeof header);
  fake.cc = 120;
  assert_int_equal(dw__module_load(driver, cubin, size, &module, NULL), DW_WRONG_ARCH);
  dw__release(cubin);
  assert_int_equal(fake.loaded, 0);
  dw__driver_close(driver);
}

static void a_function_is_made_ready_before_its_launch(void **state) {
  (void)state;
  size_t size;
  char *cubin = read_data("two_sm_120f.cubin", &size);
  dw__driver *driver = open_fake();
  dw__module *module;
  dw_error error = {0};
  void *function = NULL;
  fake.cc = 120;
  fake.shared_optin = 101376;
  assert_int_equal(dw__module_load(driver, cubin, size, &module, &error), DW_OK);
  dw__release(cubin);  // the driver keeps its own copy

  assert_int_equal(dw__module_function(module, "local", 48 * 1024, &function, &error), DW_OK);
  assert_non_null(function);
  assert_int_equal(fake.calls[FAKE_cuFuncLoad], 1);
  assert_int_equal(fake.calls[FAKE_cuFuncSetAttribute], 0);
  // The kernel's own 400 bytes count.
  assert_int_equal(dw__module_function(module, "shared", 48 * 1024, &function, &error), DW_OK);
  assert_int_equal(fake.calls[FAKE_cuFuncSetAttribute], 1);
  assert_int_equal(fake.dynamic_shared, 101376 - 400);
  // A smaller request for the same function does not lower what the larger one needs.
  assert_int_equal(dw__module_function(module, "local", 100000, &function, &error), DW_OK);
  assert_int_equal(dw__module_function(module, "local", 60000, &function, &error), DW_OK);
  assert_int_equal(fake.dynamic_shared, 101376);

  assert_int_equal(dw__module_function(module, "absent", 0, &function, &error), DW_NOT_FOUND);
  assert_null(function);
  assert_string_equal(error.found, "absent");
  assert_non_null(strstr(error.allowed, "shared"));
  fake.result[FAKE_cuFuncSetAttribute] = 1;
  assert_int_equal(dw__module_function(module, "local", 60000, &function, &error), DW_DRIVER);
  assert_null(function);
  assert_non_null(strstr(error.message, "cuFuncSetAttribute"));
  dw_error_clear(&error);
  dw__module_unload(module);
  assert_int_equal(fake.loaded, 0);
  dw__driver_close(driver);
}

static void O_b03_more_shared_memory_than_the_device_has_is_refused(void **state) {
  (void)state;
  size_t size;
  char *cubin = read_data("two_sm_120f.cubin", &size);
  dw__driver *driver = open_fake();
  dw__module *module;
  dw_error error = {0};
  void *function;
  fake.cc = 120;
  fake.shared_optin = 101376;
  assert_int_equal(dw__module_load(driver, cubin, size, &module, &error), DW_OK);
  assert_int_equal(dw__module_function(module, "shared", 101376 - 400, &function, &error), DW_OK);
  int before = fake_driver_calls();
  assert_int_equal(dw__module_function(module, "shared", 101376 - 399, &function, &error), DW_NOT_APPLICABLE);
  assert_string_equal(error.found, "100977");
  assert_string_equal(error.allowed, "100976 bytes");
  assert_int_equal(fake_driver_calls(), before);
  dw_error_clear(&error);
  dw__module_unload(module);
  dw__driver_close(driver);
  dw__release(cubin);
}

static void old_drivers_and_eager_loading_take_modules(void **state) {
  (void)state;
  size_t size;
  char *cubin = read_data("grow_sm_90a.cubin", &size);
  for (int eager = 0; eager < 2; eager++) {
    dw__driver_table table = eager ? fake_driver_table() : fake_driver_table_old();
    dw__driver *driver;
    dw__module *module;
    void *function;
    fake_driver_reset();
    if (eager) fake.result[FAKE_cuLibraryLoadData] = DW__CU_NO_BINARY_FOR_GPU;
    assert_int_equal(dw__driver_open_table(&table, &driver, NULL), DW_OK);
    assert_int_equal(dw__module_load(driver, cubin, size, &module, NULL), DW_OK);
    assert_int_equal(fake.calls[FAKE_cuModuleLoadData], 1);
    assert_int_equal(dw__module_function(module, "grow", 0, &function, NULL), DW_OK);
    assert_int_equal(fake.calls[FAKE_cuModuleGetFunction], 1);
    // Unloaded in its own context, whichever is current by then.
    void *own = fake.context;
    fake.context = NULL;
    dw__module_unload(module);
    assert_ptr_equal(fake.pushed, own);
    assert_int_equal(fake.calls[FAKE_cuCtxPopCurrent_v2], 1);
    assert_int_equal(fake.loaded, 0);
    dw__driver_close(driver);
  }
  dw__release(cubin);
}

static void O_c30_loading_leaves_a_capture_valid(void **state) {
  (void)state;
  size_t size;
  char *cubin = read_data("grow_sm_90a.cubin", &size);
  dw__driver *driver = open_fake();
  dw__module *module;
  fake.capture_mode = 0;  // global, the strictest
  assert_int_equal(dw__module_load(driver, cubin, size, &module, NULL), DW_OK);
  assert_int_equal(fake.mode_at_load, DW__CU_CAPTURE_MODE_RELAXED);
  assert_int_equal(fake.capture_mode, 0);
  dw__module_unload(module);
  assert_int_equal(fake.capture_mode, 0);
  dw__driver_close(driver);
  dw__release(cubin);
}

// ---- launch ---------------------------------------------------------------------------------------------------

static void O_c31_O_c32_a_launch_is_one_call_with_the_attributes_asked_for(void **state) {
  (void)state;
  static char function, stream;
  int value = 7;
  void *params[] = {&value};
  dw__driver *driver = open_fake();
  for (unsigned cluster = 0; cluster <= 2; cluster++) {
    for (int dependent = 0; dependent < 2; dependent++) {
      dw__launch launch = {.function = &function,
                           .grid = {3, 2, 1},
                           .block = {128, 1, 1},
                           .cluster_x = cluster,
                           .dynamic_shared = 99 * 1024,
                           .dependent = dependent};
      int before = fake_driver_calls();
      dw__alloc_fail_after(1);
      assert_int_equal(dw__driver_launch(driver, &launch, params, &stream, NULL), DW_OK);
      assert_int_equal(dw__alloc_fail_after(0), 0);
      assert_int_equal(fake_driver_calls(), before + 1);
      assert_ptr_equal(fake.function, &function);
      assert_ptr_equal(fake.first_param, &value);
      assert_ptr_equal(fake.launch.stream, &stream);
      assert_int_equal(fake.launch.grid[0], 3);
      assert_int_equal(fake.launch.grid[1], 2);
      assert_int_equal(fake.launch.block[0], 128);
      assert_int_equal(fake.launch.shared, 99 * 1024);
      // No attribute that was not asked for: some drivers refuse the dependent one within a capture.
      unsigned wanted = (cluster > 1) + (unsigned)dependent;
      assert_int_equal(fake.launch.attribute_count, wanted);
      if (!wanted) assert_null(fake.launch.attributes);
      if (cluster > 1) {
        assert_int_equal(fake.attributes[0].id, DW__CU_LAUNCH_CLUSTER);
        assert_int_equal(fake.attributes[0].value.cluster.x, cluster);
        assert_int_equal(fake.attributes[0].value.cluster.y, 1);
        assert_int_equal(fake.attributes[0].value.cluster.z, 1);
      }
      if (dependent) {
        assert_int_equal(fake.attributes[wanted - 1].id, DW__CU_LAUNCH_DEPENDENT);
        assert_int_equal(fake.attributes[wanted - 1].value.dependent, 1);
      }
    }
  }
  assert_int_equal(fake.calls[FAKE_cuLaunchKernelEx], 6);
  dw__driver_close(driver);
}

static void old_drivers_launch_without_attributes(void **state) {
  (void)state;
  static char function;
  dw__driver_table table = fake_driver_table_old();
  dw__driver *driver;
  dw_error error = {0};
  dw__launch launch = {.function = &function, .grid = {5, 1, 1}, .block = {64, 1, 1}, .cluster_x = 1, .dependent = true};
  assert_int_equal(dw__driver_open_table(&table, &driver, NULL), DW_OK);
  assert_int_equal(dw__driver_launch(driver, &launch, NULL, NULL, &error), DW_OK);
  assert_int_equal(fake.calls[FAKE_cuLaunchKernel], 1);
  assert_int_equal(fake.launch.grid[0], 5);
  launch.cluster_x = 2;
  assert_int_equal(dw__driver_launch(driver, &launch, NULL, NULL, &error), DW_DRIVER);
  assert_string_equal(error.field, "cluster");
  dw_error_clear(&error);
  dw__driver_close(driver);
}

static void a_failed_launch_tells_its_geometry(void **state) {
  (void)state;
  static char function;
  dw_error error = {0};
  dw__driver *driver = open_fake();
  dw__launch launch = {.function = &function, .grid = {5, 1, 1}, .block = {64, 1, 1}, .cluster_x = 1, .dynamic_shared = 1000};
  fake.result[FAKE_cuLaunchKernelEx] = 701;
  assert_int_equal(dw__driver_launch(driver, &launch, NULL, NULL, &error), DW_DRIVER);
  print_message("%s\n", error.message);
  assert_non_null(strstr(error.message, "701, CUDA_ERROR_FAKE (as ordered by the test)"));
  assert_non_null(strstr(error.message, "grid 5 x 1 x 1, block 64 x 1 x 1"));
  dw_error_clear(&error);
  dw__driver_close(driver);
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], "--find") == 0) return find_and_print();
  const struct CMUnitTest compiler[] = {
    cmocka_unit_test(version_and_build_are_known),
    cmocka_unit_test(O_c08_every_target_gives_the_cubin_the_log_tells_of),
    cmocka_unit_test(setmaxnreg_shows),
    cmocka_unit_test(a_failed_compile_is_an_error_with_its_log),
    cmocka_unit_test(an_assembler_error_is_one_too),
    cmocka_unit_test(O_c06_unknown_targets_are_refused_by_name),
    cmocka_unit_test(a_compile_touches_no_file_and_no_limit),
    cmocka_unit_test(threads_compile_at_once_to_the_same_bytes),
    cmocka_unit_test(O_c06_an_old_nvrtc_is_refused_by_its_version),
    cmocka_unit_test(the_version_comes_from_the_compilers_own_text),
    cmocka_unit_test(O_c04_missing_builtins_are_named),
    cmocka_unit_test(success_with_size_0_after_a_failure_is_no_cubin),
    cmocka_unit_test(a_suffix_is_tried_once),
    cmocka_unit_test(memory_that_runs_out_is_reported),
    cmocka_unit_test(options_name_a_real_architecture),
    cmocka_unit_test(O_c02_a_given_place_that_holds_none_is_reported),
    cmocka_unit_test(O_c02_toolkit_variables_with_stray_parts_are_walked),
    cmocka_unit_test(O_c05_the_first_place_that_works_is_taken),
  };
  const struct CMUnitTest driver[] = {
    cmocka_unit_test_setup(O_c01_a_missing_driver_is_reported, reset_driver),
    cmocka_unit_test_setup(the_toolkits_stub_is_no_driver, reset_driver),
    cmocka_unit_test_setup(the_driver_starts_on_first_use, reset_driver),
    cmocka_unit_test_setup(a_failed_start_is_tried_again, reset_driver),
    cmocka_unit_test_setup(the_current_context_decides, reset_driver),
    cmocka_unit_test_setup(capture_is_seen, reset_driver),
    cmocka_unit_test_setup(O_c07_load_errors_have_names_and_both_versions, reset_driver),
    cmocka_unit_test_setup(O_c21_a_damaged_cubin_never_reaches_the_driver, reset_driver),
    cmocka_unit_test_setup(O_c08_O_c09_a_cubin_loads_where_it_can_run, reset_driver),
    cmocka_unit_test_setup(a_function_is_made_ready_before_its_launch, reset_driver),
    cmocka_unit_test_setup(O_b03_more_shared_memory_than_the_device_has_is_refused, reset_driver),
    cmocka_unit_test_setup(old_drivers_and_eager_loading_take_modules, reset_driver),
    cmocka_unit_test_setup(O_c30_loading_leaves_a_capture_valid, reset_driver),
    cmocka_unit_test_setup(O_c31_O_c32_a_launch_is_one_call_with_the_attributes_asked_for, reset_driver),
    cmocka_unit_test_setup(old_drivers_launch_without_attributes, reset_driver),
    cmocka_unit_test_setup(a_failed_launch_tells_its_geometry, reset_driver),
  };
  bool listed = list_tests(argc, argv, compiler, DW__COUNT(compiler));
  if (list_tests(argc, argv, driver, DW__COUNT(driver)) && listed) return 0;
  int failed = cmocka_run_group_tests(compiler, open_real, close_real);
  return failed + cmocka_run_group_tests(driver, NULL, NULL);
}
