// What the kernels with warp roles share: turns at slots and buffers, the work of a CTA, its table entries, its rows of q. The family
// has set its layout before (warps of each role, SLOTS, K_STEPS, offsets); how a tile is loaded it says itself.
#pragma once

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
DEV int slot_count(const Cta &c) { return c.tiles.count * (TILE / SLOT_TOKENS); }

// What a score warp needs of q: NT tiles of 8 rows, K_STEPS steps of 16 dimensions, as B fragments.
template <int NT>
struct Query {
  u32 b[K_STEPS][NT][2];
};

// ---- table entries --------------------------------------------------------------------------------------------
// A tile lies in TILE_SLOTS slots, which are filled and emptied one by one; the n-th to be filled is number n of the range. A loader warp
// owns SLOT_TOKENS / LOADERS tokens of each. Its lanes hold the table entries of the next ENTRY_SLOTS, one (slot, token) a lane,
// read that many ahead.
constexpr int TILE_SLOTS = TILE / SLOT_TOKENS;
constexpr int OWN_TOKENS = SLOT_TOKENS / LOADERS;
constexpr int ENTRY_SLOTS = 32 / OWN_TOKENS;
DEV int slot_token(const Tiles &tiles, int n) {  // its first
  return tiles.first + n / TILE_SLOTS * tiles.stride + n % TILE_SLOTS * SLOT_TOKENS;
}

DEV bool is_loader(u32 warp) { return warp >= FIRST_LOADER_WARP && warp < FIRST_LOADER_WARP + LOADERS; }

struct Loader {
  int entries, next_entries;
  int safe_entry;   // of the range's first token, which stands in for those past the end
  Lengths lengths;  // with early slots
};
DEV int loader_first_token() { return (warp_id() - FIRST_LOADER_WARP) * OWN_TOKENS; }  // within a slot

DEV int loader_lane_token(const Tiles &tiles, int n) {
  const int lane = lane_id();
  return slot_token(tiles, n + lane / OWN_TOKENS) + loader_first_token() + lane % OWN_TOKENS;
}
// Entries of slots n .. n + ENTRY_SLOTS - 1. Under CSR only tokens that exist may be looked up.
DEV int loader_entries(const dw_params &p, const Request &r, const Tiles &tiles, int n) {
  const int t = loader_lane_token(tiles, n);
  return by_table(p) || t < r.total ? kv_entry(p, r, t) : 0;
}
// The first entries, asked for before anything is known of the lengths (block table): a load that waits for another costs 0.5 us
// at kernel start.
DEV void loader_start(const dw_params &p, const Request &r, const Tiles &tiles, Loader &l) {
  l.entries = loader_entries(p, r, tiles, 0);
  const int t = tiles.first;
  l.safe_entry = by_table(p) || t < r.total ? kv_entry(p, r, t) : 0;
  l.next_entries = loader_entries(p, r, tiles, ENTRY_SLOTS);
}
// A lane's token of a slot, and its entry. A token past the range's end is to be replaced by the first, whose entry is `safe_entry`.
DEV int loader_token(const Cta &c, int n) { return slot_token(c.tiles, n) + loader_first_token() + lane_id() % OWN_TOKENS; }
DEV int loader_entry(const Loader &l, int n) { return shuffle((u32)l.entries, n % ENTRY_SLOTS * OWN_TOKENS + lane_id() % OWN_TOKENS); }
DEV void load_slot(const dw_params &p, const Cta &c, const Loader &l, int n, Turn<SLOTS> &ring);
DEV void wait_slot(const Cta &c, int n, const Turn<SLOTS> &ring);  // until it may be filled
DEV void loader_advance(const dw_params &p, const Cta &c, Loader &l, int n) {  // before load_slot of every one but the first
  if (n % ENTRY_SLOTS) return;
  l.entries = l.next_entries;
  if (n + ENTRY_SLOTS < slot_count(c)) l.next_entries = loader_entries(p, c.request, c.tiles, n + ENTRY_SLOTS);
}

// From slot number `first` on.
DEV void loader_loop(const dw_params &p, const Cta &c, Loader &l, int first) {
  Turn<SLOTS> ring{first};
#pragma unroll 1
  for (int n = first; n < slot_count(c); n++) {
    if (n) loader_advance(p, c, l, n);
    wait_slot(c, n, ring);
    load_slot(p, c, l, n, ring);
  }
}

// Loaders find out themselves whether the guess holds, which is all they have to know, and ask for the first slots while another warp finds
// what there is to know for the others. (Not while a kernel before this one may still write the KV, nor where more lengths would have to be
// waited for, nor in a group that a call of fewer drafts than the shape's leaves without rows: its other warps end at once.)
DEV int loader_early(const dw_params &p, const Work &guess, Cta &c, const Loader &l) {
  const int length = length_of(l.lengths, guess.request);
  int first_tile;
  const bool rows = group_tiles(p, p.width * HEADS, gridDim.x, blockIdx.x, &first_tile) > 0;
  if (guess.request < 0 || !rows || p.dependent || p.batch > 32 || !guess_holds(p, guess, l.lengths, length)) return 0;
  c.tiles = Tiles{guess.range * TILE, guess.share.ranges * TILE, 0, length};
  Turn<SLOTS> ring;
  int n = 0;
#pragma unroll 1
  for (; n < EARLY_SLOTS && slot_token(c.tiles, n) < length; n++) load_slot(p, c, l, n, ring);
  c.tiles = find_tiles(p, guess, length, 0);
  return n;
}

constexpr int AHEAD = 3;  // ldmatrix fragments in flight before their mma

// ---- output ---------------------------------------------------------------------------------------------------
// An output warp has V_EACH dimensions (V_TILES mma row tiles) of all query rows. Lane l holds of o[m][t]: dimensions
// 16 m + l / 4 (+ 8), query rows 8 t + 2 (l % 4) (+ 1).
template <int NT>
struct Output {
  float o[V_TILES][NT][4];
  DEV Output() {
#pragma unroll
    for (int m = 0; m < V_TILES; m++)
#pragma unroll
      for (int t = 0; t < NT; t++) o[m][t][0] = o[m][t][1] = o[m][t][2] = o[m][t][3] = 0.f;
  }
};

DEV int output_warp() { return warp_id() - FIRST_OUTPUT_WARP; }
// [token][dim] tile read as A^T by ldmatrix.trans: matrices (tokens 0-7, dims 0-7), (0-7, 8-15), (8-15, 0-7), (8-15, 8-15).
DEV smem_addr value_fragment(const Cta &c, int slot) {
  const u32 l = lane_id();
  return c.shared + RING + slot * SLOT_BYTES + ((l & 7) + (l >> 4) * 8) * TOKEN_STRIDE + (l >> 3 & 1) * 16 +
         output_warp() * V_EACH * 2;
}

// Of a CTA's first row among the partial results.
DEV s64 partial_row(const dw_params &p, const Cta &c) { return (s64)c.slot * p.rows + c.first_row; }
// Normalised fp16 rows through the ring to the workspace, 16 bytes a lane; a warp stages and stores its own dimensions, a row tile at a time,
// so that one is on its way while the next is staged (over e4m3 all at once, or the compiler spills). The CTA has those of V from `first_dim` on.
template <int NT>
DEV void output_store(const dw_params &p, const Cta &c, int first_dim, const Output<NT> &out) {
  constexpr int LANES = V_EACH / 8, TOGETHER = KV_E4M3 ? NT : 1;  // lanes that store one row; row tiles
  const u32 l = lane_id();
  const smem_addr stage = c.shared + RING + output_warp() * V_EACH * 2, at = stage + (l & 7) * OUT_STRIDE + (l >> 3) * 16;
  const s64 first = partial_row(p, c);
  u8 *to = (u8 *)p.partial + (first * V + first_dim + output_warp() * V_EACH + l % LANES * 8) * 2;
#pragma unroll
  for (int t0 = 0; t0 < NT; t0 += TOGETHER) {
#pragma unroll
    for (int t = t0; t < t0 + TOGETHER; t++) {
      const f32x2 scale = lds_f32x2(c.shared + final_at(t * 8 + 2 * (l & 3)));
      if (KV_E4M3) {
        const smem_addr pairs = stage + (t * 8 + 2 * (l & 3)) * OUT_STRIDE + (l >> 2) * 4;
#pragma unroll
        for (int m = 0; m < V_TILES; m++) store_pairs(pairs + m * 32, OUT_STRIDE, out.o[m][t], scale);
        continue;
      }
      const smem_addr words = stage + (t * 8 + (l >> 2)) * OUT_STRIDE + (l & 3) * 4;
#pragma unroll
      for (int m = 0; m < V_TILES; m += 2) {
        const float(&x)[4] = out.o[m][t], (&y)[4] = out.o[m + 1][t];
        const u32 r[4] = {pack_f16x2(x[0] * scale.x, x[1] * scale.y), pack_f16x2(x[2] * scale.x, x[3] * scale.y),
                          pack_f16x2(y[0] * scale.x, y[1] * scale.y), pack_f16x2(y[2] * scale.x, y[3] * scale.y)};
        if (!CP_ASYNC) {
          stmatrix_x4_trans(at + t * 8 * OUT_STRIDE + m * 32, r);
          continue;
        }
#pragma unroll
        for (int i = 0; i < 4; i++) sts_u32(words + m * 32 + i * 16, movmatrix_trans(r[i]));
      }
    }
    sync_warp();
    const int end = (t0 + TOGETHER) * 8 < c.rows ? (t0 + TOGETHER) * 8 : c.rows;
#pragma unroll 4
    for (int row0 = t0 * 8; row0 < (t0 + TOGETHER) * 8; row0 += 32 / LANES) {
      const int row = row0 + l / LANES;
      if (row < end) stg_cg_v4(to + (s64)row * V * 2, lds_u32x4(stage + row * OUT_STRIDE + l % LANES * 16));
    }
  }
  if (LSE_IN_FINAL && output_warp() == 0)
    for (int row = l; row < c.rows; row += 32) stg_cg_f32(p.partial_lse + first + row, lds_f32(c.shared + final_at(ROWS + row)));
}

// ---- the start of a CTA ------------------------------------------------------------------------------------------
// From launch to the first tile a CTA waits for memory twice, for the length and its table entries and then for the tile, and what is
// computed on that way is a good part of the time. So nothing waits for a length but what needs it: table entries and q are asked for on
// a guess (guess_work), and the mbarriers are ready before the length is there. Functions of their own and no larger ones: in one, or
// with a return in its middle, the compiler no longer sees that warps do not diverge (spills).
DEV void init_barriers(smem_addr shared);
// Can q be asked for on the strength of a guess? Not if a kernel before this one still writes it.
DEV bool query_guessed(const dw_params &p, const Work &guess) { return guess.request >= 0 && !p.dependent && !rows_vary(p); }
DEV void loader_guess(const dw_params &p, const Work &guess, Cta &c, Loader &l) {
  if (!by_table(p) || guess.request < 0) return;
  c.request.index = guess.request;
  if (EARLY_SLOTS) l.lengths = ask_lengths(p, guess.request);
  loader_start(p, c.request, find_tiles(p, guess, 0, 0), l);
}
// Rows of row group `group` of `groups`; how many row tiles they are.
DEV int take_rows(const dw_params &p, int groups, int group, Cta &c) {
  const int nt = group_tiles(p, c.request.rows(), groups, group, &c.first_row);
  c.first_row *= 8;
  c.rows = c.request.rows() - c.first_row < 8 * nt ? c.request.rows() - c.first_row : 8 * nt;
  return nt;
}
// What there is to do: row tiles; 0: nothing.
DEV int plan_find(const dw_params &p, const Work &guess, const Lengths &lengths, int groups, int group, Cta &c, bool &guessed) {
  const int guess_len = length_of(lengths, guess.request);
  guessed = guess_holds(p, guess, lengths, guess_len);
  const Work work = guessed ? guess : find_ragged(p);
  if (work.request >= 0) {
    c.request = load_request(p, work.request, guessed ? guess_len : ldg_nc_s32(p.kv_len + work.request));
    c.tiles = find_tiles(p, work, c.request.total, window_tile(p, c.request));
    c.slot = work.share.first_slot + work.range;
  }
  return work.request >= 0 ? take_rows(p, groups, group, c) : 0;
}
// One warp finds it, and all read it: it is code that is executed once, and takes as long as it is to fetch. (Where output warps are
// loaders, too, all find it: what is read takes registers that there are not.)
constexpr bool ALL_PLAN = WIDE_OUTPUT;
DEV void plan_write(const Cta &c, int row_tiles, bool guessed) {
  if (!elect_one()) return;
  sts_u32x4(c.shared + PLAN, u32x4{(u32)row_tiles, guessed, (u32)c.slot, (u32)c.request.index});
  sts_u32x4(c.shared + PLAN + 16, u32x4{(u32)c.request.first_row, (u32)c.request.nodes, (u32)c.request.prefix, (u32)c.request.total});
  sts_u32x4(c.shared + PLAN + 32, u32x4{(u32)c.tiles.first, (u32)c.tiles.stride, (u32)c.tiles.count, (u32)c.tiles.end});
  sts_u32x2(c.shared + PLAN + 48, u32x2{(u32)c.first_row, (u32)c.rows});
}
// Row tiles; 0: there is nothing to do.
DEV int plan_read(Cta &c, bool &guessed) {
  const u32x4 a = lds_u32x4(c.shared + PLAN), r = lds_u32x4(c.shared + PLAN + 16), t = lds_u32x4(c.shared + PLAN + 32);
  c.first_row = (int)lds_u32(c.shared + PLAN + 48), c.rows = (int)lds_u32(c.shared + PLAN + 52);
  guessed = a.y;
  c.slot = (int)a.z;
  c.request = Request{(int)a.w, (int)r.x, (int)r.y, (int)r.z, (int)r.w};
  c.tiles = Tiles{(int)t.x, (int)t.y, (int)t.z, (int)t.w};
  return (int)a.x;
}
// Table entries of a range that was not guessed.
DEV void loader_begin(const dw_params &p, const Cta &c, bool guessed, Loader &l) {
  if (!by_table(p) || WITH_WINDOW || !guessed) loader_start(p, c.request, c.tiles, l);
}
