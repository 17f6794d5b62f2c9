// See companion_stage.h.
#include "companion_stage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "../runtime/driver_table.h"
#include "companions.h"
#include "flow.h"
#include "guard.h"
#include "host_run.h"

enum { GUARD = 4096, GUARD_BYTE = 0xED };

typedef struct sparse {
  struct sparse *next;
  void *address;
  size_t bytes;
} sparse;

typedef struct function {
  dw__stage *stage;
  dw_host_entry entry;
} function;

struct dw__stage {
  const dw_companions *companions;
  dw_error error;
  dw__array *arrays;
  sparse *sparse;
  // A GPU.
  dw__gpu *gpu;
  dw__graph *graph;
  // The host.
  dw_companions *own;
  dw__driver *driver;
  dw_host_module *module;
  function functions[DW__COMPANION_COUNT];
  dw__guarded *guards;
  dw_host_order order;
  uint64_t seed;
  dw_host_report report;
};

// ---- failures -------------------------------------------------------------------------------------------------

dw_status dw__stage_status(const dw__stage *stage) { return stage->error.status; }

void dw__stage_fail(dw__stage *stage, const char *field, const char *format, ...) {
  char text[512];
  va_list args;
  if (stage->error.status) return;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  dw__fail(&stage->error, DW_WRONG_RESULT, field, "", "", "%s", text);
}

dw_status dw__stage_take(dw__stage *stage, dw_error *error) {
  dw_status status = stage->error.status;
  if (error) *error = stage->error;
  else dw_error_clear(&stage->error);
  stage->error = (dw_error){0};
  return status;
}

// A step of the stage's own; nothing after a failure.
#define STEP(stage, call) ((void)((stage)->error.status || (call)))
static dw_status no_memory(dw__stage *stage) {
  return dw__fail(&stage->error, DW_OUT_OF_MEMORY, "memory", "", "", "out of memory");
}

// ---- the host as a GPU ----------------------------------------------------------------------------------------

// What a launch may do with an array. The kernel before a dependent one may still be at work on whatever this one writes.
static unsigned buffer_flags(const dw__array *a, unsigned which) {
  if (a->written_by & which) return DW_HOST_BUFFER_WRITE | DW_HOST_BUFFER_PREVIOUS_GRID;
  return a->made_by_kernel_before & which ? DW_HOST_BUFFER_PREVIOUS_GRID : 0;
}

// The driver's launch call of the host stage. Buffers are the arrays: what the kernels reach by ptx.cuh is checked against them.
static int run_on_host(const dw__cu_launch *config, void *handle, void **params, void **extra) {
  function *f = handle;
  dw__stage *stage = f->stage;
  size_t count = 0;
  unsigned which = 1u << (f - stage->functions);
  (void)extra;
  for (const dw__array *a = stage->arrays; a; a = a->next) count++;
  for (const sparse *s = stage->sparse; s; s = s->next) count++;
  dw_host_buffer *buffers = calloc(count + 1, sizeof *buffers);
  if (!buffers) return DW__CU_OUT_OF_MEMORY;
  count = 0;
  for (const dw__array *a = stage->arrays; a; a = a->next)
    if (a->bytes) buffers[count++] = (dw_host_buffer){a->device, a->bytes, buffer_flags(a, which)};
  for (const sparse *s = stage->sparse; s; s = s->next)
    buffers[count++] = (dw_host_buffer){s->address, s->bytes, DW_HOST_BUFFER_WRITE};
  dw_host_launch launch = {.size = sizeof launch,
                           .entry = f->entry,
                           .params = params[0],
                           .cluster = {1, 1, 1},
                           .shared_bytes = config->shared,
                           .dependent = config->attribute_count != 0,
                           .order = stage->order,
                           .seed = stage->seed++,
                           .buffers = buffers,
                           .n_buffers = count};
  memcpy(launch.grid, config->grid, sizeof launch.grid);
  memcpy(launch.block, config->block, sizeof launch.block);
  stage->report = (dw_host_report){.size = sizeof stage->report};
  int result = dw_host_run(&launch, &stage->report) ? DW__CU_NOT_FOUND : 0;
  free(buffers);
  return result;
}

static int no_text(int result, const char **text) {
  (void)result;
  *text = "host execution";
  return 0;
}

static dw_status open_host(dw__stage *stage, dw_ctx *ctx, bool sanitize, dw_error *error) {
  static const dw__driver_table table = {
    .cuLaunchKernelEx = run_on_host, .cuGetErrorName = no_text, .cuGetErrorString = no_text};
  char *source = NULL;
  size_t size;
  void *handles[DW__COMPANION_COUNT];
  dw_status status = dw__companions_source(ctx, &source, &size, error);
  if (status) return status;
  status = dw__host_build(source, size, sanitize, &stage->module, error);
  dw__release(source);
  for (int i = 0; i < DW__COMPANION_COUNT && !status; i++) {
    stage->functions[i] = (function){stage, dw_host_module_entry(stage->module, dw__companion_names[i])};
    handles[i] = &stage->functions[i];
    if (!stage->functions[i].entry)
      status = dw__fail(error, DW_INTERNAL, "kernel", dw__companion_names[i], "a kernel of the source", "the source lacks one");
  }
  if (!status) status = dw__driver_open_table(&table, &stage->driver, error);
  if (!status) status = dw__companions_of(stage->driver, handles, &stage->own, error);
  stage->companions = stage->own;
  return status;
}

dw_status dw__stage_host(dw_ctx *ctx, bool sanitize, dw_host_order order, uint64_t seed, dw__stage **result, dw_error *error) {
  *result = NULL;
  dw__stage *stage = dw__calloc(1, sizeof *stage);
  if (!stage) return dw__fail(error, DW_OUT_OF_MEMORY, "memory", "", "", "out of memory");
  stage->order = order;
  stage->seed = seed;
  dw_status status = open_host(stage, ctx, sanitize, error);
  if (status) dw__stage_close(stage);
  else *result = stage;
  return status;
}

dw_status dw__stage_gpu(dw_ctx *ctx, dw__gpu *gpu, dw__stage **result, dw_error *error) {
  dw_companions *companions;
  *result = NULL;
  dw_status status = dw_companions_get(ctx, 0, &companions, error);
  if (status) return status;
  dw__stage *stage = dw__calloc(1, sizeof *stage);
  if (!stage) return dw__fail(error, DW_OUT_OF_MEMORY, "memory", "", "", "out of memory");
  stage->gpu = gpu;
  stage->companions = companions;
  *result = stage;
  return DW_OK;
}

void dw__stage_close(dw__stage *stage) {
  if (!stage) return;
  dw__stage_clear(stage);
  dw_error_clear(&stage->error);
  dw__companions_free(stage->own);
  if (stage->driver) dw__driver_close(stage->driver);
  dw_host_module_close(stage->module);
  dw__release(stage);
}

// ---- memory ---------------------------------------------------------------------------------------------------

// Device memory between two guards, or memory that ends at a page which may not be touched.
static dw_status reserve(dw__stage *stage, dw__array *a) {
  if (stage->gpu) {
    dw_status status = dw__gpu_alloc(stage->gpu, a->bytes + 2 * GUARD, &a->guarded, &stage->error);
    a->device = (char *)a->guarded + GUARD;
    return status;
  }
  dw__guarded *made = dw__guard_make(&stage->guards, a->bytes);
  if (!made) return no_memory(stage);
  a->guarded = made;
  a->device = made->data;
  return DW_OK;
}

dw__array *dw__stage_array(dw__stage *stage, size_t bytes) {
  if (stage->error.status) return NULL;
  dw__array *a = dw__calloc(1, sizeof *a);
  if (!a) return no_memory(stage), NULL;
  a->next = stage->arrays;
  stage->arrays = a;
  a->bytes = bytes;
  a->before = dw__alloc(bytes + 1);
  a->after = dw__alloc(bytes + 1);
  if (!a->before || !a->after) return no_memory(stage), NULL;
  for (size_t i = 0; i < bytes; i++) a->before[i] = a->after[i] = i % 2 ? DW__POISON >> 8 : DW__POISON & 0xFF;
  return reserve(stage, a) ? NULL : a;
}

void *dw__stage_sparse(dw__stage *stage, size_t bytes) {
  if (stage->error.status) return NULL;
  sparse *s = dw__calloc(1, sizeof *s);
  if (!s) return no_memory(stage), NULL;
  if (stage->gpu) {
    dw__gpu_alloc(stage->gpu, bytes, &s->address, &stage->error);
  } else {
    s->address = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (s->address == MAP_FAILED) no_memory(stage);
  }
  if (stage->error.status) return dw__release(s), NULL;
  s->next = stage->sparse;
  s->bytes = bytes;
  stage->sparse = s;
  return s->address;
}

static void put(dw__stage *stage, void *to, const void *from, size_t bytes) {
  if (stage->gpu) STEP(stage, dw__gpu_upload(stage->gpu, to, from, bytes, &stage->error));
  else memcpy(to, from, bytes);
}

static void get(dw__stage *stage, void *to, const void *from, size_t bytes) {
  if (stage->gpu) STEP(stage, dw__gpu_download(stage->gpu, to, from, bytes, &stage->error));
  else memcpy(to, from, bytes);
}

void dw__stage_write(dw__stage *stage, void *to, const void *from, size_t bytes) {
  if (!stage->error.status) put(stage, to, from, bytes);
}

void dw__stage_read(dw__stage *stage, void *to, const void *from, size_t bytes) {
  if (!stage->error.status) get(stage, to, from, bytes);
}

void dw__stage_clear(dw__stage *stage) {
  if (stage->graph) dw__graph_free(stage->gpu, stage->graph);
  stage->graph = NULL;
  for (dw__array *a = stage->arrays, *next; a; a = next) {
    next = a->next;
    if (stage->gpu && a->guarded) dw__gpu_free(stage->gpu, a->guarded);
    dw__release(a->before);
    dw__release(a->after);
    dw__release(a);
  }
  for (sparse *s = stage->sparse, *next; s; s = next) {
    next = s->next;
    if (stage->gpu) dw__gpu_free(stage->gpu, s->address);
    else munmap(s->address, s->bytes);
    dw__release(s);
  }
  dw__guard_free(stage->guards);
  stage->arrays = NULL;
  stage->sparse = NULL;
  stage->guards = NULL;
}

// ---- contents -------------------------------------------------------------------------------------------------

void dw__stage_send(dw__stage *stage) {
  for (const dw__array *a = stage->arrays; a && !stage->error.status; a = a->next) {
    if (stage->gpu) STEP(stage, dw__gpu_fill(stage->gpu, a->guarded, GUARD_BYTE, a->bytes + 2 * GUARD, &stage->error));
    else dw__guard_poison(a->guarded);
    put(stage, a->device, a->before, a->bytes);
  }
}

void dw__stage_fetch(dw__stage *stage, const dw__array *array, void *to) {
  if (!stage->error.status) get(stage, to, array->device, array->bytes);
}

static void check_guards(dw__stage *stage, const dw__array *a) {
  if (!stage->gpu) {
    const dw__guarded *g = a->guarded;
    if (dw__guard_changed(g, g->map - g->data, 0) != DW__UNCHANGED)
      dw__stage_fail(stage, "guard", "a write in front of an array");
    return;
  }
  unsigned char guard[GUARD];
  for (int i = 0; i < 2; i++) {
    get(stage, guard, i ? (char *)a->device + a->bytes : a->guarded, GUARD);
    for (int k = 0; k < GUARD; k++)
      if (guard[k] != GUARD_BYTE) dw__stage_fail(stage, "guard", "a write %s an array", i ? "behind" : "in front of");
  }
}

static void compare(dw__stage *stage, const dw__array *a, const unsigned char *found) {
  size_t i = 0, wrong = 0;
  if (memcmp(found, a->after, a->bytes) == 0) return;
  for (size_t k = a->bytes; k-- > 0;)
    if (found[k] != a->after[k]) i = k, wrong++;
  dw__stage_fail(stage, "memory", "an array of %zu bytes has %zu wrong, the first at %zu: found %02x, wanted %02x, was %02x",
                 a->bytes, wrong, i, found[i], a->after[i], a->before[i]);
}

void dw__stage_judge(dw__stage *stage) {
  for (const dw__array *a = stage->arrays; a && !stage->error.status; a = a->next) {
    check_guards(stage, a);
    if (a->judged_apart) continue;
    unsigned char *found = dw__alloc(a->bytes + 1);
    if (!found) no_memory(stage);
    dw__stage_fetch(stage, a, found);
    if (!stage->error.status) compare(stage, a, found);
    dw__release(found);
  }
}

// ---- launches -------------------------------------------------------------------------------------------------

static void capture(dw__stage *stage, dw__stage_launch launch, void *user) {
  void *side;
  if (dw__gpu_capture_begin(stage->gpu, DW__CAPTURE_GLOBAL, &side, &stage->error)) return;
  if (launch(stage->companions, user, side, &stage->error)) dw__gpu_capture_drop(stage->gpu);
  else dw__gpu_capture_end(stage->gpu, &stage->graph, &stage->error);
}

void dw__stage_run(dw__stage *stage, int step, dw__stage_launch launch, void *user) {
  if (stage->error.status) return;
  if (!stage->gpu || step == 0) {
    launch(stage->companions, user, stage->gpu ? dw__gpu_stream(stage->gpu) : NULL, &stage->error);
    // What the host stage found is in its report, not in the launch's result.
    if (stage->error.status && stage->report.status)
      dw__fail(&stage->error, DW_HOST_EXECUTION, "kernel", "", "", "%.480s", stage->report.message);
  } else {
    if (!stage->graph) capture(stage, launch, user);
    STEP(stage, dw__gpu_replay(stage->gpu, stage->graph, &stage->error));
  }
  if (stage->gpu) STEP(stage, dw__gpu_sync(stage->gpu, &stage->error));
}
