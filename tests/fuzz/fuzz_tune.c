// What tuning leaves behind: lines of records, lines of a plan, and a plan whole.
#include "fuzz.h"
#include "tune.h"

long fuzz_accepted;

// What was accepted is written the same way ever after.
static void try_record(const char *line, size_t size) {
  dw__tune_record record, again;
  dw__buf first = {0}, second = {0};
  dw_status status = dw__tune_record_parse(line, size, &record, NULL);
  FUZZ_CHECK(status == DW_OK || status == DW_BAD_ARGUMENT || status == DW_BAD_SHAPE);
  if (status) return;
  fuzz_accepted++;
  dw__tune_record_print(&record, &first);
  FUZZ_CHECK(dw__tune_record_parse(first.data, first.size - 1, &again, NULL) == DW_OK);
  dw__tune_record_print(&again, &second);
  FUZZ_CHECK(first.size == second.size && !memcmp(first.data, second.data, first.size));
  dw__buf_free(&first);
  dw__buf_free(&second);
}

static void try_choice(const char *line, size_t size) {
  dw__plan_choice choice;
  dw__choices one = {&choice, 1, 1}, read = {0};
  dw__buf text = {0};
  if (dw__plan_choice_parse(line, size, &choice, NULL) || dw_variant_applicable(&choice.key.shape, &choice.variant, NULL))
    return;
  fuzz_accepted++;
  FUZZ_CHECK(dw__choices_print(&one, &text));
  FUZZ_CHECK(dw__choices_read(text.data, text.size, &read, NULL) == DW_OK && read.count == 1);
  dw__choices_free(&read);
  dw__buf_free(&text);
}

static void try_files(const char *text, size_t size) {
  dw__tune_records records = {0};
  dw__choices choices = {0};
  if (!dw__tune_records_read(text, size, &records, NULL)) {
    const size_t count = records.count;
    dw__tune_records_merge(&records);
    FUZZ_CHECK(records.count <= count);
    FUZZ_CHECK(dw__choices_make(&records, DW__COLD, false, &choices, NULL) == DW_OK && choices.count <= records.count);
    dw__choices_free(&choices);
  }
  dw__tune_records_free(&records);
  if (!dw__choices_read(text, size, &choices, NULL)) fuzz_accepted++;
  dw__choices_free(&choices);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const char *text = (const char *)data;
  size_t line = 0;
  while (line < size && text[line] != '\n') line++;
  try_record(text, line);
  try_choice(text, line);
  try_files(text, size);
  return 0;
}

void fuzz_seeds(const char *folder) {
  dw__tune_record r = {.date = "2026-11-30T08:15:00Z",
                       .version = "0.1.0",
                       .batch = 8,
                       .kv_len = 23009,
                       .id = 7,
                       .compiler = "nvrtc 13",
                       .board = {"NVIDIA H200", 90, 132, 52428800, 1980, 3201, 700, 0, 1},
                       .driver = "580",
                       .policy = "measure/cold",
                       .n = 41,
                       .us = 101.25,
                       .us_p10 = 100,
                       .us_p90 = 102,
                       .us_mad = 0.125,
                       .ratio = 1,
                       .is_default = true,
                       .rel_err = 0.0017,
                       .numerics = "rowsplit/auto"};
  const dw_bounds bounds = {.size = sizeof bounds, .batch = 8, .kv_len = 23009};
  dw__buf text = {0}, plan = {0}, line = {0};
  dw__tune_records records = {0};
  dw__choices choices = {0};
  FUZZ_CHECK(!dw_shape_parse("kimi-k2.6-tp8,t=4,target=sm_90,limits=sm_120", &r.key.shape, NULL));
  r.key = dw__tune_key_of(&r.key.shape, &bounds, r.board.l2_bytes);
  FUZZ_CHECK(!dw_variant_parse("family=rowsplit,n_tiles=2,combine=few,combine_splits=8", &r.variant, NULL));
  dw__tune_record_print(&r, &text);
  FUZZ_CHECK(dw__tune_records_add(&records, &r));
  FUZZ_CHECK(!dw__choices_make(&records, DW__COLD, false, &choices, NULL) && choices.count == 1);
  FUZZ_CHECK(dw__choices_print(&choices, &plan));
  dw__plan_choice_print(&choices.list[0], &line);
  fuzz_write_seed(folder, "record", text.data, text.size);
  fuzz_write_seed(folder, "plan", plan.data, plan.size);
  fuzz_write_seed(folder, "choice", line.data, line.size);
  dw__tune_records_free(&records);
  dw__choices_free(&choices);
  dw__buf_free(&text), dw__buf_free(&plan), dw__buf_free(&line);
}
