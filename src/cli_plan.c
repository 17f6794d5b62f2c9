// draftwood plan: the choices that contexts go by: shown, written to a file, taken from other machines, compared by digest.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "flow.h"
#include "tune_plan.h"

typedef struct planning {
  bool json, warm, any_numerics;
  const char *gpu;
} planning;

// The files' choices joined, the first that has a problem first; without files those that a context would go by.
static dw_status load(dw_ctx *ctx, int count, char **files, dw__choices *choices, dw_error *error) {
  dw__plan_book book = {0};
  dw_status status = DW_OK;
  for (int i = 0; i < count && !status; i++) {
    dw__choices one = {0};
    status = dw__choices_load(files[i], &one, error);
    if (!status && !dw__choices_add(choices, &one, false))
      status = dw__fail(error, DW_OUT_OF_MEMORY, "memory", "", "", "out of memory");
    dw__choices_free(&one);
  }
  if (count) return status;
  status = dw__plan_book_open(&book, NULL, error);
  if (!status) status = dw__plan_book_load(&book, ctx, choices, error);
  dw__plan_book_close(&book);
  return status;
}

// Those of GPUs in whose name the text is.
static void keep_gpu(dw__choices *choices, const char *text) {
  size_t kept = 0;
  for (size_t i = 0; text && i < choices->count; i++)
    if (strstr(choices->list[i].board.name, text)) choices->list[kept++] = choices->list[i];
  if (text) choices->count = kept;
}

static void hex_of(const dw__choices *choices, char hex[65]) {
  const dw__digest digest = dw__choices_digest(choices);
  dw__hex(&digest, hex);
}

static int show(const planning *want, dw__choices *choices) {
  char hex[65];
  hex_of(choices, hex);
  dw__buf text = {0};
  if (want->json) {
    dw__choices_print(choices, &text);
    fputs(text.data, stdout);
    dw__buf_free(&text);
    return CLI_DONE;
  }
  for (size_t i = 0; i < choices->count; i++) {
    const dw__plan_choice *c = &choices->list[i];
    char shape[DW_TEXT_MAX], variant[DW_TEXT_MAX];
    dw_shape_print(&c->key.shape, shape, sizeof shape);
    cli_variant_text(&c->variant, variant);
    if (!i || !dw__board_same(&c->board, &choices->list[i - 1].board))
      printf("%s%s, sm_%d, %d multiprocessors, %lld MB of L2\n", i ? "\n" : "", c->board.name, c->board.cc, c->board.sm_count,
             (long long)(c->board.l2_bytes >> 20));
    printf("  %s batch=%d kv_len=%d%s: %s", shape, c->batch, c->kv_len, c->key.call ? "" : " call=any", variant);
    if (c->predicted) printf("  predicted, %.2f us; default %.2f us\n", c->us, c->default_us);
    else printf("  %.2f us, default %.2f us, ratio %.3f +- %.3f of %d\n", c->us, c->default_us, c->ratio, c->ratio_mad, c->n);
  }
  printf("%s%zu choices, digest %s\n", choices->count ? "\n" : "", choices->count, hex);
  return CLI_DONE;
}

int cli_write_plan(const dw__choices *choices, const char *path) {
  dw__buf text = {0};
  FILE *file = dw__choices_print(choices, &text) ? fopen(path, "w") : NULL;
  const bool written = file && fwrite(text.data, 1, text.size, file) == text.size;
  const bool sound = file && fclose(file) == 0 && written;
  dw__buf_free(&text);
  if (!sound) return cli_usage("%s cannot be written", path);
  char hex[65];
  hex_of(choices, hex);
  printf("%s: %zu choices, digest %s\n", path, choices->count, hex);
  return CLI_GO_ON;
}

// ---- import ---------------------------------------------------------------------------------------------------

// Records go to the folder of their GPU, whose plan is then made anew of all that is there.
static dw_status import_records(const planning *want, dw_ctx *ctx, dw__tune_records *records, dw_error *error) {
  dw_status status = DW_OK;
  for (size_t i = 0; i < records->count && !status; i++) {
    const dw__board *board = &records->list[i].board;
    dw__buf text = {0};
    size_t before = 0, count = 0;
    while (before < i && !dw__board_same(&records->list[before].board, board)) before++;
    if (before < i) continue;
    for (size_t k = i; k < records->count; k++) {
      if (!dw__board_same(&records->list[k].board, board)) continue;
      dw__tune_record_print(&records->list[k], &text);
      count++;
    }
    const char *why = "out of memory";
    char *folder = dw__tune_folder(ctx, NULL, board, &why);
    status = folder && !text.failed ? dw__tune_append(folder, "records.jsonl", &text, error)
                                    : dw__fail(error, DW_BAD_ARGUMENT, "cache", why, "a cache with a directory", "%s", "");
    if (!status) status = dw__tune_plan_write(folder, want->warm ? DW__WARM : DW__COLD, want->any_numerics, error);
    if (!status) printf("%zu records of %s\n", count, board->name);
    dw__release(folder);
    dw__buf_free(&text);
  }
  return status;
}

// A plan replaces what was imported before. It has a folder of its own, which the plans of this cache's own sweeps go before.
static dw_status import_plan(dw_ctx *ctx, const dw__choices *choices, dw_error *error) {
  const char *why = "out of memory";
  char *all = dw__tune_folder(ctx, NULL, NULL, &why);
  dw__buf folder = {0}, text = {0};
  dw__buf_printf(&folder, "%s/" DW__IMPORTED, all ? all : "");
  dw_status status = all && dw__choices_print(choices, &text) && !folder.failed
                       ? dw__tune_publish(folder.data, "plan.jsonl", &text, error)
                       : dw__fail(error, DW_BAD_ARGUMENT, "cache", why, "a cache with a directory", "%s", "");
  if (!status) printf("%zu choices\n", choices->count);
  dw__release(all);
  dw__buf_free(&folder);
  dw__buf_free(&text);
  return status;
}

static dw_status import(const planning *want, dw_ctx *ctx, const char *path, dw_error *error) {
  dw__tune_records records = {0};
  dw__choices choices = {0};
  char *data = NULL;
  size_t size = 0;
  dw_status status = dw__file_read(path, &data, &size, error);
  if (!status && !strncmp(data, "{\"plan\"", 7)) {
    status = dw__choices_read(data, size, &choices, error);
    if (!status) status = import_plan(ctx, &choices, error);
  } else if (!status) {
    status = dw__tune_records_read(data, size, &records, error);
    if (!status) status = import_records(want, ctx, &records, error);
  }
  dw__choices_free(&choices);
  dw__tune_records_free(&records);
  dw__release(data);
  return status;
}

// ---- the command ----------------------------------------------------------------------------------------------

static int run(const planning *want, dw_ctx *ctx, int argc, char **argv) {
  const char *action = argv[1];
  dw_error error = {0};
  dw__choices choices = {0};
  dw_status status = DW_OK;
  int code = CLI_DONE;
  if (!strcmp(action, "import")) {
    for (int i = 2; i < argc && !status; i++) status = import(want, ctx, argv[i], &error);
    return status ? cli_error(&error) : CLI_DONE;
  }
  const int first = strcmp(action, "export") ? 2 : 3;
  status = load(ctx, argc - first, argv + first, &choices, &error);
  keep_gpu(&choices, want->gpu);
  if (status) {
    code = cli_error(&error);
  } else if (!strcmp(action, "export")) {
    code = cli_write_plan(&choices, argv[2]);
    if (code == CLI_GO_ON) code = CLI_DONE;
  } else if (!strcmp(action, "show")) {
    code = show(want, &choices);
  } else {
    char hex[65];
    hex_of(&choices, hex);
    puts(hex);
  }
  dw__choices_free(&choices);
  return code;
}

int cli_plan(const cli_command *self, int argc, char **argv) {
  planning want = {0};
  const cli_option options[] = {
    {"gpu", "TEXT", CLI_TEXT, &want.gpu, 0, 0, "choices for GPUs with this in their name alone"},
    {"warm", NULL, CLI_FLAG, &want.warm, 0, 0, "import of records: choose by times with a warm L2"},
    {"any-numerics", NULL, CLI_FLAG, &want.any_numerics, 0, 0, "import of records: also across numerics classes"},
    {"json", NULL, CLI_FLAG, &want.json, 0, 0, "show: the plan as it is in a file"},
  };
  static const char *const actions[] = {"show", "export", "import", "digest"};
  dw_ctx *ctx;
  int code = cli_parse(self, CLI_OPTIONS(options), &argc, argv);
  if (code != CLI_GO_ON) return code;
  size_t action = 0;
  while (argc > 1 && action < DW__COUNT(actions) && strcmp(argv[1], actions[action]) != 0) action++;
  if (argc < 2 || action == DW__COUNT(actions))
    return cli_usage("plan: found %s%s%s, allowed show, export, import or digest", argc < 2 ? "nothing" : "\"",
                     argc < 2 ? "" : argv[1], argc < 2 ? "" : "\"");
  if ((action == 1 || action == 2) && argc < 3)
    return cli_usage("plan %s: found no file, allowed one%s", argv[1], action == 2 ? " or more" : "");
  code = cli_open(&ctx);
  if (code != CLI_GO_ON) return code;
  code = run(&want, ctx, argc, argv);
  dw_ctx_destroy(ctx);
  return code;
}
