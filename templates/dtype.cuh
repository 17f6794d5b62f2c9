// Formats of q, KV, products, partial results and output. Q_F16, KV_E4M3, KV_RECORD, MUL_F16, OUT_DTYPE come from the generated text.
#pragma once

// q and KV share one type, bf16 or fp16, or KV is e4m3, which fp16 holds exactly.
constexpr int KV_BYTES = KV_E4M3 ? 1 : 2;  // an element
// A record: V latents in e4m3, an fp32 scale for each group of them, the rope in bf16. Its KV_E4M3 is that of the latents.
constexpr int RECORD_GROUP = 128, RECORD_SCALES = V, RECORD_ROPE = RECORD_SCALES + V / RECORD_GROUP * 4;
constexpr int TOKEN_BYTES = KV_RECORD ? RECORD_ROPE + (QK - V) * 2 : QK * KV_BYTES;  // MLA: all of a token
// The bits of an e4m3 moved into a float's fields are too small by 2^120, subnormals included; NaN needs the top exponent.
DEV float e4m3_to_float(u32 x) {
  return bits_to_float((x & 0x80) << 24 | ((x & 0x7f) == 0x7f ? 0x7fc00000u : float_to_bits(bits_to_float((x & 0x7f) << 20) * 0x1p120f)));
}
DEV float q_to_float(u32 x) { return Q_F16 ? f16_to_float((u16)x) : bf16_to_float((u16)x); }
DEV float kv_to_float(u32 x) { return KV_E4M3 ? e4m3_to_float(x) : q_to_float(x); }
// Operands of products: q and weights, and KV once it is widened.
DEV float mul_to_float(u16 x) { return MUL_F16 ? f16_to_float(x) : bf16_to_float(x); }
DEV u32 pack_mul(float lo, float hi) { return MUL_F16 ? pack_f16x2(lo, hi) : pack_bf16x2(lo, hi); }
DEV void mma_mul(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  if (MUL_F16) mma_m16n8k16_f16(d, a, b);
  else mma_m16n8k16_bf16(d, a, b);
}
// What stored elements of K and of V are multiplied by, which is left to scores and output.
DEV float stored_scale(const float *scale) { return KV_E4M3 && !KV_RECORD && scale ? bits_to_float(ldg_nc_u32(scale)) : 1.f; }

DEV float lo_half_f16(u32 x) { return f16_to_float((u16)x); }
DEV float hi_half_f16(u32 x) { return f16_to_float((u16)(x >> 16)); }

constexpr int OUT_BYTES = OUT_DTYPE == 2 ? 4 : 2;
DEV u32 pack_out(float lo, float hi) { return OUT_DTYPE == 1 ? pack_f16x2(lo, hi) : pack_bf16x2(lo, hi); }
// Eight neighbouring elements of an output row; `at` counts elements and is a multiple of 8.
DEV void store_out8(const dw_params &p, s64 at, const float (&v)[8]) {
  u8 *out = (u8 *)p.out + at * OUT_BYTES;
  if (OUT_DTYPE == 2) {
    stg_cg_v4(out, u32x4{float_to_bits(v[0]), float_to_bits(v[1]), float_to_bits(v[2]), float_to_bits(v[3])});
    stg_cg_v4(out + 16, u32x4{float_to_bits(v[4]), float_to_bits(v[5]), float_to_bits(v[6]), float_to_bits(v[7])});
  } else {
    stg_cg_v4(out, u32x4{pack_out(v[0], v[1]), pack_out(v[2], v[3]), pack_out(v[4], v[5]), pack_out(v[6], v[7])});
  }
}
DEV void store_out1(const dw_params &p, s64 at, float v) {
  if (OUT_DTYPE == 2) ((float *)p.out)[at] = v;
  else ((u16 *)p.out)[at] = (u16)pack_out(v, 0.f);
}

constexpr float INF = __builtin_bit_cast(float, 0x7f800000u), MINUS_INF = -INF;
constexpr float LEAST = -3.4028235e38f;  // of the finite numbers
