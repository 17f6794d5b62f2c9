// Any mask -> bits [total_q, out_row_stride words] (p.out, stride p.out_row_stride): what the tensor-core kernels read.
// A thread has one 32-bit word of a row. grid (ceil(total_q x words / 128)), 128 threads; words = ceil(width / 32).
#pragma once

// Words of bytes or floats, as elements_bits says, for a whole warp: of each lane in turn all lanes read the elements side by side,
// and all are on their way before the first is looked at. Collective; a lane with no elements has count 0 or less.
template <bool FLOATS>
DEV u32 pack_elements(const dw_params &p, s64 place, int count) {
  const int lane = lane_id();
  u32 found[32], bits = 0;
#pragma unroll
  for (int k = 0; k < 32; k++) {
    const s64 at = (s64)((u64)shuffle((u32)((u64)place >> 32), k) << 32 | shuffle((u32)place, k)) + lane;
    const bool there = lane < (int)shuffle((u32)count, k);
    found[k] = FLOATS ? 0xFF800000u : 0;
    if (there) found[k] = FLOATS ? ldg_nc_u32((const float *)p.mask + at) : ldg_nc_u8((const u8 *)p.mask + at);
  }
#pragma unroll
  for (int k = 0; k < 32; k++) {
    const u32 word = vote_ballot(FLOATS ? bits_to_float(found[k]) > MINUS_INF : found[k] != 0);
    if (lane == k) bits = word;
  }
  return bits;
}

extern "C" __global__ void __launch_bounds__(128) dw_pack_mask(const __grid_constant__ dw_params p) {
  grid_dependency_wait();
  const int words = (p.width + 31) / 32;
  const int unit = blockIdx.x * 128 + threadIdx.x;
  const int q_row = unit / words, word = unit % words;
  const bool there = q_row < p.total_q;
  // The request that owns this row: the last one that starts at or before it.
  int b = 0;
  if (p.qo_indptr && there) {
    int past = p.batch;
    while (past - b > 1) {
      const int middle = (b + past) / 2;
      if (ldg_nc_s32(p.qo_indptr + middle) <= q_row) b = middle;
      else past = middle;
    }
  } else if (there) {
    b = q_row / p.width;
  }
  if (CHECKED && there) b = owner_of(p, q_row, b);  // -1: of no request, or of a masked one
  Request r{};
  if (b >= 0) r = load_request(p, b);
  const int node = q_row - r.first_row, base = word * 32;
  const bool owned = there && b >= 0 && node < r.nodes;  // rows behind the last request's belong to nobody
  u32 bits = 0;
  if (p.mask_kind == DW_P_MASK_BYTES_QLEN || p.mask_kind == DW_P_MASK_BYTES_FULL || p.mask_kind == DW_P_MASK_BIAS_F32) {
    const s64 place = owned ? element_place(p, r, node, base) : 0;
    const int count = owned ? r.nodes - base : 0;
    bits = p.mask_kind == DW_P_MASK_BIAS_F32 ? pack_elements<true>(p, place, count) : pack_elements<false>(p, place, count);
  } else if (owned) {
    bits = mask_bits(p, r, node, base);
  }
  if (there) ((u32 *)p.out)[q_row * p.out_row_stride + word] = bits;
}
