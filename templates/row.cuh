// Attention of one query row by one warp in fp32: what the plain kernels are made of. Lane l holds elements l, l + 32, ... of q
// and of the output.
#pragma once

constexpr int Q_EACH = QK / 32, V_EACH = V / 32;

struct Row {
  float q[Q_EACH], out[V_EACH];
  float max, sum;  // running maximum (log2 units) and sum of 2^(score - max)
};

template <int BYTES>
DEV u32 element(const u8 *first, int i) {
  return BYTES == 1 ? first[i] : ((const u16 *)first)[i];
}
// A vector of QK elements, those from V on somewhere else.
template <int BYTES>  // an element
struct Vector {
  const u8 *first, *rope;  // rope: element V
  DEV u32 operator[](int i) const { return i < V ? element<BYTES>(first, i) : element<BYTES>(rope, i - V); }
};
DEV Vector<2> query_vector(const dw_params &p, const Request &r, int row) {
  const u8 *q = (const u8 *)p.q + 2 * q_offset(p, r, row);
  return Vector<2>{q, q + 2 * V + q_rope_shift(p, r, row)};
}
struct Token {
  Vector<KV_BYTES> key;
  const u8 *value;
};
// As a row of the request has it.
DEV Token row_token(const dw_params &p, const Request &r, int row, int t) {
  const int entry = kv_entry(p, r, t);
  if (GQA) {
    const int kv_head = row_head(row) / GROUP;
    const u8 *key = key_address(p, entry, t, kv_head);
    return Token{Vector<KV_BYTES>{key, key + V * KV_BYTES}, value_address(p, entry, t, kv_head)};
  }
  const u8 *kv = kv_address(p, entry, t);
  return Token{Vector<KV_BYTES>{kv, kv_apart(p) ? kv_rope_address(p, entry, t) : kv + V * KV_BYTES}, kv};
}

DEV void row_start(const dw_params &p, Row &row, const Vector<2> &q) {
  const float scale_log2 = (WITH_SOFT_CAP ? 1.f : p.scale_log2) * stored_scale(p.k_scale);  // a soft cap has it in its polynomial
#pragma unroll
  for (int i = 0; i < Q_EACH; i++) row.q[i] = q_to_float(q[lane_id() + 32 * i]) * scale_log2;
#pragma unroll
  for (int i = 0; i < V_EACH; i++) row.out[i] = 0.f;
  row.max = MINUS_INF;
  row.sum = 0.f;
}

// Elements of K and of V. A record's have their scales.
DEV float record_latent(const u8 *record, int i) {
  return e4m3_to_float(record[i]) * ((const float *)(record + RECORD_SCALES))[i / RECORD_GROUP];
}
DEV float key_element(const Token &token, int i) {
  if (!KV_RECORD) return kv_to_float(token.key[i]);
  return i < V ? record_latent(token.value, i) : bf16_to_float((u16)element<2>(token.value + RECORD_ROPE, i - V));
}
DEV float value_element(const Token &token, int i) {
  return KV_RECORD ? record_latent(token.value, i) : kv_to_float(element<KV_BYTES>(token.value, i));
}

// Adds one visible token.
DEV void add_token(const dw_params &p, Row &row, const Token &token) {
  float score = 0.f;
#pragma unroll
  for (int i = 0; i < Q_EACH; i++) score += row.q[i] * key_element(token, lane_id() + 32 * i);
#pragma unroll
  for (u32 d = 16; d; d >>= 1) score += shuffle_xor(score, d);
  if (WITH_SOFT_CAP) score = soft_cap(p, soft_cap_start(p), score);
  const float max = fmaxf(row.max, score);
  const float keep = row.max == MINUS_INF ? 0.f : exp2_approx(row.max - max);
  const float weight = score == MINUS_INF ? 0.f : exp2_approx(score - max);
  row.max = max;
  row.sum = row.sum * keep + weight;
#pragma unroll
  for (int i = 0; i < V_EACH; i++) row.out[i] = row.out[i] * keep + weight * value_element(token, lane_id() + 32 * i);
}

// 1 / sum and the log-sum-exp in base 2; a row that saw nothing has output 0 and lse -inf, one that looks at NaN is NaN.
DEV float row_scale(const Row &row) { return row.sum == 0.f ? 0.f : 1.f / row.sum; }
DEV float row_lse(const Row &row) { return row.sum == 0.f ? MINUS_INF : row.max + log2_approx(row.sum); }
