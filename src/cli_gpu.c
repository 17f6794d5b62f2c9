// The GPU side of draftwood verify: a problem's arrays copied to the device and back around one dw_launch.
#include <stdio.h>

#include "../runtime/gpu.h"
#include "cli.h"
#include "flow.h"

// A device copy of an array; NULL stays NULL. Blocks live until the GPU is closed.
static dw_status put(dw__gpu *gpu, const void *from, size_t size, const void **to, dw_error *error) {
  void *address = NULL;
  *to = NULL;
  if (!from) return DW_OK;
  dw_status status = dw__gpu_alloc(gpu, size, &address, error);
  if (!status) status = dw__gpu_upload(gpu, address, from, size, error);
  *to = address;
  return status;
}

// The problem's arguments with device copies of its arrays. `list` says once what they are.
static dw_status put_all(dw__gpu *gpu, const dw__problem *problem, dw_args *args, dw_error *error) {
  *args = problem->args;
  size_t batch = (size_t)args->batch;
  const struct {
    const void *from;
    const void **to;
    size_t size;
  } list[] = {
    {args->q, &args->q, problem->q_bytes},
    {args->out, (const void **)&args->out, problem->out_bytes},
    {args->lse, (const void **)&args->lse, problem->lse_bytes},
    {args->kv, &args->kv, problem->kv_bytes},
    {args->q_rope, &args->q_rope, problem->q_rope_bytes},
    {args->kv_rope, &args->kv_rope, problem->kv_rope_bytes},
    {args->qo_indptr, (const void **)&args->qo_indptr, (batch + 1) * sizeof(int32_t)},
    {args->kv_len, (const void **)&args->kv_len, batch * sizeof(int32_t)},
    {args->kv_indptr, (const void **)&args->kv_indptr, (batch + 1) * sizeof(int32_t)},
    {args->kv_indices, &args->kv_indices, problem->index_bytes},
    {args->draft_slots, &args->draft_slots, problem->draft_slots_bytes},
    {args->block_table, (const void **)&args->block_table, problem->table_bytes},
    {args->mask, &args->mask, problem->mask_bytes},
    {args->positions, (const void **)&args->positions, problem->positions_bytes},
    {args->sinks, (const void **)&args->sinks, (size_t)problem->spec.shape.heads * sizeof(float)},
    {args->mask_indptr, (const void **)&args->mask_indptr, (batch + 1) * sizeof(int64_t)},
  };
  dw_status status = DW_OK;
  for (size_t i = 0; i < DW__COUNT(list) && !status; i++) status = put(gpu, list[i].from, list[i].size, list[i].to, error);
  return status;
}

// Neither zeroed nor clean, as the contract allows.
static dw_status put_workspace(dw__gpu *gpu, const dw_kernel *kernel, dw_args *args, dw_error *error) {
  args->workspace_size = dw_workspace_size(kernel);
  dw_status status = dw__gpu_alloc(gpu, args->workspace_size, &args->workspace, error);
  if (!status) status = dw__gpu_fill(gpu, args->workspace, 0xFF, args->workspace_size, error);
  return status;
}

static dw_status launch(dw__gpu *gpu, const dw_kernel *kernel, dw__problem *problem, dw_error *error) {
  dw_args args;
  dw__problem_poison(problem);
  dw_status status = put_all(gpu, problem, &args, error);
  if (!status) status = put_workspace(gpu, kernel, &args, error);
  if (!status) status = dw_launch(kernel, &args, dw__gpu_stream(gpu), error);
  if (!status) status = dw__gpu_download(gpu, problem->args.out, args.out, problem->out_bytes, error);
  if (!status && args.lse) status = dw__gpu_download(gpu, problem->args.lse, args.lse, problem->lse_bytes, error);
  return status;
}

dw_status cli_check_gpu(const cli_gpu *board, const dw_variant *variant, const cli_problem *asked, dw__problem *problem,
                        dw__comparison *comparison, dw_error *error) {
  dw_kernel *kernel;
  const dw_shape *shape = &problem->spec.shape;
  dw_bounds bounds = cli_problem_bounds(shape, asked);
  dw_status status = dw_kernel_get(board->ctx, shape, variant, &bounds, &kernel, error);
  if (!status) status = launch(board->gpu, kernel, problem, error);
  problem->wide_bound = dw__has_wide_bound(variant);
  return status ? status : dw__problem_compare(problem, comparison, error);
}

// ---- opening --------------------------------------------------------------------------------------------------

dw_status cli_gpu_device(dw_ctx *ctx, int ordinal, dw__gpu **gpu, dw_error *error) {
  dw__driver *driver;
  int count = 0;
  dw_status status = dw__ctx_driver(ctx, &driver, error);
  if (!status) status = dw__driver_device_count(driver, &count, error);
  if (!status && ordinal >= count)
    status = dw__fail_int(error, DW_NO_DRIVER, "device", ordinal, "a GPU of this machine", "%d found", count);
  return status ? status : dw__gpu_open(driver, ordinal, gpu, error);
}

int cli_gpu_open(cli_gpu *board) {
  dw_error error = {0};
  *board = (cli_gpu){0};
  int code = cli_open(&board->ctx);
  if (code != CLI_GO_ON) return code;
  if (cli_gpu_device(board->ctx, 0, &board->gpu, &error)) {
    cli_usage("SKIP: no GPU can be used here: %s", error.message);
    dw_error_clear(&error);
    cli_gpu_close(board);
    return CLI_USAGE;
  }
  snprintf(board->name, sizeof board->name, "%s", dw__gpu_device(board->gpu)->name);
  return CLI_GO_ON;
}

// Kernels go before the CUDA context that they live in.
void cli_gpu_close(cli_gpu *board) {
  dw_ctx_destroy(board->ctx);
  dw__gpu_close(board->gpu);
  *board = (cli_gpu){0};
}
