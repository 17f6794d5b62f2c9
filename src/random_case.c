// See random_case.h.
#include "random_case.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "random.h"
#include "rule.h"

const dw__case_scale dw__case_large = {
  .heads = 128, .width = 128, .batch = DW__CASE_BATCH, .longest = 6000, .pairs = 20000000, .wide = 1025, .widths = true};
const dw__case_scale dw__case_small = {
  .heads = 8, .width = 6, .batch = 3, .longest = 100, .pairs = 6000, .wide = 70, .widths = true};

static int below(uint64_t *state, int n) { return dw__random_below(state, n); }
static int one_in(uint64_t *state, int n) { return below(state, n) == 0; }
static int least(int a, int b) { return a < b ? a : b; }
static int most(int a, int b) { return a > b ? a : b; }

static uint64_t stream(uint64_t seed, int kind, int i) {
  uint64_t state = seed ^ (uint64_t)kind << 56;
  state = dw__random(&state) ^ (uint64_t)(unsigned)i;
  return dw__random(&state);
}

int dw__case_width(const dw__case *c) { return c->width ? c->width : c->shape.width; }

float dw__case_kv_scale(const dw__case *c) {
  static const float scales[] = {0, 0.25f, 0.004f, 60};  // 0.004: many elements are 448; 60: most are subnormal
  return scales[c->scale];
}
float dw__case_v_scale(const dw__case *c) {
  static const float scales[] = {0, 8, 0, 0.01f};
  return c->shape.attention == DW_GQA ? scales[c->scale] : 0;
}

int dw__case_longest(const dw__case *c) {
  int longest = 0;
  for (int k = 0; k <= c->replay; k++)
    for (int b = 0; b < c->batch; b++) longest = most(longest, c->prefix[k][b]);
  return longest;
}

// ---- a group's shape and variants -----------------------------------------------------------------------------

// A tree in the code, of random or of one long branch.
static void set_tree(dw_shape *shape, uint64_t *state) {
  int parents[DW__COUNT(shape->tree)];
  if (shape->width > (int)DW__COUNT(parents)) return;
  shape->tree_nodes = shape->width;
  dw__tree_random(state, shape->width, parents);
  for (int i = 0; i < shape->width; i++) shape->tree[i] = (signed char)parents[i];
}

static dw_shape random_shape(const dw__case_scale *scale, uint64_t *state) {
  static const int wide[] = {65, 70, 97, 129, 160, 192, 255, 256, 257, 511, 512, 777, 1024, 1025};
  static const int pages[] = {1, 1, 16, 32, 64, 64, 128};
  static const int vectors[][2] = {{320, 256}, {192, 128}, {128, 128}, {96, 64}, {288, 256}, {576, 512}};
  dw_shape shape = {.attention = DW_MLA, .kv_heads = 1, .head_dim_qk = 576, .head_dim_v = 512};
  shape.heads = one_in(state, 3) ? 1 + below(state, scale->heads) : least(1 << below(state, 8), scale->heads);
  shape.width = one_in(state, 3) ? 1 + below(state, least(9, scale->width)) : 1 + below(state, scale->width);
  if (one_in(state, 12)) {
    int count = 0;
    while (count < (int)DW__COUNT(wide) && wide[count] <= scale->wide) count++;
    shape.width = wide[below(state, count)];
    shape.heads = scale->wide < 128 ? 1 : 1 + below(state, 8);
  }
  if (scale->widths && one_in(state, 3)) {
    const int *of = vectors[below(state, DW__COUNT(vectors))];
    shape.head_dim_qk = of[0];
    shape.head_dim_v = of[1];
  }
  shape.page = pages[below(state, DW__COUNT(pages))];
  shape.q = shape.kv = one_in(state, 3) ? DW_F16 : DW_BF16;
  shape.out = one_in(state, 4) ? DW_F32 : one_in(state, 6) ? (dw_dtype)below(state, 2) : shape.q;
  if (one_in(state, 4)) shape.kv = DW_E4M3;
  if (shape.kv == DW_E4M3 && shape.q == DW_BF16 && shape.head_dim_qk == 576 && (shape.width + shape.heads) % 2)
    shape.kv = DW_RECORD656;
  shape.target = scale->target ? scale->target : one_in(state, 2) ? 90 : 120;
  shape.limits = shape.target < 120 ? 120 : 0;
  if (one_in(state, 3)) set_tree(&shape, state);
  return shape;
}

// The same call for GQA, with heads and vectors of its own.
static void make_gqa(const dw__case_scale *scale, uint64_t *state, dw_shape *shape) {
  static const int vectors[][2] = {{128, 128}, {64, 64}, {192, 128}, {96, 96}, {256, 256}, {64, 96}};
  static const int shared[] = {1, 2, 4, 5, 6, 7, 8, 12, 16};
  const int *of = scale->widths || one_in(state, 2) ? vectors[below(state, DW__COUNT(vectors))] : vectors[0];
  shape->attention = DW_GQA;
  if (shape->kv == DW_RECORD656) shape->kv = DW_E4M3;
  shape->head_dim_qk = of[0];
  shape->head_dim_v = of[1];
  shape->kv_heads = 1 + below(state, least(8, scale->heads));
  shape->heads = shape->kv_heads * least(shared[below(state, DW__COUNT(shared))], scale->heads / shape->kv_heads);
  if (shape->width > 64) shape->heads = shape->kv_heads;
}

// What the rule table returns for some loads.
static void random_variants(const dw_shape *shape, uint64_t *state, dw_variant *variants, int wanted) {
  size_t count = 0;
  while (dw_variant_enumerate(shape, count, &variants[0]) == DW_OK) count++;
  for (int i = 0; i < wanted; i++) dw_variant_enumerate(shape, (size_t)below(state, (int)count), &variants[i]);
}

static dw_variant plain_variant(const dw_shape *shape, const char *text) {
  dw_variant variant;
  dw_variant_parse(text, &variant, NULL);
  if (variant.family == DW_SPLIT) {
    variant.combine = shape->head_dim_v % 128 ? DW_COMBINE_FEW : DW_COMBINE_MANY;
    variant.combine_splits = 8;
  }
  return variant;
}

void dw__case_group(const dw__case_scale *scale, uint64_t seed, int group, dw_shape *shape,
                    dw_variant variants[DW__CASE_VARIANTS]) {
  uint64_t state = stream(seed, 1, group);
  *shape = random_shape(scale, &state);
  if (group % 3 == 2) make_gqa(scale, &state, shape);
  bool apart = shape->attention == DW_MLA && shape->head_dim_qk > shape->head_dim_v;
  int all = DW_WITH_WINDOW | DW_WITH_SOFT_CAP | (apart ? DW_WITH_Q_ROPE | DW_WITH_KV_ROPE : 0);
  if (shape->kv == DW_RECORD656) all &= ~DW_WITH_KV_ROPE;
  random_variants(shape, &state, variants, DW__CASE_VARIANTS);
  variants[0].call = variants[1].call = variants[2].call = DW_CALL_ANY;
  int last = below(&state, 4);
  if (last < 2) variants[2].call = DW_CALL_TABLE;
  else variants[2] = plain_variant(shape, last == 2 ? "family=split" : "family=reference,combine=none");
  dw__variant_add_features(&variants[1], one_in(&state, 2) ? all : below(&state, 16) & all);
  if (one_in(&state, 2)) dw__variant_add_features(&variants[2], below(&state, 16) & all);
  if (variants[1].family == DW_ROWSPLIT && one_in(&state, 4)) variants[1].cp_async = 1, variants[1].setmaxnreg = 0;
  for (int i = 1; i < DW__CASE_VARIANTS; i++) {
    dw_error ignored = {0};
    if (dw_variant_applicable(shape, &variants[i], &ignored)) variants[i] = variants[0];
    dw_error_clear(&ignored);
  }
}

// ---- a case ---------------------------------------------------------------------------------------------------

static bool fits_table(const dw__case *c) { return c->table && c->all && !c->ragged && !c->split; }
static bool has_matrix(const dw__case *c) { return c->mask == DW_MASK_BYTES_QLEN || c->mask == DW_MASK_BIAS_F32; }

#define FULL_MASK_MOST (32 << 20)  // bytes

static void settle_lengths(dw__case *c) {
  int width = dw__case_width(c);
  for (int k = 0; k < 2; k++)
    for (int b = 0; b < DW__CASE_BATCH; b++) {
      bool used = b < c->batch && k <= c->replay;
      c->rows[k][b] = !used ? 0 : c->ragged ? least(c->rows[k][b], width) : width;
      c->prefix[k][b] = used ? most(c->prefix[k][b], c->all ? -c->rows[k][b] : 0) : 0;
    }
}

void dw__case_settle(dw__case *c) {
  c->width = least(c->width, c->shape.width);
  if (c->table) c->index64 = c->slots = c->scatter = 0;
  if (c->all) c->slots = c->elsewhere = 0;
  if (c->elsewhere) c->slots = c->window = 0;
  if (c->mask == DW_MASK_BYTES_FULL &&
      (int64_t)c->batch * dw__case_width(c) * (dw__case_longest(c) + dw__case_width(c)) > FULL_MASK_MOST)
    c->mask = DW_MASK_BYTES_QLEN;
  if (c->mask == DW_MASK_STATIC && !c->shape.tree_nodes) c->mask = DW_MASK_PARENTS;
  if (!has_matrix(c)) c->shared = 0;
  if (c->mask <= DW_MASK_PARENTS || c->mask == DW_MASK_STATIC) c->any = 0;
  if (c->mask != DW_MASK_PARENTS) c->dead = 0;
  if (c->mask == DW_MASK_NONE || c->mask == DW_MASK_STATIC || c->any) c->tree = 0;
  if (!c->variant.window) c->window = 0;
  if (!c->variant.soft_cap) c->cap = 0;
  if (!c->variant.q_rope) c->q_rope = 0;
  if (!c->variant.kv_rope) c->kv_rope = 0;
  if (c->shape.attention == DW_MLA) c->planes = 0;
  if (!c->replay) c->capture = 0;
  if (c->shape.kv != DW_E4M3) c->scale = 0;
  settle_lengths(c);
  if (!fits_table(c)) c->variant.call = DW_CALL_ANY;
}

static int random_length(uint64_t *state, int longest) {
  switch (below(state, 4)) {
    case 0: return below(state, longest + 1);
    case 1: return below(state, least(longest, 20) + 1);
    default: return longest;
  }
}

static void random_lengths(dw__case *c, int longest, uint64_t *state) {
  int width = dw__case_width(c);
  for (int k = 0; k < 2; k++)
    for (int b = 0; b < c->batch; b++) {
      int draw = below(state, 8);
      c->rows[k][b] = !c->ragged || draw < 4 ? width : draw == 7 ? least(below(state, 2), width) : below(state, width + 1);
      c->prefix[k][b] = random_length(state, longest);
      // A row that a graph was padded with: a length of 0 or 1, or of some of its drafts.
      if (!c->all || !one_in(state, 8)) continue;
      int tokens = one_in(state, 2) ? least(below(state, 2), c->rows[k][b]) : below(state, c->rows[k][b] + 1);
      c->prefix[k][b] = tokens - c->rows[k][b];
    }
}

// Fewer requests, then a shorter prefix, then fewer rows, until the case is small enough.
static int choose_size(const dw__case_scale *scale, dw__case *c, uint64_t *state) {
  static const int lengths[] = {0, 1, 15, 16, 17, 31, 33, 63, 64, 65, 100, 255, 300, 777, 1000, 2500, 6000};
  int longest = lengths[below(state, DW__COUNT(lengths))];
  while (longest > scale->longest) longest /= 2;
  c->batch = least(one_in(state, 4) ? 1 + below(state, scale->batch) : 1 + below(state, 4), scale->batch);
  c->width = one_in(state, 4) ? 1 + below(state, c->shape.width) : 0;
  for (;;) {
    int width = dw__case_width(c);
    if ((int64_t)c->batch * c->shape.heads * width * (longest + width) <= scale->pairs) return longest;
    if (c->batch > 1) c->batch /= 2;
    else if (longest > width) longest /= 2;
    else if (width > 1) c->width = width / 2;
    else return longest;
  }
}

// What FIXED ranges need of workspace, about.
#define PARTIALS_MOST ((int64_t)4 << 30)
static int64_t partial_bytes(const dw__case *c, int longest) {
  int64_t tokens = (int64_t)(longest + c->shape.width) * (1 + c->spare) + 100, ranges = c->split ? tokens / c->split + 1 : 1;
  return (c->batch + 2 * c->spare) * ranges * c->shape.width * c->shape.heads * c->shape.head_dim_v * 4;
}

static void choose_features(dw__case *c, int longest, uint64_t *state) {
  int width = dw__case_width(c), windows[] = {1, 2, width, 1 + below(state, longest + width), longest + width + 1};
  c->ragged = below(state, 2);
  c->mask = below(state, c->shape.tree_nodes ? 8 : 6);
  if (c->mask > DW_MASK_STATIC) c->mask = DW_MASK_STATIC;
  c->shared = one_in(state, 3);
  c->tree = one_in(state, 4) ? below(state, 3) : DW__TREE_RANDOM;
  c->any = one_in(state, 3);
  c->dead = below(state, 2);
  c->table = below(state, 2);
  c->index64 = below(state, 2);
  c->all = below(state, 2);
  c->slots = !one_in(state, 4);
  c->elsewhere = one_in(state, 4);
  c->strided = below(state, 2);
  c->shuffle = !one_in(state, 4);
  c->scatter = below(state, 2);
  c->share = one_in(state, 3);
  c->q_rope = below(state, 2);
  c->kv_rope = below(state, 2);
  c->no_lse = one_in(state, 8);
  c->base_e = below(state, 2);
  c->window = one_in(state, 2) ? windows[below(state, DW__COUNT(windows))] : 0;
  c->positions = c->window ? below(state, 2) : one_in(state, 8);
  c->cap = one_in(state, 2) ? 50 + below(state, 5000) : 0;
  c->sinks = one_in(state, 4);
  c->overlap = one_in(state, 4);
  c->peaked = one_in(state, 4);
  c->scale = below(state, 4);
  // Not more ranges than a grid and its merge are fit for.
  int least_split = (longest + width) / 256;
  if (one_in(state, 3)) c->split = most(16 << below(state, 5), (least_split + 15) / 16 * 16);
  c->spare = one_in(state, 4);
  if (partial_bytes(c, longest) > PARTIALS_MOST) c->split = c->spare = 0;
  c->capture = below(state, 3);
  c->replay = below(state, 2);
  c->order = below(state, 3);
  c->seed = (int)(dw__random(state) >> 33);
  c->planes = below(state, 4);
}

void dw__case_make(const dw__case_scale *scale, uint64_t seed, int index, int per_group, dw__case *c) {
  uint64_t state = stream(seed, 2, index);
  dw_variant variants[DW__CASE_VARIANTS];
  memset(c, 0, sizeof *c);
  dw__case_group(scale, seed, index / per_group, &c->shape, variants);
  int longest = choose_size(scale, c, &state);
  choose_features(c, longest, &state);
  int which = one_in(&state, 4) ? 0 : 1 + below(&state, 2);
  c->variant = variants[which];
  if (c->variant.call == DW_CALL_TABLE) c->table = c->all = 1, c->ragged = 0;
  if (!dw__variant_fixed_ok(&c->variant, c->split, NULL)) c->split = 0;
  random_lengths(c, longest, &state);
  dw__case_settle(c);
}

// ---- text -----------------------------------------------------------------------------------------------------

typedef struct field {
  const char *name;
  size_t offset;
  int least, most;
} field;
static const field fields[] = {
#define X(name, lowest, highest, help) {#name, offsetof(dw__case, name), lowest, highest},
  DW__CASE_FIELDS(X)
#undef X
};
static int *at_field(const dw__case *c, const field *f) { return (int *)(uintptr_t)((const char *)c + f->offset); }

static void print_list(dw__buf *text, const char *name, int which, const int *list, int count) {
  dw__buf_printf(text, ",%s%s=", name, which ? "2" : "");
  for (int i = 0; i < count; i++) dw__buf_printf(text, "%s%d", i ? "/" : "", list[i]);
}

void dw__case_print(const dw__case *c, dw__buf *text) {
  char shape[DW_TEXT_MAX], variant[DW_TEXT_MAX];
  dw_shape_print(&c->shape, shape, sizeof shape);
  dw_variant_print(&c->variant, variant, sizeof variant);
  dw__buf_printf(text, "%s %s batch=%d", shape, variant, c->batch);
  for (size_t i = 1; i < DW__COUNT(fields); i++)
    if (*at_field(c, &fields[i])) dw__buf_printf(text, ",%s=%d", fields[i].name, *at_field(c, &fields[i]));
  for (int k = 0; k <= c->replay; k++) {
    print_list(text, "prefix", k, c->prefix[k], c->batch);
    if (c->ragged) print_list(text, "rows", k, c->rows[k], c->batch);
  }
}

static dw_status bad(dw_error *error, const char *name, const char *found, const char *allowed) {
  return dw__fail(error, DW_BAD_ARGUMENT, name, found, allowed, "a case as `draftwood verify --random` prints it");
}

static dw_status parse_list(const char *name, char *text, int *list, dw_error *error) {
  int count = 0;
  for (char *at = text; *at && count < DW__CASE_BATCH; at += *at == '/') {
    char *end;
    list[count++] = (int)strtol(at, &end, 10);
    if (end == at || (*end && *end != '/')) return bad(error, name, text, "numbers parted by /");
    at = end;
  }
  return DW_OK;
}

static dw_status parse_one(dw__case *c, char *item, dw_error *error) {
  char *value = strchr(item, '=');
  if (!value) return bad(error, "spec", item, "field=value");
  *value++ = 0;
  if (strcmp(item, "prefix") == 0) return parse_list(item, value, c->prefix[0], error);
  if (strcmp(item, "prefix2") == 0) return parse_list(item, value, c->prefix[1], error);
  if (strcmp(item, "rows") == 0) return parse_list(item, value, c->rows[0], error);
  if (strcmp(item, "rows2") == 0) return parse_list(item, value, c->rows[1], error);
  for (size_t i = 0; i < DW__COUNT(fields); i++) {
    if (strcmp(item, fields[i].name) != 0) continue;
    char *end, allowed[48];
    long number = strtol(value, &end, 10);
    snprintf(allowed, sizeof allowed, "%d to %d", fields[i].least, fields[i].most);
    if (end == value || *end || number < fields[i].least || number > fields[i].most) return bad(error, item, value, allowed);
    *at_field(c, &fields[i]) = (int)number;
    return DW_OK;
  }
  return bad(error, "spec", item, "a field of a case");
}

static dw_status parse_all(char *text, dw__case *c, dw_error *error) {
  char *rest = NULL, *shape = strtok_r(text, " ", &rest), *variant = strtok_r(NULL, " ", &rest);
  char *list = strtok_r(NULL, " ", &rest);
  if (!list) return bad(error, "spec", text, "SHAPE VARIANT field=value,...");
  dw_status status = dw_shape_parse(shape, &c->shape, error);
  if (!status) status = dw_variant_parse(variant, &c->variant, error);
  char *item = strtok_r(list, ",", &rest);
  for (; item && !status; item = strtok_r(NULL, ",", &rest)) status = parse_one(c, item, error);
  return status;
}

dw_status dw__case_parse(const char *text, dw__case *c, dw_error *error) {
  char *copy = dw__strdup(text);
  memset(c, 0, sizeof *c);
  c->batch = 1;
  if (!copy) return dw__fail(error, DW_OUT_OF_MEMORY, "spec", "", "", NULL);
  dw_status status = parse_all(copy, c, error);
  dw__release(copy);
  if (!status) dw__case_settle(c);
  return status;
}

// ---- shrinking ------------------------------------------------------------------------------------------------

static void keep_requests(dw__case *c, int first, int count) {
  for (int k = 0; k < 2; k++)
    for (int b = 0; b < count; b++) {
      c->prefix[k][b] = c->prefix[k][first + b];
      c->rows[k][b] = c->rows[k][first + b];
    }
  c->batch = count;
}

static void drop_request(dw__case *c, int index) {
  for (int k = 0; k < 2; k++)
    for (int b = index; b + 1 < c->batch; b++) {
      c->prefix[k][b] = c->prefix[k][b + 1];
      c->rows[k][b] = c->rows[k][b + 1];
    }
  c->batch--;
}

static void halve_all(dw__case *c, bool rows) {
  for (int k = 0; k < 2; k++)
    for (int b = 0; b < c->batch; b++) {
      if (rows) c->rows[k][b] /= 2;
      else c->prefix[k][b] /= 2;
    }
}

static int most_rows(const dw__case *c) {
  int rows = 1;
  for (int k = 0; k <= c->replay; k++)
    for (int b = 0; b < c->batch; b++) rows = most(rows, c->rows[k][b]);
  return rows;
}

// The first nodes of a tree are a tree.
static void set_width(dw__case *c, int width) {
  c->width = 0;
  c->shape.width = width;
  if (c->shape.tree_nodes > width) c->shape.tree_nodes = width;
  for (int i = c->shape.tree_nodes; i < (int)DW__COUNT(c->shape.tree); i++) c->shape.tree[i] = 0;
}

static void shrink_shape(dw__case *c, int step) {
  switch (step) {
    case 0: set_width(c, most_rows(c)); break;
    case 1: set_width(c, (c->shape.width + 1) / 2); break;
    case 2: c->shape.heads = c->shape.kv_heads; break;
    case 3: c->shape.heads = (c->shape.heads / c->shape.kv_heads + 1) / 2 * c->shape.kv_heads; break;
    case 4: c->shape.page = 1; break;
    case 5: c->shape.page = least(c->shape.page, 16); break;
    case 6: c->shape.out = c->shape.q; break;
    case 7:
      c->shape.q = c->shape.kv = c->shape.out = DW_BF16;
      c->variant.wide_tile = 0;
      break;
    case 8: c->variant.setmaxnreg = 0; break;
    case 9: c->variant.n_tiles = 1; break;
    case 10: c->variant.call = DW_CALL_ANY; break;
    case 11: c->variant.window = 0; break;
    case 12: c->variant.soft_cap = 0; break;
    case 13: c->variant.q_rope = 0; break;
    case 14: c->variant.kv_rope = 0; break;
    case 15: c->shape.heads /= c->shape.kv_heads, c->shape.kv_heads = 1; break;
    case 16: c->variant.wide_tile = 0; break;
    case 17: c->variant.cp_async = c->shape.target < 90 && c->variant.cp_async; break;
    case 18:
      c->shape.tree_nodes = 0;
      memset(c->shape.tree, 0, sizeof c->shape.tree);
      break;
  }
}

// The step-th way to make a case smaller. The cheap ones first, those that need another kernel last. False: there are no more.
enum { SHAPE_STEPS = 19, FIELD_BATCH = 0, FIELD_WIDTH = 1 };
static bool smaller(dw__case *c, int step) {
  if (step == 0) return c->replay = 0, true;
  if (step == 1) return keep_requests(c, c->batch / 2, c->batch - c->batch / 2), true;
  if (step == 2) return keep_requests(c, 0, c->batch - c->batch / 2), true;
  step -= 3;
  if (step < c->batch) {
    if (c->batch > 1) drop_request(c, step);
    return true;
  }
  step -= c->batch;
  if (step < (int)DW__COUNT(fields)) {
    if (step == FIELD_WIDTH) set_width(c, dw__case_width(c));  // never more rows than before
    else if (step != FIELD_BATCH) *at_field(c, &fields[step]) = 0;
    return true;
  }
  step -= (int)DW__COUNT(fields);
  if (step < 2) return halve_all(c, step), true;
  step -= 2;
  if (step < 6 * c->batch) {
    int b = step % c->batch, way = step / c->batch;
    for (int k = 0; k < 2; k++) {
      if (way == 0 || way == 4 + k) c->prefix[k][b] = 0;
      else if (way == 1) c->prefix[k][b] /= 2;
      else if (way == 2) c->rows[k][b] /= 2;
      else if (way == 3) c->rows[k][b] = most(c->rows[k][b] - 1, 0);
    }
    return true;
  }
  step -= 6 * c->batch;
  if (step == 0) return c->window /= 2, true;
  if (step == 1) {
    if (dw__case_width(c) > 1) c->width = dw__case_width(c) / 2;
    return true;
  }
  if (step >= 2 + SHAPE_STEPS) return false;
  shrink_shape(c, step - 2);
  return true;
}

int dw__case_shrink(dw__case *c, dw_status status, int limit, dw__case_run *run, void *user, dw_error *error) {
  int tried = 0;
  bool found = true;
  while (found) {
    found = false;
    for (int step = 0; tried < limit; step++) {
      dw__case next = *c;
      dw_error other = {0};
      if (!smaller(&next, step)) break;
      dw__case_settle(&next);
      if (memcmp(&next, c, sizeof next) == 0) continue;
      tried++;
      if (run(user, &next, &other) != status) {
        dw_error_clear(&other);
        continue;
      }
      dw_error_clear(error);
      *error = other;
      *c = next;
      found = true;
      step--;  // once more: it may be halved again
    }
  }
  return tried;
}
