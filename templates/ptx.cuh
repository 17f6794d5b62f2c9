// Every PTX instruction the kernels use, each a named inline function. Nothing else in templates/ holds asm.
//
// On the host the same names come from draftwood_host.h (runtime/host), which runs each CTA as cooperative fibers.
// Shared memory is reached only through the functions here, by smem_addr, so that the host twin sees every access.
// "Collective" functions are executed by all 32 lanes of a warp together.
#pragma once
#ifndef __CUDACC__
#include "draftwood_host.h"
#else
#define DEV __device__ __forceinline__

// ---- lanes ----------------------------------------------------------------------------------------------------
DEV u32 lane_id() { return threadIdx.x & 31; }
// The same, read where it stands: what follows from it then takes no register all through a loop.
DEV u32 lane_id_anew() {
  u32 lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}
DEV u32 warp_id() { return threadIdx.x >> 5; }
// True for one lane of the warp (collective). What it alone does, and for which all lanes have the same operands, takes no loop over lanes.
DEV bool elect_one() {
#if __CUDA_ARCH__ < 900
  return lane_id() == 0;
#endif
  u32 r;
  asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(r));
  return r;
}
DEV void sync_warp() { asm volatile("bar.warp.sync 0xffffffff;" ::: "memory"); }
DEV u32 shuffle(u32 v, u32 src) {
  u32 r;
  asm volatile("shfl.sync.idx.b32 %0, %1, %2, 31, 0xffffffff;" : "=r"(r) : "r"(v), "r"(src));
  return r;
}
DEV u32 shuffle_xor(u32 v, u32 mask) {
  u32 r;
  asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;" : "=r"(r) : "r"(v), "r"(mask));
  return r;
}
// Lane i gets the value of lane i - delta; the first delta lanes keep their own.
DEV u32 shuffle_up(u32 v, u32 delta) {
  u32 r;
  asm volatile("shfl.sync.up.b32 %0, %1, %2, 0, 0xffffffff;" : "=r"(r) : "r"(v), "r"(delta));
  return r;
}
DEV float shuffle(float v, u32 src) { return __uint_as_float(shuffle(__float_as_uint(v), src)); }
DEV float shuffle_xor(float v, u32 mask) { return __uint_as_float(shuffle_xor(__float_as_uint(v), mask)); }
DEV s64 shuffle_s64(s64 v, u32 source) {
  const u32 low = shuffle((u32)v, source), high = shuffle((u32)((u64)v >> 32), source);
  return (s64)((u64)high << 32 | low);
}
DEV u32 warp_sum(u32 v) {
  u32 r;
  asm volatile("redux.sync.add.u32 %0, %1, 0xffffffff;" : "=r"(r) : "r"(v));
  return r;
}
DEV bool vote_any(bool p) {
  u32 r;
  asm volatile("{ .reg .pred p, q; setp.ne.u32 p, %1, 0; vote.sync.any.pred q, p, 0xffffffff; selp.u32 %0, 1, 0, q; }"
               : "=r"(r)
               : "r"((u32)p));
  return r;
}
DEV u32 vote_ballot(bool p) {
  u32 r;
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %1, 0; vote.sync.ballot.b32 %0, p, 0xffffffff; }" : "=r"(r) : "r"((u32)p));
  return r;
}

DEV u32 lowest_bit(u32 v) { return __ffs(v) - 1; }  // v != 0
DEV u32 count_bits(u32 v) { return __popc(v); }

// ---- arithmetic -----------------------------------------------------------------------------------------------
// In one rounding, which the compiler does not do where the product has another use.
DEV float multiply_add(float a, float b, float c) { return __fmaf_rn(a, b, c); }
DEV float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
DEV float log2_approx(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
DEV float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
DEV float bits_to_float(u32 x) { return __uint_as_float(x); }
DEV u32 float_to_bits(float x) { return __float_as_uint(x); }
// Two floats rounded to nearest even and packed, lo in bits 0-15.
DEV u32 pack_bf16x2(float lo, float hi) {
  u32 r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}
DEV u32 pack_f16x2(float lo, float hi) {
  u32 r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}
// Four e4m3, exactly: elements 0 and 1 to lo, 2 and 3 to hi (sm_89 and later).
DEV void unpack_e4m3x4(u32 x, u32 &lo, u32 &hi) {
  asm("{ .reg .b16 a, b; mov.b32 {a, b}, %2; cvt.rn.f16x2.e4m3x2 %0, a; cvt.rn.f16x2.e4m3x2 %1, b; }"
      : "=r"(lo), "=r"(hi)
      : "r"(x));
}
// Four floats to e4m3, x in bits 0-7: nearest even, at most 448 (sm_89 and later).
DEV u32 pack_e4m3x4(float x, float y, float z, float w) {
  u32 r;
  asm("{ .reg .b16 a, b; cvt.rn.satfinite.e4m3x2.f32 a, %2, %1; cvt.rn.satfinite.e4m3x2.f32 b, %4, %3; mov.b32 %0, {a, b}; }"
      : "=r"(r)
      : "f"(x), "f"(y), "f"(z), "f"(w));
  return r;
}
// Byte i of the result is byte (order >> 4 i & 7) of x (0-3) and y (4-7).
DEV u32 permute_bytes(u32 x, u32 y, u32 order) {
  u32 r;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(y), "r"(order));
  return r;
}
// Of each half the greater one, without sign.
DEV u32 max_u16x2(u32 x, u32 y) {
#if __CUDA_ARCH__ >= 900
  u32 r;
  asm("max.u16x2 %0, %1, %2;" : "=r"(r) : "r"(x), "r"(y));
  return r;
#else
  const u32 lo = (x & 0xffff) > (y & 0xffff) ? x & 0xffff : y & 0xffff, hi = x >> 16 > y >> 16 ? x >> 16 : y >> 16;
  return hi << 16 | lo;
#endif
}
// Products of halves in fp16, nearest even, subnormals as they are.
DEV u32 mul_f16x2(u32 x, u32 y) {
  u32 r;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(x), "r"(y));
  return r;
}
DEV float bf16_to_float(u16 x) { return __uint_as_float((u32)x << 16); }
// Products of halves in bf16, nearest even.
DEV u32 mul_bf16x2(u32 x, u32 y) {
#if __CUDA_ARCH__ >= 900
  u32 r;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(x), "r"(y));
  return r;
#else
  return pack_bf16x2(bf16_to_float((u16)x) * bf16_to_float((u16)y), bf16_to_float((u16)(x >> 16)) * bf16_to_float((u16)(y >> 16)));
#endif
}
DEV float f16_to_float(u16 x) {
  float r;
  asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x));
  return r;
}
// Adds the halves of x, the low one to lo.
DEV void add_f16x2(float &lo, float &hi, u32 x) {
#if __CUDA_ARCH__ >= 1000
  asm("{ .reg .f16 l, h; mov.b32 {l, h}, %2; add.f32.f16 %0, l, %0; add.f32.f16 %1, h, %1; }" : "+f"(lo), "+f"(hi) : "r"(x));
#else
  lo += f16_to_float((u16)x);
  hi += f16_to_float((u16)(x >> 16));
#endif
}

// ---- global memory --------------------------------------------------------------------------------------------
// nc: read only for the whole kernel. cg: cached in L2 only (data another kernel just wrote). volatile: never re-read by the
// compiler to save a register.
DEV s32 ldg_nc_s32(const s32 *p) {
  s32 v;
  asm volatile("ld.global.nc.b32 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
}
DEV s64 ldg_nc_s64(const s64 *p) {
  s64 v;
  asm volatile("ld.global.nc.b64 %0, [%1];" : "=l"(v) : "l"(p));
  return v;
}
DEV u32 ldg_nc_u32(const void *p) {
  u32 v;
  asm volatile("ld.global.nc.b32 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
}
DEV u32 ldg_nc_u8(const void *p) {
  u32 v;
  asm volatile("ld.global.nc.u8 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
}
DEV u32x2 ldg_nc_v2(const void *p) {
  u32x2 v;
  asm volatile("ld.global.nc.v2.b32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
  return v;
}
DEV u32x4 ldg_nc_v4(const void *p) {
  u32x4 v;
  asm volatile("ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}
DEV u32x4 ldg_cg_v4(const void *p) {
  u32x4 v;
  asm volatile("ld.global.cg.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p)
               : "memory");
  return v;
}
// Zeros where it is not wanted, so that the registers depend on nothing before and no copy has to wait for the load.
DEV u32x4 ldg_cg_v4_if(const void *p, bool wanted) {
  u32x4 v;
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %5, 0; mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0;"
               " @p ld.global.cg.v4.b32 {%0, %1, %2, %3}, [%4]; }"
               : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
               : "l"(p), "r"((u32)wanted)
               : "memory");
  return v;
}
DEV s32 ldg_cg_s32(const s32 *p) {
  s32 v;
  asm volatile("ld.global.cg.b32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
DEV float ldg_cg_f32(const float *p) {
  float v;
  asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(v) : "l"(p) : "memory");
  return v;
}
DEV void stg_cg_v4(void *p, u32x4 v) {
  asm volatile("st.global.cg.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
DEV void stg_cg_v2(void *p, u32x2 v) { asm volatile("st.global.cg.v2.b32 [%0], {%1, %2};" ::"l"(p), "r"(v.x), "r"(v.y) : "memory"); }
DEV void stg_cg_f32(float *p, float v) { asm volatile("st.global.cg.f32 [%0], %1;" ::"l"(p), "f"(v) : "memory"); }
DEV void prefetch_l2(const void *p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

// ---- shared memory --------------------------------------------------------------------------------------------
// First byte of the dynamic shared memory; aligned to 128.
DEV smem_addr smem_base() {
  extern __shared__ __align__(128) u8 dw_smem[];
  return (u32)__cvta_generic_to_shared(dw_smem);
}
DEV u32 lds_u32(smem_addr a) {
  u32 v;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(a) : "memory");
  return v;
}
DEV float lds_f32(smem_addr a) {
  float v;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(a) : "memory");
  return v;
}
DEV f32x2 lds_f32x2(smem_addr a) {
  f32x2 v;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(a) : "memory");
  return v;
}
DEV f32x4 lds_f32x4(smem_addr a) {
  f32x4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(a) : "memory");
  return v;
}
DEV u32x4 lds_u32x4(smem_addr a) {
  u32x4 v;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(a) : "memory");
  return v;
}
DEV void sts_u16(smem_addr a, u16 v) { asm volatile("st.shared.b16 [%0], %1;" ::"r"(a), "h"(v) : "memory"); }
DEV void sts_u32(smem_addr a, u32 v) { asm volatile("st.shared.b32 [%0], %1;" ::"r"(a), "r"(v) : "memory"); }
DEV void sts_f32(smem_addr a, float v) { asm volatile("st.shared.f32 [%0], %1;" ::"r"(a), "f"(v) : "memory"); }
DEV void sts_u32x2(smem_addr a, u32x2 v) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(a), "r"(v.x), "r"(v.y) : "memory");
}
DEV void sts_f32x2(smem_addr a, f32x2 v) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(a), "f"(v.x), "f"(v.y) : "memory");
}
DEV void sts_f32x4(smem_addr a, f32x4 v) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(a), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
}
DEV void sts_u32x4(smem_addr a, u32x4 v) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(a), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

// ---- matrices (collective) ------------------------------------------------------------------------------------
// ldmatrix: lane l gives the row address of matrix l / 8, row l % 8; lane l then holds, of matrix i, row l / 4, columns
// 2 (l % 4) and 2 (l % 4) + 1 in r[i]. With trans, row and column change places.
DEV void ldmatrix_x4(u32 (&r)[4], smem_addr a) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(a)
               : "memory");
}
DEV void ldmatrix_x4_trans(u32 (&r)[4], smem_addr a) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(a)
               : "memory");
}
DEV void ldmatrix_x2(u32 (&r)[2], smem_addr a) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(a) : "memory");
}
DEV void ldmatrix_x2_trans(u32 (&r)[2], smem_addr a) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(a) : "memory");
}
// stmatrix: the reverse of ldmatrix (sm_90 and later).
DEV void stmatrix_x4(smem_addr a, const u32 (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(a), "r"(r[0]), "r"(r[1]), "r"(r[2]),
               "r"(r[3])
               : "memory");
}
DEV void stmatrix_x4_trans(smem_addr a, const u32 (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(a), "r"(r[0]), "r"(r[1]),
               "r"(r[2]), "r"(r[3])
               : "memory");
}
DEV u32 movmatrix_trans(u32 v) {
  u32 r;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(v));
  return r;
}
// d[16x8] += a[16x16] b[16x8]. Lane l, g = l / 4, c = 2 (l % 4): a0 = A[g][c..], a1 = A[g+8][c..], a2 = A[g][c+8..],
// a3 = A[g+8][c+8..]; b0 = B[c..][g], b1 = B[c+8..][g]; d0, d1 = D[g][c], D[g][c+1]; d2, d3 = D[g+8][c], D[g+8][c+1].
DEV void mma_m16n8k16_bf16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
DEV void mma_m16n8k16_f16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// Accumulators in fp16: d[0] = D[g][c], D[g][c+1]; d[1] = D[g+8][c], D[g+8][c+1]. Twice as fast where fp32 accumulates at half rate.
DEV void mma_m16n8k16_f16_f16(u32 (&d)[2], const u32 (&a)[4], const u32 (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0,%1}, {%2,%3,%4,%5}, {%6,%7}, {%0,%1};"
               : "+r"(d[0]), "+r"(d[1])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// The same of e4m3, four a register (sm_89 and later): with k = 32, c = 4 (l % 4): a0 = A[g][c..], a1 = A[g+8][c..], a2 = A[g][c+16..],
// a3 = A[g+8][c+16..]; b0 = B[c..][g], b1 = B[c+16..][g]. k = 16: a0, a1 and b0.
DEV void mma_m16n8k32_e4m3(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
DEV void mma_m16n8k16_e4m3(float (&d)[4], const u32 (&a)[2], const u32 (&b)[1]) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.e4m3.e4m3.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(b[0]));
}

// ---- asynchronous copies --------------------------------------------------------------------------------------
DEV void cp_async_16(smem_addr dst, const void *src) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(dst), "l"(src) : "memory");
}
// Copies the first n bytes (0 to 16) and fills the rest of the 16 with zeros.
DEV void cp_async_16_zfill(smem_addr dst, const void *src, u32 n) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(n) : "memory");
}
DEV void cp_async_4(smem_addr dst, const void *src) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(dst), "l"(src) : "memory");
}
DEV void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
DEV void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
DEV void cp_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }
// The barrier gets one arrival of this thread when its earlier cp.async are done; the expected count is not raised.
DEV void cp_async_mbarrier_arrive(smem_addr bar) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory");
}
// Bulk copy of n bytes (16-byte aligned addresses and size); its bytes are counted down on the mbarrier. The shared::cta
// form is deliberate: for a shared::cluster destination ptxas emits a call on sm_120 and drops setmaxnreg.
DEV void bulk_load(smem_addr dst, const void *src, u32 n, smem_addr bar) {
  asm volatile("cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(dst), "l"(src),
               "r"(n), "r"(bar)
               : "memory");
}
DEV void bulk_prefetch_l2(const void *src, u32 n) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(src), "r"(n) : "memory");
}
// Orders this thread's ordinary shared accesses before later bulk copies that touch the same bytes.
DEV void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- barriers -------------------------------------------------------------------------------------------------
// Named barrier `id` (0 to 15) among n threads; id 0 with n = blockDim.x is __syncthreads.
DEV void barrier_sync(u32 id, u32 n) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(n) : "memory"); }
DEV void barrier_arrive(u32 id, u32 n) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(n) : "memory"); }
DEV void mbarrier_init(smem_addr bar, u32 count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
DEV void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DEV void mbarrier_arrive(smem_addr bar) {
  asm volatile("{ .reg .b64 t; mbarrier.arrive.shared::cta.b64 t, [%0]; }" ::"r"(bar) : "memory");
}
// One arrival that also announces n bytes to come.
DEV void mbarrier_arrive_expect(smem_addr bar, u32 n) {
  asm volatile("{ .reg .b64 t; mbarrier.arrive.expect_tx.shared::cta.b64 t, [%0], %1; }" ::"r"(bar), "r"(n) : "memory");
}
// Waits until the phase of this parity is complete.
#if __CUDA_ARCH__ >= 900
#define MBARRIER_WAIT "mbarrier.try_wait.parity.shared::cta.b64"  // may sleep
#else
#define MBARRIER_WAIT "mbarrier.test_wait.parity.shared::cta.b64"
#endif
DEV void mbarrier_wait(smem_addr bar, u32 parity) {
  asm volatile(
      "{\n .reg .pred p;\n WAIT: " MBARRIER_WAIT " p, [%0], %1;\n @p bra DONE;\n bra WAIT;\n DONE:\n }"
      ::"r"(bar), "r"(parity)
      : "memory");
}
DEV bool mbarrier_test(smem_addr bar, u32 parity) {
  u32 r;
  asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
               : "=r"(r)
               : "r"(bar), "r"(parity)
               : "memory");
  return r;
}

// ---- registers ------------------------------------------------------------------------------------------------
// Ask for (inc) or give back (dec) registers a thread, per warpgroup, as the first statement of a role's branch.
template <int N>
DEV void registers_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N>
DEV void registers_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

// ---- clusters -------------------------------------------------------------------------------------------------
DEV u32 cluster_rank() {
  u32 r;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}
// The address, in CTA `rank` of the cluster, of what is at `a` in this one.
DEV smem_addr cluster_map(smem_addr a, u32 rank) {
  smem_addr r;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(rank));
  return r;
}
DEV void cluster_arrive() { asm volatile("barrier.cluster.arrive.aligned;" ::: "memory"); }
DEV void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
DEV void cluster_wait() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }
DEV u32x4 ld_cluster_v4(smem_addr a) {
  u32x4 v;
  asm volatile("ld.shared::cluster.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(a)
               : "memory");
  return v;
}
DEV float ld_cluster_f32(smem_addr a) {
  float v;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(a) : "memory");
  return v;
}
// Stores into a peer's shared memory; its mbarrier (a mapped address) counts the bytes down.
DEV void st_async_u32(smem_addr a, u32 v, smem_addr bar) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(a), "r"(v), "r"(bar)
               : "memory");
}
DEV void st_async_u32x2(smem_addr a, u32x2 v, smem_addr bar) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(a), "r"(v.x),
               "r"(v.y), "r"(bar)
               : "memory");
}
DEV void st_async_u32x4(smem_addr a, u32x4 v, smem_addr bar) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(a),
               "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(bar)
               : "memory");
}
// Arrival on a peer's mbarrier. The relaxed form costs a tenth; the data must have been consumed before it.
DEV void mbarrier_arrive_remote(smem_addr bar) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(bar) : "memory");
}
DEV void mbarrier_arrive_remote_relaxed(smem_addr bar) {
  asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(bar) : "memory");
}

// ---- dependent launches ---------------------------------------------------------------------------------------
// Until the kernels before this one in the stream have finished and their writes are visible. (Always so before sm_90.)
DEV void grid_dependency_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// The next kernel in the stream may start; it still waits for this grid's end before it reads our results.
DEV void grid_dependents_launch() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// ---- atomics --------------------------------------------------------------------------------------------------
DEV u32 atomic_add_u32(u32 *p, u32 v) {
  u32 r;
  asm volatile("atom.global.add.u32 %0, [%1], %2;" : "=r"(r) : "l"(p), "r"(v) : "memory");
  return r;
}
#endif
