// See gpu_verify.h.
#include "gpu_verify.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "gpu_trial.h"
#include "oracle.h"
#include "random_case.h"
#include "rule.h"

// A buffer that grows.
typedef struct room {
  void *device;
  size_t bytes;
} room;

enum { PART_OUT, PART_MAX, PART_SUM, EXACT, EXACT_LSE, PLAIN, PLAIN_LSE, ROWS, POSITIONS, ROOMS };

struct dw__gpu_judge {
  const dw__gpu_tools *tools;
  dw__gpu *gpu;
  room rooms[ROOMS];
};

// ---- from arguments to parameters -----------------------------------------------------------------------------

// Enough chunks of tokens to fill a GPU with warps, no more than that: each costs a partial result a vector.
static void choose_chunks(dw_oracle_params *p, int most_tokens) {
  const int64_t wanted = 32768;  // pieces of work, two vectors a warp
  int64_t vectors = (int64_t)p->total_q * p->heads, chunks = vectors > 0 ? wanted / vectors : 1;
  int most = dw__ceil_div(most_tokens > 0 ? most_tokens : 1, 128);
  if (chunks > most) chunks = most;
  if (chunks < 1) chunks = 1;
  p->chunk_tokens = dw__ceil_div(dw__ceil_div(most_tokens > 0 ? most_tokens : 1, chunks), 32) * 32;
  p->chunks = dw__ceil_div(most_tokens > 0 ? most_tokens : 1, p->chunk_tokens);
}

dw_oracle_params dw__gpu_oracle_params(const dw_shape *shape, const dw_args *args, int most_tokens) {
  static const int masks[] = {
    [DW_MASK_NONE] = DW_T_NONE,
    [DW_MASK_PARENTS] = DW_T_PARENTS,
    [DW_MASK_BITS] = DW_T_BITS,
    [DW_MASK_BYTES_QLEN] = DW_T_BYTES_QLEN,
    [DW_MASK_BYTES_FULL] = DW_T_BYTES_FULL,
    [DW_MASK_BIAS_F32] = DW_T_BIAS,
    [DW_MASK_STATIC] = DW_T_STATIC,
  };
  int width = args->width ? args->width : shape->width, rope = shape->head_dim_qk - shape->head_dim_v;
  int64_t q_head = dw__or_else(args->q_head_stride, args->q_rope ? shape->head_dim_v : shape->head_dim_qk);
  bool gqa = shape->attention == DW_GQA;
  int64_t kv_head = dw__or_else(gqa ? args->kv_head_stride : 0, dw__kv_part(shape, args->kv_rope));
  int64_t token = dw__or_else(args->kv_token_stride, shape->kv_heads * kv_head);
  int64_t v_head = dw__or_else(args->v_head_stride, shape->head_dim_v);
  int64_t v_token = dw__or_else(args->v_token_stride, shape->kv_heads * v_head);
  int64_t rope_head = dw__or_else(args->q_rope_head_stride, rope), rope_token = dw__or_else(args->kv_rope_token_stride, rope);
  int64_t mask_row = dw__or_else(args->mask_row_stride, args->mask_kind == DW_MASK_BITS ? (width + 31) / 32 : width);
  dw_oracle_params p = {
    .q = args->q,
    .q_rope = args->q_rope,
    .kv = args->kv,
    .kv_rope = args->kv_rope,
    .kv_indices = args->kv_indices,
    .draft_slots = args->draft_slots,
    .mask = args->mask,
    .qo_indptr = args->qo_indptr,
    .kv_len = args->kv_len,
    .kv_indptr = args->kv_indptr,
    .block_table = args->block_table,
    .mask_indptr = (const long long *)args->mask_indptr,
    .sinks = args->sinks,
    .positions = args->positions,
    .q_row_stride = dw__or_else(args->q_row_stride, shape->heads * q_head),
    .q_head_stride = q_head,
    .q_rope_row_stride = dw__or_else(args->q_rope_row_stride, shape->heads * rope_head),
    .q_rope_head_stride = rope_head,
    .kv_page_stride = dw__or_else(args->kv_page_stride, shape->page * token),
    .kv_token_stride = token,
    .v = gqa ? args->v : NULL,
    .kv_head_stride = kv_head,
    .v_page_stride = dw__or_else(args->v_page_stride, shape->page * v_token),
    .v_token_stride = v_token,
    .v_head_stride = v_head,
    .kv_heads = shape->kv_heads,
    .kv_rope_page_stride = dw__or_else(args->kv_rope_page_stride, shape->page * rope_token),
    .kv_rope_token_stride = rope_token,
    .table_stride = dw__or_else(args->block_table_stride, args->table_columns),
    .mask_row_stride = mask_row,
    .mask_request_stride = args->mask_shared ? 0 : dw__or_else(args->mask_request_stride, width * mask_row),
    .lse_factor = args->lse_base_e ? 1 : 1.44269504088896340736,
    .scale = (double)args->softmax_scale,
    .soft_cap = (double)args->soft_cap,
    .window = args->window,
    .heads = shape->heads,
    .page = shape->page,
    .width = width,
    .batch = args->batch,
    .total_q = args->total_q ? args->total_q : args->batch * width,
    .addressing = args->addressing == DW_CSR ? DW_T_CSR : DW_T_TABLE,
    .index64 = args->index64,
    .mask_kind = masks[args->mask_kind],
    .lengths_include_drafts = args->lengths_include_drafts,
    .drafts_elsewhere = args->drafts_elsewhere,
    .kv_scale = args->kv_scale,
    .v_scale = gqa ? args->v_scale : args->kv_scale,
    .q_type = shape->q,
    .kv_type = shape->kv,
    .out_dtype = shape->out,
  };
  for (int i = 0; i < shape->tree_nodes; i++)
    p.static_sees[i] = 1ULL << i | (shape->tree[i] < 0 ? 0 : p.static_sees[shape->tree[i]]);
  choose_chunks(&p, most_tokens);
  return p;
}

dw_tool_compare_params dw__gpu_compare_params(const dw_shape *shape, const dw_args *args) {
  int64_t head = dw__or_else(args->out_head_stride, shape->head_dim_v);
  return (dw_tool_compare_params){
    .out = args->out,
    .lse = args->lse,
    .qo_indptr = args->qo_indptr,
    .out_row_stride = dw__or_else(args->out_row_stride, shape->heads * head),
    .out_head_stride = head,
    .lse_row_stride = dw__or_else(args->lse_row_stride, shape->heads),
    .heads = shape->heads,
    .width = args->width ? args->width : shape->width,
    .out_dtype = shape->out,
  };
}

// ---- the judge ------------------------------------------------------------------------------------------------

dw_status dw__gpu_judge_open(const dw__gpu_tools *tools, dw__gpu_judge **judge, dw_error *error) {
  *judge = dw__calloc(1, sizeof **judge);
  if (!*judge) return dw__fail(error, DW_OUT_OF_MEMORY, "judge", "", "", NULL);
  (*judge)->tools = tools;
  (*judge)->gpu = dw__gpu_tools_gpu(tools);
  return DW_OK;
}

void dw__gpu_judge_close(dw__gpu_judge *judge) {
  if (!judge) return;
  for (int i = 0; i < ROOMS; i++)
    if (judge->rooms[i].device) dw__gpu_free(judge->gpu, judge->rooms[i].device);
  dw__release(judge);
}

static dw_status grow(dw__gpu_judge *judge, int which, size_t bytes, dw_error *error) {
  room *r = &judge->rooms[which];
  if (r->device && r->bytes >= bytes) return DW_OK;
  if (r->device) dw__gpu_free(judge->gpu, r->device);
  *r = (room){NULL, bytes};
  return dw__gpu_alloc(judge->gpu, bytes, &r->device, error);
}

static dw_status grow_all(dw__gpu_judge *judge, const dw_oracle_params *p, int v, dw_error *error) {
  size_t vectors = (size_t)p->total_q * (size_t)p->heads, parts = vectors * (size_t)p->chunks, d = sizeof(double);
  const size_t bytes[ROOMS] = {
    [PART_OUT] = parts * (size_t)v * d,
    [PART_MAX] = parts * d,
    [PART_SUM] = parts * d,
    [EXACT] = vectors * (size_t)v * d,
    [EXACT_LSE] = vectors * d,
    [PLAIN] = vectors * (size_t)v * d,
    [PLAIN_LSE] = vectors * d,
    [ROWS] = vectors * sizeof(dw_tool_row),
    [POSITIONS] = p->window && !p->positions ? (size_t)p->total_q * sizeof(int) : 0,
  };
  dw_status status = DW_OK;
  for (int i = 0; i < ROOMS && !status; i++) status = grow(judge, i, bytes[i], error);
  return status;
}

// Attention, then the merge of its chunks.
static dw_status run_pair(dw__gpu_judge *judge, dw_oracle_params *p, dw__tool attend, int out, dw_error *error) {
  unsigned vectors = (unsigned)(p->width * p->heads), batch = (unsigned)p->batch;
  p->out = judge->rooms[out].device;
  p->lse = judge->rooms[out + 1].device;
  p->rounded = out == PLAIN;
  dw_status status = dw__gpu_tool_run(judge->tools, attend, (vectors + DW_T_BLOCK_VECTORS - 1) / DW_T_BLOCK_VECTORS,
                                      (unsigned)p->chunks, batch, p, error);
  if (status) return status;
  return dw__gpu_tool_run(judge->tools, DW__TOOL_MERGE, (vectors + DW_T_WARPS - 1) / DW_T_WARPS, batch, 1, p, error);
}

dw_status dw__gpu_judge_solve(dw__gpu_judge *judge, const dw_shape *shape, const dw_args *args, int most_tokens,
                              dw_error *error) {
  dw_oracle_params p = dw__gpu_oracle_params(shape, args, most_tokens);
  if (args->qo_indptr) p.width = shape->width;
  dw_status status = grow_all(judge, &p, shape->head_dim_v, error);
  if (status) return status;
  p.part_out = judge->rooms[PART_OUT].device;
  p.part_max = judge->rooms[PART_MAX].device;
  p.part_sum = judge->rooms[PART_SUM].device;
  if (p.window && !p.positions) {
    p.positions = p.depth_positions = judge->rooms[POSITIONS].device;
    status = dw__gpu_tool_run(judge->tools, DW__TOOL_DEPTH, (unsigned)dw__ceil_div(p.width, DW_T_WARPS), (unsigned)p.batch, 1,
                              &p, error);
  }
  if (!status) status = run_pair(judge, &p, DW__TOOL_ORACLE, EXACT, error);
  if (!status) status = run_pair(judge, &p, DW__TOOL_PLAIN, PLAIN, error);
  return status ? status : dw__gpu_sync(judge->gpu, error);
}

// ---- comparison -----------------------------------------------------------------------------------------------

// A vector's verdict; limits as in compare.c.
typedef struct row_verdict {
  dw__row_error row;
  double lse_bound;
  bool wrong;
} row_verdict;

static row_verdict judge_row(const dw_tool_row *found, int request, int row, int head, bool wide) {
  row_verdict v = {.row = {.request = request, .row = row, .head = head, .relative = found->relative}};
  if (!found->compared || isnan(found->relative)) v.row.relative = INFINITY;
  v.row.bound = found->norm > 0 ? fmax(1.5 * found->plain, dw__least_bound(wide)) : 0;
  bool nothing = isinf(found->lse_exact) && isinf(found->lse) && found->lse < 0;
  v.row.lse = nothing ? 0 : fabs(found->lse - found->lse_exact);
  if (isnan(v.row.lse)) v.row.lse = INFINITY;
  v.lse_bound = dw__lse_bound(found->lse_exact, wide);
  v.wrong = !(v.row.relative <= v.row.bound) || !(v.row.lse <= v.lse_bound);
  return v;
}

static double badness(const dw__row_error *row) {
  return row->relative == 0 ? 0 : row->bound > 0 ? row->relative / row->bound : INFINITY;
}

static dw_status report(const row_verdict *v, dw_error *error) {
  char field[80], found[64], allowed[64];
  const dw__row_error *row = &v->row;
  bool out = !(row->relative <= row->bound);
  snprintf(field, sizeof field, "%s[request %d, row %d, head %d]", out ? "out" : "lse", row->request, row->row, row->head);
  snprintf(found, sizeof found, "%s %.3g", out ? "relative error" : "off by", out ? row->relative : row->lse);
  snprintf(allowed, sizeof allowed, "at most %.3g", out ? row->bound : v->lse_bound);
  return dw__fail(error, DW_WRONG_RESULT, field, found, allowed, "differs from the oracle on the GPU");
}

typedef struct sums {
  double error_square, exact_square, close;
} sums;

static void add(dw__comparison *comparison, const row_verdict *v, const dw_tool_row *found, sums *s) {
  if (comparison->rows++ == 0 || badness(&v->row) > badness(&comparison->worst)) comparison->worst = v->row;
  if (v->wrong && comparison->failed++ == 0) comparison->first_failed = v->row;
  double size = found->norm > 0 ? found->norm : 1;
  s->error_square += v->row.relative * v->row.relative * size * size;
  s->exact_square += found->norm * found->norm;
  s->close += found->close;
}

static dw_status compare_rows(const dw_shape *shape, int batch, const dw_tool_row *rows, const int *row_counts, bool wide,
                              dw__comparison *comparison, dw_error *error) {
  dw_status status = DW_OK;
  sums s = {0};
  *comparison = (dw__comparison){0};
  const dw_tool_row *found = rows;
  for (int b = 0; b < batch; b++)
    for (int row = 0; row < row_counts[b]; row++)
      for (int head = 0; head < shape->heads; head++, found++) {
        row_verdict v = judge_row(found, b, row, head, wide);
        add(comparison, &v, found, &s);
        if (v.wrong && !status) status = report(&v, error);
      }
  double elements = (double)comparison->rows * shape->head_dim_v;
  comparison->total_relative = sqrt(s.exact_square > 0 ? s.error_square / s.exact_square : s.error_square);
  comparison->ulp_share = elements > 0 ? s.close / elements : 1;
  return status;
}

dw_status dw__gpu_judge_compare(dw__gpu_judge *judge, const dw_shape *shape, const dw_args *args, const int *rows, bool wide,
                                dw__comparison *comparison, dw_error *error) {
  int64_t vectors = 0;
  for (int b = 0; b < args->batch; b++) vectors += (int64_t)rows[b] * shape->heads;
  size_t bytes = (size_t)vectors * sizeof(dw_tool_row);
  dw_tool_compare_params p = dw__gpu_compare_params(shape, args);
  p.exact = judge->rooms[EXACT].device;
  p.exact_lse = judge->rooms[EXACT_LSE].device;
  p.plain = judge->rooms[PLAIN].device;
  p.rows = judge->rooms[ROWS].device;
  dw_tool_row *found = dw__alloc(bytes + 1);
  if (!found) return dw__fail(error, DW_OUT_OF_MEMORY, "judge", "", "", NULL);
  dw_status status = dw__gpu_fill(judge->gpu, p.rows, 0, judge->rooms[ROWS].bytes, error);
  if (!status)
    status =
      dw__gpu_tool_run(judge->tools, DW__TOOL_COMPARE, (unsigned)dw__ceil_div((int64_t)shape->width * shape->heads, DW_T_WARPS),
                       (unsigned)args->batch, 1, &p, error);
  if (!status) status = dw__gpu_download(judge->gpu, found, p.rows, bytes, error);
  if (!status) status = compare_rows(shape, args->batch, found, rows, wide, comparison, error);
  dw__release(found);
  return status;
}

// ---- the judge itself against the CPU --------------------------------------------------------------------------

static double distance(const double *a, const double *b, size_t n) {
  double off = 0, size = 0;
  for (size_t i = 0; i < n; i++) off += (a[i] - b[i]) * (a[i] - b[i]), size += b[i] * b[i];
  double relative = sqrt(size > 0 ? off / size : off);
  return isnan(relative) ? INFINITY : relative;
}

void dw__gpu_oracle_distance(const dw__problem *problem, const double *out, const double *lse, const double *plain,
                             const double *cpu_plain, double *worst, double *plain_ratio) {
  size_t v = (size_t)problem->spec.shape.head_dim_v, vectors = (size_t)problem->total_q * (size_t)problem->spec.shape.heads;
  double our_square = 0, their_square = 0;
  *worst = 0;
  for (size_t i = 0; i < vectors; i++) {
    double off = distance(out + i * v, problem->out64 + i * v, v);
    double lse_off = isinf(lse[i]) && isinf(problem->lse64[i]) ? 0 : fabs(lse[i] - problem->lse64[i]);
    if (isnan(lse_off)) lse_off = INFINITY;
    *worst = fmax(*worst, fmax(off, lse_off));
    double ours = distance(plain + i * v, problem->out64 + i * v, v);
    double theirs = distance(cpu_plain + i * v, problem->out64 + i * v, v);
    our_square += ours * ours;
    their_square += theirs * theirs;
  }
  double ratio = sqrt(our_square / their_square);
  *plain_ratio = vectors == 0 || our_square == their_square ? 1 : isnan(ratio) ? INFINITY : fmax(ratio, 1 / ratio);
}

// A host problem's arrays on the device.
typedef struct mirror {
  dw__gpu *gpu;
  void *blocks[20];
  int count;
} mirror;

static dw_status mirror_add(mirror *m, const void **pointer, size_t bytes, dw_error *error) {
  if (!*pointer || !bytes) return DW_OK;
  void *device;
  dw_status status = dw__gpu_alloc(m->gpu, bytes, &device, error);
  if (status) return status;
  m->blocks[m->count++] = device;
  status = dw__gpu_upload(m->gpu, device, *pointer, bytes, error);
  *pointer = device;
  return status;
}

static dw_status mirror_all(mirror *m, const dw__problem *problem, dw_args *args, dw_error *error) {
  size_t batch = (size_t)problem->spec.batch;
  *args = problem->args;
  struct {
    const void **pointer;
    size_t bytes;
  } arrays[] = {
    {&args->q, problem->q_bytes},
    {&args->kv, problem->kv_bytes},
    {(const void **)&args->qo_indptr, 4 * (batch + 1)},
    {(const void **)&args->kv_len, 4 * batch},
    {(const void **)&args->kv_indptr, 4 * (batch + 1)},
    {&args->kv_indices, problem->index_bytes},
    {&args->draft_slots, problem->draft_slots_bytes},
    {(const void **)&args->block_table, problem->table_bytes},
    {&args->mask, args->drafts_elsewhere ? 0 : problem->mask_bytes},
    {(const void **)&args->mask_indptr, args->mask_indptr ? 8 * (batch + 1) : 0},
    {&args->q_rope, problem->q_rope_bytes},
    {&args->kv_rope, problem->kv_rope_bytes},
    {&args->v, problem->v_bytes},
    {(const void **)&args->positions, problem->positions_bytes},
    {(const void **)&args->sinks, 4 * (size_t)problem->spec.shape.heads},
    {(const void **)&args->kv_scale, 4},
    {(const void **)&args->v_scale, 4},
  };
  dw_status status = DW_OK;
  for (size_t i = 0; i < DW__COUNT(arrays) && !status; i++) status = mirror_add(m, arrays[i].pointer, arrays[i].bytes, error);
  if (!problem->v_bytes && problem->args.v)  // within K's pool
    args->v = (const char *)args->kv + ((const char *)problem->args.v - (const char *)problem->args.kv);
  args->out = NULL;
  args->lse = NULL;
  return status;
}

// Four arrays for the host: GPU exact, its lse, GPU plain, CPU plain.
static dw_status compare_oracles(dw__gpu_judge *judge, const dw__problem *problem, double *host[4], double *worst,
                                 dw_error *error) {
  const dw_shape *shape = &problem->spec.shape;
  size_t vectors = (size_t)problem->total_q * (size_t)shape->heads, v = (size_t)shape->head_dim_v;
  double ratio, *lse = dw__alloc(vectors * sizeof *lse + 1);
  if (!lse) return dw__fail(error, DW_OUT_OF_MEMORY, "judge", "", "", NULL);
  dw_status status = dw__gpu_download(judge->gpu, host[0], judge->rooms[EXACT].device, vectors * v * sizeof(double), error);
  if (!status) status = dw__gpu_download(judge->gpu, host[1], judge->rooms[EXACT_LSE].device, vectors * sizeof(double), error);
  if (!status) status = dw__gpu_download(judge->gpu, host[2], judge->rooms[PLAIN].device, vectors * v * sizeof(double), error);
  if (!status) status = dw__oracle_plain(shape, &problem->args, 0, host[3], lse, error);
  dw__release(lse);
  if (status) return status;
  dw__gpu_oracle_distance(problem, host[0], host[1], host[2], host[3], worst, &ratio);
  char found[64];
  if (*worst <= 1e-9 && ratio <= 1.25) return DW_OK;
  snprintf(found, sizeof found, "%.2g, plain errors by a factor of %.2f", *worst, ratio);
  return dw__fail(error, DW_WRONG_RESULT, "oracle", found, "at most 1e-9 and 1.25", "the oracles on CPU and GPU differ");
}

static dw_status check_one(dw__gpu_judge *judge, const dw__problem_spec *spec, double *worst, dw_error *error) {
  dw__problem *problem;
  mirror m = {.gpu = judge->gpu};
  dw_args args;
  double *host[4] = {0};
  int tokens = 0;
  dw_status status = dw__problem_make(spec, &problem, error);
  if (status) return status;
  size_t n = ((size_t)problem->total_q * (size_t)spec->shape.heads * (size_t)spec->shape.head_dim_v + 1) * sizeof(double);
  for (int b = 0; b < spec->batch; b++)
    tokens = tokens > problem->prefix[b] + problem->rows[b] ? tokens : problem->prefix[b] + problem->rows[b];
  for (int i = 0; i < 4 && !status; i++)
    if (!(host[i] = dw__alloc(n))) status = dw__fail(error, DW_OUT_OF_MEMORY, "judge", "", "", NULL);
  if (!status) status = dw__problem_solve(problem, 0, error);
  if (!status) status = mirror_all(&m, problem, &args, error);
  if (!status) status = dw__gpu_judge_solve(judge, &spec->shape, &args, tokens, error);
  if (!status) status = compare_oracles(judge, problem, host, worst, error);
  for (int i = 0; i < m.count; i++) dw__gpu_free(m.gpu, m.blocks[i]);
  for (int i = 0; i < 4; i++) dw__release(host[i]);
  dw__problem_free(problem);
  return status;
}

dw_status dw__gpu_judge_check(dw__gpu_judge *judge, dw_attention attention, int head_dim_qk, int head_dim_v, double *worst,
                              dw_error *error) {
  static const int prefix[] = {0, 300, 63, 1}, rows[] = {5, 6, 0, 1};
  dw_status status = DW_OK;
  *worst = 0;
  for (int i = 0; i < 24 && !status; i++) {
    const bool gqa = attention == DW_GQA, apart = !gqa && head_dim_qk > head_dim_v, elsewhere = i % 8 == 6;
    const int kv_heads = gqa ? 1 + i % 3 : 1;
    dw__problem_spec spec = {
      .shape = {.attention = attention,
                .heads = kv_heads * (gqa     ? 1 + i % 4
                                     : i % 2 ? 3
                                             : 4),
                .kv_heads = kv_heads,
                .width = 9,
                .head_dim_qk = head_dim_qk,
                .head_dim_v = head_dim_v,
                .page = i % 3 ? 16 : 1,
                .q = DW_BF16,
                .kv = DW_BF16,
                .out = DW_BF16,
                .target = 90},
      .batch = 4,
      .prefix = prefix,
      .rows = i % 4 == 3 ? NULL : rows,
      .width = i % 4 == 3 ? 6 : 0,
      .mask_kind = (dw_mask)(i % 6),
      .one_tree = i % 12 > 8,
      .mask_shared = i % 12 > 8 && i % 2,  // BYTES_QLEN or BIAS_F32
      .tree = DW__TREE_RANDOM,
      .addressing = i / 3 % 2 ? DW_BLOCK_TABLE : DW_CSR,
      .index64 = i / 6 % 2,
      .lengths_include_drafts = i % 2,
      .draft_slots = !elsewhere && i % 2 == 0 && i / 3 % 2 == 0,
      .drafts_elsewhere = elsewhere,
      .window = elsewhere || i % 4 == 0 ? 0 : 1 + i * 3,
      .positions = i / 4 % 3,
      .soft_cap = i % 3 == 1 ? 0.5f + (float)i : 0,
      .sinks = i % 5 < 2,
      .q_rope = apart && i % 3 == 0,
      .kv_rope = apart && i % 7 < 3,
      .planes = (dw__planes)(gqa ? i % 4 : 0),
      .dead_nodes = 1,
      .strided = i / 2 % 2,
      .shuffle = 1,
      .q_scale = i % 5 == 4 ? 3.f : 1.f,
      .lse_base_e = i / 4 % 2,
      .spare_pages = 2,
      .seed = (uint64_t)(i + 1),
    };
    if (i % 4 == 2) spec.shape.q = spec.shape.kv = spec.shape.out = DW_F16;
    if (i % 4 == 1) spec.shape.out = DW_F32;
    if (i % 3 == 2) spec.shape.kv = DW_E4M3, spec.kv_scale = i % 2 ? 0.02f : 0, spec.v_scale = gqa && i % 4 < 2 ? 5 : 0;
    if (i % 6 == 5 && !gqa && head_dim_qk == 576 && head_dim_v == 512)
      spec.shape.kv = DW_RECORD656, spec.kv_scale = 0, spec.kv_rope = 0;
    double off;
    status = check_one(judge, &spec, &off, error);
    if (!status && off > *worst) *worst = off;
  }
  return status;
}

// ---- judges of several widths ---------------------------------------------------------------------------------

static void close_pair(dw__gpu_judges *judges, int i) {
  dw__gpu_judge_close(judges->list[i].judge);
  dw__gpu_tools_close(judges->list[i].tools);
  memset(&judges->list[i], 0, sizeof judges->list[i]);
}

dw_status dw__gpu_judges_find(dw__gpu_judges *judges, dw_ctx *ctx, dw__gpu *gpu, const dw_shape *shape, dw__gpu_tools **tools,
                              dw__gpu_judge **judge, dw_error *error) {
  const int qk = shape->head_dim_qk, v = shape->head_dim_v;
  int i = 0;
  while (i < DW__GPU_JUDGES && judges->list[i].tools &&
         !(judges->list[i].attention == shape->attention && judges->list[i].qk == qk && judges->list[i].v == v))
    i++;
  if (i == DW__GPU_JUDGES) return dw__fail_int(error, DW_BAD_ARGUMENT, "qk, v", qk, "16 widths of vectors a run", NULL);
  dw_status status = DW_OK;
  if (!judges->list[i].tools) {
    double worst;
    judges->list[i].attention = shape->attention;
    judges->list[i].qk = qk;
    judges->list[i].v = v;
    status = dw__gpu_tools_open(ctx, gpu, qk, v, &judges->list[i].tools, error);
    if (!status) status = dw__gpu_judge_open(judges->list[i].tools, &judges->list[i].judge, error);
    if (!status) status = dw__gpu_judge_check(judges->list[i].judge, shape->attention, qk, v, &worst, error);
    if (status) close_pair(judges, i);
  }
  *tools = judges->list[i].tools;
  *judge = judges->list[i].judge;
  return status;
}

void dw__gpu_judges_close(dw__gpu_judges *judges) {
  for (int i = 0; i < DW__GPU_JUDGES; i++) close_pair(judges, i);
}

// ---- a variant against the judge -------------------------------------------------------------------------------

typedef dw__gpu_trial trial;

dw_status dw__gpu_trial_clear(trial *t, dw_error *error) {
  dw_status status = dw__gpu_problem_poison(t->problem, error);
  if (!status) status = dw__gpu_fill(t->gpu, t->args.workspace, 0xFF, t->args.workspace_size, error);
  if (!status && t->args.report) status = dw__gpu_fill(t->gpu, t->args.report, 0, DW_REPORT_WORDS * sizeof(uint32_t), error);
  return status;
}

// The contents are sound: a checked kernel has nothing to tell.
static dw_status check_report(trial *t, dw_error *error) {
  uint32_t report[DW_REPORT_WORDS];
  if (!t->args.report) return DW_OK;
  dw_status status = dw__gpu_download(t->gpu, report, t->args.report, sizeof report, error);
  if (!status && dw_report_check(report, error)) status = error->status = DW_WRONG_RESULT;
  return status;
}

dw_status dw__gpu_trial_compare(trial *t, dw__comparison *comparison, dw_error *error) {
  uint32_t outside = 0;
  dw_status status = dw__gpu_sync(t->gpu, error);
  if (!status) status = check_report(t, error);
  if (!status)
    status = dw__gpu_judge_compare(t->judge, &t->check->shape, &t->args, dw__gpu_problem_rows(t->problem),
                                   dw__has_wide_bound(&t->check->variant), comparison, error);
  if (!status) status = dw__gpu_problem_outside(t->problem, &outside, error);
  if (status || !outside) return status;
  comparison->outside_written = true;
  return dw__fail_int(error, DW_WRONG_RESULT, "out", outside, "0 elements", "elements outside the rows were written");
}

static dw_status check_same(trial *t, const char *what, dw_error *error) {
  uint32_t words = 0;
  dw_status status = dw__gpu_problem_differ(t->problem, &words, error);
  if (status || !words) return status;
  return dw__fail_int(error, DW_WRONG_RESULT, "out", words, "0 words", "%s gave other bits than the first run", what);
}

static dw_status solve(trial *t, dw_error *error) {
  return dw__gpu_judge_solve(t->judge, &t->check->shape, &t->args, dw__gpu_problem_most_tokens(t->problem), error);
}

dw_status dw__gpu_trial_launch(trial *t, const dw_args *args, dw_error *error) {
  dw_status status = dw__gpu_trial_clear(t, error);
  return status ? status : dw_launch(t->kernel, args, dw__gpu_stream(t->gpu), error);
}

// Where the capture is seen a kernel is refused; where it is not, loading one must not disturb it.
static dw_status ask_cold(trial *t, dw_error *error) {
  dw_variant cold;
  dw_kernel *kernel;
  dw_error refused = {0};
  dw_status status = dw_variant_parse("family=reference", &cold, error);
  if (status) return status;
  dw__variant_add_features(&cold, dw__variant_features(&t->check->variant));
  status = dw_kernel_get(t->ctx, &t->check->shape, &cold, &t->bounds, &kernel, &refused);
  bool right = status == DW_OK || (status == DW_BAD_ARGUMENT && strcmp(refused.field, "stream") == 0);
  status = right ? DW_OK
                 : dw__fail(error, DW_WRONG_RESULT, "dw_kernel_get", refused.message,
                            "a kernel, or a refusal that names stream", "during a capture");
  dw_error_clear(&refused);
  return status;
}

dw_status dw__gpu_trial_capture(trial *t, const dw_args *args, dw__graph **graph, dw_error *error) {
  void *side;
  dw_status status = dw__gpu_capture_begin(t->gpu, t->check->capture, &side, error);
  if (status) return status;
  if (t->check->asks & DW__ASK_COLD) status = ask_cold(t, error);
  if (!status) status = dw_launch(t->kernel, args, side, error);
  if (!status) return dw__gpu_capture_end(t->gpu, graph, error);
  dw__gpu_capture_drop(t->gpu);
  return status;
}

static dw_status replay(trial *t, dw__graph *graph, dw_error *error) {
  dw_status status = dw__gpu_trial_clear(t, error);
  return status ? status : dw__gpu_replay(t->gpu, graph, error);
}

#define STEP(name, call)     \
  do {                       \
    verdict->step = name;    \
    dw_status step_ = call;  \
    if (step_) return step_; \
  } while (0)

static dw_status run_eager(trial *t, dw__gpu_verdict *verdict, dw_error *error) {
  STEP("write", dw__gpu_problem_write(t->problem, &t->check->first, error));
  STEP("oracle", solve(t, error));
  STEP("launch", dw__gpu_trial_launch(t, &t->args, error));
  STEP("eager", dw__gpu_trial_compare(t, &verdict->eager, error));
  STEP("keep", dw__gpu_problem_keep(t->problem, error));
  STEP("launch again", dw__gpu_trial_launch(t, &t->args, error));
  STEP("repeat", check_same(t, "a second run", error));
  return DW_OK;
}

// The graph was made over the first contents; it has to serve others, then the first again.
static dw_status run_graph(trial *t, dw__graph *graph, dw__gpu_verdict *verdict, dw_error *error) {
  STEP("write other", dw__gpu_problem_write(t->problem, &t->check->other, error));
  STEP("oracle of other", solve(t, error));
  STEP("replay", replay(t, graph, error));
  STEP("replay of other contents", dw__gpu_trial_compare(t, &verdict->replay, error));
  STEP("write first", dw__gpu_problem_write(t->problem, &t->check->first, error));
  STEP("replay", replay(t, graph, error));
  STEP("replay of the first contents", check_same(t, "a replay", error));
  return DW_OK;
}

static dw_status refuse_one(trial *t, const dw__plan *plan, uint64_t *seed, dw_error *error) {
  dw_args args = t->args;
  dw_error checked = {0}, launched = {0};
  dw__broken broken = dw__args_break(&t->check->shape, &t->bounds, plan, seed, &args);
  dw_status status = dw_args_check(t->kernel, &args, &checked);
  bool right = status == DW_BAD_ARGUMENT && dw__broken_named(&broken, &checked);
  status = dw_launch(t->kernel, &args, dw__gpu_stream(t->gpu), &launched);
  right = right && status == DW_BAD_ARGUMENT && strcmp(checked.message, launched.message) == 0;
  status = right ? DW_OK
                 : dw__fail(error, DW_WRONG_RESULT, broken.field, launched.status ? launched.message : "accepted",
                            "a refusal that names this field", "arguments with one wrong field: %s", broken.what);
  dw_error_clear(&checked);
  dw_error_clear(&launched);
  return status;
}

// Not one of them may have launched anything: the outputs are still poison.
static dw_status refuse(trial *t, dw__gpu_verdict *verdict, dw_error *error) {
  dw__plan plan;
  uint32_t written = 0;
  uint64_t seed = t->check->broken_seed;
  dw_status status = dw__plan_make(&t->check->shape, &t->check->variant, &t->bounds, &plan, error);
  if (!status) status = dw__gpu_trial_clear(t, error);
  for (int i = 0; i < t->check->broken && !status; i++) {
    status = refuse_one(t, &plan, &seed, error);
    verdict->refused += status == DW_OK;
  }
  if (!status) status = dw__gpu_sync(t->gpu, error);
  if (!status) status = dw__gpu_problem_written(t->problem, &written, error);
  if (status || !written) return status;
  return dw__fail_int(error, DW_WRONG_RESULT, "out", written, "0 elements", "a refused launch wrote its output");
}

static dw_status run_all(trial *t, dw__gpu_verdict *verdict, dw_error *error) {
  dw__graph *graph = NULL;
  dw_status status = run_eager(t, verdict, error);
  if (status) return status;
  if (!t->check->no_replay) {
    STEP("capture", dw__gpu_trial_capture(t, &t->args, &graph, error));
    status = run_graph(t, graph, verdict, error);
    dw__graph_free(t->gpu, graph);
  }
  if (status) return status;
  if (t->check->broken) STEP("refusal", refuse(t, verdict, error));
  if (t->check->asks) {
    status = dw__gpu_trial_ask(t, &verdict->step, error);
    if (status) return status;
  }
  verdict->step = "all";
  return DW_OK;
}

static dw_bounds bounds_of(const trial *t) {
  dw_bounds bounds = dw__gpu_problem_bounds(t->problem);
  bounds.split_tokens = t->check->split_tokens;
  if (t->check->declared > bounds.kv_len) bounds.kv_len = t->check->declared;
  if (!t->check->spare) return bounds;
  bounds.total_q += 2 * t->check->shape.width;
  bounds.batch += 2;
  bounds.kv_len = bounds.kv_len * 2 + 100;
  return bounds;
}

dw_status dw__gpu_verify(dw_ctx *ctx, const dw__gpu_tools *tools, dw__gpu_judge *judge, const dw__gpu_check *check,
                         dw__gpu_verdict *verdict, dw_error *error) {
  double start = dw__seconds();
  *verdict = (dw__gpu_verdict){.step = "make"};
  trial t = {.ctx = ctx, .gpu = dw__gpu_tools_gpu(tools), .judge = judge, .check = check};
  void *report = NULL;
  dw_kernel *kernel = NULL;
  dw_status status = dw__gpu_problem_make(tools, &check->spec, &t.problem, error);
  if (!status) {
    t.bounds = bounds_of(&t);
    verdict->step = "kernel";
    status = dw_kernel_get(ctx, &check->shape, &check->variant, &t.bounds, &kernel, error);
  }
  if (!status) {
    t.kernel = kernel;
    t.args = dw__gpu_problem_args(t.problem, 0);
    t.args.workspace_size = dw_workspace_size(kernel);
    status = dw__gpu_alloc(t.gpu, t.args.workspace_size, &t.args.workspace, error);
  }
  if (!status && check->variant.checked) status = dw__gpu_alloc(t.gpu, DW_REPORT_WORDS * sizeof(uint32_t), &report, error);
  t.args.report = report;
  if (!status) status = run_all(&t, verdict, error);
  if (report) dw__gpu_free(t.gpu, report);
  if (t.args.workspace) dw__gpu_free(t.gpu, t.args.workspace);
  dw__gpu_problem_free(t.problem);
  verdict->seconds = dw__seconds() - start;
  return status;
}
