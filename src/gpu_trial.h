// A variant's call on a GPU while it is looked at: what gpu_verify.c and gpu_asks.c share.
#ifndef DRAFTWOOD_GPU_TRIAL_H
#define DRAFTWOOD_GPU_TRIAL_H

#include "gpu_verify.h"

typedef struct dw__gpu_trial {
  dw_ctx *ctx;
  dw__gpu *gpu;
  dw__gpu_judge *judge;
  const dw__gpu_check *check;
  dw__gpu_problem *problem;
  const dw_kernel *kernel;
  dw_bounds bounds;
  dw_args args;
} dw__gpu_trial;

// Outputs and workspace to NaN, a checked kernel's report to 0.
dw_status dw__gpu_trial_clear(dw__gpu_trial *trial, dw_error *error);
// Launched on the GPU's stream over cleared outputs.
dw_status dw__gpu_trial_launch(dw__gpu_trial *trial, const dw_args *args, dw_error *error);
// Captured on a side stream, as the check says.
dw_status dw__gpu_trial_capture(dw__gpu_trial *trial, const dw_args *args, dw__graph **graph, dw_error *error);
// The outputs are those of all the problem's rows: each within its bound, nothing written outside.
dw_status dw__gpu_trial_compare(dw__gpu_trial *trial, dw__comparison *comparison, dw_error *error);

// What a check asks beyond that (dw__gpu_ask), over its first contents. *step names what is being done.
dw_status dw__gpu_trial_ask(dw__gpu_trial *trial, const char **step, dw_error *error);

#endif
