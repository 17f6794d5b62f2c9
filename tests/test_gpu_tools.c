// The GPU tools' kernels by host execution: the fp64 oracle against the CPU's, and the kernels that compare and count.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gpu_verify.h"
#include "host.h"
#include "oracle.h"

enum { QK = 64, V = 32 };  // small widths: the same text, less to walk

static dw_host_module *module;

static int compile(void **state) {
  (void)state;
  static const char *const folders[] = {TEST_SOURCE_DIR "/runtime/host"};
  dw_host_build_options build = {.size = sizeof build, .include_dirs = folders, .n_include_dirs = 1};
  static dw_host_report report = {.size = sizeof report};
  dw_options options = {.size = sizeof options, .cache_dir = ""};
  dw_error error = {0};
  dw_ctx *ctx;
  char *source;
  size_t size;
  if (dw_ctx_create(&options, &ctx, &error)) return -1;
  dw_status status = dw__gpu_tools_source(ctx, "verify", QK, V, &source, &size, &error);
  if (status) print_error("%s\n", error.message);
  if (!status && dw_host_module_open(&module, source, size, &build, &report)) print_error("%s\n", report.message);
  if (!status) dw__release(source);
  dw_ctx_destroy(ctx);
  return module ? 0 : -1;
}

static int unload(void **state) {
  (void)state;
  dw_host_module_close(module);
  return 0;
}

static void run(const char *kernel, const void *params, unsigned x, unsigned y, unsigned z, unsigned threads) {
  static dw_host_report report = {.size = sizeof report};
  dw_host_launch launch = {.size = sizeof launch,
                           .entry = dw_host_module_entry(module, kernel),
                           .params = params,
                           .grid = {x, y, z},
                           .block = {threads, 1, 1},
                           .cluster = {1, 1, 1}};
  assert_non_null(launch.entry);
  if (dw_host_run(&launch, &report)) fail_msg("%s: %s", kernel, report.message);
}

// ---- the oracle -----------------------------------------------------------------------------------------------

static dw_shape shape_of(int heads, int page, dw_dtype type, dw_dtype out) {
  return (dw_shape){.attention = DW_MLA,
                    .heads = heads,
                    .kv_heads = 1,
                    .width = 5,
                    .head_dim_qk = QK,
                    .head_dim_v = V,
                    .page = page,
                    .q = type,
                    .kv = type,
                    .out = out,
                    .target = 90};
}

typedef struct answer {
  double *out, *lse;
} answer;

static answer answer_make(size_t vectors) {
  answer a = {calloc(vectors * V + 1, sizeof(double)), calloc(vectors + 1, sizeof(double))};
  assert_true(a.out && a.lse);
  return a;
}

static void answer_free(answer *a) {
  free(a->out);
  free(a->lse);
}

static int most_tokens(const dw__problem *problem) {
  int most = 0;
  for (int b = 0; b < problem->spec.batch; b++)
    if (problem->prefix[b] + problem->rows[b] > most) most = problem->prefix[b] + problem->rows[b];
  return most;
}

static void solve(const dw__problem *problem, const char *kernel, int chunk_tokens, answer *a) {
  const dw_shape *shape = &problem->spec.shape;
  dw_oracle_params p = dw__gpu_oracle_params(shape, &problem->args, most_tokens(problem));
  unsigned rows = (unsigned)(shape->width + DW_T_WARPS - 1) / DW_T_WARPS;
  int *positions = calloc((size_t)p.total_q + 1, sizeof *positions);
  if (p.window && !p.positions) {
    p.positions = p.depth_positions = positions;
    run("dw_oracle64_depth", &p, rows, (unsigned)p.batch, 1, DW_T_THREADS);
  }
  p.chunk_tokens = chunk_tokens;
  p.chunks = most_tokens(problem) / chunk_tokens + 1;
  size_t parts = (size_t)p.total_q * (size_t)p.heads * (size_t)p.chunks;
  p.part_out = calloc(parts * V + 1, sizeof(double));
  p.part_max = calloc(parts + 1, sizeof(double));
  p.part_sum = calloc(parts + 1, sizeof(double));
  assert_true(p.part_out && p.part_max && p.part_sum);
  memset(p.part_out, 0xFF, parts * V * sizeof(double));
  p.out = a->out;
  p.lse = a->lse;
  unsigned vectors = (unsigned)(shape->width * shape->heads), batch = (unsigned)p.batch;
  run(kernel, &p, (vectors + DW_T_BLOCK_VECTORS - 1) / DW_T_BLOCK_VECTORS, (unsigned)p.chunks, batch, DW_T_THREADS);
  p.rounded = strcmp(kernel, "dw_plain") == 0;
  run("dw_oracle64_merge", &p, (vectors + DW_T_WARPS - 1) / DW_T_WARPS, batch, 1, DW_T_THREADS);
  free(p.part_out);
  free(p.part_max);
  free(p.part_sum);
  free(positions);
}

static void check_problem(const dw__problem_spec *spec, int chunk_tokens) {
  dw__problem *problem = NULL;
  dw_error error = {0};
  if (dw__problem_make(spec, &problem, &error) || dw__problem_solve(problem, 0, &error)) fail_msg("%s", error.message);
  size_t vectors = (size_t)problem->total_q * (size_t)spec->shape.heads;
  answer exact = answer_make(vectors), plain = answer_make(vectors), cpu = answer_make(vectors);
  solve(problem, "dw_oracle64", chunk_tokens, &exact);
  solve(problem, "dw_plain", chunk_tokens, &plain);
  assert_int_equal(dw__oracle_plain(&spec->shape, &problem->args, 0, cpu.out, cpu.lse, &error), DW_OK);
  double worst, factor;
  dw__gpu_oracle_distance(problem, exact.out, exact.lse, plain.out, cpu.out, &worst, &factor);
  if (!(worst <= 1e-12)) fail_msg("the exact answers are %g apart", worst);
  if (!(factor <= 1.25)) fail_msg("the plain errors differ by a factor of %g", factor);
  answer_free(&exact);
  answer_free(&plain);
  answer_free(&cpu);
  dw__problem_free(problem);
}

static const int prefixes[] = {0, 70, 33, 1}, rows[] = {5, 3, 0, 1};

static bool same_or_near(double a, double b) {
  return a == b || (isnan(a) && isnan(b)) || fabs(a - b) <= 1e-12 * (1 + fabs(a));
}

// K infinite beside V in the first tokens of a request, whole chunks of them, and in all that another one sees: scores of -inf weigh nothing
// (those of inf make NaN), and a row that sees no other is NaN.
static void oracle_agrees_on_scores_of_minus_infinity(void **state) {
  (void)state;
  int sound = 0, spoilt = 0, empty = 0;
  for (int i = 0; i < 4; i++) {
    const int infinite[] = {0, i % 2 ? 40 : 64, 0, 2};  // of each request's tokens
    dw__problem_spec spec = {.shape = shape_of(4, 1, DW_BF16, DW_BF16),
                             .batch = 4,
                             .prefix = prefixes,
                             .rows = rows,
                             .mask_kind = DW_MASK_PARENTS,
                             .tree = DW__TREE_RANDOM,
                             .lengths_include_drafts = 1,
                             .dead_nodes = 1,
                             .sinks = i / 2,
                             .q_scale = 1,
                             .spare_pages = 1,
                             .seed = (uint64_t)(300 + i)};
    dw__problem *problem = NULL;
    dw_error error = {0};
    if (dw__problem_make(&spec, &problem, &error)) fail_msg("%s", error.message);
    for (int b = 0; b < 4; b++)
      for (int t = 0; t < infinite[b]; t++)
        dw__from_float(DW_BF16, -INFINITY, (uint16_t *)(uintptr_t)dw__oracle_token(&spec.shape, &problem->args, b, t) + V);
    if (dw__problem_solve(problem, 0, &error)) fail_msg("%s", error.message);
    const size_t vectors = (size_t)problem->total_q * (size_t)spec.shape.heads;
    answer exact = answer_make(vectors);
    solve(problem, "dw_oracle64", 32, &exact);
    for (size_t k = 0; k < vectors; k++) {
      assert_true(same_or_near(problem->lse64[k], exact.lse[k]));
      for (size_t d = 0; d < V; d++) assert_true(same_or_near(problem->out64[k * V + d], exact.out[k * V + d]));
      sound += isfinite(exact.lse[k]), spoilt += isnan(exact.lse[k]), empty += exact.lse[k] == -INFINITY;
    }
    answer_free(&exact);
    dw__problem_free(problem);
  }
  assert_true(sound > 40 && spoilt > 10 && empty > 0);
}

static void oracle_agrees_over_csr(void **state) {
  (void)state;
  for (int mask = 0; mask < 6; mask++)
    for (int drafts = 0; drafts < 3; drafts++) {
      dw__problem_spec spec = {.shape = shape_of(3, mask == 1 ? 16 : 1, DW_BF16, DW_BF16),
                               .batch = 4,
                               .prefix = prefixes,
                               .rows = rows,
                               .mask_kind = (dw_mask)mask,
                               .tree = DW__TREE_RANDOM,
                               .index64 = drafts == 1,
                               .lengths_include_drafts = drafts == 2,
                               .draft_slots = drafts == 1,
                               .dead_nodes = 1,
                               .strided = drafts > 0,
                               .shuffle = 1,
                               .q_scale = 1,
                               .spare_pages = 1,
                               .seed = (uint64_t)(10 * mask + drafts + 1)};
      check_problem(&spec, 32);
    }
}

static void oracle_agrees_over_block_tables(void **state) {
  (void)state;
  for (int i = 0; i < 6; i++) {
    dw__problem_spec spec = {.shape = shape_of(4, i % 2 ? 64 : 16, i < 3 ? DW_F16 : DW_BF16, i % 3 ? DW_F16 : DW_F32),
                             .batch = 4,
                             .prefix = prefixes,
                             .rows = i == 5 ? NULL : rows,
                             .mask_kind = (dw_mask)(5 - i),
                             .tree = DW__TREE_RANDOM,
                             .addressing = DW_BLOCK_TABLE,
                             .lengths_include_drafts = i % 2,
                             .dead_nodes = 1,
                             .strided = i / 2 % 2,
                             .shuffle = 1,
                             .q_scale = 3,
                             .lse_base_e = i % 2,
                             .spare_pages = 1,
                             .seed = (uint64_t)(100 + i)};
    check_problem(&spec, 64);
  }
}

static void oracle_agrees_on_scalars_and_parts(void **state) {
  (void)state;
  for (int i = 0; i < 24; i++) {
    bool elsewhere = i % 6 == 5;
    dw__problem_spec spec = {.shape = shape_of(3, i % 2 ? 16 : 1, DW_BF16, DW_BF16),
                             .batch = 4,
                             .prefix = prefixes,
                             .rows = i % 5 == 4 ? NULL : rows,
                             .mask_kind = (dw_mask)(i % 6),
                             .tree = DW__TREE_RANDOM,
                             .one_tree = i > 11,
                             .mask_shared = i > 11 && (i % 6 == 3 || i % 6 == 5),
                             .addressing = i % 4 > 1 ? DW_BLOCK_TABLE : DW_CSR,
                             .lengths_include_drafts = i % 3 == 0,
                             .drafts_elsewhere = elsewhere,
                             .window = elsewhere    ? 0
                                       : i % 4 == 0 ? 1
                                                    : 3 * i,
                             .positions = i % 3,
                             .soft_cap = i % 2 ? 0 : 0.5f + (float)i / 8,
                             .sinks = i % 3 == 1,
                             .q_rope = i % 2,
                             .kv_rope = i / 2 % 2,
                             .kv_scale = i % 8 < 4 ? 0 : 0.5f * (float)(i % 4),
                             .dead_nodes = 1,
                             .strided = i / 3 % 2,
                             .shuffle = 1,
                             .q_scale = 2,
                             .lse_base_e = i % 2,
                             .spare_pages = 1,
                             .seed = (uint64_t)(200 + i)};
    if (i % 8 > 2) spec.shape.kv = DW_E4M3;
    check_problem(&spec, 32);
  }
}

// ---- comparing and counting -----------------------------------------------------------------------------------

// Three rows of one request, right but for what the test spoils.
typedef struct rows_case {
  float out[3][2][V], lse[3][2];
  double exact[6][V], exact_lse[6], plain[6][V];
  dw_tool_row rows[6];
} rows_case;

static void compare_rows(rows_case *c) {
  dw_tool_compare_params p = {.out = c->out,
                              .lse = &c->lse[0][0],
                              .exact = &c->exact[0][0],
                              .exact_lse = c->exact_lse,
                              .plain = &c->plain[0][0],
                              .rows = c->rows,
                              .out_row_stride = 2 * V,
                              .out_head_stride = V,
                              .lse_row_stride = 2,
                              .heads = 2,
                              .width = 3,
                              .out_dtype = 2};
  run("dw_tool_compare", &p, 2, 1, 1, DW_T_THREADS);
}

static void compare_finds_each_error(void **state) {
  (void)state;
  rows_case *c = calloc(1, sizeof *c);
  for (int i = 0; i < 6; i++)
    for (int d = 0; d < V; d++) {
      c->exact[i][d] = 1 + i;
      c->plain[i][d] = (1 + i) * 1.01;
      c->out[i / 2][i % 2][d] = (float)(1 + i);
    }
  for (int i = 0; i < 6; i++) c->exact_lse[i] = c->lse[i / 2][i % 2] = (float)i;
  c->out[1][0][7] = 3 * 1.5f;
  c->out[2][1][0] = NAN;
  c->lse[0][1] = -INFINITY;
  compare_rows(c);
  for (int i = 0; i < 6; i++) {
    assert_int_equal(c->rows[i].compared, 1);
    assert_float_equal(c->rows[i].plain, 0.01, 1e-12);
    assert_float_equal(c->rows[i].norm, (1 + i) * sqrt(V), 1e-9);
  }
  assert_float_equal(c->rows[0].relative, 0, 0);
  assert_int_equal(c->rows[0].close, V);
  assert_float_equal(c->rows[2].relative, 0.5 / sqrt(V), 1e-7);
  assert_int_equal(c->rows[2].close, V - 1);
  assert_true(isnan(c->rows[5].relative));
  assert_true(isinf(c->rows[1].lse) && c->rows[1].lse_exact == 1);
  free(c);
}

static void outside_and_differ_count(void **state) {
  (void)state;
  enum { ROW = 12, ALL = 8 + 3 * ROW + 8 };
  unsigned short data[ALL];
  unsigned words[100], other[100], count = 0;
  for (int i = 0; i < ALL; i++) data[i] = 0x7FED;
  dw_tool_count_params p = {.data = data,
                            .count = &count,
                            .elements = ALL,
                            .lead = 8,
                            .row_stride = ROW,
                            .head_stride = 5,
                            .rows = 2,
                            .element_bytes = 2,
                            .heads = 2,
                            .head_elements = 4,
                            .poison = 0x7FED};
  for (int row = 0; row < 2; row++)
    for (int i = 0; i < 4; i++) data[8 + row * ROW + i] = data[8 + row * ROW + 5 + i] = 1;
  run("dw_tool_outside", &p, 1, 1, 1, 256);
  assert_int_equal(count, 0);
  data[7] = data[8 + 4] = data[8 + 10] = data[8 + 2 * ROW] = data[ALL - 1] = 1;  // before, between, behind
  run("dw_tool_outside", &p, 1, 1, 1, 256);
  assert_int_equal(count, 5);
  for (unsigned i = 0; i < 100; i++) words[i] = other[i] = i;
  other[3] = other[99] = 7;
  count = 0;
  p = (dw_tool_count_params){.data = words, .other = other, .count = &count, .elements = 100};
  run("dw_tool_differ", &p, 1, 1, 1, 256);
  assert_int_equal(count, 2);
}

static void fill_is_normal_and_only_where_used(void **state) {
  (void)state;
  enum { UNITS = 64, STRIDE = 72, N = UNITS * STRIDE };
  uint16_t *data = malloc(N * 2);
  unsigned char used[UNITS];
  double sum = 0, squares = 0;
  memset(data, 0xEE, N * 2);
  for (int i = 0; i < UNITS; i++) used[i] = i % 4 != 3;
  dw_tool_fill_params p = {.to = data,
                           .used = used,
                           .seed = 5,
                           .units = UNITS,
                           .page_stride = 16 * STRIDE,
                           .unit_stride = STRIDE,
                           .page = 16,
                           .elements = 64,
                           .scale = 2};
  run("dw_tool_fill", &p, 2, 1, 1, 256);
  for (int i = 0; i < N; i++) {
    double value = (double)dw__to_float(DW_BF16, &data[i]);
    if (i / STRIDE % 4 == 3 || i % STRIDE >= 64) assert_int_equal(data[i], 0xEEEE);
    else sum += value, squares += value * value;
  }
  int n = UNITS / 4 * 3 * 64;
  assert_float_equal(sum / n, 0, 0.15);
  assert_float_equal(sqrt(squares / n), 2, 0.15);
  free(data);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(oracle_agrees_over_csr),
    cmocka_unit_test(oracle_agrees_over_block_tables),
    cmocka_unit_test(oracle_agrees_on_scalars_and_parts),
    cmocka_unit_test(oracle_agrees_on_scores_of_minus_infinity),
    cmocka_unit_test(compare_finds_each_error),
    cmocka_unit_test(outside_and_differ_count),
    cmocka_unit_test(fill_is_normal_and_only_where_used),
  };
  return cmocka_run_group_tests(tests, compile, unload);
}
