// What the kernels of gpu_tools.cu.lua take. One layout for the host (C17) and the device. These kernels judge the product's,
// so nothing here is shared with dw_params: the fields are filled from dw_args anew. Strides are in elements of the array.
#ifndef DRAFTWOOD_GPU_TOOLS_H
#define DRAFTWOOD_GPU_TOOLS_H

// Vectors of normal random numbers: unit u of a page of `page` units starts at (u / page) x page_stride + (u % page) x
// unit_stride. dw_tool_fill: 256 threads a block, a warp a unit, any grid.
typedef struct dw_tool_fill_params {
  void *to;
  const unsigned char *used;  // [units], or null for all: units to write, the others are left alone
  unsigned long long seed;
  long long units, page_stride, unit_stride;
  int page, elements;
  int type;     // 0 bf16, 1 fp16, 3 e4m3, 4 records (elements: of them, and strides in bytes)
  float scale;  // standard deviation
} dw_tool_fill_params;

enum { DW_T_CSR = 0, DW_T_TABLE = 1 };
enum { DW_T_NONE = 0, DW_T_PARENTS = 1, DW_T_BITS = 2, DW_T_BYTES_QLEN = 3, DW_T_BYTES_FULL = 4, DW_T_BIAS = 5, DW_T_STATIC = 6 };

// dw_oracle64 and dw_plain: grid (vectors of a request / DW_T_BLOCK_VECTORS, chunks, batch), DW_T_THREADS threads.
// dw_oracle64_merge (of both) and dw_tool_compare: grid (vectors of a request / DW_T_WARPS, batch), DW_T_THREADS threads.
// dw_oracle64_depth, before the others where a window has no positions: grid (rows of a request / DW_T_WARPS, batch).
enum { DW_T_THREADS = 128, DW_T_WARPS = 4, DW_T_WARP_VECTORS = 2, DW_T_BLOCK_VECTORS = DW_T_WARPS * DW_T_WARP_VECTORS };

// A vector is a row's head: vector = row of q x heads + head.
typedef struct dw_oracle_params {
  const void *q, *q_rope, *kv, *kv_rope, *kv_indices, *draft_slots, *mask;  // q_rope, kv_rope: null where not apart
  const int *qo_indptr, *kv_len, *kv_indptr, *block_table;
  const long long *mask_indptr;
  const float *sinks;      // [heads] or null
  const float *kv_scale;   // e4m3: multiplies the elements of K, null: 1
  const float *v_scale;    // and of V
  const int *positions;    // [total_q], read with a window only
  int *depth_positions;    // [total_q], what dw_oracle64_depth writes
  long long q_row_stride, q_head_stride, q_rope_row_stride, q_rope_head_stride;
  long long kv_page_stride, kv_token_stride, kv_rope_page_stride, kv_rope_token_stride;
  const void *v;           // GQA: the plane of V, kv is K's; null for MLA
  long long kv_head_stride, v_page_stride, v_token_stride, v_head_stride;
  int kv_heads;
  long long table_stride, mask_row_stride, mask_request_stride;
  double *part_out;  // [chunks, total_q x heads, v]: sums of exp(score - max) x V
  double *part_max;  // [chunks, total_q x heads]: greatest score, -inf where nothing was seen
  double *part_sum;  // [chunks, total_q x heads]
  double *out;       // [total_q x heads, v]
  double *lse;       // [total_q x heads], in the base asked for
  double lse_factor; // log2(e) for base 2, 1 for base e
  double scale;      // softmax scale
  double soft_cap;   // 0: none
  long long window;  // 0: none
  int heads, page, width, batch, total_q;
  int chunk_tokens, chunks;
  int addressing, index64, mask_kind, lengths_include_drafts, drafts_elsewhere;
  int rounded;            // merge: the plain result, rounded to the output type
  int q_type, kv_type, out_dtype;  // 0 bf16, 1 fp16, 2 fp32, 3 e4m3, 4 records of 656 bytes
  unsigned long long static_sees[64];  // DW_T_STATIC: bit j of node i: i sees draft j
} dw_oracle_params;

// dw_tool_gather reads the tokens of a call as its tables name them, and writes nothing: 512 threads a block, any grid.
typedef struct dw_tool_gather_params {
  dw_oracle_params call;
  unsigned *sink;
  int most_tokens;  // of a request
} dw_tool_gather_params;

// One vector beside its answers.
typedef struct dw_tool_row {
  double relative;   // ||out - exact|| / ||exact||; absolute where exact is 0
  double plain;      // the same of the plain result: the yardstick
  double norm;       // ||exact||
  double lse, lse_exact;
  int close;         // elements within one unit in the last place of the rounded exact result
  int compared;      // 1
} dw_tool_row;

typedef struct dw_tool_compare_params {
  const void *out;    // what the kernel wrote
  const float *lse;   // or null
  const double *exact, *exact_lse, *plain;
  dw_tool_row *rows;  // [total_q x heads]
  const int *qo_indptr;
  long long out_row_stride, out_head_stride, lse_row_stride;
  int heads, width, out_dtype;
} dw_tool_compare_params;

// dw_tool_outside counts elements that are in no row and are no longer poison; the array starts `lead` elements into `data`.
// dw_tool_differ counts words in which two arrays differ. Both: 256 threads a block, any grid, *count starts at 0.
typedef struct dw_tool_count_params {
  const void *data, *other;
  unsigned *count;
  long long elements, lead, row_stride, head_stride, rows;
  int element_bytes, heads, head_elements;
  unsigned poison;
} dw_tool_count_params;

// dw_tool_read reads `bytes` (a multiple of 16) once: 512 threads a block, any grid. dw_tool_mma issues `steps` x 8 mma.sync a
// warp. dw_tool_spin runs for `steps` clocks. None of the three changes memory; `sink` only keeps their work alive. dw_tool_copy
// copies `bytes` from `data` to `to`: 512 threads a block, any grid. dw_tool_copy_rows copies `steps` rows of `bytes` (a multiple of
// 16, at most 1,536); `data` has the addresses, from and to, of each (64 bits): 128 threads a block, any grid.
typedef struct dw_tool_peak_params {
  const void *data;
  unsigned *sink;
  long long bytes, steps;
  void *to;
} dw_tool_peak_params;

#endif
