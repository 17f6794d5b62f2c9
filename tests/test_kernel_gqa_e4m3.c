// GQA with KV in e4m3, by host execution: every code, the two scales, q of any size, NaN out of sight, and what users of such systems ran
// into. test_kernels_gqa has types and scales among its axes. Targets: sm_120, whose code widens by an instruction, and sm_80, whose code
// does it by bits.
//
// | case | here |
// |---|---|
// | a08 | NaN where nobody looks, in K, in V and in both |
// | a11 a13 a23 a25 a27 a30 a34 a41 | what they are about, with a byte an element |
// | a38 | prefix with two scales and drafts in bf16, merged; all of it in the pool |
// | a39 | what saturates is read as it was stored |
// | a40 | no scale is 1, of K and of V |
// | b04 b05 b08 | their shapes, as the rule table serves them |
// | d05 | a mask of bytes for keys at any offset |
#include "kernel_tests.h"
#include "list_tests.h"

#define COUNT(array) ((int)DW__COUNT(array))
#define SMALL "gqa:h=6,hk=2,t=9,d=64,kv=e4m3"
#define ONE "family=grouped,n_tiles=1,combine=few,combine_splits=4"
#define FOUR "family=grouped,n_tiles=4,combine=few,combine_splits=2"
#define EIGHT "family=grouped,n_tiles=8,combine=few,combine_splits=4"
#define WARP1 "family=warpsplit,n_tiles=1,combine=few,combine_splits=4"
#define WARP2 "family=warpsplit,n_tiles=2,combine=few,combine_splits=2"
#define WARP4 "family=warpsplit,n_tiles=4,combine=few,combine_splits=2"
#define WARP5 "family=warpsplit,n_tiles=5,combine=few,combine_splits=4"
#define SPLIT "family=split,combine=few,combine_splits=8"
#define REFERENCE "family=reference"
static const char *const all_variants[] = {ONE, FOUR, WARP1, WARP5, SPLIT, REFERENCE};
static const char *const targets[] = {"", ",target=sm_80"};

static dw__problem_spec spec_of(const char *text, int batch, const int *prefix, const int *rows, dw_mask mask) {
  dw__problem_spec spec = kt_spec_of(text, batch, prefix, rows, mask);
  spec.kv_scale = 0.5f;
  spec.v_scale = 2;
  return spec;
}

static uint8_t *element(const dw__problem *p, bool of_v, int token, int head, int d) {
  const dw_shape *shape = &p->spec.shape;
  return (uint8_t *)(uintptr_t)(of_v ? dw__oracle_value(shape, &p->args, 0, token, head)
                                     : dw__oracle_key(shape, &p->args, 0, token, head)) +
         d;
}

static void check_all(dw__problem *problem) {
  kt_solve(problem);
  for (int i = 0; i < COUNT(all_variants); i++) kt_check_in(problem, all_variants[i], 0);
}
static void check_spec(const dw__problem_spec *spec, const char *variant, int split_tokens) {
  dw__problem *problem = kt_problem(spec);
  kt_solve(problem);
  kt_check_in(problem, variant, split_tokens);
  dw__problem_free(problem);
}

// ---- numbers --------------------------------------------------------------------------------------------------

// Each code but NaN at each place of 16 bytes, in K and in V; a token's neighbour has other ones.
static void codes_are_read_exactly(void **state) {
  (void)state;
  int prefix = 254;
  for (int target = 0; target < 2; target++) {
    char text[96];
    snprintf(text, sizeof text, SMALL ",q=fp16%s", targets[target]);
    dw__problem_spec spec = spec_of(text, 1, &prefix, NULL, DW_MASK_PARENTS);
    spec.q_scale = 0.01f;  // so that no token takes it all
    dw__problem *problem = kt_problem(&spec);
    for (int i = 0; i < prefix * 2 * 2 * 64; i++) {
      const int t = i / 256, head = i / 128 % 2, d = i % 64;
      const bool of_v = i / 64 % 2;
      const int code = (t + d * 17 + 3 * head + 5 * of_v) % 254;  // 0 to 0x7E, 0x80 to 0xFE
      *element(problem, of_v, t, head, d) = (uint8_t)(code < 0x7F ? code : code + 1);
    }
    check_all(problem);
    dw__problem_free(problem);
  }
}

// A row that looks at one token alone returns its V times V's scale: all codes, whatever K's scale is.
static void codes_are_returned_exactly(void **state) {
  (void)state;
  int prefix = 0;
  for (int i = 0; i < COUNT(all_variants) * 2; i++) {
    const char *given = all_variants[i / 2], *variant = strcmp(given, WARP5) ? given : WARP2;  // of 256 dimensions
    char text[96];
    snprintf(text, sizeof text, "gqa:h=4,hk=1,t=1,d=256,kv=e4m3,o=fp32%s", targets[i % 2]);
    dw__problem_spec spec = spec_of(text, 1, &prefix, NULL, DW_MASK_NONE);
    spec.kv_scale = 3;
    spec.v_scale = 0.5f;
    dw__problem *problem = kt_problem(&spec);
    for (int d = 0; d < 256; d++) *element(problem, true, 0, 0, d) = (uint8_t)((d & 0x7F) == 0x7F ? 0 : d);
    kt_note("%s %s", text, variant);
    dw_bounds bounds = kt_bounds(problem);
    kt_result r = kt_take_run(kt_kernel_for(problem, variant), &bounds, problem);
    for (int k = 0; k < 4 * 256; k++) {
      float stored = dw__to_float(DW_E4M3, element(problem, true, 0, 0, k % 256)), found;
      memcpy(&found, r.out + 4 * k, sizeof found);
      if (found != stored / 2) fail_msg("%s: element %d: %g, not %g", variant, k, (double)found, (double)stored / 2);
    }
    kt_drop(&r);
    dw__problem_free(problem);
  }
}

// q and K's scale make up for each other: only their product counts, and rows of all sizes share a CTA. V's has no part in it.
static void q_of_any_size(void **state) {
  (void)state;
  static const double sizes[] = {1, 1e-4, 3e4, 1e-12, 1e20, 1e-30, 1e9, 1e-7, 1e4};
  static const float scales[][2] = {{1, 1e4f}, {1e-20f, 1e-3f}, {1e12f, 1e20f}, {300, 1}};
  int prefix = 70;
  for (int k = 0; k < COUNT(scales) + 1; k++) {
    char text[96];
    snprintf(text, sizeof text, SMALL "%s,o=%s", targets[k == COUNT(scales)], k == 2 ? "fp32" : "bf16");
    dw__problem_spec spec = spec_of(text, 1, &prefix, NULL, DW_MASK_PARENTS);
    spec.kv_scale = spec.v_scale = 1;
    spec.soft_cap = k == 1 ? 3 : 0;
    dw__problem *problem = kt_problem(&spec);
    *(float *)(uintptr_t)problem->args.kv_scale = scales[k % COUNT(scales)][0];
    *(float *)(uintptr_t)problem->args.v_scale = scales[k % COUNT(scales)][1];
    for (int row = 0; row < 9; row++)
      for (int d = 0; d < 6 * 64; d++) {
        uint16_t *q = (uint16_t *)(uintptr_t)problem->args.q + row * 6 * 64 + d;
        dw__from_float(DW_BF16, (double)dw__to_float(DW_BF16, q) * sizes[row] * (d % 5 ? 1 : 1e-3), q);
      }
    check_all(problem);
    dw__problem_free(problem);
  }
}

// One weight of 1 and 2,000 of 2^-20: together they are a fifth of a percent, which fp16 weights without a shift would lose half of.
static void small_weights_count(void **state) {
  (void)state;
  int prefix = 2000;
  dw__problem_spec spec = spec_of("gqa:h=1,hk=1,t=1,d=64,kv=e4m3,o=fp32", 1, &prefix, NULL, DW_MASK_NONE);
  spec.kv_scale = 1;
  dw__problem *problem = kt_problem(&spec);
  uint16_t *q = (uint16_t *)(uintptr_t)problem->args.q;
  for (int d = 0; d < 64; d++) dw__from_float(DW_BF16, d == 63 ? 1 : 0, &q[d]);
  for (int t = 0; t <= prefix; t++)
    for (int d = 0; d < 64; d++) {
      dw__from_float(DW_E4M3, d == 63 && t == 777 ? 20 * log(2) / (double)problem->args.softmax_scale : 0,
                     element(problem, false, t, 0, d));
      dw__from_float(DW_E4M3, t == 777 ? 0 : 16, element(problem, true, t, 0, d));
    }
  check_all(problem);
  assert_true(problem->out64[0] > 1e-3);
  dw__problem_free(problem);
}

// ---- NaN ------------------------------------------------------------------------------------------------------

// q is infinite: KV in e4m3 cannot be.
static void a09_scores_of_minus_infinity(void **state) {
  (void)state;
  for (int i = 0; i < COUNT(all_variants); i++)
    kt_check_minus_infinity("gqa:h=8,hk=2,t=9,d=128,kv=e4m3", all_variants[i], 7 * i);
}

// Both codes of NaN in K, in V or in both, of one KV head's drafts that only some rows see: the others keep their bits, who sees one is
// NaN, and where it is V alone in every element of it.
static void a08_nan_where_nobody_looks(void **state) {
  (void)state;
  int prefix = 45;
  for (int i = 0; i < COUNT(all_variants); i++)
    for (int way = 0; way < 4; way++) {
      char text[96];
      snprintf(text, sizeof text, SMALL "%s", targets[way == 3]);
      dw__problem_spec spec = spec_of(text, 1, &prefix, NULL, DW_MASK_BITS);
      dw__problem *clean = kt_problem(&spec), *spoilt = kt_problem(&spec), *both[] = {clean, spoilt};
      for (int p = 0; p < 2; p++)
        for (int node = 0; node < 9; node++) kt_see(both[p], 0, node, 4, node == 4), kt_see(both[p], 0, node, 8, node == 4);
      for (int d = 0; d < 64; d++)
        for (int k = 0; k < 2; k++) {
          if (way != k) *element(spoilt, k, prefix + 4, 1, d) = d % 2 ? 0x7F : 0xFF;
          if (way != k) *element(spoilt, k, prefix + 8, 1, d) = 0xFF;
        }
      kt_note("%s, way %d", all_variants[i], way);
      kt_solve(clean);
      dw_bounds bounds = kt_bounds(clean);
      const kt_kernel *kernel = kt_kernel_for(clean, all_variants[i]);
      kt_result a = kt_take_run(kernel, &bounds, clean), b = kt_take_run(kernel, &bounds, spoilt);
      for (int vector = 0; vector < 9 * 6; vector++) {
        const size_t at = (size_t)vector * a.vector_bytes;
        const bool sees = vector / 6 == 4 && vector % 6 / 3 == 1;
        if (!sees) assert_memory_equal(a.out + at, b.out + at, a.vector_bytes);
        for (size_t e = 0; e < 64 && sees; e++) assert_true(isnan(dw__to_float(DW_BF16, b.out + at + 2 * e)));
      }
      kt_drop(&a), kt_drop(&b);
      dw__problem_free(clean), dw__problem_free(spoilt);
    }
}

// ---- bits -----------------------------------------------------------------------------------------------------

// FIXED ranges have the same bits at any number of row tiles and rows, in any batch.
static void check_fixed(const char *one, const char *more, const char *most) {
  static const int prefix[] = {203, 40, 0};
  dw__problem_spec spec = spec_of("gqa:h=12,hk=2,t=9,d=128,page=16,kv=e4m3", 3, prefix, NULL, DW_MASK_PARENTS);
  dw__problem *problem = kt_problem(&spec);
  kt_solve(problem);
  dw_bounds bounds = kt_fixed(problem, 80);
  kt_result first = kt_take_run(kt_kernel_for(problem, one), &bounds, problem);
  for (int i = 0; i < 2; i++) {
    kt_note("%s", i ? most : more);
    kt_result other = kt_take_run(kt_kernel_for(problem, i ? most : more), &bounds, problem);
    kt_assert_same(&first, &other);
    kt_drop(&other);
  }
  kt_assert_own_runs(kt_kernel_for(problem, more), problem, 80);
  kt_drop(&first);
  dw__problem_free(problem);
}
static void fixed_ranges_have_their_bits(void **state) {
  (void)state;
  check_fixed(ONE, FOUR, EIGHT);
  check_fixed(WARP1, WARP2, WARP5);
}

// ---- cases ----------------------------------------------------------------------------------------------------

static void a11_lengths_1_to_5(void **state) {
  (void)state;
  static const int prefix[] = {0, 1, 2, 3, 4};
  dw__problem_spec spec = spec_of("gqa:h=32,hk=8,t=1,d=128,kv=e4m3", 5, prefix, NULL, DW_MASK_NONE);
  dw__problem *problem = kt_problem(&spec);
  kt_solve(problem);
  for (int i = 0; i < COUNT(all_variants); i++) {
    dw_bounds bounds = kt_bounds(problem);
    bounds.kv_len = 1 << 20;
    kt_note("%s", all_variants[i]);
    kt_run(kt_kernel_for(problem, all_variants[i]), &bounds, problem, DW_HOST_FORWARD, 1);
    kt_check(problem);
  }
  dw__problem_free(problem);
}

static void a13_batches_in_the_merge(void **state) {
  (void)state;
  static const int prefix[] = {100, 37, 0, 260, 16}, rows[] = {8, 8, 3, 1, 5};
  for (int batch = 1; batch <= 5; batch += 4) {
    dw__problem_spec spec = spec_of("gqa:h=24,hk=4,t=8,d=256,kv=e4m3", batch, prefix, rows, DW_MASK_PARENTS);
    dw__problem *problem = kt_problem(&spec);
    kt_solve(problem);
    kt_note("batch %d", batch);
    kt_assert_own_runs(kt_kernel_for(problem, FOUR), problem, 48);
    kt_assert_own_runs(kt_kernel_for(problem, WARP2), problem, 48);
    dw__problem_free(problem);
  }
}

static void a23_unequal_widths(void **state) {
  (void)state;
  static const int prefix[12] = {17, 17, 5, 300, 17, 0, 17, 17, 31, 17, 17, 17};
  for (int batch = 1; batch <= 12; batch += 11)
    for (int i = 0; i < 2; i++) {
      dw__problem_spec spec = spec_of(i ? "gqa:h=4,hk=4,t=37,qk=64,v=96,kv=e4m3" : "gqa:h=4,hk=4,t=37,qk=192,v=128,kv=e4m3",
                                      batch, prefix, NULL, DW_MASK_BYTES_QLEN);
      check_spec(&spec, i ? EIGHT : FOUR, batch == 1 ? 0 : 48);
      check_spec(&spec, i ? WARP5 : WARP4, batch == 1 ? 0 : 48);
    }
}

static void a25_window_and_tree(void **state) {
  (void)state;
  static const int prefix[] = {300, 90};
  for (int i = 0; i < 6; i++) {
    dw__problem_spec spec =
      spec_of("gqa:h=64,hk=8,t=4,d=64,kv=e4m3", 2, prefix, NULL, i % 2 ? DW_MASK_BYTES_FULL : DW_MASK_PARENTS);
    spec.tree = i % 2 ? DW__TREE_STAR : DW__TREE_RANDOM;
    spec.window = (const int[]){128, 1, 31, 2, 33, 290}[i];
    spec.positions = i % 3;
    check_spec(&spec, i % 2 ? ONE : FOUR, 0);
    check_spec(&spec, i % 2 ? WARP4 : WARP1, 0);
  }
}

static void a27_sinks_of_each_head(void **state) {
  (void)state;
  static const int prefix[] = {40, 0, 200, 7};
  for (int i = 0; i < COUNT(all_variants); i++) {
    dw__problem_spec spec = spec_of("gqa:h=64,hk=8,t=4,d=64,kv=e4m3", 4, prefix, NULL, DW_MASK_PARENTS);
    spec.sinks = 1;
    spec.lse_base_e = spec.dead_nodes = i % 2;
    spec.soft_cap = i < 2 ? 0 : 2;
    check_spec(&spec, all_variants[i], 0);
  }
}

// What the rule table takes.
static void check_chosen(const char *text, int batch, const int *prefix, dw_mask mask) {
  dw__problem_spec spec = spec_of(text, batch, prefix, NULL, mask);
  dw__problem *problem = kt_problem(&spec);
  dw_bounds bounds = kt_bounds(problem);
  dw_variant variant;
  dw_error error = {0};
  kt_note("%s, batch %d", text, batch);
  bounds.call = DW_CALL_TABLE;
  if (dw_variant_choose(&spec.shape, &bounds, &variant, &error)) kt_fail("choose", &error);
  assert_int_equal(variant.family, DW_WARPSPLIT);
  kt_solve(problem);
  kt_run(kt_kernel_get(&spec.shape, &variant), &bounds, problem, DW_HOST_FORWARD, 1);
  kt_check(problem);
  dw__problem_free(problem);
}

static void a30_every_group_and_dimension(void **state) {
  (void)state;
  static const int prefix[] = {130, 17};
  static const char *const shapes[] = {"h=64,hk=4,t=8,d=128,page=16", "h=5,hk=1,t=9,d=96",         "h=12,hk=2,t=4,d=64,page=64",
                                       "h=7,hk=1,t=9,d=256",          "h=8,hk=8,t=9,qk=192,v=128", "h=2,hk=1,t=17,qk=32,v=160"};
  for (int i = 0; i < COUNT(shapes) * 2; i++) {
    char text[96];
    snprintf(text, sizeof text, "gqa:%s,kv=e4m3%s%s", shapes[i / 2], i % 4 == 1 ? ",q=fp16" : "", targets[i % 2]);
    check_chosen(text, 2, prefix, DW_MASK_PARENTS);
  }
}

static void a34_every_number_of_rows(void **state) {
  (void)state;
  static const int prefix[] = {33, 0};
  for (int t = 1; t <= 9; t++) {
    char text[64];
    snprintf(text, sizeof text, "gqa:h=16,hk=4,t=%d,d=64,page=16,kv=e4m3", t);
    check_chosen(text, 2, prefix, t % 2 ? DW_MASK_NONE : DW_MASK_PARENTS);
  }
}

// Prefix in e4m3 with a scale of 1/2 for K and 2 for V, drafts as rows of bf16 without one: two calls, merged by their lse. Against
// attention over both, element by element.
static void a38_scaled_prefix_and_plain_drafts(void **state) {
  (void)state;
  enum { HEADS = 4, ROWS = 5, D = 64 };
  int prefix = 60, none = 0;
  dw__problem_spec spec = spec_of("gqa:h=4,hk=2,t=5,d=64,kv=e4m3,o=fp32", 1, &prefix, NULL, DW_MASK_PARENTS);
  spec.lse_base_e = 1;
  spec.lengths_include_drafts = 0;
  spec.drafts_elsewhere = 1;
  dw__problem *pool = kt_problem(&spec);
  spec = spec_of("gqa:h=4,hk=2,t=5,d=64,o=fp32", 1, &none, NULL, DW_MASK_PARENTS);
  spec.lse_base_e = 1;
  spec.kv_scale = spec.v_scale = 0;
  dw__problem *drafts = kt_problem(&spec);
  memcpy((void *)(uintptr_t)drafts->args.q, pool->args.q, pool->q_bytes);
  kt_solve(pool), kt_solve(drafts);
  for (int i = 0; i < COUNT(all_variants); i++) {
    kt_note("%s", all_variants[i]);
    dw_bounds bounds = kt_bounds(pool), draft_bounds = kt_bounds(drafts);
    kt_result a = kt_take_run(kt_kernel_for(pool, all_variants[i]), &bounds, pool);
    kt_result b = kt_take_run(kt_kernel_for(drafts, REFERENCE), &draft_bounds, drafts);
    kt_check(pool), kt_check(drafts);
    for (int vector = 0; vector < ROWS * HEADS; vector++) {
      double exact[D] = {0}, sum = 0;
      for (int t = 0; t < prefix + ROWS; t++) {
        const dw__problem *from = t < prefix ? pool : drafts;
        const dw_shape *shape = &from->spec.shape;
        int token = t < prefix ? t : t - prefix, at = vector / HEADS;
        for (; t >= prefix && at > token; at = kt_parents(drafts)[at]) continue;
        if (t >= prefix && at != token) continue;
        const char *k = dw__oracle_key(shape, &from->args, 0, token, vector % HEADS / 2);
        const char *v = dw__oracle_value(shape, &from->args, 0, token, vector % HEADS / 2);
        const size_t each = dw__dtype_size(shape->kv);
        double score = 0;
        for (size_t d = 0; d < D; d++)
          score += (double)dw__to_float(DW_BF16, (const uint16_t *)pool->args.q + (size_t)vector * D + d) *
                   (t < prefix ? 0.5 : 1) * (double)dw__to_float(shape->kv, k + d * each);
        double weight = exp(score * (double)pool->args.softmax_scale);
        sum += weight;
        for (size_t d = 0; d < D; d++)
          exact[d] += weight * (t < prefix ? 2 : 1) * (double)dw__to_float(shape->kv, v + d * each);
      }
      assert_true(kt_merged_error(&a, &b, vector, D, exact, sum) < 3e-3);
    }
    kt_drop(&a), kt_drop(&b);
  }
  dw__problem_free(pool), dw__problem_free(drafts);
  // All in the pool: the scales are for all.
  spec = spec_of(SMALL, 1, &prefix, NULL, DW_MASK_PARENTS);
  dw__problem *all = kt_problem(&spec);
  check_all(all);
  dw__problem_free(all);
}

// By a scale that is too small most of K is 448, by one too large most of V is subnormal: what was stored is read exactly.
static void a39_codes_that_saturate(void **state) {
  (void)state;
  int prefix = 90;
  dw__problem_spec spec = spec_of(SMALL, 1, &prefix, NULL, DW_MASK_PARENTS);
  spec.kv_scale = 0.001f;
  spec.v_scale = 100;
  dw__problem *problem = kt_problem(&spec);
  int saturated = 0, subnormal = 0;
  for (int t = 0; t < prefix; t++)
    for (int d = 0; d < 64; d++) {
      saturated += (*element(problem, false, t, 0, d) & 0x7F) == 0x7E;
      subnormal += (*element(problem, true, t, 0, d) & 0x7F) < 8;
    }
  assert_true(saturated > 1000 && subnormal > 1000);
  check_all(problem);
  dw__problem_free(problem);
}

static void a40_no_scale_is_one(void **state) {
  (void)state;
  int prefix = 50;
  for (int i = 0; i < COUNT(all_variants); i++) {
    dw__problem_spec spec = spec_of(SMALL, 1, &prefix, NULL, DW_MASK_PARENTS);
    spec.kv_scale = spec.v_scale = 0;
    dw__problem *none = kt_problem(&spec);
    kt_note("%s", all_variants[i]);
    kt_solve(none);
    dw_bounds bounds = kt_bounds(none);
    const kt_kernel *kernel = kt_kernel_for(none, all_variants[i]);
    kt_result a = kt_take_run(kernel, &bounds, none);
    kt_check(none);
    for (int k = 1; k < 4; k++) {
      spec.kv_scale = k & 1 ? 1 : 0;
      spec.v_scale = k & 2 ? 1 : 0;
      dw__problem *one = kt_problem(&spec);
      kt_result b = kt_take_run(kernel, &bounds, one);
      kt_assert_same(&a, &b);
      kt_drop(&b);
      dw__problem_free(one);
    }
    kt_drop(&a);
    dw__problem_free(none);
  }
}

// q as a slice of rows that hold q, k and v.
static void a41_q_in_a_packed_row(void **state) {
  (void)state;
  static const int prefix[] = {50, 0, 16, 7};
  enum { ROWS = 4 * 3, Q = 16 * 128, PACKED = Q + 2 * 4 * 128 };
  dw__problem_spec spec = spec_of("gqa:h=16,hk=4,t=3,d=128,kv=e4m3", 4, prefix, NULL, DW_MASK_PARENTS);
  dw__problem *problem = kt_problem(&spec), packed = *problem;
  static uint16_t rows[ROWS * PACKED];
  memset(rows, 0xFF, sizeof rows);
  for (size_t r = 0; r < ROWS; r++) memcpy(rows + r * PACKED, (const uint16_t *)problem->args.q + r * Q, Q * 2);
  packed.args.q = rows;
  packed.args.q_row_stride = PACKED;
  packed.q_bytes = sizeof rows;
  kt_solve(problem);
  for (int i = 0; i < 4; i++) kt_check_in(i % 2 ? &packed : problem, i < 2 ? ONE : WARP2, 0);
  dw__problem_free(problem);
}

static void b04_b05_b08_as_the_rule_table_serves_them(void **state) {
  (void)state;
  static const int prefix[] = {2100};
  static const char *const shapes[] = {"gqa:h=24,hk=4,t=4,d=256", "gqa:h=32,hk=8,t=5,d=128", "gqa:h=32,hk=8,t=1,d=128,page=16",
                                       "gqa:h=32,hk=8,t=4,d=128,page=64"};
  for (int i = 0; i < COUNT(shapes); i++) {
    char text[64];
    snprintf(text, sizeof text, "%s,kv=e4m3", shapes[i]);
    check_chosen(text, 1, prefix, DW_MASK_NONE);
  }
}

static void d05_mask_of_bytes_at_every_offset(void **state) {
  (void)state;
  for (int keys = 20; keys < 53; keys += 3) {
    int few = keys - 7;
    dw__problem_spec spec = spec_of("gqa:h=16,hk=4,t=7,d=128,kv=e4m3", 1, &few, NULL, DW_MASK_BYTES_FULL);
    spec.planes = (dw__planes)(keys % 4);
    spec.strided = keys % 2;
    check_spec(&spec, keys % 2 ? ONE : FOUR, 0);
    check_spec(&spec, keys % 2 ? WARP5 : WARP2, 0);
  }
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(codes_are_read_exactly),
    cmocka_unit_test(codes_are_returned_exactly),
    cmocka_unit_test(q_of_any_size),
    cmocka_unit_test(small_weights_count),
    cmocka_unit_test(a08_nan_where_nobody_looks),
    cmocka_unit_test(a09_scores_of_minus_infinity),
    cmocka_unit_test(fixed_ranges_have_their_bits),
    cmocka_unit_test(a11_lengths_1_to_5),
    cmocka_unit_test(a13_batches_in_the_merge),
    cmocka_unit_test(a23_unequal_widths),
    cmocka_unit_test(a25_window_and_tree),
    cmocka_unit_test(a27_sinks_of_each_head),
    cmocka_unit_test(a30_every_group_and_dimension),
    cmocka_unit_test(a34_every_number_of_rows),
    cmocka_unit_test(a38_scaled_prefix_and_plain_drafts),
    cmocka_unit_test(a39_codes_that_saturate),
    cmocka_unit_test(a40_no_scale_is_one),
    cmocka_unit_test(a41_q_in_a_packed_row),
    cmocka_unit_test(b04_b05_b08_as_the_rule_table_serves_them),
    cmocka_unit_test(d05_mask_of_bytes_at_every_offset),
  };
  if (list_tests(argc, argv, tests, DW__COUNT(tests))) return 0;
  if (kt_skip()) return 77;
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  return cmocka_run_group_tests(tests, kt_setup, kt_teardown);
}
