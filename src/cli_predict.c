// draftwood bench --predict: what boards that are not at hand should take, by two ways that share no formula: clocks a token of an H200
// that were measured, carried over to the board, and the fitted model. Predictions, and called so; the last lines say how to check them.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "bench_rows.h"
#include "cli.h"
#include "field.h"

#define LONG_TILES 8  // of 16 tokens, a multiprocessor

typedef struct asking {
  cli_list lengths, batches, widths;
  const char *rows, *board, *plan;
  bool json, predict;
} asking;

typedef struct prediction {
  double h200_us;                                           // measured
  double clocks, tensor_clocks, memory_clocks, carried_us;  // of a token; 0: nothing measured to carry over
  dw__plan_choice pick;                                     // the model's, with its time and the default's
  double fp16_us, carried_fp16_us;                          // the pick with accumulate=fp16, where the board gains by it
} prediction;

static const char formula[] =
  "PREDICTION, not a measurement. Two ways:\n"
  "  carried  tokens x the larger of (H200 clocks - H200 products + board products) and memory clocks, over multiprocessors x MHz\n"
  "           H200 clocks: measured SM clocks a token; products: 2 x rows x (qk + v) FLOP over FLOP a clock; memory: bytes a token over\n"
  "           bandwidth, in clocks of all multiprocessors\n"
  "  model    start + the greater of products and memory + merge, with coefficients fitted to H200 times (src/model.c)\n";

static const char how_to_check[] =
  "To confirm or refute on such a board, and to send in what it writes:\n"
  "  draftwood bench %s --widths %s --batches %s --lengths %s --addressing table --check --ceilings --record my-board.jsonl\n";

// The fastest plain row of the problem.
static const dw__bench_row *find_row(const dw__bench_rows *rows, const dw_shape *shape, int batch, int prefix) {
  const dw__bench_row *best = NULL;
  for (size_t i = 0; i < rows->count; i++) {
    const dw__bench_row *r = &rows->list[i];
    dw_shape own = r->shape;
    own.target = shape->target;
    own.limits = shape->limits;
    if (!r->has_variant || !r->cold || !r->plain || r->batch != batch || r->prefix != prefix || !strstr(r->board, "H200"))
      continue;
    if (memcmp(&own, shape, sizeof own) == 0 && (!best || r->us < best->us)) best = r;
  }
  return best;
}

static void carry_over(const dw__bench_row *row, const dw__machine *from, const dw__machine *to, prediction *p) {
  const dw_variant fp16 = {.accumulate = DW_ACCUMULATE_FP16};
  const dw_shape *s = &row->shape;
  const double tokens = (double)row->batch * (row->prefix + s->width), bytes = (double)dw__kv_token_bytes(s);
  const double flop = 2.0 * s->width * s->heads * (s->head_dim_qk + s->head_dim_v);
  p->h200_us = row->us;
  p->clocks = row->us * from->mhz * from->sm_count / tokens;
  p->tensor_clocks = p->clocks - flop / from->mma_flop + flop / to->mma_flop;
  p->memory_clocks = bytes / (to->read_gbs * 1e3) * to->mhz * to->sm_count;
  p->carried_us = tokens * fmax(p->tensor_clocks, p->memory_clocks) / (to->sm_count * to->mhz);
  if (p->fp16_us <= 0) return;
  const double fp16_clocks =
    p->clocks - flop / from->mma_flop + dw__product_clocks(to, s, &fp16) * s->width * s->heads / (8.0 * 16);
  p->carried_fp16_us = tokens * fmax(fp16_clocks, p->memory_clocks) / (to->sm_count * to->mhz);
}

static dw_status predict(const dw_shape *given, const dw__machine *to, int batch, int prefix, const dw__bench_rows *rows,
                         prediction *p, dw_error *error) {
  dw_shape shape = *given;
  *p = (prediction){0};
  shape.target = to->cc;
  shape.limits = 0;
  dw_bounds bounds = cli_bounds(&shape, batch, prefix + shape.width);
  bounds.sm_count = to->sm_count;
  bounds.call = DW_CALL_TABLE;
  dw_status status = dw__choice_predict(&dw__model_fitted, to, &shape, &bounds, &p->pick, error);
  if (status) return status;
  dw_variant fp16 = p->pick.variant;
  fp16.accumulate = DW_ACCUMULATE_FP16;
  if (to->mma_f16_flop > to->mma_flop && dw_variant_applicable(&shape, &fp16, NULL) == DW_OK)
    p->fp16_us = dw__predict(&dw__model_fitted, to, &shape, &fp16, &bounds);
  const dw__bench_row *row = find_row(rows, &shape, batch, prefix);
  // Where latencies decide, clocks a token mean nothing.
  if (row && (double)batch * prefix >= 16.0 * LONG_TILES * dw__machines[0].sm_count) carry_over(row, &dw__machines[0], to, p);
  return DW_OK;
}

static void print(const asking *want, const dw_shape *shape, const dw__machine *to, int batch, int prefix,
                  const prediction *p) {
  char pick[DW_TEXT_MAX], carried[64] = "-", measured[32] = "-";
  cli_variant_text(&p->pick.variant, pick);
  if (want->json) {
    json_t *row = json_pack("{s:s, s:b, s:i, s:i, s:i, s:i, s:f, s:f, s:s}", "board", to->label, "prediction", 1, "heads",
                            shape->heads, "width", shape->width, "batch", batch, "prefix", prefix, "model_us",
                            p->pick.default_us, "pick_us", p->pick.us, "pick", pick);
    if (p->carried_us > 0) json_object_set_new(row, "carried_us", json_real(p->carried_us));
    if (p->h200_us > 0) json_object_set_new(row, "h200_us", json_real(p->h200_us));
    if (p->fp16_us > 0) json_object_set_new(row, "fp16_us", json_real(p->fp16_us));
    if (p->carried_fp16_us > 0) json_object_set_new(row, "carried_fp16_us", json_real(p->carried_fp16_us));
    cli_write_line(stdout, row);
    json_decref(row);
    return;
  }
  if (p->carried_us > 0) {
    snprintf(carried, sizeof carried, "%.2f (%s)", p->carried_us, p->memory_clocks > p->tensor_clocks ? "memory" : "products");
    snprintf(measured, sizeof measured, "%.2f", p->h200_us);
  }
  printf("%-26s h=%-3d t=%-3d B=%-3d %-7d %10s %20s %10.2f %10.2f  %s", to->label, shape->heads, shape->width, batch, prefix,
         measured, carried, p->pick.default_us, p->pick.us, p->pick.ratio < 1 ? pick : "the default");
  if (p->fp16_us > 0) printf("; %.2f with accumulate=fp16", p->fp16_us);
  if (p->carried_fp16_us > 0) printf(", carried %.2f", p->carried_fp16_us);
  printf("\n");
}

static bool is_asked(const dw__machine *machine, const char *board) {
  return machine->assumed && (!board || strstr(machine->label, board));
}

static dw_status check_board(const char *board, dw_error *error) {
  char names[256];
  dw__text allowed = {names, sizeof names, 0};
  for (size_t m = 0; m < dw__machine_count; m++) {
    if (is_asked(&dw__machines[m], board)) return DW_OK;
    if (dw__machines[m].assumed) dw__text_printf(&allowed, "%s%s", allowed.size ? ", " : "a part of ", dw__machines[m].label);
  }
  return dw__fail(error, DW_BAD_ARGUMENT, "board", board, names, "no board has this in its name");
}

// With the picks as a plan.
static dw_status print_all(const asking *want, const dw_shape *base, const dw__bench_rows *rows, dw__choices *plan,
                           dw_error *error) {
  dw_status status = DW_OK;
  if (!want->json)
    printf("%s%-26s %-30s %10s %20s %10s %10s  %s\n", formula, "board", "problem", "H200 us", "carried us", "model us",
           "pick us", "model's pick");
  for (size_t m = 0; m < dw__machine_count; m++) {
    const dw__machine *to = &dw__machines[m];
    if (!is_asked(to, want->board)) continue;
    for (int w = 0; w < want->widths.count; w++)
      for (int b = 0; b < want->batches.count; b++)
        for (int l = 0; l < want->lengths.count && !status; l++) {
          prediction p;
          dw_shape shape = *base;
          shape.width = want->widths.values[w];
          status = predict(&shape, to, want->batches.values[b], want->lengths.values[l], rows, &p, error);
          if (status) continue;
          print(want, &shape, to, want->batches.values[b], want->lengths.values[l], &p);
          if (!dw__choices_add(plan, &(dw__choices){.list = &p.pick, .count = 1}, true))
            status = dw__fail(error, DW_OUT_OF_MEMORY, "memory", "", "", "out of memory");
        }
  }
  return status;
}

static void list_text(const cli_list *list, char text[512]) {
  size_t used = 0;
  for (int i = 0; i < list->count && used < 500; i++)
    used += (size_t)snprintf(text + used, 512 - used, "%s%d", i ? "," : "", list->values[i]);
}

int cli_predict(const cli_command *self, int argc, char **argv) {
  asking want = {.lengths = {.values = {1000, 5700, 23000, 91000, 185000}, .count = 5},
                 .batches = {.values = {1, 8}, .count = 2},
                 .widths = {.values = {1, 9}, .count = 2}};
  const cli_option options[] = {
    {"predict", NULL, CLI_FLAG, &want.predict, 0, 0, "what RTX PRO 6000 and RTX 5090 should take, labelled as a prediction"},
    {"rows", "FILE", CLI_TEXT, &want.rows, 0, 0, "measured rows of an H200 to carry over (bench/results/*.jsonl)"},
    {"plan", "FILE", CLI_TEXT, &want.plan, 0, 0, "write the model's picks as a plan, each marked as predicted"},
    {"board", "TEXT", CLI_TEXT, &want.board, 0, 0, "boards with this in their name alone"},
    {"lengths", "N,...", CLI_INTS, &want.lengths, 1, 1 << 22, "committed tokens (1000,5700,23000,91000,185000)"},
    {"batches", "N,...", CLI_INTS, &want.batches, 1, 4096, "requests (1,8)"},
    {"widths", "N,...", CLI_INTS, &want.widths, 1, 1025, "draft tokens (1,9)"},
    {"json", NULL, CLI_FLAG, &want.json, 0, 0, "JSON lines"},
  };
  dw_error error = {0};
  dw_shape shape;
  dw__bench_rows rows = {0};
  dw__choices plan = {0};
  char *data = NULL, lengths[512] = "", batches[512] = "", widths[512] = "";
  size_t size = 0;
  int code = cli_parse(self, CLI_OPTIONS(options), &argc, argv);
  if (code != CLI_GO_ON) return code;
  const char *text = argc == 2 ? argv[1] : "kimi-k2.6-tp8";
  if (argc > 2) return cli_usage("bench --predict: found %d shapes, allowed 1", argc - 1);
  dw_status status = dw_shape_parse(text, &shape, &error);
  if (!status) status = check_board(want.board, &error);
  if (!status && want.rows) status = dw__file_read(want.rows, &data, &size, &error);
  if (!status && data) status = dw__bench_rows_read(data, size, &rows, &error);
  if (!status) status = print_all(&want, &shape, &rows, &plan, &error);
  dw__release(data);
  dw__bench_rows_free(&rows);
  if (!status && want.plan) code = cli_write_plan(&plan, want.plan);
  dw__choices_free(&plan);
  if (status || code != CLI_GO_ON) return status ? cli_error(&error) : code;
  list_text(&want.lengths, lengths), list_text(&want.batches, batches), list_text(&want.widths, widths);
  if (!want.json) printf(how_to_check, text, widths, batches, lengths);
  return CLI_DONE;
}
