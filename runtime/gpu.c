// See gpu.h.
#include "gpu.h"

#include <stdio.h>

#include "driver_table.h"
#include "symbols.h"

typedef struct block {
  struct block *next;
  void *address;
} block;

struct dw__gpu {
  dw__driver *driver;
  dw__gpu_table table;
  dw__device device;
  void *context, *stream, *side, *events[2];
  block *blocks;
  bool capturing;
  char bus[32];
};

struct dw__graph {
  void *graph, *exec;
  size_t nodes;
};

enum { STREAM_NON_BLOCKING = 1 };

static uint64_t address_of(const void *p) { return (uint64_t)(uintptr_t)p; }

// A result as a status; `call` names what was called.
static dw_status done(const dw__gpu *gpu, const char *call, int result, dw_error *error) {
  return result == DW__CU_SUCCESS ? DW_OK : dw__driver_fail(gpu->driver, call, result, "", error);
}
#define CALL(gpu, name, ...) done(gpu, #name, (gpu)->table.name(__VA_ARGS__), error)

// ---- opening --------------------------------------------------------------------------------------------------

static const char *fill_table(void *library, dw__gpu_table *table) {
  static const dw__symbol symbols[] = {
#define X(name, arguments) {#name, offsetof(dw__gpu_table, name), true},
    DW__GPU_REQUIRED(X)
#undef X
#define X(name, arguments) {#name, offsetof(dw__gpu_table, name), false},
      DW__GPU_OPTIONAL(X)
#undef X
  };
  return dw__symbols_fill(library, symbols, DW__COUNT(symbols), table);
}

static dw_status make_streams(dw__gpu *gpu, dw_error *error) {
  dw_status status = CALL(gpu, cuStreamCreate, &gpu->stream, STREAM_NON_BLOCKING);
  if (!status) status = CALL(gpu, cuStreamCreate, &gpu->side, STREAM_NON_BLOCKING);
  for (int i = 0; i < 2 && !status; i++) status = CALL(gpu, cuEventCreate, &gpu->events[i], 0);
  return status;
}

dw_status dw__gpu_open_table(dw__driver *driver, const dw__gpu_table *table, int ordinal, dw__gpu **result, dw_error *error) {
  *result = NULL;
  dw__gpu *gpu = dw__calloc(1, sizeof *gpu);
  if (!gpu) return dw__fail(error, DW_OUT_OF_MEMORY, "gpu", "", "", NULL);
  gpu->driver = driver;
  gpu->table = *table;
  dw_status status = dw__driver_device(driver, ordinal, &gpu->device, error);
  if (!status) status = CALL(gpu, cuDevicePrimaryCtxRetain, &gpu->context, gpu->device.ordinal);
  if (!status) status = CALL(gpu, cuCtxSetCurrent, gpu->context);
  if (!status) status = make_streams(gpu, error);
  if (status) dw__gpu_close(gpu);
  else *result = gpu;
  return status;
}

dw_status dw__gpu_open(dw__driver *driver, int ordinal, dw__gpu **gpu, dw_error *error) {
  dw__gpu_table table;
  *gpu = NULL;
  const char *missing = driver->library ? fill_table(driver->library, &table) : "a library";
  if (missing) return dw__fail(error, DW_NO_DRIVER, "driver", "", "CUDA 11.8 or newer", "it lacks %s", missing);
  return dw__gpu_open_table(driver, &table, ordinal, gpu, error);
}

void dw__gpu_close(dw__gpu *gpu) {
  if (!gpu) return;
  if (gpu->capturing) dw__gpu_capture_drop(gpu);
  if (gpu->stream) gpu->table.cuStreamSynchronize(gpu->stream);
  while (gpu->blocks) dw__gpu_free(gpu, gpu->blocks->address);
  for (int i = 0; i < 2; i++)
    if (gpu->events[i]) gpu->table.cuEventDestroy_v2(gpu->events[i]);
  if (gpu->side) gpu->table.cuStreamDestroy_v2(gpu->side);
  if (gpu->stream) gpu->table.cuStreamDestroy_v2(gpu->stream);
  if (gpu->context) {
    gpu->table.cuCtxSetCurrent(NULL);
    gpu->table.cuDevicePrimaryCtxRelease_v2(gpu->device.ordinal);
  }
  dw__release(gpu);
}

const dw__device *dw__gpu_device(const dw__gpu *gpu) { return &gpu->device; }
const char *dw__gpu_bus(dw__gpu *gpu) {
  if (!gpu->table.cuDeviceGetPCIBusId || gpu->table.cuDeviceGetPCIBusId(gpu->bus, sizeof gpu->bus, gpu->device.ordinal))
    return NULL;
  return gpu->bus;
}
dw__driver *dw__gpu_driver(const dw__gpu *gpu) { return gpu->driver; }
void *dw__gpu_stream(const dw__gpu *gpu) { return gpu->stream; }

// An error of a kernel comes up here, or in whatever waits first.
dw_status dw__gpu_sync(dw__gpu *gpu, dw_error *error) { return CALL(gpu, cuStreamSynchronize, gpu->stream); }

// ---- memory ---------------------------------------------------------------------------------------------------

dw_status dw__gpu_alloc(dw__gpu *gpu, size_t bytes, void **address, dw_error *error) {
  uint64_t made = 0;
  char detail[64];
  *address = NULL;
  block *kept = dw__alloc(sizeof *kept);
  if (!kept) return dw__fail(error, DW_OUT_OF_MEMORY, "gpu", "", "", NULL);
  int result = gpu->table.cuMemAlloc_v2(&made, bytes ? bytes : 1);
  if (result != DW__CU_SUCCESS) {
    dw__release(kept);
    snprintf(detail, sizeof detail, "; asked for %zu bytes", bytes);
    return dw__driver_fail(gpu->driver, "cuMemAlloc", result, detail, error);
  }
  *address = (void *)(uintptr_t)made;
  *kept = (block){gpu->blocks, *address};
  gpu->blocks = kept;
  return DW_OK;
}

void dw__gpu_free(dw__gpu *gpu, void *address) {
  for (block **link = &gpu->blocks; *link; link = &(*link)->next) {
    block *found = *link;
    if (found->address != address) continue;
    *link = found->next;
    gpu->table.cuMemFree_v2(address_of(address));
    dw__release(found);
    return;
  }
}

dw_status dw__gpu_upload(dw__gpu *gpu, void *to, const void *from, size_t bytes, dw_error *error) {
  if (!bytes) return DW_OK;
  dw_status status = CALL(gpu, cuMemcpyHtoDAsync_v2, address_of(to), from, bytes, gpu->stream);
  return status ? status : dw__gpu_sync(gpu, error);
}

dw_status dw__gpu_download(dw__gpu *gpu, void *to, const void *from, size_t bytes, dw_error *error) {
  if (!bytes) return dw__gpu_sync(gpu, error);
  dw_status status = CALL(gpu, cuMemcpyDtoHAsync_v2, to, address_of(from), bytes, gpu->stream);
  return status ? status : dw__gpu_sync(gpu, error);
}

dw_status dw__gpu_copy(dw__gpu *gpu, void *to, const void *from, size_t bytes, dw_error *error) {
  return bytes ? CALL(gpu, cuMemcpyDtoDAsync_v2, address_of(to), address_of(from), bytes, gpu->stream) : DW_OK;
}

dw_status dw__gpu_fill(dw__gpu *gpu, void *to, unsigned char byte, size_t bytes, dw_error *error) {
  return bytes ? CALL(gpu, cuMemsetD8Async, address_of(to), byte, bytes, gpu->stream) : DW_OK;
}

dw_status dw__gpu_fill_word(dw__gpu *gpu, void *to, uint32_t word, size_t bytes, dw_error *error) {
  return bytes ? CALL(gpu, cuMemsetD32Async, address_of(to), word, bytes / 4, gpu->stream) : DW_OK;
}

size_t dw__gpu_free_bytes(dw__gpu *gpu) {
  size_t free_bytes = 0, total = 0;
  if (!gpu->table.cuMemGetInfo_v2 || gpu->table.cuMemGetInfo_v2(&free_bytes, &total) != DW__CU_SUCCESS) return 0;
  return free_bytes;
}

// ---- launches and graphs --------------------------------------------------------------------------------------

dw_status dw__gpu_launch(dw__gpu *gpu, const dw__launch *launch, void *params, dw_error *error) {
  void *list[] = {params};
  return dw__driver_launch(gpu->driver, launch, list, gpu->stream, error);
}

// Whatever the GPU's stream still does might be read by the captured calls' first replay only; but an upload in flight is
// no part of a graph, so the stream is empty before.
dw_status dw__gpu_capture_begin(dw__gpu *gpu, dw__capture_mode mode, void **side, dw_error *error) {
  dw_status status = dw__gpu_sync(gpu, error);
  if (!status) status = CALL(gpu, cuStreamBeginCapture_v2, gpu->side, (int)mode);
  gpu->capturing = status == DW_OK;
  *side = gpu->side;
  return status;
}

void dw__gpu_capture_drop(dw__gpu *gpu) {
  void *graph = NULL;
  gpu->capturing = false;
  if (gpu->table.cuStreamEndCapture(gpu->side, &graph) == DW__CU_SUCCESS && graph) gpu->table.cuGraphDestroy(graph);
}

dw_status dw__gpu_capture_end(dw__gpu *gpu, dw__graph **result, dw_error *error) {
  *result = NULL;
  gpu->capturing = false;
  dw__graph *graph = dw__calloc(1, sizeof *graph);
  if (!graph) {
    dw__gpu_capture_drop(gpu);
    return dw__fail(error, DW_OUT_OF_MEMORY, "gpu", "", "", NULL);
  }
  dw_status status = CALL(gpu, cuStreamEndCapture, gpu->side, &graph->graph);
  if (!status && gpu->table.cuGraphGetNodes) gpu->table.cuGraphGetNodes(graph->graph, NULL, &graph->nodes);
  if (!status) status = CALL(gpu, cuGraphInstantiateWithFlags, &graph->exec, graph->graph, 0);
  if (!status && gpu->table.cuGraphUpload) status = CALL(gpu, cuGraphUpload, graph->exec, gpu->stream);
  if (status) dw__graph_free(gpu, graph);
  else *result = graph;
  return status;
}

void dw__graph_free(dw__gpu *gpu, dw__graph *graph) {
  if (!graph) return;
  if (graph->exec) gpu->table.cuGraphExecDestroy(graph->exec);
  if (graph->graph) gpu->table.cuGraphDestroy(graph->graph);
  dw__release(graph);
}

size_t dw__graph_nodes(const dw__graph *graph) { return graph->nodes; }

dw_status dw__gpu_replay(dw__gpu *gpu, dw__graph *graph, dw_error *error) {
  return CALL(gpu, cuGraphLaunch, graph->exec, gpu->stream);
}

dw_status dw__gpu_time(dw__gpu *gpu, dw__graph *graph, double *microseconds, dw_error *error) {
  float milliseconds = 0;
  dw_status status = CALL(gpu, cuEventRecord, gpu->events[0], gpu->stream);
  if (!status) status = dw__gpu_replay(gpu, graph, error);
  if (!status) status = CALL(gpu, cuEventRecord, gpu->events[1], gpu->stream);
  if (!status) status = dw__gpu_sync(gpu, error);
  if (!status) status = CALL(gpu, cuEventElapsedTime, &milliseconds, gpu->events[0], gpu->events[1]);
  *microseconds = (double)milliseconds * 1e3;
  return status;
}
