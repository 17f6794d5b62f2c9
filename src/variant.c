// What is chosen, as text. Which variant serves which shape is in rule.c.
#include "field.h"

#include <string.h>

const dw__name dw__family_names[] = {{"reference", DW_REFERENCE},
                                     {"split", DW_SPLIT},
                                     {"rowsplit", DW_ROWSPLIT},
                                     {"grouped", DW_GROUPED},
                                     {"warpsplit", DW_WARPSPLIT},
                                     {"dimsplit", DW_DIMSPLIT},
                                     {NULL, 0}};
const dw__name dw__combine_names[] = {{"none", DW_COMBINE_NONE}, {"few", DW_COMBINE_FEW}, {"many", DW_COMBINE_MANY}, {NULL, 0}};
const dw__name dw__call_names[] = {{"any", DW_CALL_ANY}, {"table", DW_CALL_TABLE}, {NULL, 0}};
const dw__name dw__accumulate_names[] = {
  {"fp32", DW_ACCUMULATE_FP32}, {"fp16_output", DW_ACCUMULATE_FP16_OUTPUT}, {"fp16", DW_ACCUMULATE_FP16}, {NULL, 0}};
#define dw__int_names NULL
#define dw__feature_names NULL

static const dw__field variant_fields[] = {
#define DW_PARAM(name, kind, least, most, normal, help) \
  {#name, #name, offsetof(dw_variant, name), 0, dw__##kind##_names, least, most, 1, 1, NULL},
#include "draftwood_variant.def"
#undef DW_PARAM
};

// What is left out of the text where it is 0.
#define optional_family 0
#define optional_combine 0
#define optional_call 0
#define optional_int 0
#define optional_feature 1
#define optional_accumulate 1
static const bool is_optional[] = {
#define DW_PARAM(name, kind, least, most, normal, help) optional_##kind,
#include "draftwood_variant.def"
#undef DW_PARAM
};

static const dw_variant normal_variant = {
#define DW_PARAM(name, kind, least, most, normal, help) .name = normal,
#include "draftwood_variant.def"
#undef DW_PARAM
};

static const dw__fields fields = {variant_fields, DW__COUNT(variant_fields), 1, DW_BAD_ARGUMENT, NULL};

// What the text leaves out has its normal value; an empty text is the normal variant.
dw_status dw_variant_parse(const char *text, dw_variant *variant, dw_error *error) {
  if (!text || !variant)
    return dw__fail(error, DW_BAD_ARGUMENT, text ? "variant" : "text", "NULL", "not NULL", "nothing to parse");
  dw_variant parsed = normal_variant;
  uint32_t seen = 0;
  dw_status status = *text ? dw__fields_parse(&fields, text, &parsed, &seen, error) : DW_OK;
  if (status == DW_OK) status = dw__fields_check(&fields, &parsed, error);
  if (status == DW_OK) *variant = parsed;
  return status;
}

size_t dw_variant_print(const dw_variant *variant, char *text, size_t n) {
  dw__text out = {text, text ? n : 0, 0};
  if (!variant) {
    if (out.capacity) *text = 0;
    return 0;
  }
  for (size_t i = 0; i < fields.count; i++) {
    if (is_optional[i] && !dw__field_get(&variant_fields[i], variant)) continue;
    if (i) dw__text_printf(&out, ",");
    dw__field_print(&variant_fields[i], variant, &out);
  }
  return out.size;
}
