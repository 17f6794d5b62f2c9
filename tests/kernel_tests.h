// What the kernel tests share: kernels built once for host execution and kept, problems, runs, and the judgement of each row.
// Every function ends the test that calls it when something is wrong; the note says for which case.
#ifndef DRAFTWOOD_KERNEL_TESTS_H
#define DRAFTWOOD_KERNEL_TESTS_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "guard.h"
#include "host_run.h"
#include "oracle.h"
#include "plan.h"
#include "random.h"

bool kt_skip(void);  // no C++ compiler: a test program returns 77
// cmocka group fixtures.
int kt_setup(void **state);
int kt_teardown(void **state);
// Printed in front of every failure.
void kt_note(const char *format, ...) DW__PRINTF(1, 2);
// Fails the test with the note, a sentence and an error record's message.
void kt_fail(const char *what, const dw_error *error);

dw_shape kt_shape(const char *text);
dw_variant kt_variant(const char *text);

dw_ctx *kt_context(void);

// A kernel is named by its texts; opened on first use, closed by kt_teardown.
typedef struct kt_kernel {
  dw_shape shape;
  dw_variant variant;
  dw__host_kernel *host;
} kt_kernel;
const kt_kernel *kt_kernel_get(const dw_shape *shape, const dw_variant *variant);
const kt_kernel *kt_kernel_of(const char *shape, const char *variant);
// With code for the window, cap and parts that the problem's call has.
const kt_kernel *kt_kernel_for(const dw__problem *problem, const char *variant);
// With templates of another folder; the caller frees it by kt_kernel_free. NULL and the error where it could not be made.
kt_kernel *kt_kernel_from(const char *template_dir, const dw_shape *shape, const dw_variant *variant, dw_error *error);
void kt_kernel_free(kt_kernel *kernel);

// A usual spec: batch requests of these prefixes and rows (NULL: width rows each), block table, lengths with drafts, NONE.
dw__problem_spec kt_spec(const dw_shape *shape, int batch, const int *prefix, const int *rows);
dw__problem_spec kt_spec_of(const char *shape_text, int batch, const int *prefix, const int *rows, dw_mask mask);
dw__problem *kt_problem(const dw__problem_spec *spec);  // made, not solved
void kt_solve(dw__problem *problem);

// The bounds that just hold for a problem.
dw_bounds kt_bounds(const dw__problem *problem);
void kt_run(const kt_kernel *kernel, const dw_bounds *bounds, dw__problem *problem, dw_host_order order, uint64_t seed);
// Every row within design.md section 4's bound, nothing written outside the rows.
dw_status kt_judge(dw__problem *problem, dw_error *error);
void kt_check(dw__problem *problem);
// The same with KV ranges of so many tokens each.
dw_bounds kt_fixed(const dw__problem *problem, int tokens);
// Vectors whose element `at` is finite although the oracle's is not. (kt_check takes no such rows.)
int kt_wrongly_finite(const dw__problem *problem, int at);
// In one: run by a variant with KV ranges of so many tokens each (0: as they come), and check.
void kt_check_in(dw__problem *problem, const char *variant, int split_tokens);
// In one: run forward in the usual bounds, and check.
void kt_run_check(const kt_kernel *kernel, dw__problem *problem);

// Scores of -inf, by an element of q or by one of K (MLA: not one of V), in every place that a row may have them: against the oracle.
void kt_check_minus_infinity(const char *shape, const char *variant, int element);

// The rows of a result, copied out tight.
typedef struct kt_result {
  int rows, heads;
  size_t vector_bytes;
  unsigned char *out;  // [rows, heads, vector]
  float *lse;          // [rows, heads]
} kt_result;
kt_result kt_take(const dw__problem *problem);
kt_result kt_take_run(const kt_kernel *kernel, const dw_bounds *bounds, dw__problem *problem);  // runs forward, takes
// Vector `at` (fp32) of two results merged by their lse in base e, against `exact`, which is yet to be divided by `sum`: relative L2.
double kt_merged_error(const kt_result *a, const kt_result *b, int at, int dims, const double *exact, double sum);
void kt_drop(kt_result *result);
// Bit-equal: `count` rows of a from a_row on, and of b from b_row on.
bool kt_same_rows(const kt_result *a, int a_row, const kt_result *b, int b_row, int count);
void kt_assert_same_rows(const kt_result *a, int a_row, const kt_result *b, int b_row, int count);
void kt_assert_same(const kt_result *a, const kt_result *b);

// These rows saw nothing.
void kt_assert_nothing(const kt_result *r, int row, int count);
// Every request of the problem has the same bits in a call of its own, with ranges of so many tokens.
void kt_assert_own_runs(const kt_kernel *kernel, dw__problem *whole, int split_tokens);
// And in each of these variants, which differ in what no row's bits depend on; every row is right.
void kt_check_fixed_bits(const dw__problem_spec *spec, const char *const *variants, int count, int split_tokens);

// Requests first .. first + count - 1 of a problem as a call of its own over the same memory. `indptr` [count + 1] holds its rows.
dw__problem kt_part(const dw__problem *whole, int first, int count, int32_t *indptr);
int kt_first_row(const dw__problem *problem, int request);

// Contents that the problem maker does not make, to be written before kt_solve.
static inline int32_t *kt_lengths(const dw__problem *p) { return (int32_t *)(uintptr_t)p->args.kv_len; }
static inline int32_t *kt_positions(const dw__problem *p) { return (int32_t *)(uintptr_t)p->args.positions; }
static inline int32_t *kt_parents(const dw__problem *p) { return (int32_t *)(uintptr_t)p->args.mask; }
uint32_t *kt_mask_row(const dw__problem *problem, int row);  // BITS
// BITS, BYTES, BIAS.
void kt_see(const dw__problem *problem, int request, int node, int draft, bool sees);
void *kt_token(const dw__problem *problem, int request, int token);
void *kt_token_element(const dw__problem *problem, int request, int token, int element);  // also of a token in two parts
void kt_fill_token(const dw__problem *problem, int request, int token, double value);
void kt_scale_token(const dw__problem *problem, int request, int token, double factor);
// A random mask of no tree's shape; about one row in `empty` is all false (0: none).
void kt_random_bits(const dw__problem *problem, uint64_t seed, int empty);

#endif
