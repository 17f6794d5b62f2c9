// Moves of token slots or pages, as if all at once. A team of moves is a CTA's: each of its warps has a segment of the list and
// goes through it in order, a thread for one column, loading some rows before it stores any.
//
// dw_move_plan orders the moves so that a place is overwritten only after it was read: along a chain, from the place that is
// free to the place that becomes free. Where a chain or a cycle is cut into segments, and where a cycle closes, the row that
// another warp will overwrite is the last source of a segment: every warp reads that row before the CTA's barrier, and stores
// come after it. So a cycle needs no scratch slot.
#pragma once

// PAGED: slots of pages that do not follow each other without a gap. Else a place is a multiple of the page's stride: of a page
// (the token's place in it is in the column), or of a slot.
template <class T, bool PAGED>
DEV void move_rows(const dw_move_params &p, const dw_c_planes &planes) {
  const int team = blockIdx.y;
  const s32 *segments = (const s32 *)p.list + sizeof(dw_move_header) / 4 + team * DW_C_SEGMENTS + warp_id();
  const int teams = ldg_nc_s32((const s32 *)p.list);
  if (team >= teams) return;
  const int begin = ldg_nc_s32(segments), end = ldg_nc_s32(segments + 1);
  u8 *column = find_column(planes, 32, lane_id());
  const u32 head = sizeof(dw_move_header) + ((u32)teams * DW_C_SEGMENTS + 1) * 4;
  const s64 *moves = (const s64 *)((const u8 *)p.list + (head + 7) / 8 * 8);
  const auto place = [&](s32 unit) { return column + slot_offset(planes, PAGED ? p.page : 1, unit); };
  T last = {};
  if (begin < end && column) last = load_unit<T>(place((s32)ldg_nc_s64(moves + end - 1)));
  barrier_sync(0, 32 * DW_C_SEGMENTS);
  if (!column) return;
#pragma unroll 1
  for (int i = begin; i < end; i += DW_C_BATCH) {
    s64 move[DW_C_BATCH];
    s32 to[DW_C_BATCH];
    T held[DW_C_BATCH];
#pragma unroll
    for (int j = 0; j < DW_C_BATCH; j++) move[j] = i + j < end ? ldg_nc_s64(moves + i + j) : -1;
#pragma unroll
    for (int j = 0; j < DW_C_BATCH; j++) {
      to[j] = (s32)(move[j] >> 32);
      if (i + j == end - 1) held[j] = last;
      else if (to[j] >= 0) held[j] = load_unit<T>(place((s32)move[j]));
    }
#pragma unroll
    for (int j = 0; j < DW_C_BATCH; j++)
      if (to[j] >= 0) store_unit<T>(place(to[j]), held[j]);
  }
}

extern "C" __global__ void __launch_bounds__(32 * DW_C_SEGMENTS, 2) dw_kv_move(const __grid_constant__ dw_move_params p) {
  const dw_c_planes &planes = p.planes[kind_of(p.planes, p.kinds)];
  const bool paged = p.page > 1;
  if (planes.unit == 16) paged ? move_rows<u32x4, true>(p, planes) : move_rows<u32x4, false>(p, planes);
  else if (planes.unit == 4) paged ? move_rows<u32, true>(p, planes) : move_rows<u32, false>(p, planes);
  else paged ? move_rows<u8, true>(p, planes) : move_rows<u8, false>(p, planes);
}
