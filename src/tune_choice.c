// The choice among what was measured, plans, and the nearest choice for a problem.
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tune.h"

#define TIE 0.01      // of the best
#define TIE_MADS 2.0  // of the best one's noise

// ---- numbers --------------------------------------------------------------------------------------------------

static int ascending(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

double dw__median(double *values, size_t count) {
  if (!count) return 0;
  qsort(values, count, sizeof *values, ascending);
  return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

double dw__mad(double *values, size_t count, double median) {
  for (size_t i = 0; i < count; i++) values[i] = fabs(values[i] - median);
  return dw__median(values, count);
}

// ---- the choice -----------------------------------------------------------------------------------------------

typedef struct score {
  double value, noise;
} score;

static const dw__measured *find_default(const dw__measured *list, size_t count) {
  for (size_t i = 0; i < count; i++)
    if (list[i].is_default) return &list[i];
  return NULL;
}

int dw__tune_choose(const dw__measured *list, size_t count, bool any_numerics) {
  const dw__measured *normal = find_default(list, count);
  const bool by_ratio = normal && normal->verdict == DW__SOUND && normal->ratio > 0;
  score best = {INFINITY, 0};
  int chosen = -1;
  // Twice over the list: the best, then the lowest id that ties with it.
  for (int pass = 0; pass < 2; pass++) {
    const double limit = best.value + fmax(TIE * best.value, TIE_MADS * best.noise);
    for (size_t i = 0; i < count; i++) {
      const dw__measured *m = &list[i];
      const score s = by_ratio ? (score){m->ratio, m->ratio_mad} : (score){m->us, m->us_mad};
      if (m->verdict != DW__SOUND || !(s.value > 0)) continue;
      if (!any_numerics && normal && strcmp(m->numerics, normal->numerics) != 0) continue;
      if (pass == 0) {
        if (s.value < best.value || (s.value == best.value && s.noise < best.noise)) best = s;
      } else if (s.value <= limit) {
        if (m->is_default) return (int)i;
        if (chosen < 0 || m->id < list[chosen].id) chosen = (int)i;
      }
    }
  }
  return chosen;
}

// ---- choices --------------------------------------------------------------------------------------------------

void dw__choices_free(dw__choices *choices) {
  dw__release(choices->list);
  *choices = (dw__choices){0};
}

static int compare_choices(const dw__plan_choice *a, const dw__plan_choice *b) {
  return dw__choice_compare(&a->board, &a->key, &b->board, &b->key);
}

// The place of the first that is not before it.
static size_t place_of(const dw__choices *choices, const dw__board *board, const dw__tune_key *key) {
  size_t low = 0, high = choices->count;
  while (low < high) {
    const size_t middle = (low + high) / 2;
    const dw__plan_choice *c = &choices->list[middle];
    if (dw__choice_compare(&c->board, &c->key, board, key) < 0) low = middle + 1;
    else high = middle;
  }
  return low;
}

static bool put(dw__choices *to, const dw__plan_choice *choice, bool replace) {
  const size_t at = place_of(to, &choice->board, &choice->key);
  if (at < to->count && !compare_choices(&to->list[at], choice)) {
    const bool better = to->list[at].predicted && !choice->predicted, worse = !to->list[at].predicted && choice->predicted;
    if (better || (replace && !worse)) to->list[at] = *choice;
    return true;
  }
  if (to->count == to->capacity) {
    const size_t capacity = to->capacity ? 2 * to->capacity : 32;
    dw__plan_choice *list = dw__realloc(to->list, capacity * sizeof *list);
    if (!list) return false;
    to->list = list;
    to->capacity = capacity;
  }
  memmove(&to->list[at + 1], &to->list[at], (to->count - at) * sizeof to->list[0]);
  to->list[at] = *choice;
  to->count++;
  return true;
}

bool dw__choices_add(dw__choices *to, const dw__choices *from, bool replace) {
  for (size_t i = 0; i < from->count; i++)
    if (!put(to, &from->list[i], replace)) return false;
  return true;
}

static dw_status no_memory(dw_error *error) { return dw__fail(error, DW_OUT_OF_MEMORY, "memory", "", "", "out of memory"); }

// One problem's records, list[first] to list[end - 1], of which those of one state of the L2 count.
static bool choose_one(const dw__tune_record *list, size_t first, size_t end, dw__l2_state l2, bool any_numerics,
                       dw__measured *measured, dw__choices *choices) {
  size_t count = 0;
  const dw__tune_record **from = (const dw__tune_record **)(void *)(measured + (end - first));
  double default_us = 0;
  for (size_t i = first; i < end; i++) {
    const dw__tune_record *r = &list[i];
    if (r->l2 != (int)l2) continue;
    if (r->is_default && r->verdict == DW__SOUND) default_us = r->us;
    from[count] = r;
    measured[count++] = (dw__measured){r->id, r->is_default, r->verdict, r->ratio, r->ratio_mad, r->us, r->us_mad, r->numerics};
  }
  const int chosen = dw__tune_choose(measured, count, any_numerics);
  if (chosen < 0) return true;
  const dw__tune_record *r = from[chosen];
  dw__plan_choice c = {.key = r->key,
                       .batch = r->batch,
                       .kv_len = r->kv_len,
                       .variant = r->variant,
                       .n = r->n,
                       .us = r->us,
                       .default_us = default_us,
                       .ratio = r->ratio,
                       .ratio_mad = r->ratio_mad};
  c.board = (dw__board){.cc = r->board.cc, .sm_count = r->board.sm_count, .l2_bytes = r->board.l2_bytes};
  memcpy(c.board.name, r->board.name, sizeof c.board.name);
  memcpy(c.numerics, r->numerics, sizeof c.numerics);
  return put(choices, &c, true);
}

dw_status dw__choices_make(const dw__tune_records *merged, dw__l2_state l2, bool any_numerics, dw__choices *choices,
                           dw_error *error) {
  const dw__tune_record *list = merged->list;
  bool sound = true;
  for (size_t first = 0, end; first < merged->count && sound; first = end) {
    for (end = first + 1; end < merged->count;) {
      if (dw__choice_compare(&list[first].board, &list[first].key, &list[end].board, &list[end].key)) break;
      end++;
    }
    dw__measured *measured = dw__calloc(end - first, sizeof(dw__measured) + sizeof(void *));
    sound = measured && choose_one(list, first, end, l2, any_numerics, measured, choices);
    dw__release(measured);
  }
  return sound ? DW_OK : no_memory(error);
}

// ---- plans as text --------------------------------------------------------------------------------------------

dw__digest dw__choices_digest(const dw__choices *choices) {
  dw__buf text = {0};
  dw__buf_puts(&text, "draftwood plan 1\n");
  for (size_t i = 0; i < choices->count; i++) {
    const dw__plan_choice *c = &choices->list[i];
    char board[192], shape[DW_TEXT_MAX], variant[DW_TEXT_MAX];
    dw__board_id(&c->board, board);
    dw_shape_print(&c->key.shape, shape, sizeof shape);
    dw_variant_print(&c->variant, variant, sizeof variant);
    dw__buf_printf(&text, "%s %s %d %d %d %d %d %d %s\n", board, shape, c->key.batch, c->key.kv_steps, c->key.kv_fit,
                   c->key.call, c->key.features, c->key.split_tokens, variant);
  }
  const dw__digest digest = dw__sha256(text.data, text.size);
  dw__buf_free(&text);
  return digest;
}

bool dw__choices_print(const dw__choices *choices, dw__buf *text) {
  char hex[65];
  const dw__digest digest = dw__choices_digest(choices);
  dw__hex(&digest, hex);
  dw__buf_printf(text, "{\"plan\":1,\"choices\":%zu,\"digest\":\"%s\"}\n", choices->count, hex);
  for (size_t i = 0; i < choices->count; i++) dw__plan_choice_print(&choices->list[i], text);
  return !text->failed;
}

typedef struct reading {
  dw__choices *choices;
  bool begun;
  json_int_t expected;
  char digest[65];
} reading;

static dw_status read_head(reading *r, const char *line, size_t size, dw_error *error) {
  json_int_t schema;
  const char *digest;
  json_t *head = json_loadb(line, size, JSON_REJECT_DUPLICATES, NULL);
  r->begun = head && !json_unpack(head, "{s:I, s:I, s:s !}", "plan", &schema, "choices", &r->expected, "digest", &digest);
  if (r->begun && schema == 1 && strlen(digest) == 64) memcpy(r->digest, digest, 65);
  else r->begun = false;
  json_decref(head);
  return r->begun
           ? DW_OK
           : dw__fail(error, DW_BAD_ARGUMENT, "line", "no head of a plan", "\"plan\":1, \"choices\" and \"digest\"", "%s", "");
}

static dw_status take_choice(void *user, const char *line, size_t size, dw_error *error) {
  reading *r = user;
  dw__plan_choice choice;
  if (!r->begun) return read_head(r, line, size, error);
  dw_status status = dw__plan_choice_parse(line, size, &choice, error);
  if (!status) status = dw_variant_applicable(&choice.key.shape, &choice.variant, error);
  if (status) return status;
  const size_t before = r->choices->count;
  if (!put(r->choices, &choice, false)) return no_memory(error);
  if (r->choices->count != before) return DW_OK;
  return dw__fail(error, DW_BAD_ARGUMENT, "line", "a problem that was there before", "each problem once", "%s", "");
}

dw_status dw__choices_read(const char *text, size_t size, dw__choices *choices, dw_error *error) {
  char hex[65];
  reading r = {.choices = choices};
  dw_status status = dw__lines_read(text, size, take_choice, &r, error);
  if (!status && !r.begun) status = read_head(&r, "", 0, error);
  if (!status) {
    const dw__digest digest = dw__choices_digest(choices);
    dw__hex(&digest, hex);
    if (r.expected != (json_int_t)choices->count)
      status = dw__fail_int(error, DW_BAD_ARGUMENT, "choices", (long long)choices->count, "as many as the plan's head says",
                            "the plan is not whole");
    else if (strcmp(hex, r.digest) != 0)
      status = dw__fail(error, DW_BAD_ARGUMENT, "digest", hex, r.digest, "the plan was changed");
  }
  if (status) dw__choices_free(choices);
  return status;
}

// ---- the nearest ----------------------------------------------------------------------------------------------

#define NEAR_WIDTH 0.585  // log2 of 1.5
#define NEAR_KV 1.17      // half octaves of the same factor
#define NEAR_BATCH 1      // octaves

// What has to be the same, with the fields that may differ made equal.
static bool same_but_sizes(const dw__tune_key *a, const dw__tune_key *b) {
  dw__tune_key x = *a, y = *b;
  x.shape.width = y.shape.width;
  x.shape.page = y.shape.page;
  x.batch = y.batch;
  x.kv_steps = y.kv_steps;
  x.kv_fit = y.kv_fit;
  x.features = y.features;
  return !x.shape.tree_nodes && !y.shape.tree_nodes && !dw__tune_key_compare(&x, &y);
}

// How far; negative: not near. Widths weigh most, since they decide over the tiles of rows.
static double distance(const dw__tune_key *a, const dw__tune_key *b) {
  const double width = fabs(log2((double)a->shape.width / b->shape.width)), kv = abs(a->kv_steps - b->kv_steps);
  const double batch = fabs(log2((double)a->batch / b->batch));
  if (width > NEAR_WIDTH || kv > NEAR_KV || batch > NEAR_BATCH) return -1;
  return 4 * width + kv + batch + 0.1 * (a->shape.page != b->shape.page) + 0.1 * (a->features != b->features) +
         0.01 * (a->kv_fit != b->kv_fit);
}

const dw__plan_choice *dw__choices_find(const dw__choices *choices, const dw__board *board, const dw__tune_key *key,
                                        dw__nearness *nearness) {
  const dw__plan_choice *best = NULL;
  double best_distance = INFINITY;
  const size_t at = place_of(choices, board, key);
  *nearness = DW__NOT_NEAR;
  if (at < choices->count && !dw__choice_compare(&choices->list[at].board, &choices->list[at].key, board, key)) {
    *nearness = DW__SAME_PROBLEM;
    return &choices->list[at];
  }
  for (size_t i = 0; i < choices->count; i++) {
    const dw__plan_choice *c = &choices->list[i];
    if (c->board.cc != board->cc || !same_but_sizes(&c->key, key)) continue;
    const dw__nearness near = dw__board_same(&c->board, board) ? DW__NEAR_SHAPE : DW__NEAR_GPU;
    const double far = distance(&c->key, key) + fabs(log2((double)c->board.sm_count / board->sm_count)) + c->predicted;
    if (distance(&c->key, key) < 0 || near > *nearness || (near == *nearness && far >= best_distance)) continue;
    best = c;
    best_distance = far;
    *nearness = near;
  }
  return best;
}
