// The host twin: every function against plain C++, and planted faults that must be caught, each by its kind.
//
//   test_host_twin            all tests
//   test_host_twin NAME...    these
//   test_host_twin --list     their names
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "host.h"
#include "types.cuh"

#include "ptx.cuh"

namespace {

// ---- the frame ------------------------------------------------------------------------------------------------
struct Test {
  const char *name;
  void (*body)();
};
std::vector<Test> &tests() {
  static std::vector<Test> all;
  return all;
}
struct Register {
  Register(const char *name, void (*body)()) { tests().push_back({name, body}); }
};
#define TEST(name)                              \
  void test_##name();                           \
  Register register_##name(#name, test_##name); \
  void test_##name()

int failures;
bool fail_once() { return ++failures <= 8; }  // says no more after that

#define CHECK(condition) check_true(condition, #condition, __LINE__)
void check_true(bool ok, const char *what, int line) {
  if (!ok && fail_once()) printf("  line %d: %s does not hold\n", line, what);
}

#define CHECK_EQ(got, want) check_eq((double)(got), (double)(want), #got, __LINE__)
void check_eq(double got, double want, const char *what, int line) {
  bool equal = got == want || (got != got && want != want);
  if (!equal && fail_once()) printf("  line %d: %s is %.17g, expected %.17g\n", line, what, got, want);
}

#define CHECK_NEAR(got, want, tolerance) check_near(got, want, tolerance, #got, __LINE__)
void check_near(double got, double want, double tolerance, const char *what, int line) {
  bool near = fabs(got - want) <= tolerance * (1 + fabs(want));
  if (!near && fail_once()) printf("  line %d: %s is %.9g, expected %.9g\n", line, what, got, want);
}

struct Order {
  dw_host_order order;
  unsigned long long seed;
};
const Order kOrders[] = {{DW_HOST_FORWARD, 0}, {DW_HOST_REVERSE, 0}, {DW_HOST_RANDOM, 1}, {DW_HOST_RANDOM, 2},
                         {DW_HOST_RANDOM, 3},  {DW_HOST_RANDOM, 4},  {DW_HOST_RANDOM, 5}, {DW_HOST_RANDOM, 6},
                         {DW_HOST_RANDOM, 7},  {DW_HOST_RANDOM, 8},  {DW_HOST_RANDOM, 9}, {DW_HOST_RANDOM, 10}};

dw_host_launch launch_of(dw_host_entry entry, const void *params, unsigned threads, size_t shared) {
  dw_host_launch l = {};
  l.size = sizeof l;
  l.entry = entry;
  l.params = params;
  l.block[0] = threads;
  l.shared_bytes = shared;
  return l;
}

dw_host_report report_of(const dw_host_launch &launch) {
  dw_host_report r;
  r.size = sizeof r;
  dw_host_run(&launch, &r);
  return r;
}

// Runs in every order; after each, `check` looks at what the kernel left.
void pass(dw_host_launch launch, int line, const std::function<void()> &check = nullptr) {
  for (const Order &o : kOrders) {
    launch.order = o.order;
    launch.seed = o.seed;
    dw_host_report r = report_of(launch);
    if (r.status != DW_HOST_OK) {
      ++failures;
      printf("  line %d, order %d seed %llu: %s: %s\n", line, o.order, o.seed, dw_host_status_name(r.status), r.message);
      return;
    }
    if (check) check();
  }
}
#define PASS(...) pass(__VA_ARGS__)

// In every order the launch must end with one of these kinds.
void caught(dw_host_launch launch, std::vector<dw_host_status> kinds, int line, const char *words = nullptr) {
  for (const Order &o : kOrders) {
    launch.order = o.order;
    launch.seed = o.seed;
    dw_host_report r = report_of(launch);
    bool known = false;
    for (dw_host_status s : kinds) known |= s == r.status;
    bool said = !words || strstr(r.message, words);
    if (known && said) continue;
    ++failures;
    printf("  line %d, order %d seed %llu: got %s \"%s\", expected %s with \"%s\"\n", line, o.order, o.seed,
           dw_host_status_name(r.status), r.message, dw_host_status_name(kinds[0]), words ? words : "");
    return;
  }
  if (getenv("VERBOSE")) printf("  %s\n", report_of(launch).message);
}

float value(u32 i) { return (float)((s32)((i * 2654435761u >> 16) % 2001) - 1000) * 0.001f; }  // -1 to 1

// ---- arithmetic -----------------------------------------------------------------------------------------------
// Nearest value with `bits` mantissa bits and smallest exponent `low`, ties to even.
double rounded(double x, int bits, int low, double max) {
  if (x == 0 || isnan(x) || isinf(x)) return x;
  int e;
  frexp(x, &e);
  double unit = ldexp(1, (e - 1 < low ? low : e - 1) - bits), y = nearbyint(x / unit) * unit;
  return fabs(y) > max ? copysign(INFINITY, x) : y;
}

TEST(conversions_round_to_nearest_even) {
  u32 seed = 1;
  for (int i = 0; i < 300000; ++i) {
    seed = seed * 1664525 + 1013904223;
    float x = bits_to_float(seed ^ seed << 13);
    if (i % 2) x = value(seed) * ldexpf(1, (int)(seed >> 8) % 50 - 30);
    u32 b = pack_bf16x2(x, 1.0f), f = pack_f16x2(1.0f, x);
    CHECK_EQ(bf16_to_float((u16)b), rounded(x, 7, -126, 3.4e38));
    CHECK_EQ(b >> 16, 0x3f80);
    CHECK_EQ(f16_to_float((u16)(f >> 16)), rounded(x, 10, -14, 65504));
    CHECK_EQ(f & 0xffff, 0x3c00);
    float y = value(seed * 3) * ldexpf(1, (int)(seed >> 20) % 24 - 12);
    u32 g = pack_f16x2(y, 3), c = pack_bf16x2(y, 3);
    double half = (double)f16_to_float((u16)(f >> 16)) * f16_to_float((u16)g),
           other = (double)bf16_to_float((u16)b) * bf16_to_float((u16)c);
    if (isnan(half) || isinf(half) || isnan(other) || isinf(other)) continue;
    CHECK_EQ(f16_to_float((u16)mul_f16x2(f >> 16 | 0x40000000, g)), rounded(half, 10, -14, 65504));
    CHECK_EQ(mul_f16x2(f >> 16 | 0x40000000, g) >> 16, 0x4600);
    if (fabs(other) < 3e38 && fabs(other) > 1e-37)
      CHECK_EQ(bf16_to_float((u16)mul_bf16x2(b, c)), rounded(other, 7, -126, 3.4e38));
  }
  for (u32 i = 0; i < 65536; ++i) {
    if (isnan(f16_to_float((u16)i))) continue;
    CHECK_EQ(pack_f16x2(f16_to_float((u16)i), 0), i);
  }
  for (u32 i = 0; i < 256; ++i) {
    u32 lo, hi, exponent = i >> 3 & 15, other = i * 37 & 0xff;
    unpack_e4m3x4(i | other << 8 | i << 24, lo, hi);
    float want = ldexpf(exponent ? 8 + (i & 7) : i & 7, exponent ? (int)exponent - 10 : -9), found = f16_to_float((u16)lo);
    CHECK_EQ(hi >> 16, lo & 0xffff);
    CHECK_EQ(hi & 0xffff, 0);
    if ((i & 0x7f) == 0x7f) CHECK_EQ(lo & 0xffff, 0x7fff);
    else CHECK_EQ(found, i & 0x80 ? -want : want);
    unpack_e4m3x4(other, hi, exponent);
    CHECK_EQ(lo >> 16, hi & 0xffff);
  }
  for (u32 i = 0; i < 0x7e; ++i) {  // between two neighbours: the nearer one, from the middle the even one
    u32 lo, hi;
    unpack_e4m3x4(i | (i + 1) << 8, lo, hi);
    float x = f16_to_float((u16)lo), y = f16_to_float((u16)(lo >> 16)), middle = (x + y) / 2;
    CHECK_EQ(pack_e4m3x4(x, y, -middle, nextafterf(middle, x)), i | (i + 1) << 8 | ((i + 1) / 2 * 2 | 0x80) << 16 | i << 24);
    CHECK_EQ(pack_e4m3x4(nextafterf(middle, y), 0, 0, 0), i + 1);
  }
  CHECK_EQ(pack_e4m3x4(500, -INFINITY, NAN, -0.0f), 0x807ffe7eu);
  CHECK_EQ(permute_bytes(0x44332211, 0x88776655, 0x7315), 0x88442266u);
  CHECK_EQ(mul_f16x2(0xbc000001, 0x04014000), 0x84010002u);  // -1 and the least subnormal
  CHECK_EQ(mul_f16x2(0x7bff7e00, 0x7bff3c00), 0x7c007fffu);
  CHECK_EQ(max_u16x2(0x0001ffff, 0xfffe0002), 0xfffeffffu);
  CHECK_EQ(pack_bf16x2(NAN, INFINITY), 0x7f807fffu);
  CHECK_EQ(pack_f16x2(NAN, -INFINITY), 0xfc007fffu);
}

TEST(exp2_and_log2) {
  for (int i = -1200; i < 1200; ++i) CHECK_NEAR(exp2_approx(i * 0.1f), exp2((double)(i * 0.1f)), 1e-6);
  CHECK_EQ(exp2_approx(-INFINITY), 0);
  CHECK_EQ(exp2_approx(-127.5f), 0);  // subnormal
  CHECK_EQ(log2_approx(0), -INFINITY);
  CHECK_EQ(log2_approx(1e-40f), -INFINITY);
  CHECK_NEAR(log2_approx(10.0f), log2(10.0), 1e-6);
  CHECK(isnan(log2_approx(-1.0f)));
}

// ---- lanes ----------------------------------------------------------------------------------------------------
TEST(shuffles_and_votes) {
  static u32 out[8][64];
  auto kernel = [](const void *) {
    u32 t = threadIdx.x, lane = lane_id(), v = t * 3 + 1;
    out[0][t] = shuffle(v, 31 - lane);
    out[1][t] = shuffle_xor(v, 5);
    out[2][t] = shuffle_up(v, 3);
    out[3][t] = (u32)shuffle((float)v, lane / 2);
    out[4][t] = (u32)shuffle_xor((float)v, 16);
    out[5][t] = vote_any(warp_id() == 1 && lane == 7);
    out[6][t] = vote_ballot(lane % 3 == 0);
    out[7][t] = shuffle(v, 33);  // taken modulo 32
    sync_warp();
  };
  PASS(launch_of(kernel, nullptr, 64, 0), __LINE__, [] {
    for (u32 t = 0; t < 64; ++t) {
      u32 w = t / 32 * 32, l = t % 32;
      auto v = [&](u32 lane) { return (w + lane) * 3 + 1; };
      CHECK_EQ(out[0][t], v(31 - l));
      CHECK_EQ(out[1][t], v(l ^ 5));
      CHECK_EQ(out[2][t], v(l < 3 ? l : l - 3));
      CHECK_EQ(out[3][t], v(l / 2));
      CHECK_EQ(out[4][t], v(l ^ 16));
      CHECK_EQ(out[5][t], w == 32);
      CHECK_EQ(out[6][t], 0x49249249u);
      CHECK_EQ(out[7][t], v(1));
    }
  });
}

TEST(places) {
  static u32 seen[24];
  auto kernel = [](const void *) {
    CHECK_EQ(blockDim.x, 32);
    CHECK_EQ(blockDim.y, 2);
    CHECK_EQ(gridDim.x * gridDim.y * gridDim.z, 24);
    u32 block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    CHECK_EQ(cluster_rank(), blockIdx.x % 2);
    if (threadIdx.x == 5 && threadIdx.y == 1) ++seen[block];
  };
  dw_host_launch l = launch_of(kernel, nullptr, 32, 0);
  l.block[1] = 2;
  l.grid[0] = 4;
  l.grid[1] = 3;
  l.grid[2] = 2;
  l.cluster[0] = 2;
  PASS(l, __LINE__, [] {
    for (u32 &n : seen) {
      CHECK_EQ(n, 1);
      n = 0;
    }
  });
}

// ---- shared and global memory ---------------------------------------------------------------------------------
TEST(shared_loads_and_stores) {
  auto kernel = [](const void *) {
    smem_addr a = smem_base() + lane_id() * 64;
    u32 t = lane_id();
    sts_u32(a, t);
    sts_f32(a + 4, 2.5f);
    sts_u32x2(a + 8, {t + 1, t + 2});
    sts_u32x4(a + 16, {1, 2, 3, t});
    sts_f32x4(a + 32, {1, 2, 3, 4});
    sts_u16(a + 48, 0x1234);
    sts_u16(a + 50, (u16)t);
    CHECK_EQ(lds_u32(a), t);
    CHECK_EQ(lds_f32(a + 4), 2.5f);
    CHECK_EQ(lds_f32x2(a + 32).y, 2);
    CHECK_EQ(lds_f32x4(a + 32).w, 4);
    CHECK_EQ(lds_u32x4(a + 16).w, t);
    CHECK_EQ(lds_u32x4(a).w, t + 2);
    CHECK_EQ(lds_u32(a + 48), t << 16 | 0x1234);
    sync_warp();
    CHECK_EQ(lds_u32(smem_base() + (t ^ 1) * 64), t ^ 1);
  };
  PASS(launch_of(kernel, nullptr, 64 / 2, 32 * 64), __LINE__);
}

// Two lanes own the halves of one word, four lanes the words of one line: neighbours, not races.
TEST(neighbours_in_a_line_are_no_race) {
  auto kernel = [](const void *) {
    u32 t = threadIdx.x;
    sts_u16(smem_base() + t * 2, (u16)t);
    sts_u32(smem_base() + 256 + t * 4, t);
    CHECK_EQ(lds_u32(smem_base() + 256 + t * 4), t);
    barrier_sync(0, 128);
    for (u32 i = 0; i < 64; ++i) CHECK_EQ(lds_u32(smem_base() + i * 4), i * 2 | (i * 2 + 1) << 16);
    barrier_sync(0, 128);
    sts_u32(smem_base() + t * 4, t);
  };
  PASS(launch_of(kernel, nullptr, 128, 1024), __LINE__);
}

TEST(global_loads_and_stores) {
  struct alignas(16) Data {
    u32 in[64];
    s64 wide[32];
    u32x4 out[32];
    float f[32];
    u32 counter;
  };
  static Data d;
  for (u32 i = 0; i < 64; ++i) d.in[i] = i * 7;
  for (s64 i = 0; i < 32; ++i) d.wide[i] = i << 40;
  auto kernel = [](const void *p) {
    Data *g = *(Data *const *)p;
    u32 t = lane_id();
    prefetch_l2(g->in);
    bulk_prefetch_l2(g->in, 256);
    CHECK_EQ(ldg_nc_s32((const s32 *)g->in + t), t * 7);
    CHECK_EQ(ldg_nc_u32(g->in + t), t * 7);
    CHECK_EQ(ldg_nc_s64(g->wide + t), (s64)t << 40);
    CHECK_EQ(ldg_nc_v4(g->in + t / 2 * 4).w, (t / 2 * 4 + 3) * 7);
    stg_cg_v4(g->out + t, {t, 1, 2, 3});
    stg_cg_f32(g->f + t, t * 0.5f);
    stg_cg_v2(g->f + t / 2 * 2, {float_to_bits(t / 2 * 1.f), float_to_bits((t / 2 * 2 + 1) * 0.5f)});
    CHECK_EQ(ldg_cg_v4(g->out + t).x, t);
    CHECK_EQ(ldg_cg_s32((const s32 *)g->in + t), t * 7);
    CHECK_EQ(ldg_cg_f32(g->f + t), t * 0.5f);
    atomic_add_u32(&g->counter, t);
  };
  static Data *at = &d;
  PASS(launch_of(kernel, &at, 32, 0), __LINE__, [] {
    CHECK_EQ(d.counter, 496);
    d.counter = 0;
  });
}

// ---- matrices -------------------------------------------------------------------------------------------------
u32 half_at(u32 row, u32 column) { return (row * 64 + column * 3 + 1) & 0xffff; }

TEST(ldmatrix_all_forms) {
  auto kernel = [](const void *) {
    u32 l = lane_id();
    smem_addr row = smem_base() + l * 48;  // 32 rows of 8 halves
    sts_u32x4(row, {half_at(l, 0) | half_at(l, 1) << 16, half_at(l, 2) | half_at(l, 3) << 16,
                    half_at(l, 4) | half_at(l, 5) << 16, half_at(l, 6) | half_at(l, 7) << 16});
    sync_warp();
    u32 a[4], b[4], c[2], d[2], r = l / 4, k = l % 4 * 2;
    ldmatrix_x4(a, row);
    ldmatrix_x4_trans(b, row);
    ldmatrix_x2(c, l < 16 ? row : 3);  // the other lanes' addresses do not matter
    ldmatrix_x2_trans(d, l < 16 ? row : 3);
    for (u32 m = 0; m < 4; ++m) {
      u32 want = half_at(m * 8 + r, k) | half_at(m * 8 + r, k + 1) << 16;
      u32 want_trans = half_at(m * 8 + k, r) | half_at(m * 8 + k + 1, r) << 16;
      CHECK_EQ(a[m], want);
      CHECK_EQ(b[m], want_trans);
      if (m < 2) CHECK_EQ(c[m], want);
      if (m < 2) CHECK_EQ(d[m], want_trans);
      CHECK_EQ(movmatrix_trans(a[m]), want_trans);
    }
    // stmatrix puts back what ldmatrix took.
    sync_warp();
    smem_addr copy = smem_base() + 1536 + l * 16;
    stmatrix_x4(copy, a);
    sync_warp();
    CHECK_EQ(lds_u32(copy + 4), half_at(l, 2) | half_at(l, 3) << 16);
    sync_warp();
    stmatrix_x4_trans(copy, b);
    sync_warp();
    CHECK_EQ(lds_u32(copy + 12), half_at(l, 6) | half_at(l, 7) << 16);
  };
  PASS(launch_of(kernel, nullptr, 32, 2048), __LINE__);
}

template <bool bf16> void mma_kernel(const void *) {
  auto pack = [](float lo, float hi) { return bf16 ? pack_bf16x2(lo, hi) : pack_f16x2(lo, hi); };
  auto round = [&](float x) { return bf16 ? bf16_to_float((u16)pack(x, 0)) : f16_to_float((u16)pack(x, 0)); };
  auto A = [&](u32 i, u32 k) { return value(i * 16 + k); };
  auto B = [&](u32 k, u32 j) { return value(1000 + k * 8 + j); };
  u32 l = lane_id(), g = l / 4, c = l % 4 * 2;
  u32 a[4] = {pack(A(g, c), A(g, c + 1)), pack(A(g + 8, c), A(g + 8, c + 1)), pack(A(g, c + 8), A(g, c + 9)),
              pack(A(g + 8, c + 8), A(g + 8, c + 9))};
  u32 b[2] = {pack(B(c, g), B(c + 1, g)), pack(B(c + 8, g), B(c + 9, g))};
  float d[4] = {1, 2, 3, 4};
  if (bf16) {
    mma_m16n8k16_bf16(d, a, b);
  } else {
    mma_m16n8k16_f16(d, a, b);
  }
  for (u32 e = 0; e < 4; ++e) {
    double want = e + 1;
    for (u32 k = 0; k < 16; ++k) want += (double)round(A(g + e / 2 * 8, k)) * round(B(k, c + e % 2));
    CHECK_NEAR(d[e], want, 1e-6);
  }
}

// The sum goes through fp16 after eight products and after sixteen.
static void mma_f16_f16_kernel(const void *) {
  auto A = [&](u32 i, u32 k) { return f16_to_float((u16)pack_f16x2(value(i * 16 + k), 0)); };
  auto B = [&](u32 k, u32 j) { return f16_to_float((u16)pack_f16x2(value(1000 + k * 8 + j), 0)); };
  u32 l = lane_id(), g = l / 4, c = l % 4 * 2;
  u32 a[4], b[2], d[2] = {pack_f16x2(1, 2), pack_f16x2(3, 4)};
  for (u32 i = 0; i < 4; ++i) a[i] = pack_f16x2(A(g + i % 2 * 8, c + i / 2 * 8), A(g + i % 2 * 8, c + i / 2 * 8 + 1));
  for (u32 i = 0; i < 2; ++i) b[i] = pack_f16x2(B(c + i * 8, g), B(c + i * 8 + 1, g));
  mma_m16n8k16_f16_f16(d, a, b);
  float sums[4] = {0.5f, 0.5f, 0.5f, 0.5f};
  add_f16x2(sums[0], sums[1], d[0]);
  add_f16x2(sums[2], sums[3], d[1]);
  for (u32 e = 0; e < 4; ++e) {
    float want = e + 1;
    for (u32 k = 0; k < 16; ++k) {
      want += A(g + e / 2 * 8, k) * B(k, c + e % 2);
      if (k % 8 == 7) want = f16_to_float((u16)pack_f16x2(want, 0));
    }
    CHECK_EQ(sums[e], want + 0.5f);
  }
}
static void mma_f16_f16_overflow(const void *) {
  u32 a[4], b[2] = {0x40003c00, 0x3c00bc00}, d[2] = {0x7bff7bff, 0x04000001};  // 65,504 twice; the least subnormal and 2^-14
  for (u32 i = 0; i < 4; ++i) a[i] = lane_id() < 4 && i % 2 == 0 ? 0x7bff7bff : 0x00010001;  // row 0 is large
  mma_m16n8k16_f16_f16(d, a, b);
  CHECK_EQ(d[0], lane_id() < 4 ? 0x7c007c00u : 0x7bff7bffu);
  CHECK_EQ(d[1], 0x040c000du);
}

template <u32 K> void mma_e4m3_kernel(const void *) {
  auto code = [](u32 i) { return (u32)(i * 2654435761u >> 13 & 0xff) % 0x7f | (i & 1) << 7; };  // no NaN
  auto wide = [](u32 x) {
    u32 lo, hi;
    unpack_e4m3x4(x, lo, hi);
    return f16_to_float((u16)lo);
  };
  auto A = [&](u32 i, u32 k) { return code(i * K + k); };
  auto B = [&](u32 k, u32 j) { return code(1000 + k * 8 + j); };
  u32 l = lane_id(), g = l / 4, c = l % 4 * 4, a[4] = {}, b[2] = {};
  for (u32 i = 0; i < 4; ++i)
    for (u32 r = 0; r < K / 8; ++r) a[r] |= A(g + r % 2 * 8, c + r / 2 * 16 + i) << 8 * i;
  for (u32 i = 0; i < 4; ++i)
    for (u32 r = 0; r < K / 16; ++r) b[r] |= B(c + r * 16 + i, g) << 8 * i;
  float d[4] = {1, 2, 3, 4};
  if (K == 32) {
    mma_m16n8k32_e4m3(d, a, b);
  } else {
    mma_m16n8k16_e4m3(d, {a[0], a[1]}, {b[0]});
  }
  for (u32 e = 0; e < 4; ++e) {
    double want = e + 1, size = 0;
    for (u32 k = 0; k < K; ++k) {
      double product = (double)wide(A(g + e / 2 * 8, k)) * wide(B(k, l % 4 * 2 + e % 2));
      want += product;
      size += fabs(product);
    }
    CHECK_NEAR(d[e], want, 1e-6 * size);
  }
}

TEST(mma_e4m3_against_double) {
  PASS(launch_of(mma_e4m3_kernel<32>, nullptr, 64, 0), __LINE__);
  PASS(launch_of(mma_e4m3_kernel<16>, nullptr, 64, 0), __LINE__);
}
TEST(mma_bf16_against_double) { PASS(launch_of(mma_kernel<true>, nullptr, 64, 0), __LINE__); }
TEST(mma_f16_against_double) { PASS(launch_of(mma_kernel<false>, nullptr, 64, 0), __LINE__); }
TEST(mma_f16_f16_rounds) {
  PASS(launch_of(mma_f16_f16_kernel, nullptr, 64, 0), __LINE__);
  PASS(launch_of(mma_f16_f16_overflow, nullptr, 32, 0), __LINE__);
}

// ---- copies ---------------------------------------------------------------------------------------------------
alignas(16) u32 source[4096];
struct FillSource {
  FillSource() {
    for (u32 i = 0; i < 4096; ++i) source[i] = i * 5 + 3;
  }
} fill_source;

TEST(cp_async_groups) {
  auto kernel = [](const void *) {
    u32 l = lane_id();
    smem_addr a = smem_base() + l * 64;
    cp_async_16(a, source + l * 4);
    cp_async_commit();
    cp_async_16_zfill(a + 16, source + 128 + l * 4, 4);
    cp_async_4(a + 32, source + l);
    cp_async_commit();
    cp_async_wait_group<1>();
    CHECK_EQ(lds_u32(a + 12), source[l * 4 + 3]);
    cp_async_wait_group<0>();
    CHECK_EQ(lds_u32(a + 16), source[128 + l * 4]);
    CHECK_EQ(lds_u32(a + 20), 0);
    CHECK_EQ(lds_u32(a + 32), source[l]);
    cp_async_16_zfill(a + 48, source, 0);
    cp_async_wait_all();
    CHECK_EQ(lds_u32x4(a + 48).w, 0);
    barrier_sync(0, 64);
    CHECK_EQ(lds_u32(smem_base() + (31 - l) * 64), source[(31 - l) * 4]);
  };
  // The second warp only reads, so let it copy to its own place.
  auto two = [](const void *p) {
    if (warp_id() == 0) return (*(dw_host_entry const *)p)(nullptr);
    barrier_sync(0, 64);
    CHECK_EQ(lds_u32(smem_base() + lane_id() * 64), source[lane_id() * 4]);
  };
  static dw_host_entry inner = kernel;
  PASS(launch_of(two, &inner, 64, 2048), __LINE__);
}

// Producer lanes let an mbarrier tell the consumers; a later wait_group of their own sees the copies too.
TEST(cp_async_with_mbarrier) {
  auto kernel = [](const void *) {
    smem_addr bar = smem_base(), a = smem_base() + 64;
    u32 l = lane_id();
    if (threadIdx.x == 0) mbarrier_init(bar, 32);
    barrier_sync(0, 64);
    for (u32 i = 0; i < 6; ++i) {
      if (warp_id() == 0) {
        cp_async_16(a + l * 16, source + (i * 32 + l) * 4);
        cp_async_mbarrier_arrive(bar);
        if (i % 2) {
          cp_async_commit();
          cp_async_wait_group<0>();
          CHECK_EQ(lds_u32(a + l * 16), source[(i * 32 + l) * 4]);
        }
        mbarrier_wait(bar, i & 1);
        CHECK_EQ(lds_u32(a + (l ^ 1) * 16), source[(i * 32 + (l ^ 1)) * 4]);
      } else {
        mbarrier_wait(bar, i & 1);
        CHECK_EQ(lds_u32(a + (31 - l) * 16 + 4), source[(i * 32 + 31 - l) * 4 + 1]);
      }
      barrier_sync(1, 64);
    }
  };
  PASS(launch_of(kernel, nullptr, 64, 64 + 512), __LINE__);
}

TEST(bulk_load_and_mbarrier) {
  auto kernel = [](const void *) {
    smem_addr bar = smem_base(), a = smem_base() + 128;
    if (threadIdx.x == 0) {
      mbarrier_init(bar, 1);
      fence_mbarrier_init();
    }
    barrier_sync(0, 96);
    for (u32 i = 0; i < 4; ++i) {
      if (threadIdx.x == 0) {
        mbarrier_arrive_expect(bar, 512 + 256);
        bulk_load(a, source + i * 64, 512, bar);
        bulk_load(a + 512, source + 512 + i * 64, 256, bar);
      }
      if (warp_id() == 1) {
        while (!mbarrier_test(bar, i & 1)) {}
      } else {
        mbarrier_wait(bar, i & 1);
      }
      for (u32 j = lane_id(); j < 128; j += 32) CHECK_EQ(lds_u32(a + j * 4), source[i * 64 + j]);
      CHECK_EQ(lds_u32(a + 512 + lane_id() * 4), source[512 + i * 64 + lane_id()]);
      barrier_sync(1, 96);
    }
  };
  PASS(launch_of(kernel, nullptr, 96, 128 + 768), __LINE__);
}

// The source is read as late as allowed, the destination is closed until then.
TEST(source_is_read_at_the_wait) {
  alignas(16) static u32 from[4];
  from[0] = 1;
  auto kernel = [](const void *) {
    if (lane_id() == 0) {
      cp_async_16(smem_base(), from);
      from[0] = 2;
      cp_async_wait_all();
      CHECK_EQ(lds_u32(smem_base()), 2);
      from[0] = 1;
    }
  };
  PASS(launch_of(kernel, nullptr, 32, 16), __LINE__);
}

// ---- a pipeline -----------------------------------------------------------------------------------------------
// Producer warp 0 (bulk copies, one lane a row), multiplier warps 1 and 2 (ldmatrix, mma, partial sums), adder warp 3 (named
// barriers), four slots. What the kernel-design describes, in small.
constexpr u32 kTiles = 23, kSlots = 4, kRow = 32 + 16, kSlot = 16 * kRow;
float pipeline_out[128];

void pipeline(const void *p) {
  const u32 *kv = *(const u32 *const *)p;  // [kTiles * 16 rows][8 words of two bf16]
  smem_addr full = smem_base(), empty = full + 8 * kSlots, ring = smem_base() + 128, part = ring + kSlots * kSlot;
  if (threadIdx.x == 0) {
    for (u32 s = 0; s < kSlots; ++s) {
      mbarrier_init(full + 8 * s, 16);
      mbarrier_init(empty + 8 * s, 64);
    }
    fence_mbarrier_init();
  }
  barrier_sync(0, 128);
  u32 l = lane_id();
  if (warp_id() == 0) {
    for (u32 i = 0; i < kTiles; ++i) {
      u32 s = i % kSlots;
      mbarrier_wait(empty + 8 * s, (i / kSlots & 1) ^ 1);
      sync_warp();  // or the lanes that copy nothing could fall behind and miss a phase
      if (l < 16) {
        mbarrier_arrive_expect(full + 8 * s, 32);
        bulk_load(ring + s * kSlot + l * kRow, kv + (i * 16 + l) * 8, 32, full + 8 * s);
      }
    }
  } else if (warp_id() < 3) {
    u32 me = warp_id() - 1;
    for (u32 i = 0; i < kTiles; ++i) {
      u32 s = i % kSlots, a[4], b[2] = {0x3f803f80, me ? 0x3f803f80u : 0u};
      mbarrier_wait(full + 8 * s, i / kSlots & 1);
      ldmatrix_x4(a, ring + s * kSlot + (l % 16) * kRow + l / 16 * 16);
      mbarrier_arrive(empty + 8 * s);
      float d[4] = {};
      mma_m16n8k16_bf16(d, a, b);
      barrier_sync(1 + me, 64);  // the adder is done with the last one
      for (u32 e = 0; e < 4; ++e) sts_f32(part + me * 512 + ((l / 4 + e / 2 * 8) * 8 + l % 4 * 2 + e % 2) * 4, d[e]);
      barrier_arrive(3 + me, 64);
    }
  } else {
    float sum[4] = {};
    for (u32 i = 0; i < kTiles; ++i) {
      for (u32 me = 0; me < 2; ++me) {
        barrier_arrive(1 + me, 64);
        barrier_sync(3 + me, 64);
        f32x4 v = lds_f32x4(part + me * 512 + l * 16);
        sum[0] += v.x;
        sum[1] += v.y;
        sum[2] += v.z;
        sum[3] += v.w;
      }
    }
    for (u32 e = 0; e < 4; ++e) stg_cg_f32(pipeline_out + l * 4 + e, sum[e]);
  }
}

TEST(pipeline_same_result_in_every_order) {
  std::vector<u32> kv(kTiles * 16 * 8);
  for (u32 i = 0; i < kv.size(); ++i) kv[i] = pack_bf16x2(value(2 * i), value(2 * i + 1));
  const u32 *p = kv.data();
  std::vector<float> first;
  PASS(launch_of(pipeline, &p, 128, 128 + kSlots * kSlot + 1024), __LINE__, [&] {
    if (first.empty()) {
      first.assign(pipeline_out, pipeline_out + 128);
      for (u32 row = 0; row < 16; ++row) {
        double want = 0;  // the first eight columns once, the others not at all, then all once
        for (u32 i = 0; i < kTiles; ++i) {
          for (u32 k = 0; k < 16; ++k) {
            u32 w = kv[(i * 16 + row) * 8 + k / 2];
            want += (k < 8 ? 2 : 1) * (double)bf16_to_float((u16)(k % 2 ? w >> 16 : w));
          }
        }
        CHECK_NEAR(pipeline_out[row * 8 + row % 8], want, 1e-5);
      }
    }
    CHECK(!memcmp(first.data(), pipeline_out, sizeof pipeline_out));
    memset(pipeline_out, 0, sizeof pipeline_out);
  });
}

// ---- clusters -------------------------------------------------------------------------------------------------
dw_host_launch cluster_launch(dw_host_entry entry, size_t shared, unsigned threads = 32, unsigned ctas = 2) {
  dw_host_launch l = launch_of(entry, nullptr, threads, shared);
  l.grid[0] = 2 * ctas;
  l.cluster[0] = ctas;
  return l;
}

// Each CTA sends its peer a row a round by st.async and says by a relaxed remote arrival that it has read the last.
TEST(cluster_exchange) {
  auto kernel = [](const void *) {
    smem_addr full = smem_base(), free = smem_base() + 8, in = smem_base() + 16;
    u32 l = lane_id(), peer = cluster_rank() ^ 1;
    if (threadIdx.x == 0) {
      mbarrier_init(full, 1);
      mbarrier_init(free, 32);
      fence_mbarrier_init();
    }
    cluster_arrive_relaxed();
    cluster_wait();
    for (u32 i = 0; i < 5; ++i) {
      mbarrier_wait(free, (i & 1) ^ 1);
      if (l == 0) mbarrier_arrive_expect(full, 32 * 16 + 32 * 4);
      sync_warp();
      st_async_u32x4(cluster_map(in + l * 16, peer), {i, l, cluster_rank(), 7}, cluster_map(full, peer));
      st_async_u32(cluster_map(in + 512 + l * 4, peer), l * i, cluster_map(full, peer));
      mbarrier_wait(full, i & 1);
      u32x4 v = lds_u32x4(in + (31 - l) * 16);
      CHECK_EQ(v.x, i);
      CHECK_EQ(v.y, 31 - l);
      CHECK_EQ(v.z, peer);
      CHECK_EQ(lds_u32(in + 512 + l * 4), l * i);
      mbarrier_arrive_remote_relaxed(cluster_map(free, peer));
    }
    cluster_arrive_relaxed();
    cluster_wait();
  };
  PASS(cluster_launch(kernel, 16 + 512 + 128), __LINE__);
}

TEST(cluster_reads_and_remote_arrivals) {
  auto kernel = [](const void *) {
    smem_addr bar = smem_base(), a = smem_base() + 16;
    u32 l = lane_id();
    sts_u32x4(a + l * 16, {l, cluster_rank(), float_to_bits(1.5f), 0});
    if (threadIdx.x == 0) mbarrier_init(bar, 4 * 32), fence_mbarrier_init();
    cluster_arrive();
    cluster_wait();
    for (u32 r = 0; r < 4; ++r) {
      CHECK_EQ(ld_cluster_v4(cluster_map(a + l * 16, r)).y, r);
      CHECK_EQ(ld_cluster_f32(cluster_map(a + l * 16 + 8, r)), 1.5f);
      mbarrier_arrive_remote(cluster_map(bar, r));
    }
    mbarrier_wait(bar, 0);
    sts_u32(a + l * 16, 0);
    cluster_arrive();
    cluster_wait();
  };
  PASS(cluster_launch(kernel, 16 + 512, 32, 4), __LINE__);
}

// ---- registers, dependent launches, grids ---------------------------------------------------------------------
TEST(registers_move_between_warpgroups) {
  auto kernel = [](const void *) {
    if (warp_id() < 4) {
      registers_inc<160>();
    } else if (warp_id() < 8) {
      registers_inc<224>();
    } else if (warp_id() < 12) {
      registers_dec<72>();
    } else {
      registers_dec<48>();
    }
  };
  PASS(launch_of(kernel, nullptr, 512, 0), __LINE__);
}

alignas(16) u32 previous[64];
dw_host_launch dependent_launch(dw_host_entry entry) {
  static const dw_host_buffer buffers[] = {{source, sizeof source, 0},
                                           {previous, sizeof previous, DW_HOST_BUFFER_WRITE | DW_HOST_BUFFER_PREVIOUS_GRID}};
  dw_host_launch l = launch_of(entry, nullptr, 64, 1024);
  l.buffers = buffers;
  l.n_buffers = 2;
  l.dependent = 1;
  return l;
}

TEST(grid_dependency) {
  auto kernel = [](const void *) {
    CHECK_EQ(ldg_nc_u32(source + lane_id()), lane_id() * 5 + 3);
    grid_dependents_launch();
    if (warp_id() == 0) grid_dependency_wait();
    barrier_sync(0, 64);  // passes it on to the other warp
    ldg_cg_v4(previous);
    atomic_add_u32(previous + threadIdx.x, 1);
  };
  PASS(dependent_launch(kernel), __LINE__);
}

TEST(last_cta_sums) {
  static float partial[16], total;
  static u32 counter;
  auto kernel = [](const void *) {
    u32 ticket = 0;
    if (threadIdx.x == 0) {
      stg_cg_f32(partial + blockIdx.x, (float)blockIdx.x);
      ticket = atomic_add_u32(&counter, 1);
    }
    if (shuffle(ticket, 0) != gridDim.x - 1) return;
    float v = lane_id() < gridDim.x ? ldg_cg_f32(partial + lane_id()) : 0;
    for (u32 m = 16; m; m /= 2) v += shuffle_xor(v, m);
    if (lane_id() == 0) stg_cg_f32(&total, v), counter = 0;
  };
  dw_host_launch l = launch_of(kernel, nullptr, 32, 0);
  l.grid[0] = 16;
  PASS(l, __LINE__, [] {
    CHECK_EQ(total, 120);
    total = 0;
  });
}

TEST(two_launches_at_a_time) {
  struct Mine {
    u32 add, sum;
  };
  auto kernel = [](const void *p) {
    Mine *m = *(Mine *const *)p;
    for (u32 i = 0; i < 50; ++i) {
      sts_u32(smem_base() + threadIdx.x * 4, m->add + i);
      barrier_sync(0, 128);
      u32 v = lds_u32(smem_base() + (threadIdx.x ^ 32) * 4);
      if (v != m->add + i) return;
      atomic_add_u32(&m->sum, 1);
      barrier_sync(0, 128);
    }
  };
  Mine mine[4] = {};
  std::vector<std::thread> threads;
  dw_host_status status[4];
  for (u32 i = 0; i < 4; ++i) {
    mine[i].add = i * 1000;
    threads.emplace_back([&, i] {
      Mine *p = &mine[i];
      dw_host_launch l = launch_of(kernel, &p, 128, 512);
      l.order = DW_HOST_RANDOM;
      l.seed = i;
      status[i] = report_of(l).status;
    });
  }
  for (std::thread &t : threads) t.join();
  for (u32 i = 0; i < 4; ++i) {
    CHECK_EQ(status[i], DW_HOST_OK);
    CHECK_EQ(mine[i].sum, 128 * 50);
  }
}

// ---- planted faults -------------------------------------------------------------------------------------------
// Warp 0 copies 128 bytes in bulk, warp 1 reads them; what is missing differs.
struct Plant {
  bool wait, init_barrier, init_fence;
  u32 parity, expect, count;
};
void planted_bulk(const void *p) {
  const Plant &f = *(const Plant *)p;
  smem_addr bar = smem_base(), a = smem_base() + 16;
  if (threadIdx.x == 0) {
    mbarrier_init(bar, f.count);
    if (f.init_fence) fence_mbarrier_init();
  }
  if (f.init_barrier) barrier_sync(0, 64);
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect(bar, f.expect);
    bulk_load(a, source, 128, bar);
  }
  barrier_sync(1, 64);
  if (warp_id() == 1) {
    if (f.wait) mbarrier_wait(bar, f.parity);
    CHECK_EQ(lds_u32(a + lane_id() * 4), source[lane_id()]);
  }
}
void plant(Plant f, std::vector<dw_host_status> kinds, int line, const char *words) {
  caught(launch_of(planted_bulk, &f, 64, 16 + 128), kinds, line, words);
}

TEST(fault_none_planted) {
  Plant f = {true, true, true, 0, 128, 1};
  PASS(launch_of(planted_bulk, &f, 64, 16 + 128), __LINE__);
}
TEST(fault_missing_mbarrier_wait) {
  plant({false, true, true, 0, 128, 1}, {DW_HOST_IN_FLIGHT}, __LINE__,
        "while bulk_load by CTA (0,0,0) warp 0 lane 0 is under way");
}
TEST(fault_wrong_phase_parity) {
  plant({true, true, true, 1, 128, 1}, {DW_HOST_IN_FLIGHT}, __LINE__, "a wait on the mbarrier at shared byte 0");
}
TEST(fault_expect_too_few_bytes) { plant({true, true, true, 0, 64, 1}, {DW_HOST_TX_COUNT}, __LINE__, "more than the 64"); }
TEST(fault_expect_too_many_bytes) {
  plant({true, true, true, 0, 256, 1}, {DW_HOST_DEADLOCK}, __LINE__, "waits for 256 bytes, of which 128 are under way");
}
TEST(fault_missing_arrival) {
  plant({true, true, true, 0, 128, 2}, {DW_HOST_DEADLOCK}, __LINE__,
        "CTA (0,0,0) warp 1 waits in mbarrier_wait(parity 0) at shared byte 0: phase 0 has 1 of 2 arrivals");
}
TEST(fault_missing_init_fence) { plant({true, true, false, 0, 128, 1}, {DW_HOST_FENCE}, __LINE__, "no fence_mbarrier_init"); }
TEST(fault_mbarrier_used_before_init) {
  auto kernel = [](const void *) {
    if (threadIdx.x == 0) mbarrier_init(smem_base(), 64);
    mbarrier_arrive(smem_base());
  };
  caught(launch_of(kernel, nullptr, 64, 16), {DW_HOST_RACE, DW_HOST_MBARRIER}, __LINE__);
}

TEST(fault_missing_wait_group) {
  auto kernel = [](const void *) {
    cp_async_16(smem_base() + lane_id() * 16, source);
    cp_async_commit();
    cp_async_wait_group<1>();  // should be 0
    lds_u32(smem_base() + lane_id() * 16);
  };
  caught(launch_of(kernel, nullptr, 32, 512), {DW_HOST_IN_FLIGHT}, __LINE__, "cp_async_16");
}

TEST(fault_write_under_a_copy) {
  auto kernel = [](const void *) {
    cp_async_16(smem_base() + lane_id() * 16, source);
    sts_u32(smem_base() + lane_id() * 16 + 4, 1);
  };
  caught(launch_of(kernel, nullptr, 32, 512), {DW_HOST_IN_FLIGHT}, __LINE__, "sts_u32");
}

TEST(fault_missing_named_barrier) {
  auto kernel = [](const void *) {
    if (warp_id() == 0) sts_u32(smem_base() + lane_id() * 4, 1);
    if (warp_id() == 1) lds_u32(smem_base() + lane_id() * 4);
  };
  caught(launch_of(kernel, nullptr, 64, 128), {DW_HOST_RACE, DW_HOST_UNWRITTEN}, __LINE__);
}

// The reader's arrival is missing: the writer may come back too early.
TEST(fault_slot_reused_too_early) {
  auto kernel = [](const void *) {
    for (u32 i = 0; i < 3; ++i) {
      if (warp_id() == 0) {
        sts_u32(smem_base() + lane_id() * 4, i);
        barrier_arrive(1, 64);
      } else {
        barrier_sync(1, 64);
        lds_u32(smem_base() + lane_id() * 4);
      }
    }
  };
  caught(launch_of(kernel, nullptr, 64, 128), {DW_HOST_RACE, DW_HOST_NAMED_BARRIER}, __LINE__);
}

TEST(fault_missing_sync_warp) {
  auto kernel = [](const void *) {
    sts_u32(smem_base() + lane_id() * 4, 1);
    vote_any(true);  // orders nothing
    lds_u32(smem_base() + (31 - lane_id()) * 4);
  };
  caught(launch_of(kernel, nullptr, 32, 128), {DW_HOST_RACE}, __LINE__, "nothing orders the two");
}

TEST(fault_unordered_writes) {
  auto kernel = [](const void *) { sts_u32(smem_base(), warp_id()); };
  caught(launch_of(kernel, nullptr, 64, 16), {DW_HOST_RACE}, __LINE__, "which sts_u32 by CTA (0,0,0) warp");
}

TEST(fault_read_unwritten) {
  auto kernel = [](const void *) {
    sts_u32(smem_base() + lane_id() * 8, 1);
    lds_f32x2(smem_base() + lane_id() * 8);
  };
  caught(launch_of(kernel, nullptr, 32, 256), {DW_HOST_UNWRITTEN}, __LINE__, "which nobody wrote");
}

TEST(fault_write_past_the_end) {
  auto kernel = [](const void *) { sts_u32(smem_base() + lane_id() * 4, 1); };
  caught(launch_of(kernel, nullptr, 32, 124), {DW_HOST_OUT_OF_BOUNDS}, __LINE__,
         "sts_u32 by CTA (0,0,0) warp 0 lane 31 of 4 bytes at shared address 0x4fc (byte 124): the CTA has 124 bytes.");
}
TEST(fault_write_before_the_start) {
  auto kernel = [](const void *) { sts_u32(smem_base() - 4, 1); };
  caught(launch_of(kernel, nullptr, 32, 124), {DW_HOST_OUT_OF_BOUNDS}, __LINE__, "byte -4");
}

TEST(fault_misaligned) {
  auto matrix = [](const void *) {
    u32 r[4];
    ldmatrix_x4(r, smem_base() + lane_id() * 24);
  };
  caught(launch_of(matrix, nullptr, 32, 1024), {DW_HOST_MISALIGNED}, __LINE__, "ldmatrix_x4 by CTA (0,0,0) warp 0 lane 1");
  auto global = [](const void *) { ldg_nc_v4(source + lane_id()); };
  caught(launch_of(global, nullptr, 32, 0), {DW_HOST_MISALIGNED}, __LINE__, "ldg_nc_v4");
  auto bulk = [](const void *) {
    mbarrier_init(smem_base(), 1);
    bulk_load(smem_base() + 16, source, 24, smem_base());
  };
  dw_host_launch l = launch_of(bulk, nullptr, 32, 1024);
  caught(l, {DW_HOST_MISALIGNED, DW_HOST_MBARRIER}, __LINE__);
}

TEST(fault_divergent_collectives) {
  auto kernel = [](const void *) {
    if (lane_id() < 7) {
      shuffle(1u, 0);
    } else {
      vote_any(true);
    }
  };
  caught(launch_of(kernel, nullptr, 32, 0), {DW_HOST_DIVERGED}, __LINE__, "wait in ");
  auto left = [](const void *) {
    if (lane_id() == 3) return;
    sync_warp();
  };
  caught(launch_of(left, nullptr, 32, 0), {DW_HOST_DIVERGED}, __LINE__);
  auto arguments = [](const void *) { barrier_sync(lane_id() / 16, 32); };
  caught(launch_of(arguments, nullptr, 32, 0), {DW_HOST_DIVERGED}, __LINE__, "other lanes of the warp say");
}

TEST(fault_over_arrival) {
  auto kernel = [](const void *) {
    if (threadIdx.x == 0) {
      mbarrier_init(smem_base(), 1);
      mbarrier_arrive_expect(smem_base(), 64);
      mbarrier_arrive(smem_base());
    }
  };
  caught(launch_of(kernel, nullptr, 32, 64), {DW_HOST_OVER_ARRIVAL}, __LINE__, "phase 0 has 1 of 1 arrivals");
}

// A lane that waits for every phase and takes part in nothing else can be lapped by the others of its warp.
TEST(fault_lane_falls_behind) {
  static const bool yes = true, no = false;
  auto kernel = [](const void *p) {
    if (threadIdx.x == 0) mbarrier_init(smem_base(), 1);
    sync_warp();
    for (u32 i = 0; i < 6; ++i) {
      if (lane_id() == 0) mbarrier_arrive(smem_base());
      mbarrier_wait(smem_base(), i & 1);
      if (*(const bool *)p) vote_any(true);
    }
  };
  PASS(launch_of(kernel, &yes, 32, 16), __LINE__);
  caught(launch_of(kernel, &no, 32, 16), {DW_HOST_PHASE, DW_HOST_DEADLOCK}, __LINE__);
}

TEST(fault_phase_missed) {
  // Nothing tells the arriving warp that the waiting warp has come through phase 0.
  auto kernel = [](const void *) {
    if (threadIdx.x == 0) mbarrier_init(smem_base(), 32);
    barrier_sync(0, 64);
    if (warp_id() == 0) {
      mbarrier_arrive(smem_base());
      mbarrier_arrive(smem_base());
    } else {
      mbarrier_wait(smem_base(), 0);
    }
  };
  caught(launch_of(kernel, nullptr, 64, 16), {DW_HOST_PHASE, DW_HOST_DEADLOCK}, __LINE__);
}

TEST(fault_mbarrier_misuse) {
  auto twice = [](const void *) {
    if (lane_id() == 0) mbarrier_init(smem_base(), 1), mbarrier_init(smem_base(), 1);
  };
  caught(launch_of(twice, nullptr, 32, 16), {DW_HOST_MBARRIER}, __LINE__, "already is one");
  auto over = [](const void *) {
    if (lane_id() == 0) mbarrier_init(smem_base() + 8, 1), sts_u32(smem_base() + 12, 0);
  };
  caught(launch_of(over, nullptr, 32, 16), {DW_HOST_MBARRIER}, __LINE__, "touches the mbarrier");
  auto none = [](const void *) { mbarrier_wait(smem_base(), 0); };
  caught(launch_of(none, nullptr, 32, 16), {DW_HOST_MBARRIER}, __LINE__, "no initialised mbarrier");
}

TEST(fault_named_barrier_counts) {
  auto kernel = [](const void *) { barrier_sync(2, warp_id() == 0 ? 64 : 96); };
  caught(launch_of(kernel, nullptr, 96, 0), {DW_HOST_NAMED_BARRIER}, __LINE__, "where others said");
  auto twice = [](const void *) { barrier_arrive(2, 64), barrier_arrive(2, 64); };
  caught(launch_of(twice, nullptr, 32 * 4, 0), {DW_HOST_NAMED_BARRIER, DW_HOST_OK}, __LINE__);
  auto id = [](const void *) { barrier_sync(16, 32); };
  caught(launch_of(id, nullptr, 32, 0), {DW_HOST_NAMED_BARRIER}, __LINE__, "0 to 15");
  auto odd = [](const void *) { barrier_sync(0, 40); };
  caught(launch_of(odd, nullptr, 64, 0), {DW_HOST_NAMED_BARRIER}, __LINE__, "multiple of 32");
}

TEST(fault_deadlock) {
  auto kernel = [](const void *) {
    if (threadIdx.x == 0) mbarrier_init(smem_base() + 8, 1);
    barrier_sync(0, 96);
    if (warp_id() == 0) barrier_sync(5, 64);
    if (warp_id() == 1) mbarrier_wait(smem_base() + 8, 0);
    if (threadIdx.x == 64 + 9) mbarrier_wait(smem_base() + 8, 0);
    if (warp_id() == 2) sync_warp();
  };
  dw_host_launch l = launch_of(kernel, nullptr, 96, 16);
  caught(l, {DW_HOST_DEADLOCK}, __LINE__, "warp 0 waits in barrier_sync(5, 64): 32 of 64 threads arrived");
  caught(l, {DW_HOST_DEADLOCK}, __LINE__,
         "warp 1 waits in mbarrier_wait(parity 0) at shared byte 8: phase 0 has 0 of 1 arrivals");
  caught(l, {DW_HOST_DEADLOCK}, __LINE__, "warp 2 lanes fffffdff waits in sync_warp for its other lanes");
}

TEST(fault_livelock) {
  auto kernel = [](const void *) {
    if (threadIdx.x == 0) mbarrier_init(smem_base(), 1);
    sync_warp();
    while (!mbarrier_test(smem_base(), 0)) {}
  };
  dw_host_launch l = launch_of(kernel, nullptr, 32, 16);
  l.max_calls = 3000000;
  caught(l, {DW_HOST_LIVELOCK}, __LINE__);
}

TEST(fault_missing_proxy_fence) {
  static const bool yes = true, no = false;
  auto kernel = [](const void *p) {
    smem_addr bar = smem_base(), a = smem_base() + 16;
    if (threadIdx.x == 0) mbarrier_init(bar, 1), fence_mbarrier_init();
    sts_u32(a + threadIdx.x * 4, 0);
    if (*(const bool *)p) fence_proxy_async();
    barrier_sync(0, 64);
    if (threadIdx.x == 0) {
      mbarrier_arrive_expect(bar, 256);
      bulk_load(a, source, 256, bar);
    }
    mbarrier_wait(bar, 0);
    CHECK_EQ(lds_u32(a + threadIdx.x * 4), source[threadIdx.x]);
  };
  PASS(launch_of(kernel, &yes, 64, 16 + 256), __LINE__);
  caught(launch_of(kernel, &no, 64, 16 + 256), {DW_HOST_FENCE}, __LINE__, "no fence_proxy_async");
}

TEST(fault_cluster) {
  auto no_start = [](const void *) { ld_cluster_f32(cluster_map(smem_base(), cluster_rank() ^ 1)); };
  caught(cluster_launch(no_start, 16), {DW_HOST_CLUSTER}, __LINE__, "may not have started");
  auto no_wait = [](const void *) {  // the second exchange lacks its barrier
    cluster_arrive();
    cluster_wait();
    sts_f32(smem_base() + lane_id() * 4, 1);
    ld_cluster_f32(cluster_map(smem_base() + lane_id() * 4, cluster_rank() ^ 1));
    cluster_arrive();
    cluster_wait();
  };
  caught(cluster_launch(no_wait, 128), {DW_HOST_RACE, DW_HOST_UNWRITTEN}, __LINE__);
  auto no_end = [](const void *) {  // a CTA may leave while its peer still reads
    sts_f32(smem_base() + lane_id() * 4, 1);
    cluster_arrive();
    cluster_wait();
    ld_cluster_f32(cluster_map(smem_base() + lane_id() * 4, cluster_rank() ^ 1));
  };
  caught(cluster_launch(no_end, 128), {DW_HOST_CLUSTER}, __LINE__);
  auto no_arrive = [](const void *) { cluster_wait(); };
  caught(cluster_launch(no_arrive, 0), {DW_HOST_CLUSTER}, __LINE__, "has not arrived");
  auto half = [](const void *) {
    if (cluster_rank() == 0 && warp_id() == 1) mbarrier_init(smem_base(), 1), mbarrier_wait(smem_base(), 0);
    cluster_arrive();
    cluster_wait();
  };
  caught(cluster_launch(half, 16, 64), {DW_HOST_DEADLOCK, DW_HOST_MBARRIER}, __LINE__);
  auto local = [](const void *) { lds_u32(cluster_map(smem_base(), 0)); };
  caught(cluster_launch(local, 16), {DW_HOST_OUT_OF_BOUNDS}, __LINE__, "A mapped address needs a cluster function.");
}

// The writer's data is not carried by a relaxed arrival.
TEST(fault_relaxed_arrival_carries_no_writes) {
  auto kernel = [](const void *) {
    sts_f32(smem_base() + lane_id() * 4, 1);
    cluster_arrive_relaxed();
    cluster_wait();
    ld_cluster_f32(cluster_map(smem_base() + lane_id() * 4, cluster_rank() ^ 1));
    cluster_arrive();
    cluster_wait();
  };
  caught(cluster_launch(kernel, 128), {DW_HOST_RACE}, __LINE__);
}

TEST(fault_bulk_not_waited_for) {
  auto kernel = [](const void *) {
    if (threadIdx.x) return;
    mbarrier_init(smem_base(), 1);
    fence_mbarrier_init();
    mbarrier_arrive_expect(smem_base(), 16);
    bulk_load(smem_base() + 16, source, 16, smem_base());
  };
  caught(launch_of(kernel, nullptr, 32, 32), {DW_HOST_UNFINISHED}, __LINE__, "ended while bulk_load");
}

TEST(fault_registers) {
  auto sum = [](const void *) {  // 8 warps: 256 x 128 to start with
    if (warp_id() < 4) {
      registers_dec<48>();
    } else {
      registers_inc<216>();
    }
  };
  dw_host_launch l = launch_of(sum, nullptr, 256, 0);
  l.registers_per_thread = 128;
  caught(l, {DW_HOST_REGISTERS}, __LINE__, "waits in registers_inc<216>: it has 128 a thread");
  auto mixed = [](const void *) {
    if (warp_id() == 2) {
      registers_dec<40>();
    } else {
      registers_dec<48>();
    }
  };
  caught(launch_of(mixed, nullptr, 128, 0), {DW_HOST_REGISTERS}, __LINE__, "another warp of its warpgroup");
  auto range = [](const void *) { registers_dec<20>(); };
  caught(launch_of(range, nullptr, 128, 0), {DW_HOST_REGISTERS}, __LINE__, "multiple of 8");
  auto some = [](const void *) {
    if (warp_id() < 2) registers_dec<24>();
  };
  caught(launch_of(some, nullptr, 128, 0), {DW_HOST_REGISTERS}, __LINE__, "some warps of a warpgroup only");
  l.registers_per_thread = 257;
  caught(l, {DW_HOST_REGISTERS}, __LINE__, "at the start");
}

TEST(fault_missing_grid_dependency_wait) {
  auto kernel = [](const void *) {
    if (warp_id() == 0) grid_dependency_wait();
    ldg_cg_v4(previous);  // warp 1 has not waited
  };
  caught(dependent_launch(kernel), {DW_HOST_DEPENDENCY}, __LINE__, "grid_dependency_wait must come first");
}

TEST(fault_global_outside_buffers) {
  auto past = [](const void *) { ldg_nc_u32(source + blockDim.x * 64 + lane_id()); };
  caught(dependent_launch(past), {DW_HOST_GLOBAL}, __LINE__, "not inside one of the launch's buffers");
  auto write = [](const void *) { stg_cg_f32((float *)source, 0); };
  caught(dependent_launch(write), {DW_HOST_GLOBAL}, __LINE__, "to read only");
  auto copy = [](const void *) { cp_async_16(smem_base(), source + blockDim.x * 64); };
  caught(dependent_launch(copy), {DW_HOST_GLOBAL}, __LINE__);
}

TEST(bad_launches) {
  auto kernel = [](const void *) {};
  dw_host_launch l = launch_of(kernel, nullptr, 33, 0);
  caught(l, {DW_HOST_BAD_ARGUMENT}, __LINE__, "multiple of 32");
  l.block[0] = 32;
  l.grid[0] = 3;
  l.cluster[0] = 2;
  caught(l, {DW_HOST_BAD_ARGUMENT}, __LINE__, "does not divide");
  l.entry = nullptr;
  caught(l, {DW_HOST_BAD_ARGUMENT}, __LINE__);
  l.size = 1;
  caught(l, {DW_HOST_BAD_ARGUMENT}, __LINE__);
}

// ---- modules --------------------------------------------------------------------------------------------------
std::string here(const char *relative) {
  std::string file = __FILE__;
  size_t slash = file.rfind('/');
  return (slash == std::string::npos ? std::string(".") : file.substr(0, slash)) + "/../" + relative;
}
std::string slurp(const std::string &path) {
  std::string s;
  FILE *f = fopen(path.c_str(), "rb");
  if (!f) return s;
  char block[4096];
  for (size_t n; (n = fread(block, 1, sizeof block, f)) > 0;) s.append(block, n);
  fclose(f);
  return s;
}

const char kSource[] = R"(
#include "types.cuh"
#include "ptx.cuh"
struct dw_params { const u32 *in; float *out; u32 pad[100]; u32 n; };
extern "C" __global__ void __launch_bounds__(64, 1) doubled(const __grid_constant__ dw_params p) {
  u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  sts_u32(smem_base() + threadIdx.x * 4, i < p.n ? ldg_nc_u32(p.in + i) : 0);
  barrier_sync(0, 64);
  if (i < p.n) stg_cg_f32(p.out + i, fmaxf(0.0f, (float)lds_u32(smem_base() + threadIdx.x * 4)) * 2 + min(1, 2));
}
#ifndef __CUDACC__
extern "C" void doubled__host(const void *p) { doubled(*(const dw_params *)p); }
#endif
)";

TEST(module_from_source) {
  std::string templates = here("templates"), host = here("runtime/host"), header = slurp(host + "/draftwood_host.h");
  const char *dirs[] = {templates.c_str(), host.c_str()};
  for (const char *compiler : {"g++", "clang++"}) {
    for (int embedded = 0; embedded < 2; ++embedded) {
      dw_host_build_options o = {};
      o.size = sizeof o;
      o.compiler = compiler;
      o.include_dirs = dirs;
      o.n_include_dirs = embedded ? 1 : 2;
      if (embedded) o.header = header.data(), o.header_size = header.size();
      dw_host_module *m;
      dw_host_report r;
      r.size = sizeof r;
      dw_host_module_open(&m, kSource, strlen(kSource), &o, &r);
      if (r.status == DW_HOST_NO_COMPILER) {
        printf("  skipped: no %s\n", compiler);
        continue;
      }
      CHECK_EQ(r.status, DW_HOST_OK);
      if (r.status != DW_HOST_OK) {
        printf("%s\n", r.message);
        continue;
      }
      dw_host_entry entry = dw_host_module_entry(m, "doubled");
      CHECK(entry != nullptr);
      CHECK(dw_host_module_entry(m, "tripled") == nullptr);
      struct {
        const u32 *in;
        float *out;
        u32 pad[100];
        u32 n;
      } params = {};
      float out[200] = {};
      params.in = source;
      params.out = out;
      params.n = 150;
      dw_host_launch l = launch_of(entry, &params, 64, 256);
      l.grid[0] = 3;
      PASS(l, __LINE__, [&] {
        for (u32 i = 0; i < 200; ++i) CHECK_EQ(out[i], i < 150 ? source[i] * 2 + 1 : 0);
        memset(out, 0, sizeof out);
      });
      dw_host_module_close(m);
    }
  }
}

TEST(module_errors) {
  dw_host_build_options o = {};
  o.size = sizeof o;
  dw_host_module *m;
  dw_host_report r;
  r.size = sizeof r;
  const char broken[] = "#line 17 \"tree_verify.cu.lua\"\nint x = y;\n";
  CHECK_EQ(dw_host_module_open(&m, broken, strlen(broken), &o, &r), DW_HOST_COMPILE);
  CHECK(strstr(r.message, "tree_verify.cu.lua:17") != nullptr);
  CHECK(m == nullptr);
  const char plain[] = "int x;\n";
  CHECK_EQ(dw_host_module_open(&m, plain, strlen(plain), &o, &r), DW_HOST_LOAD);
  o.compiler = "no-such-compiler";
  CHECK_EQ(dw_host_module_open(&m, plain, strlen(plain), &o, &r), DW_HOST_NO_COMPILER);
  CHECK(strstr(r.message, "no-such-compiler") != nullptr);
}

// A module with sanitizers works in a program that has them and is refused in one that has not.
TEST(module_with_sanitizers) {
  std::string templates = here("templates"), host = here("runtime/host");
  const char *dirs[] = {templates.c_str(), host.c_str()};
  dw_host_build_options o = {};
  o.size = sizeof o;
  o.include_dirs = dirs;
  o.n_include_dirs = 2;
  o.sanitize = 1;
  dw_host_module *m;
  dw_host_report r;
  r.size = sizeof r;
  dw_host_module_open(&m, kSource, strlen(kSource), &o, &r);
#if defined(__SANITIZE_ADDRESS__)
  CHECK_EQ(r.status, DW_HOST_OK);
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
  CHECK_EQ(r.status, DW_HOST_OK);
#else
  CHECK_EQ(r.status, DW_HOST_BAD_ARGUMENT);
#endif
#else
  CHECK_EQ(r.status, DW_HOST_BAD_ARGUMENT);
#endif
  if (r.status == DW_HOST_COMPILE || r.status == DW_HOST_LOAD) printf("%s\n", r.message);
  if (r.status == DW_HOST_OK) {
    struct {
      const u32 *in;
      float *out;
      u32 pad[100];
      u32 n;
    } params = {};
    std::vector<u32> in(128, 4);
    std::vector<float> out(128);
    params.in = in.data();
    params.out = out.data();
    params.n = 128;
    dw_host_launch l = launch_of(dw_host_module_entry(m, "doubled"), &params, 64, 256);
    l.grid[0] = 2;
    PASS(l, __LINE__, [&] { CHECK_EQ(out[127], 9); });
    dw_host_module_close(m);
  }
}

// Each name that ptx.cuh defines stands in the twin.
TEST(every_function_has_a_twin) {
  std::string ptx = slurp(here("templates/ptx.cuh")), twin = slurp(here("runtime/host/draftwood_host.h"));
  CHECK(!ptx.empty());
  u32 names = 0;
  for (size_t at = ptx.find("\nDEV "); at != std::string::npos; at = ptx.find("\nDEV ", at + 1)) {
    size_t open = ptx.find('(', at), start = ptx.rfind(' ', open) + 1;
    std::string name = ptx.substr(start, open - start);
    ++names;
    if (twin.find(" " + name + "(") != std::string::npos) continue;
    ++failures;
    printf("  %s is in ptx.cuh and not in draftwood_host.h\n", name.c_str());
  }
  CHECK(names > 50);
}

// ---- speed ----------------------------------------------------------------------------------------------------
double cpu_seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
void speed(const char *what, dw_host_entry entry, u32 n) {
  dw_host_launch l = launch_of(entry, &n, 512, 512 * 64);
  double t = cpu_seconds();
  dw_host_report r = report_of(l);
  t = cpu_seconds() - t;
  CHECK_EQ(r.status, DW_HOST_OK);
  if (r.status) printf("%s\n", r.message);
  printf("  %-28s %6.0f ns a warp\n", what, t * 1e9 / (n * 16.0));
}

TEST(speed) {
  u32 n = 3000;
  speed(
    "mma",
    [](const void *p) {
      u32 a[4] = {0x3f803f80, 0, 0, 0}, b[2] = {0x3f803f80, 0};
      float d[4] = {};
      for (u32 i = 0; i < *(const u32 *)p; ++i) mma_m16n8k16_bf16(d, a, b);
    },
    n);
  speed(
    "shuffle",
    [](const void *p) {
      u32 v = 1;
      for (u32 i = 0; i < *(const u32 *)p; ++i) v = shuffle_xor(v, 1);
    },
    n);
  speed(
    "sync_warp",
    [](const void *p) {
      for (u32 i = 0; i < *(const u32 *)p; ++i) sync_warp();
    },
    n);
  speed(
    "barrier_sync",
    [](const void *p) {
      for (u32 i = 0; i < *(const u32 *)p; ++i) barrier_sync(0, 512);
    },
    n);
  speed(
    "ldmatrix_x4, own rows",
    [](const void *p) {
      u32 r[4];
      sts_u32x4(smem_base() + threadIdx.x * 16, {1, 2, 3, 4});
      sync_warp();
      for (u32 i = 0; i < *(const u32 *)p; ++i) ldmatrix_x4(r, smem_base() + threadIdx.x * 16);
    },
    n);
  speed(
    "ldmatrix_x4, shared by 16 warps",
    [](const void *p) {
      u32 r[4];
      if (threadIdx.x < 32) sts_u32x4(smem_base() + threadIdx.x * 16, {1, 2, 3, 4});
      barrier_sync(0, 512);
      for (u32 i = 0; i < *(const u32 *)p; ++i) ldmatrix_x4(r, smem_base() + lane_id() * 16);
    },
    n);
  speed(
    "sts and lds, 16 bytes",
    [](const void *p) {
      for (u32 i = 0; i < *(const u32 *)p; ++i) {
        sts_u32x4(smem_base() + threadIdx.x * 16, {1, 2, 3, 4});
        lds_u32x4(smem_base() + threadIdx.x * 16);
      }
    },
    n);
  speed(
    "mbarrier arrive and wait",
    [](const void *p) {
      if (threadIdx.x == 0) mbarrier_init(smem_base(), 512);
      barrier_sync(0, 512);
      for (u32 i = 0; i < *(const u32 *)p; ++i) mbarrier_arrive(smem_base()), mbarrier_wait(smem_base(), i & 1);
    },
    n);
}

}  // namespace

int main(int argc, char **argv) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  dw_host_bind(dw_host_ops_table());
  int bad = 0, ran = 0;
  for (const Test &t : tests()) {
    bool wanted = argc == 1;
    for (int i = 1; i < argc; ++i) wanted |= !strcmp(argv[i], t.name);
    if (argc > 1 && !strcmp(argv[1], "--list")) {
      printf("%s\n", t.name);
      ++ran;
      continue;
    }
    if (!wanted) continue;
    failures = 0;
    t.body();
    ++ran;
    bad += failures != 0;
    printf("%s %s\n", failures ? "FAIL" : "ok  ", t.name);
  }
  if (!ran) printf("no such test\n");
  return bad || !ran;
}
