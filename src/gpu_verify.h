// The second oracle: fp64 on the GPU, for prefixes and sweeps that a CPU cannot do. It reads dw_args by itself, shares no
// device code with the product's kernels, and is checked against the CPU oracle before it judges anything.
#ifndef DRAFTWOOD_GPU_VERIFY_H
#define DRAFTWOOD_GPU_VERIFY_H

#include "gpu_problem.h"

typedef struct dw__gpu_judge dw__gpu_judge;

// What a launch of the oracle takes, from the arguments of a call. The sizes of its buffers: part_out has v doubles, all others
// one double, a vector and chunk. Pointers to buffers stay NULL.
dw_oracle_params dw__gpu_oracle_params(const dw_shape *shape, const dw_args *args, int most_tokens);
dw_tool_compare_params dw__gpu_compare_params(const dw_shape *shape, const dw_args *args);

dw_status dw__gpu_judge_open(const dw__gpu_tools *tools, dw__gpu_judge **judge, dw_error *error);
void dw__gpu_judge_close(dw__gpu_judge *judge);
// Multiplies the bounds of errors. A weight and an output rounded to bf16 are off by 2^-7 / sqrt(12) = 2.3e-3 each (root mean square) where
// mantissas are just above 1, so of ten million random rows a few pass 3e-3 with nothing wrong.
void dw__gpu_judge_allow(dw__gpu_judge *judge, double chance);
// Answers for a call's arguments (device pointers): exact and plain. most_tokens: of a request, drafts included.
dw_status dw__gpu_judge_solve(dw__gpu_judge *judge, const dw_shape *shape, const dw_args *args, int most_tokens,
                              dw_error *error);
// args.out and args.lse against the answers of the last solve, with the bounds of dw__problem_compare (wide: see dw__least_bound). rows:
// [batch] of each request. DW_WRONG_RESULT with the first bad row.
dw_status dw__gpu_judge_compare(dw__gpu_judge *judge, const dw_shape *shape, const dw_args *args, const int *rows, bool wide,
                                dw__comparison *comparison, dw_error *error);

// Some small problems of every addressing, mask, type and scalar solved by both oracles. DW_WRONG_RESULT where they differ.
dw_status dw__gpu_judge_check(dw__gpu_judge *judge, dw_attention attention, int head_dim_qk, int head_dim_v, double *worst,
                              dw_error *error);
// How far the GPU's answer to a problem is from the CPU's, of which solve has run: the greatest relative distance of a vector
// (or distance of a log-sum-exp). Of the plain results, whose roundings fall differently where the tokens are walked in chunks,
// the factor between their errors over all vectors, at least 1. Arrays as the oracle kernels leave them.
void dw__gpu_oracle_distance(const dw__problem *problem, const double *out, const double *lse, const double *plain,
                             const double *cpu_plain, double *worst, double *plain_ratio);

// Tools and judges, one pair for each kind of attention and width of vectors that a run meets.
enum { DW__GPU_JUDGES = 16 };
typedef struct dw__gpu_judges {
  struct {
    dw_attention attention;
    int qk, v;
    dw__gpu_tools *tools;
    dw__gpu_judge *judge;
  } list[DW__GPU_JUDGES];
} dw__gpu_judges;
// Those for a shape; made on first use, and checked before they judge anything.
dw_status dw__gpu_judges_find(dw__gpu_judges *judges, dw_ctx *ctx, dw__gpu *gpu, const dw_shape *shape, dw__gpu_tools **tools,
                              dw__gpu_judge **judge, dw_error *error);
void dw__gpu_judges_close(dw__gpu_judges *judges);

// Properties that a check may ask for, or'ed.
typedef enum dw__gpu_ask {
  // With FIXED ranges: each request alone, and the first one with 1, 2, ... rows (lengths of the prefix only, all requests as wide as
  // the call), give the bits of the whole call. With qo_indptr each request alone.
  DW__ASK_OWN_RUNS = 1,
  // With FIXED ranges, requests as wide as the call: graphs of 1, 2, 4, ... requests captured one after the other over one workspace,
  // then replayed, the first one first, give its bits.
  DW__ASK_ASCENDING = 2,
  // NaN in each request's last draft reaches no row before it. For trees.
  DW__ASK_LAST_HIDDEN = 4,
  // A kernel that was never loaded is asked for during the capture: refused or loaded, but the capture is sound.
  DW__ASK_COLD = 8,
  // checked=1, FIXED ranges, three requests or more: a fault of each kind that the call has a place for is told with its field, request
  // and place; its requests are cleared, the others keep their bits.
  DW__ASK_FAULTS = 16,
} dw__gpu_ask;

// One variant against the GPU oracle: launched, repeated, captured and replayed over other contents. The whole of a suite's
// case.
typedef struct dw__gpu_check {
  dw_shape shape;
  dw_variant variant;
  int split_tokens;
  dw__gpu_spec spec;  // shape as above
  dw__gpu_contents first, other;
  dw__capture_mode capture;
  int no_replay;  // eager and repeated only
  int spare;      // the kernel's bounds are larger than the problem
  int declared;   // bounds.kv_len, where it is more than the problem needs
  unsigned asks;  // dw__gpu_ask
  int broken;     // then so many launches with one field of the arguments spoilt, which must be refused
  uint64_t broken_seed;
} dw__gpu_check;

typedef struct dw__gpu_verdict {
  const char *step;  // where it ended: "eager", "repeat", "replay" ...
  dw__comparison eager, replay;
  int refused;
  double seconds;
} dw__gpu_verdict;

// ctx's kernels are loaded for the tools' GPU. DW_OK or what went wrong, at verdict->step.
dw_status dw__gpu_verify(dw_ctx *ctx, const dw__gpu_tools *tools, dw__gpu_judge *judge, const dw__gpu_check *check,
                         dw__gpu_verdict *verdict, dw_error *error);

#endif
