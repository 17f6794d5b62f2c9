// After acceptance: row accept_index[k] of a request's drafts moves to draft place k, in every plane, and the new length is
// written. Ids ascend, so that the k-th is k or more: a thread goes through its column in order, and what it overwrites it has
// moved before. The list ends at -1, and at any id that does not ascend or is no draft, so that nothing else is ever touched.
#pragma once

// From launch to first store a block waits three times: for what needs nothing of one another, for the drafts' entries, for the
// rows. That is so only as long as nothing is worked out of what a load brings before the loads after it that do not need it. As a
// dependent launch it has done two of the three before the kernel ahead of it, which made the list, is through.
//
// Where drafts are found. Known to the compiler in the usual case (one kind of planes, whole 16 bytes): ANY asks the parameters.
enum { ANY, TABLE, CSR, SLOTS };
template <int FOUND>
struct DraftList {
  const dw_compact_params &p;
  const dw_c_planes &planes;
  s64 first;  // entry of draft d: at first + d, or at first + (prefix + d) / page of a block table
  int prefix;
  DEV bool table() const { return FOUND == ANY ? p.addressing == 1 : FOUND == TABLE; }
  DEV bool slots() const { return FOUND == ANY ? p.draft_slots != nullptr : FOUND == SLOTS; }
  // Bytes from a plane's start to the draft's place.
  DEV s64 offset(int draft) const {
    if (table()) {
      u32 in_page;
      const s32 entry = ldg_nc_s32(p.block_table + first + divide(prefix + draft, p.page, in_page));
      return entry * planes.page_stride + in_page * planes.token_stride;
    }
    const s64 at = first + draft;
    const s32 *list = (const s32 *)(slots() ? p.draft_slots : p.kv_indices);
    return slot_offset(planes, p.page, ldg_nc_s32(p.index64 ? list + 2 * at : list + at));  // of 64 bits the low half
  }
};

// A warp has a request and a part of one layer's rows: a lane DW_C_COMPACT_COLUMNS of its columns, 32 apart. A CTA's warps have
// requests of their own, since some have many rows to move and some none.
template <class T, int FOUND>
DEV void compact(const dw_compact_params &p, const dw_c_planes &planes) {
  const int b = (int)blockIdx.y * DW_C_COMPACT_WARPS + (int)warp_id(), lane = lane_id();
  grid_dependents_launch();
  if (b >= p.rows.batch) return;
  DraftList<FOUND> l = {p, planes, 0, 0};
  // Which of a table's pages hold the drafts, the length has yet to say; all of a short row are on their way until then.
  if (l.table() && blockIdx.x == 0 && p.table_columns <= 1024) {
#pragma unroll 1
    for (int at = lane * 8; at < p.table_columns; at += 256) prefetch_l2(p.block_table + b * p.block_table_stride + at);
  }
  // From here to the lengths' first use there is no branch: all loads are on their way before anything waits for one.
  const s32 *list = p.accept_index + b * p.accept_stride;
  int id = lane < p.accept_columns && !p.dependent ? ldg_nc_s32(list + lane) : -1;
  const int kv_len = ldg_nc_s32(p.kv_len + b);
  const s32 listed_from = l.table() || l.slots() ? 0 : ldg_nc_s32(p.kv_indptr + b);
  u32 part;
  const u32 layer = divide(blockIdx.x - planes.first_block, planes.plane_units, part);
  const u8 *plane = (const u8 *)ldg_nc_s64((const s64 *)planes.bases + (int)layer);
  const Rows rows = rows_of(p.rows, b);
  // Columns past the row's end are its last one, which is loaded in vain, so that no load has a condition of its own.
  u32 columns[DW_C_COMPACT_COLUMNS];
  bool owns[DW_C_COMPACT_COLUMNS];
#pragma unroll
  for (int c = 0; c < DW_C_COMPACT_COLUMNS; c++) {
    const u32 column = (part * DW_C_COMPACT_COLUMNS + c) * 32 + lane, most = planes.row_units.value - 1;
    owns[c] = column <= most;
    columns[c] = (owns[c] ? column : most) * sizeof(T);
  }
  int drafts = rows.count;
  if (l.slots()) {
    l.first = rows.first;
  } else {
    const Tokens tokens = tokens_of(kv_len, rows.count, p.lengths_include_drafts);
    l.prefix = tokens.prefix;
    l.first = l.table() ? b * p.block_table_stride : (s64)listed_from + tokens.prefix;
    drafts = tokens.total - tokens.prefix;
  }
  // Where this lane's draft is, before the list says whether it moves.
  const s64 own = lane < drafts ? l.offset(lane) : 0;
  if (p.dependent) {
    grid_dependency_wait();
    if (lane < p.accept_columns) id = ldg_cg_s32(list + lane);
  }
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
    if (moves && id >= 32) from = l.offset(id);
    if (moves && k >= 32) to = l.offset(k);
    // Behind the first that moves all do, since ids ascend.
    for (int m = listed - (int)count_bits(vote_ballot(moves)); m < listed; m += DW_C_COMPACT_BATCH) {
      T held[DW_C_COMPACT_BATCH][DW_C_COMPACT_COLUMNS];
#pragma unroll
      for (int j = 0; j < DW_C_COMPACT_BATCH; j++) {
        if (m + j >= listed) break;
        const u8 *row = plane + shuffle_s64(from, m + j);
#pragma unroll
        for (int c = 0; c < DW_C_COMPACT_COLUMNS; c++) held[j][c] = load_unit<T>(row + columns[c]);
      }
#pragma unroll
      for (int j = 0; j < DW_C_COMPACT_BATCH; j++) {
        if (m + j >= listed) break;
        u8 *row = (u8 *)plane + shuffle_s64(to, m + j);
#pragma unroll
        for (int c = 0; c < DW_C_COMPACT_COLUMNS; c++)
          if (owns[c]) store_unit<T>(row + columns[c], held[j][c]);
      }
    }
    kept += listed;
    if (listed < 32) break;
    last = (int)shuffle((u32)id, 31);
  }
  if (blockIdx.x != 0 || lane != 0) return;
  const int length = kv_len > 0 ? kv_len : 0, prefix = p.lengths_include_drafts ? length - drafts : length;
  const bool padding = p.lengths_include_drafts && !length;
  if (p.new_len) p.new_len[b] = padding ? 0 : prefix + kept + p.next_drafts;
  if (p.accept_count) p.accept_count[b] = kept;
}

extern "C" __global__ void __launch_bounds__(32 * DW_C_COMPACT_WARPS, 4) dw_kv_compact(const __grid_constant__ dw_compact_params p) {
  if (p.kinds == 1 && p.planes[0].unit == 16) {
    if (p.addressing == 1) compact<u32x4, TABLE>(p, p.planes[0]);
    else if (p.draft_slots) compact<u32x4, SLOTS>(p, p.planes[0]);
    else compact<u32x4, CSR>(p, p.planes[0]);
    return;
  }
  const dw_c_planes planes = planes_of(p.planes, p.kinds);
  if (planes.unit == 16) compact<u32x4, ANY>(p, planes);
  else if (planes.unit == 4) compact<u32, ANY>(p, planes);
  else compact<u8, ANY>(p, planes);
}
