// From the scores of a lane's two rows to weights, factors and sums: the middle of a softmax loop's body, with y where there is a TAIL of
// rows. Text and no function, or the compiler puts the instructions of a tile into another order (the measured one is this).
if constexpr (KV_RECORD) {
  softmax_scales(c, ring.at, 0, x, x.exponent);
  if (TAIL) softmax_scales(c, ring.at, 0, y, y.exponent);
}
softmax_mask(p, c, cap, x, t0, edge);
if (TAIL) softmax_mask(p, c, cap, y, t0, edge);
if (edge) {
  // In turn, since a warp may be an edge ahead of one that still looks; not two: the barrier of the edge between them is not passed before
  // all have looked. (Once set a flag stays.)
  poison_turn ^= 8;
  const smem_addr flags = c.shared + POISON_FLAGS + poison_turn;
  if (vote_any((has_x && x.poison) || (TAIL && y.poison)) && lane_id() == 0) sts_u16(flags + warp * 2, 1);
  barrier_sync(NAMED_POISON, SOFTMAX_WARPS * 32);
  const f32x2 f = lds_f32x2(flags);
  if (float_to_bits(f.x) | float_to_bits(f.y)) clean_tile(c, ring, thread);
}
float weights_x[x.ALL], weights_y[y.ALL], factor_x = 1.f, factor_y = 1.f;
bool grow_x, grow_y;
if constexpr (CAP_IN_WEIGHTS) {
  // All that is asked is asked at once, the polynomial follows while the votes are on their way, and there are weights only once the
  // maximum is settled.
  grow_x = vote_any(has_x && largest_of_pairs(x.s, false) > x.top), grow_y = TAIL && vote_any(y.s[0] > y.top);
  const bool far = vote_any((has_x && largest_of_pairs(x.s, true) > cap.most) | (TAIL && fabsf(y.s[0]) > cap.most));
  float factors_x[x.ALL], factors_y[y.ALL];
  capped_factors(cap, x, factors_x);
  if (TAIL) capped_factors(cap, y, factors_y);
  if (far) {
    factor_x = capped_grow(p, cap, x, true);
    if (TAIL) factor_y = capped_grow(p, cap, y, true);
    grow_x = vote_any(factor_x != 1.f), grow_y = TAIL && vote_any(factor_y != 1.f);  // asked anew: predicates are scarce
    capped_far(p, cap, edge, x, factors_x);
    if (TAIL) capped_far(p, cap, edge, y, factors_y);
  } else {
    if (grow_x) factor_x = capped_grow(p, cap, x, false);
    if (grow_y) factor_y = capped_grow(p, cap, y, false);
  }
  capped_weights(x, factors_x, weights_x);
  if (TAIL) capped_weights(y, factors_y, weights_y);
} else {
  softmax_weights(x, weights_x);  // while the votes are on their way
  if (TAIL) softmax_weights(y, weights_y);
  const bool far = WITH_SOFT_CAP && (x.far || (TAIL && y.far));
  grow_x = vote_any(far || (has_x && largest(x.s) > x.max)), grow_y = TAIL && vote_any(largest(y.s) > y.max);
  if (WITH_SOFT_CAP && grow_x) {
    if (vote_any(far)) {
      if constexpr (KV_RECORD) {  // read again, since registers are scarce
        softmax_scales(c, ring.at, 0, x, x.exponent);
        if (TAIL) softmax_scales(c, ring.at, 0, y, y.exponent);
      }
      softmax_cap(p, cap, x);
      softmax_weights(x, weights_x);
      if (TAIL) softmax_cap(p, cap, y);
      if (TAIL) softmax_weights(y, weights_y);
      grow_y = TAIL && vote_any(largest(y.s) > y.max);
    }
    grow_x = vote_any(has_x && largest(x.s) > x.max);
  }
  if (grow_x) {
    factor_x = softmax_grow(x);
    softmax_weights(x, weights_x);
  }
  if (grow_y) {
    factor_y = softmax_grow(y);
    softmax_weights(y, weights_y);
  }
}
softmax_add(c, ring.at, factor_x, x, weights_x);
if (TAIL) softmax_add(c, ring.at, factor_y, y, weights_y);
