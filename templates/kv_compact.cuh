// After acceptance: row accept_index[k] of a request's drafts moves to draft place k, in every plane, and the new length is
// written. Ids ascend, so that the k-th is k or more: a thread goes through its column in order, and what it overwrites it has
// moved before. The list ends at -1, and at any id that does not ascend or is no draft, so that nothing else is ever touched.
#pragma once

// From launch to first store a block waits three times: for what needs nothing of one another, for the drafts' entries, for the
// rows. That is so only as long as nothing is worked out of what a load brings before the loads after it that do not need it. As a
// dependent launch it has done two of the three before the kernel ahead of it, which made the list, is through.
struct DraftList {
  const void *list;
  s64 first;  // entry of draft d: at first + d, or at first + (prefix + d) / page of a block table
  int prefix;
  bool table, wide;
};
struct DraftPlace {
  s32 entry;
  u32 in_page;
};
DEV DraftPlace find_draft(const DraftList &l, const dw_c_divisor &page, int draft) {
  DraftPlace place = {};
  s64 at = l.first;
  if (l.table) at += divide(l.prefix + draft, page, place.in_page);
  else at += draft;
  place.entry = l.wide ? (s32)ldg_nc_s64((const s64 *)l.list + at) : ldg_nc_s32((const s32 *)l.list + at);
  return place;
}
// Bytes from a plane's start to the draft's place.
DEV s64 draft_offset(const DraftList &l, const dw_c_planes &planes, const dw_c_divisor &page, const DraftPlace &place) {
  if (!l.table) return slot_offset(planes, page, place.entry);
  return place.entry * planes.page_stride + place.in_page * planes.token_stride;
}

// The thread's column of a layer: of a token's row, since compaction has no other. Past the last one it is the last one, which is
// loaded in vain, so that no load has a condition of its own. The plane's address is still on its way.
struct Column {
  s64 plane;
  u32 in_row;
};
DEV Column ask_column(const dw_c_planes &planes, int number) {
  u32 in_row;
  const int plane = (int)divide(number < planes.columns ? number : planes.columns - 1, planes.row_units, in_row);
  return Column{ldg_nc_s64((const s64 *)planes.bases + plane), in_row * (u32)planes.unit};
}

template <class T>
DEV void compact(const dw_compact_params &p, const dw_c_planes &planes) {
  const int b = blockIdx.y, lane = lane_id();
  const s32 *list = p.accept_index + b * p.accept_stride;
  grid_dependents_launch();
  DraftList l;
  l.table = p.addressing == 1;
  l.wide = !l.table && p.index64;
  // Which of a table's pages hold the drafts, the length has yet to say; all of a short row are on their way until then.
  const int sector = threadIdx.x * 8;
  if (l.table && blockIdx.x == 0 && sector < p.table_columns && p.table_columns <= DW_C_COMPACT_THREADS * 8)
    prefetch_l2(p.block_table + b * p.block_table_stride + sector);
  // From here to the lengths' first use there is no branch: all loads are on their way before anything waits for one.
  const int kv_len = ldg_nc_s32(p.kv_len + b);
  const s32 listed_from = l.table || p.draft_slots ? 0 : ldg_nc_s32(p.kv_indptr + b);
  int id = lane < p.accept_columns && !p.dependent ? ldg_nc_s32(list + lane) : -1;
  const int first_column = ((int)blockIdx.x - planes.first_block) * p.columns_each * DW_C_COMPACT_THREADS + threadIdx.x;
  Column asked[DW_C_COMPACT_COLUMNS];
  bool owns[DW_C_COMPACT_COLUMNS];
#pragma unroll
  for (int c = 0; c < DW_C_COMPACT_COLUMNS; c++) {
    const int number = first_column + c * DW_C_COMPACT_THREADS;
    owns[c] = c < p.columns_each && number < planes.columns;
    asked[c] = ask_column(planes, number);
  }
  const Rows rows = rows_of(p.rows, b);
  l.list = l.table ? p.block_table : p.draft_slots ? p.draft_slots : p.kv_indices;
  const Tokens tokens = tokens_of(kv_len, rows.count, p.lengths_include_drafts);
  l.prefix = tokens.prefix;
  l.first = l.table ? b * p.block_table_stride : p.draft_slots ? rows.first : (s64)listed_from + tokens.prefix;
  const int drafts = p.draft_slots ? rows.count : tokens.total - tokens.prefix;
  // Where this lane's draft is, before the list says whether it moves.
  const s64 own = lane < drafts ? draft_offset(l, planes, p.page, find_draft(l, p.page, lane)) : 0;
  if (p.dependent) {
    grid_dependency_wait();
    if (lane < p.accept_columns) id = ldg_cg_s32(list + lane);
  }
  u8 *columns[DW_C_COMPACT_COLUMNS];
#pragma unroll
  for (int c = 0; c < DW_C_COMPACT_COLUMNS; c++) columns[c] = (u8 *)(asked[c].plane + asked[c].in_row);
  int last = -1, kept = 0;
  for (int k0 = 0; k0 < p.accept_columns; k0 += 32) {
    const int k = k0 + lane;
    if (k0) id = k < p.accept_columns ? ldg_cg_s32(list + k) : -1;
    int before = (int)shuffle_up((u32)id, 1);
    if (lane == 0) before = last;
    const u32 ends = vote_ballot(id <= before || id >= drafts);
    const int listed = ends ? (int)lowest_bit(ends) : 32;
    const bool moves = lane < listed && id != k;
    s64 from = shuffle_s64(own, (u32)id & 31), to = own;
    if (moves && id >= 32) from = draft_offset(l, planes, p.page, find_draft(l, p.page, id));
    if (moves && k >= 32) to = draft_offset(l, planes, p.page, find_draft(l, p.page, k));
    // Behind the first that moves all do, since ids ascend.
    for (int m = listed - (int)count_bits(vote_ballot(moves)); m < listed; m += DW_C_COMPACT_BATCH) {
      T held[DW_C_COMPACT_BATCH][DW_C_COMPACT_COLUMNS];
#pragma unroll
      for (int j = 0; j < DW_C_COMPACT_BATCH; j++) {
        if (m + j >= listed) break;
        const s64 offset = shuffle_s64(from, m + j);
#pragma unroll
        for (int c = 0; c < DW_C_COMPACT_COLUMNS; c++) held[j][c] = load_unit_if<T>((u64)columns[c] + offset, owns[c]);
      }
#pragma unroll
      for (int j = 0; j < DW_C_COMPACT_BATCH; j++) {
        if (m + j >= listed) break;
        const s64 offset = shuffle_s64(to, m + j);
#pragma unroll
        for (int c = 0; c < DW_C_COMPACT_COLUMNS; c++)
          if (owns[c]) store_unit<T>(columns[c] + offset, held[j][c]);
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

// One kind of planes of whole 16 bytes, as nearly every call has, needs no choice among the parameters.
extern "C" __global__ void __launch_bounds__(DW_C_COMPACT_THREADS) dw_kv_compact(const __grid_constant__ dw_compact_params p) {
  if (p.kinds == 1 && p.planes[0].unit == 16) {
    compact<u32x4>(p, p.planes[0]);
    return;
  }
  const dw_c_planes planes = planes_of(p.planes, p.kinds);
  if (planes.unit == 16) compact<u32x4>(p, planes);
  else if (planes.unit == 4) compact<u32>(p, planes);
  else compact<u8>(p, planes);
}
