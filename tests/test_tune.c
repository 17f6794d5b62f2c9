// Tuning without a GPU: records and plans as texts, the choice and its promises, sweeps over a timer that plants noise, ties, outliers,
// drift and accidents.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <jansson.h>
#include <math.h>

#include "list_tests.h"
#include "plan.h"
#include "support.h"
#include "tune.h"
#include "tune_sweep.h"

// ---- random numbers -------------------------------------------------------------------------------------------

static uint64_t state_of_chance;
static double chance(void) {  // 0 to 1
  state_of_chance = state_of_chance * 6364136223846793005u + 1442695040888963407u;
  return (double)(state_of_chance >> 11) / 9007199254740992.0;
}
static int below(int n) { return (int)(chance() * n); }
static double bell(void) {  // about normal
  double sum = -6;
  for (int i = 0; i < 12; i++) sum += chance();
  return sum;
}

// ---- values ---------------------------------------------------------------------------------------------------

static const dw__board h200 = {"NVIDIA H200", 90, 132, 52428800, 1980, 3201, 700, 0, 1};

static dw_bounds bounds_of(int batch, int kv_len) {
  return (dw_bounds){.size = sizeof(dw_bounds), .batch = batch, .kv_len = kv_len, .sm_count = 132, .call = DW_CALL_TABLE};
}

static dw__tune_record a_record(void) {
  dw__tune_record r = {.date = "2026-11-30T08:15:00Z",
                       .version = "0.1.0",
                       .batch = 8,
                       .kv_len = 23009,
                       .id = 7,
                       .is_default = true,
                       .compiler = "nvrtc 13.0.88",
                       .board = h200,
                       .driver = "580.159.04",
                       .policy = "measure/cold",
                       .n = 41,
                       .us = 101.25,
                       .us_p10 = 100.5,
                       .us_p90 = 102.75,
                       .us_mad = 0.125,
                       .ratio = 1,
                       .verdict = DW__SOUND,
                       .rel_err = 0.0017,
                       .numerics = "rowsplit/auto"};
  const dw_shape shape = shape_of("kimi-k2.6-tp8,t=9,target=sm_90,limits=sm_120");
  const dw_bounds bounds = bounds_of(8, 23009);
  memset(r.build_key, 'a', 64);
  r.key = dw__tune_key_of(&shape, &bounds, h200.l2_bytes);
  r.variant = variant_of("family=rowsplit,n_tiles=5,setmaxnreg=1,combine=few,combine_splits=8,call=table");
  return r;
}

static char *line_of(const dw__tune_record *record) {
  dw__buf text = {0};
  dw__tune_record_print(record, &text);
  assert_false(text.failed);
  return text.data;
}

// ---- keys -----------------------------------------------------------------------------------------------------

static void key_of_neighbours(void **state) {
  (void)state;
  const dw_shape shape = shape_of("kimi-k2.6-tp8");
  const struct {
    int batch, kv_len, bucket, steps, fit;
  } cases[] = {{1, 1, 1, 0, DW__KV_INSIDE},      {1, 1009, 1, 20, DW__KV_INSIDE}, {3, 23009, 4, 29, DW__KV_BEYOND},
               {4, 23009, 4, 29, DW__KV_BEYOND}, {1, 23009, 1, 29, DW__KV_NEAR},  {1, 19500, 1, 29, DW__KV_NEAR},
               {1, 27500, 1, 29, DW__KV_NEAR},   {1, 27600, 1, 30, DW__KV_NEAR},  {8, 1009, 8, 20, DW__KV_INSIDE},
               {5, 185009, 8, 35, DW__KV_BEYOND}};
  for (size_t i = 0; i < DW__COUNT(cases); i++) {
    const dw_bounds bounds = bounds_of(cases[i].batch, cases[i].kv_len);
    const dw__tune_key key = dw__tune_key_of(&shape, &bounds, 50 << 20);
    assert_int_equal(key.batch, cases[i].bucket);
    assert_int_equal(key.kv_steps, cases[i].steps);
    assert_int_equal(key.kv_fit, cases[i].fit);
    assert_int_equal(key.call, DW_CALL_TABLE);
  }
  dw_bounds fixed = bounds_of(1, 1000);
  fixed.split_tokens = 512;
  assert_int_equal(dw__tune_key_of(&shape, &fixed, 0).call, DW_CALL_ANY);  // as the rule table has it
  assert_int_equal(dw__kv_token_bytes(&shape), 1152);
}

static void class_of_numerics(void **state) {
  (void)state;
  char a[64], b[64];
  dw_variant v = variant_of("family=rowsplit,n_tiles=5,setmaxnreg=1,combine=many,combine_splits=32"), w = v;
  w.n_tiles = 3;
  dw__numerics_class(&v, 512, a);
  dw__numerics_class(&w, 512, b);
  assert_string_equal(a, "rowsplit/fixed:512/many:32");
  assert_string_equal(a, b);  // tiles of rows do not reach a row's bits
  w.combine_splits = 16;
  dw__numerics_class(&w, 512, b);
  assert_string_not_equal(a, b);
  dw__numerics_class(&w, 0, b);
  assert_string_equal(b, "rowsplit/auto");
  // The order in which a row adds up is part of FIXED's promise, another product's error of any.
  w.wide_tile = 1;
  dw__numerics_class(&w, 0, b);
  assert_string_equal(b, "rowsplit/auto");
  dw__numerics_class(&w, 512, b);
  assert_string_equal(b, "rowsplit+wide_tile/fixed:512/many:16");
  w.e4m3_mma = 1;
  dw__numerics_class(&w, 0, b);
  assert_string_equal(b, "rowsplit+e4m3_mma/auto");
  w.e4m3_mma = 0;
  w.accumulate = DW_ACCUMULATE_FP16_OUTPUT;
  dw__numerics_class(&w, 0, b);
  assert_string_equal(b, "rowsplit+fp16_output/auto");
  w.accumulate = DW_ACCUMULATE_FP16;
  dw__numerics_class(&w, 512, b);
  assert_string_equal(b, "rowsplit+wide_tile+fp16/fixed:512/many:16");
}

static void candidates_are_those_of_the_problem(void **state) {
  (void)state;
  dw__candidate list[DW__CANDIDATES_MAX];
  size_t count, defaults = 0;
  char text[64];
  const dw_shape shape = shape_of("kimi-k2.6-tp8");
  dw_bounds bounds = bounds_of(8, 23009);
  // Where a pair of CTAs is the default, of its class alone; else not one of that.
  assert_int_equal(dw__candidates(&shape, &bounds, false, list, &count, NULL), DW_OK);
  assert_true(count > 5);
  for (size_t i = 0; i < count; i++) assert_int_equal(list[i].variant.family, DW_DIMSPLIT);
  bounds = bounds_of(8, 1009);
  assert_int_equal(dw__candidates(&shape, &bounds, false, list, &count, NULL), DW_OK);
  assert_true(count > 20);
  for (size_t i = 0; i < count; i++) assert_int_equal(list[i].variant.family, DW_ROWSPLIT);
  for (size_t i = 0; i < count; i++) {
    defaults += list[i].is_default;
    assert_int_equal(list[i].variant.call, DW_CALL_TABLE);
    assert_true(!i || list[i].id > list[i - 1].id);
    assert_int_equal(dw_variant_applicable(&shape, &list[i].variant, NULL), DW_OK);
  }
  assert_int_equal(defaults, 1);
  // FIXED: what varies leaves the bits alone; features are those of the calls.
  bounds.split_tokens = 512;
  bounds.features = DW_WITH_WINDOW;
  assert_int_equal(dw__candidates(&shape, &bounds, false, list, &count, NULL), DW_OK);
  assert_true(count >= 2);
  for (size_t i = 0; i < count; i++) {
    dw__numerics_class(&list[i].variant, 512, text);
    assert_string_equal(text, "rowsplit/fixed:512/many:32");
    assert_int_equal(list[i].variant.window, 1);
  }
  const size_t same = count;
  assert_int_equal(dw__candidates(&shape, &bounds, true, list, &count, NULL), DW_OK);
  assert_true(count > same);
  for (size_t i = 0; i < count; i++) {  // also where a pair of nine row tiles, which has no FIXED ranges, is among the variants
    dw__plan plan;
    assert_int_equal(dw__plan_make(&shape, &list[i].variant, &bounds, &plan, NULL), DW_OK);
  }
}

// ---- records --------------------------------------------------------------------------------------------------

static void record_comes_back(void **state) {
  (void)state;
  dw__tune_record record = a_record(), read;
  snprintf(record.conditions, sizeof record.conditions, "clocks held down by the power cap; 2 other processes");
  snprintf(record.why, sizeof record.why, "a \"quoted\" reason\nof two lines");
  char *line = line_of(&record);
  assert_int_equal(dw__tune_record_parse(line, strlen(line), &read, NULL), DW_OK);
  char *again = line_of(&read);
  assert_string_equal(line, again);
  assert_int_equal(dw__tune_key_compare(&record.key, &read.key), 0);
  assert_memory_equal(&record.variant, &read.variant, sizeof read.variant);
  assert_string_equal(read.why, record.why);
  dw__release(line);
  dw__release(again);
}

// The line with one field changed to JSON text `value`, or removed (NULL).
static char *line_with(const char *name, const char *value) {
  const dw__tune_record record = a_record();
  char *line = line_of(&record);
  json_t *row = json_loads(line, 0, NULL);
  dw__release(line);
  if (value) json_object_set_new(row, name, json_loads(value, JSON_DECODE_ANY, NULL));
  else json_object_del(row, name);
  char *dump = json_dumps(row, JSON_COMPACT | JSON_PRESERVE_ORDER);
  json_decref(row);
  return dump;
}

static void record_is_read_strictly(void **state) {
  (void)state;
  static const struct {
    const char *name, *value, *field;
  } faults[] = {
    {"shape", NULL, "shape"},
    {"n", NULL, "n"},
    {"surplus", "1", "field"},
    {"us", "-1", "us"},
    {"us", "\"1\"", "us"},
    {"n", "1.5", "n"},
    {"batch", "0", "batch"},
    {"batch", "65536", "batch"},
    {"verdict", "\"fine\"", "verdict"},
    {"verdict", "0", "verdict"},
    {"l2", "\"tepid\"", "l2"},
    {"build_key", "\"abc\"", "build_key"},
    {"default", "1", "default"},
    {"shape", "\"mla:h=0,t=1\"", "heads"},
    {"shape", "7", "shape"},
    {"variant", "\"family=none\"", "family"},
    {"date", "\"012345678901234567890123456789012345\"", "date"},
    {"why", "null", "why"},
    {"l2_bytes", "1e20", "l2_bytes"},
  };
  for (size_t i = 0; i < DW__COUNT(faults); i++) {
    dw__tune_record read;
    dw_error error = {0};
    char *line = line_with(faults[i].name, faults[i].value);
    assert_true(dw__tune_record_parse(line, strlen(line), &read, &error) != DW_OK);
    assert_string_equal(error.field, faults[i].field);
    dw_error_clear(&error);
    free(line);
  }
  static const char *const not_lines[] = {"", "7", "[]", "{", "{\"n\":1,\"n\":1}", "nothing"};
  for (size_t i = 0; i < DW__COUNT(not_lines); i++) {
    dw__tune_record read;
    assert_int_equal(dw__tune_record_parse(not_lines[i], strlen(not_lines[i]), &read, NULL), DW_BAD_ARGUMENT);
  }
}

static void journal_cut_by_a_kill(void **state) {
  (void)state;
  const dw__tune_record record = a_record();
  dw__buf text = {0};
  dw__tune_record_print(&record, &text);
  const size_t line = text.size;
  dw__tune_record_print(&record, &text);
  for (size_t size = 0; size <= text.size; size++) {
    dw__tune_records records = {0};
    assert_int_equal(dw__tune_records_read(text.data, size, &records, NULL), DW_OK);
    assert_int_equal(records.count, size / line);
    dw__tune_records_free(&records);
  }
  dw_error error = {0};
  dw__tune_records records = {0};
  text.data[line] = '!';
  assert_int_equal(dw__tune_records_read(text.data, text.size, &records, &error), DW_BAD_ARGUMENT);
  assert_non_null(strstr(error.message, "in line 2"));
  dw__tune_records_free(&records);
  dw_error_clear(&error);
  dw__buf_free(&text);
}

// ---- merging --------------------------------------------------------------------------------------------------

static dw__tune_record random_record(void) {
  static const char *const dates[] = {"2026-11-30T08:00:00Z", "2026-12-01T08:00:00Z", "2026-12-02T08:00:00Z"};
  dw__tune_record r = a_record();
  r.variant.combine_splits = 2 << below(3);
  r.id = r.variant.combine_splits;
  r.is_default = r.id == 4;
  r.key.batch = 1 << below(2);
  r.l2 = below(2);
  r.n = 3 + below(3);
  memcpy(r.date, dates[below(3)], 21);
  r.verdict = below(3) ? DW__SOUND : below(DW__VERDICTS);
  r.ratio = r.is_default ? 1 : 0.9 + 0.01 * below(20);
  r.us = 100 * r.ratio;
  memset(r.build_key, 'a' + below(2), 64);
  return r;
}

static void shuffle(dw__tune_records *records) {
  for (size_t i = records->count; i-- > 1;) {
    const size_t j = (size_t)below((int)i + 1);
    const dw__tune_record kept = records->list[i];
    records->list[i] = records->list[j];
    records->list[j] = kept;
  }
}

static char *text_of(const dw__tune_records *records) {
  dw__buf text = {0};
  dw__buf_puts(&text, "");
  for (size_t i = 0; i < records->count; i++) dw__tune_record_print(&records->list[i], &text);
  return text.data;
}

static void add_all(dw__tune_records *to, const dw__tune_records *from) {
  for (size_t i = 0; i < from->count; i++) assert_true(dw__tune_records_add(to, &from->list[i]));
}

static void merge_knows_no_order(void **state) {
  (void)state;
  state_of_chance = 1;
  for (int trial = 0; trial < 300; trial++) {
    dw__tune_records a = {0}, b = {0}, c = {0};
    const int count = 1 + below(30);
    for (int i = 0; i < count; i++) {
      const dw__tune_record r = random_record();
      dw__tune_records_add(&a, &r);
    }
    add_all(&b, &a);
    shuffle(&b);
    // In two parts, one of them merged before; everything twice.
    for (size_t i = 0; i < b.count / 2; i++) dw__tune_records_add(&c, &b.list[i]);
    add_all(&c, &a);
    dw__tune_records_merge(&a);
    dw__tune_records_merge(&b);
    dw__tune_records_merge(&c);
    char *x = text_of(&a), *y = text_of(&b), *z = text_of(&c);
    assert_string_equal(x, y);
    assert_string_equal(x, z);
    dw__tune_records_merge(&a);
    char *again = text_of(&a);
    assert_string_equal(x, again);
    for (size_t i = 1; i < a.count; i++) {
      const dw__tune_record *p = &a.list[i - 1], *q = &a.list[i];
      assert_true(dw__tune_key_compare(&p->key, &q->key) || memcmp(&p->variant, &q->variant, sizeof p->variant) ||
                  p->l2 != q->l2);
    }
    dw__release(x), dw__release(y), dw__release(z), dw__release(again);
    dw__tune_records_free(&a), dw__tune_records_free(&b), dw__tune_records_free(&c);
  }
}

static void merge_believes_the_worst_of_a_build(void **state) {
  (void)state;
  dw__tune_records records = {0};
  dw__tune_record good = a_record(), crash = a_record(), other = a_record();
  crash.verdict = DW__CRASHED;
  crash.n = 0;
  dw__tune_records_add(&records, &good);
  dw__tune_records_add(&records, &crash);
  dw__tune_records_merge(&records);
  assert_int_equal(records.count, 1);
  assert_int_equal(records.list[0].verdict, DW__CRASHED);
  // A later build that was mended.
  memset(other.build_key, 'b', 64);
  dw__tune_records_add(&records, &other);
  dw__tune_records_merge(&records);
  assert_int_equal(records.count, 1);
  assert_int_equal(records.list[0].verdict, DW__SOUND);
  dw__tune_records_free(&records);
}

// ---- the choice -----------------------------------------------------------------------------------------------

static size_t random_list(dw__measured *list) {
  static const char *const classes[] = {"rowsplit/auto", "split/auto"};
  const size_t count = 1 + (size_t)below(12);
  const bool normal_runs = below(5) != 0;
  for (size_t i = 0; i < count; i++) {
    list[i] = (dw__measured){
      .id = (int)i * 3, .verdict = below(3) ? DW__SOUND : below(DW__VERDICTS), .numerics = classes[below(4) == 0]};
    list[i].ratio = normal_runs ? 0.9 + 0.005 * below(40) : 0;
    list[i].ratio_mad = 0.002 * below(8);
    list[i].us = 50 + 0.5 * below(40);
    list[i].us_mad = 0.1 * below(8);
  }
  dw__measured *normal = &list[below((int)count)];
  normal->is_default = true;
  normal->numerics = classes[0];
  normal->ratio = normal_runs ? 1 : 0;
  normal->ratio_mad = 0;
  if (normal_runs) normal->verdict = DW__SOUND;
  else normal->verdict = DW__CRASHED;
  return count;
}

static void choice_keeps_its_promises(void **state) {
  (void)state;
  state_of_chance = 2;
  int defaults = 0, others = 0, none = 0;
  for (int trial = 0; trial < 20000; trial++) {
    dw__measured list[12], turned[12];
    const size_t count = random_list(list);
    const bool any = below(3) == 0;
    const int chosen = dw__tune_choose(list, count, any);
    const dw__measured *normal = NULL, *best = NULL;
    for (size_t i = 0; i < count; i++) normal = list[i].is_default ? &list[i] : normal;
    const bool by_ratio = normal->verdict == DW__SOUND;
    for (size_t i = 0; i < count; i++) {  // in words of its own: the least of those that may be taken
      if (list[i].verdict != DW__SOUND || (!any && strcmp(list[i].numerics, normal->numerics))) continue;
      const double value = by_ratio ? list[i].ratio : list[i].us, least = best ? by_ratio ? best->ratio : best->us : INFINITY;
      const double noise = by_ratio ? list[i].ratio_mad : list[i].us_mad,
                   its = best ? by_ratio ? best->ratio_mad : best->us_mad : 0;
      if (value < least || (value == least && noise < its)) best = &list[i];
    }
    assert_true((chosen < 0) == !best);
    // The list's order does not matter.
    for (size_t i = 0; i < count; i++) turned[i] = list[count - 1 - i];
    const int other = dw__tune_choose(turned, count, any);
    if (!best) {
      none++;
      continue;
    }
    const dw__measured *c = &list[chosen];
    assert_int_equal(turned[other].id, c->id);
    assert_int_equal(c->verdict, DW__SOUND);
    assert_true(any || !strcmp(c->numerics, normal->numerics));
    const double value = by_ratio ? c->ratio : c->us, least = by_ratio ? best->ratio : best->us;
    const double noise = by_ratio ? best->ratio_mad : best->us_mad, room = fmax(0.01 * least, 2 * noise);
    assert_true(value <= least + room);
    if (by_ratio && 1 <= least + room) assert_true(c->is_default);  // the default wins ties
    if (by_ratio && !c->is_default) assert_true(c->ratio < 1);      // and is never lost to
    for (size_t i = 0; i < count && !c->is_default; i++) {          // the lowest id of a tie
      if (list[i].verdict != DW__SOUND || (!any && strcmp(list[i].numerics, normal->numerics))) continue;
      if ((by_ratio ? list[i].ratio : list[i].us) <= least + room) assert_true(list[i].id >= c->id);
    }
    c->is_default ? defaults++ : others++;
  }
  assert_true(defaults > 1000 && others > 1000 && none > 10);  // the trials were of all kinds
}

// ---- plans ----------------------------------------------------------------------------------------------------

static void random_choices(dw__choices *choices) {
  dw__tune_records records = {0};
  for (int i = 0; i < 40; i++) {
    dw__tune_record r = random_record();
    r.key.kv_steps = 20 + below(4);
    dw__tune_records_add(&records, &r);
  }
  dw__tune_records_merge(&records);
  assert_int_equal(dw__choices_make(&records, DW__COLD, false, choices, NULL), DW_OK);
  dw__tune_records_free(&records);
}

static void plan_comes_back(void **state) {
  (void)state;
  state_of_chance = 3;
  for (int trial = 0; trial < 50; trial++) {
    dw__choices made = {0}, read = {0};
    dw__buf text = {0}, again = {0};
    random_choices(&made);
    assert_true(made.count > 0);
    assert_true(dw__choices_print(&made, &text));
    assert_int_equal(dw__choices_read(text.data, text.size, &read, NULL), DW_OK);
    assert_true(dw__choices_print(&read, &again));
    assert_string_equal(text.data, again.data);
    dw__choices_free(&made), dw__choices_free(&read);
    dw__buf_free(&text), dw__buf_free(&again);
  }
}

static void plan_that_was_changed_is_refused(void **state) {
  (void)state;
  dw__choices made = {0}, read = {0};
  dw__buf text = {0};
  dw_error error = {0};
  state_of_chance = 4;
  random_choices(&made);
  dw__choices_print(&made, &text);
  // Another variant.
  char *splits = strstr(text.data, "combine_splits=");
  splits[strlen("combine_splits=")] ^= 6;
  assert_int_equal(dw__choices_read(text.data, text.size, &read, &error), DW_BAD_ARGUMENT);
  assert_string_equal(error.field, "digest");
  splits[strlen("combine_splits=")] ^= 6;
  dw_error_clear(&error);
  // A line less, a line twice, no head, nothing.
  size_t last = text.size - 1;
  while (text.data[last - 1] != '\n') last--;
  assert_int_equal(dw__choices_read(text.data, last, &read, &error), DW_BAD_ARGUMENT);
  assert_string_equal(error.field, "choices");
  dw_error_clear(&error);
  dw__buf twice = {0};
  dw__buf_append(&twice, text.data, text.size);
  dw__buf_append(&twice, text.data + last, text.size - last);
  assert_int_equal(dw__choices_read(twice.data, twice.size, &read, &error), DW_BAD_ARGUMENT);
  assert_string_equal(error.found, "a problem that was there before");
  dw_error_clear(&error);
  assert_int_equal(dw__choices_read(strchr(text.data, '\n') + 1, 10, &read, NULL), DW_BAD_ARGUMENT);
  assert_int_equal(dw__choices_read("", 0, &read, NULL), DW_BAD_ARGUMENT);
  assert_int_equal(read.count, 0);
  dw__buf_free(&text), dw__buf_free(&twice);
  dw__choices_free(&made);
}

static void digest_is_of_choices_alone(void **state) {
  (void)state;
  dw__choices a = {0}, b = {0};
  state_of_chance = 5;
  random_choices(&a);
  dw__choices_add(&b, &a, true);
  b.list[0].us *= 2;
  b.list[0].n++;
  b.list[0].board.power_watts = 300;
  dw__digest x = dw__choices_digest(&a), y = dw__choices_digest(&b);
  assert_memory_equal(&x, &y, sizeof x);
  b.list[0].variant.n_tiles = 1;
  y = dw__choices_digest(&b);
  assert_memory_not_equal(&x, &y, sizeof x);
  dw__choices_free(&a), dw__choices_free(&b);
}

static void plans_are_joined(void **state) {
  (void)state;
  dw__choices a = {0}, b = {0}, c = {0};
  state_of_chance = 6;
  random_choices(&a);
  dw__choices_add(&b, &a, true);
  for (size_t i = 0; i < b.count; i++) b.list[i].predicted = true, b.list[i].variant.n_tiles = 1;
  dw__choices_add(&c, &b, true);
  dw__choices_add(&c, &a, false);  // measured goes before predicted
  dw__digest x = dw__choices_digest(&a), z = dw__choices_digest(&c);
  assert_memory_equal(&x, &z, sizeof x);
  dw__choices_add(&c, &b, true);  // and stays
  z = dw__choices_digest(&c);
  assert_memory_equal(&x, &z, sizeof x);
  dw__choices_free(&a), dw__choices_free(&b), dw__choices_free(&c);
}

// ---- the nearest ----------------------------------------------------------------------------------------------

static dw__plan_choice choice_for(const char *shape, int batch, int kv_len, const dw__board *board, int n_tiles) {
  const dw_shape s = shape_of(shape);
  const dw_bounds bounds = bounds_of(batch, kv_len);
  dw__plan_choice c = {.board = *board, .batch = batch, .kv_len = kv_len, .key = dw__tune_key_of(&s, &bounds, board->l2_bytes)};
  c.variant = variant_of("family=rowsplit,combine=many,combine_splits=32,call=table");
  c.variant.n_tiles = n_tiles;
  return c;
}

static void nearest_comes_first(void **state) {
  (void)state;
  dw__board other = h200, far = h200;
  snprintf(other.name, sizeof other.name, "NVIDIA H100");
  far.cc = 120;
  const dw__plan_choice list[] = {
    choice_for("kimi-k2.6-tp8,t=9", 8, 23009, &h200, 1),   choice_for("kimi-k2.6-tp8,t=12", 8, 23012, &h200, 2),
    choice_for("kimi-k2.6-tp8,t=17", 8, 23017, &other, 3), choice_for("kimi-k2.6-tp4,t=9", 8, 23009, &h200, 4),
    choice_for("kimi-k2.6-tp8,t=33", 8, 23009, &far, 5),
  };
  const struct {
    const char *shape;
    int batch, kv_len, n_tiles;
    dw__nearness near;
  } cases[] = {
    {"kimi-k2.6-tp8,t=9", 8, 23009, 1, DW__SAME_PROBLEM},
    {"kimi-k2.6-tp8,t=9", 7, 20000, 1, DW__SAME_PROBLEM},
    {"kimi-k2.6-tp8,t=9", 8, 30000, 1, DW__NEAR_SHAPE},
    {"kimi-k2.6-tp8,t=9", 16, 23009, 1, DW__NEAR_SHAPE},
    {"kimi-k2.6-tp8,t=10", 8, 23009, 1, DW__NEAR_SHAPE},
    {"kimi-k2.6-tp8,t=11", 8, 23009, 2, DW__NEAR_SHAPE},
    {"kimi-k2.6-tp8,t=17", 8, 23009, 2, DW__NEAR_SHAPE},
    {"kimi-k2.6-tp8,t=20", 8, 23009, 3, DW__NEAR_GPU},
    {"kimi-k2.6-tp8,t=33", 8, 23009, 0, DW__NOT_NEAR},
    {"kimi-k2.6-tp8,t=9", 8, 60000, 0, DW__NOT_NEAR},
    {"kimi-k2.6-tp8,t=9", 1, 23009, 0, DW__NOT_NEAR},
    {"kimi-k2.6-tp8,t=9,page=64", 8, 23009, 1, DW__NEAR_SHAPE},
    {"kimi-k2.6-tp8,t=9,q=fp16,kv=fp16", 8, 23009, 0, DW__NOT_NEAR},
  };
  dw__choices choices = {0};
  for (size_t i = 0; i < DW__COUNT(list); i++) {
    dw__choices one = {(dw__plan_choice *)&list[i], 1, 1};
    assert_true(dw__choices_add(&choices, &one, true));
  }
  for (size_t i = 0; i < DW__COUNT(cases); i++) {
    dw__nearness near;
    const dw_shape shape = shape_of(cases[i].shape);
    const dw_bounds bounds = bounds_of(cases[i].batch, cases[i].kv_len);
    const dw__tune_key key = dw__tune_key_of(&shape, &bounds, h200.l2_bytes);
    const dw__plan_choice *found = dw__choices_find(&choices, &h200, &key, &near);
    assert_int_equal(near, cases[i].near);
    assert_int_equal(found ? found->variant.n_tiles : 0, cases[i].n_tiles);
  }
  dw__choices_free(&choices);
}

// ---- sweeps over a timer that plants what a GPU does ----------------------------------------------------------

typedef struct planted {
  double us[DW__CANDIDATES_MAX];  // the truth
  int accident[DW__CANDIDATES_MAX];
  double noise, outliers, drift;  // relative; share; of the clock's speed a second
  double call_seconds;
  double clock;
  int calls;
} planted;

static dw_status plant_prepare(void *user, const dw__candidate *c, dw__trial *trial, dw_error *error) {
  (void)error;
  planted *p = user;
  p->clock += 0.05;
  trial->verdict = p->accident[c->id];
  trial->rel_err = 0.002;
  return DW_OK;
}

static dw_status plant_time(void *user, const dw__candidate *c, dw__l2_state l2, dw__trial *trial, dw_error *error) {
  (void)error;
  planted *p = user;
  double us = p->us[c->id] * (1 + p->noise * bell()) * (1 + p->drift * p->clock);
  if (chance() < p->outliers) us *= 1.5 + 4 * chance();
  p->clock += p->call_seconds;
  p->calls++;
  trial->us = l2 == DW__WARM ? us * 0.8 : us;
  return DW_OK;
}

static double plant_now(void *user) { return ((planted *)user)->clock; }

// The choice of a sweep over `count` candidates, of which `normal` is the default.
static int sweep_once(planted *p, size_t count, size_t normal, int effort, double budget, dw__result *results) {
  dw__candidate list[DW__CANDIDATES_MAX] = {0};
  dw__measured measured[DW__CANDIDATES_MAX];
  const dw__timer timer = {p, plant_prepare, plant_time, plant_now, NULL};
  p->clock = 0;
  const dw__sweep_policy policy = {.effort = effort, .decides = DW__COLD, .deadline = budget};
  for (size_t i = 0; i < count; i++) list[i] = (dw__candidate){.id = (int)i, .is_default = i == normal};
  assert_int_equal(dw__sweep(&timer, &policy, list, count, results, NULL), DW_OK);
  for (size_t i = 0; i < count; i++) {
    const dw__times *t = &results[i].times[DW__COLD];
    measured[i] =
      (dw__measured){(int)i, i == normal, results[i].verdict, t->ratio, t->ratio_mad, t->us, t->mad, "rowsplit/auto"};
  }
  return dw__tune_choose(measured, count, false);
}

static double least_of(const planted *p, size_t count) {
  double least = INFINITY;
  for (size_t i = 0; i < count; i++)
    if (p->accident[i] == DW__SOUND) least = fmin(least, p->us[i]);
  return least;
}

static void sweep_finds_the_best(void **state) {
  (void)state;
  static dw__result results[DW__CANDIDATES_MAX];
  state_of_chance = 7;
  for (int trial = 0; trial < 400; trial++) {
    planted p = {.noise = 0.004, .outliers = trial % 3 ? 0.1 : 0, .drift = trial % 2 ? 0.02 : -0.005, .call_seconds = 0.001};
    const size_t count = 2 + (size_t)below(30), normal = (size_t)below((int)count);
    for (size_t i = 0; i < count; i++) p.us[i] = 50 * (1 + 0.6 * chance());
    const int chosen = sweep_once(&p, count, normal, trial % 4 == 3 ? DW_EXHAUSTIVE : DW_MEASURE, 1000, results);
    assert_in_range(chosen, 0, count - 1);
    assert_true(p.us[chosen] <= 1.02 * least_of(&p, count));
    assert_true(p.us[chosen] <= 1.005 * p.us[normal]);
    assert_true(results[normal].verdict == DW__SOUND && results[normal].times[DW__COLD].ratio == 1);
  }
}

static void c28_ties_go_to_the_default(void **state) {
  (void)state;
  static dw__result results[DW__CANDIDATES_MAX];
  state_of_chance = 8;
  int same = 0;
  for (int run = 0; run < 200; run++) {
    planted p = {.noise = 0.01, .outliers = 0.05, .call_seconds = 0.001};
    for (size_t i = 0; i < 24; i++) p.us[i] = i < 12 ? 40 : 60;
    same += sweep_once(&p, 24, 5, DW_MEASURE, 1000, results) == 5;
  }
  assert_true(same >= 190);
}

// The default is slower; of the equal ones the lowest id.
static void ties_without_the_default(void **state) {
  (void)state;
  static dw__result results[DW__CANDIDATES_MAX];
  state_of_chance = 9;
  int same = 0;
  for (int run = 0; run < 200; run++) {
    planted p = {.noise = 0.004, .call_seconds = 0.001};
    for (size_t i = 0; i < 24; i++) p.us[i] = i < 20 && i > 3 ? 40 : 60;
    same += sweep_once(&p, 24, 1, DW_MEASURE, 1000, results) == 4;
  }
  assert_true(same >= 190);
}

// Two sweeps of one truth: the same choice, or two that tie in both.
static void two_sweeps_agree(void **state) {
  (void)state;
  static dw__result a[DW__CANDIDATES_MAX], b[DW__CANDIDATES_MAX];
  state_of_chance = 10;
  int same = 0;
  for (int trial = 0; trial < 200; trial++) {
    planted p = {.noise = 0.004, .outliers = 0.05, .drift = 0.01, .call_seconds = 0.001};
    const size_t count = 24, normal = 11;
    for (size_t i = 0; i < count; i++) p.us[i] = 50 * (1 + 0.4 * chance() * chance());
    const int x = sweep_once(&p, count, normal, DW_MEASURE, 1000, a), y = sweep_once(&p, count, normal, DW_MEASURE, 1000, b);
    same += x == y;
    if (x == y) continue;
    assert_true(fabs(p.us[x] / p.us[y] - 1) < 0.02);
  }
  assert_true(same > 120);
}

static void accidents_are_never_chosen(void **state) {
  (void)state;
  static dw__result results[DW__CANDIDATES_MAX];
  state_of_chance = 11;
  for (int trial = 0; trial < 200; trial++) {
    planted p = {.noise = 0.004, .call_seconds = 0.001};
    const size_t count = 12, normal = (size_t)below(12);
    for (size_t i = 0; i < count; i++) {
      p.us[i] = 50 * (1 + 0.3 * chance());
      if (below(3) == 0) {
        static const int kinds[] = {DW__WRONG, DW__CRASHED, DW__HUNG, DW__UNBUILT};
        p.accident[i] = kinds[below(4)];
        p.us[i] /= 10;  // the fastest of all, if it were right
      }
    }
    const int chosen = sweep_once(&p, count, normal, DW_MEASURE, 1000, results);
    const double least = least_of(&p, count);
    if (isinf(least)) {
      assert_int_equal(chosen, -1);
      continue;
    }
    assert_int_equal(p.accident[chosen], DW__SOUND);
    assert_true(p.us[chosen] <= 1.02 * least);
    for (size_t i = 0; i < count; i++)
      if (p.accident[i] != DW__SOUND) assert_int_equal(results[i].verdict, p.accident[i]);
  }
}

// A deadline: soon over, with the default at least; what was not measured is not judged.
static void c29_sweep_keeps_its_budget(void **state) {
  (void)state;
  static dw__result results[DW__CANDIDATES_MAX];
  state_of_chance = 12;
  for (int trial = 0; trial < 200; trial++) {
    planted p = {.noise = 0.004, .call_seconds = 0.02 + 0.1 * chance()};
    const double budget = 0.2 + 20 * chance();
    for (size_t i = 0; i < 30; i++) p.us[i] = 50 * (1 + 0.6 * chance());
    const int chosen = sweep_once(&p, 30, 17, DW_EXHAUSTIVE, budget, results);
    assert_true(p.clock <= budget + 0.12);
    if (chosen >= 0) {
      assert_true(p.us[chosen] <= 1.02 * p.us[17]);
      assert_true(results[chosen].times[DW__COLD].n >= 3);
    } else {
      assert_true(budget < 30);
    }
    for (size_t i = 0; i < 30; i++)
      if (results[i].verdict == DW__SOUND) assert_true(results[i].times[DW__COLD].n >= 3);
  }
}

static void pruning_keeps_the_default(void **state) {
  (void)state;
  state_of_chance = 13;
  for (int trial = 0; trial < 500; trial++) {
    dw__candidate list[64] = {0};
    bool kept[64];
    double best = INFINITY;
    const size_t count = 1 + (size_t)below(64), normal = (size_t)below((int)count);
    for (size_t i = 0; i < count; i++) {
      list[i].predicted_us = 10 + 10 * below(9);
      list[i].is_default = i == normal;
      best = fmin(best, list[i].predicted_us);
    }
    size_t counts[3] = {0};
    for (int effort = DW_QUICK; effort <= DW_EXHAUSTIVE; effort++) {
      bool with_best = false;
      dw__sweep_prune(list, count, effort, kept);
      for (size_t i = 0; i < count; i++) {
        counts[effort] += kept[i];
        with_best |= kept[i] && list[i].predicted_us == best;
      }
      assert_true(kept[normal] && with_best);
    }
    assert_true(counts[0] <= 13 && counts[0] <= counts[1] && counts[1] <= counts[2] && counts[2] == count);
  }
}

static int stop_at_once(void *user, const dw__candidate *c, size_t prepared, size_t alive, int rounds) {
  (void)user, (void)c, (void)prepared, (void)alive, (void)rounds;
  return 1;
}

static void sweep_can_be_stopped(void **state) {
  (void)state;
  planted p = {.call_seconds = 0.001};
  dw__candidate list[2] = {{.id = 0, .is_default = true}, {.id = 1}};
  dw__result results[2];
  const dw__timer timer = {&p, plant_prepare, plant_time, plant_now, stop_at_once};
  dw__sweep_policy policy = {.effort = DW_QUICK, .deadline = 100};
  p.us[0] = p.us[1] = 1;
  assert_int_equal(dw__sweep(&timer, &policy, list, 2, results, NULL), DW_CANCELLED);
  assert_int_equal(p.calls, 0);
  // What cannot be swept.
  dw_error error = {0};
  list[0].is_default = false;
  assert_int_equal(dw__sweep(&timer, &policy, list, 2, results, &error), DW_BAD_ARGUMENT);
  assert_string_equal(error.field, "candidates");
  dw_error_clear(&error);
  list[0].is_default = true;
  policy.effort = 3;
  assert_int_equal(dw__sweep(&timer, &policy, list, 2, results, &error), DW_BAD_ARGUMENT);
  assert_string_equal(error.field, "effort");
  dw_error_clear(&error);
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(key_of_neighbours),
    cmocka_unit_test(class_of_numerics),
    cmocka_unit_test(candidates_are_those_of_the_problem),
    cmocka_unit_test(record_comes_back),
    cmocka_unit_test(record_is_read_strictly),
    cmocka_unit_test(journal_cut_by_a_kill),
    cmocka_unit_test(merge_knows_no_order),
    cmocka_unit_test(merge_believes_the_worst_of_a_build),
    cmocka_unit_test(choice_keeps_its_promises),
    cmocka_unit_test(plan_comes_back),
    cmocka_unit_test(plan_that_was_changed_is_refused),
    cmocka_unit_test(digest_is_of_choices_alone),
    cmocka_unit_test(plans_are_joined),
    cmocka_unit_test(nearest_comes_first),
    cmocka_unit_test(sweep_finds_the_best),
    cmocka_unit_test(c28_ties_go_to_the_default),
    cmocka_unit_test(ties_without_the_default),
    cmocka_unit_test(two_sweeps_agree),
    cmocka_unit_test(accidents_are_never_chosen),
    cmocka_unit_test(c29_sweep_keeps_its_budget),
    cmocka_unit_test(pruning_keeps_the_default),
    cmocka_unit_test(sweep_can_be_stopped),
  };
  if (list_tests(argc, argv, tests, DW__COUNT(tests))) return 0;
  return cmocka_run_group_tests(tests, NULL, NULL);
}
