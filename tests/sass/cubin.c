// cubin SHAPE FILE: the cubin of the rule table's variant, for a disassembler.
#include <draftwood.h>
#include <stdio.h>

int main(int argc, char **argv) {
  dw_options options = {.size = sizeof options, .cache_dir = ""};
  dw_bounds bounds = {.size = sizeof bounds, .batch = 8, .kv_len = 32768};
  dw_error error = {0};
  dw_ctx *ctx = NULL;
  dw_shape shape;
  dw_variant variant;
  dw_cubin *cubin = NULL;
  if (argc != 3) return 2;
  if (dw_ctx_create(&options, &ctx, &error) || dw_shape_parse(argv[1], &shape, &error) ||
      dw_variant_choose(&shape, &bounds, &variant, &error) || dw_cubin_build(ctx, &shape, &variant, &cubin, &error)) {
    fprintf(stderr, "%s\n", error.message);
    return 1;
  }
  FILE *file = fopen(argv[2], "wb");
  int bad = !file || fwrite(cubin->data, 1, cubin->size, file) != cubin->size || fclose(file);
  dw_cubin_free(cubin);
  dw_ctx_destroy(ctx);
  return bad;
}
