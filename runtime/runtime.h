// Source -> cubin -> kernel -> launch. Knows no Lua and no cache. libcuda and libnvrtc are reached only through the tables below,
// filled by dlopen, or by a test with stand-ins.
#ifndef DRAFTWOOD_RUNTIME_H
#define DRAFTWOOD_RUNTIME_H

#include "core.h"

// ---- NVRTC ----------------------------------------------------------------------------------------------------
typedef struct dw__nvrtc_table dw__nvrtc_table;  // runtime/nvrtc_table.h: function pointers
typedef struct dw__nvrtc dw__nvrtc;

// path NULL: $DRAFTWOOD_NVRTC (a file or a folder), else libnvrtc.so.13, libnvrtc.so.12 by the loader, else the usual toolkit
// folders, else beside the library (see quickstart). Refuses versions before 12.9 by name (DW_NO_COMPILER).
dw_status dw__nvrtc_open(const char *path, dw__nvrtc **nvrtc, dw_error *error);
dw_status dw__nvrtc_open_table(const dw__nvrtc_table *table, dw__nvrtc **nvrtc, dw_error *error);
void dw__nvrtc_close(dw__nvrtc *nvrtc);
const char *dw__nvrtc_version(const dw__nvrtc *nvrtc);   // "nvrtc 13.0.88": from the library's own version report
const char *dw__nvrtc_build_id(const dw__nvrtc *nvrtc);  // hex, "" if none
const char *dw__nvrtc_path(const dw__nvrtc *nvrtc);
// Is this compile target ("sm_120f") known to this NVRTC?
bool dw__nvrtc_has_target(const dw__nvrtc *nvrtc, const char *target);

// The options every compile passes, in order, for a target; *options points at static or caller storage.
#define DW__OPTIONS_MAX 16
typedef struct dw__options {
  const char *list[DW__OPTIONS_MAX];
  size_t count;
  char arch[32];
} dw__options;
void dw__compile_options(const char *target, dw__options *options);

// DW_COMPILE with the whole log in the error. The log (ptxas -v report) is returned on success too; free both with dw__release.
dw_status dw__nvrtc_compile(const dw__nvrtc *nvrtc, const char *name, const char *source, const dw__options *options,
                            void **cubin, size_t *size, char **log, dw_error *error);

// ---- cubin ----------------------------------------------------------------------------------------------------
// Reads registers, stack, static shared memory and barriers of every entry from the ELF; bounds-checked: any bytes are safe.
// DW_BAD_CUBIN where it is not a whole, sound cubin. arch: e.g. 120; specific: 'a' targets only.
dw_status dw__cubin_read(const void *data, size_t size, int *arch, bool *specific, dw_resources *kernels, int *count,
                         dw_error *error);
// True if a __cuda_syscall_* symbol is undefined in it; its name is copied.
bool dw__cubin_calls_driver(const void *data, size_t size, char name[64]);
// Adds spill stores and loads from a ptxas -v log to kernels of the same name.
void dw__cubin_read_log(const char *log, dw_resources *kernels, int count);

// ---- driver ---------------------------------------------------------------------------------------------------
typedef struct dw__driver_table dw__driver_table;  // runtime/driver_table.h
typedef struct dw__driver dw__driver;
dw_status dw__driver_open(const char *path, dw__driver **driver, dw_error *error);
dw_status dw__driver_open_table(const dw__driver_table *table, dw__driver **driver, dw_error *error);
void dw__driver_close(dw__driver *driver);

typedef struct dw__device {
  int ordinal;
  char name[128];
  int cc;  // 90, 120
  int sm_count;
  int shared_optin;  // bytes a block may ask for
  int64_t l2_bytes, memory_bytes;
  int driver_version;  // e.g. 13000
} dw__device;
dw_status dw__driver_device_count(dw__driver *driver, int *count, dw_error *error);
dw_status dw__driver_device(dw__driver *driver, int ordinal, dw__device *device, dw_error *error);
// Device of the CUDA context that is current in this thread; DW_DRIVER if there is none. *cu_context identifies it.
dw_status dw__driver_current(dw__driver *driver, dw__device *device, void **cu_context, dw_error *error);

// The context alone: one call of the driver, with no lock and no memory of ours. NULL: none, or not yet asked for a device.
void *dw__driver_context(const dw__driver *driver);

// Does a device of compute capability cc run machine code for arch? Binary compatibility: within a major version, on the same or
// a later minor one; that of an `a` target (specific) on that very device only. (An `f` target's cubin looks like a base one; its
// family lies within these rules for 12.x.)
bool dw__arch_runs(int arch, bool specific, int cc);

// A loaded cubin: cuLibrary, or cuModule on drivers without it. Truncated, damaged and wrong-architecture images come back as
// DW_BAD_CUBIN and DW_WRONG_ARCH.
typedef struct dw__module dw__module;
dw_status dw__module_load(dw__driver *driver, const void *cubin, size_t size, dw__module **module, dw_error *error);
void dw__module_unload(dw__module *module);
// An entry ready to launch; dynamic shared memory above 48 KB is allowed here, once. The handle is a CUfunction.
dw_status dw__module_function(dw__module *module, const char *name, size_t dynamic_shared, void **function, dw_error *error);

typedef struct dw__launch {
  void *function;
  unsigned grid[3], block[3], cluster_x;
  size_t dynamic_shared;
  bool dependent;  // programmatic stream serialisation: may start before the kernel ahead of it has ended
} dw__launch;
dw_status dw__driver_launch(dw__driver *driver, const dw__launch *launch, void **params, void *stream, dw_error *error);
bool dw__driver_capturing(dw__driver *driver, void *stream);

#endif
