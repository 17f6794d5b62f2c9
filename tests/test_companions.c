// The companions' host side: handles and launches over a driver that counts, refusals, trees, plans of moves. The kernels
// themselves: test_companion_kernels. The driver and, where it has to be, the compiler are stand-ins; tests whose names start with
// nvrtc need a real one and skip without.
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "companions.h"
#include "fake_driver.c"
#include "flow.h"
#include "list_tests.h"
#include "problem.h"
#include "random.h"

static uint64_t seed;

static int begin(void **state) {
  (void)state;
  const char *given = getenv("DRAFTWOOD_TEST_SEED");
  seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
  print_message("seed %llu (DRAFTWOOD_TEST_SEED)\n", (unsigned long long)seed);
  return 0;
}

static int below(int n) { return dw__random_below(&seed, n); }

static void assert_ok(dw_status status, dw_error *error) {
  if (status) fail_msg("%s", error->message);
}

// A refusal says all three things.
static void assert_refused(dw_status status, dw_error *error, const char *field) {
  if (status != DW_BAD_ARGUMENT) fail_msg("%s: %s, wanted a refusal", field, dw_status_name(status));
  assert_string_equal(error->field, field);
  assert_true(error->found[0] && error->allowed[0]);
  dw_error_clear(error);
}

// ---- handle ---------------------------------------------------------------------------------------------------

static dw_ctx *with_driver(void) {
  dw_options options = {.size = sizeof options, .cache_dir = ""};
  dw__driver_table table = fake_driver_table();
  dw__driver *driver;
  dw_ctx *ctx;
  fake_driver_reset();
  assert_int_equal(dw_ctx_create(&options, &ctx, NULL), DW_OK);
  assert_int_equal(dw__driver_open_table(&table, &driver, NULL), DW_OK);
  dw__ctx_use_driver(ctx, driver);
  return ctx;
}

static bool has_nvrtc(void) {
  dw_error error = {0};
  dw__nvrtc *nvrtc;
  if (dw__nvrtc_open(NULL, &nvrtc, &error)) {
    print_message("SKIP: %s\n", error.message);
    dw_error_clear(&error);
    return false;
  }
  dw__nvrtc_close(nvrtc);
  return true;
}

static void nvrtc_one_handle_a_context_and_target(void **state) {
  (void)state;
  if (!has_nvrtc()) skip();
  dw_companions *first, *again;
  dw_error error = {0};
  dw_stats stats;
  dw_ctx *ctx = with_driver();
  assert_ok(dw_companions_get(ctx, 0, &first, &error), &error);
  assert_ok(dw_companions_get(ctx, 90, &again, &error), &error);
  assert_ptr_equal(first, again);
  assert_int_equal(fake.loaded, 1);
  static char other_context;
  fake.context = &other_context;
  assert_ok(dw_companions_get(ctx, 0, &again, &error), &error);
  assert_ptr_not_equal(first, again);
  dw_stats_get(ctx, &stats);
  assert_int_equal(stats.compiles, 1);
  dw_ctx_destroy(ctx);
  assert_int_equal(fake.loaded, 0);
}

static void nvrtc_a_handle_is_refused(void **state) {
  (void)state;
  if (!has_nvrtc()) skip();
  dw_companions *companions;
  dw_error error = {0};
  dw_ctx *ctx = with_driver();
  assert_int_equal(dw_companions_get(ctx, 120, &companions, &error), DW_UNSUPPORTED_TARGET);
  assert_null(companions);
  dw_error_clear(&error);
  assert_int_not_equal(dw_companions_get(ctx, 77, &companions, &error), DW_OK);
  assert_string_equal(error.field, "target");
  dw_error_clear(&error);
  fake.capture_status = 1;
  assert_refused(dw_companions_get(ctx, 0, &companions, &error), &error, "stream");
  fake.capture_status = 0;
  assert_ok(dw_companions_get(ctx, 0, &companions, &error), &error);
  fake.capture_status = 1;  // what is loaded can be had
  assert_ok(dw_companions_get(ctx, 0, &companions, &error), &error);
  fake.context = NULL;
  assert_int_equal(dw_companions_get(ctx, 0, &companions, &error), DW_DRIVER);
  dw_error_clear(&error);
  assert_refused(dw_companions_get(ctx, 0, NULL, &error), &error, "companions");
  dw_ctx_destroy(ctx);
}

static void nvrtc_every_target_compiles_without_spills_and_twice_alike(void **state) {
  (void)state;
  static const int targets[] = {80, 86, 89, 90, 100, 103, 120, 121};
  if (!has_nvrtc()) skip();
  dw_ctx *ctx = with_driver(), *other = with_driver();
  dw_error error = {0};
  for (size_t i = 0; i < DW__COUNT(targets); i++) {
    dw_cubin *cubin, *twin;
    assert_ok(dw_companions_build(ctx, targets[i], &cubin, &error), &error);
    assert_int_equal(cubin->kernel_count, DW__COMPANION_COUNT);
    for (int k = 0; k < cubin->kernel_count; k++) {
      assert_int_equal(cubin->kernels[k].spill_stores, 0);
      assert_int_equal(cubin->kernels[k].stack_bytes, 0);
    }
    if (i % 4 == 3) {
      assert_ok(dw_companions_build(other, targets[i], &twin, &error), &error);
      assert_int_equal(twin->size, cubin->size);
      assert_memory_equal(twin->data, cubin->data, cubin->size);
      assert_string_equal(twin->request_key, cubin->request_key);
      dw_cubin_free(twin);
    }
    dw_cubin_free(cubin);
  }
  dw_ctx_destroy(ctx);
  dw_ctx_destroy(other);
}

// ---- launches -------------------------------------------------------------------------------------------------

// A handle over the counting driver, with no cubin.
static dw_companions *bare(dw__driver **driver) {
  dw__driver_table table = fake_driver_table();
  void *functions[DW__COMPANION_COUNT];
  dw_companions *companions;
  fake_driver_reset();
  for (int i = 0; i < DW__COMPANION_COUNT; i++) functions[i] = &function_handle;
  assert_int_equal(dw__driver_open_table(&table, driver, NULL), DW_OK);
  assert_int_equal(dw__companions_of(*driver, functions, &companions, NULL), DW_OK);
  return companions;
}

// Addresses that nobody reads: a launch must not.
static void *somewhere(int i) { return (void *)(uintptr_t)(0x10000000 + 0x100000 * (uintptr_t)i); }

static dw_compact_args compact_args(void) {
  return (dw_compact_args){.size = sizeof(dw_compact_args),
                           .planes = {{.bases = somewhere(1), .count = 61, .row_bytes = 1152}},
                           .plane_kinds = 1,
                           .page = 64,
                           .batch = 32,
                           .width = 9,
                           .kv_len = somewhere(2),
                           .lengths_include_drafts = 1,
                           .addressing = DW_BLOCK_TABLE,
                           .block_table = somewhere(3),
                           .table_columns = 100,
                           .accept_index = somewhere(4),
                           .accept_columns = 5,
                           .new_len = somewhere(5),
                           .accept_count = somewhere(6)};
}

static dw_move_args move_args(void) {
  return (dw_move_args){.size = sizeof(dw_move_args),
                        .planes = {{.bases = somewhere(1), .count = 61, .row_bytes = 1152}},
                        .plane_kinds = 1,
                        .page = 64,
                        .list = somewhere(2),
                        .teams = 3};
}

static dw_merge_args merge_args(void) {
  return (dw_merge_args){.size = sizeof(dw_merge_args),
                         .states = {{.out = somewhere(1), .lse = somewhere(2), .count = 2}},
                         .state_kinds = 1,
                         .rows = 9,
                         .heads = 8,
                         .v = 512,
                         .out = somewhere(3),
                         .lse = somewhere(4)};
}

static dw_expand_args expand_args(void) {
  return (dw_expand_args){.size = sizeof(dw_expand_args),
                          .parents = somewhere(1),
                          .batch = 4,
                          .width = 33,
                          .kv_len = somewhere(2),
                          .depths = somewhere(3),
                          .positions = somewhere(4),
                          .mask = somewhere(5)};
}

static dw_accept_args accept_args(void) {
  return (dw_accept_args){.size = sizeof(dw_accept_args),
                          .parents = somewhere(1),
                          .draft_tokens = somewhere(2),
                          .target_tokens = somewhere(3),
                          .root_tokens = somewhere(4),
                          .batch = 4,
                          .width = 33,
                          .accept_index = somewhere(5),
                          .accept_columns = 8,
                          .accept_count = somewhere(6),
                          .bonus_tokens = somewhere(7)};
}

// One call of the driver, and no allocation.
static void assert_one_call(dw_status status, dw_error *error, int calls_before, unsigned x, unsigned y) {
  assert_ok(status, error);
  assert_int_equal(fake_driver_calls(), calls_before + 1);
  assert_int_equal(fake.launch.grid[0], x);
  assert_int_equal(fake.launch.grid[1], y);
  assert_int_equal(dw__alloc_fail_after(LONG_MAX), 0);
}

static void a_launch_is_one_call_of_the_driver(void **state) {
  (void)state;
  dw_error error = {0};
  dw__driver *driver;
  dw_companions *c = bare(&driver);
  dw_compact_args compact = compact_args();
  dw_move_args move = move_args();
  dw_merge_args merge = merge_args();
  dw_expand_args expand = expand_args();
  dw_accept_args accept = accept_args();
  void *stream = somewhere(9);
  dw__alloc_fail_after(LONG_MAX);
  assert_one_call(dw_kv_compact(c, &compact, stream, &error), &error, 0, 61, 8);
  assert_one_call(dw_kv_move(c, &move, stream, &error), &error, 1, 61 * 72 * 64 / 32, 3);
  assert_one_call(dw_merge_states(c, &merge, stream, &error), &error, 2, 18, 1);
  assert_one_call(dw_tree_expand(c, &expand, stream, &error), &error, 3, 5, 4);
  assert_one_call(dw_tree_accept(c, &accept, stream, &error), &error, 4, 4, 1);
  assert_int_equal(fake.launch.shared, 33 * 4);
  assert_ptr_equal(fake.launch.stream, stream);
  dw__alloc_fail_after(0);
  move.teams = 0;
  merge.rows = 0;
  assert_ok(dw_kv_move(c, &move, stream, &error), &error);
  assert_ok(dw_merge_states(c, &merge, stream, &error), &error);
  assert_int_equal(fake_driver_calls(), 5);  // nothing to do, nothing launched
  dw__companions_free(c);
  dw__driver_close(driver);
}

#define REFUSES(type, call, make, change, name)              \
  do {                                                       \
    type a = make();                                         \
    change;                                                  \
    assert_refused(call(c, &a, NULL, &error), &error, name); \
  } while (0)

static void arguments_are_refused(void **state) {
  (void)state;
  dw_error error = {0};
  dw__driver *driver;
  dw_companions *c = bare(&driver);
#define COMPACT(change, name) REFUSES(dw_compact_args, dw_kv_compact, compact_args, change, name)
  COMPACT(a.size = 3, "args");
  COMPACT(a.plane_kinds = 0, "plane_kinds");
  COMPACT(a.plane_kinds = 5, "plane_kinds");
  COMPACT(a.plane_kinds = 2, "planes[1].bases");
  COMPACT(a.planes[0].bases = (void *)12, "planes[0].bases");
  COMPACT(a.planes[0].count = 0, "planes[0].count");
  COMPACT(a.planes[0].row_bytes = 0, "planes[0].row_bytes");
  COMPACT(a.planes[0].token_stride = 1000, "planes[0].token_stride");
  COMPACT(a.planes[0].page_stride = 64 * 1152 - 1, "planes[0].page_stride");
  COMPACT(a.page = -1, "page");
  COMPACT(a.batch = 0, "batch");
  COMPACT(a.batch = 65536, "batch");
  COMPACT(a.width = 0, "width");
  COMPACT(a.width = 1026, "width");
  COMPACT(a.qo_indptr = (void *)2, "qo_indptr");
  COMPACT(a.kv_len = NULL, "kv_len");
  COMPACT(a.addressing = (dw_addressing)2, "addressing");
  COMPACT(a.block_table = NULL, "block_table");
  COMPACT(a.table_columns = 0, "table_columns");
  COMPACT(a.block_table_stride = 99, "block_table_stride");
  COMPACT(a.draft_slots = somewhere(7), "draft_slots");
  COMPACT(a.addressing = DW_CSR, "kv_indptr");
  COMPACT((a.addressing = DW_CSR, a.kv_indptr = somewhere(7)), "kv_indices");
  COMPACT((a.addressing = DW_CSR, a.draft_slots = somewhere(7)), "draft_slots");
  COMPACT((a.addressing = DW_CSR, a.kv_indptr = somewhere(7), a.index64 = 1, a.kv_indices = (void *)0x1004), "kv_indices");
  COMPACT(a.accept_index = NULL, "accept_index");
  COMPACT(a.accept_columns = 0, "accept_columns");
  COMPACT(a.accept_columns = 1026, "accept_columns");
  COMPACT(a.accept_stride = 4, "accept_stride");
  COMPACT(a.next_drafts = -1, "next_drafts");
  COMPACT(a.new_len = (void *)(uintptr_t)a.kv_len, "new_len");
  COMPACT(a.new_len = a.accept_count + 31, "new_len");
  COMPACT(a.accept_count = (void *)((uintptr_t)a.kv_len + 4), "accept_count");
#define MOVE(change, name) REFUSES(dw_move_args, dw_kv_move, move_args, change, name)
  MOVE(a.size = 3, "args");
  MOVE(a.teams = -1, "teams");
  MOVE(a.teams = 65536, "teams");
  MOVE(a.list = NULL, "list");
  MOVE(a.list = (void *)0x1008, "list");
  MOVE(a.planes[0].row_bytes = 1 << 25, "planes[0].row_bytes");
  MOVE((a.page = 1 << 20, a.planes[0].row_bytes = 1 << 20), "planes[0].count");
#define MERGE(change, name) REFUSES(dw_merge_args, dw_merge_states, merge_args, change, name)
  MERGE(a.size = 3, "args");
  MERGE(a.state_kinds = 0, "state_kinds");
  MERGE(a.state_kinds = 5, "state_kinds");
  MERGE(a.rows = -1, "rows");
  MERGE(a.heads = 0, "heads");
  MERGE(a.v = 0, "v");
  MERGE(a.out = NULL, "out");
  MERGE(a.out = (void *)1, "out");
  MERGE(a.lse = (void *)2, "lse");
  MERGE(a.dtype = (dw_dtype)3, "dtype");
  MERGE(a.out_row_stride = 511, "out_row_stride");
  MERGE(a.out_head_stride = 511, "out_head_stride");
  MERGE(a.states[0].out = NULL, "states[0].out");
  MERGE(a.states[0].lse = NULL, "states[0].lse");
  MERGE(a.states[0].count = 0, "states[0].count");
  MERGE(a.states[0].dtype = (dw_dtype)7, "states[0].dtype");
  MERGE(a.states[0].out_row_stride = 511, "states[0].out_row_stride");
  MERGE(a.states[0].lse_part_stride = -1, "states[0].lse_part_stride");
#define EXPAND(change, name) REFUSES(dw_expand_args, dw_tree_expand, expand_args, change, name)
  EXPAND(a.size = 3, "args");
  EXPAND(a.parents = NULL, "parents");
  EXPAND(a.width = 1026, "width");
  EXPAND(a.kv_len = NULL, "kv_len");
  EXPAND((a.positions64 = 1, a.positions = (void *)0x1004), "positions");
  EXPAND(a.mask_row_stride = 1, "mask_row_stride");
#define ACCEPT(change, name) REFUSES(dw_accept_args, dw_tree_accept, accept_args, change, name)
  ACCEPT(a.size = 3, "args");
  ACCEPT(a.parents = NULL, "parents");
  ACCEPT(a.draft_tokens = NULL, "draft_tokens");
  ACCEPT(a.target_tokens = NULL, "target_tokens");
  ACCEPT((a.tokens64 = 1, a.root_tokens = (void *)0x1004), "root_tokens");
  ACCEPT(a.accept_index = NULL, "accept_index");
  ACCEPT(a.accept_columns = 0, "accept_columns");
  ACCEPT(a.accept_stride = 7, "accept_stride");
  ACCEPT(a.width = 0, "width");
  assert_refused(dw_kv_move(c, NULL, NULL, &error), &error, "args");
  assert_refused(dw_kv_move(NULL, NULL, NULL, &error), &error, "companions");
  assert_int_equal(fake_driver_calls(), 0);
  dw__companions_free(c);
  dw__driver_close(driver);
}

// ---- trees ----------------------------------------------------------------------------------------------------

static void d08_positions_are_depths(void **state) {
  (void)state;
  static const int32_t parents[] = {-1, 0, 0, 1, 2, 2}, wanted[] = {1000, 1001, 1001, 1002, 1002, 1002};
  int32_t positions[6];
  dw_error error = {0};
  assert_ok(dw_tree_positions(parents, 6, 1000, positions, &error), &error);
  assert_memory_equal(positions, wanted, sizeof wanted);
}

static void d09_trees_that_are_none(void **state) {
  (void)state;
  static const struct {
    int32_t parents[4];
    int node;
  } bad[] = {
    {{-1, 0, 3, 0}, 2},    // comes after its child
    {{-1, 1, 0, 0}, 1},    // its own parent
    {{-1, 0, 0, -3}, 3},   // no such mark
    {{-1, 0, 400, 0}, 2},  // no such node
    {{-1, -2, 1, 0}, 2},   // child of a dead node
    {{0, 0, 0, 0}, 0},     // the first node has no one before it
    {{-1, 0, 0, INT32_MIN}, 3},
  };
  static const int32_t twins[] = {-1, 0, 0, 1, 2, -1, -2};
  int32_t depths[7];
  uint32_t bits[7];
  char field[32];
  dw_error error = {0};
  for (size_t i = 0; i < DW__COUNT(bad); i++) {
    snprintf(field, sizeof field, "parents[%d]", bad[i].node);
    assert_refused(dw_tree_check(bad[i].parents, 4, &error), &error, field);
    assert_refused(dw_tree_depths(bad[i].parents, 4, depths, &error), &error, field);
    assert_refused(dw_tree_mask(bad[i].parents, 4, bits, 0, &error), &error, field);
  }
  assert_ok(dw_tree_check(twins, 7, &error), &error);  // several roots, children with one token: nothing to see here
  assert_refused(dw_tree_check(twins, -1, &error), &error, "nodes");
  assert_refused(dw_tree_check(twins, 1026, &error), &error, "nodes");
  assert_refused(dw_tree_check(NULL, 4, &error), &error, "parents");
  assert_refused(dw_tree_mask(twins, 7, bits, -1, &error), &error, "row_stride");
  assert_refused(dw_tree_positions(twins, 7, -1, depths, &error), &error, "prefix");
  assert_ok(dw_tree_check(NULL, 0, &error), &error);
}

// Against the proof's own masks and depths.
static void depths_and_masks_of_random_trees(void **state) {
  (void)state;
  for (int i = 0; i < 200; i++) {
    int nodes = i == 0 ? 1025 : 1 + below(80), words = (nodes + 31) / 32 + below(2);
    int *parents = calloc((size_t)nodes, sizeof *parents), *depths = calloc((size_t)nodes * 2, sizeof *depths);
    uint32_t *mask = calloc((size_t)(nodes * words) * 2, sizeof *mask), *other = mask + nodes * words;
    dw_error error = {0};
    assert_true(parents && depths && mask);
    dw__tree_random(&seed, nodes, parents);
    assert_ok(dw__tree_masks(parents, nodes, words, depths, mask, &error), &error);
    memset(other, 0xFF, (size_t)(nodes * words) * sizeof *other);
    assert_ok(dw_tree_depths(parents, nodes, depths + nodes, &error), &error);
    assert_ok(dw_tree_mask(parents, nodes, other, words, &error), &error);
    assert_memory_equal(depths, depths + nodes, (size_t)nodes * sizeof *depths);
    assert_memory_equal(mask, other, (size_t)(nodes * words) * sizeof *mask);
    free(parents);
    free(depths);
    free(mask);
  }
}

// By trying every node: the target model agrees with each step down to it.
static int deepest(const int32_t *parents, const int64_t *draft, const int64_t *target, int nodes, const int64_t *root,
                   int *best) {
  int depth = 0;
  for (int i = 0; i < nodes; i++) {
    int n = 1, at = i;
    while (parents[at] >= 0 && draft[at] == target[parents[at]]) at = parents[at], n++;
    int first = 0;
    while (parents[first] != -1) first++;
    bool agreed = parents[at] == -1 && (root ? draft[at] == *root : at == first);
    if (agreed && n > depth) depth = n, *best = i;
  }
  return depth;
}

static void walk_accepts_the_deepest_path(void **state) {
  (void)state;
  enum { MOST = 40 };
  int lengths[MOST + 1] = {0};
  for (int i = 0; i < 3000; i++) {
    int32_t parents[MOST], list[8];
    int64_t draft[MOST], target[MOST], root = below(3), bonus;
    int nodes = 1 + below(MOST), best = -1, count, columns = 1 + below(8), vocabulary = 1 + below(3);
    const int64_t *given = below(2) ? &root : NULL;
    dw_error error = {0};
    dw__tree_random(&seed, nodes, parents);
    for (int k = 0; k < nodes; k++) draft[k] = below(vocabulary), target[k] = below(vocabulary);
    int depth = deepest(parents, draft, target, nodes, given, &best);
    assert_ok(dw_tree_walk(parents, draft, target, nodes, given, list, columns, &count, &bonus, &error), &error);
    assert_int_equal(count, depth < columns ? depth : columns);
    for (int k = depth, at = best; k-- > 0; at = parents[at])
      if (k < columns) assert_int_equal(list[k], at);
    for (int k = count; k < columns; k++) assert_int_equal(list[k], -1);
    assert_int_equal(bonus, count ? target[list[count - 1]] : given ? root : -1);
    assert_ok(dw_accept_check(list, 1, columns, 0, NULL, nodes, &error), &error);
    lengths[depth]++;
  }
  for (int i = 0; i < 5; i++) assert_true(lengths[i] > 0);
}

static void wrong_accept_lists_are_named(void **state) {
  (void)state;
  static const int32_t lists[3][4] = {{0, 2, 5, -1}, {-1, -1, -1, -1}, {1, 2, 3, 8}};
  static const int32_t rows[] = {6, 0, 9};
  dw_error error = {0};
  int32_t wrong[3][4];
  assert_ok(dw_accept_check(&lists[0][0], 3, 4, 0, rows, 0, &error), &error);
#define WRONG(b, k, value, field)                                                           \
  do {                                                                                      \
    memcpy(wrong, lists, sizeof wrong);                                                     \
    wrong[b][k] = value;                                                                    \
    assert_refused(dw_accept_check(&wrong[0][0], 3, 4, 0, rows, 0, &error), &error, field); \
  } while (0)
  WRONG(0, 1, 0, "accept_index[0][1]");  // twice
  WRONG(0, 2, 6, "accept_index[0][2]");  // past the rows
  WRONG(0, 0, -2, "accept_index[0][0]");
  WRONG(1, 2, 0, "accept_index[1][2]");  // behind the end
  WRONG(2, 3, 2, "accept_index[2][3]");  // descends
  assert_refused(dw_accept_check(NULL, 3, 4, 0, rows, 0, &error), &error, "accept_index");
  assert_refused(dw_accept_check(&lists[0][0], 3, 0, 0, rows, 0, &error), &error, "accept_columns");
  assert_refused(dw_accept_check(&lists[0][0], 3, 4, 3, rows, 0, &error), &error, "accept_stride");
  assert_refused(dw_accept_check(&lists[0][0], -1, 4, 0, rows, 0, &error), &error, "batch");
}

// A tree as the set of its root-to-leaf paths, in both forms, is the same tree and so has the same mask.
static void d14_trees_given_as_paths(void **state) {
  (void)state;
  enum { MOST = 70, WORDS = 2 };
  for (int i = 0; i < 500; i++) {
    int32_t parents[MOST], found[MOST], paths[MOST][MOST];
    uint64_t sets[MOST][WORDS] = {{0}};
    uint32_t mask[MOST * 3], other[MOST * 3];
    int nodes = 1 + below(MOST), count = 0;
    dw_error error = {0};
    dw__tree_random(&seed, nodes, parents);
    for (int k = 0; k < nodes; k++)
      if (below(9) == 0 && k) parents[k] = -2;
    for (int k = 0; k < nodes; k++)
      if (parents[k] >= 0 && parents[parents[k]] == -2) parents[k] = -2;
    for (int leaf = 0; leaf < nodes; leaf++) {
      bool is_leaf = parents[leaf] != -2;
      for (int k = 0; k < nodes; k++) is_leaf &= parents[k] != leaf;
      if (!is_leaf) continue;
      int depth = 0;
      for (int at = leaf; at >= 0; at = parents[at]) depth++, sets[at][count / 64] |= 1ull << count % 64;
      for (int k = 0; k < MOST; k++) paths[count][k] = -1;
      for (int at = leaf; at >= 0; at = parents[at]) paths[count][--depth] = at;
      count++;
    }
    assert_ok(dw_tree_from_paths(&paths[0][0], count, MOST, nodes, found, &error), &error);
    assert_memory_equal(found, parents, (size_t)nodes * sizeof *found);
    memset(found, 0, sizeof found);
    assert_ok(dw_tree_from_sets(&sets[0][0], nodes, WORDS, found, &error), &error);
    assert_memory_equal(found, parents, (size_t)nodes * sizeof *found);
    assert_ok(dw_tree_mask(parents, nodes, mask, 3, &error), &error);
    assert_ok(dw_tree_mask(found, nodes, other, 3, &error), &error);
    assert_memory_equal(mask, other, (size_t)nodes * 3 * sizeof *mask);
  }
  // Paths that part and meet again are no tree.
  static const int32_t meet[2][3] = {{0, 1, 3}, {0, 2, 3}}, down[1][3] = {{0, 2, 1}}, far[1][3] = {{0, 4, -1}};
  static const uint64_t sets[4] = {3, 1, 2, 3};
  int32_t parents[4];
  dw_error error = {0};
  assert_refused(dw_tree_from_paths(&meet[0][0], 2, 3, 4, parents, &error), &error, "paths[1][2]");
  assert_refused(dw_tree_from_paths(&down[0][0], 1, 3, 4, parents, &error), &error, "paths[0][2]");
  assert_refused(dw_tree_from_paths(&far[0][0], 1, 3, 4, parents, &error), &error, "paths[0][1]");
  assert_refused(dw_tree_from_sets(sets, 4, 1, parents, &error), &error, "sets[3]");
  assert_refused(dw_tree_from_sets(sets, 4, 0, parents, &error), &error, "words");
}

// ---- plans of moves -------------------------------------------------------------------------------------------

static void wrong_moves_are_named(void **state) {
  (void)state;
  static const dw_move twice_from[] = {{1, 2}, {1, 3}}, twice_to[] = {{1, 3}, {2, 3}}, out[] = {{0, 4}}, low[] = {{-1, 0}},
                       onto_a_stayer[] = {{2, 2}, {1, 2}}, nothing[] = {{1, 1}, {3, 3}};
  dw_error error = {0};
  dw_move_list list;
  assert_refused(dw_move_plan(twice_from, 2, 4, &list, &error), &error, "moves[1].from");
  assert_refused(dw_move_plan(twice_to, 2, 4, &list, &error), &error, "moves[1].to");
  assert_refused(dw_move_plan(out, 1, 4, &list, &error), &error, "moves[0].to");
  assert_refused(dw_move_plan(low, 1, 4, &list, &error), &error, "moves[0].from");
  assert_refused(dw_move_plan(onto_a_stayer, 2, 4, &list, &error), &error, "moves[1].to");
  assert_refused(dw_move_plan(NULL, 2, 4, &list, &error), &error, "moves");
  assert_ok(dw_move_plan(nothing, 2, 4, &list, &error), &error);
  assert_int_equal(list.teams + list.moves, 0);
  assert_null(list.data);
  dw_move_list_free(&list);
}

static dw_pool pool_of(int pages, int page, int requests, const int32_t *table, int stride, const int32_t *tokens) {
  return (dw_pool){.size = sizeof(dw_pool),
                   .pages = pages,
                   .page = page,
                   .requests = requests,
                   .table = table,
                   .table_stride = stride,
                   .tokens = tokens};
}

// Nothing to do: no moves, and not one allocation.
static void e02_nothing_to_do(void **state) {
  (void)state;
  static const int32_t half[4] = {0, 1, 2, 3}, half_tokens[] = {55};
  static const int32_t full[3][4] = {{4, 5, 99, 99}, {0, 1, 2, 3}, {6, 7, 8, 99}}, full_tokens[] = {20, 64, 48};
  dw_error error = {0};
  dw_defrag plan;
  dw_pool pools[] = {pool_of(4, 16, 1, half, 4, half_tokens), pool_of(9, 16, 3, &full[0][0], 4, full_tokens),
                     pool_of(0, 16, 0, NULL, 0, NULL)};
  for (size_t i = 0; i < DW__COUNT(pools); i++) {
    dw__alloc_fail_after(LONG_MAX);
    assert_ok(dw_defrag_plan(&pools[i], &plan, &error), &error);
    assert_int_equal(dw__alloc_fail_after(0), 0);
    assert_int_equal(plan.count, 0);
    assert_int_equal(plan.list.teams, 0);
    assert_true(plan.least);
    dw_defrag_free(&plan);
  }
}

// Prefixes are shared in whole pages: a page shared up to slot 1 of 3 (or of 16) is named with both requests.
static void e03_shared_pages_are_full(void **state) {
  (void)state;
  static const int pages[] = {3, 16};
  dw_error error = {0};
  for (int i = 0; i < 2; i++) {
    int page = pages[i];
    int32_t tokens[] = {2 * page, page + 2};
    int32_t part[2][3] = {{4, 7, -1}, {4, 7, -1}}, whole[2][3] = {{4, 7, -1}, {4, 2, -1}},
            moved[2][3] = {{4, 7, -1}, {7, 2, -1}}, twice[2][3] = {{4, 4, -1}, {1, 2, -1}},
            far[2][3] = {{4, 9, -1}, {1, 2, -1}};
    dw_defrag plan;
    dw_pool pool = pool_of(9, page, 2, &part[0][0], 3, tokens);
    assert_refused(dw_pool_check(&pool, &error), &error, "table[1][1]");
    assert_refused(dw_defrag_plan(&pool, &plan, &error), &error, "table[1][1]");
    pool.table = &whole[0][0];
    assert_ok(dw_pool_check(&pool, &error), &error);
    pool.table = &moved[0][0];  // shared, but at another place of the text
    assert_refused(dw_pool_check(&pool, &error), &error, "table[1][0]");
    pool.table = &twice[0][0];
    assert_refused(dw_pool_check(&pool, &error), &error, "table[0][1]");
    pool.table = &far[0][0];
    assert_refused(dw_pool_check(&pool, &error), &error, "table[0][1]");
    tokens[0] = 3 * page + 1;
    assert_refused(dw_pool_check(&pool, &error), &error, "tokens[0]");
    tokens[0] = -1;
    assert_refused(dw_pool_check(&pool, &error), &error, "tokens[0]");
    pool.pages = -1;
    assert_refused(dw_pool_check(&pool, &error), &error, "pages");
  }
  assert_refused(dw_pool_check(NULL, &error), &error, "pool");
}

// Three requests, one page each in turn: each becomes a run, in the fewest moves.
static void e01_interleaved_requests(void **state) {
  (void)state;
  static const int32_t table[3][4] = {{0, 3, 6, 9}, {1, 4, 7, 10}, {2, 5, 8, 11}}, tokens[] = {64, 64, 64};
  int32_t moved[3][4];
  dw_error error = {0};
  dw_defrag plan;
  dw_pool pool = pool_of(12, 16, 3, &table[0][0], 4, tokens);
  assert_ok(dw_defrag_plan(&pool, &plan, &error), &error);
  memcpy(moved, table, sizeof moved);
  assert_ok(dw_defrag_apply(&plan, &pool, &moved[0][0], &error), &error);
  assert_int_equal(plan.count, 10);  // runs of a full pool start at 0, 4 and 8, where two keep a page each
  assert_true(plan.least);
  for (int b = 0; b < 3; b++)
    for (int i = 1; i < 4; i++) assert_int_equal(moved[b][i], moved[b][i - 1] + 1);
  dw_defrag_free(&plan);
}

// ---- the planner against trying everything --------------------------------------------------------------------

enum { TINY_PAGES = 9, TINY_REQUESTS = 4, TINY_COLUMNS = 4 };

typedef struct tiny {
  int32_t table[TINY_REQUESTS][TINY_COLUMNS], tokens[TINY_REQUESTS];
  uint8_t pinned[TINY_PAGES];
  int own[TINY_REQUESTS][TINY_COLUMNS], own_count[TINY_REQUESTS], pages, requests;
} tiny;

// Requests over shuffled pages; some start with the pages of the one before, some pages are pinned.
static void tiny_make(tiny *y) {
  int order[TINY_PAGES], used = 0;
  memset(y, 0, sizeof *y);
  y->pages = 4 + below(TINY_PAGES - 3);
  y->requests = 1 + below(TINY_REQUESTS);
  for (int i = 0; i < y->pages; i++) order[i] = i;
  for (int i = y->pages; i-- > 1;) {
    int k = below(i + 1), kept = order[i];
    order[i] = order[k];
    order[k] = kept;
  }
  for (int b = 0; b < y->requests; b++) {
    int shared = b && below(4) == 0 ? below(y->tokens[b - 1] / 16 + 1) : 0, n = shared + below(TINY_COLUMNS - shared + 1);
    for (int i = 0; i < TINY_COLUMNS; i++) y->table[b][i] = -5;
    int i = 0;
    for (; i < shared; i++) y->table[b][i] = y->table[b - 1][i];
    for (; i < n && used < y->pages; i++) {
      y->own[b][y->own_count[b]++] = order[used];
      y->table[b][i] = order[used++];
    }
    y->tokens[b] = 16 * i;
  }
  if (below(3) == 0 && used < y->pages) y->pinned[order[y->pages - 1]] = 1;
}

// The most pages that any placement of the runs keeps; -1: none fits.
static int tiny_most_kept(const tiny *y, int b, unsigned taken) {
  int most = -1;
  if (b == y->requests) return 0;
  int n = y->own_count[b];
  if (!n) return tiny_most_kept(y, b + 1, taken);
  for (int at = 0; at + n <= y->pages; at++) {
    unsigned run = ((1u << n) - 1) << at;
    int kept = 0;
    if (taken & run) continue;
    for (int i = 0; i < n; i++) kept += y->own[b][i] == at + i;
    int rest = tiny_most_kept(y, b + 1, taken | run);
    if (rest >= 0 && kept + rest > most) most = kept + rest;
  }
  return most;
}

static void tiny_judge(const tiny *y, const dw_pool *pool, const dw_defrag *plan) {
  int32_t moved[TINY_REQUESTS][TINY_COLUMNS];
  int owned = 0, holds[TINY_PAGES];
  dw_error error = {0};
  for (int b = 0; b < y->requests; b++) owned += y->own_count[b];
  memcpy(moved, y->table, sizeof moved);
  assert_ok(dw_defrag_apply(plan, pool, &moved[0][0], &error), &error);
  for (int i = 0; i < y->pages; i++) holds[i] = i;
  for (int i = 0; i < plan->count; i++) {
    assert_false(y->pinned[plan->moves[i].from] || y->pinned[plan->moves[i].to]);
    holds[plan->moves[i].to] = plan->moves[i].from;
  }
  for (int b = 0; b < y->requests; b++) {
    for (int i = 0; i < y->tokens[b] / 16; i++) assert_int_equal(holds[moved[b][i]], y->table[b][i]);
    int first = y->tokens[b] / 16 - y->own_count[b];
    for (int i = 1; i < y->own_count[b]; i++) assert_int_equal(moved[b][first + i], moved[b][first + i - 1] + 1);
    for (int i = y->tokens[b] / 16; i < TINY_COLUMNS; i++) assert_int_equal(moved[b][i], -5);
  }
  unsigned taken = 0;
  for (int i = 0; i < y->pages; i++) taken |= y->pinned[i] ? 1u << i : 0;
  assert_true(plan->least);
  assert_int_equal(plan->count, owned - tiny_most_kept(y, 0, taken));
}

static void plans_have_the_fewest_moves(void **state) {
  (void)state;
  int refused = 0, idle = 0;
  for (int i = 0; i < 20000; i++) {
    tiny y;
    dw_error error = {0};
    dw_defrag plan;
    uint64_t start = seed;
    tiny_make(&y);
    dw_pool pool = pool_of(y.pages, 16, y.requests, &y.table[0][0], TINY_COLUMNS, y.tokens);
    pool.pinned = y.pinned;
    dw_status status = dw_defrag_plan(&pool, &plan, &error);
    unsigned taken = 0;
    for (int k = 0; k < y.pages; k++) taken |= y.pinned[k] ? 1u << k : 0;
    bool fits = tiny_most_kept(&y, 0, taken) >= 0;
    if (!fits) refused++, assert_refused(status, &error, "pinned");
    else if (status) fail_msg("seed %llu: %s", (unsigned long long)start, error.message);
    if (!fits) continue;
    idle += plan.count == 0;
    tiny_judge(&y, &pool, &plan);
    dw_defrag_free(&plan);
  }
  assert_true(refused > 0 && idle > 0);
}

// A pool of a server's size, in fragments: done soon, whether or not the last move could be saved.
static void a_large_pool_is_planned(void **state) {
  (void)state;
  enum { PAGES = 1 << 18, REQUESTS = 256, COLUMNS = 1000 };
  int32_t *table = malloc(sizeof *table * REQUESTS * COLUMNS), *order = malloc(sizeof *order * PAGES), tokens[REQUESTS];
  int32_t *moved = malloc(sizeof *moved * REQUESTS * COLUMNS), indptr[REQUESTS + 1];
  assert_true(table && order && moved);
  for (int i = 0; i < PAGES; i++) order[i] = i;
  for (int i = PAGES; i-- > 1;) {
    int k = below(i + 1), kept = order[i];
    order[i] = order[k];
    order[k] = kept;
  }
  for (int b = 0; b < REQUESTS; b++) tokens[b] = 1 + below(COLUMNS), indptr[b] = b * COLUMNS;
  indptr[REQUESTS] = REQUESTS * COLUMNS;
  for (int i = 0; i < REQUESTS * COLUMNS; i++) table[i] = order[i];
  dw_error error = {0};
  dw_defrag plan;
  dw_pool pool = pool_of(PAGES, 1, REQUESTS, table, 0, tokens);
  pool.indptr = indptr;
  double begin_s = dw__seconds();
  assert_ok(dw_defrag_plan(&pool, &plan, &error), &error);
  print_message("%d moves, %d teams, least %d, %.2f s\n", plan.count, plan.list.teams, plan.least, dw__seconds() - begin_s);
  memcpy(moved, table, sizeof *moved * REQUESTS * COLUMNS);
  assert_ok(dw_defrag_apply(&plan, &pool, moved, &error), &error);
  for (int b = 0; b < REQUESTS; b++)
    for (int i = 1; i < tokens[b]; i++) assert_int_equal(moved[b * COLUMNS + i], moved[b * COLUMNS + i - 1] + 1);
  dw_defrag_free(&plan);
  free(table);
  free(order);
  free(moved);
}

static void planners_without_memory(void **state) {
  (void)state;
  static const int32_t table[3][4] = {{0, 3, 6, 9}, {1, 4, 7, 10}, {2, 5, 8, 11}}, tokens[] = {64, 64, 64};
  dw_pool pool = pool_of(12, 16, 3, &table[0][0], 4, tokens);
  dw_status status = DW_OUT_OF_MEMORY;
  for (long n = 1; status; n++) {
    dw_defrag plan;
    dw__alloc_fail_after(n);
    status = dw_defrag_plan(&pool, &plan, NULL);
    dw__alloc_fail_after(0);
    if (!status) assert_int_equal(plan.count, 10);
    else assert_int_equal(status, DW_OUT_OF_MEMORY);
    dw_defrag_free(&plan);
  }
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(nvrtc_one_handle_a_context_and_target),
    cmocka_unit_test(nvrtc_a_handle_is_refused),
    cmocka_unit_test(nvrtc_every_target_compiles_without_spills_and_twice_alike),
    cmocka_unit_test(a_launch_is_one_call_of_the_driver),
    cmocka_unit_test(arguments_are_refused),
    cmocka_unit_test(d08_positions_are_depths),
    cmocka_unit_test(d09_trees_that_are_none),
    cmocka_unit_test(depths_and_masks_of_random_trees),
    cmocka_unit_test(walk_accepts_the_deepest_path),
    cmocka_unit_test(wrong_accept_lists_are_named),
    cmocka_unit_test(d14_trees_given_as_paths),
    cmocka_unit_test(wrong_moves_are_named),
    cmocka_unit_test(e01_interleaved_requests),
    cmocka_unit_test(e02_nothing_to_do),
    cmocka_unit_test(e03_shared_pages_are_full),
    cmocka_unit_test(plans_have_the_fewest_moves),
    cmocka_unit_test(a_large_pool_is_planned),
    cmocka_unit_test(planners_without_memory),
  };
  if (list_tests(argc, argv, tests, DW__COUNT(tests))) return 0;
  return cmocka_run_group_tests(tests, begin, NULL);
}
