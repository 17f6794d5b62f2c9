// Checked builds by host execution: in sound calls they give the bits of unchecked ones and report nothing; a planted fault of each
// kind masks its requests, is counted where it is, and changes no other row. Nothing outside an array is read: arrays end at guard
// pages, and the kernels may touch listed buffers alone.
// test_kernel_checked [NAME]
#include <limits.h>

#include "kernel_tests.h"
#include "list_tests.h"

#define BATCH_MOST 128

// A kernel and the same unchecked.
typedef struct pair {
  const kt_kernel *checked, *plain;
} pair;

static pair pair_of(const char *shape, const char *variant) {
  char text[256];
  snprintf(text, sizeof text, "%s,checked=1", variant);
  return (pair){kt_kernel_of(shape, text), kt_kernel_of(shape, variant)};
}

// ---- what is expected -----------------------------------------------------------------------------------------

typedef struct expected {
  bool masked[BATCH_MOST];
  uint32_t report[DW_REPORT_WORDS];
} expected;

static void expect(expected *e, dw_fault kind, int count, int request, int place, int found) {
  uint32_t *words = e->report + kind * DW_FAULT_WORDS;
  // Blocks run in the order of requests.
  if (!words[0] || (uint32_t)request < words[1])
    words[1] = (uint32_t)request, words[2] = (uint32_t)place, words[3] = (uint32_t)found;
  words[0] += (uint32_t)count;
  e->masked[request] = true;
}

static void expect_requests(expected *e) {
  uint32_t *words = e->report;
  for (int b = BATCH_MOST; b-- > 0;)
    if (e->masked[b]) words[0]++, words[1] = (uint32_t)b;
}

static void assert_report(const uint32_t *found, const expected *e) {
  static const char *const names[] = {
#define X(name, array, sound) #name,
    DW_FAULT_MAP(X)
#undef X
  };
  static const char *const words[] = {"count", "request", "place", "found"};
  char text[128];
  for (int i = 0; i < DW_REPORT_WORDS; i++) {
    if (found[i] == e->report[i]) continue;
    snprintf(text, sizeof text, "report: %s %s is %d, expected %d", names[i / 4], words[i % 4], (int32_t)found[i],
             (int32_t)e->report[i]);
    kt_fail(text, NULL);
  }
  dw_error error = {0};
  assert_int_equal(dw_report_check(found, &error), e->report[0] ? DW_BAD_ARGUMENT : DW_OK);
  dw_error_clear(&error);
}

// ---- runs -----------------------------------------------------------------------------------------------------

// With a report forward, so that the request counted first is known.
static kt_result run(const kt_kernel *kernel, const dw_bounds *bounds, dw__problem *problem, uint32_t *report, uint64_t seed) {
  problem->args.report = report;
  kt_run(kernel, bounds, problem, report ? DW_HOST_FORWARD : DW_HOST_RANDOM, seed);
  problem->args.report = NULL;
  return kt_take(problem);
}

static void clear_answer(dw__problem *problem, int row) {
  size_t heads = (size_t)problem->spec.shape.heads, v = (size_t)problem->spec.shape.head_dim_v, first = (size_t)row * heads;
  memset(problem->out64 + first * v, 0, heads * v * sizeof(double));
  for (size_t i = first; i < first + heads; i++) problem->lse64[i] = -INFINITY;
}

static void assert_clear(const kt_result *r, int row) {
  size_t heads = (size_t)r->heads, bytes = heads * r->vector_bytes;
  char text[64];
  snprintf(text, sizeof text, "row %d of a masked request is not 0 with lse -inf", row);
  for (size_t i = 0; i < bytes; i++)
    if (r->out[(size_t)row * bytes + i]) kt_fail(text, NULL);
  for (size_t h = 0; h < heads; h++)
    if (!(isinf(r->lse[(size_t)row * heads + h]) && r->lse[(size_t)row * heads + h] < 0)) kt_fail(text, NULL);
}

// A sound call: same bits, nothing reported, every row right. The rows' bounds are worked out here, while the arguments are sound.
static void check_sound(pair kernels, const dw_bounds *bounds, dw__problem *problem, uint64_t seed) {
  uint32_t report[DW_REPORT_WORDS] = {0};
  const expected nothing = {.report = {0}};
  kt_result plain = run(kernels.plain, bounds, problem, NULL, seed);
  kt_result checked = run(kernels.checked, bounds, problem, report, seed);
  kt_assert_same(&plain, &checked);
  assert_report(report, &nothing);
  kt_check(problem);
  kt_drop(&plain);
  kt_drop(&checked);
}

// The unchecked run that a call with these requests masked has to agree with. Where a range's tokens are FIXED, a request's bits do
// not depend on the others. In AUTO the masked ones have no tokens there.
static kt_result run_without(pair kernels, const dw_bounds *bounds, dw__problem *problem, const expected *e, uint64_t seed) {
  int32_t *lengths = kt_lengths(problem), saved[BATCH_MOST];
  int batch = problem->args.batch;
  memcpy(saved, lengths, (size_t)batch * sizeof *saved);
  if (!bounds->split_tokens)
    for (int b = 0; b < batch; b++) lengths[b] = e->masked[b] ? 0 : saved[b];
  kt_result result = run(kernels.plain, bounds, problem, NULL, seed);
  memcpy(lengths, saved, (size_t)batch * sizeof *saved);
  return result;
}

// The call has its faults; `without` is its twin.
static void check_masked(pair kernels, const dw_bounds *bounds, dw__problem *problem, expected *e, const kt_result *without,
                         uint64_t seed) {
  uint32_t report[DW_REPORT_WORDS] = {0};
  expect_requests(e);
  kt_result result = run(kernels.checked, bounds, problem, report, seed);
  assert_report(report, e);
  for (int b = 0, row = 0; b < problem->args.batch; row += problem->rows[b++]) {
    if (!e->masked[b]) kt_assert_same_rows(&result, row, without, row, problem->rows[b]);
    for (int i = 0; i < problem->rows[b] && e->masked[b]; i++) {
      assert_clear(&result, row + i);
      clear_answer(problem, row + i);
    }
  }
  kt_check(problem);
  // Without a report the same; and a report is added to.
  kt_result again = run(kernels.checked, bounds, problem, NULL, seed);
  kt_assert_same(&result, &again);
  kt_drop(&again);
  again = run(kernels.checked, bounds, problem, report, seed + 1);
  for (int kind = 0; kind < DW_FAULTS; kind++) e->report[kind * DW_FAULT_WORDS] *= 2;
  assert_report(report, e);
  kt_drop(&again);
  kt_drop(&result);
}

// ---- plants ---------------------------------------------------------------------------------------------------
// Each puts a fault of its kind into one request, or says that this problem has no place for it.

typedef struct plant_at {
  dw__problem *problem;
  dw_bounds *bounds;
  int request;
  uint64_t *dice;
  expected *e;
} plant_at;

#define WRITE(type, pointer) ((type *)(uintptr_t)(pointer))

static dw__request request_of(const plant_at *at) {
  return dw__oracle_request(&at->problem->spec.shape, &at->problem->args, at->request);
}

static int pick_page(const plant_at *at, int64_t limit) {
  const int64_t choice[] = {limit, limit + dw__random_below(at->dice, 1000), INT_MAX, -1, -5, INT_MIN};
  return (int)choice[dw__random_below(at->dice, 6)];
}

static bool plant_length(plant_at *at) {
  const dw_args *a = &at->problem->args;
  dw__request r = request_of(at);
  bool drafts = !a->lengths_include_drafts && !a->drafts_elsewhere;
  const int choice[] = {-1, INT_MIN, INT_MAX, at->bounds->kv_len - (drafts ? r.rows : 0) + 1};
  int length = choice[dw__random_below(at->dice, 4)];
  kt_lengths(at->problem)[at->request] = length;
  expect(at->e, DW_FAULT_LENGTH, 1, at->request, at->bounds->kv_len, length);
  return true;
}

// A length within the bounds, but longer than the table has room for.
static bool plant_table(plant_at *at) {
  const dw_args *a = &at->problem->args;
  dw__request r = request_of(at);
  bool drafts = !a->lengths_include_drafts && !a->drafts_elsewhere;
  int page = at->problem->spec.shape.page, there, named;
  if (a->addressing == DW_BLOCK_TABLE) {
    there = a->table_columns * page;
    named = there + 1 + dw__random_below(at->dice, 40);
    kt_lengths(at->problem)[at->request] = named - (drafts ? r.rows : 0);
  } else {
    there = a->kv_indptr[at->request + 1] - a->kv_indptr[at->request];
    named = there + 1 + dw__random_below(at->dice, 40);
    kt_lengths(at->problem)[at->request] = named - (drafts && !a->draft_slots ? r.rows : 0);
  }
  if (kt_lengths(at->problem)[at->request] < 0 || named + r.rows > at->bounds->kv_len) return false;
  expect(at->e, DW_FAULT_TABLE, 1, at->request, named, there);
  return true;
}

// Up to three places of `count`, ascending.
static int pick_places(uint64_t *dice, int count, int places[3]) {
  int wanted = 1 + dw__random_below(dice, 3), picked = 0;
  for (int i = 0; i < count && picked < wanted; i++)
    if (dw__random_below(dice, count - i) < wanted - picked) places[picked++] = i;
  return picked;
}

static int put_slot(plant_at *at, const void *list, int64_t i, int64_t limit) {
  const dw_args *a = &at->problem->args;
  if (!a->index64) return WRITE(int32_t, list)[i] = pick_page(at, limit);
  const int64_t choice[] = {INT64_MAX, INT64_MIN, -1, limit,
                            (1LL << 32) + ((const int64_t *)list)[i]};  // its low half is right
  int64_t slot = choice[dw__random_below(at->dice, 5)];
  WRITE(int64_t, list)[i] = slot;
  return slot > INT_MAX ? INT_MAX : slot < INT_MIN ? INT_MIN : (int)slot;
}

static bool plant_page(plant_at *at) {
  const dw_args *a = &at->problem->args;
  dw__request r = request_of(at);
  int page = at->problem->spec.shape.page, places[3], found = 0;
  bool table = a->addressing == DW_BLOCK_TABLE;
  int named = a->draft_slots ? r.prefix : r.tokens, count = table ? (named + page - 1) / page : named;
  int picked = pick_places(at->dice, count, places);
  for (int i = picked; i-- > 0;) {
    if (table) {
      int64_t stride = a->block_table_stride ? a->block_table_stride : a->table_columns;
      found = WRITE(int32_t, a->block_table)[at->request * stride + places[i]] = pick_page(at, a->kv_pages);
    } else {
      found = put_slot(at, a->kv_indices, a->kv_indptr[at->request] + places[i], (int64_t)a->kv_pages * page);
    }
  }
  if (picked) expect(at->e, DW_FAULT_PAGE, picked, at->request, places[0], found);
  return picked > 0;
}

static bool plant_draft_slot(plant_at *at) {
  const dw_args *a = &at->problem->args;
  dw__request r = request_of(at);
  int places[3], found = 0, picked = a->draft_slots ? pick_places(at->dice, r.rows, places) : 0;
  for (int i = picked; i-- > 0;)
    found = put_slot(at, a->draft_slots, r.first_row + places[i], (int64_t)a->kv_pages * at->problem->spec.shape.page);
  if (picked) expect(at->e, DW_FAULT_DRAFT_SLOT, picked, at->request, places[0], found);
  return picked > 0;
}

// O-d09's kinds in turn, one or more nodes.
static bool plant_parent(plant_at *at) {
  const dw_args *a = &at->problem->args;
  dw__request r = request_of(at);
  if (a->mask_kind != DW_MASK_PARENTS || a->drafts_elsewhere || !r.rows) return false;
  int32_t *parents = WRITE(int32_t, a->mask) + r.first_row;
  int places[3], picked = pick_places(at->dice, r.rows, places);
  for (int i = 0; i < picked; i++) {
    const int node = places[i], choice[] = {node, node + 1, -3, 1000, INT_MAX, INT_MIN};
    parents[node] = choice[dw__random_below(at->dice, 6)];
  }
  expect(at->e, DW_FAULT_PARENT, picked, at->request, places[0], parents[places[0]]);
  return true;
}

static bool plant_mask_size(plant_at *at) {
  dw_args *a = &at->problem->args;
  dw__request r = request_of(at);
  bool last = at->request == a->batch - 1;
  if (a->mask_kind != DW_MASK_BYTES_FULL || a->drafts_elsewhere || !last || !r.rows) return false;
  int need = r.rows * (r.prefix + r.rows);
  int64_t *indptr = WRITE(int64_t, a->mask_indptr);
  int less = 1 + dw__random_below(at->dice, need), there = need - less;
  // What a host can see is refused before.
  const int64_t least = (int64_t)a->total_q * (a->qo_indptr ? 1 : a->width ? a->width : at->problem->spec.shape.width);
  const int how = dw__random_below(at->dice, a->mask_size - less >= least ? 3 : 2);
  switch (how) {
    case 0: indptr[a->batch] -= less; break;
    case 1: indptr[a->batch] = INT64_MIN, there = -1; break;
    default: a->mask_size -= less;
  }
  expect(at->e, DW_FAULT_MASK_SIZE, 1, at->request, need, there);
  return true;
}

static bool plant_bias(plant_at *at) {
  const dw_args *a = &at->problem->args;
  dw__request r = request_of(at);
  if (a->mask_kind != DW_MASK_BIAS_F32 || a->mask_shared || a->drafts_elsewhere || !r.rows) return false;
  const int width = a->width ? a->width : at->problem->spec.shape.width;
  const int64_t row = a->mask_row_stride ? a->mask_row_stride : width;
  float *mask = WRITE(float, a->mask) + at->request * (a->mask_request_stride ? a->mask_request_stride : width * row);
  const float choice[] = {0.5f, -1e30f, 1e-40f, INFINITY, NAN, -NAN}, value = choice[dw__random_below(at->dice, 6)];
  int places[3], picked = pick_places(at->dice, r.rows * r.rows, places), bits;
  for (int i = 0; i < picked; i++) mask[places[i] / r.rows * row + places[i] % r.rows] = value;
  memcpy(&bits, &value, sizeof bits);
  expect(at->e, DW_FAULT_BIAS, picked, at->request, places[0] / r.rows, bits);
  return true;
}

static bool plant_position(plant_at *at) {
  const dw_args *a = &at->problem->args;
  dw__request r = request_of(at);
  int places[3], picked = a->positions && a->window ? pick_places(at->dice, r.rows, places) : 0, count = 0, first = -1;
  for (int i = 0; i < picked; i++) {
    int32_t *position = &WRITE(int32_t, a->positions)[r.first_row + places[i]];
    *position = dw__random_below(at->dice, 2) ? r.prefix - 1 : INT_MIN;
    if (a->mask_kind == DW_MASK_PARENTS && kt_parents(at->problem)[r.first_row + places[i]] == -2)
      continue;  // dead: not looked at
    if (count++ == 0) first = i;
  }
  if (count) expect(at->e, DW_FAULT_POSITION, count, at->request, places[first], a->positions[r.first_row + places[first]]);
  return count > 0;
}

// An entry of qo_indptr in the middle: the two requests that share it are masked.
static bool plant_rows(plant_at *at) {
  const dw_args *a = &at->problem->args;
  int b = at->request, next = b + 1, most = at->problem->spec.shape.width;
  if (!a->qo_indptr || next >= a->batch || at->e->masked[next]) return false;
  int32_t *entry = &WRITE(int32_t, a->qo_indptr)[next];
  int first = a->qo_indptr[b], end = a->qo_indptr[next + 1];
  const int choice[] = {-1, INT_MIN, a->total_q + 1, INT_MAX};
  int value = choice[dw__random_below(at->dice, 4)];
  // Also a value between, where both sides get too many rows or run backwards.
  if (dw__random_below(at->dice, 2) && first > 0 && end - (first - 1) > most) value = first - 1;
  *entry = value;
  expect(at->e, DW_FAULT_ROWS, 1, b, next, value);
  expect(at->e, DW_FAULT_ROWS, 1, next, next, value);
  return true;
}

typedef bool (*plant)(plant_at *at);
static const struct {
  const char *name;
  plant act;
} plants[DW_FAULTS] = {
  [DW_FAULT_ROWS] = {"rows", plant_rows},
  [DW_FAULT_LENGTH] = {"length", plant_length},
  [DW_FAULT_TABLE] = {"table", plant_table},
  [DW_FAULT_PAGE] = {"page", plant_page},
  [DW_FAULT_DRAFT_SLOT] = {"slot", plant_draft_slot},
  [DW_FAULT_PARENT] = {"parent", plant_parent},
  [DW_FAULT_MASK_SIZE] = {"size", plant_mask_size},
  [DW_FAULT_BIAS] = {"bias", plant_bias},
  [DW_FAULT_POSITION] = {"position", plant_position},
};

// ---- random problems ------------------------------------------------------------------------------------------

#define FEATURES ",window=1,q_rope=1,kv_rope=1"
static const struct {
  const char *shape, *variant;
  bool table;  // made for call=table
  bool features;
} kernels[] = {
  {"mla:h=4,t=9,qk=192,v=128,page=16", "family=reference" FEATURES, false, true},
  {"mla:h=4,t=9,qk=192,v=128,page=16", "family=split,combine=few,combine_splits=4" FEATURES, false, true},
  {"mla:h=4,t=9,qk=192,v=128,page=16", "family=rowsplit,n_tiles=1,combine=few,combine_splits=2", false, false},
  {"mla:h=4,t=9,qk=192,v=128", "family=rowsplit,n_tiles=3,setmaxnreg=1,combine=many,combine_splits=8" FEATURES, false, true},
  {"mla:h=4,t=9,qk=192,v=128,page=16", "family=rowsplit,n_tiles=2,combine=few,combine_splits=2,call=table" FEATURES, true,
   true},
  {"mla:h=2,t=70,qk=192,v=128", "family=rowsplit,n_tiles=5,setmaxnreg=1,combine=few,combine_splits=2" FEATURES, false, true},
  {"mla:h=2,t=70,qk=192,v=128,page=16", "family=split,combine=many,combine_splits=8", false, false},
  {"gqa:h=6,hk=2,t=9,d=64,page=16", "family=grouped,n_tiles=2,combine=few,combine_splits=4,window=1", false, true},
  {"gqa:h=6,hk=2,t=9,d=64,page=16", "family=warpsplit,n_tiles=4,combine=few,combine_splits=4,window=1", false, true},
  {"mla:h=4,t=9,qk=192,v=128", "family=dimsplit,n_tiles=5,setmaxnreg=1,combine=few,combine_splits=2" FEATURES, false, true},
};
#define KERNELS ((int)DW__COUNT(kernels))

typedef struct trial {
  dw_shape shape;
  int prefix[8], rows[8];
  dw__problem_spec spec;
  dw_bounds bounds;
  dw__problem *problem;
} trial;

// `kind`: the problem has a place for this kind of fault wherever the kernel allows it.
static void make_trial(trial *t, int kernel, int kind, uint64_t *dice) {
  const bool table = kernels[kernel].table, features = kernels[kernel].features;
  t->shape = kt_shape(kernels[kernel].shape);
  int batch = kind == DW_FAULT_ROWS ? 2 + dw__random_below(dice, 5) : 1 + dw__random_below(dice, 6), width = t->shape.width;
  bool ragged = !table && (kind == DW_FAULT_ROWS || dw__random_below(dice, 2));
  for (int b = 0; b < batch; b++) {
    t->prefix[b] = dw__random_below(dice, 4) ? dw__random_below(dice, 90) : 0;
    t->rows[b] = kind == DW_FAULT_ROWS ? width - dw__random_below(dice, 2) : dw__random_below(dice, width + 1);
  }
  dw__problem_spec *s = &t->spec;
  *s = kt_spec(&t->shape, batch, t->prefix, ragged ? t->rows : NULL);
  s->seed = dw__random(dice);
  s->addressing = table || dw__random_below(dice, 2) ? DW_BLOCK_TABLE : DW_CSR;
  s->lengths_include_drafts = table || dw__random_below(dice, 2);
  if (kind == DW_FAULT_DRAFT_SLOT && !table) s->addressing = DW_CSR, s->lengths_include_drafts = 0;
  s->draft_slots =
    s->addressing == DW_CSR && !s->lengths_include_drafts && (kind == DW_FAULT_DRAFT_SLOT || dw__random_below(dice, 2));
  s->index64 = dw__random_below(dice, 2);
  s->strided = dw__random_below(dice, 2);
  s->lse_base_e = dw__random_below(dice, 2);
  s->sinks = dw__random_below(dice, 3) == 0;
  s->q_rope = features && dw__random_below(dice, 3) == 0;
  s->kv_rope = features && dw__random_below(dice, 3) == 0;
  if (t->shape.attention == DW_GQA) s->q_rope = s->kv_rope = 0;
  s->mask_kind = kind == DW_FAULT_PARENT      ? DW_MASK_PARENTS
                 : kind == DW_FAULT_MASK_SIZE ? DW_MASK_BYTES_FULL
                 : kind == DW_FAULT_BIAS      ? DW_MASK_BIAS_F32
                                              : (dw_mask)dw__random_below(dice, DW_MASK_BIAS_F32 + 1);
  s->dead_nodes = kind != DW_FAULT_PARENT && dw__random_below(dice, 2);
  if (features && (kind == DW_FAULT_POSITION || dw__random_below(dice, 4) == 0)) s->window = 1 + dw__random_below(dice, 120);
  s->positions = kind == DW_FAULT_POSITION ? 1 + dw__random_below(dice, 2) : dw__random_below(dice, 3);
  s->drafts_elsewhere = !table && !s->lengths_include_drafts && !s->draft_slots && !s->window && kind <= DW_FAULT_PAGE &&
                        dw__random_below(dice, 5) == 0;
  t->problem = kt_problem(s);
  t->bounds = kt_bounds(t->problem);
  t->bounds.kv_len += 300;  // so that a length may be within the bounds and not within the table
  const int boards[] = {1, 7, 132};
  t->bounds.sm_count = boards[dw__random_below(dice, 3)];
  if (!table && (!s->lengths_include_drafts || dw__random_below(dice, 2)))
    t->bounds.split_tokens = 16 << dw__random_below(dice, 3);
  kt_solve(t->problem);
}

// One to three faults, the first of the kind asked for, in requests of their own.
static bool plant_all(trial *t, int kind, uint64_t *dice, expected *e) {
  int batch = t->problem->args.batch, faults = 1 + dw__random_below(dice, 3), planted = 0;
  for (int i = 0; i < faults; i++) {
    int now = i ? 1 + dw__random_below(dice, DW_FAULTS - 1) : kind;
    int b = now == DW_FAULT_MASK_SIZE ? batch - 1 : dw__random_below(dice, batch);
    if (now == DW_FAULT_ROWS && b == batch - 1 && b) b--;
    if (e->masked[b] || (i && now == DW_FAULT_ROWS)) continue;
    plant_at at = {t->problem, &t->bounds, b, dice, e};
    if (!plants[now].act(&at) && i == 0) return false;
    planted++;
  }
  return planted > 0;
}

// The same problem twice: whole, for the bounds of its rows and for its twin, then with faults.
static bool run_trial(int kernel, int kind, uint64_t seed) {
  trial whole, broken;
  expected e = {.report = {0}};
  uint64_t dice = seed, same = seed;
  kt_note("%s %s, %s, seed %llu", kernels[kernel].shape, kernels[kernel].variant, plants[kind].name, (unsigned long long)seed);
  make_trial(&broken, kernel, kind, &dice);
  make_trial(&whole, kernel, kind, &same);
  pair both = pair_of(kernels[kernel].shape, kernels[kernel].variant);
  check_sound(both, &broken.bounds, broken.problem, seed);
  bool planted = plant_all(&broken, kind, &dice, &e);
  if (planted) {
    kt_result without = run_without(both, &whole.bounds, whole.problem, &e, seed);
    check_masked(both, &broken.bounds, broken.problem, &e, &without, seed);
    kt_drop(&without);
  }
  dw__problem_free(whole.problem);
  dw__problem_free(broken.problem);
  return planted;
}

static uint64_t first_seed = 1;

static void random_faults(void **state) {
  enum { TRIES = 200 };
  const int kernel = (int)(intptr_t)*state;
  const bool of_pairs = strstr(kernels[kernel].variant, "dimsplit") != NULL;  // 1,024 threads a row group take their time
  const int trials = of_pairs ? 1 : kt_shape(kernels[kernel].shape).width > 64 ? 2 : 4;
  print_message("  seeds from %llu\n", (unsigned long long)first_seed);
  for (int kind = 1; kind < DW_FAULTS; kind++) {
    if (kernels[kernel].table && (kind == DW_FAULT_ROWS || kind == DW_FAULT_DRAFT_SLOT)) continue;  // no such array
    if (!kernels[kernel].features && kind == DW_FAULT_POSITION) continue;                           // read with a window only
    int planted = 0, tries = 0;
    for (uint64_t seed = first_seed * 1000; planted < trials; seed++) {
      assert_true(tries++ < TRIES);
      planted += run_trial(kernel, kind, seed);
    }
  }
}

// ---- cases ----------------------------------------------------------------------------------------------------

#define SMALL "mla:h=4,t=10,qk=192,v=128,page=16"
static const char *const usual[] = {"family=reference", "family=rowsplit,n_tiles=2,combine=few,combine_splits=2"};

typedef struct scene {
  pair kernels;
  dw__problem *problem;
  dw_bounds bounds;
  expected e;
} scene;

static scene open_scene(const char *variant, const dw__problem_spec *spec, const char *shape) {
  scene s = {.kernels = pair_of(shape, variant), .problem = kt_problem(spec)};
  kt_note("%s, %d requests", variant, spec->batch);
  s.bounds = kt_bounds(s.problem);
  s.bounds.split_tokens = 64;
  kt_solve(s.problem);
  check_sound(s.kernels, &s.bounds, s.problem, 1);
  return s;
}

// The fault is in; `without` was taken before.
static void close_scene(scene *s, kt_result *without) {
  check_masked(s->kernels, &s->bounds, s->problem, &s->e, without, 1);
  kt_drop(without);
  dw__problem_free(s->problem);
}

// O-a05: five requests live, three padded; the declared most length changes nothing, and padding is no fault.
static void a05_padded_rows_are_no_fault(void **state) {
  (void)state;
  static const int prefix[8] = {70, 3, 0, 33, 16}, most[] = {4096, 131072, 1 << 20};
  dw_shape shape = kt_shape(SMALL);
  for (int v = 0; v < 2; v++) {
    pair both = pair_of(SMALL, usual[v]);
    for (int i = 0; i < 3; i++) {
      dw__problem_spec spec = kt_spec(&shape, 8, prefix, NULL);
      dw__problem *problem = kt_problem(&spec);
      for (int b = 5; b < 8; b++) kt_lengths(problem)[b] = 0;
      kt_solve(problem);
      dw_bounds bounds = kt_bounds(problem);
      bounds.kv_len = most[i];
      kt_note("%s, at most %d tokens", usual[v], most[i]);
      check_sound(both, &bounds, problem, 1);
      kt_result r = kt_take(problem);
      for (int row = 5 * 10; row < 8 * 10; row++) assert_clear(&r, row);
      kt_drop(&r);
      dw__problem_free(problem);
    }
  }
}

// O-a06: 100 requests in a graph of 112. Padded by repeating the last offset, with lengths of 0, all is well. Where the arrays were
// made for 100, the last twelve read what lies behind.
static void a06_arrays_shorter_than_the_batch(void **state) {
  (void)state;
  enum { LIVE = 100, ALL = 112 };
  int prefix[ALL] = {0}, rows[ALL] = {0};
  dw_shape shape = kt_shape(SMALL);
  for (int b = 0; b < LIVE; b++) prefix[b] = b * 7 % 40, rows[b] = 1 + b % 2;
  for (int v = 0; v < 2; v++) {
    dw__problem_spec spec = kt_spec(&shape, ALL, prefix, rows);
    scene s = open_scene(usual[v], &spec, SMALL);
    kt_result without = run_without(s.kernels, &s.bounds, s.problem, &s.e, 1);
    static const int32_t garbage[] = {0x7FED7FED, -1, INT_MIN, 0x3F800000};
    int32_t *indptr = WRITE(int32_t, s.problem->args.qo_indptr);
    for (int b = LIVE; b < ALL; b++) {
      indptr[b + 1] = garbage[b % 4];
      kt_lengths(s.problem)[b] = garbage[(b + 1) % 4];
    }
    for (int b = LIVE; b < ALL; b++) {
      bool first = b > LIVE;  // its first entry is one of them
      expect(&s.e, DW_FAULT_ROWS, 1, b, first ? b : b + 1, indptr[first ? b : b + 1]);
    }
    close_scene(&s, &without);
  }
}

// O-a16: 10 rows of 20 keys in a buffer of 10 x 15 bytes: told with both sizes, and not read.
static void a16_mask_buffer_too_small(void **state) {
  (void)state;
  static const int prefix[3] = {33, 0, 10};
  dw_shape shape = kt_shape(SMALL);
  for (int v = 0; v < 2; v++)
    for (int batch = 1; batch <= 3; batch += 2)
      for (int by_indptr = 0; by_indptr < 2; by_indptr++) {
        dw__problem_spec spec = kt_spec(&shape, batch, prefix + 3 - batch, NULL);
        spec.mask_kind = DW_MASK_BYTES_FULL;
        scene s = open_scene(usual[v], &spec, SMALL);
        kt_result without = run_without(s.kernels, &s.bounds, s.problem, &s.e, 1);
        dw_args *a = &s.problem->args;
        // The buffer ends at a page that must not be touched: moved up, so that the last request has 150 bytes.
        uint8_t *mask = WRITE(uint8_t, a->mask);
        memmove(mask + 50, mask, s.problem->mask_bytes - 50);
        a->mask = mask + 50;
        s.problem->mask_bytes -= 50;
        a->mask_size = (int64_t)s.problem->mask_bytes;
        if (by_indptr) WRITE(int64_t, a->mask_indptr)[batch] -= 50;
        expect(&s.e, DW_FAULT_MASK_SIZE, 1, batch - 1, 200, 150);
        close_scene(&s, &without);
      }
}

// O-d09: trees that are none. Siblings, whatever their tokens, are a tree.
static void d09_invalid_trees(void **state) {
  (void)state;
  static const struct {
    const char *what;
    int parents[10], node;  // -1: sound
  } trees[] = {
    {"parent after its child", {-1, 0, 5, 1, 1, 0, 5, 0, 0, 0}, 2},
    {"own parent", {-1, 0, 1, 1, 4, 0, 5, 0, 0, 0}, 4},
    {"-3", {-1, 0, 1, 1, 1, 0, 5, 0, -3, 0}, 8},
    {"out of range", {-1, 0, 1, 1, 1, 0, 5, 0, 0, 10}, 9},
    {"the first node's own", {0, 0, 1, 1, 1, 0, 5, 0, 0, 1}, 0},
    {"child of a dead node", {-1, 0, -2, 1, 1, 0, 5, 2, 0, 1}, 7},
    {"siblings", {-1, 0, 0, 0, 1, 1, 1, -1, 7, 7}, -1},
  };
  static const int prefix[3] = {33, 0, 90};
  dw_shape shape = kt_shape(SMALL);
  for (int v = 0; v < 2; v++)
    for (size_t i = 0; i < DW__COUNT(trees); i++)
      for (int batch = 1; batch <= 3; batch += 2) {
        dw__problem_spec spec = kt_spec(&shape, batch, prefix, NULL);
        spec.mask_kind = DW_MASK_PARENTS;
        if (trees[i].node < 0) {
          dw__problem *sound = kt_problem(&spec);
          memcpy(kt_parents(sound), trees[i].parents, sizeof trees[i].parents);
          kt_solve(sound);
          dw_bounds bounds = kt_bounds(sound);
          check_sound(pair_of(SMALL, usual[v]), &bounds, sound, 1);
          dw__problem_free(sound);
          continue;
        }
        scene s = open_scene(usual[v], &spec, SMALL);
        kt_note("%s: %s", usual[v], trees[i].what);
        kt_result without = run_without(s.kernels, &s.bounds, s.problem, &s.e, 1);
        int request = batch / 2;
        memcpy(kt_parents(s.problem) + 10 * request, trees[i].parents, sizeof trees[i].parents);
        expect(&s.e, DW_FAULT_PARENT, 1, request, trees[i].node, trees[i].parents[trees[i].node]);
        close_scene(&s, &without);
      }
}

// With a pool of unknown size an id can still be negative.
static void pool_of_unknown_size(void **state) {
  (void)state;
  static const int prefix[2] = {33, 50};
  dw_shape shape = kt_shape(SMALL);
  for (int v = 0; v < 2; v++) {
    dw__problem_spec spec = kt_spec(&shape, 2, prefix, NULL);
    scene s = open_scene(usual[v], &spec, SMALL);
    s.problem->args.kv_pages = 0;
    check_sound(s.kernels, &s.bounds, s.problem, 1);
    kt_result without = run_without(s.kernels, &s.bounds, s.problem, &s.e, 1);
    WRITE(int32_t, s.problem->args.block_table)[s.problem->args.table_columns + 2] = -7;
    expect(&s.e, DW_FAULT_PAGE, 1, 1, 2, -7);
    close_scene(&s, &without);
  }
}

// The first value that is wrong, of each kind that has one.
static void edges_rows(void **state) {
  (void)state;
  static const int prefix[3] = {33, 50, 20}, rows[3] = {8, 4, 7};
  dw_shape shape = kt_shape(SMALL);
  for (int v = 0; v < 2; v++)
    for (int last = 0; last < 2; last++) {
      dw__problem_spec spec = kt_spec(&shape, 3, prefix, rows);
      scene s = open_scene(usual[v], &spec, SMALL);
      kt_result without = run_without(s.kernels, &s.bounds, s.problem, &s.e, 1);
      int32_t *entry = WRITE(int32_t, s.problem->args.qo_indptr) + 3 * last;
      *entry += last ? 1 : -1;  // 8 rows of 10 at most, behind the last row or before the first
      expect(&s.e, DW_FAULT_ROWS, 1, 2 * last, 3 * last, *entry);
      close_scene(&s, &without);
    }
}

static void edges_pages_and_slots(void **state) {
  (void)state;
  static const int prefix[2] = {33, 50};
  dw_shape shape = kt_shape(SMALL);
  for (int v = 0; v < 2; v++)
    for (int kind = 0; kind < 4; kind++) {  // table, int32 slots, int64 slots, slots that no int32 holds in a pool beyond them
      dw__problem_spec spec = kt_spec(&shape, 2, prefix, NULL);
      if (kind) spec.addressing = DW_CSR;
      spec.index64 = kind >= 2;
      scene s = open_scene(usual[v], &spec, SMALL);
      dw_args *a = &s.problem->args;
      kt_result without = run_without(s.kernels, &s.bounds, s.problem, &s.e, 1);
      int64_t slot = (int64_t)a->kv_pages * 16;
      if (kind == 3) a->kv_pages = INT_MAX, slot = 1LL << 31;
      if (kind == 0) WRITE(int32_t, a->block_table)[a->table_columns + 1] = a->kv_pages;
      else if (kind == 1) WRITE(int32_t, a->kv_indices)[a->kv_indptr[1] + 1] = (int32_t)slot;
      else WRITE(int64_t, a->kv_indices)[a->kv_indptr[1] + 1] = slot;
      expect(&s.e, DW_FAULT_PAGE, 1, 1, 1, kind == 0 ? a->kv_pages : kind == 3 ? INT_MAX : (int)slot);
      close_scene(&s, &without);
    }
}

// A list that ends behind what kv_indices has is as long as what is there.
static void edges_of_the_list(void **state) {
  (void)state;
  static const int prefix[3] = {33, 50, 20};
  dw_shape shape = kt_shape(SMALL);
  for (int v = 0; v < 2; v++)
    for (int missing = 1; missing < 60; missing += 39) {  // of the last request, or more than it has
      dw__problem_spec spec = kt_spec(&shape, 3, prefix, NULL);
      spec.addressing = DW_CSR;
      scene s = open_scene(usual[v], &spec, SMALL);
      dw_args *a = &s.problem->args;
      const int first = a->kv_indptr[2], end = a->kv_indptr[3];
      kt_result without = run_without(s.kernels, &s.bounds, s.problem, &s.e, 1);
      assert_int_equal(a->kv_indices_count, end);
      a->kv_indices_count -= missing;
      s.problem->index_bytes -= (size_t)missing * 4;  // and nobody may read there
      const int there = end - missing - first;
      if (there < 0) expect(&s.e, DW_FAULT_TABLE, 1, 1, first - a->kv_indptr[1], end - missing - a->kv_indptr[1]);
      expect(&s.e, DW_FAULT_TABLE, 1, 2, end - first, there > 0 ? there : 0);
      close_scene(&s, &without);
    }
}

static void edges_of_masks(void **state) {
  (void)state;
  static const int prefix[2] = {33, 10};
  dw_shape shape = kt_shape(SMALL);
  for (int v = 0; v < 2; v++) {
    dw__problem_spec spec = kt_spec(&shape, 2, prefix, NULL);
    spec.mask_kind = DW_MASK_BYTES_FULL;
    scene s = open_scene(usual[v], &spec, SMALL);
    kt_result without = run_without(s.kernels, &s.bounds, s.problem, &s.e, 1);
    s.problem->args.mask_size--;
    expect(&s.e, DW_FAULT_MASK_SIZE, 1, 1, 200, 199);
    close_scene(&s, &without);
    // A bias of -0 is 0.
    spec.mask_kind = DW_MASK_BIAS_F32;
    dw__problem *problem = kt_problem(&spec);
    float *bias = WRITE(float, problem->args.mask);
    for (size_t i = 0; i < problem->mask_bytes / sizeof *bias; i++)
      if (bias[i] == 0) bias[i] = -0.f;
    kt_solve(problem);
    dw_bounds bounds = kt_bounds(problem);
    kt_note("%s, bias of -0", usual[v]);
    check_sound(pair_of(SMALL, usual[v]), &bounds, problem, 1);
    dw__problem_free(problem);
  }
}

// Where a dead node stands does not matter; a live one may stand at the prefix's end and not before it.
static void edges_of_positions(void **state) {
  (void)state;
  static const int prefix[2] = {33, 50};
  dw_shape shape = kt_shape(SMALL);
  for (int v = 0; v < 2; v++) {
    char text[128];
    snprintf(text, sizeof text, "%s,window=1", usual[v]);
    dw__problem_spec spec = kt_spec(&shape, 2, prefix, NULL);
    spec.mask_kind = DW_MASK_PARENTS;
    spec.window = 20;
    spec.positions = 1;
    dw__problem *problem = kt_problem(&spec);
    const int32_t parents[10] = {-1, 0, -2, 0, 1, 1, -2, 0, 5, -1};
    memcpy(kt_parents(problem) + 10, parents, sizeof parents);
    int32_t *positions = WRITE(int32_t, problem->args.positions) + 10;
    for (int i = 0; i < 10; i++) positions[i] = 50 + (parents[i] >= 0);
    kt_solve(problem);
    scene s = {.kernels = pair_of(SMALL, text), .problem = problem, .bounds = kt_bounds(problem)};
    s.bounds.split_tokens = 64;
    kt_note("%s", text);
    check_sound(s.kernels, &s.bounds, problem, 1);
    positions[2] = positions[6] = INT_MIN;  // dead
    kt_solve(problem);
    check_sound(s.kernels, &s.bounds, problem, 1);
    kt_result without = run_without(s.kernels, &s.bounds, problem, &s.e, 1);
    positions[9] = 49;
    expect(&s.e, DW_FAULT_POSITION, 1, 1, 9, 49);
    close_scene(&s, &without);
  }
}

// Rows that run backwards and into a sound request's: that one is as ever, and the rows that nobody has a right to are cleared.
static void rows_that_overlap(void **state) {
  (void)state;
  static const int prefix[4] = {33, 50, 20, 7}, rows[4] = {9, 4, 7, 5};
  dw_shape shape = kt_shape(SMALL);
  for (int v = 0; v < 2; v++) {
    dw__problem_spec spec = kt_spec(&shape, 4, prefix, rows);
    scene s = open_scene(usual[v], &spec, SMALL);
    kt_result without = run_without(s.kernels, &s.bounds, s.problem, &s.e, 1);
    int32_t *indptr = WRITE(int32_t, s.problem->args.qo_indptr);  // 0 9 13 20 25
    indptr[2] = 6, indptr[3] = 13;                                // 9 to 6, 6 to 13, 13 to 25
    expect(&s.e, DW_FAULT_ROWS, 1, 1, 2, 6);
    expect(&s.e, DW_FAULT_ROWS, 1, 2, 2, 6);
    expect(&s.e, DW_FAULT_ROWS, 1, 3, 4, 25);  // 12 rows: too many
    close_scene(&s, &without);
  }
}

int main(int argc, char **argv) {
  static struct CMUnitTest tests[KERNELS] = {
#define FAULTS(i, name) {"faults_" name, random_faults, NULL, NULL, (void *)(intptr_t)(i)}
    FAULTS(0, "reference"),     FAULTS(1, "split"),      FAULTS(2, "rowsplit1"), FAULTS(3, "rowsplit3"), FAULTS(4, "table"),
    FAULTS(5, "wide_rowsplit"), FAULTS(6, "wide_split"), FAULTS(7, "grouped"),   FAULTS(8, "warpsplit"), FAULTS(9, "dimsplit"),
  };
  const struct CMUnitTest cases[] = {
    cmocka_unit_test(a05_padded_rows_are_no_fault),
    cmocka_unit_test(a06_arrays_shorter_than_the_batch),
    cmocka_unit_test(a16_mask_buffer_too_small),
    cmocka_unit_test(d09_invalid_trees),
    cmocka_unit_test(edges_rows),
    cmocka_unit_test(edges_pages_and_slots),
    cmocka_unit_test(edges_of_the_list),
    cmocka_unit_test(edges_of_masks),
    cmocka_unit_test(edges_of_positions),
    cmocka_unit_test(pool_of_unknown_size),
    cmocka_unit_test(rows_that_overlap),
  };
  if (list_tests(argc, argv, cases, DW__COUNT(cases))) return list_tests(argc, argv, tests, DW__COUNT(tests)) ? 0 : 1;
  const char *seed = getenv("DRAFTWOOD_TEST_SEED");
  if (seed) first_seed = strtoull(seed, NULL, 10);
  if (kt_skip()) return 77;
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  int failed = cmocka_run_group_tests(tests, kt_setup, kt_teardown);
  return cmocka_run_group_tests(cases, kt_setup, kt_teardown) + failed;
}
