// Moves of token slots or pages, as if all at once. A team of moves is a CTA's: each of its warps has a segment of the list and
// goes through it in order, a thread for one column.
//
// dw_move_plan orders the moves so that a place is overwritten only after it was read: along a chain, from the place that is
// free to the place that becomes free. Where a chain or a cycle is cut into segments, and where a cycle closes, the row that
// another warp will overwrite is the last source of a segment: every warp reads that row before the CTA's barrier, and stores
// come after it. So a cycle needs no scratch slot.
#pragma once

// Rows are asked for two batches ahead of their stores, so that a warp always has some on their way. Reading early is safe: what a
// place holds is wrong only after the store that follows. A cycle of up to a batch is read whole before its first store.
//
// PAGED: slots of pages that do not follow each other without a gap. Else a place is a multiple of the page's stride: of a page
// (the token's place in it is in the column), or of a slot.
template <class T, bool PAGED>
DEV void move_rows(const dw_move_params &p, const dw_c_planes &planes) {
  const int team = blockIdx.y;
  const s32 *segments = (const s32 *)p.list + sizeof(dw_move_header) / 4 + team * DW_C_SEGMENTS + warp_id();
  const int teams = ldg_nc_s32((const s32 *)p.list);
  if (team >= teams) return;
  const int begin = ldg_nc_s32(segments), end = ldg_nc_s32(segments + 1);
  // Lanes past the last column load with the others, and store nothing.
  const int number = ((int)blockIdx.x - planes.first_block) * 32 + lane_id();
  const bool owns = number < planes.columns;
  u8 *column = find_column(planes, owns ? number : planes.columns - 1);
  const u32 head = sizeof(dw_move_header) + ((u32)teams * DW_C_SEGMENTS + 1) * 4;
  const s64 *moves = (const s64 *)((const u8 *)p.list + (head + 7) / 8 * 8);
  const auto place = [&](s32 unit) { return column + (PAGED ? slot_offset(planes, p.page, unit) : unit * planes.page_stride); };
  T last = {};
  if (begin < end) last = load_unit<T>(place((s32)ldg_nc_s64(moves + end - 1)));
  // The moves before the last. A lane has one of 32, and one of the next 32; past the end the last, which is loaded in vain so that
  // no load of a batch has a condition of its own.
  int at = begin + lane_id(), left = end - 1 - begin;
  const auto fetch = [&](int i) { return begin < end ? ldg_nc_s64(moves + (i < end ? i : end - 1)) : 0; };
  s64 now = fetch(at), next = fetch(at + 32);
  const auto load = [&](T(&rows)[DW_C_BATCH], s64 list, int first) {
    if (first >= left) return;
#pragma unroll
    for (int j = 0; j < DW_C_BATCH; j++) rows[j] = load_unit<T>(place((s32)shuffle((u32)list, (first + j) & 31)));
  };
  const auto step = [&](T(&rows)[DW_C_BATCH], int first) {
#pragma unroll
    for (int j = 0; j < DW_C_BATCH; j++) {
      const s32 to = (s32)shuffle((u32)(now >> 32), first + j);
      if (first + j < left && owns) store_unit<T>(place(to), rows[j]);
    }
    load(rows, first + 2 * DW_C_BATCH < 32 ? now : next, first + 2 * DW_C_BATCH);
  };
  T even[DW_C_BATCH], odd[DW_C_BATCH];
  load(even, now, 0);
  load(odd, now, DW_C_BATCH);
  barrier_sync(0, 32 * DW_C_SEGMENTS);
#pragma unroll 1
  for (int first = 0; first < left;) {
    step(even, first);
    step(odd, first + DW_C_BATCH);
    first += 2 * DW_C_BATCH;
    if (first < 32) continue;
    first = 0;
    left -= 32;
    at += 32;
    now = next;
    next = fetch(at + 32);
  }
  if (begin < end && owns) store_unit<T>(place((s32)(ldg_nc_s64(moves + end - 1) >> 32)), last);
}

extern "C" __global__ void __launch_bounds__(32 * DW_C_SEGMENTS, 2) dw_kv_move(const __grid_constant__ dw_move_params p) {
  const dw_c_planes planes = planes_of(p.planes, p.kinds);
  const bool paged = p.page.value > 1;
  if (planes.unit == 16) paged ? move_rows<u32x4, true>(p, planes) : move_rows<u32x4, false>(p, planes);
  else if (planes.unit == 4) paged ? move_rows<u32, true>(p, planes) : move_rows<u32, false>(p, planes);
  else paged ? move_rows<u8, true>(p, planes) : move_rows<u8, false>(p, planes);
}
