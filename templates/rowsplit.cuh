// Row-split tensor-core verify with warp roles. A CTA owns up to 8 x N_TILES query rows of one request and one KV range, and
// walks the range in tiles of 16 tokens through a ring of four slots (of KV in e4m3 and records 16 or 32 tokens; see SLOTS):
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
constexpr int SCORE_REGISTERS = KV_RECORD || F16_OUTPUT ? 168 : 160, OUTPUT_REGISTERS = KV_E4M3 ? 216 : 224;
constexpr int SOFTMAX_REGISTERS = KV_E4M3 ? 88 : 72, LOADER_REGISTERS = KV_RECORD || F16_OUTPUT ? 40 : 48;

constexpr int HALVES = TILE / 16;                    // of a tile, 16 tokens each: what an mma takes
constexpr int SLOT_TOKENS = KV_RECORD ? TILE : 16;   // of the ring: a record's scales are kept by tiles
constexpr int SLOTS = !KV_E4M3 ? 4 : TILE == 16 ? 6 : KV_RECORD ? 3 : N_TILES == 5 ? 7 : 8;
constexpr int RECORD_BYTES = TOKEN_BYTES;            // a token's record in global memory
constexpr int LATENT_BYTES = V * KV_BYTES;           // its first elements
constexpr int TOKEN_STRIDE = RECORD_BYTES / 32 * 32 + 16;  // in a slot: 16 more than a multiple of 32, so ldmatrix has no conflicts
constexpr int SLOT_BYTES = SLOT_TOKENS * TOKEN_STRIDE;
constexpr int SCORE_BUFFERS = TILE == 32 && N_TILES >= (KV_RECORD ? 4 : 3) ? 1 : 2;  // so that a slow tile of one role does not stop the others at once
constexpr int WEIGHT_BUFFERS = 3;
constexpr int SCORE_HALF = SCORE_WARPS * 8 * N_TILES * 64;    // [score warp][row][16] f32, see score_chunk
constexpr int SCORE_BYTES = HALVES * SCORE_HALF;              // a buffer
constexpr int WEIGHT_HALF = 8 * N_TILES * 32;                 // [row][16] 16-bit, see weight_place
constexpr int WEIGHT_BYTES = HALVES * WEIGHT_HALF;            // a buffer
static_assert(!E4M3_MMA || HALVES == 2, "an mma of e4m3 takes 32 tokens");
constexpr int OUT_STRIDE = V * 2 + 16;               // a query row of finished output, staged in the ring
constexpr int K_STEPS = QK / 16 / SCORE_WARPS;       // of one score warp; of records the last one is the rope's
constexpr int V_EACH = V / OUTPUT_WARPS;             // dimensions of one output warp
constexpr int V_TILES = V_EACH / 16;

// Byte offsets of the parts of shared memory; ROWS = rows of the largest CTA of the launch.
constexpr int ROWS = 8 * N_TILES;
constexpr int RING = 0;
constexpr int SCORES = RING + SLOTS * SLOT_BYTES;                          // [buffer]
constexpr int WEIGHTS = SCORES + SCORE_BUFFERS * SCORE_BYTES;              // [buffer]
constexpr int RESCALE = WEIGHTS + WEIGHT_BUFFERS * WEIGHT_BYTES;           // [buffer][row] f32: factor for the output so far
constexpr int RESCALE_FLAGS = RESCALE + WEIGHT_BUFFERS * ROWS * 4;         // [buffer][softmax warp] u32: is any factor not 1?
constexpr int POISON_FLAGS = RESCALE_FLAGS + WEIGHT_BUFFERS * 16;          // [edge & 1][softmax warp] u16: a hidden token is not finite
constexpr int WINDOW_ENDS = POISON_FLAGS + 16;                             // [softmax warp] s32: see softmax_window_end
constexpr int FINAL = WINDOW_ENDS + 16;                                    // [row] f32 1 / sum, then [row] f32 lse
DEV int final_at(int row) { return FINAL + row * 4; }
constexpr bool LSE_IN_FINAL = true;
constexpr int QUERY_MOST = FINAL + 2 * ROWS * 4;                           // [row][score warp] u32, see query_narrow
constexpr int TOKEN_SCALES = QUERY_MOST + (NARROW_QUERY ? ROWS * 16 : 0);  // [slot] of records, see record.cuh
constexpr int SCALES_BYTES = TILE * 16;                                    // a slot's
constexpr int PLAN = (TOKEN_SCALES + (KV_RECORD ? SLOTS * SCALES_BYTES : 0) + 15) / 16 * 16;  // see plan_write
constexpr int BARRIERS = PLAN + PLAN_BYTES;                                // mbarriers, 8 bytes each

constexpr int BAR_FULL = BARRIERS;                                  // [slot]: the tile's bytes have landed
constexpr int BAR_EMPTY = BAR_FULL + SLOTS * 8;                     // [slot]: the output warps, last to read it, are done
constexpr int BAR_WEIGHTS_FULL = BAR_EMPTY + SLOTS * 8;             // [buffer]
constexpr int BAR_WEIGHTS_EMPTY = BAR_WEIGHTS_FULL + WEIGHT_BUFFERS * 8;
constexpr int BAR_SCORES_FULL = BAR_WEIGHTS_EMPTY + WEIGHT_BUFFERS * 8;  // [buffer]
constexpr int BAR_SCORES_EMPTY = BAR_SCORES_FULL + SCORE_BUFFERS * 8;
constexpr int BAR_FINAL = BAR_SCORES_EMPTY + SCORE_BUFFERS * 8;  // sums are final, no warp reads the ring any more
constexpr int BAR_QUERY_FULL = BAR_FINAL + 8;  // q is in shared memory
constexpr int BAR_QUERY_READ = BAR_QUERY_FULL + 8;  // and in the score warps' registers
constexpr int BARRIERS_END = BAR_QUERY_READ + 8;
constexpr int SHARED_BYTES = (BARRIERS_END + 15) / 16 * 16;
constexpr int QUERY_STRIDE = QK * 2 + 16, QUERY_END = RESCALE;
constexpr int QUERY = (QUERY_END - ROWS * QUERY_STRIDE) / 16 * 16;  // [row][elements that this CTA has], see query_copy
constexpr int FIRST_QUERY_SLOT = (QUERY - RING) / SLOT_BYTES;       // from this one on the ring has to wait for that
// Slots that are asked for before the CTA's work has been handed round: see loader_early.
constexpr int EARLY_SLOTS = CALL_TABLE && !CHECKED && !WITH_WINDOW && !KV_E4M3 && !CP_ASYNC && !WIDE_OUTPUT ? 2 : 0;
static_assert(EARLY_SLOTS == 0 || (EARLY_SLOTS <= FIRST_QUERY_SLOT && SLOTS <= LOADERS), "before q, and with mbarriers of the loaders");
// The warps that copy q: those that are no loaders, and later take nothing of it.
constexpr int FIRST_COPY_WARP = WIDE_OUTPUT ? FIRST_SOFTMAX_WARP : FIRST_OUTPUT_WARP;
constexpr int COPY_WARPS = WIDE_OUTPUT ? SOFTMAX_WARPS : OUTPUT_WARPS + SOFTMAX_WARPS;
constexpr u32 PLANNING_WARP = 0;  // see plan_write
// Whether the merge is launched two tiles before the end, as long before as a launch takes, or behind the last: many blocks of a merge would
// go to the multiprocessors that end first. (F16_OUTPUT: the compiler would spill.)
constexpr bool MERGE_EARLY = (COMBINE_FEW || N_TILES <= 2) && !F16_OUTPUT;
static_assert(ROWS * OUT_STRIDE <= SLOTS * SLOT_BYTES, "the staged output lives in the ring");

// Named barriers: of the softmax warps, the score warps, the loaders, the loaders and the planning warp; 0 is the whole CTA's.
constexpr u32 NAMED_POISON = 1, NAMED_QUERY = 2, NAMED_LOADERS = 3, NAMED_PLAN = 4;

#include "roles.cuh"
#include "record.cuh"

// ---- barriers -------------------------------------------------------------------------------------------------
// Shared out among the warps: an init takes some 50 clocks, and lanes of a warp take turns. Ready after the CTA's barrier; loaders have those
// of the first slots, and may use them as soon as they have met.
DEV void init_barriers(smem_addr shared) {
  if (elect_one()) {
#pragma unroll
    for (int i0 = 0; i0 < (BARRIERS_END - BARRIERS) / 8; i0 += THREADS / 32) {
      const int at = BARRIERS + (i0 + (warp_id() - FIRST_LOADER_WARP & THREADS / 32 - 1)) * 8;
      if (at >= BARRIERS_END) break;
      // In the order of the BAR_ offsets. Every thread of the role that signals arrives; of a loader warp only one.
      const u32 count = at < BAR_EMPTY           ? LOADERS * (CP_ASYNC ? 32 : 1)
                        : at < BAR_WEIGHTS_FULL  ? OUTPUT_THREADS
                        : at < BAR_WEIGHTS_EMPTY ? SOFTMAX_WARPS * 32
                        : at < BAR_SCORES_FULL   ? OUTPUT_THREADS
                        : at < BAR_SCORES_EMPTY  ? SCORE_WARPS * 32
                        : at < BAR_FINAL         ? SOFTMAX_WARPS * 32
                        : at < BAR_QUERY_FULL    ? SOFTMAX_WARPS * 32 + OUTPUT_THREADS
                        : at < BAR_QUERY_READ    ? COPY_WARPS * 32
                                                 : SCORE_WARPS * 32;
      mbarrier_init(shared + at, count);
    }
    if (warp_id() < SOFTMAX_WARPS) sts_u32(shared + POISON_FLAGS + warp_id() * 4, 0);
    if (!CP_ASYNC) fence_mbarrier_init();
  }
  sync_warp();
}

// ---- q --------------------------------------------------------------------------------------------------------
// Q passes through shared memory, where the scores, the weights and the last slots will be: warps that have nothing to do yet copy it there
// before the lengths are known, and score warps take it from there into registers for the whole kernel.
static_assert(QUERY >= RING + TILE_SLOTS * SLOT_BYTES, "the first tile is on its way meanwhile");

// A warp copies a row at a time; where its i-th begins, lane i has found out. Rows past the last repeat it; nothing of theirs is stored.
DEV bool copies_query(u32 warp) { return warp >= FIRST_COPY_WARP && warp < FIRST_COPY_WARP + COPY_WARPS; }
DEV void query_copy(const dw_params &p, const Cta &c, int warp) {
  constexpr int CHUNKS = (QUERY_STRIDE - 16) / 16, EACH = (ROWS + COPY_WARPS - 1) / COPY_WARPS;
  const int first = warp - FIRST_COPY_WARP, own = first + lane_id() * COPY_WARPS;
  const int row = c.first_row + (own < c.rows ? own : c.rows - 1);
  const s64 start = 2 * q_offset(p, c.request, row), rope = start + q_rope_shift(p, c.request, row);  // rope: for the elements from V on
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    const u8 *from = (const u8 *)p.q + shuffle_s64(start, i), *from_rope = q_apart(p) ? (const u8 *)p.q + shuffle_s64(rope, i) : from;
    const smem_addr to = c.shared + QUERY + (first + i * COPY_WARPS) * QUERY_STRIDE;
    if (ROWS % COPY_WARPS && first + i * COPY_WARPS >= ROWS) break;
#pragma unroll
    for (int i0 = 0; i0 < CHUNKS; i0 += 32) {
      const int chunk = i0 + lane_id(), at = chunk * 16;
      if (chunk < CHUNKS) cp_async_16(to + chunk * 16, (at < V * 2 ? from : from_rope) + at);
    }
  }
}
// Every score warp has what it needs of q, and the ring and the scores may be written.
DEV void query_read(const Cta &c) {
  if (!CP_ASYNC) fence_proxy_async();
  mbarrier_arrive(c.shared + BAR_QUERY_READ);
}
DEV void wait_query_read(const Cta &c) { mbarrier_wait(c.shared + BAR_QUERY_READ, 0); }
// Of what was guessed, and, once the mbarriers are ready, where that was not possible or wrong.
DEV void query_guess(const dw_params &p, const Work &guess, int groups, int group, Cta &c) {
  c.request = load_request(p, guess.request, 0);
  if (take_rows(p, groups, group, c)) query_copy(p, c, warp_id());
}
DEV void query_begin(const dw_params &p, const Cta &c, bool copied, int warp) {
  if (!copied) {
    cp_async_wait_all();
    query_copy(p, c, warp);
  }
  cp_async_mbarrier_arrive(c.shared + BAR_QUERY_FULL);
}
// ---- loader: one bulk copy per token, or copies of 16 bytes ---------------------------------------------------
DEV void wait_slot(const Cta &c, int n, const Turn<SLOTS> &ring) {
  if (n == FIRST_QUERY_SLOT) wait_query_read(c);
  if (n >= SLOTS) ring.wait_empty(c.shared + BAR_EMPTY);
}
static_assert(!WIDE_OUTPUT || SLOTS - 1 <= ENTRY_SLOTS, "the first tiles are asked for with the first entries");

// CP_ASYNC: lane i has the entry of token i % OWN_TOKENS; all lanes copy, 16 bytes of neighbouring places each.
DEV void copy_tokens(const dw_params &p, int entry, int token, smem_addr to, smem_addr full) {
  constexpr u32 CHUNKS = RECORD_BYTES / 16, ALL = OWN_TOKENS * CHUNKS;
#pragma unroll 3
  for (u32 i = 0; i < (ALL + 31) / 32; i++) {
    const u32 at = i * 32 + lane_id(), own = at / CHUNKS % OWN_TOKENS, chunk = at % CHUNKS;
    const int of = (int)shuffle((u32)entry, own), t = (int)shuffle((u32)token, own);
    const u8 *from = kv_apart(p) && chunk * 16 >= LATENT_BYTES ? kv_rope_address(p, of, t) - LATENT_BYTES : kv_address(p, of, t);
    if (at < ALL) cp_async_16(to + own * TOKEN_STRIDE + chunk * 16, from + chunk * 16);
  }
  cp_async_mbarrier_arrive(full);
}
DEV void load_slot(const dw_params &p, const Cta &c, const Loader &l, int n, Turn<SLOTS> &ring) {
  const int lane = lane_id(), slot = ring.at;
  int entry = loader_entry(l, n), token = loader_token(c, n);
  if (token >= c.tiles.end) entry = l.safe_entry, token = tile_token(c, 0);
  const smem_addr full = c.shared + BAR_FULL + slot * 8;
  if (CP_ASYNC) {
    copy_tokens(p, entry, token, c.shared + RING + slot * SLOT_BYTES + loader_first_token() * TOKEN_STRIDE, full);
    return ring.next();
  }
  if (lane == 0) mbarrier_arrive_expect(full, OWN_TOKENS * RECORD_BYTES);
  sync_warp();
  const smem_addr to = c.shared + RING + slot * SLOT_BYTES + (loader_first_token() + lane % OWN_TOKENS) * TOKEN_STRIDE;
  const bool rope = lane >= OWN_TOKENS;  // lanes OWN_TOKENS and up load what lies apart
  if (lane < (kv_apart(p) ? 2 : 1) * OWN_TOKENS)
    bulk_load(rope ? to + LATENT_BYTES : to, rope ? kv_rope_address(p, entry, token) : kv_address(p, entry, token),
              rope ? RECORD_BYTES - LATENT_BYTES : kv_apart(p) ? LATENT_BYTES : RECORD_BYTES, full);
  ring.next();
}
// What a chain of products has added up in fp16, to the sums.
template <int NT>
DEV void add_chains(float (&sums)[NT][4], const u32 (&chain)[NT][2]) {
#pragma unroll
  for (int t = 0; t < NT; t++)
#pragma unroll
    for (int i = 0; i < 2; i++) add_f16x2(sums[t][2 * i], sums[t][2 * i + 1], chain[t][i]);
}
// ---- score: S^T = K Q^T ---------------------------------------------------------------------------------------
// A score warp has a quarter of the QK dimensions: K_STEPS mma steps of 16, all query rows, all 16 tokens.
DEV u32 greatest(const u32x4 &v) {
  const u32 a = v.x > v.y ? v.x : v.y, b = v.z > v.w ? v.z : v.w;
  return a > b ? a : b;
}

// Row l / 4 of each tile is lane l's, two elements of each half of a step; over e4m3 in the order of key_step.
template <int NT>
DEV void query_registers(const Cta &c, Query<NT> &q) {
#pragma unroll
  for (int t = 0; t < NT; t++) {
    if (!KV_E4M3) {
      const u32 l = lane_id();
      const smem_addr from = c.shared + QUERY + (t * 8 + (l & 7)) * QUERY_STRIDE + warp_id() * K_STEPS * 32 + (l >> 3) * 16;
#pragma unroll
      for (int k = 0; k + 1 < K_STEPS; k += 2) {
        u32 r[4];
        ldmatrix_x4(r, from + k * 32);
        q.b[k][t][0] = r[0], q.b[k][t][1] = r[1], q.b[k + 1][t][0] = r[2], q.b[k + 1][t][1] = r[3];
      }
      if (K_STEPS % 2) ldmatrix_x2(q.b[K_STEPS - 1][t], from + (K_STEPS - 1) * 32);
      continue;
    }
    constexpr int LATENT_STEPS = KV_RECORD ? K_STEPS - 1 : K_STEPS;
    const int word = lane_id() & 3;
    const smem_addr row = c.shared + QUERY + (t * 8 + (lane_id() >> 2)) * QUERY_STRIDE;
#pragma unroll
    for (int k = 0; k < LATENT_STEPS; k++) {
      const f32x2 pair = lds_f32x2(row + (warp_id() * LATENT_STEPS + k) * 32 + word * 8);
      q.b[k][t][0] = float_to_bits(pair.x), q.b[k][t][1] = float_to_bits(pair.y);
    }
    if (KV_RECORD) {  // the rope, as an mma has it
      const smem_addr rope = row + V * 2 + warp_id() * 32 + word * 4;
      q.b[K_STEPS - 1][t][0] = lds_u32(rope), q.b[K_STEPS - 1][t][1] = lds_u32(rope + 16);
    }
  }
}
// With products in e4m3 a row's greatest element of q goes to 2^7 .. 2^8, and an element is the sum of two e4m3: what rounding left of the
// first is the second, so that some eight bits are held. The rope of records stays bf16 and is multiplied by the same power of 2.
DEV u32 query_exponent(u32 most) {  // biased; 255: not finite
  const u32 exponent = float_to_bits(q_to_float(most)) >> 23;
  return exponent < 8 ? 8 : exponent;
}
// What 1 in fp16 or e4m3 stands for. (e4m3 has no infinity: such a row is NaN.)
DEV float query_unit(u32 most) {
  if (!E4M3_MMA) return F16_SCORES ? chain_unit(most) : narrow_unit(most);
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
    for (int i = 0; i < 2 * K_STEPS; i++) {
      u32 &w = q.b[i / 2][t][i % 2];
      if (F16_SCORES) w = Q_F16 ? mul_f16x2(w, chain_factor(m)) : mul_f16x2(narrow_query(w, base), NARROW_TO_CHAIN);
      else if (KV_RECORD && i / 2 == K_STEPS - 1) w = mul_bf16x2(w, 0x77807780 - base);  // 1 / query_unit
      else w = narrow_query(w, base);
    }
  }
}
template <int NT>
DEV void query_take(const Cta &c, Query<NT> &q) {
  mbarrier_wait(c.shared + BAR_QUERY_FULL, 0);
  query_registers(c, q);
  query_read(c);
  wait_query_read(c);
  if (NARROW_QUERY) query_narrow<NT>(c, q);
}

constexpr int E4M3_AHEAD = F16_OUTPUT ? 1 : 2;  // for AHEAD: each fragment has twice as many elements

// Row-major [token][dim] tile read as A: lane's ldmatrix row = token lane % 16, 16 bytes from 16 (lane / 16).
DEV smem_addr key_fragment(const Cta &c, int slot) {
  return c.shared + RING + slot * SLOT_BYTES + (lane_id() & 15) * TOKEN_STRIDE + (lane_id() >> 4) * 16 +
         warp_id() * (KV_RECORD ? RECORD_GROUP : K_STEPS * 16 * KV_BYTES);
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
// halves of a tile take turns, unless the rows are enough for products that do not wait for one another: then the second half may come
// later. Where the steps are odd, the last one is alone.
// F16_SCORES: both steps of a pair add up in fp16.
template <int NT>
DEV void score_pair(const u32 (&r)[4], const Query<NT> &q, int k, float (&s)[NT][4]) {
  u32 chain[NT][2] = {};
#pragma unroll
  for (int i = 0; i < 2; i++) {
    u32 a[4];
    if (!E4M3_MMA) key_step(a, r[2 * i], r[2 * i + 1]);
#pragma unroll
    for (int t = 0; t < NT; t++) {
      const u32 part[2] = {q.b[k][t][i], q.b[k + 1][t][i]};
      if (E4M3_MMA) mma_m16n8k32_e4m3(s[t], r, part);
      else if (F16_SCORES) mma_m16n8k16_f16_f16(chain[t], a, q.b[k + i][t]);
      else mma_mul(s[t], a, q.b[k + i][t]);
    }
  }
  if (F16_SCORES) add_chains<NT>(s, chain);
}
template <int NT>
DEV void score_last(const u32 (&r)[2], const Query<NT> &q, float (&s)[NT][4]) {
  u32 chain[NT][2] = {};
  u32 a[4];
  if (!E4M3_MMA) key_step(a, r[0], r[1]);
#pragma unroll
  for (int i = 0; i < (E4M3_MMA ? 2 : 1); i++)
#pragma unroll
    for (int t = 0; t < NT; t++) {
      const u32 part[1] = {q.b[K_STEPS - 1][t][i]};
      if (E4M3_MMA) mma_m16n8k16_e4m3(s[t], r, part);
      else if (F16_SCORES) mma_m16n8k16_f16_f16(chain[t], a, q.b[K_STEPS - 1][t]);
      else mma_mul(s[t], a, q.b[K_STEPS - 1][t]);
    }
  if (F16_SCORES) add_chains<NT>(s, chain);
}
template <int NT>
DEV void score_e4m3(const Cta &c, Turn<SLOTS> ring, const Query<NT> &q, float (&s)[HALVES][NT][4]) {
  constexpr int EACH = K_STEPS / 2, LOADS = EACH * HALVES;
  constexpr bool IN_TURN = NT < 5 || TILE_SLOTS == 1;
  const auto half = [](int i) { return IN_TURN ? i % HALVES : i / EACH; };
  const auto step = [](int i) { return IN_TURN ? i / HALVES : i % EACH; };
  const int slot = ring.at;
  smem_addr keys[HALVES];
  u32 raw[E4M3_AHEAD + 1][4], last[HALVES][2];
  RecordRest rest[HALVES];
  const auto load = [&](int i) {
    if (i >= LOADS) return;
    if (step(i) == 0) {
      keys[half(i)] = TILE_SLOTS > 1 ? key_fragment(c, ring.at) : key_fragment(c, slot) + half(i) * 16 * TOKEN_STRIDE;
      if (TILE_SLOTS > 1) {
        ring.wait_full(c.shared + BAR_FULL);
        ring.next();
      }
    }
    ldmatrix_x4(raw[i % (E4M3_AHEAD + 1)], keys[half(i)] + step(i) * 32);
  };
#pragma unroll
  for (int i = 0; i < E4M3_AHEAD; i++) load(i);
#pragma unroll
  for (int i = 0; i < LOADS; i++) {
    load(i + E4M3_AHEAD);
    if (K_STEPS % 2 && !KV_RECORD && i == LOADS - HALVES)
#pragma unroll
      for (int h = 0; h < HALVES; h++) ldmatrix_x2(last[h], keys[h] + EACH * 32);
    if (KV_RECORD && i >= LOADS - HALVES) record_rest(c, slot, i % HALVES, rest[i % HALVES]);
    score_pair<NT>(raw[i % (E4M3_AHEAD + 1)], q, step(i) * 2, s[half(i)]);
  }
#pragma unroll
  for (int h = 0; h < HALVES && K_STEPS % 2; h++) {
    if (KV_RECORD) score_rest<NT>(rest[h], q, s[h]);
    else score_last<NT>(last[h], q, s[h]);
  }
}

template <int NT>
DEV void score_loop(const Cta &c, const Query<NT> &q) {
  Turn<SLOTS> ring;
  Turn<SCORE_BUFFERS> scores;
  for (int tile = 0; tile < c.tiles.count; tile++) {
    const smem_addr keys = key_fragment(c, ring.at);
    if (TILE_SLOTS == 1) ring.wait_full(c.shared + BAR_FULL);
    float s[HALVES][NT][4];
#pragma unroll
    for (int h = 0; h < HALVES; h++)
#pragma unroll
      for (int t = 0; t < NT; t++) s[h][t][0] = s[h][t][1] = s[h][t][2] = s[h][t][3] = 0.f;
    if (KV_RECORD && HALVES == 1) split_scales(c, ring.at);  // (below there are no registers for it)
    if (KV_E4M3) score_e4m3<NT>(c, ring, q, s);
    else score_16<NT>(keys, q, s[0]);
    if (KV_RECORD && HALVES > 1) split_scales(c, ring.at);  // where score warps wait anyway
    if (tile >= SCORE_BUFFERS) scores.wait_empty(c.shared + BAR_SCORES_EMPTY);
#pragma unroll
    for (int h = 0; h < HALVES; h++) score_store<NT>(c.shared + SCORES + scores.at * SCORE_BYTES + h * SCORE_HALF, s[h]);
    scores.arrive(c.shared + BAR_SCORES_FULL);
#pragma unroll
    for (int i = 0; i < TILE_SLOTS; i++) ring.next();
    scores.next();
  }
}

// ---- softmax: scores -> weights -------------------------------------------------------------------------------
// Rows 0..31: a quad has a row, a lane four positions of each half of a tile (score_token). Rows 32..39: 16 lanes have a row, a lane
// one position of each half.
constexpr bool CLEAN_WHAT_IS_SEEN = false, PAIR_SUMS = false;
#include "softmax.cuh"

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
// E (0) or 2^-E (1) of the lane's tokens of a tile of records.
template <int L, int T>
DEV void softmax_scales(const Cta &c, int slot, int which, const SoftmaxRow<L, T> &x, float (&v)[SoftmaxRow<L, T>::ALL]) {
  const smem_addr scales = token_scales(c, slot) + which * 4;
#pragma unroll
  for (int i = 0; i < x.ALL; i++) v[i] = lds_f32(scales + (i / T * 16 + score_token(x.position + i % T)) * 8);
}
// Known once the first scores are there.
template <int L, int T>
DEV void softmax_unit(const dw_params &p, const Cta &c, SoftmaxRow<L, T> &x) {
  x.scale = (WITH_SOFT_CAP ? 1.f : p.scale_log2) * stored_scale(p.k_scale);  // a soft cap applies the softmax scale itself
  if (NARROW_QUERY) x.scale *= query_unit(greatest(lds_u32x4(c.shared + QUERY_MOST + x.row * 16)));
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
DEV void softmax_end(const dw_params &p, const Cta &c, SoftmaxRow<L, T> &x) {
  const float sum = softmax_total<L>(x.sum), rounded = softmax_total<L>(x.rounded);
  const bool nothing = softmax_nothing(p, c, x, sum);
  if (x.position) return;
  sts_f32(c.shared + FINAL + x.row * 4, nothing ? 0.f : 1.f / (KV_RECORD ? sum : rounded));
  sts_f32(c.shared + FINAL + (ROWS + x.row) * 4, nothing ? MINUS_INF : softmax_lse(x, sum));
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
  const SoftCap cap = soft_cap_start(p, c.request.total < 0, CAP_IN_WEIGHTS ? lane_id_anew() >> 5 : 0);
  int poison_turn = 0;  // offset of an edge's poison flags
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

#include "softmax_tile.cuh"

    const smem_addr write = c.shared + WEIGHTS + weights.at * WEIGHT_BYTES, factors = c.shared + RESCALE + weights.at * ROWS * 4;
    if (tile >= WEIGHT_BUFFERS) weights.wait_empty(c.shared + BAR_WEIGHTS_EMPTY);
    if (has_x) softmax_write(write, factors, x, factor_x);
    if (TAIL) softmax_write(write, factors, y, factor_y);
    if (lane_id() == 0) sts_u32(c.shared + RESCALE_FLAGS + (weights.at * SOFTMAX_WARPS + warp) * 4, grow_x | grow_y);
    weights.arrive(c.shared + BAR_WEIGHTS_FULL);
    t0 += c.tiles.stride;
#pragma unroll
    for (int i = 0; i < TILE_SLOTS; i++) ring.next();
    scores.next();
    weights.next();
  }
  if (has_x) softmax_end(p, c, x);
  if (TAIL) softmax_end(p, c, y);
  mbarrier_arrive(c.shared + BAR_FINAL);
}

// ---- output: O^T += V^T P^T -----------------------------------------------------------------------------------
// e4m3: matrices (tokens 0-7, dims 0-15), (8-15, 0-15), (0-7, 16-31), (8-15, 16-31) of pairs of elements for one.
DEV smem_addr value_pairs(const Cta &c, int slot) {
  const u32 l = lane_id();
  return c.shared + RING + slot * SLOT_BYTES + (l & 15) * TOKEN_STRIDE + (l >> 4) * 16 + output_warp() * V_EACH;
}
// Products in e4m3: matrices of tokens 0-7, 8-15, 16-23 and 24-31.
DEV smem_addr value_bytes(const Cta &c, int slot) {
  return c.shared + RING + slot * SLOT_BYTES + (lane_id() & 15) * TOKEN_STRIDE + output_warp() * V_EACH;
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

// The weights of a tile say that its bytes have landed, too. A half is done, and its slot empty, before the next.
template <int NT>
DEV void output_tile(const Cta &c, bool first, Turn<SLOTS> ring, const Turn<WEIGHT_BUFFERS> &weights, Output<NT> &out) {
  constexpr int EACH = KV_E4M3 && !E4M3_MMA ? V_TILES / 2 : V_TILES;  // loads of a half, or, in e4m3, of both
  constexpr int LOADS = E4M3_MMA ? EACH : HALVES * EACH, FIRST = KV_E4M3 ? E4M3_AHEAD : AHEAD;
  Turn<SLOTS> second = ring;
  if (TILE_SLOTS > 1) second.next();
  const smem_addr values = E4M3_MMA  ? value_bytes(c, lane_id() < 16 ? ring.at : second.at)
                           : KV_E4M3 ? value_pairs(c, ring.at)
                                     : value_fragment(c, ring.at);
  const smem_addr second_values = TILE_SLOTS > 1 ? value_pairs(c, second.at) : values + 16 * TOKEN_STRIDE;
  const auto place = [&](int i) { return (i < EACH ? values : second_values) + i % EACH * (E4M3_MMA ? 16 : 32); };
  weights.wait_full(c.shared + BAR_WEIGHTS_FULL);
  u32 a[FIRST + 1][4], b[HALVES][NT][2];
#pragma unroll
  for (int i = 0; i < FIRST && i < LOADS; i++) ldmatrix_x4_trans(a[i], place(i));
#pragma unroll
  for (int h = 0; h < HALVES && !E4M3_MMA; h++) load_weights<NT>(c.shared + WEIGHTS + weights.at * WEIGHT_BYTES + h * WEIGHT_HALF, b[h]);
#pragma unroll
  for (int h = 0; h < HALVES && KV_RECORD; h++) scale_weights<NT>(c, ring.at, h, b[h]);
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
      if (F16_OUTPUT) {
        // Products wait for the sums of the last but one: else the compiler starts so many ahead that it spills.
        const int at = i % EACH * 2 + m, before = (at + V_TILES - 2) % V_TILES;
        value_step(v, r[2 * m], r[2 * m + 1], float_to_bits(out.o[before][NT - 1][3]));
        u32 chain[NT][2] = {};
#pragma unroll
        for (int t = 0; t < NT; t++) mma_m16n8k16_f16_f16(chain[t], v, b[i / EACH][t]);
        add_chains<NT>(out.o[at], chain);
        continue;
      }
      value_step(v, r[2 * m], r[2 * m + 1]);
#pragma unroll
      for (int t = 0; t < NT; t++) mma_mul(out.o[i % EACH * 2 + m][t], v, b[i / EACH][t]);
    }
    if (TILE_SLOTS > 1 && i == EACH - 1) ring.arrive(c.shared + BAR_EMPTY);
  }
  if (TILE_SLOTS == 1 || E4M3_MMA) ring.arrive(c.shared + BAR_EMPTY);
  if (TILE_SLOTS > 1) second.arrive(c.shared + BAR_EMPTY);
}

template <int NT>
DEV void output_role(const dw_params &p, const Cta &c, Loader &l) {
  Output<NT> out;
  Turn<SLOTS> ring, load;
  Turn<WEIGHT_BUFFERS> weights;
  if (WIDE_OUTPUT) {
    const int ahead = SLOTS - 1 < slot_count(c) ? SLOTS - 1 : slot_count(c);
#pragma unroll 1
    for (int n = 0; n < ahead; n++) {
      wait_slot(c, n, load);
      load_slot(p, c, l, n, load);
    }
  }
#pragma unroll 1
  for (int tile = 0; tile < c.tiles.count; tile++) {
    if (MERGE_EARLY && !p.early_launch && tile + 2 >= c.tiles.count) grid_dependents_launch();
    output_tile<NT>(c, tile == 0, ring, weights, out);
#pragma unroll
    for (int h = 0; h < TILE_SLOTS; h++) ring.next();
    weights.next();
#pragma unroll
    for (int h = 0; h < TILE_SLOTS; h++) {
      const int next = tile * TILE_SLOTS + h + SLOTS - 1;
      if (WIDE_OUTPUT && next < slot_count(c)) {
        loader_advance(p, c, l, next);
        if (next == FIRST_QUERY_SLOT) wait_query_read(c);
        if (tile || h) load.wait_empty(c.shared + BAR_EMPTY);
        load_slot(p, c, l, next, load);
      }
    }
  }
  if (!p.early_launch && (!MERGE_EARLY || c.tiles.count == 0)) grid_dependents_launch();
  mbarrier_arrive(c.shared + BAR_FINAL);
  mbarrier_wait(c.shared + BAR_FINAL, 0);
  if (KV_RECORD) output_store_wide<NT>(p, c, out);
  else output_store<NT>(p, c, 0, out);
}

// ---- kernel ---------------------------------------------------------------------------------------------------
DEV void loader_role(const dw_params &p, const Work &guess, Cta &c, Loader &l) {
  if (SETMAXNREG) registers_dec<LOADER_REGISTERS>();
  int early = 0;
  if (EARLY_SLOTS) {
    barrier_arrive(0, THREADS);                 // nobody waits for loaders
    barrier_sync(NAMED_LOADERS, 32 * LOADERS);  // the mbarriers of the first slots are ready
    early = loader_early(p, guess, c, l);
    barrier_sync(NAMED_PLAN, 32 * (1 + LOADERS));  // all are, and what there is to do is known
  } else {
    barrier_sync(0, THREADS);
  }
  if (!early) {
    bool guessed;
    if (plan_read(c, guessed) == 0) return grid_dependency_wait();
    loader_begin(p, c, guessed, l);
  }
  if (p.dependent) grid_dependency_wait();
  loader_loop(p, c, l, early);
}

template <int NT>
DEV void run_cta(const dw_params &p, const Cta &c, bool guessed, bool asked, Loader &l) {
  // The same in all lanes, which the compiler sees: without, it takes each role for a divergent branch (spills, code for lone lanes).
  const u32 warp = shuffle(warp_id(), 0);
  if (WIDE_OUTPUT && is_loader(warp)) loader_begin(p, c, guessed, l);
  if (p.dependent) grid_dependency_wait();
  if (c.tiles.count == 0) cp_async_wait_all();  // nobody takes q, and results will be staged where it is on its way
  else if (copies_query(warp)) query_begin(p, c, asked && guessed, warp);
  if (warp < SCORE_WARPS) {
    if (SETMAXNREG) registers_inc<SCORE_REGISTERS>();
    Query<NT> q;
    if (c.tiles.count) query_take<NT>(c, q);
    score_loop<NT>(c, q);
  } else if (warp < FIRST_SOFTMAX_WARP) {
    if (SETMAXNREG) registers_inc<OUTPUT_REGISTERS>();
    output_role<NT>(p, c, l);
  } else {
    if (SETMAXNREG) registers_dec<SOFTMAX_REGISTERS>();
    softmax_loop<NT>(p, c);
  }
}

extern "C" __global__ void __launch_bounds__(512, 1) dw_verify(const __grid_constant__ dw_params p) {
  if (p.early_launch) grid_dependents_launch();
  Cta c;
  Loader l;
  c.shared = smem_base();
  const u32 warp = shuffle(warp_id(), 0);  // the same in all lanes, which the compiler sees
  const Work guess = guess_work(p);
  const bool asked = query_guessed(p, guess);
  Lengths lengths{};
  if (ALL_PLAN || warp == PLANNING_WARP) lengths = ask_lengths(p, guess.request);
  if (is_loader(warp)) loader_guess(p, guess, c, l);
  if (copies_query(warp) && asked) query_guess(p, guess, gridDim.x, blockIdx.x, c);
  init_barriers(c.shared);
  if (!WIDE_OUTPUT && is_loader(warp)) return loader_role(p, guess, c, l);
  int nt = 0;
  bool guessed = false;
  if (ALL_PLAN || warp == PLANNING_WARP) nt = plan_find(p, guess, lengths, gridDim.x, blockIdx.x, c, guessed);
  if (!ALL_PLAN && warp == PLANNING_WARP) plan_write(c, nt, guessed);
  barrier_sync(0, THREADS);
  if (EARLY_SLOTS && warp == PLANNING_WARP) barrier_arrive(NAMED_PLAN, 32 * (1 + LOADERS));
  if (!ALL_PLAN) nt = plan_read(c, guessed);
  if (nt == 0) {  // the kernel after the next relies on this one to have waited for the one before
    cp_async_wait_all();
    grid_dependency_wait();
    return;
  }
  run_cta<N_TILES>(p, c, guessed, asked, l);
}
