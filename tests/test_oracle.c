// Number formats, trees, the fp64 oracle, random problems, and the comparison that everything else relies on.
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "guard.h"
#include "list_tests.h"
#include "oracle.h"
#include "problem.h"
#include "random.h"
#include "support.h"

static void assert_near(double found, double expected, double within) {
  if (!(fabs(found - expected) <= within)) fail_msg("found %.17g, expected %.17g within %g", found, expected, within);
}

static void assert_done(dw_status status, const dw_error *error) {
  if (status) fail_msg("%s: %s", dw_status_name(status), error->message);
}

// ---- number formats -------------------------------------------------------------------------------------------

static double value_of(dw_dtype type, uint16_t bits) { return (double)dw__to_float(type, &bits); }

static uint16_t bits_of(dw_dtype type, double value) {
  uint16_t bits;
  dw__from_float(type, value, &bits);
  return bits;
}

static const dw_dtype half_types[] = {DW_BF16, DW_F16};

static void numbers_survive(void **state) {
  (void)state;
  for (int t = 0; t < 2; t++)
    for (int bits = 0; bits < 65536; bits++) {
      double value = value_of(half_types[t], (uint16_t)bits);
      if (isnan(value)) assert_true(isnan(value_of(half_types[t], bits_of(half_types[t], value))));
      else assert_int_equal(bits_of(half_types[t], value), bits);
    }
}

// Between every two neighbours: the middle goes to the even one, anything else to the nearer one.
static void numbers_round_to_nearest_even(void **state) {
  (void)state;
  for (int t = 0; t < 2; t++) {
    uint16_t infinity = half_types[t] == DW_BF16 ? 0x7F80 : 0x7C00;
    for (uint16_t bits = 0; bits < infinity; bits++) {
      uint16_t next = (uint16_t)(bits + 1), even = bits & 1 ? next : bits;
      double low = value_of(half_types[t], bits), high = 2 * low - value_of(half_types[t], (uint16_t)(bits - 1));
      if (next != infinity) high = value_of(half_types[t], next);
      double middle = (low + high) / 2;
      assert_int_equal(bits_of(half_types[t], middle), even);
      assert_int_equal(bits_of(half_types[t], nextafter(middle, low)), bits);
      assert_int_equal(bits_of(half_types[t], nextafter(middle, high)), next);
      assert_int_equal(bits_of(half_types[t], -middle), even | 0x8000);
    }
  }
}

static uint8_t byte_of(double value) {
  uint8_t byte;
  dw__from_float(DW_E4M3, value, &byte);
  return byte;
}

// All 256 codes of e4m3: they read back, their halves go to even, and nothing is beyond 448.
static void numbers_of_e4m3(void **state) {
  (void)state;
  for (int code = 0; code < 256; code++) {
    const uint8_t byte = (uint8_t)code;
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    const double value = (double)dw__to_float(DW_E4M3, &byte), sign = code & 0x80 ? -1 : 1;
    if ((code & 0x7F) == 0x7F) {
      assert_true(isnan(value));
      continue;
    }
    assert_true(value == sign * (exponent ? (8 + mantissa) * pow(2, exponent - 10) : mantissa * pow(2, -9)));
    assert_int_equal(byte_of(value), code);
    if ((code & 0x7F) == 0x7E) continue;
    const uint8_t next = (uint8_t)(code + 1);
    const double above = (double)dw__to_float(DW_E4M3, &next), middle = (value + above) / 2;
    assert_int_equal(byte_of(middle), code & 1 ? next : code);
    assert_int_equal(byte_of(nextafter(middle, value)), code);
    assert_int_equal(byte_of(nextafter(middle, above)), next);
  }
  assert_int_equal(byte_of(448), 0x7E);
  assert_int_equal(byte_of(1e30), 0x7E);
  assert_int_equal(byte_of(INFINITY), 0x7E);
  assert_int_equal(byte_of(-INFINITY), 0xFE);
  assert_int_equal(byte_of(NAN) & 0x7F, 0x7F);
}

static void numbers_have_their_ends(void **state) {
  (void)state;
  assert_int_equal(bits_of(DW_BF16, 1), 0x3F80);
  assert_int_equal(bits_of(DW_F16, 1), 0x3C00);
  assert_int_equal(bits_of(DW_F16, 65519), 0x7BFF);
  assert_int_equal(bits_of(DW_F16, 65520), 0x7C00);
  assert_int_equal(bits_of(DW_F16, 1e300), 0x7C00);
  assert_int_equal(bits_of(DW_BF16, -INFINITY), 0xFF80);
  assert_int_equal(bits_of(DW_F16, 0x1p-25), 0);
  assert_int_equal(bits_of(DW_F16, 0x1.8p-25), 1);
  assert_int_equal(bits_of(DW_BF16, 5e-324), 0);
  assert_int_equal(bits_of(DW_BF16, -0.0), 0x8000);
  assert_true(isnan(value_of(DW_BF16, DW__POISON)) && isnan(value_of(DW_F16, DW__POISON)));
  uint64_t seed = 3;
  for (int i = 0; i < 100000; i++) {
    double value = ldexp(dw__random_normal(&seed), dw__random_below(&seed, 300) - 160);
    float expected = (float)value, found;
    dw__from_float(DW_F32, value, &found);
    assert_memory_equal(&found, &expected, sizeof found);
  }
}

// ---- trees ----------------------------------------------------------------------------------------------------

static const int tree_sizes[] = {1, 2, 9, 31, 32, 33, 63, 64, 65, 128, 1025};

static bool sees(const int *parents, int node, int other) {
  if (parents[node] == -2) return false;
  while (node >= 0 && node != other) node = parents[node];
  return node == other;
}

static int depth_of(const int *parents, int node) {
  int depth = -1;
  for (; node >= 0; node = parents[node]) depth++;
  return depth;
}

static void check_masks(const int *parents, int nodes) {
  int words = (nodes + 31) / 32 + 1;
  int *depth = calloc((size_t)nodes, sizeof *depth);
  uint32_t *mask = malloc((size_t)nodes * (size_t)words * sizeof *mask);
  dw_error e = {0};
  memset(mask, 0xFF, (size_t)nodes * (size_t)words * sizeof *mask);
  assert_done(dw__tree_masks(parents, nodes, words, depth, mask, &e), &e);
  for (int i = 0; i < nodes; i++) {
    assert_int_equal(depth[i], parents[i] == -2 ? -1 : depth_of(parents, i));
    for (int j = 0; j < 32 * words; j++) {
      bool bit = mask[i * words + j / 32] >> (j % 32) & 1;
      if (bit != (j < nodes && sees(parents, i, j))) fail_msg("%d nodes: node %d and %d", nodes, i, j);
    }
  }
  assert_int_equal(dw__tree_masks(parents, nodes, words, NULL, NULL, NULL), DW_OK);
  free(depth);
  free(mask);
}

static void tree_masks_equal_the_walk_to_the_root(void **state) {
  (void)state;
  uint64_t seed = 11;
  for (size_t i = 0; i < DW__COUNT(tree_sizes); i++)
    for (int round = 0; round < 4; round++) {
      int *parents = calloc((size_t)tree_sizes[i], sizeof *parents);
      dw__tree_random(&seed, tree_sizes[i], parents);
      assert_int_equal(parents[0], -1);
      for (int j = 1; j < tree_sizes[i]; j++) assert_true(parents[j] >= -1 && parents[j] < j);
      check_masks(parents, tree_sizes[i]);
      for (int j = tree_sizes[i] - 1; j > 0 && round == 3; j /= 2) parents[j] = j == tree_sizes[i] - 1 ? -2 : -1;
      check_masks(parents, tree_sizes[i]);
      free(parents);
    }
}

static void tree_of_the_cases(void **state) {
  (void)state;
  const int parents[] = {-1, 0, 0, 1, 2, 2}, expected[] = {0, 1, 1, 2, 2, 2};  // O-d08: positions are depths
  int depth[6];
  uint32_t mask[6];
  assert_int_equal(dw__tree_masks(parents, 6, 1, depth, mask, NULL), DW_OK);
  assert_memory_equal(depth, expected, sizeof depth);
  const uint32_t bits[] = {1, 3, 5, 11, 21, 37};
  assert_memory_equal(mask, bits, sizeof bits);
}

static void random_trees_are_deep_and_wide(void **state) {
  (void)state;
  uint64_t seed = 7;
  int parents[64], depth[64], deepest = 0, roots = 0, children[64] = {0};
  for (int round = 0; round < 50; round++) {
    dw__tree_random(&seed, 64, parents);
    dw__tree_masks(parents, 64, 2, depth, NULL, NULL);
    for (int i = 0; i < 64; i++) {
      if (depth[i] > deepest) deepest = depth[i];
      if (parents[i] == -1) roots++;
      else children[parents[i]]++;
    }
  }
  assert_true(deepest >= 12);
  assert_in_range(roots, 51, 400);
  assert_true(children[0] > 100);
}

static void bad_trees_are_refused_with_the_node(void **state) {
  (void)state;
  const struct {
    int parents[4];
    const char *field, *found;
  } bad[] = {
    {{-1, 0, 2, 1}, "parents[2]", "2"},   {{-1, 0, 3, 1}, "parents[2]", "3"}, {{0, -1, -1, -1}, "parents[0]", "0"},
    {{-1, 0, -3, 1}, "parents[2]", "-3"}, {{-1, 9, 1, 1}, "parents[1]", "9"}, {{-1, -2, 0, 1}, "parents[3]", "1"},
  };
  for (size_t i = 0; i < DW__COUNT(bad); i++) {
    int depth[4];
    uint32_t mask[4];
    dw_error e = {0};
    assert_int_equal(dw__tree_masks(bad[i].parents, 4, 1, depth, mask, &e), DW_BAD_ARGUMENT);
    assert_string_equal(e.field, bad[i].field);
    assert_string_equal(e.found, bad[i].found);
  }
  dw_error e = {0};
  int chain[33] = {-1};
  for (int i = 1; i < 33; i++) chain[i] = i - 1;
  assert_int_equal(dw__tree_masks(chain, 33, 1, NULL, NULL, &e), DW_BAD_ARGUMENT);
  assert_string_equal(e.field, "words");
}

// ---- answers known on paper -----------------------------------------------------------------------------------

// One head, fp16. A token's record is V (16 numbers, its own number plus the column) and 16 more, of which the first is the
// only one that q looks at: the score of a token is what we say it is.
typedef struct paper {
  dw_shape shape;
  dw_args args;
  uint16_t q[4][32], kv[16][32];
  int32_t indptr[2], indices[16], kv_len[1], parents[4];
  uint32_t bits[4];
  double out[4][16], lse[4];
} paper;

static void paper_make(paper *p, int tokens, const double *scores, int rows) {
  *p = (paper){0};
  p->shape = shape_of("mla:h=1,t=4,qk=32,v=16,q=fp16,kv=fp16,o=fp32");
  for (int j = 0; j < 16; j++)
    for (int d = 0; d < 32; d++) {
      double value = d < 16 ? 10 * j + d : d > 16 ? 7 : j < tokens ? scores[j] : NAN;
      p->kv[j][d] = bits_of(DW_F16, value);
    }
  for (int r = 0; r < 4; r++) p->q[r][16] = bits_of(DW_F16, 1);
  for (int j = 0; j < 16; j++) p->indices[j] = j;
  p->indptr[1] = tokens;
  p->kv_len[0] = tokens;
  p->args = (dw_args){.size = sizeof p->args,
                      .q = p->q,
                      .batch = 1,
                      .total_q = rows,
                      .width = rows,
                      .kv = p->kv,
                      .addressing = DW_CSR,
                      .kv_indptr = p->indptr,
                      .kv_indices = p->indices,
                      .kv_len = p->kv_len,
                      .lengths_include_drafts = 1,
                      .softmax_scale = 1,
                      .lse_base_e = 1};
}

static void paper_solve(paper *p) {
  dw_error e = {0};
  assert_done(dw__oracle_exact(&p->shape, &p->args, 1, p->out[0], p->lse, &e), &e);
}

// The row is this weighted mean of the tokens' numbers.
static void assert_token(const paper *p, int row, double token) {
  for (int d = 0; d < 16; d++) assert_near(p->out[row][d], 10 * token + d, 1e-12);
}

static void one_visible_token_is_its_v(void **state) {
  (void)state;
  paper p;
  paper_make(&p, 1, (double[]){3}, 1);
  paper_solve(&p);
  assert_token(&p, 0, 0);
  assert_near(p.lse[0], 3, 1e-12);
}

static void equal_keys_give_the_mean(void **state) {
  (void)state;
  paper p;
  paper_make(&p, 2, (double[]){-5, -5}, 1);
  paper_solve(&p);
  assert_token(&p, 0, 0.5);
  assert_near(p.lse[0], -5 + log(2), 1e-12);
  paper_make(&p, 16, (double[]){1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, 1);
  paper_solve(&p);
  assert_token(&p, 0, 7.5);
  assert_near(p.lse[0], 1 + log(16), 1e-12);
}

static void huge_score_takes_it_all(void **state) {
  (void)state;
  for (int place = 0; place < 5; place++) {
    double scores[5] = {-60000, 0, 100, -3, 2};
    scores[place] = 60000;
    paper p;
    paper_make(&p, 5, scores, 1);
    paper_solve(&p);
    assert_token(&p, 0, place);
    assert_near(p.lse[0], 60000, 1e-9);
  }
}

static void lse_is_analytic_in_both_bases(void **state) {
  (void)state;
  const double scores[] = {0.5, -1.25, 2, 0.125};
  double scale = 0.25, sum = 0, mean = 0;
  for (int j = 0; j < 4; j++) sum += exp(scores[j] * scale), mean += j * exp(scores[j] * scale);
  paper p;
  paper_make(&p, 4, scores, 1);
  p.args.softmax_scale = 0.25f;
  paper_solve(&p);
  assert_near(p.lse[0], log(sum), 1e-14);
  assert_token(&p, 0, mean / sum);
  p.args.lse_base_e = 0;
  paper_solve(&p);
  assert_near(p.lse[0], log2(sum), 1e-14);
}

// Rows 0..3 of a chain over two prefix tokens and four drafts, all of equal score.
static void chain_sees_what_came_before(void **state) {
  (void)state;
  paper p;
  paper_make(&p, 6, (double[]){0, 0, 0, 0, 0, 0}, 4);
  paper_solve(&p);
  for (int r = 0; r < 4; r++) {
    assert_token(&p, r, (2 + r) / 2.0);
    assert_near(p.lse[r], log(3 + r), 1e-12);
  }
}

static void siblings_do_not_see_each_other(void **state) {
  (void)state;
  paper p;
  paper_make(&p, 6, (double[]){0, 0, 0, 0, 0, 0}, 4);  // drafts are tokens 2 to 5
  p.args.mask_kind = DW_MASK_PARENTS;
  p.args.mask = p.parents;
  memcpy(p.parents, (int[]){-1, 0, 0, -1}, sizeof p.parents);
  paper_solve(&p);
  assert_token(&p, 0, (0 + 1 + 2) / 3.0);
  assert_token(&p, 1, (0 + 1 + 2 + 3) / 4.0);
  assert_token(&p, 2, (0 + 1 + 2 + 4) / 4.0);
  assert_token(&p, 3, (0 + 1 + 5) / 3.0);
}

static void dead_node_sees_nothing(void **state) {
  (void)state;
  paper p;
  paper_make(&p, 6, (double[]){0, 0, 0, 0, 0, 0}, 4);
  p.args.mask_kind = DW_MASK_PARENTS;
  p.args.mask = p.parents;
  memcpy(p.parents, (int[]){-1, -2, 0, -2}, sizeof p.parents);
  p.kv[3][0] = p.kv[5][0] = p.kv[3][16] = bits_of(DW_F16, NAN);  // nobody looks there
  paper_solve(&p);
  assert_token(&p, 2, (0 + 1 + 2 + 4) / 4.0);
  for (int r = 1; r < 4; r += 2) {
    for (int d = 0; d < 16; d++) assert_true(p.out[r][d] == 0);
    assert_true(isinf(p.lse[r]) && p.lse[r] < 0);
  }
}

static void bits_are_taken_as_given(void **state) {
  (void)state;
  paper p;
  paper_make(&p, 5, (double[]){0, 0, 0, 0, 0}, 4);  // one prefix token
  p.args.mask_kind = DW_MASK_BITS;
  p.args.mask = p.bits;
  memcpy(p.bits, (uint32_t[]){0, 8, 0xFFFFFFF1, 6}, sizeof p.bits);  // nothing; a later draft; bits past the end; not itself
  paper_solve(&p);
  assert_token(&p, 0, 0);
  assert_token(&p, 1, 4 / 2.0);
  assert_token(&p, 2, 1 / 2.0);
  assert_token(&p, 3, (2 + 3) / 3.0);
}

// O-a07: an all-false row over an empty prefix.
static void row_that_sees_nothing_is_zero(void **state) {
  (void)state;
  paper p;
  paper_make(&p, 4, (double[]){1, 2, 3, 4}, 4);
  p.args.mask_kind = DW_MASK_BITS;
  p.args.mask = p.bits;
  memcpy(p.bits, (uint32_t[]){1, 0, 4, 0}, sizeof p.bits);
  paper_solve(&p);
  assert_token(&p, 0, 0);
  assert_token(&p, 2, 2);
  for (int d = 0; d < 16; d++) assert_true(p.out[1][d] == 0 && p.out[3][d] == 0);
  assert_true(p.lse[1] == -INFINITY && p.lse[3] == -INFINITY);
}

// O-a04: a padded request of a graph has length 0, drafts or not.
static void request_of_length_zero_is_zero(void **state) {
  (void)state;
  paper p;
  paper_make(&p, 4, (double[]){1, 2, 3, 4}, 4);
  p.kv_len[0] = 0;
  paper_solve(&p);
  for (int r = 0; r < 4; r++) assert_true(p.lse[r] == -INFINITY && p.out[r][3] == 0);
  p.kv_len[0] = 2;  // two of four drafts are there
  paper_solve(&p);
  assert_token(&p, 0, 0);
  assert_near(p.lse[3], log(exp(1) + exp(2)), 1e-12);
}

// Two prefix tokens and a chain of four: the window ends at each row's own token.
static void window_moves_with_the_row(void **state) {
  (void)state;
  for (int window = 1; window <= 7; window++) {
    paper p;
    paper_make(&p, 6, (double[]){0, 0, 0, 0, 0, 0}, 4);
    p.args.window = window;
    paper_solve(&p);
    for (int r = 0; r < 4; r++) {
      int last = 2 + r, first = last - window + 1 > 0 ? last - window + 1 : 0;
      assert_token(&p, r, (first + last) / 2.0);
      assert_near(p.lse[r], log(last - first + 1), 1e-12);
    }
  }
}

// Siblings stand at one position, whatever their number.
static void window_counts_depths(void **state) {
  (void)state;
  paper p;
  paper_make(&p, 6, (double[]){0, 0, 0, 0, 0, 0}, 4);  // prefix 0 1, drafts 2 3 4 5
  p.args.mask_kind = DW_MASK_PARENTS;
  p.args.mask = p.parents;
  p.args.window = 2;
  memcpy(p.parents, (int[]){-1, 0, 0, 2}, sizeof p.parents);  // positions 2 3 3 4
  paper_solve(&p);
  assert_token(&p, 0, (1 + 2) / 2.0);
  assert_token(&p, 1, (2 + 3) / 2.0);
  assert_token(&p, 2, (2 + 4) / 2.0);
  assert_token(&p, 3, (4 + 5) / 2.0);
}

// Positions of the caller: row 3 stands so far behind that only its own token is in reach; a draft counts by its own position.
static void window_takes_positions_as_given(void **state) {
  (void)state;
  paper p;
  int32_t positions[4] = {2, 4, 3, 40};
  paper_make(&p, 6, (double[]){0, 0, 0, 0, 0, 0}, 4);
  p.args.positions = positions;
  p.args.window = 2;
  paper_solve(&p);
  assert_token(&p, 0, (1 + 2) / 2.0);
  assert_token(&p, 1, 3);                  // positions above 2: of prefix and drafts only its own
  assert_token(&p, 2, (2 + 3 + 4) / 3.0);  // above 1: drafts at 2, 4 and 3
  assert_token(&p, 3, 5);
  p.args.window = 0;  // then nobody reads them
  positions[0] = -7;
  paper_solve(&p);
  assert_token(&p, 0, 1);
}

// O-a26: a window of w holds the row itself and the w - 1 tokens before it. A huge score stands at the edge.
static void window_edge(void **state) {
  (void)state;
  for (int window = 1; window <= 12; window++)
    for (int inside = 0; inside < 2; inside++) {
      paper p;
      double scores[13] = {0};
      int edge = 12 - window + inside;  // the first token within, or the last one outside
      scores[edge] = 60000;
      paper_make(&p, 13, scores, 1);
      p.args.window = window;
      paper_solve(&p);
      assert_token(&p, 0, inside ? edge : (13 - window + 12) / 2.0);
    }
}

// O-a07: a window that shows a row nothing, since the mask hides the row's own token.
static void window_that_shows_nothing(void **state) {
  (void)state;
  paper p;
  paper_make(&p, 6, (double[]){0, 0, 0, 0, 0, 0}, 4);
  p.args.mask_kind = DW_MASK_BITS;
  p.args.mask = p.bits;
  p.args.window = 1;
  memcpy(p.bits, (uint32_t[]){0, 1, 4, 0}, sizeof p.bits);
  paper_solve(&p);
  for (int r = 0; r < 4; r++) {
    if (r == 2) continue;  // sees itself alone, so that its position is the prefix's end
    for (int d = 0; d < 16; d++) assert_true(p.out[r][d] == 0);
    assert_true(p.lse[r] == -INFINITY);
  }
  assert_token(&p, 2, 4);
}

// O-a44: far beyond the cap a score is the cap, of either sign.
static void soft_cap_saturates(void **state) {
  (void)state;
  const double raw[] = {1, 1000, 4400, 5000, 10000, 60000};
  for (int i = 0; i < 6; i++) {
    paper p;
    double scores[2] = {raw[i], -raw[i]}, capped = 50 * tanh(raw[i] / 50);
    paper_make(&p, 2, scores, 1);
    p.args.soft_cap = 50;
    paper_solve(&p);
    double rest = exp(-2 * capped);
    assert_token(&p, 0, rest / (1 + rest));
    assert_near(p.lse[0], capped + log1p(rest), 1e-12);
    p.args.softmax_scale = 40;
    paper_solve(&p);
    assert_near(p.lse[0], 50 * tanh(raw[i] * 40 / 50) + log1p(exp(-100 * tanh(raw[i] * 40 / 50))), 1e-12);
  }
}

static void sink_is_a_score_without_a_value(void **state) {
  (void)state;
  const float sinks[] = {0, -3, 5, 90, -INFINITY};
  for (int i = 0; i < 5; i++) {
    paper p;
    paper_make(&p, 2, (double[]){1, 1}, 1);
    p.args.sinks = &sinks[i];
    paper_solve(&p);
    double rest = exp((double)sinks[i] - 1), share = 2 / (2 + rest);
    for (int d = 0; d < 16; d++) assert_near(p.out[0][d], (5 + d) * share, 1e-12);
    assert_near(p.lse[0], 1 + log(2 + rest), 1e-12);
  }
}

// With nothing to see a row's lse is the sink; a dead row has none.
static void sink_alone(void **state) {
  (void)state;
  const float sink = 3, none = -INFINITY;
  paper p;
  paper_make(&p, 4, (double[]){1, 2, 3, 4}, 4);
  p.args.mask_kind = DW_MASK_BITS;
  p.args.mask = p.bits;
  p.args.sinks = &sink;
  p.args.lse_base_e = 0;
  paper_solve(&p);
  for (int r = 0; r < 4; r++) {
    assert_near(p.lse[r], 3 / log(2), 1e-12);
    for (int d = 0; d < 16; d++) assert_true(p.out[r][d] == 0);
  }
  p.args.sinks = &none;
  paper_solve(&p);
  for (int r = 0; r < 4; r++) assert_true(p.lse[r] == -INFINITY && p.out[r][0] == 0);
  p.args.sinks = &sink;
  p.args.mask_kind = DW_MASK_PARENTS;
  p.args.mask = p.parents;
  memcpy(p.parents, (int[]){-1, -2, 0, -2}, sizeof p.parents);
  paper_solve(&p);
  assert_near(p.lse[0], log(exp(1) + exp(3)) / log(2), 1e-12);
  assert_true(p.lse[1] == -INFINITY && p.lse[3] == -INFINITY && p.out[1][0] == 0);
}

static void visible_nan_is_not_hidden(void **state) {
  (void)state;
  paper p;
  paper_make(&p, 3, (double[]){1, NAN, 3}, 1);
  paper_solve(&p);
  assert_true(isnan(p.out[0][0]) && isnan(p.lse[0]));
}

// A score of -inf weighs nothing, wherever it stands; a row that sees nothing else, nor a sink, is 0 / 0.
static void scores_of_minus_infinity(void **state) {
  (void)state;
  paper p;
  const float sink = 3;
  paper_make(&p, 3, (double[]){-INFINITY, 1, -INFINITY}, 1);
  paper_solve(&p);
  assert_token(&p, 0, 1);
  assert_near(p.lse[0], 1, 1e-12);
  paper_make(&p, 3, (double[]){-INFINITY, -INFINITY, -INFINITY}, 1);
  paper_solve(&p);
  assert_true(isnan(p.out[0][0]) && isnan(p.lse[0]));
  p.args.sinks = &sink;
  paper_solve(&p);
  assert_near(p.lse[0], 3, 1e-12);
  assert_true(p.out[0][0] == 0);
}

// ---- problems -------------------------------------------------------------------------------------------------

static const int some_prefix[] = {70, 0, 33, 0, 5}, some_rows[] = {9, 4, 0, 1, 7};

static dw__problem_spec usual(void) {
  dw__problem_spec spec = {.shape = shape_of("mla:h=3,t=9,qk=48,v=32"),
                           .batch = 5,
                           .prefix = some_prefix,
                           .rows = some_rows,
                           .mask_kind = DW_MASK_PARENTS,
                           .tree = DW__TREE_RANDOM,
                           .addressing = DW_CSR,
                           .lengths_include_drafts = 1,
                           .q_scale = 1,
                           .spare_pages = 2,
                           .seed = 42};
  return spec;
}

static dw__problem *made(const dw__problem_spec *spec) {
  dw__problem *problem = NULL;
  dw_error e = {0};
  assert_done(dw__problem_make(spec, &problem, &e), &e);
  return problem;
}

static dw__problem *solved(const dw__problem_spec *spec) {
  dw__problem *problem = made(spec);
  dw_error e = {0};
  assert_done(dw__problem_solve(problem, 2, &e), &e);
  return problem;
}

static size_t vectors(const dw__problem *problem) { return (size_t)problem->total_q * (size_t)problem->spec.shape.heads; }

// Same tokens in the same order: the same bits, whatever names their places.
static void assert_same_answer(const dw__problem *a, const dw__problem *b) {
  assert_int_equal(a->total_q, b->total_q);
  assert_memory_equal(a->lse64, b->lse64, vectors(a) * sizeof(double));
  assert_memory_equal(a->out64, b->out64, vectors(a) * (size_t)a->spec.shape.head_dim_v * sizeof(double));
}

static void check_same(const dw__problem *base, const dw__problem_spec *spec) {
  dw__problem *problem = solved(spec);
  assert_same_answer(base, problem);
  dw__problem_free(problem);
}

// ---- the contract in plain words ------------------------------------------------------------------------------
// Each row from what the arguments say, by the shortest way there is: the oracle's judge. Nothing of it is the oracle's.

static int64_t stride_or(int64_t given, int64_t tight) { return given ? given : tight; }

static int call_width(const dw__problem *p) { return p->args.width ? p->args.width : p->spec.shape.width; }

// Row i of request b, whose first row is `first`: what does its mask say of draft j?
static bool mask_says(const dw__problem *p, int b, int first, int i, int j) {
  const dw_args *a = &p->args;
  int64_t width = call_width(p), row = stride_or(a->mask_row_stride, width);
  int64_t matrix = a->mask_shared ? 0 : b * stride_or(a->mask_request_stride, width * row), columns = p->prefix[b] + p->rows[b];
  if (a->mask_kind == DW_MASK_NONE) return j <= i;
  if (a->mask_kind == DW_MASK_PARENTS) return sees((const int *)a->mask + first, i, j);
  if (a->mask_kind == DW_MASK_BYTES_QLEN) return ((const uint8_t *)a->mask)[matrix + i * row + j];
  if (a->mask_kind == DW_MASK_BIAS_F32) return ((const float *)a->mask)[matrix + i * row + j] > -1;
  if (a->mask_kind == DW_MASK_BYTES_FULL) return ((const uint8_t *)a->mask)[a->mask_indptr[b] + i * columns + p->prefix[b] + j];
  row = stride_or(a->mask_row_stride, (width + 31) / 32);
  return ((const uint32_t *)a->mask)[(first + i) * row + j / 32] >> (j % 32) & 1;
}

static int64_t slot_of(const dw__problem *p, int b, int first, int token) {
  const dw_args *a = &p->args;
  int page = p->spec.shape.page;
  if (a->addressing == DW_BLOCK_TABLE)
    return (int64_t)a->block_table[b * stride_or(a->block_table_stride, a->table_columns) + token / page] * page + token % page;
  bool apart = a->draft_slots && token >= p->prefix[b];
  const void *list = apart ? a->draft_slots : a->kv_indices;
  int64_t at = apart ? first + token - p->prefix[b] : a->kv_indptr[b] + token;
  return a->index64 ? ((const int64_t *)list)[at] : ((const int32_t *)list)[at];
}

// Element d of piece `inner` of piece `outer` of an array; those from v on may be in another.
typedef struct part {
  const void *at;
  int64_t outer_stride, inner_stride;
  int size;
} part;

static double part_element(const part *from, int64_t outer, int inner_count, int64_t inner, int d, dw_dtype type) {
  int64_t inner_stride = stride_or(from->inner_stride, from->size);
  int64_t outer_stride = stride_or(from->outer_stride, inner_count * inner_stride);
  int64_t at = outer * outer_stride + inner * inner_stride + d;
  return (double)dw__to_float(type, (const char *)from->at + at * (int64_t)dw__dtype_size(type));
}

static double q_element(const dw__problem *p, int row, int head, int d) {
  const dw_args *a = &p->args;
  const dw_shape *s = &p->spec.shape;
  int v = s->head_dim_v;
  part first = {a->q, a->q_row_stride, a->q_head_stride, a->q_rope ? v : s->head_dim_qk};
  part last = {a->q_rope, a->q_rope_row_stride, a->q_rope_head_stride, s->head_dim_qk - v};
  if (a->q_rope && d >= v) return part_element(&last, row, s->heads, head, d - v, s->q);
  return part_element(&first, row, s->heads, head, d, s->q);
}

static double kv_element(const dw__problem *p, int64_t slot, int d) {
  const dw_args *a = &p->args;
  const dw_shape *s = &p->spec.shape;
  int v = s->head_dim_v;
  part first = {a->kv, a->kv_page_stride, a->kv_token_stride, a->kv_rope ? v : s->head_dim_qk};
  part last = {a->kv_rope, a->kv_rope_page_stride, a->kv_rope_token_stride, s->head_dim_qk - v};
  if (a->kv_rope && d >= v) return part_element(&last, slot / s->page, s->page, slot % s->page, d - v, s->kv);
  return part_element(&first, slot / s->page, s->page, slot % s->page, d, s->kv);
}

static int position_of(const dw__problem *p, int b, int first, int i) {
  if (p->args.positions) return p->args.positions[first + i];
  int others = 0;
  for (int j = 0; j < p->rows[b]; j++) others += j != i && mask_says(p, b, first, i, j);
  return p->prefix[b] + others;
}

static bool row_sees(const dw__problem *p, int b, int first, int i, int token) {
  int draft = token - p->prefix[b], position = token, window = p->args.window;
  if (draft >= 0 && !mask_says(p, b, first, i, draft)) return false;
  if (draft >= 0) position = position_of(p, b, first, draft);
  return window == 0 || position > position_of(p, b, first, i) - window;
}

static bool row_is_dead(const dw__problem *p, int row) {
  return p->args.mask_kind == DW_MASK_PARENTS && !p->args.drafts_elsewhere && ((const int *)p->args.mask)[row] == -2;
}

static double stored_scale(const dw__problem *p) { return p->args.kv_scale ? (double)*p->args.kv_scale : 1; }

static double score_of(const dw__problem *p, int row, int head, int64_t slot) {
  double score = 0, cap = (double)p->args.soft_cap;
  for (int d = 0; d < p->spec.shape.head_dim_qk; d++) score += q_element(p, row, head, d) * kv_element(p, slot, d);
  score *= (double)p->args.softmax_scale * stored_scale(p);
  return cap > 0 ? cap * tanh(score / cap) : score;
}

static void check_vector(const dw__problem *p, int b, int first, int i, int head) {
  const dw_shape *shape = &p->spec.shape;
  int tokens = p->prefix[b] + (p->args.drafts_elsewhere ? 0 : p->rows[b]), v = shape->head_dim_v;
  bool dead = row_is_dead(p, first + i);
  double sum = p->args.sinks && !dead ? exp((double)p->args.sinks[head]) : 0, out[64] = {0};
  for (int t = 0; t < tokens && !dead; t++) {
    if (!row_sees(p, b, first, i, t)) continue;
    int64_t slot = slot_of(p, b, first, t);
    double weight = exp(score_of(p, first + i, head, slot));
    sum += weight;
    for (int d = 0; d < v; d++) out[d] += weight * stored_scale(p) * kv_element(p, slot, d);
  }
  int vector = (first + i) * shape->heads + head;
  double unit = p->args.lse_base_e ? 1 : log(2);
  if (sum == 0) assert_true(p->lse64[vector] == -INFINITY);
  if (sum > 0) assert_near(p->lse64[vector], log(sum) / unit, 1e-11);
  for (int d = 0; d < v; d++) assert_near(p->out64[vector * v + d], sum > 0 ? out[d] / sum : 0, 1e-12);
}

static void check_by_contract(const dw__problem *p) {
  for (int b = 0, first = 0; b < p->spec.batch; first += p->rows[b++])
    for (int i = 0; i < p->rows[b]; i++)
      for (int head = 0; head < p->spec.shape.heads; head++) check_vector(p, b, first, i, head);
}

static void oracle_equals_the_formula(void **state) {
  (void)state;
  for (int round = 0; round < 16; round++) {
    dw__problem_spec spec = usual();
    spec.seed = (uint64_t)round;
    spec.dead_nodes = round & 1;
    spec.shuffle = round & 2;
    spec.tree = (dw__tree_kind)(round % 3);
    spec.q_scale = round & 4 ? 3 : 1;
    spec.shape.q = round & 8 ? DW_F16 : DW_BF16;
    spec.shape.kv = round % 3 == 1 ? DW_E4M3 : round & 4 ? DW_F16 : DW_BF16;
    if (round % 6 == 1) spec.kv_scale = round == 1 ? 0.02f : 3;
    dw__problem *problem = solved(&spec);
    check_by_contract(problem);
    dw__problem_free(problem);
  }
}

static int pick(uint64_t *dice, int n) { return dw__random_below(dice, n); }

static const dw_mask mask_kinds[] = {DW_MASK_NONE,       DW_MASK_PARENTS,    DW_MASK_BITS,
                                     DW_MASK_BYTES_QLEN, DW_MASK_BYTES_FULL, DW_MASK_BIAS_F32};

// Any problem there is, of the usual sizes.
static dw__problem_spec random_spec(uint64_t *dice) {
  dw__problem_spec spec = usual();
  spec.seed = dw__random(dice);
  spec.shape.page = (const int[]){1, 16, 64}[pick(dice, 3)];
  spec.shape.width = (const int[]){9, 33, 40}[pick(dice, 3)];
  spec.shape.heads = pick(dice, 8) ? 3 : 8;
  spec.width = pick(dice, 2) ? 9 + pick(dice, spec.shape.width - 8) : 0;
  if (pick(dice, 3) == 0) spec.rows = NULL;
  spec.tree = (dw__tree_kind)pick(dice, 3);
  spec.mask_kind = mask_kinds[pick(dice, 6)];
  spec.one_tree = pick(dice, 2);
  spec.mask_shared =
    spec.one_tree && pick(dice, 2) && (spec.mask_kind == DW_MASK_BYTES_QLEN || spec.mask_kind == DW_MASK_BIAS_F32);
  spec.dead_nodes = pick(dice, 2);
  spec.addressing = pick(dice, 2) ? DW_BLOCK_TABLE : DW_CSR;
  spec.index64 = pick(dice, 2);
  spec.lengths_include_drafts = pick(dice, 2);
  spec.draft_slots = spec.addressing == DW_CSR && !spec.lengths_include_drafts && pick(dice, 2);
  spec.q_rope = pick(dice, 2);
  spec.kv_rope = pick(dice, 2);
  spec.strided = pick(dice, 2);
  spec.shuffle = pick(dice, 2);
  spec.lse_base_e = pick(dice, 2);
  spec.window = pick(dice, 2) ? 1 + pick(dice, 80) : 0;
  spec.positions = pick(dice, 3);
  spec.soft_cap = pick(dice, 2) ? 1.5f : 0;
  spec.sinks = pick(dice, 2);
  spec.drafts_elsewhere = !spec.lengths_include_drafts && !spec.window && !spec.draft_slots && pick(dice, 2);
  spec.shape.kv = (dw_dtype[]){DW_BF16, DW_BF16, DW_F16, DW_E4M3}[pick(dice, 4)];
  if (spec.shape.kv == DW_E4M3 && pick(dice, 2)) spec.kv_scale = 0.1f;
  return spec;
}

static void any_problem_has_the_answer_of_the_contract(void **state) {
  (void)state;
  for (int i = 0; i < 400; i++) {
    uint64_t dice = (uint64_t)i;
    dw__problem_spec spec = random_spec(&dice);
    dw__problem *problem = solved(&spec);
    check_by_contract(problem);
    dw__problem_free(problem);
  }
}

static void addressing_forms_agree(void **state) {
  (void)state;
  dw__problem_spec spec = usual();
  dw__problem *base = solved(&spec);
  const int pages[] = {1, 16, 64};
  for (int i = 0; i < 3 * 64; i++) {
    spec = usual();
    spec.shape.page = pages[i % 3];
    spec.strided = i / 3 & 1;
    spec.shuffle = i / 3 & 2;
    spec.index64 = !!(i / 3 & 4);
    spec.addressing = i / 3 & 8 ? DW_BLOCK_TABLE : DW_CSR;
    spec.lengths_include_drafts = !!(i / 3 & 16);
    spec.draft_slots = i / 3 & 32 && spec.addressing == DW_CSR && !spec.lengths_include_drafts;
    spec.kv_rope = i % 5 < 2;
    spec.q_rope = i % 7 < 3;
    check_same(base, &spec);
  }
  dw__problem_free(base);
}

// The same trees in all forms, and the answer of none but these trees.
static void mask_forms_agree(void **state) {
  (void)state;
  for (int tree = DW__TREE_CHAIN; tree <= DW__TREE_STAR; tree++)
    for (int width = 9; width <= 75; width += 33)
      for (int form = 0; form < 24; form++) {
        const int rows[] = {width, width - 1, 0, 1, 9};
        dw__problem_spec spec = usual();
        spec.tree = (dw__tree_kind)tree;
        spec.shape.width = width;
        spec.rows = rows;
        spec.one_tree = form / 12;
        dw__problem *base = solved(&spec);
        spec.mask_kind = mask_kinds[form % 6];
        spec.strided = form / 6 % 2;
        if (tree == DW__TREE_CHAIN || spec.mask_kind != DW_MASK_NONE) check_same(base, &spec);
        spec.shape.width = width + 40;
        spec.width = width;
        if (tree == DW__TREE_CHAIN || spec.mask_kind != DW_MASK_NONE) check_same(base, &spec);
        spec.mask_shared = spec.one_tree && (spec.mask_kind == DW_MASK_BYTES_QLEN || spec.mask_kind == DW_MASK_BIAS_F32);
        if (spec.mask_shared) check_same(base, &spec);
        dw__problem_free(base);
      }
}

// Elements as no tree has them: the diagonal off, later drafts seen.
static void elements_are_taken_as_given(void **state) {
  (void)state;
  uint64_t dice = 5;
  for (int form = 0; form < 2 * 4; form++) {
    dw__problem_spec spec = usual();
    spec.mask_kind = mask_kinds[2 + form % 4];
    spec.strided = form / 4;
    dw__problem *p = made(&spec);
    void *mask = (void *)(uintptr_t)p->args.mask;
    size_t elements = p->mask_bytes / (spec.mask_kind == DW_MASK_BITS || spec.mask_kind == DW_MASK_BIAS_F32 ? 4 : 1);
    for (size_t i = 0; i < elements; i++) {
      if (spec.mask_kind == DW_MASK_BITS) ((uint32_t *)mask)[i] = (uint32_t)dw__random(&dice);
      else if (spec.mask_kind == DW_MASK_BIAS_F32) ((float *)mask)[i] = pick(&dice, 2) ? 0 : -INFINITY;
      else ((uint8_t *)mask)[i] = pick(&dice, 2) ? (uint8_t)pick(&dice, 256) : 0;
    }
    assert_int_equal(dw__problem_solve(p, 2, NULL), DW_OK);
    check_by_contract(p);
    dw__problem_free(p);
  }
}

// One by one, what is no element of a row and a draft is there, says both "sees" and "does not", and does not matter.
static void elements_that_must_not_matter(void **state) {
  (void)state;
  for (int form = 0; form < 12; form++) {
    dw__problem_spec spec = usual();
    spec.mask_kind = mask_kinds[3 + form % 3];
    spec.strided = form / 3 % 2;
    spec.one_tree = form / 6;
    spec.mask_shared = spec.one_tree && spec.mask_kind != DW_MASK_BYTES_FULL;
    dw__problem *p = solved(&spec), *other = made(&spec);
    bool floats = spec.mask_kind == DW_MASK_BIAS_F32;
    size_t elements = p->mask_bytes / (floats ? 4 : 1), seen = 0, unseen = 0, own = 0;
    bool *used = calloc(elements, sizeof *used);
    int64_t row_stride = stride_or(p->args.mask_row_stride, 9), matrix = stride_or(p->args.mask_request_stride, 9 * row_stride);
    for (int b = 0; b < 5; b++)
      for (int i = 0; i < p->rows[b]; i++)
        for (int j = 0; j < p->rows[b]; j++) {
          int64_t columns = p->prefix[b] + p->rows[b], at = (spec.mask_shared ? 0 : b * matrix) + i * row_stride + j;
          if (spec.mask_kind == DW_MASK_BYTES_FULL) at = p->args.mask_indptr[b] + i * columns + p->prefix[b] + j;
          own += !used[at];
          used[at] = true;
        }
    for (size_t i = 0; i < elements; i++) {
      if (used[i]) continue;
      bool sees = floats ? !(((const float *)p->args.mask)[i] < 0) : ((const uint8_t *)p->args.mask)[i] != 0;
      seen += sees, unseen += floats ? isnan(((const float *)p->args.mask)[i]) : !sees;
      if (floats) ((float *)(uintptr_t)other->args.mask)[i] = sees ? -INFINITY : 0;
      else ((uint8_t *)(uintptr_t)other->args.mask)[i] = !sees;
    }
    assert_int_equal(own, spec.mask_shared ? 81 : 81 + 16 + 1 + 49);
    if (!spec.mask_shared || spec.strided) assert_true(seen > 5 && unseen > 5);
    assert_int_equal(dw__problem_solve(other, 1, NULL), DW_OK);
    assert_same_answer(p, other);
    free(used);
    dw__problem_free(p);
    dw__problem_free(other);
  }
}

// ---- what makes no difference ---------------------------------------------------------------------------------

static void assert_close_answer(const dw__problem *a, const dw__problem *b, double within) {
  assert_int_equal(a->total_q, b->total_q);
  for (size_t i = 0; i < vectors(a); i++)
    if (a->lse64[i] != b->lse64[i]) assert_near(a->lse64[i], b->lse64[i], within);
  for (size_t i = 0; i < vectors(a) * (size_t)a->spec.shape.head_dim_v; i++) assert_near(a->out64[i], b->out64[i], within);
}

static bool differ(const dw__problem *a, const dw__problem *b) {
  return memcmp(a->out64, b->out64, vectors(a) * (size_t)a->spec.shape.head_dim_v * sizeof(double)) != 0;
}

static void check_differs(const dw__problem *base, const dw__problem_spec *spec) {
  dw__problem *problem = solved(spec);
  assert_true(differ(base, problem));
  dw__problem_free(problem);
}

// Layout says where things lie, not what they are.
static void layout_does_not_change_the_answer(void **state) {
  (void)state;
  for (int i = 0; i < 200; i++) {
    uint64_t dice = 1000 + (uint64_t)i;
    dw__problem_spec spec = random_spec(&dice);
    if (spec.mask_kind == DW_MASK_NONE) spec.tree = DW__TREE_CHAIN;
    if (spec.mask_kind != DW_MASK_PARENTS) spec.dead_nodes = 0;
    dw__problem *base = solved(&spec);
    dw__problem_spec other = random_spec(&dice);
    other.seed = spec.seed;
    other.rows = spec.rows;
    other.tree = spec.tree;
    other.one_tree = spec.one_tree;
    other.dead_nodes = spec.dead_nodes;
    other.lse_base_e = spec.lse_base_e;
    other.shape.heads = spec.shape.heads;
    other.width = spec.width ? spec.width : spec.shape.width;
    other.shape.width = other.width + 3;
    other.window = spec.window;
    other.soft_cap = spec.soft_cap;
    other.sinks = spec.sinks;
    other.shape.kv = spec.shape.kv;
    other.kv_scale = spec.kv_scale;
    other.drafts_elsewhere = spec.drafts_elsewhere;
    if (spec.positions == 2 || other.positions == 2) other.positions = spec.positions;
    if (spec.drafts_elsewhere) other.lengths_include_drafts = other.draft_slots = 0;
    if (spec.dead_nodes || (spec.mask_kind != DW_MASK_NONE) < (other.mask_kind != DW_MASK_NONE))
      other.mask_kind = spec.mask_kind;
    if (other.mask_kind == DW_MASK_NONE && spec.tree != DW__TREE_CHAIN) other.mask_kind = spec.mask_kind;
    other.mask_shared = spec.one_tree && (other.mask_kind == DW_MASK_BYTES_QLEN || other.mask_kind == DW_MASK_BIAS_F32);
    check_same(base, &other);
    dw__problem_free(base);
  }
}

static void wide_windows_are_none(void **state) {
  (void)state;
  for (int form = 0; form < 6; form++) {
    dw__problem_spec spec = usual();
    spec.mask_kind = mask_kinds[form];
    dw__problem *base = solved(&spec);
    spec.window = 79;  // the longest request's tokens: its last row is at 78
    check_same(base, &spec);
    spec.positions = 1;
    check_same(base, &spec);
    spec.window = INT32_MAX;
    spec.positions = 2;
    check_same(base, &spec);
    spec.window = 9;
    spec.positions = 0;
    check_differs(base, &spec);
    dw__problem *narrow = solved(&spec);
    spec.positions = 1;
    check_same(narrow, &spec);
    spec.positions = 2;
    check_differs(narrow, &spec);
    dw__problem_free(base);
    dw__problem_free(narrow);
  }
}

static void huge_caps_are_none(void **state) {
  (void)state;
  dw__problem_spec spec = usual();
  dw__problem *base = solved(&spec);
  spec.soft_cap = 1e6f;
  dw__problem *capped = solved(&spec);
  assert_close_answer(base, capped, 1e-9);
  spec.soft_cap = 1;
  check_differs(base, &spec);
  dw__problem_free(base);
  dw__problem_free(capped);
}

static void sinks_of_nothing_are_none(void **state) {
  (void)state;
  dw__problem_spec spec = usual();
  spec.shape.heads = 8;
  spec.dead_nodes = 1;
  dw__problem *base = solved(&spec), *other;
  spec.sinks = 1;
  check_differs(base, &spec);
  other = made(&spec);
  float *sinks = (float *)(uintptr_t)other->args.sinks;
  for (int h = 0; h < 8; h++) {
    assert_true(h == 5 ? sinks[h] == -INFINITY : isfinite(sinks[h]));
    for (int g = 0; g < h; g++) assert_true(sinks[g] != sinks[h]);
    assert_true(h == 2 ? sinks[h] > 4 : h == 7 ? sinks[h] > 30 : sinks[h] < 8);
  }
  for (int h = 0; h < 8; h++) sinks[h] = -INFINITY;
  assert_int_equal(dw__problem_solve(other, 2, NULL), DW_OK);
  assert_same_answer(base, other);
  dw__problem_free(base);
  dw__problem_free(other);
}

// A call over the same arrays with other tables and lengths, added to what is merged so far.
static void merge_call(dw__problem *p, const dw_args *args, double *out, double *lse) {
  size_t n = vectors(p), v = (size_t)p->spec.shape.head_dim_v;
  dw_args kept = p->args;
  dw_error e = {0};
  p->args = *args;
  assert_done(dw__problem_solve(p, 2, &e), &e);
  p->args = kept;
  for (size_t i = 0; i < n; i++) {
    if (p->lse64[i] == -INFINITY) continue;
    double both = fmax(lse[i], p->lse64[i]);
    both += log(exp(lse[i] - both) + exp(p->lse64[i] - both));
    for (size_t d = i * v; d < (i + 1) * v; d++) out[d] = out[d] * exp(lse[i] - both) + p->out64[d] * exp(p->lse64[i] - both);
    lse[i] = both;
  }
}

// Three ranks with a third of the prefix each, and the drafts as a call without a prefix: merged, the whole.
static void ranks_merge_to_the_whole(void **state) {
  (void)state;
  for (int form = 0; form < 6; form++) {
    dw__problem_spec spec = usual();
    spec.mask_kind = mask_kinds[form];
    spec.lse_base_e = 1;
    spec.soft_cap = 2;
    dw__problem *whole = solved(&spec), *p = made(&spec);
    size_t n = vectors(p), v = 32;
    double *out = calloc(n * v, sizeof *out), *lse = calloc(n, sizeof *lse);
    for (size_t i = 0; i < n; i++) lse[i] = -INFINITY;
    int32_t length[5], indptr[6];
    int64_t mask_indptr[6];
    for (int rank = 0; rank < 3; rank++) {
      dw_args own = p->args;
      own.kv_len = length, own.kv_indptr = indptr;
      own.drafts_elsewhere = 1, own.lengths_include_drafts = 0;
      own.mask = NULL;  // not read
      for (int b = 0; b < 5; b++) {
        int from = p->prefix[b] * rank / 3, to = p->prefix[b] * (rank + 1) / 3;
        length[b] = to - from;
        indptr[b] = p->args.kv_indptr[b] + from;
      }
      merge_call(p, &own, out, lse);
    }
    dw_args drafts = p->args;
    drafts.kv_len = length, drafts.kv_indptr = indptr;
    for (int b = 0; b < 5; b++) length[b] = p->rows[b], indptr[b] = p->args.kv_indptr[b] + p->prefix[b];
    if (spec.mask_kind == DW_MASK_BYTES_FULL) {  // without prefix columns: packed anew, in place
      uint8_t *bytes = (uint8_t *)(uintptr_t)p->args.mask;
      int64_t at = 0;
      for (int b = 0; b < 5; b++) {
        mask_indptr[b] = at;
        for (int i = 0; i < p->rows[b]; i++)
          for (int j = 0; j < p->rows[b]; j++)
            bytes[at++] = bytes[p->args.mask_indptr[b] + i * (p->prefix[b] + p->rows[b]) + p->prefix[b] + j];
      }
      mask_indptr[5] = at;
      drafts.mask_indptr = mask_indptr;
    }
    merge_call(p, &drafts, out, lse);
    for (size_t i = 0; i < n; i++) assert_near(lse[i], whole->lse64[i], 1e-12);
    for (size_t i = 0; i < n * v; i++) assert_near(out[i], whole->out64[i], 1e-12);
    free(out);
    free(lse);
    dw__problem_free(whole);
    dw__problem_free(p);
  }
}

static long finite_elements(dw_dtype type, const void *array, size_t bytes) {
  const size_t size = dw__dtype_size(type);
  long count = 0;
  for (size_t i = 0; i < bytes / size; i++) count += isfinite(dw__to_float(type, (const char *)array + i * size));
  return count;
}

static int touch(const void *at) {
  pid_t child = fork();
  if (child == 0) {
    signal(SIGSEGV, SIG_DFL);
    _exit(*(const volatile unsigned char *)at & 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

// A problem of its kind has no draft in its KV and a mask that nobody may touch.
static void drafts_elsewhere_are_not_here(void **state) {
  (void)state;
  for (int form = 0; form < 12; form++) {
    dw__problem_spec spec = usual();
    spec.mask_kind = mask_kinds[form % 6];
    spec.addressing = form / 6 ? DW_BLOCK_TABLE : DW_CSR;
    spec.lengths_include_drafts = 0;
    spec.drafts_elsewhere = 1;
    spec.shape.page = 16;
    dw__problem *p = solved(&spec);
    long tokens = 0;
    for (int b = 0; b < 5; b++) tokens += p->prefix[b];
    assert_int_equal(finite_elements(spec.shape.kv, p->args.kv, p->kv_bytes), tokens * 48);
    if (spec.mask_kind != DW_MASK_NONE) assert_int_equal(touch(p->args.mask), SIGSEGV);
    if (spec.addressing == DW_CSR) assert_int_equal(p->args.kv_indptr[5], tokens);
    for (int row = 9; row < 13; row++) assert_true(p->lse64[row * 3] == -INFINITY);  // request 1 has no prefix
    dw__problem_free(p);
  }
}

static void uniform_rows_need_no_indptr(void **state) {
  (void)state;
  const int full[] = {9, 9, 9, 9, 9};
  dw__problem_spec spec = usual();
  spec.rows = full;
  dw__problem *base = solved(&spec);
  spec.rows = NULL;
  dw__problem *uniform = solved(&spec);
  assert_null(uniform->args.qo_indptr);
  assert_non_null(base->args.qo_indptr);
  assert_same_answer(base, uniform);
  dw__problem_free(uniform);
  dw__problem_free(base);
}

static void threads_do_not_change_a_bit(void **state) {
  (void)state;
  dw__problem_spec spec = usual();
  dw__problem *base = solved(&spec), *other = made(&spec);
  for (int threads = 0; threads < 12; threads++) {
    assert_int_equal(dw__problem_solve(other, threads, NULL), DW_OK);
    assert_same_answer(base, other);
  }
  dw__problem_free(base);
  dw__problem_free(other);
}

// The prefix is a set: its order moves no more than rounding.
static void prefix_order_does_not_matter(void **state) {
  (void)state;
  dw__problem_spec spec = usual();
  dw__problem *base = solved(&spec), *other = made(&spec);
  int32_t *indices = (int32_t *)(uintptr_t)other->args.kv_indices;
  for (int i = 0, j = other->prefix[0] - 1; i < j; i++, j--) {
    int32_t slot = indices[i];
    indices[i] = indices[j];
    indices[j] = slot;
  }
  assert_int_equal(dw__problem_solve(other, 1, NULL), DW_OK);
  bool changed = false;
  for (size_t i = 0; i < vectors(base) * 32; i++) {
    assert_near(other->out64[i], base->out64[i], 1e-13);
    changed |= other->out64[i] != base->out64[i];
  }
  assert_true(changed);
  dw__problem_free(base);
  dw__problem_free(other);
}

static void base_e_is_base_two_scaled(void **state) {
  (void)state;
  dw__problem_spec spec = usual();
  dw__problem *two = solved(&spec);
  spec.lse_base_e = 1;
  dw__problem *e = solved(&spec);
  for (size_t i = 0; i < vectors(two); i++) assert_near(e->lse64[i], two->lse64[i] * log(2), 1e-12);
  dw__problem_free(two);
  dw__problem_free(e);
}

// Requests without rows only, and no token at all.
static void empty_problems_work(void **state) {
  (void)state;
  const int prefix[] = {0, 20, 0}, rows[] = {0, 0, 0};
  for (int i = 0; i < 8; i++) {
    dw__problem_spec spec = usual();
    spec.batch = 1 + 2 * (i & 1);
    spec.prefix = prefix;
    spec.rows = rows;
    spec.addressing = i & 2 ? DW_BLOCK_TABLE : DW_CSR;
    spec.strided = i & 4;
    dw__problem *problem = solved(&spec);
    dw__comparison comparison;
    assert_int_equal(problem->total_q, 0);
    assert_int_equal(dw__problem_compare(problem, &comparison, NULL), DW_OK);
    assert_int_equal(comparison.rows, 0);
    dw__problem_free(problem);
  }
}

static void wide_trees_work(void **state) {
  (void)state;
  const int prefix[] = {3, 40}, rows[] = {1025, 600};
  dw__problem_spec spec = usual();
  spec.batch = 2;
  spec.prefix = prefix;
  spec.rows = rows;
  spec.shape.width = 1025;
  spec.shape.heads = 1;
  spec.dead_nodes = 1;
  dw__problem *problem = solved(&spec);
  check_by_contract(problem);
  dw__problem_free(problem);
}

// ---- poison and guards ----------------------------------------------------------------------------------------

static void what_must_not_matter_is_poison(void **state) {
  (void)state;
  long tokens = 0;
  for (int b = 0; b < 5; b++) tokens += some_prefix[b] + some_rows[b];
  for (int i = 0; i < 32; i++) {
    dw__problem_spec spec = usual();
    spec.strided = i & 1;
    spec.addressing = i & 2 ? DW_BLOCK_TABLE : DW_CSR;
    spec.shape.page = i & 4 ? 16 : 1;
    spec.shape.kv = i % 3 == 2 ? DW_E4M3 : i & 8 ? DW_F16 : DW_BF16;
    spec.q_rope = spec.kv_rope = i / 16;
    dw__problem *p = made(&spec);
    long first = i < 16 ? 48 : 32;
    assert_int_equal(finite_elements(spec.shape.kv, p->args.kv, p->kv_bytes), tokens * first);
    assert_int_equal(finite_elements(spec.shape.kv, p->args.kv_rope, p->kv_rope_bytes), tokens * (48 - first));
    assert_int_equal(finite_elements(spec.shape.q, p->args.q, p->q_bytes), p->total_q * 3 * first);
    assert_int_equal(finite_elements(spec.shape.q, p->args.q_rope, p->q_rope_bytes), p->total_q * 3 * (48 - first));
    assert_true(!p->args.q_rope == (i < 16) && !p->args.kv_rope == (i < 16));
    for (size_t j = 0; j < p->out_bytes / 2; j++) assert_true(isnan(value_of(spec.shape.out, ((uint16_t *)p->args.out)[j])));
    for (size_t j = 0; j < p->lse_bytes / 4; j++) assert_true(isnan(p->args.lse[j]));
    dw__problem_free(p);
  }
}

static void pool_has_both_infinities_and_an_unused_start(void **state) {
  (void)state;
  for (int i = 0; i < 4; i++) {
    dw__problem_spec spec = usual();
    spec.shape.kv = i & 1 ? DW_F16 : DW_BF16;
    spec.shape.page = 16;
    spec.addressing = i & 2 ? DW_BLOCK_TABLE : DW_CSR;
    dw__problem *p = made(&spec);
    int kinds[3] = {0};
    for (int j = 0; j < 16 * 48; j++) {
      double value = value_of(spec.shape.kv, ((const uint16_t *)p->args.kv)[j]);
      assert_false(isfinite(value));
      kinds[isnan(value) ? 0 : value > 0 ? 1 : 2]++;
    }
    for (int j = 0; j < 3; j++) assert_true(kinds[j] > 0);
    dw__problem_free(p);
  }
}

static void table_and_mask_tails_are_garbage(void **state) {
  (void)state;
  dw__problem_spec spec = usual();
  spec.addressing = DW_BLOCK_TABLE;
  spec.mask_kind = DW_MASK_BITS;
  spec.shape.page = 16;
  spec.strided = 1;
  dw__problem *p = made(&spec);
  int64_t stride = p->args.block_table_stride;
  assert_true(p->args.table_columns == 7 && stride > 7);
  for (int b = 0; b < 5; b++)
    for (int column = (some_prefix[b] + some_rows[b] + 15) / 16; column < 7; column++)
      assert_int_equal(p->args.block_table[b * stride + column], 0x3FFFFFFF);
  const uint32_t *bits = p->args.mask;  // the request with one row is the 14th row
  assert_int_equal(bits[13 * p->args.mask_row_stride], 0xFFFFFFFF);
  dw__problem_free(p);
}

static void arrays_end_at_a_guard_page(void **state) {
  (void)state;
  for (int i = 0; i < 20; i++) {
    dw__problem_spec spec = usual();
    spec.strided = i & 1;
    spec.addressing = i & 2 ? DW_BLOCK_TABLE : DW_CSR;
    spec.lengths_include_drafts = 0;
    spec.draft_slots = spec.addressing == DW_CSR;
    spec.mask_kind = mask_kinds[1 + i / 4];
    spec.q_rope = spec.kv_rope = i / 4 % 2;
    spec.positions = spec.sinks = i / 8;
    dw__problem *p = made(&spec);
    const struct {
      const void *at;
      size_t bytes;
    } arrays[] = {
      {p->args.q, p->q_bytes},
      {p->args.out, p->out_bytes},
      {p->args.lse, p->lse_bytes},
      {p->args.kv, p->kv_bytes},
      {p->args.q_rope, p->q_rope_bytes},
      {p->args.kv_rope, p->kv_rope_bytes},
      {p->args.qo_indptr, p->indptr_bytes},
      {p->args.kv_len, 5 * sizeof(int32_t)},
      {p->args.mask, p->mask_bytes},
      {p->args.positions, p->positions_bytes},
      {p->args.sinks, p->args.sinks ? 3 * sizeof(float) : 0},
      {p->args.mask_indptr, spec.mask_kind == DW_MASK_BYTES_FULL ? 6 * sizeof(int64_t) : 0},
      {p->args.kv_indices, p->index_bytes},
      {p->args.block_table, p->table_bytes},
      {p->args.kv_indptr, spec.addressing == DW_CSR ? p->indptr_bytes : 0},
      {p->args.draft_slots, p->draft_slots_bytes},
    };
    for (size_t a = 0; a < DW__COUNT(arrays); a++) {
      if (arrays[a].bytes == 0) continue;
      assert_int_equal(touch((const char *)arrays[a].at + arrays[a].bytes - 1), 0);
      assert_int_equal(touch((const char *)arrays[a].at + arrays[a].bytes), SIGSEGV);
    }
    assert_int_equal((uintptr_t)p->args.q % 16, 0);
    assert_int_equal((uintptr_t)p->args.kv % 16, 0);
    assert_int_equal((uintptr_t)p->args.out % 16, 0);
    assert_int_equal((uintptr_t)p->args.q_rope % 16, 0);
    assert_int_equal((uintptr_t)p->args.kv_rope % 16, 0);
    dw__problem_free(p);
  }
}

// ---- comparing ------------------------------------------------------------------------------------------------

static char *result(const dw__problem *p, int row, int head, int element) {
  const dw_shape *shape = &p->spec.shape;
  int64_t head_stride = p->args.out_head_stride ? p->args.out_head_stride : shape->head_dim_v;
  int64_t row_stride = p->args.out_row_stride ? p->args.out_row_stride : shape->heads * head_stride;
  return (char *)p->args.out + (row * row_stride + head * head_stride + element) * (int64_t)dw__dtype_size(shape->out);
}

static float *result_lse(const dw__problem *p, int row, int head) {
  int64_t stride = p->args.lse_row_stride ? p->args.lse_row_stride : p->spec.shape.heads;
  return p->args.lse + row * stride + head;
}

// The best result there can be: the answer, rounded.
static void write_answer(dw__problem *p) {
  const dw_shape *shape = &p->spec.shape;
  dw__problem_poison(p);
  for (int row = 0; row < p->total_q; row++)
    for (int h = 0; h < shape->heads; h++) {
      size_t vector = (size_t)(row * shape->heads + h);
      for (int d = 0; d < shape->head_dim_v; d++)
        dw__from_float(shape->out, p->out64[vector * (size_t)shape->head_dim_v + (size_t)d], result(p, row, h, d));
      *result_lse(p, row, h) = (float)p->lse64[vector];
    }
}

static dw__problem *answered(bool strided, dw_dtype out) {
  dw__problem_spec spec = usual();
  spec.strided = strided;
  spec.dead_nodes = 1;
  spec.shape.out = out;
  dw__problem *problem = solved(&spec);
  write_answer(problem);
  return problem;
}

static dw__comparison compared(dw__problem *problem, dw_status expected, dw_error *error) {
  dw__comparison comparison;
  *error = (dw_error){0};
  dw_status status = dw__problem_compare(problem, &comparison, error);
  if (status != expected) fail_msg("%s: %s", dw_status_name(status), error->message);
  return comparison;
}

static void right_result_passes(void **state) {
  (void)state;
  for (int i = 0; i < 6; i++) {
    dw_error e;
    dw__problem *problem = answered(i & 1, (dw_dtype)(i / 2));
    dw__comparison c = compared(problem, DW_OK, &e);
    assert_int_equal(c.rows, 21 * 3);
    assert_int_equal(c.failed, 0);
    assert_false(c.outside_written);
    assert_true(c.ulp_share == 1);
    assert_true(c.worst.relative < 2.5e-3 && c.worst.bound >= 3e-3);
    assert_true(c.total_relative <= c.worst.relative);
    dw__problem_free(problem);
  }
}

// Bits of the neighbours count as close, also where they have the other sign.
static void units_in_the_last_place_are_counted(void **state) {
  (void)state;
  dw_error e;
  dw__problem *problem = answered(false, DW_BF16);
  double each = 1.0 / (21 * 3 * 32);
  uint16_t *element = (uint16_t *)(void *)result(problem, 0, 0, 0), rounded = *element;
  for (int apart = -3; apart <= 3; apart++) {
    *element = (uint16_t)(rounded + apart);
    dw__comparison c;
    dw__problem_compare(problem, &c, NULL);
    assert_near(c.ulp_share, abs(apart) <= 1 ? 1 : 1 - each, 1e-12);
  }
  *element = rounded;
  int dead = 0;
  while (((const int *)problem->args.mask)[dead] != -2) dead++;
  dw__from_float(DW_BF16, -0.0, result(problem, dead, 0, 0));
  assert_true(compared(problem, DW_OK, &e).ulp_share == 1);
  dw__problem_free(problem);
}

static void nothing_written_fails_everywhere(void **state) {
  (void)state;
  dw_error e;
  dw__problem *problem = answered(true, DW_BF16);
  dw__problem_poison(problem);
  dw__comparison c = compared(problem, DW_WRONG_RESULT, &e);
  assert_int_equal(c.failed, c.rows);
  assert_false(c.outside_written);
  dw__problem_free(problem);
}

// A live row with keys to see, for planting: the last row of request 0, that is row 8 (or one before it if it is dead).
static int live_row(const dw__problem *p) {
  int row = 8;
  while (((const int *)p->args.mask)[row] == -2) row--;
  return row;
}

static void wrong_element_is_found_and_named(void **state) {
  (void)state;
  for (int i = 0; i < 6; i++) {
    dw_error e;
    char field[64];
    dw_dtype out = (dw_dtype)(i / 2);
    dw__problem *problem = answered(i & 1, out);
    int row = live_row(problem);
    dw__from_float(out, 0.25 + (double)dw__to_float(out, result(problem, row, 2, 31)), result(problem, row, 2, 31));
    dw__comparison c = compared(problem, DW_WRONG_RESULT, &e);
    assert_int_equal(c.failed, 1);
    snprintf(field, sizeof field, "out[request 0, row %d, head 2]", row);
    assert_string_equal(e.field, field);
    assert_non_null(strstr(e.message, "element 31 is "));
    assert_int_equal(c.first_failed.row, row);
    assert_int_equal(c.worst.head, 2);
    assert_true(c.worst.relative > c.worst.bound);
    assert_true(c.ulp_share < 1 && c.ulp_share > 0.999);
    dw__problem_free(problem);
  }
}

static void nan_is_found_and_named(void **state) {
  (void)state;
  dw_error e;
  dw__problem *problem = answered(false, DW_BF16);
  dw__from_float(DW_BF16, NAN, result(problem, 20, 0, 7));  // the last row of request 4
  dw__comparison c = compared(problem, DW_WRONG_RESULT, &e);
  assert_int_equal(c.failed, 1);
  assert_string_equal(e.field, "out[request 4, row 6, head 0]");
  assert_non_null(strstr(e.message, "element 7 is nan"));
  assert_true(isinf(c.worst.relative));
  dw__problem_free(problem);
}

static void wrong_lse_is_found_and_named(void **state) {
  (void)state;
  const double off[] = {0.01, -0.01, NAN, -INFINITY};
  for (size_t i = 0; i < DW__COUNT(off); i++) {
    dw_error e;
    char field[64];
    dw__problem *problem = answered(i & 1, DW_BF16);
    int row = live_row(problem);
    *result_lse(problem, row, 1) += (float)off[i];
    dw__comparison c = compared(problem, DW_WRONG_RESULT, &e);
    assert_int_equal(c.failed, 1);
    snprintf(field, sizeof field, "lse[request 0, row %d, head 1]", row);
    assert_string_equal(e.field, field);
    assert_int_equal(c.first_failed.row, row);
    dw__problem_free(problem);
  }
}

static int dead_row(const dw__problem *p) {
  for (int row = 0; row < p->total_q; row++)
    if (((const int *)p->args.mask)[row] == -2) return row;
  fail_msg("no dead node");
  return -1;
}

static void row_that_sees_nothing_must_be_exact(void **state) {
  (void)state;
  dw_error e;
  dw__problem *problem = answered(false, DW_F32);
  int row = dead_row(problem);
  dw__from_float(DW_F32, 1e-30, result(problem, row, 0, 0));
  assert_int_equal(compared(problem, DW_WRONG_RESULT, &e).failed, 1);
  assert_memory_equal(e.field, "out[", 4);
  write_answer(problem);
  *result_lse(problem, row, 0) = -1e30f;
  assert_int_equal(compared(problem, DW_WRONG_RESULT, &e).failed, 1);
  assert_memory_equal(e.field, "lse[", 4);
  dw__problem_free(problem);
}

// Between two heads, between two rows, before the first row; the same for the log-sum-exp.
static void write_outside_is_found_and_named(void **state) {
  (void)state;
  for (int i = 0; i < 5; i++) {
    dw_error e;
    dw__problem *problem = answered(true, DW_BF16);
    char *places[] = {result(problem, 4, 1, 32), result(problem, 4, 2, 32 + 10), (char *)problem->args.out - 1,
                      (char *)result_lse(problem, 3, 3), (char *)problem->args.lse - 5};
    *places[i] ^= 1;
    dw__comparison c = compared(problem, DW_WRONG_RESULT, &e);
    assert_true(c.outside_written);
    assert_int_equal(c.failed, 0);
    assert_string_equal(e.field, i < 3 ? "out" : "lse");
    char found[64], *start = i < 3 ? (char *)problem->args.out : (char *)problem->args.lse;
    snprintf(found, sizeof found, "a write at byte %td", places[i] - start);
    assert_string_equal(e.found, found);
    dw__problem_free(problem);
  }
}

static void plain_result_is_within_its_bound(void **state) {
  (void)state;
  for (int i = 0; i < 32; i++) {
    const int prefix[] = {300, 0, 33, 0, 5};
    dw__problem_spec spec = usual();
    spec.prefix = prefix;
    spec.q_scale = i & 1 ? 3 : 1;
    spec.shape.kv = i & 2 ? DW_F16 : DW_BF16;
    spec.shape.out = i & 4 ? DW_F32 : DW_BF16;
    spec.soft_cap = i & 8 ? 3 : 0;
    spec.sinks = !!(i & 8);
    spec.window = i & 16 ? 20 : 0;
    spec.q_rope = spec.kv_rope = i & 16;
    dw__problem *problem = solved(&spec);
    size_t n = vectors(problem) * 32;
    double *out = calloc(n, sizeof *out), *lse = calloc(vectors(problem), sizeof *lse), error = 0, size = 0;
    assert_int_equal(dw__oracle_plain(&spec.shape, &problem->args, 2, out, lse, NULL), DW_OK);
    for (size_t j = 0; j < n; j++) {
      error += pow(out[j] - problem->out64[j], 2);
      size += pow(problem->out64[j], 2);
      dw__from_float(spec.shape.out, out[j], result(problem, 0, 0, (int)j));
    }
    for (size_t j = 0; j < vectors(problem); j++) problem->args.lse[j] = (float)lse[j];
    error = sqrt(error / size);
    if (spec.shape.kv == DW_BF16) assert_true(error > 1e-4);  // P is rounded: it is not the exact answer
    assert_true(error < 3e-3);
    dw_error e;
    dw__comparison c = compared(problem, DW_OK, &e);
    assert_near(c.total_relative, error, 1e-9);
    assert_near(c.worst.bound, fmax(1.5 * c.worst.relative, 3e-3), 1e-9);
    assert_true(c.worst.lse < 1e-4);
    free(out);
    free(lse);
    dw__problem_free(problem);
  }
}

static void comparison_needs_an_answer(void **state) {
  (void)state;
  dw__problem_spec spec = usual();
  dw__problem *problem = made(&spec);
  dw_error e;
  compared(problem, DW_BAD_ARGUMENT, &e);
  assert_string_equal(e.field, "problem");
  dw__problem_free(problem);
}

static void lse_is_optional(void **state) {
  (void)state;
  dw_error e;
  dw__problem *problem = answered(false, DW_BF16);
  *result_lse(problem, 0, 0) = NAN;
  problem->args.lse = NULL;
  assert_int_equal(compared(problem, DW_OK, &e).failed, 0);
  dw__problem_free(problem);
}

// ---- refusals and failures ------------------------------------------------------------------------------------

static void assert_refused(const dw__problem_spec *spec, const char *field) {
  dw__problem *problem = NULL;
  dw_error e = {0};
  assert_int_not_equal(dw__problem_make(spec, &problem, &e), DW_OK);
  assert_string_equal(e.field, field);
  assert_null(problem);
}

static void bad_specs_are_refused(void **state) {
  (void)state;
  const int negative[] = {1, -1, 0, 0, 0}, wide[] = {1, 2, 10, 0, 0}, many[] = {1 << 30, 1 << 30, 0, 0, 0};
  dw__problem_spec spec = usual();
  spec.batch = 0;
  assert_refused(&spec, "batch");
  spec = usual(), spec.prefix = NULL;
  assert_refused(&spec, "prefix");
  spec = usual(), spec.prefix = negative;
  assert_refused(&spec, "prefix[1]");
  spec = usual(), spec.prefix = many;
  assert_refused(&spec, "prefix");
  spec = usual(), spec.rows = wide;
  assert_refused(&spec, "rows[2]");
  spec = usual(), spec.rows = negative;
  assert_refused(&spec, "rows[1]");
  spec = usual(), spec.spare_pages = 0;
  assert_refused(&spec, "spare_pages");
  spec = usual(), spec.draft_slots = 1;
  assert_refused(&spec, "draft_slots");
  spec = usual(), spec.shape.heads = 0;
  assert_refused(&spec, "heads");
  spec = usual(), spec.shape.head_dim_v = 48, spec.q_rope = 1;
  assert_refused(&spec, "q_rope");
  spec.q_rope = 0, spec.kv_rope = 1;
  assert_refused(&spec, "kv_rope");
  spec = usual(), spec.window = -1;
  assert_refused(&spec, "window");
  spec = usual(), spec.soft_cap = -1;
  assert_refused(&spec, "soft_cap");
  spec = usual(), spec.soft_cap = NAN;
  assert_refused(&spec, "soft_cap");
  spec = usual(), spec.drafts_elsewhere = 1;
  assert_refused(&spec, "drafts_elsewhere");
  spec.lengths_include_drafts = 0, spec.draft_slots = 1;
  assert_refused(&spec, "drafts_elsewhere");
  spec.draft_slots = 0, spec.window = 4;
  assert_refused(&spec, "drafts_elsewhere");
  spec = usual(), spec.width = 10;
  assert_refused(&spec, "width");
  spec = usual(), spec.width = 8;  // fewer than the first request has
  assert_refused(&spec, "rows[0]");
  spec = usual(), spec.mask_kind = (dw_mask)7;
  assert_refused(&spec, "mask_kind");
  spec = usual(), spec.mask_shared = spec.one_tree = 1;
  assert_refused(&spec, "mask_shared");
  spec = usual(), spec.mask_shared = 1, spec.mask_kind = DW_MASK_BYTES_QLEN;
  assert_refused(&spec, "mask_shared");
  spec = usual(), spec.kv_rope = 1;
  dw_preset_shape("qwen3-8b", &spec.shape, NULL);
  assert_refused(&spec, "kv_rope");
}

static void oracle_refuses_bad_arguments(void **state) {
  (void)state;
  dw__problem_spec spec = usual();
  dw__problem *p = made(&spec);
  const dw_args good = p->args;
  dw_error e = {0};
  const void **pointers[] = {(const void **)&p->args.q,         &p->args.kv,         (const void **)&p->args.kv_len,
                             (const void **)&p->args.kv_indptr, &p->args.kv_indices, &p->args.mask};
  const char *names[] = {"q", "kv", "kv_len", "kv_indptr", "kv_indices", "mask"};
  for (size_t i = 0; i < DW__COUNT(names); i++) {
    *pointers[i] = NULL;
    assert_int_equal(dw__problem_solve(p, 1, &e), DW_BAD_ARGUMENT);
    assert_string_equal(e.field, names[i]);
    p->args = good;
  }
  int32_t *parents = (int32_t *)(uintptr_t)p->args.mask, *indptr = (int32_t *)(uintptr_t)p->args.qo_indptr;
  parents[9 + 2] = 2;  // request 1, node 2: its own parent
  assert_int_equal(dw__problem_solve(p, 1, &e), DW_BAD_ARGUMENT);
  assert_string_equal(e.field, "mask: request 1, node 2");
  parents[9 + 2] = -3;
  assert_int_equal(dw__problem_solve(p, 1, &e), DW_BAD_ARGUMENT);
  parents[9 + 1] = -2, parents[9 + 2] = 1;
  assert_int_equal(dw__problem_solve(p, 1, &e), DW_BAD_ARGUMENT);
  assert_string_equal(e.allowed, "a node that is not dead");
  indptr[1] = 22;
  assert_int_equal(dw__problem_solve(p, 1, &e), DW_BAD_ARGUMENT);
  assert_string_equal(e.field, "qo_indptr[1]");
  dw__problem_free(p);
  spec.addressing = DW_BLOCK_TABLE;
  p = made(&spec);
  p->args.table_columns--;
  assert_int_equal(dw__problem_solve(p, 1, &e), DW_BAD_ARGUMENT);
  assert_string_equal(e.field, "kv_len[0]");
  dw_shape gqa;
  dw_preset_shape("qwen3-8b", &gqa, NULL);
  assert_int_equal(dw__oracle_exact(&gqa, &p->args, 1, p->out64, p->lse64, &e), DW_BAD_ARGUMENT);
  assert_string_equal(e.field, "v");
  p->args.batch = -1;
  assert_int_equal(dw__problem_solve(p, 1, &e), DW_BAD_ARGUMENT);
  dw__problem_free(p);
}

// An argument changed back and forth: refused with this field and found value, or taken where `field` is NULL.
static void assert_solves(dw__problem *p, const char *field, const char *found) {
  dw_error e = {0};
  dw_status status = dw__problem_solve(p, 1, &e);
  if (!field) assert_done(status, &e);
  if (!field) return;
  assert_int_equal(status, DW_BAD_ARGUMENT);
  assert_string_equal(e.field, field);
  assert_string_equal(e.found, found);
}

static void oracle_refuses_bad_masks(void **state) {
  (void)state;
  dw__problem_spec spec = usual();
  spec.mask_kind = DW_MASK_BIAS_F32;
  dw__problem *p = made(&spec);
  float *bias = (float *)(uintptr_t)p->args.mask;
  assert_solves(p, NULL, NULL);
  bias[1 * 81 + 2 * 9 + 3] = 0.5f;
  assert_solves(p, "mask: request 1, row 2, draft 3", "0.5");
  bias[1 * 81 + 2 * 9 + 3] = NAN;
  assert_solves(p, "mask: request 1, row 2, draft 3", "nan");
  p->args.mask_kind = (dw_mask)7;
  assert_solves(p, "mask_kind", "7");
  dw__problem_free(p);

  spec.mask_kind = DW_MASK_BYTES_FULL;
  p = made(&spec);
  int64_t *indptr = (int64_t *)(uintptr_t)p->args.mask_indptr, good = indptr[1];
  assert_solves(p, NULL, NULL);
  assert_int_equal(good, 9 * 79);
  indptr[1] = good - 1;
  assert_solves(p, "mask_indptr[1]", "710");
  indptr[1] = good, indptr[0] = -1;
  assert_solves(p, "mask_indptr[1]", "711");
  p->args.mask_indptr = NULL;
  assert_solves(p, "mask_indptr", "NULL");
  dw__problem_free(p);
}

static void oracle_refuses_bad_scalars_and_positions(void **state) {
  (void)state;
  dw__problem_spec spec = usual();
  spec.positions = spec.sinks = 1;
  spec.window = 7;
  dw__problem *p = made(&spec);
  int32_t *positions = (int32_t *)(uintptr_t)p->args.positions;
  float *sinks = (float *)(uintptr_t)p->args.sinks;
  assert_solves(p, NULL, NULL);
  positions[13] = 32;  // request 3 has no prefix: its one row may stand anywhere
  assert_solves(p, NULL, NULL);
  positions[4] = 69;
  assert_solves(p, "positions[4]", "69");
  p->args.window = 0;
  assert_solves(p, NULL, NULL);
  p->args.window = -1;
  assert_solves(p, "window", "-1");
  p->args.window = 0, p->args.soft_cap = -2;
  assert_solves(p, "soft_cap", "-2");
  p->args.soft_cap = 0, sinks[1] = NAN;
  assert_solves(p, "sinks[1]", "nan");
  sinks[1] = INFINITY;
  assert_solves(p, "sinks[1]", "inf");
  sinks[1] = -INFINITY;
  assert_solves(p, NULL, NULL);
  p->args.drafts_elsewhere = 1;
  assert_solves(p, "drafts_elsewhere", "1");
  p->args.lengths_include_drafts = 0, p->args.window = 5;
  assert_solves(p, "drafts_elsewhere", "1");
  p->args.window = 0, p->args.draft_slots = positions;
  assert_solves(p, "drafts_elsewhere", "1");
  dw__problem_free(p);
  spec = usual();
  spec.shape.head_dim_v = 48;
  p = made(&spec);
  p->args.q_rope = p->args.q;
  assert_solves(p, "q_rope", "a pointer");
  p->args.q_rope = NULL, p->args.kv_rope = p->args.kv;
  assert_solves(p, "kv_rope", "a pointer");
  dw__problem_free(p);
}

// Every allocation fails once, from the n-th on; nothing leaks (the leak check of a sanitizer build says so) and all ends well.
static void lack_of_memory_is_an_error(void **state) {
  (void)state;
  long sweep = 1;
  for (int stage = 0; stage < 3; sweep++) {
    dw__problem_spec spec = usual();
    dw__problem *problem = NULL;
    dw__comparison comparison;
    dw_error e = {0};
    dw__alloc_fail_after(sweep);
    dw_status status = dw__problem_make(&spec, &problem, &e);
    if (status == DW_OK) stage = 1;
    if (status == DW_OK) status = dw__problem_solve(problem, 3, &e);
    if (status == DW_OK) stage = 2;
    if (status == DW_OK) status = dw__problem_compare(problem, &comparison, &e);
    dw__alloc_fail_after(0);
    if (status != DW_OUT_OF_MEMORY) {
      assert_int_equal(status, DW_WRONG_RESULT);  // nothing was written: the comparison got that far
      stage = 3;
    } else {
      assert_int_equal(e.status, DW_OUT_OF_MEMORY);
    }
    dw__problem_free(problem);
  }
  assert_in_range(sweep, 30, 100);
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(numbers_survive),
    cmocka_unit_test(numbers_round_to_nearest_even),
    cmocka_unit_test(numbers_of_e4m3),
    cmocka_unit_test(numbers_have_their_ends),
    cmocka_unit_test(tree_masks_equal_the_walk_to_the_root),
    cmocka_unit_test(tree_of_the_cases),
    cmocka_unit_test(random_trees_are_deep_and_wide),
    cmocka_unit_test(bad_trees_are_refused_with_the_node),
    cmocka_unit_test(one_visible_token_is_its_v),
    cmocka_unit_test(equal_keys_give_the_mean),
    cmocka_unit_test(huge_score_takes_it_all),
    cmocka_unit_test(lse_is_analytic_in_both_bases),
    cmocka_unit_test(chain_sees_what_came_before),
    cmocka_unit_test(siblings_do_not_see_each_other),
    cmocka_unit_test(dead_node_sees_nothing),
    cmocka_unit_test(bits_are_taken_as_given),
    cmocka_unit_test(row_that_sees_nothing_is_zero),
    cmocka_unit_test(request_of_length_zero_is_zero),
    cmocka_unit_test(window_moves_with_the_row),
    cmocka_unit_test(window_counts_depths),
    cmocka_unit_test(window_takes_positions_as_given),
    cmocka_unit_test(window_edge),
    cmocka_unit_test(window_that_shows_nothing),
    cmocka_unit_test(soft_cap_saturates),
    cmocka_unit_test(sink_is_a_score_without_a_value),
    cmocka_unit_test(sink_alone),
    cmocka_unit_test(visible_nan_is_not_hidden),
    cmocka_unit_test(scores_of_minus_infinity),
    cmocka_unit_test(oracle_equals_the_formula),
    cmocka_unit_test(addressing_forms_agree),
    cmocka_unit_test(any_problem_has_the_answer_of_the_contract),
    cmocka_unit_test(mask_forms_agree),
    cmocka_unit_test(elements_are_taken_as_given),
    cmocka_unit_test(elements_that_must_not_matter),
    cmocka_unit_test(layout_does_not_change_the_answer),
    cmocka_unit_test(wide_windows_are_none),
    cmocka_unit_test(huge_caps_are_none),
    cmocka_unit_test(sinks_of_nothing_are_none),
    cmocka_unit_test(ranks_merge_to_the_whole),
    cmocka_unit_test(drafts_elsewhere_are_not_here),
    cmocka_unit_test(uniform_rows_need_no_indptr),
    cmocka_unit_test(threads_do_not_change_a_bit),
    cmocka_unit_test(prefix_order_does_not_matter),
    cmocka_unit_test(base_e_is_base_two_scaled),
    cmocka_unit_test(empty_problems_work),
    cmocka_unit_test(wide_trees_work),
    cmocka_unit_test(what_must_not_matter_is_poison),
    cmocka_unit_test(pool_has_both_infinities_and_an_unused_start),
    cmocka_unit_test(table_and_mask_tails_are_garbage),
    cmocka_unit_test(arrays_end_at_a_guard_page),
    cmocka_unit_test(right_result_passes),
    cmocka_unit_test(units_in_the_last_place_are_counted),
    cmocka_unit_test(nothing_written_fails_everywhere),
    cmocka_unit_test(wrong_element_is_found_and_named),
    cmocka_unit_test(nan_is_found_and_named),
    cmocka_unit_test(wrong_lse_is_found_and_named),
    cmocka_unit_test(row_that_sees_nothing_must_be_exact),
    cmocka_unit_test(write_outside_is_found_and_named),
    cmocka_unit_test(plain_result_is_within_its_bound),
    cmocka_unit_test(comparison_needs_an_answer),
    cmocka_unit_test(lse_is_optional),
    cmocka_unit_test(bad_specs_are_refused),
    cmocka_unit_test(oracle_refuses_bad_arguments),
    cmocka_unit_test(oracle_refuses_bad_masks),
    cmocka_unit_test(oracle_refuses_bad_scalars_and_positions),
    cmocka_unit_test(lack_of_memory_is_an_error),
  };
  if (list_tests(argc, argv, tests, DW__COUNT(tests))) return 0;
  return cmocka_run_group_tests(tests, NULL, NULL);
}
