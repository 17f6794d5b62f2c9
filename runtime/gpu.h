// What our own tools (bench, verify) need of a GPU and the product does not: device memory, copies, events, and graphs captured
// on a side stream. A dw__gpu owns the primary context of one device, its streams and every block it was asked for; closing it
// gives all of that back. Not for several threads at once.
#ifndef DRAFTWOOD_GPU_H
#define DRAFTWOOD_GPU_H

#include "runtime.h"

// ---- the driver's calls, all int results; tests hand over stand-ins --------------------------------------------
// A device address is 64 bits, as in the driver.
#define DW__GPU_REQUIRED(X)                                                            \
  X(cuDevicePrimaryCtxRetain, (void **context, int device))                            \
  X(cuDevicePrimaryCtxRelease_v2, (int device))                                        \
  X(cuCtxSetCurrent, (void *context))                                                  \
  X(cuMemAlloc_v2, (uint64_t * address, size_t bytes))                                 \
  X(cuMemFree_v2, (uint64_t address))                                                  \
  X(cuMemcpyHtoDAsync_v2, (uint64_t to, const void *from, size_t bytes, void *stream)) \
  X(cuMemcpyDtoHAsync_v2, (void *to, uint64_t from, size_t bytes, void *stream))       \
  X(cuMemcpyDtoDAsync_v2, (uint64_t to, uint64_t from, size_t bytes, void *stream))    \
  X(cuMemsetD8Async, (uint64_t to, unsigned char value, size_t count, void *stream))   \
  X(cuMemsetD32Async, (uint64_t to, unsigned value, size_t count, void *stream))       \
  X(cuStreamCreate, (void **stream, unsigned flags))                                   \
  X(cuStreamDestroy_v2, (void *stream))                                                \
  X(cuStreamSynchronize, (void *stream))                                               \
  X(cuStreamBeginCapture_v2, (void *stream, int mode))                                 \
  X(cuStreamEndCapture, (void *stream, void **graph))                                  \
  X(cuGraphInstantiateWithFlags, (void **exec, void *graph, unsigned long long flags)) \
  X(cuGraphLaunch, (void *exec, void *stream))                                         \
  X(cuGraphExecDestroy, (void *exec))                                                  \
  X(cuGraphDestroy, (void *graph))                                                     \
  X(cuEventCreate, (void **event, unsigned flags))                                     \
  X(cuEventDestroy_v2, (void *event))                                                  \
  X(cuEventRecord, (void *event, void *stream))                                        \
  X(cuEventElapsedTime, (float *milliseconds, void *from, void *to))

// Used where they are there.
#define DW__GPU_OPTIONAL(X)                                       \
  X(cuMemGetInfo_v2, (size_t * free_bytes, size_t * total_bytes)) \
  X(cuGraphGetNodes, (void *graph, void **nodes, size_t *count))  \
  X(cuDeviceGetPCIBusId, (char *text, int size, int device))      \
  X(cuGraphUpload, (void *exec, void *stream))

typedef struct dw__gpu_table {
#define X(name, arguments) int(*name) arguments;
  DW__GPU_REQUIRED(X)
  DW__GPU_OPTIONAL(X)
#undef X
} dw__gpu_table;

// ---- opening --------------------------------------------------------------------------------------------------
typedef struct dw__gpu dw__gpu;

// Makes the device's primary context current in this thread. DW_NO_DRIVER or DW_DRIVER where there is no GPU.
dw_status dw__gpu_open(dw__driver *driver, int ordinal, dw__gpu **gpu, dw_error *error);
dw_status dw__gpu_open_table(dw__driver *driver, const dw__gpu_table *table, int ordinal, dw__gpu **gpu, dw_error *error);
// Contexts (dw_ctx) with kernels of this device are destroyed before.
void dw__gpu_close(dw__gpu *gpu);
const dw__device *dw__gpu_device(const dw__gpu *gpu);
dw__driver *dw__gpu_driver(const dw__gpu *gpu);
// "0000:65:00.0" for dw__gpu_facts_read; NULL where the driver does not tell.
const char *dw__gpu_bus(dw__gpu *gpu);
// The stream of everything below: not the default one, and independent of it.
void *dw__gpu_stream(const dw__gpu *gpu);
dw_status dw__gpu_sync(dw__gpu *gpu, dw_error *error);

// ---- memory: the calls are in the stream's order; upload and download wait for their end -----------------------
// 0 bytes get an address too, so that it can stand in an argument.
dw_status dw__gpu_alloc(dw__gpu *gpu, size_t bytes, void **address, dw_error *error);
void dw__gpu_free(dw__gpu *gpu, void *address);
dw_status dw__gpu_upload(dw__gpu *gpu, void *to, const void *from, size_t bytes, dw_error *error);
dw_status dw__gpu_download(dw__gpu *gpu, void *to, const void *from, size_t bytes, dw_error *error);
dw_status dw__gpu_copy(dw__gpu *gpu, void *to, const void *from, size_t bytes, dw_error *error);
dw_status dw__gpu_fill(dw__gpu *gpu, void *to, unsigned char byte, size_t bytes, dw_error *error);
// bytes: a multiple of 4.
dw_status dw__gpu_fill_word(dw__gpu *gpu, void *to, uint32_t word, size_t bytes, dw_error *error);
// 0 where the driver does not tell.
size_t dw__gpu_free_bytes(dw__gpu *gpu);

// ---- launches and graphs --------------------------------------------------------------------------------------
// One kernel with one parameter struct, on the GPU's stream.
dw_status dw__gpu_launch(dw__gpu *gpu, const dw__launch *launch, void *params, dw_error *error);

// GLOBAL forbids unsafe calls of all threads during the capture, THREAD those of the capturing one, RELAXED none. As the driver's.
typedef enum dw__capture_mode { DW__CAPTURE_GLOBAL = 0, DW__CAPTURE_THREAD = 1, DW__CAPTURE_RELAXED = 2 } dw__capture_mode;
typedef struct dw__graph dw__graph;

// What is launched on *side from here to the end becomes a graph. A capture that failed is ended too.
dw_status dw__gpu_capture_begin(dw__gpu *gpu, dw__capture_mode mode, void **side, dw_error *error);
dw_status dw__gpu_capture_end(dw__gpu *gpu, dw__graph **graph, dw_error *error);
void dw__gpu_capture_drop(dw__gpu *gpu);
void dw__graph_free(dw__gpu *gpu, dw__graph *graph);
size_t dw__graph_nodes(const dw__graph *graph);  // 0: not known
dw_status dw__gpu_replay(dw__gpu *gpu, dw__graph *graph, dw_error *error);
// One replay between two events, waited for.
dw_status dw__gpu_time(dw__gpu *gpu, dw__graph *graph, double *microseconds, dw_error *error);

#endif
