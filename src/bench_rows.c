// See bench_rows.h.
#include "bench_rows.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "rule.h"

static const char *text_of(const json_t *row, const char *name) {
  const char *text = json_string_value(json_object_get(row, name));
  return text ? text : "";
}

static double number_of(const json_t *row, const char *name) { return json_number_value(json_object_get(row, name)); }

// Options that change what is run, or what the kernel was made for.
static bool is_plain(const json_t *row) {
  static const char *const options[] = {"--declared", "--window",  "--soft-cap",    "--sinks",
                                        "--q-rope",   "--kv-rope", "--split-tokens"};
  for (size_t i = 0; i < DW__COUNT(options); i++)
    if (strstr(text_of(row, "command"), options[i])) return false;
  return !json_object_get(row, "chain") && !json_object_get(row, "slots");
}

static bool add(dw__bench_rows *rows, const dw__bench_row *row) {
  if (rows->count == rows->capacity) {
    const size_t capacity = rows->capacity ? 2 * rows->capacity : 128;
    dw__bench_row *list = dw__realloc(rows->list, capacity * sizeof *list);
    if (!list) return false;
    rows->list = list;
    rows->capacity = capacity;
  }
  rows->list[rows->count++] = *row;
  return true;
}

static dw_status take(void *user, const char *line, size_t size, dw_error *error) {
  json_error_t fault;
  dw__bench_row made = {0};
  json_t *row = json_loadb(line, size, 0, &fault);
  dw_status status = DW_OK;
  if (!json_is_object(row)) {
    json_decref(row);
    return dw__fail(error, DW_BAD_ARGUMENT, "line", row ? "another value" : fault.text, "a JSON object", "%s", "");
  }
  made.us = number_of(row, "us");
  if (!(made.us > 0)) {
    status = dw__fail(error, DW_BAD_ARGUMENT, "us", "nothing", "microseconds", "a row of measurements has a time");
  } else if (json_is_integer(json_object_get(row, "prefix")) && !dw_shape_parse(text_of(row, "shape"), &made.shape, NULL)) {
    snprintf(made.board, sizeof made.board, "%s", text_of(row, "board"));
    snprintf(made.impl, sizeof made.impl, "%s", text_of(row, "impl"));
    snprintf(made.date, sizeof made.date, "%s", text_of(row, "date"));
    snprintf(made.driver, sizeof made.driver, "%s", text_of(row, "driver"));
    const char *variant = text_of(row, "variant");
    made.has_variant = !strcmp(made.impl, "draftwood") && *variant && !dw_variant_parse(variant, &made.variant, NULL);
    made.batch = (int)number_of(row, "batch");
    made.prefix = (int)number_of(row, "prefix");
    made.page = (int)number_of(row, "page");
    made.ranges = (int)number_of(row, "ranges");
    made.cold = strcmp(text_of(row, "l2"), "warm") != 0;
    made.plain = is_plain(row);
    made.p10 = number_of(row, "us_p10");
    made.p90 = number_of(row, "us_p90");
    made.gbs = number_of(row, "kv_gbs");
    made.tflops = number_of(row, "tflops");
    made.floor_us = number_of(row, "floor_us");
    if (made.batch > 0 && made.prefix > 0 && !add(user, &made))
      status = dw__fail(error, DW_OUT_OF_MEMORY, "memory", "", "", "out of memory");
  }
  json_decref(row);
  return status;
}

dw_status dw__bench_rows_read(const char *text, size_t size, dw__bench_rows *rows, dw_error *error) {
  return dw__lines_read(text, size, take, rows, error);
}

void dw__bench_rows_free(dw__bench_rows *rows) {
  dw__release(rows->list);
  *rows = (dw__bench_rows){0};
}

dw_status dw__fit_rows(const dw__bench_rows *rows, dw__fit_row **list, size_t *count, int *problems, dw_error *error) {
  *count = 0;
  *problems = 0;
  *list = dw__calloc(rows->count + 1, sizeof **list);
  if (!*list) return dw__fail(error, DW_OUT_OF_MEMORY, "memory", "", "", "out of memory");
  for (size_t i = 0; i < rows->count; i++) {
    const dw__bench_row *r = &rows->list[i];
    if (!r->has_variant || !r->cold || !r->plain || dw_variant_applicable(&r->shape, &r->variant, NULL)) continue;
    dw__fit_row made = {.shape = r->shape, .variant = r->variant, .us = r->us, .ranges = r->ranges};
    made.bounds = (dw_bounds){.size = sizeof made.bounds, .batch = r->batch, .kv_len = r->prefix + r->shape.width};
    for (size_t m = 0; m < dw__machine_count && !made.machine; m++)
      if (strstr(r->board, dw__machines[m].name)) made.machine = &dw__machines[m];
    if (!made.machine) continue;
    size_t same = 0;
    while (same < *count && ((*list)[same].machine != made.machine || (*list)[same].bounds.batch != made.bounds.batch ||
                             (*list)[same].bounds.kv_len != made.bounds.kv_len ||
                             memcmp(&(*list)[same].shape, &made.shape, sizeof made.shape) != 0))
      same++;
    made.problem = same < *count ? (*list)[same].problem : (*problems)++;
    (*list)[(*count)++] = made;
  }
  return DW_OK;
}
