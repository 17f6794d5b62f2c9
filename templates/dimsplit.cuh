// Dim-split tensor-core verify: a cluster of two CTAs with warp roles. The pair owns up to 8 x N_TILES query rows of one request and
// one KV range; of every token and every row each CTA has half of the latent and half of the rope dimensions. Both walk the range in
// tiles of 32 tokens:
//
//   loaders  --full-->  score warps  --own_full, sent_full-->  softmax warps  --weights_full-->  output warps  --empty-->  loaders
//             half tile   (rows x 32 over half the dims)         (P, for both CTAs)                (O^T += V^T P^T, half of V)
//
// A score is the sum of both CTAs' parts. Row tile t belongs to the softmax warps of CTA t % 2 (a ninth tile is halved): the other
// CTA sends its part of the scores there and gets back weights, rescale factors and, at the end, 1 / sum. What is sent goes by
// st.async into buffers used in turn, whose mbarriers count the bytes. For the rest see rowsplit.cuh and ARCHITECTURE.md.
//
// grid (2 x row groups, KV ranges, batch), clusters of 2 x 1 x 1, 512 threads.
#pragma once
#include "fragments.cuh"

// ---- layout ---------------------------------------------------------------------------------------------------
constexpr int SCORE_WARPS = 4, SOFTMAX_WARPS = 4, LOADERS = 4;
constexpr int OUTPUT_WARPS = V > 128 ? 4 : 2;    // at least 32 dimensions each; the others of the four idle
constexpr int FIRST_OUTPUT_WARP = SCORE_WARPS;
constexpr int FIRST_SOFTMAX_WARP = FIRST_OUTPUT_WARP + 4;
constexpr int FIRST_LOADER_WARP = FIRST_SOFTMAX_WARP + SOFTMAX_WARPS;
constexpr int THREADS = 512;
constexpr int OUTPUT_THREADS = OUTPUT_WARPS * 32, SOFTMAX_THREADS = SOFTMAX_WARPS * 32;

constexpr int ROWS = 8 * N_TILES;                // of the largest pair of the launch
constexpr bool TAIL = N_TILES == 9;              // a ninth row tile, halved between the CTAs
// Row tiles that belong to each CTA's softmax warps, one a warp: 2 w + rank is warp w's. The rows of both, counted in the CTA.
DEV constexpr int whole_tiles(int rank) { return ((TAIL ? 8 : N_TILES) + 1 - rank) / 2; }
DEV constexpr int owned_rows(int rank) { return 8 * whole_tiles(rank) + (TAIL ? 4 : 0); }
constexpr int OWNED_ROWS = owned_rows(0);

constexpr int SLOTS = LARGE_SHARED ? 8 : 4, SLOT_TOKENS = TILE;  // of the ring
constexpr int HALVES = 1;                        // of a tile, as softmax.cuh counts: a row's positions stand for all of it
constexpr int LATENT_BYTES = V, ROPE_BYTES = QK - V;  // of a token, in this CTA
constexpr int TOKEN_STRIDE = QK + 16;            // in a slot: an odd number of 16 bytes, so ldmatrix has no conflicts
constexpr int SLOT_BYTES = TILE * TOKEN_STRIDE;
constexpr int SENT_BUFFERS = 2, WEIGHT_BUFFERS = 2;
constexpr int TAIL_ROWS = TAIL ? 4 : 0;          // of the ninth tile, of each CTA
constexpr int SCORE_BYTES = (OWNED_ROWS + TAIL_ROWS) * 128;  // a buffer: [owned row][32] f32, the tail's rows twice, see score_loop
constexpr int WEIGHT_BYTES = ROWS * 64;          // a buffer: [row][lane of a quad][4 x 2] 16-bit, as the B fragments want them
constexpr int OUT_STRIDE = V + 16;               // a query row of finished output, staged in the ring
constexpr int K_STEPS = QK / 32;
constexpr int V_EACH = V / 2 / OUTPUT_WARPS;     // dimensions of one output warp
constexpr int V_TILES = V_EACH / 16;
static_assert(V_TILES % 2 == 0 && QK % 64 == 0, "halves of 64 bytes; pairs of 16 dimensions an output warp");

// Byte offsets of the parts of shared memory.
constexpr int RING = 0;
constexpr int OWN_SCORES = RING + SLOTS * SLOT_BYTES;              // this CTA's part of its rows' scores
constexpr int SENT_SCORES = OWN_SCORES + SCORE_BYTES;              // [buffer]: the peer's part of them
constexpr int WEIGHTS = SENT_SCORES + SENT_BUFFERS * SCORE_BYTES;  // [buffer]
constexpr int RESCALE = WEIGHTS + WEIGHT_BUFFERS * WEIGHT_BYTES;   // [buffer][row] f32: factor for the output so far
constexpr int RESCALE_FLAGS = RESCALE + WEIGHT_BUFFERS * ROWS * 4; // [buffer][row tile] u32: 1: a factor is not 1; 2: one of the ninth's
constexpr int POISON_FLAGS = RESCALE_FLAGS + WEIGHT_BUFFERS * 32;  // [edge & 1][softmax warp] u16: a token is not finite
constexpr int WINDOW_ENDS = POISON_FLAGS + 16;                     // [softmax warp] s32: see softmax_window_end
constexpr int PLAN = WINDOW_ENDS + 16;                             // see plan_write
constexpr int BARRIERS = PLAN + PLAN_BYTES;                        // mbarriers, 8 bytes each
// 1 / sum of each row, f32: in what pads the tokens of the last slot, where nothing else is ever written.
constexpr int FINAL = RING + (SLOTS - 1) * SLOT_BYTES + QK;
DEV int final_at(int row) { return FINAL + row / 4 * TOKEN_STRIDE + row % 4 * 4; }
constexpr bool LSE_IN_FINAL = false;                               // the softmax warps store it themselves

constexpr int BAR_FULL = BARRIERS;                             // [slot]: the tile's bytes have landed
constexpr int BAR_EMPTY = BAR_FULL + SLOTS * 8;                // [slot]: the output warps, last to read it, are done
constexpr int BAR_OWN_FULL = BAR_EMPTY + SLOTS * 8;
constexpr int BAR_OWN_EMPTY = BAR_OWN_FULL + 8;
constexpr int BAR_SENT_FULL = BAR_OWN_EMPTY + 8;               // [buffer]: the peer's scores have come
constexpr int BAR_SENT_EMPTY = BAR_SENT_FULL + SENT_BUFFERS * 8;  // [buffer]: the peer has read what we sent
constexpr int BAR_WEIGHTS_FULL = BAR_SENT_EMPTY + SENT_BUFFERS * 8;  // [buffer]: weights of both CTAs' rows
constexpr int BAR_WEIGHTS_EMPTY = BAR_WEIGHTS_FULL + WEIGHT_BUFFERS * 8;  // [buffer]: read in both CTAs
constexpr int BAR_FINAL = BAR_WEIGHTS_EMPTY + WEIGHT_BUFFERS * 8;  // sums are final, no warp reads the ring any more
constexpr int BARRIERS_END = BAR_FINAL + 8;
constexpr int SHARED_BYTES = (BARRIERS_END + 15) / 16 * 16;
static_assert(ROWS * OUT_STRIDE <= (SLOTS - 1) * SLOT_BYTES, "the staged output lives in the ring, before FINAL");
static_assert(ROWS / 4 <= TILE, "FINAL has 16 bytes of a token for four rows");

constexpr u32 NAMED_POISON = 1;  // named barrier of the softmax warps

// A score warp has TILES_EACH row tiles, all 32 tokens of them; of a ninth tile each has 16 tokens over every second k-step, so that all
// take the same time.
constexpr int TILES_EACH = N_TILES > 4 ? 2 : 1;
constexpr int SCORING_WARPS = TAIL ? 4 : (N_TILES + TILES_EACH - 1) / TILES_EACH;  // those that have any

constexpr int EARLY_SLOTS = 0;
constexpr bool MERGE_EARLY = COMBINE_FEW;  // as rowsplit's; a tile is twice as long
#include "roles.cuh"

struct Pair : Cta {
  int rank;
  smem_addr peer;  // the peer's `shared`
};

// ---- barriers -------------------------------------------------------------------------------------------------
// Shared out among the warps, and all threads arrive at the cluster's barrier: the peer may touch them after its wait.
DEV void init_barriers(smem_addr shared) {
  const int i = warp_id();
  constexpr int COUNT = (BARRIERS_END - BARRIERS) / 8;
  if (elect_one()) {
#pragma unroll
    for (int i0 = 0; i0 < COUNT; i0 += THREADS / 32) {
      const int at = BARRIERS + (i0 + i) * 8;
      if (at >= BARRIERS_END) break;
      // In the order of the BAR_ offsets. Every thread of the role that signals arrives; of a loader warp only one, and of those that
      // signal to the peer one a warp. Bytes that the peer sends are announced by one of the arrivals.
      const u32 count = at < BAR_EMPTY           ? LOADERS
                        : at < BAR_OWN_FULL      ? OUTPUT_THREADS
                        : at < BAR_OWN_EMPTY     ? SCORING_WARPS * 32
                        : at < BAR_SENT_FULL     ? SOFTMAX_THREADS
                        : at < BAR_SENT_EMPTY    ? 1
                        : at < BAR_WEIGHTS_FULL  ? SOFTMAX_WARPS
                        : at < BAR_WEIGHTS_EMPTY ? SOFTMAX_THREADS
                        : at < BAR_FINAL         ? OUTPUT_THREADS + OUTPUT_WARPS
                                                 : SOFTMAX_THREADS + OUTPUT_THREADS;
      mbarrier_init(shared + at, count);
    }
    if (i < SOFTMAX_WARPS) sts_u32(shared + POISON_FLAGS + i * 4, 0);
    fence_mbarrier_init();
  }
  sync_warp();
  cluster_arrive();
}

// ---- loader: two bulk copies per token ------------------------------------------------------------------------
DEV void load_slot(const dw_params &p, const Cta &c, const Loader &l, int n, Turn<SLOTS> &ring) {
  const int lane = lane_id(), rank = cluster_rank();
  int entry = loader_entry(l, n), token = loader_token(c, n);
  if (token >= c.tiles.end) entry = l.safe_entry, token = tile_token(c, 0);
  const smem_addr full = c.shared + BAR_FULL + ring.at * 8;
  if (lane == 0) mbarrier_arrive_expect(full, OWN_TOKENS * (LATENT_BYTES + ROPE_BYTES));
  sync_warp();
  const smem_addr to = c.shared + RING + ring.at * SLOT_BYTES + (loader_first_token() + lane % OWN_TOKENS) * TOKEN_STRIDE;
  if (lane < OWN_TOKENS) {
    bulk_load(to, kv_address(p, entry, token) + rank * LATENT_BYTES, LATENT_BYTES, full);
  } else if (ROPE_BYTES && lane < 2 * OWN_TOKENS) {
    const u8 *rope = kv_apart(p) ? kv_rope_address(p, entry, token) : kv_address(p, entry, token) + 2 * LATENT_BYTES;
    bulk_load(to + LATENT_BYTES, rope + rank * ROPE_BYTES, ROPE_BYTES, full);
  }
  ring.next();
}

DEV void wait_slot(const Cta &c, int n, const Turn<SLOTS> &ring) {
  if (n >= SLOTS) ring.wait_empty(c.shared + BAR_EMPTY);
}

// ---- score: S^T = K Q^T ---------------------------------------------------------------------------------------
// Tile i of a score warp's. Where a warp has two, the first belongs to this CTA's softmax warps, the second to the peer's.
DEV int score_tile(const Pair &c, int i) {
  const int warp = warp_id();
  return TILES_EACH == 1 ? warp : 2 * warp + (i ^ c.rank);
}
struct QueryRow {
  const u8 *row;
  s64 shift;  // of the elements from V on
  DEV const u8 *at(int byte) const { return row + byte + (byte >= V * 2 ? shift : 0); }
};
// Row l / 4 of tile `tile` of the CTA. Rows past the last repeat it; nothing of theirs is stored.
DEV QueryRow query_row(const dw_params &p, const Cta &c, int tile) {
  const int row = tile * 8 + (lane_id() >> 2), real_row = c.first_row + (row < c.rows ? row : c.rows - 1);
  return QueryRow{(const u8 *)p.q + 2 * q_offset(p, c.request, real_row), q_rope_shift(p, c.request, real_row)};
}
// Q is asked for first and turned into fragments later. A warp load covers 64 bytes of eight rows, which are two k-steps: word
// 4 j + l % 4 of the 16 words is register j of lane l after the transpose. Score warps 2 and 3 take the two in the other order: of a
// ninth tile each warp has the first of each.
DEV u32 later_step_first() { return TAIL ? warp_id() >> 1 : 0; }
template <int NT>
struct RawQuery {
  u32x4 tile[NT][K_STEPS / 2];
};
DEV void query_request(const dw_params &p, const Pair &c, int tile, u32x4 (&raw)[K_STEPS / 2]) {
  const QueryRow from = query_row(p, c, tile);
#pragma unroll
  for (int i = 0; i < K_STEPS / 2; i++) {
    const int latent = c.rank * LATENT_BYTES + i * 64, rope = 2 * LATENT_BYTES + c.rank * ROPE_BYTES + i * 64 - LATENT_BYTES;
    raw[i] = ldg_nc_v4(from.at((i * 64 < LATENT_BYTES ? latent : rope) + ((lane_id() & 3) ^ later_step_first() * 2) * 16));
  }
}

DEV void query_request(const dw_params &p, const Pair &c, RawQuery<TILES_EACH> &raw) {
#pragma unroll
  for (int t = 0; t < TILES_EACH; t++) query_request(p, c, score_tile(c, t), raw.tile[t]);
}
template <int NT>
DEV void query_transpose(RawQuery<NT> &raw, Query<NT> &q) {
#pragma unroll
  for (int t = 0; t < NT; t++)
#pragma unroll
    for (int i = 0; i < K_STEPS / 2; i++) {
      u32x4 &r = raw.tile[t][i];
      transpose_quad(r);
      q.b[2 * i][t][0] = r.x, q.b[2 * i][t][1] = r.y, q.b[2 * i + 1][t][0] = r.z, q.b[2 * i + 1][t][1] = r.w;
    }
}

// Row-major [token][dim] tile read as A: lane's ldmatrix row = token lane % 16, 8 dims from 8 (lane / 16).
DEV smem_addr key_fragment(const Cta &c, int slot) {
  return c.shared + RING + slot * SLOT_BYTES + (lane_id() & 15) * TOKEN_STRIDE + (lane_id() >> 4) * 16;
}
// Tokens c, c + 8, c + 16, c + 24 (16 bytes) of an owned row. The chunks of a row stand so that neither the stores of a score warp
// nor the loads of a softmax warp meet in a bank.
DEV int score_chunk(int row, int c) { return row * 128 + (c ^ (row & 7)) * 16; }

// A lane has of a tile rows 2 (lane % 4) and the next, tokens lane / 4 + 8 i: s[i / 2][i % 2 * 2 + row].
DEV void score_store(smem_addr own, smem_addr sent, smem_addr bar, bool remote, int tile, const float (&s)[2][4]) {
  const int row = tile / 2 * 8 + 2 * (lane_id() & 3), chunk = lane_id() >> 2;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int at = score_chunk(row + i, chunk);
    if (remote) {
      st_async_u32x4(sent + at,
                     u32x4{float_to_bits(s[0][i]), float_to_bits(s[0][2 + i]), float_to_bits(s[1][i]), float_to_bits(s[1][2 + i])},
                     bar);
    } else {
      sts_f32x4(own + at, f32x4{s[0][i], s[0][2 + i], s[1][i], s[1][2 + i]});
    }
  }
}
// Half of the tokens of the ninth tile, over half of the k-steps: its first four rows belong to CTA 0.
DEV bool tail_is_remote(const Pair &c) { return (int)(lane_id() >> 1 & 1) != c.rank; }
DEV void score_store_tail(smem_addr own, smem_addr sent, smem_addr bar, bool remote, int half, const float (&s)[4]) {
  const int row = 32 + later_step_first() * TAIL_ROWS + (2 * (lane_id() & 3) & 3), chunk = lane_id() >> 2;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int at = score_chunk(row + i, chunk) + half * 8;
    if (remote) st_async_u32x2(sent + at, u32x2{float_to_bits(s[i]), float_to_bits(s[2 + i])}, bar);
    else sts_f32x2(own + at, f32x2{s[i], s[2 + i]});
  }
}

// HALF: of the ninth tile's tokens, or -1: none.
template <int HALF>
DEV void score_loop(const Pair &c, const Query<TILES_EACH> &q, const Query<1> &tail_q) {
  constexpr bool WITH_TAIL = HALF >= 0;
  Turn<SLOTS> ring;
  Turn<1> own;
  Turn<SENT_BUFFERS> sent;
  bool exists[TILES_EACH], remote[TILES_EACH], sends = WITH_TAIL;
#pragma unroll
  for (int i = 0; i < TILES_EACH; i++) {
    exists[i] = N_TILES % TILES_EACH == 0 || TAIL || score_tile(c, i) < N_TILES;
    remote[i] = TILES_EACH == 2 ? i : (score_tile(c, i) & 1) != c.rank;
    sends |= exists[i] && remote[i];
  }
  const int swapped = later_step_first() * 32;
#pragma unroll 1
  for (int tile = 0; tile < c.tiles.count; tile++) {
    const smem_addr keys[2] = {key_fragment(c, ring.at) + swapped, key_fragment(c, ring.at) + 32 - swapped};
    ring.wait_full(c.shared + BAR_FULL);
    float s[TILES_EACH][2][4], tail[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
    for (int t = 0; t < TILES_EACH; t++)
#pragma unroll
      for (int h = 0; h < 2; h++) s[t][h][0] = s[t][h][1] = s[t][h][2] = s[t][h][3] = 0.f;
    // Steps of 16 dimensions, each of two halves of the tokens.
    u32 a[AHEAD + 1][4];
#pragma unroll
    for (int i = -AHEAD; i < 2 * K_STEPS; i++) {
      const int next = i + AHEAD, step = next / 2;
      if (next < 2 * K_STEPS)
        ldmatrix_x4(a[next % (AHEAD + 1)], keys[step % 2] + step / 2 * 64 + next % 2 * 16 * TOKEN_STRIDE);
      if (i < 0) continue;
#pragma unroll
      for (int t = 0; t < TILES_EACH; t++) mma_mul(s[t][i % 2], a[i % (AHEAD + 1)], q.b[i / 2][t]);
      if (i % 2 == HALF && i / 2 % 2 == 0) mma_mul(tail, a[i % (AHEAD + 1)], tail_q.b[i / 2][0]);
    }
    const smem_addr own_to = c.shared + OWN_SCORES, sent_to = c.peer + SENT_SCORES + sent.at * SCORE_BYTES;
    const smem_addr sent_full = c.peer + BAR_SENT_FULL + sent.at * 8;
    if (sends) {
      if (tile >= SENT_BUFFERS) sent.wait_empty(c.shared + BAR_SENT_EMPTY);
#pragma unroll
      for (int t = 0; t < TILES_EACH; t++)
        if (exists[t] && remote[t]) score_store(own_to, sent_to, sent_full, true, score_tile(c, t), s[t]);
      if (WITH_TAIL && tail_is_remote(c)) score_store_tail(own_to, sent_to, sent_full, true, HALF, tail);
    }
    if (tile) own.wait_empty(c.shared + BAR_OWN_EMPTY);
#pragma unroll
    for (int t = 0; t < TILES_EACH; t++)
      if (exists[t] && !remote[t]) score_store(own_to, sent_to, sent_full, false, score_tile(c, t), s[t]);
    if (WITH_TAIL && !tail_is_remote(c)) score_store_tail(own_to, sent_to, sent_full, false, HALF, tail);
    own.arrive(c.shared + BAR_OWN_FULL);
    ring.next();
    own.next();
    sent.next();
  }
}

// ---- softmax: scores -> weights -------------------------------------------------------------------------------
// A row of a whole tile is a quad's, a lane has eight positions of it (score_token); of a ninth tile each warp has one row, a lane one
// position. A row of the peer may hide what no row here does, so an edge tile with anything that is not finite is cleaned.
constexpr bool CLEAN_WHAT_IS_SEEN = true, PAIR_SUMS = true;  // fewer registers
#include "softmax.cuh"
using WholeRow = SoftmaxRow<4, 8>;
using TailRow = SoftmaxRow<32, 1>;

DEV int softmax_warp() { return warp_id() - FIRST_SOFTMAX_WARP; }
DEV int whole_row(int rank) { return (2 * softmax_warp() + rank) * 8 + (lane_id() >> 2); }
DEV int tail_row(int rank) { return 64 + 4 * rank + softmax_warp(); }

DEV void softmax_read(smem_addr own, smem_addr sent, WholeRow &x) {
  const int row = softmax_warp() * 8 + (lane_id() >> 2);
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int at = score_chunk(row, x.position / 4 + i);
    const f32x4 a = lds_f32x4(own + at), b = lds_f32x4(sent + at);
    x.s[4 * i] = a.x + b.x, x.s[4 * i + 1] = a.y + b.y, x.s[4 * i + 2] = a.z + b.z, x.s[4 * i + 3] = a.w + b.w;
  }
}
DEV void softmax_read(smem_addr own, smem_addr sent, TailRow &x) {
  const int row = 32 + softmax_warp(), word = (x.position & 3) * 4;
  const int a = score_chunk(row, x.position >> 2) + word, b = score_chunk(row + TAIL_ROWS, x.position >> 2) + word;
  x.s[0] = (lds_f32(own + a) + lds_f32(own + b)) + (lds_f32(sent + a) + lds_f32(sent + b));
}

// Weights of the whole row as one lane of a B fragment has them: tokens 2 j, 2 j + 1 and the same 8, 16, 24 further on.
DEV void softmax_write(const Pair &c, int weights, smem_addr bar, const WholeRow &x) {
  const int at = weights + x.row * 64 + (lane_id() & 3) * 16;
  const u32x4 v{x.packed[0][0], x.packed[0][1], x.packed[0][2], x.packed[0][3]};
  st_async_u32x4(c.peer + at, v, bar);
  sts_u32x4(c.shared + at, v);
}
DEV void softmax_write(const Pair &c, int weights, smem_addr bar, const TailRow &x) {
  const u32 lane = lane_id();
  const int at = weights + x.row * 64 + (lane >> 3) * 16 + (lane & 3) * 4;
  if (lane & NEIGHBOUR) return;  // the even token's lane has both
  st_async_u32(c.peer + at, x.packed[0][0], bar);
  sts_u32(c.shared + at, x.packed[0][0]);
}
// The factors of the warp's rows and whether any is not 1, a word a lane.
DEV void softmax_factors(const Pair &c, int buffer, smem_addr bar, bool has_x, const WholeRow &x, const TailRow &y, bool grow_x,
                         bool grow_y, float factor_x, float factor_y) {
  const int lane = lane_id(), factors = RESCALE + buffer * ROWS * 4, tile = 2 * softmax_warp() + c.rank;
  const bool is_flag = lane == 1, is_tail = TAIL && lane == 2, is_x = has_x && (lane & 3) == 0;
  if (!is_flag && !is_tail && !is_x) return;
  const int at = is_flag   ? RESCALE_FLAGS + (buffer * 8 + tile) * 4
                 : is_tail ? factors + y.row * 4
                           : factors + x.row * 4;
  const u32 word = is_flag ? grow_x | grow_y << 1 : float_to_bits(is_tail ? factor_y : factor_x);
  st_async_u32(c.peer + at, word, bar);
  sts_u32(c.shared + at, word);
}
// Bytes that a CTA gets, and of weights and factors those that it sends, for a tile.
DEV constexpr u32 score_bytes(int rank) { return (owned_rows(rank) + TAIL_ROWS) * 128; }
DEV constexpr u32 weight_bytes(int rank) { return owned_rows(rank) * (64 + 4) + SOFTMAX_WARPS * 4; }
DEV constexpr u32 of_rank(int rank, u32 zero, u32 one) { return rank ? one : zero; }

template <int L, int T>
DEV void softmax_end(const dw_params &p, const Pair &c, const SoftmaxRow<L, T> &x) {
  const float sum = softmax_total<L>(x.sum), rounded = softmax_total<L>(x.rounded);
  const bool nothing = softmax_nothing(p, c, x, sum);
  if (x.position) return;
  const float scale = nothing ? 0.f : 1.f / rounded;
  st_async_u32(c.peer + final_at(x.row), float_to_bits(scale), c.peer + BAR_FINAL);
  sts_f32(c.shared + final_at(x.row), scale);
  if (x.row < c.rows) stg_cg_f32(p.partial_lse + partial_row(p, c) + x.row, nothing ? MINUS_INF : softmax_lse(x, sum));
}

// What the lane's rows see, and from which token on every row of the pair sees the prefix: an edge tile is one for both CTAs.
DEV int softmax_views(const dw_params &p, const Pair &c, WholeRow &x, TailRow &y) {
  u64 masks[2] = {0, 0};
  int firsts[2] = {0, 0};
  softmax_view(p, c, x.node, TAIL ? y.node : -1, masks, firsts);
  x.mask = masks[0], x.first = firsts[0];
  y.mask = masks[1], y.first = firsts[1];
  if (!window(p)) return 0;
  const int row = whole_row(c.rank ^ 1), tail = tail_row(c.rank ^ 1);
  softmax_view(p, c, row < c.rows ? row_node(c.first_row + row) : -1, TAIL && tail < c.rows ? row_node(c.first_row + tail) : -1, masks,
               firsts);
  int first = x.first > y.first ? x.first : y.first;
  first = firsts[0] > first ? firsts[0] : first;
  return softmax_window_end(c, firsts[1] > first ? firsts[1] : first);
}

template <class C>  // a Pair; a template leaves out what softmax_tile.cuh has for records, which is nowhere defined here
DEV void softmax_loop(const dw_params &p, const C &c) {
  const int thread = threadIdx.x - FIRST_SOFTMAX_WARP * 32, warp = thread >> 5;
  const bool has_x = N_TILES >= 8 || shuffle((u32)(2 * softmax_warp() + c.rank), 0) < N_TILES;  // the same in all lanes: see run_pair
  const bool announces = threadIdx.x == FIRST_SOFTMAX_WARP * 32;  // what the peer sends
  WholeRow x;
  TailRow y;
  softmax_start(c, x, whole_row(c.rank), lane_id() & 3);
  softmax_start(c, y, tail_row(c.rank), lane_id());
  const int window_end = softmax_views(p, c, x, y);
  Turn<SLOTS> ring;  // only to clean a tile
  Turn<1> own;
  Turn<SENT_BUFFERS> sent;
  Turn<WEIGHT_BUFFERS> weights;
  const SoftCap cap = soft_cap_start(p, c.request.total < 0, CAP_IN_WEIGHTS ? lane_id_anew() >> 5 : 0);
  int poison_turn = 0;  // offset of an edge's poison flags
  int t0 = tile_token(c, 0);
#pragma unroll 1
  for (int tile = 0; tile < c.tiles.count; tile++) {
    const bool edge = t0 + TILE > c.request.prefix || t0 + TILE > c.tiles.end || t0 < window_end;
    const smem_addr read = c.shared + OWN_SCORES, received = c.shared + SENT_SCORES + sent.at * SCORE_BYTES;
    if (announces)
      mbarrier_arrive_expect(c.shared + BAR_SENT_FULL + sent.at * 8, of_rank(c.rank, score_bytes(0), score_bytes(1)));
    own.wait_full(c.shared + BAR_OWN_FULL);
    sent.wait_full(c.shared + BAR_SENT_FULL);
    if (has_x) softmax_read(read, received, x);
    if (TAIL) softmax_read(read, received, y);
    own.arrive(c.shared + BAR_OWN_EMPTY);
    sync_warp();
    // Of the last tiles nobody waits for it: the peer may have ended.
    if (lane_id() == 0 && tile + SENT_BUFFERS < c.tiles.count) mbarrier_arrive_remote_relaxed(c.peer + BAR_SENT_EMPTY + sent.at * 8);

#include "softmax_tile.cuh"

    const int write = WEIGHTS + weights.at * WEIGHT_BYTES;
    const smem_addr peer_full = c.peer + BAR_WEIGHTS_FULL + weights.at * 8;
    if (tile >= WEIGHT_BUFFERS) weights.wait_empty(c.shared + BAR_WEIGHTS_EMPTY);
    if (has_x) softmax_write(c, write, peer_full, x);
    if (TAIL) softmax_write(c, write, peer_full, y);
    softmax_factors(c, weights.at, peer_full, has_x, x, y, grow_x, grow_y, factor_x, factor_y);
    if (announces)
      mbarrier_arrive_expect(c.shared + BAR_WEIGHTS_FULL + weights.at * 8, of_rank(c.rank, weight_bytes(1), weight_bytes(0)));
    else weights.arrive(c.shared + BAR_WEIGHTS_FULL);
    t0 += c.tiles.stride;
    ring.next();
    own.next();
    sent.next();
    weights.next();
  }
  if (has_x) softmax_end(p, c, x);
  if (TAIL) softmax_end(p, c, y);
  if (announces) mbarrier_arrive_expect(c.shared + BAR_FINAL, of_rank(c.rank, owned_rows(1) * 4, owned_rows(0) * 4));
  else mbarrier_arrive(c.shared + BAR_FINAL);
}

// ---- output: O^T += V^T P^T -----------------------------------------------------------------------------------
// The weights of a tile say that its bytes have landed, too. The output so far is rescaled tile by tile between the products, which run on
// meanwhile.
DEV void output_tile(const Pair &c, bool first, bool last, const Turn<SLOTS> &ring, const Turn<WEIGHT_BUFFERS> &weights,
                     Output<N_TILES> &out) {
  const smem_addr values = value_fragment(c, ring.at), from = c.shared + WEIGHTS + weights.at * WEIGHT_BYTES + lane_id() * 16;
  const smem_addr flags = c.shared + RESCALE_FLAGS + weights.at * 32;
  const smem_addr factors = c.shared + RESCALE + weights.at * ROWS * 4 + (lane_id() & 3) * 8;
  weights.wait_full(c.shared + BAR_WEIGHTS_FULL);
  const u32x4 low = lds_u32x4(flags), high = lds_u32x4(flags + 16);
  u32x4 next = lds_u32x4(from);
  f32x2 next_factor = lds_f32x2(factors);
  u32 a[2][V_TILES][4];  // two halves of the tokens
#pragma unroll
  for (int h = 0; h < 2; h++)
#pragma unroll
    for (int m = 0; m < V_TILES; m++) ldmatrix_x4_trans(a[h][m], values + h * 16 * TOKEN_STRIDE + m * 32);
  // Row tile t's flag; a ninth tile has rows of every softmax warp of both CTAs. The first finds zeros.
  const u32 any = low.x | low.y | low.z | low.w | high.x | high.y | high.z | high.w;
  const u32 flag[9] = {low.x & 1, low.y & 1, low.z & 1, low.w & 1, high.x & 1, high.y & 1, high.z & 1, high.w & 1, any & 2};
#pragma unroll
  for (int t = 0; t < N_TILES; t++) {
    const u32 b[2][2] = {{next.x, next.y}, {next.z, next.w}};
    const f32x2 factor = next_factor;
    if (t + 1 < N_TILES) next = lds_u32x4(from + (t + 1) * 512), next_factor = lds_f32x2(factors + (t + 1) * 32);
    if (!first && flag[t]) {
#pragma unroll
      for (int m = 0; m < V_TILES; m++) {
        out.o[m][t][0] *= factor.x;
        out.o[m][t][1] *= factor.y;
        out.o[m][t][2] *= factor.x;
        out.o[m][t][3] *= factor.y;
      }
    }
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
      for (int m = 0; m < V_TILES; m++) mma_mul(out.o[m][t], a[h][m], b[h]);
    if (t == 0) ring.arrive(c.shared + BAR_EMPTY);  // all of V is in registers
  }
  weights.arrive(c.shared + BAR_WEIGHTS_EMPTY);
  sync_warp();
  if (lane_id() == 0 && !last) mbarrier_arrive_remote_relaxed(c.peer + BAR_WEIGHTS_EMPTY + weights.at * 8);
}

DEV void output_role(const dw_params &p, const Pair &c) {
  Output<N_TILES> out;
  Turn<SLOTS> ring;
  Turn<WEIGHT_BUFFERS> weights;
#pragma unroll 1
  for (int tile = 0; tile < c.tiles.count; tile++) {
    if (MERGE_EARLY && !p.early_launch && tile + 1 == c.tiles.count) grid_dependents_launch();
    output_tile(c, tile == 0, tile + WEIGHT_BUFFERS >= c.tiles.count, ring, weights, out);
    ring.next();
    weights.next();
  }
  if (!p.early_launch && (!MERGE_EARLY || c.tiles.count == 0)) grid_dependents_launch();
  mbarrier_arrive(c.shared + BAR_FINAL);
  mbarrier_wait(c.shared + BAR_FINAL, 0);
  output_store<N_TILES>(p, c, c.rank * V / 2, out);
}

// ---- kernel ---------------------------------------------------------------------------------------------------
// No CTA ends before its peer has sent it the last: whatever is sent, somebody there waits for it.
constexpr u32 PLANNING_WARP = FIRST_SOFTMAX_WARP;  // see plan_write
DEV void run_pair(const dw_params &p, const Pair &c, bool guessed, bool asked, Loader &l, RawQuery<TILES_EACH> &raw) {
  // The same in all lanes, which the compiler sees: without, it takes each role for a divergent branch (spills, code for lone lanes).
  const u32 warp = shuffle(warp_id(), 0);
  if (is_loader(warp)) loader_begin(p, c, guessed, l);
  if (p.dependent) grid_dependency_wait();
  if (warp < SCORING_WARPS && !(asked && guessed)) query_request(p, c, raw);
  cluster_wait();  // the mbarriers of both are ready
  if (warp < FIRST_OUTPUT_WARP) {
    registers_inc<168>();
    Query<TILES_EACH> q;
    RawQuery<1> raw_tail;  // asked for only now: before the roles part there are no registers for it
    Query<1> tail;
    if (TAIL) query_request(p, c, 8, raw_tail.tile[0]);
    query_transpose(raw, q);
    if (TAIL) query_transpose(raw_tail, tail);
    if (TAIL && warp & 1) score_loop<TAIL ? 1 : -1>(c, q, tail);
    else if (warp < SCORING_WARPS) score_loop<TAIL ? 0 : -1>(c, q, tail);
  } else if (warp < FIRST_SOFTMAX_WARP) {
    registers_inc<216>();
    if (warp < FIRST_OUTPUT_WARP + OUTPUT_WARPS) output_role(p, c);
  } else if (warp < FIRST_LOADER_WARP) {
    registers_dec<88>();
    softmax_loop(p, c);
  } else {
    registers_dec<40>();
    // Else the compiler spills it before the roles part and fetches it in the loop.
    if (WITH_SOFT_CAP) l.safe_entry = shuffle((u32)l.safe_entry, 0);
    loader_loop(p, c, l, 0);
  }
}

extern "C" __global__ void __launch_bounds__(512, 1) dw_verify(const __grid_constant__ dw_params p) {
  if (p.early_launch) grid_dependents_launch();
  Pair c;
  Loader l;
  RawQuery<TILES_EACH> raw;
  c.rank = cluster_rank();
  c.shared = smem_base();
  const u32 warp = shuffle(warp_id(), 0);  // as in run_pair
  const Work guess = guess_work(p);
  const bool asked = query_guessed(p, guess);
  Lengths lengths{};
  if (warp == PLANNING_WARP) lengths = ask_lengths(p, guess.request);
  if (is_loader(warp)) loader_guess(p, guess, c, l);
  if (warp < SCORING_WARPS && asked) {
    c.request = load_request(p, guess.request, 0);
    if (take_rows(p, gridDim.x / 2, blockIdx.x / 2, c)) query_request(p, c, raw);
  }
  init_barriers(c.shared);
  bool guessed = false;
  if (warp == PLANNING_WARP) {
    const int tiles = plan_find(p, guess, lengths, gridDim.x / 2, blockIdx.x / 2, c, guessed);
    plan_write(c, tiles, guessed);
  }
  barrier_sync(0, THREADS);
  if (plan_read(c, guessed) == 0) {  // as rowsplit
    grid_dependency_wait();
    cluster_wait();
    return;
  }
  c.peer = cluster_map(c.shared, c.rank ^ 1);
  run_pair(p, c, guessed, asked, l, raw);
}
