// What a launch hands to the kernels. One layout for the host (C17) and the device; every kernel of a variant takes it by value.
// Strides are in elements of the array they belong to. Shapes in brackets are [slowest, ..., fastest].
#ifndef DRAFTWOOD_PARAMS_H
#define DRAFTWOOD_PARAMS_H

enum { DW_P_CSR = 0, DW_P_BLOCK_TABLE = 1 };                // dw_params.addressing
// dw_params.mask_kind, as dw_mask; PACKED: PARENTS packed to bits, a dead node's row is empty.
enum {
  DW_P_MASK_NONE = 0, DW_P_MASK_PARENTS = 1, DW_P_MASK_BITS = 2, DW_P_MASK_BYTES_QLEN = 3, DW_P_MASK_BYTES_FULL = 4,
  DW_P_MASK_BIAS_F32 = 5, DW_P_MASK_STATIC = 6, DW_P_MASK_PACKED = 7
};
// Kinds of fault, as dw_fault; words of the report for each.
enum {
  DW_P_FAULT_REQUEST = 0, DW_P_FAULT_ROWS = 1, DW_P_FAULT_LENGTH = 2, DW_P_FAULT_TABLE = 3, DW_P_FAULT_PAGE = 4,
  DW_P_FAULT_DRAFT_SLOT = 5, DW_P_FAULT_PARENT = 6, DW_P_FAULT_MASK_SIZE = 7, DW_P_FAULT_BIAS = 8, DW_P_FAULT_POSITION = 9,
  DW_P_FAULT_WORDS = 4
};
enum { DW_P_SPLIT_AUTO = 0, DW_P_SPLIT_FIXED = 1 };         // dw_params.split_mode

// In order of first use: a cache line of parameters that a kernel meets for the first time costs it some 0.1 us.
typedef struct dw_params {
  const int *kv_len;       // [batch]
  const int *block_table;  // block table: [batch, table_columns]
  long long block_table_stride;
  int table_columns;       // block table: pages a row may name
  int batch;
  unsigned ranges_inverse; // 2^32 / ranges, rounded up; not used for 1
  int ranges;              // KV ranges of a request: AUTO: where all are equally long, FIXED: at most (grid size)
  int all_ranges;          // AUTO: of the whole batch; partial results have a slot each
  int early_launch;        // let the dependent kernel start at once (grids that leave much of the chip idle)
  int dependent;           // launched as a dependent kernel: q, KV and the mask may be read only after grid_dependency_wait
  int width;               // rows a request where qo_indptr is null; also the bound on a request's rows
  int rows;                // bound on rows x heads of one request: the row stride of the partials
  int group_tiles, group_more;  // row tiles of a group where a request has `width` rows: each, and one more for the first few
  const void *kv;          // pool of pages, each `page` tokens of at least qk elements; MLA: V = the first v of a token
  long long kv_page_stride, kv_token_stride;
  const void *q;           // [total_q, heads, qk]
  long long q_row_stride, q_head_stride;
  float scale_log2;        // softmax scale x log2(e)
  int mask_kind;
  const void *mask;        // in the layouts of dw_mask; PACKED as BITS
  long long mask_row_stride;      // BITS, PACKED: words; BYTES_QLEN, BIAS_F32: elements
  void *partial;           // workspace: [KV ranges, rows, v] partial outputs
  float *partial_lse;      // workspace: [KV ranges, rows], base 2
  void *out;               // [total_q, heads, v]
  long long out_row_stride, out_head_stride;
  int out_dtype;           // as dw_dtype
  float lse_factor;        // 1 for base 2, ln 2 for base e
  float *lse;              // [total_q, heads] or null
  long long lse_row_stride;
  const float *sinks;      // [heads] or null, natural units
  const float *k_scale;    // KV in e4m3: multiplies scores, null: 1
  const float *v_scale;    // KV in e4m3: multiplies the output, null: 1
  const void *v;           // GQA: pool of V, in the same pages; kv is K's
  long long v_page_stride, v_token_stride;
  long long kv_head_stride, v_head_stride;
  const int *qo_indptr;    // [batch + 1], or null: every request has `width` rows
  const int *kv_indptr;    // CSR: [batch + 1] into kv_indices
  const void *kv_indices;  // CSR: token slots, int32 or int64 (index64)
  const void *draft_slots; // CSR with prefix-only lengths: [total_q] slots of the drafts, same width as kv_indices
  int addressing;          // DW_P_CSR or DW_P_BLOCK_TABLE
  int index64;             // kv_indices and draft_slots are int64
  int lengths_include_drafts;
  int drafts_elsewhere;    // no draft is in the KV
  int split_mode;
  int split_tokens;        // FIXED: tokens a range
  const void *q_rope;      // null: the last elements of q follow the others
  long long q_rope_row_stride, q_rope_head_stride;
  const void *kv_rope;     // null: the last elements of a token follow the others
  long long kv_rope_page_stride, kv_rope_token_stride;
  long long mask_request_stride;  // BYTES_QLEN, BIAS_F32: elements
  const long long *mask_indptr;   // BYTES_FULL: [batch + 1]
  float cap_log2;          // soft cap x log2(e); 0: none
  float cap_exponent;      // q . k x this = log2(e) x 2 s / cap
  float cap_most;          // magnitude of q . k up to which s is at most 2/5 of the cap; 2^63 at most, and without a cap
  float cap_series[2];     // of cap x tanh, in squares of q . k: see request.cuh
  int window;              // 0: none
  const int *positions;    // [total_q] or null: prefix and depth
  unsigned *report;        // checked builds: counts of faults by kind, or null
  int total_q;             // rows of q in all, for checks
  // Checked builds:
  int pool_pages;          // pages in the pool (0: unknown)
  int kv_len_most;         // the bound on a request's tokens
  long long mask_size;     // BYTES_FULL: bytes (0: unknown)
  unsigned *faults;        // workspace: [batch] what is wrong with a request, a bit a kind; not 0: it is masked
  long long indices_most;  // CSR: entries of kv_indices (0: unknown)
} dw_params;

#endif
