// draftwood build: many cubins into the cache, by several threads, and what they cost.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "flow.h"
#include "plan.h"

typedef struct asked {
  cli_list widths;
  const char *targets, *limits, *variant;
  bool all_variants, json, verify;
  int jobs, batch, kv_len, call;
} asked;

// One cubin to build, then what came of it.
typedef struct job {
  dw_shape shape;
  dw_variant variant;
  dw_cubin *cubin;
  dw_error error;          // of the build or the check
  dw__comparison checked;  // --verify
} job;

typedef struct jobs {
  job *list;
  size_t count, capacity;
} jobs;

// ---- the list -------------------------------------------------------------------------------------------------

static dw_status add_job(jobs *all, const dw_shape *shape, const dw_variant *variant, dw_error *error) {
  if (all->count == all->capacity) {
    size_t capacity = all->capacity ? 2 * all->capacity : 16;
    job *grown = realloc(all->list, capacity * sizeof *grown);
    if (!grown) return dw__fail(error, DW_OUT_OF_MEMORY, "memory", "", "", "out of memory");
    all->list = grown;
    all->capacity = capacity;
  }
  all->list[all->count++] = (job){.shape = *shape, .variant = *variant};
  return DW_OK;
}

static dw_status add_variants(jobs *all, const asked *want, const dw_shape *shape, dw_error *error) {
  dw_variant variant;
  dw_status status = DW_OK;
  if (want->all_variants) {
    for (size_t i = 0; !status && dw_variant_enumerate(shape, i, &variant) == DW_OK; i++) {
      status = add_job(all, shape, &variant, error);
    }
    return status;
  }
  dw_bounds bounds = cli_bounds(shape, want->batch, want->kv_len);
  bounds.call = (dw_call)want->call;
  status = cli_variant(want->variant, shape, &bounds, &variant, error);
  return status ? status : add_job(all, shape, &variant, error);
}

static dw_status add_widths(jobs *all, const asked *want, const dw_shape *base, dw_error *error) {
  if (!want->widths.count) return add_variants(all, want, base, error);
  dw_status status = DW_OK;
  for (int i = 0; i < want->widths.count && !status; i++) {
    dw_shape shape = *base;
    shape.width = want->widths.values[i];
    status = add_variants(all, want, &shape, error);
  }
  return status;
}

static dw_status add_targets(jobs *all, const asked *want, dw_shape *base, dw_error *error) {
  dw_status status = DW_OK;
  if (!want->targets) return add_widths(all, want, base, error);
  for (const char *at = want->targets; !status;) {
    char target[32];
    size_t size = strcspn(at, ",");
    snprintf(target, sizeof target, "%.*s", (int)(size < 31 ? size : 31), at);
    status = cli_shape_field(base, "target", target, error);
    if (!status) status = add_widths(all, want, base, error);
    if (!at[size]) break;
    at += size + 1;
  }
  return status;
}

static dw_status add_shape(jobs *all, const asked *want, const char *text, dw_error *error) {
  dw_shape shape;
  dw_status status = dw_shape_parse(text, &shape, error);
  if (!status && want->limits) status = cli_shape_field(&shape, "limits", want->limits, error);
  return status ? status : add_targets(all, want, &shape, error);
}

static void free_jobs(jobs *all) {
  for (size_t i = 0; i < all->count; i++) {
    dw_cubin_free(all->list[i].cubin);
    dw_error_clear(&all->list[i].error);
  }
  free(all->list);
}

// ---- the work -------------------------------------------------------------------------------------------------

typedef dw_status (*work_fn)(dw_ctx *ctx, job *item);

typedef struct crew {
  dw_ctx *ctx;
  jobs *all;
  work_fn work;
  const char *doing;
  pthread_mutex_t lock;  // of the two below and the progress line
  size_t next, done;
} crew;

static dw_status compile(dw_ctx *ctx, job *item) {
  return dw_cubin_build(ctx, &item->shape, &item->variant, &item->cubin, &item->error);
}

static dw_status check(dw_ctx *ctx, job *item) {
  if (!item->cubin) return DW_OK;  // its compile failed, which has been said
  cli_problem usual = cli_problem_usual();
  if (item->variant.call == DW_CALL_TABLE) usual.addressing = DW_BLOCK_TABLE;
  dw__problem *problem;
  dw_status status = cli_problem_make(&item->shape, &usual, &problem, &item->error);
  if (!status) status = cli_check_host(ctx, &item->shape, &item->variant, &usual, problem, &item->checked, &item->error);
  dw__problem_free(problem);
  return status;
}

static void *crew_member(void *user) {
  crew *team = user;
  pthread_mutex_lock(&team->lock);
  while (team->next < team->all->count) {
    job *item = &team->all->list[team->next++];
    pthread_mutex_unlock(&team->lock);
    team->work(team->ctx, item);
    pthread_mutex_lock(&team->lock);
    cli_progress("%s %zu of %zu", team->doing, ++team->done, team->all->count);
  }
  pthread_mutex_unlock(&team->lock);
  return NULL;
}

#define JOBS_MAX 64

// Milliseconds that it took. The caller works too, so a thread that cannot be had costs speed only.
static double run_all(dw_ctx *ctx, jobs *all, work_fn work, const char *doing, int threads) {
  double start = dw__seconds();
  crew team = {.ctx = ctx, .all = all, .work = work, .doing = doing};
  pthread_t members[JOBS_MAX];
  int hired = 0;
  pthread_mutex_init(&team.lock, NULL);
  while (hired < threads - 1 && (size_t)hired + 1 < all->count) {
    if (pthread_create(&members[hired], NULL, crew_member, &team)) break;
    hired++;
  }
  crew_member(&team);
  for (int i = 0; i < hired; i++) pthread_join(members[i], NULL);
  pthread_mutex_destroy(&team.lock);
  cli_progress("%s", "");
  return (dw__seconds() - start) * 1e3;
}

// ---- the table ------------------------------------------------------------------------------------------------

// Dynamic shared memory of each kernel, as the plan has it.
static size_t dynamic_shared(const job *item, const char *kernel) {
  dw__plan plan;
  dw_bounds bounds = cli_bounds(&item->shape, 1, 4096);
  bounds.sm_count = dw__target_sm_count(item->shape.target);
  if (dw__plan_make(&item->shape, &item->variant, &bounds, &plan, NULL)) return 0;
  for (int i = 0; i < plan.count; i++)
    if (strcmp(plan.kernels[i].entry, kernel) == 0) return plan.kernels[i].dynamic_shared;
  if (plan.check.entry && strcmp(plan.check.entry, kernel) == 0) return plan.check.dynamic_shared;
  return plan.pack.entry && strcmp(plan.pack.entry, kernel) == 0 ? plan.pack.dynamic_shared : 0;
}

static int spilled(const dw_resources *kernel) {
  if (kernel->spill_stores < 0 || kernel->spill_loads < 0) return -1;
  return kernel->spill_stores + kernel->spill_loads;
}

static bool is_wrong(const job *item) { return item->error.status != DW_OK; }

static void print_check(const job *item, bool verify) {
  if (!verify) return;
  if (!item->checked.rows) printf("  %-17s", "-");
  else printf("  %.2e/%.2e", item->checked.worst.relative, item->checked.worst.bound);
}

static void print_job(const job *item, bool verify) {
  char variant[DW_TEXT_MAX];
  cli_variant_text(&item->variant, variant);
  if (!item->cubin) {
    printf("  failed  %s\n", variant);
    return;
  }
  for (int i = 0; i < item->cubin->kernel_count; i++) {
    const dw_resources *kernel = &item->cubin->kernels[i];
    printf("  %-8s %-14s %9d  %7zu  %6d  %5d", i ? "" : item->cubin->target, kernel->name, kernel->registers,
           (size_t)kernel->shared_static + dynamic_shared(item, kernel->name), spilled(kernel), kernel->stack_bytes);
    if (i == 0) {
      printf("  %10.0f  %-5s", item->cubin->compile_ms, item->cubin->from_cache ? "hit" : "miss");
      print_check(item, verify);
      printf("  %s", variant);
    }
    putchar('\n');
  }
}

static void print_table(const jobs *all, bool verify) {
  const dw_shape *before = NULL;
  for (size_t i = 0; i < all->count; i++) {
    const job *item = &all->list[i];
    if (!before || memcmp(before, &item->shape, sizeof *before) != 0) {
      char shape[DW_TEXT_MAX];
      dw_shape_print(&item->shape, shape, sizeof shape);
      printf("%s\n  %-8s %-14s %9s  %7s  %6s  %5s  %10s  %-5s", shape, "target", "kernel", "registers", "shared", "spills",
             "stack", "compile ms", "cache");
      printf(verify ? "  %-17s  variant\n" : "%s  variant\n", verify ? "worst row/bound" : "");
    }
    before = &item->shape;
    print_job(item, verify);
  }
}

// ---- JSON -----------------------------------------------------------------------------------------------------

static json_t *kernels_json(const job *item) {
  json_t *list = json_array();
  for (int i = 0; i < item->cubin->kernel_count; i++) {
    const dw_resources *kernel = &item->cubin->kernels[i];
    json_array_append_new(list, json_pack("{s:s, s:i, s:i, s:I, s:i, s:i, s:i, s:i}", "name", kernel->name, "registers",
                                          kernel->registers, "shared_static", kernel->shared_static, "shared_dynamic",
                                          (json_int_t)dynamic_shared(item, kernel->name), "spill_stores", kernel->spill_stores,
                                          "spill_loads", kernel->spill_loads, "stack_bytes", kernel->stack_bytes, "barriers",
                                          kernel->barriers));
  }
  return list;
}

static json_t *job_json(const job *item, bool verify) {
  char shape[DW_TEXT_MAX], variant[DW_TEXT_MAX];
  dw_shape_print(&item->shape, shape, sizeof shape);
  dw_variant_print(&item->variant, variant, sizeof variant);
  json_t *object = json_pack("{s:s, s:s}", "shape", shape, "variant", variant);
  const dw_cubin *cubin = item->cubin;
  if (cubin) {
    json_t *built =
      json_pack("{s:s, s:s, s:s, s:s, s:I, s:f, s:s, s:o}", "target", cubin->target, "compiler", cubin->compiler, "request_key",
                cubin->request_key, "build_key", cubin->build_key, "cubin_bytes", (json_int_t)cubin->size, "compile_ms",
                cubin->compile_ms, "cache", cubin->from_cache ? "hit" : "miss", "kernels", kernels_json(item));
    json_object_update(object, built);
    json_decref(built);
  }
  if (verify && item->checked.rows) json_object_set_new(object, "verify", cli_comparison_json(&item->checked));
  if (is_wrong(item)) json_object_set_new(object, "error", json_string(item->error.message));
  return object;
}

// ---- the command ----------------------------------------------------------------------------------------------

typedef struct summary {
  size_t compiled, cached, failed;
  double build_ms, verify_ms;
} summary;

static void print_json(const jobs *all, const asked *want, const summary *sum) {
  json_t *list = json_array();
  for (size_t i = 0; i < all->count; i++) json_array_append_new(list, job_json(&all->list[i], want->verify));
  json_t *object = json_pack("{s:o, s:I, s:I, s:I, s:f}", "variants", list, "compiled", (json_int_t)sum->compiled, "from_cache",
                             (json_int_t)sum->cached, "failed", (json_int_t)sum->failed, "ms", sum->build_ms);
  if (want->verify) json_object_set_new(object, "verify_ms", json_real(sum->verify_ms));
  cli_print_json(object);
  json_decref(object);
}

static void print_summary(const jobs *all, const asked *want, const summary *sum) {
  print_table(all, want->verify);
  printf("%zu variant%s, %zu compiled, %zu from cache", all->count, all->count == 1 ? "" : "s", sum->compiled, sum->cached);
  if (sum->failed) printf(", %zu failed", sum->failed);
  printf(", %.0f ms", sum->build_ms);
  if (want->verify) printf("; checked by host execution in %.1f s", sum->verify_ms / 1e3);
  putchar('\n');
}

// One mistake in a template fails every variant in the same words: they are printed once.
static bool said_before(const jobs *all, size_t index) {
  for (size_t i = 0; i < index; i++)
    if (strcmp(all->list[i].error.message, all->list[index].error.message) == 0) return true;
  return false;
}

static int report_errors(jobs *all) {
  int code = CLI_DONE;
  for (size_t i = all->count; i-- > 0;) {  // from the end, so that what is compared with is still there
    job *item = &all->list[i];
    if (!is_wrong(item)) continue;
    int one = said_before(all, i) ? cli_exit_code(item->error.status) : cli_error(&item->error);
    code = one > code ? one : code;
  }
  return code;
}

static int report(jobs *all, const asked *want, summary *sum, uint64_t compiles) {
  sum->compiled = (size_t)compiles;
  for (size_t i = 0; i < all->count; i++) {
    sum->cached += all->list[i].cubin && all->list[i].cubin->from_cache;
    sum->failed += is_wrong(&all->list[i]);
  }
  if (want->json) print_json(all, want, sum);
  else print_summary(all, want, sum);
  fflush(stdout);
  return report_errors(all);
}

static int build(dw_ctx *ctx, jobs *all, const asked *want) {
  summary sum = {0};
  dw_stats stats;
  sum.build_ms = run_all(ctx, all, compile, "compiled", want->jobs);
  dw_stats_get(ctx, &stats);
  if (want->verify) sum.verify_ms = run_all(ctx, all, check, "checked", want->jobs);
  return report(all, want, &sum, stats.compiles - stats.compile_failures);
}

static int default_jobs(void) {
  long cores = sysconf(_SC_NPROCESSORS_ONLN);
  return cores < 1 ? 1 : cores > JOBS_MAX ? JOBS_MAX : (int)cores;
}

int cli_build(const cli_command *self, int argc, char **argv) {
  if (cli_has(argc, argv, "--companions")) return cli_companions_build(self, argc, argv);
  int verify = -1;
  asked want = {.jobs = default_jobs(), .batch = 8, .kv_len = 32768};
  const cli_option options[] = {
    {"widths", "T,...", CLI_INTS, &want.widths, 1, 1025, "for these widths (t) instead of the shape's own"},
    {"target", "SM,...", CLI_TEXT, &want.targets, 0, 0, "for these targets, e.g. sm_120,sm_90"},
    {"limits", "LIMITS", CLI_TEXT, &want.limits, 0, 0, "native or sm_120"},
    {"variant", "TEXT", CLI_TEXT, &want.variant, 0, 0, "this variant"},
    {"all-variants", NULL, CLI_FLAG, &want.all_variants, 0, 0, "each variant that may serve the shape"},
    {"batch", "N", CLI_INT, &want.batch, 1, 65535, "most requests, for the rule table's choice (8)"},
    {"kv-len", "N", CLI_INT, &want.kv_len, 1, 1 << 24, "most tokens a request, for that choice (32768)"},
    {"call", "any|table", CLI_WORD, &want.call, 0, 0, "what calls have in common, for that choice (any)"},
    {"jobs", "N", CLI_INT, &want.jobs, 1, JOBS_MAX, "threads (default: one a core)"},
    {"verify", "host", CLI_WORD, &verify, 0, 0, "also run each on the CPU against the oracle"},
    {"json", NULL, CLI_FLAG, &want.json, 0, 0, "print JSON"},
  };
  int code = cli_parse(self, CLI_OPTIONS(options), &argc, argv);
  if (code != CLI_GO_ON) return code;
  want.verify = verify == 0;
  if (argc < 2) return cli_usage("build: found no shape, allowed one or more; draftwood build --help tells more");
  if (want.variant && want.all_variants) return cli_usage("build: --variant and --all-variants exclude one another");

  dw_error error = {0};
  jobs all = {0};
  dw_ctx *ctx = NULL;
  dw_status status = DW_OK;
  for (int i = 1; i < argc && !status; i++) status = add_shape(&all, &want, argv[i], &error);
  code = status ? cli_error(&error) : cli_open(&ctx);
  if (code == CLI_GO_ON) code = build(ctx, &all, &want);
  dw_ctx_destroy(ctx);
  free_jobs(&all);
  return code;
}
