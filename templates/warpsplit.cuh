// GQA and MHA on tensor cores, the second way: each warp by itself. A CTA owns up to 8 x N_TILES query rows that share one KV head, as in
// grouped.cuh, and one KV range, whose tiles of 16 tokens go round its four warps. A warp does all of a tile for all rows, from its own
// slots, which its own cp.async fill; no warp waits for another before the range is done. So a warp that waits for its loads leaves the
// multiprocessor to seven others, and all of them are at different places.
//
//   K is there:  S^T = K Q^T; the slot is asked for again; scores -> weights, in the warp alone
//   V is there:  O^T += V^T P^T; the slot is asked for again
//   at the end:  maxima and sums of the warps meet in shared memory, then their outputs, which are added up in the order of the warps
//
// Products are transposed: tokens, then V dimensions, are the 16 rows of an mma, query rows its 8 columns. Of a tile of rows lane l has
// the rows 2 (l % 4) and the next. KV in e4m3 is widened to fp16 once, by the warp that multiplies it (fragments.cuh).
//
// grid (KV heads x row groups, KV ranges, batch), 128 threads.
#pragma once

// ---- layout ---------------------------------------------------------------------------------------------------
constexpr int THREADS = 128, WARPS = 4;
constexpr int ROWS = 8 * N_TILES, PAIRS = (N_TILES + 1) / 2;  // of row tiles
constexpr int K_STEPS = QK / 16, V_TILES = V / 16;
constexpr int K_CHUNKS = QK * KV_BYTES / 16, V_CHUNKS = V * KV_BYTES / 16;  // of 16 bytes a token
constexpr int SLOT = TILE * (QK > V ? QK : V) * KV_BYTES;                   // K or V of a tile
// B fragments of q stay in registers where the output of as many rows leaves room for them.
constexpr bool Q_HELD = N_TILES * (V / 4 + QK / 8 + 10) <= 200;

// Byte offsets of the parts of shared memory.
constexpr int MASKS = 0, FIRSTS = MASKS + ROWS * 8;        // see rows_gqa.cuh
constexpr int SEES = FIRSTS + ROWS * 4;                    // [warp][row] u16: which tokens of the warp's tile the row sees, at an edge
constexpr int PARKED = (SEES + WARPS * ROWS * 2 + 15) / 16 * 16;  // see park
constexpr int SCALES = PARKED + 32;                      // [row] f32: of its products, with KV in e4m3
// [k-step][pair of row tiles][lane] both B fragments of each tile
constexpr int QUERY = (SCALES + (KV_E4M3 ? ROWS * 4 : 0) + 127) / 128 * 128;
constexpr int RINGS = QUERY + (Q_HELD ? 0 : K_STEPS * N_TILES * 256);  // [warp][slot]
constexpr int CTAS_PER_SM = RINGS + 2 * WARPS * SLOT <= 50176 ? 2 : 1;
constexpr int BUDGET = CTAS_PER_SM == 2 ? 50176 : 101376;  // what sm_120 has for each
constexpr int FIT = (BUDGET - RINGS) / (WARPS * SLOT), SLOTS = FIT < 6 ? FIT : 6;
constexpr int SHARED_BYTES = RINGS + WARPS * SLOTS * SLOT;
static_assert(SLOTS >= 2, "a tile's K and V fit");
// At the end, where q and the rings were:
constexpr int STATES = QUERY;                         // [warp][row] 4 f32: greatest score, sum of weights, the same as rounded
constexpr int FACTORS = STATES + WARPS * ROWS * 16;   // [warp][row] f32: for the warp's output, by the row's sum
constexpr int PARTS = FACTORS + WARPS * ROWS * 4;     // [warp][row of a round][halves of chunks] f32
// A row's output in fp32: the first halves of its chunks of 8, 16 bytes of nothing, the second halves. So neither the lanes that write a
// fragment meet in a bank, nor those that read halves of neighbouring chunks.
constexpr int SECOND = V * 2 + 16, PART_STRIDE = V * 4 + 16;
constexpr int FIT_PARTS = (SHARED_BYTES - PARTS) / (WARPS * 8 * PART_STRIDE);
constexpr int ROUND = FIT_PARTS < N_TILES ? FIT_PARTS : N_TILES;  // row tiles that are added up at once
static_assert(ROUND >= 1, "a tile of rows of each warp fits");
#include "rows_gqa.cuh"

// The loop needs all registers there are. What only the end asks for waits in shared memory, and so does what leads to a table's entry or
// a mask: the compiler would hold every pointer that follows from it.
DEV void park(const Cta &c) {
  sts_u32x4(c.shared + PARKED, u32x4{(u32)c.request.index, (u32)c.request.first_row, (u32)c.slot, (u32)c.first_row});
  sts_u32x2(c.shared + PARKED + 16, u32x2{(u32)c.tiles.count, (u32)c.rows});
}
DEV Cta unparked(const Cta &c) {
  const u32x4 v = lds_u32x4(c.shared + PARKED);
  Cta whole = c;
  whole.request.index = v.x, whole.request.first_row = v.y, whole.slot = v.z, whole.first_row = v.w;
  return whole;
}
DEV Cta unparked_rows(const Cta &c) {  // these, too
  Cta whole = unparked(c);
  whole.rows = (int)lds_u32(c.shared + PARKED + 20);
  return whole;
}

// ---- loads ----------------------------------------------------------------------------------------------------
// Of the range's tiles a warp has warp, warp + WARPS, ...
DEV Tiles own_tiles(const Tiles &all) {
  const int warp = warp_id();
  return Tiles{all.first + warp * all.stride, all.stride * WARPS, (all.count - warp + WARPS - 1) / WARPS, all.end};
}
DEV int tile_token(const Cta &c, int tile) { return c.tiles.first + tile * c.tiles.stride; }
// Lane l has the table's entry of token l % 16.
DEV int tile_entry(const dw_params &p, const Cta &c, int tile) {
  return tile < c.tiles.count ? kv_entry(p, c.request, safe_token(c, tile_token(c, tile) + (lane_id_anew() & 15))) : 0;
}
enum Plane { KEYS = 0, VALUES = 1 };
template <int PLANE>
DEV const u8 *address(const dw_params &p, const Cta &c, int entry, int t) {
  return PLANE == KEYS ? key_address(p, entry, t, c.kv_head) : value_address(p, entry, t, c.kv_head);
}
// A warp's copy covers 128 bytes of four tokens, or 64 of eight, so that a lane needs the addresses of few tokens. Tokens past the end
// are the last one again, and masked.
template <int PLANE>
DEV void load_tile(const dw_params &p, const Cta &c, int tile, int entry, smem_addr slot) {
  constexpr int CHUNKS = PLANE == KEYS ? K_CHUNKS : V_CHUNKS, SPAN = CHUNK_SPAN<CHUNKS>;
  const int t0 = tile_token(c, tile), last = c.request.total - 1 - t0, lane = lane_id_anew(), chunk = lane % SPAN;
  const bool one_page = PAGE % TILE == 0 && by_table(p);
  const u8 *page = one_page ? address<PLANE>(p, c, entry, t0) + chunk * 16 : nullptr;
  const smem_addr to = slot + chunk_place<CHUNKS>(lane / SPAN, chunk);
#pragma unroll
  for (int first = 0; first < TILE; first += 32 / SPAN) {
    const int token = first + lane / SPAN;
    const u8 *from = one_page ? page + (u32)(token < last ? token : last) *
                                         (PLANE == KEYS ? p.kv_token_stride : p.v_token_stride) * KV_BYTES
                              : address<PLANE>(p, c, (int)shuffle((u32)entry, token), t0) + chunk * 16;
    const smem_addr row = (to ^ first / (8 / SPAN) % SPAN * 16) + first * CHUNKS * 16;
#pragma unroll
    for (int k = 0; k < CHUNKS; k += SPAN) cp_async_16(row + k * 16, from + k * 16);
  }
}
// K and V of the warp's tiles pass through its ring in turns: K of tile 0, V of tile 0, K of tile 1, ... Each is a group of copies, so
// what is used next is there once all but the last SLOTS - 1 groups are.
struct Entries {
  int now, next;  // of the tile whose K was asked for last, of the one after it
};
template <int PLANE>
DEV void ask(const dw_params &p, const Cta &c, int tile, Entries &entries, smem_addr slot) {
  if (PLANE == KEYS) entries = Entries{entries.next, tile_entry(p, unparked(c), tile + 1)};
  if (tile < c.tiles.count) load_tile<PLANE>(p, c, tile, entries.now, slot);
  cp_async_commit();
}
DEV void wait_for_slot() {
  cp_async_wait_group<SLOTS - 1>();
  sync_warp();
}

// With KV in e4m3 weights have 11 bits: the lse of their rounded sum is off by at most 2^-11, and its registers are needed.
constexpr bool ONE_SUM = KV_E4M3;

// ---- what a warp holds ----------------------------------------------------------------------------------------
struct Held {
  u32 q[Q_HELD ? K_STEPS : 1][Q_HELD ? N_TILES : 1][2];
  float s[N_TILES][4];        // scores, then weights: token l / 4 of both rows; 8 more of both rows
  float max[N_TILES][2];      // of a row so far, in log2 units; LOWEST before its first visible token
  float sum[N_TILES][2], rounded[N_TILES][2];  // of this lane's weights: as computed, for the lse; as rounded, to divide by
  // dimension 16 m + l / 4 of both rows; 8 more of both rows (e4m3: 16 m + 2 (l / 4), the next)
  float o[V_TILES][N_TILES][4];
};
constexpr float LOWEST = -3e38f;  // finite: what it is taken from stays a number
// The address of chunk `chunk`, an even one, more than that of `first` in a slot.
template <int CHUNKS>
DEV smem_addr chunk_after(smem_addr first, u32 chunk) {
  constexpr u32 SPAN = CHUNK_SPAN<CHUNKS>;
  return (first ^ chunk % SPAN * 16) + chunk / SPAN * SPAN * 16;
}

DEV smem_addr query_place(const Cta &c, u32 lane, int k, int tile) {
  const bool alone = tile % 2 == 0 && tile + 1 == N_TILES;
  return c.shared + QUERY + (k * N_TILES + tile / 2 * 2) * 256 + (alone ? lane * 8 : lane * 16 + tile % 2 * 8);
}
// KV in e4m3: q of a tile as fp16 in the order of key_step; what goes with its rows' scores.
DEV void load_narrow(const dw_params &p, const Cta &c, int tile, u32 (&q)[K_STEPS][2]) {
  const u8 *from = query_row(p, c, tile);
#pragma unroll
  for (int k = 0; k < K_STEPS; k++) {
    const u32x2 pair = ldg_nc_v2(from + k * 32 + (lane_id() & 3) * 8);
    q[k][0] = pair.x, q[k][1] = pair.y;
  }
}
DEV void narrow_tile(const dw_params &p, const Cta &c, int tile, u32 (&q)[K_STEPS][2]) {
  float scale = (WITH_SOFT_CAP ? 1.f : p.scale_log2) * stored_scale(p.k_scale);  // a soft cap applies the softmax scale itself
  if (NARROW_QUERY) scale *= narrow_rows(q);
  if (warp_id() == tile % WARPS && (lane_id() & 3) == 0) sts_f32(c.shared + SCALES + (tile * 8 + (lane_id() >> 2)) * 4, scale);
}
DEV void load_query(const dw_params &p, const Cta &c, Held &x) {
  if constexpr (Q_HELD && KV_E4M3) {
    u32 q[N_TILES][K_STEPS][2];
#pragma unroll
    for (int i = 0; i < N_TILES; i++) load_narrow(p, c, i, q[i]);
#pragma unroll
    for (int i = 0; i < N_TILES; i++) {
      narrow_tile(p, c, i, q[i]);
#pragma unroll
      for (int k = 0; k < K_STEPS; k++) x.q[k][i][0] = q[i][k][0], x.q[k][i][1] = q[i][k][1];
    }
  } else if constexpr (KV_E4M3) {  // the warps share the row tiles out
#pragma unroll 1
    for (int i = warp_id(); i < N_TILES; i += WARPS) {
      u32 q[K_STEPS][2];
      load_narrow(p, c, i, q);
      narrow_tile(p, c, i, q);
#pragma unroll
      for (int k = 0; k < K_STEPS; k++) sts_u32x2(query_place(c, lane_id(), k, i), u32x2{q[k][0], q[k][1]});
    }
  } else if constexpr (Q_HELD) {
    u32x4 raw[N_TILES][K_STEPS / 2];
#pragma unroll
    for (int i = 0; i < N_TILES; i++) ask_query(p, c, i, raw[i]);
#pragma unroll
    for (int i = 0; i < N_TILES; i++)
#pragma unroll
      for (int k = 0; k < K_STEPS; k++) {
        if (k % 2 == 0) transpose_quad(raw[i][k / 2]);
        x.q[k][i][0] = k % 2 ? raw[i][k / 2].z : raw[i][k / 2].x;
        x.q[k][i][1] = k % 2 ? raw[i][k / 2].w : raw[i][k / 2].y;
      }
  } else {  // the warps share the row tiles out
#pragma unroll 1
    for (int i = warp_id(); i < N_TILES; i += WARPS) {
      u32x4 raw[K_STEPS / 2];
      ask_query(p, c, i, raw);
#pragma unroll
      for (int k = 0; k < K_STEPS / 2; k++) {
        transpose_quad(raw[k]);
        sts_u32x2(query_place(c, lane_id(), 2 * k, i), u32x2{raw[k].x, raw[k].y});
        sts_u32x2(query_place(c, lane_id(), 2 * k + 1, i), u32x2{raw[k].z, raw[k].w});
      }
    }
  }
}
// Both B fragments of a pair of row tiles.
DEV void query_pair(const Cta &c, u32 lane, int k, int pair, u32 (&b)[2][2]) {
  if (2 * pair + 1 < N_TILES) {
    const u32x4 v = lds_u32x4(query_place(c, lane, k, 2 * pair));
    b[0][0] = v.x, b[0][1] = v.y, b[1][0] = v.z, b[1][1] = v.w;
  } else {
    const f32x2 v = lds_f32x2(query_place(c, lane, k, 2 * pair));
    b[0][0] = float_to_bits(v.x), b[0][1] = float_to_bits(v.y);
  }
}

// ---- scores: S^T = K Q^T --------------------------------------------------------------------------------------
DEV void score_products(const Cta &c, smem_addr slot, Held &x) {
#pragma unroll
  for (int i = 0; i < N_TILES; i++) x.s[i][0] = x.s[i][1] = x.s[i][2] = x.s[i][3] = 0.f;
  const u32 l = lane_id_anew();
  const smem_addr first = slot + chunk_place<K_CHUNKS>(l & 15, l >> 4);
  u32 a[2][4], b[2][2][2];  // what comes next is fetched before the mma of what is there
  ldmatrix_x4(a[0], first);
  if (!Q_HELD) query_pair(c, l, 0, 0, b[0]);
#pragma unroll
  for (int k = 0; k < K_STEPS; k++) {
    const int load = k * KV_BYTES / 2, part = KV_E4M3 ? k % 2 : 0;  // an ldmatrix of e4m3 has two steps
    u32(&r)[4] = a[load % 2];
    if (part == 0 && load + 1 < K_CHUNKS / 2) ldmatrix_x4(a[(load + 1) % 2], chunk_after<K_CHUNKS>(first, 2 * load + 2));
    u32 wide[4] = {r[0], r[1], r[2], r[3]};
    if (KV_E4M3) key_step(wide, r[2 * part], r[2 * part + 1]);
#pragma unroll
    for (int pair = 0; pair < PAIRS; pair++) {
      const int at = k * PAIRS + pair, next = at + 1;
      if (!Q_HELD && next < K_STEPS * PAIRS) query_pair(c, l, next / PAIRS, next % PAIRS, b[next % 2]);
#pragma unroll
      for (int i = 2 * pair; i < 2 * pair + 2 && i < N_TILES; i++) {
        if constexpr (Q_HELD) mma_mul(x.s[i], wide, x.q[k][i]);
        else mma_mul(x.s[i], wide, b[at % 2][i % 2]);
      }
    }
  }
}
DEV void scale_scores(const dw_params &p, const Cta &c, const SoftCap &cap, Held &x) {
  const smem_addr scales = c.shared + SCALES + (KV_E4M3 ? 2 * (lane_id_anew() & 3) * 4 : 0);
#pragma unroll
  for (int i = 0; i < N_TILES; i++) {
    if (KV_E4M3) {
      const f32x2 scale = lds_f32x2(scales + i * 32);
#pragma unroll
      for (int k = 0; k < 4; k++) x.s[i][k] *= k & 1 ? scale.y : scale.x;
    }
    if (WITH_SOFT_CAP) {
      cap_scores(p, cap, x.s[i]);
    } else if (!KV_E4M3) {
#pragma unroll
      for (int k = 0; k < 4; k++) x.s[i][k] *= p.scale_log2;
    }
  }
}
// Of a tile with tokens that some row may not see. Lane l looks after the rows l, l + 32; before the scores, which need the registers.
DEV smem_addr sees_place(const Cta &c, int row) { return c.shared + SEES + (warp_id() * ROWS + row) * 2; }
DEV void look(const dw_params &p, const Cta &c, int t0) {
#pragma unroll
  for (int row = lane_id_anew(); row < ROWS; row += 32) sts_u16(sees_place(c, row), (u16)row_sees(p, c, row, t0));
}
DEV bool all_finite(smem_addr values) {  // the chunks as they lie
  const smem_addr at = values + lane_id_anew() * 16;
  u32 bad = 0;
#pragma unroll 4
  for (int first = 0; first < TILE * V_CHUNKS; first += 32) bad |= not_finite(lds_u32x4(at + first * 16));
  return !vote_any(bad != 0);
}
// Hides them once the tile's V is there, and cleans that.
DEV void mask_tile(const Cta &c, smem_addr values, Held &x) {
  const int lane = lane_id_anew();
  u32 bad = 0;
#pragma unroll
  for (int i = 0; i < N_TILES; i++) {
    const u32 sees = lds_u32(sees_place(c, i * 8 + 2 * (lane & 3))) >> (lane >> 2);
    keep_seen(x.s[i]);
    hide_scores(sees, 0, x.s[i]);
    hide_scores(sees >> 16, 1, x.s[i]);
  }
  if (all_finite(values)) return;
  sync_warp();  // other lanes have read what this one cleans
#pragma unroll 1
  for (int token = 0; token < TILE; token++) {
    bool found = false;
    if (lane < V_CHUNKS) {
      const smem_addr at = values + chunk_place<V_CHUNKS>(token, lane);
      const u32x4 v = lds_u32x4(at), clean = finite_stored(v);
      found = differ(v, clean);
      if (found) sts_u32x4(at, clean);
    }
    bad |= (u32)vote_any(found) << token;
  }
#pragma unroll
  for (int i = 0; i < N_TILES; i++) spoil_scores(bad, lane >> 2, x.s[i]);
}

// A row of tile i has a score beyond its greatest so far (`max`: of this lane's).
DEV void raise(int i, float (&max)[2], Held &x) {
#pragma unroll
  for (u32 d = 4; d < 32; d <<= 1)
#pragma unroll
    for (int k = 0; k < 2; k++) max[k] = fmaxf(max[k], shuffle_xor(max[k], d));
  float factor[2];
#pragma unroll
  for (int k = 0; k < 2; k++) {
    max[k] = fmaxf(max[k], x.max[i][k]);
    factor[k] = exp2_approx(x.max[i][k] - max[k]);  // 1 for a row that stays
    x.max[i][k] = max[k];
    if (!ONE_SUM) x.sum[i][k] *= factor[k];
    x.rounded[i][k] *= factor[k];
  }
#pragma unroll
  for (int m = 0; m < V_TILES; m++)
#pragma unroll
    for (int k = 0; k < 4; k++) x.o[m][i][k] *= factor[k % 2];
}
// Scores -> weights 2^(score - greatest so far), so that the token a row looks at most has the weight 1, which rounds to itself; and
// these as B fragments; with KV in e4m3 WEIGHT_SHIFT comes on top. Few tiles have a new greatest score, so no lane asks the others for
// theirs before one has.
DEV void weigh(Held &x, u32 (&weights)[N_TILES][2]) {
#pragma unroll
  for (int i = 0; i < N_TILES; i++) {
    float(&s)[4] = x.s[i];
    float max[2] = {fmaxf(s[0], s[2]), fmaxf(s[1], s[3])};
    if (vote_any(max[0] > x.max[i][0] || max[1] > x.max[i][1])) raise(i, max, x);
#pragma unroll
    for (int k = 0; k < 4; k++) s[k] = exp2_approx(KV_E4M3 ? s[k] - x.max[i][k % 2] + WEIGHT_SHIFT : s[k] - x.max[i][k % 2]);
    const u32 low = pack_mul(s[0], s[1]), high = pack_mul(s[2], s[3]);
#pragma unroll
    for (int k = 0; k < 2; k++) {
      if (!ONE_SUM) x.sum[i][k] += s[k] + s[2 + k];
      x.rounded[i][k] += mul_to_float((u16)(low >> 16 * k)) + mul_to_float((u16)(high >> 16 * k));
    }
    weights[i][0] = movmatrix_trans(low);
    weights[i][1] = movmatrix_trans(high);
  }
}

// ---- output: O^T += V^T P^T -----------------------------------------------------------------------------------
DEV void output_products(smem_addr slot, const u32 (&weights)[N_TILES][2], Held &x) {
  const u32 l = lane_id_anew();
  // matrices (tokens 0-7, dims 0-7), (0-7, 8-15), (8-15, 0-7), (8-15, 8-15), each turned around; of e4m3 (0-7, 0-15), (8-15, 0-15),
  // (0-7, 16-31), (8-15, 16-31)
  const smem_addr first =
    slot + (KV_E4M3 ? chunk_place<V_CHUNKS>(l & 15, l >> 4) : chunk_place<V_CHUNKS>((l & 7) + (l >> 4) * 8, l >> 3 & 1));
  u32 a[2][4];
  ldmatrix_x4_trans(a[0], first);
#pragma unroll
  for (int m = 0; m < V_TILES; m++) {
    const int load = m * KV_BYTES / 2, part = KV_E4M3 ? m % 2 : 0;
    u32(&r)[4] = a[load % 2];
    if (part == 0 && load + 1 < V_CHUNKS / 2) ldmatrix_x4_trans(a[(load + 1) % 2], chunk_after<V_CHUNKS>(first, 2 * load + 2));
    u32 wide[4] = {r[0], r[1], r[2], r[3]};
    if (KV_E4M3) value_step(wide, r[2 * part], r[2 * part + 1]);
#pragma unroll
    for (int i = 0; i < N_TILES; i++) mma_mul(x.o[m][i], wide, weights[i]);
  }
}

// ---- the end --------------------------------------------------------------------------------------------------
// The first `active` warps had tiles; the others have nothing to add.
DEV void put_states(const Cta &c, Held &x) {
#pragma unroll
  for (int i = 0; i < N_TILES; i++)
#pragma unroll
    for (int k = 0; k < 2; k++) {
#pragma unroll
      for (u32 d = 4; d < 32; d <<= 1) {
        if (!ONE_SUM) x.sum[i][k] += shuffle_xor(x.sum[i][k], d);
        x.rounded[i][k] += shuffle_xor(x.rounded[i][k], d);
      }
      if (lane_id() < 4)
        sts_f32x4(c.shared + STATES + (warp_id() * ROWS + i * 8 + 2 * lane_id() + k) * 16,
                  f32x4{x.max[i][k], ONE_SUM ? x.rounded[i][k] : x.sum[i][k], x.rounded[i][k], 0.f});
    }
}
DEV void finish_rows(const dw_params &p, const Cta &c, int active) {
  const int row = threadIdx.x;
  if (row >= ROWS) return;
  f32x4 state[WARPS];
  float max = LOWEST, sum = 0.f, rounded = 0.f;
#pragma unroll
  for (int w = 0; w < WARPS; w++) {
    if (w < active) state[w] = lds_f32x4(c.shared + STATES + (w * ROWS + row) * 16);
    if (w < active) max = fmaxf(max, state[w].x);
  }
#pragma unroll
  for (int w = 0; w < WARPS; w++)
    if (w < active) {
      state[w].x = exp2_approx(state[w].x - max);
      sum += state[w].y * state[w].x;
      rounded += state[w].z * state[w].x;
    }
  const bool nothing = row >= c.rows || sum == 0.f || row_dead(p, c, row);
  const float scale = nothing ? 0.f : 1.f / rounded;
#pragma unroll
  for (int w = 0; w < WARPS; w++)
    if (w < active) sts_f32(c.shared + FACTORS + (w * ROWS + row) * 4, state[w].x * scale);
  if (row < c.rows) stg_cg_f32(p.partial_lse + partial_row(p, c, row), nothing ? MINUS_INF : max - WEIGHT_SHIFT + log2_approx(sum));
}
DEV void put_parts(const Cta &c, int first_tile, const Held &x) {
  const u32 l = lane_id();
#pragma unroll
  for (int i = 0; i < N_TILES; i++) {
    if (i / ROUND * ROUND != first_tile) continue;
    const f32x2 factor = lds_f32x2(c.shared + FACTORS + (warp_id() * ROWS + i * 8 + 2 * (l & 3)) * 4);
    const smem_addr part = c.shared + PARTS + ((warp_id() * ROUND + i % ROUND) * 8 + 2 * (l & 3)) * PART_STRIDE;
    const smem_addr to = part + (l >> 4) * SECOND + (l >> 2 & 3) * 4;
    const smem_addr pairs = part + (l >> 4) * 16 + (l >> 3 & 1) * SECOND + (l >> 2 & 1) * 8;  // e4m3: dimensions 2 (l / 4) and the next
#pragma unroll
    for (int m = 0; m < V_TILES && KV_E4M3; m++) {
      sts_f32x2(pairs + m * 32, f32x2{x.o[m][i][0] * factor.x, x.o[m][i][2] * factor.x});
      sts_f32x2(pairs + m * 32 + PART_STRIDE, f32x2{x.o[m][i][1] * factor.y, x.o[m][i][3] * factor.y});
    }
#pragma unroll
    for (int m = 0; m < V_TILES && !KV_E4M3; m++)
#pragma unroll
      for (int k = 0; k < 4; k++)
        sts_f32(to + m * 32 + (k >> 1) * 16 + (k & 1) * PART_STRIDE, x.o[m][i][k] * (k & 1 ? factor.y : factor.x));
  }
}
// Adds a round's rows up over the warps: normalised fp16 to the workspace, 16 bytes a thread.
DEV void store_parts(const dw_params &p, const Cta &c, int first_tile, int active) {
#pragma unroll 1
  for (int at = threadIdx.x; at < 8 * ROUND * (V / 8); at += THREADS) {
    const int part = at / (V / 8), chunk = at % (V / 8), row = first_tile * 8 + part;
    if (row >= c.rows) break;
    f32x4 a[WARPS], b[WARPS], low{0.f, 0.f, 0.f, 0.f}, high = low;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {  // all are asked for before the first is added
      const smem_addr from = c.shared + PARTS + (w * ROUND * 8 + part) * PART_STRIDE + chunk * 16;
      if (w < active) a[w] = lds_f32x4(from), b[w] = lds_f32x4(from + SECOND);
    }
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
      if (w >= active) continue;
      low = f32x4{low.x + a[w].x, low.y + a[w].y, low.z + a[w].z, low.w + a[w].w};
      high = f32x4{high.x + b[w].x, high.y + b[w].y, high.z + b[w].z, high.w + b[w].w};
    }
    stg_cg_v4((u8 *)p.partial + (partial_row(p, c, row) * V + chunk * 8) * 2,
              u32x4{pack_f16x2(low.x, low.y), pack_f16x2(low.z, low.w), pack_f16x2(high.x, high.y), pack_f16x2(high.z, high.w)});
  }
}
DEV void finish(const dw_params &p, const Cta &c, Held &x) {
  const int active = c.tiles.count < WARPS ? c.tiles.count : WARPS;
  const bool mine = (int)warp_id() < active;
  meet();  // q and the slots are no longer needed
  if (mine) put_states(c, x);
  meet();
  finish_rows(p, c, active);
#pragma unroll
  for (int first = 0; first < N_TILES; first += ROUND) {
    meet();
    if (mine) put_parts(c, first, x);
    meet();
    store_parts(p, c, first, active);
  }
}

// ---- the loop -------------------------------------------------------------------------------------------------
DEV void run_cta(const dw_params &p, Cta &c) {
  const Cta whole = c;
  c.tiles = own_tiles(c.tiles);
  const smem_addr ring = c.shared + RINGS + warp_id() * SLOTS * SLOT;
  constexpr int LAST = (SLOTS - 1) / 2;  // tile of the last slot at the start
  int first_entries[LAST + 2];
#pragma unroll
  for (int i = 0; i < LAST + 2; i++) first_entries[i] = tile_entry(p, c, i);
  if (p.dependent) grid_dependency_wait();
#pragma unroll
  for (int i = 0; i < SLOTS; i++) {
    if (i / 2 < c.tiles.count) {
      if (i % 2 == 0) load_tile<KEYS>(p, c, i / 2, first_entries[i / 2], ring + i * SLOT);
      else load_tile<VALUES>(p, c, i / 2, first_entries[i / 2], ring + i * SLOT);
    }
    cp_async_commit();
  }
  Entries entries{first_entries[LAST], first_entries[LAST + 1]};
  Held x;
  load_query(p, c, x);
  view_rows(p, whole);
  if (threadIdx.x == 0) park(whole);
#pragma unroll
  for (int i = 0; i < N_TILES; i++) {
#pragma unroll
    for (int k = 0; k < 2; k++) x.max[i][k] = LOWEST, x.sum[i][k] = x.rounded[i][k] = 0.f;
#pragma unroll
    for (int m = 0; m < V_TILES; m++) x.o[m][i][0] = x.o[m][i][1] = x.o[m][i][2] = x.o[m][i][3] = 0.f;
  }
  const SoftCap cap = soft_cap_start(p);
  meet();
  c.window_end = window(p) ? find_window_end(p, c) : 0;
  u32 at = 0;  // the slot whose turn it is
#pragma unroll 1
  for (int tile = 0; tile < c.tiles.count; tile++) {
    const int t0 = tile_token(c, tile);
    const smem_addr keys = ring + at * SLOT, values = ring + (at + 1) % SLOTS * SLOT;
    if (is_edge(c, t0)) look(p, unparked_rows(c), t0);
    wait_for_slot();
    score_products(c, keys, x);
    sync_warp();
    ask<SLOTS % 2>(p, c, tile + SLOTS / 2, entries, keys);
    scale_scores(p, c, cap, x);
    if (is_edge(c, t0)) {
      wait_for_slot();
      mask_tile(c, values, x);
    }
    u32 weights[N_TILES][2];
    weigh(x, weights);
    wait_for_slot();
    output_products(values, weights, x);
    sync_warp();
    ask<1 - SLOTS % 2>(p, c, tile + (SLOTS + 1) / 2, entries, values);
    at = (at + 2) % SLOTS;
  }
  if (!p.early_launch) grid_dependents_launch();
  c = unparked_rows(c);
  c.tiles.count = lds_u32(c.shared + PARKED + 16);
  finish(p, c, x);
}
