// The CUDA driver: finding it, asking it about devices, launching. Loading is in module.c; see runtime.h.
#define _GNU_SOURCE 1

#include <stdio.h>

#include "driver_table.h"
#include "symbols.h"

#define LIBRARY "libcuda.so.1"

// ---- errors ---------------------------------------------------------------------------------------------------

static dw_status status_of(int result) {
  switch (result) {
    case DW__CU_OUT_OF_MEMORY: return DW_OUT_OF_MEMORY;
    case DW__CU_STUB_LIBRARY: return DW_NO_DRIVER;
    case DW__CU_INVALID_IMAGE:
    case DW__CU_INVALID_SOURCE: return DW_BAD_CUBIN;
    case DW__CU_NO_BINARY_FOR_GPU: return DW_WRONG_ARCH;
    case DW__CU_NOT_FOUND: return DW_NOT_FOUND;
    default: return DW_DRIVER;
  }
}

// What the result alone does not tell its reader.
static const char *advice_for(int result) {
  switch (result) {
    case DW__CU_STUB_LIBRARY: return "; this is the toolkit's stub, take its folder off the library path";
    case DW__CU_NO_DEVICE: return "; no GPU is visible to this process (CUDA_VISIBLE_DEVICES, container options)";
    case DW__CU_NOT_INITIALIZED: return "; a process forked after CUDA was used cannot use it";
    default: return "";
  }
}

dw_status dw__driver_fail(const dw__driver *driver, const char *call, int result, const char *detail, dw_error *error) {
  const char *name = NULL, *text = NULL;
  if (driver->table.cuGetErrorName(result, &name) != DW__CU_SUCCESS || !name) name = "an unknown error";
  if (driver->table.cuGetErrorString(result, &text) != DW__CU_SUCCESS || !text) text = "no text";
  return dw__fail(error, status_of(result), "driver", "", "", "%s answered %d, %s (%s)%s%s", call, result, name, text,
                  advice_for(result), detail);
}

// ---- opening --------------------------------------------------------------------------------------------------

dw_status dw__driver_open_table(const dw__driver_table *table, dw__driver **driver, dw_error *error) {
  *driver = dw__calloc(1, sizeof **driver);
  if (!*driver) return dw__fail(error, DW_OUT_OF_MEMORY, "driver", "", "", NULL);
  (*driver)->table = *table;
  return DW_OK;
}

static const char *fill_table(void *library, dw__driver_table *table) {
  static const dw__symbol symbols[] = {
#define X(name, arguments) {#name, offsetof(dw__driver_table, name), true},
    DW__DRIVER_REQUIRED(X)
#undef X
#define X(name, arguments) {#name, offsetof(dw__driver_table, name), false},
      DW__DRIVER_OPTIONAL(X)
#undef X
  };
  return dw__symbols_fill(library, symbols, DW__COUNT(symbols), table);
}

dw_status dw__driver_open(const char *path, dw__driver **driver, dw_error *error) {
  const char *file = path && path[0] ? path : LIBRARY;
  dw__driver_table table;
  *driver = NULL;
  // Never unmapped: the host may hold contexts, and the driver threads, that outlive us.
  void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (!library) {
    return dw__fail(error, DW_NO_DRIVER, "driver", "none", file,
                    "%s; install the NVIDIA driver, or in a container ask for GPUs with the compute capability", dlerror());
  }
  const char *missing = fill_table(library, &table);
  dw_status status = missing ? dw__fail(error, DW_NO_DRIVER, "driver", file, "CUDA 11.8 or newer", "it lacks %s", missing)
                             : dw__driver_open_table(&table, driver, error);
  if (status == DW_OK) (*driver)->library = library;
  else dlclose(library);
  return status;
}

void dw__driver_close(dw__driver *driver) {
  if (!driver) return;
  if (driver->library) dlclose(driver->library);
  dw__release(driver);
}

dw_status dw__driver_ready(dw__driver *driver, dw_error *error) {
  if (atomic_load_explicit(&driver->ready, memory_order_acquire)) return DW_OK;
  // No lock: cuInit may be called again and by several threads at once.
  int version = 0, result = driver->table.cuInit(0);
  if (result != DW__CU_SUCCESS) return dw__driver_fail(driver, "cuInit", result, "", error);
  result = driver->table.cuDriverGetVersion(&version);
  if (result != DW__CU_SUCCESS) return dw__driver_fail(driver, "cuDriverGetVersion", result, "", error);
  atomic_store_explicit(&driver->version, version, memory_order_relaxed);
  atomic_store_explicit(&driver->ready, true, memory_order_release);
  return DW_OK;
}

// ---- devices --------------------------------------------------------------------------------------------------

dw_status dw__driver_device_count(dw__driver *driver, int *count, dw_error *error) {
  *count = 0;
  dw_status status = dw__driver_ready(driver, error);
  if (status) return status;
  int result = driver->table.cuDeviceGetCount(count);
  return result == DW__CU_SUCCESS ? DW_OK : dw__driver_fail(driver, "cuDeviceGetCount", result, "", error);
}

static int read_attributes(const dw__driver_table *table, int handle, dw__device *device) {
  int major = 0, minor = 0, l2 = 0;
  const struct {
    int id, *value;
  } wanted[] = {
    {DW__CU_CC_MAJOR, &major},
    {DW__CU_CC_MINOR, &minor},
    {DW__CU_SM_COUNT, &device->sm_count},
    {DW__CU_SHARED_OPTIN, &device->shared_optin},
    {DW__CU_L2_BYTES, &l2},
  };
  for (size_t i = 0; i < DW__COUNT(wanted); i++) {
    int result = table->cuDeviceGetAttribute(wanted[i].value, wanted[i].id, handle);
    if (result != DW__CU_SUCCESS) return result;
  }
  device->cc = 10 * major + minor;
  device->l2_bytes = l2;
  return DW__CU_SUCCESS;
}

// handle: a CUdevice, which is also the device's ordinal.
static dw_status read_device(const dw__driver *driver, int handle, dw__device *device, dw_error *error) {
  const dw__driver_table *table = &driver->table;
  size_t bytes = 0;
  *device = (dw__device){.ordinal = handle, .driver_version = driver->version};
  int result = table->cuDeviceGetName(device->name, (int)sizeof device->name, handle);
  if (result != DW__CU_SUCCESS) return dw__driver_fail(driver, "cuDeviceGetName", result, "", error);
  result = table->cuDeviceTotalMem_v2(&bytes, handle);
  if (result != DW__CU_SUCCESS) return dw__driver_fail(driver, "cuDeviceTotalMem", result, "", error);
  device->memory_bytes = (int64_t)bytes;
  result = read_attributes(table, handle, device);
  if (result != DW__CU_SUCCESS) return dw__driver_fail(driver, "cuDeviceGetAttribute", result, "", error);
  return DW_OK;
}

dw_status dw__driver_device(dw__driver *driver, int ordinal, dw__device *device, dw_error *error) {
  int handle = 0;
  dw_status status = dw__driver_ready(driver, error);
  if (status) return status;
  int result = driver->table.cuDeviceGet(&handle, ordinal);
  if (result != DW__CU_SUCCESS) return dw__driver_fail(driver, "cuDeviceGet", result, "", error);
  return read_device(driver, handle, device, error);
}

dw_status dw__driver_current(dw__driver *driver, dw__device *device, void **cu_context, dw_error *error) {
  void *context = NULL;
  int handle = 0;
  dw_status status = dw__driver_ready(driver, error);
  if (status) return status;
  int result = driver->table.cuCtxGetCurrent(&context);
  if (result != DW__CU_SUCCESS) return dw__driver_fail(driver, "cuCtxGetCurrent", result, "", error);
  if (!context) {
    return dw__fail(error, DW_DRIVER, "CUDA context", "none", "one that is current in the calling thread",
                    "call cudaSetDevice, torch.cuda.set_device or cuCtxSetCurrent in this thread first");
  }
  result = driver->table.cuCtxGetDevice(&handle);
  if (result != DW__CU_SUCCESS) return dw__driver_fail(driver, "cuCtxGetDevice", result, "", error);
  if (cu_context) *cu_context = context;
  return read_device(driver, handle, device, error);
}

void *dw__driver_context(const dw__driver *driver) {
  void *context = NULL;
  bool ready = atomic_load_explicit(&driver->ready, memory_order_acquire);
  return ready && driver->table.cuCtxGetCurrent(&context) == DW__CU_SUCCESS ? context : NULL;
}

// ---- launch: nothing below allocates, locks or waits ----------------------------------------------------------

static unsigned fill_attributes(const dw__launch *launch, dw__cu_attribute attributes[2]) {
  unsigned count = 0;
  if (launch->cluster_x > 1) {
    attributes[count] = (dw__cu_attribute){.id = DW__CU_LAUNCH_CLUSTER};
    attributes[count].value.cluster.x = launch->cluster_x;
    attributes[count].value.cluster.y = attributes[count].value.cluster.z = 1;
    count++;
  }
  if (launch->dependent) {
    attributes[count] = (dw__cu_attribute){.id = DW__CU_LAUNCH_DEPENDENT};
    attributes[count].value.dependent = 1;
    count++;
  }
  return count;
}

static int launch_extended(const dw__driver_table *table, const dw__launch *launch, void **params, void *stream) {
  dw__cu_attribute attributes[2];
  dw__cu_launch config = {
    .grid = {launch->grid[0], launch->grid[1], launch->grid[2]},
    .block = {launch->block[0], launch->block[1], launch->block[2]},
    .shared = (unsigned)launch->dynamic_shared,
    .stream = stream,
  };
  config.attribute_count = fill_attributes(launch, attributes);
  if (config.attribute_count) config.attributes = attributes;
  return table->cuLaunchKernelEx(&config, launch->function, params, NULL);
}

// For drivers without attributes. A dependent launch is then a plain one: it starts later and computes the same.
static int launch_plain(const dw__driver_table *table, const dw__launch *launch, void **params, void *stream) {
  return table->cuLaunchKernel(launch->function, launch->grid[0], launch->grid[1], launch->grid[2], launch->block[0],
                               launch->block[1], launch->block[2], (unsigned)launch->dynamic_shared, stream, params, NULL);
}

static dw_status fail_launch(const dw__driver *driver, const dw__launch *launch, int result, dw_error *error) {
  char detail[160];
  snprintf(detail, sizeof detail, "; grid %u x %u x %u, block %u x %u x %u, cluster %u, %zu bytes of shared memory",
           launch->grid[0], launch->grid[1], launch->grid[2], launch->block[0], launch->block[1], launch->block[2],
           launch->cluster_x, launch->dynamic_shared);
  return dw__driver_fail(driver, "the launch", result, detail, error);
}

dw_status dw__driver_launch(dw__driver *driver, const dw__launch *launch, void **params, void *stream, dw_error *error) {
  const dw__driver_table *table = &driver->table;
  if (!table->cuLaunchKernelEx && launch->cluster_x > 1) {
    return dw__fail_int(error, DW_DRIVER, "cluster", launch->cluster_x, "1", "this driver has no cuLaunchKernelEx");
  }
  int result =
    table->cuLaunchKernelEx ? launch_extended(table, launch, params, stream) : launch_plain(table, launch, params, stream);
  return result == DW__CU_SUCCESS ? DW_OK : fail_launch(driver, launch, result, error);
}

bool dw__driver_capturing(dw__driver *driver, void *stream) {
  int status = DW__CU_CAPTURE_NONE, result = driver->table.cuStreamIsCapturing(stream, &status);
  if (result == DW__CU_CAPTURE_IMPLICIT) return true;
  return result == DW__CU_SUCCESS && status != DW__CU_CAPTURE_NONE;
}
