// Every kernel family by host execution against the fp64 oracle, row by row, over a set of cases in which each pair of values of
// the axes below occurs (where it can). test_kernels quick|full FAMILY [CASE]: one family, or one case of it.
//
// What a case is depends on its number and the seed of the set alone. In the full set each kernel also runs more problems, and
// in the other orders of warps. Compiled with TEST_GQA (test_kernels_gqa) the same for GQA and its families.
#include "kernel_tests.h"

#include "rule.h"

// X(name, values): the first ones make the kernel, the others the problem.
#ifdef TEST_GQA
#define ATTENTION_AXES(X)                                                                           \
  X(FAMILY, 0, 1, 2, 3, 4, 5, 6, 7)     /* reference, split, grouped and warpsplit with tiles_of */ \
  X(HEADS, 1, 2, 4, 5, 6, 7, 8, 12, 16) /* that share a KV head */                                  \
  X(KV_HEADS, 1, 2, 3, 8)                                                                           \
  X(RECORD, 0, 1, 2, 3, 4, 5) /* index into records */                                              \
  X(TYPE, 0, 1, 2, 3)         /* index into types */                                                \
  X(PLANES, DW__PLANES_APART, DW__PLANES_BY_HEAD, DW__PLANES_IN_TOKEN, DW__PLANES_IN_PAGE)
#define ROPE_AXES(X) X(V_SCALE, 0, 1, 2, 3) /* index into v_scales */
static const float v_scales[] = {0, 3, 60, 0.01f};
static const int records[][2] = {{64, 64}, {96, 96}, {128, 128}, {192, 128}, {256, 256}, {64, 96}};
enum { FIRST_WARPSPLIT = 6 };
static const int tiles_of[] = {1, 1, 1, 2, 5, 8, 2, 5};
static const char *const family_names[] = {"plain_reference", "plain_split", "grouped1",   "grouped2",
                                           "grouped5",        "grouped8",    "warpsplit2", "warpsplit5"};
#else
#define ATTENTION_AXES(X)                                                                               \
  X(FAMILY, 0, 1, 2, 3, 4, 5, 6, 7) /* reference, split, rowsplit with 1 to 5 tiles, dimsplit with 9 */ \
  X(SETMAXNREG, 0, 1)                                                                                   \
  X(WIDE_TILE, 0, 1)                                                                                    \
  X(E4M3_MMA, 0, 1)                                                                                     \
  X(CP_ASYNC, 0, 1)                                                                                     \
  X(ACCUMULATE, 0, 1, 2)                                                                                \
  X(HEADS, 1, 4, 8, 12, 16, 20, 40, 64, 128)                                                            \
  X(RECORD, 0, 1, 2, 3, 4) /* index into records */                                                     \
  X(TYPE, 0, 1, 2, 3)      /* index into types */
#define ROPE_AXES(X) \
  X(Q_ROPE, 0, 1)    \
  X(KV_ROPE, 0, 1)
static const int records[][2] = {{576, 512}, {320, 256}, {192, 128}, {128, 128}, {96, 64}};
static const int tiles_of[] = {1, 1, 1, 2, 3, 4, 5, 9};
static const char *const family_names[] = {"reference", "split",     "rowsplit1", "rowsplit2",
                                           "rowsplit3", "rowsplit4", "rowsplit5", "dimsplit9"};
#endif
// Of KV in e4m3: with 0.004 many elements are 448, with 60 most are subnormal.
static const float kv_scales[] = {0, 0.25f, 0.004f, 60};
enum { FAMILIES = sizeof tiles_of / sizeof tiles_of[0] };
#define AXES(X)                                                                                                          \
  ATTENTION_AXES(X)                                                                                                      \
  X(COMBINE, DW_COMBINE_FEW, DW_COMBINE_MANY)                                                                            \
  X(SPLITS, 1, 2, 4, 5, 6, 8, 12, 16, 24, 96)                                                                            \
  X(CALL, DW_CALL_ANY, DW_CALL_TABLE)                                                                                    \
  X(FEATURES, 0, 1) /* code for what the call has, or for all there is */                                                \
  X(WIDTH, 1, 4, 9, 17, 31, 32, 33, 63, 64, 65, 128)                                                                     \
  X(PAGE, 1, 16, 48, 64)                                                                                                 \
  X(OUT, DW_BF16, DW_F16, DW_F32)                                                                                        \
  X(PREFIX, 0, 1, 15, 16, 17, 63, 64, 65, 300)                                                                           \
  X(BATCH, ONE, MIXED, RAGGED, EMPTY_FIRST, MANY, PADDED, EQUAL)                                                         \
  X(ADDRESS, TABLE, CSR32, CSR64, SLOTS32, SLOTS64)                                                                      \
  X(LENGTHS, 0, 1) /* include the drafts */                                                                              \
  X(NARROW, 0, 1)  /* the call is half as wide as the shape */                                                           \
  X(MASK, CHAIN, PARENTS, DEAD, BITS, ANY_BITS, EMPTY_BITS, BYTES, ANY_BYTES, ONE_BYTES, FULL, ANY_FULL, BIAS, ANY_BIAS, \
    ONE_BIAS)                                                                                                            \
  X(ELSEWHERE, 0, 1) /* drafts on another rank */                                                                        \
  ROPE_AXES(X)                                                                                                           \
  X(KV_SCALE, 0, 1, 2, 3) /* index into kv_scales */                                                                     \
  X(WINDOW, 0, 1, 16, 40, 250)                                                                                           \
  X(POSITIONS, 0, 1, 2)                                                                                                  \
  X(CAP, 0, 2, 30)                                                                                                       \
  X(SINKS, 0, 1)                                                                                                         \
  X(TREE, DW__TREE_CHAIN, DW__TREE_RANDOM, DW__TREE_STAR)                                                                \
  X(STRIDED, 0, 1)                                                                                                       \
  X(LSE, 0, 1, 2)              /* base 2, base e, none */                                                                \
  X(SPLIT, 0, 1, 16, 64, 1024) /* AUTO, AUTO in loose bounds, FIXED tokens */                                            \
  X(SMS, 1, 7, 132, 188)                                                                                                 \
  X(ORDER, DW_HOST_FORWARD, DW_HOST_REVERSE, DW_HOST_RANDOM)                                                             \
  X(SCALE, 1, 3) /* of q */                                                                                              \
  X(OVERLAP, 0, 1)                                                                                                       \
  X(SHUFFLE, 0, 1)

enum { ONE, MIXED, RAGGED, EMPTY_FIRST, MANY, PADDED, EQUAL };
enum { TABLE, CSR32, CSR64, SLOTS32, SLOTS64 };
enum {
  CHAIN,
  PARENTS,
  DEAD,
  BITS,
  ANY_BITS,
  EMPTY_BITS,
  BYTES,
  ANY_BYTES,
  ONE_BYTES,
  FULL,
  ANY_FULL,
  BIAS,
  ANY_BIAS,
  ONE_BIAS
};
static const dw_dtype types[][2] = {{DW_BF16, DW_BF16}, {DW_F16, DW_F16}, {DW_BF16, DW_E4M3}, {DW_F16, DW_E4M3}};  // q, KV

#define X(name, ...) name##_AXIS,
enum { AXES(X) AXIS_COUNT };
#undef X
enum { PROBLEM_AXIS = PREFIX_AXIS, VALUES_MOST = 14, BATCH_MOST = 34, CASES_MOST = 600 };

typedef struct axis {
  const char *name;
  int count, values[VALUES_MOST];
} axis;
static const axis axes[] = {
#define X(name, ...) {#name, sizeof((int[]){__VA_ARGS__}) / sizeof(int), {__VA_ARGS__}},
  AXES(X)
#undef X
};

// A case: the index of a value for each axis.
typedef struct choice {
  int at[AXIS_COUNT];
} choice;
static int value(const choice *c, int which) { return axes[which].values[c->at[which]]; }
#define GET(c, name) value(c, name##_AXIS)

static void set(choice *c, int which, int wanted) {
  for (int i = 0; i < axes[which].count; i++)
    if (axes[which].values[i] == wanted) c->at[which] = i;
}
#define SET(c, name, wanted) set(c, name##_AXIS, wanted)

// ---- what a choice means --------------------------------------------------------------------------------------

static dw_shape shape_of(const choice *c) {
#ifdef TEST_GQA
  const dw_attention attention = DW_GQA;
  const int kv_heads = GET(c, KV_HEADS);
#else
  const dw_attention attention = DW_MLA;
  const int kv_heads = 1;
#endif
  return (dw_shape){.attention = attention,
                    .heads = GET(c, HEADS) * kv_heads,
                    .kv_heads = kv_heads,
                    .width = GET(c, WIDTH),
                    .head_dim_qk = records[GET(c, RECORD)][0],
                    .head_dim_v = records[GET(c, RECORD)][1],
                    .page = GET(c, PAGE),
                    .q = types[GET(c, TYPE)][0],
                    .kv = types[GET(c, TYPE)][1],
                    .out = (dw_dtype)GET(c, OUT),
                    .target = 120};
}

#ifndef TEST_GQA
static bool is_dimsplit(const choice *c) { return GET(c, FAMILY) > 6; }
#endif

static dw_variant variant_of(const choice *c) {
  int family = GET(c, FAMILY);
  dw_variant v = {.family = family, .n_tiles = tiles_of[family], .combine_splits = 1};
  v.call = GET(c, CALL);
#ifdef TEST_GQA
  if (family > DW_SPLIT) v.family = family < FIRST_WARPSPLIT ? DW_GROUPED : DW_WARPSPLIT;
#else
  if (family > DW_SPLIT) v.family = is_dimsplit(c) ? DW_DIMSPLIT : DW_ROWSPLIT;
  v.setmaxnreg = GET(c, SETMAXNREG);
  v.wide_tile = GET(c, WIDE_TILE);
  v.e4m3_mma = GET(c, E4M3_MMA);
  v.cp_async = GET(c, CP_ASYNC);
  v.accumulate = GET(c, ACCUMULATE);
#endif
  if (family == DW_REFERENCE) return v;
  v.combine = GET(c, COMBINE);
  v.combine_splits = GET(c, SPLITS);
  return v;
}

// Requests of a case: prefixes, rows (ragged: of their own), and which of them have a length of 0 though they have rows.
typedef struct requests {
  int batch, prefix[BATCH_MOST], rows[BATCH_MOST];
  bool ragged;
  int padded;  // index, or -1
} requests;

static void add(requests *r, int prefix, int rows) {
  r->prefix[r->batch] = prefix;
  r->rows[r->batch++] = rows;
}

static int call_width(const choice *c) { return GET(c, NARROW) ? (GET(c, WIDTH) + 1) / 2 : GET(c, WIDTH); }

static requests requests_of(const choice *c) {
  int p = GET(c, PREFIX), w = call_width(c), kind = GET(c, BATCH);
  requests r = {.ragged = kind == RAGGED || kind == EMPTY_FIRST, .padded = kind == PADDED ? 1 : -1};
  switch (kind) {
    case MIXED: add(&r, p, w), add(&r, p / 2 + 1, w), add(&r, p + 17, w); break;
    case RAGGED: add(&r, p, w), add(&r, 0, 0), add(&r, p + 3, 1), add(&r, 40, (w + 1) / 2), add(&r, 1, w - 1); break;
    case EMPTY_FIRST: add(&r, 0, 0), add(&r, p, w), add(&r, 0, w); break;
    case MANY:
      for (int b = 0; b < BATCH_MOST; b++) add(&r, b == 5 ? p : b * 7 % 40, w);
      break;
    case PADDED: add(&r, p, w), add(&r, 0, w), add(&r, p + 1, w); break;
    case EQUAL: add(&r, p, w), add(&r, p, w); break;
    default: add(&r, p, w);
  }
  return r;
}

static double cost_of(const choice *c) {  // row-tokens of the widest record
  requests r = requests_of(c);
  double sum = 0;
  for (int b = 0; b < r.batch; b++) sum += (double)r.rows[b] * (r.prefix[b] + r.rows[b] + 30);
  return sum * shape_of(c).heads * records[GET(c, RECORD)][0] / 576;
}

// Values that mean nothing beside others take one form. False: no such case.
static bool settle(choice *c, double most_cost) {
#ifndef TEST_GQA
  if (GET(c, FAMILY) < 2) SET(c, SETMAXNREG, 0), SET(c, WIDE_TILE, 0), SET(c, CP_ASYNC, 0);
  if (is_dimsplit(c)) SET(c, SETMAXNREG, 1), SET(c, WIDE_TILE, 0);
  if (GET(c, SETMAXNREG)) SET(c, CP_ASYNC, 0);
  if (types[GET(c, TYPE)][1] != DW_E4M3) SET(c, WIDE_TILE, 0);
  if (!GET(c, WIDE_TILE)) SET(c, E4M3_MMA, 0);
  if (!GET(c, WIDE_TILE) || !GET(c, SETMAXNREG) || GET(c, E4M3_MMA) || tiles_of[GET(c, FAMILY)] < 3) SET(c, ACCUMULATE, 0);
  if (records[GET(c, RECORD)][0] == records[GET(c, RECORD)][1]) SET(c, Q_ROPE, 0), SET(c, KV_ROPE, 0);
#else
  if (types[GET(c, TYPE)][1] != DW_E4M3) SET(c, V_SCALE, 0);
#endif
  if (types[GET(c, TYPE)][1] != DW_E4M3) SET(c, KV_SCALE, 0);
  if (GET(c, FAMILY) == 0) SET(c, COMBINE, DW_COMBINE_FEW), SET(c, SPLITS, 1);
  if (GET(c, CALL) == DW_CALL_TABLE) {
    SET(c, ADDRESS, TABLE), SET(c, LENGTHS, 1);
    if (GET(c, BATCH) == RAGGED) SET(c, BATCH, MIXED);
    if (GET(c, BATCH) == EMPTY_FIRST) SET(c, BATCH, EQUAL);
  }
  const dw_variant variant = variant_of(c);
  if (GET(c, SPLIT) > 1 && !dw__variant_fixed_ok(&variant, GET(c, SPLIT), NULL)) SET(c, SPLIT, 0);
  if (GET(c, CALL) == DW_CALL_TABLE) SET(c, ELSEWHERE, 0);
  if (GET(c, ELSEWHERE)) {
    SET(c, LENGTHS, 0), SET(c, WINDOW, 0);
    if (GET(c, ADDRESS) >= SLOTS32) SET(c, ADDRESS, CSR32);
  }
  if (GET(c, ADDRESS) >= SLOTS32) SET(c, LENGTHS, 0);
  dw_shape shape = shape_of(c);
  return cost_of(c) <= most_cost && dw_shape_check(&shape, NULL) == DW_OK &&
         dw_variant_applicable(&shape, &variant, NULL) == DW_OK;
}

// ---- the set of cases -----------------------------------------------------------------------------------------

typedef struct cover {
  bool met[AXIS_COUNT * VALUES_MOST][AXIS_COUNT * VALUES_MOST];
  choice cases[CASES_MOST];
  int count;
  long given_up;
} cover;

static bool *met(cover *all, int a, int i, int b, int j) { return &all->met[a * VALUES_MOST + i][b * VALUES_MOST + j]; }

static int new_pairs(cover *all, const choice *c, bool mark) {
  int count = 0;
  for (int a = 0; a < AXIS_COUNT; a++)
    for (int b = a + 1; b < AXIS_COUNT; b++) {
      bool *one = met(all, a, c->at[a], b, c->at[b]);
      count += !*one;
      *one |= mark;
    }
  return count;
}

static choice random_choice(uint64_t *state) {
  choice c;
  for (int a = 0; a < AXIS_COUNT; a++) c.at[a] = dw__random_below(state, axes[a].count);
  return c;
}

// Of many random cases with this pair, the one that meets most new ones.
static void cover_pair(cover *all, uint64_t *state, double most_cost, int a, int i, int b, int j) {
  choice best;
  int best_score = 0;
  for (int tries = 0; tries < 4000 && (tries < 1500 || !best_score); tries++) {
    choice c = random_choice(state);
    c.at[a] = i, c.at[b] = j;
    if (!settle(&c, most_cost) || c.at[a] != i || c.at[b] != j) continue;
    int score = new_pairs(all, &c, false);
    if (score > best_score) best_score = score, best = c;
  }
  if (!best_score) {
    all->given_up++;
    return;
  }
  assert_true(all->count < CASES_MOST);
  new_pairs(all, &best, true);
  all->cases[all->count++] = best;
}

static cover *make_cover(uint64_t seed, double most_cost) {
  cover *all = calloc(1, sizeof *all);
  assert_non_null(all);
  for (int a = 0; a < AXIS_COUNT; a++)
    for (int b = a + 1; b < AXIS_COUNT; b++)
      for (int i = 0; i < axes[a].count; i++)
        for (int j = 0; j < axes[b].count; j++)
          if (!*met(all, a, i, b, j)) cover_pair(all, &seed, most_cost, a, i, b, j);
  return all;
}

// ---- running a case -------------------------------------------------------------------------------------------

static void describe(const char *set_name, const choice *c, int index, uint64_t seed) {
  char shape_text[DW_TEXT_MAX], variant_text[DW_TEXT_MAX], problem_text[1024];
  dw_shape shape = shape_of(c);
  dw_variant variant = variant_of(c);
  dw_shape_print(&shape, shape_text, sizeof shape_text);
  dw_variant_print(&variant, variant_text, sizeof variant_text);
  size_t n = 0;
  for (int a = PROBLEM_AXIS; a < AXIS_COUNT; a++)
    n += (size_t)snprintf(problem_text + n, sizeof problem_text - n, " %s=%d", axes[a].name, value(c, a));
  kt_note("%s case %d, seed %llu:\n  %s\n  %s\n %s", set_name, index, (unsigned long long)seed, shape_text, variant_text,
          problem_text);
}

static dw__problem *problem_of(const choice *c, const requests *r, uint64_t seed) {
  static const dw_mask kinds[] = {
    [CHAIN] = DW_MASK_NONE,        [PARENTS] = DW_MASK_PARENTS,      [DEAD] = DW_MASK_PARENTS,
    [BITS] = DW_MASK_BITS,         [ANY_BITS] = DW_MASK_BITS,        [EMPTY_BITS] = DW_MASK_BITS,
    [BYTES] = DW_MASK_BYTES_QLEN,  [ANY_BYTES] = DW_MASK_BYTES_QLEN, [ONE_BYTES] = DW_MASK_BYTES_QLEN,
    [FULL] = DW_MASK_BYTES_FULL,   [ANY_FULL] = DW_MASK_BYTES_FULL,  [BIAS] = DW_MASK_BIAS_F32,
    [ANY_BIAS] = DW_MASK_BIAS_F32, [ONE_BIAS] = DW_MASK_BIAS_F32,
  };
  int mask = GET(c, MASK), address = GET(c, ADDRESS);
  dw_shape shape = shape_of(c);
  dw__problem_spec spec = kt_spec(&shape, r->batch, r->prefix, r->ragged ? r->rows : NULL);
  spec.width = GET(c, NARROW) ? call_width(c) : 0;
  spec.mask_kind = kinds[mask];
  spec.dead_nodes = mask == DEAD;
  spec.one_tree = spec.mask_shared = mask == ONE_BYTES || mask == ONE_BIAS;
  spec.drafts_elsewhere = GET(c, ELSEWHERE);
#ifdef TEST_GQA
  spec.planes = (dw__planes)GET(c, PLANES);
  spec.v_scale = v_scales[GET(c, V_SCALE)];
#else
  spec.q_rope = GET(c, Q_ROPE);
  spec.kv_rope = GET(c, KV_ROPE);
#endif
  spec.kv_scale = kv_scales[GET(c, KV_SCALE)];
  spec.window = GET(c, WINDOW);
  spec.positions = GET(c, POSITIONS);
  spec.soft_cap = (float)GET(c, CAP);
  spec.sinks = GET(c, SINKS);
  spec.tree = (dw__tree_kind)GET(c, TREE);
  spec.addressing = address == TABLE ? DW_BLOCK_TABLE : DW_CSR;
  spec.index64 = address == CSR64 || address == SLOTS64;
  spec.draft_slots = address >= SLOTS32;
  spec.lengths_include_drafts = GET(c, LENGTHS);
  spec.strided = GET(c, STRIDED);
  spec.shuffle = GET(c, SHUFFLE);
  spec.q_scale = (float)GET(c, SCALE);
  spec.lse_base_e = GET(c, LSE) == 1;
  spec.seed = seed;
  dw__problem *problem = kt_problem(&spec);
  bool any = mask == ANY_BITS || mask == EMPTY_BITS || mask == ANY_BYTES || mask == ANY_FULL || mask == ANY_BIAS;
  if (any && !spec.drafts_elsewhere) kt_random_bits(problem, seed, mask == ANY_BITS || mask == ANY_BYTES ? 0 : 3);
  if (r->padded >= 0 && spec.lengths_include_drafts) kt_lengths(problem)[r->padded] = 0;
  if (GET(c, LSE) == 2) problem->args.lse = NULL;
  problem->args.overlap_prologue = GET(c, OVERLAP);
  return problem;
}

static dw_bounds bounds_of(const choice *c, const dw__problem *problem) {
  dw_bounds bounds = kt_bounds(problem);
  int split = GET(c, SPLIT);
  bounds.sm_count = GET(c, SMS);
  bounds.call = (dw_call)GET(c, CALL);
  if (split == 1) bounds.batch += 3, bounds.kv_len *= 8;
  if (split > 1) bounds.split_tokens = split;
  if (split == 0) bounds.total_q = problem->total_q;
  return bounds;
}

static const kt_kernel *kernel_of(const choice *c, const dw__problem *problem) {
  dw_variant variant = variant_of(c);
  const dw_shape *shape = &problem->spec.shape;
  bool parts = shape->attention == DW_MLA && shape->head_dim_qk > shape->head_dim_v;
  int all = DW_WITH_WINDOW | DW_WITH_SOFT_CAP | (parts ? DW_WITH_Q_ROPE | DW_WITH_KV_ROPE : 0);
  dw__variant_add_features(&variant, GET(c, FEATURES) ? all : dw__args_features(&problem->args));
  return kt_kernel_get(&problem->spec.shape, &variant);
}

static void run_case(const choice *c, uint64_t seed, bool all_orders) {
  requests r = requests_of(c);
  dw__problem *problem = problem_of(c, &r, seed);
  const kt_kernel *kernel = kernel_of(c, problem);
  dw_bounds bounds = bounds_of(c, problem);
#ifndef TEST_GQA
  problem->wide_bound = GET(c, E4M3_MMA) || GET(c, ACCUMULATE) == DW_ACCUMULATE_FP16;
#endif
  kt_solve(problem);
  kt_run(kernel, &bounds, problem, (dw_host_order)GET(c, ORDER), seed);
  kt_check(problem);
  if (all_orders) {
    kt_result first = kt_take(problem);
    for (int order = 0; order < 3; order++) {
      kt_run(kernel, &bounds, problem, (dw_host_order)order, seed + 1);
      kt_result other = kt_take(problem);
      kt_assert_same(&first, &other);
      kt_drop(&other);
    }
    kt_drop(&first);
  }
  dw__problem_free(problem);
}

// ---- sets -----------------------------------------------------------------------------------------------------

typedef struct plan_of_set {
  const char *name;
  uint64_t seed;
  double most_cost;
  int more_problems;  // for each kernel
} plan_of_set;
static const plan_of_set quick_set = {"quick", 20261129, 25e3, 0}, full_set = {"full", 5, 1e6, 1};

static const plan_of_set *chosen_set;
static int chosen_case = -1;

// Another problem for the kernel of a case.
static choice vary(const choice *c, uint64_t *state, double most_cost) {
  for (int tries = 0; tries < 1000; tries++) {
    choice other = random_choice(state);
    memcpy(other.at, c->at, PROBLEM_AXIS * sizeof other.at[0]);
    if (settle(&other, most_cost)) return other;
  }
  return *c;
}

static void run_family(void **state) {
  const plan_of_set *plan = chosen_set;
  int family = *(const int *)*state;
  cover *all = make_cover(plan->seed, plan->most_cost);
  int ran = 0;
  for (int i = 0; i < all->count; i++) {
    const choice *c = &all->cases[i];
    if (GET(c, FAMILY) != family || (chosen_case >= 0 && chosen_case != i)) continue;
    uint64_t seed = plan->seed * 1000 + (uint64_t)i, dice = seed;
    describe(plan->name, c, i, seed);
    run_case(c, seed, plan->more_problems && cost_of(c) < 1e5);
    ran++;
    for (int k = 0; k < plan->more_problems; k++) {
      choice other = vary(c, &dice, 1e5);
      describe(plan->name, &other, i, seed + 500 + (uint64_t)k);
      if (cost_of(&other) <= 1e5) run_case(&other, seed + 500 + (uint64_t)k, false);
    }
  }
  print_message("%d of %d kernels; %ld pairs of values cannot be\n", ran, all->count, all->given_up);
  free(all);
  assert_true(ran > 0);
}

int main(int argc, char **argv) {
  static int families[FAMILIES];
  if (kt_skip()) return 77;
  struct CMUnitTest tests[FAMILIES];
  for (int i = 0; i < FAMILIES; i++) {
    families[i] = i;
    tests[i] = (struct CMUnitTest)cmocka_unit_test_prestate(run_family, &families[i]);
    tests[i].name = family_names[i];
  }
  chosen_set = argc > 1 && strcmp(argv[1], "full") == 0 ? &full_set : &quick_set;
  if (argc > 2) cmocka_set_test_filter(argv[2]);
  if (argc > 3) chosen_case = atoi(argv[3]);
  return cmocka_run_group_tests(tests, kt_setup, kt_teardown);
}
