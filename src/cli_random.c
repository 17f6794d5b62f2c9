// draftwood verify --random N: N random valid calls against the fp64 oracle, and arguments with one field spoilt beside each of
// them, which must be refused. A case is its number and the seed, or its text; what fails is made as small as it goes.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../runtime/gpu.h"
#include "cli.h"
#include "gpu_verify.h"
#include "guard.h"
#include "host_run.h"
#include "random.h"
#include "random_case.h"

enum { PER_GROUP = 50, TRIES = 300 };

typedef struct asked {
  int count, seed, only, per_group, broken, failures, target, board;
  int gpu;  // 0: host
  bool build_only, small, verbose, only_one;
  const char *spec;
} asked;

typedef struct host_kernel {
  dw_shape shape;
  dw_variant variant;
  dw__host_kernel *kernel;
} host_kernel;

typedef struct runner {
  const asked *want;
  dw__case_scale scale;
  dw_ctx *ctx;
  dw__gpu *gpu;
  dw__gpu_judges judges;
  host_kernel kernels[4];
  int next_kernel;
  const char *step;  // of the last run
  double ratio;      // its worst row over its bound
  int refused;       // broken arguments of the last run
} runner;

typedef struct tally {
  int passed, failed, groups;
  long refused;
  double worst;
} tally;

static double ratio_of(const dw__comparison *comparison) {
  const dw__row_error *row = &comparison->worst;
  return row->bound > 0 ? row->relative / row->bound : 0;
}

// ---- on a GPU -------------------------------------------------------------------------------------------------

static dw__gpu_spec gpu_spec(const dw__case *c) {
  return (dw__gpu_spec){.shape = c->shape,
                        .batch = c->batch,
                        .longest = dw__case_longest(c),
                        .width = c->width,
                        .ragged = c->ragged,
                        .mask_kind = (dw_mask)c->mask,
                        .mask_shared = c->shared,
                        .tree = (dw__tree_kind)c->tree,
                        .any_mask = c->any,
                        .addressing = c->table ? DW_BLOCK_TABLE : DW_CSR,
                        .index64 = c->index64,
                        .lengths_include_drafts = c->all,
                        .draft_slots = c->slots,
                        .drafts_elsewhere = c->elsewhere,
                        .dead_nodes = c->dead,
                        .strided = c->strided,
                        .shuffle = c->shuffle,
                        .scatter = c->scatter,
                        .share = c->share,
                        .q_rope = c->q_rope,
                        .kv_rope = c->kv_rope,
                        .planes = (dw__planes)c->planes,
                        .no_lse = c->no_lse,
                        .lse_base_e = c->base_e,
                        .window = c->window,
                        .positions = c->positions,
                        .soft_cap = (float)c->cap / 100,
                        .sinks = c->sinks,
                        .overlap_prologue = c->overlap,
                        .q_scale = c->peaked ? 3 : 1,
                        .stored_scale = dw__case_kv_scale(c),
                        .v_stored_scale = dw__case_v_scale(c),
                        .sets = 1,
                        .poison = 1};
}

#define CHANCE 1.1  // as many rows as here pass the bound now and then: see dw__gpu_judge_allow

static dw_status run_on_gpu(runner *r, const dw__case *c, dw_error *error) {
  static const dw__capture_mode modes[] = {DW__CAPTURE_GLOBAL, DW__CAPTURE_THREAD, DW__CAPTURE_RELAXED};
  dw__gpu_tools *tools = NULL;
  dw__gpu_judge *judge = NULL;
  dw__gpu_verdict verdict = {.step = "tools"};
  dw__gpu_check check = {
    .shape = c->shape,
    .variant = c->variant,
    .split_tokens = c->split,
    .spec = gpu_spec(c),
    .first = {c->prefix[0], c->ragged ? c->rows[0] : NULL, (uint64_t)c->seed},
    .other = {c->prefix[1], c->ragged ? c->rows[1] : NULL, (uint64_t)c->seed + 1},
    .capture = modes[c->capture],
    .no_replay = !c->replay,
    .spare = c->spare,
    .broken = r->want->broken,
    .broken_seed = (uint64_t)c->seed,
  };
  r->step = verdict.step;
  dw_status status = dw__gpu_judges_find(&r->judges, r->ctx, r->gpu, &c->shape, &tools, &judge, error);
  if (!status) dw__gpu_judge_allow(judge, CHANCE);
  if (!status) status = dw__gpu_verify(r->ctx, tools, judge, &check, &verdict, error);
  r->step = verdict.step;
  r->refused = verdict.refused;
  r->ratio = ratio_of(&verdict.eager) > ratio_of(&verdict.replay) ? ratio_of(&verdict.eager) : ratio_of(&verdict.replay);
  return status;
}

// ---- by host execution ----------------------------------------------------------------------------------------

// What host problems do not do is left out of the case.
static void fit_host(dw__case *c) {
  c->any = c->scatter = c->share = c->no_lse = 0;
  c->replay = 0;
  dw__case_settle(c);
}

static dw_status find_kernel(runner *r, const dw__case *c, dw__host_kernel **kernel, dw_error *error) {
  host_kernel *k = r->kernels;
  for (; k < r->kernels + DW__COUNT(r->kernels); k++) {
    *kernel = k->kernel;
    if (k->kernel && memcmp(&k->shape, &c->shape, sizeof k->shape) == 0 &&
        memcmp(&k->variant, &c->variant, sizeof k->variant) == 0)
      return DW_OK;
  }
  k = &r->kernels[r->next_kernel++ % (int)DW__COUNT(r->kernels)];
  dw__host_kernel_close(k->kernel);
  *k = (host_kernel){c->shape, c->variant, NULL};
  dw_status status = dw__host_kernel_open(r->ctx, &c->shape, &c->variant, false, &k->kernel, error);
  *kernel = k->kernel;
  return status;
}

static dw_status make_problem(const dw__case *c, dw__problem **problem, dw_error *error) {
  int prefix[DW__CASE_BATCH];
  for (int b = 0; b < c->batch; b++) prefix[b] = c->prefix[0][b] > 0 ? c->prefix[0][b] : 0;
  dw__problem_spec spec = {.shape = c->shape,
                           .batch = c->batch,
                           .prefix = prefix,
                           .rows = c->ragged ? c->rows[0] : NULL,
                           .width = c->width,
                           .mask_kind = (dw_mask)c->mask,
                           .tree = (dw__tree_kind)c->tree,
                           .one_tree = c->shared,
                           .mask_shared = c->shared,
                           .addressing = c->table ? DW_BLOCK_TABLE : DW_CSR,
                           .index64 = c->index64,
                           .lengths_include_drafts = c->all,
                           .draft_slots = c->slots,
                           .dead_nodes = c->dead,
                           .q_rope = c->q_rope,
                           .kv_rope = c->kv_rope,
                           .planes = (dw__planes)c->planes,
                           .window = c->window,
                           .positions = c->positions ? 2 : 0,
                           .soft_cap = (float)c->cap / 100,
                           .sinks = c->sinks,
                           .drafts_elsewhere = c->elsewhere,
                           .strided = c->strided,
                           .shuffle = c->shuffle,
                           .q_scale = c->peaked ? 3 : 1,
                           .kv_scale = dw__case_kv_scale(c),
                           .v_scale = dw__case_v_scale(c),
                           .lse_base_e = c->base_e,
                           .spare_pages = 1,
                           .seed = (uint64_t)c->seed};
  dw_status status = dw__problem_make(&spec, problem, error);
  if (status) return status;
  // Shorter than the drafts, as a row that pads a graph: the tokens are there, the length does not count them.
  for (int b = 0; b < c->batch; b++)
    if (c->prefix[0][b] < 0) ((int32_t *)(uintptr_t)(*problem)->args.kv_len)[b] += c->prefix[0][b];
  (*problem)->args.overlap_prologue = c->overlap;
  return DW_OK;
}

static dw_bounds host_bounds(const dw__case *c) {
  int batch = c->batch + (c->spare ? 2 : 0), longest = dw__case_longest(c) + c->shape.width;
  dw_bounds bounds = cli_bounds(&c->shape, batch, c->spare ? 2 * longest + 100 : longest);
  bounds.sm_count = dw__target_sm_count(c->shape.target);
  bounds.split_tokens = c->split;
  bounds.call = (dw_call)c->variant.call;
  return bounds;
}

static dw_status refuse_on_host(runner *r, const dw__case *c, const dw__problem *problem, const dw_bounds *bounds,
                                dw_error *error) {
  dw__plan plan;
  uint64_t seed = (uint64_t)c->seed;
  dw_status status = dw__plan_make(&c->shape, &c->variant, bounds, &plan, error);
  for (int i = 0; i < r->want->broken && !status; i++) {
    dw_error refusal = {0};
    dw_args args = problem->args;
    args.workspace = (void *)(uintptr_t)4096;  // an address is all that is looked at
    args.workspace_size = plan.workspace_bytes;
    status = dw__args_check(&c->shape, bounds, &plan, &args, error);
    if (status) return status;
    dw__broken broken = dw__args_break(&c->shape, bounds, &plan, &seed, &args);
    if (dw__args_check(&c->shape, bounds, &plan, &args, &refusal) != DW_BAD_ARGUMENT || !dw__broken_named(&broken, &refusal))
      status = dw__fail(error, DW_WRONG_RESULT, broken.field, refusal.status ? refusal.message : "accepted",
                        "a refusal that names this field", "arguments with one wrong field: %s", broken.what);
    r->refused += status == DW_OK;
    dw_error_clear(&refusal);
  }
  return status;
}

#define STEP(name, call) \
  if (!status) {         \
    r->step = name;      \
    status = call;       \
  }

static dw_status run_on_host(runner *r, const dw__case *c, dw_error *error) {
  dw__host_kernel *kernel;
  dw__problem *problem = NULL;
  dw__comparison comparison = {0};
  dw_bounds bounds = host_bounds(c);
  dw_status status = DW_OK;
  r->refused = 0;
  STEP("kernel", find_kernel(r, c, &kernel, error));
  STEP("write", make_problem(c, &problem, error));
  STEP("oracle", dw__problem_solve(problem, 0, error));
  STEP("launch", dw__host_kernel_run(kernel, &bounds, problem, (dw_host_order)c->order, (uint64_t)c->seed, error));
  STEP("compare", dw__problem_compare(problem, &comparison, error));
  STEP("refusal", refuse_on_host(r, c, problem, &bounds, error));
  r->ratio = ratio_of(&comparison);
  dw__problem_free(problem);
  return status;
}

static dw_status run(void *user, const dw__case *c, dw_error *error) {
  runner *r = user;
  return r->want->gpu ? run_on_gpu(r, c, error) : run_on_host(r, c, error);
}

// ---- what was drawn -------------------------------------------------------------------------------------------

typedef struct drawn {
#define X(name, lowest, highest, help) int name;
  DW__CASE_FIELDS(X)
#undef X
  int masks[CLI_MASKS], calls, padded, empty;
} drawn;

static void note(drawn *all, const dw__case *c) {
#define X(name, lowest, highest, help) all->name += c->name > lowest;
  DW__CASE_FIELDS(X)
#undef X
  all->masks[c->mask]++;
  all->calls += c->variant.call == DW_CALL_TABLE;
  bool padded = false, empty = false;
  for (int b = 0; b < c->batch; b++) {
    padded = padded || c->prefix[0][b] < 0;
    empty = empty || c->rows[0][b] == 0;
  }
  all->padded += padded;
  all->empty += empty;
}

static void tell_drawn(const drawn *all) {
  printf("cases by mask:");
  for (int i = 0; i < CLI_MASKS; i++) printf(" %s %d", cli_mask_names[i], all->masks[i]);
  printf("\ncases with:");
#define X(name, lowest, highest, help) \
  if (strcmp(#name, "seed") && strcmp(#name, "mask") && strcmp(#name, "order")) printf(" %s %d", #name, all->name);
  DW__CASE_FIELDS(X)
#undef X
  printf(" call=table %d padded %d no_rows %d\n", all->calls, all->padded, all->empty);
}

// ---- cases ----------------------------------------------------------------------------------------------------

static void print_case(const char *before, const dw__case *c, const char *after) {
  dw__buf text = {0};
  dw__case_print(c, &text);
  printf("%s%s%s", before, text.failed ? "(out of memory)" : text.data, after);
  dw__buf_free(&text);
}

// A device error is the last word of its context, and an oracle that is wrong judges nothing: there is no going on, and nothing
// can be made smaller.
static bool is_fatal(const runner *r, dw_status status) { return status == DW_DRIVER || strcmp(r->step, "tools") == 0; }

static void tell_failure(runner *r, const dw__case *c, int index, dw_status status, dw_error *error) {
  cli_progress("%s", "");
  if (r->want->spec) printf("FAILED\n");
  else printf("FAILED case %d of seed %d\n", index, r->want->seed);
  print_case("  ", c, "\n");
  printf("  at %s: %s\n", r->step, error->message);
  fflush(stdout);
  if (is_fatal(r, status)) return;
  dw__case small = *c;
  int tried = dw__case_shrink(&small, status, TRIES, run, r, error);
  run(r, &small, NULL);  // names the step again
  printf("smallest of %d tries:\n  draftwood verify --random 1 --device %s --spec", tried, r->want->gpu ? "gpu" : "host");
  print_case(" '", &small, "'\n");
  printf("  at %s: %s\n", r->step, error->message);
  if (error->log) printf("%s\n", error->log);
  fflush(stdout);
}

// False where no more can be run.
static bool run_case(runner *r, const dw__case *c, int index, tally *sum) {
  dw_error error = {0};
  dw_status status = run(r, c, &error);
  sum->refused += r->refused;
  *(status ? &sum->failed : &sum->passed) += 1;
  if (r->ratio > sum->worst) sum->worst = r->ratio;
  if (status) tell_failure(r, c, index, status, &error);
  else if (r->want->verbose) {
    cli_progress("%s", "");
    printf("ok %d, worst row at %.2f of its bound:", index, r->ratio);
    print_case(" ", c, "\n");
  }
  dw_error_clear(&error);
  return !is_fatal(r, status) && sum->failed < r->want->failures;
}

static void make_case(const runner *r, int index, dw__case *c) {
  dw__case_make(&r->scale, (uint64_t)r->want->seed, index, r->want->per_group, c);
  if (!r->want->gpu && !r->want->build_only) fit_host(c);
}

static int run_cases(runner *r) {
  tally sum = {0};
  drawn all = {0};
  dw__case c;
  int first = r->want->only_one ? r->want->only : 0, end = r->want->only_one ? first + 1 : r->want->count;
  double start = dw__seconds();
  bool go_on = true;
  for (int i = first; i < end && go_on; i++) {
    make_case(r, i, &c);
    note(&all, &c);
    sum.groups += i == first || i % r->want->per_group == 0;
    cli_progress("case %d of %d, %d failed", i + 1, end, sum.failed);
    go_on = run_case(r, &c, i, &sum);
  }
  cli_progress("%s", "");
  int run_count = sum.passed + sum.failed;
  tell_drawn(&all);
  printf("seed %d: %d cases over %d shapes in %.0f s, worst row at %.2f of its bound\n", r->want->seed, run_count, sum.groups,
         dw__seconds() - start, sum.worst);
  printf("%ld argument sets with one wrong field were refused with its name\n", sum.refused);
  if (run_count < end - first) printf("%d cases were not run\n", end - first - run_count);
  printf("%d passed, %d failed\n", sum.passed, sum.failed);
  return sum.failed ? CLI_WRONG : CLI_DONE;
}

static int run_spec(runner *r) {
  dw__case c;
  dw_error error = {0};
  tally sum = {0};
  if (dw__case_parse(r->want->spec, &c, &error)) return cli_error(&error);
  if (!r->want->gpu) fit_host(&c);
  run_case(r, &c, 0, &sum);
  printf("worst row at %.2f of its bound, %ld argument sets with one wrong field refused\n%d passed, %d failed\n", sum.worst,
         sum.refused, sum.passed, sum.failed);
  return sum.failed ? CLI_WRONG : CLI_DONE;
}

// ---- the command ----------------------------------------------------------------------------------------------

// Everything that the run will load, for a machine without a compiler.
static int build_all(runner *r) {
  dw_error error = {0};
  dw_status status = DW_OK;
  int groups = (int)dw__ceil_div(r->want->count, r->want->per_group);
  for (int g = 0; g < groups && !status; g++) {
    dw_shape shape;
    dw_variant variants[DW__CASE_VARIANTS];
    dw__case_group(&r->scale, (uint64_t)r->want->seed, g, &shape, variants);
    cli_progress("building shape %d of %d", g + 1, groups);
    status = dw__gpu_tools_build(r->ctx, shape.head_dim_qk, shape.head_dim_v, shape.target, &error);
    for (int i = 0; i < DW__CASE_VARIANTS && !status; i++) {
      dw_cubin *cubin = NULL;
      status = dw_cubin_build(r->ctx, &shape, &variants[i], &cubin, &error);
      dw_cubin_free(cubin);
    }
  }
  cli_progress("%s", "");
  if (status) return cli_error(&error);
  cli_tell_builds(r->ctx);
  return CLI_DONE;
}

static int run_all(runner *r) {
  dw_error error = {0};
  if (r->want->gpu) {
    dw_status status = cli_gpu_device(r->ctx, r->want->board, &r->gpu, &error);
    if (status) {
      cli_error(&error);
      return status == DW_NO_DRIVER || status == DW_DRIVER ? CLI_USAGE : cli_exit_code(status);
    }
    r->scale.target = dw__gpu_device(r->gpu)->cc;
  }
  return r->want->spec ? run_spec(r) : run_cases(r);
}

static void close_all(runner *r) {
  for (size_t i = 0; i < DW__COUNT(r->kernels); i++) dw__host_kernel_close(r->kernels[i].kernel);
  dw__gpu_judges_close(&r->judges);
  dw_ctx_destroy(r->ctx);  // its kernels live in the GPU's CUDA context
  dw__gpu_close(r->gpu);
}

int cli_random(const cli_command *self, int argc, char **argv) {
  asked want = {.only = -1, .per_group = PER_GROUP, .broken = 4, .failures = 5, .target = 90};
  const cli_option options[] = {
    {"random", "N", CLI_INT, &want.count, 1, 1000000, "this: so many random calls"},
    {"device", "host|gpu", CLI_WORD, &want.gpu, 0, 0, "where to run them (host, where cases are small)"},
    {"seed", "S", CLI_INT, &want.seed, 0, 1 << 30, "of all cases (0)"},
    {"case", "K", CLI_INT, &want.only, 0, 1000000, "only this one of them, from 0 on"},
    {"spec", "TEXT", CLI_TEXT, &want.spec, 0, 0, "one case, as a failure printed it"},
    {"per-shape", "N", CLI_INT, &want.per_group, 1, 100000, "cases that share a shape and its kernels (50)"},
    {"broken", "N", CLI_INT, &want.broken, 0, 1000, "argument sets with one wrong field, a case (4)"},
    {"failures", "N", CLI_INT, &want.failures, 1, 1000, "stop after so many (5)"},
    {"small", NULL, CLI_FLAG, &want.small, 0, 0, "gpu: small cases, for an emulated GPU"},
    {"gpu", "N", CLI_INT, &want.board, 0, 63, "which GPU (0)"},
    {"verbose", NULL, CLI_FLAG, &want.verbose, 0, 0, "a line for each case, not only for failures"},
    {"build-only", NULL, CLI_FLAG, &want.build_only, 0, 0, "compile what a run on a GPU needs into the cache; needs no GPU"},
    {"target", "N", CLI_INT, &want.target, 80, 199, "with --build-only: for this device class (90)"},
  };
  int code = cli_parse(self, CLI_OPTIONS(options), &argc, argv);
  if (code != CLI_GO_ON) return code;
  if (argc > 1) return cli_usage("verify --random takes no shape, found %s", argv[1]);
  want.only_one = want.only >= 0;
  runner r = {.want = &want, .step = "start"};
  r.scale = want.small || (!want.gpu && !want.build_only) ? dw__case_small : dw__case_large;
  if (want.build_only) r.scale.target = want.target;
  code = cli_open(&r.ctx);
  if (code != CLI_GO_ON) return code;
  code = want.build_only ? build_all(&r) : run_all(&r);
  close_all(&r);
  return code;
}
