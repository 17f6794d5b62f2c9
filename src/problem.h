// A tree-verify problem with random contents in host memory: everything dw_args points at, and the fp64 answer. Used by
// `draftwood verify`, the tests and the benchmarks. Everything that must not matter is poisoned with NaN: unreferenced slots and
// pages, the pool's tail, slots past a request's length inside its last page, spare columns. Elements of a mask that must not
// matter say anything, so that who reads them sees too much or too little. Every array ends at a guard page or guard zone.
#ifndef DRAFTWOOD_PROBLEM_H
#define DRAFTWOOD_PROBLEM_H

#include "core.h"

typedef enum dw__tree_kind { DW__TREE_CHAIN, DW__TREE_RANDOM, DW__TREE_STAR } dw__tree_kind;

// GQA: K and V each in a pool of [pages, page, heads, width] or [pages, heads, page, width]; or in one pool, where a token has its K
// of all heads and then its V of all heads, or a page those of its K and then those of its V, heads before tokens.
typedef enum dw__planes { DW__PLANES_APART, DW__PLANES_BY_HEAD, DW__PLANES_IN_TOKEN, DW__PLANES_IN_PAGE } dw__planes;

typedef struct dw__problem_spec {
  dw_shape shape;
  int batch;
  const int *prefix;  // [batch] committed tokens
  const int *rows;    // [batch] drafts of each request, 0 to width; NULL: width each, and qo_indptr NULL
  int width;          // of the call, args.width; 0: the shape's
  dw_mask mask_kind;
  dw__tree_kind tree;
  int one_tree;     // all requests have the first one's tree, as far as their rows go
  int mask_shared;  // BYTES_QLEN, BIAS: and one matrix; goes with one_tree
  dw_addressing addressing;
  int index64;
  int lengths_include_drafts;
  int draft_slots;    // CSR, prefix-only: hand drafts over in draft_slots (else they are in the table)
  int dead_nodes;     // PARENTS: mark about one node in eight dead (-2)
  int q_rope;         // the last elements of q lie apart
  int kv_rope;        // the last elements of the tokens lie in a pool of their own
  dw__planes planes;  // GQA: how K and V lie
  int strided;        // use strides larger than tight ones for q, out, lse, kv, table and mask
  int shuffle;        // random slots or pages (else ascending)
  int window;         // as in dw_args
  int positions;  // an array of positions: 1: as without one, 2: rows anywhere up to 7 behind that; garbage without a window
  float soft_cap;
  int sinks;             // heads with a sink each: most are small, some large enough to take nearly all, some -inf
  int drafts_elsewhere;  // the KV has the prefixes only, the mask is an array that may not be touched
  float q_scale;         // standard deviation of q (1 is usual; 3 makes peaked softmax)
  float kv_scale;        // E4M3: args.kv_scale, and elements (of GQA those of K) are stored divided by it; 0: NULL
  float v_scale;         // the same of GQA's V
  int lse_base_e;
  int spare_pages;  // extra poisoned pages in the pool, at least 1
  uint64_t seed;
} dw__problem_spec;

typedef struct dw__problem {
  dw__problem_spec spec;
  int total_q;
  int *prefix, *rows;
  dw_args args;  // host pointers; workspace NULL
  size_t q_bytes, out_bytes, lse_bytes, kv_bytes, index_bytes, indptr_bytes, table_bytes, mask_bytes, draft_slots_bytes;
  size_t q_rope_bytes, kv_rope_bytes, positions_bytes;
  size_t v_bytes;   // 0 where V lies in K's pool
  double *out64;    // [total_q, heads, v]
  double *lse64;    // [total_q, heads], in the base asked for; -inf where nothing is visible
  bool wide_bound;  // set before the first comparison: dw__has_wide_bound of the variant
  void *memory;     // owner of everything above
} dw__problem;

dw_status dw__problem_make(const dw__problem_spec *spec, dw__problem **problem, dw_error *error);
void dw__problem_free(dw__problem *problem);
// Fills out and lse with poison before a run.
void dw__problem_poison(dw__problem *problem);
// The fp64 oracle (src/oracle.c), written from the contract alone: fills out64 and lse64. threads: 0 = all cores.
dw_status dw__problem_solve(dw__problem *problem, int threads, dw_error *error);

typedef struct dw__row_error {
  int request, row, head;
  double relative;  // ||out - out64|| / ||out64|| of this row (absolute where out64 is 0)
  double lse;       // |lse - lse64|, 0 where both are -inf, inf where only one is
  double bound;     // what design.md section 4 allows this row
} dw__row_error;

typedef struct dw__comparison {
  long rows, failed;
  dw__row_error worst;  // by relative / bound
  dw__row_error first_failed;
  double total_relative;  // over all rows together
  double ulp_share;       // share of elements within one unit in the last place of the rounded fp64 result
  bool outside_written;   // something between or behind the output rows changed
} dw__comparison;
// Compares args.out and args.lse row by row with the oracle. The bound of a row is max(1.5 x the error of a plain fp32-accumulate
// kernel with P rounded to the KV type (computed here too), 3e-3). DW_WRONG_RESULT with the first bad row in the error.
dw_status dw__problem_compare(dw__problem *problem, dw__comparison *comparison, dw_error *error);
// The relative error that every row may have: 3e-3, or wide 1.5e-2. And how far a log-sum-exp may be off.
double dw__least_bound(bool wide);
// Does its numerics class have wider bounds than the usual ones?
bool dw__has_wide_bound(const dw_variant *variant);
double dw__lse_bound(double exact, bool wide);

// ---- K and V of GQA (src/planes.c) ----------------------------------------------------------------------------
// Strides in elements; `first`: where the plane begins in its pool.
typedef struct dw__plane {
  int64_t page, token, head, first;
  int size;  // of a head's vector
} dw__plane;
void dw__planes_lay(const dw_shape *shape, dw__planes kind, int strided, dw__plane *k, dw__plane *v);
static inline bool dw__planes_share(dw__planes kind) { return kind == DW__PLANES_IN_TOKEN || kind == DW__PLANES_IN_PAGE; }
// Elements from the pool's begin to behind the plane's last one.
size_t dw__plane_extent(const dw_shape *shape, const dw__plane *plane, int64_t pages);
int64_t dw__plane_place(const dw_shape *shape, const dw__plane *plane, int64_t slot, int head);
void dw__planes_args(const dw__plane *k, const dw__plane *v, dw_args *args);

// ---- trees (src/tree.c) ---------------------------------------------------------------------------------------
// Parents of a random tree: root -1 (several roots may occur after the first node with small probability), parent < child.
void dw__tree_random(uint64_t *seed, int nodes, int *parents);
// depth[i] (root 0) and mask words [nodes, words]: i sees its ancestors and itself; dead nodes (-2) see nothing.
dw_status dw__tree_masks(const int *parents, int nodes, int words, int *depth, uint32_t *mask, dw_error *error);

// ---- number formats -------------------------------------------------------------------------------------------
float dw__to_float(dw_dtype type, const void *element);
void dw__from_float(dw_dtype type, double value, void *element);  // nearest even; E4M3: at most 448
void dw__record_quantise(const double *values, void *record);     // RECORD656: 576 values; a group's greatest latent is 448

#endif
