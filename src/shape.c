// What is asked: parse, print, check, presets. The fields are one table, `shape_fields`.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "field.h"

static const dw__name dtype_names[] = {{"bf16", DW_BF16}, {"fp16", DW_F16}, {"f16", DW_F16}, {NULL, 0}};
static const dw__name kv_names[] = {{"bf16", DW_BF16},
                                    {"fp16", DW_F16},
                                    {"f16", DW_F16},
                                    {"e4m3", DW_E4M3},
                                    {"fp8", DW_E4M3},
                                    {"record656", DW_RECORD656},
                                    {"fp8_ds_mla", DW_RECORD656},
                                    {NULL, 0}};
static const dw__name out_names[] = {{"bf16", DW_BF16}, {"fp16", DW_F16}, {"f16", DW_F16},
                                     {"fp32", DW_F32},  {"f32", DW_F32},  {NULL, 0}};
const char *dw__dtype_name(dw_dtype type) {
  const dw__name *at = type == DW_F32 ? out_names : kv_names;
  while (at->text && at->value != (int)type) at++;  // the first name of a type is the canonical one
  return at->text;
}
// Device classes that some template serves.
static const dw__name target_names[] = {{"sm_80", 80},   {"sm_86", 86},   {"sm_89", 89},   {"sm_90", 90}, {"sm_100", 100},
                                        {"sm_103", 103}, {"sm_120", 120}, {"sm_121", 121}, {NULL, 0}};
static const dw__name limits_names[] = {{"native", 0}, {"sm_120", 120}, {NULL, 0}};
static const char target_hint[] = "a target is a device class; the variant picks the feature level (the letter a or f)";

enum { MLA = 1 << DW_MLA, GQA = 1 << DW_GQA, BOTH = MLA | GQA };
#define AT(member) #member, offsetof(dw_shape, member)

// key, member, second member, names, least, most, step, grammars, hint; in the order of the canonical text.
static const dw__field shape_fields[] = {
  {"h", AT(heads), 0, NULL, 1, 128, 1, BOTH, NULL},
  {"hk", AT(kv_heads), 0, NULL, 1, 128, 1, GQA, NULL},
  {"t", AT(width), 0, NULL, 1, 1025, 1, BOTH, NULL},
  {"d", AT(head_dim_qk), offsetof(dw_shape, head_dim_v), NULL, 16, 1024, 16, GQA, NULL},
  {"qk", AT(head_dim_qk), 0, NULL, 16, 1024, 16, BOTH, NULL},
  {"v", AT(head_dim_v), 0, NULL, 16, 1024, 16, BOTH, NULL},
  {"page", AT(page), 0, NULL, 1, 1024, 16, BOTH, NULL},
  {"q", AT(q), 0, dtype_names, 0, 0, 0, BOTH, NULL},
  {"kv", AT(kv), 0, kv_names, 0, 0, 0, BOTH, NULL},
  {"o", AT(out), 0, out_names, 0, 0, 0, BOTH, NULL},
  {"target", AT(target), 0, target_names, 0, 0, 0, BOTH, target_hint},
  {"limits", AT(limits), 0, limits_names, 0, 0, 0, BOTH, NULL},
};

#define BIT(member) (1u << (offsetof(dw_shape, member) / sizeof(int)))

static const struct {
  const char *name, *text;
} presets[] = {
#define DW_PRESET(name, text) {name, text},
#include "preset.def"
#undef DW_PRESET
};

static dw__fields grammar(dw_attention attention) {
  return (dw__fields){shape_fields, DW__COUNT(shape_fields), 1u << attention, DW_BAD_SHAPE, "tree"};
}

// ---- check ----------------------------------------------------------------------------------------------------

static dw_status check_tree(const dw_shape *shape, dw_error *error) {
  const int nodes = shape->tree_nodes, most = (int)DW__COUNT(shape->tree);
  char field[32], allowed[64];
  if (nodes && (nodes != shape->width || nodes > most)) {
    snprintf(allowed, sizeof allowed, "0, or the width, %d%s", shape->width,
             shape->width > most ? ", where it is at most 64" : "");
    return dw__fail_int(error, DW_BAD_SHAPE, "tree", nodes, allowed, "nodes of the tree in the code");
  }
  static const signed char none[sizeof shape->tree];
  if (!nodes && !memcmp(shape->tree, none, sizeof none)) return DW_OK;  // most shapes, and many checks of each
  for (int i = 0; i < most; i++) {
    if (i < nodes ? shape->tree[i] >= -1 && shape->tree[i] < i : shape->tree[i] == 0) continue;
    snprintf(field, sizeof field, "tree[%d]", i);
    if (i < nodes) snprintf(allowed, sizeof allowed, "-1 to %d", i - 1);
    else snprintf(allowed, sizeof allowed, "0");
    return dw__fail_int(error, DW_BAD_SHAPE, field, shape->tree[i], allowed, "a node's parent comes before it");
  }
  return DW_OK;
}

// The record's layout fixes the vectors, and its rope, which is bf16, meets q.
static dw_status check_record(const dw_shape *shape, dw_error *error) {
  static const char why[] = "a record has 512 latents in e4m3, their 4 scales and 64 of the rope in bf16";
  if (shape->kv != DW_RECORD656) return DW_OK;
  if (shape->attention != DW_MLA) return dw__fail(error, DW_BAD_SHAPE, "kv", "record656", "another type with gqa", "%s", why);
  if (shape->head_dim_qk != 576)
    return dw__fail_int(error, DW_BAD_SHAPE, "head_dim_qk", shape->head_dim_qk, "576 with kv=record656", "%s", why);
  if (shape->head_dim_v != 512)
    return dw__fail_int(error, DW_BAD_SHAPE, "head_dim_v", shape->head_dim_v, "512 with kv=record656", "%s", why);
  return shape->q == DW_BF16 ? DW_OK : dw__fail(error, DW_BAD_SHAPE, "q", "fp16", "bf16 with kv=record656", "%s", why);
}

// What the range of one field cannot say: how two of them go together.
static dw_status check_pairs(const dw_shape *shape, dw_error *error) {
  char allowed[64];
  if (shape->attention == DW_MLA && shape->kv_heads != 1)
    return dw__fail_int(error, DW_BAD_SHAPE, "kv_heads", shape->kv_heads, "1", "all heads of MLA share one latent");
  if (shape->attention == DW_MLA && shape->head_dim_v > shape->head_dim_qk) {
    snprintf(allowed, sizeof allowed, "at most head_dim_qk, %d", shape->head_dim_qk);
    return dw__fail_int(error, DW_BAD_SHAPE, "head_dim_v", shape->head_dim_v, allowed,
                        "V is the first part of a token's record");
  }
  dw_status status = check_tree(shape, error);
  if (!status) status = check_record(shape, error);
  if (status) return status;
  if (shape->heads % shape->kv_heads != 0) {
    snprintf(allowed, sizeof allowed, "a divisor of heads, %d", shape->heads);
    return dw__fail_int(error, DW_BAD_SHAPE, "kv_heads", shape->kv_heads, allowed, "each KV head serves as many query heads");
  }
  return DW_OK;
}

dw_status dw_shape_check(const dw_shape *shape, dw_error *error) {
  if (!shape) return dw__fail(error, DW_BAD_ARGUMENT, "shape", "NULL", "a shape", "no shape was given");
  if (shape->attention != DW_MLA && shape->attention != DW_GQA)
    return dw__fail_int(error, DW_BAD_SHAPE, "attention", shape->attention, "mla, gqa", "unknown kind of attention");
  dw__fields fields = grammar(shape->attention);
  dw_status status = dw__fields_check(&fields, shape, error);
  return status ? status : check_pairs(shape, error);
}

// ---- parse ----------------------------------------------------------------------------------------------------

static dw_shape defaults(dw_attention attention) {
  dw_shape shape = {.attention = attention, .kv_heads = 1, .page = 1, .target = 120};
  if (attention == DW_MLA) shape.head_dim_qk = 576, shape.head_dim_v = 512;
  return shape;
}

// Heads, width and, for GQA, KV heads and head dimension have no default that would not be a guess.
static dw_status check_given(dw_attention attention, uint32_t seen, dw_error *error) {
  dw__fields fields = grammar(attention);
  uint32_t needed = BIT(heads) | BIT(width);
  if (attention == DW_GQA) needed |= BIT(kv_heads) | BIT(head_dim_qk) | BIT(head_dim_v);
  for (size_t i = 0; i < fields.count; i++) {
    const dw__field *field = &shape_fields[i];
    uint32_t bits = dw__field_bits(field);
    if ((field->groups & fields.group) && (bits & needed & ~seen) == bits)
      return dw__fail(error, DW_BAD_SHAPE, field->key, "nothing", "a value", "this field has no default");
  }
  return DW_OK;
}

static const char *preset_text(const char *name, size_t size) {
  for (size_t i = 0; i < DW__COUNT(presets); i++)
    if (strlen(presets[i].name) == size && memcmp(presets[i].name, name, size) == 0) return presets[i].text;
  return NULL;
}

static dw_status unknown_start(dw_status status, const char *text, size_t size, dw_error *error) {
  char found[128], allowed[256];
  dw__text names = {allowed, sizeof allowed, 0};
  dw__text_printf(&names, "mla:, gqa:");
  for (size_t i = 0; i < DW__COUNT(presets); i++) dw__text_printf(&names, ", %s", presets[i].name);
  snprintf(found, sizeof found, "%.*s", size < 127 ? (int)size : 127, text);
  return dw__fail(error, status, "shape", found, allowed, "a shape starts with its kind of attention or with a preset's name");
}

// "mla:" or "gqa:" at the start of text: returns what follows, else NULL.
static const char *after_prefix(const char *text, dw_attention *attention) {
  if (strncmp(text, "mla:", 4) != 0 && strncmp(text, "gqa:", 4) != 0) return NULL;
  *attention = text[0] == 'm' ? DW_MLA : DW_GQA;
  return text + 4;
}

// "mla:..." or "gqa:...", every field from the text or a default. Whether `o` was given is kept in *seen.
static dw_status parse_full(const char *text, dw_shape *shape, uint32_t *seen, dw_error *error) {
  dw_attention attention;
  const char *rest = after_prefix(text, &attention);
  if (!rest) return unknown_start(DW_BAD_SHAPE, text, strcspn(text, ":,"), error);
  *shape = defaults(attention);
  *seen = 0;
  dw__fields fields = grammar(attention);
  dw_status status = dw__fields_parse(&fields, rest, shape, seen, error);
  return status ? status : check_given(attention, *seen, error);
}

// A preset's name, then any fields that differ from it.
static dw_status parse_preset(const char *preset, const char *rest, dw_shape *shape, uint32_t *seen, dw_error *error) {
  dw_status status = parse_full(preset, shape, seen, error);
  if (status || *rest == 0) return status;
  dw__fields fields = grammar(shape->attention);
  uint32_t overridden = 0;
  status = dw__fields_parse(&fields, rest + 1, shape, &overridden, error);
  *seen |= overridden;
  return status;
}

static char *find_tree(const char *text) {
  char *found = strstr(text, ",tree=");
  return found ? found : strstr(text, ":tree=");
}

// "r.0.0.1": cut out of the text, which is then without it.
static dw_status parse_tree(char *text, dw_shape *shape, dw_error *error) {
  char *start = find_tree(text);
  char *at = start + strlen(",tree=");
  int nodes = 0;
  for (bool more = true; more; nodes++) {
    char *end = at + 1;
    const long parent = *at == 'r' ? -1 : strtol(at, &end, 10);
    const bool number = *at == 'r' || (*at >= '0' && *at <= '9');
    if (!number || parent > 127 || nodes == (int)DW__COUNT(shape->tree) || (*end && *end != ',' && *end != '.')) {
      char found[64];
      snprintf(found, sizeof found, "%.*s", (int)strcspn(at, ",."), at);
      return dw__fail(error, DW_BAD_SHAPE, "tree", found,
                      "r or the number of an earlier node, up to 64 of them with dots between", "the parent of each node");
    }
    shape->tree[nodes] = (signed char)parent;
    more = *end == '.';
    at = more ? end + 1 : end;
  }
  shape->tree_nodes = nodes;
  if (*start == ':') start++, at += *at == ',';  // the first field: the next one follows the colon
  memmove(start, at, strlen(at) + 1);
  return DW_OK;
}

dw_status dw_shape_parse(const char *given, dw_shape *shape, dw_error *error) {
  if (!given || !shape)
    return dw__fail(error, DW_BAD_ARGUMENT, given ? "shape" : "text", "NULL", "not NULL", "nothing to parse");
  char rest[2 * DW_TEXT_MAX];
  const char *text = given;
  dw_shape parsed, tree = {0};
  if (find_tree(given)) {
    if (strlen(given) >= sizeof rest)
      return dw__fail_int(error, DW_BAD_SHAPE, "text", (long long)strlen(given), "up to 1023 characters",
                          "the shape is too long");
    memcpy(rest, given, strlen(given) + 1);
    const dw_status cut = parse_tree(rest, &tree, error);
    if (cut) return cut;
    text = rest;
  }
  uint32_t seen = 0;
  size_t name = strcspn(text, ",");
  const char *preset = preset_text(text, name);
  dw_status status =
    preset ? parse_preset(preset, text + name, &parsed, &seen, error) : parse_full(text, &parsed, &seen, error);
  if (status) return status;
  if (!(seen & BIT(out))) parsed.out = parsed.q;
  parsed.tree_nodes = tree.tree_nodes;
  memcpy(parsed.tree, tree.tree, sizeof parsed.tree);
  status = dw_shape_check(&parsed, error);
  if (status == DW_OK) *shape = parsed;
  return status;
}

// ---- print ----------------------------------------------------------------------------------------------------

// The canonical text has `d` or `qk` and `v`, never both, and `o` only where it is not what q is.
static bool is_printed(const dw_shape *shape, const dw__field *field) {
  bool one_width = shape->attention == DW_GQA && shape->head_dim_qk == shape->head_dim_v;
  if (field->offset == offsetof(dw_shape, head_dim_qk) || field->offset == offsetof(dw_shape, head_dim_v))
    return one_width == (field->also != 0);
  return field->offset != offsetof(dw_shape, out) || shape->out != shape->q;
}

size_t dw_shape_print(const dw_shape *shape, char *text, size_t n) {
  dw__text out = {text, text ? n : 0, 0};
  if (!shape) {
    if (out.capacity) *text = 0;
    return 0;
  }
  dw__fields fields = grammar(shape->attention == DW_GQA ? DW_GQA : DW_MLA);
  dw__text_printf(&out, "%s", shape->attention == DW_GQA ? "gqa" : "mla");
  const char *before = ":";
  for (size_t i = 0; i < fields.count; i++) {
    const dw__field *field = &shape_fields[i];
    if (!(field->groups & fields.group) || !is_printed(shape, field)) continue;
    dw__text_printf(&out, "%s", before);
    dw__field_print(field, shape, &out);
    before = ",";
  }
  for (int i = 0; i < shape->tree_nodes && i < (int)DW__COUNT(shape->tree); i++) {
    dw__text_printf(&out, "%s", i ? "." : ",tree=");
    if (shape->tree[i] < 0) dw__text_printf(&out, "r");
    else dw__text_printf(&out, "%d", shape->tree[i]);
  }
  return out.size;
}

// ---- presets --------------------------------------------------------------------------------------------------

size_t dw_preset_count(void) { return DW__COUNT(presets); }

const char *dw_preset_name(size_t i) { return i < DW__COUNT(presets) ? presets[i].name : NULL; }

dw_status dw_preset_shape(const char *name, dw_shape *shape, dw_error *error) {
  if (!name || !shape)
    return dw__fail(error, DW_BAD_ARGUMENT, name ? "shape" : "name", "NULL", "not NULL", "nothing to look up");
  const char *text = preset_text(name, strlen(name));
  return text ? dw_shape_parse(text, shape, error) : unknown_start(DW_NOT_FOUND, name, strlen(name), error);
}
