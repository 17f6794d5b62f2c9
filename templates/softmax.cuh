// Scores of a tile to weights: online softmax, masks, what is not finite. For the kernels with warp roles, which hand scores and
// weights over each in its own way.
//
// A weight is 2^(score - maximum so far), so that the token a row looks at most has the weight 1, which rounds to itself; with KV in e4m3
// WEIGHT_SHIFT comes on top. With records the score is score + E: see record.cuh.
#pragma once

constexpr int SPAN = TILE / HALVES;  // tokens that a row's positions stand for, in each half of a tile
// A query row's scores stand in the order in which a score warp has them, 0, 8 (16, 24), 1, 9 (17, 25) ..., so that those a lane has of
// a row are neighbours. Position -> token:
DEV int score_token(int position) { return SPAN == 16 ? (position >> 1) + 8 * (position & 1) : (position >> 2) + 8 * (position & 3); }
constexpr int MASK_WORDS = (WIDTH + 31) / 32;
// A soft cap keeps the order of scores: the maximum of a row is that of its products, capped. So what is asked of a tile is asked of its
// products, and the cap's polynomial is part of the weights. (Not over e4m3: registers are missing, and the E of records comes on top.)
constexpr bool CAP_IN_WEIGHTS = WITH_SOFT_CAP && !KV_E4M3;

template <int LANES, int TOKENS>  // lanes that share a row, tokens a lane in SPAN
struct SoftmaxRow {
  static constexpr int ALL = TOKENS * HALVES;  // token i: of half i / TOKENS
  int row;          // of the CTA
  int position;     // first one of this lane among SPAN
  int node;         // of the request; -1: no such row
  int first;        // position of the first token that it may see, if there is a window
  float scale;      // KV in e4m3: of its scores
  float max;        // so far, in log2 units; before the first visible token -inf, CAP_IN_WEIGHTS: the lowest number
  // Sums of the weights, one per token position (or two neighbours) so that both kinds of row add up in one order: as computed, for
  // the log-sum-exp, and as rounded for the product, to divide by (a row that looks at one token then returns it exactly).
  static constexpr int SUMS = PAIR_SUMS ? (TOKENS + 1) / 2 : TOKENS;
  float sum[SUMS], rounded[SUMS];
  u64 mask;         // up to 64 drafts the node sees, fetched ahead (MASK_WORDS <= 2)
  float s[ALL];     // CAP_IN_WEIGHTS: products
  float exponent[ALL];  // records: E of the tokens
  float product[ALL];  // with a soft cap, else: before it
  bool far;            // a product is beyond the cap's polynomial
  u32 packed[HALVES][E4M3_MMA ? 2 : (TOKENS + 1) / 2];  // weights of this tile; e4m3: their two parts
  float top;        // CAP_IN_WEIGHTS: the product that it comes from, before the first -inf
  bool poison;      // a hidden token of this tile has a score that is not finite
};

template <int L, int T>
DEV void softmax_start(const Cta &c, SoftmaxRow<L, T> &x, int row, int lane_of_row) {
  x.row = row;
  x.position = lane_of_row * T;
  x.node = row < c.rows ? row_node(c.first_row + row) : -1;
  x.max = CAP_IN_WEIGHTS ? LEAST : MINUS_INF;
  x.top = MINUS_INF;
  x.scale = 0.f;
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
// Records: E (0) or 2^-E (1) of the lane's tokens in a slot. The family's.
template <int L, int T>
DEV void softmax_scales(const Cta &c, int slot, int which, const SoftmaxRow<L, T> &x, float (&v)[SoftmaxRow<L, T>::ALL]);
// Scales, and hides what the node does not see.
template <int L, int T>
DEV void softmax_mask(const dw_params &p, const Cta &c, const SoftCap &cap, SoftmaxRow<L, T> &x, int t0, bool edge) {
#pragma unroll
  for (int i = 0; i < x.ALL; i++) {
    if (KV_E4M3) x.s[i] *= x.scale;
    if (WITH_SOFT_CAP && !CAP_IN_WEIGHTS) x.product[i] = x.s[i], x.s[i] = soft_cap_near(cap, x.s[i]);
    else if (!WITH_SOFT_CAP && !KV_E4M3) x.s[i] *= p.scale_log2;
    if (KV_RECORD) x.s[i] += x.exponent[i];
  }
  x.far = false;
  if (WITH_SOFT_CAP && !CAP_IN_WEIGHTS) {
    float most = 0.f;
#pragma unroll
    for (int i = 0; i < x.ALL; i++) most = fmaxf(most, fabsf(x.product[i]));
    x.far = most > cap.most;
  }
  x.poison = false;
  if (edge) {
    const u32 visible = softmax_visible(p, c, x, t0);
#pragma unroll
    for (int i = 0; i < x.ALL; i++) {
      // NaN for who sees an infinite element: a score of -inf, or a capped one, would make a finite row of what cleaning leaves.
      const float product = WITH_SOFT_CAP && !CAP_IN_WEIGHTS ? x.product[i] : x.s[i];
      x.s[i] = fabsf(product) < INF ? x.s[i] : bits_to_float(0x7fffffffu);
      if (WITH_SOFT_CAP) x.product[i] = fabsf(product) < INF ? product : bits_to_float(0x7fffffffu);
      if (CLEAN_WHAT_IS_SEEN) x.poison |= !(fabsf(x.s[i]) < INF);
      if (visible >> (i / T * SPAN + score_token(x.position + i % T)) & 1) continue;
      x.poison |= !(fabsf(x.s[i]) < INF);
      x.s[i] = MINUS_INF;
      x.product[i] = 0.f;
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
DEV void softmax_weights(const SoftmaxRow<L, T> &x, float (&weights)[SoftmaxRow<L, T>::ALL]) {
  const float max = x.max == MINUS_INF ? 0.f : x.max;
#pragma unroll
  for (int i = 0; i < x.ALL; i++) weights[i] = exp2_approx(KV_E4M3 ? x.s[i] - max + WEIGHT_SHIFT : x.s[i] - max);
}
template <int L, int T>
DEV void softmax_cap(const dw_params &p, const SoftCap &cap, SoftmaxRow<L, T> &x) {
#pragma unroll
  for (int i = 0; i < x.ALL; i++)
    if (fabsf(x.product[i]) > cap.most) {
      const float capped = soft_cap(p, cap, x.product[i]);
      x.s[i] = KV_RECORD ? capped + x.exponent[i] : capped;
    }
}
// ---- CAP_IN_WEIGHTS
static_assert(!CAP_IN_WEIGHTS || WEIGHT_SHIFT == 0.f, "a weight is 2^(score - maximum)");
// Of the lane's products, in pairs: less to wait for.
template <int T, int N = T>
DEV float largest_of_pairs(const float (&v)[T], bool magnitude, int first = 0) {
  if constexpr (N == 1) return magnitude ? fabsf(v[first]) : v[first];
  else
    return fmaxf(largest_of_pairs<T, N / 2>(v, magnitude, first), largest_of_pairs<T, N - N / 2>(v, magnitude, first + N / 2));
}
template <int L, int T>
DEV void capped_factors(const SoftCap &cap, const SoftmaxRow<L, T> &x, float (&factors)[SoftmaxRow<L, T>::ALL]) {
#pragma unroll
  for (int i = 0; i < x.ALL; i++) factors[i] = soft_cap_factor(cap, x.s[i]);
}
template <int L, int T>
DEV void capped_weights(const SoftmaxRow<L, T> &x, const float (&factors)[SoftmaxRow<L, T>::ALL],
                        float (&weights)[SoftmaxRow<L, T>::ALL]) {
#pragma unroll
  for (int i = 0; i < x.ALL; i++) weights[i] = exp2_approx(multiply_add(x.s[i], factors[i], -x.max));
}
// Takes a new maximum over; the factor for the output so far. `far`: it may come from beyond the polynomial.
template <int L, int T>
DEV float capped_grow(const dw_params &p, const SoftCap &cap, SoftmaxRow<L, T> &x, bool far) {
  float top = largest_of_pairs(x.s, false);
#pragma unroll
  for (u32 d = 1; d < L; d <<= 1) top = fmaxf(top, shuffle_xor(top, d));
  float factor = 1.f;
  if (top > x.top) {
    const float max = far ? soft_cap(p, cap, top) : soft_cap_near(cap, top);
    factor = exp2_approx(x.max - max);
    x.top = top;
    x.max = max;
  }
  return factor;
}
// The sums take the factor as they take the weights: where there is none it is 1.
DEV float add_capped(float sum, float factor, float more) { return CAP_IN_WEIGHTS ? multiply_add(sum, factor, more) : sum + more; }
// Where the polynomial does not hold, and for a token that an edge tile hides, capped scores (-inf) with the factor 1. To the bit nothing
// changes elsewhere.
template <int L, int T>
DEV void capped_far(const dw_params &p, const SoftCap &cap, bool edge, SoftmaxRow<L, T> &x, float (&factors)[SoftmaxRow<L, T>::ALL]) {
  bool far[SoftmaxRow<L, T>::ALL], any = false;
#pragma unroll
  for (int i = 0; i < x.ALL; i++) {
    const bool hidden = edge && x.s[i] == MINUS_INF;
    if (hidden) factors[i] = 1.f;
    any |= far[i] = !hidden && !(fabsf(x.s[i]) <= cap.most);
  }
  if (!vote_any(any)) return;
#pragma unroll
  for (int i = 0; i < x.ALL; i++) {
    const float capped = soft_cap_far(p, cap, x.s[i]);
    x.s[i] = far[i] ? capped : x.s[i];
    factors[i] = far[i] ? 1.f : factors[i];
  }
}
// ----
// Takes a new maximum over; the factor for the output so far.
template <int L, int T>
DEV float softmax_grow(SoftmaxRow<L, T> &x) {
  float max = largest(x.s);
#pragma unroll
  for (u32 d = 1; d < L; d <<= 1) max = fmaxf(max, shuffle_xor(max, d));
  max = fmaxf(max, x.max);
  const float factor = max == x.max ? 1.f : exp2_approx(x.max - max);
  x.max = max;
#pragma unroll
  for (int i = 0; i < x.SUMS; i++) {
    x.sum[i] *= factor;
    x.rounded[i] *= factor;
  }
  return factor;
}
// Both parts of the weights, a word of four each, in the order in which an mma takes the tokens: positions 0, 2, 1, 3. Of a
// lane with one position it has that one.
template <int L, int T>
DEV void softmax_parts(SoftmaxRow<L, T> &x, const float (&weights)[SoftmaxRow<L, T>::ALL]) {
#pragma unroll
  for (int h = 0; h < HALVES; h++) {
    float rest[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
    for (int i = 0; i < T; i++) rest[i] = weights[h * T + i];
#pragma unroll
    for (int part = 0; part < 2; part++) {
      u32 lo, hi;
      x.packed[h][part] = pack_e4m3x4(rest[0], rest[2], rest[1], rest[3]);
      unpack_e4m3x4(x.packed[h][part], lo, hi);
      const float held[4] = {lo_half_f16(lo), lo_half_f16(hi), hi_half_f16(lo), hi_half_f16(hi)};
#pragma unroll
      for (int i = 0; i < T; i++) {
        x.rounded[i] += held[i];
        rest[i] -= held[i];
      }
    }
  }
}
// Adds the weights to the sums and packs them, neighbouring tokens together, which are positions i and i + NEIGHBOUR.
constexpr int NEIGHBOUR = SPAN / 8;
template <int L, int T>
DEV void softmax_add(const Cta &c, int slot, float factor, SoftmaxRow<L, T> &x, const float (&weights)[SoftmaxRow<L, T>::ALL]) {
  if (PAIR_SUMS) {  // with one half
#pragma unroll
    for (int i = 0; i < x.SUMS; i++) {
      const float next = T > 1 ? weights[i + T / 2] : shuffle_xor(weights[0], NEIGHBOUR);
      const u32 pair = x.packed[0][i] = pack_mul(weights[i], next);
      x.sum[i] = add_capped(x.sum[i], factor, weights[i] + next);
      x.rounded[i] = add_capped(x.rounded[i], factor, mul_to_float((u16)pair) + mul_to_float((u16)(pair >> 16)));
    }
    return;
  }
  float unit[SoftmaxRow<L, T>::ALL];
  if constexpr (KV_RECORD) softmax_scales(c, slot, 1, x, unit);
#pragma unroll
  for (int i = 0; i < x.ALL; i++)
    x.sum[i % T] = add_capped(x.sum[i % T], i < T ? factor : 1.f, KV_RECORD ? weights[i] * unit[i] : weights[i]);
  if constexpr (E4M3_MMA) return softmax_parts(x, weights);
#pragma unroll
  for (int h = 0; h < HALVES; h++)
#pragma unroll
    for (int i = 0; i < (T + 1) / 2; i++) {
      const u32 pair = pack_mul(weights[h * T + i], T > 1 ? weights[h * T + i + T / 2] : 0.f);
      x.packed[h][i] = pair;
      x.rounded[i] = add_capped(x.rounded[i], h ? 1.f : factor, mul_to_float((u16)pair));
      if (T > 1) x.rounded[i + T / 2] = add_capped(x.rounded[i + T / 2], h ? 1.f : factor, mul_to_float((u16)(pair >> 16)));
    }
}
template <int L, int N>
DEV float softmax_total(const float (&sum)[N]) {  // in one order for both kinds of row
  float total = N == 4 ? (sum[0] + sum[N / 4]) + (sum[N / 2] + sum[N - 1]) : sum[0];
#pragma unroll
  for (u32 d = 1; d < L; d <<= 1)
    if (!PAIR_SUMS || d != NEIGHBOUR) total += shuffle_xor(total, d);
  return total;
}
template <int L, int T>
DEV bool softmax_nothing(const dw_params &p, const Cta &c, const SoftmaxRow<L, T> &x, float sum) {
  return x.node < 0 || node_dead(p, c.request, x.node) || sum == 0.f;
}
template <int L, int T>
DEV float softmax_lse(const SoftmaxRow<L, T> &x, float sum) { return x.max - WEIGHT_SHIFT + log2_approx(sum); }

// Weight 0 times a value that is not finite would still be NaN in the product. V is part of K, so such a token shows in its
// scores; the rare tile that hides one is cleaned here, in shared memory: what is not finite becomes 0. (A row that does see such
// a token keeps its NaN through the score.)
DEV void clean_slot(const Cta &c, int slot, int thread) {
  const smem_addr first = c.shared + RING + slot * SLOT_BYTES;
  constexpr int CHUNKS = LATENT_BYTES / 16;
  for (int i = thread; i < SLOT_TOKENS * CHUNKS; i += SOFTMAX_WARPS * 32) {
    const smem_addr at = first + i / CHUNKS * TOKEN_STRIDE + i % CHUNKS * 16;
    sts_u32x4(at, finite_stored(lds_u32x4(at)));
  }
  if (!CP_ASYNC) fence_proxy_async();  // the slot's next load comes through the copy engine
}
DEV void clean_tile(const Cta &c, Turn<SLOTS> ring, int thread) {
  for (int i = 0;; i++, ring.next()) {
    clean_slot(c, ring.at, thread);
    if (i == TILE_SLOTS - 1) break;
  }
}
