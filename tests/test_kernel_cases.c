// What users of such systems ran into, retold as problems for our kernels; each test is named after its case. All of it by host
// execution. "Own run" is the request as a batch of its own. tests/cases.tsv says where else a case is tested, and on a GPU by what.
//
// | case | here |
// |---|---|
// | a01 a03 a43 | pools of more than 2^31 elements, pages and slots on both sides of that border; tables that name few of many pages |
// | a04 a05 a06 | requests without tokens or rows beside live ones; large declared bounds |
// | a07 a09 a21 | rows that see nothing; rows whose first tiles are hidden; siblings in whole tiles below the diagonal |
// | a08 a24 | NaN and infinity where nobody looks, and where only later drafts look |
// | a10 a11 | more ranges than tokens |
// | a12 | a short request beside one of 65,536 tokens, large values |
// | a13 a22 d10 d12 d13 | each request of a batch equals its own run, with any number of rows |
// | a14 d04 | prefix and tree in one call equal two passes merged by their log-sum-exp, in both bases |
// | a15 a18 a20 | masks with rows wider than the tree; trees padded to one width |
// | a17 | one kernel, calls with a tree and without |
// | a19 | trees around every multiple of 32 nodes; parents and bits agree |
// | a23 a32 | other widths of the record |
// | a28 a29 | 4, 8 and 12 heads, to 128k tokens |
// | a33 a35 a36 | tables and lengths belong to requests, boundaries to rows; verify equals decode |
// | a41 a42 | strides of q and pages are the caller's |
// | a45 a46 | one plan, other lengths, tables and trees; the same buffers, overwritten |
// | d03 d06 | drafts in places of their own; trees as parents whatever the page size |
// | d08 d09 | depths; trees that are none |
// | e01 e03 e05 | any order of pages gives the same bits; lists of slots that leave a page anywhere |
//
// More forms of masks, parts, windows, caps, sinks and ranks: test_kernel_contract.
#include "kernel_tests.h"
#include "list_tests.h"

#include <sys/mman.h>

#define COUNT(array) ((int)DW__COUNT(array))
#define SMALL "mla:h=8,t=9,qk=320,v=256"
#define FEW "family=rowsplit,n_tiles=2,combine=few,combine_splits=4"
#define MANY "family=rowsplit,n_tiles=2,combine=many,combine_splits=8"
#define FIVE "family=rowsplit,n_tiles=5,setmaxnreg=1,combine=many,combine_splits=8"
#define PAIR "family=dimsplit,n_tiles=9,setmaxnreg=1,combine=few,combine_splits=4"
#define SPLIT "family=split,combine=few,combine_splits=8"
#define REFERENCE "family=reference"

// A problem over the block table with this mask, solved.
static dw__problem *solved(const char *shape_text, int batch, const int *prefix, const int *rows, dw_mask mask) {
  dw_shape shape = kt_shape(shape_text);
  dw__problem_spec spec = kt_spec(&shape, batch, prefix, rows);
  spec.mask_kind = mask;
  dw__problem *problem = kt_problem(&spec);
  kt_solve(problem);
  return problem;
}

// ---- large pools ----------------------------------------------------------------------------------------------

// The problem's tokens moved into a pool of `pages` pages of which the table (or list of slots) names the given ones. The memory
// is there for the pages that are touched only.
typedef struct far_pool {
  dw__problem problem;
  void *memory;
  size_t bytes;
} far_pool;

static far_pool move_far(const dw__problem *near, int64_t pages, int64_t (*page_of)(int i)) {
  const dw_shape *shape = &near->spec.shape;
  int tokens = near->prefix[0] + near->rows[0], page = shape->page;
  size_t record = (size_t)shape->head_dim_qk * 2;
  far_pool far = {.problem = *near, .bytes = (size_t)pages * (size_t)page * record};
  far.memory = mmap(NULL, far.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  assert_true(far.memory != MAP_FAILED);
  dw_args *args = &far.problem.args;
  int32_t *places = (int32_t *)(uintptr_t)(args->addressing == DW_CSR ? args->kv_indices : (const void *)args->block_table);
  for (int t = 0; t < tokens; t++) {
    int64_t slot = page_of(t / page) * page + t % page;
    memcpy((char *)far.memory + (size_t)slot * record, kt_token(near, 0, t), record);
  }
  for (int t = 0; t < tokens; t++)
    if (args->addressing == DW_CSR) places[t] = (int32_t)page_of(t);
    else places[t / page] = (int32_t)page_of(t / page);
  args->kv = far.memory;
  far.problem.kv_bytes = far.bytes;
  return far;
}

static void check_far(const char *shape_text, const char *variant, dw_addressing addressing, int tokens, int64_t pages,
                      int64_t (*page_of)(int)) {
  dw_shape shape = kt_shape(shape_text);
  dw__problem_spec spec = kt_spec(&shape, 1, &tokens, NULL);
  spec.addressing = addressing;
  spec.mask_kind = DW_MASK_PARENTS;
  dw__problem *problem = kt_problem(&spec);
  dw_bounds bounds = kt_bounds(problem);
  kt_note("%s %s", shape_text, variant);
  kt_result near = kt_take_run(kt_kernel_of(shape_text, variant), &bounds, problem);
  far_pool pool = move_far(problem, pages, page_of);
  kt_result far = kt_take_run(kt_kernel_of(shape_text, variant), &bounds, &pool.problem);
  kt_assert_same(&near, &far);
  munmap(pool.memory, pool.bytes);
  kt_drop(&near);
  kt_drop(&far);
  dw__problem_free(problem);
}

// 276,480 elements a page: 2^31 lies in page 7,767.
static int64_t around_7767(int i) { return i == 0 ? 7999 : 7767 - 4 + (i - 1); }
static void a01_page_addresses(void **state) {
  (void)state;
  check_far("mla:h=2,t=8,page=480", FEW, DW_BLOCK_TABLE, 4000, 8000, around_7767);
  check_far("mla:h=2,t=8,page=480", SPLIT, DW_BLOCK_TABLE, 4000, 8000, around_7767);
  check_far("mla:h=2,t=8,page=480", REFERENCE, DW_BLOCK_TABLE, 4000, 8000, around_7767);
}

// 576 elements a slot: 2^31 lies in slot 3,728,270.
static int64_t around_slot_border(int i) { return i % 2 ? 3728270 - 20 + i : 6300000 - 1 - i; }
static void a03_page_size_1(void **state) {
  (void)state;
  check_far("mla:h=4,t=4", FEW, DW_CSR, 60, 6300000, around_slot_border);
  check_far("mla:h=4,t=4", MANY, DW_BLOCK_TABLE, 60, 6300000, around_slot_border);
  check_far("mla:h=4,t=4", SPLIT, DW_CSR, 60, 6300000, around_slot_border);
  check_far("mla:h=4,t=4,page=16", FEW, DW_BLOCK_TABLE, 60, 1 << 20, around_7767);
}

// Rows of 40 of 50,000 pages, in random order, and two requests that share most of theirs.
static void a43_shared_pages_of_a_large_pool(void **state) {
  (void)state;
  static const int prefix[] = {630, 630, 20};
  static const char *const variants[] = {FEW, SPLIT, FIVE};
  const char *text = "mla:h=4,t=9,qk=128,v=128,page=16";
  dw_shape shape = kt_shape(text);
  dw__problem_spec spec = kt_spec(&shape, 3, prefix, NULL);
  spec.mask_kind = DW_MASK_PARENTS;
  spec.spare_pages = 50000 - 82;
  dw__problem *problem = kt_problem(&spec);
  int32_t *table = (int32_t *)(uintptr_t)problem->args.block_table;
  assert_int_equal(problem->args.kv_pages, 50000);
  assert_int_equal(problem->args.table_columns, 40);
  for (int page = 0; page < 35; page++) table[40 + page] = table[page];
  kt_solve(problem);
  for (int i = 0; i < COUNT(variants); i++) {
    kt_note("%s", variants[i]);
    kt_run_check(kt_kernel_of(text, variants[i]), problem);
  }
  dw__problem_free(problem);
}

// ---- padded requests ------------------------------------------------------------------------------------------

// [n, n, n, 0]: the last request has rows but no tokens.
static void a04_padded_request(void **state) {
  (void)state;
  static const int prefix[] = {70, 70, 70, 0};
  static const char *const variants[] = {FEW, MANY, FIVE, SPLIT, REFERENCE};
  dw_shape shape = kt_shape("mla:h=4,t=4,qk=320,v=256");
  for (int i = 0; i < COUNT(variants); i++)
    for (int mask = 0; mask < 3; mask++) {
      const kt_kernel *kernel = kt_kernel_of("mla:h=4,t=4,qk=320,v=256", variants[i]);
      dw__problem_spec spec = kt_spec(&shape, 4, prefix, NULL);
      spec.mask_kind = (dw_mask)mask;
      dw__problem *problem = kt_problem(&spec);
      kt_lengths(problem)[3] = 0;
      kt_solve(problem);
      kt_note("%s, mask %d", variants[i], mask);
      for (int split = 0; split < 3; split++) {  // AUTO, FIXED, one range
        dw_bounds bounds = kt_fixed(problem, split == 0 ? 0 : split == 1 ? 16 : 4096);
        kt_result all = kt_take_run(kernel, &bounds, problem);
        kt_check(problem);
        kt_assert_nothing(&all, 12, 4);
        int32_t indptr[4];
        dw__problem live = kt_part(problem, 0, 3, indptr);
        kt_result three = kt_take_run(kernel, &bounds, &live);
        if (split) kt_assert_same_rows(&three, 0, &all, 0, 12);  // AUTO shares the ranges out among the requests of a call
        kt_drop(&three);
        kt_drop(&all);
      }
      dw__problem_free(problem);
    }
}

// A padded row of a captured graph may also be shorter than its drafts: those that are not there are seen by nobody.
static void a04_shorter_than_its_drafts(void **state) {
  (void)state;
  static const int prefix[] = {30, 0, 0, 0};
  static const char *const variants[] = {FEW, FIVE, SPLIT, REFERENCE};
  dw_shape shape = kt_shape(SMALL);
  for (int i = 0; i < COUNT(variants); i++)
    for (int mask = 0; mask < 3; mask++)
      for (int csr = 0; csr < 2; csr++) {
        dw__problem_spec spec = kt_spec(&shape, 4, prefix, NULL);
        spec.mask_kind = (dw_mask)mask;
        spec.addressing = csr ? DW_CSR : DW_BLOCK_TABLE;
        dw__problem *problem = kt_problem(&spec);
        kt_lengths(problem)[1] = 1;
        kt_lengths(problem)[2] = 5;
        kt_lengths(problem)[3] = 8;
        kt_note("%s, mask %d, csr %d", variants[i], mask, csr);
        kt_solve(problem);
        kt_run_check(kt_kernel_of(SMALL, variants[i]), problem);
        dw__problem_free(problem);
      }
}

static void a05_declared_maximum(void **state) {
  (void)state;
  static const int prefix[] = {5, 60, 0, 33, 100, 0, 0, 0}, lengths[] = {4096, 131072, 1 << 20};
  static const char *const variants[] = {FEW, MANY, SPLIT};
  dw_shape shape = kt_shape(SMALL);
  for (int i = 0; i < COUNT(variants); i++) {
    dw__problem_spec spec = kt_spec(&shape, 8, prefix, NULL);
    dw__problem *problem = kt_problem(&spec);
    for (int b = 5; b < 8; b++) kt_lengths(problem)[b] = 0;
    kt_solve(problem);
    for (int k = 0; k < COUNT(lengths); k++) {
      dw_bounds bounds = kt_bounds(problem);
      bounds.kv_len = lengths[k];
      kt_note("%s, at most %d tokens", variants[i], lengths[k]);
      kt_result r = kt_take_run(kt_kernel_of(SMALL, variants[i]), &bounds, problem);
      kt_check(problem);
      kt_assert_nothing(&r, 45, 27);
      kt_drop(&r);
    }
    dw__problem_free(problem);
  }
}

// 100 requests padded to 112 by repeating the last offset.
static void a06_repeated_offsets(void **state) {
  (void)state;
  enum { LIVE = 100, ALL = 112 };
  static const char *const variants[] = {"family=rowsplit,n_tiles=1,combine=few,combine_splits=4", SPLIT, REFERENCE};
  dw_shape shape = kt_shape("mla:h=2,t=2,qk=192,v=128");
  int prefix[ALL] = {0}, rows[ALL] = {0};
  for (int b = 0; b < LIVE; b++) prefix[b] = b * 7 % 40, rows[b] = 1 + b % 2;
  for (int i = 0; i < COUNT(variants); i++)
    for (int csr = 0; csr < 2; csr++) {
      dw__problem_spec spec = kt_spec(&shape, ALL, prefix, rows);
      spec.addressing = csr ? DW_CSR : DW_BLOCK_TABLE;
      spec.mask_kind = csr ? DW_MASK_PARENTS : DW_MASK_NONE;
      dw__problem *problem = kt_problem(&spec);
      kt_note("%s, csr %d", variants[i], csr);
      kt_solve(problem);
      kt_run_check(kt_kernel_of("mla:h=2,t=2,qk=192,v=128", variants[i]), problem);
      dw__problem_free(problem);
    }
}

// ---- rows that see little -------------------------------------------------------------------------------------

static dw__problem *with_bits(const char *shape_text, int prefix) {
  dw_shape shape = kt_shape(shape_text);
  dw__problem_spec spec = kt_spec(&shape, 1, &prefix, NULL);
  spec.mask_kind = DW_MASK_BITS;
  return kt_problem(&spec);
}
static void see_only(dw__problem *problem, int node, int first, int count) {
  for (int j = 0; j < problem->rows[0]; j++) kt_see(problem, 0, node, j, j >= first && j < first + count);
}

static void a07_row_that_sees_nothing(void **state) {
  (void)state;
  static const char *const variants[] = {FEW, MANY, FIVE, SPLIT, REFERENCE};
  for (int i = 0; i < COUNT(variants); i++)
    for (int prefix = 0; prefix <= 20; prefix += 20) {
      dw__problem *problem = with_bits(SMALL, prefix);
      see_only(problem, 3, 0, 0);
      see_only(problem, 8, 0, 0);
      kt_note("%s, prefix %d", variants[i], prefix);
      kt_solve(problem);
      dw_bounds bounds = kt_bounds(problem);
      kt_result r = kt_take_run(kt_kernel_of(SMALL, variants[i]), &bounds, problem);
      kt_check(problem);
      if (!prefix) kt_assert_nothing(&r, 3, 1), kt_assert_nothing(&r, 8, 1);
      kt_drop(&r);
      dw__problem_free(problem);
    }
}

#define TREE_64 "mla:h=2,t=64,qk=192,v=128"
static const char *const tree_variants[] = {FEW, "family=rowsplit,n_tiles=3,setmaxnreg=1,combine=few,combine_splits=4", MANY,
                                            SPLIT};

// The first tiles of a row are all hidden from it, later ones are not; also in one range.
static void a09_first_tiles_hidden(void **state) {
  (void)state;
  for (int i = 0; i < COUNT(tree_variants); i++)
    for (int split = 0; split <= 1024; split += 1024) {
      dw__problem *problem = with_bits(TREE_64, 0);
      for (int node = 0; node < 64; node++) see_only(problem, node, node, 1);
      see_only(problem, 40, 63, 1);
      see_only(problem, 50, 0, 1);
      kt_note("%s, split %d", tree_variants[i], split);
      kt_solve(problem);
      dw_bounds bounds = kt_fixed(problem, split);
      kt_run(kt_kernel_of(TREE_64, tree_variants[i]), &bounds, problem, DW_HOST_FORWARD, 1);
      kt_check(problem);
      dw__problem_free(problem);
    }
}

// Siblings fill whole tiles below the diagonal.
static void a21_siblings_below_the_diagonal(void **state) {
  (void)state;
  static const char *const shapes[] = {TREE_64, "mla:h=1,t=128,qk=192,v=128"};
  static const int prefixes[] = {0, 1, 63, 64};
  for (int i = 0; i < 16; i++) {
    dw_shape shape = kt_shape(shapes[i / 8]);
    dw__problem_spec spec = kt_spec(&shape, 1, &prefixes[i % 4], NULL);
    spec.mask_kind = i % 8 < 4 ? DW_MASK_PARENTS : DW_MASK_BITS;
    spec.tree = DW__TREE_STAR;
    dw__problem *problem = kt_problem(&spec);
    kt_note("%s, prefix %d, mask %d", shapes[i / 8], prefixes[i % 4], (int)spec.mask_kind);
    kt_solve(problem);
    for (int k = 0; k < 2; k++) kt_run_check(kt_kernel_of(shapes[i / 8], tree_variants[(i + k) % 4]), problem);
    dw__problem_free(problem);
  }
}

// ---- poison ---------------------------------------------------------------------------------------------------

static int by_address(const void *a, const void *b) {
  const char *x = *(const char *const *)a, *y = *(const char *const *)b;
  return x < y ? -1 : x > y;
}

// Zeros over all of the pool that is no token's.
static void zero_unused(dw__problem *problem) {
  int count = 0, tokens = 0;
  size_t record = (size_t)problem->spec.shape.head_dim_qk * 2;
  for (int b = 0; b < problem->spec.batch; b++) tokens += problem->prefix[b] + problem->rows[b];
  char **used = calloc((size_t)tokens + 1, sizeof *used), *at = (char *)(uintptr_t)problem->args.kv;
  assert_non_null(used);
  for (int b = 0; b < problem->spec.batch; b++)
    for (int t = 0; t < problem->prefix[b] + problem->rows[b]; t++) used[count++] = (char *)kt_token(problem, b, t);
  qsort(used, (size_t)count, sizeof *used, by_address);
  used[count] = at + problem->kv_bytes;
  for (int i = 0; i <= count; i++) {
    memset(at, 0, (size_t)(used[i] - at));
    at = used[i] + record;
  }
  free(used);
}

// NaN and infinity in every slot that is no token's, and in drafts that no node sees: the bits of a run with zeros there.
static void a08_poison_out_of_sight(void **state) {
  (void)state;
  static const char *const variants[] = {FEW,   MANY,     FIVE, PAIR, "family=rowsplit,n_tiles=3,combine=few,combine_splits=4",
                                         SPLIT, REFERENCE};
  static const int near_page[] = {15, 16, 17};
  dw_shape shape = kt_shape(SMALL ",page=16");
  for (int i = 0; i < COUNT(variants); i++)
    for (int k = 0; k < 6; k++) {
      int prefix[] = {near_page[k % 3], near_page[(k + 1) % 3] - 9};
      dw__problem_spec spec = kt_spec(&shape, 2, prefix, NULL);
      spec.mask_kind = DW_MASK_BITS;
      spec.addressing = k < 3 ? DW_BLOCK_TABLE : DW_CSR;
      spec.strided = k % 2;
      dw__problem *problem = kt_problem(&spec);
      static const double poison[] = {NAN, INFINITY, -INFINITY};
      for (int hidden = 2; hidden < 9; hidden += 3)
        for (int node = 0; node < 9; node++) kt_see(problem, 0, node, hidden, false);
      for (int hidden = 2; hidden < 9; hidden += 3) kt_fill_token(problem, 0, prefix[0] + hidden, poison[hidden / 3]);
      const kt_kernel *kernel = kt_kernel_of(SMALL ",page=16", variants[i]);
      dw_bounds bounds = kt_bounds(problem);
      kt_note("%s, prefix %d, way %d", variants[i], prefix[0], k);
      kt_result poisoned = kt_take_run(kernel, &bounds, problem);
      zero_unused(problem);
      for (int hidden = 2; hidden < 9; hidden += 3) kt_fill_token(problem, 0, prefix[0] + hidden, 0);
      kt_solve(problem);
      kt_result clean = kt_take_run(kernel, &bounds, problem);
      kt_check(problem);
      kt_assert_same(&poisoned, &clean);
      kt_drop(&poisoned);
      kt_drop(&clean);
      dw__problem_free(problem);
    }
}

// The latent or the rope part alone, one element alone: a hidden token is not finite in some way.
static void a08_one_bad_element(void **state) {
  (void)state;
  static const char *const variants[] = {FEW, FIVE, PAIR, "family=rowsplit,n_tiles=3,combine=few,combine_splits=4"};
  static const int elements[] = {0, 77, 255, 256, 319};
  for (int i = 0; i < COUNT(variants); i++)
    for (int k = 0; k < COUNT(elements); k++)
      for (int bad = 0; bad < 3; bad++) {
        dw__problem *problem = with_bits(SMALL ",q=fp16,kv=fp16", 21);
        for (int node = 0; node < 9; node++) kt_see(problem, 0, node, 4, false);
        kt_solve(problem);
        uint16_t *token = kt_token(problem, 0, 25);
        token[elements[k]] = bad == 0 ? 0x7E01 : bad == 1 ? 0x7C00 : 0xFC00;
        kt_note("%s, element %d, %x", variants[i], elements[k], token[elements[k]]);
        kt_run_check(kt_kernel_of(SMALL ",q=fp16,kv=fp16", variants[i]), problem);
        dw__problem_free(problem);
      }
}

// Hidden in the first tiles of a range so long that their slots are loaded again.
static void a08_poison_in_slots_used_again(void **state) {
  (void)state;
  for (int i = 0; i < COUNT(tree_variants); i++) {
    dw__problem *problem = with_bits("mla:h=2,t=128,qk=192,v=128", 3);
    for (int node = 0; node < 128; node++) kt_see(problem, 0, node, 5, false), kt_see(problem, 0, node, 40, false);
    kt_solve(problem);
    kt_fill_token(problem, 0, 3 + 5, NAN);
    kt_fill_token(problem, 0, 3 + 40, INFINITY);
    dw_bounds bounds = kt_fixed(problem, 1024);
    kt_note("%s", tree_variants[i]);
    kt_run(kt_kernel_of("mla:h=2,t=128,qk=192,v=128", tree_variants[i]), &bounds, problem, DW_HOST_FORWARD, 1);
    kt_check(problem);
    dw__problem_free(problem);
  }
}

// A chain without a mask: poison in drafts from `first` on reaches none of the rows before.
static void a24_drafts_do_not_see_the_future(void **state) {
  (void)state;
  static const char *const variants[] = {FEW, MANY, FIVE, PAIR, SPLIT, REFERENCE};
  static const int prefix[] = {20, 0, 7};
  dw_shape shape = kt_shape(SMALL);
  for (int i = 0; i < COUNT(variants); i++)
    for (int first = 1; first < 9; first += 3) {
      dw__problem_spec spec = kt_spec(&shape, 3, prefix, NULL);
      dw__problem *problem = kt_problem(&spec);
      const kt_kernel *kernel = kt_kernel_of(SMALL, variants[i]);
      dw_bounds bounds = kt_bounds(problem);
      kt_note("%s, poison from draft %d on", variants[i], first);
      kt_solve(problem);
      kt_result clean = kt_take_run(kernel, &bounds, problem);
      kt_check(problem);
      for (int b = 0; b < 3; b++)
        for (int draft = first; draft < 9; draft++) kt_fill_token(problem, b, prefix[b] + draft, draft % 2 ? NAN : INFINITY);
      kt_result poisoned = kt_take_run(kernel, &bounds, problem);
      for (int b = 0; b < 3; b++) kt_assert_same_rows(&clean, 9 * b, &poisoned, 9 * b, first);
      for (int b = 0; b < 3; b++)
        for (int row = 9 * b + first; row < 9 * (b + 1); row++)
          for (int head = 0; head < 8; head++) assert_true(isnan(poisoned.lse[row * 8 + head]));
      kt_drop(&clean);
      kt_drop(&poisoned);
      dw__problem_free(problem);
    }
}

// The same for one draft alone, which all rows but the first see: a CTA cleans it for rows that it does not finish itself.
static void a24_one_poisoned_draft(void **state) {
  (void)state;
  static const char *const variants[] = {FEW, FIVE, PAIR};
  int prefix = 20;
  dw_shape shape = kt_shape(SMALL);
  for (int i = 0; i < COUNT(variants); i++) {
    dw__problem_spec spec = kt_spec(&shape, 1, &prefix, NULL);
    dw__problem *problem = kt_problem(&spec);
    const kt_kernel *kernel = kt_kernel_of(SMALL, variants[i]);
    dw_bounds bounds = kt_bounds(problem);
    kt_note("%s", variants[i]);
    kt_solve(problem);
    kt_result clean = kt_take_run(kernel, &bounds, problem);
    kt_check(problem);
    kt_fill_token(problem, 0, prefix + 1, NAN);
    kt_result poisoned = kt_take_run(kernel, &bounds, problem);
    kt_assert_same_rows(&clean, 0, &poisoned, 0, 1);
    for (int row = 8; row < 9 * 8; row++) assert_true(isnan(poisoned.lse[row]));
    kt_drop(&clean);
    kt_drop(&poisoned);
    dw__problem_free(problem);
  }
}

// A dead node sees not even the prefix: NaN there does not reach it.
static void a24_dead_nodes_and_poisoned_prefix(void **state) {
  (void)state;
  static const char *const variants[] = {FEW, MANY, FIVE, PAIR, SPLIT, REFERENCE};
  static const int prefix[] = {20, 20};
  dw_shape shape = kt_shape(SMALL);
  for (int i = 0; i < COUNT(variants); i++) {
    dw__problem_spec spec = kt_spec(&shape, 2, prefix, NULL);
    spec.mask_kind = DW_MASK_PARENTS;
    dw__problem *problem = kt_problem(&spec);
    for (int node = 0; node < 9; node++) kt_parents(problem)[node] = node % 3 == 2 ? -2 : -1;
    kt_note("%s", variants[i]);
    kt_solve(problem);
    kt_fill_token(problem, 0, 3, NAN);
    dw_bounds bounds = kt_bounds(problem);
    kt_result r = kt_take_run(kt_kernel_of(SMALL, variants[i]), &bounds, problem);
    for (int node = 2; node < 9; node += 3) kt_assert_nothing(&r, node, 1);
    assert_true(isnan(r.lse[0]));
    kt_drop(&r);
    dw__problem_free(problem);
  }
}

// |q . k| up to 1e4 and beyond: softmax of a few, rows whose maximum rises tile after tile, and scores far below the maximum.
static void large_scores(void **state) {
  (void)state;
  static const char *const variants[] = {FEW, MANY, FIVE, PAIR, SPLIT, REFERENCE};
  static const double factors[] = {30, 300};
  int prefix = 150;
  dw_shape shape = kt_shape(SMALL);
  for (int i = 0; i < COUNT(variants); i++)
    for (int k = 0; k < 4; k++) {
      dw__problem_spec spec = kt_spec(&shape, 1, &prefix, NULL);
      spec.mask_kind = DW_MASK_PARENTS;
      spec.q_scale = 10;
      dw__problem *problem = kt_problem(&spec);
      for (int t = 0; t < prefix + 9; t++) kt_scale_token(problem, 0, t, k < 2 ? factors[k] : k == 2 ? t / 8 : (160 - t) / 8);
      kt_note("%s, way %d", variants[i], k);
      kt_solve(problem);
      kt_run_check(kt_kernel_of(SMALL, variants[i]), problem);
      dw__problem_free(problem);
    }
}

// Products of q and k whose squares leave fp32, scaled down to usual scores: with code for a soft cap, without one in the call and with.
static void large_products(void **state) {
  (void)state;
  enum { PREFIX = 40, HEADS = 2, QK = 192, V = 128 };
  const int prefix = PREFIX;
  for (int cap = 0; cap < 2; cap++) {
    dw__problem_spec spec = kt_spec_of("mla:h=2,t=4,qk=192,v=128", 1, &prefix, NULL, DW_MASK_PARENTS);
    spec.soft_cap = cap ? 2 : 0;
    dw__problem *problem = kt_problem(&spec);
    problem->args.softmax_scale = 1e-22f;
    for (int vector = 0; vector < 4 * HEADS; vector++)
      dw__from_float(DW_BF16, 1e11, (uint16_t *)(uintptr_t)problem->args.q + vector * QK + QK - 1);
    for (int token = 0; token < PREFIX + 4; token++)
      dw__from_float(DW_BF16, (token % 7 - 3) * 3e10, kt_token_element(problem, 0, token, QK - 1));
    kt_solve(problem);
    dw_variant variant;
    assert_int_equal(dw_variant_parse("family=rowsplit,n_tiles=1,combine=few,combine_splits=2,soft_cap=1", &variant, NULL),
                     DW_OK);
    dw_bounds bounds = kt_bounds(problem);
    bounds.features = DW_WITH_SOFT_CAP;
    kt_note("soft cap %d", cap);
    kt_run(kt_kernel_get(&spec.shape, &variant), &bounds, problem, DW_HOST_FORWARD, 1);
    kt_check(problem);
    dw__problem_free(problem);
  }
}

// Partial results are fp16. V of every size that fp16 KV has is held, its largest value too; so is bf16 V between 6e-5 and 65,504. Larger
// bf16 values show as inf or NaN in the kernel with such partial results, and are right in those with fp32 ones.
static void large_and_small_values(void **state) {
  (void)state;
  static const struct {
    double factor;
    bool fp16, held;
  } ways[] = {{1e-4, false, true},  {2e4, false, true}, {1e5, false, false},
              {1e10, false, false}, {1e-3, true, true}, {1.3e4, true, true}};
  static const int prefix[] = {150, 20};
  for (int k = 0; k < COUNT(ways); k++) {
    const char *text = ways[k].fp16 ? "mla:h=4,t=3,qk=192,v=128,q=fp16,kv=fp16" : "mla:h=4,t=3,qk=192,v=128";
    dw_shape shape = kt_shape(text);
    dw__problem_spec spec = kt_spec(&shape, 2, prefix, NULL);
    spec.q_scale = ways[k].fp16 && ways[k].factor < 1 ? 1 : (float)(1 / ways[k].factor);
    dw__problem *problem = kt_problem(&spec);
    for (int b = 0; b < 2; b++)
      for (int t = 0; t < prefix[b] + 3; t++) kt_scale_token(problem, b, t, ways[k].factor);
    kt_solve(problem);
    kt_note("%s, V times %g", text, ways[k].factor);
    kt_run_check(kt_kernel_of(text, SPLIT), problem);
    dw_bounds bounds = kt_bounds(problem);
    kt_run(kt_kernel_of(text, FEW), &bounds, problem, DW_HOST_FORWARD, 1);
    if (ways[k].held) kt_check(problem);
    for (int i = 0; i < 6 * 4 * 128 && !ways[k].held; i++) {
      const double exact = problem->out64[i], found = (double)dw__to_float(DW_BF16, (const uint16_t *)problem->args.out + i);
      assert_true(!isfinite(found) || fabs(found - exact) <= 0.02 * fabs(exact) + 0.01 * ways[k].factor);
    }
    dw__problem_free(problem);
  }
}

// Every element the largest that fp16 has: a mean of them is the same.
static void large_fp16_values(void **state) {
  (void)state;
  static const char *const variants[] = {FEW, MANY, SPLIT, REFERENCE};
  static const int prefix[] = {150, 20};
  const char *text = "mla:h=4,t=3,qk=192,v=128,q=fp16,kv=fp16";
  for (int i = 0; i < COUNT(variants); i++) {
    dw_shape shape = kt_shape(text);
    dw__problem_spec spec = kt_spec(&shape, 2, prefix, NULL);
    spec.q_scale = 1e-4f;
    dw__problem *problem = kt_problem(&spec);
    for (int b = 0; b < 2; b++)
      for (int t = 0; t < prefix[b] + 3; t++) kt_fill_token(problem, b, t, i % 2 ? -65504 : 65504);
    kt_note("%s", variants[i]);
    kt_solve(problem);
    kt_run_check(kt_kernel_of(text, variants[i]), problem);
    for (int k = 0; k < 6 * 4 * 128; k++)
      assert_float_equal(dw__to_float(DW_F16, (const uint16_t *)problem->args.out + k), (i % 2 ? -65504 : 65504), 64);
    dw__problem_free(problem);
  }
}

// ---- splits ---------------------------------------------------------------------------------------------------

// The largest relative error of a row in the last run.
static double worst_row(dw__problem *problem) {
  dw__comparison comparison;
  dw_error error = {0};
  if (dw__problem_compare(problem, &comparison, &error)) kt_fail("rows", &error);
  return comparison.worst.relative;
}

static void a10_more_splits_than_tokens(void **state) {
  (void)state;
  static const int prefix[] = {0, 1, 3, 17};
  static const char *const shapes[] = {"mla:h=4,t=1,qk=320,v=256", "mla:h=4,t=8,qk=320,v=256"};
  static const char *const variants[] = {"family=rowsplit,n_tiles=1,combine=many,combine_splits=64", FEW, SPLIT};
  for (int s = 0; s < 2; s++)
    for (int i = 0; i < COUNT(variants); i++)
      for (int k = 0; k < COUNT(prefix); k++)
        for (int way = 0; way < 3; way++) {
          dw__problem *problem = solved(shapes[s], 1, &prefix[k], NULL, (dw_mask)way);
          dw_bounds bounds = kt_fixed(problem, way ? 16 : 0);  // 64 ranges
          bounds.kv_len = way ? 1024 : 1 << 20;
          bounds.sm_count = s ? 128 : 64;
          kt_note("%s %s, prefix %d, way %d", shapes[s], variants[i], prefix[k], way);
          kt_run(kt_kernel_of(shapes[s], variants[i]), &bounds, problem, DW_HOST_FORWARD, 1);
          kt_check(problem);
          dw__problem_free(problem);
        }
}

static void a11_lengths_1_to_5(void **state) {
  (void)state;
  static const int prefix[] = {0, 1, 2, 3, 4};
  static const char *const variants[] = {FEW, MANY, SPLIT};
  for (int i = 0; i < COUNT(variants); i++) {
    dw__problem *problem = solved("mla:h=32,t=1,qk=320,v=256", 5, prefix, NULL, DW_MASK_NONE);
    dw_bounds bounds = kt_bounds(problem);
    bounds.kv_len = 1 << 20;
    bounds.sm_count = 200;
    kt_note("%s", variants[i]);
    kt_run(kt_kernel_of("mla:h=32,t=1,qk=320,v=256", variants[i]), &bounds, problem, DW_HOST_FORWARD, 1);
    kt_check(problem);
    dw__problem_free(problem);
  }
}

// V of magnitude 100: the short request is no worse off than alone, and 16 ranges no worse than one.
static void a12_short_beside_long(void **state) {
  (void)state;
  enum { SHORT = 64, LONG = 65536 };
  static const int prefix[] = {SHORT, LONG};
  const char *text = "mla:h=4,t=2,qk=192,v=128";
  dw_shape shape = kt_shape(text);
  dw__problem_spec spec = kt_spec(&shape, 2, prefix, NULL);
  spec.q_scale = 0.01f;
  dw__problem *problem = kt_problem(&spec);
  for (int b = 0; b < 2; b++)
    for (int t = 0; t < prefix[b] + 2; t++) kt_scale_token(problem, b, t, 100);
  kt_solve(problem);
  const kt_kernel *kernel = kt_kernel_of(text, "family=rowsplit,n_tiles=1,combine=many,combine_splits=16");
  kt_note("AUTO");
  kt_run_check(kernel, problem);
  kt_note("own runs");
  kt_assert_own_runs(kernel, problem, LONG / 16);
  double worst[2];
  for (int i = 0; i < 2; i++) {
    dw_bounds bounds = kt_fixed(problem, i ? LONG + 16 : LONG / 16);
    kt_note(i ? "FIXED, one range" : "FIXED, 17 ranges");
    kt_run(kernel, &bounds, problem, DW_HOST_FORWARD, 1);
    kt_check(problem);
    worst[i] = worst_row(problem);
  }
  assert_true(worst[0] < 1.5 * worst[1]);
  dw__problem_free(problem);
}

static void a13_batches_in_the_merge(void **state) {
  (void)state;
  static const int prefix[] = {100, 37, 0, 260, 16}, rows[] = {8, 8, 3, 1, 5};
  static const char *const variants[] = {FEW, MANY, FIVE, SPLIT};
  for (int i = 0; i < COUNT(variants); i++)
    for (int batch = 1; batch <= 5; batch = batch == 1 ? 2 : batch + 3) {
      dw__problem *problem = solved("mla:h=24,t=8,qk=192,v=128", batch, prefix, rows, DW_MASK_PARENTS);
      kt_note("%s, batch %d", variants[i], batch);
      kt_assert_own_runs(kt_kernel_of("mla:h=24,t=8,qk=192,v=128", i == 2
                                                                     ? "family=rowsplit,n_tiles=5,setmaxnreg=1,combine=many,"
                                                                       "combine_splits=8"
                                                                     : variants[i]),
                         problem, 32);
      dw__problem_free(problem);
    }
}

// ---- two passes -----------------------------------------------------------------------------------------------

// The prefix alone (all drafts hidden), then the drafts alone (a request without a prefix), merged by their log-sum-exp.
static void check_cascade(const char *variant, int prefix, int base_e) {
  const char *text = "mla:h=16,t=16,qk=192,v=128,q=fp16,kv=fp16,o=fp32";
  enum { T = 16, H = 16, V = 128 };
  dw_shape shape = kt_shape(text);
  const kt_kernel *kernel = kt_kernel_of(text, variant);
  dw__problem_spec spec = kt_spec(&shape, 1, &prefix, NULL);
  spec.mask_kind = DW_MASK_BITS;
  spec.addressing = DW_CSR;
  spec.lse_base_e = base_e;
  dw__problem *problem = kt_problem(&spec);
  kt_note("%s, prefix %d, base %s", variant, prefix, base_e ? "e" : "2");
  kt_solve(problem);
  kt_run_check(kernel, problem);
  kt_result both = kt_take(problem);
  dw__problem tree = *problem;
  int32_t indptr[] = {prefix, prefix + T}, length = T;
  tree.args.kv_indptr = indptr;
  tree.args.kv_len = &length;
  dw_bounds bounds = kt_bounds(problem);
  kt_result drafts = kt_take_run(kernel, &bounds, &tree);
  for (int node = 0; node < T; node++) see_only(problem, node, 0, 0);
  kt_result before = kt_take_run(kernel, &bounds, problem);
  for (int i = 0; i < T * H; i++) {
    double a = before.lse[i], b = drafts.lse[i], unit = base_e ? 1 : log(2), off = 0, all = 0;
    double weight = 1 / (1 + exp((a - b) * unit));  // of the drafts
    for (int d = 0; d < V; d++) {
      double x = ((const float *)before.out)[i * V + d], y = ((const float *)drafts.out)[i * V + d];
      double one = ((const float *)both.out)[i * V + d], merged = x * (1 - weight) + y * weight;
      off += (one - merged) * (one - merged), all += one * one;
    }
    assert_true(sqrt(off / all) < 1e-3);
    double larger = a > b ? a : b, sum = exp((a - larger) * unit) + exp((b - larger) * unit);
    assert_float_equal(larger + log(sum) / unit, both.lse[i], 1e-3);
  }
  kt_drop(&both), kt_drop(&drafts), kt_drop(&before);
  dw__problem_free(problem);
}

static void a14_merged_by_lse(void **state) {
  (void)state;
  for (int base = 0; base < 2; base++) check_cascade(FEW, 4096, base), check_cascade(SPLIT, 100, base);
}

static void d04_tree_and_prefix_in_one_call(void **state) {
  (void)state;
  static const int prefix[] = {0, 1, 64, 3000};
  static const char *const variants[] = {FEW, MANY, FIVE};
  for (int i = 0; i < COUNT(variants); i++)
    for (int batch = 1; batch <= 4; batch += 3) {
      dw__problem *problem = solved("mla:h=16,t=16,page=64", batch, batch == 1 ? &prefix[2] : prefix, NULL, DW_MASK_PARENTS);
      kt_note("%s, batch %d", variants[i], batch);
      kt_run_check(kt_kernel_of("mla:h=16,t=16,page=64", variants[i]), problem);
      dw__problem_free(problem);
    }
}

// ---- masks ----------------------------------------------------------------------------------------------------

// A mask made for 96 drafts (three words a row), used with trees of 33 and 31: by width, and ragged.
static void a18_mask_row_stride(void **state) {
  (void)state;
  static const int prefix[] = {5, 0, 40}, widths[] = {33, 31};
  static const char *const variants[] = {FEW, SPLIT, REFERENCE};
  const char *text = "mla:h=2,t=96,qk=192,v=128";
  dw_shape shape = kt_shape(text);
  for (int i = 0; i < COUNT(variants); i++)
    for (int k = 0; k < 4; k++) {
      int rows[] = {widths[k / 2], widths[k / 2], widths[k / 2]};
      dw__problem_spec spec = kt_spec(&shape, 3, prefix, rows);
      spec.mask_kind = DW_MASK_BITS;
      dw__problem *problem = kt_problem(&spec);
      problem->args.mask_row_stride = 3;
      if (k % 2) problem->args.qo_indptr = NULL, problem->args.width = widths[k / 2];
      kt_note("%s, %d of 96 drafts, way %d", variants[i], widths[k / 2], k % 2);
      kt_solve(problem);
      kt_run_check(kt_kernel_of(text, variants[i]), problem);
      dw__problem_free(problem);
    }
}

// The same with parents, which are packed for the kernel: width says how many rows a request has.
static void a15_packed_offsets(void **state) {
  (void)state;
  static const int prefix[] = {56, 54, 16}, ragged[] = {7, 10, 3};
  static const char *const variants[] = {FEW, SPLIT, REFERENCE};
  for (int i = 0; i < COUNT(variants); i++)
    for (int way = 0; way < 3; way++) {
      int rows[] = {ragged[0], ragged[1], ragged[2]};
      if (way == 2) rows[0] = rows[1] = rows[2] = 7;
      dw__problem *problem = solved("mla:h=4,t=40,qk=192,v=128", 3, prefix, rows, way == 1 ? DW_MASK_BITS : DW_MASK_PARENTS);
      if (way == 2) problem->args.qo_indptr = NULL, problem->args.width = 7;
      kt_note("%s, way %d", variants[i], way);
      kt_solve(problem);
      kt_run_check(kt_kernel_of("mla:h=4,t=40,qk=192,v=128", variants[i]), problem);
      dw__problem_free(problem);
    }
}

static void a17_tree_after_chain(void **state) {
  (void)state;
  const char *text = "mla:h=4,t=16,qk=192,v=128";
  int prefix = 33, rows[] = {16, 1, 5, 16};
  for (int i = 0; i < 4; i++) {
    const kt_kernel *kernel = kt_kernel_of(text, FEW);
    dw__problem *problem = solved(text, 1, &prefix, &rows[i], i == 1 || i == 3 ? DW_MASK_NONE : DW_MASK_PARENTS);
    kt_note("call %d", i);
    kt_run_check(kernel, problem);
    dw__problem_free(problem);
  }
}

static void a19_trees_around_32_nodes(void **state) {
  (void)state;
  static const int nodes[] = {31, 32, 33, 63, 64, 65, 128};
  int prefix = 9;
  for (int i = 0; i < COUNT(nodes); i++) {
    char text[64];
    snprintf(text, sizeof text, "mla:h=2,t=%d,qk=192,v=128", nodes[i]);
    const kt_kernel *kernel = kt_kernel_of(text, tree_variants[i % 4]);
    dw__problem *parents = solved(text, 1, &prefix, NULL, DW_MASK_PARENTS),
                *bits = solved(text, 1, &prefix, NULL, DW_MASK_BITS);
    kt_note("%s %s", text, tree_variants[i % 4]);
    kt_run_check(kernel, parents);
    kt_run_check(kernel, bits);
    kt_result a = kt_take(parents), b = kt_take(bits);
    kt_assert_same(&a, &b);
    kt_drop(&a), kt_drop(&b);
    dw__problem_free(parents), dw__problem_free(bits);
  }
}

// Trees of 5, 9 and 16 nodes, ragged and padded to 16 with dead nodes: the live rows have the same bits.
static void a20_padded_trees(void **state) {
  (void)state;
  static const int prefix[] = {30, 0, 47}, rows[] = {5, 9, 16};
  const char *text = "mla:h=4,t=16,qk=192,v=128";
  static const char *const variants[] = {FEW, SPLIT, REFERENCE};
  dw_shape shape = kt_shape(text);
  for (int i = 0; i < COUNT(variants); i++) {
    const kt_kernel *kernel = kt_kernel_of(text, variants[i]);
    dw__problem *ragged = solved(text, 3, prefix, rows, DW_MASK_PARENTS);
    dw__problem_spec spec = kt_spec(&shape, 3, prefix, NULL);
    spec.mask_kind = DW_MASK_PARENTS;
    dw__problem *padded = kt_problem(&spec);
    for (int b = 0; b < 3; b++)
      for (int node = rows[b]; node < 16; node++) kt_parents(padded)[16 * b + node] = -2;
    kt_note("%s", variants[i]);
    kt_solve(padded);
    dw_bounds bounds = kt_fixed(padded, 16);
    kt_result a = kt_take_run(kernel, &bounds, ragged), b = kt_take_run(kernel, &bounds, padded);
    kt_check(ragged), kt_check(padded);
    for (int k = 0; k < 3; k++) {
      kt_assert_same_rows(&a, kt_first_row(ragged, k), &b, 16 * k, rows[k]);
      kt_assert_nothing(&b, 16 * k + rows[k], 16 - rows[k]);
    }
    kt_drop(&a), kt_drop(&b);
    dw__problem_free(ragged), dw__problem_free(padded);
  }
}

static void a22_a_tree_for_each_request(void **state) {
  (void)state;
  static const int prefix[] = {0, 17, 4000, 65000};
  static const char *const variants[] = {"family=rowsplit,n_tiles=4,setmaxnreg=1,combine=many,combine_splits=16", MANY};
  for (int i = 0; i < COUNT(variants); i++) {
    dw__problem *problem = solved("mla:h=2,t=16,qk=192,v=128", 4, prefix, NULL, DW_MASK_PARENTS);
    kt_note("%s", variants[i]);
    if (i == 0) kt_assert_own_runs(kt_kernel_of("mla:h=2,t=16,qk=192,v=128", variants[i]), problem, 4096);
    else kt_run_check(kt_kernel_of("mla:h=2,t=16,qk=192,v=128", variants[i]), problem);
    dw__problem_free(problem);
  }
}

// ---- shapes ---------------------------------------------------------------------------------------------------

// What the rule table chooses for a shape, checked on a small problem.
static void check_chosen(const char *text, int batch, const int *prefix, const int *rows) {
  dw__problem *problem = solved(text, batch, prefix, rows, DW_MASK_PARENTS);
  dw_bounds bounds = kt_bounds(problem);
  dw_variant variant;
  dw_error error = {0};
  kt_note("%s", text);
  if (dw_variant_choose(&problem->spec.shape, &bounds, &variant, &error)) kt_fail("choose", &error);
  kt_run(kt_kernel_get(&problem->spec.shape, &variant), &bounds, problem, DW_HOST_FORWARD, 1);
  kt_check(problem);
  dw__problem_free(problem);
}

static void a32_other_records(void **state) {
  (void)state;
  static const char *const shapes[] = {"qk=320,v=256", "qk=288,v=256", "qk=576,v=512", "qk=128,v=128", "qk=64,v=64",
                                       "qk=192,v=128", "qk=96,v=32",   "qk=640,v=512", "qk=256,v=256"};
  static const int targets[] = {80, 90, 120}, prefix[] = {40, 0, 21};
  for (int i = 0; i < COUNT(shapes); i++)
    for (int k = 0; k < 3; k++) {
      if (k != i % 3 && i > 2) continue;
      char text[96];
      snprintf(text, sizeof text, "mla:h=4,t=%d,%s,target=sm_%d", k == 1 ? 5 : 3, shapes[i], targets[k]);
      check_chosen(text, 3, prefix, NULL);
    }
}

// Rows of 192 of which V is 128, for small batches and masks of 37 rows of 54 tokens.
static void a23_unequal_widths(void **state) {
  (void)state;
  enum { MOST = 12 };
  static const char *const variants[] = {FEW, FIVE, SPLIT};
  const char *text = "mla:h=4,t=37,qk=192,v=128";
  int prefix[MOST];
  for (int b = 0; b < MOST; b++) prefix[b] = 17;
  for (int batch = 1; batch <= MOST; batch++) {
    dw__problem *problem = solved(text, batch, prefix, NULL, DW_MASK_BITS);
    kt_note("%s, batch %d", variants[batch % 3], batch);
    kt_run_check(kt_kernel_of(text, variants[batch % 3]), problem);
    dw__problem_free(problem);
  }
}

static void a28_twelve_heads(void **state) {
  (void)state;
  enum { BATCH = 64 };
  static const int most[] = {131071};
  int prefix[BATCH];
  check_chosen("mla:h=12,t=1,qk=192,v=128", 1, most, NULL);
  for (int b = 0; b < BATCH; b++) prefix[b] = b * 13 % 50;
  for (int t = 1; t <= 8; t *= t == 1 ? 4 : 2)
    for (int batch = 1; batch <= BATCH; batch = batch == 1 ? 3 : batch == 3 && t == 1 ? BATCH : BATCH + 1) {
      char text[64];
      snprintf(text, sizeof text, "mla:h=12,t=%d", t);
      check_chosen(text, batch, prefix, NULL);
    }
}

static void a29_four_and_eight_heads(void **state) {
  (void)state;
  enum { BATCH = 64 };
  static const int most[] = {131068};
  int many[BATCH];
  for (int b = 0; b < BATCH; b++) many[b] = b * 11 % 60;
  check_chosen("mla:h=4,t=4,qk=128,v=128", 1, most, NULL);
  check_chosen("mla:h=8,t=1,qk=128,v=128,page=64", 1, most, NULL);
  check_chosen("mla:h=8,t=4,qk=192,v=128", BATCH, many, NULL);
  static const int prefix[] = {1000, 20, 3, 0, 77, 40, 64, 16};
  for (int heads = 4; heads <= 8; heads += 4)
    for (int t = 1; t <= 4; t += 3)
      for (int batch = 1; batch <= 8; batch *= 8) {
        char text[64];
        snprintf(text, sizeof text, "mla:h=%d,t=%d,page=16", heads, t);
        check_chosen(text, batch, prefix, NULL);
      }
}

// ---- requests and their rows ----------------------------------------------------------------------------------

// 256 requests of 3 rows: the table has 256 rows and ends at a guard page.
static void a33_table_rows_are_requests(void **state) {
  (void)state;
  enum { BATCH = 256 };
  int prefix[BATCH];
  for (int b = 0; b < BATCH; b++) prefix[b] = b % 16 == 3 ? 125 : b % 8 * 2;
  const char *text = "mla:h=8,t=3,qk=128,v=128,page=16";
  dw__problem *problem = solved(text, BATCH, prefix, NULL, DW_MASK_NONE);
  assert_int_equal(problem->args.table_columns, 8);
  kt_run_check(kt_kernel_of(text, FEW ",call=table"), problem);
  kt_run_check(kt_kernel_of(text, SPLIT), problem);
  dw__problem_free(problem);
}

// All keys score 0, so that a row's log-sum-exp is the logarithm of how many it sees: row t sees the prefix and t + 1 drafts. Requests
// of mixed lengths, two of them padded.
static void a35_a_boundary_for_each_row(void **state) {
  (void)state;
  static const int prefix[] = {0, 1, 15, 64, 1000, 333, 0, 0};
  static const char *const variants[] = {FEW, MANY, FIVE, SPLIT, REFERENCE};
  const char *text = "mla:h=16,t=4,qk=192,v=128";
  enum { BATCH = 8, T = 4, HEADS = 16 };
  dw_shape shape = kt_shape(text);
  for (int i = 0; i < COUNT(variants); i++)
    for (int mask = 0; mask < 2; mask++) {
      dw__problem_spec spec = kt_spec(&shape, BATCH, prefix, NULL);
      spec.mask_kind = mask ? DW_MASK_PARENTS : DW_MASK_NONE;
      spec.tree = DW__TREE_CHAIN;
      spec.q_scale = 0;
      dw__problem *problem = kt_problem(&spec);
      kt_lengths(problem)[6] = 0;
      kt_lengths(problem)[7] = 1;
      kt_note("%s, mask %d", variants[i], mask);
      kt_solve(problem);
      dw_bounds bounds = kt_bounds(problem);
      kt_result r = kt_take_run(kt_kernel_of(text, variants[i]), &bounds, problem);
      kt_check(problem);
      for (int row = 0; row < 6 * T; row++)
        for (int h = 0; h < HEADS; h++) assert_float_equal(r.lse[row * HEADS + h], log2(prefix[row / T] + row % T + 1), 1e-5);
      kt_assert_nothing(&r, 6 * T, T);
      for (int row = 7 * T; row < 8 * T; row++)
        for (int h = 0; h < HEADS; h++) assert_float_equal(r.lse[row * HEADS + h], 0, 1e-6);
      kt_drop(&r);
      dw__problem_free(problem);
    }
}

// Two rows of one call against two calls of one row, the second with the first token committed.
static void a36_verify_equals_decode(void **state) {
  (void)state;
  static const char *const variants[] = {FEW, MANY, SPLIT, REFERENCE};
  dw_shape shape = kt_shape("mla:h=8,t=2,qk=320,v=256");
  for (int i = 0; i < COUNT(variants); i++)
    for (int length = 0; length < 40; length += 13) {
      const kt_kernel *kernel = kt_kernel_of("mla:h=8,t=2,qk=320,v=256", variants[i]);
      dw__problem_spec spec = kt_spec(&shape, 1, &length, NULL);
      spec.addressing = DW_CSR;
      dw__problem *problem = kt_problem(&spec);
      dw_bounds bounds = kt_fixed(problem, 16);
      kt_note("%s, prefix %d", variants[i], length);
      kt_solve(problem);
      kt_result both = kt_take_run(kernel, &bounds, problem);
      kt_check(problem);
      for (int row = 0; row < 2; row++) {
        dw__problem one = *problem;
        int32_t tokens = length + row + 1;
        one.args.width = one.args.total_q = 1;
        one.args.kv_len = &tokens;
        one.args.q = (const char *)one.args.q + row * 8 * 320 * 2;
        one.q_bytes = 8 * 320 * 2;
        kt_result alone = kt_take_run(kernel, &bounds, &one);
        kt_assert_same_rows(&alone, 0, &both, row, 1);
        kt_drop(&alone);
      }
      kt_drop(&both);
      dw__problem_free(problem);
    }
}

// q as a slice of rows that hold more: one kernel, contiguous first, then strided.
static void a41_q_in_a_packed_row(void **state) {
  (void)state;
  static const int prefix[] = {33, 0, 70, 5};
  static const char *const variants[] = {FEW, FIVE, SPLIT, REFERENCE};
  enum { T = 3, HEADS = 8, QK = 192, ROW = HEADS * QK, PACKED = ROW + 1024 };
  const char *text = "mla:h=8,t=3,qk=192,v=128";
  for (int i = 0; i < COUNT(variants); i++) {
    const kt_kernel *kernel = kt_kernel_of(text, variants[i]);
    dw__problem *problem = solved(text, 4, prefix, NULL, DW_MASK_PARENTS), packed = *problem;
    dw__guarded *list = NULL, *memory = dw__guard_make(&list, (size_t)(4 * T * PACKED) * 2);  // NaN
    assert_non_null(memory);
    uint16_t *slice = (uint16_t *)(void *)memory->data + 512;  // between what else a row holds
    for (int row = 0; row < 4 * T; row++) memcpy(slice + row * PACKED, (const uint16_t *)problem->args.q + row * ROW, ROW * 2);
    packed.args.q = slice;
    packed.args.q_row_stride = PACKED;
    packed.q_bytes = ((4 * T - 1) * PACKED + ROW) * 2;
    dw_bounds bounds = kt_bounds(problem);
    kt_note("%s", variants[i]);
    kt_result a = kt_take_run(kernel, &bounds, problem), b = kt_take_run(kernel, &bounds, &packed);
    kt_check(problem);
    kt_assert_same(&a, &b);
    kt_drop(&a), kt_drop(&b);
    dw__guard_free(list);
    dw__problem_free(problem);
  }
}

// A pool of [pages, 2, page, record]: a page's stride is twice its size. What lies between, and behind the last page, is NaN.
static void a42_page_stride_is_the_callers(void **state) {
  (void)state;
  static const int prefix[] = {100, 37, 3};
  static const char *const variants[] = {FEW, MANY ",call=table", FIVE, SPLIT, REFERENCE};
  enum { QK = 192 };
  for (int page = 16; page <= 64; page *= 4)
    for (int i = 0; i < COUNT(variants); i++) {
      char text[64];
      snprintf(text, sizeof text, "mla:h=4,t=3,qk=192,v=128,page=%d", page);
      const kt_kernel *kernel = kt_kernel_of(text, variants[i]);
      dw__problem *problem = solved(text, 3, prefix, NULL, DW_MASK_PARENTS), doubled = *problem;
      const size_t bytes = (size_t)page * QK * 2, pages = problem->kv_bytes / bytes;
      dw__guarded *list = NULL, *memory = dw__guard_make(&list, (2 * pages - 1) * bytes);
      assert_non_null(memory);
      for (size_t k = 0; k < pages; k++)
        memcpy(memory->data + 2 * k * bytes, (const char *)problem->args.kv + k * bytes, bytes);
      doubled.args.kv = memory->data;
      doubled.args.kv_page_stride = 2 * page * QK;
      doubled.kv_bytes = memory->size;
      dw_bounds bounds = kt_bounds(problem);
      bounds.call = strstr(variants[i], "call=table") ? DW_CALL_TABLE : DW_CALL_ANY;
      kt_note("%s %s", text, variants[i]);
      kt_result a = kt_take_run(kernel, &bounds, problem), b = kt_take_run(kernel, &bounds, &doubled);
      kt_check(problem);
      kt_assert_same(&a, &b);
      kt_drop(&a), kt_drop(&b);
      dw__guard_free(list);
      dw__problem_free(problem);
    }
}

// Puts the contents of another problem into a problem's own arrays, which are as large.
static void overwrite(dw__problem *held, const dw__problem *other) {
  const dw_args *to = &held->args, *from = &other->args;
  const size_t batch = (size_t)to->batch;
  const struct {
    const void *to, *from;
    size_t bytes, given;
  } arrays[] = {
    {to->q, from->q, held->q_bytes, other->q_bytes},
    {to->kv, from->kv, held->kv_bytes, other->kv_bytes},
    {to->mask, from->mask, held->mask_bytes, other->mask_bytes},
    {to->block_table, from->block_table, held->table_bytes, other->table_bytes},
    {to->kv_indices, from->kv_indices, held->index_bytes, other->index_bytes},
    {to->kv_indptr, from->kv_indptr, 4 * (batch + 1), 4 * (batch + 1)},
    {to->qo_indptr, from->qo_indptr, 4 * (batch + 1), 4 * (batch + 1)},
    {to->kv_len, from->kv_len, 4 * batch, 4 * batch},
  };
  for (int i = 0; i < COUNT(arrays); i++) {
    assert_int_equal(arrays[i].bytes, arrays[i].given);
    if (arrays[i].to) memcpy((void *)(uintptr_t)arrays[i].to, arrays[i].from, arrays[i].bytes);
  }
  memcpy(held->rows, other->rows, batch * sizeof *held->rows);
  memcpy(held->prefix, other->prefix, batch * sizeof *held->prefix);
}

// What a captured call holds is its arguments: the same addresses and sizes, while lengths, rows, tables, trees, q and pages in them
// are overwritten. Each time it gives the bits of a call made for these contents.
static void a46_buffers_are_read_each_time(void **state) {
  (void)state;
  enum { WAYS = 3 };
  static const int prefix[WAYS][4] = {{200, 37, 0, 5}, {5, 0, 200, 37}, {37, 5, 0, 200}};
  static const int rows[WAYS][4] = {{9, 4, 0, 7}, {7, 0, 9, 4}, {4, 7, 0, 9}};
  static const char *const variants[] = {FEW, MANY, SPLIT, REFERENCE};
  const char *text = SMALL ",page=16";
  dw_shape shape = kt_shape(text);
  for (int i = 0; i < 2 * COUNT(variants); i++) {
    const kt_kernel *kernel = kt_kernel_of(text, variants[i / 2]);
    dw__problem *list[WAYS];
    for (int k = 0; k < WAYS; k++) {
      dw__problem_spec spec = kt_spec(&shape, 4, prefix[k], rows[k]);
      spec.mask_kind = i % 2 ? DW_MASK_BITS : DW_MASK_PARENTS;
      spec.addressing = i % 2 ? DW_CSR : DW_BLOCK_TABLE;
      spec.seed = 10 + (uint64_t)k;
      list[k] = kt_problem(&spec);
    }
    dw__problem *held = list[0];
    const dw_args captured = held->args;
    dw_bounds bounds = kt_bounds(held);
    for (int k = 1; k <= WAYS; k++) {
      kt_note("%s, csr %d, contents %d", variants[i / 2], i % 2, k);
      if (k == WAYS) {  // and once more the same
        kt_run(kernel, &bounds, held, DW_HOST_RANDOM, 7);
        kt_check(held);
        break;
      }
      kt_solve(list[k]);
      kt_result own = kt_take_run(kernel, &bounds, list[k]);
      overwrite(held, list[k]);
      assert_memory_equal(&captured, &held->args, sizeof captured);
      kt_solve(held);
      kt_result replayed = kt_take_run(kernel, &bounds, held);
      kt_check(held);
      kt_assert_same(&own, &replayed);
      kt_drop(&own), kt_drop(&replayed);
    }
    for (int k = 0; k < WAYS; k++) dw__problem_free(list[k]);
  }
}

// One kernel and one plan, other lengths, tables and trees from call to call.
static void a45_one_plan_for_all_lengths(void **state) {
  (void)state;
  enum { MOST = 131072 };
  static const int lengths[] = {512, 513, 1024, 0, 15, 8192, 1, MOST - 4};
  static const char *const variants[] = {MANY ",call=table", FEW, SPLIT};
  for (int i = 0; i < COUNT(variants); i++)
    for (int k = 0; k < COUNT(lengths) - (i > 0); k++) {
      int prefix[] = {lengths[k], lengths[(k + 3) % 7] / 2};
      dw_shape shape = kt_shape("mla:h=2,t=4,qk=192,v=128,page=16");
      dw__problem_spec spec = kt_spec(&shape, 2, prefix, NULL);
      spec.mask_kind = DW_MASK_PARENTS;
      spec.seed = (uint64_t)k;
      dw__problem *problem = kt_problem(&spec);
      dw_bounds bounds = {.size = sizeof bounds, .batch = 2, .kv_len = MOST, .sm_count = 132};
      kt_note("%s, length %d", variants[i], lengths[k]);
      kt_solve(problem);
      kt_run(kt_kernel_of("mla:h=2,t=4,qk=192,v=128,page=16", variants[i]), &bounds, problem, DW_HOST_FORWARD, 1);
      kt_check(problem);
      dw__problem_free(problem);
    }
}

// ---- speculation with trees -----------------------------------------------------------------------------------

// Pages above 1, drafts anywhere: CSR lists of slots, drafts in a list of their own.
static void d03_drafts_in_places_of_their_own(void **state) {
  (void)state;
  static const int prefix[] = {5 + 16, 5 + 64, 5}, rows[] = {9, 4, 7};
  for (int i = 0; i < 8; i++) {
    const char *text = i % 2 ? SMALL ",page=64" : SMALL ",page=16";
    dw_shape shape = kt_shape(text);
    dw__problem_spec spec = kt_spec(&shape, 3, prefix, rows);
    spec.mask_kind = DW_MASK_PARENTS;
    spec.addressing = DW_CSR;
    spec.lengths_include_drafts = 0;
    spec.draft_slots = 1;
    spec.index64 = i / 2 % 2;
    spec.spare_pages = 20;
    dw__problem *problem = kt_problem(&spec);
    kt_note("%s, way %d", text, i);
    kt_solve(problem);
    kt_run_check(kt_kernel_of(text, i < 4 ? FEW : SPLIT), problem);
    dw__problem_free(problem);
  }
}

// A model of one layer without weights to speak of: records and queries are drawn from token and position, the next word is where a
// random head is largest.
enum { TOY_HEADS = 4, TOY_QK = 128, TOY_MOST = 64, TOY_WORDS = 40, TOY_PROMPT = 21, TOY_TEXT = TOY_PROMPT + 40 };

typedef struct toy {
  dw__problem *problem;
  const kt_kernel *kernel;
  int length;  // tokens whose records are in the KV: all of the text but its last token
} toy;

static void toy_vector(uint16_t *to, int what, int64_t token, int position) {
  uint64_t seed = (uint64_t)what << 40 ^ (uint64_t)token << 20 ^ (uint64_t)position;
  seed = dw__random(&seed);
  for (int d = 0; d < TOY_QK; d++) dw__from_float(DW_BF16, dw__random_normal(&seed), &to[d]);
}

static void toy_open(toy *t) {
  static const int prefix[] = {TOY_TEXT + TOY_MOST};
  const char *text = "mla:h=4,t=64,qk=128,v=128,page=16";
  dw_shape shape = kt_shape(text);
  dw__problem_spec spec = kt_spec(&shape, 1, prefix, NULL);
  spec.mask_kind = DW_MASK_PARENTS;
  spec.lengths_include_drafts = 0;
  *t = (toy){.problem = kt_problem(&spec), .kernel = kt_kernel_of(text, FEW)};
}

static int64_t toy_word(const kt_result *r, int node) {
  double best = -INFINITY;
  int64_t word = 0;
  for (int w = 0; w < TOY_WORDS; w++) {
    uint64_t seed = 977 + (uint64_t)w;
    double sum = 0;
    for (int k = 0; k < TOY_HEADS * 128; k++)
      sum += dw__random_normal(&seed) * (double)dw__to_float(DW_BF16, r->out + (size_t)(node * TOY_HEADS * 128 + k) * 2);
    if (sum > best) best = sum, word = w;
  }
  return word;
}

// A step over a tree of which node 0 is the text's last token: the words that the model says after each node.
static void toy_verify(toy *t, const int *parents, const int64_t *tokens, int nodes, int64_t *words) {
  dw__problem *problem = t->problem;
  int32_t depths[TOY_MOST];
  uint16_t *q = (uint16_t *)(uintptr_t)problem->args.q;
  assert_int_equal(dw_tree_depths(parents, nodes, depths, NULL), DW_OK);
  kt_lengths(problem)[0] = t->length;
  problem->args.width = problem->args.total_q = nodes;
  for (int i = 0; i < nodes; i++) {
    const int position = t->length + depths[i];
    kt_parents(problem)[i] = parents[i];
    toy_vector(kt_token(problem, 0, t->length + i), 0, tokens[i], position);
    for (int h = 0; h < TOY_HEADS; h++) toy_vector(q + (i * TOY_HEADS + h) * TOY_QK, 1 + h, tokens[i], position);
  }
  dw_bounds bounds = kt_fixed(problem, 32);
  bounds.kv_len = TOY_TEXT + 2 * TOY_MOST;
  kt_result r = kt_take_run(t->kernel, &bounds, problem);
  for (int i = 0; i < nodes; i++) words[i] = toy_word(&r, i);
  kt_drop(&r);
}

// Tokens for a tree: about half of the nodes say what the text will say there, the others anything.
static void toy_draft(uint64_t *dice, const int64_t *text, int at, int nodes, int *parents, int64_t *tokens) {
  int32_t depths[TOY_MOST];
  dw__tree_random(dice, nodes, parents);
  assert_int_equal(dw_tree_depths(parents, nodes, depths, NULL), DW_OK);
  for (int i = 0; i < nodes; i++) {
    const int place = at + depths[i];
    const bool right = i == 0 || (place < TOY_TEXT && dw__random_below(dice, 2));
    tokens[i] = right ? text[place] : dw__random_below(dice, TOY_WORDS);
  }
}

// Random drafters with 16, 32 and 64 nodes: verified, accepted and compacted, the text is that of one token after the other.
static void d07_greedy_text_is_that_of_plain_decoding(void **state) {
  (void)state;
  static const int budgets[] = {1, 16, 32, 64};
  int64_t text[TOY_TEXT] = {0}, found[TOY_TEXT + TOY_MOST];
  uint64_t dice = 7;
  for (int k = 0; k < COUNT(budgets); k++) {
    const int nodes = budgets[k];
    int steps = 0, at = TOY_PROMPT - 1;  // the last token's place
    toy t;
    toy_open(&t);
    for (int i = 0; i < TOY_PROMPT; i++) found[i] = i * 7 % TOY_WORDS;
    for (; t.length < at; t.length++) toy_vector(kt_token(t.problem, 0, t.length), 0, found[t.length], t.length);
    if (k == 0) memcpy(text, found, TOY_PROMPT * sizeof *text);
    for (; at + 1 < TOY_TEXT; steps++) {
      int parents[TOY_MOST], count;
      int32_t accept[TOY_MOST];
      int64_t tokens[TOY_MOST], words[TOY_MOST], bonus;
      toy_draft(&dice, k ? text : found, at, nodes, parents, tokens);
      toy_verify(&t, parents, tokens, nodes, words);
      assert_int_equal(dw_tree_walk(parents, tokens, words, nodes, NULL, accept, TOY_MOST, &count, &bonus, NULL), DW_OK);
      assert_true(count >= 1 && accept[0] == 0);
      for (int i = 0; i < count; i++) {
        memmove(kt_token(t.problem, 0, t.length + i), kt_token(t.problem, 0, t.length + accept[i]), TOY_QK * 2);
        found[at + i] = tokens[accept[i]];
      }
      t.length += count, at += count;
      found[at] = bonus;
      if (k == 0) text[at] = bonus;
    }
    kt_note("%d nodes, %d steps", nodes, steps);
    for (int i = 0; i < TOY_TEXT; i++) assert_int_equal(found[i], text[i]);
    assert_true(k == 0 ? steps == TOY_TEXT - TOY_PROMPT : steps < TOY_TEXT - TOY_PROMPT);
    dw__problem_free(t.problem);
  }
}

static void d08_positions_are_depths(void **state) {
  (void)state;
  static const int parents[] = {-1, 0, 0, 1, 2, 2}, wanted[] = {0, 1, 1, 2, 2, 2};
  int depth[6];
  assert_int_equal(dw__tree_masks(parents, 6, 1, depth, NULL, NULL), DW_OK);
  assert_memory_equal(depth, wanted, sizeof wanted);
}

// A tree that is none: what comes out is no matter, but the tensor-core kernels end and stay in their arrays.
static void d09_trees_that_are_none(void **state) {
  (void)state;
  static const int bad[] = {5, 3, -3, 1000000, INT32_MIN, INT32_MAX};
  int prefix = 20;
  for (int i = 0; i < 2 * COUNT(bad); i++) {
    dw__problem *problem = solved(SMALL, 1, &prefix, NULL, DW_MASK_PARENTS);
    kt_parents(problem)[3] = bad[i / 2];  // 5: after it; 3: itself
    kt_note("parent %d", bad[i / 2]);
    dw_bounds bounds = kt_bounds(problem);
    kt_run(kt_kernel_of(SMALL, i % 2 ? FEW : SPLIT), &bounds, problem, DW_HOST_FORWARD, 1);
    dw__problem_free(problem);
  }
}

static void d10_two_prompts(void **state) {
  (void)state;
  static const int prefix[] = {3, 900}, rows[] = {60, 26};
  static const char *const variants[] = {FEW, "family=rowsplit,n_tiles=4,setmaxnreg=1,combine=many,combine_splits=16", SPLIT};
  for (int i = 0; i < COUNT(variants); i++) {
    dw__problem *problem = solved("mla:h=2,t=60,qk=192,v=128", 2, prefix, rows, DW_MASK_PARENTS);
    kt_note("%s", variants[i]);
    kt_assert_own_runs(kt_kernel_of("mla:h=2,t=60,qk=192,v=128", variants[i]), problem, 128);
    kt_run_check(kt_kernel_of("mla:h=2,t=60,qk=192,v=128", variants[i]), problem);
    dw__problem_free(problem);
  }
}

// Logits of a random head over the rows of all variants: on the whole no further from exact ones than those of a plain kernel, so that
// the largest one is another no more often.
static void d11_logits_as_exact_as_plain_bf16(void **state) {
  (void)state;
  enum { HEADS = 16, V = 128, T = 8, BATCH = 3, WORDS = 256, ROWS = T * BATCH };
  static const int prefix[BATCH] = {2000, 700, 300};
  static const char *const variants[] = {FEW, FIVE, SPLIT};
  const char *text = "mla:h=16,t=8,qk=192,v=128";
  static float head[WORDS][HEADS * V];
  uint64_t seed = 11;
  for (int i = 0; i < WORDS * HEADS * V; i++) head[i / (HEADS * V)][i % (HEADS * V)] = (float)dw__random_normal(&seed);
  dw__problem *problem = solved(text, BATCH, prefix, NULL, DW_MASK_PARENTS);
  double *plain = malloc(sizeof *plain * ROWS * HEADS * V), *lse = malloc(sizeof *lse * ROWS * HEADS);
  assert_true(plain && lse);
  assert_int_equal(dw__oracle_plain(&problem->spec.shape, &problem->args, 1, plain, lse, NULL), DW_OK);
  double plain_square = 0;
  for (int i = -1; i < COUNT(variants); i++) {  // -1: the plain result
    double square = 0;
    int flips = 0;
    dw_bounds bounds = kt_bounds(problem);
    kt_result r = {0};
    if (i >= 0) r = kt_take_run(kt_kernel_of(text, variants[i]), &bounds, problem);
    for (int row = 0; row < ROWS; row++) {
      double best = -INFINITY, best_exact = -INFINITY;
      int word = 0, exact_word = 0;
      for (int w = 0; w < WORDS; w++) {
        double found = 0, exact = 0;
        for (int k = 0; k < HEADS * V; k++) {
          const int at = row * HEADS * V + k;
          exact += (double)head[w][k] * problem->out64[at];
          found += (double)head[w][k] * (i < 0 ? plain[at] : (double)dw__to_float(DW_BF16, r.out + (size_t)at * 2));
        }
        square += (found - exact) * (found - exact);
        if (found > best) best = found, word = w;
        if (exact > best_exact) best_exact = exact, exact_word = w;
      }
      flips += word != exact_word;
    }
    if (i < 0) plain_square = square;
    kt_note("%s: %d of %d rows have another word, logits off by %.3g, of the plain kernel by %.3g",
            i < 0 ? "plain" : variants[i], flips, ROWS, sqrt(square), sqrt(plain_square));
    if (!(square <= 1.5 * 1.5 * plain_square) || flips > 2) kt_fail("logits", NULL);
    kt_drop(&r);
  }
  free(plain);
  free(lse);
  dw__problem_free(problem);
}

// One request first in batches of 1, 2, 8 and 64: the split comes from its own length.
static void d12_neighbours_do_not_count(void **state) {
  (void)state;
  int prefix[64];
  for (int b = 0; b < 64; b++) prefix[b] = b == 0 ? 20000 : b % 2 ? 12 : 40;
  for (int t = 1; t <= 4; t += 3) {
    char text[64];
    snprintf(text, sizeof text, "mla:h=16,t=%d,qk=192,v=128", t);
    kt_result alone = {0};
    for (int batch = 1; batch <= 64; batch = batch == 1 ? 2 : batch == 2 && t == 1 ? 8 : batch < 64 ? 64 : 65) {
      dw__problem *problem = solved(text, batch, prefix, NULL, DW_MASK_NONE);
      dw_bounds bounds = kt_fixed(problem, 1024);
      kt_note("%s, batch %d", text, batch);
      kt_result r = kt_take_run(kt_kernel_of(text, FEW), &bounds, problem);
      if (batch == 1) alone = r;
      kt_assert_same_rows(&alone, 0, &r, 0, t);
      if (batch > 1) kt_drop(&r);
      dw__problem_free(problem);
    }
    kt_drop(&alone);
  }
}

// Trees as the parents that a drafter leaves on the device, whatever the page size: the same bits, with nothing made on the host.
static void d06_parents_at_every_page_size(void **state) {
  (void)state;
  static const int prefix[] = {70, 3, 0};
  static const char *const pages[] = {SMALL ",page=1", SMALL ",page=16", SMALL ",page=64"};
  static const char *const variants[] = {FEW, FIVE, SPLIT};
  for (int i = 0; i < COUNT(variants); i++) {
    kt_result first = {0};
    for (int k = 0; k < COUNT(pages); k++) {
      dw__problem *problem = solved(pages[k], 3, prefix, NULL, DW_MASK_PARENTS);
      dw_bounds bounds = kt_bounds(problem);
      kt_note("%s %s", pages[k], variants[i]);
      kt_result r = kt_take_run(kt_kernel_of(pages[k], variants[i]), &bounds, problem);
      kt_check(problem);
      if (k == 0) first = r;
      kt_assert_same(&first, &r);
      if (k) kt_drop(&r);
      dw__problem_free(problem);
    }
    kt_drop(&first);
  }
}

// One switch, bounds.split_tokens, for both directions: the rows of one request have the same bits with any neighbours, and with any
// number of rows behind them; and the rule table takes one variant for every load.
static void d13_rows_and_batches_do_not_count(void **state) {
  (void)state;
  static const int batches[] = {1, 3, 8}, counts[] = {1, 2, 5, 8}, splits[] = {16, 48, 4096};
  static const char *const variants[] = {FEW, MANY, "family=rowsplit,n_tiles=4,setmaxnreg=1,combine=few,combine_splits=4",
                                         SPLIT};
  enum { T = 8 };
  int prefix[] = {203, 40, 0, 97, 16, 5, 300, 64}, rows[] = {T, 3, 8, 0, 1, 7, 2, 8};
  const char *text = "mla:h=8,t=8,qk=192,v=128";
  dw_shape shape = kt_shape(text);
  for (int i = 0; i < COUNT(variants); i++)
    for (int s = 0; s < COUNT(splits); s++) {
      kt_result whole = {0};
      for (int k = COUNT(batches) * COUNT(counts); k-- > 0;) {
        const int batch = batches[k / COUNT(counts)];
        rows[0] = counts[k % COUNT(counts)];
        dw__problem_spec spec = kt_spec(&shape, batch, prefix, rows);
        spec.mask_kind = s % 2 ? DW_MASK_NONE : DW_MASK_PARENTS;
        dw__problem *problem = kt_problem(&spec);
        dw_bounds bounds = kt_fixed(problem, splits[s]);
        kt_note("%s, ranges of %d, %d rows in a batch of %d", variants[i], splits[s], rows[0], batch);
        kt_result r = kt_take_run(kt_kernel_of(text, variants[i]), &bounds, problem);
        if (!whole.out) {
          kt_solve(problem);
          kt_check(problem);
          whole = r;
        }
        kt_assert_same_rows(&r, 0, &whole, 0, rows[0]);
        if (r.out != whole.out) kt_drop(&r);
        dw__problem_free(problem);
      }
      kt_drop(&whole);
    }
  dw_variant first, other;
  dw_bounds bounds = {.size = sizeof bounds, .batch = 1, .kv_len = 1000, .sm_count = 132, .split_tokens = 1024};
  assert_int_equal(dw_variant_choose(&shape, &bounds, &first, NULL), DW_OK);
  for (bounds.batch = 1; bounds.batch <= 64; bounds.batch *= 2)
    for (bounds.kv_len = 100; bounds.kv_len <= 1 << 20; bounds.kv_len *= 10) {
      assert_int_equal(dw_variant_choose(&shape, &bounds, &other, NULL), DW_OK);
      assert_memory_equal(&first, &other, sizeof first);
    }
}

// ---- pages ----------------------------------------------------------------------------------------------------

static void e01_any_order_of_pages(void **state) {
  (void)state;
  static const int prefix[] = {100, 33, 250};
  const char *text = SMALL ",page=16";
  dw_shape shape = kt_shape(text);
  static const char *const variants[] = {FEW, FIVE, SPLIT};
  for (int i = 0; i < COUNT(variants); i++) {
    dw__problem_spec spec = kt_spec(&shape, 3, prefix, NULL);
    spec.mask_kind = DW_MASK_PARENTS;
    spec.shuffle = 0;
    dw__problem *in_order = kt_problem(&spec);
    spec.shuffle = 1;
    dw__problem *shuffled = kt_problem(&spec);
    dw_bounds bounds = kt_bounds(in_order);
    kt_note("%s", variants[i]);
    kt_result a = kt_take_run(kt_kernel_of(text, variants[i]), &bounds, in_order);
    kt_result b = kt_take_run(kt_kernel_of(text, variants[i]), &bounds, shuffled);
    kt_assert_same(&a, &b);
    kt_drop(&a), kt_drop(&b);
    dw__problem_free(in_order), dw__problem_free(shuffled);
  }
}

// Two requests share what the first has up to a slot inside a page, and go on in slots of their own: a list of slots may leave a
// page anywhere.
static void e03_shared_up_to_a_slot(void **state) {
  (void)state;
  static const int prefix[] = {50, 40}, shared[] = {1, 15, 17, 34};
  static const char *const variants[] = {FEW, SPLIT, REFERENCE};
  const char *text = SMALL ",page=16";
  dw_shape shape = kt_shape(text);
  for (int i = 0; i < COUNT(variants); i++)
    for (int k = 0; k < COUNT(shared); k++) {
      dw__problem_spec spec = kt_spec(&shape, 2, prefix, NULL);
      spec.mask_kind = DW_MASK_PARENTS;
      spec.addressing = DW_CSR;
      spec.shuffle = 0;
      dw__problem *problem = kt_problem(&spec);
      int32_t *slots = (int32_t *)(uintptr_t)problem->args.kv_indices;
      memcpy(slots + problem->args.kv_indptr[1], slots, (size_t)shared[k] * sizeof *slots);
      kt_note("%s, %d shared", variants[i], shared[k]);
      kt_solve(problem);
      kt_run_check(kt_kernel_of(text, variants[i]), problem);
      dw__problem_free(problem);
    }
}

// The pool's pages the other way round, and every name of a place with them.
static void reverse_pages(dw__problem *problem, dw__guarded **list) {
  const int page = problem->spec.shape.page, pages = problem->args.kv_pages;
  const size_t bytes = problem->kv_bytes / (size_t)pages;
  dw__guarded *memory = dw__guard_make(list, problem->kv_bytes);
  assert_non_null(memory);
  for (int k = 0; k < pages; k++)
    memcpy(memory->data + (size_t)(pages - 1 - k) * bytes, (const char *)problem->args.kv + (size_t)k * bytes, bytes);
  problem->args.kv = memory->data;
  int32_t *slots = (int32_t *)(uintptr_t)problem->args.kv_indices, *table = (int32_t *)(uintptr_t)problem->args.block_table;
  for (size_t k = 0; slots && k < problem->index_bytes / 4; k++)
    slots[k] = (pages - 1 - slots[k] / page) * page + slots[k] % page;
  for (size_t k = 0; table && k < problem->table_bytes / 4; k++)
    if (table[k] < pages) table[k] = pages - 1 - table[k];
}

// Pages in order, reversed and at random, of 1, 16 and 64 tokens, by table and by slots: the same bits.
static void e05_orders_and_sizes_of_pages(void **state) {
  (void)state;
  static const int prefix[] = {300, 33};
  static const char *const pages[] = {"page=1", "page=16", "page=64"}, *const variants[] = {FEW, SPLIT};
  for (int i = 0; i < COUNT(variants); i++) {
    kt_result first = {0};
    for (int k = 0; k < 18; k++) {
      char text[80];
      snprintf(text, sizeof text, "mla:h=4,t=4,qk=128,v=128,%s", pages[k / 6]);
      dw_shape shape = kt_shape(text);
      dw__problem_spec spec = kt_spec(&shape, 2, prefix, NULL);
      spec.mask_kind = DW_MASK_PARENTS;
      spec.addressing = k % 2 ? DW_CSR : DW_BLOCK_TABLE;
      spec.shuffle = k / 2 % 3 == 1;
      dw__problem *problem = kt_problem(&spec), reversed = *problem;
      dw__guarded *list = NULL;
      if (k / 2 % 3 == 2) reverse_pages(&reversed, &list);
      dw_bounds bounds = kt_bounds(problem);
      kt_note("%s %s, way %d", text, variants[i], k);
      kt_result r = kt_take_run(kt_kernel_of(text, variants[i]), &bounds, &reversed);
      if (k == 0) first = r;
      kt_assert_same(&first, &r);
      if (k) kt_drop(&r);
      dw__guard_free(list);
      dw__problem_free(problem);
    }
    kt_drop(&first);
  }
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(a01_page_addresses),
    cmocka_unit_test(a03_page_size_1),
    cmocka_unit_test(a43_shared_pages_of_a_large_pool),
    cmocka_unit_test(a04_padded_request),
    cmocka_unit_test(a04_shorter_than_its_drafts),
    cmocka_unit_test(a05_declared_maximum),
    cmocka_unit_test(a06_repeated_offsets),
    cmocka_unit_test(a07_row_that_sees_nothing),
    cmocka_unit_test(a09_first_tiles_hidden),
    cmocka_unit_test(a21_siblings_below_the_diagonal),
    cmocka_unit_test(a08_poison_out_of_sight),
    cmocka_unit_test(a08_one_bad_element),
    cmocka_unit_test(a08_poison_in_slots_used_again),
    cmocka_unit_test(a24_drafts_do_not_see_the_future),
    cmocka_unit_test(a24_one_poisoned_draft),
    cmocka_unit_test(a24_dead_nodes_and_poisoned_prefix),
    cmocka_unit_test(large_scores),
    cmocka_unit_test(large_products),
    cmocka_unit_test(large_and_small_values),
    cmocka_unit_test(large_fp16_values),
    cmocka_unit_test(a10_more_splits_than_tokens),
    cmocka_unit_test(a11_lengths_1_to_5),
    cmocka_unit_test(a12_short_beside_long),
    cmocka_unit_test(a13_batches_in_the_merge),
    cmocka_unit_test(a14_merged_by_lse),
    cmocka_unit_test(d04_tree_and_prefix_in_one_call),
    cmocka_unit_test(a18_mask_row_stride),
    cmocka_unit_test(a15_packed_offsets),
    cmocka_unit_test(a17_tree_after_chain),
    cmocka_unit_test(a19_trees_around_32_nodes),
    cmocka_unit_test(a20_padded_trees),
    cmocka_unit_test(a22_a_tree_for_each_request),
    cmocka_unit_test(a32_other_records),
    cmocka_unit_test(a23_unequal_widths),
    cmocka_unit_test(a28_twelve_heads),
    cmocka_unit_test(a29_four_and_eight_heads),
    cmocka_unit_test(a33_table_rows_are_requests),
    cmocka_unit_test(a35_a_boundary_for_each_row),
    cmocka_unit_test(a36_verify_equals_decode),
    cmocka_unit_test(a41_q_in_a_packed_row),
    cmocka_unit_test(a42_page_stride_is_the_callers),
    cmocka_unit_test(a45_one_plan_for_all_lengths),
    cmocka_unit_test(a46_buffers_are_read_each_time),
    cmocka_unit_test(d03_drafts_in_places_of_their_own),
    cmocka_unit_test(d06_parents_at_every_page_size),
    cmocka_unit_test(d07_greedy_text_is_that_of_plain_decoding),
    cmocka_unit_test(d08_positions_are_depths),
    cmocka_unit_test(d09_trees_that_are_none),
    cmocka_unit_test(d10_two_prompts),
    cmocka_unit_test(d11_logits_as_exact_as_plain_bf16),
    cmocka_unit_test(d12_neighbours_do_not_count),
    cmocka_unit_test(d13_rows_and_batches_do_not_count),
    cmocka_unit_test(e01_any_order_of_pages),
    cmocka_unit_test(e03_shared_up_to_a_slot),
    cmocka_unit_test(e05_orders_and_sizes_of_pages),
  };
  if (list_tests(argc, argv, tests, DW__COUNT(tests))) return 0;
  if (kt_skip()) return 77;
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  return cmocka_run_group_tests(tests, kt_setup, kt_teardown);
}
