// Records (KV_RECORD), for rowsplit: what scales and rope ask of its roles.
//
// A record's group of latents is a score warp's, and its scale multiplies what the warp has added up of a token; the warp's quarter of the
// rope follows in bf16.
//
// As for V, weights would have to be multiplied by scales of any size, which fp16 does not hold. So a token's scales are split into 2^E, E
// the exponent of the greatest, and four factors below 2. A weight is 2^(score + E - greatest such sum of the row so far), and an output
// warp multiplies it by the factor of its group: what rounding takes is small beside the row's greatest weight times scale, wherever the
// scales lie. Only the sum that a row is divided by has to do without E, and takes each weight times 2^-E. Partial results are fp32.
//
// E is at least -40, so that tokens of nothing count in that sum beside others: what a scale has below 2^-64 is lost. A scale that is not
// finite, or 2^97 and more, makes its token's scores NaN, and its factor is 0: who sees the token is NaN, others do not notice.
#pragma once

// A slot's: E and 2^-E of each token, two f32; then [group][token] the factors, f16.
DEV smem_addr token_scales(const Cta &c, int slot) { return c.shared + TOKEN_SCALES + slot * SCALES_BYTES; }
constexpr float SCALE_LEAST = 0x1p-40f, SCALE_MOST = 0x1p96f, SCALE_LIMIT = 0x1p97f;

// By the score warps, a quarter of the tile's tokens each.
DEV void split_scales(const Cta &c, int slot) {
  constexpr int EACH = TILE / SCORE_WARPS;
  const int token = warp_id() * EACH + lane_id();
  if (lane_id() < EACH) {
    const f32x4 v = lds_f32x4(c.shared + RING + slot * SLOT_BYTES + token * TOKEN_STRIDE + RECORD_SCALES);
    const float scale[4] = {v.x, v.y, v.z, v.w};
    float most = SCALE_LEAST;
#pragma unroll
    for (int g = 0; g < 4; g++) most = fmaxf(most, fabsf(scale[g]));
    const u32 exponent = float_to_bits(most < SCALE_MOST ? most : SCALE_MOST) >> 23;
    const float unit = bits_to_float((254 - exponent) << 23);
    const smem_addr at = token_scales(c, slot);
    sts_f32x2(at + token * 8, f32x2{(float)(int)exponent - 127.f, unit});
#pragma unroll
    for (int g = 0; g < 4; g++)
      sts_u16(at + TILE * 8 + (g * TILE + token) * 2, (u16)pack_f16x2(fabsf(scale[g]) < SCALE_LIMIT ? scale[g] * unit : 0.f, 0.f));
  }
  sync_warp();
}

// What follows a score warp's latents of 16 tokens.
struct RecordRest {
  u32 rope[4];     // A fragment
  float scale[2];  // of the lane's two tokens
};
DEV void record_rest(const Cta &c, int slot, int half, RecordRest &r) {
  const smem_addr tokens = c.shared + RING + slot * SLOT_BYTES + half * 16 * TOKEN_STRIDE;
  ldmatrix_x4(r.rope, tokens + (lane_id() & 15) * TOKEN_STRIDE + RECORD_ROPE + warp_id() * 32 + (lane_id() >> 4) * 16);
#pragma unroll
  for (int i = 0; i < 2; i++) r.scale[i] = lds_f32(tokens + ((lane_id() >> 2) + 8 * i) * TOKEN_STRIDE + RECORD_SCALES + warp_id() * 4);
}
template <int NT>
DEV void score_rest(const RecordRest &r, const Query<NT> &q, float (&s)[NT][4]) {
  float nan[2];  // from SCALE_LIMIT on, else 0
#pragma unroll
  for (int i = 0; i < 2; i++) nan[i] = r.scale[i] * 0x1p31f - r.scale[i] * 0x1p31f;
#pragma unroll
  for (int t = 0; t < NT; t++) {
#pragma unroll
    for (int i = 0; i < 4; i++) s[t][i] = s[t][i] * r.scale[i / 2] + nan[i / 2];
    mma_m16n8k16_bf16(s[t], r.rope, q.b[K_STEPS - 1][t]);
  }
}

// An output warp's: weights of 16 tokens times the factors of its group.
template <int NT>
DEV void scale_weights(const Cta &c, int slot, int half, u32 (&b)[NT][2]) {
  const int group = output_warp() * V_EACH / RECORD_GROUP;
  const smem_addr at = token_scales(c, slot) + TILE * 8 + (group * TILE + half * 16 + 2 * (lane_id() & 3)) * 2;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const u32 factors = lds_u32(at + i * 16);
#pragma unroll
    for (int t = 0; t < NT; t++) b[t][i] = mul_f16x2(b[t][i], factors);
  }
}

// Normalised fp32 rows, a lane's two neighbouring dimensions at a time.
template <int NT>
DEV void output_store_wide(const dw_params &p, const Cta &c, const Output<NT> &out) {
  const int first = 2 * (lane_id() & 3), dim = output_warp() * V_EACH + (lane_id() >> 2) * 2;
#pragma unroll
  for (int t = 0; t < NT; t++) {
    const int row = t * 8 + first;
    const f32x2 scale = lds_f32x2(c.shared + FINAL + row * 4);
    float *to = (float *)p.partial + (partial_row(p, c) + row) * V + dim;
#pragma unroll
    for (int m = 0; m < V_TILES; m++) {
      const float(&x)[4] = out.o[m][t];
      if (row < c.rows) stg_cg_v2(to + m * 16, u32x2{float_to_bits(x[0] * scale.x), float_to_bits(x[2] * scale.x)});
      if (row + 1 < c.rows) stg_cg_v2(to + V + m * 16, u32x2{float_to_bits(x[1] * scale.y), float_to_bits(x[3] * scale.y)});
    }
  }
  if (output_warp()) return;
  for (int row = lane_id(); row < c.rows; row += 32)
    stg_cg_f32(p.partial_lse + partial_row(p, c) + row, lds_f32(c.shared + FINAL + (ROWS + row) * 4));
}
