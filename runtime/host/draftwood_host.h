// The host twin of ptx.cuh: the same names, so that a kernel's source text compiles with g++ or clang++ and runs on the CPU.
//
// ptx.cuh includes this file where __CUDACC__ is not defined; types.cuh comes before it. Functions that only compute are
// written out here. All others go through a table of functions that the runner (runner.cc) hands over with dw_host_bind()
// before the first launch: the kernel's shared object has no undefined symbol of ours, so it makes no difference whether the
// runner sits in an executable, in a static library or behind hidden visibility.
// A kernel `extern "C" __global__ void NAME(const __grid_constant__ dw_params p)` is called through
// `extern "C" void NAME__host(const void *p) { NAME(*(const dw_params *)p); }`, which the source has outside __CUDACC__.
#pragma once

// ---- the table ------------------------------------------------------------------------------------------------
// Every function that the runner sees, by name, for its messages.
// clang-format off
#define DW_HOST_FUNCTIONS(X)                                                                                          \
  X(elect_one) X(sync_warp) X(shuffle) X(shuffle_xor) X(shuffle_up) X(vote_any) X(vote_ballot) X(ldg_nc_s32)          \
  X(ldg_nc_s64)                                                                                                       \
  X(ldg_nc_u32) X(ldg_nc_u8) X(ldg_nc_v2) X(ldg_nc_v4) X(ldg_cg_v4) X(ldg_cg_s32) X(ldg_cg_f32) X(stg_cg_v4)          \
  X(stg_cg_v2) X(stg_cg_f32) X(atomic_add_u32) X(lds_u32) X(lds_f32) X(lds_f32x2) X(lds_f32x4) X(lds_u32x4)           \
  X(sts_u16) X(sts_u32) X(sts_f32) X(sts_u32x2) X(sts_f32x2) X(sts_f32x4) X(sts_u32x4) X(ldmatrix_x4)                 \
  X(ldmatrix_x4_trans) X(ldmatrix_x2) X(ldmatrix_x2_trans) X(stmatrix_x4) X(stmatrix_x4_trans) X(movmatrix_trans)     \
  X(mma_m16n8k16_bf16) X(mma_m16n8k16_f16) X(mma_m16n8k32_e4m3) X(mma_m16n8k16_e4m3) X(mma_m16n8k16_f16_f16)          \
  X(cp_async_16) X(cp_async_16_zfill) X(cp_async_4) X(cp_async_commit) X(cp_async_wait_group) X(cp_async_wait_all)    \
  X(cp_async_mbarrier_arrive) X(bulk_load) X(bulk_prefetch_l2) X(fence_proxy_async) X(barrier_sync) X(barrier_arrive) \
  X(mbarrier_init) X(fence_mbarrier_init) X(mbarrier_arrive) X(mbarrier_arrive_expect) X(mbarrier_wait)               \
  X(mbarrier_test) X(registers_inc) X(registers_dec) X(cluster_map) X(cluster_arrive) X(cluster_arrive_relaxed)       \
  X(cluster_wait) X(ld_cluster_v4) X(ld_cluster_f32) X(st_async_u32) X(st_async_u32x2) X(st_async_u32x4)              \
  X(mbarrier_arrive_remote) X(mbarrier_arrive_remote_relaxed) X(grid_dependency_wait) X(grid_dependents_launch)
// clang-format on

enum dw_host_fn {
#define X(name) DW_HOST_FN_##name,
  DW_HOST_FUNCTIONS(X)
#undef X
    DW_HOST_FN_COUNT
};

struct dw_host_dim {
  unsigned x, y, z;
};
struct dw_host_place {  // where a thread is
  dw_host_dim thread, block, block_dim, grid_dim;
  unsigned cluster_rank;
};

struct dw_host_ops {
  unsigned size;  // of this struct: a kernel built against another header is refused
  const dw_host_place *(*place)();
  unsigned (*lanes)(dw_host_fn, unsigned v, unsigned arg);  // elect_one, shuffles, votes, movmatrix, sync_warp
  void (*load)(dw_host_fn, unsigned a, void *to, unsigned n);
  void (*store)(dw_host_fn, unsigned a, const void *from, unsigned n);
  void (*matrix)(dw_host_fn, unsigned a, unsigned *r);  // ldmatrix, stmatrix
  void (*mma)(dw_host_fn, float *d, const unsigned *a, const unsigned *b);
  void (*global)(dw_host_fn, const void *p, unsigned n);  // checks only; the access itself is the caller's
  void (*copy)(dw_host_fn, unsigned dst, const void *src, unsigned n, unsigned bar);
  void (*copy_group)(dw_host_fn, unsigned arg);
  void (*fence)(dw_host_fn);
  void (*barrier)(dw_host_fn, unsigned id, unsigned n);
  unsigned (*mbarrier)(dw_host_fn, unsigned a, unsigned arg);
  void (*registers)(dw_host_fn, unsigned n);
  unsigned (*cluster)(dw_host_fn, unsigned a, unsigned rank);
  void (*st_async)(dw_host_fn, unsigned a, const void *v, unsigned n, unsigned bar);
  void (*grid)(dw_host_fn);
};

#ifndef DW_HOST_TABLE_ONLY

// One for each executable or shared object, however many of its files include this.
__attribute__((visibility("hidden"), weak)) const dw_host_ops *dw_host_table;

extern "C" __attribute__((visibility("default"), weak)) int dw_host_bind(const dw_host_ops *ops) {
  if (ops->size != sizeof(dw_host_ops)) return 0;
  dw_host_table = ops;
  return 1;
}

// ---- CUDA's words ---------------------------------------------------------------------------------------------
#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#define DEV __device__ __forceinline__

#define threadIdx (dw_host_table->place()->thread)
#define blockIdx (dw_host_table->place()->block)
#define blockDim (dw_host_table->place()->block_dim)
#define gridDim (dw_host_table->place()->grid_dim)

DEV float __uint_as_float(u32 x) { return __builtin_bit_cast(float, x); }
DEV u32 __float_as_uint(float x) { return __builtin_bit_cast(u32, x); }
DEV s32 __popc(u32 x) { return __builtin_popcount(x); }
DEV s32 __ffs(s32 x) { return __builtin_ffs(x); }
DEV s32 __clz(s32 x) { return x ? __builtin_clz((u32)x) : 32; }

// <math.h> may or may not have been read; its prototypes are the same.
extern "C" {
float fmaxf(float, float) noexcept(true);
float fminf(float, float) noexcept(true);
float fmaf(float, float, float) noexcept(true);
float fabsf(float) noexcept(true);
float exp2f(float) noexcept(true);
float log2f(float) noexcept(true);
float tanhf(float) noexcept(true);
}
DEV s32 min(s32 a, s32 b) { return b < a ? b : a; }
DEV u32 min(u32 a, u32 b) { return b < a ? b : a; }
DEV u32 min(s32 a, u32 b) { return min((u32)a, b); }
DEV u32 min(u32 a, s32 b) { return min(a, (u32)b); }
DEV s64 min(s64 a, s64 b) { return b < a ? b : a; }
DEV u64 min(u64 a, u64 b) { return b < a ? b : a; }
DEV float min(float a, float b) { return fminf(a, b); }
DEV s32 max(s32 a, s32 b) { return a < b ? b : a; }
DEV u32 max(u32 a, u32 b) { return a < b ? b : a; }
DEV u32 max(s32 a, u32 b) { return max((u32)a, b); }
DEV u32 max(u32 a, s32 b) { return max(a, (u32)b); }
DEV s64 max(s64 a, s64 b) { return a < b ? b : a; }
DEV u64 max(u64 a, u64 b) { return a < b ? b : a; }
DEV float max(float a, float b) { return fmaxf(a, b); }

// ---- lanes ----------------------------------------------------------------------------------------------------
DEV u32 lane_id() { return threadIdx.x & 31; }
DEV u32 lane_id_anew() { return lane_id(); }
DEV u32 warp_id() { return threadIdx.x >> 5; }
DEV bool elect_one() { return dw_host_table->lanes(DW_HOST_FN_elect_one, 0, 0); }
DEV void sync_warp() { dw_host_table->lanes(DW_HOST_FN_sync_warp, 0, 0); }
DEV u32 shuffle(u32 v, u32 src) { return dw_host_table->lanes(DW_HOST_FN_shuffle, v, src); }
DEV u32 shuffle_xor(u32 v, u32 mask) { return dw_host_table->lanes(DW_HOST_FN_shuffle_xor, v, mask); }
DEV u32 shuffle_up(u32 v, u32 delta) { return dw_host_table->lanes(DW_HOST_FN_shuffle_up, v, delta); }
DEV s64 shuffle_s64(s64 v, u32 source) {
  const u32 low = shuffle((u32)v, source), high = shuffle((u32)((u64)v >> 32), source);
  return (s64)((u64)high << 32 | low);
}
DEV u32 warp_sum(u32 v) {
  for (u32 d = 16; d; d >>= 1) v += shuffle_xor(v, d);
  return v;
}
DEV float shuffle(float v, u32 src) { return __uint_as_float(shuffle(__float_as_uint(v), src)); }
DEV float shuffle_xor(float v, u32 mask) { return __uint_as_float(shuffle_xor(__float_as_uint(v), mask)); }
DEV bool vote_any(bool p) { return dw_host_table->lanes(DW_HOST_FN_vote_any, p, 0); }
DEV u32 lowest_bit(u32 v) { return (u32)__builtin_ctz(v); }
DEV u32 count_bits(u32 v) { return (u32)__builtin_popcount(v); }
DEV u32 vote_ballot(bool p) { return dw_host_table->lanes(DW_HOST_FN_vote_ballot, p, 0); }

// ---- arithmetic -----------------------------------------------------------------------------------------------
// .ftz: subnormals in and out become zeros of their sign.
DEV float dw_host_ftz(float x) {
  return (__float_as_uint(x) & 0x7f800000) ? x : __uint_as_float(__float_as_uint(x) & 0x80000000);
}
DEV float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
DEV float exp2_approx(float x) { return dw_host_ftz(exp2f(dw_host_ftz(x))); }
DEV float reciprocal_approx(float x) { return dw_host_ftz(1.f / dw_host_ftz(x)); }
DEV float log2_approx(float x) { return dw_host_ftz(log2f(dw_host_ftz(x))); }
DEV float bits_to_float(u32 x) { return __uint_as_float(x); }
DEV u32 float_to_bits(float x) { return __float_as_uint(x); }
DEV u32 dw_host_bf16(float x) {
  u32 b = __float_as_uint(x);
  if ((b & 0x7fffffff) > 0x7f800000) return 0x7fff;  // the NaN that the instruction gives
  return (b + 0x7fff + (b >> 16 & 1)) >> 16;
}
DEV u32 dw_host_f16(float x) {
  u32 b = __float_as_uint(x), sign = b >> 16 & 0x8000, m = b & 0x7fffffff;
  if (m > 0x7f800000) return 0x7fff;
  if (m >= 0x477ff000) return sign | 0x7c00;  // 65520 and above round to infinity
  if (m < 0x38800000) {
    // Below 2^-14 the unit is 2^-24: adding 0.5, whose unit is the same, makes the hardware round there.
    return sign | (__float_as_uint(__uint_as_float(m) + 0.5f) - 0x3f000000);
  }
  return sign | ((m - 0x38000000 + 0xfff + (m >> 13 & 1)) >> 13);
}
DEV u32 pack_bf16x2(float lo, float hi) { return dw_host_bf16(lo) | dw_host_bf16(hi) << 16; }
DEV u32 pack_f16x2(float lo, float hi) { return dw_host_f16(lo) | dw_host_f16(hi) << 16; }
DEV u32 dw_host_e4m3_to_f16(u32 x) {
  u32 sign = (x & 0x80) << 8, m = x & 0x7f;
  if (m == 0x7f) return 0x7fff;
  return sign | (m < 8 ? dw_host_f16((float)m * 0x1p-9f) : (m << 7) + 0x2000);
}
DEV void unpack_e4m3x4(u32 x, u32 &lo, u32 &hi) {
  lo = dw_host_e4m3_to_f16(x & 0xff) | dw_host_e4m3_to_f16(x >> 8 & 0xff) << 16;
  hi = dw_host_e4m3_to_f16(x >> 16 & 0xff) | dw_host_e4m3_to_f16(x >> 24) << 16;
}
DEV u32 dw_host_e4m3(float x) {
  u32 b = __float_as_uint(x), sign = b >> 24 & 0x80, m = b & 0x7fffffff;
  if (m > 0x7f800000) return 0x7f;
  if (m >= 0x43e00000) return sign | 0x7e;  // 448 and above
  if (m < 0x3c800000) {
    // Below 2^-6 the unit is 2^-9: adding 2^14, whose unit is the same, makes the hardware round there.
    return sign | (__float_as_uint(__uint_as_float(m) + 0x1p14f) - 0x46800000);
  }
  return sign | ((m - 0x3c000000 + 0x7ffff + (m >> 20 & 1)) >> 20);
}
DEV u32 pack_e4m3x4(float x, float y, float z, float w) {
  return dw_host_e4m3(x) | dw_host_e4m3(y) << 8 | dw_host_e4m3(z) << 16 | dw_host_e4m3(w) << 24;
}
DEV u32 permute_bytes(u32 x, u32 y, u32 order) {
  const u64 both = (u64)y << 32 | x;
  u32 r = 0;
  for (u32 i = 0; i < 4; ++i) r |= (u32)(both >> 8 * (order >> 4 * i & 7) & 0xff) << 8 * i;
  return r;
}
DEV u32 max_u16x2(u32 x, u32 y) {
  const u32 lo = (x & 0xffff) > (y & 0xffff) ? x : y, hi = x >> 16 > y >> 16 ? x : y;
  return (hi & 0xffff0000) | (lo & 0xffff);
}
DEV float bf16_to_float(u16 x) { return __uint_as_float((u32)x << 16); }
DEV float f16_to_float(u16 x) {
  u32 sign = (x & 0x8000u) << 16, m = x & 0x7fffu;
  if (m >= 0x7c00) return __uint_as_float(sign | 0x7f800000 | (m & 0x3ff) << 13);
  if (m < 0x400) return __uint_as_float(sign | __float_as_uint((float)m * 0x1p-24f));
  return __uint_as_float(sign | ((m << 13) + 0x38000000));
}

DEV void add_f16x2(float &lo, float &hi, u32 x) {
  lo += f16_to_float((u16)x);
  hi += f16_to_float((u16)(x >> 16));
}
DEV u32 mul_f16x2(u32 x, u32 y) {
  return dw_host_f16(f16_to_float((u16)x) * f16_to_float((u16)y)) |
         dw_host_f16(f16_to_float((u16)(x >> 16)) * f16_to_float((u16)(y >> 16))) << 16;
}
DEV u32 mul_bf16x2(u32 x, u32 y) {
  return pack_bf16x2(bf16_to_float((u16)x) * bf16_to_float((u16)y),
                     bf16_to_float((u16)(x >> 16)) * bf16_to_float((u16)(y >> 16)));
}

// ---- global memory --------------------------------------------------------------------------------------------
// The access stands here, not in the runner, so that a kernel built with AddressSanitizer has it checked.
template <class T> DEV T dw_host_ldg(dw_host_fn fn, const void *p) {
  dw_host_table->global(fn, p, sizeof(T));
  T v;
  __builtin_memcpy(&v, p, sizeof(T));
  return v;
}
template <class T> DEV void dw_host_stg(dw_host_fn fn, void *p, T v) {
  dw_host_table->global(fn, p, sizeof(T));
  __builtin_memcpy(p, &v, sizeof(T));
}
DEV s32 ldg_nc_s32(const s32 *p) { return dw_host_ldg<s32>(DW_HOST_FN_ldg_nc_s32, p); }
DEV s64 ldg_nc_s64(const s64 *p) { return dw_host_ldg<s64>(DW_HOST_FN_ldg_nc_s64, p); }
DEV u32 ldg_nc_u32(const void *p) { return dw_host_ldg<u32>(DW_HOST_FN_ldg_nc_u32, p); }
DEV u32 ldg_nc_u8(const void *p) { return dw_host_ldg<u8>(DW_HOST_FN_ldg_nc_u8, p); }
DEV u32x2 ldg_nc_v2(const void *p) { return dw_host_ldg<u32x2>(DW_HOST_FN_ldg_nc_v2, p); }
DEV u32x4 ldg_nc_v4(const void *p) { return dw_host_ldg<u32x4>(DW_HOST_FN_ldg_nc_v4, p); }
DEV u32x4 ldg_cg_v4(const void *p) { return dw_host_ldg<u32x4>(DW_HOST_FN_ldg_cg_v4, p); }
DEV u32x4 ldg_cg_v4_if(const void *p, bool wanted) { return wanted ? ldg_cg_v4(p) : u32x4{}; }
DEV s32 ldg_cg_s32(const s32 *p) { return dw_host_ldg<s32>(DW_HOST_FN_ldg_cg_s32, p); }
DEV float ldg_cg_f32(const float *p) { return dw_host_ldg<float>(DW_HOST_FN_ldg_cg_f32, p); }
DEV void stg_cg_v4(void *p, u32x4 v) { dw_host_stg(DW_HOST_FN_stg_cg_v4, p, v); }
DEV void stg_cg_v2(void *p, u32x2 v) { dw_host_stg(DW_HOST_FN_stg_cg_v2, p, v); }
DEV void stg_cg_f32(float *p, float v) { dw_host_stg(DW_HOST_FN_stg_cg_f32, p, v); }
DEV void prefetch_l2(const void *) {}  // a hint; a bad address does no harm on the device either
DEV u32 atomic_add_u32(u32 *p, u32 v) {
  dw_host_table->global(DW_HOST_FN_atomic_add_u32, p, 4);
  return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}

// ---- shared memory --------------------------------------------------------------------------------------------
// Not at 0 and aligned to 128 but no further, as little as ptx.cuh promises.
DEV smem_addr smem_base() { return 1152; }

template <class T> DEV T dw_host_lds(dw_host_fn fn, smem_addr a) {
  T v;
  dw_host_table->load(fn, a, &v, sizeof(T));
  return v;
}
DEV u32 lds_u32(smem_addr a) { return dw_host_lds<u32>(DW_HOST_FN_lds_u32, a); }
DEV float lds_f32(smem_addr a) { return dw_host_lds<float>(DW_HOST_FN_lds_f32, a); }
DEV f32x2 lds_f32x2(smem_addr a) { return dw_host_lds<f32x2>(DW_HOST_FN_lds_f32x2, a); }
DEV f32x4 lds_f32x4(smem_addr a) { return dw_host_lds<f32x4>(DW_HOST_FN_lds_f32x4, a); }
DEV u32x4 lds_u32x4(smem_addr a) { return dw_host_lds<u32x4>(DW_HOST_FN_lds_u32x4, a); }
DEV void sts_u16(smem_addr a, u16 v) { dw_host_table->store(DW_HOST_FN_sts_u16, a, &v, 2); }
DEV void sts_u32(smem_addr a, u32 v) { dw_host_table->store(DW_HOST_FN_sts_u32, a, &v, 4); }
DEV void sts_f32(smem_addr a, float v) { dw_host_table->store(DW_HOST_FN_sts_f32, a, &v, 4); }
DEV void sts_u32x2(smem_addr a, u32x2 v) { dw_host_table->store(DW_HOST_FN_sts_u32x2, a, &v, 8); }
DEV void sts_f32x2(smem_addr a, f32x2 v) { dw_host_table->store(DW_HOST_FN_sts_f32x2, a, &v, 8); }
DEV void sts_f32x4(smem_addr a, f32x4 v) { dw_host_table->store(DW_HOST_FN_sts_f32x4, a, &v, 16); }
DEV void sts_u32x4(smem_addr a, u32x4 v) { dw_host_table->store(DW_HOST_FN_sts_u32x4, a, &v, 16); }

// ---- matrices -------------------------------------------------------------------------------------------------
DEV void ldmatrix_x4(u32 (&r)[4], smem_addr a) { dw_host_table->matrix(DW_HOST_FN_ldmatrix_x4, a, r); }
DEV void ldmatrix_x4_trans(u32 (&r)[4], smem_addr a) { dw_host_table->matrix(DW_HOST_FN_ldmatrix_x4_trans, a, r); }
DEV void ldmatrix_x2(u32 (&r)[2], smem_addr a) { dw_host_table->matrix(DW_HOST_FN_ldmatrix_x2, a, r); }
DEV void ldmatrix_x2_trans(u32 (&r)[2], smem_addr a) { dw_host_table->matrix(DW_HOST_FN_ldmatrix_x2_trans, a, r); }
DEV void stmatrix_x4(smem_addr a, const u32 (&r)[4]) { dw_host_table->matrix(DW_HOST_FN_stmatrix_x4, a, const_cast<u32 *>(r)); }
DEV void stmatrix_x4_trans(smem_addr a, const u32 (&r)[4]) {
  dw_host_table->matrix(DW_HOST_FN_stmatrix_x4_trans, a, const_cast<u32 *>(r));
}
DEV u32 movmatrix_trans(u32 v) { return dw_host_table->lanes(DW_HOST_FN_movmatrix_trans, v, 0); }
DEV void mma_m16n8k16_bf16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  dw_host_table->mma(DW_HOST_FN_mma_m16n8k16_bf16, d, a, b);
}
DEV void mma_m16n8k16_f16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  dw_host_table->mma(DW_HOST_FN_mma_m16n8k16_f16, d, a, b);
}
DEV void mma_m16n8k32_e4m3(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  dw_host_table->mma(DW_HOST_FN_mma_m16n8k32_e4m3, d, a, b);
}
DEV void mma_m16n8k16_e4m3(float (&d)[4], const u32 (&a)[2], const u32 (&b)[1]) {
  dw_host_table->mma(DW_HOST_FN_mma_m16n8k16_e4m3, d, a, b);
}
DEV void mma_m16n8k16_f16_f16(u32 (&d)[2], const u32 (&a)[4], const u32 (&b)[2]) {
  float sums[4] = {f16_to_float((u16)d[0]), f16_to_float((u16)(d[0] >> 16)), f16_to_float((u16)d[1]),
                   f16_to_float((u16)(d[1] >> 16))};
  dw_host_table->mma(DW_HOST_FN_mma_m16n8k16_f16_f16, sums, a, b);
  d[0] = pack_f16x2(sums[0], sums[1]);
  d[1] = pack_f16x2(sums[2], sums[3]);
}

// ---- asynchronous copies --------------------------------------------------------------------------------------
DEV void cp_async_16(smem_addr dst, const void *src) { dw_host_table->copy(DW_HOST_FN_cp_async_16, dst, src, 16, 0); }
DEV void cp_async_16_zfill(smem_addr dst, const void *src, u32 n) {
  dw_host_table->copy(DW_HOST_FN_cp_async_16_zfill, dst, src, n, 0);
}
DEV void cp_async_4(smem_addr dst, const void *src) { dw_host_table->copy(DW_HOST_FN_cp_async_4, dst, src, 4, 0); }
DEV void cp_async_commit() { dw_host_table->copy_group(DW_HOST_FN_cp_async_commit, 0); }
template <int N> DEV void cp_async_wait_group() { dw_host_table->copy_group(DW_HOST_FN_cp_async_wait_group, N); }
DEV void cp_async_wait_all() { dw_host_table->copy_group(DW_HOST_FN_cp_async_wait_all, 0); }
DEV void cp_async_mbarrier_arrive(smem_addr bar) { dw_host_table->copy_group(DW_HOST_FN_cp_async_mbarrier_arrive, bar); }
DEV void bulk_load(smem_addr dst, const void *src, u32 n, smem_addr bar) {
  dw_host_table->copy(DW_HOST_FN_bulk_load, dst, src, n, bar);
}
DEV void bulk_prefetch_l2(const void *src, u32 n) { dw_host_table->copy(DW_HOST_FN_bulk_prefetch_l2, 0, src, n, 0); }
DEV void fence_proxy_async() { dw_host_table->fence(DW_HOST_FN_fence_proxy_async); }

// ---- barriers -------------------------------------------------------------------------------------------------
DEV void barrier_sync(u32 id, u32 n) { dw_host_table->barrier(DW_HOST_FN_barrier_sync, id, n); }
DEV void barrier_arrive(u32 id, u32 n) { dw_host_table->barrier(DW_HOST_FN_barrier_arrive, id, n); }
DEV void mbarrier_init(smem_addr bar, u32 count) { dw_host_table->mbarrier(DW_HOST_FN_mbarrier_init, bar, count); }
DEV void fence_mbarrier_init() { dw_host_table->fence(DW_HOST_FN_fence_mbarrier_init); }
DEV void mbarrier_arrive(smem_addr bar) { dw_host_table->mbarrier(DW_HOST_FN_mbarrier_arrive, bar, 0); }
DEV void mbarrier_arrive_expect(smem_addr bar, u32 n) { dw_host_table->mbarrier(DW_HOST_FN_mbarrier_arrive_expect, bar, n); }
DEV void mbarrier_wait(smem_addr bar, u32 parity) { dw_host_table->mbarrier(DW_HOST_FN_mbarrier_wait, bar, parity); }
DEV bool mbarrier_test(smem_addr bar, u32 parity) { return dw_host_table->mbarrier(DW_HOST_FN_mbarrier_test, bar, parity); }

// ---- registers, clusters, dependent launches ------------------------------------------------------------------
template <int N> DEV void registers_inc() { dw_host_table->registers(DW_HOST_FN_registers_inc, N); }
template <int N> DEV void registers_dec() { dw_host_table->registers(DW_HOST_FN_registers_dec, N); }
DEV u32 cluster_rank() { return dw_host_table->place()->cluster_rank; }
DEV smem_addr cluster_map(smem_addr a, u32 rank) { return dw_host_table->cluster(DW_HOST_FN_cluster_map, a, rank); }
DEV void cluster_arrive() { dw_host_table->cluster(DW_HOST_FN_cluster_arrive, 0, 0); }
DEV void cluster_arrive_relaxed() { dw_host_table->cluster(DW_HOST_FN_cluster_arrive_relaxed, 0, 0); }
DEV void cluster_wait() { dw_host_table->cluster(DW_HOST_FN_cluster_wait, 0, 0); }
DEV u32x4 ld_cluster_v4(smem_addr a) { return dw_host_lds<u32x4>(DW_HOST_FN_ld_cluster_v4, a); }
DEV float ld_cluster_f32(smem_addr a) { return dw_host_lds<float>(DW_HOST_FN_ld_cluster_f32, a); }
DEV void st_async_u32(smem_addr a, u32 v, smem_addr bar) { dw_host_table->st_async(DW_HOST_FN_st_async_u32, a, &v, 4, bar); }
DEV void st_async_u32x2(smem_addr a, u32x2 v, smem_addr bar) {
  dw_host_table->st_async(DW_HOST_FN_st_async_u32x2, a, &v, 8, bar);
}
DEV void st_async_u32x4(smem_addr a, u32x4 v, smem_addr bar) {
  dw_host_table->st_async(DW_HOST_FN_st_async_u32x4, a, &v, 16, bar);
}
DEV void mbarrier_arrive_remote(smem_addr bar) { dw_host_table->mbarrier(DW_HOST_FN_mbarrier_arrive_remote, bar, 0); }
DEV void mbarrier_arrive_remote_relaxed(smem_addr bar) {
  dw_host_table->mbarrier(DW_HOST_FN_mbarrier_arrive_remote_relaxed, bar, 0);
}
DEV void grid_dependency_wait() { dw_host_table->grid(DW_HOST_FN_grid_dependency_wait); }
DEV void grid_dependents_launch() { dw_host_table->grid(DW_HOST_FN_grid_dependents_launch); }

#endif  // DW_HOST_TABLE_ONLY
