// dw_explain: where a request was found, or what kept it from being found.
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "flow.h"

// ---- the entry that is nearest --------------------------------------------------------------------------------

typedef struct asked {
  char shape[DW_TEXT_MAX], variant[DW_TEXT_MAX], target[16];
  dw__digest key;
  int least;  // fields in which the nearest entry differs; -1: there is none
  dw__buf differences;
  char build[65];
} asked;

// The value of a field of "name=value,..." (or "kind:name=value,..."); false where it is not in it.
static bool field_of(const char *text, const char *name, size_t length, char value[DW_TEXT_MAX]) {
  for (const char *at = text + strcspn(text, ":,="); at; at = strpbrk(at, ":,")) {
    const char *item = *at == ':' || *at == ',' ? at + 1 : text;
    if (!strncmp(item, name, length) && item[length] == '=') {
      size_t size = strcspn(item + length + 1, ",");
      memcpy(value, item + length + 1, size);
      value[size] = 0;
      return true;
    }
    at = item;
  }
  return false;
}

static int note(dw__buf *list, const char *name, int length, const char *wanted, const char *there) {
  dw__buf_printf(list, "%s%.*s (wanted %s, there %s)", list->size ? ", " : "", length, name, wanted, there);
  return 1;
}

// The fields of `names` that `a` and `b` do not have alike; swapped: only those that `b` lacks, with wanted and there exchanged.
static int compare_fields(const char *a, const char *b, bool swapped, dw__buf *list) {
  int count = 0;
  const char *colon = strchr(a, ':');
  for (const char *item = colon ? colon + 1 : a; *item;) {
    size_t length = strcspn(item, "=,"), size = strcspn(item, ",");
    char mine[DW_TEXT_MAX] = "none", other[DW_TEXT_MAX] = "none";
    if (item[length] == '=') field_of(a, item, length, mine);
    bool has = field_of(b, item, length, other);
    if (swapped && !has) count += note(list, item, (int)length, "none", mine);
    if (!swapped && strcmp(mine, other) != 0) count += note(list, item, (int)length, mine, other);
    item += size + (item[size] == ',');
  }
  return count;
}

static int compare_texts(const char *wanted, const char *there, dw__buf *list) {
  return compare_fields(wanted, there, false, list) + compare_fields(there, wanted, true, list);
}

static int compare(const asked *ask, const char *shape, const char *variant, const char *target, dw__buf *list) {
  int count = 0;
  size_t kind = strcspn(ask->shape, ":");
  if (strncmp(ask->shape, shape, kind + 1) != 0) count += note(list, "attention", 9, ask->shape, shape);
  else count += compare_texts(ask->shape, shape, list);
  count += compare_texts(ask->variant, variant, list);
  if (strcmp(ask->target, target) != 0) count += note(list, "compile target", 14, ask->target, target);
  return count;
}

static bool look(void *user, const char *path, uint64_t file_size, const dw__entry *entry, const char *damaged) {
  (void)path, (void)file_size;
  asked *ask = user;
  json_t *object = damaged ? NULL : json_loads(entry->metadata, 0, NULL);
  const char *shape = json_string_value(json_object_get(object, "shape"));
  const char *variant = json_string_value(json_object_get(object, "variant"));
  const char *target = json_string_value(json_object_get(object, "target"));
  dw__buf list = {0};
  if (shape && variant && target && strlen(shape) < DW_TEXT_MAX && strlen(variant) < DW_TEXT_MAX) {
    int count = compare(ask, shape, variant, target, &list);
    if (!list.failed && (ask->least < 0 || count < ask->least)) {
      dw__buf old = ask->differences;
      ask->least = count;
      ask->differences = list;
      list = old;
      dw__hex(&entry->build, ask->build);
    }
  }
  dw__buf_free(&list);
  json_decref(object);
  return true;
}

static void print_nearest(dw__cache *cache, asked *ask, dw__buf *text) {
  if (dw__cache_scan(cache, false, look, ask, NULL)) dw__buf_puts(text, "nearest    the directory cannot be listed\n");
  else if (ask->least < 0) dw__buf_puts(text, "nearest    none: the directory has no entry\n");
  else if (ask->least == 0)
    dw__buf_printf(
      text,
      "nearest    %.12s\ndiffers    templates or parameter layout: it was made by another version of draftwood, or "
      "with other templates\n",
      ask->build);
  else dw__buf_printf(text, "nearest    %.12s\ndiffers    %s\n", ask->build, ask->differences.data);
  dw__buf_free(&ask->differences);
}

// ---- the places -----------------------------------------------------------------------------------------------

static void print_places(dw__cache *cache, dw__buf *text) {
  const char *why, *directory = dw__cache_directory(cache, &why), *name;
  dw__layer_place place;
  size_t i = 0;
  for (; (name = dw__cache_layer_name(cache, i, &place)) && place == DW__LAYER_BUNDLE; i++) {
    dw__buf_printf(text, "bundle     %s\n", name);
  }
  if (directory) {
    dw__buf_printf(text, "directory  %s%s%s\n", directory, dw__cache_is_shared(cache) ? ", shared with its group" : "",
                   dw__cache_is_remote(cache) ? ", on a filesystem of several hosts: no locks" : "");
  } else {
    dw__buf_printf(text, "directory  none: %s\n", why);
  }
  for (; (name = dw__cache_layer_name(cache, i, NULL)); i++) dw__buf_printf(text, "system     %s\n", name);
}

static const char *found_text(const dw__found *found, dw__buf *scratch) {
  static const char *const places[] = {"no", "in memory", "in the directory"};
  if (found->layer) dw__buf_printf(scratch, "in %s", found->layer);
  return found->layer && !scratch->failed ? scratch->data : places[found->place];
}

static dw_status explain(dw_ctx *ctx, asked *ask, dw__buf *text, dw_error *error) {
  dw__cache *cache = dw__ctx_cache(ctx);
  dw__buf scratch = {0};
  dw__found found = {0};
  dw__entry entry = {0};
  char hex[65];
  dw__hex(&ask->key, hex);
  dw_status status = dw__cache_find_where(cache, &ask->key, &entry, &found, NULL);
  dw__entry_free(&entry);
  dw__buf_printf(text, "request    %s\nshape      %s\nvariant    %s\ntarget     %s\n", hex, ask->shape, ask->variant,
                 ask->target);
  print_places(cache, text);
  dw__buf_printf(text, "found      %s\n", found_text(&found, &scratch));
  dw__buf_free(&scratch);
  if (status == DW_NOT_FOUND) print_nearest(cache, ask, text);
  if (text->failed || status == DW_OUT_OF_MEMORY) return dw__fail(error, DW_OUT_OF_MEMORY, "memory", "", "", "out of memory");
  return DW_OK;
}

dw_status dw_explain(dw_ctx *ctx, const dw_shape *shape, const dw_variant *variant, char **text, dw_error *error) {
  dw_variant chosen;
  asked ask = {.least = -1};
  dw__buf made = {0};
  if (text) *text = NULL;
  if (!ctx || !shape || !text) return dw__no_argument(error, !ctx ? "ctx" : !shape ? "shape" : "text");
  if (dw__ctx_is_frozen(ctx)) {
    return dw__fail(error, DW_FROZEN, "ctx", "frozen", "dw_explain before dw_freeze", "a frozen context opens no file");
  }
  dw_status status = variant ? DW_OK : dw_variant_choose(shape, NULL, &chosen, error);
  if (!variant) variant = &chosen;
  if (!status) status = dw__request_key_of(ctx, shape, variant, &ask.key, ask.target, error);
  if (status) return status;
  dw_shape_print(shape, ask.shape, sizeof ask.shape);
  dw_variant_print(variant, ask.variant, sizeof ask.variant);
  status = explain(ctx, &ask, &made, error);
  if (status) dw__buf_free(&made);
  else *text = made.data;
  return status;
}
