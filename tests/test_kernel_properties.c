// What holds of every kernel whatever the numbers are: the same bits again and in every order of warps; in FIXED mode the same bits
// whatever else is in the batch and however many rows a request brings; and the edges of the split.
#include "kernel_tests.h"
#include "list_tests.h"

#define SHAPE "mla:h=8,t=9,qk=320,v=256"
#define COUNT(array) ((int)DW__COUNT(array))

// One variant of every kind of code.
static const char *const variants[] = {
  "family=reference",
  "family=split,combine=few,combine_splits=4",
  "family=split,combine=many,combine_splits=8",
  "family=rowsplit,n_tiles=1,combine=few,combine_splits=2",
  "family=rowsplit,n_tiles=2,combine=many,combine_splits=8",
  "family=rowsplit,n_tiles=3,combine=few,combine_splits=16",
  "family=rowsplit,n_tiles=3,setmaxnreg=1,combine=many,combine_splits=24",
  "family=rowsplit,n_tiles=5,combine=many,combine_splits=16",
  "family=rowsplit,n_tiles=5,setmaxnreg=1,combine=few,combine_splits=8",
  "family=dimsplit,n_tiles=8,setmaxnreg=1,combine=few,combine_splits=8",
  "family=dimsplit,n_tiles=3,setmaxnreg=1,combine=many,combine_splits=8",
};
static const int prefixes[8] = {37, 100, 0, 65, 16, 250, 1, 48}, ragged[8] = {9, 4, 9, 0, 1, 7, 9, 2};

static dw_bounds fixed(const dw__problem *problem, int tokens) {
  dw_bounds bounds = kt_bounds(problem);
  bounds.split_tokens = tokens;
  return bounds;
}

// ---- orders ---------------------------------------------------------------------------------------------------

static void same_bits_in_every_order(void **state) {
  (void)state;
  dw_shape shape = kt_shape(SHAPE);
  for (int i = 0; i < COUNT(variants); i++) {
    const kt_kernel *kernel = kt_kernel_of(SHAPE, variants[i]);
    dw__problem_spec spec = kt_spec(&shape, 4, prefixes + 2, ragged + 2);
    spec.mask_kind = (dw_mask)(i % 3);
    dw__problem *problem = kt_problem(&spec);
    dw_bounds bounds = kt_bounds(problem);
    bounds.sm_count = 1;  // one range: rings and buffers go round several times
    kt_note("%s, forward", variants[i]);
    kt_solve(problem);
    kt_result first = kt_take_run(kernel, &bounds, problem);
    kt_check(problem);
    for (int run = 0; run < 6; run++) {
      dw_host_order order = run == 0 ? DW_HOST_FORWARD : run == 1 ? DW_HOST_REVERSE : DW_HOST_RANDOM;
      kt_note("%s, order %d, seed %d", variants[i], (int)order, run);
      kt_run(kernel, &bounds, problem, order, (uint64_t)run);
      kt_result again = kt_take(problem);
      kt_assert_same(&first, &again);
      kt_drop(&again);
    }
    kt_drop(&first);
    dw__problem_free(problem);
  }
}

// ---- FIXED ----------------------------------------------------------------------------------------------------

// Each request of eight: alone, among the three around it, and among all.
static void fixed_bits_do_not_depend_on_the_batch(void **state) {
  (void)state;
  dw_shape shape = kt_shape(SHAPE);
  for (int i = 0; i < COUNT(variants); i++) {
    const kt_kernel *kernel = kt_kernel_of(SHAPE, variants[i]);
    dw__problem_spec spec = kt_spec(&shape, 8, prefixes, ragged);
    spec.mask_kind = (dw_mask)((i + 1) % 3);
    spec.addressing = i % 2 ? DW_CSR : DW_BLOCK_TABLE;
    dw__problem *whole = kt_problem(&spec);
    dw_bounds bounds = fixed(whole, i % 2 ? 64 : 32);
    kt_note("%s, all eight", variants[i]);
    kt_solve(whole);
    kt_result all = kt_take_run(kernel, &bounds, whole);
    kt_check(whole);
    for (int count = 1; count <= 3; count += 2)
      for (int first = 0; first + count <= 8; first += count) {
        int32_t indptr[4];
        dw__problem part = kt_part(whole, first, count, indptr);
        dw_bounds own = fixed(&part, bounds.split_tokens);
        own.sm_count = 7;
        kt_note("%s, requests %d to %d", variants[i], first, first + count - 1);
        kt_result some = kt_take_run(kernel, &own, &part);
        kt_assert_same_rows(&some, 0, &all, kt_first_row(whole, first), some.rows);
        kt_drop(&some);
      }
    kt_drop(&all);
    dw__problem_free(whole);
  }
}

// A request with fewer rows: they are the first ones of the request with all rows, and have their bits.
static void fixed_bits_do_not_depend_on_the_rows(void **state) {
  (void)state;
  dw_shape shape = kt_shape(SHAPE);
  static const int prefix[] = {43};
  for (int i = 0; i < COUNT(variants); i++) {
    const kt_kernel *kernel = kt_kernel_of(SHAPE, variants[i]);
    kt_result full = {0};
    for (int rows = 9; rows >= 1; rows--) {
      dw__problem_spec spec = kt_spec(&shape, 1, prefix, &rows);
      spec.mask_kind = i % 2 ? DW_MASK_PARENTS : DW_MASK_NONE;
      dw__problem *problem = kt_problem(&spec);
      dw_bounds bounds = fixed(problem, 16);
      kt_note("%s, %d rows", variants[i], rows);
      kt_result some = kt_take_run(kernel, &bounds, problem);
      if (rows == 9) full = some;
      kt_assert_same_rows(&some, 0, &full, 0, rows);
      if (rows < 9) kt_drop(&some);
      dw__problem_free(problem);
    }
    kt_drop(&full);
  }
}

// Variants that merge by the same code give the same bits in FIXED mode: neither the number of row tiles nor where registers lie
// changes the order in which a row adds up. (combine few and many add in different orders, and so do other families.)
static void fixed_bits_do_not_depend_on_row_tiles(void **state) {
  (void)state;
  dw_shape shape = kt_shape(SHAPE);
  dw__problem_spec spec = kt_spec(&shape, 5, prefixes, ragged);
  spec.mask_kind = DW_MASK_PARENTS;
  spec.q_scale = 3;
  dw__problem *problem = kt_problem(&spec);
  dw_bounds bounds = fixed(problem, 48);
  for (int way = 0; way < 4; way++) {
    const bool pair = way & 1;
    kt_result first = {0};
    for (int n = 0; n < (pair ? 7 : 10); n++) {  // of pairs nine row tiles have no FIXED ranges
      char text[128];
      snprintf(text, sizeof text, "family=%s,n_tiles=%d,setmaxnreg=%d,combine=%s,combine_splits=8",
               pair ? "dimsplit" : "rowsplit", pair ? n + 2 : n / 2 + 1, pair || n % 2, way & 2 ? "many" : "few");
      kt_note("%s", text);
      kt_result one = kt_take_run(kt_kernel_of(SHAPE, text), &bounds, problem);
      if (n == 0) first = one;
      else kt_assert_same(&first, &one), kt_drop(&one);
    }
    kt_drop(&first);
  }
  dw__problem_free(problem);
}

// Places of tokens, lengths' form, strides: no bit depends on them.
static void bits_do_not_depend_on_addressing(void **state) {
  (void)state;
  for (int i = 1; i < COUNT(variants); i += 3) {
    kt_result first = {0};
    for (int way = 0; way < 7; way++) {
      static const char *const pages[] = {"page=1", "page=16", "page=48", "page=64"};
      char text[128];
      snprintf(text, sizeof text, "%s,%s", SHAPE, pages[way % 4]);
      dw_shape shape = kt_shape(text);
      dw__problem_spec spec = kt_spec(&shape, 3, prefixes, ragged);
      spec.mask_kind = DW_MASK_BITS;
      spec.addressing = way % 2 ? DW_CSR : DW_BLOCK_TABLE;
      spec.lengths_include_drafts = way < 3;
      spec.index64 = way == 3;
      spec.draft_slots = way == 3 || way == 5;
      spec.strided = way > 3;
      spec.shuffle = way != 2;
      dw__problem *problem = kt_problem(&spec);
      dw_bounds bounds = kt_bounds(problem);
      kt_note("%s, way %d", variants[i], way);
      kt_result one = kt_take_run(kt_kernel_of(text, variants[i]), &bounds, problem);
      if (way == 0) first = one;
      else kt_assert_same(&first, &one), kt_drop(&one);
      dw__problem_free(problem);
    }
    kt_drop(&first);
  }
}

// ---- the split's edges ----------------------------------------------------------------------------------------

typedef struct edge {
  const char *shape, *variant;
  int batch, prefix[4], rows[4];  // rows of the first request 0: all have width rows
  dw_bounds bounds;               // batch, kv_len 0: those of the problem
} edge;

static void check_edge(const edge *e, int mask) {
  dw_shape shape = kt_shape(e->shape);
  dw__problem_spec spec = kt_spec(&shape, e->batch, e->prefix, e->rows[0] ? e->rows : NULL);
  spec.mask_kind = (dw_mask)mask;
  dw__problem *problem = kt_problem(&spec);
  dw_bounds bounds = e->bounds, tight = kt_bounds(problem);
  bounds.size = sizeof bounds;
  if (!bounds.batch) bounds.batch = tight.batch;
  if (!bounds.kv_len) bounds.kv_len = tight.kv_len;
  kt_note("%s %s, bounds batch=%d kv_len=%d sm_count=%d split_tokens=%d", e->shape, e->variant, bounds.batch, bounds.kv_len,
          bounds.sm_count, bounds.split_tokens);
  kt_solve(problem);
  kt_run(kt_kernel_of(e->shape, e->variant), &bounds, problem, DW_HOST_FORWARD, 1);
  kt_check(problem);
  dw__problem_free(problem);
}
#define CHECK_EDGES(edges) \
  for (int i = 0; i < COUNT(edges); i++) check_edge(&(edges)[i], i % 3)

#define SPLIT "family=split,combine=few,combine_splits=8"
#define FEW "family=rowsplit,n_tiles=2,combine=few,combine_splits=4"
#define MANY "family=rowsplit,n_tiles=2,combine=many,combine_splits=8"

static void batch_smaller_than_the_bound(void **state) {
  (void)state;
  static const edge edges[] = {
    {SHAPE, SPLIT, 3, {70, 70, 70}, {0}, {.batch = 8, .sm_count = 132}},
    {SHAPE, FEW, 3, {70, 70, 70}, {0}, {.batch = 4, .sm_count = 132}},
    {SHAPE, FEW, 3, {70, 300, 1}, {9, 0, 2}, {.batch = 8, .sm_count = 132}},
    {SHAPE, MANY, 1, {200}, {0}, {.batch = 64, .sm_count = 188}},
    {SHAPE, MANY, 2, {0, 200}, {1, 9}, {.batch = 40, .sm_count = 188}},
    {SHAPE, MANY, 2, {64, 20}, {0}, {.batch = 5, .split_tokens = 16, .sm_count = 7}},
    {SHAPE, MANY ",call=table", 2, {64, 20}, {0}, {.batch = 5, .sm_count = 132}},
  };
  CHECK_EDGES(edges);
}

static void more_ranges_than_tiles(void **state) {
  (void)state;
  static const edge edges[] = {
    {SHAPE, SPLIT, 2, {0, 20}, {0}, {.kv_len = 1 << 20, .sm_count = 132}},
    {SHAPE, FEW, 1, {0}, {0}, {.kv_len = 1 << 20, .sm_count = 132}},
    {SHAPE, MANY, 2, {30, 5}, {9, 1}, {.kv_len = 1 << 20, .sm_count = 600}},
    {SHAPE, MANY, 1, {0}, {1}, {.kv_len = 1 << 24, .sm_count = 4096}},
    {SHAPE, FEW, 2, {3, 40}, {0}, {.kv_len = 2048, .split_tokens = 16, .sm_count = 132}},
    {SHAPE, MANY ",call=table", 2, {3, 40}, {0}, {.kv_len = 1 << 20, .sm_count = 188}},
  };
  CHECK_EDGES(edges);
}

static void bounds_short_and_long(void **state) {
  (void)state;
  static const edge edges[] = {
    {SHAPE, FEW, 2, {7, 3}, {0}, {.kv_len = 16, .sm_count = 132}},
    {SHAPE, FEW, 2, {7, 3}, {0}, {.kv_len = 1 << 20, .sm_count = 132}},
    {SHAPE, MANY, 2, {7, 3}, {9, 4}, {.kv_len = 16, .sm_count = 1}},
    {SHAPE, MANY, 2, {7, 3}, {9, 4}, {.kv_len = 1 << 20, .sm_count = 1}},
    {SHAPE, FEW, 2, {7, 3}, {0}, {.kv_len = 16, .split_tokens = 16, .sm_count = 132}},
    {SHAPE, FEW, 2, {7, 3}, {0}, {.kv_len = 1 << 20, .split_tokens = 65536, .sm_count = 132}},
  };
  CHECK_EDGES(edges);
}

// More ranges than combine_splits: the combine kernels take them in rounds.
static void combine_in_rounds(void **state) {
  (void)state;
  static const edge edges[] = {
    {SHAPE, "family=rowsplit,n_tiles=2,combine=few,combine_splits=1", 1, {300}, {0}, {.split_tokens = 16, .sm_count = 1}},
    {SHAPE, "family=rowsplit,n_tiles=2,combine=few,combine_splits=3", 2, {300, 17}, {0}, {.split_tokens = 16, .sm_count = 1}},
    {SHAPE, "family=rowsplit,n_tiles=2,combine=many,combine_splits=1", 2, {300, 17}, {3, 9}, {.split_tokens = 16, .sm_count = 1}},
    {SHAPE, "family=split,combine=many,combine_splits=7", 1, {300}, {0}, {.split_tokens = 16, .sm_count = 1}},
    {SHAPE, "family=split,combine=few,combine_splits=2", 1, {300}, {0}, {.split_tokens = 16, .sm_count = 1}},
    {"mla:h=4,t=2,qk=320,v=256",
     "family=rowsplit,n_tiles=1,combine=many,combine_splits=24",
     1,
     {900},
     {0},
     {.sm_count = 60, .kv_len = 1 << 20}},
    {"mla:h=4,t=2,qk=320,v=256",
     "family=rowsplit,n_tiles=1,combine=many,combine_splits=192",
     1,
     {4000},
     {0},
     {.sm_count = 250, .kv_len = 1 << 20}},
  };
  CHECK_EDGES(edges);
}

// The grid has groups for all rows; a request with fewer leaves the last ones without work.
static void groups_without_rows(void **state) {
  (void)state;
#define WIDE "mla:h=8,t=33,qk=320,v=256"
  static const edge edges[] = {
    {WIDE, "family=rowsplit,n_tiles=1,combine=few,combine_splits=4", 3, {40, 0, 17}, {1, 0, 33}, {.sm_count = 132}},
    {WIDE, "family=rowsplit,n_tiles=4,combine=many,combine_splits=8", 3, {40, 0, 17}, {2, 33, 9}, {.sm_count = 132}},
    {WIDE, "family=rowsplit,n_tiles=5,setmaxnreg=1,combine=few,combine_splits=4", 2, {40, 90}, {5, 1}, {.sm_count = 132}},
    {WIDE, "family=rowsplit,n_tiles=3,combine=few,combine_splits=4", 2, {40, 90}, {5, 1}, {.split_tokens = 32, .sm_count = 132}},
    {WIDE, SPLIT, 2, {40, 90}, {5, 1}, {.sm_count = 132}},
    {WIDE, "family=reference", 2, {40, 90}, {5, 1}, {.sm_count = 132}},
  };
  CHECK_EDGES(edges);
}

// More requests than a warp has lanes: shares are counted 32 requests at a time.
static void long_batches(void **state) {
  (void)state;
  enum { BATCH = 67 };
  dw_shape shape = kt_shape("mla:h=4,t=2,qk=192,v=128");
  int prefix[BATCH], rows[BATCH];
  for (int variant = 0; variant < 4; variant++)
    for (int way = 0; way < 4; way++) {
      static const char *const texts[] = {SPLIT, "family=rowsplit,n_tiles=1,combine=few,combine_splits=4",
                                          "family=rowsplit,n_tiles=1,combine=many,combine_splits=8", "family=reference"};
      for (int b = 0; b < BATCH; b++) {
        prefix[b] = way == 0 ? 40 : way == 1 ? b * 5 % 60 : way == 2 && b < 64 ? 14 : b % 9 * (b % 3);
        rows[b] = way == 3 ? b % 3 : 2;
      }
      dw__problem_spec spec = kt_spec(&shape, BATCH, prefix, way == 3 ? rows : NULL);
      spec.mask_kind = (dw_mask)(way % 3);
      dw__problem *problem = kt_problem(&spec);
      dw_bounds bounds = kt_bounds(problem);
      if (way > 1) bounds.sm_count = 2000;
      kt_note("%s, way %d", texts[variant], way);
      kt_solve(problem);
      kt_run(kt_kernel_of("mla:h=4,t=2,qk=192,v=128", texts[variant]), &bounds, problem, DW_HOST_FORWARD, 1);
      kt_check(problem);
      dw__problem_free(problem);
    }
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(same_bits_in_every_order),
    cmocka_unit_test(fixed_bits_do_not_depend_on_the_batch),
    cmocka_unit_test(fixed_bits_do_not_depend_on_the_rows),
    cmocka_unit_test(fixed_bits_do_not_depend_on_row_tiles),
    cmocka_unit_test(bits_do_not_depend_on_addressing),
    cmocka_unit_test(batch_smaller_than_the_bound),
    cmocka_unit_test(more_ranges_than_tiles),
    cmocka_unit_test(bounds_short_and_long),
    cmocka_unit_test(combine_in_rounds),
    cmocka_unit_test(groups_without_rows),
    cmocka_unit_test(long_batches),
  };
  if (list_tests(argc, argv, tests, DW__COUNT(tests))) return 0;
  if (kt_skip()) return 77;
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  return cmocka_run_group_tests(tests, kt_setup, kt_teardown);
}
