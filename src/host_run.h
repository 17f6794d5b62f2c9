// A problem run by host execution: the generated source compiled for the CPU, launched as dw_launch would launch it.
#ifndef DRAFTWOOD_HOST_RUN_H
#define DRAFTWOOD_HOST_RUN_H

#include "../runtime/host/host.h"
#include "problem.h"

// One variant's source, compiled and loaded. May be run from several threads at once.
typedef struct dw__host_kernel dw__host_kernel;
// sanitize: with address and undefined-behaviour sanitizers; this program must be built with them too. DW_NOT_FOUND where there
// is no C++ compiler, DW_COMPILE with its words.
dw_status dw__host_kernel_open(dw_ctx *ctx, const dw_shape *shape, const dw_variant *variant, bool sanitize,
                               dw__host_kernel **kernel, dw_error *error);
void dw__host_kernel_close(dw__host_kernel *kernel);

// Runs the problem's call as planned for the bounds, in a poisoned workspace between guard zones, into its poisoned outputs.
// DW_HOST_EXECUTION with the fault in words. The outputs are then ready for dw__problem_compare.
dw_status dw__host_kernel_run(const dw__host_kernel *kernel, const dw_bounds *bounds, dw__problem *problem, dw_host_order order,
                              uint64_t seed, dw_error *error);
// A source compiled and loaded: DW_NOT_FOUND where there is no C++ compiler, DW_COMPILE with its words.
dw_status dw__host_build(const char *source, size_t size, bool sanitize, dw_host_module **module, dw_error *error);
// Is the C++ compiler that builds would use there? Its name, or NULL.
const char *dw__host_compiler(void);

#endif
