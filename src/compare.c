// The answer to a problem, and how far a result is from it.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "guard.h"
#include "oracle.h"
#include "problem.h"

// A log-sum-exp is off by no more than P's rounding would make it.
static const double lse_allowed = 2e-3, lse_allowed_relative = 2e-6;

static size_t vectors_of(const dw__problem *problem) { return (size_t)problem->total_q * (size_t)problem->spec.shape.heads; }

dw_status dw__problem_solve(dw__problem *problem, int threads, dw_error *error) {
  dw__problem_memory *memory = problem->memory;
  dw__release(memory->bounds);
  memory->bounds = NULL;
  memory->threads = threads;
  dw_status status = dw__oracle_exact(&problem->spec.shape, &problem->args, threads, problem->out64, problem->lse64, error);
  memory->solved = status == DW_OK;
  return status;
}

// ---- bounds ---------------------------------------------------------------------------------------------------

bool dw__has_wide_bound(const dw_variant *variant) { return variant->e4m3_mma || variant->accumulate == DW_ACCUMULATE_FP16; }
double dw__least_bound(bool wide) { return wide ? 1.5e-2 : 3e-3; }

static double norm(const double *values, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; i++) sum += values[i] * values[i];
  return sqrt(sum);
}

static double distance(const double *a, const double *b, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; i++) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return sqrt(sum);
}

// What design.md section 4 allows each row. A row that sees nothing has to be 0.
static dw_status make_bounds(dw__problem *problem, dw_error *error) {
  dw__problem_memory *memory = problem->memory;
  size_t vectors = vectors_of(problem), v = (size_t)problem->spec.shape.head_dim_v;
  double *bounds = dw__alloc((vectors + 1) * sizeof *bounds), *lse = dw__alloc((vectors + 1) * sizeof *lse);
  double *out = dw__alloc((vectors * v + 1) * sizeof *out);
  dw_status status = DW_OK;
  if (!bounds || !lse || !out) status = dw__fail(error, DW_OUT_OF_MEMORY, "compare", "", "", "no memory for the bounds");
  else status = dw__oracle_plain(&problem->spec.shape, &problem->args, memory->threads, out, lse, error);
  for (size_t i = 0; i < vectors && status == DW_OK; i++) {
    const double *exact = problem->out64 + i * v;
    double size = norm(exact, v);
    double usual = size > 0 ? distance(out + i * v, exact, v) / size : 0;
    bounds[i] = size > 0 ? fmax(1.5 * usual, dw__least_bound(problem->wide_bound)) : 0;
  }
  dw__release(lse);
  dw__release(out);
  if (status) dw__release(bounds);
  else memory->bounds = bounds;
  return status;
}

// ---- one row --------------------------------------------------------------------------------------------------

// One query vector's result beside its answer.
typedef struct pair {
  dw__row_error error;
  double error_square, exact_square;
  int worst_element;
  double worst_found, worst_exact;
  double lse_found, lse_exact;
  bool wide;   // bounds
  long close;  // elements within one unit in the last place
} pair;

// Numbers of a format in order, so that neighbours differ by one.
static int64_t order(dw_dtype type, const void *element) {
  uint32_t word = 0;
  memcpy(&word, element, dw__dtype_size(type));
  int64_t sign = (int64_t)1 << (8 * dw__dtype_size(type) - 1);
  return word & sign ? sign - (int64_t)word : (int64_t)word;
}

static bool is_close(dw_dtype type, const void *element, double exact) {
  uint32_t rounded;
  dw__from_float(type, exact, &rounded);
  int64_t apart = order(type, element) - order(type, &rounded);
  return apart >= -1 && apart <= 1;
}

// A NaN is farther off than anything.
static double off_by(double found, double exact) {
  double off = fabs(found - exact);
  return isnan(off) ? INFINITY : off;
}

static void pair_out(const dw__problem *problem, const char *element, const double *exact, pair *p) {
  dw_dtype type = problem->spec.shape.out;
  double worst = -1;
  for (int i = 0; i < problem->spec.shape.head_dim_v; i++, element += dw__dtype_size(type)) {
    double found = (double)dw__to_float(type, element), off = off_by(found, exact[i]);
    p->error_square += off * off;
    p->exact_square += exact[i] * exact[i];
    p->close += is_close(type, element, exact[i]);
    if (off <= worst) continue;
    worst = off;
    p->worst_element = i;
    p->worst_found = found;
    p->worst_exact = exact[i];
  }
  p->error.relative = sqrt(p->exact_square > 0 ? p->error_square / p->exact_square : p->error_square);
}

static void pair_lse(const dw__problem *problem, size_t vector, pair *p) {
  const dw_args *args = &problem->args;
  if (!args->lse) return;
  int heads = problem->spec.shape.heads;
  int64_t stride = dw__or_else(args->lse_row_stride, heads);
  p->lse_found = (double)args->lse[(int64_t)vector / heads * stride + (int64_t)vector % heads];
  p->lse_exact = problem->lse64[vector];
  bool both_nothing = isinf(p->lse_found) && isinf(p->lse_exact) && p->lse_found < 0 && p->lse_exact < 0;
  p->error.lse = both_nothing ? 0 : off_by(p->lse_found, p->lse_exact);
}

static const char *result_at(const dw__problem *problem, size_t vector) {
  const dw_shape *shape = &problem->spec.shape;
  int64_t head_stride = dw__or_else(problem->args.out_head_stride, shape->head_dim_v);
  int64_t row_stride = dw__or_else(problem->args.out_row_stride, shape->heads * head_stride);
  int64_t element = (int64_t)vector / shape->heads * row_stride + (int64_t)vector % shape->heads * head_stride;
  return (const char *)problem->args.out + element * (int64_t)dw__dtype_size(shape->out);
}

// That of a score is what the e4m3 parts of q leave.
double dw__lse_bound(double exact, bool wide) {
  if (isinf(exact)) return 0;
  return wide ? 3e-2 + 1e-3 * fabs(exact) : lse_allowed + lse_allowed_relative * fabs(exact);
}

static double lse_bound(const pair *p) { return dw__lse_bound(p->lse_exact, p->wide); }

static bool is_wrong(const pair *p) { return !(p->error.relative <= p->error.bound) || !(p->error.lse <= lse_bound(p)); }

static double badness(const dw__row_error *row) {
  if (row->relative == 0) return 0;
  return row->bound > 0 ? row->relative / row->bound : INFINITY;
}

// Names the first bad row and, in it, what is wrong: the result's worst element or the log-sum-exp.
static dw_status report(const pair *p, dw_error *error) {
  char field[80], found[96], allowed[96];
  const dw__row_error *row = &p->error;
  bool out_is_wrong = !(row->relative <= row->bound);
  snprintf(field, sizeof field, "%s[request %d, row %d, head %d]", out_is_wrong ? "out" : "lse", row->request, row->row,
           row->head);
  if (!out_is_wrong) {
    snprintf(found, sizeof found, "%.7g", p->lse_found);
    snprintf(allowed, sizeof allowed, "%.7g within %.2g", p->lse_exact, lse_bound(p));
    return dw__fail(error, DW_WRONG_RESULT, field, found, allowed, "the log-sum-exp differs from the oracle");
  }
  snprintf(found, sizeof found, "relative error %.3g", row->relative);
  snprintf(allowed, sizeof allowed, "at most %.3g", row->bound);
  return dw__fail(error, DW_WRONG_RESULT, field, found, allowed, "element %d is %.6g, the oracle says %.6g", p->worst_element,
                  p->worst_found, p->worst_exact);
}

// ---- the space between rows -----------------------------------------------------------------------------------

// First byte that changed between or before `count` pieces of `size` bytes, or DW__UNCHANGED. Piece i lies where `at` says.
static ptrdiff_t changed_outside(const dw__problem *problem, const dw__guarded *array, size_t count, size_t size,
                                 const char *(*at)(const dw__problem *, size_t)) {
  ptrdiff_t done = array->map - array->data;
  for (size_t i = 0; i <= count; i++) {
    ptrdiff_t next = i < count ? at(problem, i) - (const char *)array->data : (ptrdiff_t)array->size;
    ptrdiff_t changed = dw__guard_changed(array, done, next);
    if (changed != DW__UNCHANGED) return changed;
    done = next + (ptrdiff_t)size;
  }
  return DW__UNCHANGED;
}

static const char *lse_at(const dw__problem *problem, size_t row) {
  int64_t stride = dw__or_else(problem->args.lse_row_stride, problem->spec.shape.heads);
  return (const char *)(problem->args.lse + (int64_t)row * stride);
}

static dw_status check_outside(dw__problem *problem, dw__comparison *comparison, dw_error *error) {
  dw__problem_memory *memory = problem->memory;
  const dw_shape *shape = &problem->spec.shape;
  size_t vector_bytes = (size_t)shape->head_dim_v * dw__dtype_size(shape->out);
  size_t lse_bytes = (size_t)shape->heads * sizeof(float);
  const char *field = "out";
  ptrdiff_t at = changed_outside(problem, memory->out, vectors_of(problem), vector_bytes, result_at);
  if (at == DW__UNCHANGED && problem->args.lse) {
    field = "lse";
    at = changed_outside(problem, memory->lse, (size_t)problem->total_q, lse_bytes, lse_at);
  }
  comparison->outside_written = at != DW__UNCHANGED;
  if (at == DW__UNCHANGED) return DW_OK;
  char found[64];
  snprintf(found, sizeof found, "a write at byte %td", at);
  return dw__fail(error, DW_WRONG_RESULT, field, found, "writes to its rows only", "the space outside the rows was changed");
}

// ---- all rows -------------------------------------------------------------------------------------------------

static pair pair_of(const dw__problem *problem, int request, int row, int head, size_t vector) {
  const dw__problem_memory *memory = problem->memory;
  pair p = {.error = {.request = request, .row = row, .head = head, .bound = memory->bounds[vector]},
            .wide = problem->wide_bound};
  pair_out(problem, result_at(problem, vector), problem->out64 + vector * (size_t)problem->spec.shape.head_dim_v, &p);
  pair_lse(problem, vector, &p);
  return p;
}

static void add(dw__comparison *comparison, const pair *p) {
  if (comparison->rows++ == 0 || badness(&p->error) > badness(&comparison->worst)) comparison->worst = p->error;
  if (!is_wrong(p)) return;
  if (comparison->failed++ == 0) comparison->first_failed = p->error;
}

// Only out as the problem made it has poison around it; a caller may have put another array there.
static bool has_own_arrays(const dw__problem *problem) {
  const dw__problem_memory *memory = problem->memory;
  return problem->args.out == memory->out->data && (!problem->args.lse || (void *)problem->args.lse == memory->lse->data);
}

dw_status dw__problem_compare(dw__problem *problem, dw__comparison *comparison, dw_error *error) {
  const dw__problem_memory *memory = problem->memory;
  *comparison = (dw__comparison){0};
  if (!memory->solved)
    return dw__fail(error, DW_BAD_ARGUMENT, "problem", "not solved", "dw__problem_solve first",
                    "there is no answer to compare with");
  dw_status status = memory->bounds ? DW_OK : make_bounds(problem, error);
  if (status) return status;
  double error_square = 0, exact_square = 0, close = 0;
  size_t vector = 0;
  for (int b = 0; b < problem->spec.batch; b++)
    for (int row = 0; row < problem->rows[b]; row++)
      for (int head = 0; head < problem->spec.shape.heads; head++, vector++) {
        pair p = pair_of(problem, b, row, head, vector);
        add(comparison, &p);
        if (comparison->failed == 1 && status == DW_OK) status = report(&p, error);
        error_square += p.error_square;
        exact_square += p.exact_square;
        close += (double)p.close;
      }
  comparison->total_relative = sqrt(exact_square > 0 ? error_square / exact_square : error_square);
  double elements = (double)vector * problem->spec.shape.head_dim_v;
  comparison->ulp_share = elements > 0 ? close / elements : 1;
  if (!has_own_arrays(problem)) return status;
  dw_status outside = check_outside(problem, comparison, status ? NULL : error);
  return status ? status : outside;
}
