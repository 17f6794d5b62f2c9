// Companions of the attention call: kernels for what a decoding step needs around it, with no host round trip, and the same
// helpers on the host. Part of draftwood.h, which includes this file.
//
//   a step:  dw_tree_expand (positions, mask) -> dw_launch in every layer -> dw_tree_accept -> dw_kv_compact
//   merge of partial results: dw_merge_states; defragmentation of a pool: dw_defrag_plan on the host, then dw_kv_move
//
// One cubin a target holds all of them. Launches take a struct that starts with its size, check on the host what a host can check
// (DW_BAD_ARGUMENT with field, found, allowed), and enqueue one kernel on `stream` (a CUstream). They never compile, allocate,
// synchronise or take a lock, and read no device memory from the host, so they are safe during capture; what device arrays
// hold may change between replays, host values are the graph's own. Pointers in these structs are to device memory unless said
// otherwise, and belong to the caller.
#ifndef DRAFTWOOD_COMPANIONS_H
#define DRAFTWOOD_COMPANIONS_H

#include "draftwood.h"

#ifdef __cplusplus
extern "C" {
#endif

// ---- cubin and handle -----------------------------------------------------------------------------------------

typedef struct dw_companions dw_companions;

// The companions' cubin for a device class (80 to 121 as in dw_shape.target), through the cache, else compiled; needs no GPU.
// Free with dw_cubin_free.
DW_API dw_status dw_companions_build(dw_ctx *ctx, int target, dw_cubin **cubin, dw_error *error);
// The same, loaded. target 0: the current device's own. The handle belongs to the context and to the CUDA context that is current
// in this call; the same request returns the same handle. Never during stream capture.
DW_API dw_status dw_companions_get(dw_ctx *ctx, int target, dw_companions **companions, dw_error *error);

// ---- merging partial results ----------------------------------------------------------------------------------

// `count` partial results of the same rows, `part_stride` elements apart: a cascade's levels, KV ranges, GPUs of a group.
typedef struct dw_states {
  const void *out;          // [count, rows, heads, v], each normalised by its own sum
  const float *lse;         // [count, rows, heads]
  int count;                // 1 or more
  dw_dtype dtype;           // of out
  int lse_base_e;           // 0: base 2, 1: base e
  int64_t out_part_stride;  // elements; 0: rows x out_row_stride
  int64_t out_row_stride;   // 0: heads x out_head_stride
  int64_t out_head_stride;  // 0: v
  int64_t lse_part_stride;  // 0: rows x lse_row_stride
  int64_t lse_row_stride;   // 0: heads
  int64_t lse_head_stride;  // 0: 1. Of an lse [heads, rows]: row stride 1, head stride rows
} dw_states;

#define DW_STATES_MAX 4

typedef struct dw_merge_args {
  size_t size;  // sizeof(dw_merge_args)
  dw_states states[DW_STATES_MAX];
  int state_kinds;  // entries of states in use, 1 to DW_STATES_MAX
  int rows, heads, v;
  void *out;   // [rows, heads, v]
  float *lse;  // [rows, heads], or NULL
  dw_dtype dtype;
  int lse_base_e;
  int64_t out_row_stride, out_head_stride;  // 0: tight
  int64_t lse_row_stride, lse_head_stride;  // 0: heads, 1
} dw_merge_args;

// The softmax-weighted sum, in fp32 and in a fixed order: the same bits every time. A state whose lse is -inf counts as
// zero whatever its out holds; where all are -inf, out is 0 and lse -inf. out and lse may be those of one state if type and
// strides are the same too; else they must not overlap any.
DW_API dw_status dw_merge_states(const dw_companions *companions, const dw_merge_args *args, void *stream, dw_error *error);

// ---- planes of a KV pool --------------------------------------------------------------------------------------

// One plane a layer, all laid out alike: a layer's MLA records, its K, its V, its scales. Planes that are not named are not
// touched. A pool whose pages hold heads apart ([page, head, token, d]) is a plane a layer and head, its base at that head.
// Bases are aligned to 16 bytes where row_bytes and both strides are multiples of 16, else to 4 where those are, else to 1.
typedef struct dw_planes {
  void *const *bases;    // [count] device array of device addresses: token 0 of page 0
  int count;             // layers (x heads)
  int64_t row_bytes;     // a token's row: what moves. 1152 for MLA in bf16, 576 in fp8, 656 with scales
  int64_t token_stride;  // bytes; 0: row_bytes
  int64_t page_stride;   // bytes; 0: page x token_stride
} dw_planes;

#define DW_PLANES_MAX 4  // K, V and their scales

// ---- compaction after acceptance ------------------------------------------------------------------------------

// Requests, rows, lengths and addressing are those of the attention call (dw_args has the words); page is any number of tokens,
// also where the table is of slots.
typedef struct dw_compact_args {
  size_t size;  // sizeof(dw_compact_args)
  dw_planes planes[DW_PLANES_MAX];
  int plane_kinds;  // entries of planes in use, 1 to DW_PLANES_MAX
  int page;         // tokens a page, 1 or more; 0: 1
  int batch;
  int width;                   // rows a request where qo_indptr is NULL
  const int32_t *qo_indptr;    // [batch + 1], or NULL
  const int32_t *kv_len;       // [batch], as the attention call had it
  int lengths_include_drafts;  // 1: kv_len counts prefix and drafts, 0: the prefix only
  dw_addressing addressing;
  const int32_t *kv_indptr;    // CSR: [batch + 1]
  const void *kv_indices;      // CSR: token slots
  int index64;                 // kv_indices and draft_slots are int64, else int32
  const void *draft_slots;     // CSR, prefix-only lengths: [total_q] slots of the drafts; kv_indices is not read then
  const int32_t *block_table;  // block table: [batch, table_columns]
  int64_t block_table_stride;  // 0: table_columns
  int table_columns;
  const int32_t *accept_index;  // [batch, accept_columns]: local ids of the accepted drafts, strictly ascending, -1 ends
  int64_t accept_stride;        // 0: accept_columns
  int accept_columns;           // most accepted drafts of a request, 1 to 1025
  int next_drafts;              // added to each new length; see new_len
  int32_t *new_len;             // [batch], or NULL; not kv_len itself, which other blocks still read
  int32_t *accept_count;        // [batch], or NULL: how many were accepted
  int overlap_prologue;         // 1: start while the kernel before this one in the stream still runs, as it may where that is
                                // dw_tree_accept. That kernel must not write kv_len, qo_indptr, tables, indices or bases
} dw_compact_args;

// Moves, in all planes at once and in place, the row of draft accept_index[b][k] to the place of draft k of request b, that is to
// position prefix + k: afterwards the accepted drafts follow the prefix, and every other byte of the pool is what it was (the
// places of drafts that were not kept hold their old bytes). With draft_slots, draft k's place is draft_slots[first row + k].
// new_len[b] = prefix + accepted + next_drafts. With next_drafts 0 that is the committed length, whatever convention kv_len has;
// where lengths include the drafts, the next step's number of drafts makes it that step's kv_len. A request of length 0 where
// lengths include the drafts is padding: its new length is 0.
// A list also ends at an id that does not ascend or is no draft of the request: a wrong list moves less, never other bytes.
DW_API dw_status dw_kv_compact(const dw_companions *companions, const dw_compact_args *args, void *stream, dw_error *error);

// Host: is accept_index (host memory) what dw_kv_compact takes? Ids strictly ascend from 0 or more, so that the k-th is k or more
// and the move is safe in place; they are below rows[b] (NULL: width); nothing but -1 follows a -1. Names the entry else.
DW_API dw_status dw_accept_check(const int32_t *accept_index, int batch, int accept_columns, int64_t accept_stride,
                                 const int32_t *rows, int width, dw_error *error);

// ---- draft trees ----------------------------------------------------------------------------------------------
// A tree is an array of parents: local ids, -1 for a root, -2 for a dead padding node. A parent comes before its children; nodes
// need not be sorted by depth; several roots, and several children with the same token, are allowed. A root's depth is 0.
// A node's position is prefix + depth: its depth, not its place in the array, is where it sits in the text.

// The functions on the host. `nodes` is 0 to 1025. They refuse a parent that is the node itself, comes after it, is below -2, or
// is dead (DW_BAD_ARGUMENT with field parents[node]); arrays are host memory of the caller.
DW_API dw_status dw_tree_check(const int32_t *parents, int nodes, dw_error *error);
// depths [nodes]: of a dead node -1.
DW_API dw_status dw_tree_depths(const int32_t *parents, int nodes, int32_t *depths, dw_error *error);
// positions [nodes]: prefix + depth; of a dead node prefix, which any table of positions has.
DW_API dw_status dw_tree_positions(const int32_t *parents, int nodes, int32_t prefix, int32_t *positions, dw_error *error);
// bits [nodes, row_stride words] (0: nodes / 32, rounded up): a node sees its ancestors and itself. All words of a row are
// written. A dead node's row is 0.
DW_API dw_status dw_tree_mask(const int32_t *parents, int nodes, uint32_t *bits, int64_t row_stride, dw_error *error);
// Acceptance as dw_tree_accept does it, of one request. root_token NULL: the first root is the committed token's own row. Writes
// accept_columns ids ended by -1, their number, and the bonus token (count and bonus may be NULL).
DW_API dw_status dw_tree_walk(const int32_t *parents, const int64_t *draft_tokens, const int64_t *target_tokens, int nodes,
                              const int64_t *root_token, int32_t *accept_index, int accept_columns, int *count, int64_t *bonus,
                              dw_error *error);
// Import of trees that are given as paths from root to leaf. paths [count, columns]: node ids, ended by -1; a node may be on
// several. Writes parents [nodes]; nodes on no path are dead. Refuses a node with two parents and an id that does not ascend.
DW_API dw_status dw_tree_from_paths(const int32_t *paths, int count, int columns, int nodes, int32_t *parents, dw_error *error);
// The same from sets: bit p % 64 of word p / 64 of row i of sets [nodes, words] says that node i is on path p. On each path nodes
// come in ascending order; the parent is the last node before that shares a path. A node of no path is dead. Refuses a node
// whose paths part before it, that is, come from different nodes.
DW_API dw_status dw_tree_from_sets(const uint64_t *sets, int nodes, int words, int32_t *parents, dw_error *error);

typedef struct dw_expand_args {
  size_t size;               // sizeof(dw_expand_args)
  const int32_t *parents;    // [total_q]
  const int32_t *qo_indptr;  // [batch + 1], or NULL: width rows a request
  int batch;
  int width;                   // most rows of a request, 1 to 1025
  const int32_t *kv_len;       // [batch]; needed for positions only
  int lengths_include_drafts;  // as in dw_args
  int32_t *depths;             // [total_q], or NULL
  void *positions;             // [total_q], or NULL
  int positions64;             // positions are int64, else int32
  uint32_t *mask;              // [total_q, mask_row_stride] words, or NULL: what DW_MASK_BITS takes
  int64_t mask_row_stride;     // 0: width / 32, rounded up: the words of a row that are written
} dw_expand_args;

// Parents -> depths, positions and mask, whichever are asked for; values as of the functions on the host. A node that the host
// would refuse, and all below it, counts as dead.
DW_API dw_status dw_tree_expand(const dw_companions *companions, const dw_expand_args *args, void *stream, dw_error *error);

typedef struct dw_accept_args {
  size_t size;                // sizeof(dw_accept_args)
  const int32_t *parents;     // [total_q]
  const void *draft_tokens;   // [total_q]: the token at each node
  const void *target_tokens;  // [total_q]: the target model's token after each node, e.g. the argmax of its row
  const void *root_tokens;    // [batch], or NULL; see below
  int tokens64;               // the token arrays are int64, else int32
  const int32_t *qo_indptr;   // [batch + 1], or NULL: width rows a request
  int batch;
  int width;              // most rows of a request, 1 to 1025
  int32_t *accept_index;  // [batch, accept_columns]
  int64_t accept_stride;  // 0: accept_columns
  int accept_columns;     // longest path that is kept, 1 to 1025
  int32_t *accept_count;  // [batch], or NULL
  void *bonus_tokens;     // [batch], or NULL; as wide as the other tokens
} dw_accept_args;

// Which drafts the target model agrees with. A node is matched where its parent is matched and its token is its parent's target
// token. Of roots:
//   root_tokens NULL   the first root (lowest id) is the row of the last committed token, whose KV is made in this step: it is
//                      matched, its own token is not looked at, and other roots never are
//   root_tokens given  the committed token's KV was there before, and this is the target's token after it: roots with that token
//                      are matched
// The path to the deepest matched node is accepted; of several equally deep ones (siblings with one token) that to the lowest id.
// accept_index gets its ids from the root on, ended by -1 up to accept_columns: what dw_kv_compact takes. A longer path is cut off
// after accept_columns nodes. accept_count is their number. The bonus token is the target's token at the last accepted node; with
// none accepted root_tokens[b], or -1. Dead nodes and what hangs on them are never accepted.
DW_API dw_status dw_tree_accept(const dw_companions *companions, const dw_accept_args *args, void *stream, dw_error *error);

// ---- moving slots and pages -----------------------------------------------------------------------------------

typedef struct dw_move {
  int32_t from, to;  // token slots, or pages
} dw_move;

// Moves in the form that dw_kv_move takes: `data` goes to the device as it is (16-byte aligned).
typedef struct dw_move_list {
  void *data;  // host memory, the list's own
  size_t bytes;
  int teams;  // 0: nothing to move
  int moves;
} dw_move_list;

// Host: orders moves so that they act as if all at once, and shares them out over the GPU. A place may be source of one move and
// destination of one; a move onto itself is left out. places: the pool's slots or pages. Free with dw_move_list_free.
DW_API dw_status dw_move_plan(const dw_move *moves, int count, int places, dw_move_list *list, dw_error *error);
DW_API void dw_move_list_free(dw_move_list *list);

typedef struct dw_move_args {
  size_t size;  // sizeof(dw_move_args)
  dw_planes planes[DW_PLANES_MAX];
  int plane_kinds;   // entries of planes in use, 1 to DW_PLANES_MAX
  int page;          // tokens a page, 1 or more; 0: 1
  int by_slot;       // moves are of token slots, also where page is more than 1; else of pages
  const void *list;  // device copy of dw_move_list.data; 16 zero bytes: nothing to move
  int teams;         // dw_move_list.teams, or more: a graph serves every later list of up to so many. 0: nothing is launched
} dw_move_args;

// Moves rows in all planes with one launch, as if all at once: a source is read before anything is written over it. Cycles need no
// scratch slot, since what a cycle overwrites first is held in registers.
DW_API dw_status dw_kv_move(const dw_companions *companions, const dw_move_args *args, void *stream, dw_error *error);

// ---- defragmentation ------------------------------------------------------------------------------------------

// A pool and who uses it. Host memory.
typedef struct dw_pool {
  size_t size;  // sizeof(dw_pool)
  int pages;    // of the pool
  int page;     // tokens a page; 0: 1
  int requests;
  const int32_t *table;   // pages: row b starts at b x table_stride, or at indptr[b]
  int64_t table_stride;   // entries
  const int32_t *indptr;  // [requests + 1], or NULL: a CSR table, as of token slots with page 1
  const int32_t *tokens;  // [requests]: tokens in use, so ceil(tokens / page) entries of a row. What lies behind counts as free
  const uint8_t *pinned;  // [pages], or NULL: 1 for pages that stay and are not written, e.g. a dummy page or a cached prefix
} dw_pool;

// Host: pages named are in the pool, and no request names one twice; a page that several requests share is full in each of them
// and at the same place of each, that is, shared prefixes end at a page's border (a request writes its next tokens into its
// last page, so nobody else may have that one). Names request, entry and page else.
DW_API dw_status dw_pool_check(const dw_pool *pool, dw_error *error);

typedef struct dw_defrag {
  dw_move *moves;      // pages, as if all at once; owned, as all below
  int count;           // 0: nothing to do, and nothing was allocated
  int least;           // 1: no plan of this form has fewer moves; 0: the search for a better one was cut short
  int32_t *new_place;  // [pages]: where each page is afterwards; NULL with count 0
  dw_move_list list;   // the same moves for dw_kv_move
} dw_defrag;

// Host: the fewest moves after which each request's own pages are one ascending run, without holes. A page that several requests
// share belongs to the first of them (lowest number) and lies in its run; the others keep naming it, so theirs is one run for
// what is shared and one for their own. A shared page is moved once. Pinned pages stay where they are, belong to no run, and runs
// go around them. Refuses what dw_pool_check refuses, and pools whose pinned pages leave no room for a run.
// A pool whose requests are runs already costs a pass over the tables. Free with dw_defrag_free.
DW_API dw_status dw_defrag_plan(const dw_pool *pool, dw_defrag *defrag, dw_error *error);
// The table after the moves: entries in use are replaced in place (the caller's copy, laid out as pool->table).
DW_API dw_status dw_defrag_apply(const dw_defrag *defrag, const dw_pool *pool, int32_t *table, dw_error *error);
DW_API void dw_defrag_free(dw_defrag *defrag);

#ifdef __cplusplus
}
#endif
#endif
