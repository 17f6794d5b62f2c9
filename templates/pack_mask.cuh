// Any mask -> bits [total_q, out_row_stride words] (p.out, stride p.out_row_stride): what the tensor-core kernels read.
// A thread has one 32-bit word of a row. grid (ceil(total_q x words / 128)), 128 threads; words = ceil(width / 32).
#pragma once

extern "C" __global__ void __launch_bounds__(128) dw_pack_mask(const __grid_constant__ dw_params p) {
  grid_dependency_wait();
  const int words = (p.width + 31) / 32;
  const int unit = blockIdx.x * 128 + threadIdx.x;
  const int q_row = unit / words, word = unit % words;
  if (q_row >= p.total_q) return;
  // The request that owns this row: the last one that starts at or before it.
  int node = q_row, b = 0;
  if (p.qo_indptr) {
    int past = p.batch;
    while (past - b > 1) {
      const int middle = (b + past) / 2;
      if (ldg_nc_s32(p.qo_indptr + middle) <= q_row) b = middle;
      else past = middle;
    }
    node = q_row - ldg_nc_s32(p.qo_indptr + b);
  } else {
    node = q_row % p.width;
  }
  if (CHECKED) {
    b = owner_of(p, q_row, b);
    node = b < 0 ? -1 : q_row - rows_at(p, b).first;
  }
  u32 bits = 0;
  if (node < 0) {  // of no request, or of a masked one
  } else if (p.mask_kind == DW_P_MASK_PARENTS) {
    const s32 *parents = (const s32 *)p.mask + (q_row - node);
    int at = ldg_nc_s32(parents + node) == DEAD ? -1 : node;
    while (at >= 0) {
      if (at >> 5 == word) bits |= 1u << (at & 31);
      const int parent = ldg_nc_s32(parents + at);
      at = parent < at ? parent : -1;  // a cycle would never end
    }
  } else if (p.mask_kind == DW_P_MASK_BITS) {
    bits = ldg_nc_u32((const u32 *)p.mask + q_row * p.mask_row_stride + word);
  } else {
    bits = chain_bits(node - word * 32);
  }
  ((u32 *)p.out)[q_row * p.out_row_stride + word] = bits;
}
