// What a warm look-up costs, and that it neither locks, allocates nor calls the system. Locks and allocations are counted by
// functions of this program in front of the C library's; system calls by strace, which runs this program again as `calls`.
#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "fake_driver.h"
#include "fake_nvrtc.h"
#include "flow.h"
#include "support.h"

// ---- counting -------------------------------------------------------------------------------------------------

static atomic_long locks, allocations;

typedef int (*mutex_fn)(pthread_mutex_t *);
typedef int (*rwlock_fn)(pthread_rwlock_t *);
static mutex_fn real_mutex;
static rwlock_fn real_rdlock, real_wrlock;

__attribute__((constructor)) static void find_real(void) {
  *(void **)&real_mutex = dlsym(RTLD_NEXT, "pthread_mutex_lock");
  *(void **)&real_rdlock = dlsym(RTLD_NEXT, "pthread_rwlock_rdlock");
  *(void **)&real_wrlock = dlsym(RTLD_NEXT, "pthread_rwlock_wrlock");
}

__attribute__((visibility("default"))) int pthread_mutex_lock(pthread_mutex_t *mutex) {
  atomic_fetch_add(&locks, 1);
  return real_mutex ? real_mutex(mutex) : 0;
}

__attribute__((visibility("default"))) int pthread_rwlock_rdlock(pthread_rwlock_t *lock) {
  atomic_fetch_add(&locks, 1);
  return real_rdlock(lock);
}

__attribute__((visibility("default"))) int pthread_rwlock_wrlock(pthread_rwlock_t *lock) {
  atomic_fetch_add(&locks, 1);
  return real_wrlock(lock);
}

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *p, size_t size);

__attribute__((visibility("default"))) void *malloc(size_t size) {
  atomic_fetch_add(&allocations, 1);
  return __libc_malloc(size);
}

__attribute__((visibility("default"))) void *calloc(size_t count, size_t size) {
  atomic_fetch_add(&allocations, 1);
  return __libc_calloc(count, size);
}

__attribute__((visibility("default"))) void *realloc(void *p, size_t size) {
  atomic_fetch_add(&allocations, 1);
  return __libc_realloc(p, size);
}

// ---- a context with kernels -----------------------------------------------------------------------------------

enum { KERNELS = 24 };
static dw_shape shapes[KERNELS];
static dw_variant variant;
static const dw_bounds bounds = {.size = sizeof(dw_bounds), .batch = 8, .kv_len = 32768};

static int set_up(void **state) {
  if (make_folder(state)) return -1;
  fake_nvrtc_reset(13, 0);
  fake_nvrtc.arch_count = 3;
  fake_nvrtc.cubin = read_data("kernels_sm_120.cubin", &fake_nvrtc.cubin_size);
  fake_driver_reset();
  fake.cc = 120;
  fake.shared_optin = 101376;
  return 0;
}

static int tear_down(void **state) {
  dw__release((void *)fake_nvrtc.cubin);
  return remove_folder(state);
}

static dw_ctx *prepared(bool frozen) {
  dw_options options = {.size = sizeof options, .cache_dir = path_of("cache")};
  dw_ctx *ctx = NULL;
  dw__nvrtc *nvrtc = NULL;
  dw__driver *driver = NULL;
  dw__driver_table table = fake_driver_table();
  dw_request list[KERNELS];
  if (dw_ctx_create(&options, &ctx, NULL) || dw__nvrtc_open_table(&fake_nvrtc_table, &nvrtc, NULL)) abort();
  if (dw__driver_open_table(&table, &driver, NULL)) abort();
  dw__ctx_use_nvrtc(ctx, nvrtc);
  dw__ctx_use_driver(ctx, driver);
  if (dw_variant_parse("family=reference", &variant, NULL)) abort();
  for (int i = 0; i < KERNELS; i++) {
    if (dw_shape_parse("mla:h=8,t=1", &shapes[i], NULL)) abort();
    shapes[i].width = i + 1;
    list[i] = (dw_request){&shapes[i], i % 2 ? &variant : NULL, &bounds};
  }
  if (dw_prepare(ctx, list, KERNELS, NULL, NULL)) abort();
  if (frozen && dw_freeze(ctx, NULL)) abort();
  return ctx;
}

static dw_status get(dw_ctx *ctx, int i, dw_kernel **kernel) {
  return dw_kernel_get(ctx, &shapes[i], i % 2 ? &variant : NULL, &bounds, kernel, NULL);
}

static double look_up_ns(dw_ctx *ctx, int count) {
  double start = dw__seconds();
  for (int i = 0; i < count; i++) {
    dw_kernel *kernel;
    if (get(ctx, i % KERNELS, &kernel)) abort();
  }
  return (dw__seconds() - start) / count * 1e9;
}

// ---- tests ----------------------------------------------------------------------------------------------------

static void a_warm_look_up_takes_nanoseconds(void **state) {
  (void)state;
  for (int frozen = 0; frozen < 2; frozen++) {
    dw_ctx *ctx = prepared(frozen);
    double least = 1e9;
    for (int i = 0; i < 20; i++) {
      double took = look_up_ns(ctx, 100000);
      if (took < least) least = took;
    }
    print_message("%s: %.0f ns a look-up\n", frozen ? "frozen" : "open", least);
    assert_true(least < 3 * 150);
    dw_ctx_destroy(ctx);
  }
}

static void a_warm_look_up_neither_locks_nor_allocates(void **state) {
  (void)state;
  dw_ctx *ctx = prepared(false);
  dw_kernel *first[KERNELS], *again;
  for (int i = 0; i < KERNELS; i++) assert_int_equal(get(ctx, i, &first[i]), DW_OK);
  assert_true(atomic_load(&locks) > 0 && atomic_load(&allocations) > 0);  // they are counted at all
  long locked = atomic_load(&locks), allocated = atomic_load(&allocations);
  for (int i = 0; i < KERNELS; i++) {
    if (get(ctx, i, &again) || again != first[i]) abort();
  }
  assert_int_equal(atomic_load(&locks), locked);
  assert_int_equal(atomic_load(&allocations), allocated);
  dw_ctx_destroy(ctx);
}

// After dw_freeze that is so of misses too, and of look-ups in other forms than those that were prepared.
static void a_frozen_context_neither_locks_nor_compiles(void **state) {
  (void)state;
  dw_ctx *ctx = prepared(true);
  dw_kernel *kernel;
  dw_companions *companions;
  dw_bounds larger = bounds, same = bounds;
  dw_variant other = variant;
  dw_stats before, after;
  dw_stats_get(ctx, &before);
  larger.batch = 64;
  same.total_q = same.batch * shapes[1].width;
  other.checked = 1;
  long locked = atomic_load(&locks), allocated = atomic_load(&allocations), calls = fake_driver_calls();
  dw_status statuses[] = {
    dw_kernel_get(ctx, &shapes[1], &variant, &same, &kernel, NULL),
    dw_kernel_get(ctx, &shapes[1], &variant, &larger, &kernel, NULL),
    dw_kernel_get(ctx, &shapes[1], &other, &bounds, &kernel, NULL),
    dw_companions_get(ctx, 0, &companions, NULL),
  };
  long locked_now = atomic_load(&locks);
  assert_int_equal(locked_now, locked);
  assert_true(atomic_load(&allocations) - allocated <= 1);  // the record of a cubin that is then not found
  assert_true(fake_driver_calls() > calls);
  assert_int_equal(statuses[0], DW_OK);
  for (size_t i = 1; i < DW__COUNT(statuses); i++) assert_int_equal(statuses[i], DW_FROZEN);
  dw_cubin *cubin = NULL;
  locked = atomic_load(&locks);
  assert_int_equal(dw_cubin_build(ctx, &shapes[1], &variant, &cubin, NULL), DW_OK);
  dw_cubin_free(cubin);
  assert_int_equal(atomic_load(&locks), locked);
  dw_stats_get(ctx, &after);
  assert_int_equal(after.compiles, before.compiles);
  assert_int_equal(after.hits_disk, before.hits_disk);
  assert_int_equal(after.list_misses - before.list_misses, 3);
  char *text = NULL;
  assert_int_equal(dw_miss_list(ctx, &text, NULL, NULL), DW_OK);
  assert_non_null(strstr(text, "checked=1"));
  assert_non_null(strstr(text, "{\"call\":\"companions\",\"shape\":\"companions\",\"target\":\"sm_120\",\"variant\":\"\"}\n"));
  dw_free(text);
  assert_int_equal(dw_prepare(ctx, &(dw_request){&shapes[0], NULL, &bounds}, 1, NULL, NULL), DW_FROZEN);
  assert_int_equal(dw_explain(ctx, &shapes[0], NULL, &text, NULL), DW_FROZEN);
  dw_ctx_destroy(ctx);
}

static void *look_up_and_miss(void *user) {
  dw_ctx *ctx = user;
  for (int i = 0; i < 20000; i++) {
    dw_kernel *kernel;
    dw_bounds larger = bounds;
    larger.batch = 9 + i % 50;
    if (get(ctx, i % KERNELS, &kernel)) return "a prepared kernel is not found";
    if (i % 16 == 0 && dw_kernel_get(ctx, &shapes[1], &variant, &larger, &kernel, NULL) != DW_FROZEN) return "a miss is found";
  }
  return NULL;
}

static void many_threads_look_up_and_miss(void **state) {
  (void)state;
  pthread_t threads[4];
  dw_ctx *ctx = prepared(true);
  for (size_t i = 0; i < DW__COUNT(threads); i++) {
    assert_int_equal(pthread_create(&threads[i], NULL, look_up_and_miss, ctx), 0);
  }
  for (size_t i = 0; i < DW__COUNT(threads); i++) {
    void *wrong = NULL;
    pthread_join(threads[i], &wrong);
    if (wrong) fail_msg("%s", (const char *)wrong);
  }
  dw_stats stats;
  char *text = NULL;
  dw_stats_get(ctx, &stats);
  assert_int_equal(stats.list_misses, KERNELS + 4 * 1250);  // those that were compiled, and those that were refused
  assert_int_equal(dw_miss_list(ctx, &text, NULL, NULL), DW_OK);
  size_t lines = 0;
  for (const char *at = text; (at = strchr(at, '\n')); at++) lines++;
  assert_int_equal(lines, KERNELS);  // the refused ones are of the same request, whatever their bounds
  dw_free(text);
  dw_ctx_destroy(ctx);
}

// A thread of the host looks up while another one still prepares: the table grows under its eyes.
static void *look_up_the_first(void *user) {
  dw_ctx *ctx = user;
  dw_kernel *first, *again;
  if (get(ctx, 0, &first)) return "not prepared";
  for (int i = 0; i < 200000; i++) {
    if (get(ctx, 0, &again) || again != first) return "another kernel";
  }
  return NULL;
}

static void look_ups_go_on_while_kernels_are_added(void **state) {
  (void)state;
  pthread_t thread;
  void *wrong = NULL;
  dw_ctx *ctx = prepared(false);
  assert_int_equal(pthread_create(&thread, NULL, look_up_the_first, ctx), 0);
  for (int i = 0; i < 500; i++) {
    dw_bounds other = bounds;
    dw_kernel *kernel, *again;
    other.batch = 10 + i;
    assert_int_equal(dw_kernel_get(ctx, &shapes[1], &variant, &other, &kernel, NULL), DW_OK);
    assert_int_equal(dw_kernel_get(ctx, &shapes[1], &variant, &other, &again, NULL), DW_OK);
    assert_ptr_equal(kernel, again);
  }
  pthread_join(thread, &wrong);
  if (wrong) fail_msg("%s", (const char *)wrong);
  dw_ctx_destroy(ctx);
}

// ---- system calls ---------------------------------------------------------------------------------------------

// Between two calls that nothing else makes.
static int calls(void) {
  void *state = NULL;
  if (set_up(&state)) return 1;
  dw_ctx *ctx = prepared(true);
  dw_kernel *kernel;
  dw_bounds larger = bounds;
  larger.batch = 64;
  getppid();
  look_up_ns(ctx, 1);  // the clock is no system call where it is read
  for (int i = 0; i < 10000; i++) {
    if (get(ctx, i % KERNELS, &kernel)) return 1;
  }
  for (int i = 0; i < 100; i++) {
    if (dw_kernel_get(ctx, &shapes[i % KERNELS], NULL, &larger, &kernel, NULL) != DW_FROZEN) return 1;
  }
  getppid();
  dw_ctx_destroy(ctx);
  return tear_down(&state);
}

static char program[512];

static void no_system_call_after_freeze(void **state) {
  (void)state;
  char command[1200], line[512];
  if (system("strace -V >/dev/null 2>&1 && strace -o /dev/null true 2>/dev/null")) {
    print_message("no strace, or no right to trace\n");
    skip();
  }
  snprintf(command, sizeof command, "strace -f -o '%s' '%s' calls", path_of("trace"), program);
  assert_int_equal(system(command), 0);
  FILE *trace = fopen(path_of("trace"), "r");
  assert_non_null(trace);
  int marks = 0, before = 0, between = 0;
  while (marks < 2 && fgets(line, sizeof line, trace)) {
    bool mark = strstr(line, "getppid(") != NULL;
    if (marks == 1 && !mark) print_error("%s", line);
    before += marks == 0;
    between += marks == 1 && !mark;
    marks += mark;
  }
  fclose(trace);
  assert_int_equal(marks, 2);
  assert_true(before > 100);  // what came before is seen: files, maps
  assert_int_equal(between, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
    TEST(a_warm_look_up_takes_nanoseconds),
    TEST(a_warm_look_up_neither_locks_nor_allocates),
    TEST(a_frozen_context_neither_locks_nor_compiles),
    TEST(many_threads_look_up_and_miss),
    TEST(look_ups_go_on_while_kernels_are_added),
    TEST(no_system_call_after_freeze),
  };
  if (argc > 1 && !strcmp(argv[1], "calls")) return calls();
  if (!realpath(argv[0], program)) return 1;
  return cmocka_run_group_tests_name("frozen", tests, NULL, NULL);
}
