// KV in records of 656 bytes (512 latents in e4m3, 4 scales, 64 of the rope in bf16), by host execution: every way in which a call may
// come, scales of any size beside one another, what is hidden, and codes that have to come back.
#include "kernel_tests.h"
#include "list_tests.h"

#define COUNT(array) ((int)DW__COUNT(array))
enum { QK = 576, V = 512, SCALES = 512, ROPE = 528 };  // places within a record
#define SMALL "mla:h=4,t=9,kv=record656,o=fp32"
#define ONE "family=rowsplit,n_tiles=1,combine=few,combine_splits=4"
#define TWO "family=rowsplit,n_tiles=2,combine=few,combine_splits=4,wide_tile=1"
#define FOUR "family=rowsplit,n_tiles=4,setmaxnreg=1,combine=many,combine_splits=8,wide_tile=1"
#define FIVE "family=rowsplit,n_tiles=5,setmaxnreg=1,combine=many,combine_splits=8,wide_tile=1"
#define PLAIN_FIVE "family=rowsplit,n_tiles=5,combine=many,combine_splits=8"
#define COPIES "family=rowsplit,n_tiles=3,combine=few,combine_splits=4,wide_tile=1,cp_async=1"
#define SPLIT "family=split,combine=few,combine_splits=8"
#define REFERENCE "family=reference"
static const char *const all_variants[] = {ONE, TWO, FOUR, FIVE, PLAIN_FIVE, COPIES, SPLIT, REFERENCE};

static double total_error(dw__problem *problem) {
  dw_error error = {0};
  dw__comparison comparison;
  if (dw__problem_compare(problem, &comparison, &error)) kt_fail("rows", &error);
  return comparison.total_relative;
}

static uint8_t *record(const dw__problem *problem, int request, int token) { return kt_token(problem, request, token); }
static void set_scale(const dw__problem *problem, int token, int group, float scale) {
  memcpy(record(problem, 0, token) + SCALES + 4 * group, &scale, sizeof scale);
}
static float scale_of(const uint8_t *token, int group) {
  float scale;
  memcpy(&scale, token + SCALES + 4 * group, sizeof scale);
  return scale;
}
static uint16_t *query(const dw__problem *problem, int vector) { return (uint16_t *)(uintptr_t)problem->args.q + vector * QK; }

// q looks at the rope alone, so that scores do not depend on the latents' sizes.
static void look_at_rope(const dw__problem *problem) {
  for (int i = 0; i < problem->total_q * problem->spec.shape.heads; i++) memset(query(problem, i), 0, V * 2);
}

// ---- the record -----------------------------------------------------------------------------------------------

// The oracle against the layout, written down once more.
static void oracle_reads_the_layout(void **state) {
  (void)state;
  int prefix = 21;
  dw__problem_spec spec = kt_spec_of("mla:h=2,t=1,page=16,kv=record656", 1, &prefix, NULL, DW_MASK_NONE);
  spec.strided = 1;
  dw__problem *problem = kt_problem(&spec);
  kt_solve(problem);
  const dw_args *a = &problem->args;
  assert_true(a->kv_token_stride > 656 && a->kv_token_stride % 16 == 0);
  for (int head = 0; head < 2; head++) {
    double score[22], most = -INFINITY, sum = 0, out[V] = {0};
    const uint16_t *q = (const uint16_t *)a->q + head * a->q_head_stride;
    for (int t = 0; t < 22; t++) {
      const uint8_t *at = (const uint8_t *)a->kv + a->block_table[t / 16] * a->kv_page_stride + t % 16 * a->kv_token_stride;
      score[t] = 0;
      for (int d = 0; d < QK; d++) {
        double key = d < V ? (double)dw__to_float(DW_E4M3, at + d) * (double)scale_of(at, d / 128)
                           : (double)dw__to_float(DW_BF16, at + ROPE + 2 * (d - V));
        score[t] += key * (double)dw__to_float(DW_BF16, q + d);
      }
      score[t] *= (double)a->softmax_scale;
      most = fmax(most, score[t]);
    }
    for (int t = 0; t < 22; t++) {
      const uint8_t *at = record(problem, 0, t);
      double weight = exp(score[t] - most);
      sum += weight;
      for (int d = 0; d < V; d++) out[d] += weight * (double)dw__to_float(DW_E4M3, at + d) * (double)scale_of(at, d / 128);
    }
    for (int d = 0; d < V; d++) assert_true(fabs(out[d] / sum - problem->out64[head * V + d]) < 1e-6);
  }
  dw__problem_free(problem);
}

// A row that looks at one token alone returns its latents times their scales: to the bit where scales are powers of 2 of one size, else
// to what fp16 holds of a scale.
static void latents_are_returned(void **state) {
  (void)state;
  int prefix = 0;
  for (int k = 0; k < 2; k++) {
    dw__problem_spec spec = kt_spec_of("mla:h=2,t=1,kv=record656,o=fp32", 1, &prefix, NULL, DW_MASK_NONE);
    dw__problem *problem = kt_problem(&spec);
    uint8_t *token = record(problem, 0, 0);
    for (int d = 0; d < V; d++) token[d] = (uint8_t)((d & 0x7F) == 0x7F ? 0 : d + d / 256 * 128);
    for (int g = 0; g < 4; g++) set_scale(problem, 0, g, (k ? 1.37f : 1) * ldexpf(1, 3 * g - 7));
    kt_solve(problem);
    for (int i = 0; i < COUNT(all_variants); i++) {
      kt_note("%s", all_variants[i]);
      dw_bounds bounds = kt_bounds(problem);
      kt_result r = kt_take_run(kt_kernel_for(problem, all_variants[i]), &bounds, problem);
      for (int e = 0; e < 2 * V; e++) {
        float found, right = dw__to_float(DW_E4M3, token + e % V) * scale_of(token, e % V / 128);
        memcpy(&found, r.out + 4 * e, sizeof found);
        if (!(fabsf(found - right) <= (k ? 0x1p-11f * fabsf(right) : 0)))
          fail_msg("%s: element %d: %g, expected %g", all_variants[i], e, (double)found, (double)right);
      }
      kt_drop(&r);
    }
    dw__problem_free(problem);
  }
}

// ---- the contract ---------------------------------------------------------------------------------------------

// Masks, addressing, pages, ragged rows, parts, windows, caps, sinks: each with some of the others, in all row tiles by turns.
static void calls_of_all_kinds(void **state) {
  (void)state;
  static const int prefix[] = {75, 0, 33, 16}, rows[] = {9, 4, 1, 7};
  for (int i = 0; i < 12; i++) {
    char text[64];
    snprintf(text, sizeof text, "mla:h=4,t=9,page=%d,kv=record656", i < 6 ? 1 : 64);
    dw__problem_spec spec = kt_spec_of(text, 4, prefix, i % 2 ? rows : NULL, (dw_mask)(i % 6));
    spec.addressing = i / 2 % 2 ? DW_CSR : DW_BLOCK_TABLE;
    spec.index64 = i / 4 % 2;
    spec.lengths_include_drafts = i % 4 < 2;
    spec.draft_slots = spec.addressing == DW_CSR && !spec.lengths_include_drafts && i % 3;
    spec.q_rope = i % 4 == 1;
    spec.strided = i / 3 % 2;
    spec.dead_nodes = i % 5 == 1;
    spec.window = i % 7 == 3 ? 40 : 0;
    spec.soft_cap = i % 7 == 4 ? 3 : i % 7 == 5 ? 30 : 0;
    spec.sinks = i % 3 == 2;
    spec.q_scale = i % 4 == 2 ? 3 : 1;
    spec.lse_base_e = i % 2;
    spec.seed = (uint64_t)(i + 1);
    dw__problem *problem = kt_problem(&spec);
    kt_solve(problem);
    const char *variant = all_variants[i % COUNT(all_variants)];
    kt_note("%d: %s", i, variant);
    kt_check_in(problem, variant, i % 5 == 4 && strcmp(variant, REFERENCE) ? 48 : 0);
    dw__problem_free(problem);
  }
}

// What the rule table takes, for rows of 1, 9 and 64 nodes.
static void widths_of_the_rule_table(void **state) {
  (void)state;
  static const int prefix[] = {300, 17}, widths[] = {1, 9, 64};
  for (int i = 0; i < 6; i++) {
    char text[64];
    snprintf(text, sizeof text, "mla:h=%d,t=%d,page=%d,kv=record656", i < 4 ? 8 : 1, widths[i / 2], i % 2 ? 64 : 1);
    dw__problem_spec spec = kt_spec_of(text, 2, prefix, NULL, DW_MASK_PARENTS);
    dw__problem *problem = kt_problem(&spec);
    dw_bounds bounds = kt_bounds(problem);
    dw_variant variant;
    dw_error error = {0};
    kt_note("%s", text);
    bounds.call = DW_CALL_TABLE;
    bounds.sm_count = 1 + i % 2 * 8;
    if (dw_variant_choose(&spec.shape, &bounds, &variant, &error)) kt_fail("choose", &error);
    assert_int_equal(variant.family, DW_ROWSPLIT);
    assert_int_equal(variant.wide_tile, 1);
    kt_solve(problem);
    kt_run(kt_kernel_get(&spec.shape, &variant), &bounds, problem, DW_HOST_FORWARD, 1);
    kt_check(problem);
    dw__problem_free(problem);
  }
}

// With FIXED ranges a row has the same bits in every number of row tiles, and each request alone.
static void fixed_ranges_have_their_bits(void **state) {
  (void)state;
  static const int prefix[] = {200, 0, 77}, rows[] = {9, 4, 1};
  static const char *const variants[] = {
    "family=rowsplit,n_tiles=1,combine=many,combine_splits=32,wide_tile=1",
    "family=rowsplit,n_tiles=4,combine=many,combine_splits=32,wide_tile=1",
    "family=rowsplit,n_tiles=5,setmaxnreg=1,combine=many,combine_splits=32,wide_tile=1",
  };
  for (int split = 16; split <= 112; split += 96) {
    dw__problem_spec spec = kt_spec_of("mla:h=4,t=9,kv=record656", 3, prefix, rows, DW_MASK_PARENTS);
    kt_check_fixed_bits(&spec, variants, COUNT(variants), split);
  }
}

// ---- sizes ----------------------------------------------------------------------------------------------------

// Rows of q of all sizes share a CTA; where some of a row is far below the rest, too.
static void q_of_any_size(void **state) {
  (void)state;
  static const double sizes[] = {1, 1e-4, 3e4, 1e-12, 1e20, 1e-30, 1e9, 1e-7, 1e4};
  int prefix = 70;
  for (int k = 0; k < 3; k++) {
    dw__problem_spec spec = kt_spec_of(SMALL, 1, &prefix, NULL, DW_MASK_PARENTS);
    dw__problem *problem = kt_problem(&spec);
    problem->args.softmax_scale *= (float)(const double[]){1, 1e-20, 1e12}[k];
    for (int row = 0; row < 9; row++)
      for (int d = 0; d < 4 * QK; d++) {
        uint16_t *q = query(problem, row * 4) + d;
        dw__from_float(DW_BF16, (double)dw__to_float(DW_BF16, q) * sizes[row] * (d % 5 ? 1 : 1e-3), q);
      }
    kt_solve(problem);
    for (int i = 0; i < 4; i++) {
      kt_note("softmax scale %d, %s", k, all_variants[i]);
      kt_check_in(problem, all_variants[i], 0);
    }
    dw__problem_free(problem);
  }
}

// Scales between 10^low and 10^high, those of a token's groups and of neighbouring tokens independent of one another. The rope alone says
// who looks where, so that large and small ones meet in every row: flat, and where a token takes most of it.
static void scales_of_any_size(void **state) {
  (void)state;
  static const double spans[][2] = {{-6, 4}, {-6, -6}, {4, 4}, {-12, -11}, {20, 28}, {-6, -2}};
  int prefix = 190;
  for (int k = 0; k < 12; k++) {
    const double low = spans[k / 2][0], high = spans[k / 2][1];
    dw__problem_spec spec = kt_spec_of(SMALL, 1, &prefix, NULL, DW_MASK_PARENTS);
    spec.q_scale = k % 2 ? 20 : 1;
    spec.seed = (uint64_t)(k + 1);
    dw__problem *problem = kt_problem(&spec);
    uint64_t dice = (uint64_t)k;
    look_at_rope(problem);
    for (int t = 0; t < prefix + 9; t++)
      for (int g = 0; g < 4; g++)
        set_scale(problem, t, g, (float)pow(10, low + (high - low) * dw__random_below(&dice, 1001) / 1000.));
    kt_solve(problem);
    for (int i = 0; i < COUNT(all_variants); i++) {
      kt_note("scales of 1e%g to 1e%g, q x %d, %s", low, high, k % 2 ? 20 : 1, all_variants[i]);
      kt_check_in(problem, all_variants[i], 0);
      double off = total_error(problem);
      if (!(off < 6e-4)) fail_msg("%g over all rows", off);
    }
    dw__problem_free(problem);
  }
}

// Nearly all weight is on tokens of the smallest scales, and nearly all output is that of one of 1e4 with 2^-33 of the weight: fp16 weights
// that know nothing of scales would have lost it.
static void small_weights_of_large_scales(void **state) {
  (void)state;
  int prefix = 100;
  dw__problem_spec spec = kt_spec_of("mla:h=1,t=1,kv=record656,o=fp32", 1, &prefix, NULL, DW_MASK_NONE);
  dw__problem *problem = kt_problem(&spec);
  look_at_rope(problem);
  for (int d = 0; d < 64; d++) dw__from_float(DW_BF16, d == 0, query(problem, 0) + V + d);
  for (int t = 0; t <= prefix; t++) {
    for (int g = 0; g < 4; g++) set_scale(problem, t, g, t == 40 || t == 41 ? 1e4f : 1e-6f);
    dw__from_float(DW_BF16, t == 40 || t == 41 ? -33 * log(2) / (double)problem->args.softmax_scale : 0,
                   record(problem, 0, t) + ROPE);
  }
  kt_solve(problem);
  for (int i = 0; i < COUNT(all_variants); i++) {
    kt_note("%s", all_variants[i]);
    kt_check_in(problem, all_variants[i], 0);
    if (!(total_error(problem) < 6e-4)) fail_msg("%s: %g", all_variants[i], total_error(problem));
  }
  dw__problem_free(problem);
}

// Tokens of nothing count in the sum: scale 0, and subnormal scales with latents, beside usual ones; tokens of nothing alone are 0.
static void scales_of_nothing(void **state) {
  (void)state;
  int prefix = 150;
  for (int k = 0; k < 4; k++) {
    dw__problem_spec spec = kt_spec_of(SMALL, 1, &prefix, NULL, DW_MASK_PARENTS);
    dw__problem *problem = kt_problem(&spec);
    for (int t = 0; t < prefix + 9; t++)
      for (int g = 0; g < 4; g++)
        if (k == 3 || t % 3 == 0)
          set_scale(problem, t, g, k == 0 || k == 3 ? 0 : k == 1 ? 1e-40f : g == t % 4 ? -0x1p-149f : 0);
    kt_solve(problem);
    for (int i = 0; i < COUNT(all_variants); i++) {
      kt_note("%d, %s", k, all_variants[i]);
      kt_check_in(problem, all_variants[i], 0);
    }
    dw__problem_free(problem);
  }
}

// ---- what is hidden -------------------------------------------------------------------------------------------

// NaN, infinity and the greatest numbers in a latent, a scale or the rope of tokens that a row does not see leave its bits alone; who sees
// one is NaN.
static void a08_poison_where_nobody_looks(void **state) {
  (void)state;
  static const uint32_t words[] = {0x7FC00000u, 0x7F800000u, 0xFF800000u, 0xFFFFFFFFu, 0x7F7FFFFFu};
  int prefix = 45;
  for (int i = 0; i < 5; i++)
    for (int k = 0; k < 9; k++) {
      dw__problem_spec spec = kt_spec_of(SMALL, 1, &prefix, NULL, DW_MASK_BITS);
      dw__problem *clean = kt_problem(&spec), *spoilt = kt_problem(&spec);
      dw__problem *both[] = {clean, spoilt};
      for (int p = 0; p < 2; p++)
        for (int node = 0; node < 9; node++) kt_see(both[p], 0, node, 4, node == 4), kt_see(both[p], 0, node, 8, node == 4);
      for (int draft = 4; draft <= 8; draft += 4) {
        uint8_t *token = record(spoilt, 0, prefix + draft);
        if (k < 5) memcpy(token + SCALES + 4 * ((k + draft) % 4), &words[k], 4);
        else if (k == 5) token[(i * 131 + draft) % V] = 0x7F;
        else if (k == 6) memset(token, 0xFF, V);
        else if (k == 7) memcpy(token + ROPE + 2 * (i * 7 + draft), &words[0], 2), token[ROPE + 2 * (i * 7 + draft) + 1] = 0x7F;
        else memset(token, 0xFF, 656);
        if (k == 7) token[ROPE + 2 * (i * 7 + draft)] = draft == 4 ? 0x80 : 0xC0;  // infinity, NaN
      }
      kt_note("%s, poison %d", all_variants[i], k);
      kt_solve(clean);
      dw_bounds bounds = kt_bounds(clean);
      const kt_kernel *kernel = kt_kernel_for(clean, all_variants[i]);
      kt_result a = kt_take_run(kernel, &bounds, clean), b = kt_take_run(kernel, &bounds, spoilt);
      kt_check(clean);
      for (int node = 0; node < 9; node++) {
        if (node != 4) kt_assert_same_rows(&a, node, &b, node, 1);
        for (int e = 0; e < 4 * V && node == 4; e++) {
          float value;
          memcpy(&value, b.out + (node * 4 * V + e) * 4, sizeof value);
          if (!isnan(value)) fail_msg("%s, poison %d: element %d is %g", all_variants[i], k, e, (double)value);
        }
      }
      kt_drop(&a), kt_drop(&b);
      dw__problem_free(clean), dw__problem_free(spoilt);
    }
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(oracle_reads_the_layout),
    cmocka_unit_test(latents_are_returned),
    cmocka_unit_test(calls_of_all_kinds),
    cmocka_unit_test(widths_of_the_rule_table),
    cmocka_unit_test(fixed_ranges_have_their_bits),
    cmocka_unit_test(q_of_any_size),
    cmocka_unit_test(scales_of_any_size),
    cmocka_unit_test(small_weights_of_large_scales),
    cmocka_unit_test(scales_of_nothing),
    cmocka_unit_test(a08_poison_where_nobody_looks),
  };
  if (list_tests(argc, argv, tests, DW__COUNT(tests))) return 0;
  if (kt_skip()) return 77;
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  return cmocka_run_group_tests(tests, kt_setup, kt_teardown);
}
