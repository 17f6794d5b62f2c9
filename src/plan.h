// Launch geometry: what a call of a variant launches, as pure functions of host values. Used by the GPU launch, by host
// execution and by the tests alike, so that all three run the same kernels with the same arguments.
#ifndef DRAFTWOOD_PLAN_H
#define DRAFTWOOD_PLAN_H

#include "../templates/params.h"
#include "core.h"

// Layout number of dw_params and of the kernels' meaning of it; part of the request key.
#define DW__ABI 4

#define DW__PLAN_KERNELS 3
typedef struct dw__plan_kernel {
  const char *entry;  // "dw_verify", "dw_combine" ...
  unsigned grid[3];
  unsigned block;    // threads
  unsigned cluster;  // CTAs along x
  size_t dynamic_shared;
  bool dependent;  // programmatic stream serialisation
} dw__plan_kernel;

typedef struct dw__plan {
  int groups, ranges, all_ranges;  // see dw_params
  // Workspace: partials, their lse, the packed mask; of checked variants the faults of each request, at its end.
  size_t partial_bytes, lse_bytes, faults_bytes, workspace_bytes;
  int early_launch;
  dw_call call;  // what the kernels take for granted; calls that break it are refused
  int features;  // what they have code for; calls that need more are refused
  int count;     // kernels of a call, in launch order, for masks that need no packing
  dw__plan_kernel kernels[DW__PLAN_KERNELS];
  dw__plan_kernel check;  // of checked variants, before all others; else entry NULL
  dw__plan_kernel pack;   // packs a mask to BITS; entry NULL where the main kernel takes every mask itself
} dw__plan;

// bounds->sm_count must be set (> 0).
dw_status dw__bounds_check(const dw_shape *shape, const dw_bounds *bounds, dw_error *error);
dw_status dw__plan_make(const dw_shape *shape, const dw_variant *variant, const dw_bounds *bounds, dw__plan *plan,
                        dw_error *error);
// Another number of KV ranges a request than the rule table's (0: leave it; FIXED ranges stay): the grid and the workspace follow.
void dw__plan_set_ranges(const dw_shape *shape, const dw_variant *variant, const dw_bounds *bounds, dw__plan *plan, int ranges);
// Fills the kernel's parameters from checked arguments. With plan->pack in use, params->mask points into the workspace and
// pack_params (if not NULL) is what the pack kernel takes.
void dw__plan_params(const dw_shape *shape, const dw_variant *variant, const dw_bounds *bounds, const dw__plan *plan,
                     const dw_args *args, dw_params *params, dw_params *pack_params);
// What the check kernel takes: the mask as the caller has it.
void dw__plan_check_params(const dw_shape *shape, const dw_variant *variant, const dw_bounds *bounds, const dw__plan *plan,
                           const dw_args *args, dw_params *params);
// Host-side argument checks (dw_args_check without a kernel).
dw_status dw__args_check(const dw_shape *shape, const dw_bounds *bounds, const dw__plan *plan, const dw_args *args,
                         dw_error *error);
// The features that a call's arguments need.
int dw__args_features(const dw_args *args);
// The usual multiprocessor count of a target's boards, for plans made with no device.
int dw__target_sm_count(int target);

#endif
