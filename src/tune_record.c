// Problems and records: keys, and records as JSON lines. One table is the list of a record's fields for writing and for strict reading.
#include <ctype.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rule.h"
#include "tune.h"

// ---- the GPU --------------------------------------------------------------------------------------------------

void dw__board_id(const dw__board *board, char text[192]) {
  char *to = text;
  for (const char *from = board->name; *from && to - text < 127; from++) {
    if (isalnum((unsigned char)*from)) *to++ = (char)tolower((unsigned char)*from);
    else if (to > text && to[-1] != '-') *to++ = '-';
  }
  snprintf(to, 64, "-sm%d-%d-%lld", board->cc, board->sm_count, (long long)(board->l2_bytes >> 20));
}

bool dw__board_same(const dw__board *a, const dw__board *b) {
  return !strcmp(a->name, b->name) && a->cc == b->cc && a->sm_count == b->sm_count && a->l2_bytes == b->l2_bytes;
}

// ---- problems -------------------------------------------------------------------------------------------------

int64_t dw__kv_token_bytes(const dw_shape *shape) {
  const int64_t elements =
    shape->attention == DW_MLA ? dw__kv_record(shape) : (int64_t)shape->kv_heads * (shape->head_dim_qk + shape->head_dim_v);
  return elements * (int64_t)dw__dtype_size(shape->kv);
}

dw__tune_key dw__tune_key_of(const dw_shape *shape, const dw_bounds *bounds, int64_t l2_bytes) {
  dw__tune_key key;
  memset(&key, 0, sizeof key);
  key.shape = *shape;
  for (key.batch = 1; key.batch < bounds->batch;) key.batch *= 2;
  key.kv_steps = (int)lround(2 * log2(bounds->kv_len > 1 ? bounds->kv_len : 1));
  // Of the bucket, not of the problem: within a bucket nothing changes.
  const double bytes = exp2(key.kv_steps / 2.0) * key.batch * (double)dw__kv_token_bytes(shape);
  key.kv_fit = l2_bytes <= 0 || bytes > 2.0 * (double)l2_bytes ? DW__KV_BEYOND
               : bytes > 0.5 * (double)l2_bytes                ? DW__KV_NEAR
                                                               : DW__KV_INSIDE;
  key.call = bounds->split_tokens ? DW_CALL_ANY : (int)bounds->call;
  key.features = bounds->features;
  key.split_tokens = bounds->split_tokens;
  return key;
}

// Structs of ints and small arrays, without gaps: their ints, then what is left, decide.
int dw__tune_key_compare(const dw__tune_key *a, const dw__tune_key *b) {
  const int *x = (const int *)a, *y = (const int *)b;
  for (size_t i = 0; i < sizeof *a / sizeof(int); i++)
    if (x[i] != y[i]) return x[i] < y[i] ? -1 : 1;
  return 0;
}
_Static_assert(sizeof(dw__tune_key) == sizeof(dw_shape) + 6 * sizeof(int), "no gaps");

void dw__numerics_class(const dw_variant *variant, int split_tokens, char text[64]) {
  const char *family = dw__name_of(dw__family_names, variant->family);
  const char *plus = variant->e4m3_mma || variant->accumulate ? "+" : "";
  const char *products = variant->e4m3_mma     ? "e4m3_mma"
                         : variant->accumulate ? dw__name_of(dw__accumulate_names, variant->accumulate)
                                               : "";
  if (!split_tokens) snprintf(text, 64, "%s%s%s/auto", family, plus, products);
  else
    snprintf(text, 64, "%s%s%s%s/fixed:%d/%s:%d", family, variant->wide_tile ? "+wide_tile" : "", plus, products, split_tokens,
             dw__name_of(dw__combine_names, variant->combine), variant->combine_splits);
}

// ---- candidates -----------------------------------------------------------------------------------------------

static bool same_class(const dw_variant *a, const dw_variant *b, int split_tokens) {
  char one[64], other[64];
  dw__numerics_class(a, split_tokens, one);
  dw__numerics_class(b, split_tokens, other);
  return !strcmp(one, other);
}

dw_status dw__candidates(const dw_shape *shape, const dw_bounds *bounds, bool any_numerics, dw__candidate *list, size_t *count,
                         dw_error *error) {
  dw_variant normal, variant;
  dw_status status = dw_variant_choose(shape, bounds, &normal, error);
  bool with_default = false;
  *count = 0;
  if (status) return status;
  for (size_t i = 0; *count < DW__CANDIDATES_MAX - 1 && dw_variant_enumerate(shape, i, &variant) == DW_OK; i++) {
    dw__variant_add_features(&variant, bounds->features);
    if (variant.call != normal.call || dw_variant_applicable(shape, &variant, NULL)) continue;
    if (!dw__variant_fixed_ok(&variant, bounds->split_tokens, NULL)) continue;
    if (!any_numerics && !same_class(&variant, &normal, bounds->split_tokens)) continue;
    const bool is_default = !memcmp(&variant, &normal, sizeof variant);
    with_default |= is_default;
    list[(*count)++] = (dw__candidate){.variant = variant, .id = (int)i, .is_default = is_default};
  }
  // A FIXED split's own merge is none of the enumerated ones.
  if (!with_default) list[(*count)++] = (dw__candidate){.variant = normal, .id = 1 << 20, .is_default = true};
  return DW_OK;
}

// ---- a record's fields ----------------------------------------------------------------------------------------

const dw__name dw__verdict_names[] = {{"sound", DW__SOUND},
                                      {"slower", DW__SLOWER},
                                      {"wrong", DW__WRONG},
                                      {"crashed", DW__CRASHED},
                                      {"hung", DW__HUNG},
                                      {"unbuilt", DW__UNBUILT},
                                      {NULL, 0}};
const dw__name dw__l2_names[] = {{"cold", DW__COLD}, {"warm", DW__WARM}, {NULL, 0}};
static const dw__name kv_fit_names[] = {{"inside", DW__KV_INSIDE}, {"near", DW__KV_NEAR}, {"beyond", DW__KV_BEYOND}, {NULL, 0}};

typedef enum kind { TEXT, HEX, WORD, INT, INT64, REAL, FLAG, SHAPE, VARIANT } kind;
typedef struct field {
  const char *name;
  kind kind;
  size_t offset, size;  // size: of a text
  double least, most;   // of numbers
  const dw__name *words;
} field;

#define AT(member) offsetof(dw__tune_record, member), sizeof(((dw__tune_record *)0)->member)
#define MOST_INT 2147483647.0
// The problem and its variant, which records and choices tell alike; AT is the one of the table.
// clang-format off
#define PROBLEM_FIELDS \
  {"shape", SHAPE, AT(key.shape), 0, 0, NULL}, \
  {"batch", INT, AT(batch), 1, 65535, NULL}, \
  {"kv_len", INT, AT(kv_len), 1, 1 << 24, NULL}, \
  {"batch_bucket", INT, AT(key.batch), 1, 65536, NULL}, \
  {"kv_bucket", INT, AT(key.kv_steps), 0, 48, NULL}, \
  {"kv_fit", WORD, AT(key.kv_fit), 0, 0, kv_fit_names}, \
  {"call", WORD, AT(key.call), 0, 0, dw__call_names}, \
  {"features", INT, AT(key.features), 0, 15, NULL}, \
  {"split_tokens", INT, AT(key.split_tokens), 0, MOST_INT, NULL}, \
  {"variant", VARIANT, AT(variant), 0, 0, NULL}
// clang-format on
static const field fields[] = {
  {"date", TEXT, AT(date), 0, 0, NULL},
  {"draftwood", TEXT, AT(version), 0, 0, NULL},
  PROBLEM_FIELDS,
  {"id", INT, AT(id), 0, 1 << 20, NULL},
  {"default", FLAG, AT(is_default), 0, 0, NULL},
  {"build_key", HEX, AT(build_key), 0, 0, NULL},
  {"compiler", TEXT, AT(compiler), 0, 0, NULL},
  {"gpu", TEXT, AT(board.name), 0, 0, NULL},
  {"cc", INT, AT(board.cc), 50, 999, NULL},
  {"sms", INT, AT(board.sm_count), 1, 4096, NULL},
  {"l2_bytes", INT64, AT(board.l2_bytes), 0, 1e12, NULL},
  {"sm_mhz", INT, AT(board.sm_mhz), 0, 100000, NULL},
  {"memory_mhz", INT, AT(board.memory_mhz), 0, 100000, NULL},
  {"power_watts", INT, AT(board.power_watts), 0, 100000, NULL},
  {"mig", INT, AT(board.mig), -1, 1, NULL},
  {"ecc", INT, AT(board.ecc), -1, 1, NULL},
  {"driver", TEXT, AT(driver), 0, 0, NULL},
  {"policy", TEXT, AT(policy), 0, 0, NULL},
  {"l2", WORD, AT(l2), 0, 0, dw__l2_names},
  {"n", INT, AT(n), 0, 1 << 20, NULL},
  {"us", REAL, AT(us), 0, 1e12, NULL},
  {"us_p10", REAL, AT(us_p10), 0, 1e12, NULL},
  {"us_p90", REAL, AT(us_p90), 0, 1e12, NULL},
  {"us_mad", REAL, AT(us_mad), 0, 1e12, NULL},
  {"ratio", REAL, AT(ratio), 0, 1e12, NULL},
  {"ratio_mad", REAL, AT(ratio_mad), 0, 1e12, NULL},
  {"verdict", WORD, AT(verdict), 0, 0, dw__verdict_names},
  {"rel_err", REAL, AT(rel_err), -1, 1e30, NULL},
  {"numerics", TEXT, AT(numerics), 0, 0, NULL},
  {"conditions", TEXT, AT(conditions), 0, 0, NULL},
  {"why", TEXT, AT(why), 0, 0, NULL},
};
#undef AT

// Of a choice in a plan; tune_choice.c reads and writes it by the same functions.
#define AT(member) offsetof(dw__plan_choice, member), sizeof(((dw__plan_choice *)0)->member)
static const field choice_fields[] = {
  {"gpu", TEXT, AT(board.name), 0, 0, NULL},
  {"cc", INT, AT(board.cc), 50, 999, NULL},
  {"sms", INT, AT(board.sm_count), 1, 4096, NULL},
  {"l2_bytes", INT64, AT(board.l2_bytes), 0, 1e12, NULL},
  PROBLEM_FIELDS,
  {"numerics", TEXT, AT(numerics), 0, 0, NULL},
  {"predicted", FLAG, AT(predicted), 0, 0, NULL},
  {"n", INT, AT(n), 0, 1 << 20, NULL},
  {"us", REAL, AT(us), 0, 1e12, NULL},
  {"default_us", REAL, AT(default_us), 0, 1e12, NULL},
  {"ratio", REAL, AT(ratio), 0, 1e12, NULL},
  {"ratio_mad", REAL, AT(ratio_mad), 0, 1e12, NULL},
};
#undef AT

static int get_int(const void *at) {
  int value;
  memcpy(&value, at, sizeof value);
  return value;
}

static json_t *print_field(const field *f, const char *at) {
  char text[DW_TEXT_MAX];
  switch (f->kind) {
    case TEXT:
    case HEX: return json_string(at);
    case WORD:
      for (const dw__name *word = f->words; word->text; word++)
        if (word->value == get_int(at)) return json_string(word->text);
      return json_string("");
    case INT: return json_integer(get_int(at));
    case INT64: return json_integer(*(const int64_t *)(const void *)at);
    case REAL: return json_real(*(const double *)(const void *)at);
    case FLAG: return json_boolean(*(const bool *)(const void *)at);
    case SHAPE: dw_shape_print((const void *)at, text, sizeof text); return json_string(text);
    case VARIANT: dw_variant_print((const void *)at, text, sizeof text); return json_string(text);
  }
  return NULL;
}

static void print_line(const field *list, size_t count, const void *object, dw__buf *text) {
  json_t *row = json_object();
  for (size_t i = 0; i < count; i++)
    json_object_set_new(row, list[i].name, print_field(&list[i], (const char *)object + list[i].offset));
  char *dump = json_dumps(row, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(7));
  json_decref(row);
  text->failed |= !dump;
  if (dump) dw__buf_puts(text, dump);
  if (dump) dw__buf_puts(text, "\n");
  free(dump);
}

static dw_status bad(const field *f, const char *found, const char *allowed, dw_error *error) {
  return dw__fail(error, DW_BAD_ARGUMENT, f->name, found, allowed, "%s", "");
}

static dw_status bad_kind(const field *f, const char *allowed, dw_error *error) {
  return bad(f, "another kind of value", allowed, error);
}

static dw_status parse_text(const field *f, const json_t *value, char *to, dw_error *error) {
  const char *text = json_string_value(value);
  if (!text || json_string_length(value) != strlen(text)) return bad_kind(f, "a text", error);
  if (strlen(text) >= f->size) return bad(f, "a longer text", "what fits", error);
  if (f->kind == HEX && *text && (strlen(text) != 64 || strspn(text, "0123456789abcdef") != 64))
    return bad(f, text, "64 hexadecimal digits, or nothing", error);
  memcpy(to, text, strlen(text) + 1);
  return DW_OK;
}

static dw_status parse_word(const field *f, const json_t *value, int *to, dw_error *error) {
  char allowed[256] = "";
  const char *text = json_string_value(value);
  for (const dw__name *word = f->words; word->text; word++) {
    if (text && !strcmp(text, word->text)) {
      *to = word->value;
      return DW_OK;
    }
    snprintf(allowed + strlen(allowed), sizeof allowed - strlen(allowed), "%s%s", *allowed ? ", " : "", word->text);
  }
  return bad(f, text ? text : "another kind of value", allowed, error);
}

static dw_status parse_number(const field *f, const json_t *value, char *to, dw_error *error) {
  char found[64], allowed[64];
  const bool real = f->kind == REAL;
  if (real ? !json_is_number(value) : !json_is_integer(value)) return bad_kind(f, real ? "a number" : "a whole number", error);
  const double number = json_number_value(value);
  if (!(number >= f->least && number <= f->most)) {
    snprintf(found, sizeof found, "%g", number);
    snprintf(allowed, sizeof allowed, "%g to %g", f->least, f->most);
    return bad(f, found, allowed, error);
  }
  if (real) memcpy(to, &number, sizeof number);
  else if (f->kind == INT64) memcpy(to, &(int64_t){json_integer_value(value)}, sizeof(int64_t));
  else memcpy(to, &(int){(int)json_integer_value(value)}, sizeof(int));
  return DW_OK;
}

static dw_status parse_field(const field *f, const json_t *value, char *at, dw_error *error) {
  switch (f->kind) {
    case TEXT:
    case HEX: return parse_text(f, value, at, error);
    case WORD: return parse_word(f, value, (int *)(void *)at, error);
    case INT:
    case INT64:
    case REAL: return parse_number(f, value, at, error);
    case FLAG:
      if (!json_is_boolean(value)) return bad_kind(f, "true or false", error);
      *(bool *)(void *)at = json_is_true(value);
      return DW_OK;
    case SHAPE:
      if (!json_is_string(value)) return bad_kind(f, "a shape's text", error);
      return dw_shape_parse(json_string_value(value), (void *)at, error);
    case VARIANT:
      if (!json_is_string(value)) return bad_kind(f, "a variant's text", error);
      return dw_variant_parse(json_string_value(value), (void *)at, error);
  }
  return DW_INTERNAL;
}

static dw_status parse_fields(const field *list, size_t count, const json_t *row, void *object, dw_error *error) {
  const char *name;
  json_t *value;
  dw_status status = DW_OK;
  for (size_t i = 0; i < count && !status; i++) {
    value = json_object_get(row, list[i].name);
    if (!value) return bad(&list[i], "nothing", "every field of the line", error);
    status = parse_field(&list[i], value, (char *)object + list[i].offset, error);
  }
  json_object_foreach((json_t *)row, name, value) {
    size_t i = 0;
    while (i < count && strcmp(list[i].name, name) != 0) i++;
    if (!status && i == count) return dw__fail(error, DW_BAD_ARGUMENT, "field", name, "the fields of a line", "unknown");
  }
  return status;
}

static dw_status parse_line(const field *list, size_t count, const char *line, size_t size, void *object, dw_error *error) {
  json_error_t fault;
  json_t *row = json_loadb(line, size, JSON_REJECT_DUPLICATES, &fault);
  if (!json_is_object(row)) {
    json_decref(row);
    return dw__fail(error, DW_BAD_ARGUMENT, "line", row ? "another value" : fault.text, "a JSON object", "%s", "");
  }
  dw_status status = parse_fields(list, count, row, object, error);
  json_decref(row);
  return status;
}

void dw__tune_record_print(const dw__tune_record *record, dw__buf *text) {
  print_line(fields, DW__COUNT(fields), record, text);
}

dw_status dw__tune_record_parse(const char *line, size_t size, dw__tune_record *record, dw_error *error) {
  memset(record, 0, sizeof *record);
  return parse_line(fields, DW__COUNT(fields), line, size, record, error);
}

void dw__plan_choice_print(const dw__plan_choice *choice, dw__buf *text) {
  print_line(choice_fields, DW__COUNT(choice_fields), choice, text);
}

dw_status dw__plan_choice_parse(const char *line, size_t size, dw__plan_choice *choice, dw_error *error) {
  memset(choice, 0, sizeof *choice);
  return parse_line(choice_fields, DW__COUNT(choice_fields), line, size, choice, error);
}

// ---- many records ---------------------------------------------------------------------------------------------

bool dw__tune_records_add(dw__tune_records *records, const dw__tune_record *record) {
  if (records->count == records->capacity) {
    const size_t capacity = records->capacity ? 2 * records->capacity : 64;
    dw__tune_record *list = dw__realloc(records->list, capacity * sizeof *list);
    if (!list) return false;
    records->list = list;
    records->capacity = capacity;
  }
  records->list[records->count++] = *record;
  return true;
}

void dw__tune_records_free(dw__tune_records *records) {
  dw__release(records->list);
  *records = (dw__tune_records){0};
}

dw_status dw__lines_read(const char *text, size_t size, dw__line_fn take, void *user, dw_error *error) {
  dw_error fault = {0};
  size_t number = 0;
  for (const char *at = text, *end; (size_t)(at - text) < size; at = end + 1) {
    end = memchr(at, '\n', size - (size_t)(at - text));
    if (!end) return DW_OK;
    number++;
    if (end == at) continue;
    dw_status status = take(user, at, (size_t)(end - at), &fault);
    if (status) {
      char found[192];
      snprintf(found, sizeof found, "%s", fault.found);
      dw__fail(error, status, fault.field, found, fault.allowed, "in line %zu", number);
      dw_error_clear(&fault);
      return status;
    }
  }
  return DW_OK;
}

static dw_status take_record(void *user, const char *line, size_t size, dw_error *error) {
  dw__tune_record record;
  dw_status status = dw__tune_record_parse(line, size, &record, error);
  if (!status && !dw__tune_records_add(user, &record))
    return dw__fail(error, DW_OUT_OF_MEMORY, "memory", "", "", "out of memory");
  return status;
}

dw_status dw__tune_records_read(const char *text, size_t size, dw__tune_records *records, dw_error *error) {
  return dw__lines_read(text, size, take_record, records, error);
}

// ---- merging --------------------------------------------------------------------------------------------------

static int compare_boards(const dw__board *a, const dw__board *b) {
  int order = strcmp(a->name, b->name);
  if (!order) order = (a->cc > b->cc) - (a->cc < b->cc);
  if (!order) order = (a->sm_count > b->sm_count) - (a->sm_count < b->sm_count);
  return order ? order : (a->l2_bytes > b->l2_bytes) - (a->l2_bytes < b->l2_bytes);
}

int dw__choice_compare(const dw__board *board_a, const dw__tune_key *a, const dw__board *board_b, const dw__tune_key *b) {
  int order = compare_boards(board_a, board_b);
  return order ? order : dw__tune_key_compare(a, b);
}

// What is measured: GPU, problem, variant, state of the L2.
static int compare_subjects(const dw__tune_record *a, const dw__tune_record *b) {
  int order = dw__choice_compare(&a->board, &a->key, &b->board, &b->key);
  if (!order) order = memcmp(&a->variant, &b->variant, sizeof a->variant);
  return order ? order : a->l2 - b->l2;
}

static bool is_bad(int verdict) { return verdict != DW__SOUND && verdict != DW__SLOWER; }

static int compare_texts(const dw__tune_record *a, const dw__tune_record *b) {
  dw__buf one = {0}, other = {0};
  dw__tune_record_print(a, &one);
  dw__tune_record_print(b, &other);
  const int order = strcmp(one.data ? one.data : "", other.data ? other.data : "");
  dw__buf_free(&one);
  dw__buf_free(&other);
  return order;
}

// Of one subject the first is kept. A bad verdict leads; whether it is of the same build is looked at then.
static int compare_records(const void *x, const void *y) {
  const dw__tune_record *a = x, *b = y;
  int order = compare_subjects(a, b);
  if (!order) order = is_bad(b->verdict) - is_bad(a->verdict);
  if (!order) order = (a->verdict == DW__SLOWER) - (b->verdict == DW__SLOWER);
  if (!order) order = (b->n > a->n) - (b->n < a->n);
  if (!order) order = strcmp(b->date, a->date);
  return order ? order : compare_texts(a, b);
}

// Which of the records first..end-1 of one subject stands for it: a bad one unless the best of the others is of another build.
static size_t pick_record(const dw__tune_record *list, size_t first, size_t end) {
  size_t good = first;
  while (good < end && is_bad(list[good].verdict)) good++;
  if (good == end) return first;
  for (size_t i = first; i < good; i++)
    if (*list[i].build_key && !strcmp(list[i].build_key, list[good].build_key)) return i;
  return good;
}

void dw__tune_records_merge(dw__tune_records *records) {
  dw__tune_record *list = records->list;
  size_t kept = 0;
  if (records->count) qsort(list, records->count, sizeof *list, compare_records);
  for (size_t first = 0, end; first < records->count; first = end) {
    for (end = first + 1; end < records->count && !compare_subjects(&list[first], &list[end]);) end++;
    const size_t best = pick_record(list, first, end);
    if (kept != best) list[kept] = list[best];
    kept++;
  }
  records->count = kept;
}
