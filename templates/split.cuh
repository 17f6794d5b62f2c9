// Split-KV in its plainest form: a warp a row and KV range, fp32 partial results, merged by combine.cuh.
// grid (ceil(rows / 4), ranges, batch), 128 threads.
#pragma once
#include "row.cuh"

extern "C" __global__ void __launch_bounds__(128) dw_verify(const __grid_constant__ dw_params p) {
  grid_dependency_wait();
  const Work guess = guess_work(p);
  const Lengths lengths = ask_lengths(p, guess.request);
  const Work w = guess_holds(p, guess, lengths, length_of(lengths, guess.request)) ? guess : find_ragged(p);
  if (w.request < 0) return;
  const Request r = load_request(p, w.request);
  const Tiles tiles = find_tiles(p, w, r.total, window_tile(p, r));
  const int index = blockIdx.x * 4 + warp_id();
  if (index >= r.rows()) return;
  const int node = row_node(index);
  const bool dead = node_dead(p, r, node);

  Row row;
  row_start(p, row, query_vector(p, r, index));
  const int first = first_position(p, r, node);
  for (int j = 0; j < tiles.count && !dead; j++) {
    const int t0 = tiles.first + j * tiles.stride;
    const u32 visible = visible_tokens(p, r, node, first, t0);
    for (int i = 0; i < TILE; i++)
      if (visible >> i & 1) add_token(p, row, row_token(p, r, index, t0 + i));
  }

  const s64 at = (s64)(w.share.first_slot + w.range) * p.rows + index;
  const float scale = row_scale(row);
#pragma unroll
  for (int i = 0; i < V_EACH; i++) ((float *)p.partial)[at * V + lane_id() + 32 * i] = row.out[i] * scale;
  if (lane_id() == 0) p.partial_lse[at] = row_lse(row);
}
