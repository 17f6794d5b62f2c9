// Row-split tensor-core verify with warp roles. A CTA owns up to 8 x N_TILES query rows of one request and one KV range, and
// walks the range in tiles of 16 tokens through a ring of four slots:
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

constexpr int SLOTS = 4;                             // of the ring
constexpr int RECORD_BYTES = QK * 2;                 // a token's record in global memory
constexpr int TOKEN_STRIDE = RECORD_BYTES + 16;      // in a slot: 16 more than a multiple of 32, so ldmatrix has no conflicts
constexpr int SLOT_BYTES = TILE * TOKEN_STRIDE;
constexpr int SCORE_BUFFERS = 2, WEIGHT_BUFFERS = 3; // so that a slow tile of one role does not stop the others at once
constexpr int SCORE_BYTES = SCORE_WARPS * 8 * N_TILES * 64;   // a buffer: [score warp][row][16] f32, see score_chunk
constexpr int WEIGHT_BYTES = 8 * N_TILES * 32;                // a buffer: [row][16] 16-bit, see weight_place
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
constexpr int BARRIERS = FINAL + 2 * ROWS * 4;                             // mbarriers, 8 bytes each

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

constexpr u32 NAMED_POISON = 1;  // named barrier of the softmax warps; 0 is the whole CTA's

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

DEV int tile_token(const Cta &c, int tile) { return (c.tiles.first + tile * c.tiles.stride) * TILE; }

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

DEV bool is_loader(u32 warp) { return warp >= FIRST_LOADER_WARP && warp < FIRST_LOADER_WARP + LOADERS; }

struct Loader {
  int entries, next_entries;
  int safe_entry;  // of the range's first token, which stands in for those past the end
};
DEV int loader_first_token() { return (warp_id() - FIRST_LOADER_WARP) * OWN_TOKENS; }  // within a tile

DEV int loader_lane_token(const Tiles &tiles, int tile0) {
  const int lane = lane_id();
  return (tiles.first + (tile0 + lane / OWN_TOKENS) * tiles.stride) * TILE + loader_first_token() + lane % OWN_TOKENS;
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
  const int t = tiles.first * TILE;
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
  if (token >= c.request.total) entry = l.safe_entry, token = tile_token(c, 0);
  const smem_addr full = c.shared + BAR_FULL + slot * 8;
  if (lane == 0) mbarrier_arrive_expect(full, OWN_TOKENS * RECORD_BYTES);
  sync_warp();
  const smem_addr to = c.shared + RING + slot * SLOT_BYTES + (loader_first_token() + lane % OWN_TOKENS) * TOKEN_STRIDE;
  const bool rope = lane >= OWN_TOKENS;  // lanes OWN_TOKENS and up load what lies apart
  if (lane < (kv_apart(p) ? 2 : 1) * OWN_TOKENS)
    bulk_load(rope ? to + V * 2 : to, rope ? kv_rope_address(p, entry, token) : kv_address(p, entry, token),
              rope ? RECORD_BYTES - V * 2 : kv_apart(p) ? V * 2 : RECORD_BYTES, full);
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
  u32x4 raw[NT][K_STEPS / 2];
};

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
#pragma unroll
    for (int i = 0; i < K_STEPS / 2; i++) q.raw[t][i] = ldg_nc_v4(query_at(from, first + i * 64 + word * 16, shift));
    if (K_STEPS % 2) {
      q.b[K_STEPS - 1][t][0] = ldg_nc_u32(query_at(from, first + (K_STEPS - 1) * 32 + word * 4, shift));
      q.b[K_STEPS - 1][t][1] = ldg_nc_u32(query_at(from, first + (K_STEPS - 1) * 32 + word * 4 + 16, shift));
    }
  }
}
template <int NT>
DEV void query_fragments(Query<NT> &q) {
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

// Row-major [token][dim] tile read as A: lane's ldmatrix row = token lane % 16, 8 dims from 8 (lane / 16).
DEV smem_addr key_fragment(const Cta &c, int slot) {
  return c.shared + RING + slot * SLOT_BYTES + (lane_id() & 15) * TOKEN_STRIDE + (lane_id() >> 4) * 16 + warp_id() * K_STEPS * 32;
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
DEV void score_loop(const Cta &c, const Query<NT> &q) {
  Turn<SLOTS> ring;
  Turn<SCORE_BUFFERS> scores;
  for (int tile = 0; tile < c.tiles.count; tile++) {
    const smem_addr keys = key_fragment(c, ring.at);
    ring.wait_full(c.shared + BAR_FULL);
    float s[NT][4];
#pragma unroll
    for (int t = 0; t < NT; t++) s[t][0] = s[t][1] = s[t][2] = s[t][3] = 0.f;
    u32 a[AHEAD + 1][4];
#pragma unroll
    for (int k = 0; k < AHEAD && k < K_STEPS; k++) ldmatrix_x4(a[k], keys + k * 32);
#pragma unroll
    for (int k = 0; k < K_STEPS; k++) {
      if (k + AHEAD < K_STEPS) ldmatrix_x4(a[(k + AHEAD) % (AHEAD + 1)], keys + (k + AHEAD) * 32);
#pragma unroll
      for (int t = 0; t < NT; t++) mma_mul(s[t], a[k % (AHEAD + 1)], q.b[k][t]);
    }
    if (tile >= SCORE_BUFFERS) scores.wait_empty(c.shared + BAR_SCORES_EMPTY);
    score_store<NT>(c.shared + SCORES + scores.at * SCORE_BYTES, s);
    scores.arrive(c.shared + BAR_SCORES_FULL);
    ring.next();
    scores.next();
  }
}

// ---- softmax: scores -> weights -------------------------------------------------------------------------------
// Rows 0..31: a quad has a row, a lane four positions of it (score_token). Rows 32..39: 16 lanes have a row, a lane one position.
// A weight is 2^(score - maximum so far), so that the token a row looks at most has the weight 1, which rounds to itself.
constexpr int MASK_WORDS = (WIDTH + 31) / 32;

template <int LANES, int TOKENS>  // lanes that share a row, tokens a lane
struct SoftmaxRow {
  int row;          // of the CTA
  int position;     // first one of this lane among the 16 of a tile
  int node;         // of the request; -1: no such row
  int first;        // position of the first token that it may see, if there is a window
  float max;        // so far, in log2 units; -inf before the first visible token
  // Sums of the weights, one per token position so that both kinds of row add up in one order: as computed, for the log-sum-exp,
  // and as rounded for the product, to divide by (a row that looks at one token then returns it exactly).
  float sum[TOKENS], rounded[TOKENS];
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
// Visible tokens t0, t0 + 1, ... as bits, for a tile that reaches past the prefix or before a row's window.
template <int L, int T>
DEV u32 softmax_visible(const dw_params &p, const Cta &c, const SoftmaxRow<L, T> &x, int t0) {
  if (x.node < 0) return 0;
  if (MASK_WORDS > 2) return visible_tokens(p, c.request, x.node, x.first, t0);
  const int column = t0 - c.request.prefix;
  const u32 prefix = window(p) ? tokens_from(x.first, t0) : ~0u;
  if (column <= -TILE) return prefix;
  return column >= 64 ? 0u : column >= 0 ? (u32)(x.mask >> column) : (u32)(x.mask << -column) | (((1u << -column) - 1) & prefix);
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
  for (int w = 0; w < SCORE_WARPS; w++) {
    float part[4];
    if (T == 4) {
      const f32x4 v = lds_f32x4(at + w * ROWS * 64);
      part[0] = v.x, part[1] = v.y, part[2] = v.z, part[3] = v.w;
    } else {
      part[0] = lds_f32(at + w * ROWS * 64);
    }
#pragma unroll
    for (int i = 0; i < T; i++) x.s[i] = w ? x.s[i] + part[i] : part[i];
  }
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
      if (visible >> score_token(x.position + i) & 1) continue;
      x.poison |= !(fabsf(x.s[i]) < INF);
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
  for (int i = 0; i < T; i++) {
    x.sum[i] *= factor;
    x.rounded[i] *= factor;
  }
  return factor;
}
// Adds the weights to the sums and packs them, neighbouring tokens together: positions 0 and 2, 1 and 3.
template <int L, int T>
DEV void softmax_add(SoftmaxRow<L, T> &x, const float (&weights)[T]) {
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
// Eight weights (16 bytes) of a row: tokens 0-7 or 8-15. The halves change places in every other four rows, against bank conflicts.
DEV int weight_place(int row, int half) { return row * 32 + (half ^ (row >> 2 & 1)) * 16; }

template <int L, int T>
DEV void softmax_write(smem_addr weights, smem_addr factors, const SoftmaxRow<L, T> &x, float factor) {
  const int token = score_token(x.position);
  if (T == 4) {  // tokens n, n + 1 and n + 8, n + 9
    sts_u32(weights + weight_place(x.row, 0) + token * 2, x.packed[0]);
    sts_u32(weights + weight_place(x.row, 1) + token * 2, x.packed[T / 4]);
  } else {
    sts_u16(weights + weight_place(x.row, token >> 3) + (token & 7) * 2, (u16)x.packed[0]);
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
  sts_f32(c.shared + FINAL + (ROWS + x.row) * 4, nothing ? MINUS_INF : x.max + log2_approx(sum));
}

// Weight 0 times a value that is not finite would still be NaN in the product. V is part of K, so such a token shows in its
// scores; the rare tile that hides one is cleaned here, in shared memory: what is not finite becomes 0. (A row that does see such
// a token keeps its NaN through the score.)
DEV void clean_tile(const Cta &c, int slot, int thread) {
  const smem_addr tile = c.shared + RING + slot * SLOT_BYTES;
  for (int i = thread; i < TILE * V / 8; i += WARPGROUP) {
    const smem_addr at = tile + i / (V / 8) * TOKEN_STRIDE + i % (V / 8) * 16;
    sts_u32x4(at, finite_halves(lds_u32x4(at)));
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
  const SoftCap cap = soft_cap_start(p, 1.f, c.request.total < 0);
  int t0 = tile_token(c, 0), window_end = 0;
  if (window(p)) window_end = softmax_window_end(c, TAIL && y.first > x.first ? y.first : x.first);
#pragma unroll 1
  for (int tile = 0; tile < c.tiles.count; tile++) {
    const smem_addr read = c.shared + SCORES + scores.at * SCORE_BYTES;
    const bool edge = t0 + TILE > c.request.prefix || t0 < window_end;
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
    float weights_x[4], weights_y[1], factor_x = 1.f, factor_y = 1.f;
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
    if (WITH_SOFT_CAP && (grow_x || grow_y)) grow_x = vote_any(factor_x != 1.f || factor_y != 1.f);
    softmax_add(x, weights_x);
    if (TAIL) softmax_add(y, weights_y);

    const smem_addr write = c.shared + WEIGHTS + weights.at * WEIGHT_BYTES, factors = c.shared + RESCALE + weights.at * ROWS * 4;
    if (tile >= WEIGHT_BUFFERS) weights.wait_empty(c.shared + BAR_WEIGHTS_EMPTY);
    if (has_x) softmax_write(write, factors, x, factor_x);
    if (TAIL) softmax_write(write, factors, y, factor_y);
    if (lane_id() == 0) sts_u32(c.shared + RESCALE_FLAGS + (weights.at * SOFTMAX_WARPS + warp) * 4, grow_x | grow_y);
    weights.arrive(c.shared + BAR_WEIGHTS_FULL);
    t0 += c.tiles.stride * TILE;
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
  const smem_addr values = value_fragment(c, ring.at);
  weights.wait_full(c.shared + BAR_WEIGHTS_FULL);
  u32 a[AHEAD + 1][4], b[NT][2];
#pragma unroll
  for (int m = 0; m < AHEAD && m < V_TILES; m++) ldmatrix_x4_trans(a[m], values + m * 32);
  load_weights<NT>(c.shared + WEIGHTS + weights.at * WEIGHT_BYTES, b);
  const u32x4 flags = lds_u32x4(c.shared + RESCALE_FLAGS + weights.at * SOFTMAX_WARPS * 4);
  f32x2 factors[NT];  // of this lane's two rows of each tile
#pragma unroll
  for (int t = 0; t < NT; t++) factors[t] = lds_f32x2(c.shared + RESCALE + (weights.at * ROWS + t * 8 + 2 * (lane_id() & 3)) * 4);
  weights.arrive(c.shared + BAR_WEIGHTS_EMPTY);
  if (!first && (flags.x | flags.y | flags.z | flags.w)) rescale_output<NT>(flags, factors, out);  // the first finds zeros
#pragma unroll
  for (int m = 0; m < V_TILES; m++) {
    if (m + AHEAD < V_TILES) ldmatrix_x4_trans(a[(m + AHEAD) % (AHEAD + 1)], values + (m + AHEAD) * 32);
#pragma unroll
    for (int t = 0; t < NT; t++) mma_mul(out.o[m][t], a[m % (AHEAD + 1)], b[t]);
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
    if (SETMAXNREG) registers_inc<160>();
    query_fragments<NT>(q);
    score_loop<NT>(c, q);
  } else if (warp < FIRST_SOFTMAX_WARP) {
    if (SETMAXNREG) registers_inc<224>();
    output_role<NT>(p, c, l);
  } else if (warp < FIRST_SOFTMAX_WARP + SOFTMAX_WARPS) {
    if (SETMAXNREG) registers_dec<72>();
    softmax_loop<NT>(p, c);
  } else {
    if (SETMAXNREG) registers_dec<48>();
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
    c.tiles = find_tiles(p, work, all_tiles(c.request), window_tile(p, c.request));
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
