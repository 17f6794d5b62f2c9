@ -- Kernels of our own tools, for bench and verify: problems made on the device, the fp64 oracle, comparison, ceilings.
@ -- They judge the product's kernels, so they share none of their device headers but the instructions.
@ -- part: verify makes and judges problems, peak measures ceilings (a cubin's record has room for eight kernels).
@ param.string("part", {"verify", "peak"})
@ param.int("head_dim_qk", 32)
@ param.int("head_dim_v", 32)
@ assert(head_dim_qk % 32 == 0 and head_dim_v % 32 == 0, "head_dim: a warp shares a vector, 32 elements at a time")
// draftwood gpu_tools: ${part}
#include "types.cuh"
#include "ptx.cuh"
#include "gpu_tools.h"

constexpr int QK = ${head_dim_qk}, V = ${head_dim_v};
union Word64 {
  double number;
  u64 bits;
  u32 half[2];
};
// ---- what the arguments say -----------------------------------------------------------------------------------
struct Span {  // a request's rows and tokens
  int first_row, rows, prefix, tokens;
};
DEV Span span_of(const dw_oracle_params &p, int b) {
  Span s;
  const int length = p.kv_len[b] > 0 ? p.kv_len[b] : 0;
  s.first_row = p.qo_indptr ? p.qo_indptr[b] : b * p.width;
  s.rows = p.qo_indptr ? p.qo_indptr[b + 1] - s.first_row : p.width;
  const int drafts = p.drafts_elsewhere ? 0 : s.rows;  // on another rank: what is here is all prefix
  s.tokens = p.lengths_include_drafts ? length : length + drafts;
  s.prefix = s.tokens > drafts ? s.tokens - drafts : 0;  // shorter than the drafts: the last drafts are not there
  return s;
}

// A token's place in the pool, counted in tokens.
DEV s64 token_slot(const dw_oracle_params &p, const Span &s, int b, int token) {
  if (p.addressing == DW_T_TABLE)
    return (s64)p.block_table[(s64)b * p.table_stride + token / p.page] * p.page + token % p.page;
  const bool apart = p.draft_slots && !p.lengths_include_drafts && token >= s.prefix;
  const void *list = apart ? p.draft_slots : p.kv_indices;
  const s64 at = apart ? (s64)s.first_row + (token - s.prefix) : (s64)p.kv_indptr[b] + token;
  return p.index64 ? ((const s64 *)list)[at] : ((const s32 *)list)[at];
}

@ if part == "verify" then
constexpr int Q_EACH = QK / 32, V_EACH = V / 32;  // elements a lane: lane, lane + 32, ...

#ifndef __CUDACC__
extern "C" double exp(double) noexcept(true);
extern "C" double log(double) noexcept(true);
extern "C" double sqrt(double) noexcept(true);
extern "C" double tanh(double) noexcept(true);
extern "C" float tanhf(float) noexcept(true);
#endif

// ---- numbers --------------------------------------------------------------------------------------------------
DEV double minus_infinity() {
  Word64 w;
  w.bits = 0xFFF0000000000000ull;
  return w.number;
}
// The least finite number: the maximum of scores that are all -inf.
DEV double least(double) {
  Word64 w;
  w.bits = 0xFFEFFFFFFFFFFFFFull;
  return w.number;
}
DEV float least(float) { return -3.4028235e38f; }
// A value from lane `lane`, or from the lane whose number differs in the bits of `step`.
DEV double fetch(double v, u32 lane) {
  Word64 w;
  w.number = v;
  w.half[0] = shuffle(w.half[0], lane);
  w.half[1] = shuffle(w.half[1], lane);
  return w.number;
}
DEV float fetch(float v, u32 lane) { return shuffle(v, lane); }
DEV double swap(double v, u32 step) {
  Word64 w;
  w.number = v;
  w.half[0] = shuffle_xor(w.half[0], step);
  w.half[1] = shuffle_xor(w.half[1], step);
  return w.number;
}
DEV float swap(float v, u32 step) { return shuffle_xor(v, step); }
template <class T>
DEV T warp_total(T v) {
#pragma unroll
  for (u32 step = 16; step; step >>= 1) v += swap(v, step);
  return v;
}
DEV double exponential(double x) { return exp(x); }
DEV float exponential(float x) { return exp2_approx(x * 1.44269504088896340736f); }
DEV double hyperbolic_tangent(double x) { return tanh(x); }
DEV float hyperbolic_tangent(float x) { return tanhf(x); }

DEV float widen_e4m3(u32 x) {
  const int exponent = x >> 3 & 15, mantissa = x & 7;
  float size = exponent ? bits_to_float((u32)(exponent + 120) << 23 | (u32)mantissa << 20) : (float)mantissa * (1.f / 512.f);
  if (exponent == 15 && mantissa == 7) size = bits_to_float(0x7FC00000u);
  return x & 0x80 ? -size : size;
}
// Half away from zero, at most 448: good for contents.
DEV u32 narrow_e4m3(float x) {
  const float size = fabsf(x) < 448.f ? fabsf(x) : 448.f;
  const u32 code = size < 1.f / 64.f ? (u32)(size * 512.f + 0.5f) : (float_to_bits(size) + 0x80000u >> 20) - (120u << 3);
  return code | (x < 0.f ? 0x80 : 0);
}
DEV float widen(u16 x, bool f16) { return f16 ? f16_to_float(x) : bf16_to_float(x); }
DEV float widen_kv(u16 x, int type) { return type == 3 ? widen_e4m3(x) : widen(x, type == 1); }
// Records: V latents in e4m3, a scale for each group of them, the rest in bf16.
constexpr int GROUP = 128, SCALES = (V + GROUP - 1) / GROUP;
DEV u16 narrow(float x, bool f16) { return (u16)(f16 ? pack_f16x2(x, 0.f) : pack_bf16x2(x, 0.f)); }
DEV float round_to(float x, int dtype) { return dtype == 2 ? x : widen(narrow(x, dtype == 1), dtype == 1); }

// ---- random contents ------------------------------------------------------------------------------------------
// Near enough to normal: the sum of four uniform numbers made of a counter, so that any element can be made on its own.
DEV float normal_number(u64 seed, u64 counter) {
  u64 z = seed + counter * 0x9E3779B97F4A7C15ull;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ z >> 27) * 0x94D049BB133111EBull;
  z ^= z >> 31;
  const int sum = (int)(z & 0xFFFF) + (int)(z >> 16 & 0xFFFF) + (int)(z >> 32 & 0xFFFF) + (int)(z >> 48);
  return ((float)sum * (1.f / 65536.f) - 2.f) * 1.7320508f;
}

// Some groups are small, some are nothing.
DEV void fill_record(const dw_tool_fill_params &p, s64 unit, u8 *to) {
  const u64 first = (u64)unit * QK;
#pragma unroll 1
  for (int g = 0; g < SCALES; g++) {
    const float dice = normal_number(~p.seed, (u64)unit * SCALES + g), size = dice > 1.5f ? 0.001f : dice < -1.5f ? 0.f : p.scale;
    float v[GROUP / 32], most = 0.f;
#pragma unroll
    for (int k = 0; k < GROUP / 32; k++) {
      v[k] = normal_number(p.seed, first + g * GROUP + k * 32 + lane_id()) * size;
      most = fabsf(v[k]) > most ? fabsf(v[k]) : most;
    }
#pragma unroll
    for (u32 step = 16; step; step >>= 1) {
      const float other = swap(most, step);
      most = other > most ? other : most;
    }
    const float scale = most / 448.f;
#pragma unroll
    for (int k = 0; k < GROUP / 32; k++) to[g * GROUP + k * 32 + lane_id()] = (u8)narrow_e4m3(scale > 0.f ? v[k] / scale : 0.f);
    if (lane_id() == 0) ((float *)(to + V))[g] = scale;
  }
  for (int i = lane_id(); i < QK - V; i += 32)
    ((u16 *)(to + V + SCALES * 4))[i] = narrow(normal_number(p.seed, first + V + i) * p.scale, false);
}

extern "C" __global__ void __launch_bounds__(256) dw_tool_fill(const __grid_constant__ dw_tool_fill_params p) {
  const s64 warps = (s64)gridDim.x * 8;
  for (s64 unit = (s64)blockIdx.x * 8 + warp_id(); unit < p.units; unit += warps) {
    if (p.used && !p.used[unit]) continue;
    const s64 first = unit / p.page * p.page_stride + unit % p.page * p.unit_stride;
    if (p.type == 4) fill_record(p, unit, (u8 *)p.to + first);
    for (int i = lane_id(); i < p.elements && p.type != 4; i += 32) {
      const float value = normal_number(p.seed, (u64)unit * (u64)p.elements + i) * p.scale;
      if (p.type == 3) ((u8 *)p.to)[first + i] = (u8)narrow_e4m3(value);
      else ((u16 *)p.to)[first + i] = narrow(value, p.type == 1);
    }
  }
}

// ---- what rows see --------------------------------------------------------------------------------------------
DEV bool is_dead(const dw_oracle_params &p, const Span &s, int node) {
  return p.mask_kind == DW_T_PARENTS && !p.drafts_elsewhere && ((const s32 *)p.mask)[s.first_row + node] == -2;
}
// By the mask alone.
DEV bool sees_draft(const dw_oracle_params &p, const Span &s, int b, int node, int draft) {
  if (p.mask_kind == DW_T_NONE) return draft <= node;
  if (p.mask_kind == DW_T_STATIC) return p.static_sees[node] >> draft & 1;
  if (p.mask_kind == DW_T_BITS) {
    const u32 *row = (const u32 *)p.mask + (s64)(s.first_row + node) * p.mask_row_stride;
    return row[draft / 32] >> (draft % 32) & 1;
  }
  if (p.mask_kind == DW_T_PARENTS) {
    int at = node;  // a parent comes before its child
    while (at > draft) at = ((const s32 *)p.mask)[s.first_row + at];
    return at == draft;
  }
  if (p.mask_kind == DW_T_BYTES_FULL) {
    const s64 columns = (s64)s.prefix + s.rows;
    return ((const u8 *)p.mask)[p.mask_indptr[b] + node * columns + s.prefix + draft] != 0;
  }
  const s64 at = b * p.mask_request_stride + node * p.mask_row_stride + draft;
  return p.mask_kind == DW_T_BIAS ? ((const float *)p.mask)[at] == 0.f : ((const u8 *)p.mask)[at] != 0;
}
DEV bool sees(const dw_oracle_params &p, const Span &s, int b, int node, int position, int token) {
  const int draft = token - s.prefix;
  if (draft >= 0 && !sees_draft(p, s, b, node, draft)) return false;
  const s64 at = draft < 0 ? token : p.window ? p.positions[s.first_row + draft] : 0;
  return !p.window || at > position - p.window;
}

// Positions where a window comes with none: a row stands behind the prefix and the other drafts that it sees.
extern "C" __global__ void __launch_bounds__(128) dw_oracle64_depth(const __grid_constant__ dw_oracle_params p) {
  const int b = blockIdx.y, node = (int)blockIdx.x * DW_T_WARPS + (int)warp_id();
  const Span s = span_of(p, b);
  if (node >= s.rows) return;
  int seen = 0;
  for (int draft = lane_id(); draft < s.rows; draft += 32)
    seen += draft != node && sees_draft(p, s, b, node, draft);
  const float all = warp_total((float)seen);  // at most 1025
  if (lane_id() == 0) p.depth_positions[s.first_row + node] = s.prefix + (int)all;
}

// ---- attention in T: double, or float as a straightforward kernel does it -------------------------------------
template <class T>
struct Vector {
  T q[Q_EACH], out[V_EACH];
  T max, sum;
  int node, position;  // row in the request; its position, where a window asks
  bool live;  // there is such a vector and it is not dead
};

template <class T>
DEV void start_vector(const dw_oracle_params &p, const Span &s, int index, Vector<T> &v) {
  v.node = index / p.heads;
  v.live = v.node < s.rows && !is_dead(p, s, v.node);
  v.position = p.window && v.live ? p.positions[s.first_row + v.node] : 0;
  v.max = (T)minus_infinity();
  v.sum = 0;
  const s64 row = s.first_row + v.node, head = index % p.heads;
  const u16 *q = (const u16 *)p.q + row * p.q_row_stride + head * p.q_head_stride;
  const u16 *rest = p.q_rope ? (const u16 *)p.q_rope + row * p.q_rope_row_stride + head * p.q_rope_head_stride : q + V;
#pragma unroll
  for (int i = 0; i < Q_EACH; i++) {
    const u16 *from = i < V_EACH ? q + 32 * i : rest + 32 * (i - V_EACH);
    v.q[i] = v.live ? (T)widen(from[lane_id()], p.q_type == 1) : 0;
  }
#pragma unroll
  for (int i = 0; i < V_EACH; i++) v.out[i] = 0;
}

// The plain kernel's weights count from the sink on, until a score is greater; the first chunk sums it up.
template <class T>
DEV void start_at_sink(float sink, bool counted, Vector<T> &v) {
  if (!v.live || sink == (float)minus_infinity()) return;
  v.max = sink;
  v.sum = counted;
}

// Where the vectors lie that tokens have: K or V of a KV head, or records, whose elements from V on may be elsewhere.
struct Plane {
  const u8 *first, *rest;
  s64 page, token, rest_page, rest_token;  // strides
};
DEV int kv_bytes(const dw_oracle_params &p) { return p.kv_type >= 3 ? 1 : 2; }
DEV Plane key_plane(const dw_oracle_params &p, int index) {
  const u8 *first = (const u8 *)p.kv + index % p.heads / (p.heads / p.kv_heads) * p.kv_head_stride * kv_bytes(p);
  if (p.kv_rope)
    return Plane{first, (const u8 *)p.kv_rope, p.kv_page_stride, p.kv_token_stride, p.kv_rope_page_stride, p.kv_rope_token_stride};
  return Plane{first, first + V * kv_bytes(p) + (p.kv_type == 4 ? SCALES * 4 : 0), p.kv_page_stride,
               p.kv_token_stride, p.kv_page_stride, p.kv_token_stride};
}
DEV Plane value_plane(const dw_oracle_params &p, int index) {
  if (!p.v) return key_plane(p, index);
  const u8 *first = (const u8 *)p.v + index % p.heads / (p.heads / p.kv_heads) * p.v_head_stride * kv_bytes(p);
  return Plane{first, first, p.v_page_stride, p.v_token_stride, 0, 0};
}
template <int EACH>
struct Token {
  u16 raw[EACH];
  float scales[SCALES];  // of records
};
template <int EACH>
DEV void load_token(const dw_oracle_params &p, const Plane &plane, s64 slot, Token<EACH> &token) {
  const s64 page = slot / p.page, in_page = slot % p.page;
  const s64 first = page * plane.page + in_page * plane.token, rest = page * plane.rest_page + in_page * plane.rest_token;
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    const void *from = i < V_EACH ? plane.first : plane.rest;
    const s64 at = (i < V_EACH ? first + 32 * i : rest + 32 * (i - V_EACH)) + lane_id();
    if (p.kv_type == 4 && i >= V_EACH) token.raw[i] = ((const u16 *)(plane.rest + rest))[32 * (i - V_EACH) + lane_id()];
    else token.raw[i] = p.kv_type >= 3 ? ((const u8 *)from)[at] : ((const u16 *)from)[at];
  }
#pragma unroll
  for (int g = 0; g < SCALES; g++) token.scales[g] = p.kv_type == 4 ? ((const float *)(plane.first + first + V))[g] : 1.f;
}
template <int EACH>
DEV void widen_token(const dw_oracle_params &p, const Token<EACH> &token, float (&kv)[EACH]) {
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    if (p.kv_type == 4) kv[i] = i < V_EACH ? widen_e4m3(token.raw[i]) * token.scales[i * 32 / GROUP] : widen(token.raw[i], false);
    else kv[i] = widen_kv(token.raw[i], p.kv_type);
  }
}

// 32 tokens at a time, as the CPU's oracle does: lane i knows where token i is and who sees it. What nobody sees is not read.
// The next token is on its way while this one is worked on.
template <int EACH, class Work>
DEV void each_token(const dw_oracle_params &p, const Plane &plane, u32 left, s64 slot, Work work) {
  Token<EACH> token;
  if (!left) return;
  load_token(p, plane, shuffle_s64(slot, lowest_bit(left)), token);
  while (left) {
    const u32 now = lowest_bit(left);
    float kv[EACH];
    left &= left - 1;
    widen_token(p, token, kv);
    if (left) load_token(p, plane, shuffle_s64(slot, lowest_bit(left)), token);
    work(now, kv);
  }
}

// The softmax of 32 scores, one a lane: they become weights; what was summed up before is brought to the new maximum. The plain
// kernel's product with V takes the weights rounded to the type of q, its sum does not.
template <class T, bool ROUNDED>
DEV T take_scores(const dw_oracle_params &p, Vector<T> &v, T score, bool seen) {
  T max = seen ? (score > least(score) ? score : least(score)) : v.max;
#pragma unroll
  for (u32 step = 16; step; step >>= 1) {
    const T other = swap(max, step);
    if (other > max) max = other;
  }
  if (max < v.max) max = v.max;
  if (max > v.max) {
    const T keep = exponential(v.max - max);
    v.sum *= keep;
#pragma unroll
    for (int i = 0; i < V_EACH; i++) v.out[i] *= keep;
    v.max = max;
  }
  const T weight = seen ? exponential(score - max) : 0;
  v.sum += warp_total(weight);
  return ROUNDED ? widen(narrow((float)weight, p.q_type == 1), p.q_type == 1) : weight;
}

// Of the vectors FIRST to END - 1, which share what is read: with GQA each has its own head.
template <class T, int FIRST, int END>
DEV void score_tokens(const dw_oracle_params &p, int index, u32 left, s64 slot, const Vector<T> (&v)[DW_T_WARP_VECTORS],
                      T (&weight)[DW_T_WARP_VECTORS]) {
  each_token<Q_EACH>(p, key_plane(p, index + FIRST), left, slot, [&](u32 now, const float(&kv)[Q_EACH]) {
#pragma unroll
    for (int k = FIRST; k < END; k++) {
      T score = 0;
#pragma unroll
      for (int i = 0; i < Q_EACH; i++) score += v[k].q[i] * (T)kv[i];
      score = warp_total(score) * ((T)p.scale * (T)(p.kv_scale ? *p.kv_scale : 1.f));
      if (p.soft_cap > 0) score = (T)p.soft_cap * hyperbolic_tangent(score / (T)p.soft_cap);
      if (lane_id() == now) weight[k] = score;
    }
  });
}
template <class T, int FIRST, int END>
DEV void add_tokens(const dw_oracle_params &p, int index, u32 left, s64 slot, const u32 (&seen)[DW_T_WARP_VECTORS],
                    const T (&weight)[DW_T_WARP_VECTORS], Vector<T> (&v)[DW_T_WARP_VECTORS]) {
  each_token<V_EACH>(p, value_plane(p, index + FIRST), left, slot, [&](u32 now, const float(&kv)[V_EACH]) {
#pragma unroll
    for (int k = FIRST; k < END; k++) {
      const T w = fetch(weight[k], now);
      if (!(seen[k] >> now & 1)) continue;
#pragma unroll
      for (int i = 0; i < V_EACH; i++) v[k].out[i] += w * (T)kv[i];
    }
  });
}

// `index`: of the first vector, in the request.
template <class T, bool ROUNDED>
DEV void take_tokens(const dw_oracle_params &p, const Span &s, int b, int index, int first, int end,
                     Vector<T> (&v)[DW_T_WARP_VECTORS]) {
  const int token = first + (int)lane_id();
  u32 seen[DW_T_WARP_VECTORS], left = 0;
#pragma unroll
  for (int k = 0; k < DW_T_WARP_VECTORS; k++) {
    seen[k] = vote_ballot(v[k].live && token < end && sees(p, s, b, v[k].node, v[k].position, token));
    left |= seen[k];
  }
  if (!left) return;
  const s64 slot = token < end ? token_slot(p, s, b, token) : 0;
  T weight[DW_T_WARP_VECTORS];  // of this lane's token: first the score
#pragma unroll
  for (int k = 0; k < DW_T_WARP_VECTORS; k++) weight[k] = 0;
  static_assert(DW_T_WARP_VECTORS == 2, "both are named here");
  if (p.v) {
    score_tokens<T, 0, 1>(p, index, seen[0], slot, v, weight);
    score_tokens<T, 1, 2>(p, index, seen[1], slot, v, weight);
  } else {
    score_tokens<T, 0, 2>(p, index, left, slot, v, weight);
  }
#pragma unroll
  for (int k = 0; k < DW_T_WARP_VECTORS; k++)
    if (seen[k]) weight[k] = take_scores<T, ROUNDED>(p, v[k], weight[k], seen[k] >> lane_id() & 1);
  if (p.v) {
    add_tokens<T, 0, 1>(p, index, seen[0], slot, seen, weight, v);
    add_tokens<T, 1, 2>(p, index, seen[1], slot, seen, weight, v);
  } else {
    add_tokens<T, 0, 2>(p, index, left, slot, seen, weight, v);
  }
}

template <class T, bool ROUNDED>
DEV void attend(const dw_oracle_params &p) {
  const int b = blockIdx.z, chunk = blockIdx.y;
  const Span s = span_of(p, b);
  const int first = ((int)blockIdx.x * DW_T_WARPS + (int)warp_id()) * DW_T_WARP_VECTORS;
  if (first >= s.rows * p.heads) return;
  Vector<T> v[DW_T_WARP_VECTORS];
#pragma unroll
  for (int k = 0; k < DW_T_WARP_VECTORS; k++) start_vector(p, s, first + k, v[k]);
  if (ROUNDED && p.sinks) {
#pragma unroll
    for (int k = 0; k < DW_T_WARP_VECTORS; k++) start_at_sink(p.sinks[(first + k) % p.heads], chunk == 0, v[k]);
  }
  const s64 begin = (s64)chunk * p.chunk_tokens, past = begin + p.chunk_tokens;
  const int end = past < s.tokens ? (int)past : s.tokens;
  for (s64 at = begin; at < end; at += 32) take_tokens<T, ROUNDED>(p, s, b, first, (int)at, end, v);
  const s64 vectors = (s64)p.total_q * p.heads;
#pragma unroll
  for (int k = 0; k < DW_T_WARP_VECTORS; k++) {
    if (v[k].node >= s.rows) continue;
    const s64 at = chunk * vectors + (s64)s.first_row * p.heads + first + k;
    if (lane_id() == 0) {
      p.part_max[at] = v[k].max;
      p.part_sum[at] = v[k].sum;
    }
#pragma unroll
    for (int i = 0; i < V_EACH; i++) p.part_out[at * V + lane_id() + 32 * i] = v[k].out[i];
  }
}

extern "C" __global__ void __launch_bounds__(128) dw_oracle64(const __grid_constant__ dw_oracle_params p) {
  attend<double, false>(p);
}
extern "C" __global__ void __launch_bounds__(128) dw_plain(const __grid_constant__ dw_oracle_params p) {
  attend<float, true>(p);
}

// A vector's chunks, in double for both: the plain kernel's own error is made before, and its sink is in them.
extern "C" __global__ void __launch_bounds__(128) dw_oracle64_merge(const __grid_constant__ dw_oracle_params p) {
  const Span s = span_of(p, blockIdx.y);
  const int index = (int)blockIdx.x * DW_T_WARPS + (int)warp_id();
  if (index >= s.rows * p.heads) return;
  const s64 vectors = (s64)p.total_q * p.heads, vector = (s64)s.first_row * p.heads + index;
  double max = minus_infinity(), sum = 0, out[V_EACH];
#pragma unroll
  for (int i = 0; i < V_EACH; i++) out[i] = 0;
  bool seen = false;
  for (int c = 0; c < p.chunks; c++) {
    seen |= p.part_max[c * vectors + vector] > minus_infinity();
    if (p.part_sum[c * vectors + vector] > 0 && p.part_max[c * vectors + vector] > max) max = p.part_max[c * vectors + vector];
  }
  const double of_nothing = seen ? minus_infinity() - minus_infinity() : 0;  // of scores of -inf alone: 0 / 0
  if (p.sinks && !p.rounded && !is_dead(p, s, index / p.heads)) {
    const double sink = p.sinks[index % p.heads];
    if (sink > max) max = sink;
    if (sink > minus_infinity()) sum = exp(sink - max);
  }
  for (int c = 0; c < p.chunks; c++) {
    const s64 at = c * vectors + vector;
    if (p.part_sum[at] == 0) continue;  // a NaN goes on
    const double weight = exp(p.part_max[at] - max);
    sum += p.part_sum[at] * weight;
#pragma unroll
    for (int i = 0; i < V_EACH; i++) out[i] += p.part_out[at * V + lane_id() + 32 * i] * weight;
  }
#pragma unroll
  for (int i = 0; i < V_EACH; i++) {
    double value = sum == 0 ? of_nothing : out[i] * (p.v_scale ? *p.v_scale : 1.f) / sum;
    if (p.rounded) value = round_to((float)value, p.out_dtype);
    p.out[vector * V + lane_id() + 32 * i] = value;
  }
  if (lane_id() == 0) p.lse[vector] = sum == 0 ? of_nothing + minus_infinity() : (log(sum) + max) * p.lse_factor;
}

// ---- comparison -----------------------------------------------------------------------------------------------
DEV float load_out(const void *out, s64 at, int dtype) {
  return dtype == 2 ? ((const float *)out)[at] : widen(((const u16 *)out)[at], dtype == 1);
}
// The format's numbers in order, so that neighbours differ by one.
DEV int ordered(float x, int dtype) {
  const u32 bits = dtype == 2 ? float_to_bits(x) : narrow(x, dtype == 1);
  const u32 sign = dtype == 2 ? 0x80000000u : 0x8000u;
  return bits & sign ? -(int)(bits & ~sign) : (int)bits;
}

extern "C" __global__ void __launch_bounds__(128) dw_tool_compare(const __grid_constant__ dw_tool_compare_params p) {
  const int b = blockIdx.y, index = (int)blockIdx.x * DW_T_WARPS + (int)warp_id();
  const int first_row = p.qo_indptr ? p.qo_indptr[b] : b * p.width;
  const int rows = p.qo_indptr ? p.qo_indptr[b + 1] - first_row : p.width;
  if (index >= rows * p.heads) return;
  const int row = first_row + index / p.heads, head = index % p.heads;
  const s64 vector = (s64)row * p.heads + head, at = row * p.out_row_stride + head * p.out_head_stride;
  double off = 0, plain_off = 0, size = 0;
  int close = 0;
  for (int i = lane_id(); i < V; i += 32) {
    const float found = load_out(p.out, at + i, p.out_dtype);
    const double exact = p.exact[vector * V + i], plain = p.plain[vector * V + i];
    const s64 apart = (s64)ordered(found, p.out_dtype) - ordered((float)exact, p.out_dtype);
    close += apart >= -1 && apart <= 1;
    off += (found - exact) * (found - exact);
    plain_off += (plain - exact) * (plain - exact);
    size += exact * exact;
  }
  off = warp_total(off);
  plain_off = warp_total(plain_off);
  size = warp_total(size);
  const double all_close = warp_total((double)close);
  if (lane_id() != 0) return;
  dw_tool_row r;
  r.relative = sqrt(size > 0 ? off / size : off);
  r.plain = sqrt(size > 0 ? plain_off / size : plain_off);
  r.norm = sqrt(size);
  r.lse_exact = p.exact_lse[vector];
  r.lse = p.lse ? (double)p.lse[row * p.lse_row_stride + head] : r.lse_exact;
  r.close = (int)all_close;
  r.compared = 1;
  p.rows[vector] = r;
}

DEV u32 element_of(const void *data, s64 i, int bytes) { return bytes == 4 ? ((const u32 *)data)[i] : ((const u16 *)data)[i]; }

extern "C" __global__ void __launch_bounds__(256) dw_tool_outside(const __grid_constant__ dw_tool_count_params p) {
  u32 found = 0;
  for (s64 i = (s64)blockIdx.x * 256 + threadIdx.x; i < p.elements; i += (s64)gridDim.x * 256) {
    const s64 at = i - p.lead, row = at / p.row_stride, in_row = at % p.row_stride;
    const s64 head = in_row / p.head_stride, in_head = in_row % p.head_stride;
    const bool inside = at >= 0 && row < p.rows && head < p.heads && in_head < p.head_elements;
    found += !inside && element_of(p.data, i, p.element_bytes) != p.poison;
  }
  if (found) atomic_add_u32(p.count, found);
}

extern "C" __global__ void __launch_bounds__(256) dw_tool_differ(const __grid_constant__ dw_tool_count_params p) {
  u32 found = 0;
  for (s64 i = (s64)blockIdx.x * 256 + threadIdx.x; i < p.elements; i += (s64)gridDim.x * 256)
    found += ((const u32 *)p.data)[i] != ((const u32 *)p.other)[i];
  if (found) atomic_add_u32(p.count, found);
}

#ifndef __CUDACC__
// Host execution calls the kernels through pointers to their parameters.
@ local takes = {
@   {"dw_tool_fill", "fill"}, {"dw_oracle64", "oracle"}, {"dw_plain", "oracle"}, {"dw_oracle64_merge", "oracle"},
@   {"dw_oracle64_depth", "oracle"}, {"dw_tool_compare", "compare"}, {"dw_tool_outside", "count"}, {"dw_tool_differ", "count"},
@ }
@ for _, entry in ipairs(takes) do
@   local struct = entry[2] == "oracle" and "dw_oracle_params" or "dw_tool_" .. entry[2] .. "_params"
extern "C" void ${entry[1]}__host(const void *p) { ${entry[1]}(*(const ${struct} *)p); }
@ end
#endif
@ else
// ---- ceilings -------------------------------------------------------------------------------------------------
// Also throws other data out of the L2.
extern "C" __global__ void __launch_bounds__(512) dw_tool_read(const __grid_constant__ dw_tool_peak_params p) {
  const s64 pieces = p.bytes / 16, step = (s64)gridDim.x * 512;
  u32 mixed = 0;
  s64 i = (s64)blockIdx.x * 512 + threadIdx.x;
  for (; i + 7 * step < pieces; i += 8 * step) {
    u32x4 v[8];
#pragma unroll
    for (int k = 0; k < 8; k++) v[k] = ldg_nc_v4((const u8 *)p.data + (i + k * step) * 16);
#pragma unroll
    for (int k = 0; k < 8; k++) mixed ^= v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
  }
  for (; i < pieces; i += step) {
    const u32x4 v = ldg_nc_v4((const u8 *)p.data + i * 16);
    mixed ^= v.x ^ v.y ^ v.z ^ v.w;
  }
  if (mixed == 0x9E3779B9u) *p.sink = mixed;
}

// Only reads what a call reads, through its tables: K and V of all its tokens, once. A warp takes 16 tokens of one plane and head.
template <int CHUNKS>
DEV u32 read_tokens(const dw_oracle_params &p, const Span &s, int b, int t0, const u8 *plane, s64 page_stride, s64 token_stride) {
  const int token = t0 + (int)(lane_id() & 15);
  const s64 slot = token_slot(p, s, b, token < s.tokens ? token : s.tokens - 1);
  const s64 mine = slot / p.page * page_stride + slot % p.page * token_stride;
  u32 mixed = 0;
#pragma unroll 1
  for (int i0 = 0; i0 < (CHUNKS + 1) / 2; i0 += 8) {
    u32x4 v[8];
#pragma unroll
    for (int k = 0; k < 8; k++) {
      const int at = (i0 + k) * 32 + (int)lane_id(), of = at / CHUNKS;
      v[k] = u32x4{0, 0, 0, 0};
      const s64 place = shuffle_s64(mine, of & 15);
      if (i0 + k < (CHUNKS + 1) / 2 && of < 16 && t0 + of < s.tokens) v[k] = ldg_nc_v4(plane + place + at % CHUNKS * 16);
    }
#pragma unroll
    for (int k = 0; k < 8; k++) mixed ^= v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
  }
  return mixed;
}

extern "C" __global__ void __launch_bounds__(512) dw_tool_gather(const __grid_constant__ dw_tool_gather_params g) {
  const dw_oracle_params &p = g.call;
  const int planes = p.v ? 2 * p.kv_heads : 1, units = (g.most_tokens + 15) / 16;
  u32 mixed = 0;
  for (s64 item = (s64)blockIdx.x * 16 + warp_id(); item < (s64)p.batch * units * planes; item += (s64)gridDim.x * 16) {
    const int plane = (int)(item % planes), unit = (int)(item / planes % units), b = (int)(item / planes / units);
    const Span s = span_of(p, b);
    if (unit * 16 >= s.tokens) continue;
    const s64 each = p.kv_type >= 3 ? 1 : 2;  // bytes an element
    if (plane < p.kv_heads) {
      const u8 *from = (const u8 *)p.kv + plane * p.kv_head_stride * each;
      mixed ^= p.kv_type == 4 ? read_tokens<656 / 16>(p, s, b, unit * 16, from, p.kv_page_stride, p.kv_token_stride)
               : each == 1    ? read_tokens<QK / 16>(p, s, b, unit * 16, from, p.kv_page_stride, p.kv_token_stride)
                              : read_tokens<QK / 8>(p, s, b, unit * 16, from, p.kv_page_stride * 2, p.kv_token_stride * 2);
    } else {
      const u8 *from = (const u8 *)p.v + (plane - p.kv_heads) * p.v_head_stride * each;
      mixed ^= each == 1 ? read_tokens<V / 16>(p, s, b, unit * 16, from, p.v_page_stride, p.v_token_stride)
                         : read_tokens<V / 8>(p, s, b, unit * 16, from, p.v_page_stride * 2, p.v_token_stride * 2);
    }
  }
  if (mixed == 0x9E3779B9u) *g.sink = mixed;
}

// The plainest copy: what the companions that move rows are held against.
extern "C" __global__ void __launch_bounds__(512) dw_tool_copy(const __grid_constant__ dw_tool_peak_params p) {
  const s64 pieces = p.bytes / 16, step = (s64)gridDim.x * 512;
  s64 i = (s64)blockIdx.x * 512 + threadIdx.x;
  for (; i + 3 * step < pieces; i += 4 * step) {
    u32x4 v[4];
#pragma unroll
    for (int k = 0; k < 4; k++) v[k] = ldg_cg_v4((const u8 *)p.data + (i + k * step) * 16);
#pragma unroll
    for (int k = 0; k < 4; k++) stg_cg_v4((u8 *)p.to + (i + k * step) * 16, v[k]);
  }
  for (; i < pieces; i += step) stg_cg_v4((u8 *)p.to + i * 16, ldg_cg_v4((const u8 *)p.data + i * 16));
}

// The same of rows that lie anywhere, a warp a row.
extern "C" __global__ void __launch_bounds__(128) dw_tool_copy_rows(const __grid_constant__ dw_tool_peak_params p) {
  const s64 *pairs = (const s64 *)p.data;
  for (s64 row = (s64)blockIdx.x * 4 + warp_id(); row < p.steps; row += (s64)gridDim.x * 4) {
    const u8 *from = (const u8 *)ldg_nc_s64(pairs + 2 * row);
    u8 *to = (u8 *)ldg_nc_s64(pairs + 2 * row + 1);
    u32x4 v[3];
#pragma unroll
    for (int k = 0; k < 3; k++)
      if ((k * 32 + lane_id()) * 16 < p.bytes) v[k] = ldg_cg_v4(from + (k * 32 + lane_id()) * 16);
#pragma unroll
    for (int k = 0; k < 3; k++)
      if ((k * 32 + lane_id()) * 16 < p.bytes) stg_cg_v4(to + (k * 32 + lane_id()) * 16, v[k]);
  }
}

extern "C" __global__ void __launch_bounds__(512) dw_tool_mma(const __grid_constant__ dw_tool_peak_params p) {
  float d[8][4];
  u32 a[4], b[8][2];
#pragma unroll
  for (int k = 0; k < 4; k++) a[k] = 0x3F803F80u + threadIdx.x + k;
#pragma unroll
  for (int t = 0; t < 8; t++) {
    b[t][0] = 0x3C003C00u + threadIdx.x * 8 + t;
    b[t][1] = 0x3C003C00u ^ (threadIdx.x + t);
    d[t][0] = d[t][1] = d[t][2] = d[t][3] = 0.f;
  }
  for (s64 step = 0; step < p.steps; step++) {
#pragma unroll
    for (int t = 0; t < 8; t++) mma_m16n8k16_bf16(d[t], a, b[t]);
  }
  float sum = 0.f;
#pragma unroll
  for (int t = 0; t < 8; t++) sum += d[t][0] + d[t][1] + d[t][2] + d[t][3];
  if (sum == 0.12345f) *p.sink = 1;
}

extern "C" __global__ void __launch_bounds__(32) dw_tool_spin(const __grid_constant__ dw_tool_peak_params p) {
  const s64 start = clock64();
  while (clock64() - start < p.steps) {
  }
  if (start == -1) *p.sink = 1;
}
@ end
