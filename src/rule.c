// Which variant serves a shape, and which one to take for a problem when nothing was measured. The numbers come from timings on
// an H200 under sm_120's limits (bench/results); everything that depends on them is in this file.
#include "rule.h"

#include "field.h"
#include "plan.h"

#include <stdio.h>
#include <string.h>

static int least(int a, int b) { return a < b ? a : b; }
static int most(int a, int b) { return a > b ? a : b; }

static bool is_gqa(const dw_shape *shape) { return shape->attention == DW_GQA; }
bool dw__is_for_gqa(int family) { return family == DW_GROUPED || family == DW_WARPSPLIT; }
bool dw__is_fast(int family) { return family >= DW_ROWSPLIT; }
// Tiles of 8 query rows that read the same KV: of a request, or of one of its KV heads.
static int row_tiles(const dw_shape *shape) {
  return dw__ceil_div((long long)shape->width * shape->heads / shape->kv_heads, 8);
}

// ---- resources ------------------------------------------------------------------------------------------------

// What sm_120 has for each of two CTAs that share a multiprocessor, and for one alone.
#define HALF_SHARED 50176
#define WHOLE_SHARED 101376

// Shared memory a block may have: what the target gives, or what `limits` allows of it.
static int shared_limit(const dw_shape *shape) {
  if (shape->limits == 120) return WHOLE_SHARED;
  switch (shape->target / 10) {
    case 12: return WHOLE_SHARED;
    case 9:
    case 10: return 232448;
    default: return shape->target == 80 ? 166912 : WHOLE_SHARED;
  }
}

// The layout of templates/rowsplit.cuh in the same order.
static size_t rowsplit_shared(const dw_shape *shape, const dw_variant *variant) {
  const bool record = shape->kv == DW_RECORD656, bytes = shape->kv == DW_E4M3 || record, wide = variant->wide_tile;
  const int one_buffer = record ? 4 : 3;  // from so many row tiles on
  const size_t halves = wide ? 2 : 1, weight_buffers = 3, score_buffers = wide && variant->n_tiles >= one_buffer ? 1 : 2;
  const size_t rows = 8 * (size_t)variant->n_tiles, wide_slots = variant->n_tiles == 5 ? 7 : 8;
  const size_t half_slots = !bytes ? 4 : !wide || record ? 6 : wide_slots;  // 16 tokens each
  const size_t slots = record ? half_slots / halves : half_slots;           // a record's slot is a tile
  const size_t token = record ? DW__RECORD_BYTES : (size_t)shape->head_dim_qk * (bytes ? 1 : 2) + 16;
  const size_t ring = half_slots * 16 * token, scales = record ? half_slots * 16 * 16 : 0;
  const size_t scores = score_buffers * halves * 4 * rows * 64, weights = weight_buffers * halves * rows * 32;
  const size_t rescale = weight_buffers * (rows * 4 + 16), poison = 16 + 16;
  const size_t final =
    2 * rows * 4 +
    (bytes && (shape->q == DW_BF16 || variant->e4m3_mma || variant->accumulate == DW_ACCUMULATE_FP16) ? rows * 16 : 0);
  const size_t plan = 64, barriers = 2 * 8 * (slots + score_buffers + weight_buffers) + 8 + 2 * 8;
  return (ring + scores + weights + rescale + poison + final + scales + plan + barriers + 15) / 16 * 16;
}

// Two CTAs of grouped share a multiprocessor, but for long vectors.
static int grouped_token(const dw_shape *shape) {  // bytes of its K and V
  return (shape->head_dim_qk + shape->head_dim_v) * (int)dw__dtype_size(shape->kv);
}
static int grouped_ctas(const dw_shape *shape) { return grouped_token(shape) <= 640 ? 2 : 1; }

// The layout of templates/grouped.cuh: everything before the rings, then as many slots as fit. 0: not one of each does.
static size_t grouped_shared(const dw_shape *shape, const dw_variant *variant) {
  const size_t budget = grouped_ctas(shape) == 2 ? HALF_SHARED : WHOLE_SHARED, rows = 8 * (size_t)variant->n_tiles, step = 32;
  const size_t steps = grouped_token(shape) <= 384 ? 8 : 4, addresses = steps * step * 16,
               each = step * dw__dtype_size(shape->kv);
  const size_t weights = rows * (step * 2 + 16), sums = rows * (8 + 2 * 4 + 4 + 4), rest = 4 * 4 + addresses;
  const size_t scales = shape->kv == DW_E4M3 ? (rows + 15) / 16 * 16 * 4 : 0;
  const size_t fixed = (weights + sums + scales + rest + 127) / 128 * 128;
  const size_t key = each * (size_t)shape->head_dim_qk, value = each * (size_t)shape->head_dim_v;
  if (fixed + key + value > budget) return 0;
  const size_t fit = (budget - fixed) / (key + value), slots = fit < 6 ? fit : 6;
  const size_t used = fixed + slots * (key + value);
  return used + (slots < steps && budget - used >= key ? key : 0);
}

// The layout of templates/dimsplit.cuh in the same order.
static size_t dimsplit_shared(const dw_shape *shape, const dw_variant *variant) {
  const size_t tiles = (size_t)variant->n_tiles, rows = 8 * tiles, buffers = 2;
  const size_t slots = shared_limit(shape) > WHOLE_SHARED ? 8 : 4;
  const size_t owned = tiles == 9 ? 36 : (tiles + 1) / 2 * 8, tail = tiles == 9 ? 4 : 0;
  const size_t ring = slots * 32 * ((size_t)shape->head_dim_qk + 16), scores = (1 + buffers) * (owned + tail) * 128;
  const size_t weights = buffers * rows * 64, rescale = buffers * (rows * 4 + 32), poison = 16 + 16;
  const size_t plan = 64, barriers = 8 * (2 * slots + 2 + 4 * buffers + 1);
  return (ring + scores + weights + rescale + poison + plan + barriers + 15) / 16 * 16;
}

// What comes before the rings of templates/warpsplit.cuh: rows, and q where the registers do not hold it.
static size_t warpsplit_fixed(const dw_shape *shape, const dw_variant *variant) {
  const size_t tiles = (size_t)variant->n_tiles, qk = (size_t)shape->head_dim_qk, v = (size_t)shape->head_dim_v;
  const bool held = tiles * (v / 4 + qk / 8 + 10) <= 200;
  return (tiles * 8 * (8 + 4 + 4 * 2 + (shape->kv == DW_E4M3 ? 4 : 0)) + 32 + 127) / 128 * 128 +
         (held ? 0 : qk / 16 * tiles * 256);
}
// A slot of each of its warps: K or V of 16 tokens.
#define WARPSPLIT_WARPS 4
static size_t warpsplit_slots(const dw_shape *shape) {
  return (size_t)WARPSPLIT_WARPS * 16 * dw__dtype_size(shape->kv) * (size_t)most(shape->head_dim_qk, shape->head_dim_v);
}
// Two CTAs share a multiprocessor where a tile's K and V fit each warp then.
static int warpsplit_ctas(const dw_shape *shape, const dw_variant *variant) {
  return warpsplit_fixed(shape, variant) + 2 * warpsplit_slots(shape) <= HALF_SHARED ? 2 : 1;
}
static size_t warpsplit_shared(const dw_shape *shape, const dw_variant *variant) {
  const size_t budget = warpsplit_ctas(shape, variant) == 2 ? HALF_SHARED : WHOLE_SHARED;
  const size_t fixed = warpsplit_fixed(shape, variant), slot = warpsplit_slots(shape), fit = (budget - fixed) / slot;
  return fixed + (fit < 6 ? fit : 6) * slot;
}

size_t dw_shared_bytes(const dw_shape *shape, const dw_variant *variant) {
  if (!shape || !variant) return 0;
  switch (variant->family) {
    case DW_ROWSPLIT: return rowsplit_shared(shape, variant);
    case DW_DIMSPLIT: return dimsplit_shared(shape, variant);
    case DW_GROUPED: return grouped_shared(shape, variant);
    case DW_WARPSPLIT: return warpsplit_shared(shape, variant);
    default: return 0;
  }
}

// ---- applicable -----------------------------------------------------------------------------------------------

static dw_status no(dw_error *e, const char *field, long long found, const char *allowed, const char *why) {
  return dw__fail_int(e, DW_NOT_APPLICABLE, field, found, allowed, "%s", why);
}

// With call=table: on sm_120, and where output warps copy as all lanes.
static bool spills_for_tables(const dw_shape *s, const dw_variant *v) {
  if (v->cp_async && v->n_tiles == 5) return s->kv != DW_E4M3;
  return s->kv == DW_E4M3 && v->wide_tile && (v->n_tiles == 3 || v->n_tiles == 4);
}

enum { E4M3_BITS_TILES = 4 };  // where no instruction converts e4m3

static const char *accumulate_name(const dw_variant *v) { return dw__name_of(dw__accumulate_names, v->accumulate); }

static dw_status accumulate_applicable(const dw_shape *s, const dw_variant *v, dw_error *e) {
  if (!v->accumulate) return DW_OK;
  const char *found = accumulate_name(v);
  if (s->kv != DW_E4M3)
    return dw__fail(e, DW_NOT_APPLICABLE, "accumulate", found, "fp32, or kv=e4m3",
                    "products of other KV may be more than fp16 holds, and a record's scales come between them");
  if (v->e4m3_mma)
    return dw__fail(e, DW_NOT_APPLICABLE, "accumulate", found, "fp32 with e4m3_mma=1", "products in e4m3 add up in fp32");
  if (!v->wide_tile) return no(e, "wide_tile", 0, "1 with accumulate", "the compiler spills what the other needs");
  if (!v->setmaxnreg) return no(e, "setmaxnreg", 0, "1 with accumulate", "the compiler spills without");
  if (v->n_tiles < 3)
    return no(e, "n_tiles", v->n_tiles, "3 to 5 with accumulate", "fewer rows wait for memory, not for products");
  return DW_OK;
}

static dw_status rowsplit_applicable(const dw_shape *s, const dw_variant *v, dw_error *e) {
  if (v->e4m3_mma && !v->wide_tile) return no(e, "e4m3_mma", 1, "0, or wide_tile=1", "an mma of e4m3 takes 32 tokens");
  if (spills_for_tables(s, v) && v->call == DW_CALL_TABLE)
    return dw__fail(e, DW_NOT_APPLICABLE, "call", "table",
                    v->n_tiles == 5 ? "any with cp_async=1 and five row tiles"
                                    : "any with wide_tile=1 and three or four row tiles",
                    "the compiler spills what this one needs");
  if (v->wide_tile && dw__dtype_size(s->kv) > 1) return no(e, "wide_tile", 1, "0", "only tiles of KV in e4m3 are small enough");
  if (v->e4m3_mma && s->target < 89) return no(e, "e4m3_mma", 1, "0 before sm_89", "nothing older multiplies e4m3");
  if (v->e4m3_mma && s->kv != DW_E4M3) return no(e, "e4m3_mma", 1, "0", "a record's scales come between its products");
  const dw_status status = accumulate_applicable(s, v, e);
  if (status) return status;
  if (s->target < 90 && !v->cp_async)
    return no(e, "cp_async", 0, "1 before sm_90", "bulk copies and what waits for them came with sm_90");
  if (v->cp_async && v->setmaxnreg) return no(e, "setmaxnreg", 1, "0 with cp_async=1", "registers move from sm_90 on");
  if (s->kv == DW_RECORD656 && s->target < 89)
    return no(e, "target", s->target, "sm_89 or later for records", "nothing older converts e4m3 in an instruction");
  if (s->kv == DW_E4M3 && s->target < 89 && v->n_tiles > E4M3_BITS_TILES)
    return no(e, "n_tiles", v->n_tiles, "1 to 4 before sm_89 for KV in e4m3", "widening by bits takes registers, too");
  if (v->n_tiles > 5) return no(e, "n_tiles", v->n_tiles, "1 to 5", "of rowsplit");
  if (s->head_dim_qk % 64)
    return no(e, "qk", s->head_dim_qk, "a multiple of 64", "four score warps share the dimensions in steps of 16");
  if (s->head_dim_v % 128)
    return no(e, "v", s->head_dim_v, "a multiple of 128", "the output warps share the dimensions in pairs of 16");
  const int wide = v->n_tiles > 2 && !v->setmaxnreg;
  if (wide && s->head_dim_v % 256)
    return no(e, "v", s->head_dim_v, "a multiple of 256 without setmaxnreg",
              "eight output warps share the dimensions in pairs of 16");
  if (s->head_dim_qk > 576) return no(e, "qk", s->head_dim_qk, "up to 576", "q has to fit the registers of the score warps");
  if (s->head_dim_v > 512)
    return no(e, "v", s->head_dim_v, "up to 512", "the output has to fit the registers of the output warps");
  const int shared = (int)rowsplit_shared(s, v), limit = shared_limit(s);
  if (shared > limit) {
    char found[64], allowed[64];
    snprintf(found, sizeof found, "%d (%d bytes of shared memory)", v->n_tiles, shared);
    snprintf(allowed, sizeof allowed, "up to %d bytes", limit);
    return dw__fail(e, DW_NOT_APPLICABLE, "n_tiles", found, allowed,
                    "the ring and the scores of this many rows do not fit a block");
  }
  if (v->setmaxnreg && (s->target == 100 || s->target == 103)) return no(e, "setmaxnreg", 1, "0", "not proved on this target");
  return DW_OK;
}

static dw_status dimsplit_applicable(const dw_shape *s, const dw_variant *v, dw_error *e) {
  if (dw__dtype_size(s->kv) == 1)
    return dw__fail(e, DW_NOT_APPLICABLE, "kv", dw__dtype_name(s->kv), "the type of q",
                    "rowsplit is the family for KV in e4m3");
  if (s->target != 90 && s->target < 120)
    return no(e, "target", s->target, "sm_90, or sm_120 and later",
              "dimsplit needs clusters, and moves registers between warp roles");
  if (!v->setmaxnreg)
    return no(e, "setmaxnreg", 0, "1", "q of 72 rows and half of their output do not fit equal shares of the registers");
  if (v->n_tiles < 2) return no(e, "n_tiles", v->n_tiles, "2 to 9", "both CTAs of a pair finish rows");
  if (s->head_dim_v != 128 && s->head_dim_v != 256 && s->head_dim_v != 512)
    return no(e, "v", s->head_dim_v, "128, 256 or 512", "the output warps share half of the dimensions in pairs of 16");
  if (s->head_dim_qk % 64 || s->head_dim_qk > 576)
    return no(e, "qk", s->head_dim_qk, "a multiple of 64, up to 576", "two CTAs share the dimensions in pairs of 16");
  return DW_OK;
}

// Row tiles whose q and output the registers hold: of a CTA of grouped, or of each warp of warpsplit.
static int gqa_tiles(const dw_shape *shape, int family) {
  // Widening takes registers, too: five tiles of KV in e4m3 fit 128 / 128, and spill with 128 elements of V beside another number of K's.
  // Code for sm_100 and sm_103 needs more of them, too.
  const bool short_of_them = shape->kv == DW_E4M3 && shape->head_dim_v == 128 && shape->head_dim_qk != 128;
  const int all = short_of_them || shape->target == 100 || shape->target == 103 ? 4 : 5;
  if (family == DW_WARPSPLIT) return most(1, least(all, 210 / (shape->head_dim_v / 4 + 10)));
  const int dims = most(shape->head_dim_qk, shape->head_dim_v);
  return dims <= 128 ? 8 : dims <= 192 ? 6 : 4;
}

static dw_status gqa_applicable(const dw_shape *s, const dw_variant *v, dw_error *e) {
  if (s->head_dim_qk > 256) return no(e, "qk", s->head_dim_qk, "up to 256", "q has to fit the registers");
  if (s->head_dim_v > 256) return no(e, "v", s->head_dim_v, "up to 256", "the output has to fit the registers");
  char allowed[64];
  const int tiles = gqa_tiles(s, v->family);
  snprintf(allowed, sizeof allowed, "1 to %d", tiles);
  if (v->n_tiles > tiles)
    return no(e, "n_tiles", v->n_tiles, allowed, "q and the output of this many rows have to fit the registers");
  if (v->setmaxnreg) return no(e, "setmaxnreg", 1, "0", "all warps do the same");
  return DW_OK;
}

// A variant may be filled in by hand.
static dw_status check_ranges(const dw_variant *v, dw_error *e) {
#define DW_PARAM(name, kind, lowest, highest, normal, help) \
  if (v->name < lowest || v->name > highest) return no(e, #name, v->name, #lowest " to " #highest, help);
#include "draftwood_variant.def"
#undef DW_PARAM
  return DW_OK;
}

dw_status dw_variant_applicable(const dw_shape *s, const dw_variant *v, dw_error *e) {
  if (!s || !v) return dw__no_argument(e, s ? "variant" : "shape");
  dw_status status = dw_shape_check(s, e);
  if (!status) status = check_ranges(v, e);
  if (status) return status;
  if (v->kv_rope && s->kv == DW_RECORD656) return no(e, "kv_rope", 1, "0", "a record has the rope in it");
  if (s->q != s->kv && dw__dtype_size(s->kv) > 1)
    return dw__fail(e, DW_NOT_APPLICABLE, "kv", dw__dtype_name(s->kv), "the type of q, or e4m3",
                    "q and KV meet in one matrix instruction");
  if ((v->q_rope || v->kv_rope) && is_gqa(s))
    return no(e, v->q_rope ? "q_rope" : "kv_rope", 1, "0 for GQA", "only MLA has a part that may lie apart");
  if ((v->q_rope || v->kv_rope) && s->head_dim_qk == s->head_dim_v)
    return no(e, v->q_rope ? "q_rope" : "kv_rope", 1, "0", "qk is v: there is no part to lie apart");
  if (s->head_dim_qk % 32) return no(e, "qk", s->head_dim_qk, "a multiple of 32", "a warp shares a row");
  if (s->head_dim_v % 32) return no(e, "v", s->head_dim_v, "a multiple of 32", "a warp shares a row");
  if (dw__is_fast(v->family) && dw__is_for_gqa(v->family) != is_gqa(s))
    return dw__fail(e, DW_NOT_APPLICABLE, "attention", is_gqa(s) ? "gqa" : "mla", is_gqa(s) ? "mla" : "gqa",
                    is_gqa(s) ? "warpsplit and grouped are the families for GQA" : "rowsplit is the family for MLA");
  if (v->family == DW_REFERENCE) {
    if (v->combine != DW_COMBINE_NONE)
      return dw__fail(e, DW_NOT_APPLICABLE, "combine", dw__name_of(dw__combine_names, v->combine), "none",
                      "reference does not split the KV");
  } else {
    if (v->combine == DW_COMBINE_NONE)
      return dw__fail(e, DW_NOT_APPLICABLE, "combine", "none", "few or many", "partial results have to be merged");
    if (v->combine == DW_COMBINE_MANY && s->head_dim_v % 128)
      return no(e, "v", s->head_dim_v, "a multiple of 128 with combine=many", "a block merges 128 dimensions");
    if (v->combine == DW_COMBINE_FEW && v->combine_splits > 16)
      return no(e, "combine_splits", v->combine_splits, "1 to 16 with combine=few", "a thread holds all of them in registers");
  }
  if (v->family != DW_ROWSPLIT && (v->wide_tile || v->e4m3_mma || v->cp_async))
    return no(e,
              v->wide_tile  ? "wide_tile"
              : v->e4m3_mma ? "e4m3_mma"
                            : "cp_async",
              1, "0", "only rowsplit has this parameter");
  if (v->family != DW_ROWSPLIT && v->accumulate)
    return dw__fail(e, DW_NOT_APPLICABLE, "accumulate", accumulate_name(v), "fp32", "only rowsplit has this parameter");
  if (v->family == DW_ROWSPLIT) return rowsplit_applicable(s, v, e);
  if (v->family == DW_DIMSPLIT) return dimsplit_applicable(s, v, e);
  if (dw__is_for_gqa(v->family)) return gqa_applicable(s, v, e);
  if (v->setmaxnreg) return no(e, "setmaxnreg", 1, "0", "a plain family has no such parameter");
  if (v->n_tiles != 1) return no(e, "n_tiles", v->n_tiles, "1", "a plain family has no such parameter");
  return DW_OK;
}

bool dw__variant_fixed_ok(const dw_variant *v, int split_tokens, dw_error *e) {
  const char *allowed = NULL, *why = NULL;
  if (v->call == DW_CALL_TABLE) allowed = "0 with call=table", why = "this variant splits by AUTO alone";
  if (v->family == DW_DIMSPLIT && v->n_tiles == 9)
    allowed = "0 with nine row tiles of dimsplit",
    why = "the ninth tile's scores add up in another order, so a row's bits would hang on how many rows there are";
  if (!split_tokens || !allowed) return true;
  dw__fail_int(e, DW_NOT_APPLICABLE, "bounds.split_tokens", split_tokens, allowed, "%s", why);
  return false;
}

// The feature level is the variant's: setmaxnreg needs the family target of sm_12x, or sm_90a.
dw_status dw_compile_target(const dw_shape *s, const dw_variant *v, char text[16], dw_error *e) {
  if (!v || !text) return dw__no_argument(e, v ? "text" : "variant");
  dw_status status = dw_shape_check(s, e);
  if (status) return status;
  const char *suffix = !v->setmaxnreg ? "" : s->target == 90 ? "a" : "f";
  snprintf(text, 16, "sm_%d%s", s->target, suffix);
  return DW_OK;
}

// ---- the rule table -------------------------------------------------------------------------------------------

// KV tiles an SM gets if one CTA takes all rows: the measure of how long a problem is.
typedef struct load {
  int rows, row_tiles, tiles;  // tiles: of one request
  int batch, sm_count;         // 0: not known
  double tiles_per_sm;
  bool fixed;  // FIXED ranges
} load;

#define SHORT_LOAD 0.4   // below: latency decides; small CTAs, few tiles each
#define SMALL_LOAD 3.5   // below: three tiles of rows a CTA
#define MEDIUM_LOAD 6.3  // below, too, if they keep as many multiprocessors busy (not over e4m3, where that was not measured)
#define LONG_LOAD \
  8.0  // above: as few row groups as fit, so that the KV is read less often; below, two where there are rows for it

static load load_of(const dw_shape *shape, const dw_bounds *bounds) {
  load l = {.rows = shape->width * shape->heads,
            .row_tiles = row_tiles(shape),
            .tiles = dw__ceil_div(bounds->kv_len, 16),
            .batch = bounds->batch,
            .sm_count = bounds->sm_count,
            .fixed = bounds->split_tokens > 0};
  // FIXED: one choice for every length and batch, so that a request has the same bits in all of them.
  l.tiles_per_sm = bounds->split_tokens ? LONG_LOAD : (double)l.tiles * bounds->batch / bounds->sm_count;
  return l;
}

// Multiprocessors with a CTA in one wave of so many row groups a request.
static int busy(const load *l, int groups) {
  const int together = groups * l->batch;
  return together ? l->sm_count / together * together : 0;
}
static int choose_n_tiles(const dw_shape *shape, const load *l) {
  const int all = shape->kv == DW_E4M3 && shape->target < 89 ? E4M3_BITS_TILES : 5;
  const int of_three = busy(l, dw__ceil_div(l->row_tiles, 3));
  const bool three =
    l->tiles_per_sm < SMALL_LOAD || (l->tiles_per_sm < MEDIUM_LOAD && dw__dtype_size(shape->kv) == 2 && of_three > 0 &&
                                     of_three * 10 > busy(l, most(dw__ceil_div(l->row_tiles, all), 2)) * 9);
  const int largest = l->tiles_per_sm < SHORT_LOAD ? 2 : three ? 3 : all;
  int groups = dw__ceil_div(l->row_tiles, largest);
  if (l->tiles_per_sm < LONG_LOAD && l->row_tiles >= 4) groups = most(groups, 2);
  return dw__ceil_div(l->row_tiles, groups);  // as even as they go
}

static int choose_groups(const dw_shape *shape, const dw_variant *variant) {
  return dw__is_fast(variant->family) ? dw__ceil_div(row_tiles(shape), variant->n_tiles)
                                      : dw__ceil_div((long long)shape->width * shape->heads, 4);
}

// KV ranges of a request. One wave of CTAs at first; more where the last wave would leave many multiprocessors idle, as one of 40 pairs
// does (66 fit: 40 requests of 5,700 tokens take 187 us as one range each, 139 as three). A wave takes what the tiles of a range do, and
// START_TILES (of 16 tokens) to start and end. Where memory decides, fewer CTAs are faster each, down to ALONE of the time.
#define START_TILES 15
#define ALONE 0.6
#define WAVES_GAIN \
  0.015  // of the time at least, for each range more: it is merged, and what is made for long requests runs short ones, too
#define MOST_WAVE_RANGES 16

typedef struct wave {
  int slots;              // CTAs that run at once
  long long ctas;         // of a range, all requests
  int tiles, tiles_step;  // of 16 tokens: of a request; a CTA takes so many at a time
  double alone;
} wave;

static int range_tiles(const wave *w, int ranges) {  // of the longest range
  return dw__ceil_div(dw__ceil_div(w->tiles, w->tiles_step), ranges) * w->tiles_step;
}
static double waves_take(const wave *w, int ranges) {
  const long long ctas = w->ctas * ranges, full = ctas / w->slots;
  const double rest = (double)(ctas % w->slots) / w->slots, part = rest > w->alone ? rest : w->alone;
  return range_tiles(w, ranges) * ((double)full + (rest > 0 ? part : 0)) + START_TILES * (double)(full + (rest > 0));
}
static int choose_ranges(const wave *w, int most_ranges) {
  int ranges = least(most(1, (int)(w->slots / w->ctas)), most_ranges);
  for (int more = ranges + 1; more <= least(most_ranges, MOST_WAVE_RANGES); more++)
    if (waves_take(w, more) < (1 - WAVES_GAIN * (more - ranges)) * waves_take(w, ranges)) ranges = more;
  // As few as have the same longest range: less to merge.
  return dw__ceil_div(dw__ceil_div(w->tiles, w->tiles_step), range_tiles(w, ranges) / w->tiles_step);
}

// One CTA an SM; fewer ranges where one would have too few tiles to pay for its merge.
static int choose_mla_ranges(const load *l, const dw_variant *variant, const dw_bounds *bounds, int groups) {
  const bool pair = variant->family == DW_DIMSPLIT;
  const int ctas = pair ? 2 * groups : groups;
  const wave w = {.slots = bounds->sm_count,
                  .ctas = (long long)ctas * bounds->batch,
                  .tiles = l->tiles,
                  .tiles_step = pair || variant->wide_tile ? 2 : 1,
                  .alone = variant->n_tiles > 3 ? 1 : ALONE};
  int most_ranges = most(1, dw__ceil_div(l->tiles, ctas >= 4 ? 4 : 2));
  if (l->tiles_per_sm < LONG_LOAD) most_ranges = least(most_ranges, most(1, bounds->sm_count / 2));
  return choose_ranges(&w, most_ranges);
}

// Two CTAs an SM, if they fit; a range has two steps of 32 tokens, or a tile for each of four warps, at least where it can.
static int choose_gqa_ranges(const dw_shape *shape, const load *l, const dw_variant *variant, const dw_bounds *bounds,
                             int groups) {
  const bool warps = variant->family == DW_WARPSPLIT;
  const wave w = {.slots = bounds->sm_count * (warps ? warpsplit_ctas(shape, variant) : grouped_ctas(shape)),
                  .ctas = (long long)groups * shape->kv_heads * bounds->batch,
                  .tiles = l->tiles,
                  .tiles_step = warps ? WARPSPLIT_WARPS : 2,
                  .alone = ALONE};
  return choose_ranges(&w, most(1, dw__ceil_div(l->tiles, 4)));
}

dw_split dw__rule_split(const dw_shape *shape, const dw_variant *variant, const dw_bounds *bounds) {
  dw_split s = {.groups = choose_groups(shape, variant), .ranges = 1};
  if (variant->family == DW_REFERENCE) return s;
  const load l = load_of(shape, bounds);
  if (bounds->split_tokens) s.ranges = dw__ceil_div(bounds->kv_len, bounds->split_tokens);
  else if (variant->family == DW_SPLIT) s.ranges = least(8, most(1, l.tiles));
  else if (dw__is_for_gqa(variant->family)) s.ranges = choose_gqa_ranges(shape, &l, variant, bounds, s.groups);
  else s.ranges = choose_mla_ranges(&l, variant, bounds, s.groups);
  return s;
}

// combine: a thread a slice for few ranges and enough rows to fill the chip, else a block a quarter row; the ranges it loads at once
// go in steps, so that few cubins serve all problems (more ranges than that are merged in rounds). The steps of few ranges are small, since
// a range that is not there is loaded all the same (8 x 1k, five ranges: 13.2 us with room for eight, 12.7 with room for five).
#define FEW_RANGES 16
#define FEW_ROWS 72
static const struct {
  int combine;
  int splits;
} combines[] = {{DW_COMBINE_FEW, 2},   {DW_COMBINE_FEW, 4},   {DW_COMBINE_FEW, 5},          {DW_COMBINE_FEW, 6},
                {DW_COMBINE_FEW, 8},   {DW_COMBINE_FEW, 12},  {DW_COMBINE_FEW, FEW_RANGES}, {DW_COMBINE_MANY, 8},
                {DW_COMBINE_MANY, 16}, {DW_COMBINE_MANY, 24}, {DW_COMBINE_MANY, 32},        {DW_COMBINE_MANY, 48},
                {DW_COMBINE_MANY, 72}, {DW_COMBINE_MANY, 96}, {DW_COMBINE_MANY, 136}};
#define ROUNDS_OF 96  // for more ranges than the last step
#define FIXED_ROUNDS_OF 32

static void choose_combine(const dw_shape *shape, const load *l, const dw_bounds *bounds, int ranges, dw_variant *v) {
  const bool blocks = shape->head_dim_v % 128 == 0;  // whether combine=many can be
  if (bounds->split_tokens) {  // the order in which a row adds up may come neither from the batch nor from the longest length
    v->combine = blocks ? DW_COMBINE_MANY : DW_COMBINE_FEW;
    v->combine_splits = blocks ? FIXED_ROUNDS_OF : FEW_RANGES;
    return;
  }
  const bool few = !blocks || (ranges <= FEW_RANGES && l->rows * (long long)bounds->batch >= FEW_ROWS);
  v->combine = few ? DW_COMBINE_FEW : DW_COMBINE_MANY;
  v->combine_splits = few ? FEW_RANGES : ROUNDS_OF;
  for (size_t i = DW__COUNT(combines); i-- > 0;)
    if (combines[i].combine == v->combine && combines[i].splits >= ranges) v->combine_splits = combines[i].splits;
}

// Few blocks would all go to the multiprocessors that come free first: shared memory that nobody uses keeps them apart, as many on each
// as come to one (8 x 1k, width 9: 13.5 -> 13.3 us with four on each, 12.5 -> 12.35 with three and launched early). Blocks of combine=many,
// which may start beside a CTA of the main kernel, have to go on fitting there.
size_t dw__rule_merge_shared(const dw_shape *shape, const dw_variant *variant, const dw_bounds *bounds, unsigned blocks,
                             size_t needed) {
  const int each = dw__ceil_div((long long)blocks * bounds->batch, bounds->sm_count);
  if (each > 4) return needed;
  const size_t whole = shape->target >= 120 ? 102400 : shape->target >= 90 ? 233472 : 102400;  // of a multiprocessor
  const size_t beside = variant->combine == DW_COMBINE_MANY ? dw_shared_bytes(shape, variant) + 2048 : 0;
  const size_t limit = (size_t)shared_limit(shape),
               share = whole / (size_t)most(each, 2) - 1024;  // a block takes 1 KB more than it asks for
  const size_t asked = share / 256 * 256 < limit ? share / 256 * 256 : limit;
  return asked < needed || asked + beside > whole ? needed : asked;
}

static bool applicable(const dw_shape *shape, const dw_variant *variant) {
  dw_error ignored = {0};
  const dw_status s = dw_variant_applicable(shape, variant, &ignored);
  dw_error_clear(&ignored);
  return s == DW_OK;
}

static int way_to_combine(const dw_shape *shape) { return shape->head_dim_v % 128 ? DW_COMBINE_FEW : DW_COMBINE_MANY; }

// A pair of CTAs for as many rows as it holds.
static dw_variant pair_kernel(const dw_shape *shape) {
  const int tiles = row_tiles(shape);
  return (dw_variant){.family = DW_DIMSPLIT,
                      .n_tiles = dw__ceil_div(tiles, dw__ceil_div(tiles, 9)),
                      .setmaxnreg = 1,
                      .combine = way_to_combine(shape),
                      .combine_splits = 8};
}

// A kernel for GQA: as few row groups as there can be, as even as they go. Where not even one CTA a multiprocessor has a tile for each of
// its warps, two groups of fewer rows are as many CTAs as fit, and each has less to add up (1 x 1k, five row tiles: 12.7 -> 11.8 us).
static dw_variant gqa_kernel(const dw_shape *shape, const load *l, int family) {
  const bool spare = family == DW_WARPSPLIT && l->tiles_per_sm * shape->kv_heads < WARPSPLIT_WARPS;
  int groups = dw__ceil_div(l->row_tiles, gqa_tiles(shape, family));
  if (spare && l->row_tiles > 1) groups = most(groups, 2);
  return (dw_variant){
    .family = family, .n_tiles = dw__ceil_div(l->row_tiles, groups), .combine = way_to_combine(shape), .combine_splits = 8};
}

// Whether pairs of CTAs (dimsplit) take less time than row groups (rowsplit), which hold 40 rows, not 72, and read the KV one by one. What
// a multiprocessor takes for the same tokens, measured at 185,000 of them; and from how many of its tiles on that decides (5,300 tokens at
// batch 1 and 17 drafts, 13,300 at 9), below which what a pair takes to start does. Up to five row tiles are one group.
#define PAIR_LOAD 6.3
#define PAIRS_LOAD 5.0  // more than one pair
static bool pairs_pay(const load *l, int pair_tiles, int group_tiles) {
  if (l->fixed) return false;
  const int pairs = dw__ceil_div(l->row_tiles, pair_tiles), groups = dw__ceil_div(l->row_tiles, group_tiles);
  const int of_pair = pair_tiles > 8 ? 97 : 88, of_group = group_tiles > 4 ? 110 : group_tiles > 3 ? 98 : 93;
  return l->row_tiles > 5 && groups > 1 && l->tiles_per_sm * pairs >= (pairs > 1 ? PAIRS_LOAD : PAIR_LOAD) &&
         2 * pairs * of_pair < groups * of_group;
}

// The kernel for a load, its way to combine left open (0 ranges), or the plain one whole.
static dw_variant choose_kernel(const dw_shape *shape, const load *l) {
  dw_variant v = {
    .family = DW_ROWSPLIT, .n_tiles = choose_n_tiles(shape, l), .combine = way_to_combine(shape), .combine_splits = 8};
  // Registers move between roles where the target can; up to two tiles of rows fit without.
  v.setmaxnreg = v.n_tiles > 2 && (shape->target == 90 || shape->target >= 120);
  v.cp_async = shape->target < 90;
  // Half the handing over. Without setmaxnreg the scores of 40 rows and 32 tokens do not fit the registers. Where the load is not long,
  // what call=table saves at the start is worth more than that.
  v.wide_tile = dw__dtype_size(shape->kv) == 1 && (v.setmaxnreg || v.n_tiles < 5);
  if (spills_for_tables(shape, &v) && l->tiles_per_sm < LONG_LOAD) v.wide_tile = 0;
  if (is_gqa(shape)) v = gqa_kernel(shape, l, DW_WARPSPLIT);
  if (is_gqa(shape) && !applicable(shape, &v)) v = gqa_kernel(shape, l, DW_GROUPED);
  const dw_variant pair = pair_kernel(shape);
  if (!is_gqa(shape) && pairs_pay(l, pair.n_tiles, v.n_tiles) && applicable(shape, &pair)) return pair;
  if (applicable(shape, &v)) return v;
  return (dw_variant){.family = DW_SPLIT, .n_tiles = 1, .combine = way_to_combine(shape), .combine_splits = 8};
}

dw_status dw_variant_choose(const dw_shape *shape, const dw_bounds *asked, dw_variant *variant, dw_error *e) {
  if (!variant) return dw__no_argument(e, "variant");
  dw_status s = dw_shape_check(shape, e);
  if (s != DW_OK) return s;
  dw_bounds bounds = {.size = sizeof bounds, .batch = 1, .kv_len = 1 << 16};
  if (asked) s = dw__read_sized("bounds", asked, &bounds, sizeof bounds, e);
  if (s != DW_OK) return s;
  bounds.size = sizeof bounds;
  if (!bounds.sm_count) bounds.sm_count = dw__target_sm_count(shape->target);
  s = dw__bounds_check(shape, &bounds, e);
  if (s != DW_OK) return s;
  const load l = load_of(shape, &bounds);
  dw_variant v = choose_kernel(shape, &l);
  v.call = bounds.split_tokens || spills_for_tables(shape, &v) ? DW_CALL_ANY : bounds.call;
  dw__variant_add_features(&v, bounds.features);
  if (dw__is_fast(v.family)) choose_combine(shape, &l, &bounds, dw__rule_split(shape, &v, &bounds).ranges, &v);
  s = dw_variant_applicable(shape, &v, e);
  if (s == DW_OK) *variant = v;
  return s;
}

int dw__features(bool window, bool soft_cap, bool q_rope, bool kv_rope) {
  return (window ? DW_WITH_WINDOW : 0) | (soft_cap ? DW_WITH_SOFT_CAP : 0) | (q_rope ? DW_WITH_Q_ROPE : 0) |
         (kv_rope ? DW_WITH_KV_ROPE : 0);
}
int dw__variant_features(const dw_variant *v) { return dw__features(v->window, v->soft_cap, v->q_rope, v->kv_rope); }
void dw__variant_add_features(dw_variant *v, int features) {
  v->window |= (features & DW_WITH_WINDOW) != 0;
  v->soft_cap |= (features & DW_WITH_SOFT_CAP) != 0;
  v->q_rope |= (features & DW_WITH_Q_ROPE) != 0;
  v->kv_rope |= (features & DW_WITH_KV_ROPE) != 0;
}

// The kernels of the four kinds of load and the pair, for GQA grouped, too, each with every way to combine that its rows allow.
dw_status dw_variant_enumerate(const dw_shape *shape, size_t index, dw_variant *variant) {
  if (!variant) return DW_BAD_ARGUMENT;
  const dw_status s = dw_shape_check(shape, NULL);
  if (s != DW_OK) return s;
  static const double loads[] = {0, SHORT_LOAD, MEDIUM_LOAD, LONG_LOAD};
  dw_variant kernels[DW__COUNT(loads) + 2];
  size_t count = 0;
  for (size_t i = 0; i < DW__COUNT(loads); i++) {
    const load l = {.rows = shape->width * shape->heads,
                    .row_tiles = row_tiles(shape),
                    .tiles_per_sm = loads[i],
                    .fixed = true};  // the pair comes below
    const dw_variant v = choose_kernel(shape, &l);
    size_t k = 0;
    while (k < count && memcmp(&kernels[k], &v, sizeof v)) k++;
    if (k == count) kernels[count++] = v;
  }
  if (!is_gqa(shape) && row_tiles(shape) > 1) kernels[count++] = pair_kernel(shape);
  if (is_gqa(shape) && kernels[0].family != DW_GROUPED) {
    const load l = {.row_tiles = row_tiles(shape), .tiles_per_sm = LONG_LOAD};
    kernels[count++] = gqa_kernel(shape, &l, DW_GROUPED);
  }
  for (int call = DW_CALL_ANY; call <= DW_CALL_TABLE; call++) {
    for (size_t step = 0; step < DW__COUNT(combines); step++) {
      const bool always_few = combines[step].combine == DW_COMBINE_MANY && combines[step].splits <= FEW_RANGES &&
                              shape->width * shape->heads >= FEW_ROWS;
      for (size_t k = 0; k < count; k++) {
        dw_variant v = kernels[k];
        v.call = call;
        if (dw__is_fast(v.family)) {
          if (always_few) continue;
          v.combine = combines[step].combine;
          v.combine_splits = combines[step].splits;
        } else if (step) {
          continue;
        }
        if (!applicable(shape, &v)) continue;
        if (index-- > 0) continue;
        *variant = v;
        return DW_OK;
      }
    }
  }
  return DW_NOT_FOUND;
}
