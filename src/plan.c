#include "plan.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "rule.h"

static size_t align_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

static int max_rows(const dw_shape *shape) { return shape->width * shape->heads; }
static bool is_gqa(const dw_shape *shape) { return shape->attention == DW_GQA; }
static int max_total_q(const dw_shape *shape, const dw_bounds *bounds) {
  return bounds->total_q ? bounds->total_q : bounds->batch * shape->width;
}
// The kernels read a mask of up to 64 drafts as it comes, a row once; larger ones, which they read tile by tile, have to be bits.
static bool packs_by_itself(const dw_shape *shape) { return shape->width > 64; }
static int mask_words(const dw_shape *shape) { return dw__ceil_div(shape->width, 32); }

dw_status dw__bounds_check(const dw_shape *shape, const dw_bounds *bounds, dw_error *e) {
  if (bounds->batch < 1 || bounds->batch > 65535)
    return dw__fail_int(e, DW_BAD_ARGUMENT, "bounds.batch", bounds->batch, "1 to 65535", "the most requests of a call");
  if (bounds->total_q < 0 || bounds->total_q > bounds->batch * (long long)shape->width)
    return dw__fail_int(e, DW_BAD_ARGUMENT, "bounds.total_q", bounds->total_q, "0 to batch x width", "rows of q in all");
  if (bounds->kv_len < 1 || bounds->kv_len > 1 << 24)
    return dw__fail_int(e, DW_BAD_ARGUMENT, "bounds.kv_len", bounds->kv_len, "1 to 16777216", "the most tokens of a request");
  if (bounds->sm_count < 1 || bounds->sm_count > 4096)
    return dw__fail_int(e, DW_BAD_ARGUMENT, "bounds.sm_count", bounds->sm_count, "1 to 4096", "multiprocessors of the GPU");
  if (bounds->features < 0 || bounds->features > 15)
    return dw__fail_int(e, DW_BAD_ARGUMENT, "bounds.features", bounds->features, "0 to 15", "dw_feature values, or'ed");
  if (bounds->split_tokens < 0 || bounds->split_tokens > 1 << 24 || bounds->split_tokens % 16)
    return dw__fail_int(e, DW_BAD_ARGUMENT, "bounds.split_tokens", bounds->split_tokens,
                        "0 or a multiple of 16, up to 16777216", "tokens of a KV range in FIXED mode");
  if (bounds->split_tokens && dw__ceil_div(bounds->kv_len, bounds->split_tokens) > 65535)
    return dw__fail_int(e, DW_BAD_ARGUMENT, "bounds.split_tokens", bounds->split_tokens, "at least kv_len / 65535",
                        "the ranges of a request are a grid dimension");
  if (bounds->split_tokens && (long long)bounds->batch * dw__ceil_div(bounds->kv_len, bounds->split_tokens) > INT32_MAX)
    return dw__fail_int(e, DW_BAD_ARGUMENT, "bounds.split_tokens", bounds->split_tokens, "at most 2147483647 ranges in all",
                        "partial results have a slot each");
  return DW_OK;
}

// Workspace: [partials][their lse][packed mask][faults of the requests], each 256-byte aligned.
static void set_ranges(const dw_shape *shape, const dw_variant *variant, const dw_bounds *bounds, dw__plan *plan, int ranges) {
  const bool wide = variant->family == DW_SPLIT || shape->kv == DW_RECORD656;  // fp32: a record's scales may be of any size
  unsigned *grid = plan->kernels[0].grid;
  plan->workspace_bytes -= plan->partial_bytes + plan->lse_bytes;
  plan->ranges = ranges;
  plan->all_ranges = ranges * bounds->batch;
  grid[1] = (unsigned)ranges;
  plan->early_launch = (long long)grid[0] * grid[1] * grid[2] * 10 <= bounds->sm_count * 7LL;
  const size_t rows = (size_t)plan->all_ranges * (size_t)max_rows(shape);
  plan->partial_bytes = align_up(rows * (size_t)shape->head_dim_v * (wide ? 4 : 2), 256);
  plan->lse_bytes = align_up(rows * sizeof(float), 256);
  plan->workspace_bytes += plan->partial_bytes + plan->lse_bytes;
}
void dw__plan_set_ranges(const dw_shape *shape, const dw_variant *variant, const dw_bounds *bounds, dw__plan *plan,
                         int ranges) {
  if (ranges && plan->count > 1 && !bounds->split_tokens) set_ranges(shape, variant, bounds, plan, ranges);
}
static void finish(const dw_variant *variant, const dw_bounds *bounds, size_t packed_bytes, dw__plan *plan) {
  if (variant->checked) {
    plan->check = (dw__plan_kernel){
      .entry = "dw_check", .grid = {(unsigned)bounds->batch, 1, 1}, .block = 128, .cluster = 1, .dynamic_shared = 4 * 16};
    plan->faults_bytes = align_up((size_t)bounds->batch * sizeof(unsigned), 256);
  }
  plan->workspace_bytes += packed_bytes + plan->faults_bytes;
}

static void add_combine(const dw_shape *shape, const dw_variant *variant, const dw_bounds *bounds, dw__plan *plan) {
  const long long units = (long long)max_rows(shape) * shape->head_dim_v;
  dw__plan_kernel *k = &plan->kernels[plan->count++];
  *k = (dw__plan_kernel){.entry = "dw_combine",
                         .grid = {1, (unsigned)bounds->batch, 1},
                         .block = 128,
                         .cluster = 1,
                         .dependent = shape->target >= 90};
  k->grid[0] = (unsigned)dw__ceil_div(units, variant->combine == DW_COMBINE_MANY ? 128 : 128 * 8);
  const size_t needed = variant->combine == DW_COMBINE_MANY ? (8 * 132 + 192) * sizeof(float) : 0;
  k->dynamic_shared = dw__rule_merge_shared(shape, variant, bounds, k->grid[0], needed);
}

dw_status dw__plan_make(const dw_shape *shape, const dw_variant *variant, const dw_bounds *bounds, dw__plan *plan,
                        dw_error *e) {
  memset(plan, 0, sizeof *plan);
  dw_status s = dw__bounds_check(shape, bounds, e);
  if (s == DW_OK) s = dw_variant_applicable(shape, variant, e);
  if (s != DW_OK) return s;
  if (!dw__variant_fixed_ok(variant, bounds->split_tokens, e)) return DW_NOT_APPLICABLE;
  plan->features = dw__variant_features(variant);
  if (bounds->features & ~plan->features)
    return dw__fail_int(e, DW_NOT_APPLICABLE, "bounds.features", bounds->features, "what the variant has",
                        "the kernel would have no code for a feature");
  plan->call = variant->call;
  const dw_split split = dw__rule_split(shape, variant, bounds);
  plan->groups = split.groups;
  dw__plan_kernel *main = &plan->kernels[plan->count++];
  *main =
    (dw__plan_kernel){.entry = "dw_verify", .block = 128, .cluster = 1, .dynamic_shared = dw_shared_bytes(shape, variant)};
  if (variant->family == DW_REFERENCE) {
    plan->ranges = split.ranges;
    plan->all_ranges = split.ranges * bounds->batch;
    main->grid[0] = (unsigned)dw__ceil_div(max_rows(shape), 4);
    main->grid[1] = (unsigned)bounds->batch;
    main->grid[2] = 1;
    finish(variant, bounds, 0, plan);
    return DW_OK;
  }
  main->grid[0] = (unsigned)split.groups;
  main->grid[2] = (unsigned)bounds->batch;
  main->block = variant->family == DW_ROWSPLIT || variant->family == DW_DIMSPLIT ? 512 : 128;
  if (variant->family == DW_DIMSPLIT) main->cluster = 2, main->grid[0] *= 2;
  if (dw__is_for_gqa(variant->family)) main->grid[0] *= (unsigned)shape->kv_heads;
  set_ranges(shape, variant, bounds, plan, split.ranges);
  add_combine(shape, variant, bounds, plan);
  const long long words = (long long)max_total_q(shape, bounds) * mask_words(shape);
  plan->pack =
    (dw__plan_kernel){.entry = "dw_pack_mask", .grid = {(unsigned)dw__ceil_div(words, 128), 1, 1}, .block = 128, .cluster = 1};
  finish(variant, bounds, packs_by_itself(shape) ? align_up((size_t)words * 4, 256) : 0, plan);
  return DW_OK;
}

void dw__plan_params(const dw_shape *shape, const dw_variant *variant, const dw_bounds *bounds, const dw__plan *plan,
                     const dw_args *a, dw_params *p, dw_params *pack) {
  const double log2e = 1.44269504088896340736, ln2 = 0.69314718055994530942;
  memset(p, 0, sizeof *p);
  p->q = a->q;
  p->out = a->out;
  p->lse = a->lse;
  p->qo_indptr = a->qo_indptr;
  p->kv = a->kv;
  p->kv_len = a->kv_len;
  p->kv_indptr = a->kv_indptr;
  p->kv_indices = a->kv_indices;
  p->draft_slots = a->lengths_include_drafts ? NULL : a->draft_slots;
  p->q_rope = a->q_rope;
  p->kv_rope = a->kv_rope;
  p->k_scale = a->kv_scale;
  p->v_scale = shape->attention == DW_MLA ? a->kv_scale : a->v_scale;
  p->block_table = a->block_table;
  p->mask = a->mask;
  const int qk = shape->head_dim_qk, v = shape->head_dim_v;
  p->q_head_stride = dw__or_else(a->q_head_stride, a->q_rope ? v : qk);
  p->q_row_stride = dw__or_else(a->q_row_stride, shape->heads * p->q_head_stride);
  p->q_rope_head_stride = dw__or_else(a->q_rope_head_stride, qk - v);
  p->q_rope_row_stride = dw__or_else(a->q_rope_row_stride, shape->heads * p->q_rope_head_stride);
  p->out_head_stride = dw__or_else(a->out_head_stride, v);
  p->out_row_stride = dw__or_else(a->out_row_stride, shape->heads * p->out_head_stride);
  p->lse_row_stride = dw__or_else(a->lse_row_stride, shape->heads);
  p->kv_head_stride = dw__or_else(is_gqa(shape) ? a->kv_head_stride : 0, dw__kv_part(shape, a->kv_rope));
  p->kv_token_stride = dw__or_else(a->kv_token_stride, shape->kv_heads * p->kv_head_stride);
  p->kv_page_stride = dw__or_else(a->kv_page_stride, shape->page * p->kv_token_stride);
  p->v = a->v;
  p->v_head_stride = dw__or_else(a->v_head_stride, v);
  p->v_token_stride = dw__or_else(a->v_token_stride, shape->kv_heads * p->v_head_stride);
  p->v_page_stride = dw__or_else(a->v_page_stride, shape->page * p->v_token_stride);
  p->kv_rope_token_stride = dw__or_else(a->kv_rope_token_stride, qk - v);
  p->kv_rope_page_stride = dw__or_else(a->kv_rope_page_stride, shape->page * p->kv_rope_token_stride);
  p->table_columns = a->table_columns;
  p->block_table_stride = dw__or_else(a->block_table_stride, a->table_columns);
  p->width = a->width ? a->width : shape->width;
  p->mask_row_stride = dw__or_else(a->mask_row_stride, a->mask_kind == DW_MASK_BITS ? dw__ceil_div(p->width, 32) : p->width);
  p->mask_request_stride = a->mask_shared ? 0 : dw__or_else(a->mask_request_stride, p->width * p->mask_row_stride);
  p->mask_indptr = (const long long *)a->mask_indptr;
  p->scale_log2 = (float)(a->softmax_scale * log2e);
  const double most = 0x1p63;  // whose square fp32 holds, so that it times 0 is 0; what is greater takes the long way
  p->cap_most = (float)most;
  if (a->soft_cap > 0.f) {
    static const double series[2] = {-0.33269163, 0.1214117};           // of tanh x / x - 1, up to x = 2/5
    const double cap = a->soft_cap * log2e, raw = p->scale_log2 / cap;  // q . k x raw = s / cap
    p->cap_log2 = (float)cap;
    p->cap_exponent = (float)(2 * log2e * raw);
    p->cap_most = (float)fmin(0.4 / raw, most);
    for (int i = 0; i < 2; i++) p->cap_series[i] = (float)(p->scale_log2 * series[i] * pow(raw, 2 * (i + 1)));
  }
  p->window = a->window;
  p->positions = a->window ? a->positions : NULL;
  p->sinks = a->sinks;
  p->lse_factor = a->lse_base_e ? (float)ln2 : 1.f;
  p->batch = a->batch;
  p->total_q = a->total_q ? a->total_q : a->batch * p->width;
  p->rows = max_rows(shape);
  // Of a KV head, in a request with that width.
  const int tiles = dw__ceil_div((long long)p->width * shape->heads / shape->kv_heads, 8);
  p->group_tiles = tiles / plan->groups;
  p->group_more = tiles % plan->groups;
  p->ranges = plan->ranges;
  p->all_ranges = plan->all_ranges;
  p->ranges_inverse = (unsigned)(((1ULL << 32) + (unsigned)plan->ranges - 1) / (unsigned)plan->ranges);
  p->split_tokens = bounds->split_tokens;
  p->split_mode = bounds->split_tokens ? DW_P_SPLIT_FIXED : DW_P_SPLIT_AUTO;
  p->addressing = a->addressing == DW_CSR ? DW_P_CSR : DW_P_BLOCK_TABLE;
  p->index64 = a->index64;
  p->lengths_include_drafts = a->lengths_include_drafts;
  p->drafts_elsewhere = a->drafts_elsewhere;
  p->mask_kind = a->drafts_elsewhere ? DW_P_MASK_NONE : (int)a->mask_kind;
  p->out_dtype = shape->out;
  const bool packs = variant->family != DW_REFERENCE && packs_by_itself(shape) && p->mask_kind != DW_P_MASK_NONE &&
                     p->mask_kind != DW_P_MASK_BITS;
  p->dependent = a->overlap_prologue && !packs && shape->target >= 90;  // sm_90 can first
  p->early_launch = plan->early_launch;
  if (variant->checked) {  // dw_check comes first, in order
    p->dependent = 0;
    p->faults = (unsigned *)((uint8_t *)a->workspace + plan->workspace_bytes - plan->faults_bytes);
  }
  if (variant->family == DW_REFERENCE) return;

  uint8_t *workspace = a->workspace;
  p->partial = workspace;
  p->partial_lse = (float *)(workspace + plan->partial_bytes);
  if (!packs) return;
  void *packed = workspace + plan->partial_bytes + plan->lse_bytes;
  if (pack) {
    *pack = *p;
    pack->out = packed;
    pack->out_row_stride = mask_words(shape);
    if (p->qo_indptr) pack->width = shape->width;
  }
  p->mask = packed;
  p->mask_kind = p->mask_kind == DW_P_MASK_PARENTS ? DW_P_MASK_PACKED : DW_P_MASK_BITS;
  p->mask_row_stride = mask_words(shape);
}

void dw__plan_check_params(const dw_shape *shape, const dw_variant *variant, const dw_bounds *bounds, const dw__plan *plan,
                           const dw_args *a, dw_params *p) {
  dw_variant as_given = *variant;  // reference takes every mask as the caller has it
  as_given.family = DW_REFERENCE;
  dw__plan_params(shape, &as_given, bounds, plan, a, p, NULL);
  p->report = a->report;
  p->pool_pages = a->kv_pages;
  p->kv_len_most = bounds->kv_len;
  p->mask_size = a->mask_size;
  p->indices_most = a->kv_indices_count;
}

int dw__target_sm_count(int target) {
  switch (target) {
    case 120: return 188;  // RTX PRO 6000
    case 121: return 48;   // GB10
    case 90: return 132;
    case 100: return 148;
    case 103: return 148;
    case 89: return 128;
    case 86: return 84;
    default: return 108;
  }
}

#define X(name, array, sound) \
  static_assert((int)DW_P_FAULT_##name == (int)DW_FAULT_##name, "kinds of fault are the same on host and device");
DW_FAULT_MAP(X)
#undef X
static_assert(DW_P_FAULT_WORDS == DW_FAULT_WORDS, "the report is the same on host and device");

// ---- argument checks ------------------------------------------------------------------------------------------

static dw_status need(const void *p, const char *field, size_t align, dw_error *e) {
  if (!p) return dw__fail(e, DW_BAD_ARGUMENT, field, "NULL", "a device pointer", "it is needed for this call");
  if ((uintptr_t)p % align)
    return dw__fail_int(e, DW_BAD_ARGUMENT, field, (long long)((uintptr_t)p % align),
                        align == 16 ? "0 modulo 16" : "its type's alignment", "the address is misaligned");
  return DW_OK;
}
static dw_status need_range(long long value, const char *field, long long least, long long most, const char *why, dw_error *e) {
  if (value >= least && value <= most) return DW_OK;
  char allowed[64];
  snprintf(allowed, sizeof allowed, "%lld to %lld", least, most);
  return dw__fail_int(e, DW_BAD_ARGUMENT, field, value, allowed, "%s", why);
}
// Strides: products of one with pages, heads and sizes stay in range.
#define STRIDE_MOST ((int64_t)1 << 40)
// 0 means "tight". Elements of `size` bytes; copies need 16-byte rows.
static dw_status need_stride(int64_t value, const char *field, int64_t least, int size, dw_error *e) {
  if (!value) return DW_OK;
  if (value < least || value > STRIDE_MOST)
    return need_range(value, field, least, STRIDE_MOST, value < least ? "rows would overlap" : "no memory is so large", e);
  if (value * size % 16)
    return dw__fail_int(e, DW_BAD_ARGUMENT, field, value, "a multiple of 16 bytes", "rows are copied 16 bytes at a time");
  return DW_OK;
}

// Vectors of `size` elements, [rows, heads] or the other way round, must not share elements. Strides as the kernels use them.
static dw_status need_apart(int64_t rows, int64_t row_stride, const char *field, int heads, int64_t head_stride, int size,
                            dw_error *e) {
  const double row = (double)(heads - 1) * (double)head_stride + size, head = (double)(rows - 1) * (double)row_stride + size;
  if (rows <= 1 || (double)row_stride >= row || (double)head_stride >= head) return DW_OK;
  char allowed[64];
  snprintf(allowed, sizeof allowed, "%.0f or more", row);
  return dw__fail_int(e, DW_BAD_ARGUMENT, field, row_stride, allowed, "rows would overlap: each has %d heads", heads);
}

// The part of q or of a token that may lie apart.
static dw_status check_rope(const dw_shape *shape, const void *rope, int bytes, const char *name, int64_t outer,
                            const char *outer_name, int64_t inner, const char *inner_name, dw_error *e) {
  if (!rope) return DW_OK;
  const int size = shape->head_dim_qk - shape->head_dim_v;
  if (!size) return dw__fail(e, DW_BAD_ARGUMENT, name, "a pointer", "NULL", "qk is v: there is no part to lie apart");
  dw_status s = need(rope, name, 16, e);
  if (!s) s = need_stride(outer, outer_name, size, bytes, e);
  return s ? s : need_stride(inner, inner_name, size, bytes, e);
}

#define TRY(call)                   \
  do {                              \
    const dw_status try_ = (call);  \
    if (try_ != DW_OK) return try_; \
  } while (0)

static dw_status check_rows(const dw_shape *shape, const dw_bounds *bounds, const dw_args *a, dw_error *e) {
  TRY(need_range(a->batch, "batch", 1, bounds->batch, "the kernel's bounds say how many requests a call may have", e));
  TRY(need_range(a->width, "width", 0, shape->width, "the shape says how many rows a request may have", e));
  const int width = a->width ? a->width : shape->width;
  const long long most = max_total_q(shape, bounds);
  const long long total = a->total_q ? a->total_q : (long long)a->batch * width;
  TRY(need_range(total, "total_q", 0, most, "the kernel's bounds say how many rows of q a call may have", e));
  if (!a->qo_indptr && total != (long long)a->batch * width)
    return dw__fail_int(e, DW_BAD_ARGUMENT, "total_q", total, "batch x width",
                        "without qo_indptr every request has width rows");
  return DW_OK;
}

int dw__args_features(const dw_args *a) { return dw__features(a->window, a->soft_cap != 0.f, a->q_rope, a->kv_rope); }

static dw_status check_features(const dw__plan *plan, const dw_args *a, dw_error *e) {
  static const struct {
    int feature;
    const char *field, *allowed;
  } list[] = {{DW_WITH_WINDOW, "window", "0"},
              {DW_WITH_SOFT_CAP, "soft_cap", "0"},
              {DW_WITH_Q_ROPE, "q_rope", "NULL"},
              {DW_WITH_KV_ROPE, "kv_rope", "NULL"}};
  const int missing = dw__args_features(a) & ~plan->features;
  for (size_t i = 0; i < DW__COUNT(list); i++)
    if (missing & list[i].feature)
      return dw__fail(e, DW_BAD_ARGUMENT, list[i].field, "set", list[i].allowed,
                      "the kernel was made without it: ask for it in bounds.features");
  return DW_OK;
}

static dw_status check_call(const dw__plan *plan, const dw_args *a, dw_error *e) {
  if (plan->call != DW_CALL_TABLE) return DW_OK;
  if (a->addressing != DW_BLOCK_TABLE)
    return dw__fail(e, DW_BAD_ARGUMENT, "addressing", "DW_CSR", "DW_BLOCK_TABLE", "the kernel was made for call=table");
  if (!a->lengths_include_drafts)
    return dw__fail(e, DW_BAD_ARGUMENT, "lengths_include_drafts", "0", "1", "the kernel was made for call=table");
  if (a->qo_indptr) return dw__fail(e, DW_BAD_ARGUMENT, "qo_indptr", "a pointer", "NULL", "the kernel was made for call=table");
  return DW_OK;
}

// Entries that an array has, where that is known, against those that the call may read.
static dw_status need_count(int64_t count, const char *field, double least, const char *why, dw_error *e) {
  if (count == 0 || (count > 0 && (double)count >= least)) return DW_OK;
  char allowed[64];
  snprintf(allowed, sizeof allowed, "0 (not known) or at least %.0f", least);
  return dw__fail_int(e, DW_BAD_ARGUMENT, field, count, allowed, "%s", why);
}

static dw_status check_counts(const dw_shape *shape, const dw_args *a, dw_error *e) {
  const double batch = a->batch, rows = a->total_q ? a->total_q : batch * (a->width ? a->width : shape->width);
  const double stride = (double)dw__or_else(a->block_table_stride, a->table_columns);
  const bool table = a->addressing == DW_BLOCK_TABLE;
  TRY(need_count(a->kv_len_count, "kv_len_count", batch, "every request has a length", e));
  if (a->qo_indptr) TRY(need_count(a->qo_indptr_count, "qo_indptr_count", batch + 1, "a request's rows have two ends", e));
  if (!table) TRY(need_count(a->kv_indptr_count, "kv_indptr_count", batch + 1, "a request's tokens have two ends", e));
  if (!table) TRY(need_count(a->kv_indices_count, "kv_indices_count", 0, "entries of the list of slots", e));
  if (table)
    TRY(need_count(a->block_table_count, "block_table_count", (batch - 1) * stride + a->table_columns,
                   "every request has a row of table_columns pages", e));
  return a->draft_slots ? need_count(a->draft_slots_count, "draft_slots_count", rows, "every row of q has a slot", e) : DW_OK;
}

static dw_status check_scales(const dw_shape *shape, const dw_args *a, dw_error *e) {
  const bool scaled = shape->kv == DW_E4M3;
  if (a->kv_scale && !scaled)
    return dw__fail(e, DW_BAD_ARGUMENT, "kv_scale", "a pointer", "NULL",
                    shape->kv == DW_RECORD656 ? "a record has scales of its own" : "only KV in e4m3 has a scale");
  if (a->v_scale && (!scaled || shape->attention == DW_MLA))
    return dw__fail(e, DW_BAD_ARGUMENT, "v_scale", "a pointer", "NULL",
                    scaled ? "V of MLA is part of the record, whose scale is kv_scale" : "only KV in e4m3 has a scale");
  if (a->kv_scale) TRY(need(a->kv_scale, "kv_scale", 4, e));
  return a->v_scale ? need(a->v_scale, "v_scale", 4, e) : DW_OK;
}

// K or V of GQA: pages, tokens and heads in any order, as long as the tokens of a page and the heads share no elements.
static dw_status check_plane(const dw_shape *shape, const char *name, const void *base, int64_t page, int64_t token,
                             int64_t head, int size, dw_error *e) {
  const int bytes = (int)dw__dtype_size(shape->kv);  // an element
  char page_name[32], token_name[32], head_name[32];
  snprintf(page_name, sizeof page_name, "%s_page_stride", name);
  snprintf(token_name, sizeof token_name, "%s_token_stride", name);
  snprintf(head_name, sizeof head_name, "%s_head_stride", name);
  TRY(need(base, name, 16, e));
  TRY(need_stride(head, head_name, size, bytes, e));
  TRY(need_stride(token, token_name, size, bytes, e));
  head = dw__or_else(head, size);
  token = dw__or_else(token, shape->kv_heads * head);
  TRY(need_apart(shape->page, token, token_name, shape->kv_heads, head, size, e));
  return need_stride(page, page_name, shape->page * token, bytes, e);
}
static dw_status check_planes(const dw_shape *shape, const dw_args *a, dw_error *e) {
  if (a->q_rope || a->kv_rope)
    return dw__fail(e, DW_BAD_ARGUMENT, a->q_rope ? "q_rope" : "kv_rope", "a pointer", "NULL",
                    "only MLA has a part that may lie apart");
  TRY(check_plane(shape, "kv", a->kv, a->kv_page_stride, a->kv_token_stride, a->kv_head_stride, shape->head_dim_qk, e));
  return check_plane(shape, "v", a->v, a->v_page_stride, a->v_token_stride, a->v_head_stride, shape->head_dim_v, e);
}
static dw_status check_pool(const dw_shape *shape, const dw_args *a, dw_error *e) {
  const int bytes = (int)dw__dtype_size(shape->kv);  // an element
  if (a->v) return dw__fail(e, DW_BAD_ARGUMENT, "v", "a pointer", "NULL", "V of MLA is the first part of a token's record");
  TRY(need(a->kv, "kv", 16, e));
  TRY(check_rope(shape, a->kv_rope, bytes, "kv_rope", a->kv_rope_page_stride, "kv_rope_page_stride", a->kv_rope_token_stride,
                 "kv_rope_token_stride", e));
  const int64_t rope = dw__or_else(a->kv_rope_token_stride, shape->head_dim_qk - shape->head_dim_v);
  if (a->kv_rope) TRY(need_stride(a->kv_rope_page_stride, "kv_rope_page_stride", shape->page * rope, bytes, e));
  const int record = dw__kv_part(shape, a->kv_rope);
  TRY(need_stride(a->kv_token_stride, "kv_token_stride", record, bytes, e));
  const int64_t token = dw__or_else(a->kv_token_stride, record);
  return need_stride(a->kv_page_stride, "kv_page_stride", shape->page * token, bytes, e);
}

static dw_status check_kv(const dw_shape *shape, const dw_args *a, dw_error *e) {
  TRY(is_gqa(shape) ? check_planes(shape, a, e) : check_pool(shape, a, e));
  TRY(check_scales(shape, a, e));
  TRY(need_range(a->kv_pages, "kv_pages", 0, INT32_MAX, "pages in the pool, 0 where they are not known", e));
  TRY(need(a->kv_len, "kv_len", 4, e));
  TRY(need_range((int)a->addressing, "addressing", 0, 1, "DW_CSR or DW_BLOCK_TABLE", e));
  if (a->addressing == DW_BLOCK_TABLE) {
    TRY(need(a->block_table, "block_table", 4, e));
    TRY(need_range(a->table_columns, "table_columns", 1, INT32_MAX, "pages a row of the block table can name", e));
    if (a->block_table_stride)
      TRY(need_range(a->block_table_stride, "block_table_stride", a->table_columns, STRIDE_MOST, "rows would overlap", e));
    if (a->draft_slots)
      return dw__fail(e, DW_BAD_ARGUMENT, "draft_slots", "a pointer", "NULL", "a block table names the drafts' pages itself");
  } else {
    const size_t align = a->index64 ? 8 : 4;
    TRY(need(a->kv_indptr, "kv_indptr", 4, e));
    TRY(need(a->kv_indices, "kv_indices", align, e));
    if (a->draft_slots) {
      TRY(need(a->draft_slots, "draft_slots", align, e));
      if (a->lengths_include_drafts)
        return dw__fail(e, DW_BAD_ARGUMENT, "draft_slots", "a pointer", "NULL",
                        "lengths that include the drafts go with tables that include them");
    }
  }
  return DW_OK;
}

// Bytes of the mask that a call may read, as far as host values say: with BYTES_FULL at least so many.
static double mask_bytes(const dw_shape *shape, const dw_args *a) {
  const int width = a->width ? a->width : shape->width;
  const double rows = a->total_q ? a->total_q : (double)a->batch * width;
  const double row = (double)dw__or_else(a->mask_row_stride, a->mask_kind == DW_MASK_BITS ? dw__ceil_div(width, 32) : width);
  switch (a->mask_kind) {
    case DW_MASK_PARENTS: return rows * 4;
    case DW_MASK_BITS: return rows > 0 ? ((rows - 1) * row + (double)dw__ceil_div(width, 32)) * 4 : 0;
    case DW_MASK_BYTES_FULL: return a->qo_indptr ? rows : rows * width;
    default: break;
  }
  const double request = a->mask_shared ? 0 : a->mask_request_stride ? (double)a->mask_request_stride : width * row;
  return ((a->batch - 1) * request + (width - 1) * row + width) * (a->mask_kind == DW_MASK_BIAS_F32 ? 4 : 1);
}

static dw_status check_mask_size(const dw_shape *shape, const dw_args *a, dw_error *e) {
  TRY(need_range(a->mask_size, "mask_size", 0, INT64_MAX, "bytes at mask, 0 where they are not known", e));
  const double bytes = mask_bytes(shape, a);
  if (!a->mask_size || (double)a->mask_size >= bytes) return DW_OK;
  char allowed[64];
  snprintf(allowed, sizeof allowed, "%.0f or more", bytes);
  return dw__fail_int(e, DW_BAD_ARGUMENT, "mask_size", a->mask_size, allowed, "the call's rows need a mask of so many bytes");
}

static dw_status check_mask(const dw_shape *shape, const dw_args *a, dw_error *e) {
  const int width = a->width ? a->width : shape->width;
  TRY(need_range((int)a->mask_kind, "mask_kind", 0, DW_MASK_STATIC, "DW_MASK_NONE to DW_MASK_STATIC", e));
  if (a->mask_kind == DW_MASK_STATIC && !shape->tree_nodes)
    return dw__fail(e, DW_BAD_ARGUMENT, "mask_kind", "DW_MASK_STATIC", "another, or a shape with a tree",
                    "the shape has no tree in its code");
  if (a->mask_kind == DW_MASK_NONE || a->mask_kind == DW_MASK_STATIC || a->drafts_elsewhere) return DW_OK;
  const bool bytes = a->mask_kind == DW_MASK_BYTES_QLEN || a->mask_kind == DW_MASK_BYTES_FULL;
  TRY(need(a->mask, "mask", bytes ? 1 : 4, e));
  if (a->mask_kind == DW_MASK_BYTES_FULL) TRY(need(a->mask_indptr, "mask_indptr", 8, e));
  if (a->mask_kind == DW_MASK_BYTES_FULL || a->mask_kind == DW_MASK_PARENTS) return check_mask_size(shape, a, e);
  const bool bits = a->mask_kind == DW_MASK_BITS;
  const int64_t least = bits ? dw__ceil_div(width, 32) : width;
  if (a->mask_row_stride)
    TRY(need_range(a->mask_row_stride, "mask_row_stride", least, STRIDE_MOST,
                   bits ? "a row of the mask has a bit a draft" : "a row of the mask has an element a draft", e));
  if (!bits && !a->mask_shared && a->mask_request_stride)
    TRY(need_range(a->mask_request_stride, "mask_request_stride", (width - 1) * dw__or_else(a->mask_row_stride, least) + width,
                   STRIDE_MOST, "a request's matrix has width rows", e));
  return check_mask_size(shape, a, e);
}

static dw_status check_scalars(const dw_args *a, dw_error *e) {
  char found[32];
  if (!(a->softmax_scale > 0.f) || !isfinite(a->softmax_scale)) {
    snprintf(found, sizeof found, "%g", (double)a->softmax_scale);
    return dw__fail(e, DW_BAD_ARGUMENT, "softmax_scale", found, "a positive number", "it multiplies q . k");
  }
  if (a->soft_cap != 0.f && (!(a->soft_cap >= 1e-3f) || !isfinite(a->soft_cap))) {
    snprintf(found, sizeof found, "%g", (double)a->soft_cap);
    return dw__fail(e, DW_BAD_ARGUMENT, "soft_cap", found, "0 (none), or 0.001 and more", "scores stay below it");
  }
  TRY(need_range(a->window, "window", 0, INT32_MAX, "tokens a row sees, itself included; 0 for all", e));
  if (a->positions) TRY(need(a->positions, "positions", 4, e));
  if (a->sinks) TRY(need(a->sinks, "sinks", 4, e));
  if (!a->drafts_elsewhere) return DW_OK;
  if (a->lengths_include_drafts)
    return dw__fail(e, DW_BAD_ARGUMENT, "lengths_include_drafts", "1", "0 with drafts_elsewhere",
                    "the drafts are not in the KV");
  if (a->window)
    return dw__fail_int(e, DW_BAD_ARGUMENT, "window", a->window, "0 with drafts_elsewhere",
                        "the positions of a rank's tokens are not known");
  if (a->draft_slots)
    return dw__fail(e, DW_BAD_ARGUMENT, "draft_slots", "a pointer", "NULL with drafts_elsewhere",
                    "the drafts are not in the KV");
  return DW_OK;
}

static dw_status check_apart(const dw_shape *shape, const dw_args *a, dw_error *e) {
  const int64_t rows = a->total_q ? a->total_q : (int64_t)a->batch * (a->width ? a->width : shape->width);
  const int heads = shape->heads, rope = shape->head_dim_qk - shape->head_dim_v;
  const int q_part = a->q_rope ? shape->head_dim_v : shape->head_dim_qk;
  const int64_t q_head = dw__or_else(a->q_head_stride, q_part), rope_head = dw__or_else(a->q_rope_head_stride, rope);
  const int64_t out_head = dw__or_else(a->out_head_stride, shape->head_dim_v);
  TRY(need_apart(rows, dw__or_else(a->q_row_stride, heads * q_head), "q_row_stride", heads, q_head, q_part, e));
  if (a->q_rope)
    TRY(need_apart(rows, dw__or_else(a->q_rope_row_stride, heads * rope_head), "q_rope_row_stride", heads, rope_head, rope, e));
  return need_apart(rows, dw__or_else(a->out_row_stride, heads * out_head), "out_row_stride", heads, out_head,
                    shape->head_dim_v, e);
}

dw_status dw__args_check(const dw_shape *shape, const dw_bounds *bounds, const dw__plan *plan, const dw_args *a, dw_error *e) {
  if (a->size != sizeof(dw_args))
    return dw__fail_int(e, DW_BAD_ARGUMENT, "size", (long long)a->size, "sizeof(dw_args)",
                        "the struct was made for another version");
  const int out_bytes = shape->out == DW_F32 ? 4 : 2;
  TRY(check_call(plan, a, e));
  TRY(check_features(plan, a, e));
  TRY(check_rows(shape, bounds, a, e));
  TRY(need(a->q, "q", 16, e));
  const int q_part = a->q_rope ? shape->head_dim_v : shape->head_dim_qk;
  TRY(check_rope(shape, a->q_rope, 2, "q_rope", a->q_rope_row_stride, "q_rope_row_stride", a->q_rope_head_stride,
                 "q_rope_head_stride", e));
  TRY(need_stride(a->q_head_stride, "q_head_stride", q_part, 2, e));
  TRY(need_stride(a->q_row_stride, "q_row_stride", q_part, 2, e));
  TRY(need(a->out, "out", 16, e));
  TRY(need_stride(a->out_head_stride, "out_head_stride", shape->head_dim_v, out_bytes, e));
  TRY(need_stride(a->out_row_stride, "out_row_stride", shape->head_dim_v, out_bytes, e));
  TRY(check_apart(shape, a, e));
  if (a->lse) {
    TRY(need(a->lse, "lse", 4, e));
    if (a->lse_row_stride)
      TRY(need_range(a->lse_row_stride, "lse_row_stride", shape->heads, STRIDE_MOST, "rows would overlap", e));
  }
  if (a->qo_indptr) TRY(need(a->qo_indptr, "qo_indptr", 4, e));
  if (a->report) TRY(need(a->report, "report", 4, e));
  TRY(check_kv(shape, a, e));
  TRY(check_counts(shape, a, e));
  TRY(check_mask(shape, a, e));
  TRY(check_scalars(a, e));
  if (plan->workspace_bytes) {
    TRY(need(a->workspace, "workspace", 256, e));
    if (a->workspace_size < plan->workspace_bytes)
      return dw__fail_int(e, DW_BAD_ARGUMENT, "workspace_size", (long long)a->workspace_size,
                          "dw_workspace_size() bytes or more", "the kernel needs %zu bytes", plan->workspace_bytes);
  }
  return DW_OK;
}
