// See fake_driver.h. Handles are addresses within the record, so that a wrong one is noticed.
#include "fake_driver.h"

#include <stdio.h>
#include <string.h>

fake_driver fake;

static char context_handle, library_handle, module_handle, kernel_handle, function_handle;

void fake_driver_reset(void) {
  fake = (fake_driver){.version = 13000, .cc = 90, .sm_count = 132, .shared_optin = 232448, .context = &context_handle};
}

int fake_driver_calls(void) {
  int sum = 0;
  for (int i = 0; i < FAKE_COUNT; i++) sum += fake.calls[i];
  return sum;
}

static int called(int which) {
  fake.calls[which]++;
  return fake.result[which];
}

static int fake_cuInit(unsigned flags) { return flags ? 1 : called(FAKE_cuInit); }

static int fake_cuDriverGetVersion(int *version) {
  *version = fake.version;
  return called(FAKE_cuDriverGetVersion);
}

static int fake_cuDeviceGetCount(int *count) {
  *count = 1;
  return called(FAKE_cuDeviceGetCount);
}

static int fake_cuDeviceGet(int *device, int ordinal) {
  *device = ordinal;
  return ordinal == 0 ? called(FAKE_cuDeviceGet) : 101;
}

static int fake_cuDeviceGetName(char *name, int capacity, int device) {
  (void)device;
  snprintf(name, (size_t)capacity, "Fake GPU");
  return called(FAKE_cuDeviceGetName);
}

static int fake_cuDeviceGetAttribute(int *value, int attribute, int device) {
  (void)device;
  switch (attribute) {
    case DW__CU_CC_MAJOR: *value = fake.cc / 10; break;
    case DW__CU_CC_MINOR: *value = fake.cc % 10; break;
    case DW__CU_SM_COUNT: *value = fake.sm_count; break;
    case DW__CU_SHARED_OPTIN: *value = fake.shared_optin; break;
    case DW__CU_L2_BYTES: *value = 60 << 20; break;
    default: return 1;
  }
  return called(FAKE_cuDeviceGetAttribute);
}

static int fake_cuDeviceTotalMem_v2(size_t *bytes, int device) {
  (void)device;
  *bytes = (size_t)141 << 30;
  return called(FAKE_cuDeviceTotalMem_v2);
}

static int fake_cuCtxGetCurrent(void **context) {
  *context = fake.context;
  return called(FAKE_cuCtxGetCurrent);
}

static int fake_cuCtxGetDevice(int *device) {
  *device = 0;
  return called(FAKE_cuCtxGetDevice);
}

static int fake_cuCtxPushCurrent_v2(void *context) {
  fake.pushed = context;
  return called(FAKE_cuCtxPushCurrent_v2);
}

static int fake_cuCtxPopCurrent_v2(void **context) {
  *context = fake.pushed;
  return called(FAKE_cuCtxPopCurrent_v2);
}

static int loads(int which, void **handle, void *made) {
  int result = called(which);
  fake.mode_at_load = fake.capture_mode;
  if (result) return result;
  *handle = made;
  fake.loaded++;
  return 0;
}

static int fake_cuModuleLoadData(void **module, const void *image) {
  return image ? loads(FAKE_cuModuleLoadData, module, &module_handle) : 1;
}

static int fake_cuModuleGetFunction(void **function, void *module, const char *name) {
  *function = &function_handle;
  return module == &module_handle && name[0] ? called(FAKE_cuModuleGetFunction) : 400;
}

static int fake_cuModuleUnload(void *module) {
  fake.loaded--;
  return module == &module_handle ? called(FAKE_cuModuleUnload) : 400;
}

static int fake_cuFuncSetAttribute(void *function, int attribute, int value) {
  if (attribute == DW__CU_FUNC_MAX_DYNAMIC_SHARED) fake.dynamic_shared = value;
  return function == &function_handle ? called(FAKE_cuFuncSetAttribute) : 400;
}

static void record_launch(const dw__cu_launch *launch, void *function, void **params) {
  fake.launch = *launch;
  unsigned count = launch->attribute_count < DW__COUNT(fake.attributes) ? launch->attribute_count : DW__COUNT(fake.attributes);
  if (count) memcpy(fake.attributes, launch->attributes, count * sizeof fake.attributes[0]);
  fake.function = function;
  fake.first_param = params ? params[0] : NULL;
}

static int fake_cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                               unsigned block_y, unsigned block_z, unsigned shared, void *stream, void **params, void **extra) {
  dw__cu_launch launch = {
    .grid = {grid_x, grid_y, grid_z}, .block = {block_x, block_y, block_z}, .shared = shared, .stream = stream};
  record_launch(&launch, function, params);
  return extra ? 1 : called(FAKE_cuLaunchKernel);
}

static int fake_cuStreamIsCapturing(void *stream, int *status) {
  (void)stream;
  *status = fake.capture_status;
  return called(FAKE_cuStreamIsCapturing);
}

static int fake_cuGetErrorName(int result, const char **text) {
  *text = result == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_FAKE";
  return called(FAKE_cuGetErrorName);
}

static int fake_cuGetErrorString(int result, const char **text) {
  *text = result == 2 ? "out of memory" : "as ordered by the test";
  return called(FAKE_cuGetErrorString);
}

static int fake_cuLibraryLoadData(void **library, const void *image, int *jit_options, void **jit_values, unsigned jit_count,
                                  int *options, void **values, unsigned count) {
  if (!image || jit_options || jit_values || jit_count || options || values || count) return 1;
  return loads(FAKE_cuLibraryLoadData, library, &library_handle);
}

static int fake_cuLibraryUnload(void *library) {
  fake.loaded--;
  return library == &library_handle ? called(FAKE_cuLibraryUnload) : 400;
}

static int fake_cuLibraryGetKernel(void **kernel, void *library, const char *name) {
  *kernel = &kernel_handle;
  return library == &library_handle && name[0] ? called(FAKE_cuLibraryGetKernel) : 400;
}

static int fake_cuKernelGetFunction(void **function, void *kernel) {
  *function = &function_handle;
  return kernel == &kernel_handle ? called(FAKE_cuKernelGetFunction) : 400;
}

static int fake_cuFuncLoad(void *function) { return function == &function_handle ? called(FAKE_cuFuncLoad) : 400; }

static int fake_cuLaunchKernelEx(const dw__cu_launch *launch, void *function, void **params, void **extra) {
  record_launch(launch, function, params);
  return extra ? 1 : called(FAKE_cuLaunchKernelEx);
}

static int fake_cuThreadExchangeStreamCaptureMode(int *mode) {
  int before = fake.capture_mode;
  fake.capture_mode = *mode;
  *mode = before;
  return called(FAKE_cuThreadExchangeStreamCaptureMode);
}

dw__driver_table fake_driver_table(void) {
  return (dw__driver_table){
#define X(name, arguments) .name = fake_##name,
    DW__DRIVER_REQUIRED(X) DW__DRIVER_OPTIONAL(X)
#undef X
  };
}

dw__driver_table fake_driver_table_old(void) {
  return (dw__driver_table){
#define X(name, arguments) .name = fake_##name,
    DW__DRIVER_REQUIRED(X)
#undef X
  };
}
