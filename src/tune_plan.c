// See tune_plan.h.
#include "tune_plan.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "flow.h"
#include "model.h"
#include "rule.h"

#define WORTH \
  1.02  // a choice that was not measured for just this problem may be predicted to be so much slower than the default

struct dw__plan_text {
  const char *name, *text;
  size_t size;
};
extern const struct dw__plan_text dw__plans_embedded[];
extern const size_t dw__plans_embedded_count;

static dw_status no_memory(dw_error *error) { return dw__fail(error, DW_OUT_OF_MEMORY, "memory", "", "", "out of memory"); }

dw_status dw__choices_load(const char *path, dw__choices *choices, dw_error *error) {
  char *data = NULL;
  size_t size = 0;
  dw_status status = dw__file_read(path, &data, &size, error);
  if (!status) status = dw__choices_read(data, size, choices, error);
  dw__release(data);
  return status;
}

dw_status dw__choices_shipped(dw__choices *choices, dw_error *error) {
  dw_status status = DW_OK;
  for (size_t i = 0; i < dw__plans_embedded_count && !status; i++) {
    dw__choices one = {0};
    status = dw__choices_read(dw__plans_embedded[i].text, dw__plans_embedded[i].size, &one, error);
    if (!status && !dw__choices_add(choices, &one, false)) status = no_memory(error);
    dw__choices_free(&one);
  }
  return status;
}

// ---- a context's ----------------------------------------------------------------------------------------------

dw_status dw__plan_book_open(dw__plan_book *book, const char *option, dw_error *error) {
  const char *variable = secure_getenv("DRAFTWOOD_PLAN"), *path = option ? option : variable;
  if (!path || !*path) return DW_OK;
  book->off = !strcmp(path, "none");
  if (book->off) return DW_OK;
  book->asked = dw__calloc(1, sizeof *book->asked);
  if (!book->asked) return no_memory(error);
  dw_error fault = {0};
  const dw_status status = dw__choices_load(path, book->asked, &fault);
  if (status)
    dw__fail(error, status, option ? "options.plan" : "DRAFTWOOD_PLAN", path, "none, or a plan's file", "%s", fault.message);
  dw_error_clear(&fault);
  return status;
}

void dw__plan_book_close(dw__plan_book *book) {
  if (book->asked) dw__choices_free(book->asked);
  dw__release(book->asked);
  *book = (dw__plan_book){0};
}

// One plan of the cache. A damaged one is told of, and does not count.
static dw_status add_own(dw_ctx *ctx, const char *folder, const char *gpu, dw__choices *choices, dw_error *error) {
  dw__choices own = {0};
  dw_error fault = {0};
  dw__buf path = {0};
  dw__buf_printf(&path, "%s/%s/plan.jsonl", folder, gpu);
  dw_status status = path.failed ? no_memory(error) : dw__choices_load(path.data, &own, &fault);
  if (!status && !dw__choices_add(choices, &own, true)) status = no_memory(error);
  if (status && status != DW_OUT_OF_MEMORY) {
    char message[1024];
    snprintf(message, sizeof message, "plan %s: not used: %s", path.data, fault.message);
    if (status != DW_NOT_FOUND) dw__ctx_warn(ctx, message);
    status = DW_OK;
  }
  dw_error_clear(&fault);
  dw__choices_free(&own);
  dw__buf_free(&path);
  return status;
}

static int is_visible(const struct dirent *entry) {
  return entry->d_name[0] != '.' && strcmp(entry->d_name, DW__IMPORTED) != 0;
}

// What was imported, then what was tuned with this cache, which goes before it; in the order of the GPUs' names.
static dw_status add_cached(dw_ctx *ctx, dw__choices *choices, dw_error *error) {
  struct dirent **names = NULL;
  char *folder = dw__tune_folder(ctx, NULL, NULL, NULL);
  dw_status status = folder ? add_own(ctx, folder, DW__IMPORTED, choices, error) : DW_OK;
  const int count = folder ? scandir(folder, &names, is_visible, alphasort) : 0;
  for (int i = 0; i < count; i++) {
    if (!status) status = add_own(ctx, folder, names[i]->d_name, choices, error);
    free(names[i]);
  }
  free(names);
  dw__release(folder);
  return status;
}

dw_status dw__plan_book_load(const dw__plan_book *book, dw_ctx *ctx, dw__choices *choices, dw_error *error) {
  if (book->off) return DW_OK;
  if (book->asked) return dw__choices_add(choices, book->asked, true) ? DW_OK : no_memory(error);
  dw_status status = dw__choices_shipped(choices, error);
  return status ? status : add_cached(ctx, choices, error);
}

// ---- the choice -----------------------------------------------------------------------------------------------

// Measured for just these bounds, or not expected to be slower than the default.
static bool is_worth_it(const dw__plan_choice *c, dw__nearness near, const dw__board *board, const dw_shape *shape,
                        const dw_bounds *bounds, const dw_variant *variant, const dw_variant *normal) {
  if (near == DW__SAME_PROBLEM && c->batch == bounds->batch && c->kv_len == bounds->kv_len) return true;
  const double us = dw__predict_on(shape, variant, bounds, board), normal_us = dw__predict_on(shape, normal, bounds, board);
  return us > 0 && us <= WORTH * normal_us;
}

// A choice never crosses numerics classes by being near: its class is that of the default, or it was asked for when it was tuned, and then
// only for the problem itself.
static bool keeps_class(dw__nearness near, const dw_bounds *bounds, const dw_variant *variant, const dw_variant *normal) {
  char own[64], usual[64];
  if (near == DW__SAME_PROBLEM) return true;
  dw__numerics_class(variant, bounds->split_tokens, own);
  dw__numerics_class(normal, bounds->split_tokens, usual);
  return !strcmp(own, usual);
}

dw_status dw__plan_choose(const dw__choices *choices, const dw__board *board, const dw_shape *shape, const dw_bounds *bounds,
                          dw_variant *variant, dw_choice *choice, dw_error *error) {
  static const dw_source sources[] = {DW_FROM_RECORD, DW_FROM_NEAR_SHAPE, DW_FROM_NEAR_GPU};
  dw_variant normal, found;
  dw__nearness near;
  *choice = (dw_choice){.size = sizeof *choice, .source = DW_FROM_RULE};
  dw_status status = dw_variant_choose(shape, bounds, &normal, error);
  if (status) return status;
  *variant = normal;
  const dw__tune_key key = dw__tune_key_of(shape, bounds, board->l2_bytes);
  const dw__plan_choice *c = choices->count ? dw__choices_find(choices, board, &key, &near) : NULL;
  if (!c) return DW_OK;
  found = c->variant;
  dw__variant_add_features(&found, bounds->features);
  if (dw_variant_applicable(shape, &found, NULL) || !keeps_class(near, bounds, &found, &normal)) return DW_OK;
  if (!is_worth_it(c, near, board, shape, bounds, &found, &normal)) return DW_OK;
  *variant = found;
  *choice = (dw_choice){
    .size = sizeof *choice, .source = sources[near], .predicted = c->predicted, .us = c->us, .default_us = c->default_us};
  return DW_OK;
}
