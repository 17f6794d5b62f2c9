// Valid arguments with one field spoilt. Each way says when it can be used and what the refusal has to name.
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "random.h"
#include "random_case.h"

typedef struct spoiler {
  const dw_shape *shape;
  const dw_bounds *bounds;
  const dw__plan *plan;
  dw_args *args;
  uint64_t *state;
} spoiler;

typedef struct way {
  const char *field, *what;
  bool (*spoil)(const spoiler *s);  // false: these arguments cannot be spoilt so
} way;

static int below(const spoiler *s, int n) { return dw__random_below(s->state, n); }
static int width_of(const spoiler *s) { return s->args->width ? s->args->width : s->shape->width; }
static int rope_of(const spoiler *s) { return s->shape->head_dim_qk - s->shape->head_dim_v; }
static int q_part(const spoiler *s) { return s->args->q_rope ? s->shape->head_dim_v : s->shape->head_dim_qk; }
static int kv_part(const spoiler *s) { return dw__kv_part(s->shape, s->args->kv_rope); }
static bool is_gqa(const spoiler *s) { return s->shape->attention == DW_GQA; }
// Tokens as the strides say or leave it.
static int64_t kv_token(const spoiler *s) {
  return dw__or_else(s->args->kv_token_stride, s->shape->kv_heads * dw__or_else(s->args->kv_head_stride, kv_part(s)));
}
static int64_t v_token(const spoiler *s) {
  return dw__or_else(s->args->v_token_stride, s->shape->kv_heads * dw__or_else(s->args->v_head_stride, s->shape->head_dim_v));
}
static int kv_bytes(const spoiler *s) { return (int)dw__dtype_size(s->shape->kv); }
static bool by_table(const spoiler *s) { return s->args->addressing == DW_BLOCK_TABLE; }
static bool has_matrix(const spoiler *s) {
  return s->args->mask_kind == DW_MASK_BYTES_QLEN || s->args->mask_kind == DW_MASK_BIAS_F32;
}
static bool mask_is_read(const spoiler *s) {
  return s->args->mask_kind != DW_MASK_NONE && s->args->mask_kind != DW_MASK_STATIC && !s->args->drafts_elsewhere;
}
// ---- pointers -------------------------------------------------------------------------------------------------

// A pointer that is there, moved by less than its alignment.
static bool shift(const spoiler *s, const void *pointer, void *field, int align) {
  if (!pointer) return false;
  uintptr_t moved = (uintptr_t)pointer + 1 + (uintptr_t)below(s, align - 1);
  memcpy(field, &moved, sizeof moved);
  return true;
}
#define NULLED(name, condition)               \
  static bool null_##name(const spoiler *s) { \
    if (!(condition)) return false;           \
    s->args->name = NULL;                     \
    return true;                              \
  }
#define SHIFTED(name, align, condition) \
  static bool shift_##name(const spoiler *s) { return (condition) && shift(s, s->args->name, &s->args->name, align); }
#define BOTH(name, align, condition) NULLED(name, condition) SHIFTED(name, align, condition)

BOTH(q, 16, true)
BOTH(out, 16, true)
BOTH(kv, 16, true)
BOTH(v, 16, is_gqa(s))
BOTH(kv_len, 4, true)
SHIFTED(lse, 4, true)
SHIFTED(q_rope, 16, true)
SHIFTED(kv_rope, 16, true)
SHIFTED(kv_scale, 4, true)
SHIFTED(v_scale, 4, true)
SHIFTED(qo_indptr, 4, true)
SHIFTED(positions, 4, true)
SHIFTED(sinks, 4, true)
BOTH(kv_indptr, 4, !by_table(s))
BOTH(kv_indices, s->args->index64 ? 8 : 4, !by_table(s))
SHIFTED(draft_slots, s->args->index64 ? 8 : 4, !by_table(s))
BOTH(block_table, 4, by_table(s))
NULLED(mask, mask_is_read(s))
SHIFTED(mask, 4, mask_is_read(s) && s->args->mask_kind != DW_MASK_BYTES_QLEN && s->args->mask_kind != DW_MASK_BYTES_FULL)
BOTH(mask_indptr, 8, mask_is_read(s) && s->args->mask_kind == DW_MASK_BYTES_FULL)
BOTH(workspace, 256, s->plan->workspace_bytes > 0)

static bool less_workspace(const spoiler *s) {
  if (!s->plan->workspace_bytes) return false;
  s->args->workspace_size = (size_t)below(s, 2) * (s->plan->workspace_bytes - 1);
  return true;
}

// ---- strides --------------------------------------------------------------------------------------------------

// Below what a row needs, below 0, or no multiple of 16 bytes.
static bool bad_stride(const spoiler *s, int64_t *stride, int64_t smallest, int bytes) {
  switch (below(s, 3)) {
    case 0: *stride = 16 / bytes * (1 + below(s, (int)(smallest * bytes / 16) - 1)); break;
    case 1: *stride = -smallest; break;
    default: *stride = smallest + 64 + 1; break;
  }
  return true;
}
#define STRIDE(name, smallest, bytes, condition) \
  static bool stride_##name(const spoiler *s) { return (condition) && bad_stride(s, &s->args->name, smallest, bytes); }
STRIDE(q_row_stride, q_part(s), 2, true)
STRIDE(q_head_stride, q_part(s), 2, true)
STRIDE(out_row_stride, s->shape->head_dim_v, (int)dw__dtype_size(s->shape->out), true)
STRIDE(out_head_stride, s->shape->head_dim_v, (int)dw__dtype_size(s->shape->out), true)
STRIDE(kv_token_stride, kv_part(s), kv_bytes(s), true)
STRIDE(kv_page_stride, s->shape->page *kv_token(s), kv_bytes(s), true)
STRIDE(kv_head_stride, kv_part(s), kv_bytes(s), is_gqa(s))
STRIDE(v_token_stride, s->shape->head_dim_v, kv_bytes(s), is_gqa(s))
STRIDE(v_page_stride, s->shape->page *v_token(s), kv_bytes(s), is_gqa(s))
STRIDE(v_head_stride, s->shape->head_dim_v, kv_bytes(s), is_gqa(s))
STRIDE(q_rope_row_stride, rope_of(s), 2, s->args->q_rope)
STRIDE(q_rope_head_stride, rope_of(s), 2, s->args->q_rope)
STRIDE(kv_rope_token_stride, rope_of(s), kv_bytes(s), s->args->kv_rope)
STRIDE(kv_rope_page_stride, s->shape->page *dw__or_else(s->args->kv_rope_token_stride, rope_of(s)), kv_bytes(s),
       s->args->kv_rope)

static bool less(const spoiler *s, int64_t *stride, int64_t smallest) {
  *stride = smallest > 1 && below(s, 2) ? smallest - 1 : -1;
  return true;
}
static bool stride_lse(const spoiler *s) { return s->args->lse && less(s, &s->args->lse_row_stride, s->shape->heads); }
static bool stride_table(const spoiler *s) {
  return by_table(s) && less(s, &s->args->block_table_stride, s->args->table_columns);
}
static bool stride_mask_row(const spoiler *s) {
  bool bits = s->args->mask_kind == DW_MASK_BITS;
  return mask_is_read(s) && (bits || has_matrix(s)) &&
         less(s, &s->args->mask_row_stride, bits ? (width_of(s) + 31) / 32 : width_of(s));
}
static bool stride_mask_request(const spoiler *s) {
  int64_t row = dw__or_else(s->args->mask_row_stride, width_of(s));
  return mask_is_read(s) && has_matrix(s) && !s->args->mask_shared &&
         less(s, &s->args->mask_request_stride, (width_of(s) - 1) * row + width_of(s));
}

// ---- sizes, enums and numbers ---------------------------------------------------------------------------------

static bool bad_size(const spoiler *s) {
  static const size_t sizes[] = {0, 8, 1 << 17, SIZE_MAX};
  s->args->size = sizes[below(s, DW__COUNT(sizes))];
  return true;
}
static bool bad_batch(const spoiler *s) {
  const int batches[] = {0, -1, INT_MIN, s->bounds->batch + 1, INT_MAX};
  s->args->batch = batches[below(s, DW__COUNT(batches))];
  return true;
}
static bool bad_width(const spoiler *s) {
  const int widths[] = {-1, s->shape->width + 1, INT_MAX};
  s->args->width = widths[below(s, DW__COUNT(widths))];
  return true;
}
static bool bad_total_q(const spoiler *s) {
  int bound = s->bounds->total_q ? s->bounds->total_q : s->bounds->batch * s->shape->width;
  const int totals[] = {-1, bound + 1, INT_MAX, s->args->batch * width_of(s) + 1};
  s->args->total_q = totals[below(s, s->args->qo_indptr ? 3 : 4)];
  return true;
}
static bool bad_addressing(const spoiler *s) {
  s->args->addressing = (dw_addressing)(below(s, 2) ? 2 : -1);
  return true;
}
static bool bad_columns(const spoiler *s) {
  s->args->table_columns = -below(s, 2);
  return by_table(s);
}
static bool bad_mask_kind(const spoiler *s) {
  s->args->mask_kind = (dw_mask)(below(s, 2) ? DW_MASK_STATIC + 1 : -1);
  return true;
}
static bool bad_scale(const spoiler *s) {
  const float values[] = {0, -1, NAN, INFINITY};
  s->args->softmax_scale = values[below(s, DW__COUNT(values))];
  return true;
}
static bool bad_cap(const spoiler *s) {
  const float values[] = {-1, NAN, INFINITY};
  s->args->soft_cap = values[below(s, DW__COUNT(values))];
  return true;
}
static bool bad_window(const spoiler *s) {
  if (s->args->drafts_elsewhere) s->args->window = 1 + below(s, 100);
  else s->args->window = below(s, 2) ? -1 : INT_MIN;
  return true;
}

// Arrays that are shorter than the call, by one entry or as if they had been made for less.
static bool few(const spoiler *s, int64_t *count, int64_t need) {
  *count = need > 1 && below(s, 2) ? need - 1 : -1;
  return true;
}
static int64_t rows_of(const spoiler *s) { return s->args->total_q ? s->args->total_q : (int64_t)s->args->batch * width_of(s); }
static bool few_lengths(const spoiler *s) { return few(s, &s->args->kv_len_count, s->args->batch); }
static bool few_rows(const spoiler *s) { return s->args->qo_indptr && few(s, &s->args->qo_indptr_count, s->args->batch + 1); }
static bool few_lists(const spoiler *s) { return !by_table(s) && few(s, &s->args->kv_indptr_count, s->args->batch + 1); }
static bool few_indices(const spoiler *s) { return !by_table(s) && few(s, &s->args->kv_indices_count, 0); }
static bool few_slots(const spoiler *s) { return s->args->draft_slots && few(s, &s->args->draft_slots_count, rows_of(s)); }
static bool few_pages(const spoiler *s) {
  int64_t stride = dw__or_else(s->args->block_table_stride, s->args->table_columns);
  return by_table(s) && few(s, &s->args->block_table_count, (s->args->batch - 1) * stride + s->args->table_columns);
}

// ---- what the kernel was not made for ---------------------------------------------------------------------------

static bool lacks(const spoiler *s, int feature) { return !(s->plan->features & feature); }
static bool static_without_tree(const spoiler *s) {
  s->args->mask_kind = DW_MASK_STATIC;
  return !s->shape->tree_nodes;
}
static bool window_without_code(const spoiler *s) {
  s->args->window = 1 + below(s, 1000);
  return lacks(s, DW_WITH_WINDOW);
}
static bool cap_without_code(const spoiler *s) {
  s->args->soft_cap = 30;
  return lacks(s, DW_WITH_SOFT_CAP);
}
static bool q_rope_without_code(const spoiler *s) {
  s->args->q_rope = s->args->q;
  return lacks(s, DW_WITH_Q_ROPE);
}
static bool kv_rope_without_code(const spoiler *s) {
  s->args->kv_rope = s->args->kv;
  return lacks(s, DW_WITH_KV_ROPE);
}

static bool scale_of_unscaled(const spoiler *s) {
  s->args->kv_scale = (const float *)s->args->kv;
  return s->shape->kv != DW_E4M3;
}
static bool scale_of_v(const spoiler *s) {
  s->args->v_scale = (const float *)s->args->kv;
  return !is_gqa(s) || s->shape->kv != DW_E4M3;
}

// ---- contradictions -------------------------------------------------------------------------------------------

static bool slots_with_table(const spoiler *s) {
  s->args->draft_slots = s->args->kv_len;
  return by_table(s);
}
static bool slots_with_all(const spoiler *s) {
  if (by_table(s) || !s->args->lengths_include_drafts) return false;
  s->args->draft_slots = s->args->kv_indices;
  return true;
}
static bool elsewhere_with_all(const spoiler *s) {
  s->args->drafts_elsewhere = 1;
  return s->args->lengths_include_drafts;
}
static bool elsewhere_with_window(const spoiler *s) {
  s->args->drafts_elsewhere = 1;
  return s->args->window && !s->args->lengths_include_drafts;
}
static bool elsewhere_with_slots(const spoiler *s) {
  s->args->drafts_elsewhere = 1;
  return s->args->draft_slots && !s->args->window && !s->args->lengths_include_drafts;
}
static bool rope_of_nothing(const spoiler *s) {
  if (rope_of(s)) return false;
  s->args->q_rope = s->args->q;
  return true;
}
static bool values_of_records(const spoiler *s) {
  s->args->v = s->args->kv;
  return !is_gqa(s);
}
// A token's heads would lie on those of the next one.
static bool tokens_among_heads(const spoiler *s) {
  const int64_t head = dw__or_else(s->args->v_head_stride, s->shape->head_dim_v), page = s->shape->page;
  if (!is_gqa(s) || page == 1 || s->shape->kv_heads == 1) return false;
  s->args->v_head_stride = head;
  s->args->v_token_stride = head;
  return true;
}
static bool csr_for_a_table_kernel(const spoiler *s) {
  s->args->addressing = DW_CSR;
  return s->plan->call == DW_CALL_TABLE;
}
static bool prefix_for_a_table_kernel(const spoiler *s) {
  s->args->lengths_include_drafts = 0;
  return s->plan->call == DW_CALL_TABLE;
}
static bool rows_for_a_table_kernel(const spoiler *s) {
  s->args->qo_indptr = s->args->kv_len;
  return s->plan->call == DW_CALL_TABLE;
}

// ---- all of them ----------------------------------------------------------------------------------------------

#define NULL_AND_SHIFT(name) \
  {#name, "NULL", null_##name}, { #name, "misaligned", shift_##name }
#define BAD_STRIDE(name) \
  { #name, "too small or crooked", stride_##name }
static const way ways[] = {
  NULL_AND_SHIFT(q),
  NULL_AND_SHIFT(out),
  NULL_AND_SHIFT(kv),
  NULL_AND_SHIFT(v),
  NULL_AND_SHIFT(kv_len),
  {"lse", "misaligned", shift_lse},
  {"q_rope", "misaligned", shift_q_rope},
  {"kv_rope", "misaligned", shift_kv_rope},
  {"kv_scale", "misaligned", shift_kv_scale},
  {"v_scale", "misaligned", shift_v_scale},
  {"qo_indptr", "misaligned", shift_qo_indptr},
  {"positions", "misaligned", shift_positions},
  {"sinks", "misaligned", shift_sinks},
  NULL_AND_SHIFT(kv_indptr),
  NULL_AND_SHIFT(kv_indices),
  {"draft_slots", "misaligned", shift_draft_slots},
  NULL_AND_SHIFT(block_table),
  NULL_AND_SHIFT(mask),
  NULL_AND_SHIFT(mask_indptr),
  NULL_AND_SHIFT(workspace),
  {"workspace_size", "too small", less_workspace},
  BAD_STRIDE(q_row_stride),
  BAD_STRIDE(q_head_stride),
  BAD_STRIDE(out_row_stride),
  BAD_STRIDE(out_head_stride),
  BAD_STRIDE(kv_token_stride),
  BAD_STRIDE(kv_page_stride),
  BAD_STRIDE(kv_head_stride),
  BAD_STRIDE(v_token_stride),
  BAD_STRIDE(v_page_stride),
  BAD_STRIDE(v_head_stride),
  BAD_STRIDE(q_rope_row_stride),
  BAD_STRIDE(q_rope_head_stride),
  BAD_STRIDE(kv_rope_token_stride),
  BAD_STRIDE(kv_rope_page_stride),
  {"lse_row_stride", "too small", stride_lse},
  {"block_table_stride", "too small", stride_table},
  {"mask_row_stride", "too small", stride_mask_row},
  {"mask_request_stride", "too small", stride_mask_request},
  {"size", "not the struct's", bad_size},
  {"batch", "outside the bounds", bad_batch},
  {"width", "outside the shape", bad_width},
  {"total_q", "outside the bounds", bad_total_q},
  {"addressing", "no such kind", bad_addressing},
  {"table_columns", "none", bad_columns},
  {"mask_kind", "no such kind", bad_mask_kind},
  {"softmax_scale", "no positive number", bad_scale},
  {"soft_cap", "no number of 0 or more", bad_cap},
  {"window", "negative, or with drafts_elsewhere", bad_window},
  {"kv_len_count", "too few", few_lengths},
  {"qo_indptr_count", "too few", few_rows},
  {"kv_indptr_count", "too few", few_lists},
  {"kv_indices_count", "negative", few_indices},
  {"draft_slots_count", "too few", few_slots},
  {"block_table_count", "too few", few_pages},
  {"draft_slots", "with a block table", slots_with_table},
  {"draft_slots", "with lengths that include the drafts", slots_with_all},
  {"lengths_include_drafts", "with drafts_elsewhere", elsewhere_with_all},
  {"window", "with drafts_elsewhere", elsewhere_with_window},
  {"draft_slots", "with drafts_elsewhere", elsewhere_with_slots},
  {"q_rope", "where qk is v", rope_of_nothing},
  {"mask_kind", "STATIC without a tree", static_without_tree},
  {"window", "for a kernel without", window_without_code},
  {"soft_cap", "for a kernel without", cap_without_code},
  {"q_rope", "for a kernel without", q_rope_without_code},
  {"kv_rope", "for a kernel without", kv_rope_without_code},
  {"v", "for MLA", values_of_records},
  {"v_token_stride", "heads of two tokens in one place", tokens_among_heads},
  {"kv_scale", "for KV that has none", scale_of_unscaled},
  {"v_scale", "of a record, or for KV that has none", scale_of_v},
  {"addressing", "CSR for a kernel of call=table", csr_for_a_table_kernel},
  {"lengths_include_drafts", "0 for a kernel of call=table", prefix_for_a_table_kernel},
  {"qo_indptr", "for a kernel of call=table", rows_for_a_table_kernel},
};

size_t dw__args_break_count(void) { return DW__COUNT(ways); }

dw__broken dw__args_break(const dw_shape *shape, const dw_bounds *bounds, const dw__plan *plan, uint64_t *seed, dw_args *args) {
  const dw_args valid = *args;
  const spoiler s = {shape, bounds, plan, args, seed};
  for (;;) {
    int i = dw__random_below(seed, (int)DW__COUNT(ways));
    if (ways[i].spoil(&s)) return (dw__broken){ways[i].field, ways[i].what, i};
    *args = valid;
  }
}

// A size that makes no sense is found before the struct is read: then the struct is named.
bool dw__broken_named(const dw__broken *broken, const dw_error *error) {
  if (strcmp(broken->field, error->field) == 0) return true;
  return strcmp(broken->field, "size") == 0 && strcmp(error->field, "args") == 0;
}
