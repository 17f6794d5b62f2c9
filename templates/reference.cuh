// The plainest kernel of the contract: a warp a row, all tokens in order, fp32. Slow; made to be right and to compare with.
// grid (ceil(rows / 4), batch), 128 threads.
#pragma once
#include "row.cuh"

extern "C" __global__ void __launch_bounds__(128) dw_verify(const __grid_constant__ dw_params p) {
  grid_dependency_wait();
  if ((int)blockIdx.y >= p.batch) return;
  const Request r = load_request(p, blockIdx.y);
  const int index = blockIdx.x * 4 + warp_id();
  if (index >= r.rows()) return;
  const int node = row_node(index);
  const bool dead = node_dead(p, r, node);
  const int first = first_position(p, r, node);

  Row row;
  row_start(p, row, query_vector(p, r, index));
  for (int t0 = 0; t0 < r.total && !dead; t0 += 32)
    for (u32 left = visible_tokens(p, r, node, first, t0); left; left &= left - 1)
      add_token(p, row, row_token(p, r, index, t0 + lowest_bit(left)));

  const float keep = add_sink(p, r, index, row.max, row.sum);
  const float scale = row.sum == 0.f ? 0.f : keep * row_scale(row) * stored_scale(p.v_scale);
#pragma unroll
  for (int i = 0; i < V_EACH; i++) store_out1(p, out_offset(p, r, index) + lane_id() + 32 * i, row.out[i] * scale);
  if (lane_id() == 0) store_lse(p, r, index, row_lse(row));
}
