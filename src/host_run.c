// See host_run.h.
#include "host_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "plan.h"

// The host twin's header travels in the binary: an installed command needs no source tree. The assembler finds it by the
// include path.
__asm__(".pushsection .rodata\n"
        "dw__host_header_start:\n.incbin \"draftwood_host.h\"\n"
        "dw__host_header_end:\n.byte 0\n"
        ".popsection\n");
extern const char dw__host_header_start[], dw__host_header_end[];

struct dw__host_kernel {
  dw_shape shape;
  dw_variant variant;
  dw_host_module *module;
};

// A report's first line is the sentence, the rest goes into the log.
static dw_status fail(dw_error *error, dw_status status, const char *field, const dw_host_report *report) {
  size_t first = strcspn(report->message, "\n");
  dw__fail(error, status, field, "", "", "%s: %.*s", dw_host_status_text(report->status), (int)first, report->message);
  if (report->message[first]) dw__error_log(error, dw__strdup(report->message + first + 1));
  return status;
}

// ---- open -----------------------------------------------------------------------------------------------------

dw_status dw__host_build(const char *source, size_t size, bool sanitize, dw_host_module **module, dw_error *error) {
  dw_host_build_options options = {.size = sizeof options,
                                   .header = dw__host_header_start,
                                   .header_size = (size_t)(dw__host_header_end - dw__host_header_start),
                                   .sanitize = sanitize};
  dw_host_report *report = dw__calloc(1, sizeof *report);
  if (!report) return dw__fail(error, DW_OUT_OF_MEMORY, "memory", "", "", "out of memory");
  report->size = sizeof *report;
  dw_status status = DW_OK;
  dw_host_status result = dw_host_module_open(module, source, size, &options, report);
  if (result == DW_HOST_NO_COMPILER) {
    status = dw__fail(error, DW_NOT_FOUND, "C++ compiler", "none", "g++ or clang++, or $CXX", "host execution needs one");
  } else if (result) {
    status = fail(error, result == DW_HOST_COMPILE ? DW_COMPILE : DW_HOST_EXECUTION, "host build", report);
  }
  dw__release(report);
  return status;
}

dw_status dw__host_kernel_open(dw_ctx *ctx, const dw_shape *shape, const dw_variant *variant, bool sanitize,
                               dw__host_kernel **result, dw_error *error) {
  *result = NULL;
  char *source = NULL;
  size_t size = 0;
  dw_status status = dw_source_generate(ctx, shape, variant, &source, &size, error);
  if (status) return status;
  dw__host_kernel *kernel = dw__calloc(1, sizeof *kernel);
  if (kernel) {
    kernel->shape = *shape;
    kernel->variant = *variant;
    status = dw__host_build(source, size, sanitize, &kernel->module, error);
  } else {
    status = dw__fail(error, DW_OUT_OF_MEMORY, "memory", "", "", "out of memory");
  }
  dw_free(source);
  if (!status) *result = kernel;
  else dw__release(kernel);
  return status;
}

void dw__host_kernel_close(dw__host_kernel *kernel) {
  if (!kernel) return;
  dw_host_module_close(kernel->module);
  dw__release(kernel);
}

// ---- workspace ------------------------------------------------------------------------------------------------

#define ALIGNMENT 256u  // what dw_workspace_size promises to be enough
#define GUARD 4096u     // bytes before and behind
#define POISON 0xFF     // reads as NaN in every float format, as a huge count in every integer

typedef struct workspace {
  void *memory;
  unsigned char *start;
  size_t size;
} workspace;

static bool workspace_make(workspace *space, size_t size) {
  space->memory = dw__alloc(size + 2 * GUARD + ALIGNMENT);
  if (!space->memory) return false;
  uintptr_t first = ((uintptr_t)space->memory + GUARD + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  space->start = (unsigned char *)first;
  space->size = size;
  memset(space->memory, POISON, size + 2 * GUARD + ALIGNMENT);
  return true;
}

static dw_status workspace_check(const workspace *space, dw_error *error) {
  const unsigned char *before = space->start - GUARD, *behind = space->start + space->size;
  for (size_t i = 0; i < GUARD; i++) {
    if (before[i] == POISON && behind[i] == POISON) continue;
    return dw__fail(error, DW_HOST_EXECUTION, "workspace", before[i] == POISON ? "a write behind it" : "a write before it", "",
                    "the kernel left its workspace");
  }
  return DW_OK;
}

// ---- run ------------------------------------------------------------------------------------------------------

#define BUFFERS_MAX 32
typedef struct buffers {
  dw_host_buffer list[BUFFERS_MAX];
  size_t count;
} buffers;

static void add(buffers *all, const void *data, size_t size, unsigned flags) {
  if (data && size) all->list[all->count++] = (dw_host_buffer){data, size, flags};
}

// What a kernel of a call does in the workspace, which holds the partial results, the packed mask and what the check found.
typedef enum stage { CHECK, PACK, ATTEND, MERGE } stage;

typedef struct call {
  const dw__host_kernel *kernel;
  const dw__plan *plan;
  const dw__problem *problem;
  const workspace *space;
  dw_host_order order;
  uint64_t seed;
  int launched;
  dw_host_report report;
} call;

// Everything a kernel may touch. Of a dependent launch, what the grid before it writes is marked: the partial results where
// that was a kernel of this same call, else what overlap_prologue says that a kernel of the engine may still be writing.
static void list_buffers(const call *now, stage at, buffers *all) {
  const dw__problem *problem = now->problem;
  const dw_args *args = &problem->args;
  const unsigned write = DW_HOST_BUFFER_WRITE, previous = DW_HOST_BUFFER_PREVIOUS_GRID;
  unsigned before = now->launched ? 0 : previous;
  size_t batch = (size_t)args->batch, partial = now->plan->partial_bytes + now->plan->lse_bytes;
  size_t faults = now->plan->faults_bytes, packed = now->space->size - partial - faults;
  add(all, args->q, problem->q_bytes, before);
  add(all, args->out, problem->out_bytes, before | write);
  add(all, args->lse, problem->lse_bytes, before | write);
  add(all, args->kv, problem->kv_bytes, before);
  add(all, args->v, problem->v_bytes, before);
  add(all, args->q_rope, problem->q_rope_bytes, before);
  add(all, args->kv_rope, problem->kv_rope_bytes, before);
  add(all, args->qo_indptr, (batch + 1) * sizeof(int32_t), 0);
  add(all, args->kv_scale, sizeof(float), 0);
  add(all, args->v_scale, sizeof(float), 0);
  add(all, args->kv_len, batch * sizeof(int32_t), 0);
  add(all, args->kv_indptr, (batch + 1) * sizeof(int32_t), 0);
  add(all, args->kv_indices, problem->index_bytes, 0);
  add(all, args->draft_slots, problem->draft_slots_bytes, 0);
  add(all, args->block_table, problem->table_bytes, 0);
  add(all, args->mask, problem->mask_bytes, before);
  add(all, args->positions, problem->positions_bytes, before);
  add(all, args->sinks, (size_t)now->kernel->shape.heads * sizeof(float), before);
  add(all, args->mask_indptr, (batch + 1) * sizeof(int64_t), before);
  add(all, now->space->start, partial, at == ATTEND ? before | write : previous);
  add(all, now->space->start + partial, packed, at == PACK ? before | write : previous);
  add(all, now->space->start + partial + packed, faults, at == CHECK ? write : 0);
  add(all, args->report, at == CHECK ? DW_REPORT_WORDS * sizeof(uint32_t) : 0, write);
}

// As dw_launch does: whether the first kernel is dependent is the call's choice, of the others the plan's.
static dw_status launch(call *now, const dw__plan_kernel *planned, stage at, const dw_params *params, dw_error *error) {
  buffers all = {.count = 0};
  list_buffers(now, at, &all);
  dw_host_launch host = {
    .size = sizeof host,
    .entry = dw_host_module_entry(now->kernel->module, planned->entry),
    .params = params,
    .grid = {planned->grid[0], planned->grid[1], planned->grid[2]},
    .block = {planned->block, 1, 1},
    .cluster = {planned->cluster, 1, 1},
    .shared_bytes = planned->dynamic_shared,
    .order = now->order,
    .seed = now->seed + (uint64_t)now->launched,
    .buffers = all.list,
    .n_buffers = all.count,
    .dependent = at == ATTEND ? params->dependent : planned->dependent,
  };
  if (!host.entry) {
    return dw__fail(error, DW_INTERNAL, "kernel", planned->entry, "a kernel of the source", "the plan names one it lacks");
  }
  now->launched++;
  now->report = (dw_host_report){.size = sizeof now->report};
  return dw_host_run(&host, &now->report) ? fail(error, DW_HOST_EXECUTION, planned->entry, &now->report) : DW_OK;
}

static dw_status launch_all(call *now, const dw_bounds *bounds, const dw_args *args, dw_error *error) {
  dw_params params, pack, check;
  const dw__host_kernel *kernel = now->kernel;
  const dw__plan *plan = now->plan;
  dw__plan_params(&kernel->shape, &kernel->variant, bounds, plan, args, &params, &pack);
  dw_status status = DW_OK;
  if (plan->check.entry) {
    dw__plan_check_params(&kernel->shape, &kernel->variant, bounds, plan, args, &check);
    status = launch(now, &plan->check, CHECK, &check, error);
  }
  if (!status && params.mask != args->mask) status = launch(now, &plan->pack, PACK, &pack, error);
  for (int i = 0; i < plan->count && !status; i++) status = launch(now, &plan->kernels[i], i ? MERGE : ATTEND, &params, error);
  return status;
}

static dw_status run_in(call *now, const dw_bounds *bounds, dw_error *error) {
  const workspace *space = now->space;
  dw_args args = now->problem->args;
  args.workspace = space->start;
  args.workspace_size = space->size;
  dw_status status = dw__args_check(&now->kernel->shape, bounds, now->plan, &args, error);
  if (!status) status = launch_all(now, bounds, &args, error);
  return status ? status : workspace_check(space, error);
}

dw_status dw__host_kernel_run(const dw__host_kernel *kernel, const dw_bounds *bounds, dw__problem *problem, dw_host_order order,
                              uint64_t seed, dw_error *error) {
  dw__plan plan;
  workspace space;
  dw_status status = dw__plan_make(&kernel->shape, &kernel->variant, bounds, &plan, error);
  if (status) return status;
  call *now = dw__calloc(1, sizeof *now);
  if (now && workspace_make(&space, plan.workspace_bytes)) {
    *now = (call){.kernel = kernel, .plan = &plan, .problem = problem, .space = &space, .order = order, .seed = seed};
    dw__problem_poison(problem);
    status = run_in(now, bounds, error);
    dw__release(space.memory);
  } else {
    status = dw__fail(error, DW_OUT_OF_MEMORY, "memory", "", "", "out of memory");
  }
  dw__release(now);
  return status;
}

// ---- compiler -------------------------------------------------------------------------------------------------

static bool in_path(const char *name) {
  const char *path = getenv("PATH");
  char file[4096];
  if (strchr(name, '/')) return access(name, X_OK) == 0;
  for (const char *at = path ? path : ""; *at; at += strcspn(at, ":"), at += *at == ':') {
    snprintf(file, sizeof file, "%.*s/%s", (int)strcspn(at, ":"), at, name);
    if (access(file, X_OK) == 0) return true;
  }
  return false;
}

const char *dw__host_compiler(void) {
  const char *chosen = getenv("CXX");
  if (chosen && *chosen) return chosen;
  return in_path("g++") ? "g++" : in_path("clang++") ? "clang++" : NULL;
}
