// Draft trees on the device: parents -> depths, positions, mask; target tokens -> the accepted path. Parents are local ids,
// -1 a root, -2 a dead padding node. A node whose parent is neither, nor a node before it, is dead, and so is all below it: no
// array of parents makes a walk endless.
#pragma once

constexpr int TREE_ROOT = -1, TREE_DEAD = -2;
DEV int tree_parent(const s32 *parents, int node) {
  const int parent = ldg_nc_s32(parents + node);
  return parent >= TREE_ROOT && parent < node ? parent : TREE_DEAD;
}

// ---- depths, positions, mask ----------------------------------------------------------------------------------
// A warp has a node; a lane has every 32nd word of its mask row.
extern "C" __global__ void __launch_bounds__(32 * DW_C_EXPAND_WARPS) dw_tree_expand(const __grid_constant__ dw_expand_params p) {
  const int b = blockIdx.y, node = (int)blockIdx.x * DW_C_EXPAND_WARPS + (int)warp_id(), lane = lane_id();
  const Rows rows = rows_of(p.rows, b);
  if (node >= rows.count) return;
  const s32 *parents = p.parents + rows.first;
  const s64 row = (s64)rows.first + node;
  int depth = -1, at = node;
  while (at >= 0) {
    depth++;
    at = tree_parent(parents, at);
  }
  const bool dead = at == TREE_DEAD;
  if (dead) depth = -1;
  for (int word = lane; p.mask && word < p.words; word += 32) {
    u32 bits = 0;
    for (at = dead ? -1 : node; at >= 0; at = tree_parent(parents, at))
      if (at >> 5 == word) bits |= 1u << (at & 31);
    p.mask[row * p.mask_row_stride + word] = bits;
  }
  if (lane != 0) return;
  if (p.depths) p.depths[row] = depth;
  if (!p.positions) return;
  const int position = tokens_of(ldg_nc_s32(p.kv_len + b), rows.count, p.lengths_include_drafts).prefix + (dead ? 0 : depth);
  if (p.positions64) ((s64 *)p.positions)[row] = position;
  else ((s32 *)p.positions)[row] = position;
}

// ---- acceptance -----------------------------------------------------------------------------------------------
DEV s64 token_at(const void *tokens, s64 at, int tokens64) {
  return tokens64 ? ldg_nc_s64((const s64 *)tokens + at) : ldg_nc_s32((const s32 *)tokens + at);
}
DEV void put_token(void *tokens, s64 at, int tokens64, s64 token) {
  if (tokens64) ((s64 *)tokens)[at] = token;
  else ((s32 *)tokens)[at] = (s32)token;
}

// A node is matched where its parent is and its token is the parent's target token. The path to the deepest matched node is
// accepted, among equally deep ones to that of the lowest id. Shared memory holds how deep each node is matched (0: not), so
// that a walk ends at the 32 nodes before; parents come first.
extern "C" __global__ void __launch_bounds__(32) dw_tree_accept(const __grid_constant__ dw_accept_params p) {
  grid_dependents_launch();
  const int b = blockIdx.x, lane = lane_id();
  const Rows rows = rows_of(p.rows, b);
  const int nodes = rows.count < p.most_nodes ? rows.count : p.most_nodes;
  const s32 *parents = p.parents + rows.first;
  const smem_addr matched = smem_base();
  // Without a token to compare roots with, the first root is the committed token's own row.
  int first_root = -1;
  for (int i0 = 0; !p.root_tokens && i0 < nodes && first_root < 0; i0 += 32) {
    const u32 found = vote_ballot(i0 + lane < nodes && ldg_nc_s32(parents + i0 + lane) == TREE_ROOT);
    if (found) first_root = i0 + (int)lowest_bit(found);
  }
  const s64 root_token = p.root_tokens ? token_at(p.root_tokens, b, p.tokens64) : -1;
  int best_depth = 0, best = -1;
  for (int i0 = 0; i0 < nodes; i0 += 32) {
    const int node = i0 + lane;
    int depth = 0;
    if (node < nodes) {
      int at = node, steps = 1;
      for (;; steps++) {
        const int parent = tree_parent(parents, at);
        if (parent == TREE_DEAD) break;
        const s64 token = parent >= 0 || p.root_tokens ? token_at(p.draft_tokens, (s64)rows.first + at, p.tokens64) : 0;
        if (parent == TREE_ROOT) {
          if (p.root_tokens ? token == root_token : at == first_root) depth = steps;
          break;
        }
        if (token != token_at(p.target_tokens, (s64)rows.first + parent, p.tokens64)) break;
        if (parent < i0) {
          const int above = (int)lds_u32(matched + parent * 4);
          if (above) depth = above + steps;
          break;
        }
        at = parent;
      }
      sts_u32(matched + node * 4, (u32)depth);
    }
    if (depth > best_depth) best_depth = depth, best = node;
    sync_warp();
  }
#pragma unroll
  for (u32 step = 16; step; step >>= 1) {
    const int other_depth = (int)shuffle_xor((u32)best_depth, step), other = (int)shuffle_xor((u32)best, step);
    if (other_depth > best_depth || (other_depth == best_depth && other < best)) best_depth = other_depth, best = other;
  }
  const int count = best_depth < p.accept_columns ? best_depth : p.accept_columns;
  s32 *list = p.accept_index + b * p.accept_stride;
  for (int k = count + lane; k < p.accept_columns; k += 32) list[k] = -1;
  if (lane != 0) return;
  int end = best;
  for (int k = best_depth - 1, at = best; k >= 0; k--, at = ldg_nc_s32(parents + at)) {
    if (k < count) list[k] = at;
    if (k == count - 1) end = at;
  }
  if (p.accept_count) p.accept_count[b] = count;
  if (p.bonus_tokens)
    put_token(p.bonus_tokens, b, p.tokens64,
              count ? token_at(p.target_tokens, (s64)rows.first + end, p.tokens64) : root_token);
}
