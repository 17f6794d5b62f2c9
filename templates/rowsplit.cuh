// Row-split tensor-core verify with warp roles. A CTA owns up to 8 x N_TILES query rows of one request and one KV range, and
// walks the range in tiles of 16 tokens through a ring of four slots (of KV in e4m3 16 or 32 tokens, six or three slots):
//
//   loaders  --full-->  score warps  --scores_full-->  softmax warps  --weights_full-->  output warps  --empty-->  loaders
//               KV tile       (16 x rows partial S^T, fp32)        (P, 16-bit)                (O^T += V^T P^T)
//
// Products are transposed: tokens (scores) or V dimensions (output) are the 16 rows of an mma, query rows its 8 columns, so that
// 72 rows are nine tiles with no padding. Q stays in registers as B fragments for the whole kernel. See ARCHITECTURE.md.
//
// grid (row groups, KV ranges, batch), 512 threads.
#pragma once
#include "fragments.cuh"

// ---- layout ---------------------------------------------------------------------------------------------------
constexpr int WARPGROUP = 128;
constexpr int SCORE_WARPS = 4;
constexpr int SOFTMAX_WARPS = 4;
// With setmaxnreg: 4 output warps of V / 4 dimensions, 4 loaders. Without, 128 registers have to do: 8 output warps of V / 8
// dimensions that also issue the loads (unless the rows are few).
constexpr int OUTPUT_WARPS = WIDE_OUTPUT ? 8 : 4;
constexpr int LOADERS = WIDE_OUTPUT ? OUTPUT_WARPS : 4;  // warps that issue loads
constexpr int FIRST_OUTPUT_WARP = SCORE_WARPS;
constexpr int FIRST_SOFTMAX_WARP = FIRST_OUTPUT_WARP + OUTPUT_WARPS;
constexpr int FIRST_LOADER_WARP = WIDE_OUTPUT ? FIRST_OUTPUT_WARP : FIRST_SOFTMAX_WARP + SOFTMAX_WARPS;
constexpr int THREADS = 512;
constexpr int OUTPUT_THREADS = OUTPUT_WARPS * 32;
// With setmaxnreg, a thread: 512 in all at most.
constexpr int SCORE_REGISTERS = 160, OUTPUT_REGISTERS = KV_E4M3 ? 216 : 224;
constexpr int SOFTMAX_REGISTERS = KV_E4M3 ? 88 : 72, LOADER_REGISTERS = 48;

constexpr int SLOTS = !KV_E4M3 ? 4 : TILE == 16 ? 6 : 3;  // of the ring
constexpr int HALVES = TILE / 16;                    // of a tile, 16 tokens each: what an mma takes
constexpr int RECORD_BYTES = QK * KV_BYTES;          // a token's record in global memory
constexpr int LATENT_BYTES = V * KV_BYTES;           // its first elements
constexpr int TOKEN_STRIDE = RECORD_BYTES + 16;      // in a slot: 16 more than a multiple of 32, so ldmatrix has no conflicts
constexpr int SLOT_BYTES = TILE * TOKEN_STRIDE;
constexpr int SCORE_BUFFERS = TILE == 32 && N_TILES == 5 ? 1 : 2;  // so that a slow tile of one role does not stop the others at once
constexpr int WEIGHT_BUFFERS = 3;
constexpr int SCORE_HALF = SCORE_WARPS * 8 * N_TILES * 64;    // [score warp][row][16] f32, see score_chunk
constexpr int SCORE_BYTES = HALVES * SCORE_HALF;              // a buffer
constexpr int WEIGHT_HALF = 8 * N_TILES * 32;                 // [row][16] 16-bit, see weight_place
constexpr int WEIGHT_BYTES = HALVES * WEIGHT_HALF;            // a buffer
static_assert(!E4M3_MMA || HALVES == 2, "an mma of e4m3 takes 32 tokens");
constexpr int OUT_STRIDE = V * 2 + 16;               // a query row of finished output, staged in the ring
constexpr int K_STEPS = QK / 16 / SCORE_WARPS;       // of one score warp
constexpr int V_EACH = V / OUTPUT_WARPS;             // dimensions of one output warp
constexpr int V_TILES = V_EACH / 16;

// Byte offsets of the parts of shared memory; ROWS = rows of the largest CTA of the launch.
constexpr int ROWS = 8 * N_TILES;
constexpr int RING = 0;
constexpr int SCORES = RING + SLOTS * SLOT_BYTES;                          // [buffer]
constexpr int WEIGHTS = SCORES + SCORE_BUFFERS * SCORE_BYTES;              // [buffer]
constexpr int RESCALE = WEIGHTS + WEIGHT_BUFFERS * WEIGHT_BYTES;           // [buffer][row] f32: factor for the output so far
constexpr int RESCALE_FLAGS = RESCALE + WEIGHT_BUFFERS * ROWS * 4;         // [buffer][softmax warp] u32: is any factor not 1?
constexpr int POISON_FLAGS = RESCALE_FLAGS + WEIGHT_BUFFERS * 16;          // [tile & 1][softmax warp] u16: a hidden token is not finite
constexpr int WINDOW_ENDS = POISON_FLAGS + 16;                             // [softmax warp] s32: see softmax_window_end
constexpr int FINAL = WINDOW_ENDS + 16;                                    // [row] f32 1 / sum, then [row] f32 lse
constexpr int QUERY_MOST = FINAL + 2 * ROWS * 4;                           // [row][score warp] u32, see query_narrow
constexpr int BARRIERS = QUERY_MOST + (NARROW_QUERY ? ROWS * 16 : 0);      // mbarriers, 8 bytes each

constexpr int BAR_FULL = BARRIERS;                                  // [slot]: the tile's bytes have landed
constexpr int BAR_EMPTY = BAR_FULL + SLOTS * 8;                     // [slot]: the output warps, last to read it, are done
constexpr int BAR_WEIGHTS_FULL = BAR_EMPTY + SLOTS * 8;             // [buffer]
constexpr int BAR_WEIGHTS_EMPTY = BAR_WEIGHTS_FULL + WEIGHT_BUFFERS * 8;
constexpr int BAR_SCORES_FULL = BAR_WEIGHTS_EMPTY + WEIGHT_BUFFERS * 8;  // [buffer]
constexpr int BAR_SCORES_EMPTY = BAR_SCORES_FULL + SCORE_BUFFERS * 8;
constexpr int BAR_FINAL = BAR_SCORES_EMPTY + SCORE_BUFFERS * 8;  // sums are final, no warp reads the ring any more
constexpr int BARRIERS_END = BAR_FINAL + 8;
constexpr int SHARED_BYTES = (BARRIERS_END + 15) / 16 * 16;
static_assert(ROWS * OUT_STRIDE <= SLOTS * SLOT_BYTES, "the staged output lives in the ring");

constexpr u32 NAMED_POISON = 1, NAMED_QUERY = 2;  // named barriers of the softmax and of the score warps; 0 is the whole CTA's

// Whose turn it is among N slots or buffers used in rotation. The k-th use of one completes phase k of its full barrier and of its
// empty barrier, and waiters look at the parity. A writer waits for the phase before its own to be emptied, from the second use on.
template <int N>
struct Turn {
  int at = 0;
  u32 parity = 0;
  DEV void next() {
    at = at == N - 1 ? 0 : at + 1;
    if (at == 0) parity ^= 1;
  }
  DEV void wait_full(smem_addr bars) const { mbarrier_wait(bars + at * 8, parity); }
  DEV void wait_empty(smem_addr bars) const { mbarrier_wait(bars + at * 8, parity ^ 1); }
  DEV void arrive(smem_addr bars) const { mbarrier_arrive(bars + at * 8); }
};

// What a CTA is to do, known to all roles after the prologue.
struct Cta {
  Request request;
  Tiles tiles;
  int slot;             // of its partial results
  int first_row, rows;  // of the request
  smem_addr shared;
};

DEV int tile_token(const Cta &c, int tile) { return c.tiles.first + tile * c.tiles.stride; }

// ---- barriers -------------------------------------------------------------------------------------------------
// Shared out among the warps: an init takes some 50 clocks, and lanes of a warp take turns. Ready after the CTA's barrier.
DEV void init_barriers(smem_addr shared) {
  if (lane_id() == 0) {
#pragma unroll
    for (int i0 = 0; i0 < (BARRIERS_END - BARRIERS) / 8; i0 += THREADS / 32) {
      const int at = BARRIERS + (i0 + warp_id()) * 8;
      if (at >= BARRIERS_END) break;
      // In the order of the BAR_ offsets. Every thread of the role that signals arrives; of a loader warp only one.
      const u32 count = at < BAR_EMPTY           ? LOADERS
                        : at < BAR_WEIGHTS_FULL  ? OUTPUT_THREADS
                        : at < BAR_WEIGHTS_EMPTY ? SOFTMAX_WARPS * 32
                        : at < BAR_SCORES_FULL   ? OUTPUT_THREADS
                        : at < BAR_SCORES_EMPTY  ? SCORE_WARPS * 32
                        : at < BAR_FINAL         ? SOFTMAX_WARPS * 32
                                                 : SOFTMAX_WARPS * 32 + OUTPUT_THREADS;
      mbarrier_init(shared + at, count);
    }
    if (warp_id() < SOFTMAX_WARPS) sts_u32(shared + POISON_FLAGS + warp_id() * 4, 0);
    fence_mbarrier_init();
  }
  sync_warp();
}

// ---- loader: table entries -> one bulk copy per token ---------------------------------------------------------
// A loader warp owns TILE / LOADERS tokens of every tile. Its lanes hold the table entries of the next ENTRY_TILES tiles, one
// (tile, token) a lane, read that many tiles ahead.
constexpr int OWN_TOKENS = TILE / LOADERS;
constexpr int ENTRY_TILES = 32 / OWN_TOKENS;
static_assert(!WIDE_OUTPUT || SLOTS - 1 <= ENTRY_TILES, "the first tiles are asked for with the first entries");

DEV bool is_loader(u32 warp) { return warp >= FIRST_LOADER_WARP && warp < FIRST_LOADER_WARP + LOADERS; }

struct Loader {
  int entries, next_entries;
  int safe_entry;  // of the range's first token, which stands in for those past the end
};
DEV int loader_first_token() { return (warp_id() - FIRST_LOADER_WARP) * OWN_TOKENS; }  // within a tile

DEV int loader_lane_token(const Tiles &tiles, int tile0) {
  const int lane = lane_id();
  return tiles.first + (tile0 + lane / OWN_TOKENS) * tiles.stride + loader_first_token() + lane % OWN_TOKENS;
}
// Entries of tiles tile0 .. tile0 + ENTRY_TILES - 1. Under CSR only tokens that exist may be looked up.
DEV int loader_entries(const dw_params &p, const Request &r, const Tiles &tiles, int tile0) {
  const int t = loader_lane_token(tiles, tile0);
  return by_table(p) || t < r.total ? kv_entry(p, r, t) : 0;
}
// The first entries, asked for before anything is known of the lengths (block table): a load that waits for another costs 0.5 us
// at kernel start.
DEV void loader_start(const dw_params &p, const Request &r, const Tiles &tiles, Loader &l) {
  l.entries = loader_entries(p, r, tiles, 0);
  const int t = tiles.first;
  l.safe_entry = by_table(p) || t < r.total ? kv_entry(p, r, t) : 0;
}
// What is left to ask for before the ring can be filled.
DEV void loader_begin(const dw_params &p, const Cta &c, bool guessed, Loader &l) {
  if (!by_table(p) || !guessed) loader_start(p, c.request, c.tiles, l);
  l.next_entries = ENTRY_TILES < c.tiles.count ? loader_entries(p, c.request, c.tiles, ENTRY_TILES) : 0;
}
DEV void load_tile(const dw_params &p, const Cta &c, const Loader &l, int tile, Turn<SLOTS> &ring) {
  const int lane = lane_id(), slot = ring.at;
  const int from = tile % ENTRY_TILES * OWN_TOKENS + lane % OWN_TOKENS;
  int entry = shuffle((u32)l.entries, from);
  int token = tile_token(c, tile) + loader_first_token() + lane % OWN_TOKENS;
  if (token >= c.tiles.end) entry = l.safe_entry, token = tile_token(c, 0);
  const smem_addr full = c.shared + BAR_FULL + slot * 8;
  if (lane == 0) mbarrier_arrive_expect(full, OWN_TOKENS * RECORD_BYTES);
  sync_warp();
  const smem_addr to = c.shared + RING + slot * SLOT_BYTES + (loader_first_token() + lane % OWN_TOKENS) * TOKEN_STRIDE;
  const bool rope = lane >= OWN_TOKENS;  // lanes OWN_TOKENS and up load what lies apart
  if (lane < (kv_apart(p) ? 2 : 1) * OWN_TOKENS)
    bulk_load(rope ? to + LATENT_BYTES : to, rope ? kv_rope_address(p, entry, token) : kv_address(p, entry, token),
              rope ? RECORD_BYTES - LATENT_BYTES : kv_apart(p) ? LATENT_BYTES : RECORD_BYTES, full);
  ring.next();
}
DEV void loader_advance(const dw_params &p, const Cta &c, Loader &l, int tile) {  // before load_tile of every tile but the first
  if (tile % ENTRY_TILES) return;
  l.entries = l.next_entries;
  if (tile + ENTRY_TILES < c.tiles.count) l.next_entries = loader_entries(p, c.request, c.tiles, tile + ENTRY_TILES);
}

DEV void loader_loop(const dw_params &p, const Cta &c, Loader &l) {
  Turn<SLOTS> ring;
#pragma unroll 1
  for (int tile = 0; tile < c.tiles.count; tile++) {
    if (tile) loader_advance(p, c, l, tile);
    if (tile >= SLOTS) ring.wait_empty(c.shared + BAR_EMPTY);
    load_tile(p, c, l, tile, ring);
  }
}

// ---- score: S^T = K Q^T ---------------------------------------------------------------------------------------
// A score warp has a quarter of the QK dimensions: K_STEPS mma steps of 16, all query rows, all 16 tokens.
template <int NT>
struct Query {
  u32 b[K_STEPS][NT][2];  // B fragments
  u32x4 raw[NT][K_STEPS / 2];  // not with KV in e4m3
};

DEV u32 greatest(const u32x4 &v) {
  const u32 a = v.x > v.y ? v.x : v.y, b = v.z > v.w ? v.z : v.w;
  return a > b ? a : b;
}

// Byte `at` of a row of q.
DEV const u8 *query_at(const u8 *row, int at, s64 shift) { return row + at + (at >= V * 2 ? shift : 0); }
// Q is asked for first and turned into fragments later. Lane l has row l / 4 of each tile; a warp load covers 64 bytes of eight
// rows, which are two k-steps: word 4 j + l % 4 of the 16 words is register j of lane l after the transpose.
template <int NT>
DEV void query_request(const dw_params &p, const Cta &c, Query<NT> &q) {
#pragma unroll
  for (int t = 0; t < NT; t++) {
    const int row = t * 8 + (lane_id() >> 2);  // rows past the last repeat it; nothing of theirs is stored
    const int real_row = c.first_row + (row < c.rows ? row : c.rows - 1);
    const u8 *from = (const u8 *)p.q + 2 * q_offset(p, c.request, real_row);
    const s64 shift = q_rope_shift(p, c.request, real_row);
    const int first = warp_id() * K_STEPS * 32, word = lane_id() & 3;  // bytes
    if (KV_E4M3) {  // the order of key_step
#pragma unroll
      for (int k = 0; k < K_STEPS; k++) {
        const u32x2 pair = ldg_nc_v2(query_at(from, first + k * 32 + word * 8, shift));
        q.b[k][t][0] = pair.x, q.b[k][t][1] = pair.y;
      }
      continue;
    }
#pragma unroll
    for (int i = 0; i < K_STEPS / 2; i++) q.raw[t][i] = ldg_nc_v4(query_at(from, first + i * 64 + word * 16, shift));
    if (K_STEPS % 2) {
      q.b[K_STEPS - 1][t][0] = ldg_nc_u32(query_at(from, first + (K_STEPS - 1) * 32 + word * 4, shift));
      q.b[K_STEPS - 1][t][1] = ldg_nc_u32(query_at(from, first + (K_STEPS - 1) * 32 + word * 4 + 16, shift));
    }
  }
}
// With products in e4m3 a row's greatest element of q goes to 2^7 .. 2^8, and an element is the sum of two e4m3: what rounding left of the
// first is the second, so that some eight bits are held.
DEV u32 query_exponent(u32 most) {  // biased; 255: not finite
  const u32 exponent = float_to_bits(q_to_float(most)) >> 23;
  return exponent < 8 ? 8 : exponent;
}
// What 1 in fp16 or e4m3 stands for. (e4m3 has no infinity: such a row is NaN.)
DEV float query_unit(u32 most) {
  if (!E4M3_MMA) return narrow_unit(most);
  return bits_to_float(query_exponent(most) == 255 ? 0x7fc00000u : query_exponent(most) - 7 << 23);
}
// Four elements in two words -> their first and second parts.
DEV void query_parts(u32 (&w)[2], float factor) {
  const float x[4] = {q_to_float(w[0]) * factor, q_to_float(w[0] >> 16) * factor, q_to_float(w[1]) * factor,
                      q_to_float(w[1] >> 16) * factor};
  u32 lo, hi;
  w[0] = pack_e4m3x4(x[0], x[1], x[2], x[3]);
  unpack_e4m3x4(w[0], lo, hi);
  w[1] = pack_e4m3x4(x[0] - lo_half_f16(lo), x[1] - hi_half_f16(lo), x[2] - lo_half_f16(hi), x[3] - hi_half_f16(hi));
}
template <int NT>
DEV void query_narrow(const Cta &c, Query<NT> &q) {
  const smem_addr most = c.shared + QUERY_MOST + (lane_id() >> 2) * 16;
#pragma unroll
  for (int t = 0; t < NT; t++) {
    u32 m = 0;
#pragma unroll
    for (int i = 0; i < 2 * K_STEPS; i++) m = more_magnitude(m, q.b[i / 2][t][i % 2]);
#pragma unroll
    for (u32 d = 1; d < 4; d <<= 1) m = max_u16x2(m, shuffle_xor(m, d));
    if ((lane_id() & 3) == 0) sts_u32(most + t * 8 * 16 + warp_id() * 4, whole_magnitude(m));
  }
  barrier_sync(NAMED_QUERY, SCORE_WARPS * 32);
#pragma unroll
  for (int t = 0; t < NT; t++) {
    const u32 m = greatest(lds_u32x4(most + t * 8 * 16)), base = query_base(m) * 0x00800080;
    if (E4M3_MMA) {
      const u32 exponent = query_exponent(m);
      const float factor = bits_to_float((exponent == 255 ? 127 : 261 - exponent) << 23);
#pragma unroll
      for (int k = 0; k < K_STEPS; k++) query_parts(q.b[k][t], factor);
      continue;
    }
#pragma unroll
    for (int i = 0; i < 2 * K_STEPS; i++) q.b[i / 2][t][i % 2] = narrow_query(q.b[i / 2][t][i % 2], base);
  }
}
template <int NT>
DEV void query_fragments(const Cta &c, Query<NT> &q) {
  if (NARROW_QUERY) query_narrow<NT>(c, q);
  if (KV_E4M3 && !NARROW_QUERY) {
    // What was loaded before the roles parted and is used as it came, the compiler spills there and fetches in the loop.
#pragma unroll
    for (int i = 0; i < 2 * K_STEPS * NT; i++) {
      u32 &w = q.b[i / 2 / NT][i / 2 % NT][i % 2];
      w = shuffle(w, lane_id());
    }
  }
  if (KV_E4M3) return;
#pragma unroll
  for (int t = 0; t < NT; t++)
#pragma unroll
    for (int i = 0; i < K_STEPS / 2; i++) {
      transpose_quad(q.raw[t][i]);
      q.b[2 * i][t][0] = q.raw[t][i].x;
      q.b[2 * i][t][1] = q.raw[t][i].y;
      q.b[2 * i + 1][t][0] = q.raw[t][i].z;
      q.b[2 * i + 1][t][1] = q.raw[t][i].w;
    }
}

constexpr int AHEAD = 3;  // ldmatrix fragments in flight before their mma
constexpr int E4M3_AHEAD = 2;  // each has twice as many elements

// Row-major [token][dim] tile read as A: lane's ldmatrix row = token lane % 16, 16 bytes from 16 (lane / 16).
DEV smem_addr key_fragment(const Cta &c, int slot) {
  return c.shared + RING + slot * SLOT_BYTES + (lane_id() & 15) * TOKEN_STRIDE + (lane_id() >> 4) * 16 +
         warp_id() * K_STEPS * 16 * KV_BYTES;
}
// A query row's scores stand in the order of tokens 0, 8, 1, 9, ... 7, 15, so that the two a lane has of a row are neighbours.
// Position -> token:
DEV int score_token(int position) { return (position >> 1) + 8 * (position & 1); }
// Four positions (16 bytes) of a row of a score warp's part. Rows and chunks change places within eight rows so that neither the
// stores of a score warp nor the loads of a softmax warp meet in a bank: line = row with bit 0 turned by bit 1, chunk with bit 1
// turned by bit 2 of the row.
DEV int score_chunk(int row, int chunk) { return (row ^ (row >> 1 & 1)) * 64 + (chunk ^ (row >> 1 & 2)) * 16; }

// A lane has, of tile t, query rows t * 8 + 2 (lane % 4) and the next, at positions 2 (lane / 4) and the next.
template <int NT>
DEV void score_store(smem_addr buffer, const float (&s)[NT][4]) {
  const int row = 2 * (lane_id() & 3), position = 2 * (lane_id() >> 2);
  const smem_addr part = buffer + warp_id() * ROWS * 64 + (position & 2) * 4;
  const smem_addr first = part + score_chunk(row, position >> 2), second = part + score_chunk(row + 1, position >> 2);
#pragma unroll
  for (int t = 0; t < NT; t++) {
    sts_f32x2(first + t * 8 * 64, f32x2{s[t][0], s[t][2]});
    sts_f32x2(second + t * 8 * 64, f32x2{s[t][1], s[t][3]});
  }
}

template <int NT>
DEV void score_16(smem_addr keys, const Query<NT> &q, float (&s)[NT][4]) {
  u32 a[AHEAD + 1][4];
#pragma unroll
  for (int k = 0; k < AHEAD && k < K_STEPS; k++) ldmatrix_x4(a[k], keys + k * 32);
#pragma unroll
  for (int k = 0; k < K_STEPS; k++) {
    if (k + AHEAD < K_STEPS) ldmatrix_x4(a[(k + AHEAD) % (AHEAD + 1)], keys + (k + AHEAD) * 32);
#pragma unroll
    for (int t = 0; t < NT; t++) mma_mul(s[t], a[k % (AHEAD + 1)], q.b[k][t]);
  }
}
// An ldmatrix.x4 has two steps of 16 tokens, or, with products in e4m3, one of twice as many dimensions, which meets both parts of q. The
// halves of a tile take turns. Where the steps are odd, the last one is alone.
template <int NT>
DEV void score_pair(const u32 (&r)[4], const Query<NT> &q, int k, float (&s)[NT][4]) {
#pragma unroll
  for (int i = 0; i < 2; i++) {
    u32 a[4];
    if (!E4M3_MMA) key_step(a, r[2 * i], r[2 * i + 1]);
#pragma unroll
    for (int t = 0; t < NT; t++) {
      const u32 part[2] = {q.b[k][t][i], q.b[k + 1][t][i]};
      if (E4M3_MMA) mma_m16n8k32_e4m3(s[t], r, part);
      else mma_mul(s[t], a, q.b[k + i][t]);
    }
  }
}
template <int NT>
DEV void score_last(const u32 (&r)[2], const Query<NT> &q, float (&s)[NT][4]) {
  u32 a[4];
  if (!E4M3_MMA) key_step(a, r[0], r[1]);
#pragma unroll
  for (int i = 0; i < (E4M3_MMA ? 2 : 1); i++)
#pragma unroll
    for (int t = 0; t < NT; t++) {
      const u32 part[1] = {q.b[K_STEPS - 1][t][i]};
      if (E4M3_MMA) mma_m16n8k16_e4m3(s[t], r, part);
      else mma_mul(s[t], a, q.b[K_STEPS - 1][t]);
    }
}
template <int NT>
DEV void score_e4m3(smem_addr keys, const Query<NT> &q, float (&s)[HALVES][NT][4]) {
  constexpr int LOADS = K_STEPS / 2 * HALVES;
  const auto place = [&](int i) { return keys + i % HALVES * 16 * TOKEN_STRIDE + i / HALVES * 32; };
  u32 raw[E4M3_AHEAD + 1][4], last[HALVES][2];
#pragma unroll
  for (int i = 0; i < E4M3_AHEAD && i < LOADS; i++) ldmatrix_x4(raw[i], place(i));
#pragma unroll
  for (int i = 0; i < LOADS; i++) {
    if (i + E4M3_AHEAD < LOADS) ldmatrix_x4(raw[(i + E4M3_AHEAD) % (E4M3_AHEAD + 1)], place(i + E4M3_AHEAD));
    if (K_STEPS % 2 && i == LOADS - HALVES)
#pragma unroll
      for (int h = 0; h < HALVES; h++) ldmatrix_x2(last[h], place(LOADS + h));
    score_pair<NT>(raw[i % (E4M3_AHEAD + 1)], q, i / HALVES * 2, s[i % HALVES]);
  }
#pragma unroll
  for (int h = 0; h < HALVES && K_STEPS % 2; h++) score_last<NT>(last[h], q, s[h]);
}

template <int NT>
DEV void score_loop(const Cta &c, const Query<NT> &q) {
  Turn<SLOTS> ring;
  Turn<SCORE_BUFFERS> scores;
  for (int tile = 0; tile < c.tiles.count; tile++) {
    const smem_addr keys = key_fragment(c, ring.at);
    ring.wait_full(c.shared + BAR_FULL);
    float s[HALVES][NT][4];
#pragma unroll
    for (int h = 0; h < HALVES; h++)
#pragma unroll
      for (int t = 0; t < NT; t++) s[h][t][0] = s[h][t][1] = s[h][t][2] = s[h][t][3] = 0.f;
    if (KV_E4M3) score_e4m3<NT>(keys, q, s);
    else score_16<NT>(keys, q, s[0]);
    if (tile >= SCORE_BUFFERS) scores.wait_empty(c.shared + BAR_SCORES_EMPTY);
#pragma unroll
    for (int h = 0; h < HALVES; h++) score_store<NT>(c.shared + SCORES + scores.at * SCORE_BYTES + h * SCORE_HALF, s[h]);
    scores.arrive(c.shared + BAR_SCORES_FULL);
    ring.next();
    scores.next();
  }
}

// ---- softmax: scores -> weights -------------------------------------------------------------------------------
// Rows 0..31: a quad has a row, a lane four positions of each half of a tile (score_token). Rows 32..39: 16 lanes have a row, a lane
// one position of each half.
// A weight is 2^(score - maximum so far), so that the token a row looks at most has the weight 1, which rounds to itself.
constexpr int MASK_WORDS = (WIDTH + 31) / 32;

template <int LANES, int TOKENS>  // lanes that share a row, tokens a lane in 16
struct SoftmaxRow {
  static constexpr int ALL = TOKENS * HALVES;  // token i: of half i / TOKENS
  int row;          // of the CTA
  int position;     // first one of this lane among 16
  int node;         // of the request; -1: no such row
  int first;        // position of the first token that it may see, if there is a window
  float scale;      // KV in e4m3: of its scores
  float max;        // so far, in log2 units; -inf before the first visible token
  // Sums of the weights, one per token position so that both kinds of row add up in one order: as computed, for the log-sum-exp,
  // and as rounded for the product, to divide by (a row that looks at one token then returns it exactly).
  float sum[TOKENS], rounded[TOKENS];
  u64 mask;         // up to 64 drafts the node sees, fetched ahead (MASK_WORDS <= 2)
  float s[ALL];
  float product[ALL];  // with a soft cap: before it
  bool far;            // a product is beyond the cap's polynomial
  u32 packed[HALVES][E4M3_MMA ? 2 : (TOKENS + 1) / 2];  // weights of this tile; e4m3: their two parts
  bool poison;      // a hidden token of this tile has a score that is not finite
};

template <int L, int T>
DEV void softmax_start(const Cta &c, SoftmaxRow<L, T> &x, int row, int lane_of_row) {
  x.row = row;
  x.position = lane_of_row * T;
  x.node = row < c.rows ? row_node(c.first_row + row) : -1;
  x.max = MINUS_INF;
  x.scale = 0.f;
#pragma unroll
  for (int i = 0; i < T; i++) x.sum[i] = x.rounded[i] = 0.f;
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
template <int L, int T>
DEV void softmax_read(smem_addr scores, SoftmaxRow<L, T> &x) {
  const smem_addr at = scores + score_chunk(x.row, x.position >> 2) + (x.position & 3) * 4;
#pragma unroll
  for (int h = 0; h < HALVES; h++)
#pragma unroll
    for (int w = 0; w < SCORE_WARPS; w++) {
      float part[4];
      if (T == 4) {
        const f32x4 v = lds_f32x4(at + h * SCORE_HALF + w * ROWS * 64);
        part[0] = v.x, part[1] = v.y, part[2] = v.z, part[3] = v.w;
      } else {
        part[0] = lds_f32(at + h * SCORE_HALF + w * ROWS * 64);
      }
#pragma unroll
      for (int i = 0; i < T; i++) x.s[h * T + i] = w ? x.s[h * T + i] + part[i] : part[i];
    }
}
// Known once the first scores are there.
template <int L, int T>
DEV void softmax_unit(const dw_params &p, const Cta &c, SoftmaxRow<L, T> &x) {
  x.scale = (WITH_SOFT_CAP ? 1.f : p.scale_log2) * stored_scale(p.k_scale);  // a soft cap applies the softmax scale itself
  if (NARROW_QUERY) x.scale *= query_unit(greatest(lds_u32x4(c.shared + QUERY_MOST + x.row * 16)));
}
// Scales, and hides what the node does not see.
template <int L, int T>
DEV void softmax_mask(const dw_params &p, const Cta &c, const SoftCap &cap, SoftmaxRow<L, T> &x, int t0, bool edge) {
#pragma unroll
  for (int i = 0; i < x.ALL; i++) {
    if (KV_E4M3) x.s[i] *= x.scale;
    if (WITH_SOFT_CAP) x.product[i] = x.s[i], x.s[i] = soft_cap_near(cap, x.s[i]);
    else if (!KV_E4M3) x.s[i] *= p.scale_log2;
  }
  x.far = false;
  if (WITH_SOFT_CAP) {
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
      if (visible >> (i / T * 16 + score_token(x.position + i % T)) & 1) continue;
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
    if (fabsf(x.product[i]) > cap.most) x.s[i] = soft_cap(p, cap, x.product[i]);
}
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
  for (int i = 0; i < T; i++) {
    x.sum[i] *= factor;
    x.rounded[i] *= factor;
  }
  return factor;
}
// Both parts of the weights, a word of four each, in the order in which an mma takes the tokens of value_step: positions 0, 2, 1, 3. Of a
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
// Adds the weights to the sums and packs them, neighbouring tokens together: positions 0 and 2, 1 and 3.
template <int L, int T>
DEV void softmax_add(SoftmaxRow<L, T> &x, const float (&weights)[SoftmaxRow<L, T>::ALL]) {
#pragma unroll
  for (int i = 0; i < x.ALL; i++) x.sum[i % T] += weights[i];
  if (E4M3_MMA) return softmax_parts(x, weights);
#pragma unroll
  for (int h = 0; h < HALVES; h++)
#pragma unroll
    for (int i = 0; i < (T + 1) / 2; i++) {
      const u32 pair = pack_mul(weights[h * T + i], T > 1 ? weights[h * T + i + T / 2] : 0.f);
      x.packed[h][i] = pair;
      x.rounded[i] += mul_to_float((u16)pair);
      if (T > 1) x.rounded[i + T / 2] += mul_to_float((u16)(pair >> 16));
    }
}
// Eight weights (16 bytes) of a row: tokens 0-7 or 8-15. The halves change places in every other four rows, against bank conflicts.
DEV int weight_place(int row, int half) { return row * 32 + (half ^ (row >> 2 & 1)) * 16; }
// Products in e4m3: 16 weights of a row, of one part and half.
DEV int part_place(int row, int part, int half) { return row * 64 + ((part * 2 + half) ^ (row >> 1 & 3)) * 16; }
template <int L, int T>
DEV void softmax_write_parts(smem_addr weights, const SoftmaxRow<L, T> &x) {
#pragma unroll
  for (int h = 0; h < HALVES; h++)
#pragma unroll
    for (int part = 0; part < 2; part++) {
      const smem_addr at = weights + part_place(x.row, part, h) + (x.position & 12);
      if (T == 4) {
        sts_u32(at, x.packed[h][part]);
      } else {  // of positions n and n + 2 the first lane writes both bytes
        const u32 other = shuffle_xor(x.packed[h][part], 2);
        if (!(x.position & 2)) sts_u16(at + (x.position & 1) * 2, (u16)((x.packed[h][part] & 0xff) | other << 8));
      }
    }
}

template <int L, int T>
DEV void softmax_write(smem_addr weights, smem_addr factors, const SoftmaxRow<L, T> &x, float factor) {
  const int token = score_token(x.position);
  if (E4M3_MMA) softmax_write_parts(weights, x);
#pragma unroll
  for (int h = 0; h < HALVES && !E4M3_MMA; h++, weights += WEIGHT_HALF) {
    if (T == 4) {  // tokens n, n + 1 and n + 8, n + 9
      sts_u32(weights + weight_place(x.row, 0) + token * 2, x.packed[h][0]);
      sts_u32(weights + weight_place(x.row, 1) + token * 2, x.packed[h][T / 4]);
    } else {
      sts_u16(weights + weight_place(x.row, token >> 3) + (token & 7) * 2, (u16)x.packed[h][0]);
    }
  }
  if (x.position == 0) sts_f32(factors + x.row * 4, factor);
}
template <int L, int T>
DEV float softmax_total(const float (&sum)[T]) {  // in one order for both kinds of row
  float total = T == 4 ? (sum[0] + sum[T / 4]) + (sum[T / 2] + sum[T - 1]) : sum[0];
#pragma unroll
  for (u32 d = 1; d < L; d <<= 1) total += shuffle_xor(total, d);
  return total;
}
template <int L, int T>
DEV void softmax_finish(const dw_params &p, const Cta &c, SoftmaxRow<L, T> &x) {
  const float sum = softmax_total<L>(x.sum), rounded = softmax_total<L>(x.rounded);
  const bool nothing = x.node < 0 || node_dead(p, c.request, x.node) || sum == 0.f;
  if (x.position) return;
  sts_f32(c.shared + FINAL + x.row * 4, nothing ? 0.f : 1.f / rounded);
  sts_f32(c.shared + FINAL + (ROWS + x.row) * 4, nothing ? MINUS_INF : x.max - WEIGHT_SHIFT + log2_approx(sum));
}

// Weight 0 times a value that is not finite would still be NaN in the product. V is part of K, so such a token shows in its
// scores; the rare tile that hides one is cleaned here, in shared memory: what is not finite becomes 0. (A row that does see such
// a token keeps its NaN through the score.)
DEV void clean_tile(const Cta &c, int slot, int thread) {
  const smem_addr tile = c.shared + RING + slot * SLOT_BYTES;
  constexpr int CHUNKS = LATENT_BYTES / 16;
  for (int i = thread; i < TILE * CHUNKS; i += WARPGROUP) {
    const smem_addr at = tile + i / CHUNKS * TOKEN_STRIDE + i % CHUNKS * 16;
    sts_u32x4(at, finite_stored(lds_u32x4(at)));
  }
  fence_proxy_async();  // the slot's next load comes through the copy engine
}

template <int NT>
DEV void softmax_loop(const dw_params &p, const Cta &c) {
  const int thread = threadIdx.x - FIRST_SOFTMAX_WARP * 32, warp = thread >> 5;
  constexpr bool TAIL = NT > 4;  // rows 32..39
  SoftmaxRow<4, 4> x;
  SoftmaxRow<16, 1> y;
  const bool has_x = NT >= 4 || thread / 4 < 8 * NT;
  softmax_start(c, x, thread / 4, thread % 4);
  if (TAIL) softmax_start(c, y, 32 + thread / 16, thread % 16);
  {
    u64 masks[2] = {0, 0};
    int firsts[2] = {0, 0};
    softmax_view(p, c, x.node, TAIL ? y.node : -1, masks, firsts);
    x.mask = masks[0], x.first = firsts[0];
    if (TAIL) y.mask = masks[1], y.first = firsts[1];
  }
  Turn<SLOTS> ring;  // only to clean a tile
  Turn<SCORE_BUFFERS> scores;
  Turn<WEIGHT_BUFFERS> weights;
  const SoftCap cap = soft_cap_start(p, c.request.total < 0);
  int t0 = tile_token(c, 0), window_end = 0;
  if (window(p)) window_end = softmax_window_end(c, TAIL && y.first > x.first ? y.first : x.first);
  if (KV_E4M3 && c.tiles.count) {
    scores.wait_full(c.shared + BAR_SCORES_FULL);
    if (has_x) softmax_unit(p, c, x);
    if (TAIL) softmax_unit(p, c, y);
  }
#pragma unroll 1
  for (int tile = 0; tile < c.tiles.count; tile++) {
    const smem_addr read = c.shared + SCORES + scores.at * SCORE_BYTES;
    const bool edge = t0 + TILE > c.request.prefix || (TILE > 16 && t0 + TILE > c.tiles.end) || t0 < window_end;
    scores.wait_full(c.shared + BAR_SCORES_FULL);
    if (has_x) softmax_read(read, x);
    if (TAIL) softmax_read(read, y);
    scores.arrive(c.shared + BAR_SCORES_EMPTY);

    softmax_mask(p, c, cap, x, t0, edge);
    if (TAIL) softmax_mask(p, c, cap, y, t0, edge);
    if (edge) {
      // In turn, since a warp may be a tile ahead of one that still looks. (Once set a flag stays.)
      const smem_addr flags = c.shared + POISON_FLAGS + (tile & 1) * 8;
      if (vote_any((has_x && x.poison) || (TAIL && y.poison)) && lane_id() == 0) sts_u16(flags + warp * 2, 1);
      barrier_sync(NAMED_POISON, SOFTMAX_WARPS * 32);
      const f32x2 f = lds_f32x2(flags);
      if (float_to_bits(f.x) | float_to_bits(f.y)) clean_tile(c, ring.at, thread);
    }
    float weights_x[x.ALL], weights_y[y.ALL], factor_x = 1.f, factor_y = 1.f;
    softmax_weights(x, weights_x);  // while the votes are on their way
    if (TAIL) softmax_weights(y, weights_y);
    const bool far = WITH_SOFT_CAP && (x.far || (TAIL && y.far));
    bool grow_x = vote_any(far || (has_x && largest(x.s) > x.max)), grow_y = TAIL && vote_any(largest(y.s) > y.max);
    if (WITH_SOFT_CAP && grow_x) {
      if (vote_any(far)) {
        softmax_cap(p, cap, x);
        softmax_weights(x, weights_x);
        if (TAIL) softmax_cap(p, cap, y);
        if (TAIL) softmax_weights(y, weights_y);
        grow_y = TAIL && vote_any(largest(y.s) > y.max);
      }
      grow_x = vote_any(has_x && largest(x.s) > x.max);
    }
    if (grow_x) {
      factor_x = softmax_grow(x);
      softmax_weights(x, weights_x);
    }
    if (grow_y) {
      factor_y = softmax_grow(y);
      softmax_weights(y, weights_y);
    }
    softmax_add(x, weights_x);
    if (TAIL) softmax_add(y, weights_y);

    const smem_addr write = c.shared + WEIGHTS + weights.at * WEIGHT_BYTES, factors = c.shared + RESCALE + weights.at * ROWS * 4;
    if (tile >= WEIGHT_BUFFERS) weights.wait_empty(c.shared + BAR_WEIGHTS_EMPTY);
    if (has_x) softmax_write(write, factors, x, factor_x);
    if (TAIL) softmax_write(write, factors, y, factor_y);
    if (lane_id() == 0) sts_u32(c.shared + RESCALE_FLAGS + (weights.at * SOFTMAX_WARPS + warp) * 4, grow_x | grow_y);
    weights.arrive(c.shared + BAR_WEIGHTS_FULL);
    t0 += c.tiles.stride;
    ring.next();
    scores.next();
    weights.next();
  }
  if (has_x) softmax_finish(p, c, x);
  if (TAIL) softmax_finish(p, c, y);
  mbarrier_arrive(c.shared + BAR_FINAL);
}

// ---- output: O^T += V^T P^T -----------------------------------------------------------------------------------
// An output warp has V_EACH dimensions (V_TILES mma row tiles) of all query rows. Lane l holds of o[m][t]: dimensions
// 16 m + l / 4 (+ 8), query rows 8 t + 2 (l % 4) (+ 1).
template <int NT>
struct Output {
  float o[V_TILES][NT][4];
};

DEV int output_warp() { return warp_id() - FIRST_OUTPUT_WARP; }
// [token][dim] tile read as A^T by ldmatrix.trans: matrices (tokens 0-7, dims 0-7), (0-7, 8-15), (8-15, 0-7), (8-15, 8-15).
DEV smem_addr value_fragment(const Cta &c, int slot) {
  const u32 l = lane_id();
  return c.shared + RING + slot * SLOT_BYTES + ((l & 7) + (l >> 4) * 8) * TOKEN_STRIDE + (l >> 3 & 1) * 16 +
         output_warp() * V_EACH * 2;
}
// e4m3: matrices (tokens 0-7, dims 0-15), (8-15, 0-15), (0-7, 16-31), (8-15, 16-31) of pairs of elements for one.
DEV smem_addr value_pairs(const Cta &c, int slot) {
  const u32 l = lane_id();
  return c.shared + RING + slot * SLOT_BYTES + (l & 15) * TOKEN_STRIDE + (l >> 4) * 16 + output_warp() * V_EACH;
}
// Products in e4m3: matrices of tokens 0-7, 8-15, 16-23 and 24-31.
DEV smem_addr value_bytes(const Cta &c, int slot) {
  return c.shared + RING + slot * SLOT_BYTES + lane_id() * TOKEN_STRIDE + output_warp() * V_EACH;
}
DEV void value_parts(u32 (&a)[4], const u32 (&r)[4]) {
  a[0] = permute_bytes(r[0], r[1], 0x6420), a[1] = permute_bytes(r[0], r[1], 0x7531);
  a[2] = permute_bytes(r[2], r[3], 0x6420), a[3] = permute_bytes(r[2], r[3], 0x7531);
}
// Weights [row][token] read as B: two query tiles an ldmatrix.x4, one an x2.
template <int NT>
DEV void load_weights(smem_addr weights, u32 (&b)[NT][2]) {
  const int l = lane_id();
#pragma unroll
  for (int t = 0; t + 1 < NT; t += 2) {
    u32 r[4];
    ldmatrix_x4(r, weights + t * 8 * 32 + weight_place((l & 7) + (l >> 4) * 8, l >> 3 & 1));
    b[t][0] = r[0], b[t][1] = r[1], b[t + 1][0] = r[2], b[t + 1][1] = r[3];
  }
  if (NT & 1) ldmatrix_x2(b[NT - 1], weights + (NT - 1) * 8 * 32 + weight_place(l & 7, l >> 3 & 1));
}

// The two parts of 32 tokens' weights, of one query tile an ldmatrix.
template <int NT>
DEV void load_parts(smem_addr weights, u32 (&first)[NT][2], u32 (&second)[NT][2]) {
  const int l = lane_id();
#pragma unroll
  for (int t = 0; t < NT; t++) {
    u32 r[4];
    ldmatrix_x4(r, weights + part_place(t * 8 + (l & 7), l >> 4, l >> 3 & 1));
    first[t][0] = r[0], first[t][1] = r[1], second[t][0] = r[2], second[t][1] = r[3];
  }
}

// Tile t's rows 8 t .. 8 t + 7 belong to softmax warp t (rows below 32), or two to each warp (rows 32 to 39, whose factors are 1
// where nothing grew).
template <int NT>
DEV void rescale_output(const u32x4 &flags, const f32x2 (&factors)[NT], Output<NT> &out) {
  const u32 flag[5] = {flags.x, flags.y, flags.z, flags.w, 1};
#pragma unroll
  for (int t = 0; t < NT; t++) {
    if (!flag[t]) continue;
#pragma unroll
    for (int m = 0; m < V_TILES; m++) {
      out.o[m][t][0] *= factors[t].x;
      out.o[m][t][1] *= factors[t].y;
      out.o[m][t][2] *= factors[t].x;
      out.o[m][t][3] *= factors[t].y;
    }
  }
}

// The weights of a tile say that its bytes have landed, too.
template <int NT>
DEV void output_tile(const Cta &c, bool first, const Turn<SLOTS> &ring, const Turn<WEIGHT_BUFFERS> &weights, Output<NT> &out) {
  constexpr int LOADS = KV_E4M3 && !E4M3_MMA ? HALVES * V_TILES / 2 : V_TILES, FIRST = KV_E4M3 ? E4M3_AHEAD : AHEAD;
  const smem_addr values = E4M3_MMA  ? value_bytes(c, ring.at)
                           : KV_E4M3 ? value_pairs(c, ring.at)
                                     : value_fragment(c, ring.at);
  const auto place = [&](int i) {
    return E4M3_MMA ? values + i * 16 : KV_E4M3 ? values + i % HALVES * 16 * TOKEN_STRIDE + i / HALVES * 32 : values + i * 32;
  };
  weights.wait_full(c.shared + BAR_WEIGHTS_FULL);
  u32 a[FIRST + 1][4], b[HALVES][NT][2];
#pragma unroll
  for (int i = 0; i < FIRST && i < LOADS; i++) ldmatrix_x4_trans(a[i], place(i));
#pragma unroll
  for (int h = 0; h < HALVES && !E4M3_MMA; h++) load_weights<NT>(c.shared + WEIGHTS + weights.at * WEIGHT_BYTES + h * WEIGHT_HALF, b[h]);
  if (E4M3_MMA) load_parts<NT>(c.shared + WEIGHTS + weights.at * WEIGHT_BYTES, b[0], b[HALVES - 1]);
  const u32x4 flags = lds_u32x4(c.shared + RESCALE_FLAGS + weights.at * SOFTMAX_WARPS * 4);
  f32x2 factors[NT];  // of this lane's two rows of each tile
#pragma unroll
  for (int t = 0; t < NT; t++) factors[t] = lds_f32x2(c.shared + RESCALE + (weights.at * ROWS + t * 8 + 2 * (lane_id() & 3)) * 4);
  weights.arrive(c.shared + BAR_WEIGHTS_EMPTY);
  if (!first && (flags.x | flags.y | flags.z | flags.w)) rescale_output<NT>(flags, factors, out);  // the first finds zeros
#pragma unroll
  for (int i = 0; i < LOADS; i++) {
    if (i + FIRST < LOADS) ldmatrix_x4_trans(a[(i + FIRST) % (FIRST + 1)], place(i + FIRST));
    const u32(&r)[4] = a[i % (FIRST + 1)];
    if (!KV_E4M3) {
#pragma unroll
      for (int t = 0; t < NT; t++) mma_mul(out.o[i][t], r, b[0][t]);
      continue;
    }
    if (E4M3_MMA) {
      u32 v[4];
      value_parts(v, r);
#pragma unroll
      for (int part = 0; part < HALVES; part++)
#pragma unroll
        for (int t = 0; t < NT; t++) mma_m16n8k32_e4m3(out.o[i][t], v, b[part][t]);
      continue;
    }
#pragma unroll
    for (int m = 0; m < 2; m++) {
      u32 v[4];
      value_step(v, r[2 * m], r[2 * m + 1]);
#pragma unroll
      for (int t = 0; t < NT; t++) mma_mul(out.o[i / HALVES * 2 + m][t], v, b[i % HALVES][t]);
    }
  }
  ring.arrive(c.shared + BAR_EMPTY);
}

// Normalised fp16 rows through the ring to the workspace, 16 bytes a lane; a warp stages and stores its own dimensions.
template <int NT>
DEV void output_store(const dw_params &p, const Cta &c, const Output<NT> &out) {
  const u32 l = lane_id();
  const smem_addr stage = c.shared + RING + output_warp() * V_EACH * 2;
  const smem_addr final = c.shared + FINAL;
  {
    const smem_addr at = stage + (l & 7) * OUT_STRIDE + (l >> 3) * 16;
#pragma unroll
    for (int t = 0; t < NT; t++) {
      const f32x2 scale = lds_f32x2(final + (t * 8 + 2 * (l & 3)) * 4);
      if (KV_E4M3) {
        const smem_addr pairs = stage + (t * 8 + 2 * (l & 3)) * OUT_STRIDE + (l >> 2) * 4;
#pragma unroll
        for (int m = 0; m < V_TILES; m++) store_pairs(pairs + m * 32, OUT_STRIDE, out.o[m][t], scale);
        continue;
      }
#pragma unroll
      for (int m = 0; m < V_TILES; m += 2) {
        const float(&x)[4] = out.o[m][t], (&y)[4] = out.o[m + 1][t];
        const u32 r[4] = {pack_f16x2(x[0] * scale.x, x[1] * scale.y), pack_f16x2(x[2] * scale.x, x[3] * scale.y),
                          pack_f16x2(y[0] * scale.x, y[1] * scale.y), pack_f16x2(y[2] * scale.x, y[3] * scale.y)};
        stmatrix_x4_trans(at + t * 8 * OUT_STRIDE + m * 32, r);
      }
    }
  }
  sync_warp();
  constexpr int LANES = V_EACH / 8;  // that store one row
  const s64 first = (s64)c.slot * p.rows + c.first_row;
  u8 *to = (u8 *)p.partial + (first * V + output_warp() * V_EACH + l % LANES * 8) * 2;
#pragma unroll 4
  for (int row0 = 0; row0 < 8 * NT; row0 += 32 / LANES) {
    const int row = row0 + l / LANES;
    const u32x4 v = lds_u32x4(stage + row * OUT_STRIDE + l % LANES * 16);
    if (row < c.rows) stg_cg_v4(to + (s64)row * V * 2, v);
  }
  if (output_warp() == 0)
    for (int row = l; row < c.rows; row += 32) stg_cg_f32(p.partial_lse + first + row, lds_f32(final + (ROWS + row) * 4));
}

template <int NT>
DEV void output_role(const dw_params &p, const Cta &c, Loader &l) {
  Output<NT> out;
#pragma unroll
  for (int m = 0; m < V_TILES; m++)
#pragma unroll
    for (int t = 0; t < NT; t++) out.o[m][t][0] = out.o[m][t][1] = out.o[m][t][2] = out.o[m][t][3] = 0.f;
  Turn<SLOTS> ring, load;
  Turn<WEIGHT_BUFFERS> weights;
  if (WIDE_OUTPUT) {
    const int ahead = SLOTS - 1 < c.tiles.count ? SLOTS - 1 : c.tiles.count;
#pragma unroll 1
    for (int tile = 0; tile < ahead; tile++) load_tile(p, c, l, tile, load);
  }
#pragma unroll 1
  for (int tile = 0; tile < c.tiles.count; tile++) {
    output_tile<NT>(c, tile == 0, ring, weights, out);
    ring.next();
    weights.next();
    const int next = tile + SLOTS - 1;
    if (WIDE_OUTPUT && next < c.tiles.count) {
      loader_advance(p, c, l, next);
      if (tile) load.wait_empty(c.shared + BAR_EMPTY);
      load_tile(p, c, l, next, load);
    }
  }
  if (!p.early_launch) grid_dependents_launch();
  mbarrier_arrive(c.shared + BAR_FINAL);
  mbarrier_wait(c.shared + BAR_FINAL, 0);
  output_store<NT>(p, c, out);
}

// ---- kernel ---------------------------------------------------------------------------------------------------
// All loads that can be are in flight before the roles meet: a load after the barrier is 0.2 us later.
template <int NT>
DEV void run_cta(const dw_params &p, const Cta &c, bool guessed, Loader &l) {
  // The same in all lanes, which the compiler sees: without, it takes each role for a divergent branch (spills, code for lone lanes).
  const u32 warp = shuffle(warp_id(), 0);
  Query<NT> q;
  if (is_loader(warp)) loader_begin(p, c, guessed, l);
  if (p.dependent) grid_dependency_wait();
  if (warp < SCORE_WARPS) query_request<NT>(p, c, q);
  barrier_sync(0, THREADS);
  if (warp < SCORE_WARPS) {
    if (SETMAXNREG) registers_inc<SCORE_REGISTERS>();
    query_fragments<NT>(c, q);
    score_loop<NT>(c, q);
  } else if (warp < FIRST_SOFTMAX_WARP) {
    if (SETMAXNREG) registers_inc<OUTPUT_REGISTERS>();
    output_role<NT>(p, c, l);
  } else if (warp < FIRST_SOFTMAX_WARP + SOFTMAX_WARPS) {
    if (SETMAXNREG) registers_dec<SOFTMAX_REGISTERS>();
    softmax_loop<NT>(p, c);
  } else {
    if (SETMAXNREG) registers_dec<LOADER_REGISTERS>();
    loader_loop(p, c, l);
  }
}

extern "C" __global__ void __launch_bounds__(512, 1) dw_verify(const __grid_constant__ dw_params p) {
  if (p.early_launch) grid_dependents_launch();
  Cta c;
  Loader l;
  c.shared = smem_base();
  const Work guess = guess_work(p);
  if (is_loader(warp_id()) && by_table(p) && guess.request >= 0) {
    c.request.index = guess.request;
    loader_start(p, c.request, find_tiles(p, guess, 0, 0), l);
  }
  const int guess_len = guess_length(p, guess);
  init_barriers(c.shared);
  const Work work = find_work(p, guess, guess_len);
  const bool guessed =
    !window(p) && work.request == guess.request && work.range == guess.range && work.share.ranges == guess.share.ranges;
  int nt = 0;
  if (work.request >= 0) {
    c.request = load_request(p, work.request, work.request == guess.request ? guess_len : ldg_nc_s32(p.kv_len + work.request));
    c.tiles = find_tiles(p, work, c.request.total, window_tile(p, c.request));
    c.slot = work.share.first_slot + work.range;
    nt = group_tiles(p, c.request.rows(), gridDim.x, blockIdx.x, &c.first_row);
    c.first_row *= 8;
    c.rows = c.request.rows() - c.first_row < 8 * nt ? c.request.rows() - c.first_row : 8 * nt;
  }
  if (nt == 0) {  // the kernel after the next relies on this one to have waited for the one before
    grid_dependency_wait();
    return;
  }
  run_cta<N_TILES>(p, c, guessed, l);
}
