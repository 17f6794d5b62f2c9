// Partial attention results of the same rows -> one: out = sum of 2^(lse_s - lse) x out_s, lse = log2 of the sum of 2^lse_s. A state
// that saw nothing (lse -inf) counts as zero whatever its out holds. A warp has a vector, so that out and lse may be those of one
// of the states.
#pragma once

DEV float merge_widen(u16 x, int dtype) { return dtype == 1 ? f16_to_float(x) : bf16_to_float(x); }
DEV u32 merge_pack(float lo, float hi, int dtype) { return dtype == 1 ? pack_f16x2(lo, hi) : pack_bf16x2(lo, hi); }

// N elements of a state as they lie in memory. N = 8: 16-byte aligned, HALVES: not fp32; N = 1: any element.
template <int N, bool HALVES>
struct Part {
  u32x4 words[HALVES ? 1 : 2];
  DEV void load(u64 at, int dtype, bool wanted) {
    words[0] = ldg_cg_v4_if((const void *)at, wanted);
    if (!HALVES) words[1] = ldg_cg_v4_if((const u8 *)at + 16, wanted && dtype == 2);
  }
  DEV void add_to(float (&sum)[N], float weight, int dtype) const {
    const u32 w[4] = {words[0].x, words[0].y, words[0].z, words[0].w};
    if constexpr (!HALVES) {
      if (dtype == 2) {
        const u32 more[4] = {words[1].x, words[1].y, words[1].z, words[1].w};
#pragma unroll
        for (int i = 0; i < 4; i++) sum[i] += weight * bits_to_float(w[i]), sum[i + 4] += weight * bits_to_float(more[i]);
        return;
      }
    }
#pragma unroll
    for (int i = 0; i < N; i++) sum[i] += weight * merge_widen((u16)(w[i / 2] >> i % 2 * 16), dtype);
  }
};
template <>
struct Part<1, false> {
  u32 word;
  DEV void load(u64 at, int dtype, bool wanted) {
    if (wanted) word = dtype == 2 ? *(const volatile u32 *)at : *(const volatile u16 *)at;
  }
  DEV void add_to(float (&sum)[1], float weight, int dtype) const {
    sum[0] += weight * (dtype == 2 ? bits_to_float(word) : merge_widen((u16)word, dtype));
  }
};
template <int N>
DEV void store_merged(void *out, s64 at, const float (&v)[N], int dtype) {
  if constexpr (N == 1) {
    if (dtype == 2) ((float *)out)[at] = v[0];
    else ((u16 *)out)[at] = (u16)merge_pack(v[0], 0.f, dtype);
  } else if (dtype == 2) {
#pragma unroll
    for (int i = 0; i < 8; i += 4)
      stg_cg_v4((float *)out + at + i,
                u32x4{float_to_bits(v[i]), float_to_bits(v[i + 1]), float_to_bits(v[i + 2]), float_to_bits(v[i + 3])});
  } else {
    stg_cg_v4((u16 *)out + at, u32x4{merge_pack(v[0], v[1], dtype), merge_pack(v[2], v[3], dtype),
                                     merge_pack(v[4], v[5], dtype), merge_pack(v[6], v[7], dtype)});
  }
}

// A lane's state: where its part of the vector starts, and its log-sum-exp in base 2. Lanes past the last state: -inf.
struct State {
  u64 out;
  int dtype;
  float lse;
};
DEV State find_state(const dw_merge_params &p, int s, int row, int head) {
  State state = {0, 0, bits_to_float(0xFF800000u)};
  if (s >= p.parts) return state;
  int kind = 0;
  while (s >= p.states[kind].count) s -= p.states[kind++].count;
  const dw_c_states &k = p.states[kind];
  state.lse = ldg_cg_f32(k.lse + s * k.lse_part_stride + row * k.lse_row_stride + head * k.lse_head_stride) * k.to_log2;
  const s64 at = s * k.out_part_stride + row * k.out_row_stride + head * k.out_head_stride;
  state.out = (u64)k.out + (at << (k.dtype == 2 ? 2 : 1));
  state.dtype = k.dtype;
  return state;
}

// A lane has every 32nd state; of up to 32 states they stay in registers. The first parts are on their way before anything is
// known about weights, so that a vector of few states waits for memory once.
template <int N, bool HALVES>
DEV void merge_vector(const dw_merge_params &p, int row, int head) {
  constexpr int TOGETHER = 4, CHUNKS = HALVES ? 2 : 1;  // states, and pieces of 32 x N elements of each, on their way at one time
  const float none = bits_to_float(0xFF800000u);
  const int lane = lane_id();
  Part<N, HALVES> parts[TOGETHER][CHUNKS];
  State state = find_state(p, lane, row, head);
  int d = lane * N;
  const auto load = [&](int s0, u32 wanted) {  // of states s0, s0 + 1, ...
#pragma unroll
    for (int j = 0; j < TOGETHER; j++) {
      if (!(wanted >> (s0 + j) & 1)) continue;
      const u64 out = (u64)shuffle_s64((s64)state.out, s0 + j);
      const int dtype = (int)shuffle((u32)state.dtype, s0 + j);
#pragma unroll
      for (int c = 0; c < CHUNKS; c++) {
        const s64 element = d + c * 32 * N;
        parts[j][c].load(out + (element << (dtype == 2 ? 2 : 1)), dtype, element < p.v);
      }
    }
  };
  load(0, p.parts < 32 ? (1u << p.parts) - 1 : ~0u);
  float max = state.lse, total = 0.f;
  for (int s0 = 32; s0 < p.parts; s0 += 32) max = fmaxf(max, find_state(p, s0 + lane, row, head).lse);
#pragma unroll
  for (u32 step = 1; step < 32; step <<= 1) max = fmaxf(max, shuffle_xor(max, step));
  for (int s0 = 0; s0 < p.parts; s0 += 32) {
    const float lse = s0 ? find_state(p, s0 + lane, row, head).lse : state.lse;
    total += lse == none ? 0.f : exp2_approx(lse - max);
  }
#pragma unroll
  for (u32 step = 1; step < 32; step <<= 1) total += shuffle_xor(total, step);
  // Not `total > 0`: a row that looks at NaN is NaN.
  const float scale = total == 0.f ? 0.f : reciprocal_approx(total);
  for (int d0 = 0; d0 < p.v; d0 += 32 * N * CHUNKS) {  // as often for every lane: the weights are shuffled
    d = d0 + lane * N;
    float sum[CHUNKS][N] = {};
    for (int s0 = 0; s0 < p.parts; s0 += 32) {
      if (p.parts > 32 && d0 + s0) state = find_state(p, s0 + lane, row, head);
      const float weight = exp2_approx(state.lse - max);
      const u32 live = vote_ballot(state.lse != none);
      for (int s = 0; s < 32 && live >> s; s += TOGETHER) {
        if (d0 + s0 + s) load(s, live);
#pragma unroll
        for (int j = 0; j < TOGETHER; j++) {
          if (!(live >> (s + j) & 1)) continue;
          const float w = shuffle(weight, s + j);
          const int dtype = (int)shuffle((u32)state.dtype, s + j);
#pragma unroll
          for (int c = 0; c < CHUNKS; c++) parts[j][c].add_to(sum[c], w, dtype);
        }
      }
    }
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
#pragma unroll
      for (int i = 0; i < N; i++) sum[c][i] *= scale;
      const int at = d + c * 32 * N;
      if (at < p.v) store_merged<N>(p.out, row * p.out_row_stride + head * p.out_head_stride + at, sum[c], p.dtype);
    }
  }
  sync_warp();  // all lanes have read the states' lse, which may be where this one goes
  if (p.lse && lane == 0)
    p.lse[row * p.lse_row_stride + head * p.lse_head_stride] = total == 0.f ? none : (max + log2_approx(total)) * p.from_log2;
}

extern "C" __global__ void __launch_bounds__(32 * DW_C_MERGE_WARPS) dw_merge_states(const __grid_constant__ dw_merge_params p) {
  const u32 vector = blockIdx.x * DW_C_MERGE_WARPS + warp_id();
  u32 head;
  const u32 row = divide(vector, p.heads, head);
  if ((int)row >= p.rows) return;
  if (!p.wide) merge_vector<1, false>(p, row, head);
  else if (p.halves) merge_vector<8, true>(p, row, head);
  else merge_vector<8, false>(p, row, head);
}
