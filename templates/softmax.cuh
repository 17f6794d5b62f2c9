// Scores of a tile to weights: online softmax, masks, what is not finite. For the kernels with warp roles, which hand scores and
// weights over each in its own way.
#pragma once

// A weight is 2^(score - maximum so far), so that the token a row looks at most has the weight 1, which rounds to itself.
// Positions of a row's tokens in a tile, in the order in which a score warp has them: 0, 8 (16, 24), 1, 9 ...
DEV int score_token(int position) { return position / (TILE / 8) + position % (TILE / 8) * 8; }
constexpr int MASK_WORDS = (WIDTH + 31) / 32;

template <int LANES, int TOKENS>  // lanes that share a row, tokens a lane
struct SoftmaxRow {
  int row;          // of the CTA
  int position;     // first one of this lane among the 16 of a tile
  int node;         // of the request; -1: no such row
  int first;        // position of the first token that it may see, if there is a window
  float max;        // so far, in log2 units; -inf before the first visible token
  // Sums of the weights, one per token position (or two neighbours) so that both kinds of row add up in one order: as computed, for
  // the log-sum-exp, and as rounded for the product, to divide by (a row that looks at one token then returns it exactly).
  static constexpr int SUMS = PAIR_SUMS ? (TOKENS + 1) / 2 : TOKENS;
  float sum[SUMS], rounded[SUMS];
  u64 mask;         // up to 64 drafts the node sees, fetched ahead (MASK_WORDS <= 2)
  float s[TOKENS];
  // With a soft cap: products before it, the greatest so far, and the magnitude from which one needs a second look, be it a new
  // maximum or beyond the polynomial.
  float product[TOKENS], max_product, noted;
  u32 packed[(TOKENS + 1) / 2];  // weights of this tile
  bool poison;      // a hidden token of this tile has a score that is not finite
};

template <int L, int T>
DEV void softmax_start(const Cta &c, SoftmaxRow<L, T> &x, int row, int lane_of_row) {
  x.row = row;
  x.position = lane_of_row * T;
  x.node = row < c.rows ? row_node(c.first_row + row) : -1;
  x.max = x.max_product = x.noted = MINUS_INF;
#pragma unroll
  for (int i = 0; i < x.SUMS; i++) x.sum[i] = x.rounded[i] = 0.f;
  x.mask = 0;
  x.first = 0;
}
// What the two rows of a lane may see, in one loop, since the code is long. Of the CTAs that share a request only those with a
// tile of drafts need the mask, all do for the depth of a node in a window.
DEV void softmax_view(const dw_params &p, const Cta &c, int node_x, int node_y, u64 (&masks)[2], int (&firsts)[2]) {
  const bool drafts = MASK_WORDS <= 2 && tile_token(c, c.tiles.count - 1) + TILE > c.request.prefix;
  if (!drafts && !window(p)) return;
#pragma unroll 1
  for (int i = 0; i < 2; i++) {
    const int node = i ? node_y : node_x;
    if (node < 0) continue;
    u64 mask = MASK_WORDS <= 2 ? tree_bits(p, c.request, node) : 0;
    int first = 0;
    if (window(p)) {
      first = (MASK_WORDS <= 2 ? position_in(p, c.request, node, mask) : node_position(p, c.request, node)) - window(p) + 1;
      if (MASK_WORDS <= 2 && first > c.request.prefix) mask = window_drafts(p, c.request, mask, first);
    }
    if (draft_count(c.request) < 64) mask &= (1ull << draft_count(c.request)) - 1;
    if (i) masks[1] = mask, firsts[1] = first;
    else masks[0] = mask, firsts[0] = first;
  }
}
// Visible tokens t0, t0 + 1, ... as bits, for a tile that reaches past the prefix or its range, or before a row's window.
template <int L, int T>
DEV u32 softmax_visible(const dw_params &p, const Cta &c, const SoftmaxRow<L, T> &x, int t0) {
  if (x.node < 0) return 0;
  const int left = c.tiles.end - t0;  // of the range
  const u32 own = TILE > 16 && left < TILE ? (1u << left) - 1 : ~0u;
  if (MASK_WORDS > 2) return visible_tokens(p, c.request, x.node, x.first, t0) & own;
  const int column = t0 - c.request.prefix;
  const u32 prefix = window(p) ? tokens_from(x.first, t0) : ~0u;
  if (column <= -TILE) return prefix & own;
  if (column >= 64) return 0;
  return (column >= 0 ? (u32)(x.mask >> column) : (u32)(x.mask << -column) | (((1u << -column) - 1) & prefix)) & own;
}
// From this token on every row of the CTA sees the prefix: the greatest `first` of all lanes of the softmax warps.
DEV int softmax_window_end(const Cta &c, int first) {
#pragma unroll
  for (u32 d = 1; d < 32; d <<= 1) {
    const int other = (int)shuffle_xor((u32)first, d);
    first = other > first ? other : first;
  }
  const smem_addr ends = c.shared + WINDOW_ENDS;
  if (lane_id() == 0) sts_u32(ends + (warp_id() - FIRST_SOFTMAX_WARP) * 4, (u32)first);
  barrier_sync(NAMED_POISON, SOFTMAX_WARPS * 32);
  const u32x4 all = lds_u32x4(ends);
  const int x = (int)all.x > (int)all.y ? (int)all.x : (int)all.y, y = (int)all.z > (int)all.w ? (int)all.z : (int)all.w;
  return x > y ? x : y;
}
// Scales, and hides what the node does not see.
template <int L, int T>
DEV void softmax_mask(const dw_params &p, const Cta &c, const SoftCap &cap, SoftmaxRow<L, T> &x, int t0, bool edge) {
#pragma unroll
  for (int i = 0; i < T; i++) {
    if (WITH_SOFT_CAP) x.product[i] = x.s[i];
    x.s[i] = WITH_SOFT_CAP ? soft_cap_near(cap, x.s[i]) : x.s[i] * p.scale_log2;
  }
  x.poison = false;
  if (edge) {
    const u32 visible = softmax_visible(p, c, x, t0);
#pragma unroll
    for (int i = 0; i < T; i++) {
      const bool sees = visible >> score_token(x.position + i) & 1;
      x.poison |= (CLEAN_WHAT_IS_SEEN || !sees) && !(fabsf(x.s[i]) < INF);
      if (sees) continue;
      x.s[i] = x.product[i] = MINUS_INF;
    }
  }
}
template <int T>
DEV float largest(const float (&v)[T]) {
  float m = v[0];
#pragma unroll
  for (int i = 1; i < T; i++) m = fmaxf(m, v[i]);
  return m;
}
template <int L, int T>
DEV void softmax_weights(const SoftmaxRow<L, T> &x, float (&weights)[T]) {
#pragma unroll
  for (int i = 0; i < T; i++) weights[i] = exp2_approx(x.s[i] - (x.max == MINUS_INF ? 0.f : x.max));
}
// Is there a new maximum, or with a soft cap anything beyond its polynomial? (Then also where a product is as far below zero.)
template <int L, int T>
DEV bool softmax_grows(const SoftmaxRow<L, T> &x) {
  if (!WITH_SOFT_CAP) return largest(x.s) > x.max;
  float most = fabsf(x.product[0]);
#pragma unroll
  for (int i = 1; i < T; i++) most = fmaxf(most, fabsf(x.product[i]));
  return most > x.noted;
}
// Takes a new maximum over; the factor for the output so far.
template <int L, int T>
DEV float softmax_grow(const dw_params &p, const SoftCap &cap, SoftmaxRow<L, T> &x) {
  float max = largest(WITH_SOFT_CAP ? x.product : x.s);
#pragma unroll
  for (u32 d = 1; d < L; d <<= 1) max = fmaxf(max, shuffle_xor(max, d));
  max = fmaxf(max, WITH_SOFT_CAP ? x.max_product : x.max);
  if (WITH_SOFT_CAP) {
#pragma unroll
    for (int i = 0; i < T; i++)
      if (x.product[i] != MINUS_INF) x.s[i] = soft_cap(p, cap, x.product[i]);
    x.max_product = max;
    x.noted = fminf(max, cap.most);
    if (max != MINUS_INF) max = soft_cap(p, cap, max);
  }
  const float factor = max == x.max ? 1.f : exp2_approx(x.max - max);
  x.max = max;
#pragma unroll
  for (int i = 0; i < x.SUMS; i++) {
    x.sum[i] *= factor;
    x.rounded[i] *= factor;
  }
  return factor;
}
// Adds the weights to the sums and packs them, neighbouring tokens together, which are positions i and i + TILE / 8.
constexpr int NEIGHBOUR = TILE / 8;
template <int L, int T>
DEV void softmax_add(SoftmaxRow<L, T> &x, const float (&weights)[T]) {
  if (PAIR_SUMS) {
#pragma unroll
    for (int i = 0; i < x.SUMS; i++) {
      const float next = T > 1 ? weights[i + T / 2] : shuffle_xor(weights[0], NEIGHBOUR);
      x.packed[i] = pack_mul(weights[i], next);
      x.sum[i] += weights[i] + next;
      x.rounded[i] += mul_to_float((u16)x.packed[i]) + mul_to_float((u16)(x.packed[i] >> 16));
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < T; i++) x.sum[i] += weights[i];
#pragma unroll
  for (int i = 0; i < (T + 1) / 2; i++) {
    const u32 pair = pack_mul(weights[i], T > 1 ? weights[i + T / 2] : 0.f);
    x.packed[i] = pair;
    x.rounded[i] += mul_to_float((u16)pair);
    if (T > 1) x.rounded[i + T / 2] += mul_to_float((u16)(pair >> 16));
  }
}
template <int L, int N>
DEV float softmax_total(const float (&sum)[N]) {  // in one order for both kinds of row
  float total[N];
#pragma unroll
  for (int i = 0; i < N; i++) total[i] = sum[i];
#pragma unroll
  for (int n = N / 2; n; n /= 2)
#pragma unroll
    for (int i = 0; i < n; i++) total[i] = total[2 * i] + total[2 * i + 1];
#pragma unroll
  for (u32 d = 1; d < L; d <<= 1)
    if (!PAIR_SUMS || d != NEIGHBOUR) total[0] += shuffle_xor(total[0], d);
  return total[0];
}
struct Finish {
  float scale, lse;  // what the row's output is multiplied by, and its log-sum-exp to base 2
};
template <int L, int T>
DEV Finish softmax_finish(const dw_params &p, const Cta &c, const SoftmaxRow<L, T> &x) {
  const float sum = softmax_total<L>(x.sum), rounded = softmax_total<L>(x.rounded);
  const bool nothing = x.node < 0 || node_dead(p, c.request, x.node) || sum == 0.f;
  return nothing ? Finish{0.f, MINUS_INF} : Finish{1.f / rounded, x.max + log2_approx(sum)};
}

// Weight 0 times a value that is not finite would still be NaN in the product. V is part of K, so such a token shows in its
// scores; the rare tile that hides one is cleaned here, in shared memory: what is not finite becomes 0. (A row that does see such
// a token keeps its NaN through the score.)
DEV void clean_tile(const Cta &c, int slot, int thread) {
  const smem_addr tile = c.shared + RING + slot * SLOT_BYTES;
  for (int i = thread; i < TILE * SLOT_V / 8; i += SOFTMAX_WARPS * 32) {
    const smem_addr at = tile + i / (SLOT_V / 8) * TOKEN_STRIDE + i % (SLOT_V / 8) * 16;
    sts_u32x4(at, finite_halves(lds_u32x4(at)));
  }
  fence_proxy_async();  // the slot's next load comes through the copy engine
}

// From the scores of a lane's two rows to weights and sums: y where there is a TAIL of rows. `slot`: of the tile, in the ring.
struct Grown {
  bool x, y;  // had a row of the warp a new maximum?
  float factor_x, factor_y;
};
template <bool TAIL, int L, int T, int M, int U>
DEV Grown softmax_tile(const dw_params &p, const Cta &c, const SoftCap &cap, bool has_x, SoftmaxRow<L, T> &x, SoftmaxRow<M, U> &y,
                       int t0, bool edge, int tile, int slot) {
  softmax_mask(p, c, cap, x, t0, edge);
  if (TAIL) softmax_mask(p, c, cap, y, t0, edge);
  const int thread = threadIdx.x - FIRST_SOFTMAX_WARP * 32;
  if (edge) {
    // In turn, since a warp may be a tile ahead of one that still looks. (Once set a flag stays.)
    const smem_addr flags = c.shared + POISON_FLAGS + (tile & 1) * 8;
    if (vote_any((has_x && x.poison) || (TAIL && y.poison)) && lane_id() == 0) sts_u16(flags + (thread >> 5) * 2, 1);
    barrier_sync(NAMED_POISON, SOFTMAX_WARPS * 32);
    const f32x2 f = lds_f32x2(flags);
    if (float_to_bits(f.x) | float_to_bits(f.y)) clean_tile(c, slot, thread);
  }
  float weights_x[T], weights_y[U], factor_x = 1.f, factor_y = 1.f;
  softmax_weights(x, weights_x);  // while the votes are on their way
  if (TAIL) softmax_weights(y, weights_y);
  bool grow_x = vote_any(has_x && softmax_grows(x)), grow_y = TAIL && vote_any(softmax_grows(y));
  if (grow_x) {
    factor_x = softmax_grow(p, cap, x);
    softmax_weights(x, weights_x);
  }
  if (grow_y) {
    factor_y = softmax_grow(p, cap, y);
    softmax_weights(y, weights_y);
  }
  if (WITH_SOFT_CAP && grow_x) grow_x = vote_any(factor_x != 1.f);
  if (WITH_SOFT_CAP && grow_y) grow_y = vote_any(factor_y != 1.f);
  softmax_add(x, weights_x);
  if (TAIL) softmax_add(y, weights_y);
  return Grown{grow_x, grow_y, factor_x, factor_y};
}
