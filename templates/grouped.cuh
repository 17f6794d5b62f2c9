// GQA and MHA on tensor cores. A CTA owns up to 8 x N_TILES query rows that share one KV head (a row is a node and one of the head's
// GROUP query heads) and one KV range, so that the range is read once for all of them. It goes in steps of 32 tokens: two tiles of
// the range's 16. K and V each pass through a ring of slots, filled by cp.async some steps ahead; two CTAs share a multiprocessor
// (one where vectors are long), so that one computes while the other waits.
//
// Products are transposed, as in rowsplit.cuh: tokens, then V dimensions, are the 16 rows of an mma, query rows its 8 columns. All four
// warps do everything, a step behind one another:
//
//   meet: K of step i + 1, V and weights of step i are there
//     scores of i + 1 (a warp: one tile of tokens, every other tile of rows), output of i (a warp: a quarter of the dimensions)
//     greatest score of a row in each tile of tokens -> shared memory
//   meet: these are there; the K of i + 1 and the V of i have been read
//     the next K and V are asked for; weights of i + 1 -> shared memory
//
// grid (KV heads x row groups, KV ranges, batch), 128 threads.
#pragma once

// ---- layout ---------------------------------------------------------------------------------------------------
constexpr int THREADS = 128, WARPS = 4;
constexpr int UNITS = 2, STEP = UNITS * TILE;  // tiles of tokens, tokens of a step
constexpr int ROWS = 8 * N_TILES;
constexpr int K_STEPS = QK / 16;
constexpr int SCORE_PARTS = WARPS / UNITS, SCORE_TILES = (N_TILES + SCORE_PARTS - 1) / SCORE_PARTS;  // row tiles of a warp
constexpr int V_WARPS = V % 64 ? 2 : 4;  // warps that share the dimensions; the others have other row tiles
constexpr int V_EACH = V / V_WARPS, V_TILES = V_EACH / 16;
constexpr int OUT_PARTS = WARPS / V_WARPS, OUT_TILES = (N_TILES + OUT_PARTS - 1) / OUT_PARTS;

constexpr int KEY_VALUE_BYTES = (QK + V) * KV_BYTES;  // both
constexpr int K_CHUNKS = QK * KV_BYTES / 16, V_CHUNKS = V * KV_BYTES / 16;  // of 16 bytes a token
constexpr int K_BYTES = STEP * QK * KV_BYTES, V_BYTES = STEP * V * KV_BYTES;
constexpr int WEIGHT_STRIDE = STEP * 2 + 16;  // a row of weights: 16 more than a multiple of 32, so ldmatrix has no conflicts
constexpr int OUT_STRIDE = V * 2 + 16;        // a row of finished output, staged in the rings
constexpr int ADDRESS_STEPS = KEY_VALUE_BYTES <= 384 ? 8 : 4;  // steps whose tokens' addresses are held
constexpr int CTAS_PER_SM = KEY_VALUE_BYTES <= 640 ? 2 : 1;
constexpr int BUDGET = CTAS_PER_SM == 2 ? 50176 : 101376;  // what sm_120 has for each

// Byte offsets of the parts of shared memory.
constexpr int WEIGHTS = 0;                                // [row][token] 16-bit
constexpr int MASKS = WEIGHTS + ROWS * WEIGHT_STRIDE;     // [row] u64: up to 64 drafts the row sees (MASK_WORDS <= 2)
constexpr int MAXES = MASKS + ROWS * 8;                   // [tile][row] f32: greatest score of the step; at the end of all
constexpr int FACTORS = MAXES + UNITS * ROWS * 4;         // [row] f32: for the output so far; at the end 1 / sum
constexpr int FIRSTS = FACTORS + ROWS * 4;                // [row] s32: first position that it sees, if there is a window
constexpr int SCALES = FIRSTS + ROWS * 4;                 // [row] f32: of its products, with KV in e4m3
// [warp] u32: of its 8 tokens those with a V that is not finite
constexpr int BAD = SCALES + (KV_E4M3 ? SCORE_PARTS * SCORE_TILES * 8 * 4 : 0);
constexpr int ADDRESSES = (BAD + WARPS * 4 + 7) / 8 * 8;  // [step][K, V][token] u64
constexpr int ROW_SUMS = ADDRESSES;                       // at the end: [tile][row] 2 f32: sums of weights, as computed and as rounded
constexpr int RINGS = (ADDRESSES + ADDRESS_STEPS * STEP * 16 + 127) / 128 * 128;
constexpr int FIT = (BUDGET - RINGS) / (K_BYTES + V_BYTES);
constexpr int V_SLOTS = FIT < 6 ? FIT : 6;
constexpr int K_SLOTS = V_SLOTS + (V_SLOTS < ADDRESS_STEPS && BUDGET - RINGS - V_SLOTS * (K_BYTES + V_BYTES) >= K_BYTES ? 1 : 0);
constexpr int VALUES = RINGS + K_SLOTS * K_BYTES;         // [slot], behind those of K
constexpr int SHARED_BYTES = VALUES + V_SLOTS * V_BYTES;
static_assert(V_SLOTS > 0, "a step of K and one of V fit");
static_assert(K_SLOTS < ADDRESS_STEPS || (K_SLOTS == ADDRESS_STEPS && V_SLOTS > 1),
              "the address of a V is not put over before it is asked for");
static_assert(ROW_SUMS + UNITS * ROWS * 8 <= RINGS, "no address is needed by then");
static_assert(RINGS + ROWS * OUT_STRIDE <= SHARED_BYTES, "the staged output lives in the rings");
#include "rows_gqa.cuh"

DEV int step_count(const Cta &c) { return (c.tiles.count + UNITS - 1) / UNITS; }
DEV bool has_unit(const Cta &c, int step, int unit) { return step * UNITS + unit < c.tiles.count; }
DEV int unit_token(const Cta &c, int step, int unit) { return c.tiles.first + (step * UNITS + unit) * c.tiles.stride; }
// Does a step hold anything that some row may not see?
DEV bool has_edge(const Cta &c, int step) {
  bool edge = false;
#pragma unroll
  for (int unit = 0; unit < UNITS; unit++) edge |= has_unit(c, step, unit) && is_edge(c, unit_token(c, step, unit));
  return edge;
}

// ---- loads ----------------------------------------------------------------------------------------------------
DEV int step_token(const Cta &c, int step, int token) {
  return safe_token(c, unit_token(c, step, token / TILE) + token % TILE);
}
// Addresses pass through shared memory, since many threads copy a token: warp 0 looks after those of K, warp 1 after those of V. The
// table's entry is asked for a step before it is used.
DEV int step_entry(const dw_params &p, const Cta &c, int step, int token) {
  return step < step_count(c) ? kv_entry(p, c.request, step_token(c, step, token)) : 0;
}
DEV smem_addr address_place(const Cta &c, int step, int plane, int token) {
  return c.shared + ADDRESSES + ((step % ADDRESS_STEPS * 2 + plane) * STEP + token) * 8;
}
DEV void put_address(const dw_params &p, const Cta &c, int step, int plane, int token, int entry) {
  const int t = step_token(c, step, token);
  const u64 at = (u64)(plane ? value_address(p, entry, t, c.kv_head) : key_address(p, entry, t, c.kv_head));
  sts_u32x2(address_place(c, step, plane, token), u32x2{(u32)at, (u32)(at >> 32)});
}
// All addresses are read before the first copy is issued. Where threads have whole groups of eight tokens a round, what a thread does in
// one round differs from the next by constants.
template <int CHUNKS>
DEV void load_step(const Cta &c, int step, int plane, smem_addr to) {
  constexpr u32 ALL = STEP * CHUNKS, EACH = (ALL + THREADS - 1) / THREADS, ROUND = THREADS / CHUNKS;  // ROUND: tokens of a round
  constexpr bool EVEN = THREADS % CHUNKS == 0 && ROUND % 8 == 0 && ROUND <= TILE;
  const u32 thread = threadIdx.x;
  const smem_addr addresses = address_place(c, step, plane, 0), even_address = addresses + thread / CHUNKS * 8;
  const smem_addr even_place = to + chunk_place<CHUNKS>(thread / CHUNKS, thread % CHUNKS);
  const u32 bytes[UNITS] = {has_unit(c, step, 0) ? 16u : 0u, has_unit(c, step, 1) ? 16u : 0u};
  f32x2 from[EACH];
#pragma unroll
  for (u32 i = 0; i < EACH; i++) {
    if (ALL % THREADS && i * THREADS + thread >= ALL) break;
    from[i] = lds_f32x2(EVEN ? even_address + i * ROUND * 8 : addresses + (i * THREADS + thread) / CHUNKS * 8);
  }
#pragma unroll
  for (u32 i = 0; i < EACH; i++) {
    const u32 at = i * THREADS + thread, token = at / CHUNKS, chunk = EVEN ? thread % CHUNKS : at % CHUNKS;
    if (ALL % THREADS && at >= ALL) break;
    const u64 address = float_to_bits(from[i].x) | (u64)float_to_bits(from[i].y) << 32;
    const smem_addr place = EVEN ? even_place + i * THREADS * 16 : to + chunk_place<CHUNKS>(token, chunk);
    cp_async_16_zfill(place, (const u8 *)address + chunk * 16, EVEN ? bytes[i * ROUND / TILE] : token < TILE ? bytes[0] : bytes[1]);
  }
}
DEV smem_addr key_slot(const Cta &c, int step) { return c.shared + RINGS + (u32)step % K_SLOTS * K_BYTES; }
DEV smem_addr value_slot(const Cta &c, int step) { return c.shared + VALUES + (u32)step % V_SLOTS * V_BYTES; }
DEV void load_keys(const Cta &c, int step) { load_step<K_CHUNKS>(c, step, 0, key_slot(c, step)); }
DEV void load_values(const Cta &c, int step) { load_step<V_CHUNKS>(c, step, 1, value_slot(c, step)); }

// ---- scores: S^T = K Q^T --------------------------------------------------------------------------------------
// A warp has tile `unit` of a step's tokens and the row tiles part, part + SCORE_PARTS, ...: of tile i its lane l has the rows
// 2 (l % 4) and the next, and the tokens l / 4 and 8 more.
struct Scores {
  u32 q[K_STEPS][SCORE_TILES][2];  // B fragments
  float s[SCORE_TILES][4];         // token l / 4: both rows; 8 more: both rows
  float max[SCORE_TILES][2];       // of a row so far, in log2 units; -inf before its first visible token
  float sum[SCORE_TILES][2], rounded[SCORE_TILES][2];  // of this lane's weights: as computed, for the lse; as rounded, to divide by
};
DEV int score_unit() { return warp_id() % UNITS; }
DEV int score_tile(int i) { return warp_id() / UNITS + i * SCORE_PARTS; }
DEV int score_row(int i) { return score_tile(i) * 8 + 2 * (lane_id() & 3); }

// KV in e4m3: q of tile i as fp16, which it may have been already, and the scale that goes with it.
DEV void narrow_tile(const Cta &c, Scores &x, int i, float scale) {
  if (NARROW_QUERY) {
    u32 most = 0;
#pragma unroll
    for (int k = 0; k < 2 * K_STEPS; k++) most = more_magnitude(most, x.q[k / 2][i][k % 2]);
#pragma unroll
    for (u32 d = 1; d < 4; d <<= 1) most = max_u16x2(most, shuffle_xor(most, d));
    const u32 base = query_base(whole_magnitude(most)) * 0x00800080;
#pragma unroll
    for (int k = 0; k < 2 * K_STEPS; k++) x.q[k / 2][i][k % 2] = narrow_query(x.q[k / 2][i][k % 2], base);
    scale *= narrow_unit(whole_magnitude(most));
  }
  if (score_unit() == 0 && (lane_id() & 3) == 0) sts_f32(c.shared + SCALES + (score_tile(i) * 8 + (lane_id() >> 2)) * 4, scale);
}

DEV void load_query(const dw_params &p, const Cta &c, Scores &x) {
  if (KV_E4M3) {
    const float scale = (WITH_SOFT_CAP ? 1.f : p.scale_log2) * stored_scale(p.k_scale);  // a soft cap applies the softmax scale itself
#pragma unroll
    for (int i = 0; i < SCORE_TILES; i++) {
      const u8 *from = query_row(p, c, score_tile(i));
#pragma unroll
      for (int k = 0; k < K_STEPS; k++) {  // the order of key_step
        const u32x2 pair = ldg_nc_v2(from + k * 32 + (lane_id() & 3) * 8);
        x.q[k][i][0] = pair.x, x.q[k][i][1] = pair.y;
      }
    }
#pragma unroll
    for (int i = 0; i < SCORE_TILES; i++) narrow_tile(c, x, i, scale);
    return;
  }
  u32x4 raw[SCORE_TILES][K_STEPS / 2];
#pragma unroll
  for (int i = 0; i < SCORE_TILES; i++) ask_query(p, c, score_tile(i), raw[i]);
#pragma unroll
  for (int i = 0; i < SCORE_TILES; i++)
#pragma unroll
    for (int k = 0; k < K_STEPS / 2; k++) {
      transpose_quad(raw[i][k]);
      x.q[2 * k][i][0] = raw[i][k].x;
      x.q[2 * k][i][1] = raw[i][k].y;
      x.q[2 * k + 1][i][0] = raw[i][k].z;
      x.q[2 * k + 1][i][1] = raw[i][k].w;
    }
}

constexpr int AHEAD = KV_E4M3 ? 1 : 2;  // ldmatrix fragments in flight before their mma; of e4m3 each has twice as much
constexpr int K_LOADS = K_CHUNKS / 2;  // ldmatrix.x4: a step of 16 dimensions each, of e4m3 two

DEV void score_products(const Cta &c, int step, Scores &x) {
#pragma unroll
  for (int i = 0; i < SCORE_TILES; i++) x.s[i][0] = x.s[i][1] = x.s[i][2] = x.s[i][3] = 0.f;
  const smem_addr slot = key_slot(c, step);
  const int row = score_unit() * TILE + (lane_id() & 15), half = lane_id() >> 4;
  u32 a[AHEAD + 1][4];
#pragma unroll
  for (int k = 0; k < AHEAD && k < K_LOADS; k++) ldmatrix_x4(a[k], slot + chunk_place<K_CHUNKS>(row, 2 * k + half));
#pragma unroll
  for (int k = 0; k < K_LOADS; k++) {
    if (k + AHEAD < K_LOADS) ldmatrix_x4(a[(k + AHEAD) % (AHEAD + 1)], slot + chunk_place<K_CHUNKS>(row, 2 * (k + AHEAD) + half));
    const u32(&r)[4] = a[k % (AHEAD + 1)];
#pragma unroll
    for (int j = 0; j < 2 / KV_BYTES; j++) {
      u32 wide[4] = {r[0], r[1], r[2], r[3]};
      if (KV_E4M3) key_step(wide, r[2 * j], r[2 * j + 1]);
#pragma unroll
      for (int i = 0; i < SCORE_TILES; i++) mma_mul(x.s[i], wide, x.q[2 / KV_BYTES * k + j][i]);
    }
  }
}
// Scales the scores, hides what a row does not see, and tells the greatest of each row.
DEV void score_mask(const dw_params &p, const Cta &c, int step, const SoftCap &cap, Scores &x) {
  const int unit = score_unit(), t0 = unit_token(c, step, unit), token = lane_id() >> 2;
  const bool there = has_unit(c, step, unit), edge = there && is_edge(c, t0);
#pragma unroll
  for (int i = 0; i < SCORE_TILES; i++) {
    if (KV_E4M3) {
      const f32x2 scale = lds_f32x2(c.shared + SCALES + score_row(i) * 4);
#pragma unroll
      for (int k = 0; k < 4; k++) x.s[i][k] *= k & 1 ? scale.y : scale.x;
    }
    if (WITH_SOFT_CAP && there) {
      cap_scores(p, cap, x.s[i]);
    } else {
#pragma unroll
      for (int k = 0; k < 4; k++) x.s[i][k] = !there ? MINUS_INF : KV_E4M3 ? x.s[i][k] : x.s[i][k] * p.scale_log2;
    }
    if (edge) {
      keep_seen(x.s[i]);
#pragma unroll
      for (int k = 0; k < 2; k++) hide_scores(row_sees(p, c, score_row(i) + k, t0) >> token, k, x.s[i]);
    }
    float max[2] = {fmaxf(x.s[i][0], x.s[i][2]), fmaxf(x.s[i][1], x.s[i][3])};
#pragma unroll
    for (u32 d = 4; d < 32; d <<= 1)
#pragma unroll
      for (int k = 0; k < 2; k++) max[k] = fmaxf(max[k], shuffle_xor(max[k], d));
    if (lane_id() < 4 && score_tile(i) < N_TILES) sts_f32x2(c.shared + MAXES + (unit * ROWS + score_row(i)) * 4, f32x2{max[0], max[1]});
  }
}

// Of a step with an edge. All warps.
DEV void clean_values(const Cta &c, int step, Scores &x) {
  const int lane = lane_id();
  u32 bad = 0;
  for (int i = 0; i < STEP / WARPS; i++) {
    const int token = warp_id() * (STEP / WARPS) + i;
    bool found = false;
    if (has_unit(c, step, token / TILE) && lane < V_CHUNKS) {
      const smem_addr at = value_slot(c, step) + chunk_place<V_CHUNKS>(token, lane);
      const u32x4 v = lds_u32x4(at), clean = finite_stored(v);
      found = differ(v, clean);
      if (found) sts_u32x4(at, clean);
    }
    bad |= (u32)vote_any(found) << i;
  }
  if (lane == 0) sts_u32(c.shared + BAD + warp_id() * 4, bad);
  meet();
  const int unit = score_unit(), token = lane >> 2;
  bad = lds_u32(c.shared + BAD + unit * 8) | lds_u32(c.shared + BAD + unit * 8 + 4) << 8;
#pragma unroll
  for (int i = 0; i < SCORE_TILES; i++) spoil_scores(bad, token, x.s[i]);
}

// Scores -> weights 2^(score - greatest so far), so that the token a row looks at most has the weight 1, which rounds to itself; with KV in
// e4m3 WEIGHT_SHIFT comes on top.
DEV void score_weights(const Cta &c, Scores &x) {
  const int unit = score_unit();
#pragma unroll
  for (int i = 0; i < SCORE_TILES; i++) {
    if (score_tile(i) >= N_TILES) continue;
    const smem_addr row = c.shared + score_row(i) * 4;
    float max[2] = {x.max[i][0], x.max[i][1]}, factor[2];
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
      const f32x2 of = lds_f32x2(row + MAXES + u * ROWS * 4);
      max[0] = fmaxf(max[0], of.x);
      max[1] = fmaxf(max[1], of.y);
    }
#pragma unroll
    for (int k = 0; k < 2; k++) {
      factor[k] = max[k] == x.max[i][k] ? 1.f : exp2_approx(x.max[i][k] - max[k]);
      x.max[i][k] = max[k];
      const float base = max[k] == MINUS_INF ? 0.f : max[k];
      x.s[i][k] = exp2_approx(KV_E4M3 ? x.s[i][k] - base + WEIGHT_SHIFT : x.s[i][k] - base);
      x.s[i][2 + k] = exp2_approx(KV_E4M3 ? x.s[i][2 + k] - base + WEIGHT_SHIFT : x.s[i][2 + k] - base);
      x.sum[i][k] = x.sum[i][k] * factor[k] + (x.s[i][k] + x.s[i][2 + k]);
    }
    if (unit == 0 && lane_id() < 4) sts_f32x2(row + FACTORS, f32x2{factor[0], factor[1]});
    const u32 low = pack_mul(x.s[i][0], x.s[i][1]), high = pack_mul(x.s[i][2], x.s[i][3]);
    x.rounded[i][0] = x.rounded[i][0] * factor[0] + (mul_to_float((u16)low) + mul_to_float((u16)high));
    x.rounded[i][1] = x.rounded[i][1] * factor[1] + (mul_to_float((u16)(low >> 16)) + mul_to_float((u16)(high >> 16)));
    const smem_addr to = c.shared + WEIGHTS + (score_tile(i) * 8 + (lane_id() >> 2)) * WEIGHT_STRIDE + unit * 32 + (lane_id() & 3) * 4;
    sts_u32(to, movmatrix_trans(low));
    sts_u32(to + 16, movmatrix_trans(high));
  }
}

// ---- output: O^T += V^T P^T -----------------------------------------------------------------------------------
// A warp has V_EACH dimensions of the row tiles part, part + OUT_PARTS, ...: lane l has of o[m][i] the dimensions 16 m + l / 4 and 8
// more (KV in e4m3: 16 m + 2 (l / 4) and the next), of the rows 2 (l % 4) and the next.
struct Output {
  float o[V_TILES][OUT_TILES][4];
};
DEV int out_dim() { return warp_id() % V_WARPS * V_EACH; }
DEV int out_tile(int i) { return warp_id() / V_WARPS + i * OUT_PARTS; }

DEV void output_step(const Cta &c, int step, Output &x) {
  const u32 l = lane_id();
#pragma unroll
  for (int i = 0; i < OUT_TILES; i++) {
    if (out_tile(i) >= N_TILES) continue;
    const f32x2 f = lds_f32x2(c.shared + FACTORS + (out_tile(i) * 8 + 2 * (l & 3)) * 4);
#pragma unroll
    for (int m = 0; m < V_TILES; m++) {
      x.o[m][i][0] *= f.x;
      x.o[m][i][1] *= f.y;
      x.o[m][i][2] *= f.x;
      x.o[m][i][3] *= f.y;
    }
  }
  const smem_addr slot = value_slot(c, step);
  u32 pairs[KV_E4M3 ? V_TILES : 1][4];  // e4m3: matrices of tokens 0-7, 8-15, 16-23, 24-31 and 16 dims
#pragma unroll
  for (int m = 0; m < V_TILES && KV_E4M3; m++) ldmatrix_x4_trans(pairs[m], slot + chunk_place<V_CHUNKS>(l, out_dim() / 16 + m));
#pragma unroll
  for (int unit = 0; unit < UNITS; unit++) {
    if (!has_unit(c, step, unit)) continue;
    u32 b[OUT_TILES][2];
#pragma unroll
    for (int i = 0; i < OUT_TILES; i++)
      if (out_tile(i) < N_TILES)
        ldmatrix_x2(b[i], c.shared + WEIGHTS + (out_tile(i) * 8 + (l & 7)) * WEIGHT_STRIDE + unit * 32 + (l >> 3 & 1) * 16);
#pragma unroll
    for (int m = 0; m < V_TILES; m++) {
      u32 a[4];  // matrices (tokens 0-7, dims 0-7), (0-7, 8-15), (8-15, 0-7), (8-15, 8-15), each turned around
      if (KV_E4M3) value_step(a, pairs[KV_E4M3 ? m : 0][2 * unit], pairs[KV_E4M3 ? m : 0][2 * unit + 1]);
      else ldmatrix_x4_trans(a, slot + chunk_place<V_CHUNKS>(unit * TILE + (l & 7) + (l >> 4) * 8, out_dim() / 8 + 2 * m + (l >> 3 & 1)));
#pragma unroll
      for (int i = 0; i < OUT_TILES; i++)
        if (out_tile(i) < N_TILES) mma_mul(x.o[m][i], a, b[i]);
    }
  }
}

// ---- the end --------------------------------------------------------------------------------------------------
// Brings the sums of a row together.
DEV void finish_rows(const dw_params &p, const Cta &c, Scores &x) {
  const int unit = score_unit();
#pragma unroll
  for (int i = 0; i < SCORE_TILES; i++) {
#pragma unroll
    for (u32 d = 4; d < 32; d <<= 1)
#pragma unroll
      for (int k = 0; k < 2; k++) {
        x.sum[i][k] += shuffle_xor(x.sum[i][k], d);
        x.rounded[i][k] += shuffle_xor(x.rounded[i][k], d);
      }
    if (lane_id() >= 4 || score_tile(i) >= N_TILES) continue;
    sts_f32x4(c.shared + ROW_SUMS + (unit * ROWS + score_row(i)) * 8, f32x4{x.sum[i][0], x.rounded[i][0], x.sum[i][1], x.rounded[i][1]});
    if (unit == 0) sts_f32x2(c.shared + MAXES + score_row(i) * 4, f32x2{x.max[i][0], x.max[i][1]});
  }
  meet();
  const int row = threadIdx.x;
  if (row < ROWS) {
    float sum = 0.f, rounded = 0.f;
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
      const f32x2 of = lds_f32x2(c.shared + ROW_SUMS + (u * ROWS + row) * 8);
      sum += of.x;
      rounded += of.y;
    }
    const bool nothing = row >= c.rows || sum == 0.f || row_dead(p, c, row);
    sts_f32(c.shared + FACTORS + row * 4, nothing ? 0.f : 1.f / rounded);
    if (row < c.rows)
      stg_cg_f32(p.partial_lse + partial_row(p, c, row),
                 nothing ? MINUS_INF : lds_f32(c.shared + MAXES + row * 4) - WEIGHT_SHIFT + log2_approx(sum));
  }
  meet();
}

// Normalised fp16 rows through the rings to the workspace, 16 bytes a lane; a warp stages and stores what is its own.
DEV void output_store(const dw_params &p, const Cta &c, const Output &x) {
  const u32 l = lane_id();
  const smem_addr stage = c.shared + RINGS + out_dim() * 2;
#pragma unroll
  for (int i = 0; i < OUT_TILES; i++) {
    if (out_tile(i) >= N_TILES) continue;
    const f32x2 scale = lds_f32x2(c.shared + FACTORS + (out_tile(i) * 8 + 2 * (l & 3)) * 4);
    const smem_addr to = stage + (out_tile(i) * 8 + (l >> 2)) * OUT_STRIDE + (l & 3) * 4;
    const smem_addr pairs = stage + (out_tile(i) * 8 + 2 * (l & 3)) * OUT_STRIDE + (l >> 2) * 4;
#pragma unroll
    for (int m = 0; m < V_TILES; m++) {
      const float(&o)[4] = x.o[m][i];
      if (KV_E4M3) {
        store_pairs(pairs + m * 32, OUT_STRIDE, o, scale);
        continue;
      }
      sts_u32(to + m * 32, movmatrix_trans(pack_f16x2(o[0] * scale.x, o[1] * scale.y)));
      sts_u32(to + m * 32 + 16, movmatrix_trans(pack_f16x2(o[2] * scale.x, o[3] * scale.y)));
    }
  }
  sync_warp();
  constexpr int LANES = V_EACH / 8;  // that store one row's part
#pragma unroll
  for (int i = 0; i < OUT_TILES; i++) {
    if (out_tile(i) >= N_TILES) continue;
#pragma unroll 1
    for (int at = l; at < 8 * LANES; at += 32) {
      const int row = out_tile(i) * 8 + at / LANES;
      if (row >= c.rows) continue;
      const s64 to = partial_row(p, c, row) * V + out_dim() + at % LANES * 8;
      stg_cg_v4((u8 *)p.partial + to * 2, lds_u32x4(stage + row * OUT_STRIDE + at % LANES * 16));
    }
  }
}

// ---- the loop -------------------------------------------------------------------------------------------------
// Step i works on K of step i + 1 and V of step i. A round asks for the V of step i + V_SLOTS and the K of step i + 1 + K_SLOTS, one
// group of copies; so a round's own are there once all but the last V_SLOTS - 1 groups are.
DEV void ask_round(const Cta &c, int i) {
  const int steps = step_count(c), value = i + V_SLOTS, key = i + 1 + K_SLOTS;
  if (key < steps) load_keys(c, key);
  if (value < steps) load_values(c, value);
  cp_async_commit();
}

DEV void run_cta(const dw_params &p, Cta &c) {
  const int steps = step_count(c), thread = threadIdx.x;
  const int plane = thread / STEP, token = thread % STEP;  // whose addresses this thread looks after: plane 0 or 1, or none
  for (int at = thread; at < K_SLOTS * STEP; at += THREADS) {
    const int entry = step_entry(p, c, at / STEP, at % STEP);
    for (int k = 0; k < 2 && at / STEP < steps; k++) put_address(p, c, at / STEP, k, at % STEP, entry);
  }
  int next_entry = plane < 2 ? step_entry(p, c, K_SLOTS, token) : 0;
  meet();
  if (p.dependent) grid_dependency_wait();
  for (int k = 0; k <= K_SLOTS - V_SLOTS && k < steps; k++) load_keys(c, k);
  cp_async_commit();
#pragma unroll 1
  for (int i = -V_SLOTS; i < -1; i++) ask_round(c, i);
  Scores x;
  Output out;
  load_query(p, c, x);
  view_rows(p, c);
#pragma unroll
  for (int i = 0; i < SCORE_TILES; i++)
#pragma unroll
    for (int k = 0; k < 2; k++) x.max[i][k] = MINUS_INF, x.sum[i][k] = x.rounded[i][k] = 0.f;
#pragma unroll
  for (int m = 0; m < V_TILES; m++)
#pragma unroll
    for (int i = 0; i < OUT_TILES; i++) out.o[m][i][0] = out.o[m][i][1] = out.o[m][i][2] = out.o[m][i][3] = 0.f;
  const SoftCap cap = soft_cap_start(p, c.request.total < 0);
  c.window_end = 0;
#pragma unroll 1
  for (int i = -1;; i++) {
    const int next = i + 1;
    cp_async_wait_group<V_SLOTS - 1>();
    meet();
    if (window(p) && i < 0) c.window_end = find_window_end(p, c);
    if (next < steps && has_unit(c, next, score_unit())) score_products(c, next, x);
    if (i >= 0) output_step(c, i, out);
    if (next >= steps) break;
    score_mask(p, c, next, cap, x);
    if (plane < 2 && next + K_SLOTS < steps) put_address(p, c, next + K_SLOTS, plane, token, next_entry);
    meet();
    if (plane < 2) next_entry = step_entry(p, c, next + K_SLOTS + 1, token);
    ask_round(c, i);
    if (has_edge(c, next)) {
      cp_async_wait_group<V_SLOTS - 1>();
      meet();
      clean_values(c, next, x);
    }
    score_weights(c, x);
  }
  if (!p.early_launch) grid_dependents_launch();
  finish_rows(p, c, x);
  output_store(p, c, out);
}
