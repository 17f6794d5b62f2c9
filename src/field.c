// See field.h.
#include "field.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

// A piece of a longer text.
typedef struct piece {
  const char *at;
  size_t size;
} piece;

static bool same(piece p, const char *text) { return strlen(text) == p.size && memcmp(text, p.at, p.size) == 0; }

// Pieces are shown in error records of fixed size; longer ones are cut.
static const char *show(piece p, char text[128]) {
  snprintf(text, 128, "%.*s", p.size < 127 ? (int)p.size : 127, p.at);
  return text;
}

int dw__field_get(const dw__field *field, const void *object) {
  int value;
  memcpy(&value, (const char *)object + field->offset, sizeof value);
  return value;
}

static void set(const dw__field *field, void *object, int value) {
  memcpy((char *)object + field->offset, &value, sizeof value);
  if (field->also) memcpy((char *)object + field->also, &value, sizeof value);
}

uint32_t dw__field_bits(const dw__field *field) {
  uint32_t bits = 1u << (field->offset / sizeof(int));
  return field->also ? bits | 1u << (field->also / sizeof(int)) : bits;
}

static bool known(const dw__fields *fields, size_t i) { return fields->list[i].groups & fields->group; }

// ---- words for messages ---------------------------------------------------------------------------------------

void dw__text_printf(dw__text *text, const char *format, ...) {
  size_t left = text->size < text->capacity ? text->capacity - text->size : 0;
  va_list args;
  va_start(args, format);
  int n = vsnprintf(left ? text->data + text->size : NULL, left, format, args);
  va_end(args);
  if (n > 0) text->size += (size_t)n;
}

static void list_keys(const dw__fields *fields, dw__text *text) {
  for (size_t i = 0; i < fields->count; i++)
    if (known(fields, i)) dw__text_printf(text, text->size ? ", %s" : "%s", fields->list[i].key);
  if (fields->more) dw__text_printf(text, ", %s", fields->more);
}

// The names without aliases: the ones that a reader should use.
static void list_names(const dw__name *names, dw__text *text) {
  for (const dw__name *name = names; name->text; name++)
    if (name == names || name[-1].value != name->value) dw__text_printf(text, text->size ? ", %s" : "%s", name->text);
}

static void list_allowed(const dw__field *field, dw__text *text) {
  if (field->names) list_names(field->names, text);
  else if (field->step <= 1) dw__text_printf(text, "%d to %d", field->least, field->most);
  else if (field->least % field->step == 0)
    dw__text_printf(text, "a multiple of %d from %d to %d", field->step, field->least, field->most);
  else dw__text_printf(text, "%d or a multiple of %d up to %d", field->least, field->step, field->most);
}

// ---- parsing --------------------------------------------------------------------------------------------------

static dw_status bad_value(const dw__fields *fields, const dw__field *field, piece value, const char *why, dw_error *error) {
  char allowed[256], found[128];
  dw__text text = {allowed, sizeof allowed, 0};
  list_allowed(field, &text);
  return dw__fail(error, fields->status, field->key, show(value, found), allowed, "%s", why);
}

static dw_status parse_name(const dw__fields *fields, const dw__field *field, piece value, int *result, dw_error *error) {
  for (const dw__name *name = field->names; name->text; name++)
    if (same(value, name->text)) {
      *result = name->value;
      return DW_OK;
    }
  return bad_value(fields, field, value, field->hint ? field->hint : "not a value of this field", error);
}

static dw_status parse_number(const dw__fields *fields, const dw__field *field, piece value, int *result, dw_error *error) {
  bool negative = value.at[0] == '-' && value.size > 1;
  long long number = 0;
  for (size_t i = negative; i < value.size; i++) {
    if (value.at[i] < '0' || value.at[i] > '9') return bad_value(fields, field, value, "not a whole number", error);
    number = number * 10 + (value.at[i] - '0');
    if (number > INT_MAX) return bad_value(fields, field, value, "the number is too large", error);
  }
  *result = (int)(negative ? -number : number);
  return DW_OK;
}

static const dw__field *find(const dw__fields *fields, piece key) {
  for (size_t i = 0; i < fields->count; i++)
    if (known(fields, i) && same(key, fields->list[i].key)) return &fields->list[i];
  return NULL;
}

static dw_status parse_one(const dw__fields *fields, piece item, void *object, uint32_t *seen, dw_error *error) {
  char shown[128], keys[256];
  dw__text text = {keys, sizeof keys, 0};
  list_keys(fields, &text);
  if (item.size == 0) return dw__fail(error, fields->status, "text", "an empty field", keys, "fields are key=value");
  const char *equals = memchr(item.at, '=', item.size);
  piece key = {item.at, equals ? (size_t)(equals - item.at) : item.size};
  const dw__field *field = find(fields, key);
  if (!field) return dw__fail(error, fields->status, "text", show(key, shown), keys, "unknown field");
  piece value = {key.at + key.size + 1, equals ? item.size - key.size - 1 : 0};
  if (value.size == 0) return bad_value(fields, field, (piece){"", 0}, "the value is missing", error);
  if (*seen & dw__field_bits(field))
    return dw__fail(error, fields->status, field->key, show(item, shown), "once", "given twice");
  int number = 0;
  dw_status status =
    field->names ? parse_name(fields, field, value, &number, error) : parse_number(fields, field, value, &number, error);
  if (status) return status;
  *seen |= dw__field_bits(field);
  set(field, object, number);
  return DW_OK;
}

dw_status dw__fields_parse(const dw__fields *fields, const char *text, void *object, uint32_t *seen, dw_error *error) {
  for (const char *at = text;;) {
    piece item = {at, strcspn(at, ",")};
    dw_status status = parse_one(fields, item, object, seen, error);
    if (status) return status;
    if (at[item.size] == 0) return DW_OK;
    at += item.size + 1;
  }
}

// ---- checking and printing ------------------------------------------------------------------------------------

const char *dw__name_of(const dw__name *names, int value) {
  for (const dw__name *name = names; name->text; name++)
    if (name->value == value) return name->text;
  return NULL;
}

static bool in_range(const dw__field *field, int value) {
  if (field->names) return dw__name_of(field->names, value) != NULL;
  if (value < field->least || value > field->most) return false;
  return field->step <= 1 || value == field->least || value % field->step == 0;
}

dw_status dw__fields_check(const dw__fields *fields, const void *object, dw_error *error) {
  for (size_t i = 0; i < fields->count; i++) {
    const dw__field *field = &fields->list[i];
    if (!known(fields, i) || field->also) continue;  // a shorthand's two members have rows of their own
    int value = dw__field_get(field, object);
    if (in_range(field, value)) continue;
    char allowed[256];
    dw__text text = {allowed, sizeof allowed, 0};
    list_allowed(field, &text);
    return dw__fail_int(error, fields->status, field->member, value, allowed, "out of range");
  }
  return DW_OK;
}

void dw__field_print(const dw__field *field, const void *object, dw__text *text) {
  int value = dw__field_get(field, object);
  const char *name = field->names ? dw__name_of(field->names, value) : NULL;
  if (name) dw__text_printf(text, "%s=%s", field->key, name);
  else dw__text_printf(text, "%s=%d", field->key, value);
}
