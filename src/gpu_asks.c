// What a check on a GPU may ask for beyond right rows: bits that do not depend on neighbours, rows or graphs captured since, drafts
// that nobody sees, and faults that a checked kernel has to tell. See gpu_verify.h.
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "gpu_trial.h"

typedef dw__gpu_trial trial;

// ---- results on the host --------------------------------------------------------------------------------------

// The arrays out and lse as they are, with the places of their rows.
typedef struct result {
  unsigned char *out;
  float *lse;
  int64_t out_row, out_head, lse_row;  // strides: bytes, bytes, floats
  int heads;
  size_t vector;  // bytes
} result;

static int width_of(const trial *t) { return t->check->spec.width ? t->check->spec.width : t->check->shape.width; }

static void drop(result *r) {
  dw__release(r->out);
  dw__release(r->lse);
}

static dw_status take(trial *t, result *r, dw_error *error) {
  const dw_shape *shape = &t->check->shape;
  const dw_tool_compare_params p = dw__gpu_compare_params(shape, &t->args);
  const int64_t rows = (int64_t)t->check->spec.batch * width_of(t), size = (int64_t)dw__dtype_size(shape->out);
  *r = (result){.out_row = p.out_row_stride * size,
                .out_head = p.out_head_stride * size,
                .lse_row = p.lse_row_stride,
                .heads = shape->heads,
                .vector = (size_t)(shape->head_dim_v * size)};
  const size_t out = (size_t)((rows - 1) * r->out_row + (shape->heads - 1) * r->out_head) + r->vector;
  const size_t lse = (size_t)((rows - 1) * r->lse_row + shape->heads) * sizeof(float);
  r->out = dw__alloc(out);
  r->lse = dw__calloc(1, lse);
  if (!r->out || !r->lse) return dw__fail(error, DW_OUT_OF_MEMORY, "result", "", "", NULL);
  dw_status status = dw__gpu_download(t->gpu, r->out, t->args.out, out, error);
  if (!status && t->args.lse) status = dw__gpu_download(t->gpu, r->lse, t->args.lse, lse, error);
  return status;
}

static const unsigned char *vector_at(const result *r, int row, int head) {
  return r->out + row * r->out_row + head * r->out_head;
}

static bool same_row(const result *a, const result *b, int row) {
  for (int h = 0; h < a->heads; h++)
    if (memcmp(vector_at(a, row, h), vector_at(b, row, h), a->vector)) return false;
  return memcmp(a->lse + row * a->lse_row, b->lse + row * b->lse_row, (size_t)a->heads * sizeof(float)) == 0;
}

static bool is_clear(const result *r, int row) {
  for (int h = 0; h < r->heads; h++) {
    for (size_t i = 0; i < r->vector; i++)
      if (vector_at(r, row, h)[i]) return false;
    const float lse = r->lse[row * r->lse_row + h];
    if (!isinf(lse) || lse > 0) return false;
  }
  return true;
}

// As before the launch.
static bool is_untouched(const result *r, int row) {
  static const unsigned char poison[] = {0xED, 0x7F};
  for (int h = 0; h < r->heads; h++)
    for (size_t i = 0; i < r->vector; i++)
      if (vector_at(r, row, h)[i] != poison[i % 2]) return false;
  return true;
}

static dw_status wrong_row(dw_error *error, int row, const char *found, const char *allowed, const char *what) {
  char field[48];
  snprintf(field, sizeof field, "row %d", row);
  return dw__fail(error, DW_WRONG_RESULT, field, found, allowed, "%s", what);
}

static dw_status compare_rows(const result *whole, const result *part, int first, int count, const char *what,
                              dw_error *error) {
  for (int row = first; row < first + count; row++)
    if (!same_row(whole, part, row)) return wrong_row(error, row, "other bits", "those of the whole call", what);
  return DW_OK;
}

static int first_row(const trial *t, int request) {
  const int *rows = dw__gpu_problem_rows(t->problem);
  int row = 0;
  for (int b = 0; b < request; b++) row += rows[b];
  return row;
}

// ---- parts of a call ------------------------------------------------------------------------------------------

static const void *skip(const void *at, int64_t bytes) { return at ? (const char *)at + bytes : NULL; }

// Requests from `request` on, with arrays where they are: rows by their own offsets.
static dw_args requests_from(const trial *t, int request) {
  const dw_shape *shape = &t->check->shape;
  const dw_oracle_params p = dw__gpu_oracle_params(shape, &t->args, 1);
  dw_args a = t->args;
  const int64_t matrix = request * p.mask_request_stride * (a.mask_kind == DW_MASK_BIAS_F32 ? 4 : 1);
  a.kv_len += request;
  a.kv_indptr = skip(a.kv_indptr, 4 * (int64_t)request);
  a.qo_indptr = skip(a.qo_indptr, 4 * (int64_t)request);
  a.mask_indptr = skip(a.mask_indptr, 8 * (int64_t)request);
  a.block_table = skip(a.block_table, 4 * request * p.table_stride);
  if (a.mask_kind == DW_MASK_BYTES_QLEN || a.mask_kind == DW_MASK_BIAS_F32) a.mask = skip(a.mask, matrix);
  a.mask_row_stride =
    a.mask_kind == DW_MASK_BITS || a.mask_kind == DW_MASK_BYTES_QLEN || a.mask_kind == DW_MASK_BIAS_F32 ? p.mask_row_stride : 0;
  a.kv_len_count = a.qo_indptr_count = a.kv_indptr_count = a.block_table_count = a.draft_slots_count = a.mask_size = 0;
  return a;
}

// One request, with all its rows or, where every request is as wide as the call, the first ones.
static dw_args one_request(const trial *t, int request, int rows) {
  const dw_shape *shape = &t->check->shape;
  const dw_oracle_params p = dw__gpu_oracle_params(shape, &t->args, 1);
  const dw_tool_compare_params c = dw__gpu_compare_params(shape, &t->args);
  dw_args a = requests_from(t, request);
  a.batch = 1;
  if (a.qo_indptr) {
    if (!a.total_q) a.total_q = t->check->spec.batch * width_of(t);
    return a;
  }
  const int64_t row = (int64_t)request * width_of(t);
  a.q = skip(a.q, 2 * row * p.q_row_stride);
  a.q_rope = skip(a.q_rope, 2 * row * p.q_rope_row_stride);
  a.q_row_stride = p.q_row_stride, a.q_head_stride = p.q_head_stride;
  a.out = (char *)a.out + row * c.out_row_stride * (int64_t)dw__dtype_size(shape->out);
  if (a.lse) a.lse += row * c.lse_row_stride;
  if (a.mask_kind == DW_MASK_PARENTS) a.mask = skip(a.mask, 4 * row);
  if (a.mask_kind == DW_MASK_BITS) a.mask = skip(a.mask, 4 * row * a.mask_row_stride);
  a.positions = skip(a.positions, 4 * row);
  a.draft_slots = skip(a.draft_slots, row * (a.index64 ? 8 : 4));
  a.width = a.total_q = rows;
  a.mask_request_stride = 0;
  return a;
}

static dw_status own_run(trial *t, const result *whole, int request, int rows, dw_error *error) {
  const dw_args args = one_request(t, request, rows);
  char what[96];
  result part = {0};
  snprintf(what, sizeof what, "request %d in a call of its own, with %d rows", request, rows);
  dw_status status = rows ? dw__gpu_trial_launch(t, &args, error) : DW_OK;
  if (!status && rows) status = take(t, &part, error);
  if (!status && rows) status = compare_rows(whole, &part, first_row(t, request), rows, what, error);
  drop(&part);
  return status;
}

static dw_status ask_own_runs(trial *t, const result *whole, dw_error *error) {
  const dw__gpu_spec *spec = &t->check->spec;
  const int *rows = dw__gpu_problem_rows(t->problem);
  dw_status status = DW_OK;
  for (int b = 0; b < spec->batch && !status; b++) status = own_run(t, whole, b, rows[b], error);
  bool fewer = !spec->ragged && !spec->lengths_include_drafts && spec->mask_kind != DW_MASK_BYTES_FULL && !spec->any_mask;
  for (int n = 1; fewer && n < rows[0] && !status; n++) status = own_run(t, whole, 0, n, error);
  return status;
}

// ---- graphs in one workspace ----------------------------------------------------------------------------------

enum { GRAPHS_MOST = 8 };

static dw_status replay_part(trial *t, dw__graph *graph, const result *whole, int requests, dw_error *error) {
  char what[96];
  result part = {0};
  const int rows = requests * width_of(t), all = t->check->spec.batch * width_of(t);
  snprintf(what, sizeof what, "the graph of %d requests, replayed after all were captured", requests);
  dw_status status = dw__gpu_trial_clear(t, error);
  if (!status) status = dw__gpu_replay(t->gpu, graph, error);
  if (!status) status = dw__gpu_sync(t->gpu, error);
  if (!status) status = take(t, &part, error);
  if (!status) status = compare_rows(whole, &part, 0, rows, what, error);
  for (int row = rows; row < all && !status; row++)
    if (!is_untouched(&part, row)) status = wrong_row(error, row, "written", "left alone", what);
  drop(&part);
  return status;
}

static dw_status ask_ascending(trial *t, const result *whole, dw_error *error) {
  dw__graph *graphs[GRAPHS_MOST] = {NULL};
  const int batch = t->check->spec.batch;
  int count = 0;
  dw_status status = DW_OK;
  for (int n = 1; n <= batch && count < GRAPHS_MOST && !status; n *= 2, count++) {
    dw_args args = requests_from(t, 0);
    args.batch = n;
    args.total_q = n * width_of(t);
    status = dw__gpu_trial_capture(t, &args, &graphs[count], error);
  }
  for (int i = 0; i < count && !status; i++) status = replay_part(t, graphs[i], whole, 1 << i, error);
  for (int i = 0; i < count; i++) dw__graph_free(t->gpu, graphs[i]);
  return status;
}

// ---- drafts that nobody sees ----------------------------------------------------------------------------------

static dw_status ask_last_hidden(trial *t, const result *whole, dw_error *error) {
  const int *rows = dw__gpu_problem_rows(t->problem), *prefix = dw__gpu_problem_prefix(t->problem);
  const int batch = t->check->spec.batch;
  result part = {0};
  dw_status status = DW_OK;
  for (int b = 0; b < batch && !status; b++)
    if (rows[b] && prefix[b] >= 0) status = dw__gpu_problem_spoil(t->problem, b, prefix[b] + rows[b] - 1, error);
  if (!status) status = dw__gpu_trial_launch(t, &t->args, error);
  if (!status) status = take(t, &part, error);
  for (int b = 0; b < batch && !status; b++) {
    const int first = first_row(t, b), last = first + rows[b] - 1;
    if (!rows[b] || prefix[b] < 0) continue;
    status = compare_rows(whole, &part, first, rows[b] - 1, "NaN in a later draft", error);
    if (!status && same_row(whole, &part, last))
      status = wrong_row(error, last, "the same bits", "NaN", "the draft itself holds NaN");
  }
  drop(&part);
  return status ? status : dw__gpu_problem_write(t->problem, &t->check->first, error);
}

// ---- faults ---------------------------------------------------------------------------------------------------

// One value in one of the call's arrays, and what has to be told of it.
typedef struct plant {
  dw_fault fault;
  const void *array;
  int64_t place;  // in elements of `size` bytes
  int size;
  int64_t value;
  int told_at, told;    // the report's place and value
  int request, masked;  // the first request that is cleared, and how many
} plant;

static dw_status plant_in(trial *t, const plant *p, dw_error *error) {
  return dw__gpu_upload(t->gpu, (char *)(uintptr_t)p->array + p->place * p->size, &p->value, (size_t)p->size, error);
}

static int held(int64_t value) { return value > INT_MAX ? INT_MAX : value < INT_MIN ? INT_MIN : (int)value; }

static dw_status wrong_report(const plant *p, const uint32_t *report, dw_error *error) {
  static const char *const arrays[] = {
#define X(name, array, sound) array,
    DW_FAULT_MAP(X)
#undef X
  };
  const uint32_t *words = report + p->fault * DW_FAULT_WORDS;
  char found[96], allowed[96];
  snprintf(found, sizeof found, "%u times, request %u, place %d, value %d; %u requests masked", words[0], words[1],
           (int)words[2], (int)words[3], report[0]);
  snprintf(allowed, sizeof allowed, "request %d or the next, place %d, value %d; %d masked", p->request, p->told_at, p->told,
           p->masked);
  return dw__fail(error, DW_WRONG_RESULT, arrays[p->fault], found, allowed, "the report of a planted fault");
}

// Of two requests that share an entry of qo_indptr either may be counted first.
static dw_status check_told(const plant *p, const uint32_t *report, dw_error *error) {
  const uint32_t *words = report + p->fault * DW_FAULT_WORDS;
  const int request = (int)words[1];
  bool right = report[0] == (uint32_t)p->masked && words[0] == (uint32_t)p->masked && request >= p->request &&
               request < p->request + p->masked && (int)words[2] == p->told_at && (int)words[3] == p->told;
  for (int kind = 1; kind < DW_FAULTS; kind++) right = right && (kind == (int)p->fault || !report[kind * DW_FAULT_WORDS]);
  return right ? DW_OK : wrong_report(p, report, error);
}

static dw_status check_cleared(trial *t, const plant *p, const result *whole, dw_error *error) {
  const int *rows = dw__gpu_problem_rows(t->problem);
  result part = {0};
  dw_status status = take(t, &part, error);
  for (int b = 0, row = 0; b < t->check->spec.batch && !status; b++)
    for (int i = 0; i < rows[b] && !status; i++, row++) {
      const bool masked = b >= p->request && b < p->request + p->masked;
      if (masked && !is_clear(&part, row)) status = wrong_row(error, row, "something", "0 and lse -inf", "a masked request");
      if (!masked && !same_row(whole, &part, row))
        status = wrong_row(error, row, "other bits", "those of the sound call", "a request beside a masked one");
    }
  drop(&part);
  return status;
}

static dw_status try_plant(trial *t, const plant *p, const result *whole, dw_error *error) {
  uint32_t report[DW_REPORT_WORDS];
  dw_status status = plant_in(t, p, error);
  if (!status) status = dw__gpu_trial_launch(t, &t->args, error);
  if (!status) status = dw__gpu_download(t->gpu, report, t->args.report, sizeof report, error);
  if (!status) status = check_told(p, report, error);
  if (!status) status = check_cleared(t, p, whole, error);
  return status ? status : dw__gpu_problem_write(t->problem, &t->check->first, error);
}

// Where request 1, the middle of three or more, has what.
typedef struct target {
  int request, first, rows, prefix, tokens;
  int64_t list;  // its first entry of kv_indices
} target;

static target target_of(const trial *t) {
  const dw__gpu_spec *spec = &t->check->spec;
  const int *rows = dw__gpu_problem_rows(t->problem), *prefix = dw__gpu_problem_prefix(t->problem);
  const bool listed = !spec->drafts_elsewhere && !spec->draft_slots;
  return (target){.request = 1,
                  .first = rows[0],
                  .rows = rows[1],
                  .prefix = prefix[1],
                  .tokens = prefix[1] + (spec->drafts_elsewhere ? 0 : rows[1]),
                  .list = prefix[0] + (listed ? rows[0] : 0)};
}

static int add_kv_plants(const trial *t, const target *r, plant *list) {
  const dw_args *a = &t->args;
  const int page = t->check->shape.page, index = a->index64 ? 8 : 4, others = a->lengths_include_drafts ? 0 : r->rows;
  const int64_t pool = (int64_t)a->kv_pages * page;
  const bool table = a->addressing == DW_BLOCK_TABLE;
  int count = 0;
  list[count++] = (plant){DW_FAULT_LENGTH, a->kv_len, 1, 4, -1, t->bounds.kv_len, -1, 1, 1};
  list[count++] = (plant){DW_FAULT_LENGTH,
                          a->kv_len,
                          1,
                          4,
                          (int64_t)t->bounds.kv_len - others + 1,
                          t->bounds.kv_len,
                          t->bounds.kv_len - others + 1,
                          1,
                          1};
  if (table) {
    const int64_t stride = dw__or_else(a->block_table_stride, a->table_columns);
    const int there = a->table_columns * page, named = there + 1;
    list[count++] = (plant){DW_FAULT_PAGE, a->block_table, stride, 4, a->kv_pages, 0, a->kv_pages, 1, 1};
    if (named <= t->bounds.kv_len) list[count++] = (plant){DW_FAULT_TABLE, a->kv_len, 1, 4, named - others, named, there, 1, 1};
  } else {
    const int there = a->draft_slots ? r->prefix : r->tokens, named = there + 1;
    list[count++] = (plant){DW_FAULT_PAGE, a->kv_indices, r->list, index, pool, 0, held(pool), 1, 1};
    if (a->draft_slots) list[count++] = (plant){DW_FAULT_DRAFT_SLOT, a->draft_slots, r->first, index, -3, 0, -3, 1, 1};
    if (named <= t->bounds.kv_len)
      list[count++] = (plant){DW_FAULT_TABLE, a->kv_len, 1, 4, named - (a->draft_slots ? 0 : others), named, there, 1, 1};
  }
  return count;
}

static int add_mask_plants(const trial *t, const target *r, plant *list) {
  const dw_args *a = &t->args;
  const dw_oracle_params p = dw__gpu_oracle_params(&t->check->shape, a, 1);
  const float half = 0.5f;
  int32_t bits;
  int count = 0;
  memcpy(&bits, &half, sizeof bits);
  if (a->mask_kind == DW_MASK_PARENTS) {
    list[count++] = (plant){DW_FAULT_PARENT, a->mask, r->first + 2, 4, 2, 2, 2, 1, 1};              // its own
    list[count++] = (plant){DW_FAULT_PARENT, a->mask, r->first + 1, 4, r->rows, 1, r->rows, 1, 1};  // out of range
    list[count++] = (plant){DW_FAULT_PARENT, a->mask, r->first + 3, 4, -3, 3, -3, 1, 1};
  }
  if (a->mask_kind == DW_MASK_BIAS_F32 && !a->mask_shared)
    list[count++] = (plant){DW_FAULT_BIAS, a->mask, p.mask_request_stride + p.mask_row_stride, 4, bits, 1, bits, 1, 1};
  if (a->positions && a->window)
    list[count++] = (plant){DW_FAULT_POSITION, a->positions, r->first, 4, r->prefix - 1, 0, r->prefix - 1, 1, 1};
  return count;
}

// Entries that two requests share: of rows both are masked.
static int add_row_plants(const trial *t, const target *r, plant *list) {
  const int end = t->args.total_q ? t->args.total_q : t->check->spec.batch * width_of(t);
  if (!t->args.qo_indptr) return 0;
  list[0] = (plant){DW_FAULT_ROWS, t->args.qo_indptr, r->request + 1, 4, end + 1, r->request + 1, end + 1, 1, 2};
  return 1;
}

// The last request's bytes end before they do.
static int add_size_plants(const trial *t, plant *list) {
  const int last = t->check->spec.batch - 1, rows = dw__gpu_problem_rows(t->problem)[last];
  const int need = rows * (dw__gpu_problem_prefix(t->problem)[last] + rows);
  if (t->args.mask_kind != DW_MASK_BYTES_FULL) return 0;
  list[0] = (plant){DW_FAULT_MASK_SIZE, t->args.mask_indptr, last + 1, 8, -1, need, -1, last, 1};
  return 1;
}

static dw_status ask_faults(trial *t, const result *whole, dw_error *error) {
  plant list[16];
  const target r = target_of(t);
  int count = add_kv_plants(t, &r, list);
  count += add_mask_plants(t, &r, list + count);
  count += add_row_plants(t, &r, list + count);
  count += add_size_plants(t, list + count);
  dw_status status = DW_OK;
  for (int i = 0; i < count && !status; i++) status = try_plant(t, &list[i], whole, error);
  return status;
}

// ---- all of them ----------------------------------------------------------------------------------------------

dw_status dw__gpu_trial_ask(trial *t, const char **step, dw_error *error) {
  static const struct {
    unsigned ask;
    const char *step;
    dw_status (*run)(trial *t, const result *whole, dw_error *error);
  } list[] = {
    {DW__ASK_OWN_RUNS, "own runs", ask_own_runs},
    {DW__ASK_ASCENDING, "graphs in one workspace", ask_ascending},
    {DW__ASK_LAST_HIDDEN, "poison in the last draft", ask_last_hidden},
    {DW__ASK_FAULTS, "planted faults", ask_faults},
  };
  result whole = {0};
  *step = "whole call";
  dw_status status = dw__gpu_problem_write(t->problem, &t->check->first, error);
  if (!status) status = dw__gpu_trial_launch(t, &t->args, error);
  if (!status) status = take(t, &whole, error);
  for (size_t i = 0; i < DW__COUNT(list) && !status; i++) {
    if (!(t->check->asks & list[i].ask)) continue;
    *step = list[i].step;
    status = list[i].run(t, &whole, error);
  }
  drop(&whole);
  return status;
}
