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
