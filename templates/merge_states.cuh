// Partial attention results of the same rows -> one: out = sum of 2^(lse_s - lse) x out_s, lse = log2 of the sum of 2^lse_s. A state that saw nothing (lse -inf) counts as zero and its out is not looked at. A
// warp has a vector, so that out and lse may be those of one of the states.
#pragma once

DEV float merge_widen(u16 x, int dtype) { return dtype == 1 ? f16_to_float(x) : bf16_to_float(x); }
DEV u32 merge_pack(float lo, float hi, int dtype) { return dtype == 1 ? pack_f16x2(lo, hi) : pack_bf16x2(lo, hi); }

// N = 8: `at` is 16-byte aligned; N = 1: any element.
template <int N>
DEV void load_part(float (&v)[N], const void *out, s64 at, int dtype) {
  if constexpr (N == 1) {
    v[0] = dtype == 2 ? ((const float *)out)[at] : merge_widen(((const u16 *)out)[at], dtype);
  } else if (dtype == 2) {
    const u32x4 x = ldg_cg_v4((const float *)out + at), y = ldg_cg_v4((const float *)out + at + 4);
    const u32 w[8] = {x.x, x.y, x.z, x.w, y.x, y.y, y.z, y.w};
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = bits_to_float(w[i]);
  } else {
    const u32x4 x = ldg_cg_v4((const u16 *)out + at);
    const u32 w[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = merge_widen((u16)(w[i / 2] >> i % 2 * 16), dtype);
  }
}
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

// State s of all kinds: where its part of a vector starts, and its log-sum-exp in base 2.
struct State {
  const dw_c_states *kind;
  int part;
};
DEV State find_state(const dw_merge_params &p, int s) {
  int k = 0;
  while (s >= p.states[k].count) s -= p.states[k++].count;
  return State{&p.states[k], s};
}
DEV float state_lse(const dw_merge_params &p, int s, int row, int head) {
  const State state = find_state(p, s);
  const dw_c_states &k = *state.kind;
  return ldg_cg_f32(k.lse + state.part * k.lse_part_stride + row * k.lse_row_stride + head * k.lse_head_stride) * k.to_log2;
}

// A lane has every 32nd state's weight; of up to 32 states they stay in registers.
template <int N>
DEV void merge_vector(const dw_merge_params &p, int row, int head) {
  constexpr int TOGETHER = 4;  // parts on their way at one time
  const float none = bits_to_float(0xFF800000u);
  const int lane = lane_id();
  float max = none, total = 0.f, lse = none;
  for (int s0 = 0; s0 < p.parts; s0 += 32) {
    lse = s0 + lane < p.parts ? state_lse(p, s0 + lane, row, head) : none;
    max = fmaxf(max, lse);
  }
#pragma unroll
  for (u32 step = 1; step < 32; step <<= 1) max = fmaxf(max, shuffle_xor(max, step));
  for (int s0 = 0; s0 < p.parts; s0 += 32) {
    if (p.parts > 32) lse = s0 + lane < p.parts ? state_lse(p, s0 + lane, row, head) : none;
    total += lse == none ? 0.f : exp2_approx(lse - max);
  }
#pragma unroll
  for (u32 step = 1; step < 32; step <<= 1) total += shuffle_xor(total, step);
  for (int d0 = 0; d0 < p.v; d0 += 32 * N) {  // as often for every lane: the weights are shuffled
    const int d = d0 + lane * N;
    float sum[N] = {};
    for (int s0 = 0; s0 < p.parts; s0 += 32) {
      if (p.parts > 32) lse = s0 + lane < p.parts ? state_lse(p, s0 + lane, row, head) : none;
      const float weight = exp2_approx(lse - max);
      u32 left = vote_ballot(lse != none);
      while (left) {
        float part[TOGETHER][N], weights[TOGETHER];
        const int now = min(__popc(left), TOGETHER);
#pragma unroll
        for (int j = 0; j < TOGETHER; j++) {
          if (j >= now) break;
          const u32 s = lowest_bit(left);
          left &= left - 1;
          weights[j] = shuffle(weight, s);
          const State state = find_state(p, s0 + (int)s);
          const dw_c_states &k = *state.kind;
          const s64 at = state.part * k.out_part_stride + row * k.out_row_stride + head * k.out_head_stride + d;
          if (d < p.v) load_part<N>(part[j], k.out, at, k.dtype);
        }
#pragma unroll
        for (int j = 0; j < TOGETHER; j++) {
          if (j >= now) break;
#pragma unroll
          for (int i = 0; i < N; i++) sum[i] += weights[j] * part[j][i];
        }
      }
    }
    // Not `total > 0`: a row that looks at NaN is NaN.
    const float scale = total == 0.f ? 0.f : reciprocal_approx(total);
#pragma unroll
    for (int i = 0; i < N; i++) sum[i] *= scale;
    if (d < p.v) store_merged<N>(p.out, row * p.out_row_stride + head * p.out_head_stride + d, sum, p.dtype);
  }
  sync_warp();  // all lanes have read the states' lse, which may be where this one goes
  if (p.lse && lane == 0)
    p.lse[row * p.lse_row_stride + head * p.lse_head_stride] = total == 0.f ? none : (max + log2_approx(total)) * p.from_log2;
}

extern "C" __global__ void __launch_bounds__(32 * DW_C_MERGE_WARPS) dw_merge_states(const __grid_constant__ dw_merge_params p) {
  const s64 vector = (s64)blockIdx.x * DW_C_MERGE_WARPS + warp_id();
  if (vector >= (s64)p.rows * p.heads) return;
  const int row = (int)(vector / p.heads), head = (int)(vector % p.heads);
  if (p.wide) merge_vector<8>(p, row, head);
  else merge_vector<1>(p, row, head);
}
