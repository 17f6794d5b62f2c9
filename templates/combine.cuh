// Merges the partial results of a row: out = sum of 2^(lse_s - lse) x out_s over its KV ranges s, lse = log2 sum of 2^lse_s.
// Ranges are added in ascending order within a lane group and the groups in a fixed order: same shares, same bits. A range that
// saw nothing (lse -inf) counts as zero whatever its partial holds. PARTIAL_F16: fp16 partials, else fp32; both are normalised.
#pragma once

constexpr int PARTIAL_BYTES = PARTIAL_F16 ? 2 : 4;

// Adds eight neighbouring elements of a partial row (fp16: x alone, fp32: x and y).
DEV void add_partial(float (&sum)[8], const u32x4 &x, const u32x4 &y, float weight) {
  const u32 w[8] = {x.x, x.y, x.z, x.w, y.x, y.y, y.z, y.w};
#pragma unroll
  for (int i = 0; i < (PARTIAL_F16 ? 4 : 8); i++) {
    if (PARTIAL_F16) {
      sum[2 * i] += weight * lo_half_f16(w[i]);
      sum[2 * i + 1] += weight * hi_half_f16(w[i]);
    } else {
      sum[i] += weight * bits_to_float(w[i]);
    }
  }
}
DEV float weight_of(float lse, float max) { return lse == MINUS_INF ? 0.f : exp2_approx(lse - max); }
// A row that saw nothing has a sum of 0. (Not `sum > 0`: a row that looks at NaN is NaN.)
DEV float merged_lse(float max, float sum) { return sum == 0.f ? MINUS_INF : max + log2_approx(sum); }

// Where a thread finds its part of a row's partials: byte and element addresses of its first range, and the steps to the next.
struct Partials {
  const u8 *at;
  const float *lse;
  u32 step, lse_step;  // bytes, elements
  int ranges;
};
DEV Partials find_partials(const dw_params &p, const Share &share, int row, int d) {
  const s64 first = (s64)share.first_slot * p.rows + row;
  return Partials{(const u8 *)p.partial + (first * V + d) * PARTIAL_BYTES, p.partial_lse + first, (u32)p.rows * V * PARTIAL_BYTES,
                  (u32)p.rows, share.ranges};
}
// Past the last range the last one is read again, with weight 0.
DEV int real_range(const Partials &x, int range) { return range < x.ranges ? range : x.ranges - 1; }
// Where ranges first, first + every, ... have what the first has at `from`. What the first loads after the wait for the kernel before
// take is worked out before it.
template <class T, int N>
DEV void range_places(const Partials &x, const T *from, u32 step, int first, int every, const T *(&at)[N]) {
#pragma unroll
  for (int k = 0; k < N; k++) at[k] = from + (u64)(u32)real_range(x, first + every * k) * step;
}

// The request of this block, or no rows past the end of the batch.
DEV Request combine_request(const dw_params &p, const Lengths &lengths) {
  Request r{};
  if ((int)blockIdx.y < p.batch) r = load_request(p, blockIdx.y, length_of(lengths, blockIdx.y));
  return r;
}

// FEW: a thread has eight elements of a row and walks all ranges. grid (ceil(rows x V / 8 / 128), batch), 128 threads.
constexpr int SLICES = V / 8;  // of a row
template <int RANGES>          // loaded together
DEV void combine_few(const dw_params &p) {
  const int unit = blockIdx.x * 128 + threadIdx.x;
  const int row = unit / SLICES, d = unit % SLICES * 8;
  const Lengths lengths = ask_lengths(p, blockIdx.y);
  const Request r = combine_request(p, lengths);
  const Partials x = find_partials(p, find_share(p, r, lengths), row, d);
  const float stored = stored_scale(p.v_scale);
  const u8 *at[RANGES];
  const float *lse_at[RANGES];
  range_places(x, x.at, x.step, 0, 1, at);
  range_places(x, x.lse, x.lse_step, 0, 1, lse_at);
  grid_dependents_launch();
  grid_dependency_wait();
  if (row >= r.rows()) return;
  float max = MINUS_INF, sum = 0.f, out[8] = {0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f};
#pragma unroll 1
  for (int s0 = 0;;) {
    float lse[RANGES];
    u32x4 a[RANGES], b[RANGES];
#pragma unroll
    for (int s = 0; s < RANGES; s++) {
      lse[s] = ldg_cg_f32(lse_at[s]);
      a[s] = ldg_cg_v4(at[s]);
      b[s] = PARTIAL_F16 ? a[s] : ldg_cg_v4(at[s] + 16);
    }
#pragma unroll
    for (int s = 0; s < RANGES; s++)
      if (s0 + s >= x.ranges) lse[s] = MINUS_INF;
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
      add_partial(out, a[s], b[s], weight);
    }
    s0 += RANGES;
    if (s0 >= x.ranges) break;
    range_places(x, x.at, x.step, s0, 1, at);
    range_places(x, x.lse, x.lse_step, s0, 1, lse_at);
  }
  const float keep = add_sink(p, r, row, max, sum), scale = keep * reciprocal_approx(sum) * stored;
#pragma unroll
  for (int i = 0; i < 8; i++) out[i] = sum == 0.f ? 0.f : out[i] * scale;
  store_out8(p, out_offset(p, r, row) + d, out);
  if (d == 0) store_lse(p, r, row, merged_lse(max, sum));
}

// MANY: a block has 128 elements of a row; eight groups of 16 lanes take every eighth range each, eight elements a lane, then add
// up through shared memory. grid (rows x V / 128, batch), 128 threads.
// The log-sum-exps go through shared memory, and what is computed from them so comes after a barrier: the loads of the partials
// are then all in flight before it. (Left alone the compiler sinks each load to its use to save registers.)
constexpr int QUARTERS = V / 128;
constexpr int GROUP_STRIDE = 132 * 4;       // bytes between groups' sums, padded against bank conflicts
constexpr int SUMS = 0;                     // [8][132] f32
constexpr int LSES = SUMS + 8 * GROUP_STRIDE;  // [ranges at a time] f32
template <int RANGES>                       // a group loads together
DEV void combine_many(const dw_params &p) {
  const int row = blockIdx.x / QUARTERS, quarter = blockIdx.x % QUARTERS;
  const u32 thread = threadIdx.x, lane = lane_id(), group = thread >> 4, slice = thread & 15;
  const Lengths lengths = ask_lengths(p, blockIdx.y);
  const Request r = combine_request(p, lengths);
  const Partials x = find_partials(p, find_share(p, r, lengths), row, quarter * 128 + slice * 8);
  const float stored = stored_scale(p.v_scale);
  const smem_addr shared = smem_base();
  constexpr int AT_ONCE = RANGES * 8, EACH = (AT_ONCE + 31) / 32, OWN = (AT_ONCE + 127) / 128;
  const u8 *at[RANGES];
  const float *lse_at[OWN];
  range_places(x, x.at, x.step, group, 8, at);
  range_places(x, x.lse, x.lse_step, (int)thread, 128, lse_at);
  grid_dependents_launch();
  grid_dependency_wait();
  if (row >= r.rows()) return;
  float max = MINUS_INF, sum = 0.f, out[8] = {0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f};
#pragma unroll 1
  for (int s0 = 0;;) {
    float own[OWN];
#pragma unroll
    for (int i = 0; i < OWN; i++) own[i] = ldg_cg_f32(lse_at[i]);
    u32x4 a[RANGES], b[RANGES];
#pragma unroll
    for (int k = 0; k < RANGES; k++) {
      a[k] = ldg_cg_v4(at[k]);
      b[k] = PARTIAL_F16 ? a[k] : ldg_cg_v4(at[k] + 16);
    }
    sync_warp();  // else the compiler stores first, and all loads of partials wait for those of the log-sum-exps
#pragma unroll
    for (int i = 0; i < OWN; i++) {
      const int s = (int)thread + i * 128;
      if (s < AT_ONCE) sts_f32(shared + LSES + s * 4, s0 + s < x.ranges ? own[i] : MINUS_INF);
    }
    barrier_sync(0, 128);
    float lse[EACH];  // of all ranges, shared out among the lanes
    const float before = max;
#pragma unroll
    for (int k = 0; k < EACH; k++) {
      const u32 s = k * 32 + lane;
      lse[k] = s < AT_ONCE ? lds_f32(shared + LSES + s * 4) : MINUS_INF;
      max = fmaxf(max, lse[k]);
    }
#pragma unroll
    for (u32 step = 1; step < 32; step <<= 1) max = fmaxf(max, shuffle_xor(max, step));
    const float keep = weight_of(before, max);
    float some = 0.f;
#pragma unroll
    for (int k = 0; k < EACH; k++) some += weight_of(lse[k], max);
#pragma unroll
    for (u32 step = 1; step < 32; step <<= 1) some += shuffle_xor(some, step);
    sum = sum * keep + some;
#pragma unroll
    for (int i = 0; i < 8; i++) out[i] *= keep;
#pragma unroll
    for (int k = 0; k < RANGES; k++) add_partial(out, a[k], b[k], weight_of(lds_f32(shared + LSES + (group + 8 * k) * 4), max));
    s0 += AT_ONCE;
    if (s0 >= x.ranges) break;
    barrier_sync(0, 128);  // the log-sum-exps of this round are used up
    range_places(x, x.at, x.step, s0 + group, 8, at);
    range_places(x, x.lse, x.lse_step, s0 + (int)thread, 128, lse_at);
  }
  const smem_addr mine = shared + SUMS + group * GROUP_STRIDE + slice * 32;
  sts_f32x4(mine, f32x4{out[0], out[1], out[2], out[3]});
  sts_f32x4(mine + 16, f32x4{out[4], out[5], out[6], out[7]});
  barrier_sync(0, 128);
  float total = 0.f;
#pragma unroll
  for (int g = 0; g < 8; g++) total += lds_f32(shared + SUMS + g * GROUP_STRIDE + thread * 4);
  const float keep = add_sink(p, r, row, max, sum);
  store_out1(p, out_offset(p, r, row) + quarter * 128 + thread, sum == 0.f ? 0.f : total * (keep * reciprocal_approx(sum) * stored));
  if (quarter == 0 && thread == 0) store_lse(p, r, row, merged_lse(max, sum));
}
