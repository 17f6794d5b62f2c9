// KV in e4m3, by host execution: every code, scales, q of any size, and what users of such systems ran into.
//
// | case | here |
// |---|---|
// | a03 a11 a13 a23 a25 a27 a28 | what they are about, with a byte an element |
// | a08 | NaN where nobody looks |
// | a29 | 4 and 8 heads |
// | a34 | 1 to 9 rows with q in bf16 |
// | a38 | a scaled prefix and drafts in bf16, merged; all of it in the pool |
// | a39 | what saturates is read as it was stored |
// | a40 | no scale is 1 |
// | d05 | a mask of bytes for keys at any offset |
#include "kernel_tests.h"
#include "list_tests.h"

#define COUNT(array) ((int)DW__COUNT(array))
#define SMALL "mla:h=8,t=9,qk=320,v=256,kv=e4m3"
#define NARROW "family=rowsplit,n_tiles=1,combine=few,combine_splits=4"
#define WIDE "family=rowsplit,n_tiles=2,combine=few,combine_splits=4,wide_tile=1"
#define FIVE "family=rowsplit,n_tiles=5,setmaxnreg=1,combine=many,combine_splits=8,wide_tile=1"
#define PLAIN_FIVE "family=rowsplit,n_tiles=5,combine=many,combine_splits=8"
#define SPLIT "family=split,combine=few,combine_splits=8"
#define REFERENCE "family=reference"
#define FIVE_OUTPUT FIVE ",accumulate=fp16_output"
#define FIVE_FP16 FIVE ",accumulate=fp16"  // not among the others: its bound is the wide one
static const char *const all_variants[] = {NARROW, WIDE, FIVE, FIVE_OUTPUT, PLAIN_FIVE, SPLIT, REFERENCE};

// Solved, and checked in every variant.
static void check_all(dw__problem *problem) {
  kt_solve(problem);
  for (int i = 0; i < COUNT(all_variants); i++) {
    kt_note("%s", all_variants[i]);
    kt_check_in(problem, all_variants[i], 0);
  }
}

static void check_in_fp16(dw__problem *problem) {
  problem->wide_bound = true;
  kt_solve(problem);
  kt_note(FIVE_FP16);
  kt_check_in(problem, FIVE_FP16, 0);
}

static void check_spec(const dw__problem_spec *spec) {
  dw__problem *problem = kt_problem(spec);
  check_all(problem);
  check_in_fp16(problem);
  dw__problem_free(problem);
}

static float *scale_of(const dw__problem *problem) { return (float *)(uintptr_t)problem->args.kv_scale; }

// ---- numbers --------------------------------------------------------------------------------------------------

// Each code but NaN at each place of 16 bytes, in K alone and in V; a token's neighbour has other ones.
static void codes_are_read_exactly(void **state) {
  (void)state;
  int prefix = 254;
  dw__problem_spec spec = kt_spec_of(SMALL ",q=fp16", 1, &prefix, NULL, DW_MASK_PARENTS);
  spec.q_scale = 0.01f;  // so that no token takes it all
  dw__problem *problem = kt_problem(&spec);
  for (int t = 0; t < prefix; t++)
    for (int d = 0; d < 320; d++) {
      int code = (t + d * 17) % 254;  // 0 to 0x7E, 0x80 to 0xFE
      *(uint8_t *)kt_token_element(problem, 0, t, d) = (uint8_t)(code < 0x7F ? code : code + 1);
    }
  check_all(problem);
  dw__problem_free(problem);
}

// A row that looks at one token alone returns it: all codes, with a scale.
static void codes_are_returned_exactly(void **state) {
  (void)state;
  int prefix = 0;
  for (int i = 0; i < COUNT(all_variants); i++) {
    dw__problem_spec spec = kt_spec_of("mla:h=4,t=1,qk=320,v=256,kv=e4m3,o=fp32", 1, &prefix, NULL, DW_MASK_NONE);
    spec.kv_scale = 0.5f;
    dw__problem *problem = kt_problem(&spec);
    for (int d = 0; d < 256; d++) *(uint8_t *)kt_token_element(problem, 0, 0, d) = (uint8_t)((d & 0x7F) == 0x7F ? 0 : d);
    kt_note("%s", all_variants[i]);
    kt_solve(problem);
    dw_bounds bounds = kt_bounds(problem);
    kt_result r = kt_take_run(kt_kernel_for(problem, all_variants[i]), &bounds, problem);
    for (int k = 0; k < 4 * 256; k++) {
      float stored = dw__to_float(DW_E4M3, kt_token_element(problem, 0, 0, k % 256)), found;
      memcpy(&found, r.out + 4 * k, sizeof found);
      if (found != stored * 0.5f)
        fail_msg("%s: element %d: %g, expected %g", all_variants[i], k, (double)found, (double)stored / 2);
    }
    kt_drop(&r);
    dw__problem_free(problem);
  }
}

// q and the scale make up for each other: only their product counts, and rows of all sizes share a CTA.
static void q_of_any_size(void **state) {
  (void)state;
  static const double sizes[] = {1, 1e-4, 3e4, 1e-12, 1e20, 1e-30, 1e9, 1e-7, 1e4};
  static const float scales[] = {1, 1e-20f, 1e12f, 300};
  int prefix = 70;
  for (int k = 0; k < COUNT(scales); k++) {
    dw__problem_spec spec = kt_spec_of(SMALL, 1, &prefix, NULL, DW_MASK_PARENTS);
    spec.kv_scale = 1;
    dw__problem *problem = kt_problem(&spec);
    *scale_of(problem) = scales[k];
    for (int row = 0; row < 9; row++)
      for (int d = 0; d < 8 * 320; d++) {
        uint16_t *q = (uint16_t *)(uintptr_t)problem->args.q + row * 8 * 320 + d;
        dw__from_float(DW_BF16, (double)dw__to_float(DW_BF16, q) * sizes[row] * (d % 5 ? 1 : 1e-3), q);
      }
    kt_note("scale %g", (double)scales[k]);
    check_all(problem);
    if (scales[k] <= 1) check_in_fp16(problem);  // scores in the thousands are beyond it
    dw__problem_free(problem);
  }
}

// One weight of 1 and 2,000 of 2^-20: together they are a fifth of a percent, which fp16 weights without a shift would lose half of.
static void small_weights_count(void **state) {
  (void)state;
  int prefix = 2000;
  dw__problem_spec spec = kt_spec_of("mla:h=1,t=1,qk=320,v=256,kv=e4m3,o=fp32", 1, &prefix, NULL, DW_MASK_NONE);
  dw__problem *problem = kt_problem(&spec);
  uint16_t *q = (uint16_t *)(uintptr_t)problem->args.q;
  for (int d = 0; d < 320; d++) dw__from_float(DW_BF16, d == 319 ? 1 : 0, &q[d]);
  for (int t = 0; t <= prefix; t++)
    for (int d = 0; d < 320; d++)
      dw__from_float(DW_E4M3,
                     d == 319   ? (t == 777 ? 20 * log(2) / (double)problem->args.softmax_scale : 0)
                     : t == 777 ? 0
                                : 16,
                     kt_token_element(problem, 0, t, d));
  kt_solve(problem);
  for (int i = 0; i < COUNT(all_variants); i++) {
    kt_note("%s", all_variants[i]);
    kt_check_in(problem, all_variants[i], 0);
  }
  assert_true(problem->out64[0] > 1e-3);
  dw__problem_free(problem);
}

// ---- NaN ------------------------------------------------------------------------------------------------------

// q is infinite: KV in e4m3 cannot be.
static void a09_scores_of_minus_infinity(void **state) {
  (void)state;
  for (int i = 0; i < COUNT(all_variants); i++)
    kt_check_minus_infinity("mla:h=8,t=9,qk=320,v=256,kv=e4m3", all_variants[i], 7 * i);
}

// NaN in every element of tokens that a row does not see leaves its bits alone; who sees one is NaN.
static void a08_nan_where_nobody_looks(void **state) {
  (void)state;
  int prefix = 45;
  for (int i = 0; i <= COUNT(all_variants); i++)
    for (int k = 0; k < 2; k++) {
      const char *variant = i < COUNT(all_variants) ? all_variants[i] : FIVE_FP16;
      dw__problem_spec spec = kt_spec_of(SMALL, 1, &prefix, NULL, DW_MASK_BITS);
      spec.kv_scale = k ? 0.25f : 0;
      dw__problem *clean = kt_problem(&spec), *spoilt = kt_problem(&spec);
      dw__problem *both[] = {clean, spoilt};
      for (int p = 0; p < 2; p++)
        for (int node = 0; node < 9; node++) kt_see(both[p], 0, node, 4, node == 4), kt_see(both[p], 0, node, 8, node == 4);
      for (int d = 0; d < 320; d++) {
        *(uint8_t *)kt_token_element(spoilt, 0, prefix + 4, d) = d % 2 ? 0x7F : 0xFF;
        *(uint8_t *)kt_token_element(spoilt, 0, prefix + 8, d) = 0xFF;
      }
      kt_note("%s, scale %d", variant, k);
      clean->wide_bound = i == COUNT(all_variants);
      kt_solve(clean);
      dw_bounds bounds = kt_bounds(clean);
      const kt_kernel *kernel = kt_kernel_for(clean, variant);
      kt_result a = kt_take_run(kernel, &bounds, clean), b = kt_take_run(kernel, &bounds, spoilt);
      kt_check(clean);
      for (int node = 0; node < 9; node++) {
        if (node != 4) kt_assert_same_rows(&a, node, &b, node, 1);
        for (int h = 0; h < 8 && node == 4; h++) assert_true(isnan(b.lse[node * 8 + h]));
        for (int e = 0; e < 8 * 256 && node == 4; e++)
          assert_true(isnan(dw__to_float(DW_BF16, b.out + ((size_t)node * 8 * 256 + (size_t)e) * 2)));
      }
      kt_drop(&a), kt_drop(&b);
      dw__problem_free(clean), dw__problem_free(spoilt);
    }
}

// ---- products in e4m3 -----------------------------------------------------------------------------------------

// q and weights in two parts: within 1.5e-2 of the oracle, and far off what one part would give; a row of q that is not finite is NaN.
static void products_in_e4m3(void **state) {
  (void)state;
  static const char *const variants[] = {WIDE ",e4m3_mma=1", FIVE ",e4m3_mma=1"};
  int prefix = 700;
  for (int i = 0; i < 8; i++) {
    dw__problem_spec spec = kt_spec_of(i % 2 ? SMALL ",o=fp32" : SMALL ",q=fp16,o=fp32", 1, &prefix, NULL, DW_MASK_PARENTS);
    spec.q_scale = i / 4 ? 3 : 1;
    spec.kv_scale = i % 4 ? 0.05f : 0;
    dw__problem *problem = kt_problem(&spec);
    problem->wide_bound = true;
    kt_note("%s, %d", variants[i / 2 % 2], i);
    kt_solve(problem);
    kt_check_in(problem, variants[i / 2 % 2], 0);
    dw_error error = {0};
    dw__comparison comparison;
    if (dw__problem_compare(problem, &comparison, &error)) kt_fail("rows", &error);
    if (!(comparison.total_relative < (i / 4 ? 5e-3 : 2e-3))) fail_msg("%d: %g over all rows", i, comparison.total_relative);
    ((uint16_t *)(uintptr_t)problem->args.q)[320] = i % 2 ? 0x7F80 : 0x7C00;  // row 0, head 1: infinity
    dw_bounds bounds = kt_bounds(problem);
    kt_result r = kt_take_run(kt_kernel_for(problem, variants[i / 2 % 2]), &bounds, problem);
    for (int e = 0; e < 256; e++) {
      float value;
      memcpy(&value, r.out + (256 + e) * 4, sizeof value);
      assert_true(isnan(value));
      memcpy(&value, r.out + e * 4, sizeof value);
      assert_true(isfinite(value));
    }
    kt_drop(&r);
    dw__problem_free(problem);
  }
}

// ---- sums in fp16 ---------------------------------------------------------------------------------------------

#define THREE "family=rowsplit,n_tiles=3,setmaxnreg=1,combine=few,combine_splits=4,wide_tile=1"
static const char *const in_fp16[] = {FIVE_OUTPUT, FIVE_FP16, THREE ",accumulate=fp16_output", THREE ",accumulate=fp16"};
#define MOST_IN_FP16 "mla:h=8,t=9,kv=e4m3,o=fp32"

// The error of all rows together; each is within the bound of its class: fp16_output has the usual one.
static double error_in(dw__problem *problem, const char *variant, bool wide) {
  dw_error error = {0};
  dw__comparison comparison;
  problem->wide_bound = wide;
  kt_solve(problem);
  kt_check_in(problem, variant, 0);
  if (dw__problem_compare(problem, &comparison, &error)) kt_fail("rows", &error);
  return comparison.total_relative;
}

static void sums_in_fp16(void **state) {
  (void)state;
  static const struct {
    const char *shape;
    int prefix;
    float q_scale, kv_scale;
    double mean;          // added to q and to KV
    double output, both;  // allowed of all rows, a third above what was measured
  } cases[] = {
    {MOST_IN_FP16, 1000, 1, 0, 0, 4e-4, 8e-4},           {MOST_IN_FP16 ",q=fp16", 1000, 1, 0.05f, 0, 4e-4, 8e-4},
    {MOST_IN_FP16 ",q=fp16", 1000, 3, 0, 0, 4e-4, 2e-3}, {MOST_IN_FP16, 20000, 1, 0, 0, 2e-4, 5e-4},
    {MOST_IN_FP16, 1000, 1, 0, 3, 4e-4, 7e-3},
  };
  for (int i = 0; i < COUNT(cases); i++) {
    dw__problem_spec spec = kt_spec_of(cases[i].shape, 1, &cases[i].prefix, NULL, DW_MASK_PARENTS);
    spec.q_scale = cases[i].q_scale;
    spec.kv_scale = cases[i].kv_scale;
    dw__problem *problem = kt_problem(&spec);
    uint16_t *q = (uint16_t *)(uintptr_t)problem->args.q;
    for (int d = 0; d < 72 * 576 && cases[i].mean > 0; d++)
      dw__from_float(spec.shape.q, (double)dw__to_float(spec.shape.q, &q[d]) + cases[i].mean, &q[d]);
    for (int t = 0; t < cases[i].prefix + 9 && cases[i].mean > 0; t++)
      for (int d = 0; d < 576; d++) {
        void *at = kt_token_element(problem, 0, t, d);
        dw__from_float(DW_E4M3, (double)dw__to_float(DW_E4M3, at) + cases[i].mean, at);
      }
    for (int v = 0; v < (i == 1 ? COUNT(in_fp16) : 2); v++) {
      kt_note("%s, case %d", in_fp16[v], i);
      const double error = error_in(problem, in_fp16[v], v % 2), allowed = v % 2 ? cases[i].both : cases[i].output;
      print_message("%d tokens, q x %g, mean %g, accumulate=%s: %.2g\n", cases[i].prefix, (double)cases[i].q_scale,
                    cases[i].mean, v % 2 ? "fp16" : "fp16_output", error);
      if (!(error < allowed)) fail_msg("%s, case %d: %g over all rows, allowed %g", in_fp16[v], i, error, allowed);
    }
    dw__problem_free(problem);
  }
}

// The greatest products there can be: elements of q just below a power of 2, KV of 448, and weights that are all the same.
static void sums_in_fp16_never_overflow(void **state) {
  (void)state;
  int prefix = 500;
  for (int i = 0; i < COUNT(in_fp16); i++) {
    const bool bf16 = (i + i / 2) % 2;
    dw__problem_spec spec = kt_spec_of(bf16 ? MOST_IN_FP16 : MOST_IN_FP16 ",q=fp16", 1, &prefix, NULL, DW_MASK_PARENTS);
    dw__problem *problem = kt_problem(&spec);
    uint16_t *q = (uint16_t *)(uintptr_t)problem->args.q;
    for (int d = 0; d < 72 * 576; d++) dw__from_float(spec.shape.q, bf16 ? -255.0 / 16 : 2047.0 / 128, &q[d]);
    for (int t = 0; t < prefix + 9; t++) kt_fill_token(problem, 0, t, 448);
    kt_note("%s, bf16 %d", in_fp16[i], bf16);
    assert_true(error_in(problem, in_fp16[i], i % 2) < 1e-6);
    q[576] = bf16 ? 0x7F80 : 0x7C00;  // row 0, head 1: infinity
    dw_bounds bounds = kt_bounds(problem);
    kt_result r = kt_take_run(kt_kernel_for(problem, in_fp16[i]), &bounds, problem);
    for (int e = 0; e < 2 * 512; e++) {
      float value;
      memcpy(&value, r.out + e * 4, sizeof value);
      assert_true(e < 512 ? fabsf(value - 448) < 1e-3f : !isfinite(value));
    }
    kt_drop(&r);
    dw__problem_free(problem);
  }
}

// ---- bits -----------------------------------------------------------------------------------------------------

// With FIXED ranges a row has the same bits in every number of row tiles, and each request alone, also where ranges end inside a
// tile of 32 tokens.
static void fixed_ranges_have_their_bits(void **state) {
  (void)state;
  static const int prefix[] = {200, 0, 77, 31}, rows[] = {9, 4, 1, 8};
  static const char *const variants[] = {
    "family=rowsplit,n_tiles=1,combine=many,combine_splits=32,wide_tile=1",
    "family=rowsplit,n_tiles=3,setmaxnreg=1,combine=many,combine_splits=32,wide_tile=1",
    "family=rowsplit,n_tiles=4,combine=many,combine_splits=32,wide_tile=1",
    "family=rowsplit,n_tiles=5,setmaxnreg=1,combine=many,combine_splits=32,wide_tile=1",
  };
  static const char *const fp16[] = {
    "family=rowsplit,n_tiles=3,setmaxnreg=1,combine=many,combine_splits=32,wide_tile=1,accumulate=fp16",
    "family=rowsplit,n_tiles=4,setmaxnreg=1,combine=many,combine_splits=32,wide_tile=1,accumulate=fp16",
    "family=rowsplit,n_tiles=5,setmaxnreg=1,combine=many,combine_splits=32,wide_tile=1,accumulate=fp16",
  };
  for (int split = 16; split <= 112; split += 32) {
    dw__problem_spec spec = kt_spec_of(SMALL, 4, prefix, rows, DW_MASK_PARENTS);
    spec.kv_scale = 0.1f;
    kt_check_fixed_bits(&spec, variants, COUNT(variants), split);
    kt_check_fixed_bits(&spec, fp16, COUNT(fp16), split);
  }
}

// ---- cases ----------------------------------------------------------------------------------------------------

static void a03_slots_of_single_tokens(void **state) {
  (void)state;
  static const int prefix[] = {100, 0, 5};
  dw__problem_spec spec = kt_spec_of("mla:h=16,t=4,qk=320,v=256,kv=e4m3", 3, prefix, NULL, DW_MASK_NONE);
  spec.addressing = DW_CSR;
  for (int i = 0; i < 4; i++) {
    spec.index64 = i % 2;
    spec.kv_rope = spec.strided = i / 2;
    check_spec(&spec);
  }
}

static void a11_short_requests(void **state) {
  (void)state;
  static const int prefix[] = {0, 1, 2, 3, 4};
  dw__problem_spec spec = kt_spec_of("mla:h=32,t=1,qk=320,v=256,kv=e4m3", 5, prefix, NULL, DW_MASK_NONE);
  dw__problem *problem = kt_problem(&spec);
  kt_solve(problem);
  for (int i = 0; i < COUNT(all_variants); i++) {
    kt_note("%s", all_variants[i]);
    dw_bounds bounds = kt_bounds(problem);
    bounds.kv_len = 1 << 20;
    kt_run(kt_kernel_for(problem, all_variants[i]), &bounds, problem, DW_HOST_FORWARD, 1);
    kt_check(problem);
  }
  dw__problem_free(problem);
}

static void a13_batches_in_the_merge(void **state) {
  (void)state;
  static const int prefix[] = {300, 37, 0, 526, 16}, rows[] = {8, 8, 3, 1, 5};
  dw__problem_spec spec = kt_spec_of("mla:h=24,t=8,qk=192,v=128,kv=e4m3", 5, prefix, rows, DW_MASK_PARENTS);
  spec.kv_scale = 2;
  dw__problem *problem = kt_problem(&spec);
  kt_solve(problem);
  kt_note("a13");
  kt_check_in(problem, FIVE, 0);
  kt_assert_own_runs(kt_kernel_for(problem, FIVE), problem, 80);
  dw__problem_free(problem);
}

static void a23_unequal_widths(void **state) {
  (void)state;
  int prefix[12];
  for (int batch = 1; batch <= 12; batch += 11) {
    for (int b = 0; b < batch; b++) prefix[b] = 17;
    dw__problem_spec spec = kt_spec_of("mla:h=4,t=37,qk=192,v=128,kv=e4m3", batch, prefix, NULL, DW_MASK_BYTES_QLEN);
    spec.kv_scale = 0.5f;
    dw__problem *problem = kt_problem(&spec);
    kt_solve(problem);
    kt_note("batch %d", batch);
    kt_check_in(problem, FIVE, 0);
    kt_check_in(problem, WIDE, 48);
    dw__problem_free(problem);
  }
}

static void a25_window_and_tree(void **state) {
  (void)state;
  int prefix = 300;
  dw__problem_spec spec = kt_spec_of("mla:h=16,t=4,qk=192,v=128,kv=e4m3", 1, &prefix, NULL, DW_MASK_BITS);
  spec.tree = DW__TREE_STAR;
  for (int i = 0; i < 6; i++) {
    spec.window = (const int[]){128, 1, 31, 2, 33, 290}[i];
    dw__problem *problem = kt_problem(&spec);
    kt_solve(problem);
    kt_note("window %d", spec.window);
    kt_check_in(problem, i % 2 ? WIDE : FIVE, i < 3 ? 0 : 48);
    kt_check_in(problem, NARROW, 0);
    dw__problem_free(problem);
  }
}

static void a27_sinks_of_each_head(void **state) {
  (void)state;
  static const int prefix[] = {50, 0, 3, 17};
  dw__problem_spec spec = kt_spec_of("mla:h=64,t=4,qk=192,v=128,kv=e4m3", 4, prefix, NULL, DW_MASK_NONE);
  spec.sinks = 1;
  spec.kv_scale = 0.01f;
  dw__problem *problem = kt_problem(&spec);
  kt_solve(problem);
  kt_note("a27");
  kt_check_in(problem, FIVE, 0);
  kt_check_in(problem, WIDE, 16);
  kt_check_in(problem, REFERENCE, 0);
  dw__problem_free(problem);
}

// What the rule table takes.
static void check_chosen(const char *text, int batch, const int *prefix, dw_mask mask) {
  dw__problem_spec spec = kt_spec_of(text, batch, prefix, NULL, mask);
  spec.kv_scale = 0.125f;
  dw__problem *problem = kt_problem(&spec);
  dw_bounds bounds = kt_bounds(problem);
  dw_variant variant;
  dw_error error = {0};
  kt_note("%s, batch %d", text, batch);
  bounds.call = DW_CALL_TABLE;
  if (dw_variant_choose(&spec.shape, &bounds, &variant, &error)) kt_fail("choose", &error);
  kt_solve(problem);
  kt_run(kt_kernel_get(&spec.shape, &variant), &bounds, problem, DW_HOST_FORWARD, 1);
  kt_check(problem);
  dw__problem_free(problem);
}

static void a28_twelve_heads(void **state) {
  (void)state;
  static const int prefix[] = {100, 0, 17};
  for (int t = 1; t <= 8; t += 7) {
    char text[64];
    snprintf(text, sizeof text, "mla:h=12,t=%d,page=16,kv=e4m3", t);
    check_chosen(text, 1, prefix, DW_MASK_NONE);
    check_chosen(text, 3, prefix, DW_MASK_PARENTS);
  }
}

static void a29_four_and_eight_heads(void **state) {
  (void)state;
  static const int prefix[] = {1000, 20, 3, 0, 77, 40, 64, 16}, far[] = {20000};
  for (int heads = 4; heads <= 8; heads += 4) {
    char text[64];
    snprintf(text, sizeof text, "mla:h=%d,t=4,page=16,kv=e4m3", heads);
    check_chosen(text, 8, prefix, DW_MASK_PARENTS);
    snprintf(text, sizeof text, "mla:h=%d,t=1,qk=128,v=128,page=64,kv=e4m3", heads);
    check_chosen(text, 1, far, DW_MASK_NONE);
  }
}

static void a34_every_number_of_rows(void **state) {
  (void)state;
  static const int prefix[] = {33, 0};
  for (int t = 1; t <= 9; t++) {
    char text[64];
    snprintf(text, sizeof text, "mla:h=16,t=%d,qk=192,v=128,page=16,kv=e4m3", t);
    check_chosen(text, 2, prefix, DW_MASK_NONE);
    check_chosen(text, 2, prefix, DW_MASK_PARENTS);
  }
}

// Prefix in e4m3 with a scale, drafts as rows of bf16 without one: two calls, merged by their lse. Against attention over both,
// element by element.
static void a38_scaled_prefix_and_plain_drafts(void **state) {
  (void)state;
  enum { HEADS = 4, ROWS = 5, QK = 320, V = 256 };
  int prefix = 60, none = 0;
  dw__problem_spec spec = kt_spec_of("mla:h=4,t=5,qk=320,v=256,kv=e4m3,o=fp32", 1, &prefix, NULL, DW_MASK_PARENTS);
  spec.kv_scale = 0.5f;
  spec.lse_base_e = 1;
  spec.lengths_include_drafts = 0;
  spec.drafts_elsewhere = 1;
  dw__problem *pool = kt_problem(&spec);
  spec = kt_spec_of("mla:h=4,t=5,qk=320,v=256,o=fp32", 1, &none, NULL, DW_MASK_PARENTS);
  spec.lse_base_e = 1;
  dw__problem *drafts = kt_problem(&spec);
  memcpy((void *)(uintptr_t)drafts->args.q, pool->args.q, pool->q_bytes);
  kt_solve(pool), kt_solve(drafts);
  for (int i = 0; i < COUNT(all_variants); i++) {
    kt_note("%s", all_variants[i]);
    dw_bounds bounds = kt_bounds(pool), draft_bounds = kt_bounds(drafts);
    kt_result a = kt_take_run(kt_kernel_for(pool, all_variants[i]), &bounds, pool);
    kt_result b = kt_take_run(kt_kernel_for(drafts, REFERENCE), &draft_bounds, drafts);
    kt_check(pool), kt_check(drafts);
    for (int row = 0; row < ROWS; row++)
      for (int head = 0; head < HEADS; head++) {
        int vector = row * HEADS + head;
        double exact[V] = {0}, sum = 0;
        for (int t = 0; t < prefix + ROWS; t++) {
          const dw__problem *from = t < prefix ? pool : drafts;
          int token = t < prefix ? t : t - prefix, at = row;
          for (; t >= prefix && at > token; at = kt_parents(drafts)[at]) continue;
          if (t >= prefix && at != token) continue;
          double score = 0, scale = t < prefix ? 0.5 : 1;
          for (int d = 0; d < QK; d++)
            score += (double)dw__to_float(DW_BF16, (const uint16_t *)pool->args.q + vector * QK + d) * scale *
                     (double)dw__to_float(from->spec.shape.kv, kt_token_element(from, 0, token, d));
          double weight = exp(score * (double)pool->args.softmax_scale);
          sum += weight;
          for (int d = 0; d < V; d++)
            exact[d] += weight * scale * (double)dw__to_float(from->spec.shape.kv, kt_token_element(from, 0, token, d));
        }
        assert_true(kt_merged_error(&a, &b, vector, V, exact, sum) < 3e-3);
      }
    kt_drop(&a), kt_drop(&b);
  }
  dw__problem_free(pool), dw__problem_free(drafts);
  // All in the pool: the scale is for all.
  spec = kt_spec_of(SMALL, 1, &prefix, NULL, DW_MASK_PARENTS);
  spec.kv_scale = 0.5f;
  check_spec(&spec);
}

// Latents within 0.1, rope within 1: by a scale from the latents' greatest the rope saturates at 448 codes. What was stored is read
// exactly; how far that is from what was meant is a matter of the scale.
static void a39_rope_that_saturates(void **state) {
  (void)state;
  int prefix = 90;
  for (int joint = 0; joint < 2; joint++) {
    dw__problem_spec spec = kt_spec_of(SMALL, 1, &prefix, NULL, DW_MASK_PARENTS);
    spec.kv_scale = (joint ? 1 : 0.1f) / 448;
    dw__problem *problem = kt_problem(&spec);
    int saturated = 0;
    uint64_t seed = 7;
    for (int t = 0; t < prefix + 9; t++)
      for (int d = 0; d < 320; d++) {
        uint8_t *to = kt_token_element(problem, 0, t, d);
        double value = (2.0 * dw__random_below(&seed, 1 << 20) / (1 << 20) - 1) * (d < 256 ? 0.1 : 1);
        dw__from_float(DW_E4M3, value / (double)spec.kv_scale, to);
        saturated += (*to & 0x7F) == 0x7E;
      }
    assert_true(joint ? saturated < 1000 : saturated > 5000);
    check_all(problem);
    dw__problem_free(problem);
  }
}

static void a40_no_scale_is_one(void **state) {
  (void)state;
  int prefix = 50;
  for (int i = 0; i < COUNT(all_variants); i++) {
    dw__problem_spec spec = kt_spec_of(SMALL, 1, &prefix, NULL, DW_MASK_PARENTS);
    dw__problem *none = kt_problem(&spec);
    spec.kv_scale = 1;
    dw__problem *one = kt_problem(&spec);
    kt_note("%s", all_variants[i]);
    kt_solve(none);
    dw_bounds bounds = kt_bounds(none);
    const kt_kernel *kernel = kt_kernel_for(none, all_variants[i]);
    kt_result a = kt_take_run(kernel, &bounds, none), b = kt_take_run(kernel, &bounds, one);
    kt_check(none);
    kt_assert_same(&a, &b);
    kt_drop(&a), kt_drop(&b);
    dw__problem_free(none), dw__problem_free(one);
  }
}

static void d05_mask_of_bytes_at_every_offset(void **state) {
  (void)state;
  static const int prefix[] = {1020, 2048, 333};
  dw__problem_spec spec = kt_spec_of("mla:h=64,t=7,qk=192,v=128,kv=e4m3", 3, prefix, NULL, DW_MASK_BYTES_FULL);
  spec.kv_scale = 0.3f;
  spec.strided = 1;
  dw__problem *problem = kt_problem(&spec);
  kt_solve(problem);
  kt_note("d05");
  kt_check_in(problem, FIVE, 0);
  dw__problem_free(problem);
  for (int keys = 20; keys < 53; keys += 3) {
    int few = keys - 7;
    spec = kt_spec_of("mla:h=16,t=7,qk=192,v=128,kv=e4m3", 1, &few, NULL, DW_MASK_BYTES_FULL);
    problem = kt_problem(&spec);
    kt_solve(problem);
    kt_note("d05, %d keys", keys);
    kt_check_in(problem, keys % 2 ? FIVE : WIDE, 0);
    dw__problem_free(problem);
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
    cmocka_unit_test(products_in_e4m3),
    cmocka_unit_test(sums_in_fp16),
    cmocka_unit_test(sums_in_fp16_never_overflow),
    cmocka_unit_test(fixed_ranges_have_their_bits),
    cmocka_unit_test(a03_slots_of_single_tokens),
    cmocka_unit_test(a11_short_requests),
    cmocka_unit_test(a13_batches_in_the_merge),
    cmocka_unit_test(a23_unequal_widths),
    cmocka_unit_test(a25_window_and_tree),
    cmocka_unit_test(a27_sinks_of_each_head),
    cmocka_unit_test(a28_twelve_heads),
    cmocka_unit_test(a29_four_and_eight_heads),
    cmocka_unit_test(a34_every_number_of_rows),
    cmocka_unit_test(a38_scaled_prefix_and_plain_drafts),
    cmocka_unit_test(a39_rope_that_saturates),
    cmocka_unit_test(a40_no_scale_is_one),
    cmocka_unit_test(d05_mask_of_bytes_at_every_offset),
  };
  if (list_tests(argc, argv, tests, DW__COUNT(tests))) return 0;
  if (kt_skip()) return 77;
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  return cmocka_run_group_tests(tests, kt_setup, kt_teardown);
}
