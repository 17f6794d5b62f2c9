// What a call of a variant should take on a board: a formula with a dozen coefficients, fitted to measured times. For pruning, for
// choosing where nothing was measured, and for boards that are not at hand.
#ifndef DRAFTWOOD_MODEL_H
#define DRAFTWOOD_MODEL_H

#include "core.h"
#include "tune.h"

// A board's facts. mma: FLOP a clock and multiprocessor of the 16-bit instruction with fp32 accumulation, as sustained; mma_f16: with fp16
// accumulation.
typedef struct dw__machine {
  const char *name, *label;  // a part of what the driver calls it; for people
  const char *device;        // all of what the driver calls it
  int cc, sm_count, l2_mb;
  double mhz, read_gbs, mma_flop, mma_f16_flop;
  bool assumed;  // from data sheets, not measured
} dw__machine;
extern const dw__machine dw__machines[];
extern const size_t dw__machine_count;
// The one that a GPU is, or one made of what is known of it.
dw__machine dw__machine_of(const dw__board *board);

// X(name, start of a fit, fitted value, meaning). See dw__predict for how they come together. The fitted values are those of the H200's
// times in bench/results; tests/test_model.c fits anew and compares.
#define DW__MODEL_TERMS(X)                                                                      \
  X(start_us, 4.0, 3.93715, "launch of both kernels, lengths, table entries, q, first tile")    \
  X(tile_clk, 450.0, 625.585, "clocks of a tile of 16 tokens beside the products")              \
  X(row_tile_clk, 40.0, 30.365, "and of each tile of 8 rows in it")                             \
  X(mma_share, 1.0, 0.708023, "of the products' own clocks that are not hidden")                \
  X(wide_factor, 1.25, 1.24211, "of three and more row tiles without setmaxnreg")               \
  X(l2_bytes_clk, 40.0, 40, "bytes a clock that reach a multiprocessor while all of them load") \
  X(read_share, 0.8, 0.863191, "of the board's read bandwidth")                                 \
  X(few_us, 0.7, 0.713432, "merge by a thread a slice")                                         \
  X(many_us, 1.0, 0.867147, "merge by a block a quarter row")                                   \
  X(merge_gbs, 2000.0, 2130.81, "bandwidth of partial results, written and read")               \
  X(step_us, 0.01, 0.00840109, "of each range that the merge's code has room for")              \
  X(round_us, 1.0, 0.276351, "of each further round of the merge")

typedef struct dw__model {
#define X(name, first, fitted, meaning) double name;
  DW__MODEL_TERMS(X)
#undef X
} dw__model;
extern const dw__model dw__model_first, dw__model_fitted;

// Microseconds; 0 where the variant cannot serve. bounds->sm_count is the machine's where 0. ranges: KV ranges a request, or 0 for the rule
// table's.
double dw__predict_ranges(const dw__model *model, const dw__machine *machine, const dw_shape *shape, const dw_variant *variant,
                          const dw_bounds *bounds, int ranges);
double dw__predict(const dw__model *model, const dw__machine *machine, const dw_shape *shape, const dw_variant *variant,
                   const dw_bounds *bounds);
double dw__product_clocks(const dw__machine *machine, const dw_shape *shape, const dw_variant *variant);
// By the fitted model.
double dw__predict_on(const dw_shape *shape, const dw_variant *variant, const dw_bounds *bounds, const dw__board *board);

// A choice with nothing measured: of the default's numerics class the variant with the least predicted time, where that is less than
// the default's by more than the model errs between variants of one problem (tests/test_model.c); else the default.
#define DW__MODEL_GAIN 0.9
dw_status dw__choice_predict(const dw__model *model, const dw__machine *machine, const dw_shape *shape, const dw_bounds *bounds,
                             dw__plan_choice *choice, dw_error *error);

typedef struct dw__fit_row {
  dw_shape shape;
  dw_variant variant;
  dw_bounds bounds;
  const dw__machine *machine;
  double us;
  int ranges;   // KV ranges a request
  int problem;  // rows of one number are one problem: left out together
} dw__fit_row;
// Coefficients that bring the mean of |log(predicted / measured)| over the rows low, from `model` on. The same rows give the same result.
// Rows of problem `leave_out` do not count (-1: all do).
void dw__model_fit(const dw__fit_row *rows, size_t count, int leave_out, dw__model *model);

#endif
