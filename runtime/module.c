// Cubin -> module -> function. The cubin is read by us before the driver sees it, so that a damaged or foreign one is named as
// such whatever the driver's version would say of it.
#define _GNU_SOURCE 1

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver_table.h"

enum { SHARED_WITHOUT_ASKING = 48 * 1024 };

struct dw__module {
  dw__driver *driver;
  void *library;  // CUlibrary, or
  void *module;   // CUmodule, which belongs to
  void *cu_context;
  int shared_optin;
  int kernel_count;
  dw_resources kernels[DW_KERNELS_MAX];
};

// ---- may this device run it? ----------------------------------------------------------------------------------

bool dw__arch_runs(int arch, bool specific, int cc) { return specific ? cc == arch : cc / 10 == arch / 10 && cc >= arch; }

static dw_status check_arch(const dw__device *device, int arch, bool specific, dw_error *error) {
  char found[32], allowed[224];
  if (dw__arch_runs(arch, specific, device->cc)) return DW_OK;
  snprintf(found, sizeof found, "sm_%d%s", arch, specific ? "a" : "");
  snprintf(allowed, sizeof allowed, "what sm_%d runs (device %d, %s)", device->cc, device->ordinal, device->name);
  return dw__fail(error, DW_WRONG_ARCH, "cubin", found, allowed, "build it for the device's own target");
}

// ---- loading --------------------------------------------------------------------------------------------------

// Loading is safe while some stream captures, but the driver forbids it and spoils the capture, unless told that we know.
// Wrap it in two calls of this: the mode of this thread is swapped with *mode.
static void exchange_capture_mode(const dw__driver_table *table, int *mode) {
  if (table->cuThreadExchangeStreamCaptureMode) table->cuThreadExchangeStreamCaptureMode(mode);
}

static bool has_libraries(const dw__driver_table *table) {
  return table->cuLibraryLoadData && table->cuLibraryUnload && table->cuLibraryGetKernel && table->cuKernelGetFunction;
}

// The compiler's version, which it leaves in the cubin as text. "" if it is not there.
static void read_compiler(const void *cubin, size_t size, char *text, size_t capacity) {
  static const char anchor[] = "Cuda compilation tools, release ";
  const char *at = memmem(cubin, size, anchor, strlen(anchor));
  const char *end = (const char *)cubin + size;
  size_t used = 0;
  if (at) at += strlen(anchor);
  while (at && at < end && *at >= ' ' && *at < 127 && used + 1 < capacity) text[used++] = *at++;
  text[used] = 0;
}

// A driver older than the compiler may not understand a cubin that we found sound: both versions are named.
static dw_status fail_load(const dw__driver *driver, const char *call, int result, const void *cubin, size_t size,
                           dw_error *error) {
  char compiler[48], detail[160];
  read_compiler(cubin, size, compiler, sizeof compiler);
  snprintf(detail, sizeof detail, "; the driver serves CUDA %d.%d, the cubin was made by %s", driver->version / 1000,
           driver->version % 1000 / 10, compiler[0] ? compiler : "an unknown compiler");
  return dw__driver_fail(driver, call, result, detail, error);
}

static dw_status load(dw__module *module, const void *cubin, size_t size, dw_error *error) {
  const dw__driver_table *table = &module->driver->table;
  bool libraries = has_libraries(table);
  int mode = DW__CU_CAPTURE_MODE_RELAXED;
  exchange_capture_mode(table, &mode);
  int result = DW__CU_NO_BINARY_FOR_GPU;
  if (libraries) result = table->cuLibraryLoadData(&module->library, cubin, NULL, NULL, 0, NULL, NULL, 0);
  // Under eager loading a library goes into every context of the process, also those of GPUs that it does not fit: a module
  // goes into the current one alone.
  if (result == DW__CU_NO_BINARY_FOR_GPU) {
    libraries = false;
    module->library = NULL;
    result = table->cuModuleLoadData(&module->module, cubin);
  }
  exchange_capture_mode(table, &mode);
  if (result == DW__CU_SUCCESS) return DW_OK;
  return fail_load(module->driver, libraries ? "cuLibraryLoadData" : "cuModuleLoadData", result, cubin, size, error);
}

dw_status dw__module_load(dw__driver *driver, const void *cubin, size_t size, dw__module **module, dw_error *error) {
  dw__device device;
  int arch;
  bool specific;
  *module = NULL;
  dw__module *loaded = dw__calloc(1, sizeof *loaded);
  if (!loaded) return dw__fail(error, DW_OUT_OF_MEMORY, "module", "", "", NULL);
  loaded->driver = driver;
  dw_status status = dw__cubin_read(cubin, size, &arch, &specific, loaded->kernels, &loaded->kernel_count, error);
  if (!status) status = dw__driver_current(driver, &device, &loaded->cu_context, error);
  if (!status) status = check_arch(&device, arch, specific, error);
  if (!status) status = load(loaded, cubin, size, error);
  if (status) {
    dw__release(loaded);
    return status;
  }
  loaded->shared_optin = device.shared_optin;
  *module = loaded;
  return DW_OK;
}

// A CUmodule can be unloaded only with its context current, which may be gone by now: then it went with it.
static void unload_module(const dw__driver_table *table, const dw__module *module) {
  void *popped;
  if (table->cuCtxPushCurrent_v2(module->cu_context) != DW__CU_SUCCESS) return;
  table->cuModuleUnload(module->module);
  table->cuCtxPopCurrent_v2(&popped);
}

void dw__module_unload(dw__module *module) {
  if (!module) return;
  const dw__driver_table *table = &module->driver->table;
  int mode = DW__CU_CAPTURE_MODE_RELAXED;
  exchange_capture_mode(table, &mode);
  if (module->library) table->cuLibraryUnload(module->library);
  else unload_module(table, module);
  exchange_capture_mode(table, &mode);
  dw__release(module);
}

// ---- functions ------------------------------------------------------------------------------------------------

static const dw_resources *find_kernel(const dw__module *module, const char *name) {
  for (int i = 0; i < module->kernel_count; i++) {
    if (strcmp(module->kernels[i].name, name) == 0) return &module->kernels[i];
  }
  return NULL;
}

static dw_status fail_name(const dw__module *module, const char *name, dw_error *error) {
  char names[sizeof error->allowed] = "";
  size_t used = 0;
  for (int i = 0; i < module->kernel_count && used < sizeof names; i++) {
    used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", module->kernels[i].name);
  }
  return dw__fail(error, DW_NOT_FOUND, "kernel", name, names, "the cubin has no such kernel");
}

// Most dynamic shared memory that the kernel can have on this device.
static size_t most_shared(const dw__module *module, const dw_resources *kernel) {
  return (size_t)(module->shared_optin > kernel->shared_static ? module->shared_optin - kernel->shared_static : 0);
}

static dw_status check_shared(const dw__module *module, const dw_resources *kernel, size_t dynamic_shared, dw_error *error) {
  char allowed[64];
  size_t most = most_shared(module, kernel);
  if (dynamic_shared <= most) return DW_OK;
  snprintf(allowed, sizeof allowed, "%zu bytes", most);
  return dw__fail_int(error, DW_NOT_APPLICABLE, "shared memory", (long long)dynamic_shared, allowed,
                      "%s needs more than a block may have on this device, beside %d bytes of its own", kernel->name,
                      kernel->shared_static);
}

static int get_function(const dw__module *module, const char *name, void **function, const char **call) {
  const dw__driver_table *table = &module->driver->table;
  void *kernel = NULL;
  *call = "cuModuleGetFunction";
  if (!module->library) return table->cuModuleGetFunction(function, module->module, name);
  *call = "cuLibraryGetKernel";
  int result = table->cuLibraryGetKernel(&kernel, module->library, name);
  if (result != DW__CU_SUCCESS) return result;
  *call = "cuKernelGetFunction";
  return table->cuKernelGetFunction(function, kernel);
}

// Everything that a first launch would otherwise do late, perhaps inside a capture.
static int make_ready(const dw__module *module, const dw_resources *kernel, void *function, size_t dynamic_shared,
                      const char **call) {
  const dw__driver_table *table = &module->driver->table;
  if (table->cuFuncLoad) {
    *call = "cuFuncLoad";
    int result = table->cuFuncLoad(function);
    if (result != DW__CU_SUCCESS) return result;
  }
  if (dynamic_shared + (size_t)kernel->shared_static <= SHARED_WITHOUT_ASKING) return DW__CU_SUCCESS;
  // As much as there is, since a later and smaller request for the same function would otherwise lower the limit of this one.
  *call = "cuFuncSetAttribute";
  return table->cuFuncSetAttribute(function, DW__CU_FUNC_MAX_DYNAMIC_SHARED, (int)most_shared(module, kernel));
}

dw_status dw__module_function(dw__module *module, const char *name, size_t dynamic_shared, void **function, dw_error *error) {
  const dw__driver_table *table = &module->driver->table;
  const char *call = "";
  *function = NULL;
  const dw_resources *kernel = find_kernel(module, name);
  if (!kernel) return fail_name(module, name, error);
  dw_status status = check_shared(module, kernel, dynamic_shared, error);
  if (status) return status;

  int mode = DW__CU_CAPTURE_MODE_RELAXED;
  exchange_capture_mode(table, &mode);
  int result = get_function(module, name, function, &call);
  if (result == DW__CU_SUCCESS) result = make_ready(module, kernel, *function, dynamic_shared, &call);
  exchange_capture_mode(table, &mode);
  if (result == DW__CU_SUCCESS) return DW_OK;
  *function = NULL;
  return dw__driver_fail(module->driver, call, result, "", error);
}
