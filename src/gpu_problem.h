// A tree-verify problem whose contents are made on the device: pools of gigabytes, several sets of slots over one pool, and new
// contents in the same buffers, as between two replays of a graph. Only tables, lengths and trees are made on the host.
//
// What must not matter is poison (NaN): slots nobody owns, the space between tokens and rows, rows of q that no request has,
// table entries behind a request's last page, what a mask says of drafts that are not there and of the prefix.
#ifndef DRAFTWOOD_GPU_PROBLEM_H
#define DRAFTWOOD_GPU_PROBLEM_H

#include "gpu_tools.h"
#include "problem.h"

typedef struct dw__gpu_spec {
  dw_shape shape;
  int batch;
  int longest;  // most committed tokens that any contents will have
  int width;    // rows a request at most; 0: the shape's
  int ragged;   // requests bring their own number of rows: qo_indptr is used
  dw_mask mask_kind;
  int mask_shared;  // BYTES_QLEN, BIAS_F32
  dw__tree_kind tree;
  int any_mask;  // BITS, BYTES_*, BIAS_F32: no tree at all, any draft may see any other and not itself
  dw_addressing addressing;
  int index64;
  int lengths_include_drafts;
  int draft_slots;       // CSR, prefix-only: drafts in draft_slots
  int drafts_elsewhere;  // no draft is in the pool
  int dead_nodes;        // PARENTS: about one in eight
  int strided;           // strides larger than tight ones
  int shuffle;           // pages (or slots) in random order; 0: ascending, -1: descending
  int scatter;           // CSR: every slot anywhere, whatever the page size
  int share;             // requests share the pages of the beginning of their prefixes; what is padded is in the first page
  int q_rope, kv_rope;   // the last qk - v elements lie apart
  dw__planes planes;     // GQA: how K and V lie
  int no_lse;
  int lse_base_e;
  int window;      // tokens; 0: none
  int positions;   // given, any not below the prefix
  float soft_cap;  // 0: none
  int sinks;
  int overlap_prologue;
  float q_scale;         // standard deviation of q
  float kv_scale;        // and of the tokens; 0: 1
  float stored_scale;    // KV in e4m3: args.kv_scale, and elements (of GQA those of K) are stored divided by it; 0: NULL
  float v_stored_scale;  // the same of GQA's V
  int64_t pool_tokens;   // at least so many; 0: a quarter more than is needed
  int sets;              // slot sets, at least 1
  int poison;            // 0: the whole pool holds numbers (benchmarks, where sets share it)
} dw__gpu_spec;

// What a buffer holds at one time.
typedef struct dw__gpu_contents {
  const int *prefix;  // [batch], at most spec.longest; below 0, with lengths that include drafts: so many drafts are not there
  const int *rows;    // [batch], at most the width; NULL: width each
  uint64_t seed;
} dw__gpu_contents;

typedef struct dw__gpu_problem dw__gpu_problem;

// Allocates for the spec's bounds; nothing is written yet.
dw_status dw__gpu_problem_make(const dw__gpu_tools *tools, const dw__gpu_spec *spec, dw__gpu_problem **problem,
                               dw_error *error);
void dw__gpu_problem_free(dw__gpu_problem *problem);
// Writes lengths, tables, trees, q and KV into the same buffers, all sets. The same contents give the same bytes.
dw_status dw__gpu_problem_write(dw__gpu_problem *problem, const dw__gpu_contents *contents, dw_error *error);
// Device pointers; workspace is the caller's.
dw_args dw__gpu_problem_args(const dw__gpu_problem *problem, int set);
// Bounds of all its contents.
dw_bounds dw__gpu_problem_bounds(const dw__gpu_problem *problem);

// Of the present contents.
const int *dw__gpu_problem_prefix(const dw__gpu_problem *problem);
const int *dw__gpu_problem_rows(const dw__gpu_problem *problem);
int dw__gpu_problem_most_tokens(const dw__gpu_problem *problem);

// NaN in all of a token of the first set.
dw_status dw__gpu_problem_spoil(dw__gpu_problem *problem, int request, int token, dw_error *error);

// out and lse to poison, guard zones around them too.
dw_status dw__gpu_problem_poison(dw__gpu_problem *problem, dw_error *error);
// Elements written that are in no request's row.
dw_status dw__gpu_problem_outside(dw__gpu_problem *problem, uint32_t *written, dw_error *error);
// Elements written at all.
dw_status dw__gpu_problem_written(dw__gpu_problem *problem, uint32_t *written, dw_error *error);
// Keeps a copy of out and lse, and counts the words in which they differ from it.
dw_status dw__gpu_problem_keep(dw__gpu_problem *problem, dw_error *error);
dw_status dw__gpu_problem_differ(dw__gpu_problem *problem, uint32_t *words, dw_error *error);

#endif
