// What both kernels for GQA on tensor cores share: a CTA's work, what its rows see, the places of a slot, q, scores, and the kernel
// itself, which calls the family's run_cta. Comes after the family's layout: THREADS, CTAS_PER_SM, ROWS, and the places MASKS and FIRSTS.
#pragma once
#include "fragments.cuh"

constexpr int MASK_WORDS = (WIDTH + 31) / 32;

// What a CTA is to do.
struct Cta {
  Request request;
  Tiles tiles;
  int slot;             // of its partial results
  int kv_head;
  int first_row, rows;  // of those of the KV head
  int window_end;       // from this token on every row sees the prefix
  smem_addr shared;
};
DEV int row_index(const Cta &c, int row) {  // of the request
  const int at = c.first_row + row;
  return at / GROUP * HEADS + c.kv_head * GROUP + at % GROUP;
}
DEV int row_node(const Cta &c, int row) { return (c.first_row + row) / GROUP; }
// A token past the end is the last one again, and masked.
DEV int safe_token(const Cta &c, const int &t) { return t < c.request.total ? t : c.request.total - 1; }
// Does a tile hold anything that some row may not see?
DEV bool is_edge(const Cta &c, int t0) { return t0 + TILE > c.request.prefix || t0 < c.window_end; }
DEV void meet() { barrier_sync(0, THREADS); }

// Where chunk `chunk` (16 bytes) of token `row` stands in a slot: eight tokens' chunks of one number are in eight different groups of
// banks.
template <int CHUNKS>
constexpr u32 CHUNK_SPAN = CHUNKS % 8 == 0 ? 8 : CHUNKS % 4 == 0 ? 4 : 2;
template <int CHUNKS>
DEV u32 chunk_place(u32 row, u32 chunk) {
  constexpr u32 SPAN = CHUNK_SPAN<CHUNKS>;
  return (row * CHUNKS + (chunk ^ (row / (8 / SPAN) % SPAN))) * 16;
}

// ---- what rows see --------------------------------------------------------------------------------------------
// Of the CTAs that share a request only those with a tile of drafts need the mask, all do for the depth of a node in a window. MASKS:
// [row] u64, up to 64 drafts the row sees (MASK_WORDS <= 2). FIRSTS: [row] s32, first position that it sees, if there is a window.
DEV void view_rows(const dw_params &p, const Cta &c) {
  const int row = threadIdx.x;
  if (row >= ROWS) return;
  const int last = c.tiles.first + (c.tiles.count - 1) * c.tiles.stride;
  const bool drafts = MASK_WORDS <= 2 && c.tiles.count && last + TILE > c.request.prefix;
  u64 mask = 0;
  int first = -0x7fffffff;
  if (row < c.rows && (drafts || window(p))) {
    const int node = row_node(c, row);
    if (MASK_WORDS <= 2) mask = tree_bits(p, c.request, node);
    if (window(p)) {
      first = (MASK_WORDS <= 2 ? position_in(p, c.request, node, mask) : node_position(p, c.request, node)) - window(p) + 1;
      if (MASK_WORDS <= 2 && first > c.request.prefix) mask = window_drafts(p, c.request, mask, first);
    }
    if (draft_count(c.request) < 64) mask &= (1ull << draft_count(c.request)) - 1;
  }
  sts_u32x2(c.shared + MASKS + row * 8, u32x2{(u32)mask, (u32)(mask >> 32)});
  sts_u32(c.shared + FIRSTS + row * 4, (u32)first);
}
// All lanes.
DEV int find_window_end(const dw_params &p, const Cta &c) {
  if (!window(p)) return 0;
  int end = 0;
#pragma unroll
  for (int i = 0; i < ROWS; i += 32) {
    const int row = i + lane_id(), first = row < c.rows ? (int)lds_u32(c.shared + FIRSTS + row * 4) : 0;
    end = first > end ? first : end;
  }
#pragma unroll
  for (u32 d = 1; d < 32; d <<= 1) {
    const int other = (int)shuffle_xor((u32)end, d);
    end = other > end ? other : end;
  }
  return end;
}
// Of a tile at an edge, as bits.
DEV u32 row_sees(const dw_params &p, const Cta &c, int row, int t0) {
  if (row >= c.rows) return 0;
  const int first = (int)lds_u32(c.shared + FIRSTS + row * 4), column = t0 - c.request.prefix;
  if (MASK_WORDS > 2) return visible_tokens(p, c.request, row_node(c, row), first, t0);
  const u32 prefix = window(p) ? tokens_from(first, t0) : ~0u;
  if (column <= -TILE) return prefix;
  if (column >= 64) return 0;
  const u64 mask = lds_u32(c.shared + MASKS + row * 8) | (u64)lds_u32(c.shared + MASKS + row * 8 + 4) << 32;
  return column >= 0 ? (u32)(mask >> column) : (u32)(mask << -column) | (((1u << -column) - 1) & prefix);
}

// ---- q and scores ---------------------------------------------------------------------------------------------
// Of a tile of rows. Lane l asks for row l / 4; a warp load covers 64 bytes of eight rows, which are two k-steps: word 4 j + l % 4 of
// the 16 words is register j of lane l after the transpose: both B fragments of the first step, then of the second.
DEV const u8 *query_row(const dw_params &p, const Cta &c, int tile) {
  const int row = tile * 8 + (lane_id() >> 2);  // rows past the last repeat it; nothing of theirs is stored
  return (const u8 *)p.q + 2 * q_offset(p, c.request, row_index(c, row < c.rows ? row : c.rows - 1));
}
DEV void ask_query(const dw_params &p, const Cta &c, int tile, u32x4 (&raw)[QK / 32]) {
  const u8 *from = query_row(p, c, tile);
#pragma unroll
  for (int k = 0; k < QK / 32; k++) raw[k] = ldg_nc_v4(from + k * 64 + (lane_id() & 3) * 16);
}

// Lane l has of s the scores of two rows for token l / 4, then for the token 8 more.
DEV void cap_scores(const dw_params &p, const SoftCap &cap, float (&s)[4]) {
  const float product[4] = {s[0], s[1], s[2], s[3]};
  bool far = false;
#pragma unroll
  for (int k = 0; k < 4; k++) {
    far |= !(fabsf(product[k]) <= cap.most);
    s[k] = soft_cap_near(cap, product[k]);
  }
  if (vote_any(far)) {
#pragma unroll
    for (int k = 0; k < 4; k++) s[k] = soft_cap(p, cap, product[k]);
  }
}
// A score of -inf that an infinite K makes, kept apart from one that hides a token: the weight is 0 all the same. (A soft cap leaves none.)
DEV void keep_seen(float (&s)[4]) {
  if (WITH_SOFT_CAP) return;
#pragma unroll
  for (int k = 0; k < 4; k++)
    if (s[k] == MINUS_INF) s[k] = LEAST;
}
// `sees`: a row's tokens from l / 4 on as bits.
DEV void hide_scores(u32 sees, int row, float (&s)[4]) {
  if (!(sees & 1)) s[row] = MINUS_INF;
  if (!(sees >> 8 & 1)) s[2 + row] = MINUS_INF;
}

// Weight 0 times a value that is not finite would still be NaN in the product, and V does not show in the scores. Where a token is
// hidden from some row, what is not finite in its V becomes 0; a row that does see such a token (one of `bad`) gets NaN for its score.
DEV bool differ(const u32x4 &a, const u32x4 &b) { return ((a.x ^ b.x) | (a.y ^ b.y) | (a.z ^ b.z) | (a.w ^ b.w)) != 0; }
DEV void spoil_scores(u32 bad, int token, float (&s)[4]) {
#pragma unroll
  for (int k = 0; k < 4; k++)
    if (bad >> (token + (k & 2) * 4) & 1 && s[k] != MINUS_INF) s[k] = bits_to_float(0x7fffffffu);
}

// ---- results --------------------------------------------------------------------------------------------------
DEV bool row_dead(const dw_params &p, const Cta &c, int row) { return node_dead(p, c.request, row_node(c, row)); }
// Of the workspace. (With KV in e4m3 no register is left for a sign that is kept all along.)
DEV s64 partial_row(const dw_params &p, const Cta &c, int row) {
  return (KV_E4M3 ? (s64)(u32)c.slot : (s64)c.slot) * p.rows + row_index(c, row);
}

// ---- kernel ---------------------------------------------------------------------------------------------------
DEV void run_cta(const dw_params &p, Cta &c);

extern "C" __global__ void __launch_bounds__(THREADS, CTAS_PER_SM) dw_verify(const __grid_constant__ dw_params p) {
  if (p.early_launch) grid_dependents_launch();
  Cta c;
  c.shared = smem_base();
  const Work guess = guess_work(p);
  const int guess_len = guess.request >= 0 ? ldg_nc_s32(p.kv_len + guess.request) : 0;
  const bool guessed = guess_holds(p, guess, ask_lengths(p, guess.request), guess_len);
  const Work work = guessed ? guess : find_ragged(p);
  int tiles = 0;
  if (work.request >= 0) {
    const int groups = gridDim.x / KV_HEADS;
    c.request = load_request(p, work.request, guessed ? guess_len : ldg_nc_s32(p.kv_len + work.request));
    c.tiles = find_tiles(p, work, c.request.total, window_tile(p, c.request));
    c.slot = work.share.first_slot + work.range;
    c.kv_head = blockIdx.x / groups;
    const int rows = c.request.nodes * GROUP;
    tiles = group_tiles(p, rows, groups, blockIdx.x % groups, &c.first_row);
    c.first_row *= 8;
    c.rows = rows - c.first_row < 8 * tiles ? rows - c.first_row : 8 * tiles;
  }
  if (tiles == 0) {  // the kernel after the next relies on this one to have waited for the one before
    grid_dependency_wait();
    return;
  }
  run_cta(p, c);
}
