// What the companion kernels take. One layout for the host (C17) and the device. Strides and offsets of planes are in bytes, all
// other strides in elements of their array.
#ifndef DRAFTWOOD_COMPANION_PARAMS_H
#define DRAFTWOOD_COMPANION_PARAMS_H

enum {
  DW_C_KINDS = 4,            // kinds of planes of a call, kinds of partial states of a merge
  DW_C_COMPACT_WARPS = 4,    // a CTA: of requests that follow each other
  DW_C_COMPACT_COLUMNS = 3,  // of a lane, 32 apart: 96 of 16 bytes are a row of MLA
  DW_C_MERGE_WARPS = 4,      // a warp a vector
  DW_C_EXPAND_WARPS = 8,     // a warp a node
  DW_C_ACCEPT_NODES = 1025,  // shared memory holds a word a node of one request
  DW_C_SEGMENTS = 16,        // a team of moves: warps of a CTA, a segment of the list each
  DW_C_BATCH = 4,            // rows that a thread asks for together
  DW_C_COMPACT_BATCH = 8,    // in compaction, where a list seldom moves more
};

// Division by what only the call knows. inverse: 2^32 / value, rounded down; of 1, 2^32 - 1.
typedef struct dw_c_divisor {
  unsigned value, inverse;
} dw_c_divisor;

// Rows of a batch: request b has rows qo_indptr[b] to qo_indptr[b + 1], or `width` rows from b x width on where it is null.
typedef struct dw_c_rows {
  const int *qo_indptr;
  int width, batch;
} dw_c_rows;

// The same plane of all layers. A thread has one column: `unit` bytes at the same place of every row that moves.
typedef struct dw_c_planes {
  void *const *bases;  // [count]
  long long token_stride, page_stride;
  dw_c_divisor plane_units;  // columns of a plane: row_units, or those of all tokens of a page; in dw_kv_compact parts of a row
  dw_c_divisor row_units;    // columns of a token's row
  int unit;            // bytes: 16, 4 or 1
  int columns;         // of all planes
  int first_block;     // of the grid's x
} dw_c_planes;

// dw_kv_compact: grid (parts of a row of all layers of all kinds, batch / DW_C_COMPACT_WARPS), 32 x DW_C_COMPACT_WARPS threads. A
// part is 32 x DW_C_COMPACT_COLUMNS columns. What the usual call needs comes first: each cache line of parameters is waited for.
typedef struct dw_compact_params {
  int kinds, addressing;
  int dependent;            // a dependent launch: accept_index and planes only after grid_dependency_wait
  int accept_columns;
  dw_c_rows rows;
  const void *draft_slots;
  const int *block_table;
  long long block_table_stride;
  const int *accept_index;  // [batch, accept_stride]
  long long accept_stride;
  const int *kv_len;
  int table_columns, lengths_include_drafts;
  dw_c_divisor page;
  dw_c_planes planes[DW_C_KINDS];
  const int *kv_indptr;
  const void *kv_indices;
  int index64, next_drafts;
  int *new_len, *accept_count;  // [batch] or null
} dw_compact_params;

// dw_kv_move: grid (blocks of all kinds, teams), 32 x DW_C_SEGMENTS threads. `list` as made by dw_move_plan:
// dw_move_header, segment starts [teams x DW_C_SEGMENTS + 1], padding to 8 bytes, moves (from in the low word, to in the high).
typedef struct dw_move_header {
  int teams, entries, pad[2];
} dw_move_header;
typedef struct dw_move_params {
  const void *list;
  dw_c_divisor page;  // tokens a page where a move is of a slot and pages have a gap between them, else 1
  int kinds;
  dw_c_planes planes[DW_C_KINDS];
} dw_move_params;

// `count` partial results of the same rows.
typedef struct dw_c_states {
  const void *out;
  const float *lse;
  long long out_part_stride, out_row_stride, out_head_stride, lse_part_stride, lse_row_stride, lse_head_stride;
  int count, dtype;  // 0 bf16, 1 fp16, 2 fp32
  float to_log2;     // lse x this is in base 2
} dw_c_states;
// dw_merge_states: grid (vectors / DW_C_MERGE_WARPS), 32 x DW_C_MERGE_WARPS threads. A vector is a row's head.
typedef struct dw_merge_params {
  dw_c_states states[DW_C_KINDS];
  dw_c_divisor heads;
  int parts, rows, v;  // parts: states of all kinds
  int wide;  // eight elements at a time: every address is fit for it
  int halves;  // no state is of fp32
  void *out;
  float *lse;
  long long out_row_stride, out_head_stride, lse_row_stride, lse_head_stride;
  int dtype;
  float from_log2;  // an lse in base 2 x this is in the base asked for
} dw_merge_params;

// dw_tree_expand: grid (rows of a request / DW_C_EXPAND_WARPS, batch), 32 x DW_C_EXPAND_WARPS threads.
typedef struct dw_expand_params {
  dw_c_rows rows;
  const int *parents;
  const int *kv_len;  // null where no positions are asked for
  int lengths_include_drafts, words, positions64;
  int *depths;
  void *positions;
  unsigned *mask;
  long long mask_row_stride;
} dw_expand_params;

// dw_tree_accept: grid (batch), 32 threads, a word of shared memory a node of the widest request.
typedef struct dw_accept_params {
  dw_c_rows rows;
  const int *parents;
  const void *draft_tokens, *target_tokens, *root_tokens;
  int tokens64;
  int *accept_index;
  long long accept_stride;
  int accept_columns, most_nodes;
  int *accept_count;
  void *bonus_tokens;
} dw_accept_params;

#endif
