// draftwood gen and presets: what is asked, and the text it leads to.
#include <stdio.h>
#include <stdlib.h>

#include "cli.h"

static int list_variants(const dw_shape *shape) {
  dw_variant variant;
  dw_error error = {0};
  if (dw_variant_choose(shape, NULL, &variant, &error)) return cli_error(&error);
  for (size_t i = 0; dw_variant_enumerate(shape, i, &variant) == DW_OK; i++) {
    char text[DW_TEXT_MAX];
    dw_variant_print(&variant, text, sizeof text);
    puts(text);
  }
  return CLI_DONE;
}

static int print_source(const dw_shape *shape, const dw_variant *variant) {
  dw_error error = {0};
  dw_ctx *ctx;
  dw_options options = {.size = sizeof options, .cache_dir = ""};  // a source needs no cache
  if (dw_ctx_create(&options, &ctx, &error)) return cli_error(&error);
  char *source;
  size_t size;
  dw_status status = dw_source_generate(ctx, shape, variant, &source, &size, &error);
  if (!status) {
    fwrite(source, 1, size, stdout);
    dw_free(source);
  }
  dw_ctx_destroy(ctx);
  return status ? cli_error(&error) : CLI_DONE;
}

int cli_gen(const cli_command *self, int argc, char **argv) {
  if (cli_has(argc, argv, "--companions")) return cli_companions_gen(self, argc, argv);
  const char *variant_text = NULL;
  bool list = false;
  int batch = 8, kv_len = 32768, call = DW_CALL_ANY;
  const cli_option options[] = {
    {"variant", "TEXT", CLI_TEXT, &variant_text, 0, 0, "the variant (default: the rule table's choice)"},
    {"batch", "N", CLI_INT, &batch, 1, 65535, "most requests, for that choice (8)"},
    {"kv-len", "N", CLI_INT, &kv_len, 1, 1 << 24, "most tokens a request, for that choice (32768)"},
    {"call", "any|table", CLI_WORD, &call, 0, 0, "what calls have in common, for that choice (any)"},
    {"list", NULL, CLI_FLAG, &list, 0, 0, "list the variants that may serve the shape instead"},
  };
  int code = cli_parse(self, CLI_OPTIONS(options), &argc, argv);
  if (code != CLI_GO_ON) return code;
  if (list && variant_text) return cli_usage("gen: --variant and --list exclude each other");
  if (argc != 2) return cli_usage("gen: found %d shapes, allowed 1; draftwood gen --help tells more", argc - 1);
  dw_error error = {0};
  dw_shape shape;
  if (dw_shape_parse(argv[1], &shape, &error)) return cli_error(&error);
  if (list) return list_variants(&shape);
  dw_variant variant;
  dw_bounds bounds = cli_bounds(&shape, batch, kv_len);
  bounds.call = (dw_call)call;
  if (cli_variant(variant_text, &shape, &bounds, &variant, &error)) return cli_error(&error);
  return print_source(&shape, &variant);
}

int cli_presets(const cli_command *self, int argc, char **argv) {
  bool json = false;
  const cli_option options[] = {{"json", NULL, CLI_FLAG, &json, 0, 0, "print JSON"}};
  int code = cli_parse(self, CLI_OPTIONS(options), &argc, argv);
  if (code != CLI_GO_ON) return code;
  if (argc != 1) return cli_usage("presets: found \"%s\", allowed no argument", argv[1]);
  json_t *list = json_array();
  for (size_t i = 0; i < dw_preset_count(); i++) {
    dw_error error = {0};
    dw_shape shape;
    char text[DW_TEXT_MAX];
    if (dw_preset_shape(dw_preset_name(i), &shape, &error)) {
      json_decref(list);
      return cli_error(&error);
    }
    dw_shape_print(&shape, text, sizeof text);
    if (json) json_array_append_new(list, json_pack("{s:s, s:s}", "name", dw_preset_name(i), "shape", text));
    else printf("%-22s %s\n", dw_preset_name(i), text);
  }
  if (json) cli_print_json(list);
  json_decref(list);
  return CLI_DONE;
}
