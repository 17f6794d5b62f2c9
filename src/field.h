// Text made of `key=value` fields, described by a table: one row a field feeds the parser, the printer and the range check.
// Shapes and variants are both written this way. Every field is an int (or an enum of that size) inside one struct.
#ifndef DRAFTWOOD_FIELD_H
#define DRAFTWOOD_FIELD_H

#include "core.h"

typedef struct dw__name {
  const char *text;  // NULL ends the list; of several names for one value the first is printed, the others are aliases
  int value;
} dw__name;
const char *dw__name_of(const dw__name *names, int value);  // NULL: there is none

// Of a variant's values.
extern const dw__name dw__family_names[], dw__combine_names[], dw__call_names[], dw__accumulate_names[];

typedef struct dw__field {
  const char *key;        // in the text
  const char *member;     // in the struct, for messages about the value
  size_t offset;          // of the int
  size_t also;            // of a second int that gets the same value (0: none; such a field is a shorthand for two others)
  const dw__name *names;  // named values, or NULL: a number
  int least, most, step;  // numbers: `least`, or a multiple of `step`, up to `most`
  unsigned groups;        // bit set: which grammars know this field
  const char *hint;       // added to the message about a bad value, or NULL
} dw__field;

typedef struct dw__fields {
  const dw__field *list;
  size_t count;
  unsigned group;    // the grammar in use, one bit of dw__field.groups
  dw_status status;  // what a mistake is called
  const char *more;  // keys that are read elsewhere, for the list of what is known, or NULL
} dw__fields;

int dw__field_get(const dw__field *field, const void *object);

// Reads "key=value,key=value" into object. *seen collects one bit an int of the struct (bit = offset / sizeof(int)), so that a
// field that was given twice is found and the caller knows what was left out. The object is undefined after a failure.
dw_status dw__fields_parse(const dw__fields *fields, const char *text, void *object, uint32_t *seen, dw_error *error);
uint32_t dw__field_bits(const dw__field *field);

// Is each value among its names or in its range?
dw_status dw__fields_check(const dw__fields *fields, const void *object, dw_error *error);

// Text into a caller's buffer of fixed size, counting what does not fit, as snprintf does.
typedef struct dw__text {
  char *data;
  size_t capacity, size;
} dw__text;
void dw__text_printf(dw__text *text, const char *format, ...) DW__PRINTF(2, 3);
void dw__field_print(const dw__field *field, const void *object, dw__text *text);  // "key=value"

#endif
