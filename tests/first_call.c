// The first call of a process against later ones: what a first request pays where nothing has to be compiled. usage: first_call [BUNDLE];
// kernels come from the cache, or from the bundle alone. Times count from a CUDA context that is there. Exit 77: no GPU. Where the driver
// is not a stand-in (DRAFTWOOD_DRIVER), nothing was compiled and the first call took three times the bar more than a later one, it fails.
#include <dlfcn.h>
#include <draftwood.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BATCH = 8, ROWS = 9, HEADS = 8, QK = 576, V = 512, PAGE = 64, CALLS = 20, SKIPPED = 77 };
static const double BAR_MS = 50;

#define DRIVER(X)                                                                      \
  X(cuInit, (unsigned flags))                                                          \
  X(cuDeviceGet, (int *device, int ordinal))                                           \
  X(cuDeviceGetAttribute, (int *value, int attribute, int device))                     \
  X(cuDevicePrimaryCtxRetain, (void **context, int device))                            \
  X(cuCtxSetCurrent, (void *context))                                                  \
  X(cuStreamSynchronize, (void *stream))                                               \
  X(cuMemAlloc_v2, (uint64_t * address, size_t bytes))                                 \
  X(cuMemcpyHtoDAsync_v2, (uint64_t to, const void *from, size_t bytes, void *stream)) \
  X(cuMemsetD8Async, (uint64_t address, unsigned char value, size_t bytes, void *stream))

static struct {
#define X(name, arguments) int(*name) arguments;
  DRIVER(X)
#undef X
} cu;

static int skip(const char *why) {
  printf("SKIP first_call: %s\n", why);
  exit(SKIPPED);
}

#define CU(call)                                             \
  do {                                                       \
    int cu_result = (call);                                  \
    if (cu_result) {                                         \
      fprintf(stderr, "%s answered %d\n", #call, cu_result); \
      exit(1);                                               \
    }                                                        \
  } while (0)

// The target of the first GPU, whose context is current from now on.
static int open_gpu(void) {
  enum { CC_MAJOR = 75, CC_MINOR = 76 };
  const char *path = getenv("DRAFTWOOD_DRIVER");
  void *library = dlopen(path && *path ? path : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *context;
  int device, major, minor;
  if (!library) skip(dlerror());
#define X(name, arguments)                      \
  *(void **)(&cu.name) = dlsym(library, #name); \
  if (!cu.name) skip("the CUDA driver lacks " #name);
  DRIVER(X)
#undef X
  if (cu.cuInit(0) || cu.cuDeviceGet(&device, 0)) skip("the driver finds no GPU");
  CU(cu.cuDeviceGetAttribute(&major, CC_MAJOR, device));
  CU(cu.cuDeviceGetAttribute(&minor, CC_MINOR, device));
  CU(cu.cuDevicePrimaryCtxRetain(&context, device));
  CU(cu.cuCtxSetCurrent(context));
  return 10 * major + minor;
}

static void *zeros(size_t bytes) {
  uint64_t address;
  CU(cu.cuMemAlloc_v2(&address, bytes));
  CU(cu.cuMemsetD8Async(address, 0, bytes, NULL));
  CU(cu.cuStreamSynchronize(NULL));
  return (void *)(uintptr_t)address;
}

static double now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static int fail(const dw_error *error) {
  fprintf(stderr, "%s\n", error->message);
  return 1;
}

static int ascending(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

int main(int argc, char **argv) {
  const char *bundle = argc > 1 ? argv[1] : NULL, *stand_in = getenv("DRAFTWOOD_DRIVER");
  const int target = open_gpu();
  dw_args args = {.size = sizeof args, .batch = BATCH, .table_columns = 1, .softmax_scale = 0.07f};
  args.q = zeros(2 * (size_t)BATCH * ROWS * HEADS * QK);
  args.out = zeros(2 * (size_t)BATCH * ROWS * HEADS * V);
  args.kv = zeros(2 * (size_t)PAGE * QK);
  args.addressing = DW_BLOCK_TABLE;
  args.block_table = zeros(sizeof(int32_t) * BATCH);
  int32_t lengths[BATCH];
  for (int i = 0; i < BATCH; i++) lengths[i] = PAGE;
  int32_t *kv_len = zeros(sizeof lengths);
  CU(cu.cuMemcpyHtoDAsync_v2((uintptr_t)kv_len, lengths, sizeof lengths, NULL));
  CU(cu.cuStreamSynchronize(NULL));
  args.kv_len = kv_len;
  args.lengths_include_drafts = 1;

  // From here on a request waits.
  const double begin = now_ms();
  dw_error error = {0};
  dw_ctx *ctx = NULL;
  dw_shape shape;
  dw_kernel *kernel = NULL;
  char text[96];
  const dw_bounds bounds = {.size = sizeof bounds, .batch = BATCH, .kv_len = 4096, .call = DW_CALL_TABLE};
  const dw_options options = {.size = sizeof options, .cache_dir = bundle ? "" : NULL, .no_compile = bundle != NULL};
  snprintf(text, sizeof text, "mla:h=%d,t=%d,page=%d,target=sm_%d,limits=sm_120", HEADS, ROWS, PAGE, target);
  if (dw_ctx_create(&options, &ctx, &error)) return fail(&error);
  if (bundle && dw_bundle_add_file(ctx, bundle, NULL, &error)) return fail(&error);
  const double created = now_ms();
  if (dw_shape_parse(text, &shape, &error) || dw_kernel_get(ctx, &shape, NULL, &bounds, &kernel, &error)) return fail(&error);
  const double loaded = now_ms();
  args.workspace_size = dw_workspace_size(kernel);
  args.workspace = zeros(args.workspace_size);  // an engine has its own
  const double start = now_ms();
  if (dw_launch(kernel, &args, NULL, &error)) return fail(&error);
  CU(cu.cuStreamSynchronize(NULL));
  const double first = now_ms() - start;
  double later[CALLS];
  for (int i = 0; i < CALLS; i++) {
    const double again = now_ms();
    if (dw_launch(kernel, &args, NULL, &error)) return fail(&error);
    CU(cu.cuStreamSynchronize(NULL));
    later[i] = now_ms() - again;
  }
  qsort(later, CALLS, sizeof *later, ascending);
  dw_stats stats;
  dw_stats_get(ctx, &stats);
  dw_ctx_destroy(ctx);
  const double more = created - begin + (loaded - created) + first - later[CALLS / 2];
  printf(
    "%s: context %.2f ms, kernel %.2f ms, first call %.3f ms, later calls %.3f ms; %.2f ms more, the bar is %.0f; %d compiles\n",
    bundle           ? "bundle"
    : stats.compiles ? "nothing there"
                     : "cache",
    created - begin, loaded - created, first, later[CALLS / 2], more, BAR_MS, (int)stats.compiles);
  return !stand_in && !stats.compiles && more > 3 * BAR_MS;
}
