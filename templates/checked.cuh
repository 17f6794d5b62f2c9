// Checked builds: what the kernels ask of dw_check's verdicts, and where the rows of a request are if qo_indptr is not to be
// trusted.
#pragma once

DEV bool masked(const dw_params &p, int b) { return ldg_nc_u32(p.faults + b) != 0; }

struct Rows {
  int first, end;
  bool sound;  // by itself: ascending, of the call, not too many
};
DEV Rows rows_at(const dw_params &p, int b) {
  Rows r{b * p.width, b * p.width + p.width, true};
  if (CALL_TABLE || !p.qo_indptr) return r;
  r.first = ldg_nc_s32(p.qo_indptr + b);
  r.end = ldg_nc_s32(p.qo_indptr + b + 1);
  // Masks with a row stride have p.width columns.
  const bool matrix = p.mask_kind == DW_P_MASK_BITS || p.mask_kind == DW_P_MASK_BYTES_QLEN || p.mask_kind == DW_P_MASK_BIAS_F32;
  const int most = matrix && p.width < WIDTH ? p.width : WIDTH;
  r.sound = r.first >= 0 && r.end >= r.first && r.end <= p.total_q && r.end - r.first <= most;
  return r;
}

// The request that has a row and is not masked, or -1. `guess` is right wherever qo_indptr is.
DEV int owner_of(const dw_params &p, int row, int guess) {
  for (int i = -1; i < p.batch; i++) {
    const int b = i < 0 ? guess : i;
    const Rows r = rows_at(p, b);
    if (r.first <= row && row < r.end && !masked(p, b)) return b;
  }
  return -1;
}
