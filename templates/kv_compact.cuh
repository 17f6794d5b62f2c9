// After acceptance: row accept_index[k] of a request's drafts moves to draft place k, in every plane, and the new length is
// written. Ids ascend, so that the k-th is k or more: a thread goes through its column in order, and what it overwrites it has
// moved before. The list ends at -1, and at any id that does not ascend or is no draft, so that nothing else is ever touched.
#pragma once

// Where a request's drafts are listed: entry of draft d is at first + d, or at first + (prefix + d) / page of a block table.
// Found in two steps, so that the entries of a row's two places are on their way together.
struct DraftList {
  const void *list;
  s64 first;
  int prefix;
  bool table, wide;
};
DEV s32 draft_entry(const DraftList &l, int page, int draft) {
  const s64 at = l.first + (l.table ? (int)((u32)(l.prefix + draft) / (u32)page) : draft);
  return l.wide ? (s32)ldg_nc_s64((const s64 *)l.list + at) : ldg_nc_s32((const s32 *)l.list + at);
}
// Bytes from a plane's start to the draft's place.
DEV s64 draft_offset(const DraftList &l, const dw_c_planes &planes, int page, s32 entry, int draft) {
  if (!l.table) return slot_offset(planes, page, entry);
  return entry * planes.page_stride + (u32)(l.prefix + draft) % (u32)page * planes.token_stride;
}

template <class T>
DEV void compact(const dw_compact_params &p, const dw_c_planes &planes) {
  const int b = blockIdx.y, lane = lane_id();
  const s32 *list = p.accept_index + b * p.accept_stride;
  // Loads that need nothing of one another come first.
  int id = lane < p.accept_columns ? ldg_nc_s32(list + lane) : -1;
  const int kv_len = ldg_nc_s32(p.kv_len + b);
  const Rows rows = rows_of(p.rows, b);
  DraftList l;
  l.table = p.addressing == 1;
  l.wide = !l.table && p.index64;
  l.list = l.table ? p.block_table : p.draft_slots ? p.draft_slots : p.kv_indices;
  const s32 listed_from = l.table || p.draft_slots ? 0 : ldg_nc_s32(p.kv_indptr + b);
  u8 *column = find_column(planes, DW_C_COMPACT_THREADS, threadIdx.x);
  const Tokens tokens = tokens_of(kv_len, rows.count, p.lengths_include_drafts);
  l.prefix = tokens.prefix;
  l.first = l.table ? b * p.block_table_stride : p.draft_slots ? rows.first : (s64)listed_from + tokens.prefix;
  const int drafts = tokens.total - tokens.prefix;
  int last = -1, kept = 0;
  for (int k0 = 0; k0 < p.accept_columns; k0 += 32) {
    const int k = k0 + lane;
    if (k0) id = k < p.accept_columns ? ldg_nc_s32(list + k) : -1;
    int before = (int)shuffle_up((u32)id, 1);
    if (lane == 0) before = last;
    const u32 ends = vote_ballot(id <= before || id >= drafts);
    const int listed = ends ? (int)lowest_bit(ends) : 32;
    const bool moves = lane < listed && id != k;
    s64 from = 0, to = 0;
    if (moves) {
      const s32 entry = draft_entry(l, p.page, id), other = draft_entry(l, p.page, k);
      from = draft_offset(l, planes, p.page, entry, id);
      to = draft_offset(l, planes, p.page, other, k);
    }
    u32 left = vote_ballot(moves);
    while (left) {
      T held[DW_C_BATCH];
      u32 rest = left;
#pragma unroll
      for (int j = 0; j < DW_C_BATCH; j++) {
        if (!rest) break;
        const s64 offset = shuffle_s64(from, lowest_bit(rest));
        rest &= rest - 1;
        if (column) held[j] = load_unit<T>(column + offset);
      }
#pragma unroll
      for (int j = 0; j < DW_C_BATCH; j++) {
        if (!left) break;
        const s64 offset = shuffle_s64(to, lowest_bit(left));
        left &= left - 1;
        if (column) store_unit<T>(column + offset, held[j]);
      }
    }
    kept += listed;
    if (listed < 32) break;
    last = (int)shuffle((u32)id, 31);
  }
  if (blockIdx.x != 0 || threadIdx.x != 0) return;
  const bool padding = p.lengths_include_drafts && kv_len <= 0;
  if (p.new_len) p.new_len[b] = padding ? 0 : tokens.prefix + kept + p.next_drafts;
  if (p.accept_count) p.accept_count[b] = kept;
}

extern "C" __global__ void __launch_bounds__(DW_C_COMPACT_THREADS) dw_kv_compact(const __grid_constant__ dw_compact_params p) {
  const dw_c_planes &planes = p.planes[kind_of(p.planes, p.kinds)];
  if (planes.unit == 16) compact<u32x4>(p, planes);
  else if (planes.unit == 4) compact<u32>(p, planes);
  else compact<u8>(p, planes);
}
