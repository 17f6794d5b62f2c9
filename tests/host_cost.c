// What a call costs on the host above the driver's own work: 10,000 launches of one set of arguments on a driver that does
// nothing. usage: host_cost, with DRAFTWOOD_DRIVER naming that driver. The bar is 1.5 us; three times as much fails.
#include <draftwood.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { CALLS = 10000, ROUNDS = 9 };
static const double BAR_US = 1.5;

static double now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int ascending(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static int fail(const dw_error *error) {
  fprintf(stderr, "%s\n", error->message);
  return 1;
}

int main(void) {
  static _Alignas(256) char memory[1 << 20];
  dw_error error = {0};
  dw_ctx *ctx = NULL;
  dw_shape shape;
  dw_kernel *kernel = NULL;
  const dw_bounds bounds = {.size = sizeof bounds, .batch = 8, .kv_len = 4096, .call = DW_CALL_TABLE};
  if (dw_ctx_create(NULL, &ctx, &error)) return fail(&error);
  if (dw_shape_parse("mla:h=8,t=9,page=64,target=sm_90,limits=sm_120", &shape, &error)) return fail(&error);
  if (dw_kernel_get(ctx, &shape, NULL, &bounds, &kernel, &error)) return fail(&error);
  dw_args args = {.size = sizeof args, .q = memory, .kv = memory, .batch = 8, .table_columns = 64, .softmax_scale = 0.07f};
  args.out = memory + sizeof memory / 2;
  args.addressing = DW_BLOCK_TABLE;
  args.block_table = args.kv_len = args.mask = (const int32_t *)(void *)memory;
  args.lengths_include_drafts = 1;
  args.mask_kind = DW_MASK_PARENTS;
  args.workspace = memory;  // nothing is read or written
  args.workspace_size = dw_workspace_size(kernel);
  double us[ROUNDS];
  for (int round = 0; round < ROUNDS; round++) {
    const double begin = now_us();
    for (int i = 0; i < CALLS; i++)
      if (dw_launch(kernel, &args, NULL, &error)) return fail(&error);
    us[round] = (now_us() - begin) / CALLS;
  }
  qsort(us, ROUNDS, sizeof *us, ascending);
  dw_ctx_destroy(ctx);
  printf("%.3f us a call in the median of %d rounds of %d calls (%.3f to %.3f); the bar is %.1f\n", us[ROUNDS / 2], ROUNDS,
         CALLS, us[0], us[ROUNDS - 1], BAR_US);
  return us[0] > 3 * BAR_US;
}
