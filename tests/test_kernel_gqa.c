// What users ran into with GQA, retold for our kernels as in test_kernel_cases, and what only GQA has: K and V apart. By host
// execution; test_kernels_gqa runs the pairwise set of cases.
//
// | case | here |
// |---|---|
// | a02 a03 a42 | K and V interleaved in a pool of more than 2^31 elements; pages of 1; a page stride that is the caller's: in e4m3, too |
// | a08 | V that is not finite where some rows do not look, with a K that is |
// | a11 a13 | more ranges than tokens; each request of a batch equals its own run |
// | a19 | trees of 1025 nodes |
// | a23 | other widths of V than of K |
// | a25 a27 | window and tree, sinks, at gpt-oss's heads |
// | a30 a31 | 16 query heads a KV head; heads that do not divide |
// | a41 | q in a packed row of q, k and v |
#include "kernel_tests.h"
#include "list_tests.h"

#include <sys/mman.h>

#define COUNT(array) ((int)DW__COUNT(array))
#define ONE "family=grouped,n_tiles=1,combine=few,combine_splits=4"
#define TWO "family=grouped,n_tiles=2,combine=few,combine_splits=4"
#define FOUR "family=grouped,n_tiles=4,combine=few,combine_splits=2"
#define EIGHT "family=grouped,n_tiles=8,combine=few,combine_splits=2"
#define WARP1 "family=warpsplit,n_tiles=1,combine=few,combine_splits=4"
#define WARP2 "family=warpsplit,n_tiles=2,combine=few,combine_splits=4"
#define WARP4 "family=warpsplit,n_tiles=4,combine=few,combine_splits=4"
#define WARP5 "family=warpsplit,n_tiles=5,combine=few,combine_splits=2"
#define SPLIT "family=split,combine=few,combine_splits=8"
#define REFERENCE "family=reference"
static const char *const all_variants[] = {ONE, TWO, FOUR, WARP1, WARP5, SPLIT, REFERENCE};

static dw__problem *solved(const dw__problem_spec *spec) {
  dw__problem *problem = kt_problem(spec);
  kt_solve(problem);
  return problem;
}

// The rule table's choice, and the other family's kernel as the tuner has it.
static void check_chosen(const dw__problem_spec *spec, const char *text) {
  dw__problem *problem = solved(spec);
  dw_bounds bounds = kt_bounds(problem);
  dw_variant variant, other;
  dw_error error = {0};
  bounds.sm_count = 188;
  if (dw_variant_choose(&spec->shape, &bounds, &variant, &error)) kt_fail(text, &error);
  assert_int_equal(variant.family, DW_WARPSPLIT);
  kt_note("%s, batch %d", text, spec->batch);
  kt_run(kt_kernel_get(&spec->shape, &variant), &bounds, problem, DW_HOST_FORWARD, 1);
  kt_check(problem);
  size_t i = 0;
  do assert_int_equal(dw_variant_enumerate(&spec->shape, i++, &other), DW_OK);
  while (other.family != DW_GROUPED);
  kt_note("%s, batch %d, grouped", text, spec->batch);
  kt_run(kt_kernel_get(&spec->shape, &other), &bounds, problem, DW_HOST_FORWARD, 1);
  kt_check(problem);
  dw__problem_free(problem);
}

// ---- large pools ----------------------------------------------------------------------------------------------

static void *reserve(size_t bytes) {
  void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  assert_true(memory != MAP_FAILED);
  return memory;
}

// One request's tokens moved into pools of `pages` pages laid out as the problem's, where token t lies in page place(t / page).
static void check_far(const char *text, const char *variant, dw__planes planes, dw_addressing addressing, int tokens,
                      int64_t pages, int (*place)(int)) {
  dw_shape shape = kt_shape(text);
  dw__problem_spec spec = kt_spec(&shape, 1, &tokens, NULL);
  dw__plane plane[2];
  spec.addressing = addressing;
  spec.mask_kind = DW_MASK_PARENTS;
  spec.planes = planes;
  dw__problem *problem = solved(&spec), far = *problem;
  dw_bounds bounds = kt_bounds(problem);
  kt_note("%s %s", text, variant);
  kt_result near = kt_take_run(kt_kernel_of(text, variant), &bounds, problem);
  kt_check(problem);
  dw__planes_lay(&shape, planes, 0, &plane[0], &plane[1]);
  const bool share = dw__planes_share(planes);
  const size_t each = dw__dtype_size(shape.kv);
  size_t bytes[2];
  char *pool[2];
  for (int k = 0; k < 2; k++) {
    bytes[k] = each * dw__plane_extent(&shape, &plane[share ? 1 : k], pages);
    pool[k] = k && share ? pool[0] : reserve(bytes[k]);
  }
  assert_true(bytes[0] / each > (1u << 31));
  int32_t *list =
    (int32_t *)(uintptr_t)(addressing == DW_CSR ? problem->args.kv_indices : (const void *)problem->args.block_table);
  const int all = tokens + shape.width, page = shape.page;
  for (int t = 0; t < all; t++)
    for (int h = 0; h < shape.kv_heads; h++) {
      int64_t slot = (int64_t)place(t / page) * page + t % page;
      memcpy(pool[0] + (size_t)dw__plane_place(&shape, &plane[0], slot, h) * each,
             dw__oracle_key(&shape, &problem->args, 0, t, h), (size_t)plane[0].size * each);
      memcpy(pool[1] + (size_t)dw__plane_place(&shape, &plane[1], slot, h) * each,
             dw__oracle_value(&shape, &problem->args, 0, t, h), (size_t)plane[1].size * each);
    }
  for (int t = 0; t < all; t++) list[addressing == DW_CSR ? t : t / page] = place(t / page);
  far.args.kv = pool[0];
  far.args.v = pool[1] + (size_t)plane[1].first * each;
  far.kv_bytes = bytes[0];
  far.v_bytes = share ? 0 : bytes[1];
  kt_result moved = kt_take_run(kt_kernel_of(text, variant), &bounds, &far);
  kt_assert_same(&near, &moved);
  munmap(pool[0], bytes[0]);
  if (!share) munmap(pool[1], bytes[1]);
  kt_drop(&near);
  kt_drop(&moved);
  dw__problem_free(problem);
}

// 32,768 elements a page of K and V: 2^31 lies at the begin of page 65,536.
static int page_65535(int i) { return 65535 + i; }
static void a02_interleaved_pages(void **state) {
  (void)state;
  static const char *const variants[] = {TWO, SPLIT, REFERENCE, WARP2};
  const char *text = "gqa:h=16,hk=8,t=4,d=128,page=16";
  for (int i = 0; i < COUNT(variants); i++)
    check_far(text, variants[i], i == 1 ? DW__PLANES_IN_PAGE : DW__PLANES_IN_TOKEN, DW_BLOCK_TABLE, 28, 65537, page_65535);
  check_far("gqa:h=16,hk=8,t=4,d=128,page=16,kv=e4m3", TWO, DW__PLANES_IN_PAGE, DW_BLOCK_TABLE, 28, 65537, page_65535);
}

// 512 elements a slot: 2^31 lies in slot 4,194,304.
static int far_slots(int i) { return i % 2 ? 4194304 - 20 + i : 6300000 - 1 - i; }
static void a03_slots_at_the_far_end(void **state) {
  (void)state;
  const char *text = "gqa:h=8,hk=8,t=4,d=64";
  check_far(text, ONE, DW__PLANES_APART, DW_CSR, 60, 6300000, far_slots);
  check_far(text, ONE, DW__PLANES_IN_TOKEN, DW_BLOCK_TABLE, 60, 6300000, far_slots);
  check_far(text, SPLIT, DW__PLANES_APART, DW_BLOCK_TABLE, 60, 6300000, far_slots);
  check_far("gqa:h=8,hk=8,t=4,d=64,kv=e4m3", ONE, DW__PLANES_APART, DW_CSR, 60, 6300000, far_slots);
  check_far(text, WARP1, DW__PLANES_APART, DW_CSR, 60, 6300000, far_slots);
  check_far(text, WARP1, DW__PLANES_IN_TOKEN, DW_BLOCK_TABLE, 60, 6300000, far_slots);
}

// A pool of [pages, 2, P, heads, D]: only the page stride is the caller's, tokens and heads are tight.
static void a42_page_stride_is_the_callers(void **state) {
  (void)state;
  static const int prefix[] = {70, 3, 130};
  for (int page = 16; page <= 64; page *= 4)
    for (int i = 0; i < COUNT(all_variants) + 1; i++) {
      const bool bytes = i == COUNT(all_variants);
      const char *variant = bytes ? TWO : all_variants[i];
      const size_t each = bytes ? 1 : 2;
      char text[64];
      snprintf(text, sizeof text, "gqa:h=8,hk=4,t=5,d=64,page=%d%s", page, bytes ? ",kv=e4m3" : "");
      dw__problem_spec spec = kt_spec_of(text, 3, prefix, NULL, DW_MASK_BITS);
      dw__problem *problem = solved(&spec), both = *problem;
      const size_t half = (size_t)page * 4 * 64;
      const int pages = problem->args.kv_pages;
      char *pool = calloc(2 * (size_t)pages, half * each);
      assert_non_null(pool);
      for (size_t n = 0; n < (size_t)pages; n++) {
        memcpy(pool + 2 * n * half * each, (const char *)problem->args.kv + n * half * each, half * each);
        memcpy(pool + (2 * n + 1) * half * each, (const char *)problem->args.v + n * half * each, half * each);
      }
      both.args.kv = pool;
      both.args.v = pool + half * each;
      both.args.kv_page_stride = both.args.v_page_stride = (int64_t)(2 * half);
      both.kv_bytes = 2 * (size_t)pages * half * each;
      both.v_bytes = 0;
      kt_note("%s %s", text, variant);
      kt_run_check(kt_kernel_of(text, variant), &both);
      free(pool);
      dw__problem_free(problem);
    }
}

// ---- what is not finite ---------------------------------------------------------------------------------------

// NaN or infinity in one element of one head's V of a draft that only later rows see, its K as it was: rows that do not see it keep
// their bits, rows of other KV heads too, rows that do see it are not finite.
static void a08_one_bad_value(void **state) {
  (void)state;
  static const double bad[] = {NAN, INFINITY, -INFINITY};
  static const int prefix[] = {0, 11, 20, 64};
  const char *text = "gqa:h=8,hk=2,t=9,d=128";
  for (int i = 0; i < COUNT(all_variants); i++)
    for (int k = 0; k < 12; k++) {
      dw__problem_spec spec = kt_spec_of(text, 1, &prefix[k % 4], NULL, DW_MASK_NONE);
      const int head = k % 2, draft = 1 + k % 8;
      dw__problem *problem = kt_problem(&spec);
      dw_bounds bounds = kt_bounds(problem);
      kt_note("%s, way %d", all_variants[i], k);
      kt_result before = kt_take_run(kt_kernel_of(text, all_variants[i]), &bounds, problem);
      uint16_t *value = (uint16_t *)(uintptr_t)dw__oracle_value(&spec.shape, &problem->args, 0, prefix[k % 4] + draft, head);
      dw__from_float(DW_BF16, bad[k / 4], &value[(k * 37) % 128]);
      kt_result after = kt_take_run(kt_kernel_of(text, all_variants[i]), &bounds, problem);
      for (int row = 0; row < 9; row++)
        for (int h = 0; h < 8; h++) {
          const size_t at = (size_t)(row * 8 + h) * after.vector_bytes;
          const bool sees = row >= draft && h / 4 == head;
          bool finite = true;
          for (int d = 0; d < 128; d++) finite = finite && isfinite(dw__to_float(DW_BF16, after.out + at + 2 * d));
          if (finite == sees) fail_msg("way %d, row %d, head %d: finite %d", k, row, h, finite);
          if (!sees) assert_memory_equal(before.out + at, after.out + at, after.vector_bytes);
        }
      kt_drop(&before);
      kt_drop(&after);
      dw__problem_free(problem);
    }
}

// A token with an infinite V and a K that makes scores of -inf: who sees it is not finite, in a tile that is cleaned for others as in one
// that is not; who does not see it is as far from the oracle as ever.
static void a24_who_sees_infinity(void **state) {
  (void)state;
  static const int prefixes_of[] = {0, 11, 20, 64};
  static const char text[] = "gqa:h=8,hk=2,t=9,d=128";
  for (int i = 0; i < COUNT(all_variants); i++) {
    int seen = 0, unseen = 0;
    for (int k = 0; k < 8; k++) {
      const int prefix = prefixes_of[k % 4], head = k / 4, token = k == 7 ? 61 : prefix + 1 + k;  // 61: committed
      dw__problem_spec spec = kt_spec_of(text, 1, &prefix, NULL, k % 2 ? DW_MASK_PARENTS : DW_MASK_NONE);
      dw__problem *problem = kt_problem(&spec);
      const dw_bounds bounds = kt_bounds(problem);
      dw__from_float(DW_BF16, k % 3 ? INFINITY : -INFINITY,
                     (uint16_t *)(uintptr_t)dw__oracle_value(&spec.shape, &problem->args, 0, token, head) + k * 37 % 128);
      dw__from_float(DW_BF16, -INFINITY,
                     (uint16_t *)(uintptr_t)dw__oracle_key(&spec.shape, &problem->args, 0, token, head) + k * 31 % 128);
      kt_solve(problem);
      kt_note("%s, token %d of prefix %d", all_variants[i], token, prefix);
      kt_result got = kt_take_run(kt_kernel_of(text, all_variants[i]), &bounds, problem);
      for (int v = 0; v < 72; v++) {
        bool oracle = true, kernel = true;
        for (int d = 0; d < 128; d++) {
          oracle = oracle && isfinite(problem->out64[v * 128 + d]);
          kernel = kernel && isfinite(dw__to_float(DW_BF16, got.out + (size_t)v * got.vector_bytes + 2 * d));
        }
        if (kernel != oracle) kt_fail(oracle ? "a row that does not see it" : "a row that sees it", NULL);
        seen += !oracle, unseen += oracle;
      }
      kt_drop(&got);
      dw__problem_free(problem);
    }
    assert_in_range(seen, 50, 1000);
    assert_in_range(unseen, 50, 1000);
  }
}

// ---- splits and batches ---------------------------------------------------------------------------------------

static void a11_lengths_1_to_5(void **state) {
  (void)state;
  static const int prefix[] = {0, 1, 2, 3, 4};
  const char *text = "gqa:h=32,hk=8,t=1,d=128";
  for (int i = 0; i < COUNT(all_variants); i++) {
    dw__problem_spec spec = kt_spec_of(text, 5, prefix, NULL, DW_MASK_NONE);
    dw__problem *problem = solved(&spec);
    dw_bounds bounds = kt_bounds(problem), one = kt_fixed(problem, 16);
    bounds.kv_len = 1 << 20;
    bounds.sm_count = 200;
    kt_note("%s", all_variants[i]);
    kt_result split = kt_take_run(kt_kernel_of(text, all_variants[i]), &bounds, problem);
    kt_check(problem);
    kt_result whole = kt_take_run(kt_kernel_of(text, all_variants[i]), &one, problem);
    kt_assert_same(&split, &whole);  // five tokens are one tile, and lie in one range
    kt_drop(&split);
    kt_drop(&whole);
    dw__problem_free(problem);
  }
}

static void a13_batches_in_the_merge(void **state) {
  (void)state;
  static const int prefix[] = {100, 37, 0, 260, 16}, rows[] = {8, 8, 3, 1, 5};
  static const char *const variants[] = {TWO, FOUR, SPLIT, WARP2};
  const char *text = "gqa:h=24,hk=4,t=8,d=256";
  for (int i = 0; i < COUNT(variants); i++)
    for (int batch = 1; batch <= 5; batch = batch == 1 ? 2 : batch + 3) {
      dw__problem_spec spec = kt_spec_of(text, batch, prefix, rows, DW_MASK_PARENTS);
      dw__problem *problem = solved(&spec);
      kt_note("%s, batch %d", variants[i], batch);
      kt_assert_own_runs(kt_kernel_of(text, variants[i]), problem, 48);
      dw__problem_free(problem);
    }
}

// A row's bits do not depend on the rows beside it: not on the row tiles of a CTA, and not on the number of rows of the call.
static void check_row_tiles(const char *const variants[4]) {
  static const int prefix[] = {203, 40, 0};
  const char *text = "gqa:h=12,hk=2,t=9,d=128,page=16";
  dw__problem_spec spec = kt_spec_of(text, 3, prefix, NULL, DW_MASK_NONE);
  spec.lengths_include_drafts = 0;
  dw__problem *problem = solved(&spec);
  dw_bounds bounds = kt_fixed(problem, 80);
  kt_result first = kt_take_run(kt_kernel_of(text, variants[0]), &bounds, problem);
  kt_check(problem);
  for (int i = 0; i < 4; i++) {
    kt_note("%s", variants[i]);
    kt_result other = kt_take_run(kt_kernel_of(text, variants[i]), &bounds, problem);
    kt_assert_same(&first, &other);
    kt_drop(&other);
    for (int rows = 1; rows < 9; rows += 3) {  // the first rows of one request
      int32_t indptr[2];
      dw__problem part = kt_part(problem, 0, 1, indptr);
      part.args.width = rows;
      part.args.total_q = rows;
      kt_note("%s, %d rows", variants[i], rows);
      kt_result few = kt_take_run(kt_kernel_of(text, variants[i]), &bounds, &part);
      kt_assert_same_rows(&first, 0, &few, 0, rows);
      kt_drop(&few);
    }
  }
  kt_drop(&first);
  dw__problem_free(problem);
}
static void d13_row_tiles_do_not_count(void **state) {
  (void)state;
  check_row_tiles((const char *const[]){ONE, TWO, FOUR, EIGHT});
  check_row_tiles((const char *const[]){WARP1, WARP2, WARP4, WARP5});
}

// ---- trees, windows, sinks ------------------------------------------------------------------------------------

static void a19_trees_of_1025_nodes(void **state) {
  (void)state;
  static const dw_mask masks[] = {DW_MASK_PARENTS, DW_MASK_BITS, DW_MASK_BYTES_QLEN};
  int prefix = 30;
  const char *text = "gqa:h=1,hk=1,t=1025,d=64";
  for (int i = 0; i < COUNT(masks); i++) {
    dw__problem_spec spec = kt_spec_of(text, 1, &prefix, NULL, masks[i]);
    spec.window = i == 1 ? 20 : 0;
    dw__problem *problem = solved(&spec);
    kt_note("mask %d", (int)masks[i]);
    kt_run_check(kt_kernel_for(problem, EIGHT), problem);
    if (i < 2) kt_run_check(kt_kernel_for(problem, WARP5), problem);
    dw__problem_free(problem);
  }
}

// Widths at which the rings of grouped hold as many steps of K as there are addresses, some of the rule table's choice, and ragged ones.
static void a23_widths_of_any_size(void **state) {
  (void)state;
  static const struct {
    const char *widths;
    int n_tiles;
  } cases[] = {{"qk=192,v=192", 1}, {"qk=192,v=192", 6},         {"qk=96,v=256", 1},         {"qk=128,v=224", 1},
               {"qk=256,v=128", 4}, {"qk=64,v=160", 1},          {"qk=32,v=192", 3},         {"qk=192,v=256", 1},
               {"qk=256,v=96", 2},  {"qk=160,v=256,kv=e4m3", 1}, {"qk=192,v=224,kv=e4m3", 2}};
  const int prefix = 300;
  for (int i = 0; i < COUNT(cases); i++) {
    char shape[96], variant[96];
    snprintf(shape, sizeof shape, "gqa:h=8,hk=2,t=9,page=16,%s", cases[i].widths);
    snprintf(variant, sizeof variant, "family=grouped,n_tiles=%d,combine=few,combine_splits=2", cases[i].n_tiles);
    dw__problem_spec spec = kt_spec_of(shape, 1, &prefix, NULL, DW_MASK_PARENTS);
    dw__problem *problem = solved(&spec);
    dw_bounds bounds = kt_bounds(problem);
    bounds.sm_count = 2;  // long ranges: the rings go round
    kt_note("%s, %s", shape, variant);
    kt_run(kt_kernel_for(problem, variant), &bounds, problem, DW_HOST_RANDOM, 1);
    kt_check(problem);
    dw__problem_free(problem);
  }
}

static void a23_unequal_widths(void **state) {
  (void)state;
  enum { MOST = 12 };
  static const char *const variants[] = {ONE, FOUR, SPLIT, WARP2, WARP4};
  const char *text = "gqa:h=4,hk=4,t=37,qk=192,v=128";
  int prefix[MOST];
  for (int b = 0; b < MOST; b++) prefix[b] = 17;
  for (int batch = 1; batch <= MOST; batch++) {
    dw__problem_spec spec = kt_spec_of(text, batch, prefix, NULL, DW_MASK_BITS);
    dw__problem *problem = solved(&spec);
    kt_note("%s, batch %d", variants[batch % 5], batch);
    kt_run_check(kt_kernel_of(text, variants[batch % 5]), problem);
    dw__problem_free(problem);
  }
}

static void a25_window_and_tree(void **state) {
  (void)state;
  static const int prefix[] = {1000, 90};
  const char *text = "gqa:h=64,hk=8,t=4,d=64";
  for (int i = 0; i < COUNT(all_variants); i++) {
    dw__problem_spec spec = kt_spec_of(text, 2, prefix, NULL, i % 2 ? DW_MASK_BYTES_FULL : DW_MASK_PARENTS);
    spec.tree = i % 2 ? DW__TREE_STAR : DW__TREE_RANDOM;
    spec.window = i % 5 < 3 ? 128 : 2;
    spec.positions = i % 3;
    dw__problem *problem = solved(&spec);
    kt_note("%s", all_variants[i]);
    kt_run_check(kt_kernel_for(problem, all_variants[i]), problem);
    dw__problem_free(problem);
  }
}

// Large and small sinks, of each head its own, in every row.
static void a27_sinks_of_each_head(void **state) {
  (void)state;
  static const int prefix[] = {40, 0, 200, 7};
  for (int t = 2; t <= 4; t += 2)
    for (int batch = 1; batch <= 4; batch += 3)
      for (int i = 0; i < COUNT(all_variants); i++) {
        char text[64];
        snprintf(text, sizeof text, "gqa:h=64,hk=8,t=%d,d=64", t);
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

// ---- heads ----------------------------------------------------------------------------------------------------

static void a30_sixteen_heads_a_group(void **state) {
  (void)state;
  static const int prefix[] = {300, 17};
  for (int t = 1; t <= 8; t *= t == 1 ? 2 : 4) {
    char text[64];
    snprintf(text, sizeof text, "gqa:h=64,hk=4,t=%d,d=128,page=16", t);
    dw__problem_spec spec = kt_spec_of(text, 2, prefix, NULL, DW_MASK_PARENTS);
    check_chosen(&spec, text);
  }
}

// Every preset's heads, as the rule table serves them.
static void a30_heads_of_the_presets(void **state) {
  (void)state;
  static const int prefix[] = {70, 200};
  for (size_t i = 0; i < dw_preset_count(); i++) {
    dw_shape shape;
    assert_int_equal(dw_preset_shape(dw_preset_name(i), &shape, NULL), DW_OK);
    if (shape.attention != DW_GQA) continue;
    dw__problem_spec spec = kt_spec(&shape, 2, prefix, NULL);
    spec.mask_kind = DW_MASK_PARENTS;
    check_chosen(&spec, dw_preset_name(i));
  }
}

static void a31_heads_that_do_not_divide(void **state) {
  (void)state;
  static const char *const shapes[] = {"gqa:h=33,hk=2,t=4,d=128", "gqa:h=3,hk=2,t=4,d=128", "gqa:h=8,hk=0,t=4,d=128"};
  for (int i = 0; i < COUNT(shapes); i++) {
    dw_shape shape = kt_shape("gqa:h=8,hk=8,t=4,d=128");
    dw_variant variant;
    dw_error error = {0};
    assert_int_equal(dw_shape_parse(shapes[i], &shape, &error), DW_BAD_SHAPE);
    assert_string_equal(error.field, "kv_heads");
    shape.heads = i == 0 ? 33 : i == 1 ? 3 : 8;  // filled in by hand
    shape.kv_heads = i == 2 ? 0 : 2;
    assert_int_equal(dw_variant_choose(&shape, NULL, &variant, &error), DW_BAD_SHAPE);
    assert_string_equal(error.field, "kv_heads");
    dw_error_clear(&error);
  }
}

// q as a slice of rows that hold q, k and v: contiguous first, then strided, with one kernel.
static void a41_q_in_a_packed_row(void **state) {
  (void)state;
  static const int prefix[] = {50, 0, 16, 7};
  enum { ROWS = 4 * 3, Q = 32 * 128, PACKED = Q + 2 * 4 * 128 };
  const char *text = "gqa:h=32,hk=4,t=3,d=128";
  for (int i = 0; i < COUNT(all_variants); i++) {
    dw__problem_spec spec = kt_spec_of(text, 4, prefix, NULL, DW_MASK_PARENTS);
    dw__problem *problem = solved(&spec), packed = *problem;
    dw_bounds bounds = kt_bounds(problem);
    uint16_t *rows = calloc(ROWS * PACKED, 2);
    assert_non_null(rows);
    memset(rows, 0xFF, ROWS * PACKED * 2);
    for (size_t r = 0; r < ROWS; r++) memcpy(rows + r * PACKED, (const uint16_t *)problem->args.q + r * Q, Q * 2);
    packed.args.q = rows;
    packed.args.q_row_stride = PACKED;
    packed.q_bytes = ROWS * PACKED * 2;
    kt_note("%s", all_variants[i]);
    kt_result tight = kt_take_run(kt_kernel_of(text, all_variants[i]), &bounds, problem);
    kt_check(problem);
    kt_result sliced = kt_take_run(kt_kernel_of(text, all_variants[i]), &bounds, &packed);
    kt_assert_same(&tight, &sliced);
    kt_drop(&tight);
    kt_drop(&sliced);
    free(rows);
    dw__problem_free(problem);
  }
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(a02_interleaved_pages),      cmocka_unit_test(a03_slots_at_the_far_end),
    cmocka_unit_test(a08_one_bad_value),          cmocka_unit_test(a24_who_sees_infinity),
    cmocka_unit_test(a11_lengths_1_to_5),         cmocka_unit_test(a13_batches_in_the_merge),
    cmocka_unit_test(a19_trees_of_1025_nodes),    cmocka_unit_test(a23_unequal_widths),
    cmocka_unit_test(a23_widths_of_any_size),     cmocka_unit_test(a25_window_and_tree),
    cmocka_unit_test(a27_sinks_of_each_head),     cmocka_unit_test(a30_sixteen_heads_a_group),
    cmocka_unit_test(a30_heads_of_the_presets),   cmocka_unit_test(a31_heads_that_do_not_divide),
    cmocka_unit_test(a41_q_in_a_packed_row),      cmocka_unit_test(a42_page_stride_is_the_callers),
    cmocka_unit_test(d13_row_tiles_do_not_count),
  };
  if (list_tests(argc, argv, tests, DW__COUNT(tests))) return 0;
  if (kt_skip()) return 77;
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  return cmocka_run_group_tests(tests, kt_setup, kt_teardown);
}
