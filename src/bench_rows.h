// Measured rows as draftwood bench and bench/peers write them (bench/README.md), read for the report and for fitting the model.
#ifndef DRAFTWOOD_BENCH_ROWS_H
#define DRAFTWOOD_BENCH_ROWS_H

#include "model.h"

typedef struct dw__bench_row {
  char board[128], impl[96], date[32], driver[64];
  bool has_variant;  // ours, of an attention call
  dw_shape shape;    // of peers too, where it can be read
  dw_variant variant;
  int batch, prefix, page, ranges;  // ranges: of KV, a request
  bool cold, plain;                 // plain: no feature, no chain, made for the lengths that are run
  double us, p10, p90, gbs, tflops, floor_us;
} dw__bench_row;

typedef struct dw__bench_rows {
  dw__bench_row *list;
  size_t count, capacity;
} dw__bench_rows;
// Adds the rows of a file's text. Rows of ragged batches and of companion kernels are passed over; a line that is no JSON object, or has no
// time, is an error with its number.
dw_status dw__bench_rows_read(const char *text, size_t size, dw__bench_rows *rows, dw_error *error);
void dw__bench_rows_free(dw__bench_rows *rows);
// Those that the model speaks of: ours, cold, plain, on a machine it knows. free with dw__release.
dw_status dw__fit_rows(const dw__bench_rows *rows, dw__fit_row **list, size_t *count, int *problems, dw_error *error);

#endif
