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
  int b = 0;
  if (p.qo_indptr) {
    int past = p.batch;
    while (past - b > 1) {
      const int middle = (b + past) / 2;
      if (ldg_nc_s32(p.qo_indptr + middle) <= q_row) b = middle;
      else past = middle;
    }
  } else {
    b = q_row / p.width;
  }
  if (CHECKED) b = owner_of(p, q_row, b);
  u32 bits = 0;
  if (!CHECKED || b >= 0) {  // else of no request, or of a masked one
    const Request r = load_request(p, b);
    bits = mask_bits(p, r, q_row - r.first_row, word * 32);
  }
  ((u32 *)p.out)[q_row * p.out_row_stride + word] = bits;
}
