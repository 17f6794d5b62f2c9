// The GPU side of draftwood verify: a problem's arrays copied to the device and back around one dw_launch. The product itself
// never allocates or copies, so the calls for that are looked up here and not in its driver table.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "flow.h"

typedef uint64_t device_pointer;

// X(name, arguments)
#define GPU_CALLS(X)                                                           \
  X(cuInit, (unsigned flags))                                                  \
  X(cuDeviceGet, (int *device, int ordinal))                                   \
  X(cuDevicePrimaryCtxRetain, (void **context, int device))                    \
  X(cuCtxSetCurrent, (void *context))                                          \
  X(cuCtxSynchronize, (void))                                                  \
  X(cuMemAlloc_v2, (device_pointer * address, size_t size))                    \
  X(cuMemFree_v2, (device_pointer address))                                    \
  X(cuMemsetD8_v2, (device_pointer address, unsigned char value, size_t size)) \
  X(cuMemcpyHtoD_v2, (device_pointer to, const void *from, size_t size))       \
  X(cuMemcpyDtoH_v2, (void *to, device_pointer from, size_t size))

typedef struct gpu {
  void *library;
#define X(name, arguments) int(*name) arguments;
  GPU_CALLS(X)
#undef X
  int device;
  void *context;
  device_pointer blocks[16];
  int count;
  const char *failed;  // the first call that did not succeed
  int result;
} gpu;

static bool gpu_load(gpu *g) {
  const char *path = getenv("DRAFTWOOD_DRIVER");
  g->library = dlopen(path && *path ? path : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!g->library) return false;
#define X(name, arguments)                         \
  *(void **)(&g->name) = dlsym(g->library, #name); \
  if (!g->name) return false;
  GPU_CALLS(X)
#undef X
  return true;
}

// After a failure the calls that follow have nothing to do.
#define TRY(g, name, ...)                 \
  do {                                    \
    if ((g)->failed) break;               \
    (g)->result = (g)->name(__VA_ARGS__); \
    if ((g)->result) (g)->failed = #name; \
  } while (0)

static dw_status gpu_status(const gpu *g, dw_error *error) {
  if (!g->failed) return DW_OK;
  return dw__fail(error, DW_DRIVER, "gpu", "", "", "%s answered %d", g->failed, g->result);
}

static dw_status gpu_open(gpu *g, dw_error *error) {
  memset(g, 0, sizeof *g);
  if (!gpu_load(g)) return dw__fail(error, DW_NO_DRIVER, "device", "gpu", "host", "SKIP: the CUDA driver was not found here");
  TRY(g, cuInit, 0);
  TRY(g, cuDeviceGet, &g->device, 0);
  if (g->failed) {
    return dw__fail(error, DW_NOT_FOUND, "device", "gpu", "host", "SKIP: no GPU: %s answered %d", g->failed, g->result);
  }
  TRY(g, cuDevicePrimaryCtxRetain, &g->context, g->device);
  TRY(g, cuCtxSetCurrent, g->context);
  return gpu_status(g, error);
}

// The primary context stays: kernels of the dw_ctx live in it. The process's end releases it.
static void gpu_close(gpu *g) {
  for (int i = 0; i < g->count; i++) g->cuMemFree_v2(g->blocks[i]);
  if (g->library) dlclose(g->library);
}

// A device copy of an array; NULL stays NULL.
static void *gpu_copy(gpu *g, const void *from, size_t size) {
  device_pointer address = 0;
  if (!from || g->failed) return NULL;
  TRY(g, cuMemAlloc_v2, &address, size ? size : 1);
  if (g->failed) return NULL;
  g->blocks[g->count++] = address;
  if (size) TRY(g, cuMemcpyHtoD_v2, address, from, size);
  return (void *)(uintptr_t)address;
}

static void *gpu_workspace(gpu *g, size_t size) {
  device_pointer address = 0;
  TRY(g, cuMemAlloc_v2, &address, size ? size : 1);
  if (g->failed) return NULL;
  g->blocks[g->count++] = address;
  if (size) TRY(g, cuMemsetD8_v2, address, 0xFF, size);
  return (void *)(uintptr_t)address;
}

// The problem's arguments with device copies of its arrays.
static dw_args gpu_args(gpu *g, const dw__problem *problem) {
  dw_args args = problem->args;
  size_t batch = (size_t)args.batch;
  args.q = gpu_copy(g, args.q, problem->q_bytes);
  args.out = gpu_copy(g, args.out, problem->out_bytes);
  args.lse = gpu_copy(g, args.lse, problem->lse_bytes);
  args.kv = gpu_copy(g, args.kv, problem->kv_bytes);
  args.qo_indptr = gpu_copy(g, args.qo_indptr, (batch + 1) * sizeof(int32_t));
  args.kv_len = gpu_copy(g, args.kv_len, batch * sizeof(int32_t));
  args.kv_indptr = gpu_copy(g, args.kv_indptr, (batch + 1) * sizeof(int32_t));
  args.kv_indices = gpu_copy(g, args.kv_indices, problem->index_bytes);
  args.draft_slots = gpu_copy(g, args.draft_slots, problem->draft_slots_bytes);
  args.block_table = gpu_copy(g, args.block_table, problem->table_bytes);
  args.mask = gpu_copy(g, args.mask, problem->mask_bytes);
  return args;
}

static dw_status launch(gpu *g, const dw_kernel *kernel, dw__problem *problem, dw_error *error) {
  dw__problem_poison(problem);
  dw_args args = gpu_args(g, problem);
  args.workspace_size = dw_workspace_size(kernel);
  args.workspace = gpu_workspace(g, args.workspace_size);
  dw_status status = gpu_status(g, error);
  if (!status) status = dw_launch(kernel, &args, NULL, error);
  if (status) return status;
  TRY(g, cuCtxSynchronize);
  TRY(g, cuMemcpyDtoH_v2, problem->args.out, (device_pointer)(uintptr_t)args.out, problem->out_bytes);
  if (args.lse) TRY(g, cuMemcpyDtoH_v2, problem->args.lse, (device_pointer)(uintptr_t)args.lse, problem->lse_bytes);
  return gpu_status(g, error);
}

static dw_status describe(dw_ctx *ctx, char text[160], dw_error *error) {
  dw__driver *driver;
  dw__device device;
  dw_status status = dw__ctx_driver(ctx, &driver, error);
  if (!status) status = dw__driver_current(driver, &device, NULL, error);
  if (!status) snprintf(text, 160, "%s", device.name);
  return status;
}

dw_status cli_check_gpu(dw_ctx *ctx, const dw_shape *shape, const dw_variant *variant, const cli_problem *asked,
                        dw__problem *problem, char device[160], dw__comparison *comparison, dw_error *error) {
  gpu g;
  dw_kernel *kernel;
  dw_bounds bounds = cli_problem_bounds(shape, asked);
  dw_status status = gpu_open(&g, error);
  if (!status) status = describe(ctx, device, error);
  if (!status) status = dw_kernel_get(ctx, shape, variant, &bounds, &kernel, error);
  if (!status) status = launch(&g, kernel, problem, error);
  if (!status) status = dw__problem_compare(problem, comparison, error);
  gpu_close(&g);
  return status;
}
