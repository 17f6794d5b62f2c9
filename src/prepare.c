// dw_prepare: a list of requests, shared out among threads, and by the cache's locks among processes. First the cubins, which
// need no GPU, then the kernels, in the caller's thread and CUDA context.
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "flow.h"

typedef enum item_state { TO_DO, IN_HAND, DONE } item_state;

typedef struct item {
  const dw_request *asked;
  dw_variant variant;  // chosen, where none was asked for
  item_state state;
  dw_status status;  // of a done one
  double again;      // not before: somebody else had it, or there was no slot
  double since;      // when it was first in the way; 0: never
  bool elsewhere;
} item;

typedef struct work {
  dw_ctx *ctx;
  pthread_mutex_t lock;  // of all below
  pthread_cond_t changed;
  item *items;
  size_t count, first;  // where this process begins
  int threads;          // running
  bool cancelled;
  dw_progress progress;
  size_t failed_item;  // the first of the list that failed, with its error; count: none
  dw_error error;
} work;

enum { RETRY_MS = 10, REPORT_MS = 100, SLOT_PATIENCE = 5 };
enum { STACK_BYTES = 8 << 20 };  // a compiler recurses; a host may have small stacks

// ---- one thread's part ----------------------------------------------------------------------------------------

static void wait_ms(work *all, int ms) {
  struct timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_nsec += ms * 1000000L;
  until.tv_sec += until.tv_nsec / 1000000000L;
  until.tv_nsec %= 1000000000L;
  pthread_cond_timedwait(&all->changed, &all->lock, &until);
}

// One that may be tried now; NULL with *rest where others have the rest. The lock is held, here and below.
static item *next_item(work *all, bool *rest) {
  double now = dw__seconds();
  *rest = false;
  for (size_t n = 0; n < all->count; n++) {
    item *candidate = &all->items[(all->first + n) % all->count];
    if (candidate->state != TO_DO) continue;
    *rest = true;
    if (candidate->again <= now) return candidate;
  }
  return NULL;
}

static void finish(work *all, item *own, dw_status status, dw__outcome outcome, dw_error *error) {
  size_t place = (size_t)(own - all->items);
  own->state = DONE;
  own->status = status;
  all->progress.done++;
  all->progress.compiled += outcome == DW__COMPILED;
  all->progress.failed += status != DW_OK;
  if (status && place < all->failed_item) {
    dw_error_clear(&all->error);
    all->error = *error;
    *error = (dw_error){0};
    all->failed_item = place;
  }
}

static void put_back(item *own, dw__outcome outcome) {
  double now = dw__seconds();
  own->state = TO_DO;
  own->again = now + RETRY_MS * 1e-3;
  if (own->since == 0) own->since = now;
  own->elsewhere = outcome == DW__ELSEWHERE;
}

// After the time that a host allows for it, a lock no longer keeps us from anything.
static dw__patience patience_for(const work *all, const item *own) {
  double allowed = dw__ctx_lock_timeout_ms(all->ctx) * 1e-3 * (own->elsewhere ? 1 : SLOT_PATIENCE);
  return own->since > 0 && dw__seconds() - own->since > allowed ? DW__FORCE : DW__TRY;
}

static void take_one(work *all, item *own) {
  dw__patience patience = patience_for(all, own);
  bool was_elsewhere = own->elsewhere;
  dw__outcome outcome;
  dw_error error = {0};
  own->state = IN_HAND;
  pthread_mutex_unlock(&all->lock);
  dw_status status = dw__obtain(all->ctx, own->asked->shape, &own->variant, patience, &outcome, &error);
  pthread_mutex_lock(&all->lock);
  own->elsewhere = false;
  if (outcome == DW__ELSEWHERE || outcome == DW__NO_SLOT) put_back(own, outcome);
  else finish(all, own, status, outcome, &error);
  all->progress.elsewhere += (size_t)own->elsewhere - (size_t)was_elsewhere;
  pthread_cond_broadcast(&all->changed);
  dw_error_clear(&error);
}

static void *run(void *user) {
  work *all = user;
  bool rest = true;
  pthread_mutex_lock(&all->lock);
  while (!all->cancelled) {
    item *own = next_item(all, &rest);
    if (own) take_one(all, own);
    else if (rest) wait_ms(all, RETRY_MS);
    else break;
  }
  all->threads--;
  pthread_cond_broadcast(&all->changed);
  pthread_mutex_unlock(&all->lock);
  return NULL;
}

// ---- all threads ----------------------------------------------------------------------------------------------

static int start_threads(work *all, pthread_t *threads, int wanted) {
  pthread_attr_t attributes;
  sigset_t every, before;
  int started = 0;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, STACK_BYTES);
  sigfillset(&every);
  pthread_sigmask(SIG_SETMASK, &every, &before);  // the host's signals are for the host's threads
  all->threads = wanted;
  while (started < wanted && !pthread_create(&threads[started], &attributes, run, all)) started++;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_attr_destroy(&attributes);
  pthread_mutex_lock(&all->lock);
  all->threads -= wanted - started;
  pthread_mutex_unlock(&all->lock);
  return started;
}

// A copy, so that the caller's function runs without our lock.
static bool report(work *all, const dw_prepare_options *options) {
  dw_progress now = all->progress;
  if (!options->progress) return true;
  pthread_mutex_unlock(&all->lock);
  bool go_on = options->progress(options->progress_user, &now) == 0;
  pthread_mutex_lock(&all->lock);
  return go_on;
}

static void watch(work *all, const dw_prepare_options *options) {
  pthread_mutex_lock(&all->lock);
  double reported = dw__seconds();
  size_t done = 0;
  while (all->threads > 0) {
    wait_ms(all, REPORT_MS);
    if (all->cancelled || (all->progress.done == done && dw__seconds() - reported < REPORT_MS * 1e-3)) continue;
    done = all->progress.done;
    reported = dw__seconds();
    if (!report(all, options)) all->cancelled = true;
  }
  if (!all->cancelled && !report(all, options)) all->cancelled = true;
  pthread_mutex_unlock(&all->lock);
}

static void make_cubins(work *all, const dw_prepare_options *options, int slots) {
  enum { THREADS_MAX = 64 };
  pthread_t threads[THREADS_MAX];
  size_t wanted = options->threads ? (size_t)options->threads : (size_t)slots;
  if (wanted > all->count) wanted = all->count;
  if (wanted > THREADS_MAX) wanted = THREADS_MAX;
  int started = start_threads(all, threads, (int)wanted);
  if (started == 0) {  // no thread to be had: ours does it, and reports at the end
    all->threads = 1;
    run(all);
  }
  watch(all, options);
  for (int i = 0; i < started; i++) pthread_join(threads[i], NULL);
}

// ---- dw_prepare -----------------------------------------------------------------------------------------------

// What is wrong with one request is told as any other failure of it: the others go on.
static void read_list(work *all, const dw_request *list, bool cubins_only) {
  for (size_t i = 0; i < all->count; i++) {
    item *own = &all->items[i];
    dw_error error = {0};
    dw_status status = DW_OK;
    own->asked = &list[i];
    if (!list[i].shape) status = dw__no_argument(&error, "shape");
    if (!status && !cubins_only && !list[i].bounds) status = dw__no_argument(&error, "bounds");
    if (!status) status = dw__request_variant(all->ctx, &list[i], !cubins_only, &own->variant, &error);
    if (status) finish(all, own, status, DW__FAILED, &error);
    dw_error_clear(&error);
  }
}

static void load_kernels(work *all, const dw_prepare_options *options) {
  for (size_t i = 0; i < all->count && !all->cancelled; i++) {
    item *own = &all->items[i];
    dw_kernel *kernel;
    dw_error error = {0};
    if (own->status) continue;
    dw_status status = dw_kernel_get(all->ctx, own->asked->shape, own->asked->variant, own->asked->bounds, &kernel, &error);
    pthread_mutex_lock(&all->lock);
    all->progress.loaded += status == DW_OK;
    if (status) {
      all->progress.done--;  // it counts anew, as failed
      finish(all, own, status, DW__FAILED, &error);
    }
    if (!report(all, options)) all->cancelled = true;
    pthread_mutex_unlock(&all->lock);
    dw_error_clear(&error);
  }
}

static dw_status conclude(work *all, dw_error *error) {
  if (all->cancelled) {
    dw_error_clear(&all->error);
    return dw__fail_int(error, DW_CANCELLED, "progress", (long long)all->progress.done, "", "requests were done");
  }
  if (all->failed_item == all->count) return DW_OK;
  dw_status status = all->items[all->failed_item].status;
  if (error) {
    dw_error_clear(error);
    *error = all->error;
  } else {
    dw_error_clear(&all->error);
  }
  return status;
}

static size_t begin_somewhere(size_t count) {
  unsigned random = 0;
  if (getrandom(&random, sizeof random, GRND_NONBLOCK) != (ssize_t)sizeof random) random = (unsigned)(dw__seconds() * 1e6);
  return random % count;
}

static dw_status check_device(dw_ctx *ctx, dw_error *error) {
  dw__driver *driver;
  dw__device device;
  dw_status status = dw__ctx_driver(ctx, &driver, error);
  return status ? status : dw__driver_current(driver, &device, NULL, error);
}

static dw_status run_list(dw_ctx *ctx, const dw_request *list, size_t count, const dw_prepare_options *options,
                          dw_error *error) {
  pthread_condattr_t monotonic;
  work all = {.ctx = ctx,
              .lock = PTHREAD_MUTEX_INITIALIZER,
              .count = count,
              .first = begin_somewhere(count),
              .failed_item = count,
              .progress = {.size = sizeof(dw_progress), .requests = count}};
  all.items = dw__calloc(count, sizeof *all.items);
  if (!all.items) return dw__fail(error, DW_OUT_OF_MEMORY, "memory", "", "", "out of memory");
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&all.changed, &monotonic);
  pthread_condattr_destroy(&monotonic);

  read_list(&all, list, options->cubins_only);
  make_cubins(&all, options, dw__cache_slots(dw__ctx_cache(ctx)));
  if (!options->cubins_only) load_kernels(&all, options);
  dw_status status = conclude(&all, error);
  pthread_cond_destroy(&all.changed);
  pthread_mutex_destroy(&all.lock);
  dw__release(all.items);
  return status;
}

dw_status dw_prepare(dw_ctx *ctx, const dw_request *list, size_t count, const dw_prepare_options *given, dw_error *error) {
  dw_prepare_options options = {.size = sizeof options};
  if (!ctx || (!list && count)) return dw__no_argument(error, ctx ? "list" : "ctx");
  dw_status status = given ? dw__read_sized("options", given, &options, sizeof options, error) : DW_OK;
  if (status) return status;
  if (options.threads < 0) return dw__fail_int(error, DW_BAD_ARGUMENT, "threads", options.threads, "0 or more", "threads");
  if (dw__ctx_is_frozen(ctx)) {
    return dw__fail(error, DW_FROZEN, "ctx", "frozen", "dw_prepare before dw_freeze", "a frozen context compiles nothing");
  }
  if (count == 0) return DW_OK;
  if (!options.cubins_only) status = check_device(ctx, error);
  return status ? status : run_list(ctx, list, count, &options, error);
}
