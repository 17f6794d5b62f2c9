// See gpu_problem.h.
#include "gpu_problem.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "random.h"

enum { GUARD = 4096 };           // bytes before and behind out and lse
#define POISON_WORD 0x7FED7FEDu  // NaN in bf16, fp16 and fp32
#define POISON_E4M3 0xFF7FFF7Fu

// An array that is written whole from the host.
typedef struct table {
  void *device;
  char *host;
  size_t bytes;
} table;

typedef struct guarded {
  char *device;  // the array begins GUARD bytes into it
  void *kept;
  size_t bytes;  // of the array, a multiple of 4
} guarded;

// What differs from set to set.
typedef struct slot_set {
  table indices, drafts, pages;
} slot_set;

struct dw__gpu_problem {
  const dw__gpu_tools *tools;
  dw__gpu *gpu;
  dw__gpu_spec spec;
  dw_args args;
  int *prefix, *rows;
  int owned_rows;
  int64_t pool_tokens, unit;  // unit: tokens that are handed out together
  size_t q_bytes, q_rope_bytes, kv_bytes, kv_rope_bytes, v_bytes;
  void *q, *q_rope, *kv, *kv_rope, *v;
  dw__plane planes[2];  // GQA: K, V
  unsigned *count;
  guarded out, lse;
  table kv_len, qo_indptr, kv_indptr, mask, mask_indptr, positions, sinks, stored_scale, v_stored_scale, used;
  slot_set *sets;
  int *order;    // units in the order in which they are handed out
  int *leading;  // slots of the first request's prefix, which the others may share
  int64_t taken;
};

// ---- memory ---------------------------------------------------------------------------------------------------

static dw_status table_make(dw__gpu *gpu, table *t, size_t bytes, dw_error *error) {
  t->bytes = bytes;
  t->host = dw__calloc(1, bytes ? bytes : 1);
  if (!t->host) return dw__fail(error, DW_OUT_OF_MEMORY, "gpu_problem", "", "", NULL);
  return dw__gpu_alloc(gpu, bytes, &t->device, error);
}

static dw_status table_write(dw__gpu *gpu, const table *t, dw_error *error) {
  return t->host ? dw__gpu_upload(gpu, t->device, t->host, t->bytes, error) : DW_OK;
}

static void table_free(dw__gpu *gpu, table *t) {
  if (t->device) dw__gpu_free(gpu, t->device);
  dw__release(t->host);
}

static dw_status guarded_make(dw__gpu *gpu, guarded *g, size_t bytes, dw_error *error) {
  void *device;
  g->bytes = (bytes + 3) / 4 * 4;
  dw_status status = dw__gpu_alloc(gpu, g->bytes + 2 * GUARD, &device, error);
  g->device = device;
  return status ? status : dw__gpu_alloc(gpu, g->bytes, &g->kept, error);
}

static void guarded_free(dw__gpu *gpu, guarded *g) {
  if (g->device) dw__gpu_free(gpu, g->device);
  if (g->kept) dw__gpu_free(gpu, g->kept);
}

// Elements from the first to behind the last one used.
static size_t extent(int64_t outer, int64_t outer_stride, int64_t inner, int64_t inner_stride, int64_t last) {
  return (size_t)((outer - 1) * outer_stride + (inner - 1) * inner_stride + last);
}

// ---- making ---------------------------------------------------------------------------------------------------

static dw_status check(const dw__gpu_spec *spec, dw_error *error) {
  dw_status status = dw_shape_check(&spec->shape, error);
  if (status) return status;
  if (spec->batch < 1) return dw__fail_int(error, DW_BAD_ARGUMENT, "batch", spec->batch, "1 or more", "requests");
  if (spec->longest < 0) return dw__fail_int(error, DW_BAD_ARGUMENT, "longest", spec->longest, "0 or more", "committed tokens");
  if (spec->sets < 1) return dw__fail_int(error, DW_BAD_ARGUMENT, "sets", spec->sets, "1 or more", "slot sets");
  if (spec->width < 0 || spec->width > spec->shape.width)
    return dw__fail_int(error, DW_BAD_ARGUMENT, "width", spec->width, "0 to the shape's", "rows a request");
  if ((spec->q_rope || spec->kv_rope) && (spec->shape.head_dim_qk == spec->shape.head_dim_v || spec->shape.attention == DW_GQA))
    return dw__fail(error, DW_BAD_ARGUMENT, "q_rope, kv_rope", "1", "0 where qk is v, or for GQA",
                    "there is nothing to lie apart");
  if (spec->kv_rope && spec->shape.kv == DW_RECORD656)
    return dw__fail(error, DW_BAD_ARGUMENT, "kv_rope", "1", "0", "a record has the rope in it");
  int64_t tokens = (int64_t)spec->batch * ((int64_t)spec->longest + spec->shape.width);
  if (tokens > INT_MAX / 2 || spec->pool_tokens > INT_MAX / 2)
    return dw__fail_int(error, DW_BAD_ARGUMENT, "longest", tokens, "2^30 tokens in all", "the problem is too large");
  return DW_OK;
}

static int width_of(const dw__gpu_spec *spec) { return spec->width ? spec->width : spec->shape.width; }
static int rope_of(const dw_shape *shape) { return shape->head_dim_qk - shape->head_dim_v; }
static int total_rows(const dw__gpu_problem *problem) { return problem->spec.batch * width_of(&problem->spec); }
// Elements of a row of q and of a token that lie together.
static int q_part(const dw__gpu_spec *spec) { return spec->q_rope ? spec->shape.head_dim_v : spec->shape.head_dim_qk; }
static int kv_part(const dw__gpu_spec *spec) { return dw__kv_part(&spec->shape, spec->kv_rope); }

static int kv_bytes(const dw__gpu_spec *spec) { return (int)dw__dtype_size(spec->shape.kv); }  // an element

// The strides that problem.c uses too: rows stay 16-byte aligned, nothing is tight.
static void choose_strides(dw__gpu_problem *problem) {
  const dw_shape *shape = &problem->spec.shape;
  dw_args *args = &problem->args;
  bool wide = problem->spec.strided;
  args->q_head_stride = q_part(&problem->spec) + (wide ? 8 : 0);
  args->q_row_stride = shape->heads * args->q_head_stride + (wide ? 24 : 0);
  args->out_head_stride = shape->head_dim_v + (wide ? 8 : 0);
  args->out_row_stride = shape->heads * args->out_head_stride + (wide ? 16 : 0);
  args->lse_row_stride = shape->heads + (wide ? 3 : 0);
  const int unit = wide ? 16 / kv_bytes(&problem->spec) : 0;
  if (shape->attention == DW_GQA) {
    dw__planes_lay(shape, problem->spec.planes, wide, &problem->planes[0], &problem->planes[1]);
    dw__planes_args(&problem->planes[0], &problem->planes[1], args);
  } else {
    args->kv_token_stride = kv_part(&problem->spec) + 3 * unit;
    args->kv_page_stride = shape->page * args->kv_token_stride + (shape->page > 1 ? 5 * unit : 0);
  }
  args->q_rope_head_stride = rope_of(shape) + (wide ? 16 : 0);
  args->q_rope_row_stride = shape->heads * args->q_rope_head_stride + (wide ? 8 : 0);
  args->kv_rope_token_stride = rope_of(shape) + unit;
  args->kv_rope_page_stride = shape->page * args->kv_rope_token_stride + (shape->page > 1 ? 2 * unit : 0);
}

// Where the K (0) or the V (1) of GQA lies.
static void *plane_pool(const dw__gpu_problem *problem, int which) { return which && problem->v ? problem->v : problem->kv; }

static dw_status make_q_and_out(dw__gpu_problem *problem, dw_error *error) {
  const dw_shape *shape = &problem->spec.shape;
  const dw_args *args = &problem->args;
  int rows = total_rows(problem);
  size_t out = extent(rows, args->out_row_stride, shape->heads, args->out_head_stride, shape->head_dim_v);
  problem->q_bytes = 2 * extent(rows, args->q_row_stride, shape->heads, args->q_head_stride, q_part(&problem->spec));
  dw_status status = dw__gpu_alloc(problem->gpu, problem->q_bytes, &problem->q, error);
  if (!status && problem->spec.q_rope) {
    problem->q_rope_bytes = 2 * extent(rows, args->q_rope_row_stride, shape->heads, args->q_rope_head_stride, rope_of(shape));
    status = dw__gpu_alloc(problem->gpu, problem->q_rope_bytes, &problem->q_rope, error);
  }
  if (!status) status = guarded_make(problem->gpu, &problem->out, out * dw__dtype_size(shape->out), error);
  if (!status)
    status = guarded_make(problem->gpu, &problem->lse, 4 * extent(rows, args->lse_row_stride, shape->heads, 1, 1), error);
  return status;
}

// Tokens of all requests at most, whole units each.
static int64_t set_tokens(const dw__gpu_problem *problem) {
  const dw__gpu_spec *spec = &problem->spec;
  return spec->batch * dw__ceil_div((int64_t)spec->longest + spec->shape.width, problem->unit) * problem->unit;
}

static dw_status make_pool(dw__gpu_problem *problem, dw_error *error) {
  const dw__gpu_spec *spec = &problem->spec;
  int page = spec->shape.page;
  int64_t tokens = set_tokens(problem) * 5 / 4 + page;
  if (tokens < spec->pool_tokens) tokens = spec->pool_tokens;
  int64_t pages = dw__ceil_div(tokens, page);
  problem->pool_tokens = pages * page;
  const dw_args *args = &problem->args;
  const size_t each = (size_t)kv_bytes(spec);
  if (spec->shape.attention == DW_GQA) {
    const bool share = dw__planes_share(spec->planes);
    size_t k = dw__plane_extent(&spec->shape, &problem->planes[0], pages);
    size_t v = dw__plane_extent(&spec->shape, &problem->planes[1], pages);
    problem->kv_bytes = each * (share && v > k ? v : k);
    problem->v_bytes = share ? 0 : each * v;
  } else {
    problem->kv_bytes = each * extent(pages, args->kv_page_stride, page, args->kv_token_stride, kv_part(spec));
  }
  problem->order = dw__alloc((size_t)(problem->pool_tokens / problem->unit) * sizeof *problem->order);
  problem->leading = dw__calloc((size_t)spec->longest + 1, sizeof *problem->leading);
  if (!problem->order || !problem->leading) return dw__fail(error, DW_OUT_OF_MEMORY, "gpu_problem", "", "", NULL);
  dw_status status = dw__gpu_alloc(problem->gpu, problem->kv_bytes, &problem->kv, error);
  if (!status && problem->v_bytes) status = dw__gpu_alloc(problem->gpu, problem->v_bytes, &problem->v, error);
  if (!status && spec->kv_rope) {
    problem->kv_rope_bytes =
      each * extent(pages, args->kv_rope_page_stride, page, args->kv_rope_token_stride, rope_of(&spec->shape));
    status = dw__gpu_alloc(problem->gpu, problem->kv_rope_bytes, &problem->kv_rope, error);
  }
  return status ? status : table_make(problem->gpu, &problem->used, (size_t)problem->pool_tokens, error);
}

static int table_columns(const dw__gpu_spec *spec) {
  return (int)dw__ceil_div((int64_t)spec->longest + spec->shape.width, spec->shape.page) + (spec->strided ? 2 : 0);
}
static int table_stride(const dw__gpu_spec *spec) { return table_columns(spec) + (spec->strided ? 3 : 0); }

static dw_status make_set(dw__gpu_problem *problem, slot_set *set, dw_error *error) {
  const dw__gpu_spec *spec = &problem->spec;
  size_t index = spec->index64 ? 8 : 4;
  if (spec->addressing == DW_BLOCK_TABLE) {
    return table_make(problem->gpu, &set->pages, 4 * extent(spec->batch, table_stride(spec), table_columns(spec), 1, 1), error);
  }
  size_t tokens = (size_t)spec->batch * ((size_t)spec->longest + (spec->draft_slots ? 0 : (size_t)spec->shape.width));
  dw_status status = table_make(problem->gpu, &set->indices, tokens * index, error);
  if (!status && spec->draft_slots) status = table_make(problem->gpu, &set->drafts, (size_t)total_rows(problem) * index, error);
  return status;
}

// ---- making: masks --------------------------------------------------------------------------------------------

static bool is_matrix(const dw__gpu_spec *spec) {
  return spec->mask_kind == DW_MASK_BYTES_QLEN || spec->mask_kind == DW_MASK_BIAS_F32;
}
static int mask_words(const dw__gpu_spec *spec) { return (width_of(spec) + 31) / 32 + (spec->strided ? 2 : 0); }
// Elements of a row of BYTES_QLEN and BIAS_F32, and of a request's matrix.
static int64_t matrix_row(const dw__gpu_spec *spec) { return width_of(spec) + (spec->strided ? 5 : 0); }
static int64_t matrix_size(const dw__gpu_spec *spec) { return width_of(spec) * matrix_row(spec) + (spec->strided ? 11 : 0); }
// BYTES_FULL: bytes before the first request's and between requests.
static int64_t full_gap(const dw__gpu_spec *spec) { return spec->strided ? 7 : 0; }

static size_t mask_bytes(const dw__gpu_spec *spec) {
  int64_t width = width_of(spec), rows = spec->batch * width;
  switch (spec->mask_kind) {
    case DW_MASK_NONE:
    case DW_MASK_STATIC: return 0;
    case DW_MASK_PARENTS: return 4 * (size_t)rows;
    case DW_MASK_BITS: return 4 * (size_t)(rows * mask_words(spec));
    case DW_MASK_BYTES_FULL: return (size_t)(rows * ((int64_t)spec->longest + width) + (spec->batch + 1) * full_gap(spec));
    default: {
      size_t elements = extent(spec->mask_shared ? 1 : spec->batch, matrix_size(spec), width, matrix_row(spec), width);
      return elements * (spec->mask_kind == DW_MASK_BIAS_F32 ? 4 : 1);
    }
  }
}

static dw_status make_tables(dw__gpu_problem *problem, dw_error *error) {
  const dw__gpu_spec *spec = &problem->spec;
  size_t batch = (size_t)spec->batch, rows = (size_t)total_rows(problem);
  dw_status status = table_make(problem->gpu, &problem->kv_len, 4 * batch, error);
  if (!status && spec->ragged) status = table_make(problem->gpu, &problem->qo_indptr, 4 * (batch + 1), error);
  if (!status && spec->addressing == DW_CSR) status = table_make(problem->gpu, &problem->kv_indptr, 4 * (batch + 1), error);
  if (!status && mask_bytes(spec)) status = table_make(problem->gpu, &problem->mask, mask_bytes(spec), error);
  if (!status && spec->mask_kind == DW_MASK_BYTES_FULL)
    status = table_make(problem->gpu, &problem->mask_indptr, 8 * (batch + 1), error);
  if (!status && spec->positions) status = table_make(problem->gpu, &problem->positions, 4 * rows, error);
  if (!status && spec->stored_scale > 0) status = table_make(problem->gpu, &problem->stored_scale, sizeof(float), error);
  if (!status && spec->v_stored_scale > 0) status = table_make(problem->gpu, &problem->v_stored_scale, sizeof(float), error);
  if (!status && spec->sinks) status = table_make(problem->gpu, &problem->sinks, 4 * (size_t)spec->shape.heads, error);
  for (int s = 0; s < spec->sets && !status; s++) status = make_set(problem, &problem->sets[s], error);
  return status;
}

static void fill_args(dw__gpu_problem *problem) {
  const dw__gpu_spec *spec = &problem->spec;
  dw_args *args = &problem->args;
  args->size = sizeof *args;
  args->q = problem->q;
  args->out = problem->out.device + GUARD;
  if (!spec->no_lse) args->lse = (float *)(problem->lse.device + GUARD);
  args->q_rope = problem->q_rope;
  args->lse_base_e = spec->lse_base_e;
  args->qo_indptr = problem->qo_indptr.device;
  args->batch = spec->batch;
  args->total_q = total_rows(problem);
  args->width = spec->width;
  args->kv = problem->kv;
  args->kv_rope = problem->kv_rope;
  args->kv_scale = problem->stored_scale.device;
  args->v_scale = problem->v_stored_scale.device;
  if (spec->shape.attention == DW_GQA) args->v = (char *)plane_pool(problem, 1) + problem->planes[1].first * kv_bytes(spec);
  args->addressing = spec->addressing;
  args->kv_indptr = problem->kv_indptr.device;
  args->index64 = spec->addressing == DW_CSR && spec->index64;
  args->kv_len = problem->kv_len.device;
  args->lengths_include_drafts = spec->lengths_include_drafts;
  args->mask_kind = spec->mask_kind;
  args->mask = problem->mask.device;
  args->mask_indptr = problem->mask_indptr.device;
  if (spec->mask_kind == DW_MASK_BITS) args->mask_row_stride = mask_words(spec);
  if (is_matrix(spec)) {
    args->mask_row_stride = matrix_row(spec);
    args->mask_request_stride = matrix_size(spec);
    args->mask_shared = spec->mask_shared;
  }
  args->drafts_elsewhere = spec->drafts_elsewhere;
  args->window = spec->window;
  args->positions = problem->positions.device;
  args->soft_cap = spec->soft_cap;
  args->sinks = problem->sinks.device;
  args->overlap_prologue = spec->overlap_prologue;
  if (spec->addressing == DW_BLOCK_TABLE) {
    args->table_columns = table_columns(spec);
    args->block_table_stride = table_stride(spec);
  }
  args->softmax_scale =
    1 / sqrtf((float)spec->shape.head_dim_qk / (spec->shape.attention == DW_MLA ? 3.f : 1.f));  // as problem.c
}

static dw_status make_all(dw__gpu_problem *problem, dw_error *error) {
  const dw__gpu_spec *spec = &problem->spec;
  void *count = NULL;
  problem->unit = spec->addressing == DW_CSR && spec->scatter ? 1 : spec->shape.page;
  problem->prefix = dw__calloc((size_t)spec->batch, sizeof *problem->prefix);
  problem->rows = dw__calloc((size_t)spec->batch, sizeof *problem->rows);
  problem->sets = dw__calloc((size_t)spec->sets, sizeof *problem->sets);
  if (!problem->prefix || !problem->rows || !problem->sets)
    return dw__fail(error, DW_OUT_OF_MEMORY, "gpu_problem", "", "", NULL);
  choose_strides(problem);
  dw_status status = make_q_and_out(problem, error);
  if (!status) status = make_pool(problem, error);
  if (!status) status = make_tables(problem, error);
  if (!status) status = dw__gpu_alloc(problem->gpu, 256, &count, error);
  problem->count = count;
  if (!status) fill_args(problem);
  return status;
}

dw_status dw__gpu_problem_make(const dw__gpu_tools *tools, const dw__gpu_spec *spec, dw__gpu_problem **result,
                               dw_error *error) {
  *result = NULL;
  dw_status status = check(spec, error);
  if (status) return status;
  dw__gpu_problem *problem = dw__calloc(1, sizeof *problem);
  if (!problem) return dw__fail(error, DW_OUT_OF_MEMORY, "gpu_problem", "", "", NULL);
  problem->tools = tools;
  problem->gpu = dw__gpu_tools_gpu(tools);
  problem->spec = *spec;
  status = make_all(problem, error);
  if (status) dw__gpu_problem_free(problem);
  else *result = problem;
  return status;
}

void dw__gpu_problem_free(dw__gpu_problem *problem) {
  if (!problem) return;
  dw__gpu *gpu = problem->gpu;
  table *tables[] = {&problem->kv_len,         &problem->qo_indptr, &problem->kv_indptr, &problem->mask,
                     &problem->mask_indptr,    &problem->positions, &problem->sinks,     &problem->stored_scale,
                     &problem->v_stored_scale, &problem->used};
  for (size_t i = 0; i < DW__COUNT(tables); i++) table_free(gpu, tables[i]);
  for (int s = 0; problem->sets && s < problem->spec.sets; s++) {
    table_free(gpu, &problem->sets[s].indices);
    table_free(gpu, &problem->sets[s].drafts);
    table_free(gpu, &problem->sets[s].pages);
  }
  guarded_free(gpu, &problem->out);
  guarded_free(gpu, &problem->lse);
  void *blocks[] = {problem->q, problem->q_rope, problem->kv, problem->kv_rope, problem->v, problem->count};
  for (size_t i = 0; i < DW__COUNT(blocks); i++)
    if (blocks[i]) dw__gpu_free(gpu, blocks[i]);
  dw__release(problem->prefix);
  dw__release(problem->rows);
  dw__release(problem->sets);
  dw__release(problem->order);
  dw__release(problem->leading);
  dw__release(problem);
}

// ---- writing: lengths and trees -------------------------------------------------------------------------------

enum {
  STREAM_TREE = 1,
  STREAM_ORDER,
  STREAM_Q,
  STREAM_KV,
  STREAM_Q_ROPE,
  STREAM_KV_ROPE,
  STREAM_VIEW,
  STREAM_SCALARS,
  STREAM_V
};
static uint64_t stream(uint64_t seed, int kind, int i) {
  uint64_t state = seed ^ (uint64_t)kind << 56;
  state = dw__random(&state) ^ (uint64_t)i;
  return dw__random(&state);
}

static dw_status take_contents(dw__gpu_problem *problem, const dw__gpu_contents *contents, dw_error *error) {
  const dw__gpu_spec *spec = &problem->spec;
  problem->owned_rows = 0;
  for (int b = 0; b < spec->batch; b++) {
    int rows = contents->rows ? contents->rows[b] : width_of(spec), least = spec->lengths_include_drafts ? -rows : 0;
    if (contents->prefix[b] < least || contents->prefix[b] > spec->longest)
      return dw__fail_int(error, DW_BAD_ARGUMENT, "prefix", contents->prefix[b], "0 to the problem's longest", "request %d", b);
    if (rows < 0 || rows > width_of(spec) || (!spec->ragged && rows != width_of(spec)))
      return dw__fail_int(error, DW_BAD_ARGUMENT, "rows", rows, "0 to the width, the width if not ragged", "request %d", b);
    problem->prefix[b] = contents->prefix[b];
    problem->rows[b] = rows;
    problem->owned_rows += rows;
  }
  return DW_OK;
}

// Tokens of a request that are in the pool.
static int tokens_of(const dw__gpu_problem *problem, int b) {
  return problem->prefix[b] + (problem->spec.drafts_elsewhere ? 0 : problem->rows[b]);
}
static int committed(const dw__gpu_problem *problem, int b) { return problem->prefix[b] > 0 ? problem->prefix[b] : 0; }

static void write_lengths(dw__gpu_problem *problem) {
  const dw__gpu_spec *spec = &problem->spec;
  int32_t *kv_len = (int32_t *)problem->kv_len.host, *qo = (int32_t *)problem->qo_indptr.host;
  int32_t *kv = (int32_t *)problem->kv_indptr.host;
  for (int b = 0; b < spec->batch; b++) {
    kv_len[b] = problem->prefix[b] + (spec->lengths_include_drafts ? problem->rows[b] : 0);
    if (qo) qo[b + 1] = qo[b] + problem->rows[b];
    if (kv) kv[b + 1] = kv[b] + (spec->draft_slots ? problem->prefix[b] : tokens_of(problem, b));
  }
}

static void make_tree(const dw__gpu_problem *problem, uint64_t seed, int request, int nodes, int *parents) {
  const dw__gpu_spec *spec = &problem->spec;
  uint64_t state = stream(seed, STREAM_TREE, request);
  if (spec->tree == DW__TREE_RANDOM) dw__tree_random(&state, nodes, parents);
  for (int i = 0; i < nodes && spec->tree != DW__TREE_RANDOM; i++)
    parents[i] = i == 0 ? -1 : spec->tree == DW__TREE_STAR ? 0 : i - 1;
  if (spec->mask_kind != DW_MASK_PARENTS || !spec->dead_nodes) return;
  for (int i = 0; i < nodes; i++) {
    if (dw__random_below(&state, 8)) continue;
    for (int j = i + 1; j < nodes; j++)  // a dead node has no children
      if (parents[j] == i) parents[j] = parents[i];
    parents[i] = -2;
  }
}

// Who sees whom: [nodes, nodes], a byte each.
static void make_view(const dw__gpu_problem *problem, uint64_t seed, int request, int nodes, const int *parents,
                      unsigned char *view) {
  uint64_t state = stream(seed, STREAM_VIEW, request);
  for (int i = 0; i < nodes; i++) {
    unsigned char *row = view + (size_t)i * (size_t)nodes;
    if (problem->spec.any_mask) {
      int share = dw__random_below(&state, 4);  // of four: some rows see nothing, some nearly all
      for (int j = 0; j < nodes; j++) row[j] = dw__random_below(&state, 4) < share;
      continue;
    }
    if (parents[i] >= 0) memcpy(row, view + (size_t)parents[i] * (size_t)nodes, (size_t)nodes);
    else memset(row, 0, (size_t)nodes);
    row[i] = 1;
  }
}

// Drafts that are not there look as if they were seen.
static void write_bits(const unsigned char *view, int nodes, int words, uint32_t *rows) {
  for (int i = 0; i < nodes; i++)
    for (int j = 0; j < 32 * words; j++) {
      uint32_t *word = &rows[(size_t)i * (size_t)words + (size_t)j / 32], bit = 1u << (j % 32);
      if (j >= nodes || view[(size_t)i * (size_t)nodes + (size_t)j]) *word |= bit;
      else *word &= ~bit;
    }
}

// Any byte but 0 means yes.
static void write_bytes(uint64_t *state, const unsigned char *view, int nodes, int64_t stride, unsigned char *to) {
  for (int i = 0; i < nodes; i++)
    for (int j = 0; j < nodes; j++)
      to[i * stride + j] = view[(size_t)i * (size_t)nodes + (size_t)j] ? (unsigned char)(1 << dw__random_below(state, 8)) : 0;
}

static void write_bias(const unsigned char *view, int nodes, int64_t stride, float *to) {
  for (int i = 0; i < nodes; i++)
    for (int j = 0; j < nodes; j++) to[i * stride + j] = view[(size_t)i * (size_t)nodes + (size_t)j] ? 0.f : -INFINITY;
}

// Of BYTES_FULL the prefix's columns are 0, as if it were hidden: nobody reads them.
static int64_t write_full(dw__gpu_problem *problem, uint64_t *state, const unsigned char *view, int b, int64_t at) {
  int nodes = problem->rows[b];
  int64_t columns = (int64_t)committed(problem, b) + nodes;
  unsigned char *to = (unsigned char *)problem->mask.host + at;
  memset(to, 0, (size_t)(nodes * columns));
  write_bytes(state, view, nodes, columns, to + committed(problem, b));
  return at + nodes * columns;
}

// One request's part; a shared matrix is the first request's, with as many rows as any may have.
static void write_request_mask(dw__gpu_problem *problem, uint64_t seed, int b, int64_t row, const int *parents,
                               const unsigned char *view, int nodes) {
  const dw__gpu_spec *spec = &problem->spec;
  uint64_t state = stream(seed, STREAM_VIEW, -1 - b);
  char *host = problem->mask.host;
  int64_t *indptr = (int64_t *)problem->mask_indptr.host, matrix = b * matrix_size(spec);
  switch (spec->mask_kind) {
    case DW_MASK_NONE:
    case DW_MASK_STATIC: break;
    case DW_MASK_PARENTS: memcpy((int32_t *)host + row, parents, (size_t)nodes * sizeof *parents); break;
    case DW_MASK_BITS: write_bits(view, nodes, mask_words(spec), (uint32_t *)host + row * mask_words(spec)); break;
    case DW_MASK_BYTES_QLEN: write_bytes(&state, view, nodes, matrix_row(spec), (unsigned char *)host + matrix); break;
    case DW_MASK_BYTES_FULL:
      if (b == 0) indptr[0] = full_gap(spec);
      indptr[b + 1] = write_full(problem, &state, view, b, indptr[b]) + full_gap(spec);
      break;
    case DW_MASK_BIAS_F32: write_bias(view, nodes, matrix_row(spec), (float *)host + matrix); break;
  }
}

// What nobody may read says "seen". With drafts elsewhere nothing of it is read: all would be dead.
static void poison_mask(dw__gpu_problem *problem) {
  const dw__gpu_spec *spec = &problem->spec;
  memset(problem->mask.host, spec->mask_kind == DW_MASK_BIAS_F32 ? 0 : 0xED, problem->mask.bytes);
  if (!spec->drafts_elsewhere || spec->mask_kind != DW_MASK_PARENTS) return;
  for (size_t i = 0; i < problem->mask.bytes / 4; i++) ((int32_t *)problem->mask.host)[i] = -2;
}

static dw_status write_mask(dw__gpu_problem *problem, uint64_t seed, dw_error *error) {
  const dw__gpu_spec *spec = &problem->spec;
  size_t width = (size_t)width_of(spec);
  if (!problem->mask.host) return DW_OK;
  int *parents = dw__calloc(width, sizeof *parents);
  unsigned char *view = spec->mask_kind == DW_MASK_PARENTS ? NULL : dw__calloc(width * width, 1);
  dw_status status = DW_OK;
  if (!parents || (!view && spec->mask_kind != DW_MASK_PARENTS))
    status = dw__fail(error, DW_OUT_OF_MEMORY, "gpu_problem", "", "", NULL);
  else poison_mask(problem);
  bool shared = is_matrix(spec) && spec->mask_shared;
  int64_t row = 0;
  int matrices = spec->drafts_elsewhere ? 0 : shared ? 1 : spec->batch;
  for (int b = 0; b < matrices && !status; b++) {
    int nodes = shared ? (int)width : problem->rows[b];
    make_tree(problem, seed, b, nodes, parents);
    if (view) make_view(problem, seed, b, nodes, parents, view);
    write_request_mask(problem, seed, b, row, parents, view, nodes);
    row += nodes;
  }
  dw__release(parents);
  dw__release(view);
  return status;
}

// Positions need not follow the tree. Sinks around the size of scores, some none, some that take nearly all.
static void write_scalars(dw__gpu_problem *problem, uint64_t seed) {
  uint64_t state = stream(seed, STREAM_SCALARS, 0);
  int32_t *positions = (int32_t *)problem->positions.host;
  float *sinks = (float *)problem->sinks.host;
  if (positions) memset(positions, 0x80, problem->positions.bytes);
  // Nobody looks where a dead node stands.
  const int32_t *parents = problem->spec.mask_kind == DW_MASK_PARENTS ? (int32_t *)problem->mask.host : NULL;
  for (int b = 0; b < problem->spec.batch && positions; b++)
    for (int i = 0; i < problem->rows[b]; i++, parents += parents ? 1 : 0) {
      int own = committed(problem, b) + dw__random_below(&state, problem->rows[b] + 3);
      *positions++ = parents && *parents == -2 ? INT32_MIN : own;
    }
  for (int h = 0; h < problem->spec.shape.heads && sinks; h++) {
    int draw = dw__random_below(&state, 8);
    sinks[h] = draw == 0 ? -INFINITY : draw == 1 ? 20 : (float)(2 * dw__random_normal(&state));
  }
  if (problem->stored_scale.host) memcpy(problem->stored_scale.host, &problem->spec.stored_scale, sizeof(float));
  if (problem->v_stored_scale.host) memcpy(problem->v_stored_scale.host, &problem->spec.v_stored_scale, sizeof(float));
}

// ---- writing: places ------------------------------------------------------------------------------------------

// Unit 0 is handed out last, so that a place that was never set is never right by luck.
static void shuffle_units(dw__gpu_problem *problem, uint64_t seed) {
  int count = (int)(problem->pool_tokens / problem->unit);
  uint64_t state = stream(seed, STREAM_ORDER, 0);
  for (int i = 0; i < count; i++) problem->order[i] = (problem->spec.shuffle < 0 ? 2 * count - 1 - i : i + 1) % count;
  for (int i = count - 1; i > 0 && problem->spec.shuffle > 0; i--) {
    int j = dw__random_below(&state, i + 1), unit = problem->order[i];
    problem->order[i] = problem->order[j];
    problem->order[j] = unit;
  }
  problem->taken = 0;
}

// Sets share the pool: where it has been handed out, it starts again.
static int64_t next_unit(dw__gpu_problem *problem) {
  int64_t count = problem->pool_tokens / problem->unit;
  return problem->order[problem->taken++ % count];
}

static void put_index(const dw__gpu_problem *problem, void *list, int64_t i, int64_t slot) {
  if (problem->spec.index64) ((int64_t *)list)[i] = slot;
  else ((int32_t *)list)[i] = (int32_t)slot;
}

// Half of what a request's prefix has in common with the first one's, in whole units.
static int shared_tokens(const dw__gpu_problem *problem, int b) {
  if (!problem->spec.share || b == 0) return 0;
  int least = committed(problem, b) < committed(problem, 0) ? committed(problem, b) : committed(problem, 0);
  return (int)(least / 2 / problem->unit * problem->unit);
}
// A row that a graph was padded with: fewer tokens than drafts, all of them in the pool's first unit.
static bool is_padded(const dw__gpu_problem *problem, int b) { return problem->spec.share && problem->prefix[b] < 0; }

static void write_request(dw__gpu_problem *problem, slot_set *set, int b, int64_t first_row) {
  const dw__gpu_spec *spec = &problem->spec;
  int64_t slot = 0, begin = spec->addressing == DW_CSR ? ((int32_t *)problem->kv_indptr.host)[b] : 0;
  int32_t *pages = (int32_t *)set->pages.host + (spec->addressing == DW_CSR ? 0 : (int64_t)b * table_stride(spec));
  int shared = shared_tokens(problem, b);
  for (int token = 0; token < tokens_of(problem, b); token++) {
    if (token < shared) slot = problem->leading[token];
    else if (is_padded(problem, b)) slot = token % problem->unit;
    else slot = token % problem->unit ? slot + 1 : next_unit(problem) * problem->unit;
    problem->used.host[slot] = 1;
    if (b == 0 && token < problem->prefix[0]) problem->leading[token] = (int)slot;
    if (spec->addressing == DW_BLOCK_TABLE) {
      pages[token / spec->shape.page] = (int32_t)(slot / spec->shape.page);
    } else if (spec->draft_slots && token >= problem->prefix[b]) {
      put_index(problem, set->drafts.host, first_row + token - problem->prefix[b], slot);
    } else {
      put_index(problem, set->indices.host, begin + token, slot);
    }
  }
}

// Entries that nobody may use name a place far outside.
static void poison_table(table *t, int size) {
  for (size_t i = 0; i < t->bytes / (size_t)size; i++) {
    if (size == 8) ((int64_t *)t->host)[i] = 0x3FFFFFFF;
    else ((int32_t *)t->host)[i] = 0x3FFFFFFF;
  }
}

static dw_status write_set(dw__gpu_problem *problem, slot_set *set, dw_error *error) {
  int64_t row = 0;
  int index = problem->spec.index64 ? 8 : 4;
  poison_table(&set->indices, index);
  poison_table(&set->drafts, index);
  poison_table(&set->pages, 4);
  for (int b = 0; b < problem->spec.batch; b++) {
    write_request(problem, set, b, row);
    row += problem->rows[b];
  }
  dw_status status = table_write(problem->gpu, &set->indices, error);
  if (!status) status = table_write(problem->gpu, &set->drafts, error);
  return status ? status : table_write(problem->gpu, &set->pages, error);
}

// ---- writing: numbers -----------------------------------------------------------------------------------------

static dw_status fill(dw__gpu_problem *problem, dw_tool_fill_params *params, dw_error *error) {
  unsigned blocks = (unsigned)dw__gpu_device(problem->gpu)->sm_count * 8;
  int64_t needed = dw__ceil_div(params->units, 8);
  if (needed < 1) return DW_OK;
  if (blocks > needed) blocks = (unsigned)needed;
  return dw__gpu_tool_run(problem->tools, DW__TOOL_FILL, blocks, 1, 1, params, error);
}

static dw_status write_q(dw__gpu_problem *problem, uint64_t seed, dw_error *error) {
  const dw_shape *shape = &problem->spec.shape;
  dw_tool_fill_params params = {
    .to = problem->q,
    .seed = stream(seed, STREAM_Q, 0),
    .units = (long long)problem->owned_rows * shape->heads,
    .page_stride = problem->args.q_row_stride,
    .unit_stride = problem->args.q_head_stride,
    .page = shape->heads,
    .elements = q_part(&problem->spec),
    .scale = problem->spec.q_scale,
    .type = shape->q,
  };
  dw_status status = dw__gpu_fill_word(problem->gpu, problem->q, POISON_WORD, problem->q_bytes, error);
  if (!status) status = fill(problem, &params, error);
  if (status || !problem->q_rope) return status;
  params.to = problem->q_rope;
  params.seed = stream(seed, STREAM_Q_ROPE, 0);
  params.page_stride = problem->args.q_rope_row_stride;
  params.unit_stride = problem->args.q_rope_head_stride;
  params.elements = rope_of(shape);
  status = dw__gpu_fill_word(problem->gpu, problem->q_rope, POISON_WORD, problem->q_rope_bytes, error);
  return status ? status : fill(problem, &params, error);
}

static uint32_t kv_poison(const dw__gpu_problem *problem) { return kv_bytes(&problem->spec) == 1 ? POISON_E4M3 : POISON_WORD; }

// Standard deviation of what is stored.
static float stored_deviation(const dw__gpu_spec *spec, float stored) {
  return (spec->kv_scale > 0 ? spec->kv_scale : 1) / (stored > 0 ? stored : 1);
}

static dw_status write_planes(dw__gpu_problem *problem, uint64_t seed, dw_error *error) {
  const dw__gpu_spec *spec = &problem->spec;
  const uint32_t poison = kv_poison(problem);
  dw_status status = dw__gpu_fill_word(problem->gpu, problem->kv, poison, problem->kv_bytes, error);
  if (!status && problem->v) status = dw__gpu_fill_word(problem->gpu, problem->v, poison, problem->v_bytes, error);
  for (int i = 0; i < 2 * spec->shape.kv_heads && !status; i++) {
    const dw__plane *plane = &problem->planes[i % 2];
    dw_tool_fill_params params = {
      .to = (char *)plane_pool(problem, i % 2) + (plane->first + i / 2 * plane->head) * kv_bytes(spec),
      .used = spec->poison ? problem->used.device : NULL,
      .seed = stream(seed, i % 2 ? STREAM_V : STREAM_KV, i / 2),
      .units = problem->pool_tokens,
      .page_stride = plane->page,
      .unit_stride = plane->token,
      .page = spec->shape.page,
      .elements = plane->size,
      .scale = stored_deviation(spec, i % 2 ? spec->v_stored_scale : spec->stored_scale),
      .type = spec->shape.kv,
    };
    status = fill(problem, &params, error);
  }
  return status;
}

static dw_status write_kv(dw__gpu_problem *problem, uint64_t seed, dw_error *error) {
  if (problem->spec.shape.attention == DW_GQA) return write_planes(problem, seed, error);
  dw_tool_fill_params params = {
    .to = problem->kv,
    .used = problem->spec.poison ? problem->used.device : NULL,
    .seed = stream(seed, STREAM_KV, 0),
    .units = problem->pool_tokens,
    .page_stride = problem->args.kv_page_stride,
    .unit_stride = problem->args.kv_token_stride,
    .page = problem->spec.shape.page,
    .elements = problem->spec.kv_rope ? problem->spec.shape.head_dim_v : problem->spec.shape.head_dim_qk,
    .scale = stored_deviation(&problem->spec, problem->spec.stored_scale),
    .type = problem->spec.shape.kv,
  };
  dw_status status = dw__gpu_fill_word(problem->gpu, problem->kv, kv_poison(problem), problem->kv_bytes, error);
  if (!status) status = fill(problem, &params, error);
  if (status || !problem->kv_rope) return status;
  params.to = problem->kv_rope;
  params.seed = stream(seed, STREAM_KV_ROPE, 0);
  params.page_stride = problem->args.kv_rope_page_stride;
  params.unit_stride = problem->args.kv_rope_token_stride;
  params.elements = rope_of(&problem->spec.shape);
  status = dw__gpu_fill_word(problem->gpu, problem->kv_rope, kv_poison(problem), problem->kv_rope_bytes, error);
  return status ? status : fill(problem, &params, error);
}

dw_status dw__gpu_problem_write(dw__gpu_problem *problem, const dw__gpu_contents *contents, dw_error *error) {
  dw_status status = take_contents(problem, contents, error);
  if (status) return status;
  write_lengths(problem);
  status = write_mask(problem, contents->seed, error);
  write_scalars(problem, contents->seed);
  shuffle_units(problem, contents->seed);
  memset(problem->used.host, 0, problem->used.bytes);
  for (int s = 0; s < problem->spec.sets && !status; s++) status = write_set(problem, &problem->sets[s], error);
  const table *tables[] = {&problem->kv_len,         &problem->qo_indptr, &problem->kv_indptr, &problem->mask,
                           &problem->mask_indptr,    &problem->positions, &problem->sinks,     &problem->stored_scale,
                           &problem->v_stored_scale, &problem->used};
  for (size_t i = 0; i < DW__COUNT(tables) && !status; i++) status = table_write(problem->gpu, tables[i], error);
  if (!status) status = write_q(problem, contents->seed, error);
  if (!status) status = write_kv(problem, contents->seed, error);
  return status ? status : dw__gpu_sync(problem->gpu, error);
}

// ---- reading --------------------------------------------------------------------------------------------------

static void fill_counts(const dw__gpu_problem *problem, int set, dw_args *args) {
  const size_t index = problem->spec.index64 ? 8 : 4;
  const slot_set *own = &problem->sets[set];
  args->kv_len_count = (int64_t)(problem->kv_len.bytes / 4);
  args->qo_indptr_count = (int64_t)(problem->qo_indptr.bytes / 4);
  args->kv_indptr_count = (int64_t)(problem->kv_indptr.bytes / 4);
  args->kv_indices_count = (int64_t)(own->indices.bytes / index);
  args->draft_slots_count = (int64_t)(own->drafts.bytes / index);
  args->block_table_count = (int64_t)(own->pages.bytes / 4);
  args->mask_size = (int64_t)problem->mask.bytes;
}

dw_args dw__gpu_problem_args(const dw__gpu_problem *problem, int set) {
  dw_args args = problem->args;
  args.kv_indices = problem->sets[set].indices.device;
  args.draft_slots = problem->sets[set].drafts.device;
  args.block_table = problem->sets[set].pages.device;
  args.kv_pages = (int)(problem->pool_tokens / problem->spec.shape.page);
  fill_counts(problem, set, &args);
  if (problem->spec.strided) return args;
  // Tight ones are left to the callee to fill in.
  args.q_row_stride = args.q_head_stride = args.out_row_stride = args.out_head_stride = args.lse_row_stride = 0;
  args.block_table_stride = args.mask_row_stride = args.mask_request_stride = 0;
  if (!problem->spec.planes) {
    args.kv_token_stride = args.kv_page_stride = args.kv_head_stride = 0;
    args.v_token_stride = args.v_page_stride = args.v_head_stride = 0;
  }
  args.q_rope_row_stride = args.q_rope_head_stride = args.kv_rope_token_stride = args.kv_rope_page_stride = 0;
  if (!problem->spec.ragged) args.total_q = 0;
  return args;
}

dw_bounds dw__gpu_problem_bounds(const dw__gpu_problem *problem) {
  const dw__gpu_spec *spec = &problem->spec;
  return (dw_bounds){.size = sizeof(dw_bounds),
                     .batch = spec->batch,
                     .total_q = total_rows(problem),
                     .kv_len = spec->longest + spec->shape.width,
                     .sm_count = dw__gpu_device(problem->gpu)->sm_count};
}

const int *dw__gpu_problem_prefix(const dw__gpu_problem *problem) { return problem->prefix; }
const int *dw__gpu_problem_rows(const dw__gpu_problem *problem) { return problem->rows; }

int dw__gpu_problem_most_tokens(const dw__gpu_problem *problem) {
  int most = 0;
  for (int b = 0; b < problem->spec.batch; b++)
    if (tokens_of(problem, b) > most) most = tokens_of(problem, b);
  return most;
}

static int64_t slot_of(const dw__gpu_problem *problem, int b, int token) {
  const dw__gpu_spec *spec = &problem->spec;
  const slot_set *set = &problem->sets[0];
  if (spec->addressing == DW_BLOCK_TABLE) {
    const int32_t *pages = (int32_t *)set->pages.host + (int64_t)b * table_stride(spec);
    return (int64_t)pages[token / spec->shape.page] * spec->shape.page + token % spec->shape.page;
  }
  int64_t first_row = 0;
  for (int i = 0; i < b; i++) first_row += problem->rows[i];
  bool apart = spec->draft_slots && token >= problem->prefix[b];
  const void *list = apart ? set->drafts.host : set->indices.host;
  int64_t at = apart ? first_row + token - problem->prefix[b] : ((int32_t *)problem->kv_indptr.host)[b] + token;
  return spec->index64 ? ((const int64_t *)list)[at] : ((const int32_t *)list)[at];
}

dw_status dw__gpu_problem_spoil(dw__gpu_problem *problem, int request, int token, dw_error *error) {
  const dw_args *args = &problem->args;
  int page = problem->spec.shape.page;
  int64_t slot = slot_of(problem, request, token);
  if (problem->spec.shape.attention == DW_GQA) {
    dw_status status = DW_OK;
    for (int i = 0; i < 2 * problem->spec.shape.kv_heads && !status; i++) {
      const dw__plane *plane = &problem->planes[i % 2];
      const size_t each = (size_t)kv_bytes(&problem->spec),
                   place = (size_t)dw__plane_place(&problem->spec.shape, plane, slot, i / 2);
      status = dw__gpu_fill_word(problem->gpu, (char *)plane_pool(problem, i % 2) + place * each, kv_poison(problem),
                                 each * (size_t)plane->size, error);
    }
    return status;
  }
  int64_t at = slot / page * args->kv_page_stride + slot % page * args->kv_token_stride;
  const int each = kv_bytes(&problem->spec);
  dw_status status = dw__gpu_fill_word(problem->gpu, (char *)problem->kv + at * each, kv_poison(problem),
                                       (size_t)(each * kv_part(&problem->spec)), error);
  if (status || !problem->kv_rope) return status;
  at = slot / page * args->kv_rope_page_stride + slot % page * args->kv_rope_token_stride;
  return dw__gpu_fill_word(problem->gpu, (char *)problem->kv_rope + at * each, kv_poison(problem),
                           (size_t)(each * rope_of(&problem->spec.shape)), error);
}

// ---- outputs --------------------------------------------------------------------------------------------------

dw_status dw__gpu_problem_poison(dw__gpu_problem *problem, dw_error *error) {
  guarded *outputs[] = {&problem->out, &problem->lse};
  dw_status status = DW_OK;
  for (int i = 0; i < 2 && !status; i++)
    status = dw__gpu_fill_word(problem->gpu, outputs[i]->device, POISON_WORD, outputs[i]->bytes + 2 * GUARD, error);
  return status;
}

static dw_status run_count(dw__gpu_problem *problem, dw__tool tool, dw_tool_count_params *params, dw_error *error) {
  int64_t blocks = dw__ceil_div(params->elements, 256), most = (int64_t)dw__gpu_device(problem->gpu)->sm_count * 8;
  params->count = problem->count;
  params->poison = params->element_bytes == 4 ? POISON_WORD : POISON_WORD & 0xFFFF;
  return blocks ? dw__gpu_tool_run(problem->tools, tool, (unsigned)(blocks < most ? blocks : most), 1, 1, params, error)
                : DW_OK;
}

static dw_status read_count(dw__gpu_problem *problem, uint32_t *value, dw_error *error) {
  return dw__gpu_download(problem->gpu, value, problem->count, sizeof *value, error);
}

static dw_status count_outside(dw__gpu_problem *problem, int rows, uint32_t *written, dw_error *error) {
  const dw_shape *shape = &problem->spec.shape;
  const dw_args *args = &problem->args;
  int size = (int)dw__dtype_size(shape->out);
  dw_tool_count_params out = {
    .data = problem->out.device,
    .elements = (long long)(problem->out.bytes + 2 * GUARD) / size,
    .lead = GUARD / size,
    .row_stride = args->out_row_stride,
    .head_stride = args->out_head_stride,
    .rows = rows,
    .element_bytes = size,
    .heads = shape->heads,
    .head_elements = shape->head_dim_v,
  };
  dw_tool_count_params lse = {
    .data = problem->lse.device,
    .elements = (long long)(problem->lse.bytes + 2 * GUARD) / 4,
    .lead = GUARD / 4,
    .row_stride = args->lse_row_stride,
    .head_stride = 1,
    .rows = problem->spec.no_lse ? 0 : rows,
    .element_bytes = 4,
    .heads = shape->heads,
    .head_elements = 1,
  };
  dw_status status = dw__gpu_fill(problem->gpu, problem->count, 0, 4, error);
  if (!status) status = run_count(problem, DW__TOOL_OUTSIDE, &out, error);
  if (!status) status = run_count(problem, DW__TOOL_OUTSIDE, &lse, error);
  return status ? status : read_count(problem, written, error);
}

dw_status dw__gpu_problem_outside(dw__gpu_problem *problem, uint32_t *written, dw_error *error) {
  return count_outside(problem, problem->owned_rows, written, error);
}

dw_status dw__gpu_problem_written(dw__gpu_problem *problem, uint32_t *written, dw_error *error) {
  return count_outside(problem, 0, written, error);
}

dw_status dw__gpu_problem_keep(dw__gpu_problem *problem, dw_error *error) {
  dw_status status = dw__gpu_copy(problem->gpu, problem->out.kept, problem->out.device + GUARD, problem->out.bytes, error);
  if (status) return status;
  return dw__gpu_copy(problem->gpu, problem->lse.kept, problem->lse.device + GUARD, problem->lse.bytes, error);
}

dw_status dw__gpu_problem_differ(dw__gpu_problem *problem, uint32_t *words, dw_error *error) {
  guarded *outputs[] = {&problem->out, &problem->lse};
  dw_status status = dw__gpu_fill(problem->gpu, problem->count, 0, 4, error);
  for (int i = 0; i < 2 && !status; i++) {
    dw_tool_count_params params = {.data = outputs[i]->device + GUARD,
                                   .other = outputs[i]->kept,
                                   .elements = (long long)(outputs[i]->bytes / 4),
                                   .element_bytes = 4};
    status = run_count(problem, DW__TOOL_DIFFER, &params, error);
  }
  return status ? status : read_count(problem, words, error);
}
