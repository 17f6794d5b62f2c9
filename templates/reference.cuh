// The plainest kernel of the contract: a warp a row, all tokens in order, fp32. Slow; made to be right and to compare with.
// grid (ceil(rows / 4), batch), 128 threads.
#pragma once
#include "row.cuh"

// Takes PARENTS as they come: walks from the node to its root.
DEV bool sees_draft(const dw_params &p, const Request &r, int node, int draft) {
  if (p.mask_kind != DW_P_MASK_PARENTS) return visible_tokens(p, r, node, r.prefix + draft) & 1;
  const s32 *parents = (const s32 *)p.mask + r.first_row;
  int at = node;
  while (at > draft) at = ldg_nc_s32(parents + at);
  return at == draft;
}

extern "C" __global__ void __launch_bounds__(128) dw_verify(const __grid_constant__ dw_params p) {
  grid_dependency_wait();
  if ((int)blockIdx.y >= p.batch) return;
  const Request r = load_request(p, blockIdx.y);
  const int index = blockIdx.x * 4 + warp_id();
  if (index >= r.rows()) return;
  const int node = row_node(index);
  const bool dead = p.mask_kind == DW_P_MASK_PARENTS && ldg_nc_s32((const s32 *)p.mask + r.first_row + node) == DEAD;

  Row row;
  row_start(row, (const u16 *)p.q + q_offset(p, r, index), p.scale_log2);
  for (int t = 0; t < r.total && !dead; t++)
    if (t < r.prefix || sees_draft(p, r, node, t - r.prefix)) row_token(row, (const u16 *)kv_address(p, kv_entry(p, r, t), t));

  const float scale = row_scale(row);
#pragma unroll
  for (int i = 0; i < V_EACH; i++) store_out1(p, out_offset(p, r, index) + lane_id() + 32 * i, row.out[i] * scale);
  if (lane_id() == 0) store_lse(p, r, index, row_lse(row));
}
