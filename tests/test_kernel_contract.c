// What users of such systems ran into, continued from test_kernel_cases: every form in which a call may bring its mask, its q and
// its KV, and windows, soft caps, sinks and drafts on another rank. Each test is named after its case; all of it by host execution.
//
// | case | here |
// |---|---|
// | a04 | requests shorter than their drafts, with a window |
// | a07 | rows that see nothing, by a mask of any form or by a window, alone and with a sink |
// | a09 | a window that begins inside a row's range of tiles |
// | a14 | ranks with a part of the prefix each, and the drafts: merged by dw_merge_states, in both bases |
// | a15 a16 a18 a20 | masks at any byte, too small ones, wide strides, padded and ragged ones |
// | a19 | every form of a tree gives the same bits, up to 1,025 nodes |
// | a22 d10 | a matrix for each request: its own run |
// | a24 | a chain in every form: no row looks ahead; who sees infinity is not finite; NaN in the last tile of a window |
// | a25 a26 | a window counts positions, of drafts too; its edge |
// | a27 | the sink of each head in every row |
// | a41 | q and KV in one part or two, with gaps or without: the same bits |
// | a44 | scores far beyond a cap |
// | d03 | branches in pages of their own, with holes |
// | d04 | prefix and tree in one call, in every form |
#include "companion_stage.h"
#include "companions.h"
#include "kernel_tests.h"
#include "list_tests.h"

#define COUNT(array) ((int)DW__COUNT(array))
#define SMALL "mla:h=8,t=9,qk=320,v=256"
#define FEW "family=rowsplit,n_tiles=2,combine=few,combine_splits=4"
#define MANY "family=rowsplit,n_tiles=2,combine=many,combine_splits=8"
#define FIVE "family=rowsplit,n_tiles=5,setmaxnreg=1,combine=many,combine_splits=8"
#define PAIR "family=dimsplit,n_tiles=8,setmaxnreg=1,combine=few,combine_splits=4"
#define ASYNC "family=rowsplit,n_tiles=3,cp_async=1,combine=few,combine_splits=4"
#define SPLIT "family=split,combine=few,combine_splits=8"
#define REFERENCE "family=reference"
static const char *const all_variants[] = {FEW, MANY, FIVE, PAIR, SPLIT, REFERENCE};

static const dw_mask forms[] = {DW_MASK_PARENTS, DW_MASK_BITS, DW_MASK_BYTES_QLEN, DW_MASK_BYTES_FULL, DW_MASK_BIAS_F32};
static const dw_mask matrices[] = {DW_MASK_BITS, DW_MASK_BYTES_QLEN, DW_MASK_BYTES_FULL, DW_MASK_BIAS_F32};

static dw__problem *problem_of(const char *shape_text, int batch, const int *prefix, const int *rows, dw_mask mask) {
  dw__problem_spec spec = kt_spec_of(shape_text, batch, prefix, rows, mask);
  return kt_problem(&spec);
}

static dw__problem *solved(const dw__problem_spec *spec) {
  dw__problem *problem = kt_problem(spec);
  kt_solve(problem);
  return problem;
}

static void see_nothing(const dw__problem *problem, int request, int node) {
  for (int j = 0; j < problem->rows[request]; j++) kt_see(problem, request, node, j, false);
}

// All of a list of problems with one answer give the same bits as the first; each is checked and freed.
static void assert_same_bits(const kt_kernel *kernel, dw__problem **list, int count, int split_tokens) {
  kt_result first = {0};
  for (int i = 0; i < count; i++) {
    dw_bounds bounds = kt_fixed(list[i], split_tokens);
    kt_solve(list[i]);
    kt_result r = kt_take_run(kernel, &bounds, list[i]);
    kt_check(list[i]);
    if (i == 0) first = r;
    kt_assert_same(&first, &r);
    if (i) kt_drop(&r);
    dw__problem_free(list[i]);
  }
  kt_drop(&first);
}

// ---- rows that see little -------------------------------------------------------------------------------------

static void a07_no_form_shows_anything(void **state) {
  (void)state;
  for (int i = 0; i < COUNT(all_variants); i++)
    for (int k = 0; k < 16; k++) {
      int prefix = k / 8 ? 20 : 0;
      dw__problem_spec spec = kt_spec_of(SMALL, 1, &prefix, NULL, matrices[k % 4]);
      spec.sinks = k / 4 % 2;
      dw__problem *problem = kt_problem(&spec);
      see_nothing(problem, 0, 3);
      see_nothing(problem, 0, 8);
      kt_note("%s, form %d, prefix %d, sinks %d", all_variants[i], (int)spec.mask_kind, prefix, spec.sinks);
      kt_solve(problem);
      dw_bounds bounds = kt_bounds(problem);
      kt_result r = kt_take_run(kt_kernel_for(problem, all_variants[i]), &bounds, problem);
      kt_check(problem);
      if (!prefix && !spec.sinks) kt_assert_nothing(&r, 3, 1), kt_assert_nothing(&r, 8, 1);
      for (int h = 0; h < 8 && !prefix && spec.sinks; h++) {
        float sink = problem->args.sinks[h];
        if (isfinite(sink)) assert_float_equal(r.lse[3 * 8 + h], sink / logf(2), 1e-4 * fabs((double)sink) + 1e-5);
        else assert_true(r.lse[3 * 8 + h] == -INFINITY);
      }
      kt_drop(&r);
      dw__problem_free(problem);
    }
}

// Node 4 stands 500 positions further on than the prefix ends and does not see itself; node 6 there sees itself alone. The others
// have the bits of a call in which these two stand where the tree says.
static void a07_window_that_shows_nothing(void **state) {
  (void)state;
  int prefix = 100;
  for (int i = 0; i < COUNT(all_variants); i++)
    for (int k = 0; k < 8; k++) {
      dw__problem_spec spec = kt_spec_of(SMALL, 1, &prefix, NULL, matrices[k % 4]);
      spec.tree = DW__TREE_STAR;
      spec.window = 16;
      spec.positions = 1;
      spec.sinks = k / 4;
      dw__problem *usual = kt_problem(&spec), *problem = kt_problem(&spec);
      const kt_kernel *kernel = kt_kernel_for(problem, all_variants[i]);
      see_nothing(problem, 0, 4), see_nothing(problem, 0, 6);
      kt_see(problem, 0, 6, 6, true);
      kt_positions(problem)[4] = kt_positions(problem)[6] = 600;
      kt_note("%s, form %d, sinks %d", all_variants[i], (int)spec.mask_kind, spec.sinks);
      kt_solve(usual), kt_solve(problem);
      dw_bounds bounds = kt_bounds(problem);
      kt_result a = kt_take_run(kernel, &bounds, usual), b = kt_take_run(kernel, &bounds, problem);
      kt_check(usual), kt_check(problem);
      if (!spec.sinks) kt_assert_nothing(&b, 4, 1);
      for (int node = 0; node < 9; node++) assert_true(kt_same_rows(&a, node, &b, node, 1) == (node != 4 && node != 6));
      kt_drop(&a), kt_drop(&b);
      dw__problem_free(usual), dw__problem_free(problem);
    }
}

// Requests shorter than their drafts: a row stands where its mask says, also where it does not see all of those drafts.
static void a04_window_of_short_requests(void **state) {
  (void)state;
  static const int prefix[] = {30, 0, 0, 0};
  for (int i = 0; i < COUNT(all_variants); i++)
    for (int k = 0; k < 6; k++) {
      dw__problem_spec spec = kt_spec_of(SMALL, 4, prefix, NULL, k < 5 ? forms[k] : DW_MASK_NONE);
      spec.window = 3;
      dw__problem *problem = kt_problem(&spec);
      for (int b = 1; b < 4; b++) kt_lengths(problem)[b] = 1 + 3 * (b - 1);
      kt_note("%s, form %d", all_variants[i], (int)spec.mask_kind);
      kt_solve(problem);
      kt_run_check(kt_kernel_for(problem, all_variants[i]), problem);
      dw__problem_free(problem);
    }
}

// 1,000 tokens, a window of 16, nodes 40 positions apart: the first tiles of a range are hidden from most rows, and from node 3 on
// a row sees none of the prefix.
static void a09_window_begins_inside(void **state) {
  (void)state;
  const char *text = "mla:h=4,t=8,qk=192,v=128";
  int prefix = 1000;
  for (int i = 0; i < COUNT(all_variants); i++)
    for (int k = 0; k < 4; k++) {
      dw__problem_spec spec = kt_spec_of(text, 1, &prefix, NULL, k % 2 ? DW_MASK_NONE : DW_MASK_BYTES_QLEN);
      spec.window = 16;
      spec.positions = 1;
      dw__problem *problem = kt_problem(&spec);
      for (int node = 0; node < 8; node++) kt_positions(problem)[node] = prefix + (node < 3 ? 5 * node : 40 * node);
      kt_note("%s, way %d", all_variants[i], k);
      kt_solve(problem);
      dw_bounds bounds = kt_fixed(problem, k / 2 ? 2048 : 0);
      kt_run(kt_kernel_for(problem, all_variants[i]), &bounds, problem, DW_HOST_FORWARD, 1);
      kt_check(problem);
      dw__problem_free(problem);
    }
}

// ---- ranks ----------------------------------------------------------------------------------------------------

static dw_status launch_merge(const dw_companions *companions, void *args, void *stream, dw_error *error) {
  return dw_merge_states(companions, args, stream, error);
}

// Four results of the same rows in fp32, merged by the companion kernel.
static kt_result merged(const kt_result parts[4], int v, int base_e) {
  dw_error error = {0};
  dw__stage *stage = NULL;
  size_t vectors = (size_t)parts[0].rows * (size_t)parts[0].heads, bytes = vectors * (size_t)v * sizeof(float);
  if (dw__stage_host(kt_context(), false, DW_HOST_FORWARD, 1, &stage, &error)) kt_fail("stage", &error);
  dw__array *outs = dw__stage_array(stage, 4 * bytes), *lses = dw__stage_array(stage, 4 * vectors * sizeof(float));
  dw__array *out = dw__stage_array(stage, bytes), *lse = dw__stage_array(stage, vectors * sizeof(float));
  assert_true(outs && lses && out && lse);
  for (int i = 0; i < 4; i++) {
    memcpy(outs->before + (size_t)i * bytes, parts[i].out, bytes);
    memcpy(lses->before + (size_t)i * vectors * sizeof(float), parts[i].lse, vectors * sizeof(float));
  }
  out->written_by = lse->written_by = 1u << DW__MERGE;
  dw_merge_args args = {
    .size = sizeof args,
    .states = {{.out = outs->device, .lse = lses->device, .count = 4, .dtype = DW_F32, .lse_base_e = base_e}},
    .state_kinds = 1,
    .rows = parts[0].rows,
    .heads = parts[0].heads,
    .v = v,
    .out = out->device,
    .lse = lse->device,
    .dtype = DW_F32,
    .lse_base_e = base_e};
  dw__stage_send(stage);
  dw__stage_run(stage, 0, launch_merge, &args);
  kt_result r = {.rows = parts[0].rows, .heads = parts[0].heads, .vector_bytes = (size_t)v * sizeof(float)};
  r.out = malloc(bytes), r.lse = malloc(vectors * sizeof(float));
  assert_true(r.out && r.lse);
  dw__stage_fetch(stage, out, r.out);
  dw__stage_fetch(stage, lse, r.lse);
  if (dw__stage_take(stage, &error)) kt_fail("merge", &error);
  dw__stage_close(stage);
  return r;
}

// Three ranks hold a third of each prefix, a fourth call has the drafts alone: merged, they are the call that has it all.
static void check_ranks(const char *variant, dw_mask mask, int base_e) {
  enum { BATCH = 3, V = 128 };
  static const int prefix[BATCH] = {200, 1, 77};
  const char *text = "mla:h=8,t=8,qk=192,v=128,q=fp16,kv=fp16,o=fp32";
  dw__problem_spec spec = kt_spec_of(text, BATCH, prefix, NULL, mask);
  spec.addressing = DW_CSR;
  spec.lse_base_e = base_e;
  spec.soft_cap = 4;
  dw__problem *problem = solved(&spec);
  const kt_kernel *kernel = kt_kernel_for(problem, variant);
  dw_bounds bounds = kt_bounds(problem);
  kt_note("%s, form %d, base %s", variant, (int)mask, base_e ? "e" : "2");
  kt_run_check(kernel, problem);
  kt_result parts[4];
  int32_t length[BATCH], indptr[BATCH + 1];
  for (int rank = 0; rank < 4; rank++) {
    dw__problem part = *problem;
    part.args.kv_len = length, part.args.kv_indptr = indptr;
    for (int b = 0; b < BATCH; b++) {
      int from = prefix[b] * rank / 3, to = rank < 3 ? prefix[b] * (rank + 1) / 3 : prefix[b] + 8;
      length[b] = to - from;
      indptr[b] = problem->args.kv_indptr[b] + from;
    }
    indptr[BATCH] = problem->args.kv_indptr[BATCH];
    part.args.drafts_elsewhere = rank < 3;
    part.args.lengths_include_drafts = rank == 3;
    if (rank < 3) part.args.mask = NULL, part.mask_bytes = 0;
    parts[rank] = kt_take_run(kernel, &bounds, &part);
  }
  kt_result all = merged(parts, V, base_e);
  for (int i = 0; i < all.rows * all.heads; i++) {
    double off = 0, size = 0;
    for (int d = 0; d < V; d++) {
      double exact = problem->out64[i * V + d], found = (double)((const float *)all.out)[i * V + d];
      off += (found - exact) * (found - exact), size += exact * exact;
    }
    if (!(sqrt(off / size) < 1e-3)) fail_msg("vector %d is off by %g", i, sqrt(off / size));
    assert_float_equal(all.lse[i], problem->lse64[i], 1e-3);
  }
  for (int rank = 0; rank < 4; rank++) kt_drop(&parts[rank]);
  kt_drop(&all);
  dw__problem_free(problem);
}

static void a14_ranks_merged(void **state) {
  (void)state;
  static const dw_mask kinds[] = {DW_MASK_NONE, DW_MASK_PARENTS, DW_MASK_BITS, DW_MASK_BYTES_QLEN, DW_MASK_BIAS_F32};
  for (int i = 0; i < COUNT(kinds); i++) check_ranks(all_variants[i], kinds[i], i % 2);
}

// ---- where masks lie ------------------------------------------------------------------------------------------

// Matrices at any byte.
static void a15_offsets_of_elements(void **state) {
  (void)state;
  static const int prefix[] = {56, 54, 16}, rows[] = {7, 10, 3};
  static const char *const variants[] = {FEW, SPLIT, REFERENCE};
  const char *text = "mla:h=4,t=11,qk=192,v=128";
  for (int i = 0; i < COUNT(variants); i++)
    for (int k = 0; k < 8; k++) {
      dw__problem_spec spec = kt_spec_of(text, 3, prefix, rows, matrices[k % 4]);
      spec.strided = k / 4;
      dw__problem *problem = solved(&spec);
      kt_note("%s, form %d, strided %d", variants[i], (int)spec.mask_kind, spec.strided);
      if (spec.mask_kind == DW_MASK_BYTES_FULL)
        assert_true(problem->args.mask_indptr[1] % 4 && problem->args.mask_indptr[2] % 4);
      kt_assert_own_runs(kt_kernel_of(text, variants[i]), problem, 16);
      dw__problem_free(problem);
    }
}

static void assert_refused(const kt_kernel *kernel, dw__problem *problem, const char *field, const char *found) {
  dw_error error = {0};
  dw_bounds bounds = kt_bounds(problem);
  assert_int_equal(dw__host_kernel_run(kernel->host, &bounds, problem, DW_HOST_FORWARD, 1, &error), DW_BAD_ARGUMENT);
  assert_string_equal(error.field, field);
  assert_string_equal(error.found, found);
}

// Ten rows and a buffer for less. A pointer has no size: strides and offsets say what there is.
static void a16_mask_too_small(void **state) {
  (void)state;
  const char *text = "mla:h=4,t=10,qk=192,v=128";
  const kt_kernel *kernel = kt_kernel_of(text, FEW);
  static const int prefix[] = {10, 10};
  for (int k = 0; k < 2; k++) {
    dw__problem *problem = problem_of(text, 2, prefix, NULL, k ? DW_MASK_BIAS_F32 : DW_MASK_BYTES_QLEN);
    kt_note("form %d", (int)problem->args.mask_kind);
    problem->args.mask_row_stride = 9;
    assert_refused(kernel, problem, "mask_row_stride", "9");
    problem->args.mask_row_stride = 0, problem->args.mask_request_stride = 99;
    assert_refused(kernel, problem, "mask_request_stride", "99");
    problem->args.mask_row_stride = 15, problem->args.mask_request_stride = 144;  // the last element is the 145th
    assert_refused(kernel, problem, "mask_request_stride", "144");
    dw__problem_free(problem);
  }
  dw__problem *problem = problem_of(text, 2, prefix, NULL, DW_MASK_BYTES_FULL);
  int64_t *indptr = (int64_t *)(uintptr_t)problem->args.mask_indptr;
  dw_error error = {0};
  indptr[1] = 10 * 15;
  assert_int_equal(dw__problem_solve(problem, 1, &error), DW_BAD_ARGUMENT);
  assert_string_equal(error.field, "mask_indptr[1]");
  assert_string_equal(error.found, "150");
  assert_string_equal(error.allowed, "at least 200");
  problem->args.mask_indptr = NULL;
  assert_refused(kernel, problem, "mask_indptr", "NULL");
  dw__problem_free(problem);
}

// Matrices made for 96 drafts, used with trees of 33 and 31: ragged, and by the call's width.
static void a18_strides_of_matrices(void **state) {
  (void)state;
  static const int prefix[] = {5, 0, 40}, widths[] = {33, 31};
  static const char *const variants[] = {FEW, SPLIT, REFERENCE};
  const char *text = "mla:h=2,t=96,qk=192,v=128";
  for (int i = 0; i < COUNT(variants); i++)
    for (int k = 0; k < 16; k++) {
      int width = widths[k % 2], rows[] = {width, width, width};
      dw__problem_spec spec = kt_spec_of(text, 3, prefix, rows, k / 2 % 2 ? DW_MASK_BYTES_QLEN : DW_MASK_BIAS_F32);
      spec.strided = k / 4 % 2;
      dw__problem *problem = kt_problem(&spec);
      dw_args *args = &problem->args;
      if (k / 8) {
        args->qo_indptr = NULL, args->width = width;
        if (!spec.strided) args->mask_row_stride = 96, args->mask_request_stride = 96 * 96;
        else if (!args->mask_request_stride) args->mask_request_stride = 96 * args->mask_row_stride;
      }
      kt_note("%s, %d of 96 drafts, way %d", variants[i], width, k);
      kt_solve(problem);
      kt_run_check(kt_kernel_of(text, variants[i]), problem);
      dw__problem_free(problem);
    }
}

static void a19_all_forms_agree(void **state) {
  (void)state;
  static const int nodes[] = {31, 32, 33, 63, 64, 65, 128};
  static const char *const variants[] = {FEW, "family=rowsplit,n_tiles=3,setmaxnreg=1,combine=few,combine_splits=4", MANY,
                                         SPLIT, REFERENCE};
  static const int prefix[] = {9, 0, 20};
  for (int i = 0; i < COUNT(nodes); i++) {
    char text[64];
    int rows[] = {nodes[i], nodes[i] / 2, 1};
    snprintf(text, sizeof text, "mla:h=2,t=%d,qk=192,v=128", nodes[i]);
    dw__problem *list[10];
    for (int k = 0; k < 10; k++) {
      dw__problem_spec spec = kt_spec_of(text, 3, prefix, rows, forms[k % 5]);
      spec.strided = k / 5;
      list[k] = kt_problem(&spec);
    }
    kt_note("%s %s", text, variants[i % 5]);
    assert_same_bits(kt_kernel_of(text, variants[i % 5]), list, 10, 32);
  }
}

// The widest tree there may be, and one that fills the last of 33 words.
static void a19_trees_of_1025_nodes(void **state) {
  (void)state;
  const char *text = "mla:h=1,t=1025,qk=192,v=128";
  static const char *const variants[] = {FEW, SPLIT};
  static const int prefix[] = {30, 3}, rows[] = {1025, 33};
  for (int i = 0; i < COUNT(variants); i++) {
    dw__problem *list[5];
    for (int k = 0; k < 5; k++) list[k] = problem_of(text, 2, prefix, rows, forms[k]);
    kt_note("%s", variants[i]);
    assert_same_bits(kt_kernel_of(text, variants[i]), list, 5, 256);
  }
}

// Trees of 5, 9 and 16 nodes: words and bytes end to end, matrices padded to 16, and calls of 16 rows a request in which the padding
// is seen by no live row.
static void a20_padded_matrices(void **state) {
  (void)state;
  static const int prefix[] = {30, 0, 47}, rows[] = {5, 9, 16};
  static const char *const variants[] = {FEW, SPLIT, REFERENCE};
  const char *text = "mla:h=4,t=16,qk=192,v=128";
  for (int i = 0; i < COUNT(variants); i++)
    for (int k = 0; k < 4; k++) {
      dw__problem *ragged = problem_of(text, 3, prefix, rows, matrices[k]),
                  *padded = problem_of(text, 3, prefix, NULL, matrices[k]);
      for (int b = 0; b < 3; b++)
        for (int node = 0; node < 16; node++)
          for (int j = 0; j < 16; j++)
            if (node >= rows[b] || j >= rows[b]) kt_see(padded, b, node, j, node == j);
      kt_note("%s, form %d", variants[i], (int)matrices[k]);
      kt_solve(ragged), kt_solve(padded);
      dw_bounds bounds = kt_fixed(padded, 16);
      const kt_kernel *kernel = kt_kernel_of(text, variants[i]);
      kt_result a = kt_take_run(kernel, &bounds, ragged), b = kt_take_run(kernel, &bounds, padded);
      kt_check(ragged), kt_check(padded);
      for (int r = 0; r < 3; r++) kt_assert_same_rows(&a, kt_first_row(ragged, r), &b, 16 * r, rows[r]);
      kt_drop(&a), kt_drop(&b);
      dw__problem_free(ragged), dw__problem_free(padded);
    }
}

static void a22_a_matrix_for_each_request(void **state) {
  (void)state;
  static const int prefix[] = {0, 17, 400, 1500};
  for (int k = 0; k < 4; k++) {
    dw__problem_spec spec = kt_spec_of("mla:h=2,t=16,qk=192,v=128", 4, prefix, NULL, matrices[k]);
    spec.strided = k % 2;
    spec.window = k > 1 ? 300 : 0;
    dw__problem *problem = solved(&spec);
    kt_note("form %d", (int)matrices[k]);
    kt_assert_own_runs(kt_kernel_for(problem, all_variants[k]), problem, 256);
    dw__problem_free(problem);
  }
}

// K is infinite beyond V alone.
static void a09_scores_of_minus_infinity(void **state) {
  (void)state;
  static const char *const variants[] = {FEW, FIVE, PAIR, ASYNC, SPLIT, REFERENCE};
  for (int i = 0; i < COUNT(variants); i++) kt_check_minus_infinity(SMALL, variants[i], 256 + i);
}

// Poison in drafts from `first` on reaches none of the rows before, whatever says that this is a chain.
static void a24_no_form_shows_the_future(void **state) {
  (void)state;
  static const int prefix[] = {20, 0, 7};
  for (int i = 0; i < COUNT(all_variants); i++)
    for (int k = 0; k < 10; k++) {
      int first = 1 + (i + k) % 7;
      dw__problem_spec spec = kt_spec_of(SMALL, 3, prefix, NULL, forms[k % 5]);
      spec.tree = DW__TREE_CHAIN;
      spec.kv_rope = k / 5;
      spec.soft_cap = k / 5 ? 5 : 0;
      dw__problem *problem = solved(&spec);
      const kt_kernel *kernel = kt_kernel_for(problem, all_variants[i]);
      dw_bounds bounds = kt_bounds(problem);
      kt_note("%s, form %d, poison from draft %d on", all_variants[i], (int)spec.mask_kind, first);
      kt_result clean = kt_take_run(kernel, &bounds, problem);
      kt_check(problem);
      for (int b = 0; b < 3; b++)
        for (int draft = first; draft < 9; draft++) kt_fill_token(problem, b, prefix[b] + draft, draft % 2 ? NAN : INFINITY);
      kt_result poisoned = kt_take_run(kernel, &bounds, problem);
      for (int b = 0; b < 3; b++) kt_assert_same_rows(&clean, 9 * b, &poisoned, 9 * b, first);
      for (int b = 0; b < 3; b++) assert_false(kt_same_rows(&clean, 9 * b + first, &poisoned, 9 * b + first, 1));
      kt_drop(&clean), kt_drop(&poisoned);
      dw__problem_free(problem);
    }
}

// Infinity in one element of V: of a draft, of a token that all see, and of one that a window hides from later nodes. Who does not see it
// has the bits of a run without it; of who does, what the oracle says is not finite is not, where its score is -inf or capped, too.
static void a24_who_sees_infinity(void **state) {
  (void)state;
  static const char *const variants[] = {FEW, FIVE, PAIR, ASYNC, REFERENCE};
  static const struct {
    int token, window, first, last;  // nodes that see the token
  } ways[] = {{21, 0, 1, 8}, {3, 0, 0, 8}, {3, 20, 0, 2}};
  const int prefix = 20;
  for (int i = 0; i < COUNT(variants); i++)
    for (int k = 0; k < 4 * COUNT(ways); k++) {
      const int way = k / 4;
      dw__problem_spec spec = kt_spec_of(SMALL, 1, &prefix, NULL, DW_MASK_NONE);
      spec.soft_cap = k % 2 ? 4 : 0;
      spec.window = ways[way].window;
      dw__problem *problem = solved(&spec);
      const kt_kernel *kernel = kt_kernel_for(problem, variants[i]);
      const dw_bounds bounds = kt_bounds(problem);
      kt_note("%s, token %d, window %d, cap %d, sign %d", variants[i], ways[way].token, spec.window, k % 2, k / 2 % 2);
      kt_result clean = kt_take_run(kernel, &bounds, problem);
      kt_check(problem);
      const double bad = k / 2 % 2 ? -(double)INFINITY : (double)INFINITY;
      dw__from_float(DW_BF16, bad, kt_token_element(problem, 0, ways[way].token, 0));
      kt_solve(problem);
      kt_result infinite = kt_take_run(kernel, &bounds, problem);
      int least = 0;  // vectors with a score of -inf
      for (int row = 0; row < 9; row++) {
        const bool sees = row >= ways[way].first && row <= ways[way].last;
        if (!sees) kt_assert_same_rows(&clean, row, &infinite, row, 1);
        for (int head = 0; head < 8; head++) {
          const int vector = row * 8 + head;
          assert_int_equal(!isfinite(problem->out64[vector * 256]), sees);
          least += sees && isfinite(problem->lse64[vector]);
        }
      }
      assert_true(least > 0);
      if (kt_wrongly_finite(problem, 0)) kt_fail("a row that sees infinity is finite", NULL);
      kt_drop(&clean), kt_drop(&infinite);
      dw__problem_free(problem);
    }
}

// Tiles at both ends of a window are edges, the one between is none: a warp may be at the last while another is at the first.
static void a24_poison_behind_a_gap(void **state) {
  (void)state;
  static const char *const variants[] = {FEW, FIVE, PAIR, ASYNC};
  const int prefix = 46;
  for (int i = 0; i < COUNT(variants); i++)
    for (int run = 0; run < 6; run++) {
      dw__problem_spec spec = kt_spec_of("mla:h=8,t=2,qk=320,v=256", 1, &prefix, NULL, DW_MASK_NONE);
      spec.window = 40;
      dw__problem *problem = solved(&spec);
      const kt_kernel *kernel = kt_kernel_for(problem, variants[i]);
      const dw_bounds bounds = kt_fixed(problem, 1024);
      kt_note("%s, run %d", variants[i], run);
      kt_result clean = kt_take_run(kernel, &bounds, problem);
      kt_check(problem);
      kt_fill_token(problem, 0, prefix + 1, NAN);
      kt_run(kernel, &bounds, problem, run == 0 ? DW_HOST_FORWARD : run == 1 ? DW_HOST_REVERSE : DW_HOST_RANDOM, (uint64_t)run);
      kt_result poisoned = kt_take(problem);
      kt_assert_same_rows(&clean, 0, &poisoned, 0, 1);
      for (int head = 0; head < 8; head++) assert_true(isnan(poisoned.lse[8 + head]));
      kt_drop(&clean), kt_drop(&poisoned);
      dw__problem_free(problem);
    }
}

// ---- windows --------------------------------------------------------------------------------------------------

// Four branches, a window that reaches into the prefix, and one so small that a row sees its own token and its parent's alone.
static void a25_window_and_tree(void **state) {
  (void)state;
  int prefix = 1000;
  static const int windows[] = {128, 2, 1};
  for (int i = 0; i < COUNT(all_variants); i++)
    for (int k = 0; k < COUNT(windows); k++) {
      dw__problem *list[10];
      for (int form = 0; form < 10; form++) {
        dw__problem_spec spec = kt_spec_of("mla:h=4,t=9,qk=192,v=128", 1, &prefix, NULL, forms[form % 5]);
        spec.tree = k ? DW__TREE_STAR : DW__TREE_RANDOM;
        spec.window = windows[k];
        spec.positions = form / 5;
        list[form] = kt_problem(&spec);
      }
      kt_note("%s, window %d", all_variants[i], windows[k]);
      assert_same_bits(kt_kernel_for(list[0], all_variants[i]), list, 10, 256);
    }
}

// 4,999 tokens and a window of 4,096: row 0 sees from token 904 on, row 1 from 905 on. A token that weighs much stands at the edge.
static void a26_window_edge(void **state) {
  (void)state;
  enum { W = 4096 };
  const char *text = "mla:h=2,t=2,qk=192,v=128";
  int prefix = 4999;
  for (int i = 0; i < COUNT(all_variants); i++)
    for (int split = 0; split <= 8192; split += 8192) {
      if (split && i == 4) continue;  // the reference does not split
      dw__problem_spec spec = kt_spec_of(text, 1, &prefix, NULL, DW_MASK_NONE);
      spec.window = W;
      dw__problem *problem = solved(&spec);
      const kt_kernel *kernel = kt_kernel_for(problem, all_variants[i]);
      dw_bounds bounds = kt_fixed(problem, split);
      kt_result usual = kt_take_run(kernel, &bounds, problem);
      kt_check(problem);
      for (int edge = 903; edge <= 905; edge++) {
        kt_scale_token(problem, 0, edge, 20);
        kt_note("%s, split %d, token %d", all_variants[i], split, edge);
        kt_solve(problem);
        kt_result r = kt_take_run(kernel, &bounds, problem);
        kt_check(problem);
        for (int row = 0; row < 2; row++) assert_true(kt_same_rows(&usual, row, &r, row, 1) == (edge < 904 + row));
        kt_drop(&r);
        kt_scale_token(problem, 0, edge, 0.05);  // nearly what it was: rounded
        kt_solve(problem);
        kt_drop(&usual);
        usual = kt_take_run(kernel, &bounds, problem);
      }
      kt_drop(&usual);
      dw__problem_free(problem);
    }
}

// ---- scores ---------------------------------------------------------------------------------------------------

// Large and small sinks, of each head its own, in every row; also where a token sees nothing of a range.
static void a27_sinks_of_each_head(void **state) {
  (void)state;
  static const int prefix[] = {40, 0, 200, 7};
  for (int t = 2; t <= 4; t += 2)
    for (int batch = 1; batch <= 4; batch += 3)
      for (int i = 0; i < COUNT(all_variants); i++) {
        char text[64];
        snprintf(text, sizeof text, "mla:h=64,t=%d,qk=192,v=128", t);
        dw__problem_spec spec = kt_spec_of(text, batch, prefix, NULL, DW_MASK_PARENTS);
        spec.sinks = 1;
        spec.lse_base_e = i % 2;
        spec.dead_nodes = i % 2;
        dw__problem *problem = solved(&spec);
        kt_note("%s %s, batch %d", text, all_variants[i], batch);
        kt_run_check(kt_kernel_of(text, all_variants[i]), problem);
        dw__problem_free(problem);
      }
}

// A score is what the last element of a token says: q is 1 there and 0 elsewhere.
static void a44_soft_cap_saturates(void **state) {
  (void)state;
  static const double raw[] = {1, 1000, 4400, 5000, 10000, 1e6};
  enum { QK = 320, HEADS = 8 };
  int prefix = 40;
  for (int i = 0; i < COUNT(all_variants); i++)
    for (int k = 0; k < 8; k++) {
      dw__problem_spec spec = kt_spec_of(SMALL, 1, &prefix, NULL, DW_MASK_PARENTS);
      spec.soft_cap = k % 2 ? 50 : 1.5f;
      spec.sinks = k / 2 % 2;
      dw__problem *problem = kt_problem(&spec);
      problem->args.softmax_scale = 1;
      uint16_t *q = (uint16_t *)(uintptr_t)problem->args.q;
      for (int d = 0; d < 9 * HEADS * QK; d++) q[d] = d % QK == QK - 1 ? 0x3F80 : 0;
      for (int t = 0; t < prefix + 9; t++) {
        double score = raw[t % 6] * (t / 6 % 2 ? -1 : 1);
        if (k / 4) score = -fabs(score);  // nothing but the cap's lower end
        dw__from_float(DW_BF16, score, kt_token_element(problem, 0, t, QK - 1));
      }
      kt_note("%s, way %d", all_variants[i], k);
      kt_solve(problem);
      kt_run_check(kt_kernel_for(problem, all_variants[i]), problem);
      dw__problem_free(problem);
    }
}

// ---- where q and KV lie ---------------------------------------------------------------------------------------

static void a41_parts_and_strides(void **state) {
  (void)state;
  static const char *const shapes[] = {SMALL ",page=16", "mla:h=4,t=3,page=64", "mla:h=4,t=4,qk=192,v=128"};
  static const int prefix[] = {37, 0, 64}, rows[] = {3, 2, 3};
  for (int s = 0; s < COUNT(shapes); s++)
    for (int i = 0; i < COUNT(all_variants); i++) {
      dw__problem *list[16];
      for (int k = 0; k < 16; k++) {
        dw__problem_spec spec = kt_spec_of(shapes[s], 3, prefix, rows, DW_MASK_BYTES_QLEN);
        spec.q_rope = k & 1;
        spec.kv_rope = k >> 1 & 1;
        spec.strided = k >> 2 & 1;
        spec.addressing = k >> 3 ? DW_CSR : DW_BLOCK_TABLE;
        list[k] = kt_problem(&spec);
      }
      kt_note("%s %s", shapes[s], all_variants[i]);
      char variant[128];
      snprintf(variant, sizeof variant, "%s,q_rope=1,kv_rope=1", all_variants[i]);
      assert_same_bits(kt_kernel_of(shapes[s], variant), list, 16, 32);
    }
}

// A prefix of two pages and five tokens, and four branches of two nodes. Each branch has a page of its own: room for the five
// tokens, then its nodes. The prefix's last tokens are read from the first branch's page; all the rest are holes.
static int64_t holey_slot(int page, int prefix, int token) {
  static const int pages[] = {6, 2}, branches[] = {9, 4, 1, 7};
  int whole = prefix / page * page, draft = token - prefix;
  if (token < whole) return pages[token / page] * page + token % page;
  if (draft < 0) return branches[0] * page + token - whole;
  return branches[draft % 4] * page + prefix - whole + draft / 4;
}

static void check_holey(int page, int way, dw_mask mask, const char *variant) {
  enum { PAGES = 11, NODES = 8, MOST = 2 * 64 + 5 + NODES };
  int prefix = 2 * page + 5;
  char text[80];
  snprintf(text, sizeof text, "mla:h=4,t=8,qk=192,v=128,page=%d", page);
  dw__problem_spec spec = kt_spec_of(text, 1, &prefix, NULL, mask);
  spec.addressing = DW_CSR;
  spec.lengths_include_drafts = way == 0;
  spec.index64 = way == 2;
  dw__problem *near = kt_problem(&spec);
  static const int parents[] = {-1, -1, -1, -1, 0, 1, 2, 3};
  for (int i = 0; i < NODES; i++) {
    if (mask == DW_MASK_PARENTS) kt_parents(near)[i] = parents[i];
    else
      for (int j = 0; j < NODES; j++) kt_see(near, 0, i, j, j == i || j == parents[i]);
  }
  size_t record = 192 * 2, bytes = (size_t)PAGES * (size_t)page * record;
  dw__problem far = *near;
  dw__guarded *pool = NULL;
  dw__guarded *memory = dw__guard_make(&pool, bytes);  // NaN
  int32_t slots[MOST];
  int64_t slots64[MOST];
  assert_non_null(memory);
  for (int t = 0; t < prefix + NODES; t++) {
    slots64[t] = slots[t] = (int32_t)holey_slot(page, prefix, t);
    memcpy(memory->data + (size_t)slots[t] * record, kt_token(near, 0, t), record);
  }
  const int32_t indptr[] = {0, prefix + NODES};
  far.args.kv = memory->data, far.kv_bytes = bytes;
  far.args.kv_indptr = indptr;
  far.args.kv_indices = spec.index64 ? (const void *)slots64 : slots;
  far.index_bytes = (size_t)(prefix + (way == 1 ? 0 : NODES)) * (spec.index64 ? 8 : 4);
  if (way == 1) far.args.draft_slots = slots + prefix, far.draft_slots_bytes = NODES * sizeof *slots;
  const kt_kernel *kernel = kt_kernel_of(text, variant);
  kt_note("%s %s, way %d, form %d", text, variant, way, (int)mask);
  dw_bounds bounds = kt_fixed(near, 32);
  kt_solve(near);
  kt_result a = kt_take_run(kernel, &bounds, near), b = kt_take_run(kernel, &bounds, &far);
  kt_check(near);
  kt_assert_same(&a, &b);
  kt_drop(&a), kt_drop(&b);
  dw__guard_free(pool);
  dw__problem_free(near);
}

static void d03_pages_with_holes(void **state) {
  (void)state;
  for (int i = 0; i < COUNT(all_variants); i++)
    for (int way = 0; way < 3; way++)
      for (int k = 0; k < 2; k++) check_holey(k ? 64 : 16, way, forms[(i + way + k) % 5], all_variants[i]);
}

static void d04_prefix_and_tree_in_every_form(void **state) {
  (void)state;
  static const int prefix[] = {0, 1, 64, 500};
  const char *text = "mla:h=16,t=16,page=64";
  static const char *const variants[] = {FEW, FIVE};
  for (int i = 0; i < COUNT(variants); i++) {
    dw__problem *list[5];
    for (int k = 0; k < 5; k++) list[k] = problem_of(text, 4, prefix, NULL, forms[k]);
    kt_note("%s", variants[i]);
    assert_same_bits(kt_kernel_of(text, variants[i]), list, 5, 128);
  }
}

static void d10_two_prompts_in_every_form(void **state) {
  (void)state;
  static const int prefix[] = {3, 900}, rows[] = {60, 26};
  for (int k = 0; k < 4; k++) {
    dw__problem_spec spec = kt_spec_of("mla:h=2,t=60,qk=192,v=128", 2, prefix, rows, matrices[k]);
    spec.q_rope = spec.kv_rope = k % 2;
    dw__problem *problem = solved(&spec);
    kt_note("form %d", (int)matrices[k]);
    kt_assert_own_runs(kt_kernel_for(problem, all_variants[k]), problem, 128);
    dw__problem_free(problem);
  }
}

// ---- a tree in the code ---------------------------------------------------------------------------------------

// The shape's tree gives the bits of the same tree in PARENTS, whole and in requests that have its first nodes only.
static void static_tree_is_its_parents(void **state) {
  (void)state;
  uint64_t seed = 20261130;
  static const int widths[] = {1, 2, 9, 33, 64};
  for (int i = 0; i < COUNT(widths) * COUNT(all_variants); i++) {
    const int width = widths[i / COUNT(all_variants)];
    int parents[64], prefix[] = {0, 33, 17}, rows[] = {width, width / 2, width};
    dw_shape shape = kt_shape(SMALL), plain = shape;
    plain.width = shape.width = shape.tree_nodes = width;
    dw__tree_random(&seed, width, parents);
    for (int n = 0; n < width; n++) shape.tree[n] = (signed char)parents[n];
    dw_variant variant = kt_variant(all_variants[i % COUNT(all_variants)]);
    kt_result results[2];
    for (int k = 0; k < 2; k++) {
      dw__problem_spec spec = kt_spec(k ? &plain : &shape, 3, prefix, rows);
      spec.mask_kind = k ? DW_MASK_PARENTS : DW_MASK_STATIC;
      dw__problem *problem = kt_problem(&spec);
      for (int b = 0; k && b < 3; b++)
        memcpy(kt_parents(problem) + kt_first_row(problem, b), parents, (size_t)rows[b] * sizeof *parents);
      kt_note("width %d, %s, %s", width, all_variants[i % COUNT(all_variants)], k ? "parents" : "static");
      kt_solve(problem);
      const kt_kernel *kernel = kt_kernel_get(&spec.shape, &variant);
      dw_bounds bounds = kt_fixed(problem, 32);
      results[k] = kt_take_run(kernel, &bounds, problem);
      kt_check(problem);
      dw__problem_free(problem);
    }
    kt_assert_same(&results[0], &results[1]);
    for (int k = 0; k < 2; k++) kt_drop(&results[k]);
  }
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(a07_no_form_shows_anything),
    cmocka_unit_test(a07_window_that_shows_nothing),
    cmocka_unit_test(a04_window_of_short_requests),
    cmocka_unit_test(a09_window_begins_inside),
    cmocka_unit_test(a09_scores_of_minus_infinity),
    cmocka_unit_test(a14_ranks_merged),
    cmocka_unit_test(a15_offsets_of_elements),
    cmocka_unit_test(a16_mask_too_small),
    cmocka_unit_test(a18_strides_of_matrices),
    cmocka_unit_test(a19_all_forms_agree),
    cmocka_unit_test(a19_trees_of_1025_nodes),
    cmocka_unit_test(a20_padded_matrices),
    cmocka_unit_test(a22_a_matrix_for_each_request),
    cmocka_unit_test(a24_no_form_shows_the_future),
    cmocka_unit_test(a24_who_sees_infinity),
    cmocka_unit_test(a24_poison_behind_a_gap),
    cmocka_unit_test(a25_window_and_tree),
    cmocka_unit_test(a26_window_edge),
    cmocka_unit_test(a27_sinks_of_each_head),
    cmocka_unit_test(a41_parts_and_strides),
    cmocka_unit_test(a44_soft_cap_saturates),
    cmocka_unit_test(d03_pages_with_holes),
    cmocka_unit_test(d04_prefix_and_tree_in_every_form),
    cmocka_unit_test(d10_two_prompts_in_every_form),
    cmocka_unit_test(static_tree_is_its_parents),
  };
  if (list_tests(argc, argv, tests, DW__COUNT(tests))) return 0;
  if (kt_skip()) return 77;
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  return cmocka_run_group_tests(tests, kt_setup, kt_teardown);
}
