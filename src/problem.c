// Random problems: see problem.h. What a token, a row of q or a tree holds depends on the seed and on its place in the problem
// alone, never on addressing, strides or page size: two specs that differ only in those have the same answer.
#include "problem.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "guard.h"
#include "oracle.h"
#include "random.h"

// ---- checks ---------------------------------------------------------------------------------------------------

static int width_of(const dw__problem_spec *spec) { return spec->width ? spec->width : spec->shape.width; }
static int rows_of(const dw__problem_spec *spec, int request) { return spec->rows ? spec->rows[request] : width_of(spec); }

// Tokens of a request that the KV has.
static int tokens_of(const dw__problem_spec *spec, int request) {
  return spec->prefix[request] + (spec->drafts_elsewhere ? 0 : rows_of(spec, request));
}

static bool is_matrix(dw_mask kind) { return kind == DW_MASK_BYTES_QLEN || kind == DW_MASK_BIAS_F32; }

static dw_status check_request(const dw__problem_spec *spec, int request, dw_error *error) {
  char field[48], allowed[48];
  snprintf(field, sizeof field, "prefix[%d]", request);
  if (spec->prefix[request] < 0)
    return dw__fail_int(error, DW_BAD_ARGUMENT, field, spec->prefix[request], "0 or more", "committed tokens");
  snprintf(field, sizeof field, "rows[%d]", request);
  snprintf(allowed, sizeof allowed, "0 to %d", width_of(spec));
  int rows = rows_of(spec, request);
  if (rows < 0 || rows > width_of(spec))
    return dw__fail_int(error, DW_BAD_ARGUMENT, field, rows, allowed, "drafts of a request, at most the width");
  return DW_OK;
}

static dw_status check_rope(const dw__problem_spec *spec, dw_error *error) {
  bool may = spec->shape.attention == DW_MLA && spec->shape.head_dim_qk > spec->shape.head_dim_v;
  if (spec->kv_rope && spec->shape.kv == DW_RECORD656)
    return dw__fail_int(error, DW_BAD_ARGUMENT, "kv_rope", 1, "0", "a record has the rope in it");
  if (may || (!spec->q_rope && !spec->kv_rope)) return DW_OK;
  return dw__fail_int(error, DW_BAD_ARGUMENT, spec->q_rope ? "q_rope" : "kv_rope", 1, "0",
                      "GQA, or qk is v: no part lies apart");
}

static dw_status check_mask(const dw__problem_spec *spec, dw_error *error) {
  if (spec->width < 0 || spec->width > spec->shape.width)
    return dw__fail_int(error, DW_BAD_ARGUMENT, "width", spec->width, "0 to the shape's", "rows a request");
  if ((int)spec->mask_kind < 0 || spec->mask_kind > DW_MASK_STATIC)
    return dw__fail_int(error, DW_BAD_ARGUMENT, "mask_kind", (int)spec->mask_kind, "DW_MASK_NONE to DW_MASK_STATIC",
                        "the form of the mask");
  if (spec->mask_kind == DW_MASK_STATIC && !spec->shape.tree_nodes)
    return dw__fail(error, DW_BAD_ARGUMENT, "mask_kind", "DW_MASK_STATIC", "another, or a shape with a tree",
                    "the shape has no tree");
  if (spec->mask_shared && (!is_matrix(spec->mask_kind) || !spec->one_tree))
    return dw__fail_int(error, DW_BAD_ARGUMENT, "mask_shared", spec->mask_shared, "0, or one_tree and BYTES_QLEN or BIAS_F32",
                        "one matrix for all requests");
  return DW_OK;
}

static dw_status no_scale(dw_error *error, const char *field, double scale, const char *why) {
  char found[32];
  snprintf(found, sizeof found, "%g", scale);
  return dw__fail(error, DW_BAD_ARGUMENT, field, found, "0", "%s", why);
}

static dw_status check_scalars(const dw__problem_spec *spec, dw_error *error) {
  if (spec->window < 0)
    return dw__fail_int(error, DW_BAD_ARGUMENT, "window", spec->window, "0 or more", "tokens that a row sees");
  if (spec->soft_cap != 0 && (!(spec->soft_cap >= 1e-3) || isinf(spec->soft_cap)))
    return dw__fail(error, DW_BAD_ARGUMENT, "soft_cap", "another number", "0 (none), or 0.001 and more",
                    "scores stay below it");
  if (spec->kv_scale != 0 && spec->shape.kv != DW_E4M3)
    return no_scale(error, "kv_scale", spec->kv_scale, "only KV in e4m3 has a scale");
  if (spec->v_scale != 0 && (spec->shape.kv != DW_E4M3 || spec->shape.attention == DW_MLA))
    return no_scale(error, "v_scale", spec->v_scale, "only V of GQA in e4m3 has a scale of its own");
  static const char *const planes[] = {"apart", "by-head", "in-token", "in-page"};
  if (spec->planes && spec->shape.attention == DW_MLA)
    return dw__fail(error, DW_BAD_ARGUMENT, "planes", planes[spec->planes], "apart", "the latent of MLA holds both K and V");
  if (!spec->drafts_elsewhere) return DW_OK;
  if (spec->lengths_include_drafts || spec->window || spec->draft_slots)
    return dw__fail_int(error, DW_BAD_ARGUMENT, "drafts_elsewhere", spec->drafts_elsewhere,
                        "0, or lengths of the prefix, no window, no draft_slots", "no draft is in the KV");
  return DW_OK;
}

static dw_status check(const dw__problem_spec *spec, dw_error *error) {
  dw_status status = dw_shape_check(&spec->shape, error);
  if (!status) status = check_mask(spec, error);
  if (!status) status = check_rope(spec, error);
  if (!status) status = check_scalars(spec, error);
  if (status) return status;
  if (spec->batch < 1)
    return dw__fail_int(error, DW_BAD_ARGUMENT, "batch", spec->batch, "1 or more", "requests of the problem");
  if (!spec->prefix) return dw__fail(error, DW_BAD_ARGUMENT, "prefix", "NULL", "a list", "committed tokens of each request");
  if (spec->spare_pages < 1)
    return dw__fail_int(error, DW_BAD_ARGUMENT, "spare_pages", spec->spare_pages, "1 or more", "poisoned pages of the pool");
  if (spec->draft_slots && (spec->addressing != DW_CSR || spec->lengths_include_drafts))
    return dw__fail_int(error, DW_BAD_ARGUMENT, "draft_slots", spec->draft_slots, "0, or CSR with lengths of the prefix only",
                        "drafts in slots of their own");
  int64_t tokens = 0;
  for (int b = 0; b < spec->batch && status == DW_OK; b++) {
    status = check_request(spec, b, error);
    tokens += (int64_t)spec->prefix[b] + rows_of(spec, b);
  }
  if (status == DW_OK && tokens > INT_MAX / 2)
    return dw__fail_int(error, DW_BAD_ARGUMENT, "prefix", tokens, "2^30 tokens in all", "the problem is too large");
  return status;
}

// ---- making ---------------------------------------------------------------------------------------------------

// An array of pieces within pieces, such as heads within rows.
typedef struct pieces {
  char *at;
  int64_t outer, inner;  // strides, in elements
  int bytes;             // an element
} pieces;

// A problem on the way. Once an allocation has failed, `failed` is set; the steps after it have nothing to do.
typedef struct maker {
  dw__problem *problem;
  dw__problem_memory *memory;
  bool failed;
  int pages, table_pages;  // of the pool; most pages of a request
  int *units;              // the pool's slots (CSR) or pages (block table) in the order in which requests take them
  int taken;
  pieces kv, kv_rope;          // the pool
  dw__plane k_plane, v_plane;  // GQA: within kv.at and v
  char *v;
} maker;

enum { STREAM_Q, STREAM_KV, STREAM_TREE, STREAM_DEAD, STREAM_SLOTS, STREAM_MASK, STREAM_POSITIONS, STREAM_SINKS };

// An own stream of random numbers for each thing, so that contents do not depend on the order of making.
static uint64_t stream(const maker *make, int kind, int request, int i) {
  uint64_t state = make->problem->spec.seed ^ (uint64_t)kind << 56;
  state = dw__random(&state) ^ (uint64_t)request;
  state = dw__random(&state) ^ (uint64_t)i;
  return dw__random(&state);
}

static void *array(maker *make, size_t size, size_t *bytes) {
  dw__guarded *made = make->failed ? NULL : dw__guard_make(&make->memory->arrays, size);
  if (bytes) *bytes = size;
  if (!made) make->failed = true;
  return made ? made->data : NULL;
}

static void *scratch(maker *make, size_t count, size_t size) {
  void *made = make->failed ? NULL : dw__calloc(count ? count : 1, size);
  if (!made) make->failed = true;
  return made;
}

// Elements from the first to the last one used; nothing lies behind the last row, that is where the guard page is.
static size_t extent(int64_t outer, int64_t outer_stride, int64_t inner, int64_t inner_stride, int64_t last) {
  return outer > 0 && inner > 0 ? (size_t)((outer - 1) * outer_stride + (inner - 1) * inner_stride + last) : 0;
}

static void make_sizes(maker *make) {
  dw__problem *problem = make->problem;
  const dw__problem_spec *spec = &problem->spec;
  problem->prefix = scratch(make, (size_t)spec->batch, sizeof(int));
  problem->rows = scratch(make, (size_t)spec->batch, sizeof(int));
  if (make->failed) return;
  int tokens = 0, pages = 0;
  for (int b = 0; b < spec->batch; b++) {
    problem->prefix[b] = spec->prefix[b];
    problem->rows[b] = rows_of(spec, b);
    problem->total_q += problem->rows[b];
    int own = tokens_of(spec, b), own_pages = (own + spec->shape.page - 1) / spec->shape.page;
    tokens += own;
    pages += own_pages;
    if (own_pages > make->table_pages) make->table_pages = own_pages;
  }
  if (spec->addressing == DW_CSR) pages = (tokens + spec->shape.page - 1) / spec->shape.page;
  make->pages = pages + spec->spare_pages;
}

// Elements of a vector of q, or of a token: in its own array, and in the one apart.
static int first_part(const dw_shape *shape, int apart) { return apart ? shape->head_dim_v : shape->head_dim_qk; }
static int last_part(const dw_shape *shape) { return shape->head_dim_qk - shape->head_dim_v; }

static void make_strides(maker *make) {
  const dw__problem_spec *spec = &make->problem->spec;
  const dw_shape *shape = &spec->shape;
  dw_args *args = &make->problem->args;
  args->q_head_stride = first_part(shape, spec->q_rope) + 8;
  args->q_row_stride = shape->heads * args->q_head_stride + 24;
  args->out_head_stride = shape->head_dim_v + 8;
  args->out_row_stride = shape->heads * args->out_head_stride + 16;
  args->lse_row_stride = shape->heads + 3;
  const int unit = 16 / (int)dw__dtype_size(shape->kv);  // tokens are 16-byte aligned
  if (shape->attention == DW_MLA) {
    args->kv_token_stride = dw__kv_part(shape, spec->kv_rope) + 3 * unit;
    args->kv_page_stride = shape->page * args->kv_token_stride + 5 * unit;
  }
  if (spec->q_rope) {
    args->q_rope_head_stride = last_part(shape) + 16;
    args->q_rope_row_stride = shape->heads * args->q_rope_head_stride + 8;
  }
  if (spec->kv_rope) {
    args->kv_rope_token_stride = last_part(shape) + unit;
    args->kv_rope_page_stride = shape->page * args->kv_rope_token_stride + 7 * unit;
  }
}

static pieces make_pieces(maker *make, dw_dtype type, int outer, int64_t outer_stride, int inner, int64_t inner_stride,
                          int size, size_t *bytes) {
  inner_stride = dw__or_else(inner_stride, size);
  outer_stride = dw__or_else(outer_stride, inner * inner_stride);
  const int each = (int)dw__dtype_size(type);
  char *at = array(make, (size_t)each * extent(outer, outer_stride, inner, inner_stride, size), bytes);
  return (pieces){at, outer_stride, inner_stride, each};
}

static void *piece(const pieces *all, int64_t outer, int64_t inner, int64_t element) {
  return all->at + (outer * all->outer + inner * all->inner + element) * all->bytes;
}

static void make_q(maker *make) {
  dw__problem *problem = make->problem;
  const dw_shape *shape = &problem->spec.shape;
  dw_args *args = &problem->args;
  int first = first_part(shape, problem->spec.q_rope), rows = problem->total_q, heads = shape->heads;
  pieces q = make_pieces(make, shape->q, rows, args->q_row_stride, heads, args->q_head_stride, first, &problem->q_bytes),
         rope = {0};
  if (problem->spec.q_rope)
    rope = make_pieces(make, shape->q, rows, args->q_rope_row_stride, heads, args->q_rope_head_stride, last_part(shape),
                       &problem->q_rope_bytes);
  args->q = q.at;
  args->q_rope = rope.at;
  int64_t row = 0;
  for (int b = 0; b < problem->spec.batch && !make->failed; b++)
    for (int r = 0; r < problem->rows[b]; r++, row++) {
      uint64_t seed = stream(make, STREAM_Q, b, r);
      for (int h = 0; h < heads; h++)
        for (int d = 0; d < shape->head_dim_qk; d++) {
          double value = dw__random_normal(&seed) * (double)problem->spec.q_scale;
          dw__from_float(shape->q, value, d < first ? piece(&q, row, h, d) : piece(&rope, row, h, d - first));
        }
    }
}

static void make_out(maker *make) {
  dw__problem *problem = make->problem;
  const dw_shape *shape = &problem->spec.shape;
  int64_t head_stride = dw__or_else(problem->args.out_head_stride, shape->head_dim_v);
  int64_t row_stride = dw__or_else(problem->args.out_row_stride, shape->heads * head_stride);
  size_t elements = extent(problem->total_q, row_stride, shape->heads, head_stride, shape->head_dim_v);
  problem->args.out = array(make, elements * dw__dtype_size(shape->out), &problem->out_bytes);
  make->memory->out = make->memory->arrays;
  elements = extent(problem->total_q, dw__or_else(problem->args.lse_row_stride, shape->heads), shape->heads, 1, 1);
  problem->args.lse = array(make, elements * sizeof(float), &problem->lse_bytes);
  make->memory->lse = make->memory->arrays;
  size_t vectors = (size_t)problem->total_q * (size_t)shape->heads;
  problem->out64 = scratch(make, vectors * (size_t)shape->head_dim_v, sizeof(double));
  problem->lse64 = scratch(make, vectors, sizeof(double));
}

// ---- rows, lengths and trees ----------------------------------------------------------------------------------

static void make_lengths(maker *make) {
  dw__problem *problem = make->problem;
  const dw__problem_spec *spec = &problem->spec;
  size_t batch = (size_t)spec->batch;
  int32_t *kv_len = array(make, batch * sizeof *kv_len, NULL);
  int32_t *indptr = spec->rows ? array(make, (batch + 1) * sizeof *indptr, &problem->indptr_bytes) : NULL;
  problem->args.kv_len = kv_len;
  problem->args.qo_indptr = indptr;
  if (make->failed) return;
  if (indptr) indptr[0] = 0;
  for (size_t b = 0; b < batch; b++) {
    kv_len[b] = problem->prefix[b] + (spec->lengths_include_drafts ? problem->rows[b] : 0);
    if (indptr) indptr[b + 1] = indptr[b] + problem->rows[b];
  }
}

// A dead node's children move up to its parent: a dead node has none.
static void make_dead(uint64_t seed, int nodes, int *parents) {
  for (int i = 0; i < nodes; i++) {
    if (dw__random_below(&seed, 8)) continue;
    for (int j = i + 1; j < nodes; j++)
      if (parents[j] == i) parents[j] = parents[i];
    parents[i] = -2;
  }
}

// The first nodes of a larger tree are the smaller one of the same seed.
static void make_tree(const maker *make, int request, int *parents) {
  const dw__problem_spec *spec = &make->problem->spec;
  int nodes = make->problem->rows[request], tree = spec->one_tree ? 0 : request;
  bool random = spec->tree == DW__TREE_RANDOM && spec->mask_kind != DW_MASK_NONE;
  bool star = spec->tree == DW__TREE_STAR && spec->mask_kind != DW_MASK_NONE;
  uint64_t seed = stream(make, STREAM_TREE, tree, 0);
  if (random) dw__tree_random(&seed, nodes, parents);
  for (int i = 0; i < nodes && !random; i++) parents[i] = i == 0 ? -1 : star ? 0 : i - 1;
  if (spec->dead_nodes && spec->mask_kind == DW_MASK_PARENTS) make_dead(stream(make, STREAM_DEAD, tree, 0), nodes, parents);
}

// Bits of drafts that the request does not have are set, since they must not matter.
static void make_bits(const int *parents, int nodes, int words, uint32_t *rows) {
  dw__tree_masks(parents, nodes, words, NULL, rows, NULL);
  for (int i = 0; i < nodes; i++)
    for (int j = nodes; j < 32 * words; j++) rows[(size_t)i * (size_t)words + (size_t)j / 32] |= 1u << (j % 32);
}

// Masks of an element a draft. Any byte that is not 0 says "sees".
static void put_element(const maker *make, int64_t at, bool sees, uint64_t *dice) {
  const dw_args *args = &make->problem->args;
  static const uint8_t yes[] = {1, 0xFF, 0x80, 2};
  if (make->problem->spec.mask_kind == DW_MASK_BIAS_F32) ((float *)(uintptr_t)args->mask)[at] = sees ? 0 : -INFINITY;
  else ((uint8_t *)(uintptr_t)args->mask)[at] = sees ? yes[dw__random_below(dice, 4)] : 0;
}

static void make_elements(maker *make, size_t count) {
  dw__problem *problem = make->problem;
  bool floats = problem->spec.mask_kind == DW_MASK_BIAS_F32;
  uint64_t dice = stream(make, STREAM_MASK, 0, 0);
  void *mask = array(make, count * (floats ? sizeof(float) : 1), &problem->mask_bytes);
  problem->args.mask = mask;
  for (size_t i = 0; i < count && mask && !floats; i++) ((uint8_t *)mask)[i] = (uint8_t)(dw__random(&dice) & 3);
  for (size_t i = 0; i < count && mask && floats; i++)
    ((float *)mask)[i] = (const float[]){0, NAN, 1e30f, INFINITY}[dw__random_below(&dice, 4)];
}

// BYTES_FULL: requests follow one another, at any byte.
static void make_mask_indptr(maker *make) {
  dw__problem *problem = make->problem;
  int batch = problem->spec.batch, gap = problem->spec.strided ? 3 : 0;
  int64_t *indptr = array(make, ((size_t)batch + 1) * sizeof *indptr, NULL);
  problem->args.mask_indptr = indptr;
  if (!indptr) return;
  indptr[0] = gap;
  for (int b = 0; b < batch; b++) {
    int64_t tokens = (int64_t)problem->prefix[b] + problem->rows[b];
    indptr[b + 1] = indptr[b] + problem->rows[b] * tokens + (b + 1 < batch ? gap : 0);
  }
}

// Rows of a request lie `row` elements apart from `first` on, which is draft 0 of row 0.
typedef struct matrix {
  int64_t first, row;
} matrix;

static matrix matrix_of(const dw__problem *problem, int request) {
  const dw_args *args = &problem->args;
  if (problem->spec.mask_kind == DW_MASK_BYTES_FULL) {
    int prefix = problem->prefix[request];
    return (matrix){args->mask_indptr[request] + prefix, (int64_t)prefix + problem->rows[request]};
  }
  int width = width_of(&problem->spec);
  int64_t row = dw__or_else(args->mask_row_stride, width);
  return (matrix){problem->spec.mask_shared ? 0 : request * dw__or_else(args->mask_request_stride, width * row), row};
}

static void make_matrix_strides(maker *make) {
  const dw__problem_spec *spec = &make->problem->spec;
  dw_args *args = &make->problem->args;
  args->mask_shared = spec->mask_shared;
  if (!spec->strided) return;
  args->mask_row_stride = width_of(spec) + 3;
  if (width_of(spec) % 2) args->mask_request_stride = width_of(spec) * args->mask_row_stride + 5;  // else the usual one
}

static void make_matrices(maker *make) {
  dw__problem *problem = make->problem;
  const dw__problem_spec *spec = &problem->spec;
  int width = width_of(spec), words = (width + 31) / 32;
  if (spec->mask_kind == DW_MASK_BYTES_FULL) {
    make_mask_indptr(make);
    make_elements(make, make->failed ? 0 : (size_t)problem->args.mask_indptr[spec->batch]);
  } else {
    make_matrix_strides(make);
    matrix last = matrix_of(problem, spec->batch - 1);
    make_elements(make, (size_t)last.first + extent(width, last.row, 1, 1, width));
  }
  int *parents = scratch(make, (size_t)width, sizeof *parents);
  uint32_t *bits = scratch(make, (size_t)width * (size_t)words, sizeof *bits);
  for (int b = 0; b < spec->batch && !make->failed; b++) {
    matrix own = matrix_of(problem, b);
    uint64_t dice = stream(make, STREAM_MASK, b, 1);
    make_tree(make, b, parents);
    dw__tree_masks(parents, problem->rows[b], words, NULL, bits, NULL);
    for (int i = 0; i < problem->rows[b]; i++)
      for (int j = 0; j < problem->rows[b]; j++)
        put_element(make, own.first + i * own.row + j, bits[i * words + j / 32] >> (j % 32) & 1, &dice);
  }
  dw__release(bits);
  dw__release(parents);
}

static void make_rows_of_words(maker *make) {
  dw__problem *problem = make->problem;
  const dw__problem_spec *spec = &problem->spec;
  int words = 1;
  if (spec->mask_kind == DW_MASK_BITS) {
    words = (width_of(spec) + 31) / 32;
    if (spec->strided) problem->args.mask_row_stride = words += 2;
  }
  uint32_t *mask = array(make, (size_t)problem->total_q * (size_t)words * sizeof *mask, &problem->mask_bytes);
  int *parents = scratch(make, (size_t)width_of(spec), sizeof *parents);
  problem->args.mask = mask;
  for (int b = 0; b < spec->batch && !make->failed; b++) {
    make_tree(make, b, parents);
    if (spec->mask_kind == DW_MASK_BITS) make_bits(parents, problem->rows[b], words, mask);
    else memcpy(mask, parents, (size_t)problem->rows[b] * sizeof *parents);
    mask += (size_t)problem->rows[b] * (size_t)words;
  }
  dw__release(parents);
}

static void make_mask(maker *make) {
  const dw__problem_spec *spec = &make->problem->spec;
  dw_mask kind = spec->mask_kind;
  if (kind == DW_MASK_STATIC) return;
  if (spec->drafts_elsewhere && kind != DW_MASK_NONE) make->problem->args.mask = array(make, 0, &make->problem->mask_bytes);
  else if (kind == DW_MASK_PARENTS || kind == DW_MASK_BITS) make_rows_of_words(make);
  else if (kind != DW_MASK_NONE) make_matrices(make);
}

// ---- positions and sinks --------------------------------------------------------------------------------------

static void make_positions(maker *make) {
  dw__problem *problem = make->problem;
  const dw__problem_spec *spec = &problem->spec;
  if (!spec->positions) return;
  int32_t *positions = array(make, (size_t)problem->total_q * sizeof *positions, &problem->positions_bytes);
  int *parents = scratch(make, (size_t)width_of(spec), sizeof *parents),
      *depth = scratch(make, (size_t)width_of(spec), sizeof *depth);
  problem->args.positions = positions;
  int words = (width_of(spec) + 31) / 32;
  for (int b = 0; b < spec->batch && !make->failed; b++) {
    uint64_t dice = stream(make, STREAM_POSITIONS, b, 0);
    make_tree(make, b, parents);
    dw__tree_masks(parents, problem->rows[b], words, depth, NULL, NULL);
    for (int i = 0; i < problem->rows[b]; i++) {
      int own = problem->prefix[b] + (depth[i] > 0 ? depth[i] : 0);
      if (spec->positions == 2) own += dw__random_below(&dice, 8);
      *positions++ = spec->window && depth[i] >= 0 ? own : INT32_MIN;  // of a dead node as without a window: anything
    }
  }
  dw__release(parents);
  dw__release(depth);
}

static void make_sinks(maker *make) {
  dw__problem *problem = make->problem;
  int heads = problem->spec.shape.heads;
  float *sinks = problem->spec.sinks ? array(make, (size_t)heads * sizeof *sinks, NULL) : NULL;
  problem->args.sinks = sinks;
  for (int h = 0; h < heads && sinks; h++) {
    uint64_t seed = stream(make, STREAM_SINKS, 0, h);
    double value = 2 * dw__random_normal(&seed);
    sinks[h] = h % 8 == 2 ? (float)value + 12 : h % 8 == 5 ? -INFINITY : h % 8 == 7 ? (float)value + 40 : (float)value;
  }
}

// ---- the pool and the ways to name its places -----------------------------------------------------------------

// In order: from the second page on, so that place 0 is never right by luck. Shuffled: any places of the whole pool.
static void make_units(maker *make) {
  const dw__problem_spec *spec = &make->problem->spec;
  int each = spec->addressing == DW_CSR ? spec->shape.page : 1, count = make->pages * each;
  make->units = scratch(make, (size_t)count, sizeof *make->units);
  if (make->failed) return;
  for (int i = 0; i < count; i++) make->units[i] = (i + each) % count;
  uint64_t seed = stream(make, STREAM_SLOTS, 0, 0);
  for (int i = count - 1; i > 0 && spec->shuffle; i--) {
    int j = dw__random_below(&seed, i + 1), unit = make->units[i];
    make->units[i] = make->units[j];
    make->units[j] = unit;
  }
}

// NaN and both infinities (e4m3 has none) in turn, everywhere; tokens are written over it. Of records latents and scales are NaN.
static void poison_pool(maker *make, char *pool, size_t bytes) {
  const dw_dtype type = make->problem->spec.shape.kv;
  const bool small = dw__dtype_size(type) == 1;
  const uint16_t infinity = small ? 0x7FFF : type == DW_BF16 ? 0x7F80 : 0x7C00;
  const uint16_t nan = small ? 0xFF7F : DW__POISON;
  const uint16_t pattern[4] = {nan, infinity, nan | 0x8000, (uint16_t)(infinity | 0x8000)};
  for (size_t i = 0; i + 1 < bytes && pool; i += 2) memcpy(pool + i, &pattern[i / 2 % 4], 2);
}

// Tight planes of their own leave every stride to its default.
static void make_planes(maker *make) {
  dw__problem *problem = make->problem;
  const dw__problem_spec *spec = &problem->spec;
  const dw_shape *shape = &spec->shape;
  const bool share = dw__planes_share(spec->planes);
  const size_t size = dw__dtype_size(shape->kv);
  dw__planes_lay(shape, spec->planes, spec->strided, &make->k_plane, &make->v_plane);
  size_t k = dw__plane_extent(shape, &make->k_plane, make->pages), v = dw__plane_extent(shape, &make->v_plane, make->pages);
  make->kv.at = array(make, size * (share && v > k ? v : k), &problem->kv_bytes);
  make->v = share ? make->kv.at : array(make, size * v, &problem->v_bytes);
  poison_pool(make, make->kv.at, problem->kv_bytes);
  poison_pool(make, make->v, problem->v_bytes);
  if (spec->strided || spec->planes) dw__planes_args(&make->k_plane, &make->v_plane, &problem->args);
  problem->args.kv = make->kv.at;
  if (!make->failed) problem->args.v = make->v + (size_t)make->v_plane.first * size;
}

// 0: none, which stands for 1.
static const float *make_scale(maker *make, float value) {
  float *scale = value != 0 ? array(make, sizeof *scale, NULL) : NULL;
  if (scale) *scale = value;
  return scale;
}
static double divisor(float scale) { return scale != 0 ? (double)scale : 1; }

static void make_pool(maker *make) {
  dw__problem *problem = make->problem;
  const dw__problem_spec *spec = &problem->spec;
  const dw_shape *shape = &spec->shape;
  dw_args *args = &problem->args;
  args->kv_scale = make_scale(make, spec->kv_scale);
  args->v_scale = make_scale(make, spec->v_scale);
  if (shape->attention == DW_GQA) {
    make_planes(make);
    return;
  }
  make->kv = make_pieces(make, shape->kv, make->pages, args->kv_page_stride, shape->page, args->kv_token_stride,
                         dw__kv_part(shape, spec->kv_rope), &problem->kv_bytes);
  poison_pool(make, make->kv.at, problem->kv_bytes);
  if (spec->kv_rope)
    make->kv_rope = make_pieces(make, shape->kv, make->pages, args->kv_rope_page_stride, shape->page,
                                args->kv_rope_token_stride, last_part(shape), &problem->kv_rope_bytes);
  poison_pool(make, make->kv_rope.at, problem->kv_rope_bytes);
  args->kv = make->kv.at;
  args->kv_rope = make->kv_rope.at;
}

static void write_heads(const maker *make, uint64_t *seed, char *pool, const dw__plane *plane, int64_t slot, double scale) {
  const dw_shape *shape = &make->problem->spec.shape;
  const size_t size = dw__dtype_size(shape->kv);
  for (int h = 0; h < shape->kv_heads; h++) {
    char *to = pool + (size_t)dw__plane_place(shape, plane, slot, h) * size;
    for (int d = 0; d < plane->size; d++) dw__from_float(shape->kv, dw__random_normal(seed) / scale, to + (size_t)d * size);
  }
}

void dw__record_quantise(const double *values, void *record) {
  char *to = record;
  for (int first = 0; first < DW__RECORD_SCALES; first += DW__RECORD_GROUP) {
    double most = 0;
    for (int d = first; d < first + DW__RECORD_GROUP; d++) most = fmax(most, fabs(values[d]));
    const float scale = (float)(most / 448);
    for (int d = first; d < first + DW__RECORD_GROUP; d++)
      dw__from_float(DW_E4M3, scale > 0 ? values[d] / (double)scale : 0, to + d);
    memcpy(to + DW__RECORD_SCALES + first / DW__RECORD_GROUP * 4, &scale, sizeof scale);
  }
  for (int d = 0; d < 64; d++) dw__from_float(DW_BF16, values[DW__RECORD_SCALES + d], to + DW__RECORD_ROPE + 2 * d);
}

// Groups of several sizes: most of the usual one, some small, some nothing at all, of which some have a scale nevertheless.
static void write_record(uint64_t *seed, char *to) {
  static const double sizes[] = {1, 1, 1, 2, 0.25, 1, 0.001, 0};
  double values[576];
  for (int first = 0; first < 576; first += DW__RECORD_GROUP) {
    const double size = first < DW__RECORD_SCALES ? sizes[dw__random_below(seed, 8)] : 1;
    for (int d = first; d < 576 && d < first + DW__RECORD_GROUP; d++) values[d] = size * dw__random_normal(seed);
  }
  dw__record_quantise(values, to);
  for (int group = 0; group < 4; group++) {
    const float scale = 0.5f;
    if (values[group * DW__RECORD_GROUP] == 0 && dw__random_below(seed, 2))
      memcpy(to + DW__RECORD_SCALES + 4 * group, &scale, sizeof scale);
  }
}

static void write_token(const maker *make, int request, int token, int64_t slot) {
  const dw__problem_spec *spec = &make->problem->spec;
  const dw_shape *shape = &spec->shape;
  const double scale = divisor(spec->kv_scale);
  uint64_t seed = stream(make, STREAM_KV, request, token);
  if (shape->attention == DW_GQA) {
    write_heads(make, &seed, make->kv.at, &make->k_plane, slot, scale);
    write_heads(make, &seed, make->v, &make->v_plane, slot, divisor(spec->v_scale));
    return;
  }
  int first = first_part(shape, spec->kv_rope);
  const int64_t page = slot / shape->page, in_page = slot % shape->page;
  if (shape->kv == DW_RECORD656) {
    write_record(&seed, piece(&make->kv, page, in_page, 0));
    return;
  }
  for (int d = 0; d < shape->head_dim_qk; d++)
    dw__from_float(shape->kv, dw__random_normal(&seed) / scale,
                   d < first ? piece(&make->kv, page, in_page, d) : piece(&make->kv_rope, page, in_page, d - first));
}

// Page ids behind the pages that a request uses are garbage, as engines leave them.
static void make_table(maker *make) {
  dw__problem *problem = make->problem;
  const dw__problem_spec *spec = &problem->spec;
  int page = spec->shape.page, columns = make->table_pages > 0 ? make->table_pages : 1;
  if (spec->strided) columns += 2;
  int64_t stride = spec->strided ? columns + 3 : columns;
  problem->args.table_columns = columns;
  problem->args.block_table_stride = spec->strided ? stride : 0;
  int32_t *table = array(make, sizeof *table * extent(spec->batch, stride, columns, 1, 1), &problem->table_bytes);
  problem->args.block_table = table;
  if (make->failed) return;
  for (size_t i = 0; i < problem->table_bytes / sizeof *table; i++) table[i] = 0x3FFFFFFF;
  for (int b = 0; b < spec->batch; b++)
    for (int token = 0; token < tokens_of(spec, b); token++) {
      int32_t *entry = &table[b * stride + token / page];
      if (token % page == 0) *entry = make->units[make->taken++];
      write_token(make, b, token, (int64_t)*entry * page + token % page);
    }
}

static void put_index(void *list, int index64, int64_t i, int slot) {
  if (index64) ((int64_t *)list)[i] = slot;
  else ((int32_t *)list)[i] = slot;
}

static void make_csr(maker *make) {
  dw__problem *problem = make->problem;
  const dw__problem_spec *spec = &problem->spec;
  size_t index_size = spec->index64 ? 8 : 4, batch = (size_t)spec->batch;
  int32_t *indptr = array(make, (batch + 1) * sizeof *indptr, &problem->indptr_bytes);
  if (!indptr) return;
  indptr[0] = 0;
  for (size_t b = 0; b < batch; b++)
    indptr[b + 1] = indptr[b] + (spec->draft_slots ? problem->prefix[b] : tokens_of(spec, (int)b));
  void *indices = array(make, (size_t)indptr[batch] * index_size, &problem->index_bytes);
  void *drafts = NULL;
  if (spec->draft_slots) drafts = array(make, (size_t)problem->total_q * index_size, &problem->draft_slots_bytes);
  problem->args.kv_indptr = indptr;
  problem->args.kv_indices = indices;
  problem->args.draft_slots = drafts;
  int64_t first_row = 0;
  for (int b = 0; b < spec->batch && !make->failed; b++) {
    for (int token = 0; token < tokens_of(spec, b); token++) {
      int slot = make->units[make->taken++];
      bool apart = drafts && token >= problem->prefix[b];
      int64_t place = apart ? first_row + token - problem->prefix[b] : indptr[b] + token;
      put_index(apart ? drafts : indices, spec->index64, place, slot);
      write_token(make, b, token, slot);
    }
    first_row += problem->rows[b];
  }
}

static void make_kv(maker *make) {
  make_pool(make);  // first: where it is too large for the machine, nothing else was begun
  make_units(make);
  if (!make->failed && make->problem->spec.addressing == DW_CSR) make_csr(make);
  if (!make->failed && make->problem->spec.addressing == DW_BLOCK_TABLE) make_table(make);
  dw__release(make->units);
}

// ---- the whole ------------------------------------------------------------------------------------------------

static void make_scalars(maker *make) {
  dw__problem *problem = make->problem;
  const dw__problem_spec *spec = &problem->spec;
  problem->args.size = sizeof problem->args;
  problem->args.batch = spec->batch;
  problem->args.total_q = problem->total_q;
  problem->args.width = spec->width;
  problem->args.addressing = spec->addressing;
  problem->args.index64 = spec->addressing == DW_CSR && spec->index64;
  problem->args.lengths_include_drafts = spec->lengths_include_drafts;
  problem->args.drafts_elsewhere = spec->drafts_elsewhere;
  problem->args.mask_kind = spec->mask_kind;
  // A call of no rows at all cannot say so: its total_q of 0 means batch x width.
  problem->args.mask_size = problem->total_q ? (int64_t)problem->mask_bytes : 0;
  problem->args.kv_pages = make->pages;
  problem->args.window = spec->window;
  problem->args.soft_cap = spec->soft_cap;
  problem->args.lse_base_e = spec->lse_base_e;
  // 1 / sqrt(192) for DeepSeek's 576, so that scores spread as they do there.
  problem->args.softmax_scale = 1 / sqrtf((float)spec->shape.head_dim_qk / (spec->shape.attention == DW_MLA ? 3.f : 1.f));
  problem->spec.prefix = problem->prefix;
  if (spec->rows) problem->spec.rows = problem->rows;
}

// Each array has just as many entries as the call needs.
static void make_counts(maker *make) {
  dw__problem *problem = make->problem;
  dw_args *args = &problem->args;
  int64_t batch = problem->spec.batch, index = args->index64 ? 8 : 4;
  args->kv_len_count = batch;
  args->qo_indptr_count = args->qo_indptr ? batch + 1 : 0;
  args->kv_indptr_count = args->kv_indptr ? batch + 1 : 0;
  args->block_table_count = (int64_t)problem->table_bytes / 4;
  args->kv_indices_count = (int64_t)problem->index_bytes / index;
  args->draft_slots_count = (int64_t)problem->draft_slots_bytes / index;  // 0 where there are no rows
}

static void make_all(maker *make) {
  make_sizes(make);
  if (make->failed) return;
  if (make->problem->spec.strided) make_strides(make);
  make_q(make);
  make_out(make);
  make_lengths(make);
  make_mask(make);
  make_positions(make);
  make_sinks(make);
  make_kv(make);
  make_scalars(make);
  make_counts(make);
}

dw_status dw__problem_make(const dw__problem_spec *spec, dw__problem **result, dw_error *error) {
  dw_status status = check(spec, error);
  if (status) return status;
  maker make = {0};
  make.problem = scratch(&make, 1, sizeof *make.problem);
  make.memory = scratch(&make, 1, sizeof *make.memory);
  if (make.problem) {
    make.problem->memory = make.memory;
    make.problem->spec = *spec;
  }
  if (!make.failed) make_all(&make);
  if (make.failed) {
    dw__problem_free(make.problem);
    return dw__fail(error, DW_OUT_OF_MEMORY, "problem", "", "", "no memory for its arrays");
  }
  *result = make.problem;
  return DW_OK;
}

void dw__problem_free(dw__problem *problem) {
  if (!problem) return;
  dw__problem_memory *memory = problem->memory;
  if (memory) {
    dw__guard_free(memory->arrays);
    dw__release(memory->bounds);
    dw__release(memory);
  }
  dw__release(problem->prefix);
  dw__release(problem->rows);
  dw__release(problem->out64);
  dw__release(problem->lse64);
  dw__release(problem);
}

void dw__problem_poison(dw__problem *problem) {
  dw__problem_memory *memory = problem->memory;
  dw__guard_poison(memory->out);
  dw__guard_poison(memory->lse);
}
