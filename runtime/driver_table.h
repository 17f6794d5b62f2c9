// The CUDA driver as a table of function pointers, and what driver.c and module.c share. Types and numbers are declared here,
// since no toolkit header is needed to build draftwood.
#ifndef DRAFTWOOD_DRIVER_TABLE_H
#define DRAFTWOOD_DRIVER_TABLE_H

#include <stdatomic.h>

#include "runtime.h"

// Results that mean something of their own to us.
enum {
  DW__CU_SUCCESS = 0,
  DW__CU_OUT_OF_MEMORY = 2,
  DW__CU_NOT_INITIALIZED = 3,
  DW__CU_STUB_LIBRARY = 34,
  DW__CU_NO_DEVICE = 100,
  DW__CU_INVALID_IMAGE = 200,
  DW__CU_NO_BINARY_FOR_GPU = 209,
  DW__CU_INVALID_SOURCE = 300,
  DW__CU_NOT_FOUND = 500,
  DW__CU_CAPTURE_IMPLICIT = 906,  // the default stream was asked about while another stream captures
};

enum { DW__CU_SM_COUNT = 16, DW__CU_L2_BYTES = 38, DW__CU_CC_MAJOR = 75, DW__CU_CC_MINOR = 76, DW__CU_SHARED_OPTIN = 97 };
enum { DW__CU_FUNC_MAX_DYNAMIC_SHARED = 8 };
enum { DW__CU_CAPTURE_NONE = 0 };
enum { DW__CU_CAPTURE_MODE_RELAXED = 2 };

enum { DW__CU_LAUNCH_CLUSTER = 4, DW__CU_LAUNCH_DEPENDENT = 6 };

typedef struct dw__cu_attribute {
  int id;
  int pad;
  union {
    char room[64];
    struct {
      unsigned x, y, z;
    } cluster;
    int dependent;
  } value;
} dw__cu_attribute;

typedef struct dw__cu_launch {
  unsigned grid[3], block[3], shared;
  void *stream;
  dw__cu_attribute *attributes;
  unsigned attribute_count;
} dw__cu_launch;

_Static_assert(sizeof(dw__cu_attribute) == 72 && sizeof(dw__cu_launch) == 56, "the driver's layout");

// X(name, arguments): all return an int result. A CUdevice is an int, other handles are pointers.
#define DW__DRIVER_REQUIRED(X)                                                                                              \
  X(cuInit, (unsigned flags))                                                                                               \
  X(cuDriverGetVersion, (int *version))                                                                                     \
  X(cuDeviceGetCount, (int *count))                                                                                         \
  X(cuDeviceGet, (int *device, int ordinal))                                                                                \
  X(cuDeviceGetName, (char *name, int capacity, int device))                                                                \
  X(cuDeviceGetAttribute, (int *value, int attribute, int device))                                                          \
  X(cuDeviceTotalMem_v2, (size_t * bytes, int device))                                                                      \
  X(cuCtxGetCurrent, (void **context))                                                                                      \
  X(cuCtxGetDevice, (int *device))                                                                                          \
  X(cuCtxPushCurrent_v2, (void *context))                                                                                   \
  X(cuCtxPopCurrent_v2, (void **context))                                                                                   \
  X(cuModuleLoadData, (void **module, const void *image))                                                                   \
  X(cuModuleGetFunction, (void **function, void *module, const char *name))                                                 \
  X(cuModuleUnload, (void *module))                                                                                         \
  X(cuFuncSetAttribute, (void *function, int attribute, int value))                                                         \
  X(cuLaunchKernel, (void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, \
                     unsigned block_z, unsigned shared, void *stream, void **params, void **extra))                         \
  X(cuStreamIsCapturing, (void *stream, int *status))                                                                       \
  X(cuGetErrorName, (int result, const char **text))                                                                        \
  X(cuGetErrorString, (int result, const char **text))

// cuLibrary came with 12.0, cuLaunchKernelEx with 11.8, cuFuncLoad with 12.4.
#define DW__DRIVER_OPTIONAL(X)                                                                                      \
  X(cuLibraryLoadData, (void **library, const void *image, int *jit_options, void **jit_values, unsigned jit_count, \
                        int *options, void **values, unsigned count))                                               \
  X(cuLibraryUnload, (void *library))                                                                               \
  X(cuLibraryGetKernel, (void **kernel, void *library, const char *name))                                           \
  X(cuKernelGetFunction, (void **function, void *kernel))                                                           \
  X(cuFuncLoad, (void *function))                                                                                   \
  X(cuLaunchKernelEx, (const dw__cu_launch *launch, void *function, void **params, void **extra))                   \
  X(cuThreadExchangeStreamCaptureMode, (int *mode))

struct dw__driver_table {
#define X(name, arguments) int(*name) arguments;
  DW__DRIVER_REQUIRED(X)
  DW__DRIVER_OPTIONAL(X)
#undef X
};

struct dw__driver {
  dw__driver_table table;
  void *library;       // dlopen handle; NULL with a stand-in table
  atomic_int version;  // e.g. 13000; known from the first use on
  atomic_bool ready;
};

// Turns a result of the driver into an error: "cuModuleLoadData answered 200, CUDA_ERROR_INVALID_IMAGE (device kernel image is
// invalid)<detail>".
dw_status dw__driver_fail(const dw__driver *driver, const char *call, int result, const char *detail, dw_error *error);
// Initialises the driver on its first use.
dw_status dw__driver_ready(dw__driver *driver, dw_error *error);

#endif
