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
constexpr int SLOT_V = V;                            // of V's dimensions in a slot
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

#include "roles.cuh"

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

// ---- loader: one bulk copy per token --------------------------------------------------------------------------
DEV void load_tile(const dw_params &p, const Cta &c, const Loader &l, int tile, Turn<SLOTS> &ring) {
  const int lane = lane_id(), slot = ring.at;
  const Token t = loader_token(c, l, tile);
  const smem_addr full = c.shared + BAR_FULL + slot * 8;
  if (lane == 0) mbarrier_arrive_expect(full, OWN_TOKENS * RECORD_BYTES);
  sync_warp();
  const smem_addr to = c.shared + RING + slot * SLOT_BYTES + (loader_first_token() + lane % OWN_TOKENS) * TOKEN_STRIDE;
  const bool rope = lane >= OWN_TOKENS;  // lanes OWN_TOKENS and up load what lies apart
  if (lane < (kv_apart(p) ? 2 : 1) * OWN_TOKENS)
    bulk_load(rope ? to + V * 2 : to, rope ? kv_rope_address(p, t.entry, t.index) : kv_address(p, t.entry, t.index),
              rope ? RECORD_BYTES - V * 2 : kv_apart(p) ? V * 2 : RECORD_BYTES, full);
  ring.next();
}

// ---- score: S^T = K Q^T ---------------------------------------------------------------------------------------
// A score warp has a quarter of the QK dimensions: all query rows, all 16 tokens.
// Q is asked for first and turned into fragments later. Lane l has row l / 4 of each tile; a warp load covers 64 bytes of eight
// rows, which are two k-steps: word 4 j + l % 4 of the 16 words is register j of lane l after the transpose.
template <int NT>
DEV void query_request(const dw_params &p, const Cta &c, Query<NT> &q) {
#pragma unroll
  for (int t = 0; t < NT; t++) {
    const QueryRow from = query_row(p, c, t);
    const int first = warp_id() * K_STEPS * 32, word = lane_id() & 3;  // bytes
#pragma unroll
    for (int i = 0; i < K_STEPS / 2; i++) q.raw[t][i] = ldg_nc_v4(from.at(first + i * 64 + word * 16));
    if (K_STEPS % 2) {
      q.b[K_STEPS - 1][t][0] = ldg_nc_u32(from.at(first + (K_STEPS - 1) * 32 + word * 4));
      q.b[K_STEPS - 1][t][1] = ldg_nc_u32(from.at(first + (K_STEPS - 1) * 32 + word * 4 + 16));
    }
  }
}

// Row-major [token][dim] tile read as A: lane's ldmatrix row = token lane % 16, 8 dims from 8 (lane / 16).
DEV smem_addr key_fragment(const Cta &c, int slot) {
  return c.shared + RING + slot * SLOT_BYTES + (lane_id() & 15) * TOKEN_STRIDE + (lane_id() >> 4) * 16 + warp_id() * K_STEPS * 32;
}
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
constexpr bool CLEAN_WHAT_IS_SEEN = false, PAIR_SUMS = false;
#include "softmax.cuh"

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
DEV void softmax_end(const dw_params &p, const Cta &c, SoftmaxRow<L, T> &x) {
  const Finish f = softmax_finish(p, c, x);
  if (x.position) return;
  sts_f32(c.shared + FINAL + x.row * 4, f.scale);
  sts_f32(c.shared + FINAL + (ROWS + x.row) * 4, f.lse);
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

    const Grown grown = softmax_tile<TAIL>(p, c, cap, has_x, x, y, t0, edge, tile, ring.at);

    const smem_addr write = c.shared + WEIGHTS + weights.at * WEIGHT_BYTES, factors = c.shared + RESCALE + weights.at * ROWS * 4;
    if (tile >= WEIGHT_BUFFERS) weights.wait_empty(c.shared + BAR_WEIGHTS_EMPTY);
    if (has_x) softmax_write(write, factors, x, grown.factor_x);
    if (TAIL) softmax_write(write, factors, y, grown.factor_y);
    if (lane_id() == 0) sts_u32(c.shared + RESCALE_FLAGS + (weights.at * SOFTMAX_WARPS + warp) * 4, grown.x | grown.y);
    weights.arrive(c.shared + BAR_WEIGHTS_FULL);
    t0 += c.tiles.stride;
    ring.next();
    scores.next();
    weights.next();
  }
  if (has_x) softmax_end(p, c, x);
  if (TAIL) softmax_end(p, c, y);
  mbarrier_arrive(c.shared + BAR_FINAL);
}

// ---- output: O^T += V^T P^T -----------------------------------------------------------------------------------
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

template <int NT>
DEV void output_role(const dw_params &p, const Cta &c, Loader &l) {
  Output<NT> out;
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
  output_store<NT>(p, c, 0, out);
  if (output_warp() == 0)
    for (int row = lane_id(); row < c.rows; row += 32)
      stg_cg_f32(p.partial_lse + partial_row(p, c) + row, lds_f32(c.shared + FINAL + (ROWS + row) * 4));
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
  const Start f = find_cta(p, c, l);
  int tiles = 0;
  if (f.work.request >= 0) tiles = take_work(p, f, gridDim.x, blockIdx.x, c);
  if (tiles == 0) {  // the kernel after the next relies on this one to have waited for the one before
    grid_dependency_wait();
    return;
  }
  run_cta<N_TILES>(p, c, f.guessed(p), l);
}
