// Plain names for the types a kernel uses; no toolkit header is read.
#pragma once
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int s32;
typedef long long s64;

struct alignas(8) u32x2 {
  u32 x, y;
};
struct alignas(16) u32x4 {
  u32 x, y, z, w;
};
struct alignas(8) f32x2 {
  float x, y;
};
struct alignas(16) f32x4 {
  float x, y, z, w;
};

// Tables known when the source is made. In global memory: with a bank of constants of its own every launch was longer.
#ifdef __CUDACC__
#define DW_TABLE static __device__
#else
#define DW_TABLE static
#endif

// An address inside the CTA's shared memory window (bytes). After mapa() it may name a peer CTA of the cluster.
typedef u32 smem_addr;
