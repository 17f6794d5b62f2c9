// Cold starts of many processes, killed ones among them; lists, slots, failures, misses. The compiler is a stand-in whose compiles
// are counted in memory that all processes share. Names that begin with O_c are cases of that number from the list of reports we
// test against.
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
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
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "fake_driver.h"
#include "fake_nvrtc.h"
#include "flow.h"
#include "list_tests.h"
#include "support.h"

enum { PROCESSES = 8, SHAPES = 24, SLOTS = 2, COMPILE_MS = 60 };

// ---- what processes share -------------------------------------------------------------------------------------

typedef struct shared {
  atomic_int compiles, running, most_running;
  atomic_int victims;  // processes that are to die in the middle of a compile
  atomic_int ready;
  atomic_int lock_timeouts, known_failures, done;
} shared;
static shared *all;

static void begin_compile(void) {
  int running = atomic_fetch_add(&all->running, 1) + 1, most = atomic_load(&all->most_running);
  while (running > most && !atomic_compare_exchange_weak(&all->most_running, &most, running)) continue;
  atomic_fetch_add(&all->compiles, 1);
}

static void end_compile(void) {
  int victims = atomic_load(&all->victims);
  while (victims > 0 && !atomic_compare_exchange_weak(&all->victims, &victims, victims - 1)) continue;
  atomic_fetch_sub(&all->running, 1);
  if (victims > 0) kill(getpid(), SIGKILL);
}

static int set_up(void **state) {
  if (make_folder(state)) return -1;
  memset(all, 0, sizeof *all);
  fake_nvrtc_reset(13, 0);
  fake_nvrtc.arch_count = 3;
  fake_nvrtc.cubin = read_data("kernels_sm_120.cubin", &fake_nvrtc.cubin_size);
  fake_nvrtc.on_kernel = begin_compile;
  fake_nvrtc.after_kernel = end_compile;
  fake_driver_reset();
  fake.cc = 120;
  fake.shared_optin = 101376;
  return 0;
}

static int tear_down(void **state) {
  dw__release((void *)fake_nvrtc.cubin);
  return remove_folder(state);
}

static void let_compiles_fail(void) {
  fake_nvrtc.log = "verify.cu(2): error: identifier \"wrong\" is undefined\n";
  atomic_store(&fake_nvrtc.compile_result, DW__NVRTC_COMPILATION);
}

// ---- contexts and lists ---------------------------------------------------------------------------------------

static dw_options usual_options(void) {
  return (dw_options){.size = sizeof(dw_options),
                      .cache_dir = path_of("cache"),
                      .nvrtc_path = "/nonexistent/libnvrtc.so",
                      .driver_path = "/nonexistent/libcuda.so",
                      .compile_slots = SLOTS};
}

// In a child too, so without cmocka.
static dw_ctx *open_ctx(const dw_options *options, bool compiler, bool driver) {
  dw_ctx *ctx = NULL;
  dw__nvrtc *nvrtc = NULL;
  dw__driver *device = NULL;
  dw__driver_table table = fake_driver_table();
  if (dw_ctx_create(options, &ctx, NULL)) abort();
  if (compiler && dw__nvrtc_open_table(&fake_nvrtc_table, &nvrtc, NULL)) abort();
  if (driver && dw__driver_open_table(&table, &device, NULL)) abort();
  if (compiler) dw__ctx_use_nvrtc(ctx, nvrtc);
  if (driver) dw__ctx_use_driver(ctx, device);
  return ctx;
}

static dw_stats stats_of(dw_ctx *ctx) {
  dw_stats stats;
  dw_stats_get(ctx, &stats);
  return stats;
}

typedef struct list {
  dw_shape shapes[256];
  dw_request requests[256];
  dw_variant variant;
  dw_bounds bounds;
  size_t count;
} list;

// Shapes that differ in their width, with the reference kernel.
static void fill_list(list *made, size_t count) {
  memset(made, 0, sizeof *made);
  made->count = count;
  made->bounds = (dw_bounds){.size = sizeof(dw_bounds), .batch = 4, .kv_len = 4096};
  if (dw_variant_parse("family=reference", &made->variant, NULL)) abort();
  for (size_t i = 0; i < count; i++) {
    if (dw_shape_parse("mla:h=8,t=1", &made->shapes[i], NULL)) abort();
    made->shapes[i].width = (int)i + 1;
    made->requests[i] = (dw_request){&made->shapes[i], &made->variant, &made->bounds};
  }
}

static dw_status prepare(dw_ctx *ctx, const list *wanted, bool cubins_only, dw_error *error) {
  dw_prepare_options options = {.size = sizeof options, .cubins_only = cubins_only};
  return dw_prepare(ctx, wanted->requests, wanted->count, &options, error);
}

// Every cubin is in this context's reach, without a compile.
static bool has_all(dw_ctx *ctx, const list *wanted) {
  uint64_t before = stats_of(ctx).compiles;
  for (size_t i = 0; i < wanted->count; i++) {
    dw_cubin *cubin = NULL;
    if (dw_cubin_build(ctx, &wanted->shapes[i], &wanted->variant, &cubin, NULL)) return false;
    bool right = cubin->size == fake_nvrtc.cubin_size && !memcmp(cubin->data, fake_nvrtc.cubin, cubin->size);
    dw_cubin_free(cubin);
    if (!right) return false;
  }
  return stats_of(ctx).compiles == before;
}

// ---- processes ------------------------------------------------------------------------------------------------

typedef void (*body_fn)(int number);

// They begin together once all are there.
static void start_processes(pid_t *children, int count, body_fn body) {
  fflush(NULL);
  atomic_store(&all->ready, 0);
  for (int i = 0; i < count; i++) {
    children[i] = fork();
    assert_true(children[i] >= 0);
    if (children[i]) continue;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    atomic_fetch_add(&all->ready, 1);
    while (atomic_load(&all->ready) < count) usleep(200);
    body(i);
    _exit(0);
  }
  while (atomic_load(&all->ready) < count) usleep(200);
}

// How many ended well; the others must have been killed.
static int end_processes(const pid_t *children, int count) {
  int well = 0;
  for (int i = 0; i < count; i++) {
    int status;
    assert_int_equal(waitpid(children[i], &status, 0), children[i]);
    if (WIFEXITED(status)) assert_int_equal(WEXITSTATUS(status), 0);
    well += WIFEXITED(status);
  }
  return well;
}

static void prepare_all(int number) {
  static list wanted;
  (void)number;
  fill_list(&wanted, SHAPES);
  dw_options options = usual_options();
  dw_ctx *ctx = open_ctx(&options, true, false);
  dw_error error = {0};
  dw_status status = prepare(ctx, &wanted, true, &error);
  if (status) fprintf(stderr, "%s\n", error.message);
  CHECK(status == DW_OK && has_all(ctx, &wanted));
  atomic_fetch_add(&all->lock_timeouts, (int)stats_of(ctx).lock_timeouts);
  dw_ctx_destroy(ctx);
}

// 24 requests, eight processes, one directory, nothing there.
static void O_c13_O_c24_eight_processes_compile_each_shape_once(void **state) {
  (void)state;
  pid_t children[PROCESSES];
  atomic_store(&fake_nvrtc.delay_us, COMPILE_MS * 1000);
  start_processes(children, PROCESSES, prepare_all);
  double start = dw__seconds();
  assert_int_equal(end_processes(children, PROCESSES), PROCESSES);
  double took = dw__seconds() - start, ideal = SHAPES * COMPILE_MS * 1e-3 / SLOTS;
  print_message("%d compiles, at most %d at once, %.2f s; spread over %d slots they take %.2f s: %.2fx\n",
                atomic_load(&all->compiles), atomic_load(&all->most_running), took, SLOTS, ideal, took / ideal);
  assert_int_equal(atomic_load(&all->compiles), SHAPES);
  assert_true(atomic_load(&all->most_running) <= SLOTS);
  assert_int_equal(atomic_load(&all->lock_timeouts), 0);
  assert_true(took < 3 * ideal);
}

// Contexts of one process are as strangers: they split the list too.
static void *prepare_in_thread(void *user) {
  dw_ctx *ctx = user;
  list *wanted = malloc(sizeof *wanted);
  fill_list(wanted, SHAPES);
  bool well = prepare(ctx, wanted, true, NULL) == DW_OK && has_all(ctx, wanted);
  free(wanted);
  return well ? ctx : NULL;
}

static void O_c13_two_contexts_of_one_process(void **state) {
  (void)state;
  pthread_t threads[2];
  dw_ctx *contexts[2];
  dw_options options = usual_options();
  atomic_store(&fake_nvrtc.delay_us, 5000);
  for (int i = 0; i < 2; i++) contexts[i] = open_ctx(&options, true, false);
  for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&threads[i], NULL, prepare_in_thread, contexts[i]), 0);
  for (int i = 0; i < 2; i++) {
    void *well;
    pthread_join(threads[i], &well);
    assert_ptr_equal(well, contexts[i]);
  }
  assert_int_equal(atomic_load(&all->compiles), SHAPES);
  assert_true(atomic_load(&all->most_running) <= SLOTS);
  assert_true(stats_of(contexts[0]).compiles > 0 && stats_of(contexts[1]).compiles > 0);
  for (int i = 0; i < 2; i++) dw_ctx_destroy(contexts[i]);
}

// A context that was made before a fork serves both.
static dw_ctx *made_before;
static void prepare_with_parents(int number) {
  static list wanted;
  (void)number;
  fill_list(&wanted, 8);
  CHECK(prepare(made_before, &wanted, true, NULL) == DW_OK && has_all(made_before, &wanted));
  CHECK(stats_of(made_before).lock_timeouts == 0);
  dw_ctx_destroy(made_before);
}

static void a_context_made_before_a_fork(void **state) {
  (void)state;
  static list wanted;
  pid_t children[4];
  dw_options options = usual_options();
  atomic_store(&fake_nvrtc.delay_us, 2000);
  made_before = open_ctx(&options, true, false);
  start_processes(children, 4, prepare_with_parents);
  fill_list(&wanted, 8);
  assert_int_equal(prepare(made_before, &wanted, true, NULL), DW_OK);
  assert_int_equal(end_processes(children, 4), 4);
  assert_true(has_all(made_before, &wanted));
  assert_int_equal(atomic_load(&all->compiles), 8);
  dw_ctx_destroy(made_before);
}

static void prepare_eight(int number) {
  static list wanted;
  (void)number;
  fill_list(&wanted, 8);
  dw_options options = usual_options();
  dw_ctx *ctx = open_ctx(&options, true, false);
  CHECK(prepare(ctx, &wanted, true, NULL) == DW_OK && has_all(ctx, &wanted));
  CHECK(stats_of(ctx).damaged == 0 && stats_of(ctx).publish_failures == 0 && stats_of(ctx).lock_timeouts == 0);
  dw_ctx_destroy(ctx);
}

static void O_c13_thirty_two_processes_round_after_round(void **state) {
  (void)state;
#if defined(__SANITIZE_ADDRESS__)
  enum { MANY = 32, ROUNDS = 20 };
#else
  enum { MANY = 32, ROUNDS = 200 };
#endif
  pid_t children[MANY];
  atomic_store(&fake_nvrtc.delay_us, 1000);
  dw_options options = usual_options();
  dw_ctx *ctx = open_ctx(&options, false, false);
  for (int round = 1; round <= ROUNDS; round++) {
    start_processes(children, MANY, prepare_eight);
    assert_int_equal(end_processes(children, MANY), MANY);
    assert_int_equal(atomic_load(&all->compiles), 8 * round);
    assert_int_equal(dw__cache_clear(dw__ctx_cache(ctx), NULL, NULL), DW_OK);
  }
  dw_ctx_destroy(ctx);
}

// Three of the eight are killed in the middle of a compile: the others take over at once, not after a timeout.
static void O_c16_what_killed_processes_had_begun_is_taken_over(void **state) {
  (void)state;
  enum { VICTIMS = 3 };
  pid_t children[PROCESSES];
  atomic_store(&all->victims, VICTIMS);
  atomic_store(&fake_nvrtc.delay_us, COMPILE_MS * 1000);
  start_processes(children, PROCESSES, prepare_all);
  double start = dw__seconds();
  assert_int_equal(end_processes(children, PROCESSES), PROCESSES - VICTIMS);
  print_message("%.2f s with %d processes killed\n", dw__seconds() - start, VICTIMS);
  // A process takes with it what its other threads compile.
  assert_in_range(atomic_load(&all->compiles), SHAPES + VICTIMS, SHAPES + VICTIMS * SLOTS);
  assert_int_equal(atomic_load(&all->lock_timeouts), 0);
  assert_true(dw__seconds() - start < 3 * (SHAPES + VICTIMS) * COMPILE_MS * 1e-3 / SLOTS);
}

// Stands for a process that is stopped, or hangs, in a compile.
static dw__lock hold_request(const list *wanted, size_t i) {
  dw_options options = usual_options();
  dw_ctx *ctx = open_ctx(&options, false, false);
  dw__digest key;
  dw__lock lock;
  char target[16];
  assert_int_equal(dw__request_key_of(ctx, &wanted->shapes[i], &wanted->variant, &key, target, NULL), DW_OK);
  assert_int_equal(dw__cache_try_lock(dw__ctx_cache(ctx), &key, &lock), DW__LOCKED);
  dw_ctx_destroy(ctx);
  return lock;
}

static atomic_int told;
static void count_told(void *user, dw_log_level level, const char *message) {
  (void)user;
  if (level == DW_LOG_INFO && strstr(message, "another process that compiles the same")) atomic_fetch_add(&told, 1);
}

static void O_c16_a_live_holder_is_waited_for_only_so_long(void **state) {
  (void)state;
  static list wanted;
  fill_list(&wanted, 3);
  dw__lock lock = hold_request(&wanted, 1);
  dw_options options = usual_options();
  options.lock_timeout_ms = 300;
  options.log = count_told;
  for (int with_list = 0; with_list < 2; with_list++) {
    options.cache_dir = with_list ? path_of("cache") : options.cache_dir;
    dw_ctx *ctx = open_ctx(&options, true, false);
    double start = dw__seconds();
    dw_cubin *cubin = NULL;
    if (with_list) {
      assert_int_equal(dw__cache_clear(dw__ctx_cache(ctx), NULL, NULL), DW_OK);
      assert_int_equal(prepare(ctx, &wanted, true, NULL), DW_OK);
    } else {
      assert_int_equal(dw_cubin_build(ctx, &wanted.shapes[1], &wanted.variant, &cubin, NULL), DW_OK);
      assert_int_equal(stats_of(ctx).lock_timeouts, 1);
    }
    double took = dw__seconds() - start;
    dw_cubin_free(cubin);
    assert_true(has_all(ctx, &wanted) == (with_list != 0));
    dw_ctx_destroy(ctx);
    assert_true(took > 0.25 && took < 3);
  }
  dw__lock_release(&lock);
}

static void O_c16_waiting_is_told_after_some_seconds(void **state) {
  (void)state;
  static list wanted;
  fill_list(&wanted, 1);
  dw__lock lock = hold_request(&wanted, 0);
  dw_options options = usual_options();
  options.lock_timeout_ms = 3500;
  options.log = count_told;
  atomic_store(&told, 0);
  dw_ctx *ctx = open_ctx(&options, true, false);
  dw_cubin *cubin = NULL;
  assert_int_equal(dw_cubin_build(ctx, &wanted.shapes[0], &wanted.variant, &cubin, NULL), DW_OK);
  assert_int_equal(atomic_load(&told), 1);
  dw_cubin_free(cubin);
  dw_ctx_destroy(ctx);
  dw__lock_release(&lock);
}

static void prepare_few(int number) {
  static list wanted;
  (void)number;
  fill_list(&wanted, 6);
  dw_options options = usual_options();
  dw_ctx *ctx = open_ctx(&options, true, false);
  CHECK(prepare(ctx, &wanted, true, NULL) == DW_OK && has_all(ctx, &wanted));
  dw_ctx_destroy(ctx);
}

// At any moment. What is left is whole or not there: the next one warns of nothing and finds or makes everything.
static void O_c21_killed_at_random_200_times(void **state) {
  (void)state;
  enum { ROUNDS = 200 };
  static list wanted;
  unsigned random = 1, killed = 0, found = 0;
  atomic_store(&fake_nvrtc.delay_us, 1000);
  fill_list(&wanted, 6);
  for (int round = 0; round < ROUNDS; round++) {
    pid_t child[2];
    start_processes(child, 2, prepare_few);
    random = random * 1664525u + 1013904223u;
    usleep(random >> 18);  // up to 16 ms; starting and six compiles take about that
    kill(child[0], SIGKILL);
    killed += 2 - (unsigned)end_processes(child, 2);
    dw_options options = usual_options();
    dw_ctx *ctx = open_ctx(&options, false, false);
    assert_true(has_all(ctx, &wanted));  // the one that lived has made them
    assert_int_equal(stats_of(ctx).damaged, 0);
    found += (unsigned)stats_of(ctx).hits_disk;
    assert_int_equal(dw__cache_clear(dw__ctx_cache(ctx), NULL, NULL), DW_OK);
    dw_ctx_destroy(ctx);
  }
  print_message("%u killed, %u compiles, %u found afterwards\n", killed, (unsigned)atomic_load(&all->compiles), found);
  assert_int_equal(found, 6 * ROUNDS);
  assert_true(killed > ROUNDS / 4);  // else the moments were chosen badly
}

// ---- failures -------------------------------------------------------------------------------------------------

static void fail_all(int number) {
  static list wanted;
  (void)number;
  fill_list(&wanted, 3);
  dw_options options = usual_options();
  dw_ctx *ctx = open_ctx(&options, true, false);
  dw_error error = {0};
  CHECK(prepare(ctx, &wanted, true, &error) == DW_COMPILE);
  CHECK(error.log && strstr(error.log, "identifier \"wrong\"") && strstr(error.message, "identifier \"wrong\""));
  dw_error_clear(&error);
  atomic_fetch_add(&all->known_failures, (int)stats_of(ctx).known_failures);
  dw_ctx_destroy(ctx);
}

static void a_failing_kernel_is_compiled_once(void **state) {
  (void)state;
  pid_t children[PROCESSES];
  let_compiles_fail();
  atomic_store(&fake_nvrtc.delay_us, 20000);
  start_processes(children, PROCESSES, fail_all);
  assert_int_equal(end_processes(children, PROCESSES), PROCESSES);
  assert_int_equal(atomic_load(&all->compiles), 3);
  assert_int_equal(atomic_load(&all->known_failures), 3 * PROCESSES - 3);
}

// The others are made all the same, and the error is that of the first in the list.
static void one_bad_request_does_not_stop_the_others(void **state) {
  (void)state;
  static list wanted;
  dw_error error = {0};
  dw_shape none = {0};
  fill_list(&wanted, 5);
  wanted.requests[1].shape = &none;
  wanted.requests[3].shape = NULL;
  dw_options options = usual_options();
  dw_ctx *ctx = open_ctx(&options, true, false);
  assert_int_equal(prepare(ctx, &wanted, true, &error), DW_BAD_SHAPE);
  assert_true(error.message[0] != 0);
  assert_int_equal(stats_of(ctx).compiles, 3);
  wanted.requests[1].shape = &wanted.shapes[1];
  assert_int_equal(prepare(ctx, &wanted, true, &error), DW_BAD_ARGUMENT);
  assert_string_equal(error.field, "shape");
  assert_int_equal(stats_of(ctx).compiles, 4);
  dw_error_clear(&error);
  assert_int_equal(dw_prepare(ctx, NULL, 0, NULL, &error), DW_OK);
  assert_int_equal(dw_prepare(ctx, NULL, 1, NULL, &error), DW_BAD_ARGUMENT);
  assert_int_equal(dw_prepare(NULL, wanted.requests, 1, NULL, &error), DW_BAD_ARGUMENT);
  dw_prepare_options bad = {.size = sizeof bad, .threads = -1};
  assert_int_equal(dw_prepare(ctx, wanted.requests, 1, &bad, &error), DW_BAD_ARGUMENT);
  assert_string_equal(error.field, "threads");
  // Kernels need a driver: told before anything is compiled.
  assert_int_equal(dw_prepare(ctx, wanted.requests, 1, NULL, &error), DW_NO_DRIVER);
  dw_error_clear(&error);
  dw_ctx_destroy(ctx);
}

// ---- progress and cancelling ----------------------------------------------------------------------------------

typedef struct watcher {
  int calls;
  size_t stop_at;
  dw_progress last;
} watcher;

static int watch(void *user, const dw_progress *progress) {
  watcher *seen = user;
  assert_int_equal(progress->size, sizeof *progress);
  assert_true(progress->done >= seen->last.done && progress->done <= progress->requests);
  assert_true(progress->compiled <= progress->done && progress->failed <= progress->done);
  seen->last = *progress;
  seen->calls++;
  return seen->stop_at && progress->done >= seen->stop_at;
}

static void progress_and_cancel(void **state) {
  (void)state;
  static list wanted;
  watcher seen = {.stop_at = 4};
  dw_error error = {0};
  fill_list(&wanted, 20);
  atomic_store(&fake_nvrtc.delay_us, 20000);
  dw_options options = usual_options();
  dw_ctx *ctx = open_ctx(&options, true, true);
  dw_prepare_options with = {.size = sizeof with, .progress = watch, .progress_user = &seen};
  assert_int_equal(dw_prepare(ctx, wanted.requests, wanted.count, &with, &error), DW_CANCELLED);
  assert_true(seen.last.done >= 4 && seen.last.done < 20);
  int first = atomic_load(&all->compiles);
  assert_true(first < 20);
  seen = (watcher){0};
  assert_int_equal(dw_prepare(ctx, wanted.requests, wanted.count, &with, &error), DW_OK);
  assert_int_equal(seen.last.done, 20);
  assert_int_equal(seen.last.loaded, 20);
  assert_int_equal(seen.last.failed, 0);
  assert_int_equal(seen.last.compiled, 20 - first);
  assert_int_equal(atomic_load(&all->compiles), 20);
  assert_true(seen.calls > 5);
  dw_error_clear(&error);
  dw_ctx_destroy(ctx);
}

// ---- warm starts ----------------------------------------------------------------------------------------------

static double timed_prepare(bool kernels) {
  static list wanted;
  fill_list(&wanted, 200);
  dw_options options = usual_options();
  dw_ctx *ctx = open_ctx(&options, false, kernels);
  double start = dw__seconds();
  assert_int_equal(prepare(ctx, &wanted, !kernels, NULL), DW_OK);
  double took = dw__seconds() - start;
  assert_int_equal(stats_of(ctx).hits_disk, 200);
  dw_ctx_destroy(ctx);
  return took;
}

static void O_c26_a_warm_start_of_200_kernels(void **state) {
  (void)state;
  static list wanted;
  fill_list(&wanted, 200);
  dw_options options = usual_options();
  dw_ctx *ctx = open_ctx(&options, true, false);
  assert_int_equal(prepare(ctx, &wanted, true, NULL), DW_OK);
  dw_ctx_destroy(ctx);
  assert_int_equal(atomic_load(&all->compiles), 200);
  double least = 1e9, kernels = 1e9;
  for (int i = 0; i < 5; i++) {
    double took = timed_prepare(false);
    if (took < least) least = took;
    took = timed_prepare(true);
    if (took < kernels) kernels = took;
  }
  print_message("200 entries: %.1f ms, as kernels on a stand-in driver %.1f ms\n", 1e3 * least, 1e3 * kernels);
  assert_true(least < 3 * 0.1 && kernels < 3 * 0.1);
}

// Launch bounds are a request's; sizes within them are a call's, and compile nothing.
static void O_c25_calls_within_the_bounds_compile_nothing(void **state) {
  (void)state;
  static const int sizes[] = {1, 15, 16, 17, 32};
  static list wanted;
  static char memory[1 << 16] __attribute__((aligned(256)));
  fill_list(&wanted, 1);
  wanted.shapes[0].width = 32;
  wanted.bounds = (dw_bounds){.size = sizeof(dw_bounds), .batch = 32, .kv_len = 65536};
  wanted.requests[0].variant = NULL;
  dw_options options = usual_options();
  dw_ctx *ctx = open_ctx(&options, true, true);
  dw_error error = {0};
  assert_int_equal(prepare(ctx, &wanted, false, &error), DW_OK);
  int compiled = atomic_load(&all->compiles), launches = 0;
  dw_kernel *kernel = NULL;
  assert_int_equal(dw_kernel_get(ctx, &wanted.shapes[0], NULL, &wanted.bounds, &kernel, &error), DW_OK);
  for (size_t b = 0; b < DW__COUNT(sizes); b++) {
    for (size_t t = 0; t < DW__COUNT(sizes); t++) {
      for (size_t c = 0; c < DW__COUNT(sizes); c++) {
        dw_args args = {.size = sizeof args,
                        .q = memory,
                        .out = memory + 4096,
                        .batch = sizes[b],
                        .width = sizes[t],
                        .kv = memory + 8192,
                        .addressing = DW_BLOCK_TABLE,
                        .block_table = (const int32_t *)(const void *)(memory + 16384),
                        .table_columns = sizes[c],
                        .kv_len = (const int32_t *)(const void *)(memory + 20480),
                        .lengths_include_drafts = 1,
                        .softmax_scale = 0.1f,
                        .workspace = memory + 32768,
                        .workspace_size = dw_workspace_size(kernel)};
        dw_status status = dw_launch(kernel, &args, NULL, &error);
        if (status) fail_msg("%s", error.message);
        launches++;
      }
    }
  }
  assert_int_equal(launches, 125);
  assert_int_equal(atomic_load(&all->compiles), compiled);
  dw_ctx_destroy(ctx);
}

// ---- images that the driver refuses ---------------------------------------------------------------------------

static void accept_images(void) {
  end_compile();
  fake.result[FAKE_cuLibraryLoadData] = fake.result[FAKE_cuModuleLoadData] = 0;
}

enum { INVALID_IMAGE = 200 };

// Sound for all that we can see, and refused all the same: compiled once more, and kept in place of the old one.
static void O_c23_a_rejected_image_is_made_once_more(void **state) {
  (void)state;
  static list wanted;
  dw_error error = {0};
  dw_kernel *kernel;
  fill_list(&wanted, 1);
  dw_options options = usual_options();
  dw_ctx *ctx = open_ctx(&options, true, false);
  assert_int_equal(prepare(ctx, &wanted, true, NULL), DW_OK);
  dw_ctx_destroy(ctx);
  fake.result[FAKE_cuLibraryLoadData] = fake.result[FAKE_cuModuleLoadData] = INVALID_IMAGE;
  for (int useful = 0; useful < 2; useful++) {
    if (useful) fake_nvrtc.after_kernel = accept_images;
    ctx = open_ctx(&options, true, true);
    dw_status status = dw_kernel_get(ctx, &wanted.shapes[0], &wanted.variant, &wanted.bounds, &kernel, &error);
    assert_int_equal(status, useful ? DW_OK : DW_BAD_CUBIN);
    assert_int_equal(error.status, status);
    assert_int_equal(stats_of(ctx).compiles, 1);
    assert_int_equal(stats_of(ctx).damaged, 1);
    dw_error_clear(&error);
    dw_ctx_destroy(ctx);
  }
  // Without a compiler the driver's own word is the error.
  fake.result[FAKE_cuLibraryLoadData] = fake.result[FAKE_cuModuleLoadData] = INVALID_IMAGE;
  ctx = open_ctx(&options, false, true);
  assert_int_equal(dw_kernel_get(ctx, &wanted.shapes[0], &wanted.variant, &wanted.bounds, &kernel, &error), DW_BAD_CUBIN);
  dw_error_clear(&error);
  dw_ctx_destroy(ctx);
}

// ---- memory that runs out -------------------------------------------------------------------------------------

static dw_status prepare_and_tell(dw_ctx *ctx, const list *wanted) {
  dw_error error = {0};
  char *text = NULL;
  dw_prepare_options one = {.size = sizeof one, .threads = 1};
  dw_status status = dw_prepare(ctx, wanted->requests, wanted->count, &one, &error);
  if (!status) status = dw_miss_list(ctx, &text, NULL, &error);
  dw_free(text);
  text = NULL;
  if (!status) status = dw_explain(ctx, &wanted->shapes[0], &wanted->variant, &text, &error);
  dw_free(text);
  dw_error_clear(&error);
  return status;
}

// An allocation, and all after it, fails: an error that says so, or a request that came through all the same. The first hundred one
// by one; most of the rest are Lua's.
static void every_allocation_of_prepare_may_fail(void **state) {
  (void)state;
  static list wanted;
  long n = 0;
  dw_status status;
  fill_list(&wanted, 2);
  dw_options options = usual_options();
  do {
    dw_ctx *ctx = open_ctx(&options, true, true);
    assert_int_equal(dw__cache_clear(dw__ctx_cache(ctx), NULL, NULL), DW_OK);
    n += n < 100 ? 1 : 37;
    dw__alloc_fail_after(n);
    status = prepare_and_tell(ctx, &wanted);
    dw__alloc_fail_after(0);
    if (status != DW_OK && status != DW_OUT_OF_MEMORY) fail_msg("allocation %ld: %s", n, dw_status_name(status));
    assert_int_equal(prepare_and_tell(ctx, &wanted), DW_OK);  // and it is as good as new
    dw_ctx_destroy(ctx);
  } while (status != DW_OK || n < 20);
  print_message("%ld allocations or so\n", n);
  assert_true(n > 20);
}

// ---- odd homes ------------------------------------------------------------------------------------------------

// A user that no password file knows, without HOME, with a directory of its own.
static void unknown_user(int number) {
  static list wanted;
  fill_list(&wanted, 3);
  CHECK(unsetenv("HOME") == 0 && unsetenv("XDG_CACHE_HOME") == 0 && unsetenv("DRAFTWOOD_CACHE_DIR") == 0);
  CHECK(unsetenv("XDG_RUNTIME_DIR") == 0);
  if (geteuid() == 0) CHECK(chown(test_folder, 54321, 54321) == 0 && setgid(54321) == 0 && setuid(54321) == 0);
  dw_options options = usual_options();
  if (number == 0) options.cache_dir = NULL;  // memory only
  dw_ctx *ctx = open_ctx(&options, true, false);
  CHECK(prepare(ctx, &wanted, true, NULL) == DW_OK && has_all(ctx, &wanted));
  CHECK((dw__cache_directory(dw__ctx_cache(ctx), NULL) == NULL) == (number == 0));
  CHECK(stats_of(ctx).publish_failures == 0);
  dw_ctx_destroy(ctx);
}

static void a_user_without_home_and_name(void **state) {
  (void)state;
  pid_t children[2];
  start_processes(children, 2, unknown_user);
  assert_int_equal(end_processes(children, 2), 2);
  char command[128];
  snprintf(command, sizeof command, "rm -rf /tmp/draftwood-54321");
  assert_int_equal(system(command), 0);
}

// A disk that takes no more, where nothing can be mounted: files cannot grow. Kernels come all the same, with one warning, and the
// signal that the system has for it never comes.
static atomic_int warnings;
static void count_warnings(void *user, dw_log_level level, const char *message) {
  (void)user, (void)message;
  if (level == DW_LOG_WARNING) atomic_fetch_add(&warnings, 1);
}

static void full_disk(int number) {
  static list wanted;
  (void)number;
  struct rlimit none = {64, 64};
  CHECK(signal(SIGXFSZ, SIG_DFL) != SIG_ERR && setrlimit(RLIMIT_FSIZE, &none) == 0);
  fill_list(&wanted, 6);
  dw_options options = usual_options();
  options.log = count_warnings;
  dw_ctx *ctx = open_ctx(&options, true, false);
  CHECK(prepare(ctx, &wanted, true, NULL) == DW_OK && has_all(ctx, &wanted));
  // In this thread, which blocks no signal.
  dw_shape shape = wanted.shapes[0];
  dw_cubin *cubin = NULL;
  shape.width = 7;
  CHECK(dw_cubin_build(ctx, &shape, &wanted.variant, &cubin, NULL) == DW_OK);
  dw_cubin_free(cubin);
  CHECK(stats_of(ctx).publish_failures == 7 && atomic_load(&warnings) == 1);
  dw_ctx_destroy(ctx);
}

static void files_that_cannot_grow(void **state) {
  (void)state;
  pid_t child;
  start_processes(&child, 1, full_disk);
  assert_int_equal(end_processes(&child, 1), 1);
  assert_int_equal(atomic_load(&all->compiles), 7);
}

// ---- misses ---------------------------------------------------------------------------------------------------

static void misses_are_lines_of_json(void **state) {
  (void)state;
  static list wanted;
  char *text = NULL;
  size_t size = 1;
  dw_cubin *cubin = NULL;
  fill_list(&wanted, 2);
  dw_options options = usual_options();
  dw_ctx *ctx = open_ctx(&options, true, false);
  assert_int_equal(dw_miss_list(ctx, &text, &size, NULL), DW_OK);
  assert_string_equal(text, "");
  assert_int_equal(size, 0);
  dw_free(text);
  assert_int_equal(dw_cubin_build(ctx, &wanted.shapes[1], &wanted.variant, &cubin, NULL), DW_OK);
  dw_cubin_free(cubin);
  assert_int_equal(dw_freeze(ctx, NULL), DW_OK);
  dw_error error = {0};
  for (int i = 0; i < 3; i++) {
    assert_int_equal(dw_cubin_build(ctx, &wanted.shapes[0], &wanted.variant, &cubin, &error), DW_FROZEN);
    assert_null(cubin);
    assert_non_null(strstr(error.message, "t=1"));
  }
  assert_int_equal(dw_cubin_build(ctx, &wanted.shapes[1], &wanted.variant, &cubin, &error), DW_OK);
  dw_cubin_free(cubin);
  assert_int_equal(stats_of(ctx).list_misses, 4);
  assert_int_equal(dw_miss_list(ctx, &text, &size, NULL), DW_OK);
  assert_int_equal(size, strlen(text));
  assert_string_equal(
    text,
    "{\"call\":\"any\",\"shape\":\"mla:h=8,t=2,qk=576,v=512,page=1,q=bf16,kv=bf16,target=sm_120,limits=native\",\"target\":"
    "\"sm_120\",\"variant\":\"family=reference,n_tiles=1,setmaxnreg=0,combine=none,combine_splits=1,call=any,checked=0\"}\n"
    "{\"call\":\"any\",\"shape\":\"mla:h=8,t=1,qk=576,v=512,page=1,q=bf16,kv=bf16,target=sm_120,limits=native\",\"target\":"
    "\"sm_120\",\"variant\":\"family=reference,n_tiles=1,setmaxnreg=0,combine=none,combine_splits=1,call=any,checked=0\"}\n");
  dw_free(text);
  dw_error_clear(&error);
  dw_ctx_destroy(ctx);
}

// More than there are places for: the first are kept, all are counted.
static void many_misses_are_bounded(void **state) {
  (void)state;
  static list wanted;
  char *text = NULL;
  size_t lines = 0;
  fill_list(&wanted, 1);
  dw_options options = usual_options();
  dw_ctx *ctx = open_ctx(&options, false, false);
  assert_int_equal(dw_freeze(ctx, NULL), DW_OK);
  for (int i = 0; i < 1500; i++) {
    dw_kernel *kernel;
    wanted.shapes[0].width = 1 + i % 750;
    wanted.shapes[0].page = 16 + 16 * (i / 750);
    assert_int_equal(dw_kernel_get(ctx, &wanted.shapes[0], &wanted.variant, &wanted.bounds, &kernel, NULL), DW_FROZEN);
    assert_null(kernel);
  }
  assert_int_equal(dw_miss_list(ctx, &text, NULL, NULL), DW_OK);
  for (const char *at = text; (at = strchr(at, '\n')); at++) lines++;
  assert_int_equal(lines, 1024);
  assert_int_equal(stats_of(ctx).list_misses, 1500);
  dw_free(text);
  dw_ctx_destroy(ctx);
}

// ---- with a real compiler -------------------------------------------------------------------------------------

static dw_options real_options(void) {
  dw_options options = usual_options();
  options.nvrtc_path = NULL;
  options.compile_slots = 0;
  return options;
}

static void prepare_real(int number) {
  static list wanted;
  (void)number;
  fill_list(&wanted, 5);
  dw_options options = real_options();
  dw_ctx *ctx = open_ctx(&options, false, false);
  CHECK(prepare(ctx, &wanted, true, NULL) == DW_OK);
  atomic_fetch_add(&all->compiles, (int)stats_of(ctx).compiles);
  for (size_t i = 0; i < wanted.count; i++) {
    dw_cubin *cubin = NULL;
    CHECK(dw_cubin_build(ctx, &wanted.shapes[i], &wanted.variant, &cubin, NULL) == DW_OK && cubin->kernel_count > 0);
    dw_cubin_free(cubin);
  }
  dw_ctx_destroy(ctx);
}

static void nvrtc_eight_processes_compile_each_shape_once(void **state) {
  (void)state;
  pid_t children[PROCESSES];
  dw_options options = real_options();
  dw_ctx *ctx = open_ctx(&options, false, false);
  dw__nvrtc *nvrtc;
  bool there = dw__ctx_nvrtc(ctx, &nvrtc, NULL) == DW_OK;
  dw_ctx_destroy(ctx);
  if (!there) skip();
  start_processes(children, PROCESSES, prepare_real);
  double start = dw__seconds();
  assert_int_equal(end_processes(children, PROCESSES), PROCESSES);
  print_message("%d compiles by %d processes in %.2f s\n", atomic_load(&all->compiles), PROCESSES, dw__seconds() - start);
  assert_int_equal(atomic_load(&all->compiles), 5);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
    TEST(O_c13_O_c24_eight_processes_compile_each_shape_once),
    TEST(O_c13_two_contexts_of_one_process),
    TEST(a_context_made_before_a_fork),
    TEST(O_c13_thirty_two_processes_round_after_round),
    TEST(O_c16_what_killed_processes_had_begun_is_taken_over),
    TEST(O_c16_a_live_holder_is_waited_for_only_so_long),
    TEST(O_c16_waiting_is_told_after_some_seconds),
    TEST(O_c21_killed_at_random_200_times),
    TEST(a_failing_kernel_is_compiled_once),
    TEST(one_bad_request_does_not_stop_the_others),
    TEST(progress_and_cancel),
    TEST(O_c26_a_warm_start_of_200_kernels),
    TEST(O_c25_calls_within_the_bounds_compile_nothing),
    TEST(O_c23_a_rejected_image_is_made_once_more),
    TEST(every_allocation_of_prepare_may_fail),
    TEST(a_user_without_home_and_name),
    TEST(files_that_cannot_grow),
    TEST(misses_are_lines_of_json),
    TEST(many_misses_are_bounded),
    TEST(nvrtc_eight_processes_compile_each_shape_once),
  };
  if (list_tests(argc, argv, tests, DW__COUNT(tests))) return 0;
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (all == MAP_FAILED) return 1;
  return cmocka_run_group_tests_name("prepare", tests, NULL, NULL);
}
