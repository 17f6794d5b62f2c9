// draftwood verify: a kernel against the fp64 oracle, row by row, on the CPU or on a GPU.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "guard.h"
#include "host_run.h"
#include "plan.h"
#include "rule.h"

// ---- a problem ------------------------------------------------------------------------------------------------

cli_problem cli_problem_usual(void) {
  return (cli_problem){
    .lengths = {.values = {0, 17, 100}, .count = 3},
    .mask = DW_MASK_PARENTS,
    .addressing = DW_CSR,
    .order = DW_HOST_FORWARD,
    .seed = 1,
  };
}

static int batch_of(const cli_problem *asked) { return asked->batch ? asked->batch : asked->lengths.count; }

static int longest(const cli_problem *asked) {
  int most = 0;
  for (int i = 0; i < asked->lengths.count; i++)
    if (asked->lengths.values[i] > most) most = asked->lengths.values[i];
  return most;
}

dw_bounds cli_problem_bounds(const dw_shape *shape, const cli_problem *asked) {
  dw_bounds bounds = cli_bounds(shape, batch_of(asked), longest(asked) + shape->width);
  bounds.split_tokens = asked->split_tokens;
  // What holds for these calls is promised, so that both kinds of kernel are checked.
  bool table = asked->addressing == DW_BLOCK_TABLE && !asked->prefix_only && !asked->drafts_elsewhere && !asked->split_tokens;
  bounds.call = table ? DW_CALL_TABLE : DW_CALL_ANY;
  bounds.features = dw__features(asked->window, asked->soft_cap > 0, asked->q_rope, asked->kv_rope);
  return bounds;
}

static dw_status make(const dw_shape *shape, const cli_problem *asked, dw__problem **problem, dw_error *error) {
  int batch = batch_of(asked);
  int *prefix = calloc((size_t)batch, sizeof *prefix);
  if (!prefix) return dw__fail(error, DW_OUT_OF_MEMORY, "memory", "", "", "out of memory");
  for (int i = 0; i < batch; i++) prefix[i] = asked->lengths.values[i % asked->lengths.count];
  dw__problem_spec spec = {
    .shape = *shape,
    .batch = batch,
    .prefix = prefix,
    .mask_kind = (dw_mask)asked->mask,
    .tree = DW__TREE_RANDOM,
    .addressing = (dw_addressing)asked->addressing,
    .lengths_include_drafts = !asked->prefix_only && !asked->drafts_elsewhere,
    .one_tree = asked->mask_shared,
    .mask_shared = asked->mask_shared,
    .q_rope = asked->q_rope,
    .kv_rope = asked->kv_rope,
    .planes = (dw__planes)asked->planes,
    .window = asked->window,
    .positions = asked->positions ? 2 : 0,
    .soft_cap = (float)asked->soft_cap,
    .sinks = asked->sinks,
    .drafts_elsewhere = asked->drafts_elsewhere,
    .strided = asked->strided,
    .shuffle = 1,
    .q_scale = 1,
    .kv_scale = (float)asked->kv_scale,
    .v_scale = (float)asked->v_scale,
    .spare_pages = 1,
    .seed = (uint64_t)asked->seed,
  };
  dw_status status = dw__problem_make(&spec, problem, error);
  free(prefix);
  return status;
}

dw_status cli_problem_make(const dw_shape *shape, const cli_problem *asked, dw__problem **problem, dw_error *error) {
  *problem = NULL;
  dw_status status = make(shape, asked, problem, error);
  if (!status) (*problem)->args.overlap_prologue = asked->overlap;
  if (!status) status = dw__problem_solve(*problem, 0, error);
  if (!status) return DW_OK;
  dw__problem_free(*problem);
  *problem = NULL;
  return status;
}

dw_status cli_check_host(dw_ctx *ctx, const dw_shape *shape, const dw_variant *variant, const cli_problem *asked,
                         dw__problem *problem, dw__comparison *comparison, dw_error *error) {
  dw__host_kernel *kernel;
  uint32_t report[DW_REPORT_WORDS] = {0};  // of a checked variant: the problem is sound
  dw_bounds bounds = cli_problem_bounds(shape, asked);
  bounds.sm_count = dw__target_sm_count(shape->target);
  dw_status status = dw__host_kernel_open(ctx, shape, variant, asked->sanitize, &kernel, error);
  if (status) return status;
  problem->args.report = report;
  problem->wide_bound = dw__has_wide_bound(variant);
  status = dw__host_kernel_run(kernel, &bounds, problem, (dw_host_order)asked->order, (uint64_t)asked->seed, error);
  problem->args.report = NULL;
  if (!status) status = dw_report_check(report, error);
  if (!status) status = dw__problem_compare(problem, comparison, error);
  dw__host_kernel_close(kernel);
  return status;
}

// ---- rows -----------------------------------------------------------------------------------------------------

// A query vector (a row's head) beside its answer.
typedef struct vector_error {
  int request, row, head;
  double relative, bound;
} vector_error;

static double relative_error(const dw__problem *problem, size_t vector) {
  const dw_shape *shape = &problem->spec.shape;
  int64_t head_stride = dw__or_else(problem->args.out_head_stride, shape->head_dim_v);
  int64_t row_stride = dw__or_else(problem->args.out_row_stride, shape->heads * head_stride);
  int64_t first = (int64_t)vector / shape->heads * row_stride + (int64_t)vector % shape->heads * head_stride;
  size_t size = dw__dtype_size(shape->out);
  const char *out = (const char *)problem->args.out + (size_t)first * size;
  const double *exact = problem->out64 + vector * (size_t)shape->head_dim_v;
  double off = 0, all = 0;
  for (int i = 0; i < shape->head_dim_v; i++) {
    double difference = (double)dw__to_float(shape->out, out + (size_t)i * size) - exact[i];
    off += difference * difference;
    all += exact[i] * exact[i];
  }
  double relative = sqrt(all > 0 ? off / all : off);
  return isnan(relative) ? INFINITY : relative;
}

static double badness(const vector_error *one) {
  return one->relative == 0 ? 0 : one->bound > 0 ? one->relative / one->bound : INFINITY;
}

static int worse_first(const void *a, const void *b) {
  double x = badness(a), y = badness(b);
  return x > y ? -1 : x < y;
}

// Every vector, worst first; NULL when out of memory.
static vector_error *all_errors(const dw__problem *problem, size_t *count) {
  const dw__problem_memory *memory = problem->memory;
  int heads = problem->spec.shape.heads;
  *count = (size_t)problem->total_q * (size_t)heads;
  vector_error *list = calloc(*count + 1, sizeof *list);
  size_t i = 0;
  for (int b = 0; list && b < problem->spec.batch; b++)
    for (int row = 0; row < problem->rows[b]; row++)
      for (int head = 0; head < heads; head++, i++)
        list[i] = (vector_error){b, row, head, relative_error(problem, i), memory->bounds ? memory->bounds[i] : 0};
  if (list) qsort(list, *count, sizeof *list, worse_first);
  return list;
}

// ---- output ---------------------------------------------------------------------------------------------------

#define ROWS_SHOWN 5u

static json_t *vector_json(int request, int row, int head, double relative, double bound) {
  json_t *object = json_pack("{s:i, s:i, s:i, s:f}", "request", request, "row", row, "head", head, "bound", bound);
  // JSON has no infinity.
  json_object_set_new(object, "relative", isfinite(relative) ? json_real(relative) : json_null());
  return object;
}

json_t *cli_comparison_json(const dw__comparison *comparison) {
  const dw__row_error *worst = &comparison->worst;
  json_t *object =
    json_pack("{s:I, s:I, s:f, s:b, s:o}", "rows", (json_int_t)comparison->rows, "failed", (json_int_t)comparison->failed,
              "ulp_share", comparison->ulp_share, "outside_written", (int)comparison->outside_written, "worst",
              vector_json(worst->request, worst->row, worst->head, worst->relative, worst->bound));
  if (isfinite(comparison->total_relative)) json_object_set_new(object, "relative", json_real(comparison->total_relative));
  return object;
}

typedef struct report {
  const char *shape, *variant, *device;
  bool json;
} report;

static void print_json(const report *about, const dw__comparison *comparison, const vector_error *list, size_t count) {
  json_t *rows = json_array(), *object = cli_comparison_json(comparison);
  for (size_t i = 0; i < count && i < ROWS_SHOWN; i++) {
    json_array_append_new(rows, vector_json(list[i].request, list[i].row, list[i].head, list[i].relative, list[i].bound));
  }
  json_object_set_new(object, "worst_rows", rows);
  json_object_set_new(object, "shape", json_string(about->shape));
  json_object_set_new(object, "variant", json_string(about->variant));
  json_object_set_new(object, "device", json_string(about->device));
  cli_print_json(object);
  json_decref(object);
}

static void print_text(const report *about, const dw__problem *problem, const dw__comparison *comparison,
                       const vector_error *list, size_t count) {
  printf("%s\n%s on %s\n", about->shape, about->variant, about->device);
  printf("  %7s  %8s  %5s  %5s  %10s  %10s\n", "request", "prefix", "row", "head", "error", "bound");
  for (size_t i = 0; i < count && i < ROWS_SHOWN; i++) {
    const vector_error *one = &list[i];
    printf("  %7d  %8d  %5d  %5d  %10.3e  %10.3e%s\n", one->request, problem->prefix[one->request], one->row, one->head,
           one->relative, one->bound, one->relative <= one->bound ? "" : "  wrong");
  }
  printf("%ld rows, %ld wrong, relative error of all %.3e, %.2f %% of elements within one unit in the last place\n",
         comparison->rows, comparison->failed, comparison->total_relative, 100 * comparison->ulp_share);
}

static void print_report(const report *about, const dw__problem *problem, const dw__comparison *comparison) {
  size_t count;
  vector_error *list = all_errors(problem, &count);
  if (!list) return;
  if (about->json) print_json(about, comparison, list, count);
  else print_text(about, problem, comparison, list, count);
  free(list);
}

// ---- the command ----------------------------------------------------------------------------------------------

typedef struct asked {
  const char *variant;
  int gpu;  // 0: host
  bool json;
  cli_problem problem;
} asked;

// Only a program with the sanitizers in it can load a module that has them.
static int check_sanitize(const asked *want) {
#ifdef __SANITIZE_ADDRESS__
  (void)want;
#else
  if (want->problem.sanitize) return cli_usage("--sanitize: needs a draftwood built with -DDRAFTWOOD_SANITIZE=ON");
#endif
  return CLI_GO_ON;
}

// Where a problem is run: one of the two.
typedef struct place {
  dw_ctx *host;
  cli_gpu gpu;
  char name[160];
} place;

static int place_open(place *here, const asked *want) {
  static const char *const orders[] = {"forward", "reverse", "random"};
  *here = (place){.host = NULL};
  int code = want->gpu ? cli_gpu_open(&here->gpu) : cli_open(&here->host);
  if (want->gpu) snprintf(here->name, sizeof here->name, "%s", here->gpu.name);
  else snprintf(here->name, sizeof here->name, "host, %s order", orders[want->problem.order]);
  return code;
}

static void place_close(place *here) {
  dw_ctx_destroy(here->host);
  cli_gpu_close(&here->gpu);
}

static dw_status run(const place *here, const asked *want, const dw_variant *variant, dw__problem *problem,
                     dw__comparison *comparison, dw_error *error) {
  if (want->gpu) return cli_check_gpu(&here->gpu, variant, &want->problem, problem, comparison, error);
  return cli_check_host(here->host, &problem->spec.shape, variant, &want->problem, problem, comparison, error);
}

static int verify(const place *here, const asked *want, const dw_shape *shape, const dw_variant *variant) {
  char shape_text[DW_TEXT_MAX], variant_text[DW_TEXT_MAX];
  dw_error error = {0};
  dw__comparison comparison = {0};
  dw__problem *problem;
  dw_shape_print(shape, shape_text, sizeof shape_text);
  cli_variant_text(variant, variant_text);
  dw_status status = cli_problem_make(shape, &want->problem, &problem, &error);
  if (!status) status = run(here, want, variant, problem, &comparison, &error);
  if (comparison.rows) print_report(&(report){shape_text, variant_text, here->name, want->json}, problem, &comparison);
  dw__problem_free(problem);
  return status ? cli_error(&error) : CLI_DONE;
}

int cli_verify(const cli_command *self, int argc, char **argv) {
  if (cli_has(argc, argv, "--suite")) return cli_suite(self, argc, argv);
  if (cli_has(argc, argv, "--named")) return cli_named(self, argc, argv);
  if (cli_has(argc, argv, "--random")) return cli_random(self, argc, argv);
  if (cli_has(argc, argv, "--companions")) return cli_companions_verify(self, argc, argv);
  asked want = {.problem = cli_problem_usual()};
  cli_problem *problem = &want.problem;
  const cli_option options[] = {
    {"variant", "TEXT", CLI_TEXT, &want.variant, 0, 0, "the variant (default: the rule table's choice)"},
    {"device", "host|gpu", CLI_WORD, &want.gpu, 0, 0, "where to run it (host)"},
    {"lengths", "N,...", CLI_INTS, &problem->lengths, 0, 1 << 22, "committed tokens of the requests (0,17,100)"},
    {"batch", "N", CLI_INT, &problem->batch, 1, 4096, "requests; lengths are dealt out in turn (default: one a length)"},
    {"mask", "none|parents|bits|bytes|bytes-full|bias", CLI_WORD, &problem->mask, 0, 0, "how the tree is given (parents)"},
    {"mask-shared", NULL, CLI_FLAG, &problem->mask_shared, 0, 0, "bytes, bias: one matrix for all requests"},
    {"addressing", "csr|table", CLI_WORD, &problem->addressing, 0, 0, "how the KV is found (csr)"},
    {"prefix-only", NULL, CLI_FLAG, &problem->prefix_only, 0, 0, "lengths count the prefix, not the drafts"},
    {"drafts-elsewhere", NULL, CLI_FLAG, &problem->drafts_elsewhere, 0, 0, "the KV of the drafts is on another rank"},
    {"q-rope", NULL, CLI_FLAG, &problem->q_rope, 0, 0, "the last elements of q lie apart"},
    {"kv-rope", NULL, CLI_FLAG, &problem->kv_rope, 0, 0, "the last elements of the KV's tokens lie in another pool"},
    {"planes", CLI_PLANES, CLI_WORD, &problem->planes, 0, 0, CLI_PLANES_HELP},
    {"strided", NULL, CLI_FLAG, &problem->strided, 0, 0, "rows, tokens, pages and masks with gaps between them"},
    {"window", "N", CLI_INT, &problem->window, 0, 1 << 30, "a row sees the last N positions alone, its own included (0: all)"},
    {"positions", NULL, CLI_FLAG, &problem->positions, 0, 0,
     "window: positions from an array, some behind their nodes' depths"},
    {"soft-cap", "X", CLI_NUMBER, &problem->soft_cap, 0, 1000000, "scores stay below X (0: no cap)"},
    {"sinks", NULL, CLI_FLAG, &problem->sinks, 0, 0, "a sink for each head"},
    {"kv-scale", "X", CLI_NUMBER, &problem->kv_scale, 0, 1000000,
     "KV in e4m3: stored divided by X, which a call says (0: no scale); GQA: K"},
    {"v-scale", "X", CLI_NUMBER, &problem->v_scale, 0, 1000000, "KV of GQA in e4m3: the same of V"},
    {"overlap", NULL, CLI_FLAG, &problem->overlap, 0, 0, "the call may start while the kernel before it runs"},
    {"split-tokens", "N", CLI_INT, &problem->split_tokens, 16, 1 << 20,
     "fixed KV ranges of so many tokens, a multiple of 16 (default: auto)"},
    {"seed", "S", CLI_INT, &problem->seed, 0, 1 << 30, "of the random problem (1)"},
    {"order", "forward|reverse|random", CLI_WORD, &problem->order, 0, 0, "host: the order in which warps run (forward)"},
    {"sanitize", NULL, CLI_FLAG, &problem->sanitize, 0, 0, "host: with address and undefined-behaviour sanitizers"},
    {"json", NULL, CLI_FLAG, &want.json, 0, 0, "print JSON"},
  };
  int code = cli_parse(self, CLI_OPTIONS(options), &argc, argv);
  if (code == CLI_GO_ON) code = check_sanitize(&want);
  if (code != CLI_GO_ON) return code;
  if (argc != 2) return cli_usage("verify: found %d shapes, allowed 1; draftwood verify --help tells more", argc - 1);
  dw_error error = {0};
  dw_shape shape;
  dw_variant variant;
  dw_status status = dw_shape_parse(argv[1], &shape, &error);
  dw_bounds bounds;
  if (!status) {
    bounds = cli_problem_bounds(&shape, problem);
    status = cli_variant(want.variant, &shape, &bounds, &variant, &error);
    if (!status) dw__variant_add_features(&variant, bounds.features);  // --variant need not say them again
  }
  if (status) return cli_error(&error);
  place here;
  code = place_open(&here, &want);
  if (code == CLI_GO_ON) code = verify(&here, &want, &shape, &variant);
  place_close(&here);
  return code;
}
