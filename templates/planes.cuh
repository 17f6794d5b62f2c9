// What the companions share: rows of a batch, and columns of planes. Whoever moves bytes between rows of a plane owns a column
// of it, so that order within a thread is all the order there has to be.
#pragma once

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

DEV s64 shuffle_s64(s64 v, u32 source) {
  const u32 low = shuffle((u32)v, source), high = shuffle((u32)((u64)v >> 32), source);
  return (s64)((u64)high << 32 | low);
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
template <class T>
DEV void store_unit(u8 *p, T v) {
  *(volatile T *)p = v;
}
template <>
DEV void store_unit<u32x4>(u8 *p, u32x4 v) {
  stg_cg_v4(p, v);
}

// The kind of planes that this block works on.
DEV int kind_of(const dw_c_planes (&planes)[DW_C_KINDS], int kinds) {
  int kind = 0;
  for (int k = 1; k < kinds; k++)
    if ((int)blockIdx.x >= planes[k].first_block) kind = k;
  return kind;
}

// This thread's column: its address in token 0 of slot or page 0, or null past the last column.
DEV u8 *find_column(const dw_c_planes &planes, int threads, int thread) {
  const int column = ((int)blockIdx.x - planes.first_block) * threads + thread;
  if (column >= planes.columns) return nullptr;
  const int in_plane = column % planes.plane_units;
  u8 *base = (u8 *)ldg_nc_s64((const s64 *)planes.bases + column / planes.plane_units);
  return base + in_plane / planes.row_units * planes.token_stride + (s64)(in_plane % planes.row_units) * planes.unit;
}

// Bytes from a plane's start to a token slot.
DEV s64 slot_offset(const dw_c_planes &planes, int page, s32 slot) {
  if (page == 1) return slot * planes.page_stride;
  return (u32)slot / (u32)page * planes.page_stride + (u32)slot % (u32)page * planes.token_stride;
}
