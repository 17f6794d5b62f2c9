// draftwood verify --device gpu --suite: the kernel contract on a GPU, over a subset of all combinations that meets each pair
// of heads and width with every prefix length, and everything else at random; how many cases met what is said at the end. A case
// is its seed: --seed S --cases 1 runs it again. Seeds from GQA_SEED on are of GQA.
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../runtime/gpu.h"
#include "cli.h"
#include "gpu_verify.h"
#include "plan.h"
#include "random.h"
#include "rule.h"

static const int heads_list[] = {4, 8, 12, 16, 20, 64};
// GQA: query heads, KV heads; dimensions of K and V.
static const int gqa_heads_list[][2] = {{32, 8}, {32, 4}, {8, 8}, {64, 8}, {16, 2}, {5, 1}, {12, 2}, {14, 2}, {12, 1}, {16, 1}};
static const int gqa_dims_list[][2] = {{128, 128}, {64, 64}, {192, 128}, {128, 128}, {256, 256}, {96, 96}};
static const int width_list[] = {1, 4, 9, 17, 33, 64, 128};
static const int prefix_list[] = {0, 1, 15, 16, 17, 63, 64, 65, 1000, 5700, 23000, 91000, 185000};
static const int batch_list[] = {1, 3, 8};
enum { QUICK_PREFIXES = 8, BATCH_MOST = 8, QK = 576, V = 512, GQA_SEED = 1000000 };

// Vector-token pairs that a case may have: about a second of the fp64 oracle on a large GPU.
#define PAIRS_MOST 1600000000LL
#define PAIRS_QUICK 20000000LL
#define FULL_MASK_MOST (64LL << 20)  // bytes
// A pool of more than 2^31 elements, also of the parts of tokens alone; 5 GB. One case in 21.
enum { FAR_POOL_EVERY = 21 };
#define FAR_POOL_ELEMENTS 2201600000LL
// Checked builds, which have nothing to tell of a sound call: one case in nine.
enum { CHECKED_EVERY = 9 };

typedef struct asked {
  int device_word, device, cases, seed, target, attention, longest;
  bool suite, quick, verbose, build_only, small;
  const char *variant;
} asked;

typedef struct suite {
  const asked *want;
  dw_ctx *ctx;
  dw__gpu *gpu;
  dw__gpu_judges judges;
  int passed, failed, left_out;
  double worst;  // error over bound
  int met[32], masks[CLI_MASKS], padded;
} suite;

// ---- cases ----------------------------------------------------------------------------------------------------

typedef struct suite_case {
  int prefix[2][BATCH_MOST], rows[2][BATCH_MOST];
  dw__gpu_check check;
} suite_case;

static int pick(uint64_t *state, const int *list, size_t count) { return list[dw__random_below(state, (int)count)]; }
#define PICK(state, list) pick(state, list, DW__COUNT(list))

// Seeds from 0 on for both kinds of attention.
static bool is_gqa(int seed) { return seed >= GQA_SEED; }
static int own_seed(int seed) { return seed % GQA_SEED; }
static int count_pairs(bool gqa) {
  return (int)((gqa ? DW__COUNT(gqa_heads_list) : DW__COUNT(heads_list)) * DW__COUNT(width_list));
}

static dw_shape choose_shape(const asked *want, int seed, uint64_t *state, int sm_target) {
  const bool gqa = is_gqa(seed);
  seed = own_seed(seed);
  const int pair = seed % count_pairs(gqa), rows = count_pairs(gqa) / (int)DW__COUNT(width_list), row = pair % rows;
  const int *dims = gqa_dims_list[(seed + row) % (int)DW__COUNT(gqa_dims_list)];
  dw_shape shape = {.attention = gqa ? DW_GQA : DW_MLA,
                    .heads = gqa ? gqa_heads_list[row][0] : heads_list[row],
                    .kv_heads = gqa ? gqa_heads_list[row][1] : 1,
                    .width = width_list[pair / rows],
                    .head_dim_qk = gqa ? dims[0] : QK,
                    .head_dim_v = gqa ? dims[1] : V,
                    .page = seed % 2 ? 64 : 1,
                    .target = sm_target,
                    .limits = sm_target < 120 ? 120 : 0};
  if (want->small) shape.heads = 4 + 4 * (pair % 2), shape.width = 1 + pair % 5;
  if (want->small && gqa) shape.kv_heads = 1 << pair % 3;
  if (seed % 16 == 5) shape.page = 16;
  dw_dtype type = seed % 5 == 3 ? DW_F16 : DW_BF16;
  shape.q = shape.kv = type;
  if ((gqa ? seed / 2 : seed) % 4 == 1) shape.kv = !gqa && seed % 8 == 5 && type == DW_BF16 ? DW_RECORD656 : DW_E4M3;
  shape.out = dw__random_below(state, 6) == 0 ? DW_F32 : type;
  return shape;
}

// The prefix length of a seed: every pair of heads and width meets each in turn.
static int main_prefix(const asked *want, int seed) {
  const int pairs = count_pairs(is_gqa(seed));
  seed = own_seed(seed);
  int count = want->quick ? QUICK_PREFIXES : (int)DW__COUNT(prefix_list);
  return prefix_list[(seed % pairs * 5 + seed / pairs) % count];
}

static void choose_contents(suite_case *c, int which, int longest, uint64_t *state) {
  dw__gpu_spec *spec = &c->check.spec;
  for (int b = 0; b < spec->batch; b++) {
    int length = dw__random_below(state, 3) ? longest : dw__random_below(state, longest + 1);
    int width = spec->width ? spec->width : spec->shape.width;
    c->prefix[which][b] = which && b == 0 ? longest / 2 : length;
    c->rows[which][b] = dw__random_below(state, 4) ? width : dw__random_below(state, width + 1);
    int rows = spec->ragged ? c->rows[which][b] : width;
    // A row that a graph was padded with.
    if (spec->lengths_include_drafts && b > 0 && dw__random_below(state, 6) == 0)
      c->prefix[which][b] = dw__random_below(state, rows > 1 ? 2 : 1) - rows;
  }
  dw__gpu_contents *contents = which ? &c->check.other : &c->check.first;
  *contents = (dw__gpu_contents){c->prefix[which], spec->ragged ? c->rows[which] : NULL, dw__random(state)};
}

static int choose_batch(const asked *want, const dw_shape *shape, int longest, uint64_t *state) {
  int batch = PICK(state, batch_list);
  long long pairs = (long long)shape->heads * shape->width * (longest + shape->width);
  long long most = want->quick ? PAIRS_QUICK : PAIRS_MOST;
  while (batch > 1 && pairs * batch > most) batch = batch == 8 ? 3 : 1;
  return want->small && batch > 2 ? 2 : batch;
}

static int one_in(uint64_t *state, int n) { return dw__random_below(state, n) == 0; }

static int random_window(const dw__gpu_spec *spec, int longest, uint64_t *state) {
  const int windows[] = {1, 1 + dw__random_below(state, 64), 1 + dw__random_below(state, longest + spec->shape.width), 4096};
  return PICK(state, windows);
}

static float random_scale(uint64_t *state) { return one_in(state, 3) ? 0 : 0.01f * (float)(1 + dw__random_below(state, 200)); }

static void choose_features(int longest, dw__gpu_spec *spec, uint64_t *state) {
  spec->width = one_in(state, 6) ? 1 + dw__random_below(state, spec->shape.width) : 0;
  long long rows = (long long)spec->batch * spec->shape.width;
  if (spec->mask_kind == DW_MASK_BYTES_FULL && rows * (longest + spec->shape.width) > FULL_MASK_MOST)
    spec->mask_kind = DW_MASK_BYTES_QLEN;
  bool matrix = spec->mask_kind == DW_MASK_BYTES_QLEN || spec->mask_kind == DW_MASK_BIAS_F32;
  spec->mask_shared = matrix && one_in(state, 3);
  spec->any_mask = spec->mask_kind > DW_MASK_PARENTS && spec->mask_kind < DW_MASK_STATIC && one_in(state, 3);
  spec->drafts_elsewhere = !spec->lengths_include_drafts && !spec->draft_slots && one_in(state, 4);
  spec->window = !spec->drafts_elsewhere && one_in(state, 4) ? random_window(spec, longest, state) : 0;
  spec->positions = spec->window ? dw__random_below(state, 2) : one_in(state, 8);
  spec->soft_cap = one_in(state, 4) ? 1.f + (float)dw__random_below(state, 49) : 0;
  spec->sinks = one_in(state, 4);
  const bool gqa = spec->shape.attention == DW_GQA;
  spec->q_rope = !gqa && one_in(state, 4);
  spec->kv_rope = !gqa && one_in(state, 4) && spec->shape.kv != DW_RECORD656;
  spec->planes = (dw__planes)(gqa ? dw__random_below(state, 4) : 0);
  spec->no_lse = one_in(state, 8);
  spec->share = one_in(state, 4);
  spec->overlap_prologue = one_in(state, 4);
  if (spec->shape.kv != DW_E4M3) return;
  spec->stored_scale = random_scale(state);
  if (gqa) spec->v_stored_scale = random_scale(state);
}

static bool set_tree(dw_shape *shape, uint64_t *state) {
  int parents[DW__COUNT(shape->tree)];
  if (shape->width > (int)DW__COUNT(parents)) return false;
  shape->tree_nodes = shape->width;
  dw__tree_random(state, shape->width, parents);
  for (int i = 0; i < shape->width; i++) shape->tree[i] = (signed char)parents[i];
  return true;
}

static void choose_spec(const asked *want, int longest, suite_case *c, uint64_t *state) {
  dw__gpu_spec *spec = &c->check.spec;
  int mask = dw__random_below(state, 7);
  if (mask == DW_MASK_STATIC && !set_tree(&c->check.shape, state)) mask = DW_MASK_PARENTS;
  *spec = (dw__gpu_spec){.shape = c->check.shape,
                         .batch = choose_batch(want, &c->check.shape, longest, state),
                         .longest = longest,
                         .ragged = dw__random_below(state, 3) > 0,
                         .mask_kind = (dw_mask)mask,
                         .tree = dw__random_below(state, 4) ? DW__TREE_RANDOM : DW__TREE_STAR,
                         .addressing = dw__random_below(state, 2) ? DW_BLOCK_TABLE : DW_CSR,
                         .index64 = dw__random_below(state, 2),
                         .lengths_include_drafts = dw__random_below(state, 2),
                         .dead_nodes = dw__random_below(state, 2),
                         .strided = dw__random_below(state, 2),
                         .shuffle = dw__random_below(state, 5) > 0,
                         .scatter = dw__random_below(state, 2),
                         .lse_base_e = dw__random_below(state, 2),
                         .q_scale = dw__random_below(state, 4) ? 1.f : 3.f,
                         .sets = 1,
                         .poison = 1};
  spec->draft_slots = spec->addressing == DW_CSR && !spec->lengths_include_drafts && dw__random_below(state, 2);
  choose_features(longest, spec, state);
}

static int features_of(const dw__gpu_spec *spec) {
  return dw__features(spec->window, spec->soft_cap > 0, spec->q_rope, spec->kv_rope);
}

// Three in four: what the rule table takes. The others: any variant it knows, or a plain family where the prefix is short.
static dw_status choose_variant(int seed, int longest, int sms, suite_case *c, uint64_t *state, dw_error *error) {
  const char *const plain[] = {c->check.shape.head_dim_v % 128 ? "family=split,combine=few,combine_splits=8"
                                                               : "family=split,combine=many,combine_splits=8",
                               "family=reference"};
  dw_bounds bounds = cli_bounds(&c->check.shape, c->check.spec.batch, longest + c->check.shape.width);
  bounds.sm_count = sms;
  if (dw__random_below(state, 4) == 0)
    bounds.split_tokens = c->check.split_tokens = longest > 20000 ? 4096 : 16 << dw__random_below(state, 4);
  const dw__gpu_spec *spec = &c->check.spec;
  bool promised = spec->addressing == DW_BLOCK_TABLE && spec->lengths_include_drafts && !spec->ragged && !bounds.split_tokens;
  bounds.call = promised ? DW_CALL_TABLE : DW_CALL_ANY;
  bounds.features = features_of(spec);
  int which = seed % 4 == 3 ? dw__random_below(state, 12) : -1;
  dw_status status = dw_variant_choose(&c->check.shape, &bounds, &c->check.variant, error);
  if (which >= 10 && longest <= 5700) {
    status = cli_variant(plain[which - 10], &c->check.shape, NULL, &c->check.variant, error);
    dw__variant_add_features(&c->check.variant, bounds.features);
    return status;
  }
  dw_variant other;
  if (which >= 0 && dw_variant_enumerate(&c->check.shape, (size_t)which, &other) == DW_OK) {
    c->check.variant = other;
    c->check.variant.call = bounds.call;
    dw_error ignored = {0};
    if (dw_variant_applicable(&c->check.shape, &c->check.variant, &ignored)) c->check.variant.call = DW_CALL_ANY;
    dw_error_clear(&ignored);
    dw__variant_add_features(&c->check.variant, bounds.features);
  }
  return status;
}

static dw_status make_case(const asked *want, int seed, int target, int sms, suite_case *c, dw_error *error) {
  uint64_t state = (uint64_t)seed * 2654435761u + 17;
  int longest = main_prefix(want, seed);
  memset(c, 0, sizeof *c);
  c->check.shape = choose_shape(want, seed, &state, target);
  c->check.capture = (dw__capture_mode)(seed % 3);
  choose_spec(want, longest, c, &state);
  if (!want->small && !want->quick && seed % FAR_POOL_EVERY == FAR_POOL_EVERY / 2)
    c->check.spec.pool_tokens = FAR_POOL_ELEMENTS / (c->check.shape.kv_heads * c->check.shape.head_dim_v);
  choose_contents(c, 0, longest, &state);
  choose_contents(c, 1, longest, &state);
  dw_status status = DW_OK;
  if (want->variant) {
    status = cli_variant(want->variant, &c->check.shape, NULL, &c->check.variant, error);
    dw__variant_add_features(&c->check.variant, features_of(&c->check.spec));
  } else {
    status = choose_variant(seed, longest, sms, c, &state, error);
    if (seed % CHECKED_EVERY == CHECKED_EVERY / 2) c->check.variant.checked = 1;
  }
  if (!dw__variant_fixed_ok(&c->check.variant, c->check.split_tokens, NULL)) c->check.split_tokens = 0;
  return status;
}

// Whole members of dw__gpu_spec that say yes or no; `told`: a case's line names them by this table.
typedef struct feature {
  const char *name;
  size_t offset;
  bool told;
} feature;
#define FEATURE(member, told) \
  { #member, offsetof(dw__gpu_spec, member), told }
static const feature features[] = {
  FEATURE(ragged, false),
  FEATURE(width, true),
  FEATURE(mask_shared, true),
  FEATURE(any_mask, true),
  FEATURE(dead_nodes, false),
  FEATURE(index64, false),
  FEATURE(lengths_include_drafts, false),
  FEATURE(draft_slots, false),
  FEATURE(drafts_elsewhere, true),
  FEATURE(strided, false),
  FEATURE(scatter, false),
  FEATURE(share, true),
  FEATURE(q_rope, true),
  FEATURE(kv_rope, true),
  FEATURE(planes, true),
  FEATURE(no_lse, true),
  FEATURE(lse_base_e, false),
  FEATURE(window, false),
  FEATURE(positions, true),
  FEATURE(sinks, true),
  FEATURE(overlap_prologue, true),
};
static bool has(const dw__gpu_spec *spec, const feature *f) {
  int value;
  memcpy(&value, (const char *)spec + f->offset, sizeof value);
  return value != 0;
}

static void meet(suite *s, const suite_case *c) {
  const dw__gpu_spec *spec = &c->check.spec;
  bool padded = false;
  for (size_t i = 0; i < DW__COUNT(features); i++) s->met[i] += has(spec, &features[i]);
  for (int b = 0; b < spec->batch; b++) padded = padded || c->prefix[0][b] < 0;
  s->met[DW__COUNT(features)] += spec->soft_cap > 0;
  s->met[DW__COUNT(features) + 1] += spec->pool_tokens > 0;
  s->met[DW__COUNT(features) + 2] += c->check.variant.checked;
  s->masks[spec->mask_kind]++;
  s->padded += padded;
}

static void tell_met(const suite *s) {
  printf("cases by mask:");
  for (int i = 0; i < CLI_MASKS; i++) printf(" %s %d", cli_mask_names[i], s->masks[i]);
  printf("\ncases with:");
  for (size_t i = 0; i < DW__COUNT(features); i++) printf(" %s %d", features[i].name, s->met[i]);
  const int *others = s->met + DW__COUNT(features);
  printf(" soft_cap %d far_pool %d checked %d padded %d\n", others[0], others[1], others[2], s->padded);
}

static void describe(const suite_case *c, int seed, char *text, size_t n) {
  char shape[DW_TEXT_MAX], variant[DW_TEXT_MAX];
  const dw__gpu_spec *s = &c->check.spec;
  dw_shape_print(&c->check.shape, shape, sizeof shape);
  cli_variant_text(&c->check.variant, variant);
  snprintf(text, n, "seed %d: %s %s B=%d longest=%d%s mask=%s%s %s%s%s lengths=%s%s%s%s split=%d", seed, shape, variant,
           s->batch, s->longest, s->ragged ? " ragged" : "", cli_mask_names[s->mask_kind],
           s->dead_nodes && s->mask_kind == DW_MASK_PARENTS ? "+dead" : "", s->addressing == DW_CSR ? "csr" : "table",
           s->addressing == DW_CSR && s->index64 ? "64" : "", s->addressing == DW_CSR && s->scatter ? " scattered" : "",
           s->lengths_include_drafts ? "all" : "prefix", s->draft_slots ? " draft_slots" : "", s->strided ? " strided" : "",
           s->lse_base_e ? " base_e" : "", c->check.split_tokens);
  size_t used = strlen(text);
  if (s->window && used < n) used += (size_t)snprintf(text + used, n - used, " window=%d", s->window);
  if (s->soft_cap > 0 && used < n) used += (size_t)snprintf(text + used, n - used, " soft_cap=%g", (double)s->soft_cap);
  for (size_t i = 0; i < DW__COUNT(features); i++)
    if (features[i].told && used < n && has(s, &features[i]))
      used += (size_t)snprintf(text + used, n - used, " %s", features[i].name);
}

// ---- running --------------------------------------------------------------------------------------------------

static double ratio(const dw__comparison *comparison) {
  const dw__row_error *row = &comparison->worst;
  return row->bound > 0 ? row->relative / row->bound : 0;
}

static void tell(suite *s, const char *name, const dw__gpu_verdict *verdict, dw_error *error) {
  double worse = ratio(&verdict->eager) > ratio(&verdict->replay) ? ratio(&verdict->eager) : ratio(&verdict->replay);
  if (worse > s->worst) s->worst = worse;
  cli_progress("%s", "");
  if (error->status) printf("FAILED %s\n  at %s: %s\n", name, verdict->step, error->message);
  else if (s->want->verbose) printf("ok %.2f s, worst row at %.2f of its bound: %s\n", verdict->seconds, worse, name);
  if (error->status && error->log) printf("%s\n", error->log);
  fflush(stdout);
}

// A device error is the last word of its context: nothing after it can be judged.
static bool is_fatal(dw_status status) { return status == DW_DRIVER; }

static bool run_case(suite *s, int seed) {
  char name[2048];
  suite_case *c = calloc(1, sizeof *c);
  dw_error error = {0};
  dw__gpu_verdict verdict = {.step = "case"};
  if (!c) return false;
  const dw__device *device = dw__gpu_device(s->gpu);
  dw_status status = make_case(s->want, seed, device->cc, device->sm_count, c, &error);
  if (c->check.spec.longest > s->want->longest) {
    s->left_out++;
    free(c);
    dw_error_clear(&error);
    return true;
  }
  describe(c, seed, name, sizeof name);
  meet(s, c);
  dw__gpu_tools *tools = NULL;
  dw__gpu_judge *judge = NULL;
  if (!status) status = dw__gpu_judges_find(&s->judges, s->ctx, s->gpu, &c->check.shape, &tools, &judge, &error);
  if (!status) status = dw__gpu_verify(s->ctx, tools, judge, &c->check, &verdict, &error);
  *(status ? &s->failed : &s->passed) += 1;
  tell(s, name, &verdict, &error);
  dw_error_clear(&error);
  free(c);
  return !is_fatal(status);
}

// The i-th case of the run: those of MLA, then those of GQA.
static int seed_of(const asked *want, int i) {
  if (want->attention || want->seed >= GQA_SEED) return want->seed % GQA_SEED + i + (want->attention == 1 ? 0 : GQA_SEED);
  return i < want->cases ? want->seed + i : GQA_SEED + want->seed + i - want->cases;
}
static int count_cases(const asked *want) { return want->cases * (want->attention || want->seed >= GQA_SEED ? 1 : 2); }

static void run_cases(suite *s) {
  const int count = count_cases(s->want);
  for (int i = 0; i < count; i++) {
    cli_progress("case %d of %d, %d failed", i + 1, count, s->failed);
    if (run_case(s, seed_of(s->want, i))) continue;
    printf("the device cannot go on: %d cases were not run\n", count - i - 1);
    s->failed += count - i - 1;
    return;
  }
}

// ---- what the driver says of cubins that are not right ---------------------------------------------------------

static void try_image(suite *s, const char *what, const void *data, size_t size, dw_status wanted) {
  dw_error error = {0};
  dw__module *module = NULL;
  dw_status status = dw__module_load(dw__gpu_driver(s->gpu), data, size, &module, &error);
  dw__module_unload(module);
  bool as_wanted = wanted == DW_OK ? status == DW_OK || status == DW_BAD_CUBIN : status == wanted;
  *(as_wanted ? &s->passed : &s->failed) += 1;
  printf("%s%s cubin: %s%s%s\n", as_wanted ? "" : "FAILED ", what, dw_status_name(status), status ? ": " : "", error.message);
  dw_error_clear(&error);
}

// Somewhere in the middle: a changed bit of code cannot be told from another kernel, so both answers are right there.
static void try_damaged(suite *s, const unsigned char *data, size_t size) {
  unsigned char *copy = malloc(size);
  if (!copy) return;
  memcpy(copy, data, size);
  try_image(s, "truncated to half", copy, size / 2, DW_BAD_CUBIN);
  try_image(s, "truncated to 40 bytes", copy, 40, DW_BAD_CUBIN);
  copy[1] ^= 4;
  try_image(s, "bit-flipped (magic)", copy, size, DW_BAD_CUBIN);
  memcpy(copy, data, size);
  copy[42] ^= 0x80;  // e_shoff
  try_image(s, "bit-flipped (section table)", copy, size, DW_BAD_CUBIN);
  memcpy(copy, data, size);
  copy[size / 2] ^= 1;
  try_image(s, "bit-flipped (middle)", copy, size, DW_OK);
  free(copy);
}

static void try_images(suite *s) {
  dw_shape shape = {.attention = DW_MLA,
                    .heads = 8,
                    .kv_heads = 1,
                    .width = 1,
                    .head_dim_qk = QK,
                    .head_dim_v = V,
                    .page = 1,
                    .target = dw__gpu_device(s->gpu)->cc};
  dw_variant reference;
  dw_cubin *cubin = NULL;
  dw_error error = {0};
  dw_status status = dw_variant_parse("family=reference", &reference, &error);
  if (!status) status = dw_cubin_build(s->ctx, &shape, &reference, &cubin, &error);
  if (!status) try_damaged(s, cubin->data, cubin->size);
  dw_cubin_free(cubin);
  shape.target = shape.target == 120 ? 90 : 120;
  if (!status) status = dw_cubin_build(s->ctx, &shape, &reference, &cubin, &error);
  if (!status) {
    try_image(s, "wrong-arch", cubin->data, cubin->size, DW_WRONG_ARCH);
    dw_cubin_free(cubin);
  }
  if (!status) return;
  printf("FAILED cubins for the damage cases: %s\n", error.message);
  s->failed++;
  dw_error_clear(&error);
}

// ---- the command ----------------------------------------------------------------------------------------------

static int run_suite(suite *s) {
  dw_error error = {0};
  dw_status status = cli_gpu_device(s->ctx, s->want->device, &s->gpu, &error);
  if (status) {
    bool none = !s->gpu && (status == DW_NO_DRIVER || status == DW_DRIVER);
    int code = cli_error(&error);
    return none ? CLI_USAGE : code;
  }
  try_images(s);
  run_cases(s);
  tell_met(s);
  if (s->left_out) printf("left out: %d cases with prefixes above %d tokens\n", s->left_out, s->want->longest);
  printf("worst row at %.2f of its bound\n%d passed, %d failed\n", s->worst, s->passed, s->failed);
  return s->failed ? CLI_WRONG : CLI_DONE;
}

// Everything that the suite will load, for a machine without a compiler.
static int build_all(suite *s) {
  dw_error error = {0};
  int target = s->want->target, sms = dw__target_sm_count(target);
  const int count = count_cases(s->want);
  dw_status status = DW_OK;
  suite_case *c = calloc(1, sizeof *c);
  for (int i = 0; c && i < count && !status; i++) {
    dw_cubin *cubin = NULL;
    cli_progress("building case %d of %d", i + 1, count);
    status = make_case(s->want, seed_of(s->want, i), target, sms, c, &error);
    const dw_shape *shape = &c->check.shape;
    if (!status) status = dw__gpu_tools_build(s->ctx, shape->head_dim_qk, shape->head_dim_v, target, &error);
    if (!status) status = dw_cubin_build(s->ctx, &c->check.shape, &c->check.variant, &cubin, &error);
    dw_cubin_free(cubin);
  }
  const int targets[] = {target, target == 120 ? 90 : 120};
  for (int i = 0; i < 2 && !status; i++) {
    dw_variant reference;
    dw_cubin *cubin = NULL;
    dw_shape shape = {
      .attention = DW_MLA, .heads = 8, .kv_heads = 1, .width = 1, .head_dim_qk = QK, .head_dim_v = V, .page = 1};
    shape.target = targets[i];
    status = dw_variant_parse("family=reference", &reference, &error);
    if (!status) status = dw_cubin_build(s->ctx, &shape, &reference, &cubin, &error);
    dw_cubin_free(cubin);
  }
  free(c);
  cli_progress("%s", "");
  if (status) return cli_error(&error);
  cli_tell_builds(s->ctx);
  return CLI_DONE;
}

int cli_suite(const cli_command *self, int argc, char **argv) {
  asked want = {.cases = 0, .seed = 0, .target = 90, .longest = INT_MAX};
  const cli_option options[] = {
    {"device", "host|gpu", CLI_WORD, &want.device_word, 0, 0, "gpu"},
    {"suite", NULL, CLI_FLAG, &want.suite, 0, 0, "this: the whole contract, case after case"},
    {"quick", NULL, CLI_FLAG, &want.quick, 0, 0, "prefixes to 65 tokens, 42 cases: for compute-sanitizer"},
    {"small", NULL, CLI_FLAG, &want.small, 0, 0, "at most 8 heads, 5 drafts and 2 requests: for an emulated GPU"},
    {"cases", "N", CLI_INT, &want.cases, 1, 100000,
     "how many of each kind (273; 42 with --quick), and 6 damaged cubins beside them"},
    {"attention", "both|mla|gqa", CLI_WORD, &want.attention, 0, 0, "cases of one kind of attention alone (both)"},
    {"seed", "S", CLI_INT, &want.seed, 0, 1 << 30, "of the first case (0); the next has the next; from 1000000 on of GQA"},
    {"longest", "N", CLI_INT, &want.longest, 0, INT_MAX, "leave out cases with longer prefixes: for compute-sanitizer"},
    {"variant", "TEXT", CLI_TEXT, &want.variant, 0, 0, "this variant in every case"},
    {"gpu", "N", CLI_INT, &want.device, 0, 63, "which GPU (0)"},
    {"verbose", NULL, CLI_FLAG, &want.verbose, 0, 0, "a line for each case, not only for failures"},
    {"build-only", NULL, CLI_FLAG, &want.build_only, 0, 0, "compile what the run needs into the cache; needs no GPU"},
    {"target", "N", CLI_INT, &want.target, 80, 199, "with --build-only: for this device class (90)"},
  };
  int code = cli_parse(self, CLI_OPTIONS(options), &argc, argv);
  if (code != CLI_GO_ON) return code;
  if (argc > 1) return cli_usage("verify --suite takes no shape, found %s", argv[1]);
  if (!want.device_word && !want.build_only) return cli_usage("verify --suite: needs --device gpu");
  if (!want.cases) want.cases = want.quick ? 42 : 273;
  suite s = {.want = &want};
  code = cli_open(&s.ctx);
  if (code != CLI_GO_ON) return code;
  code = want.build_only ? build_all(&s) : run_suite(&s);
  dw__gpu_judges_close(&s.judges);
  dw_ctx_destroy(s.ctx);  // its kernels live in the GPU's CUDA context
  dw__gpu_close(s.gpu);
  return code;
}
