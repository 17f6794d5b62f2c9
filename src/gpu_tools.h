// The kernels of templates/gpu_tools.cu.lua, built through the cache like any other and loaded on one GPU.
#ifndef DRAFTWOOD_GPU_TOOLS_RUN_H
#define DRAFTWOOD_GPU_TOOLS_RUN_H

#include "../runtime/gpu.h"
#include "../templates/gpu_tools.h"
#include "core.h"

typedef enum dw__tool {
  DW__TOOL_FILL,
  DW__TOOL_ORACLE,
  DW__TOOL_PLAIN,
  DW__TOOL_MERGE,
  DW__TOOL_DEPTH,
  DW__TOOL_COMPARE,
  DW__TOOL_OUTSIDE,
  DW__TOOL_DIFFER,
  DW__TOOL_READ,
  DW__TOOL_MMA,
  DW__TOOL_SPIN,
  DW__TOOL_COPY,
  DW__TOOL_GATHER,
  DW__TOOL_COPY_ROWS,
  DW__TOOLS
} dw__tool;

typedef struct dw__gpu_tools dw__gpu_tools;

// Puts the cubins for a device class (90) into the cache; needs no GPU.
dw_status dw__gpu_tools_build(dw_ctx *ctx, int head_dim_qk, int head_dim_v, int target, dw_error *error);
// The CUDA text of a part ("verify" or "peak"); free with dw__release.
dw_status dw__gpu_tools_source(dw_ctx *ctx, const char *part, int head_dim_qk, int head_dim_v, char **source, size_t *size,
                               dw_error *error);
// For vectors of these widths.
dw_status dw__gpu_tools_open(dw_ctx *ctx, dw__gpu *gpu, int head_dim_qk, int head_dim_v, dw__gpu_tools **tools,
                             dw_error *error);
void dw__gpu_tools_close(dw__gpu_tools *tools);
// On the GPU's stream. Threads a block are the kernel's own.
dw_status dw__gpu_tool_run(const dw__gpu_tools *tools, dw__tool tool, unsigned x, unsigned y, unsigned z, void *params,
                           dw_error *error);
// A launch of it, for capture.
dw__launch dw__gpu_tool_launch(const dw__gpu_tools *tools, dw__tool tool, unsigned x, unsigned y, unsigned z);
// A word that tools may write to and nobody reads.
void *dw__gpu_tools_sink(const dw__gpu_tools *tools);
dw__gpu *dw__gpu_tools_gpu(const dw__gpu_tools *tools);

// ---- ceilings of the board, measured -----------------------------------------------------------------------------
typedef struct dw__ceilings {
  double read_gbs, mma_tflops, sm_mhz;
} dw__ceilings;
// Reads 4 GiB (less where there is less) and issues mma.sync for some milliseconds.
dw_status dw__gpu_ceilings(const dw__gpu_tools *tools, dw__ceilings *found, dw_error *error);
// The SM clock now, right after whatever ran before.
dw_status dw__gpu_clock_mhz(const dw__gpu_tools *tools, double *mhz, dw_error *error);

#endif
