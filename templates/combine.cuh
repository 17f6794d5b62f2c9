// Merges the partial results of a row: out = sum of 2^(lse_s - lse) x out_s over its KV ranges s, lse = log2 sum of 2^lse_s.
// Ranges are added in ascending order within a lane group and the groups in a fixed order: same shares, same bits. A range that
// saw nothing (lse -inf) counts as zero whatever its partial holds. PARTIAL_F16: fp16 partials, else fp32; both are normalised.
#pragma once

constexpr int PARTIAL_BYTES = PARTIAL_F16 ? 2 : 4;

struct Partial8 {  // eight neighbouring elements
  u32x4 lo, hi;    // fp16: lo alone
};
DEV Partial8 load_partial(const dw_params &p, s64 row, int d) {
  const u8 *at = (const u8 *)p.partial + (row * V + d) * PARTIAL_BYTES;
  Partial8 x;
  x.lo = ldg_cg_v4(at);
  if (!PARTIAL_F16) x.hi = ldg_cg_v4(at + 16);
  return x;
}
// What a range that saw nothing left behind may be anything: a weight of 0 drops it.
DEV void add_partial(float (&sum)[8], const Partial8 &x, float weight) {
  const u32 w[8] = {x.lo.x, x.lo.y, x.lo.z, x.lo.w, x.hi.x, x.hi.y, x.hi.z, x.hi.w};
#pragma unroll
  for (int i = 0; i < (PARTIAL_F16 ? 4 : 8); i++) {
    const u32 v = weight == 0.f ? 0u : w[i];
    if (PARTIAL_F16) {
      sum[2 * i] += weight * lo_half_f16(v);
      sum[2 * i + 1] += weight * hi_half_f16(v);
    } else {
      sum[i] += weight * bits_to_float(v);
    }
  }
}
DEV float weight_of(float lse, float max) { return lse == MINUS_INF ? 0.f : exp2_approx(lse - max); }
DEV float inverse(float sum) { return sum > 0.f ? 1.f / sum : 0.f; }
DEV float merged_lse(float max, float sum) { return sum > 0.f ? max + log2_approx(sum) : MINUS_INF; }

// All that needs no partial result, then the wait for them. False past the end of the batch.
DEV bool combine_begin(const dw_params &p, Request &r, Share &share) {
  const bool real = (int)blockIdx.y < p.batch;
  if (real) {
    r = load_request(p, blockIdx.y);
    share = find_share(p, r);
  }
  grid_dependents_launch();
  grid_dependency_wait();
  return real;
}

// FEW: a thread has eight elements of a row and walks all ranges. grid (ceil(rows x V / 8 / 128), batch), 128 threads.
constexpr int SLICES = V / 8;  // of a row
template <int RANGES>          // loaded together
DEV void combine_few(const dw_params &p) {
  const int unit = blockIdx.x * 128 + threadIdx.x;
  const int row = unit / SLICES, d = unit % SLICES * 8;
  Request r;
  Share share;
  const bool real = combine_begin(p, r, share);
  if (!real || row >= r.rows()) return;
  const s64 first = (s64)share.first_slot * p.rows + row;
  float max = MINUS_INF, sum = 0.f, out[8] = {0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f};
  for (int s0 = 0; s0 < share.ranges; s0 += RANGES) {
    float lse[RANGES];
    Partial8 x[RANGES];
#pragma unroll
    for (int s = 0; s < RANGES; s++) {
      const bool real = s0 + s < share.ranges;
      lse[s] = real ? ldg_cg_f32(p.partial_lse + first + (s64)(s0 + s) * p.rows) : MINUS_INF;
      if (real) x[s] = load_partial(p, first + (s64)(s0 + s) * p.rows, d);
    }
    const float before = max;
#pragma unroll
    for (int s = 0; s < RANGES; s++) max = fmaxf(max, lse[s]);
    const float keep = weight_of(before, max);
    sum *= keep;
#pragma unroll
    for (int i = 0; i < 8; i++) out[i] *= keep;
#pragma unroll
    for (int s = 0; s < RANGES; s++) {
      const float weight = weight_of(lse[s], max);
      sum += weight;
      add_partial(out, x[s], weight);
    }
  }
  const float scale = inverse(sum);
#pragma unroll
  for (int i = 0; i < 8; i++) out[i] *= scale;
  store_out8(p, out_offset(p, r, row) + d, out);
  if (d == 0) store_lse(p, r, row, merged_lse(max, sum));
}

// MANY: a block has 128 elements of a row; eight groups of 16 lanes take every eighth range each, eight elements a lane, then add
// up through shared memory. grid (rows x V / 128, batch), 128 threads.
constexpr int QUARTERS = V / 128;
constexpr int GROUP_STRIDE = 132 * 4;  // bytes between groups' sums, padded against bank conflicts
template <int RANGES>                  // a group loads together
DEV void combine_many(const dw_params &p) {
  const int row = blockIdx.x / QUARTERS, quarter = blockIdx.x % QUARTERS;
  const u32 lane = lane_id(), group = threadIdx.x >> 4, d = quarter * 128 + (threadIdx.x & 15) * 8;
  Request r;
  Share share;
  const bool real = combine_begin(p, r, share);
  if (!real || row >= r.rows()) return;
  const s64 first = (s64)share.first_slot * p.rows + row;
  float max = MINUS_INF, sum = 0.f, out[8] = {0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f};
  constexpr int EACH = (RANGES * 8 + 31) / 32;  // log-sum-exps a lane looks at for the maximum and the sum
  for (int s0 = 0; s0 < share.ranges; s0 += RANGES * 8) {
    float all[EACH], lse[RANGES];
    Partial8 x[RANGES];
#pragma unroll
    for (int k = 0; k < EACH; k++) {
      const int s = k * 32 + lane;
      all[k] = s < RANGES * 8 && s0 + s < share.ranges ? ldg_cg_f32(p.partial_lse + first + (s64)(s0 + s) * p.rows) : MINUS_INF;
    }
#pragma unroll
    for (int k = 0; k < RANGES; k++) {
      const int s = s0 + group + 8 * k;
      lse[k] = MINUS_INF;
      if (s < share.ranges) {
        x[k] = load_partial(p, first + (s64)s * p.rows, d);
        lse[k] = ldg_cg_f32(p.partial_lse + first + (s64)s * p.rows);
      }
    }
    const float before = max;
#pragma unroll
    for (int k = 0; k < EACH; k++) max = fmaxf(max, all[k]);
#pragma unroll
    for (u32 step = 1; step < 32; step <<= 1) max = fmaxf(max, shuffle_xor(max, step));
    const float keep = weight_of(before, max);
    float some = 0.f;
#pragma unroll
    for (int k = 0; k < EACH; k++) some += weight_of(all[k], max);
#pragma unroll
    for (u32 step = 1; step < 32; step <<= 1) some += shuffle_xor(some, step);
    sum = sum * keep + some;
#pragma unroll
    for (int i = 0; i < 8; i++) out[i] *= keep;
#pragma unroll
    for (int k = 0; k < RANGES; k++) add_partial(out, x[k], weight_of(lse[k], max));
  }
  const smem_addr sums = smem_base();
  const smem_addr mine = sums + group * GROUP_STRIDE + (threadIdx.x & 15) * 32;
  sts_f32x4(mine, f32x4{out[0], out[1], out[2], out[3]});
  sts_f32x4(mine + 16, f32x4{out[4], out[5], out[6], out[7]});
  barrier_sync(0, 128);
  float total = 0.f;
#pragma unroll
  for (int g = 0; g < 8; g++) total += lds_f32(sums + g * GROUP_STRIDE + threadIdx.x * 4);
  store_out1(p, out_offset(p, r, row) + quarter * 128 + threadIdx.x, total * inverse(sum));
  if (quarter == 0 && threadIdx.x == 0) store_lse(p, r, row, merged_lse(max, sum));
}
