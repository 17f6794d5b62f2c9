// What the companions share: rows of a batch, and columns of planes. Whoever moves bytes between rows of a plane owns a column
// of it, so that order within a thread is all the order there has to be.
#pragma once

// n / d, and what is left.
DEV u32 divide(u32 n, const dw_c_divisor &d, u32 &rest) {
  u32 quotient = (u32)((u64)n * d.inverse >> 32);  // right, or one too low
  rest = n - quotient * d.value;
  if (rest >= d.value) rest -= d.value, quotient++;
  return quotient;
}

struct Rows {
  int first, count;
};
DEV Rows rows_of(const dw_c_rows &r, int b) {
  if (!r.qo_indptr) return Rows{b * r.width, r.width};
  const int first = ldg_nc_s32(r.qo_indptr + b);
  return Rows{first, ldg_nc_s32(r.qo_indptr + b + 1) - first};
}

// Committed tokens and all tokens of a request. One that is shorter than its drafts is padding: it has no prefix.
struct Tokens {
  int prefix, total;
};
DEV Tokens tokens_of(int kv_len, int rows, bool with_drafts) {
  const int length = kv_len > 0 ? kv_len : 0;
  if (!with_drafts) return Tokens{length, length + rows};
  return Tokens{length > rows ? length - rows : 0, length};
}

// ---- columns --------------------------------------------------------------------------------------------------
// 16 bytes where rows allow, so that a warp's access is four whole lines; 4 or 1 for narrow or odd rows.
template <class T>
DEV T load_unit(const u8 *p) {
  return *(const volatile T *)p;
}
template <>
DEV u32x4 load_unit<u32x4>(const u8 *p) {
  return ldg_cg_v4(p);
}
// Zeros where it is not wanted.
template <class T>
DEV T load_unit_if(u64 address, bool wanted) {
  return wanted ? load_unit<T>((const u8 *)address) : T{};
}
template <>
DEV u32x4 load_unit_if<u32x4>(u64 address, bool wanted) {
  return ldg_cg_v4_if((const void *)address, wanted);
}
template <class T>
DEV void store_unit(u8 *p, T v) {
  *(volatile T *)p = v;
}
template <>
DEV void store_unit<u32x4>(u8 *p, u32x4 v) {
  stg_cg_v4(p, v);
}

// The kind of planes that this block works on. By value: parameters are read at places that the compiler knows.
DEV dw_c_planes planes_of(const dw_c_planes (&planes)[DW_C_KINDS], int kinds) {
  dw_c_planes found = planes[0];
#pragma unroll
  for (int k = 1; k < DW_C_KINDS; k++)
    if (k < kinds && (int)blockIdx.x >= planes[k].first_block) found = planes[k];
  return found;
}

// A column's address in token 0 of slot or page 0, or null past the last column.
DEV u8 *find_column(const dw_c_planes &planes, int column) {
  if (column >= planes.columns) return nullptr;
  u32 in_plane, in_row;
  const u32 plane = divide(column, planes.plane_units, in_plane);
  u8 *base = (u8 *)ldg_nc_s64((const s64 *)planes.bases + plane);
  const u32 token = divide(in_plane, planes.row_units, in_row);
  return base + token * planes.token_stride + (s64)in_row * planes.unit;
}

// Bytes from a plane's start to a token slot.
DEV s64 slot_offset(const dw_c_planes &planes, const dw_c_divisor &page, s32 slot) {
  if (page.value == 1) return slot * planes.page_stride;
  u32 in_page;
  const u32 number = divide(slot, page, in_page);
  return number * planes.page_stride + in_page * planes.token_stride;
}
