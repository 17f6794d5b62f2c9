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

// What the caller promised about its calls is folded into the code (CALL_TABLE: a block table, lengths that include the drafts,
// `width` rows a request, all in AUTO mode); the rest is asked at run time.
DEV bool by_table(const dw_params &p) { return CALL_TABLE || p.addressing == DW_P_BLOCK_TABLE; }
DEV bool lengths_with_drafts(const dw_params &p) { return CALL_TABLE || p.lengths_include_drafts; }
DEV bool rows_vary(const dw_params &p) { return !CALL_TABLE && p.qo_indptr; }
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
  r.total = lengths_with_drafts(p) ? len : len + r.nodes;
  return r;
}

DEV Request load_request(const dw_params &p, int b) { return load_request(p, b, ldg_nc_s32(p.kv_len + b)); }

// A row of a request is (node, head), node-major, so that rows of one node are neighbours.
DEV int row_node(int row) { return row / HEADS; }
DEV int row_head(int row) { return row % HEADS; }
DEV s64 q_offset(const dw_params &p, const Request &r, int row) {
  return (s64)(r.first_row + row_node(row)) * p.q_row_stride + row_head(row) * p.q_head_stride;
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

DEV const u8 *kv_address(const dw_params &p, int entry, int t) {
  if (PAGE == 1) return (const u8 *)p.kv + entry * p.kv_page_stride * 2;
  const bool table = by_table(p);
  const int page = table ? entry : entry / PAGE;
  const int in_page = (table ? t : entry) % PAGE;
  return (const u8 *)p.kv + (page * p.kv_page_stride + in_page * p.kv_token_stride) * 2;
}

// ---- tree mask ------------------------------------------------------------------------------------------------
constexpr int DEAD = -2;  // parent of a padding node

// The bits 0 to `last`: with no mask a node sees itself and all before it.
DEV u32 chain_bits(int last) { return last < 0 ? 0u : last >= 31 ? ~0u : (2u << last) - 1; }

// Which of the 32 tokens t0, t0 + 1, ... does the node see? Bit i stands for token t0 + i. `bits` is the node's mask row
// (BITS, or PARENTS packed to bits); tokens of the prefix are visible, tokens past the end are not.
DEV u32 visible_tokens(const dw_params &p, const Request &r, int node, int t0) {
  const int column = t0 - r.prefix;  // draft that bit 0 stands for; negative inside the prefix
  const int base = column > 0 ? column : 0;
  u32 drafts = 0;  // bit i: draft base + i
  if (p.mask_kind == DW_P_MASK_NONE) {
    drafts = chain_bits(node - base);
  } else if (base < r.nodes) {
    const u32 *words = (const u32 *)p.mask + (r.first_row + node) * p.mask_row_stride + (base >> 5);
    const u32 shift = base & 31;
    drafts = ldg_nc_u32(words) >> shift;
    if (shift && (base | 31) + 1 < r.nodes) drafts |= ldg_nc_u32(words + 1) << (32 - shift);
  }
  const int left = r.total - r.prefix - base;  // drafts that exist from `base` on (a padded request may be shorter than its rows)
  if (left < 32) drafts &= left > 0 ? (1u << left) - 1 : 0u;
  if (column > -32 && column < 0) return drafts << -column | ((1u << -column) - 1);
  return column <= -32 ? ~0u : drafts;
}
// A padding node sees nothing, not even the prefix. Once packed, a row of PARENTS without its own bit is dead.
DEV bool node_dead(const dw_params &p, const Request &r, int node) {
  if (p.mask_kind != DW_P_MASK_PARENTS) return false;
  const u32 *words = (const u32 *)p.mask + (r.first_row + node) * p.mask_row_stride;
  return !(ldg_nc_u32(words + (node >> 5)) >> (node & 31) & 1);
}
