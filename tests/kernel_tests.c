// See kernel_tests.h.
#include "kernel_tests.h"

#include "rule.h"

static dw_ctx *ctx;
static kt_kernel *kernels[512];
static size_t kernel_count;
static char note[2048];
static long rows_judged;

#ifdef __SANITIZE_ADDRESS__
static const bool sanitized = true;
#else
static const bool sanitized = false;
#endif

void kt_note(const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(note, sizeof note, format, args);
  va_end(args);
}

void kt_fail(const char *what, const dw_error *error) {
  fail_msg("%s\n  %s: %s%s%s", note, what, error ? error->message : "", error && error->log ? "\n" : "",
           error && error->log ? error->log : "");
}

// ---- fixtures -------------------------------------------------------------------------------------------------

bool kt_skip(void) {
  if (dw__host_compiler()) return false;
  print_message("skipped: host execution needs a C++ compiler\n");
  return true;
}

static dw_ctx *context(const char *template_dir, dw_error *error) {
  dw_options options = {.size = sizeof options, .cache_dir = "", .template_dir = template_dir};
  dw_ctx *made = NULL;
  return dw_ctx_create(&options, &made, error) ? NULL : made;
}

int kt_setup(void **state) {
  (void)state;
  dw_error error = {0};
  ctx = context(NULL, &error);
  if (!ctx) print_error("%s\n", error.message);
  return ctx ? 0 : -1;
}

int kt_teardown(void **state) {
  (void)state;
  while (kernel_count) kt_kernel_free(kernels[--kernel_count]);
  dw_ctx_destroy(ctx);
  if (rows_judged) print_message("%ld rows judged\n", rows_judged);
  return 0;
}

dw_ctx *kt_context(void) { return ctx; }

// ---- kernels --------------------------------------------------------------------------------------------------

dw_shape kt_shape(const char *text) {
  dw_shape shape;
  dw_error error = {0};
  if (dw_shape_parse(text, &shape, &error)) kt_fail(text, &error);
  return shape;
}

dw_variant kt_variant(const char *text) {
  dw_variant variant;
  dw_error error = {0};
  if (dw_variant_parse(text, &variant, &error)) kt_fail(text, &error);
  return variant;
}

static kt_kernel *open_kernel(dw_ctx *in, const dw_shape *shape, const dw_variant *variant, dw_error *error) {
  kt_kernel *kernel = calloc(1, sizeof *kernel);
  assert_non_null(kernel);
  *kernel = (kt_kernel){.shape = *shape, .variant = *variant};
  if (dw__host_kernel_open(in, shape, variant, sanitized, &kernel->host, error) == DW_OK) return kernel;
  free(kernel);
  return NULL;
}

void kt_kernel_free(kt_kernel *kernel) {
  if (!kernel) return;
  dw__host_kernel_close(kernel->host);
  free(kernel);
}

const kt_kernel *kt_kernel_get(const dw_shape *shape, const dw_variant *variant) {
  for (size_t i = 0; i < kernel_count; i++) {
    const kt_kernel *known = kernels[i];
    if (!memcmp(&known->shape, shape, sizeof *shape) && !memcmp(&known->variant, variant, sizeof *variant)) return known;
  }
  dw_error error = {0};
  kt_kernel *made = open_kernel(ctx, shape, variant, &error);
  if (!made) kt_fail("build", &error);
  if (kernel_count == DW__COUNT(kernels)) kt_kernel_free(kernels[--kernel_count]);
  return kernels[kernel_count++] = made;
}

const kt_kernel *kt_kernel_of(const char *shape, const char *variant) {
  dw_shape s = kt_shape(shape);
  dw_variant v = kt_variant(variant);
  return kt_kernel_get(&s, &v);
}

const kt_kernel *kt_kernel_for(const dw__problem *problem, const char *variant) {
  dw_variant v = kt_variant(variant);
  dw__variant_add_features(&v, dw__args_features(&problem->args));
  return kt_kernel_get(&problem->spec.shape, &v);
}

kt_kernel *kt_kernel_from(const char *template_dir, const dw_shape *shape, const dw_variant *variant, dw_error *error) {
  dw_ctx *other = context(template_dir, error);
  if (!other) return NULL;
  kt_kernel *made = open_kernel(other, shape, variant, error);
  dw_ctx_destroy(other);
  return made;
}

// ---- problems -------------------------------------------------------------------------------------------------

dw__problem_spec kt_spec(const dw_shape *shape, int batch, const int *prefix, const int *rows) {
  return (dw__problem_spec){.shape = *shape,
                            .batch = batch,
                            .prefix = prefix,
                            .rows = rows,
                            .tree = DW__TREE_RANDOM,
                            .addressing = DW_BLOCK_TABLE,
                            .lengths_include_drafts = 1,
                            .shuffle = 1,
                            .q_scale = 1,
                            .spare_pages = 1,
                            .seed = 1};
}

dw__problem *kt_problem(const dw__problem_spec *spec) {
  dw__problem *problem = NULL;
  dw_error error = {0};
  if (dw__problem_make(spec, &problem, &error)) kt_fail("problem", &error);
  return problem;
}

void kt_solve(dw__problem *problem) {
  dw_error error = {0};
  if (dw__problem_solve(problem, 1, &error)) kt_fail("oracle", &error);
}

dw_bounds kt_bounds(const dw__problem *problem) {
  int longest = 1;
  for (int b = 0; b < problem->args.batch; b++) {
    dw__request request = dw__oracle_request(&problem->spec.shape, &problem->args, b);
    if (request.tokens > longest) longest = request.tokens;
  }
  return (dw_bounds){.size = sizeof(dw_bounds),
                     .batch = problem->args.batch,
                     .kv_len = longest,
                     .sm_count = 132,
                     .features = dw__args_features(&problem->args)};
}

dw_bounds kt_fixed(const dw__problem *problem, int tokens) {
  dw_bounds bounds = kt_bounds(problem);
  bounds.split_tokens = tokens;
  return bounds;
}

void kt_run(const kt_kernel *kernel, const dw_bounds *bounds, dw__problem *problem, dw_host_order order, uint64_t seed) {
  dw_error error = {0};
  if (dw__host_kernel_run(kernel->host, bounds, problem, order, seed, &error)) kt_fail("run", &error);
}

dw__problem_spec kt_spec_of(const char *shape_text, int batch, const int *prefix, const int *rows, dw_mask mask) {
  const dw_shape shape = kt_shape(shape_text);
  dw__problem_spec spec = kt_spec(&shape, batch, prefix, rows);
  spec.mask_kind = mask;
  return spec;
}

// ---- judgement ------------------------------------------------------------------------------------------------

static int64_t or_else(int64_t value, int64_t normal) { return value ? value : normal; }

static const unsigned char *out_at(const dw__problem *problem, int row, int head) {
  const dw_shape *shape = &problem->spec.shape;
  int64_t head_stride = or_else(problem->args.out_head_stride, shape->head_dim_v);
  int64_t row_stride = or_else(problem->args.out_row_stride, shape->heads * head_stride);
  return (const unsigned char *)problem->args.out +
         (row * row_stride + head * head_stride) * (int64_t)dw__dtype_size(shape->out);
}

static float lse_at(const dw__problem *problem, int row, int head) {
  return problem->args.lse[row * or_else(problem->args.lse_row_stride, problem->spec.shape.heads) + head];
}

dw_status kt_judge(dw__problem *problem, dw_error *error) {
  dw__comparison comparison;
  dw_status status = dw__problem_compare(problem, &comparison, error);
  rows_judged += comparison.rows;
  return status;
}

void kt_check(dw__problem *problem) {
  dw_error error = {0};
  if (kt_judge(problem, &error)) kt_fail("rows", &error);
}

int kt_wrongly_finite(const dw__problem *problem, int at) {
  const dw_shape *shape = &problem->spec.shape;
  int count = 0;
  for (int row = 0; row < problem->args.total_q; row++)
    for (int head = 0; head < shape->heads; head++) {
      const unsigned char *found = out_at(problem, row, head) + (size_t)at * dw__dtype_size(shape->out);
      const double exact = problem->out64[(row * shape->heads + head) * shape->head_dim_v + at];
      count += !isfinite(exact) && isfinite(dw__to_float(shape->out, found));
    }
  return count;
}

void kt_check_in(dw__problem *problem, const char *variant, int split_tokens) {
  const dw_bounds bounds = kt_fixed(problem, split_tokens);
  kt_note("%s", variant);
  kt_run(kt_kernel_for(problem, variant), &bounds, problem, DW_HOST_RANDOM, 1);
  kt_check(problem);
}

void kt_run_check(const kt_kernel *kernel, dw__problem *problem) {
  dw_bounds bounds = kt_bounds(problem);
  kt_run(kernel, &bounds, problem, DW_HOST_FORWARD, 1);
  kt_check(problem);
}

// ---- results --------------------------------------------------------------------------------------------------

kt_result kt_take(const dw__problem *problem) {
  const dw_shape *shape = &problem->spec.shape;
  kt_result r = {.rows = problem->args.total_q,
                 .heads = shape->heads,
                 .vector_bytes = (size_t)shape->head_dim_v * dw__dtype_size(shape->out)};
  size_t vectors = (size_t)r.rows * (size_t)r.heads;
  r.out = malloc(vectors * r.vector_bytes + 1);
  r.lse = malloc(vectors * sizeof(float) + 1);
  assert_true(r.out && r.lse);
  for (size_t i = 0; i < vectors; i++) {
    int row = (int)i / r.heads, head = (int)i % r.heads;
    memcpy(r.out + i * r.vector_bytes, out_at(problem, row, head), r.vector_bytes);
    r.lse[i] = problem->args.lse ? lse_at(problem, row, head) : 0;
  }
  return r;
}

kt_result kt_take_run(const kt_kernel *kernel, const dw_bounds *bounds, dw__problem *problem) {
  kt_run(kernel, bounds, problem, DW_HOST_FORWARD, 1);
  return kt_take(problem);
}

double kt_merged_error(const kt_result *a, const kt_result *b, int at, int dims, const double *exact, double sum) {
  const double most = fmax((double)a->lse[at], (double)b->lse[at]), x = exp((double)a->lse[at] - most),
               y = exp((double)b->lse[at] - most);
  double off = 0, size = 0;
  for (int d = 0; d < dims; d++) {
    float p, q;
    memcpy(&p, a->out + ((size_t)at * (size_t)dims + (size_t)d) * 4, sizeof p);
    memcpy(&q, b->out + ((size_t)at * (size_t)dims + (size_t)d) * 4, sizeof q);
    const double wanted = exact[d] / sum, found = ((double)p * x + (double)q * y) / (x + y);
    off += (found - wanted) * (found - wanted);
    size += wanted * wanted;
  }
  return sqrt(off / size);
}

void kt_drop(kt_result *result) {
  free(result->out);
  free(result->lse);
  *result = (kt_result){0};
}

bool kt_same_rows(const kt_result *a, int a_row, const kt_result *b, int b_row, int count) {
  size_t heads = (size_t)a->heads, n = (size_t)count * heads, x = (size_t)a_row * heads, y = (size_t)b_row * heads;
  return memcmp(a->out + x * a->vector_bytes, b->out + y * b->vector_bytes, n * a->vector_bytes) == 0 &&
         memcmp(a->lse + x, b->lse + y, n * sizeof(float)) == 0;
}

void kt_assert_same_rows(const kt_result *a, int a_row, const kt_result *b, int b_row, int count) {
  assert_true(a_row + count <= a->rows && b_row + count <= b->rows && a->heads == b->heads);
  for (int i = 0; i < count; i++)
    if (!kt_same_rows(a, a_row + i, b, b_row + i, 1))
      fail_msg("%s\n  row %d and row %d differ in bits", note, a_row + i, b_row + i);
}

void kt_assert_same(const kt_result *a, const kt_result *b) {
  assert_int_equal(a->rows, b->rows);
  kt_assert_same_rows(a, 0, b, 0, a->rows);
}

void kt_assert_nothing(const kt_result *r, int row, int count) {
  size_t vector = r->vector_bytes;
  for (int i = row * r->heads; i < (row + count) * r->heads; i++) {
    for (size_t k = 0; k < vector; k++) assert_int_equal(r->out[(size_t)i * vector + k], 0);
    assert_true(isinf(r->lse[i]) && r->lse[i] < 0);
  }
}

// ---- scores of -inf -------------------------------------------------------------------------------------------

static void *key_element(const dw__problem *problem, int token, int kv_head, int element) {
  const dw_shape *shape = &problem->spec.shape;
  if (shape->attention == DW_MLA) return kt_token_element(problem, 0, token, element);
  const void *key = dw__oracle_key(shape, &problem->args, 0, token, kv_head);
  return (unsigned char *)(uintptr_t)key + (size_t)element * dw__dtype_size(shape->kv);
}

// Of q in every third vector, or of the K of some tokens.
static void put_minus_infinity(const dw__problem *problem, bool in_q, int first, int end, int element) {
  const dw_shape *shape = &problem->spec.shape;
  uint16_t *q = (uint16_t *)(uintptr_t)problem->args.q;
  for (int v = 0; in_q && v < problem->args.total_q * shape->heads; v += 3)
    dw__from_float(shape->q, -INFINITY, q + v * shape->head_dim_qk + element);
  for (int token = first; token < end; token++)
    for (int head = 0; head < shape->kv_heads; head++) {
      void *key = key_element(problem, token, head, element);
      dw__from_float(shape->kv, in_q ? 0.5 + fabs((double)dw__to_float(shape->kv, key)) : -INFINITY, key);
    }
}

// A vector is as finite as the oracle's, and then right. may_be_nan: also where the oracle's is finite; may_be_nothing: 0 and -inf for NaN.
static void check_vector(const dw__problem *problem, int row, int head, bool may_be_nan, bool may_be_nothing) {
  const dw_shape *shape = &problem->spec.shape;
  const size_t dims = (size_t)shape->head_dim_v, vector = (size_t)(row * shape->heads + head);
  const double *exact = problem->out64 + vector * dims, lse64 = problem->lse64[vector],
               lse = (double)lse_at(problem, row, head);
  double off = 0, norm = 0, most = 0;
  for (size_t d = 0; d < dims; d++) {
    const double found = dw__to_float(shape->out, out_at(problem, row, head) + d * dw__dtype_size(shape->out));
    off += (found - exact[d]) * (found - exact[d]);
    norm += exact[d] * exact[d];
    most += fabs(found);
  }
  const bool nan_now = isnan(lse) && isnan(most), nothing_now = lse == -INFINITY && most == 0;
  if (isnan(lse64) ? nan_now || (may_be_nothing && nothing_now) : may_be_nan && nan_now) return;
  if ((lse == lse64 || fabs(lse - lse64) <= 1e-2) && off <= 1e-4 * norm) return;
  fail_msg("%s\n  row %d, head %d: lse %g, allowed %g; relative error %g of %g", note, row, head, lse, lse64, sqrt(off / norm),
           sqrt(norm));
}

void kt_check_minus_infinity(const char *shape_text, const char *variant, int element) {
  static const struct {
    int prefix, split, window, sinks, elsewhere;
    dw_mask mask;
    int first, end;  // tokens with an infinite K; 0: q is infinite
  } ways[] = {{20, 0, 0, 0, 0, DW_MASK_NONE, 0, 0},    {150, 32, 0, 0, 0, DW_MASK_PARENTS, 0, 0},
              {3, 0, 0, 0, 0, DW_MASK_BITS, 0, 0},     {0, 16, 0, 0, 0, DW_MASK_BITS, 0, 0},
              {100, 32, 10, 0, 0, DW_MASK_NONE, 0, 0}, {40, 32, 0, 1, 0, DW_MASK_PARENTS, 0, 0},
              {40, 16, 0, 0, 1, DW_MASK_NONE, 0, 0},   {90, 0, 0, 0, 0, DW_MASK_NONE, 0, 64},
              {90, 32, 0, 0, 0, DW_MASK_NONE, 0, 64},  {90, 32, 70, 1, 0, DW_MASK_NONE, 40, 64},
              {90, 32, 0, 0, 0, DW_MASK_NONE, 80, 93}, {90, 0, 30, 0, 0, DW_MASK_NONE, 56, 66}};
  const size_t first_at_edges = 10;  // infinite K in tiles of which rows do not see all
  int sound = 0, spoilt = 0, nothing = 0;
  for (size_t k = 0; k < DW__COUNT(ways); k++) {
    dw__problem_spec spec = kt_spec_of(shape_text, 1, &ways[k].prefix, NULL, ways[k].mask);
    const bool in_q = !ways[k].end;
    if (!in_q && dw__dtype_size(spec.shape.kv) == 1) continue;  // e4m3 has no infinity
    spec.window = ways[k].window;
    spec.sinks = ways[k].sinks;
    spec.drafts_elsewhere = ways[k].elsewhere;
    spec.lengths_include_drafts = !ways[k].elsewhere;
    spec.seed = k + 1;
    dw__problem *problem = kt_problem(&spec);
    if (ways[k].mask == DW_MASK_BITS) kt_random_bits(problem, k, 3);
    const int tokens = ways[k].prefix + (ways[k].elsewhere ? 0 : spec.shape.width);
    put_minus_infinity(problem, in_q, ways[k].first, in_q ? tokens : ways[k].end, element);
    kt_solve(problem);
    const dw_bounds bounds = kt_fixed(problem, ways[k].split);
    kt_note("%s, way %zu", variant, k);
    const kt_kernel *kernel = kt_kernel_for(problem, variant);
    kt_run(kernel, &bounds, problem, DW_HOST_RANDOM, k);
    // A row of an infinite q that sees drafts alone or has a window may come out as one that sees nothing; MLA does not tell a score of -inf
    // from others that are not finite where some row may not look.
    const bool roles = kernel->variant.family == DW_ROWSPLIT || kernel->variant.family == DW_DIMSPLIT;
    for (int v = 0; v < problem->args.total_q * spec.shape.heads; v++) {
      const bool own = in_q && v % 3 == 0, nan = roles && (own || k >= first_at_edges);
      const double lse = problem->lse64[v];
      check_vector(problem, v / spec.shape.heads, v % spec.shape.heads, nan, own && (spec.window || !ways[k].prefix));
      sound += isfinite(lse), spoilt += isnan(lse), nothing += lse == -INFINITY;
    }
    dw__problem_free(problem);
  }
  assert_true(sound > 200 && spoilt > 100 && nothing > 5);
}

// ---- parts of a batch -----------------------------------------------------------------------------------------

int kt_first_row(const dw__problem *problem, int request) {
  return dw__oracle_request(&problem->spec.shape, &problem->args, request).first_row;
}

static const void *skip_bytes(const void *at, int64_t bytes, size_t *size) {
  if (!at) return NULL;
  *size = (int64_t)*size > bytes ? *size - (size_t)bytes : 0;
  return (const char *)at + bytes;
}

// The masks of requests from `first` on, whose first row is `row`.
static void skip_mask(dw__problem *part, int first, int64_t row) {
  dw_args *a = &part->args;
  int64_t width = a->width ? a->width : part->spec.shape.width, row_stride = or_else(a->mask_row_stride, width), bytes = 0;
  switch (a->mask_kind) {
    case DW_MASK_PARENTS: bytes = row * 4; break;
    case DW_MASK_BITS: bytes = row * or_else(a->mask_row_stride, (width + 31) / 32) * 4; break;
    case DW_MASK_BYTES_QLEN: bytes = first * or_else(a->mask_request_stride, width * row_stride); break;
    case DW_MASK_BIAS_F32: bytes = first * or_else(a->mask_request_stride, width * row_stride) * 4; break;
    default: break;
  }
  a->mask = skip_bytes(a->mask, a->mask_shared ? 0 : bytes, &part->mask_bytes);
  if (a->mask_indptr) a->mask_indptr += first;
}

dw__problem kt_part(const dw__problem *whole, int first, int count, int32_t *indptr) {
  dw__problem part = *whole;
  const dw_shape *shape = &whole->spec.shape;
  dw_args *a = &part.args;
  int64_t row = kt_first_row(whole, first), index_size = a->index64 ? 8 : 4;
  int qk = shape->head_dim_qk, v = shape->head_dim_v;
  int64_t q_row = or_else(a->q_row_stride, shape->heads * or_else(a->q_head_stride, a->q_rope ? v : qk));
  int64_t q_rope_row = or_else(a->q_rope_row_stride, shape->heads * or_else(a->q_rope_head_stride, qk - v));
  int64_t out_row = or_else(a->out_row_stride, shape->heads * or_else(a->out_head_stride, shape->head_dim_v));
  int64_t lse_row = or_else(a->lse_row_stride, shape->heads);
  for (int b = 0; b <= count; b++) {
    dw__request r = dw__oracle_request(shape, a, first + (b < count ? b : count - 1));
    indptr[b] = r.first_row - (int)row + (b < count ? 0 : r.rows);
  }
  a->q = skip_bytes(a->q, row * q_row * 2, &part.q_bytes);
  a->q_rope = skip_bytes(a->q_rope, row * q_rope_row * 2, &part.q_rope_bytes);
  a->out = (void *)(uintptr_t)skip_bytes(a->out, row * out_row * (int64_t)dw__dtype_size(shape->out), &part.out_bytes);
  a->lse = (float *)(uintptr_t)skip_bytes(a->lse, row * lse_row * 4, &part.lse_bytes);
  skip_mask(&part, first, row);
  a->positions = skip_bytes(a->positions, row * 4, &part.positions_bytes);
  a->draft_slots = skip_bytes(a->draft_slots, row * index_size, &part.draft_slots_bytes);
  if (a->block_table)
    a->block_table =
      skip_bytes(a->block_table, first * or_else(a->block_table_stride, a->table_columns) * 4, &part.table_bytes);
  if (a->qo_indptr) a->qo_indptr = indptr;
  if (a->kv_indptr) a->kv_indptr += first;
  a->kv_len += first;
  a->batch = count;
  a->total_q = indptr[count];
  return part;
}

void kt_assert_own_runs(const kt_kernel *kernel, dw__problem *whole, int split_tokens) {
  dw_bounds bounds = kt_fixed(whole, split_tokens);
  kt_result all = kt_take_run(kernel, &bounds, whole);
  kt_check(whole);
  for (int b = 0; b < whole->args.batch; b++) {
    int32_t indptr[2];
    dw__problem one = kt_part(whole, b, 1, indptr);
    dw_bounds own = kt_fixed(&one, split_tokens);
    kt_result alone = kt_take_run(kernel, &own, &one);
    kt_assert_same_rows(&alone, 0, &all, kt_first_row(whole, b), alone.rows);
    kt_drop(&alone);
  }
  kt_drop(&all);
}

void kt_check_fixed_bits(const dw__problem_spec *spec, const char *const *variants, int count, int split_tokens) {
  dw__problem *problem = kt_problem(spec);
  dw_bounds bounds = kt_fixed(problem, split_tokens);
  kt_result first = {0};
  kt_solve(problem);
  for (int i = 0; i < count; i++) {
    kt_note("%s, ranges of %d", variants[i], split_tokens);
    kt_result r = kt_take_run(kt_kernel_for(problem, variants[i]), &bounds, problem);
    kt_check(problem);
    if (i == 0) first = r;
    else kt_assert_same(&first, &r), kt_drop(&r);
  }
  kt_assert_own_runs(kt_kernel_for(problem, variants[0]), problem, split_tokens);
  kt_drop(&first);
  dw__problem_free(problem);
}

// ---- contents -------------------------------------------------------------------------------------------------

uint32_t *kt_mask_row(const dw__problem *problem, int row) {
  const dw_args *a = &problem->args;
  int width = a->width ? a->width : problem->spec.shape.width;
  return (uint32_t *)(uintptr_t)a->mask + row * or_else(a->mask_row_stride, (width + 31) / 32);
}

// Where the matrix of a request begins, and how far apart its rows are; in elements.
static int64_t mask_matrix(const dw__problem *problem, int request, int64_t *row_stride) {
  const dw_args *a = &problem->args;
  int64_t width = a->width ? a->width : problem->spec.shape.width;
  dw__request r = dw__oracle_request(&problem->spec.shape, a, request);
  if (a->mask_kind == DW_MASK_BYTES_FULL) {
    *row_stride = (int64_t)r.prefix + r.rows;
    return a->mask_indptr[request] + r.prefix;
  }
  *row_stride = or_else(a->mask_row_stride, width);
  return a->mask_shared ? 0 : request * or_else(a->mask_request_stride, width * *row_stride);
}

void kt_see(const dw__problem *problem, int request, int node, int draft, bool sees) {
  void *mask = (void *)(uintptr_t)problem->args.mask;
  int64_t row_stride = 0, at = 0;
  if (problem->args.mask_kind == DW_MASK_BITS) {
    uint32_t *word = kt_mask_row(problem, kt_first_row(problem, request) + node) + draft / 32, bit = 1u << draft % 32;
    *word = sees ? *word | bit : *word & ~bit;
    return;
  }
  at = mask_matrix(problem, request, &row_stride) + node * row_stride + draft;
  if (problem->args.mask_kind == DW_MASK_BIAS_F32) ((float *)mask)[at] = sees ? 0 : -INFINITY;
  else ((uint8_t *)mask)[at] = sees;
}

void *kt_token(const dw__problem *problem, int request, int token) {
  return (void *)(uintptr_t)dw__oracle_token(&problem->spec.shape, &problem->args, request, token);
}

void *kt_token_element(const dw__problem *problem, int request, int token, int element) {
  const dw_shape *shape = &problem->spec.shape;
  const int size = (int)dw__dtype_size(shape->kv);
  if (element < shape->head_dim_v) return (char *)kt_token(problem, request, token) + element * size;
  const void *rope = dw__oracle_token_rope(shape, &problem->args, request, token);
  return (char *)(uintptr_t)rope + (element - shape->head_dim_v) * size;
}

// Of a record its scales and its rope are changed, its latents by what is not finite alone.
static void change_record(uint8_t *record, double value, double factor) {
  for (int g = 0; g < 4; g++) {
    float scale;
    memcpy(&scale, record + DW__RECORD_SCALES + 4 * g, sizeof scale);
    scale = (float)(factor != 0 ? (double)scale * factor : value);
    memcpy(record + DW__RECORD_SCALES + 4 * g, &scale, sizeof scale);
  }
  for (int d = 0; d < 64; d++) {
    uint8_t *at = record + DW__RECORD_ROPE + 2 * d;
    dw__from_float(DW_BF16, factor != 0 ? (double)dw__to_float(DW_BF16, at) * factor : value, at);
  }
  if (isnan(value)) memset(record, 0x7F, DW__RECORD_SCALES);
}

void kt_fill_token(const dw__problem *problem, int request, int token, double value) {
  if (problem->spec.shape.kv == DW_RECORD656) {
    change_record(kt_token(problem, request, token), value, 0);
    return;
  }
  for (int i = 0; i < problem->spec.shape.head_dim_qk; i++)
    dw__from_float(problem->spec.shape.kv, value, kt_token_element(problem, request, token, i));
}

void kt_scale_token(const dw__problem *problem, int request, int token, double factor) {
  dw_dtype type = problem->spec.shape.kv;
  if (type == DW_RECORD656) {
    change_record(kt_token(problem, request, token), 0, factor);
    return;
  }
  for (int i = 0; i < problem->spec.shape.head_dim_qk; i++) {
    void *element = kt_token_element(problem, request, token, i);
    dw__from_float(type, (double)dw__to_float(type, element) * factor, element);
  }
}

void kt_random_bits(const dw__problem *problem, uint64_t seed, int empty) {
  for (int b = 0; b < problem->args.batch; b++)
    for (int node = 0; node < problem->rows[b]; node++) {
      bool nothing = empty && dw__random_below(&seed, empty) == 0;
      for (int j = 0; j < problem->rows[b]; j++) kt_see(problem, b, node, j, !nothing && dw__random_below(&seed, 2));
    }
}
