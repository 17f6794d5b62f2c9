// What kernels on tensor cores share: fragments, and what is not finite.
#pragma once

// Turns a 4 x 4 matrix of words held by the four lanes of a quad (lane = row) around.
DEV void transpose_quad(u32x4 &v) {
  const bool odd = lane_id() & 1, high = lane_id() & 2;
  const u32 s0 = shuffle_xor(odd ? v.x : v.y, 1), s1 = shuffle_xor(odd ? v.z : v.w, 1);
  const u32 a0 = odd ? s0 : v.x, a1 = odd ? v.y : s0, a2 = odd ? s1 : v.z, a3 = odd ? v.w : s1;
  const u32 t0 = shuffle_xor(high ? a0 : a2, 2), t1 = shuffle_xor(high ? a1 : a3, 2);
  v = u32x4{high ? t0 : a0, high ? t1 : a1, high ? a2 : t0, high ? a3 : t1};
}

// Two operands of a product: what is not finite becomes 0.
DEV u32 finite_halves(u32 w) {
  const u32 exponent = MUL_F16 ? 0x7c00u : 0x7f80u;
  if ((w & exponent) == exponent) w &= 0xffff0000u;
  if ((w >> 16 & exponent) == exponent) w &= 0x0000ffffu;
  return w;
}
DEV u32x4 finite_halves(const u32x4 &v) {
  return u32x4{finite_halves(v.x), finite_halves(v.y), finite_halves(v.z), finite_halves(v.w)};
}

// ---- KV in e4m3 -----------------------------------------------------------------------------------------------
// Products are in fp16, which holds every e4m3: fragments are widened in registers, two elements an instruction where the target has it.
// Else: in the high byte of a half an e4m3 is an fp16 but for the exponent's bias, once its magnitude is shifted by a bit. NaN gets the
// top exponent.
DEV u32 widen_high_bytes(u32 w) {
  const u32 nan = (w & 0x7f007f00) + 0x01000100 & 0x80008000;
  return mul_f16x2((w & 0x80008000) | (w >> 1 & 0x3f803f80), 0x5c005c00) | nan - (nan >> 5);
}
DEV void widen_e4m3x4(u32 x, u32 &lo, u32 &hi) {
  if (E4M3_CVT) return unpack_e4m3x4(x, lo, hi);
  lo = widen_high_bytes(permute_bytes(x, 0, 0x1404));
  hi = widen_high_bytes(permute_bytes(x, 0, 0x3424));
}
// K: ldmatrix takes pairs of elements for one, so that lane c of a quad has the four from 4 c on of 16 dims. Two of them are the
// mma's columns 2 c and 2 c + 1, the others 2 c + 8 and 2 c + 9; q has the same order. `low`, `high`: tokens 0-7 and 8-15.
DEV void key_step(u32 (&a)[4], u32 low, u32 high) {
  widen_e4m3x4(low, a[0], a[2]);
  widen_e4m3x4(high, a[1], a[3]);
}
// V: by ldmatrix.trans a register has two dimensions of two tokens. Of 16 dimensions row g of an mma is number 2 g, row g + 8 number
// 2 g + 1. `after`: what has to be known before; no byte of it is used.
DEV void value_step(u32 (&a)[4], u32 low, u32 high, u32 after = 0) {
  widen_e4m3x4(permute_bytes(low, after, 0x3120), a[0], a[1]);
  widen_e4m3x4(permute_bytes(high, after, 0x3120), a[2], a[3]);
}
// Output in that order: dimensions 2 g and the next of two rows, to where the first row has them.
DEV void store_pairs(smem_addr at, int stride, const float (&o)[4], const f32x2 &scale) {
  sts_u32(at, pack_f16x2(o[0] * scale.x, o[2] * scale.x));
  sts_u32(at + stride, pack_f16x2(o[1] * scale.y, o[3] * scale.y));
}

// bf16 q may not fit fp16: each row is multiplied by the power of 2 that takes its greatest element to 2^14 .. 2^15, which is a matter of
// exponents alone (what is below 2^-29 of that is lost). Who has the scores divides by it.
constexpr bool NARROW_QUERY = KV_E4M3 && (!Q_F16 || E4M3_MMA || F16_SCORES);  // q becomes fp16 or e4m3
// Greatest magnitudes x 2 of the halves so far: another expression than narrow_query's, or the compiler would hold all of them in
// registers.
DEV u32 more_magnitude(u32 most, u32 w) { return max_u16x2(most, w << 1 & 0xfffefffe); }
DEV u32 whole_magnitude(u32 most) { return (most >> 16 > (most & 0xffff) ? most >> 16 : most & 0xffff) >> 1; }
// From the magnitude of the greatest: what is taken from exponents, which are then fp16's. inf and NaN stay so.
DEV u32 query_base(u32 most) {
  const u32 exponent = most >> 7;
  return exponent < 29 ? 0 : exponent == 255 ? 224 : exponent - 29;
}
DEV u32 narrow_query(u32 w, u32 base) {  // base: in both halves, x 128
  return (max_u16x2(w & 0x7fff7fff, base) - base) << 3 | (w & 0x80008000);
}
DEV float narrow_unit(u32 most) { return bits_to_float((query_base(most) + 15) << 23); }  // what 1 stands for
// Where scores add up in fp16 a row's greatest element goes to 2 .. 4: 32 products with e4m3, at most 448 each, then stay below 57,344.
// What is below 2^-15 of the greatest loses bits. bf16 comes from narrow_query. Both factors are a power of 2, in both halves.
constexpr u32 NARROW_TO_CHAIN = 0x08000800;  // 2^-13
DEV u32 chain_exponent(u32 most) {  // q in fp16: biased; inf and NaN stay so
  const u32 exponent = most >> 10;
  return exponent < 1 ? 1 : exponent > 30 ? 30 : exponent;
}
DEV u32 chain_factor(u32 most) { return (31 - chain_exponent(most)) * 0x04000400; }
DEV float chain_unit(u32 most) {  // what 1 stands for
  return Q_F16 ? bits_to_float((chain_exponent(most) + 111) << 23) : narrow_unit(most) * 0x1p13f;
}

// Of B fragments, whose row a quad has: made fp16 where they stand, and what 1 stands for.
template <int STEPS>
DEV float narrow_rows(u32 (&q)[STEPS][2]) {
  u32 most = 0;
#pragma unroll
  for (int k = 0; k < 2 * STEPS; k++) most = more_magnitude(most, q[k / 2][k % 2]);
#pragma unroll
  for (u32 d = 1; d < 4; d <<= 1) most = max_u16x2(most, shuffle_xor(most, d));
  const u32 base = query_base(whole_magnitude(most)) * 0x00800080;
#pragma unroll
  for (int k = 0; k < 2 * STEPS; k++) q[k / 2][k % 2] = narrow_query(q[k / 2][k % 2], base);
  return narrow_unit(whole_magnitude(most));
}

// Weights are fp16 and 2^15 times as large: what bf16 would hold of small ones, fp16 then holds too. With products in e4m3 they are 2^8
// times as large and, as q, the sum of two parts; with records 2^14 times. Where 16 tokens add up in fp16, 2^3 times: their products with
// 448 stay below 57,344.
constexpr float WEIGHT_SHIFT = E4M3_MMA ? 8.f : F16_OUTPUT ? 3.f : KV_RECORD ? 14.f : KV_E4M3 ? 15.f : 0.f;

DEV u32 finite_bytes(u32 w) {
#pragma unroll
  for (int i = 0; i < 4; i++)
    if ((w >> 8 * i & 0x7f) == 0x7f) w &= ~(0xffu << 8 * i);
  return w;
}
// Of stored elements: what is not finite becomes 0.
DEV u32x4 finite_stored(const u32x4 &v) {
  return KV_E4M3 ? u32x4{finite_bytes(v.x), finite_bytes(v.y), finite_bytes(v.z), finite_bytes(v.w)} : finite_halves(v);
}

// Is one of them not finite? (Not 0: a carry out of its exponent.)
DEV u32 not_finite(u32 w) {
  if (KV_E4M3) return (w & 0x7f7f7f7f) + 0x01010101 & 0x80808080;
  return (MUL_F16 ? (w & 0x7c007c00) + 0x04000400 : (w & 0x7f807f80) + 0x00800080) & 0x80008000;
}
DEV u32 not_finite(const u32x4 &v) { return not_finite(v.x) | not_finite(v.y) | not_finite(v.z) | not_finite(v.w); }

// The row tiles (of 8 rows) of `rows` rows, spread over groups as evenly as they go: how many group `g` has, and its first. Where every
// request has p.width nodes the plan has divided already: a division costs 0.05 us here.
DEV int group_tiles(const dw_params &p, int rows, int groups, int g, int *first) {
  int each = p.group_tiles, more = p.group_more;
  if (CHECKED || rows_vary(p)) {
    const int tiles = (rows + 7) / 8;
    each = tiles / groups;
    more = tiles % groups;
  }
  *first = g * each + (g < more ? g : more);
  return each + (g < more);
}
