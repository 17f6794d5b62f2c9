// See oracle.h. Work is cut into items: some query vectors (a row and a head each) of one request and KV head. An item walks the request's
// tokens in blocks; a block is read once, widened to float (exact for bf16, fp16 and e4m3, to 2^-24 for a record's latents, which have
// their scales then) and used by all vectors of the item.
#include "oracle.h"

#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "problem.h"

enum { BLOCK = 32, ITEM_MOST = 64, ITEM_LEAST = 8, THREADS_MOST = 256 };

// Two doubles or four floats, one register of every 64-bit machine. Explicit, since a compiler may not reorder a sum by itself.
typedef double double2 __attribute__((vector_size(16), aligned(8), may_alias));
typedef float float4 __attribute__((vector_size(16), aligned(4), may_alias));

// ---- what the arguments say -----------------------------------------------------------------------------------

static int64_t or_else(int64_t value, int64_t normal) { return value ? value : normal; }

static int row_width(const dw_shape *shape, const dw_args *args) { return args->width ? args->width : shape->width; }

// Drafts follow the prefix. Where a length that includes the drafts is shorter than they are, the last ones are not there.
dw__request dw__oracle_request(const dw_shape *shape, const dw_args *args, int index) {
  dw__request request = {.index = index};
  int width = row_width(shape, args), length = args->kv_len[index] > 0 ? args->kv_len[index] : 0;
  request.first_row = args->qo_indptr ? args->qo_indptr[index] : index * width;
  request.rows = args->qo_indptr ? args->qo_indptr[index + 1] - request.first_row : width;
  request.tokens = args->lengths_include_drafts || args->drafts_elsewhere ? length : length + request.rows;
  request.prefix = request.tokens > request.rows ? request.tokens - request.rows : 0;
  if (args->drafts_elsewhere) request.prefix = length;  // what is here is prefix to every row
  return request;
}

static int64_t index_at(const void *list, int index64, int64_t i) {
  return index64 ? ((const int64_t *)list)[i] : ((const int32_t *)list)[i];
}

// The place of a token in the pool, counted in tokens.
static int64_t slot_of(const dw_shape *shape, const dw_args *args, int index, int token) {
  if (args->addressing == DW_BLOCK_TABLE) {
    int64_t stride = or_else(args->block_table_stride, args->table_columns);
    return (int64_t)args->block_table[index * stride + token / shape->page] * shape->page + token % shape->page;
  }
  if (args->draft_slots && !args->lengths_include_drafts) {
    dw__request request = dw__oracle_request(shape, args, index);
    if (token >= request.prefix) return index_at(args->draft_slots, args->index64, request.first_row + token - request.prefix);
  }
  return index_at(args->kv_indices, args->index64, (int64_t)args->kv_indptr[index] + token);
}

// A slot's place in a pool; strides of 0 are tight ones, for tokens of `size` elements.
static const void *in_pool(const dw_shape *shape, const void *pool, int64_t slot, int64_t page_stride, int64_t token_stride,
                           int64_t size) {
  token_stride = or_else(token_stride, size);
  page_stride = or_else(page_stride, shape->page * token_stride);
  int64_t element = slot / shape->page * page_stride + slot % shape->page * token_stride;
  return (const char *)pool + element * (int64_t)dw__dtype_size(shape->kv);
}

const void *dw__oracle_token(const dw_shape *shape, const dw_args *args, int index, int token) {
  int64_t size = dw__kv_part(shape, args->kv_rope);
  if (shape->attention == DW_GQA) size = shape->kv_heads * or_else(args->kv_head_stride, size);
  return in_pool(shape, args->kv, slot_of(shape, args, index, token), args->kv_page_stride, args->kv_token_stride, size);
}

static const void *of_head(const dw_shape *shape, const void *token, int kv_head, int64_t head_stride, int size) {
  return (const char *)token + kv_head * or_else(head_stride, size) * (int64_t)dw__dtype_size(shape->kv);
}

const void *dw__oracle_key(const dw_shape *shape, const dw_args *args, int index, int token, int kv_head) {
  return of_head(shape, dw__oracle_token(shape, args, index, token), kv_head, args->kv_head_stride, shape->head_dim_qk);
}

const void *dw__oracle_value(const dw_shape *shape, const dw_args *args, int index, int token, int kv_head) {
  int64_t all_heads = shape->kv_heads * or_else(args->v_head_stride, shape->head_dim_v);
  const void *at =
    in_pool(shape, args->v, slot_of(shape, args, index, token), args->v_page_stride, args->v_token_stride, all_heads);
  return of_head(shape, at, kv_head, args->v_head_stride, shape->head_dim_v);
}

const void *dw__oracle_token_rope(const dw_shape *shape, const dw_args *args, int index, int token) {
  if (!args->kv_rope)
    return (const char *)dw__oracle_token(shape, args, index, token) +
           (shape->kv == DW_RECORD656 ? DW__RECORD_ROPE : shape->head_dim_v * (int)dw__dtype_size(shape->kv));
  return in_pool(shape, args->kv_rope, slot_of(shape, args, index, token), args->kv_rope_page_stride,
                 args->kv_rope_token_stride, shape->head_dim_qk - shape->head_dim_v);
}

// The vector of a row and a head in q or q_rope.
static const void *in_q(const dw_shape *shape, const void *q, int64_t row, int head, int64_t row_stride, int64_t head_stride,
                        int size) {
  head_stride = or_else(head_stride, size);
  row_stride = or_else(row_stride, shape->heads * head_stride);
  return (const char *)q + (row * row_stride + head * head_stride) * (int64_t)dw__dtype_size(shape->q);
}

// Where a row of the mask begins, in its elements; draft 0 comes first.
static int64_t mask_row(const dw_shape *shape, const dw_args *args, const dw__request *request, int row) {
  int64_t width = row_width(shape, args), row_stride = or_else(args->mask_row_stride, width);
  int64_t request_stride = args->mask_shared ? 0 : or_else(args->mask_request_stride, width * row_stride);
  int64_t tokens = (int64_t)request->prefix + request->rows;
  switch (args->mask_kind) {
    case DW_MASK_BITS: return (request->first_row + row) * or_else(args->mask_row_stride, (width + 31) / 32);
    case DW_MASK_BYTES_QLEN:
    case DW_MASK_BIAS_F32: return request->index * request_stride + row * row_stride;
    case DW_MASK_BYTES_FULL: return args->mask_indptr[request->index] + row * tokens + request->prefix;
    default: return 0;
  }
}

// Masks that say for each row and draft whether it is seen; `at` is where the row begins.
static bool says(const dw_args *args, int64_t at, int row, int draft) {
  switch (args->mask_kind) {
    case DW_MASK_BITS: return ((const uint32_t *)args->mask)[at + draft / 32] >> (draft % 32) & 1;
    case DW_MASK_BYTES_QLEN:
    case DW_MASK_BYTES_FULL: return ((const unsigned char *)args->mask)[at + draft] != 0;
    case DW_MASK_BIAS_F32: return ((const float *)args->mask)[at + draft] == 0;
    default: return draft <= row;
  }
}

// A row's view of its request's drafts, a byte each, as the mask says. False: a dead node, which sees nothing at all.
static bool view_of(const dw_shape *shape, const dw_args *args, const dw__request *request, int row, unsigned char *view) {
  memset(view, 0, (size_t)request->rows);
  if (args->drafts_elsewhere) return true;
  if (args->mask_kind == DW_MASK_PARENTS) {
    const int32_t *parents = (const int32_t *)args->mask + request->first_row;
    for (int node = row; node >= 0; node = parents[node]) view[node] = parents[row] != -2;
    return parents[row] != -2;
  }
  if (args->mask_kind == DW_MASK_STATIC) {
    for (int node = row; node >= 0; node = shape->tree[node]) view[node] = 1;
    return true;
  }
  int64_t at = mask_row(shape, args, request, row);
  for (int j = 0; j < request->rows; j++) view[j] = says(args, at, row, j);
  return true;
}

// The row's token in its sequence: where the caller says, else behind the prefix and the other drafts that it sees. `view` is
// room for `rows` bytes.
static int64_t position_of(const dw_shape *shape, const dw_args *args, const dw__request *request, int row,
                           unsigned char *view) {
  if (args->positions) return args->positions[request->first_row + row];
  view_of(shape, args, request, row, view);
  int64_t position = request->prefix;
  for (int j = 0; j < request->rows; j++) position += j != row && view[j];
  return position;
}

// ---- one item -------------------------------------------------------------------------------------------------

typedef struct job job;

// An item in work; one a thread, its memory is reused from item to item.
typedef struct item {
  const job *job;
  int request, kv_head;
  int first, count;      // of the KV head's vectors [first, first + count); vector = row x (heads / kv_heads) + head
  int tokens;            // in the present block
  float *q;              // [ITEM_MOST, qk], rows past count are 0
  float *kv;             // [BLOCK, qk], rows past tokens are 0
  float *value;          // GQA: [BLOCK, v]; MLA: unused, V is the first part of kv's rows
  unsigned char *seen;   // [ITEM_MOST, BLOCK]
  unsigned char *views;  // [rows of the item, rows of the request]
  int64_t *positions;    // with a window: [rows of the request]
  int placed;            // the request whose positions these are, or -1
  unsigned char live[ITEM_MOST];
  int64_t start[ITEM_MOST];                // the first token that the window shows
  double most[ITEM_MOST], sum[ITEM_MOST];  // softmax: running maximum of the scores, sum of exp(score - maximum)
  void *wide_q, *wide_kv, *wide_value;     // the same as q, kv and value in the arithmetic's type
  void *scores, *out;                      // [ITEM_MOST, BLOCK], [ITEM_MOST, v]
} item;

typedef struct arithmetic {
  size_t size;                // of its number type
  void (*begin)(item *work);  // q is loaded
  void (*block)(item *work);  // kv, tokens and seen are loaded
  // What one vector comes to; lse in base e.
  void (*end)(item *work, int vector, double *out, double *lse);
} arithmetic;

struct job {
  const dw_shape *shape;
  const dw_args *args;
  const arithmetic *math;
  double *out, *lse;
  int item_vectors, items;
  int *first_item;  // [batch + 1]
  atomic_int next;
};

static void load(dw_dtype type, const void *from, int n, float *to) {
  const uint16_t *halves = from;
  if (type == DW_BF16) {
    for (int i = 0; i < n; i++) {
      uint32_t bits = (uint32_t)halves[i] << 16;
      memcpy(&to[i], &bits, sizeof bits);
    }
  } else {
    for (int i = 0; i < n; i++) to[i] = dw__to_float(type, (const char *)from + (size_t)i * dw__dtype_size(type));
  }
}

// A token of MLA.
static void load_record(const dw_shape *shape, const char *token, const void *rope, float *to) {
  const bool record = shape->kv == DW_RECORD656;
  const int v = shape->head_dim_v;
  load(record ? DW_E4M3 : shape->kv, token, v, to);
  load(record ? DW_BF16 : shape->kv, rope, shape->head_dim_qk - v, to + v);
  for (int d = 0; d < v && record; d++) {
    float scale;
    memcpy(&scale, token + DW__RECORD_SCALES + d / DW__RECORD_GROUP * 4, sizeof scale);
    to[d] *= scale;
  }
}

// Query heads of a KV head; the row and the head of an item's vector.
static int group_of(const dw_shape *shape) { return shape->heads / shape->kv_heads; }
static int row_of(const item *work, int i) { return (work->first + i) / group_of(work->job->shape); }
static int head_of(const item *work, int i) {
  int group = group_of(work->job->shape);
  return work->kv_head * group + (work->first + i) % group;
}

// What a stored element of K and of V counts for.
static double scale_of(const float *scale) { return scale ? (double)*scale : 1; }
static double key_scale(const job *all) { return scale_of(all->args->kv_scale); }
static double value_scale(const job *all) {
  return scale_of(all->shape->attention == DW_MLA ? all->args->kv_scale : all->args->v_scale);
}

static void load_q(item *work, const dw__request *request) {
  const dw_shape *shape = work->job->shape;
  const dw_args *args = work->job->args;
  int v = shape->head_dim_v, rope = shape->head_dim_qk - v, first = args->q_rope ? v : shape->head_dim_qk;
  memset(work->q, 0, ITEM_MOST * (size_t)shape->head_dim_qk * sizeof(float));
  for (int i = 0; i < work->count; i++) {
    int head = head_of(work, i);
    int64_t row = request->first_row + row_of(work, i);
    float *to = work->q + (size_t)i * (size_t)shape->head_dim_qk;
    load(shape->q, in_q(shape, args->q, row, head, args->q_row_stride, args->q_head_stride, first), first, to);
    if (args->q_rope)
      load(shape->q, in_q(shape, args->q_rope, row, head, args->q_rope_row_stride, args->q_rope_head_stride, rope), rope,
           to + v);
  }
}

static void load_positions(item *work, const dw__request *request) {
  const job *all = work->job;
  if (!all->args->window || work->placed == request->index) return;
  for (int row = 0; row < request->rows; row++)
    work->positions[row] = position_of(all->shape, all->args, request, row, work->views);
  work->placed = request->index;
}

// The window takes from the mask's view what lies too far back.
static void load_view(item *work, const dw__request *request, int row, unsigned char *view) {
  const job *all = work->job;
  int window = all->args->window;
  bool live = view_of(all->shape, all->args, request, row, view);
  int64_t start = window ? work->positions[row] - window + 1 : 0;
  for (int j = 0; j < request->rows && window; j++) view[j] = view[j] && work->positions[j] >= start;
  for (int i = 0; i < work->count; i++) {
    if (row_of(work, i) != row) continue;
    work->live[i] = live;
    work->start[i] = start;
  }
}

static void load_views(item *work, const dw__request *request) {
  int first = row_of(work, 0), last = row_of(work, work->count - 1);
  load_positions(work, request);
  for (int row = first; row <= last; row++)
    load_view(work, request, row, work->views + (size_t)(row - first) * (size_t)request->rows);
}

static void load_block(item *work, const dw__request *request, int token) {
  const dw_shape *shape = work->job->shape;
  int first_row = row_of(work, 0);
  size_t qk = (size_t)shape->head_dim_qk, v = (size_t)shape->head_dim_v;
  work->tokens = request->tokens - token < BLOCK ? request->tokens - token : BLOCK;
  for (int j = 0; j < work->tokens; j++) {
    float *to = work->kv + (size_t)j * qk;
    if (shape->attention == DW_GQA) {
      load(shape->kv, dw__oracle_key(shape, work->job->args, work->request, token + j, work->kv_head), (int)qk, to);
      load(shape->kv, dw__oracle_value(shape, work->job->args, work->request, token + j, work->kv_head), (int)v,
           work->value + (size_t)j * v);
      continue;
    }
    load_record(shape, dw__oracle_token(shape, work->job->args, work->request, token + j),
                dw__oracle_token_rope(shape, work->job->args, work->request, token + j), to);
  }
  memset(work->kv + (size_t)work->tokens * qk, 0, (size_t)(BLOCK - work->tokens) * qk * sizeof(float));
  memset(work->value + (size_t)work->tokens * v, 0, (size_t)(BLOCK - work->tokens) * v * sizeof(float));
  for (int i = 0; i < work->count; i++) {
    const unsigned char *view = work->views + (size_t)(row_of(work, i) - first_row) * (size_t)request->rows;
    for (int j = 0; j < work->tokens; j++) {
      int draft = token + j - request->prefix;
      work->seen[i * BLOCK + j] = work->live[i] && (draft < 0 ? token + j >= work->start[i] : view[draft]);
    }
  }
}

// A sink is there before the first token: the largest score so far, of weight 1.
static void load_sinks(item *work) {
  const float *sinks = work->job->args->sinks;
  for (int i = 0; i < ITEM_MOST; i++) work->most[i] = -INFINITY, work->sum[i] = 0;
  for (int i = 0; i < work->count && sinks; i++) {
    float sink = sinks[head_of(work, i)];
    if (!work->live[i] || sink == -INFINITY) continue;
    work->most[i] = (double)sink;
    work->sum[i] = 1;
  }
}

static void run_item(item *work) {
  const job *all = work->job;
  dw__request request = dw__oracle_request(all->shape, all->args, work->request);
  load_q(work, &request);
  load_views(work, &request);
  load_sinks(work);
  all->math->begin(work);
  for (int token = 0; token < request.tokens; token += BLOCK) {
    load_block(work, &request, token);
    all->math->block(work);
  }
  for (int i = 0; i < work->count; i++) {
    size_t vector = (size_t)(request.first_row + row_of(work, i)) * (size_t)all->shape->heads + (size_t)head_of(work, i);
    all->math->end(work, i, all->out + vector * (size_t)all->shape->head_dim_v, &all->lse[vector]);
    if (!all->args->lse_base_e) all->lse[vector] /= log(2);
  }
}

// ---- fp64 -----------------------------------------------------------------------------------------------------

// Scores of two vectors with four tokens at a time, so that what is loaded is used more than once.
static void scores_exact(const double *q, const double *kv, size_t qk, double *scores) {
  double2 sum[2][4] = {0};
  for (size_t d = 0; d < qk; d += 2) {
    double2 q0 = *(const double2 *)(q + d), q1 = *(const double2 *)(q + qk + d);
    for (size_t j = 0; j < 4; j++) {
      double2 k = *(const double2 *)(kv + j * qk + d);
      sum[0][j] += q0 * k;
      sum[1][j] += q1 * k;
    }
  }
  for (size_t i = 0; i < 2; i++)
    for (size_t j = 0; j < 4; j++) scores[i * BLOCK + j] = sum[i][j][0] + sum[i][j][1];
}

// out[0..16) x keep + the weighted V of the tokens that are seen; what is not seen is not touched, it may hold NaN.
static void values_exact(const double *weights, const unsigned char *seen, int tokens, const double *kv, size_t qk, double keep,
                         double *out) {
  double2 sum[8];
  for (int c = 0; c < 8; c++) sum[c] = *(double2 *)(out + 2 * c) * keep;
  for (int j = 0; j < tokens; j++, kv += qk) {
    if (!seen[j]) continue;
    for (int c = 0; c < 8; c++) sum[c] += *(const double2 *)(kv + 2 * c) * weights[j];
  }
  for (int c = 0; c < 8; c++) *(double2 *)(out + 2 * c) = sum[c];
}

static void begin_exact(item *work) {
  size_t qk = (size_t)work->job->shape->head_dim_qk, v = (size_t)work->job->shape->head_dim_v;
  double *q = work->wide_q, scale = (double)work->job->args->softmax_scale * key_scale(work->job);
  for (size_t i = 0; i < ITEM_MOST * qk; i++) q[i] = (double)work->q[i] * scale;
  memset(work->out, 0, ITEM_MOST * v * sizeof(double));
}

// The softmax of one vector over one block: scores become weights; returns what the earlier sums have to be multiplied by.
static double weights_exact(item *work, int vector, double *scores) {
  const unsigned char *seen = work->seen + vector * BLOCK;
  double most = work->most[vector], cap = (double)work->job->args->soft_cap;
  for (int j = 0; j < work->tokens && cap > 0; j++) scores[j] = cap * tanh(scores[j] / cap);
  for (int j = 0; j < work->tokens; j++)
    if (seen[j]) most = fmax(fmax(most, scores[j]), -DBL_MAX);  // a score of -inf weighs nothing, but the token was seen
  double keep = work->most[vector] == most ? 1 : exp(work->most[vector] - most);
  work->most[vector] = most;
  work->sum[vector] *= keep;
  for (int j = 0; j < work->tokens; j++) {
    scores[j] = seen[j] ? exp(scores[j] - most) : 0;
    work->sum[vector] += scores[j];
  }
  return keep;
}

static void block_exact(item *work) {
  size_t qk = (size_t)work->job->shape->head_dim_qk, v = (size_t)work->job->shape->head_dim_v;
  double *kv = work->wide_kv, *q = work->wide_q, *scores = work->scores, *out = work->out;
  bool own = work->job->shape->attention == DW_GQA;  // V lies apart from K
  double *value = own ? work->wide_value : kv;
  for (size_t i = 0; i < BLOCK * qk; i++) kv[i] = (double)work->kv[i];
  for (size_t i = 0; i < BLOCK * v && own; i++) value[i] = (double)work->value[i];
  for (int i = 0; i < work->count; i += 2)
    for (int j = 0; j < work->tokens; j += 4) scores_exact(q + (size_t)i * qk, kv + (size_t)j * qk, qk, scores + i * BLOCK + j);
  for (int i = 0; i < work->count; i++) {
    double keep = weights_exact(work, i, scores + i * BLOCK);
    for (size_t c = 0; c < v; c += 16)
      values_exact(scores + i * BLOCK, work->seen + i * BLOCK, work->tokens, value + c, own ? v : qk, keep,
                   out + (size_t)i * v + c);
  }
}

// The sum is 0 where nothing was seen, nor a sink (else the largest weight is 1), and 0 / 0 is NaN where all that was seen has a score of
// -inf.
static double of_nothing(const item *work, int vector) { return work->most[vector] == -INFINITY ? 0 : NAN; }

static void end_exact(item *work, int vector, double *out, double *lse) {
  size_t v = (size_t)work->job->shape->head_dim_v;
  const double *sum = (double *)work->out + (size_t)vector * v, scale = value_scale(work->job);
  for (size_t c = 0; c < v; c++)
    out[c] = work->sum[vector] == 0 ? of_nothing(work, vector) : sum[c] * scale / work->sum[vector];
  *lse = work->sum[vector] == 0 ? of_nothing(work, vector) - INFINITY : work->most[vector] + log(work->sum[vector]);
}

static const arithmetic exact = {sizeof(double), begin_exact, block_exact, end_exact};

// ---- plain fp32 -----------------------------------------------------------------------------------------------

static void scores_plain(const float *q, const float *kv, size_t qk, float scale, float *scores) {
  float4 sum[2][4] = {0};
  for (size_t d = 0; d < qk; d += 4) {
    float4 q0 = *(const float4 *)(q + d), q1 = *(const float4 *)(q + qk + d);
    for (size_t j = 0; j < 4; j++) {
      float4 k = *(const float4 *)(kv + j * qk + d);
      sum[0][j] += q0 * k;
      sum[1][j] += q1 * k;
    }
  }
  for (size_t i = 0; i < 2; i++)
    for (size_t j = 0; j < 4; j++)
      scores[i * BLOCK + j] = ((sum[i][j][0] + sum[i][j][1]) + (sum[i][j][2] + sum[i][j][3])) * scale;
}

static void values_plain(const float *weights, const unsigned char *seen, int tokens, const float *kv, size_t qk, float keep,
                         float *out) {
  float4 sum[4];
  for (int c = 0; c < 4; c++) sum[c] = *(float4 *)(out + 4 * c) * keep;
  for (int j = 0; j < tokens; j++, kv += qk) {
    if (!seen[j]) continue;
    for (int c = 0; c < 4; c++) sum[c] += *(const float4 *)(kv + 4 * c) * weights[j];
  }
  for (int c = 0; c < 4; c++) *(float4 *)(out + 4 * c) = sum[c];
}

static void begin_plain(item *work) { memset(work->out, 0, ITEM_MOST * (size_t)work->job->shape->head_dim_v * sizeof(float)); }

// As a kernel does it: the sum takes the fp32 weights, the product with V takes them rounded to the type of the products, which is
// the KV's, or q's for KV in e4m3 or records.
static float weights_plain(item *work, int vector, float *scores) {
  const unsigned char *seen = work->seen + vector * BLOCK;
  float most = (float)work->most[vector], sum = (float)work->sum[vector], cap = work->job->args->soft_cap;
  dw_dtype type = dw__dtype_size(work->job->shape->kv) == 1 ? work->job->shape->q : work->job->shape->kv;
  for (int j = 0; j < work->tokens && cap > 0; j++) scores[j] = cap * tanhf(scores[j] / cap);
  for (int j = 0; j < work->tokens; j++)
    if (seen[j]) most = fmaxf(fmaxf(most, scores[j]), -FLT_MAX);
  float keep = (float)work->most[vector] == most ? 1 : expf((float)work->most[vector] - most);
  sum *= keep;
  for (int j = 0; j < work->tokens; j++) {
    if (!seen[j]) continue;
    float weight = expf(scores[j] - most);
    uint16_t rounded;
    dw__from_float(type, (double)weight, &rounded);
    scores[j] = dw__to_float(type, &rounded);
    sum += weight;
  }
  work->most[vector] = (double)most;
  work->sum[vector] = (double)sum;
  return keep;
}

static void block_plain(item *work) {
  size_t qk = (size_t)work->job->shape->head_dim_qk, v = (size_t)work->job->shape->head_dim_v;
  float *scores = work->scores, *out = work->out, scale = work->job->args->softmax_scale * (float)key_scale(work->job);
  bool own = work->job->shape->attention == DW_GQA;  // V lies apart from K
  const float *value = own ? work->value : work->kv;
  for (int i = 0; i < work->count; i += 2)
    for (int j = 0; j < work->tokens; j += 4)
      scores_plain(work->q + (size_t)i * qk, work->kv + (size_t)j * qk, qk, scale, scores + i * BLOCK + j);
  for (int i = 0; i < work->count; i++) {
    float keep = weights_plain(work, i, scores + i * BLOCK);
    for (size_t c = 0; c < v; c += 16)
      values_plain(scores + i * BLOCK, work->seen + i * BLOCK, work->tokens, value + c, own ? v : qk, keep,
                   out + (size_t)i * v + c);
  }
}

static void end_plain(item *work, int vector, double *out, double *lse) {
  const dw_shape *shape = work->job->shape;
  size_t v = (size_t)shape->head_dim_v;
  const float *sum = (float *)work->out + (size_t)vector * v;
  float whole = (float)work->sum[vector], scale = (float)value_scale(work->job);
  for (size_t c = 0; c < v; c++) {
    uint32_t rounded;
    dw__from_float(shape->out, whole == 0 ? of_nothing(work, vector) : (double)(sum[c] * scale / whole), &rounded);
    out[c] = (double)dw__to_float(shape->out, &rounded);
  }
  *lse = whole == 0 ? of_nothing(work, vector) - INFINITY : (double)((float)work->most[vector] + logf(whole));
}

static const arithmetic plain = {sizeof(float), begin_plain, block_plain, end_plain};

// ---- checks before the walk -----------------------------------------------------------------------------------

static dw_status check_parents(const int32_t *parents, int request, int rows, dw_error *error) {
  for (int i = 0; i < rows; i++) {
    char field[48];
    snprintf(field, sizeof field, "mask: request %d, node %d", request, i);
    if (parents[i] < -2 || parents[i] >= i)
      return dw__fail_int(error, DW_BAD_ARGUMENT, field, parents[i], "-2, -1 or an earlier node", "this is not a tree");
    if (parents[i] >= 0 && parents[parents[i]] == -2)
      return dw__fail_int(error, DW_BAD_ARGUMENT, field, parents[i], "a node that is not dead", "a dead node has no children");
  }
  return DW_OK;
}

static dw_status check_bias(const dw_shape *shape, const dw_args *args, const dw__request *request, dw_error *error) {
  for (int i = 0; i < request->rows; i++)
    for (int j = 0; j < request->rows; j++) {
      float value = ((const float *)args->mask)[mask_row(shape, args, request, i) + j];
      if (value == 0 || value == -INFINITY) continue;
      char field[64], found[32];
      snprintf(field, sizeof field, "mask: request %d, row %d, draft %d", request->index, i, j);
      snprintf(found, sizeof found, "%g", (double)value);
      return dw__fail(error, DW_BAD_ARGUMENT, field, found, "0 or -inf", "a bias says whether a row sees a draft");
    }
  return DW_OK;
}

static dw_status check_mask_indptr(const dw_args *args, const dw__request *request, dw_error *error) {
  const int64_t *indptr = args->mask_indptr + request->index;
  int64_t need = (int64_t)request->rows * ((int64_t)request->prefix + request->rows);
  char field[48], allowed[48];
  snprintf(field, sizeof field, "mask_indptr[%d]", request->index + 1);
  snprintf(allowed, sizeof allowed, "at least %lld", (long long)(indptr[0] + need));
  if (indptr[0] < 0 || indptr[1] - indptr[0] < need)
    return dw__fail_int(error, DW_BAD_ARGUMENT, field, indptr[1], allowed, "rows x (prefix + rows) bytes a request");
  return DW_OK;
}

// A dead node's does not matter.
static dw_status check_positions(const dw_args *args, const dw__request *request, dw_error *error) {
  const int32_t *parents = args->mask_kind == DW_MASK_PARENTS ? (const int32_t *)args->mask + request->first_row : NULL;
  for (int i = 0; i < request->rows; i++) {
    int position = args->positions[request->first_row + i];
    if (position >= request->prefix || (parents && parents[i] == -2)) continue;
    char field[48], allowed[48];
    snprintf(field, sizeof field, "positions[%d]", request->first_row + i);
    snprintf(allowed, sizeof allowed, "at least %d", request->prefix);
    return dw__fail_int(error, DW_BAD_ARGUMENT, field, position, allowed, "a draft comes after the prefix");
  }
  return DW_OK;
}

static dw_status check_mask(const dw_shape *shape, const dw_args *args, const dw__request *request, dw_error *error) {
  if (args->drafts_elsewhere) return DW_OK;
  switch (args->mask_kind) {
    case DW_MASK_PARENTS:
      return check_parents((const int32_t *)args->mask + request->first_row, request->index, request->rows, error);
    case DW_MASK_BYTES_FULL: return check_mask_indptr(args, request, error);
    case DW_MASK_BIAS_F32: return check_bias(shape, args, request, error);
    default: return DW_OK;
  }
}

static dw_status check_request(const dw_shape *shape, const dw_args *args, int index, dw_error *error) {
  char field[48];
  dw__request request = dw__oracle_request(shape, args, index);
  int total = args->total_q ? args->total_q : args->batch * row_width(shape, args);
  snprintf(field, sizeof field, "qo_indptr[%d]", index + 1);
  if (request.first_row < 0 || request.rows < 0 || request.first_row + request.rows > total || request.rows > shape->width)
    return dw__fail_int(error, DW_BAD_ARGUMENT, field, request.first_row + request.rows, "ascending, at most total_q and width",
                        "rows of a request");
  snprintf(field, sizeof field, "kv_len[%d]", index);
  if (args->addressing == DW_BLOCK_TABLE && (request.tokens + shape->page - 1) / shape->page > args->table_columns)
    return dw__fail_int(error, DW_BAD_ARGUMENT, field, args->kv_len[index], "table_columns x page",
                        "longer than its table row");
  dw_status status = check_mask(shape, args, &request, error);
  if (!status && args->window && args->positions) status = check_positions(args, &request, error);
  return status;
}

static dw_status check_scalars(const dw_shape *shape, const dw_args *args, dw_error *error) {
  char field[48], found[32];
  if (args->window < 0)
    return dw__fail_int(error, DW_BAD_ARGUMENT, "window", args->window, "0 or more", "tokens that a row sees");
  snprintf(found, sizeof found, "%g", (double)args->soft_cap);
  if (!(args->soft_cap >= 0) || isinf(args->soft_cap))
    return dw__fail(error, DW_BAD_ARGUMENT, "soft_cap", found, "0 or more", "scores stay below it");
  if (args->kv_scale && shape->kv != DW_E4M3)
    return dw__fail(error, DW_BAD_ARGUMENT, "kv_scale", "a pointer", "NULL", "only KV in e4m3 has a scale");
  if (args->v_scale && (shape->kv != DW_E4M3 || shape->attention == DW_MLA))
    return dw__fail(error, DW_BAD_ARGUMENT, "v_scale", "a pointer", "NULL", "only V of GQA in e4m3 has a scale of its own");
  for (int h = 0; h < shape->heads && args->sinks; h++) {
    if (args->sinks[h] < INFINITY) continue;
    snprintf(field, sizeof field, "sinks[%d]", h);
    snprintf(found, sizeof found, "%g", (double)args->sinks[h]);
    return dw__fail(error, DW_BAD_ARGUMENT, field, found, "a number, or -inf", "a score of the softmax");
  }
  if (args->kv_rope && shape->kv == DW_RECORD656)
    return dw__fail(error, DW_BAD_ARGUMENT, "kv_rope", "a pointer", "NULL", "a record has the rope in it");
  if (args->drafts_elsewhere && (args->lengths_include_drafts || args->window || args->draft_slots))
    return dw__fail_int(error, DW_BAD_ARGUMENT, "drafts_elsewhere", args->drafts_elsewhere,
                        "0, or lengths of the prefix, no window, no draft_slots", "no draft is in the KV");
  return DW_OK;
}

static dw_status check(const dw_shape *shape, const dw_args *args, dw_error *error) {
  dw_status status = dw_shape_check(shape, error);
  if (status) return status;
  if (args->batch < 0) return dw__fail_int(error, DW_BAD_ARGUMENT, "batch", args->batch, "0 or more", "requests of the call");
  if ((shape->head_dim_qk == shape->head_dim_v || shape->attention == DW_GQA) && (args->q_rope || args->kv_rope))
    return dw__fail(error, DW_BAD_ARGUMENT, args->q_rope ? "q_rope" : "kv_rope", "a pointer", "NULL",
                    "qk is v: no part lies apart");
  if ((int)args->mask_kind < 0 || args->mask_kind > DW_MASK_STATIC)
    return dw__fail_int(error, DW_BAD_ARGUMENT, "mask_kind", (int)args->mask_kind, "DW_MASK_NONE to DW_MASK_STATIC",
                        "the form of the mask");
  if (args->mask_kind == DW_MASK_STATIC && !shape->tree_nodes)
    return dw__fail(error, DW_BAD_ARGUMENT, "mask_kind", "DW_MASK_STATIC", "another, or a shape with a tree",
                    "the shape has no tree");
  const struct {
    const char *name;
    const void *pointer;
    bool needed;
  } pointers[] = {
    {"q", args->q, true},
    {"kv", args->kv, true},
    {"v", args->v, shape->attention == DW_GQA},
    {"kv_len", args->kv_len, true},
    {"kv_indptr", args->kv_indptr, args->addressing == DW_CSR},
    {"kv_indices", args->kv_indices, args->addressing == DW_CSR},
    {"block_table", args->block_table, args->addressing == DW_BLOCK_TABLE},
    {"mask", args->mask, args->mask_kind != DW_MASK_NONE && args->mask_kind != DW_MASK_STATIC && !args->drafts_elsewhere},
    {"mask_indptr", args->mask_indptr, args->mask_kind == DW_MASK_BYTES_FULL && !args->drafts_elsewhere},
  };
  for (size_t i = 0; i < DW__COUNT(pointers); i++)
    if (pointers[i].needed && !pointers[i].pointer)
      return dw__fail(error, DW_BAD_ARGUMENT, pointers[i].name, "NULL", "a host pointer", "this array is needed");
  status = check_scalars(shape, args, error);
  for (int b = 0; b < args->batch && status == DW_OK; b++) status = check_request(shape, args, b, error);
  return status;
}

// ---- items and threads ----------------------------------------------------------------------------------------

static void item_free(item *work) {
  void *blocks[] = {work->q,      work->kv,      work->value,      work->seen,   work->views, work->positions,
                    work->wide_q, work->wide_kv, work->wide_value, work->scores, work->out};
  for (size_t i = 0; i < DW__COUNT(blocks); i++) dw__release(blocks[i]);
}

static bool item_make(item *work, const job *all) {
  size_t qk = (size_t)all->shape->head_dim_qk, v = (size_t)all->shape->head_dim_v, size = all->math->size;
  *work = (item){.job = all, .placed = -1};
  work->q = dw__alloc(ITEM_MOST * qk * sizeof(float));
  work->kv = dw__alloc(BLOCK * qk * sizeof(float));
  work->value = dw__alloc(BLOCK * v * sizeof(float));
  work->seen = dw__alloc(ITEM_MOST * BLOCK);
  work->views = dw__alloc((size_t)(ITEM_MOST + 1) * (size_t)all->shape->width);
  work->positions = dw__alloc((size_t)all->shape->width * sizeof *work->positions);
  work->wide_q = dw__alloc(ITEM_MOST * qk * size);
  work->wide_kv = dw__alloc(BLOCK * qk * size);
  work->wide_value = dw__alloc(BLOCK * v * size);
  work->scores = dw__alloc(ITEM_MOST * BLOCK * size);
  work->out = dw__alloc(ITEM_MOST * v * size);
  return work->q && work->kv && work->value && work->seen && work->views && work->positions && work->wide_q && work->wide_kv &&
         work->wide_value && work->scores && work->out;
}

static void *run_items(void *argument) {
  item *work = argument;
  job *all = (job *)work->job;
  for (int i; (i = atomic_fetch_add(&all->next, 1)) < all->items;) {
    while (i >= all->first_item[work->request + 1]) work->request++;
    dw__request request = dw__oracle_request(all->shape, all->args, work->request);
    int vectors = request.rows * group_of(all->shape), items = (vectors + all->item_vectors - 1) / all->item_vectors;
    int of_request = i - all->first_item[work->request];
    work->kv_head = of_request / items;
    work->first = of_request % items * all->item_vectors;
    int left = vectors - work->first;
    work->count = left < all->item_vectors ? left : all->item_vectors;
    run_item(work);
  }
  return NULL;
}

// Items small enough to give every thread one, large enough to use a block of tokens often.
static void cut(job *all, int threads) {
  int64_t vectors = 0;
  for (int b = 0; b < all->args->batch; b++)
    vectors += (int64_t)dw__oracle_request(all->shape, all->args, b).rows * all->shape->heads;
  int64_t each = (vectors + threads - 1) / threads;
  all->item_vectors = (int)(each < ITEM_LEAST ? ITEM_LEAST : each > ITEM_MOST ? ITEM_MOST : each);
  all->items = 0;
  for (int b = 0; b < all->args->batch; b++) {
    int of_head = dw__oracle_request(all->shape, all->args, b).rows * group_of(all->shape);
    all->first_item[b] = all->items;
    all->items += all->shape->kv_heads * ((of_head + all->item_vectors - 1) / all->item_vectors);
  }
  all->first_item[all->args->batch] = all->items;
}

// A thread that cannot be started is no failure: the others do its items.
static void run_threads(item *works, int threads) {
  pthread_t ids[THREADS_MOST];
  int started = 0;
  while (started < threads - 1 && pthread_create(&ids[started], NULL, run_items, &works[started + 1]) == 0) started++;
  run_items(&works[0]);
  for (int i = 0; i < started; i++) pthread_join(ids[i], NULL);
}

static int thread_count(int asked) {
  long cores = asked > 0 ? asked : sysconf(_SC_NPROCESSORS_ONLN);
  return (int)(cores < 1 ? 1 : cores > THREADS_MOST ? THREADS_MOST : cores);
}

static dw_status walk(const dw_shape *shape, const dw_args *args, const arithmetic *math, int threads, double *out, double *lse,
                      dw_error *error) {
  dw_status status = check(shape, args, error);
  if (status) return status;
  threads = thread_count(threads);
  job all = {.shape = shape, .args = args, .math = math, .out = out, .lse = lse};
  all.first_item = dw__calloc((size_t)args->batch + 1, sizeof *all.first_item);
  item *works = dw__calloc((size_t)threads, sizeof *works);
  bool enough = all.first_item && works;
  if (enough) cut(&all, threads);
  if (enough && threads > all.items) threads = all.items > 0 ? all.items : 1;
  for (int i = 0; i < threads && enough; i++) enough = item_make(&works[i], &all);
  if (enough) run_threads(works, threads);
  else status = dw__fail(error, DW_OUT_OF_MEMORY, "oracle", "", "", "no memory for its work space");
  for (int i = 0; works && i < threads; i++) item_free(&works[i]);
  dw__release(works);
  dw__release(all.first_item);
  return status;
}

dw_status dw__oracle_exact(const dw_shape *shape, const dw_args *args, int threads, double *out, double *lse, dw_error *error) {
  return walk(shape, args, &exact, threads, out, lse, error);
}

dw_status dw__oracle_plain(const dw_shape *shape, const dw_args *args, int threads, double *out, double *lse, dw_error *error) {
  return walk(shape, args, &plain, threads, out, lse, error);
}
