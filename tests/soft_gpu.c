// A GPU made of software: a library with the driver's names, so that `DRAFTWOOD_DRIVER=libsoftgpu.so draftwood bench` and
// `verify --device gpu --suite` run from end to end where there is no GPU. Memory is the host's; a kernel runs by host
// execution. Its source is found by its cubin: the cache's entry with the same bytes says which shape and variant it was made
// for.
//
// Calls run at once, in the order in which they come; only a stream that captures keeps them for later.
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "companions.h"
#include "driver_table.h"
#include "flow.h"
#include "gpu_tools.h"
#include "host.h"
#include "plan.h"

#define EXPORT __attribute__((visibility("default")))
enum { FAILED = 719, INVALID_VALUE = 1, NOT_PERMITTED = 900 };

// ---- objects --------------------------------------------------------------------------------------------------

typedef struct module {
  dw_host_module *host;  // NULL: kernels without a host form, which do nothing
} module;

typedef struct function {
  struct function *next;
  dw_host_entry entry;
  size_t param_bytes;
  char name[64];
} function;

typedef struct launch {
  const function *kernel;
  unsigned grid[3], block[3], cluster;
  size_t shared;
  _Alignas(16) unsigned char params[4096];  // what the driver allows
} launch;

typedef struct graph {
  launch *list;
  size_t count;
} graph;

typedef struct stream {
  graph *capturing;
} stream;

static int context, context_is_current;
static function *functions;  // they live as long as the process, as launches in graphs point at them

static int say(const char *what, const char *detail) {
  fprintf(stderr, "soft GPU: %s: %s\n", what, detail);
  return FAILED;
}

// ---- a cubin's source -----------------------------------------------------------------------------------------

// A cubin's size, from its ELF header: what is given is a bare pointer.
static size_t image_size(const unsigned char *image) {
  uint64_t sections, programs;
  uint16_t program_size, program_count, section_size, section_count;
  memcpy(&programs, image + 32, 8);
  memcpy(&sections, image + 40, 8);
  memcpy(&program_size, image + 54, 2);
  memcpy(&program_count, image + 56, 2);
  memcpy(&section_size, image + 58, 2);
  memcpy(&section_count, image + 60, 2);
  uint64_t a = sections + (uint64_t)section_size * section_count, b = programs + (uint64_t)program_size * program_count;
  return (size_t)(a > b ? a : b);
}

typedef struct search {
  const void *image;
  size_t size;
  char *metadata;
} search;

static bool visit(void *user, const char *path, uint64_t file_size, const dw__entry *entry, const char *damaged) {
  search *s = user;
  (void)path, (void)file_size;
  if (damaged || !entry->cubin || entry->cubin_size < 64 || image_size(entry->cubin) != s->size) return true;
  if (entry->cubin_size < s->size || memcmp(entry->cubin, s->image, s->size) != 0) return true;
  s->metadata = strdup(entry->metadata);
  return false;
}

static dw_status make_source(dw_ctx *ctx, const char *shape_text, const char *variant_text, char **source, size_t *size,
                             dw_error *error) {
  dw_shape shape;
  dw_variant variant;
  char part[16];
  int qk, v;
  if (strcmp(shape_text, DW__COMPANIONS) == 0) return dw__companions_source(ctx, source, size, error);
  if (sscanf(shape_text, "gpu_tools:part=%15[a-z],qk=%d,v=%d", part, &qk, &v) == 3)
    return dw__gpu_tools_source(ctx, part, qk, v, source, size, error);
  dw_status status = dw_shape_parse(shape_text, &shape, error);
  if (!status) status = dw_variant_parse(variant_text, &variant, error);
  return status ? status : dw_source_generate(ctx, &shape, &variant, source, size, error);
}

static int compile(const char *source, size_t size, dw_host_module **host) {
  static const char *const folders[] = {TEST_SOURCE_DIR "/runtime/host"};
  dw_host_build_options options = {.size = sizeof options, .include_dirs = folders, .n_include_dirs = 1};
  dw_host_report *report = calloc(1, sizeof *report);
  report->size = sizeof *report;
  int result = dw_host_module_open(host, source, size, &options, report) ? say("compile", report->message) : 0;
  free(report);
  return result;
}

static int load(dw_ctx *ctx, const char *metadata, module *m) {
  char *source = NULL;
  size_t size;
  dw_error error = {0};
  json_t *object = json_loads(metadata, 0, NULL);
  const char *shape = json_string_value(json_object_get(object, "shape"));
  const char *variant = json_string_value(json_object_get(object, "variant"));
  int result = 0;
  if (!shape || !variant) result = say("metadata", metadata);
  else if (!strstr(shape, "part=peak") && make_source(ctx, shape, variant, &source, &size, &error))
    result = say("source", error.message);
  if (source) result = compile(source, size, &m->host);
  free(source);
  json_decref(object);
  return result;
}

EXPORT int cuModuleLoadData(void **result, const void *image);
EXPORT int cuModuleLoadData(void **result, const void *image) {
  search s = {.image = image, .size = image_size(image)};
  dw_ctx *ctx;
  module *m = calloc(1, sizeof *m);
  if (dw_ctx_create(NULL, &ctx, NULL)) return FAILED;
  dw__cache_scan(dw__ctx_cache(ctx), true, visit, &s, NULL);
  int status = s.metadata ? load(ctx, s.metadata, m) : DW__CU_INVALID_IMAGE;
  free(s.metadata);
  dw_ctx_destroy(ctx);
  *result = status ? NULL : m;
  if (status) free(m);
  return status;
}

EXPORT int cuModuleUnload(void *module_);
EXPORT int cuModuleUnload(void *module_) {
  module *m = module_;
  dw_host_module_close(m->host);
  free(m);
  return 0;
}

static size_t param_bytes(const char *name) {
  static const size_t companions[] = {[DW__COMPACT] = sizeof(dw_compact_params),
                                      [DW__MOVE] = sizeof(dw_move_params),
                                      [DW__MERGE] = sizeof(dw_merge_params),
                                      [DW__EXPAND] = sizeof(dw_expand_params),
                                      [DW__ACCEPT] = sizeof(dw_accept_params)};
  for (int i = 0; i < DW__COMPANION_COUNT; i++)
    if (strcmp(name, dw__companion_names[i]) == 0) return companions[i];
  if (strcmp(name, "dw_tool_fill") == 0) return sizeof(dw_tool_fill_params);
  if (strcmp(name, "dw_tool_compare") == 0) return sizeof(dw_tool_compare_params);
  if (strcmp(name, "dw_tool_outside") == 0 || strcmp(name, "dw_tool_differ") == 0) return sizeof(dw_tool_count_params);
  if (strncmp(name, "dw_oracle64", 11) == 0 || strncmp(name, "dw_plain", 8) == 0) return sizeof(dw_oracle_params);
  if (strcmp(name, "dw_tool_gather") == 0) return sizeof(dw_tool_gather_params);
  if (strncmp(name, "dw_tool_", 8) == 0) return sizeof(dw_tool_peak_params);
  return sizeof(dw_params);
}

EXPORT int cuModuleGetFunction(void **result, void *module_, const char *name);
EXPORT int cuModuleGetFunction(void **result, void *module_, const char *name) {
  const module *m = module_;
  function *f = calloc(1, sizeof *f);
  f->next = functions;
  functions = f;
  f->param_bytes = param_bytes(name);
  snprintf(f->name, sizeof f->name, "%s", name);
  *result = f;
  if (!m->host) return 0;
  f->entry = dw_host_module_entry(m->host, name);
  return f->entry ? 0 : DW__CU_NOT_FOUND;
}

EXPORT int cuFuncSetAttribute(void *function_, int attribute, int value);
EXPORT int cuFuncSetAttribute(void *function_, int attribute, int value) {
  (void)function_, (void)attribute, (void)value;
  return 0;
}

// ---- launches and graphs --------------------------------------------------------------------------------------

static int run(const launch *l) {
  if (!l->kernel->entry) return 0;
  dw_host_launch host = {.size = sizeof host,
                         .entry = l->kernel->entry,
                         .params = l->params,
                         .grid = {l->grid[0], l->grid[1], l->grid[2]},
                         .block = {l->block[0], l->block[1], l->block[2]},
                         .cluster = {l->cluster, 1, 1},
                         .shared_bytes = l->shared};
  dw_host_report *report = calloc(1, sizeof *report);
  report->size = sizeof *report;
  int result = dw_host_run(&host, report) ? say(l->kernel->name, report->message) : 0;
  free(report);
  return result;
}

static int submit(void *function_, const unsigned *grid, const unsigned *block, unsigned cluster, size_t shared, void *stream_,
                  void **params) {
  stream *s = stream_;
  launch l = {.kernel = function_, .cluster = cluster, .shared = shared};
  memcpy(l.grid, grid, sizeof l.grid);
  memcpy(l.block, block, sizeof l.block);
  if (l.kernel->param_bytes > sizeof l.params) return INVALID_VALUE;
  memcpy(l.params, params[0], l.kernel->param_bytes);
  if (!s || !s->capturing) return run(&l);
  graph *g = s->capturing;
  g->list = realloc(g->list, (g->count + 1) * sizeof *g->list);
  g->list[g->count++] = l;
  return 0;
}

EXPORT int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared, void *s, void **params, void **extra);
EXPORT int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared, void *s, void **params, void **extra) {
  const unsigned grid[] = {gx, gy, gz}, block[] = {bx, by, bz};
  (void)extra;
  return submit(f, grid, block, 1, shared, s, params);
}

EXPORT int cuLaunchKernelEx(const dw__cu_launch *l, void *f, void **params, void **extra);
EXPORT int cuLaunchKernelEx(const dw__cu_launch *l, void *f, void **params, void **extra) {
  unsigned cluster = 1;
  (void)extra;
  for (unsigned i = 0; i < l->attribute_count; i++)
    if (l->attributes[i].id == DW__CU_LAUNCH_CLUSTER) cluster = l->attributes[i].value.cluster.x;
  return submit(f, l->grid, l->block, cluster, l->shared, l->stream, params);
}

EXPORT int cuStreamBeginCapture_v2(void *stream_, int mode);
EXPORT int cuStreamBeginCapture_v2(void *stream_, int mode) {
  stream *s = stream_;
  if (s->capturing || mode < 0 || mode > 2) return INVALID_VALUE;
  s->capturing = calloc(1, sizeof *s->capturing);
  return 0;
}

EXPORT int cuStreamEndCapture(void *stream_, void **graph_);
EXPORT int cuStreamEndCapture(void *stream_, void **graph_) {
  stream *s = stream_;
  *graph_ = s->capturing;
  s->capturing = NULL;
  return *graph_ ? 0 : INVALID_VALUE;
}

EXPORT int cuStreamIsCapturing(void *stream_, int *status);
EXPORT int cuStreamIsCapturing(void *stream_, int *status) {
  const stream *s = stream_;
  *status = s && s->capturing;
  return 0;
}

EXPORT int cuGraphInstantiateWithFlags(void **exec, void *graph_, unsigned long long flags);
EXPORT int cuGraphInstantiateWithFlags(void **exec, void *graph_, unsigned long long flags) {
  *exec = graph_;
  return flags ? INVALID_VALUE : 0;
}

EXPORT int cuGraphLaunch(void *exec, void *stream_);
EXPORT int cuGraphLaunch(void *exec, void *stream_) {
  const graph *g = exec;
  const stream *s = stream_;
  int result = s->capturing ? NOT_PERMITTED : 0;
  for (size_t i = 0; i < g->count && !result; i++) result = run(&g->list[i]);
  return result;
}

EXPORT int cuGraphGetNodes(void *graph_, void **nodes, size_t *count);
EXPORT int cuGraphGetNodes(void *graph_, void **nodes, size_t *count) {
  (void)nodes;
  *count = ((const graph *)graph_)->count;
  return 0;
}

EXPORT int cuGraphExecDestroy(void *exec);
EXPORT int cuGraphExecDestroy(void *exec) { return exec ? 0 : INVALID_VALUE; }

EXPORT int cuGraphDestroy(void *graph_);
EXPORT int cuGraphDestroy(void *graph_) {
  graph *g = graph_;
  free(g->list);
  free(g);
  return 0;
}

// ---- streams and events ---------------------------------------------------------------------------------------

EXPORT int cuStreamCreate(void **result, unsigned flags);
EXPORT int cuStreamCreate(void **result, unsigned flags) {
  *result = calloc(1, sizeof(stream));
  return flags > 1 ? INVALID_VALUE : 0;
}

EXPORT int cuStreamDestroy_v2(void *stream_);
EXPORT int cuStreamDestroy_v2(void *stream_) {
  free(stream_);
  return 0;
}

EXPORT int cuStreamSynchronize(void *stream_);
EXPORT int cuStreamSynchronize(void *stream_) {
  const stream *s = stream_;
  return s && s->capturing ? NOT_PERMITTED : 0;
}

EXPORT int cuEventCreate(void **event, unsigned flags);
EXPORT int cuEventCreate(void **event, unsigned flags) {
  *event = calloc(1, sizeof(struct timespec));
  return flags ? INVALID_VALUE : 0;
}

EXPORT int cuEventDestroy_v2(void *event);
EXPORT int cuEventDestroy_v2(void *event) {
  free(event);
  return 0;
}

EXPORT int cuEventRecord(void *event, void *stream_);
EXPORT int cuEventRecord(void *event, void *stream_) {
  (void)stream_;
  return clock_gettime(CLOCK_MONOTONIC, event) ? FAILED : 0;
}

EXPORT int cuEventElapsedTime(float *milliseconds, void *from, void *to);
EXPORT int cuEventElapsedTime(float *milliseconds, void *from, void *to) {
  const struct timespec *a = from, *b = to;
  *milliseconds = (float)((double)(b->tv_sec - a->tv_sec) * 1e3 + (double)(b->tv_nsec - a->tv_nsec) * 1e-6);
  return 0;
}

// ---- memory ---------------------------------------------------------------------------------------------------

EXPORT int cuMemAlloc_v2(uint64_t *address, size_t bytes);
EXPORT int cuMemAlloc_v2(uint64_t *address, size_t bytes) {
  void *made = aligned_alloc(512, (bytes + 511) / 512 * 512);
  *address = (uint64_t)(uintptr_t)made;
  if (made) memset(made, 0x55, bytes);  // nobody may count on what is there
  return made && bytes ? 0 : DW__CU_OUT_OF_MEMORY;
}

EXPORT int cuMemFree_v2(uint64_t address);
EXPORT int cuMemFree_v2(uint64_t address) {
  free((void *)(uintptr_t)address);
  return 0;
}

static int move(void *to, const void *from, size_t bytes, const void *stream_) {
  const stream *s = stream_;
  if (s && s->capturing) return NOT_PERMITTED;
  memmove(to, from, bytes);
  return 0;
}

EXPORT int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream_);
EXPORT int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream_) {
  return move((void *)(uintptr_t)to, from, bytes, stream_);
}

EXPORT int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream_);
EXPORT int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream_) {
  return move(to, (const void *)(uintptr_t)from, bytes, stream_);
}

EXPORT int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream_);
EXPORT int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream_) {
  return move((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes, stream_);
}

EXPORT int cuMemsetD8Async(uint64_t to, unsigned char value, size_t count, void *stream_);
EXPORT int cuMemsetD8Async(uint64_t to, unsigned char value, size_t count, void *stream_) {
  (void)stream_;
  memset((void *)(uintptr_t)to, value, count);
  return 0;
}

EXPORT int cuMemsetD32Async(uint64_t to, unsigned value, size_t count, void *stream_);
EXPORT int cuMemsetD32Async(uint64_t to, unsigned value, size_t count, void *stream_) {
  unsigned *words = (unsigned *)(uintptr_t)to;
  (void)stream_;
  if (to % 4) return INVALID_VALUE;
  for (size_t i = 0; i < count; i++) words[i] = value;
  return 0;
}

// ---- device: an H200's class, with few multiprocessors ---------------------------------------------------------

EXPORT int cuInit(unsigned flags);
EXPORT int cuInit(unsigned flags) { return flags ? INVALID_VALUE : 0; }

EXPORT int cuDriverGetVersion(int *version);
EXPORT int cuDriverGetVersion(int *version) {
  *version = 13000;
  return 0;
}

static int setting(const char *name, int usual) {
  const char *text = getenv(name);
  return text ? atoi(text) : usual;
}

EXPORT int cuDeviceGetCount(int *count);
EXPORT int cuDeviceGetCount(int *count) {
  *count = setting("SOFT_GPU_COUNT", 1);
  return 0;
}

static int is_no_device(int ordinal) { return ordinal < 0 || ordinal >= setting("SOFT_GPU_COUNT", 1) ? INVALID_VALUE : 0; }

EXPORT int cuDeviceGet(int *device, int ordinal);
EXPORT int cuDeviceGet(int *device, int ordinal) {
  *device = ordinal;
  return is_no_device(ordinal);
}

EXPORT int cuDeviceGetName(char *name, int capacity, int device);
EXPORT int cuDeviceGetName(char *name, int capacity, int device) {
  (void)device;  // several are of one kind
  snprintf(name, (size_t)capacity, "software GPU 0");
  return 0;
}

EXPORT int cuDeviceTotalMem_v2(size_t *bytes, int device);
EXPORT int cuDeviceTotalMem_v2(size_t *bytes, int device) {
  (void)device;
  *bytes = (size_t)1 << 30;
  return 0;
}

EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device);
EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device) {
  (void)device;
  *value = attribute == DW__CU_CC_MAJOR       ? 9
           : attribute == DW__CU_SM_COUNT     ? setting("SOFT_GPU_SMS", 4)
           : attribute == DW__CU_SHARED_OPTIN ? 232448
           : attribute == DW__CU_L2_BYTES     ? setting("SOFT_GPU_L2", 1 << 20)
                                              : 0;
  return 0;
}

EXPORT int cuCtxGetCurrent(void **result);
EXPORT int cuCtxGetCurrent(void **result) {
  *result = context_is_current ? &context : NULL;
  return 0;
}

EXPORT int cuCtxSetCurrent(void *given);
EXPORT int cuCtxSetCurrent(void *given) {
  context_is_current = given != NULL;
  return 0;
}

EXPORT int cuCtxGetDevice(int *device);
EXPORT int cuCtxGetDevice(int *device) {
  *device = 0;
  return 0;
}

EXPORT int cuCtxPushCurrent_v2(void *given);
EXPORT int cuCtxPushCurrent_v2(void *given) { return given ? 0 : INVALID_VALUE; }

EXPORT int cuCtxPopCurrent_v2(void **result);
EXPORT int cuCtxPopCurrent_v2(void **result) {
  *result = &context;
  return 0;
}

EXPORT int cuDevicePrimaryCtxRetain(void **result, int device);
EXPORT int cuDevicePrimaryCtxRetain(void **result, int device) {
  *result = &context;
  return is_no_device(device);
}

EXPORT int cuDevicePrimaryCtxRelease_v2(int device);
EXPORT int cuDevicePrimaryCtxRelease_v2(int device) { return is_no_device(device); }

EXPORT int cuGetErrorName(int result, const char **text);
EXPORT int cuGetErrorName(int result, const char **text) {
  *text = result == DW__CU_INVALID_IMAGE ? "CUDA_ERROR_INVALID_IMAGE" : "CUDA_ERROR_SOFTWARE";
  return 0;
}

EXPORT int cuGetErrorString(int result, const char **text);
EXPORT int cuGetErrorString(int result, const char **text) {
  *text = result == DW__CU_INVALID_IMAGE ? "no cache entry has these bytes" : "see standard error";
  return 0;
}
