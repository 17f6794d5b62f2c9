// One request of the batch: where its rows are, how long it is, where its tokens live, what its nodes see.
#pragma once

struct Request {
  int index;
  int first_row;  // of q, out and the mask
  int nodes;      // rows of q: draft tokens of this request, 0 to WIDTH
  int prefix;     // committed tokens; every live node sees them all
  int total;      // prefix + drafts = tokens to read
  DEV int rows() const { return nodes * HEADS; }
};

constexpr bool GQA = KV_HEADS > 0;
constexpr int GROUP = GQA ? HEADS / KV_HEADS : HEADS;  // query heads that share a KV head

// What the caller promised about its calls is folded into the code (CALL_TABLE: a block table, lengths that include the drafts,
// `width` rows a request, all in AUTO mode); the rest is asked at run time.
DEV bool by_table(const dw_params &p) { return CALL_TABLE || p.addressing == DW_P_BLOCK_TABLE; }
DEV bool lengths_with_drafts(const dw_params &p) { return CALL_TABLE || p.lengths_include_drafts; }
DEV bool rows_vary(const dw_params &p) { return !CALL_TABLE && p.qo_indptr; }
// Features that the variant has no code for are folded away.
DEV int window(const dw_params &p) { return WITH_WINDOW ? p.window : 0; }
DEV bool q_apart(const dw_params &p) { return WITH_Q_ROPE && p.q_rope; }
DEV bool kv_apart(const dw_params &p) { return WITH_KV_ROPE && p.kv_rope; }
DEV bool drafts_elsewhere(const dw_params &p) { return !CALL_TABLE && p.drafts_elsewhere; }
DEV bool fixed_split(const dw_params &p) { return !CALL_TABLE && p.split_mode == DW_P_SPLIT_FIXED; }

// `len` is kv_len[b].
DEV Request load_request(const dw_params &p, int b, int len) {
  if (CHECKED && masked(p, b)) return Request{b};
  Request r;
  r.index = b;
  if (rows_vary(p)) {
    r.first_row = ldg_nc_s32(p.qo_indptr + b);
    r.nodes = ldg_nc_s32(p.qo_indptr + b + 1) - r.first_row;
  } else {
    r.first_row = b * p.width;
    r.nodes = p.width;
  }
  // A padded row of a captured graph may be shorter than its drafts; it then has no prefix.
  r.prefix = lengths_with_drafts(p) ? (len > r.nodes ? len - r.nodes : 0) : len;
  r.total = lengths_with_drafts(p) || drafts_elsewhere(p) ? len : len + r.nodes;
  return r;
}

DEV Request load_request(const dw_params &p, int b) { return load_request(p, b, ldg_nc_s32(p.kv_len + b)); }

// A row of a request is (node, head), node-major, so that rows of one node are neighbours.
DEV int row_node(int row) { return row / HEADS; }
DEV int row_head(int row) { return row % HEADS; }
DEV s64 q_offset(const dw_params &p, const Request &r, int row) {
  return (s64)(r.first_row + row_node(row)) * p.q_row_stride + row_head(row) * p.q_head_stride;
}
// How many bytes further on elements from V on are than if they followed the others: those of q, and those of a token.
DEV s64 q_rope_shift(const dw_params &p, const Request &r, int row) {
  if (!q_apart(p)) return 0;
  const s64 at = (s64)(r.first_row + row_node(row)) * p.q_rope_row_stride + row_head(row) * p.q_rope_head_stride;
  return (const u8 *)p.q_rope + 2 * at - ((const u8 *)p.q + 2 * (q_offset(p, r, row) + V));
}
DEV s64 out_offset(const dw_params &p, const Request &r, int row) {
  return (s64)(r.first_row + row_node(row)) * p.out_row_stride + row_head(row) * p.out_head_stride;
}
DEV void store_lse(const dw_params &p, const Request &r, int row, float lse_base2) {
  if (p.lse) p.lse[(s64)(r.first_row + row_node(row)) * p.lse_row_stride + row_head(row)] = lse_base2 * p.lse_factor;
}

// ---- KV addressing --------------------------------------------------------------------------------------------
// A token's place comes in two steps, so that the table can be read well ahead of its use: the table's entry (a page id, or a
// token slot with CSR), then the address.

// Entry of token `t`. Block table: `t` may lie past the request's end (clamped to the row, the entry is then garbage).
// CSR: t < r.total.
DEV int kv_entry(const dw_params &p, const Request &r, int t) {
  if (by_table(p)) {
    const int column = t / PAGE;
    return ldg_nc_s32(p.block_table + r.index * p.block_table_stride + (column < p.table_columns ? column : p.table_columns - 1));
  }
  const bool draft = p.draft_slots && t >= r.prefix;
  const void *list = draft ? p.draft_slots : p.kv_indices;
  const s64 at = draft ? r.first_row + (t - r.prefix) : ldg_nc_s32(p.kv_indptr + r.index) + t;
  return p.index64 ? (int)ldg_nc_s64((const s64 *)list + at) : ldg_nc_s32((const s32 *)list + at);
}

DEV const u8 *pool_address(const dw_params &p, const void *pool, s64 page_stride, s64 token_stride, int entry, int t) {
  if (PAGE == 1) return (const u8 *)pool + entry * page_stride * KV_BYTES;
  const bool table = by_table(p);
  const int page = table ? entry : entry / PAGE;
  const int in_page = (table ? t : entry) % PAGE;
  return (const u8 *)pool + (page * page_stride + in_page * token_stride) * KV_BYTES;
}
DEV const u8 *kv_address(const dw_params &p, int entry, int t) {
  return pool_address(p, p.kv, p.kv_page_stride, p.kv_token_stride, entry, t);
}
// GQA: the K and the V of a token that a KV head has.
DEV const u8 *key_address(const dw_params &p, int entry, int t, int kv_head) {
  return kv_address(p, entry, t) + kv_head * p.kv_head_stride * KV_BYTES;
}
DEV const u8 *value_address(const dw_params &p, int entry, int t, int kv_head) {
  return pool_address(p, p.v, p.v_page_stride, p.v_token_stride, entry, t) + kv_head * p.v_head_stride * KV_BYTES;
}
DEV const u8 *kv_rope_address(const dw_params &p, int entry, int t) {  // elements from V on; kv_apart(p) is given
  return pool_address(p, p.kv_rope, p.kv_rope_page_stride, p.kv_rope_token_stride, entry, t);
}

// ---- tree mask ------------------------------------------------------------------------------------------------
constexpr int DEAD = -2;  // parent of a padding node

// The bits 0 to `last`: with no mask a node sees itself and all before it.
DEV u32 chain_bits(int last) { return last < 0 ? 0u : last >= 31 ? ~0u : (2u << last) - 1; }

DEV u32 parents_bits(const dw_params &p, const Request &r, int node, int base) {
  const s32 *parents = (const s32 *)p.mask + r.first_row;
  u32 bits = 0;
  int at = ldg_nc_s32(parents + node) == DEAD ? -1 : node;
  while (at >= base) {
    if (at < base + 32) bits |= 1u << (at - base);
    const int parent = ldg_nc_s32(parents + at);
    at = parent < at ? parent : -1;  // a cycle would never end
  }
  return bits;
}
DEV u32 words_bits(const dw_params &p, const Request &r, int node, int base) {
  const u32 *words = (const u32 *)p.mask + (r.first_row + node) * p.mask_row_stride + (base >> 5);
  const u32 shift = base & 31;
  u32 bits = ldg_nc_u32(words) >> shift;
  if (shift && (base | 31) + 1 < r.nodes) bits |= ldg_nc_u32(words + 1) << (32 - shift);
  return bits;
}
// A byte or a float for each draft: where that of draft `base` is, and what one says.
DEV s64 element_place(const dw_params &p, const Request &r, int node, int base) {
  return (p.mask_kind == DW_P_MASK_BYTES_FULL
            ? ldg_nc_s64(p.mask_indptr + r.index) + (s64)node * (r.prefix + r.nodes) + r.prefix
            : r.index * p.mask_request_stride + node * p.mask_row_stride) + base;
}
DEV bool element_sees(const dw_params &p, s64 at) {
  return p.mask_kind == DW_P_MASK_BIAS_F32 ? bits_to_float(ldg_nc_u32((const float *)p.mask + at)) > MINUS_INF
                                           : ldg_nc_u8((const u8 *)p.mask + at) != 0;
}
DEV u32 elements_bits(const dw_params &p, const Request &r, int node, int base) {
  const s64 at = element_place(p, r, node, base);
  const int count = r.nodes - base < 32 ? r.nodes - base : 32;
  u32 bits = 0;
  for (int j = 0; j < count; j++) bits |= (u32)element_sees(p, at + j) << j;
  return bits;
}
// Which of the drafts base, base + 1, ... does the mask let a node see? Bits past the request's drafts are garbage.
DEV u32 mask_bits(const dw_params &p, const Request &r, int node, int base) {
  if (p.mask_kind == DW_P_MASK_NONE) return chain_bits(node - base);
  if (base >= r.nodes) return 0;
  if (HAS_TREE && p.mask_kind == DW_P_MASK_STATIC) return (u32)(STATIC_TREE[node] >> base);
  if (p.mask_kind == DW_P_MASK_PARENTS) return parents_bits(p, r, node, base);
  if (p.mask_kind == DW_P_MASK_BITS || p.mask_kind == DW_P_MASK_PACKED) return words_bits(p, r, node, base);
  return elements_bits(p, r, node, base);
}
// The same of the first `count` drafts alone.
DEV u32 first_bits(const dw_params &p, const Request &r, int node, int base, int count) {
  if (count <= base) return 0;
  const u32 bits = mask_bits(p, r, node, base);
  return count - base < 32 ? bits & ((1u << (count - base)) - 1) : bits;
}
// Drafts in the KV: a padded request may be shorter than its rows.
DEV int draft_count(const Request &r) { return r.total - r.prefix; }
// All of a node's up to 64 drafts, whether they are in the KV or not.
DEV u64 tree_bits(const dw_params &p, const Request &r, int node) {
  u64 bits = 0;
#pragma unroll 1
  for (int base = 0; base < WIDTH; base += 32) bits |= (u64)first_bits(p, r, node, base, r.nodes) << base;
  return bits;
}

// ---- window: a row sees positions from its own - window + 1 on ---------------------------------------------------
DEV int node_position(const dw_params &p, const Request &r, int node) {
  if (p.positions) return ldg_nc_s32(p.positions + r.first_row + node);
  if (p.mask_kind == DW_P_MASK_NONE) return r.prefix + node;
  int depth = 0;
#pragma unroll 1
  for (int base = 0; base < r.nodes; base += 32) {
    u32 bits = first_bits(p, r, node, base, r.nodes);
    if (node >= base && node < base + 32) bits &= ~(1u << (node - base));
    depth += count_bits(bits);
  }
  return r.prefix + depth;
}
// The same for up to 64 drafts, of which the node sees `drafts`.
DEV int position_in(const dw_params &p, const Request &r, int node, u64 drafts) {
  if (p.positions) return ldg_nc_s32(p.positions + r.first_row + node);
  if (p.mask_kind == DW_P_MASK_NONE) return r.prefix + node;
  drafts &= ~(1ull << node);
  return r.prefix + count_bits((u32)drafts) + count_bits((u32)(drafts >> 32));
}
DEV u64 window_drafts(const dw_params &p, const Request &r, u64 drafts, int first) {
  u64 seen = 0;
#pragma unroll 1
  for (int draft = 0; draft < r.nodes; draft++)
    if (drafts >> draft & 1 && position_in(p, r, draft, tree_bits(p, r, draft)) >= first) seen |= 1ull << draft;
  return seen;
}
// The first position that a node may see; below every position without a window.
DEV int first_position(const dw_params &p, const Request &r, int node) {
  return window(p) ? node_position(p, r, node) - window(p) + 1 : -0x7fffffff;
}
// Of the drafts `bits` from `base` on those at `first` or later. No draft stands before the prefix's end.
DEV u32 window_bits(const dw_params &p, const Request &r, u32 bits, int base, int first) {
  if (first <= r.prefix) return bits;
  u32 seen = 0;
#pragma unroll 1
  for (u32 left = bits; left; left &= left - 1) {
    const int draft = base + lowest_bit(left);
    if (node_position(p, r, draft) >= first) seen |= left & (0u - left);
  }
  return seen;
}
// The tokens t0, t0 + 1, ... at position `first` or later, in the prefix, where a token's position is its number.
DEV u32 tokens_from(int first, int t0) { return first <= t0 ? ~0u : first - t0 < 32 ? ~0u << (first - t0) : 0u; }

// Which of the 32 tokens t0, t0 + 1, ... does the node see? Bit i stands for token t0 + i. `first` is its first_position.
DEV u32 visible_tokens(const dw_params &p, const Request &r, int node, int first, int t0) {
  const int column = t0 - r.prefix;  // draft that bit 0 stands for; negative inside the prefix
  if (column <= -32) return tokens_from(first, t0);
  const int base = column > 0 ? column : 0;
  const u32 drafts = window_bits(p, r, first_bits(p, r, node, base, draft_count(r)), base, first);
  return column >= 0 ? drafts : drafts << -column | (((1u << -column) - 1) & tokens_from(first, t0));
}
// A padding node sees nothing, not even the prefix. Once packed, a row of PARENTS without its own bit is dead.
DEV bool node_dead(const dw_params &p, const Request &r, int node) {
  if (p.mask_kind == DW_P_MASK_PARENTS) return ldg_nc_s32((const s32 *)p.mask + r.first_row + node) == DEAD;
  if (p.mask_kind != DW_P_MASK_PACKED) return false;
  const u32 *words = (const u32 *)p.mask + (r.first_row + node) * p.mask_row_stride;
  return !(ldg_nc_u32(words + (node >> 5)) >> (node & 31) & 1);
}

// ---- sinks ----------------------------------------------------------------------------------------------------
// A row's sum takes the sink of its head in: returns the factor for its output so far. max and sum as of an online softmax in log2
// units. A dead row has none. Where a row sees the prefix and its sum is 0 without a sink, all it sees has a score of -inf: 0 / 0, so NaN.
DEV float add_sink(const dw_params &p, const Request &r, int row, float &max, float &sum) {
  const bool blind = sum == 0.f && r.prefix > 0 && !window(p);
  if ((!p.sinks && !blind) || node_dead(p, r, row_node(row))) return 1.f;
  const float sink = p.sinks ? bits_to_float(ldg_nc_u32(p.sinks + row_head(row))) * 1.44269504088896340736f : MINUS_INF;
  if (sink == MINUS_INF) {
    if (blind) sum = bits_to_float(0x7fffffffu);
    return 1.f;
  }
  const float before = max;
  max = fmaxf(max, sink);
  const float keep = before == MINUS_INF ? 0.f : exp2_approx(before - max);
  sum = sum * keep + exp2_approx(sink - max);
  return keep;
}

// ---- soft cap -------------------------------------------------------------------------------------------------
// cap x tanh(s / cap) of scores, from the bare products of q and k to log2 units. Up to s / cap = 2/5 an odd polynomial that has the
// softmax scale in it (tanh to 2e-6, near the least of its degree), r (scale + a rr + b rr^2); above, tanh x = 1 - 2 / (1 + e^2x),
// which few scores of a trained model need. With no cap the polynomial is the scale.
struct SoftCap {
  float scale, a, b, most;  // most: magnitude of a product up to which the polynomial holds
};
// Where this is used in a loop the compiler would fetch the parameters in each round, and wait for them; not what depends on a `zero`
// that comes from memory. `lane_zero` comes from the lane: an instruction takes one operand that lanes share, and that of the last
// coefficient takes the one before it.
DEV SoftCap soft_cap_start(const dw_params &p, u32 zero = 0, u32 lane_zero = 0) {
  if (!WITH_SOFT_CAP) return SoftCap{};
  return SoftCap{bits_to_float(float_to_bits(p.scale_log2) + zero), bits_to_float(float_to_bits(p.cap_series[0]) + zero),
                 bits_to_float(float_to_bits(p.cap_series[1]) + zero + lane_zero), bits_to_float(float_to_bits(p.cap_most) + zero)};
}
DEV float soft_cap_factor(const SoftCap &cap, float product) {  // what the product is multiplied with
  const float square = product * product;
  return cap.scale + square * (cap.a + square * cap.b);
}
DEV float soft_cap_near(const SoftCap &cap, float product) { return product * soft_cap_factor(cap, product); }
// Where the polynomial does not hold.
DEV float soft_cap_far(const dw_params &p, const SoftCap &cap, float product) {
  if (p.cap_log2 == 0.f) return product * cap.scale;
  return p.cap_log2 - 2.f * p.cap_log2 * reciprocal_approx(1.f + exp2_approx(product * p.cap_exponent));
}
// Of any product; to the bit as soft_cap_near where that holds.
DEV float soft_cap(const dw_params &p, const SoftCap &cap, float product) {
  return fabsf(product) <= cap.most ? soft_cap_near(cap, product) : soft_cap_far(p, cap, product);
}
