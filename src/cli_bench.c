// draftwood bench: what a call takes on this machine's GPU. One graph holds many calls over rotating slot sets, so that the KV
// comes from memory and not from the L2; several variants take turns in one process, so that they see the same clocks.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli_bench.h"
#include "rule.h"
#include "tune.h"

// ---- the problem's numbers ------------------------------------------------------------------------------------

// Rows are not padded; the drafts' own columns are left out of the operations, as in the peers' figures.
void bench_count_work(problem *p) {
  const dw_shape *shape = &p->shape;
  p->tokens = p->flops = 0;
  for (int b = 0; b < p->batch; b++) {
    p->tokens += (double)p->prefix[b] + shape->width;
    p->flops += 2.0 * shape->width * shape->heads * p->prefix[b] * (shape->head_dim_qk + shape->head_dim_v);
  }
  p->kv_bytes = p->tokens * (double)dw__kv_token_bytes(shape);
}

static int longest(const problem *p) {
  int most = 0;
  for (int b = 0; b < p->batch; b++) most = p->prefix[b] > most ? p->prefix[b] : most;
  return most;
}

static int count_calls(const asked *want, const problem *p) {
  if (want->calls) return want->calls;
  if (want->warm) return WARM_CALLS;
  double calls = ceil(COLD_BYTES / p->kv_bytes);
  return calls < LEAST_CALLS ? LEAST_CALLS : calls > CALLS_MAX ? CALLS_MAX : (int)calls;
}

static double floor_us(const bench *b, const problem *p) {
  double memory = b->ceilings.read_gbs > 0 ? p->kv_bytes / b->ceilings.read_gbs * 1e-3 : 0;
  double tensor = b->ceilings.mma_tflops > 0 ? p->flops / b->ceilings.mma_tflops * 1e-6 : 0;
  return memory > tensor ? memory : tensor;
}

// ---- contenders -----------------------------------------------------------------------------------------------

static dw_status prepare(const contender *c, const dw__plan_kernel *planned, dw__launch *launch, dw_error *error) {
  *launch = (dw__launch){.grid = {planned->grid[0], planned->grid[1], planned->grid[2]},
                         .block = {planned->block, 1, 1},
                         .cluster_x = planned->cluster,
                         .dynamic_shared = planned->dynamic_shared,
                         .dependent = planned->dependent};
  return dw__module_function(c->module, planned->entry, planned->dynamic_shared, &launch->function, error);
}

dw_status bench_load(const bench *b, const problem *p, contender *c, dw_error *error) {
  if (c->reads) return DW_OK;
  dw_status status = dw__plan_make(&p->shape, &c->variant, &p->bounds, &c->plan, error);
  if (status) return status;
  dw__plan_set_ranges(&p->shape, &c->variant, &p->bounds, &c->plan, c->slots);
  status = dw_cubin_build(b->ctx, &p->shape, &c->variant, &c->cubin, error);
  if (status || !b->gpu) return status;
  status = dw__module_load(dw__gpu_driver(b->gpu), c->cubin->data, c->cubin->size, &c->module, error);
  for (int i = 0; i < c->plan.count && !status; i++) status = prepare(c, &c->plan.kernels[i], &c->launches[i], error);
  if (!status && c->plan.check.entry) status = prepare(c, &c->plan.check, &c->check, error);
  if (!status && c->plan.pack.entry) status = prepare(c, &c->plan.pack, &c->pack, error);
  return status;
}

void bench_unload(const bench *b, contender *c) {
  if (b->gpu) dw__graph_free(b->gpu, c->graph);
  dw__module_unload(c->module);
  dw_cubin_free(c->cubin);
  dw_error_clear(&c->error);
}

// As dw_launch does it, with another number of ranges where --slots says so.
dw_status bench_call(const bench *b, const problem *p, const contender *c, const dw_args *given, void *stream,
                     dw_error *error) {
  dw_args args = *given;
  dw_params params, pack, check;
  args.workspace = b->workspace;
  args.workspace_size = b->workspace_bytes;
  args.overlap_prologue = b->want->chain;
  dw_status status = dw__args_check(&p->shape, &p->bounds, &c->plan, &args, error);
  if (status) return status;
  dw__plan_params(&p->shape, &c->variant, &p->bounds, &c->plan, &args, &params, &pack);
  void *list[] = {&params}, *pack_list[] = {&pack}, *check_list[] = {&check};
  if (c->plan.check.entry) {
    dw__plan_check_params(&p->shape, &c->variant, &p->bounds, &c->plan, &args, &check);
    status = dw__driver_launch(dw__gpu_driver(b->gpu), &c->check, check_list, stream, error);
  }
  if (!status && params.mask != args.mask)
    status = dw__driver_launch(dw__gpu_driver(b->gpu), &c->pack, pack_list, stream, error);
  for (int i = 0; i < c->plan.count && !status; i++) {
    dw__launch launch = c->launches[i];
    launch.dependent |= i == 0 && params.dependent;
    status = dw__driver_launch(dw__gpu_driver(b->gpu), &launch, list, stream, error);
  }
  return status;
}

static dw_status read_kv(const bench *b, const problem *p, contender *c, const dw_args *args, void *stream, dw_error *error) {
  const int most_tokens = longest(p) + p->shape.width;
  dw_tool_gather_params params = {.call = dw__gpu_oracle_params(&p->shape, args, most_tokens),
                                  .sink = dw__gpu_tools_sink(b->tools),
                                  .most_tokens = most_tokens};
  const unsigned blocks = 2 * (unsigned)p->bounds.sm_count;
  void *list[] = {&params};
  c->launches[0] = dw__gpu_tool_launch(b->tools, DW__TOOL_GATHER, blocks, 1, 1);
  c->plan.kernels[0] = (dw__plan_kernel){.grid = {blocks, 1, 1}, .cluster = 1};
  return dw__driver_launch(dw__gpu_driver(b->gpu), &c->launches[0], list, stream, error);
}

dw_status bench_capture(const bench *b, const problem *p, contender *c, const dw__gpu_problem *data, dw_error *error) {
  void *side;
  dw_status status = dw__gpu_capture_begin(b->gpu, DW__CAPTURE_RELAXED, &side, error);
  if (status) return status;
  for (int i = 0; i < p->calls && !status; i++) {
    dw_args args = dw__gpu_problem_args(data, b->want->warm ? 0 : i);
    status = c->reads ? read_kv(b, p, c, &args, side, error) : bench_call(b, p, c, &args, side, error);
  }
  if (!status) return dw__gpu_capture_end(b->gpu, &c->graph, error);
  dw__gpu_capture_drop(b->gpu);
  return status;
}

// ---- checking -------------------------------------------------------------------------------------------------

dw_status bench_poison(const bench *b, dw__gpu_problem *data, dw_error *error) {
  dw_status status = dw__gpu_problem_poison(data, error);
  return status ? status : dw__gpu_fill(b->gpu, b->workspace, 0xFF, b->workspace_bytes, error);
}

static dw_status compare(const bench *b, const problem *p, contender *c, dw__gpu_problem *data, int set, dw_error *error) {
  dw__comparison comparison;
  dw_args args = dw__gpu_problem_args(data, set);
  dw_status status = dw__gpu_judge_solve(b->judge, &p->shape, &args, dw__gpu_problem_most_tokens(data), error);
  if (!status)
    status = dw__gpu_judge_compare(b->judge, &p->shape, &args, dw__gpu_problem_rows(data), dw__has_wide_bound(&c->variant),
                                   &comparison, error);
  if (!status && comparison.total_relative > c->rel_err) c->rel_err = comparison.total_relative;
  return status;
}

// The first set by a launch, the last by the graph, which ends with it.
static dw_status check(const bench *b, const problem *p, contender *c, dw__gpu_problem *data, dw_error *error) {
  int last = b->want->warm ? 0 : p->calls - 1;
  dw_args args = dw__gpu_problem_args(data, 0);
  dw_status status = bench_poison(b, data, error);
  if (!status) status = bench_call(b, p, c, &args, dw__gpu_stream(b->gpu), error);
  if (!status) status = dw__gpu_sync(b->gpu, error);
  if (!status) status = compare(b, p, c, data, 0, error);
  if (!status) status = bench_poison(b, data, error);
  if (!status) status = dw__gpu_replay(b->gpu, c->graph, error);
  if (!status) status = dw__gpu_sync(b->gpu, error);
  return status ? status : compare(b, p, c, data, last, error);
}

// ---- timing ---------------------------------------------------------------------------------------------------

dw_status bench_warm_up(const bench *b, contender *c, dw_error *error) {
  double all = 0, us = 0;
  dw_status status = DW_OK;
  for (int i = 0; (i < 2 || all < WARM_UP_US) && i < 1000 && !status; i++) {
    status = dw__gpu_time(b->gpu, c->graph, &us, error);
    all += us;
  }
  return status;
}

dw_status bench_time_once(const bench *b, const problem *p, contender *c, int rep, dw_error *error) {
  double us = 0;
  // Others ran since: with a warm L2 the first replay only brings the KV back.
  dw_status status = b->want->warm ? dw__gpu_replay(b->gpu, c->graph, error) : DW_OK;
  if (!status) status = dw__gpu_time(b->gpu, c->graph, &us, error);
  c->us[rep] = us / p->calls;
  return status;
}

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

double cli_quantile(double *values, int n, double q) {
  qsort(values, (size_t)n, sizeof *values, ascending);
  double at = q * (n - 1);
  int below = (int)at;
  return below + 1 < n ? values[below] + (at - below) * (values[below + 1] - values[below]) : values[n - 1];
}

#define READ_ONLY "read only"

// ---- results --------------------------------------------------------------------------------------------------

typedef struct result {
  double us, p10, p90, gbs, tflops, floor, clocks;
} result;

static result summarise(const bench *b, const problem *p, contender *c, double mhz) {
  result r = {0};
  r.us = cli_quantile(c->us, b->want->reps, 0.5);
  r.p10 = cli_quantile(c->us, b->want->reps, 0.1);
  r.p90 = cli_quantile(c->us, b->want->reps, 0.9);
  r.gbs = p->kv_bytes / r.us * 1e-3;
  r.tflops = p->flops / r.us * 1e-6;
  r.floor = floor_us(b, p);
  const unsigned *grid = c->plan.kernels[0].grid;
  double ctas = (double)grid[0] * grid[1] * grid[2], sms = dw__gpu_device(b->gpu)->sm_count;
  r.clocks = p->tokens > 0 ? r.us * mhz * (ctas < sms ? ctas : sms) / p->tokens : 0;
  return r;
}

static void name_problem(const problem *p, char *text, size_t n) {
  char prefix[32], heads[32] = "";
  if (p->shape.attention == DW_GQA) snprintf(heads, sizeof heads, "/%dx%d", p->shape.kv_heads, p->shape.head_dim_qk);
  snprintf(prefix, sizeof prefix, p->ragged ? "ragged<=%d" : "%d", longest(p));
  snprintf(text, n, "h=%d%s t=%d p=%d B=%d %s", p->shape.heads, heads, p->shape.width, p->shape.page, p->batch, prefix);
}

static void print_head(const bench *b) {
  if (b->want->json) return;
  printf("%-34s %-52s %9s %9s %9s %9s %7s %7s %8s %6s %9s\n", "problem", "variant", "g x s", "us", "p10", "p90", "GB/s",
         "TFLOP/s", "floor us", "ratio", "rel err");
}

static void print_row(const problem *p, const contender *c, const result *r) {
  char name[80], variant[DW_TEXT_MAX], grid[32], error[24] = "-";
  name_problem(p, name, sizeof name);
  cli_variant_text(&c->variant, variant);
  if (c->reads) snprintf(variant, sizeof variant, "%s", READ_ONLY);
  snprintf(grid, sizeof grid, "%dx%d", c->plan.groups, c->plan.all_ranges);
  if (c->rel_err >= 0) snprintf(error, sizeof error, "%.2e", c->rel_err);
  printf("%-34s %-52s %9s %9.2f %9.2f %9.2f %7.0f %7.1f %8.2f %6.2f %9s\n", name, variant, grid, r->us, r->p10, r->p90, r->gbs,
         r->tflops, r->floor, r->floor > 0 ? r->us / r->floor : 0, error);
  fflush(stdout);
}

static json_t *prefix_json(const problem *p) {
  if (!p->ragged) return json_integer(p->prefix[0]);
  json_t *list = json_array();
  for (int b = 0; b < p->batch; b++) json_array_append_new(list, json_integer(p->prefix[b]));
  return list;
}

// The fields of a measured result, in the order in which they are documented (bench/README.md).
static json_t *result_json(const bench *b, const problem *p, const contender *c, const result *r) {
  static const char *const masks[] = {"none", "parents", "bits", "bytes", "bytes-full", "bias", "static"};
  char shape[DW_TEXT_MAX], variant[DW_TEXT_MAX];
  dw_shape_print(&p->shape, shape, sizeof shape);
  dw_variant_print(&c->variant, variant, sizeof variant);
  if (c->reads) snprintf(variant, sizeof variant, "%s", READ_ONLY);
  json_t *row = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s}", "date", b->want->noted.date, "board",
                          dw__gpu_device(b->gpu)->name, "driver", b->driver, "nvrtc", c->cubin ? c->cubin->compiler : "",
                          "commit", b->want->commit, "command", b->want->noted.command, "impl", "draftwood");
  json_object_set_new(row, "shape", json_string(shape));
  json_object_set_new(row, "target", json_string(c->cubin ? c->cubin->target : ""));
  json_object_set_new(row, "variant", json_string(variant));
  json_object_set_new(row, "batch", json_integer(p->batch));
  json_object_set_new(row, "prefix", prefix_json(p));
  json_object_set_new(row, "page", json_integer(p->shape.page));
  json_object_set_new(row, "mask", json_string(masks[b->want->mask]));
  json_object_set_new(row, "l2", json_string(b->want->warm ? "warm" : "cold"));
  json_object_set_new(row, "graph", json_integer(p->calls));
  const struct {
    const char *name;
    double value;
  } numbers[] = {
    {"us", r->us},
    {"us_p10", r->p10},
    {"us_p90", r->p90},
    {"kv_gbs", r->gbs},
    {"tflops", r->tflops},
    {"floor_us", r->floor},
    {"sm_clocks_per_token", r->clocks},
  };
  for (size_t i = 0; i < DW__COUNT(numbers); i++) json_object_set_new(row, numbers[i].name, json_real(numbers[i].value));
  json_object_set_new(row, "rel_err", c->rel_err >= 0 ? json_real(c->rel_err) : json_null());
  if (c->plan.ranges) json_object_set_new(row, "ranges", json_integer(c->plan.ranges));
  if (c->slots) json_object_set_new(row, "slots", json_integer(c->slots));
  if (b->want->chain) json_object_set_new(row, "chain", json_true());
  if (*b->conditions) json_object_set_new(row, "conditions", json_string(b->conditions));
  return row;
}

void cli_write_line(FILE *to, const json_t *row) {
  json_dumpf(row, to, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(6));
  fputc('\n', to);
  fflush(to);
}

static void tell(const bench *b, const problem *p, const contender *c, const result *r) {
  if (!b->want->json) print_row(p, c, r);
  json_t *row = result_json(b, p, c, r);
  if (b->want->json) cli_write_line(stdout, row);
  if (b->record) cli_write_line(b->record, row);
  json_decref(row);
}

// One contender's mishap is told, and the others go on.
static void tell_failure(bench *b, const problem *p, contender *c) {
  char name[80], variant[DW_TEXT_MAX];
  name_problem(p, name, sizeof name);
  cli_variant_text(&c->variant, variant);
  cli_progress("%s", "");
  fprintf(stderr, "draftwood: %s, %s: %s\n", name, variant, c->error.message);
  if (c->error.log) fprintf(stderr, "%s\n", c->error.log);
  b->failed = true;
}

// ---- one problem ----------------------------------------------------------------------------------------------

static dw_status add_variant(contender *list, int *count, const dw_variant *variant, const cli_list *slots, dw_error *error) {
  for (int i = 0; i < (slots->count ? slots->count : 1); i++) {
    if (*count == VARIANTS_MAX) return dw__fail_int(error, DW_BAD_ARGUMENT, "variants", *count + 1, "up to 256", "too many");
    list[(*count)++] = (contender){.variant = *variant, .slots = slots->count ? slots->values[i] : 0, .rel_err = -1};
  }
  return DW_OK;
}

// --variants holds texts parted by ; or a space (a variant's text has commas).
static dw_status list_named(const asked *want, const dw_shape *shape, contender *list, int *count, dw_error *error) {
  dw_status status = DW_OK;
  for (const char *at = want->variants; !status; at++) {
    char text[DW_TEXT_MAX];
    dw_variant variant;
    size_t size = strcspn(at, "; ");
    snprintf(text, sizeof text, "%.*s", (int)(size < DW_TEXT_MAX - 1 ? size : DW_TEXT_MAX - 1), at);
    status = cli_variant(text, shape, NULL, &variant, error);
    if (!status) status = add_variant(list, count, &variant, &want->slots, error);
    at += size;
    if (!*at) break;
  }
  return status;
}

static dw_status list_contenders(const asked *want, const problem *p, contender *list, int *count, dw_error *error) {
  dw_variant variant;
  dw_status status = DW_OK;
  *count = 0;
  if (want->read_only) list[(*count)++] = (contender){.reads = true, .rel_err = -1};
  if (want->variants) return list_named(want, &p->shape, list, count, error);
  if (want->sweep) {
    for (size_t i = 0; !status && dw_variant_enumerate(&p->shape, i, &variant) == DW_OK; i++)
      status = add_variant(list, count, &variant, &want->slots, error);
    return status;
  }
  status = dw_variant_choose(&p->shape, &p->bounds, &variant, error);
  return status ? status : add_variant(list, count, &variant, &want->slots, error);
}

dw_status bench_make_workspace(bench *b, const contender *list, int count, dw_error *error) {
  size_t most = 256;
  for (int i = 0; i < count; i++)
    if (!list[i].error.status && list[i].plan.workspace_bytes > most) most = list[i].plan.workspace_bytes;
  if (b->workspace && b->workspace_bytes >= most) return DW_OK;
  if (b->workspace) dw__gpu_free(b->gpu, b->workspace);
  b->workspace = NULL;
  b->workspace_bytes = most;
  return dw__gpu_alloc(b->gpu, most, &b->workspace, error);
}

static dw_addressing addressing_of(const asked *want, const dw_shape *shape) {
  if (want->addressing) return want->addressing == 1 ? DW_CSR : DW_BLOCK_TABLE;
  return shape->page > 1 ? DW_BLOCK_TABLE : DW_CSR;
}

dw_status bench_make_data(const bench *b, const problem *p, dw__gpu_problem **data, dw_error *error) {
  static const int orders[] = {1, 0, -1};  // as in the help
  dw__gpu_spec spec = {
    .shape = p->shape,
    .batch = p->batch,
    .longest = longest(p),
    .mask_kind = (dw_mask)b->want->mask,
    .tree = DW__TREE_RANDOM,
    .addressing = b->want->addressing ? (dw_addressing)(b->want->addressing - 1)
                  : p->shape.page > 1 ? DW_BLOCK_TABLE
                                      : DW_CSR,
    .lengths_include_drafts = 1,
    .shuffle = orders[b->want->order],
    .q_scale = 1,
    .stored_scale = p->shape.kv == DW_E4M3 ? 0.25f : 0,
    .v_stored_scale = p->shape.kv == DW_E4M3 && p->shape.attention == DW_GQA ? 0.5f : 0,
    .q_rope = b->want->q_rope,
    .kv_rope = b->want->kv_rope,
    .planes = (dw__planes)b->want->planes,
    .window = b->want->window,
    .soft_cap = (float)b->want->soft_cap,
    .sinks = b->want->sinks,
    .pool_tokens = b->want->pool,
    .sets = b->want->warm ? 1 : p->calls,
  };
  dw__gpu_contents contents = {.prefix = p->prefix, .seed = (uint64_t)b->want->seed};
  dw_status status = dw__gpu_problem_make(b->tools, &spec, data, error);
  return status ? status : dw__gpu_problem_write(*data, &contents, error);
}

// A failure of the device ends everything; any other is the contender's own.
bool bench_is_fatal(dw_status status) { return status == DW_DRIVER || status == DW_OUT_OF_MEMORY; }

static dw_status ready(bench *b, const problem *p, contender *c, dw__gpu_problem *data) {
  dw_status status = bench_capture(b, p, c, data, &c->error);
  if (!status && b->want->check && !c->reads) status = check(b, p, c, data, &c->error);
  if (!status) status = bench_warm_up(b, c, &c->error);
  return status;
}

// What is not as it should be goes into the rows, and is told when it changes.
static void note_conditions(bench *b) {
  dw__gpu_facts facts;
  char now[sizeof b->conditions];
  bench_read_facts(b, &facts);
  dw__gpu_conditions(&facts, 1, now, sizeof now);
  if (*now && strcmp(now, b->conditions) != 0) fprintf(stderr, "draftwood: warning: not a state to measure in: %s\n", now);
  memcpy(b->conditions, now, sizeof now);
}

static dw_status measure(bench *b, const problem *p, contender *list, int count, dw__gpu_problem *data) {
  double mhz = 0;
  dw_status status = DW_OK;
  for (int i = 0; i < count; i++) {
    cli_progress("preparing variant %d of %d", i + 1, count);
    if (list[i].error.status) continue;
    status = ready(b, p, &list[i], data);
    if (bench_is_fatal(status)) return status;
  }
  for (int rep = 0; rep < b->want->reps; rep++) {
    cli_progress("round %d of %d", rep + 1, b->want->reps);
    for (int i = 0; i < count; i++) {
      if (list[i].error.status) continue;
      status = bench_time_once(b, p, &list[i], rep, &list[i].error);
      if (bench_is_fatal(status)) return status;
    }
  }
  cli_progress("%s", "");
  status = dw__gpu_clock_mhz(b->tools, &mhz, NULL);
  note_conditions(b);  // while the board is still busy
  for (int i = 0; i < count && !status; i++) {
    if (list[i].error.status) continue;
    result r = summarise(b, p, &list[i], mhz);
    tell(b, p, &list[i], &r);
  }
  return status;
}

static dw_status run_problem(bench *b, problem *p, dw_error *error) {
  int count;
  contender *list = calloc(VARIANTS_MAX, sizeof *list);
  dw__gpu_problem *data = NULL;
  if (!list) return dw__fail(error, DW_OUT_OF_MEMORY, "memory", "", "", "out of memory");
  bench_count_work(p);
  p->calls = count_calls(b->want, p);
  const int longest_request = longest(p) + p->shape.width;
  p->bounds = cli_bounds(&p->shape, p->batch, b->want->declared > longest_request ? b->want->declared : longest_request);
  p->bounds.split_tokens = b->want->split_tokens;
  p->bounds.features = dw__features(b->want->window, b->want->soft_cap > 0, b->want->q_rope, b->want->kv_rope);
  // Lengths count the drafts and every request has all its rows: with a block table that is the form of call that kernels know.
  bool promised = addressing_of(b->want, &p->shape) == DW_BLOCK_TABLE && !b->want->split_tokens && !b->want->any_call;
  p->bounds.call = promised ? DW_CALL_TABLE : DW_CALL_ANY;
  p->bounds.sm_count = b->gpu ? dw__gpu_device(b->gpu)->sm_count : dw__target_sm_count(p->shape.target);
  dw_status status = list_contenders(b->want, p, list, &count, error);
  for (int i = 0; i < count && !status; i++) {
    cli_progress("building variant %d of %d", i + 1, count);
    bench_load(b, p, &list[i], &list[i].error);
  }
  if (b->gpu && !status) status = bench_make_workspace(b, list, count, error);
  if (b->gpu && !status) status = bench_make_data(b, p, &data, error);
  if (b->gpu && !status) status = measure(b, p, list, count, data);
  for (int i = 0; i < count; i++) {
    if (list[i].error.status) tell_failure(b, p, &list[i]);
    if (status && list[i].error.status == status && error && !error->status)
      dw__fail(error, status, "", "", "", "the device cannot go on");
    bench_unload(b, &list[i]);
  }
  dw__gpu_problem_free(data);
  free(list);
  return status;
}

// ---- all problems ---------------------------------------------------------------------------------------------

static dw_status run_shape(bench *b, const dw_shape *shape, dw_error *error) {
  const asked *want = b->want;
  dw_status status = dw_shape_check(shape, error);
  if (want->ragged.count && !status) {
    problem p = {.shape = *shape, .batch = want->ragged.count, .prefix = (int *)want->ragged.values, .ragged = true};
    return run_problem(b, &p, error);
  }
  for (int i = 0; i < want->batches.count && !status; i++)
    for (int j = 0; j < want->lengths.count && !status; j++) {
      problem p = {.shape = *shape, .batch = want->batches.values[i]};
      p.prefix = calloc((size_t)p.batch, sizeof *p.prefix);
      if (!p.prefix) return dw__fail(error, DW_OUT_OF_MEMORY, "memory", "", "", "out of memory");
      for (int k = 0; k < p.batch; k++) p.prefix[k] = want->lengths.values[j];
      status = run_problem(b, &p, error);
      free(p.prefix);
    }
  return status;
}

static int or_own(const cli_list *list, int i, int own) { return list->count ? list->values[i] : own; }
static int at_least_one(const cli_list *list) { return list->count ? list->count : 1; }

static dw_status run_all(bench *b, const dw_shape *base, dw_error *error) {
  const asked *want = b->want;
  dw_status status = DW_OK;
  for (int h = 0; h < at_least_one(&want->heads) && !status; h++)
    for (int t = 0; t < at_least_one(&want->widths) && !status; t++)
      for (int g = 0; g < at_least_one(&want->pages) && !status; g++) {
        dw_shape shape = *base;
        shape.heads = or_own(&want->heads, h, base->heads);
        shape.width = or_own(&want->widths, t, base->width);
        shape.page = or_own(&want->pages, g, base->page);
        status = run_shape(b, &shape, error);
      }
  return status;
}

// ---- the machine ----------------------------------------------------------------------------------------------

void cli_read_driver(const dw__device *device, char *text, size_t n) {
  char line[256] = "";
  FILE *file = fopen("/proc/driver/nvidia/version", "r");
  if (file && !fgets(line, sizeof line, file)) line[0] = 0;
  if (file) fclose(file);
  for (char *rest = NULL, *word = strtok_r(line, " \t", &rest); word; word = strtok_r(NULL, " \t", &rest)) {
    if (strspn(word, "0123456789.") != strlen(word) || !strchr(word, '.')) continue;
    snprintf(text, n, "%s", word);
    return;
  }
  snprintf(text, n, "CUDA %d.%d", device->driver_version / 1000, device->driver_version % 1000 / 10);
}

void bench_read_facts(const bench *b, dw__gpu_facts *facts) { dw__gpu_facts_read(NULL, dw__gpu_bus(b->gpu), facts); }

// Boards whose ceilings were measured at leisure; another one is measured now.
static dw_status find_ceilings(bench *b, dw_error *error) {
  if (strstr(dw__gpu_device(b->gpu)->name, "H200") && !b->want->ceilings) {
    b->ceilings = (dw__ceilings){.read_gbs = 4617, .mma_tflops = 649};
    return DW_OK;
  }
  dw_status status = dw__gpu_ceilings(b->tools, &b->ceilings, error);
  if (!status && b->want->ceilings)
    printf("read %.0f GB/s, mma.sync bf16 %.0f TFLOP/s, SM clock %.0f MHz\n", b->ceilings.read_gbs, b->ceilings.mma_tflops,
           b->ceilings.sm_mhz);
  return status;
}

static dw_status open_tools(bench *b, const dw_shape *shape, dw_error *error) {
  dw_status status = dw__gpu_tools_open(b->ctx, b->gpu, shape->head_dim_qk, shape->head_dim_v, &b->tools, error);
  if (!status) status = dw__gpu_judge_open(b->tools, &b->judge, error);
  if (!status) status = find_ceilings(b, error);
  if (!status) cli_read_driver(dw__gpu_device(b->gpu), b->driver, sizeof b->driver);
  return status;
}

static void close_all(bench *b) {
  dw__gpu_judge_close(b->judge);
  dw__gpu_tools_close(b->tools);
  if (b->record) fclose(b->record);
  if (b->gpu && b->workspace) dw__gpu_free(b->gpu, b->workspace);
  dw__gpu_close(b->gpu);
}

void cli_note_command(cli_noted *noted, int argc, char **argv) {
  const size_t n = sizeof noted->command;
  time_t now = time(NULL);
  struct tm utc;
  size_t used = (size_t)snprintf(noted->command, n, "draftwood");
  for (int i = 0; i < argc && used < n; i++) {
    const char *folder = argv[i][0] == '/' ? strrchr(argv[i], '/') : NULL, *text = folder ? folder + 1 : argv[i];
    used += (size_t)snprintf(noted->command + used, n - used, strpbrk(text, " ;*?$") ? " '%s'" : " %s", text);
  }
  strftime(noted->date, sizeof noted->date, "%Y-%m-%d", gmtime_r(&now, &utc));
}

// ---- the command ----------------------------------------------------------------------------------------------

void cli_tell_builds(dw_ctx *ctx) {
  dw_stats stats;
  dw_stats_get(ctx, &stats);
  printf("%llu compiled, %llu were there\n", (unsigned long long)stats.compiles, (unsigned long long)stats.hits_disk);
}

// The device's own target, within sm_120's limits where it is another GPU, unless the text says otherwise.
static dw_status read_shape(const bench *b, const char *text, dw_shape *shape, dw_error *error) {
  dw_status status = dw_shape_parse(text, shape, error);
  if (status) return status;
  if (!strstr(text, "target=")) shape->target = b->gpu ? dw__gpu_device(b->gpu)->cc : 90;
  if (b->want->limits) return cli_shape_field(shape, "limits", b->want->limits, error);
  if (!strstr(text, "limits=") && shape->target < 120) shape->limits = 120;
  return DW_OK;
}

// No GPU is not a mistake of the kernels: another exit status than theirs.
static int exit_code(dw_error *error, const bench *b) {
  dw_status status = error->status;
  int code = cli_error(error);
  return !b->gpu && (status == DW_NO_DRIVER || status == DW_DRIVER) ? CLI_USAGE : code;
}

static dw_status run(bench *b, const char *text, dw_error *error) {
  dw_shape shape;
  dw_status status = b->want->build_only ? DW_OK : cli_gpu_device(b->ctx, b->want->device, &b->gpu, error);
  if (!status) status = read_shape(b, text, &shape, error);
  if (status) return status;
  if (b->want->build_only) status = dw__gpu_tools_build(b->ctx, shape.head_dim_qk, shape.head_dim_v, shape.target, error);
  else status = open_tools(b, &shape, error);
  if (!status && !b->want->build_only) print_head(b);
  return status ? status : run_all(b, &shape, error);
}

static int bench_main(const asked *want, const char *text) {
  static bench b;
  dw_error error = {0};
  b = (bench){.want = want};
  int code = cli_open(&b.ctx);
  if (code != CLI_GO_ON) return code;
  if (want->record && !(b.record = fopen(want->record, "a"))) {
    dw_ctx_destroy(b.ctx);
    return cli_usage("--record: %s cannot be written", want->record);
  }
  dw_status status = run(&b, text, &error);
  code = status ? exit_code(&error, &b) : b.failed ? CLI_WRONG : CLI_DONE;
  if (want->build_only && !status) cli_tell_builds(b.ctx);
  close_all(&b);
  dw_ctx_destroy(b.ctx);
  return code;
}

int cli_bench(const cli_command *self, int argc, char **argv) {
  if (cli_has(argc, argv, "--companions")) return cli_companions_bench(self, argc, argv);
  if (cli_has(argc, argv, "--predict")) return cli_predict(self, argc, argv);
  const char *commit = getenv("DRAFTWOOD_COMMIT");
  asked want = {.commit = commit && *commit ? commit : "unknown",
                .lengths = {.values = {1000, 5700, 23000, 91000, 185000}, .count = 5},
                .batches = {.values = {1}, .count = 1},
                .mask = DW_MASK_BITS,
                .reps = 11,
                .pool = 1 << 20,
                .seed = 1};
  const cli_option options[] = {
    {"lengths", "N,...", CLI_INTS, &want.lengths, 1, 1 << 22, "committed tokens (1000,5700,23000,91000,185000)"},
    {"batches", "N,...", CLI_INTS, &want.batches, 1, 4096, "requests (1)"},
    {"widths", "N,...", CLI_INTS, &want.widths, 1, 1025, "draft tokens (the shape's)"},
    {"heads", "N,...", CLI_INTS, &want.heads, 1, 128, "query heads (the shape's)"},
    {"page", "N,...", CLI_INTS, &want.pages, 1, 1 << 16, "tokens a page (the shape's)"},
    {"ragged", "N,...", CLI_INTS, &want.ragged, 1, 1 << 22, "one batch of requests of these lengths instead"},
    {"mask", "none|parents|bits|bytes|bytes-full|bias|static", CLI_WORD, &want.mask, 0, 0,
     "how the tree is given (bits, as packed once a step; static: the shape's)"},
    {"window", "N", CLI_INT, &want.window, 0, 1 << 30, "a row sees the last N positions alone (0: all)"},
    {"soft-cap", "X", CLI_NUMBER, &want.soft_cap, 0, 1000000, "scores stay below X (0: no cap)"},
    {"sinks", NULL, CLI_FLAG, &want.sinks, 0, 0, "a sink for each head"},
    {"q-rope", NULL, CLI_FLAG, &want.q_rope, 0, 0, "the last elements of q lie apart"},
    {"kv-rope", NULL, CLI_FLAG, &want.kv_rope, 0, 0, "the last elements of the KV's tokens lie in another pool"},
    {"planes", CLI_PLANES, CLI_WORD, &want.planes, 0, 0, CLI_PLANES_HELP},
    {"addressing", "auto|csr|table", CLI_WORD, &want.addressing, 0, 0, "auto: csr for page 1, table for larger ones"},
    {"any-call", NULL, CLI_FLAG, &want.any_call, 0, 0, "kernels that serve every form of call, also where a table would do"},
    {"variants", "'TEXT TEXT...'", CLI_TEXT, &want.variants, 0, 0,
     "these variants in turns (default: the rule table's choice)"},
    {"sweep", NULL, CLI_FLAG, &want.sweep, 0, 0, "every variant that the rule table knows"},
    {"slots", "N,...", CLI_INTS, &want.slots, 1, 65535, "KV ranges a request, in place of the rule table's"},
    {"declared", "N", CLI_INT, &want.declared, 1, 1 << 24,
     "tokens a request that kernels are made for at least (the longest run)"},
    {"split-tokens", "N", CLI_INT, &want.split_tokens, 16, 1 << 20, "fixed KV ranges of so many tokens, a multiple of 16"},
    {"limits", "native|sm_120", CLI_TEXT, &want.limits, 0, 0, "resources (sm_120 on other GPUs, unless the shape says)"},
    {"warm", NULL, CLI_FLAG, &want.warm, 0, 0, "the same KV in every call, so that the L2 may hold it"},
    {"chain", NULL, CLI_FLAG, &want.chain, 0, 0, "calls may overlap the one before them (overlap_prologue)"},
    {"read-only", NULL, CLI_FLAG, &want.read_only, 0, 0, "in turns with a launch that only reads the KV, by the same tables"},
    {"reps", "N", CLI_INT, &want.reps, 7, REPS_MAX, "timed replays (11)"},
    {"calls", "N", CLI_INT, &want.calls, 1, CALLS_MAX, "calls a graph (so many that 400 MB of KV are read, 6 at least)"},
    {"page-order", "random|ascending|descending", CLI_WORD, &want.order, 0, 0, "of pages in the pool (random)"},
    {"pool", "N", CLI_INT, &want.pool, 1, 1 << 28, "token slots of the pool at least (1048576)"},
    {"check", NULL, CLI_FLAG, &want.check, 0, 0, "compare with the fp64 oracle first, over poisoned outputs"},
    {"record", "FILE", CLI_TEXT, &want.record, 0, 0, "append JSON lines to this file"},
    {"commit", "ID", CLI_TEXT, &want.commit, 0, 0, "for the record (default: $DRAFTWOOD_COMMIT)"},
    {"ceilings", NULL, CLI_FLAG, &want.ceilings, 0, 0, "measure read bandwidth and mma.sync rate first, for the floors"},
    {"build-only", NULL, CLI_FLAG, &want.build_only, 0, 0, "compile what the run needs into the cache; needs no GPU"},
    {"device", "N", CLI_INT, &want.device, 0, 63, "GPU (0)"},
    {"seed", "S", CLI_INT, &want.seed, 0, 1 << 30, "of contents and slots (1)"},
    {"json", NULL, CLI_FLAG, &want.json, 0, 0, "JSON lines on stdout instead of the table"},
  };
  cli_note_command(&want.noted, argc, argv);  // cli_parse changes argv
  int code = cli_parse(self, CLI_OPTIONS(options), &argc, argv);
  if (code != CLI_GO_ON) return code;
  if (argc > 2) return cli_usage("bench: found %d shapes, allowed 1; draftwood bench --help tells more", argc - 1);
  if (want.sweep && want.variants) return cli_usage("bench: --sweep and --variants exclude each other");
  return bench_main(&want, argc == 2 ? argv[1] : "kimi-k2.6-tp8");
}
