// A host with its kernels inside: no compiler, no cache directory, no file. The build put a bundle into this program.
#include <draftwood.h>
#include <kernels.h>
#include <stdio.h>

static int fail(dw_ctx *ctx, dw_error *error) {
  fprintf(stderr, "%s\n", error->message);
  dw_error_clear(error);
  dw_ctx_destroy(ctx);
  return 1;
}

int main(void) {
  dw_error error = {0};
  dw_ctx *ctx = NULL;
  dw_shape shape;
  dw_variant variant;
  dw_bounds bounds = {.size = sizeof bounds, .batch = 8, .kv_len = 32768};
  dw_cubin *cubin = NULL;
  dw_options options = {.size = sizeof options, .cache_dir = "", .no_compile = 1};

  if (dw_ctx_create(&options, &ctx, &error) || dw_bundle_add_memory(ctx, kernels, kernels_size, NULL, &error) ||
      dw_shape_parse("kimi-k2.6-tp8,t=4,page=64", &shape, &error) || dw_variant_choose(&shape, &bounds, &variant, &error) ||
      dw_cubin_build(ctx, &shape, &variant, &cubin, &error))  // with a GPU: dw_kernel_get
    return fail(ctx, &error);
  printf("%s: %zu bytes for %s, out of %zu bytes of bundle\n", cubin->kernels[0].name, cubin->size, cubin->target,
         kernels_size);
  dw_cubin_free(cubin);
  dw_ctx_destroy(ctx);
  return 0;
}
