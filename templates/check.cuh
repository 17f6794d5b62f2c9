// Checked builds: looks at all that the requests of a call say, before another kernel reads anything through it. A block has a
// request. One with a fault is masked: its rows get out 0 and lse -inf here, and the kernels that follow pass it over. What was found
// is counted in p.report. p.mask is the caller's. p.out null: rows are left as they are.
// grid (batch), 128 threads.
#pragma once

constexpr int CHECK_THREADS = 128, CHECK_WARPS = CHECK_THREADS / 32;

// Faults of one kind in one request: how many, and the one at the lowest place.
struct Found {
  u32 count, place;
  s32 value;
};
DEV void add(Found &f, const Found &other) {
  if (other.count && (!f.count || other.place < f.place)) f.place = other.place, f.value = other.value;
  f.count += other.count;
}
DEV s32 held(s64 v) { return v > 0x7fffffff ? 0x7fffffff : v < -0x7fffffff - 1 ? -0x7fffffff - 1 : (s32)v; }
DEV void note(Found &f, bool fault, s64 place, s64 value) {
  if (fault) add(f, Found{1, (u32)held(place), held(value)});
}

struct Check {
  int request;
  u32 faults;  // a bit a kind
  smem_addr shared;
};

// Brings together what the threads of the block found. Another kind of fault in the request?
DEV void conclude(const dw_params &p, Check &c, int kind, Found f) {
#pragma unroll
  for (u32 d = 16; d; d >>= 1) {
    const u32 value = shuffle_xor((u32)f.value, d), count = shuffle_xor(f.count, d), place = shuffle_xor(f.place, d);
    add(f, Found{count, place, (s32)value});
  }
  if (lane_id() == 0) sts_u32x4(c.shared + warp_id() * 16, u32x4{f.count, f.place, (u32)f.value, 0});
  barrier_sync(0, CHECK_THREADS);
  f = Found{0, 0, 0};
#pragma unroll
  for (int w = 0; w < CHECK_WARPS; w++) {
    const u32x4 v = lds_u32x4(c.shared + w * 16);
    add(f, Found{v.x, v.y, (s32)v.z});
  }
  barrier_sync(0, CHECK_THREADS);
  if (!f.count) return;
  if (kind == DW_P_FAULT_ROWS) f.count = 1;  // however many requests it overlaps
  c.faults |= 1u << kind;
  if (threadIdx.x || !p.report) return;
  u32 *words = p.report + kind * DW_P_FAULT_WORDS;
  if (atomic_add_u32(words, f.count)) return;
  words[1] = c.request;
  words[2] = f.place;
  words[3] = (u32)f.value;
}

// ---- rows -----------------------------------------------------------------------------------------------------
// A later request must not begin before an earlier one's end. (One whose own entries are wrong has no say.)
DEV Found check_rows(const dw_params &p, int b, const Rows &rows) {
  Found f{0, 0, 0};
  bool overlap = false;
  if (!CALL_TABLE && p.qo_indptr) {
    for (int i = threadIdx.x; i < b; i += CHECK_THREADS) {
      const Rows earlier = rows_at(p, i);
      overlap |= earlier.sound && earlier.first < earlier.end && earlier.end > rows.first;
    }
  }
  const bool first = overlap || rows.first < 0 || rows.first > p.total_q;
  note(f, overlap || (threadIdx.x == 0 && !rows.sound), first ? b : b + 1, first ? rows.first : rows.end);
  return f;
}

// The rows between a masked request's entries. Those that a sound request has, too, are written again by the kernels that follow.
DEV void clear_rows(const dw_params &p, const Rows &rows) {
  const float zeros[8] = {0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f};
  const int first = rows.first > 0 ? rows.first : 0, end = rows.end < p.total_q ? rows.end : p.total_q;
  for (int row = first; row < end; row++) {
    for (int i = threadIdx.x; i < HEADS * (V / 8); i += CHECK_THREADS)
      store_out8(p, row * p.out_row_stride + i / (V / 8) * p.out_head_stride + i % (V / 8) * 8, zeros);
    for (int head = threadIdx.x; p.lse && head < HEADS; head += CHECK_THREADS) p.lse[row * p.lse_row_stride + head] = MINUS_INF;
  }
}

// ---- KV -------------------------------------------------------------------------------------------------------
// Tokens that the request's part of the table names. A list that is said to go on behind the end of kv_indices ends there.
DEV s64 table_tokens(const dw_params &p, int b) {
  if (by_table(p)) return (s64)p.table_columns * PAGE;
  const s64 first = ldg_nc_s32(p.kv_indptr + b), end = ldg_nc_s32(p.kv_indptr + b + 1);
  if (first < 0 || end < first) return -1;
  if (!p.indices_most || end <= p.indices_most) return end - first;
  return p.indices_most > first ? p.indices_most - first : 0;
}

// Slots of kv_indices or draft_slots from `first` on. Entries are read as they are: an int64 that is no int32 is outside, too.
DEV Found check_slots(const dw_params &p, const void *list, s64 first, int count) {
  const s64 pool = p.pool_pages ? (s64)p.pool_pages * PAGE : 1LL << 31;
  Found f{0, 0, 0};
  for (int i = threadIdx.x; i < count; i += CHECK_THREADS) {
    const s64 slot = p.index64 ? ldg_nc_s64((const s64 *)list + first + i) : ldg_nc_s32((const s32 *)list + first + i);
    note(f, slot < 0 || slot >= pool || slot > 0x7fffffff, i, slot);
  }
  return f;
}

DEV Found check_pages(const dw_params &p, int b, int tokens) {
  if (!by_table(p)) return check_slots(p, p.kv_indices, ldg_nc_s32(p.kv_indptr + b), tokens);
  Found f{0, 0, 0};
  for (int i = threadIdx.x; i < (tokens + PAGE - 1) / PAGE; i += CHECK_THREADS) {
    const int page = ldg_nc_s32(p.block_table + b * p.block_table_stride + i);
    note(f, page < 0 || (p.pool_pages && page >= p.pool_pages), i, page);
  }
  return f;
}

// ---- masks ----------------------------------------------------------------------------------------------------
DEV int check_parent(const dw_params &p, int first_row, int node) { return ldg_nc_s32((const s32 *)p.mask + first_row + node); }

DEV Found check_parents(const dw_params &p, int first_row, int nodes) {
  Found f{0, 0, 0};
  for (int i = threadIdx.x; i < nodes; i += CHECK_THREADS) {
    const int parent = check_parent(p, first_row, i);
    note(f, parent < DEAD || parent >= i || (parent >= 0 && check_parent(p, first_row, parent) == DEAD), i, parent);
  }
  return f;
}

DEV Found check_mask_size(const dw_params &p, int b, int nodes, int prefix) {
  Found f{0, 0, 0};
  if (threadIdx.x) return f;
  const s64 first = ldg_nc_s64(p.mask_indptr + b), end = ldg_nc_s64(p.mask_indptr + b + 1);
  const s64 need = (s64)nodes * (prefix + nodes);
  s64 there = first < 0 || end < first ? -1 : end - first;
  if (p.mask_size && there >= 0 && need > p.mask_size - first) there = p.mask_size > first ? p.mask_size - first : 0;
  note(f, there < need, need, there);
  return f;
}

// Of the drafts that exist; what lies behind them does not matter.
DEV Found check_bias(const dw_params &p, int b, int nodes, int drafts) {
  Found f{0, 0, 0};
  for (int i = threadIdx.x; i < nodes * drafts; i += CHECK_THREADS) {
    const int node = i / drafts, draft = i % drafts;
    const u32 bits = ldg_nc_u32((const u32 *)p.mask + b * p.mask_request_stride + node * p.mask_row_stride + draft);
    note(f, bits << 1 && bits != float_to_bits(MINUS_INF), node, (s32)bits);
  }
  return f;
}

// A dead node's does not matter.
DEV Found check_positions(const dw_params &p, int first_row, int nodes, int prefix) {
  Found f{0, 0, 0};
  for (int i = threadIdx.x; i < nodes; i += CHECK_THREADS) {
    const int position = ldg_nc_s32(p.positions + first_row + i);
    const bool dead = p.mask_kind == DW_P_MASK_PARENTS && check_parent(p, first_row, i) == DEAD;
    note(f, position < prefix && !dead, i, position);
  }
  return f;
}

// ---- kernel ---------------------------------------------------------------------------------------------------
// What is known once rows and length are.
DEV void check_tokens(const dw_params &p, Check &c, const Rows &rows, int total) {
  const int b = c.request, nodes = rows.end - rows.first;
  const int prefix = p.drafts_elsewhere ? total : total > nodes ? total - nodes : 0;
  const int named = p.draft_slots ? prefix : total;  // by the table
  const s64 there = table_tokens(p, b);
  Found f{0, 0, 0};
  note(f, threadIdx.x == 0 && there < named, named, there);
  conclude(p, c, DW_P_FAULT_TABLE, f);
  if (c.faults) return;  // the length is no longer to be trusted either
  conclude(p, c, DW_P_FAULT_PAGE, check_pages(p, b, named));
  if (p.draft_slots) conclude(p, c, DW_P_FAULT_DRAFT_SLOT, check_slots(p, p.draft_slots, rows.first, total - prefix));
  if (p.mask_kind == DW_P_MASK_BYTES_FULL) conclude(p, c, DW_P_FAULT_MASK_SIZE, check_mask_size(p, b, nodes, prefix));
  if (p.mask_kind == DW_P_MASK_BIAS_F32) conclude(p, c, DW_P_FAULT_BIAS, check_bias(p, b, nodes, total - prefix));
  if (p.positions) conclude(p, c, DW_P_FAULT_POSITION, check_positions(p, rows.first, nodes, prefix));
}

extern "C" __global__ void __launch_bounds__(CHECK_THREADS) dw_check(const __grid_constant__ dw_params p) {
  Check c{(int)blockIdx.x, 0, smem_base()};
  if (c.request >= p.batch) return;
  const Rows rows = rows_at(p, c.request);
  conclude(p, c, DW_P_FAULT_ROWS, check_rows(p, c.request, rows));
  if (!c.faults) {
    const int nodes = rows.end - rows.first, len = ldg_nc_s32(p.kv_len + c.request);
    const s64 total = lengths_with_drafts(p) || p.drafts_elsewhere ? len : (s64)len + nodes;
    Found f{0, 0, 0};
    note(f, threadIdx.x == 0 && (len < 0 || total > p.kv_len_most), p.kv_len_most, len);
    conclude(p, c, DW_P_FAULT_LENGTH, f);
    if (!c.faults) check_tokens(p, c, rows, (int)total);
    if (p.mask_kind == DW_P_MASK_PARENTS) conclude(p, c, DW_P_FAULT_PARENT, check_parents(p, rows.first, nodes));
  }
  if (threadIdx.x == 0) p.faults[c.request] = c.faults;
  if (!c.faults) return;
  Found f{0, 0, 0};
  note(f, threadIdx.x == 0, 0, 0);
  conclude(p, c, DW_P_FAULT_REQUEST, f);
  if (p.out) clear_rows(p, rows);
}
