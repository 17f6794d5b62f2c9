// Which KV range of which request a CTA works on. A range is a set of tiles of TILE tokens: first, first + stride, ...
//
// AUTO: p.all_ranges ranges for the whole batch, handed out by length. Requests of equal length (in tiles) get p.ranges each; else
// request b gets ceil(tiles_b / longest), where no range is longer than `longest`: as short as p.all_ranges allow (ranges_of_a_tile). Ranges
// of a request interleave its tiles, so the first table entry depends on the block index alone.
// FIXED: ranges of p.split_tokens tokens each, whatever else is in the batch.
#pragma once

struct Share {     // of one request
  int ranges;      // KV ranges it is split into, at least 1
  int first_slot;  // its first row of partial results
};

constexpr int PLAN_BYTES = 64;  // what a CTA's warps tell one another of their work: see plan_write

struct Work {
  int request;  // -1: nothing to do
  int range;
  Share share;
};

struct Tiles {
  int first, stride;  // tokens
  int count;
  int end;  // tokens from here on are not of this range
};

// With a window, the first tile that any row of a request sees: no row stands before the prefix's end.
DEV int window_tile(const dw_params &p, const Request &r) {
  const int first = r.prefix - window(p) + 1;
  return window(p) && first > 0 ? first / TILE : 0;
}
DEV int request_tiles(const dw_params &p, const Request &r) { return (r.total + TILE - 1) / TILE - window_tile(p, r); }
// Tiles of request b, whose kv_len is `len`.
DEV int tiles_of(const dw_params &p, int b, int len) {
  if (CHECKED && masked(p, b)) return 0;
  if (lengths_with_drafts(p) && !window(p)) return (len + TILE - 1) / TILE;
  return request_tiles(p, load_request(p, b, len));
}

DEV int tiles_of(const dw_params &p, int b) { return tiles_of(p, b, ldg_nc_s32(p.kv_len + b)); }

DEV u32 warp_prefix_sum(u32 v, u32 lane) {  // inclusive
#pragma unroll
  for (u32 d = 1; d < 32; d <<= 1) {
    const u32 below = shuffle_up(v, d);
    if (lane >= d) v += below;
  }
  return v;
}

// kv_len of the 32 requests `request` is among, one a lane. Asked for at once and used late: what waits for it is on the way from launch
// to the first token.
struct Lengths {
  int first;  // request of lane 0
  int own;
};
DEV Lengths ask_lengths(const dw_params &p, int request) {
  const int first = request < 0 ? 0 : request & ~31, b = first + lane_id();
  return Lengths{first, b < p.batch ? ldg_nc_s32(p.kv_len + b) : 0};
}
DEV int length_of(const Lengths &l, int request) { return request < 0 ? 0 : shuffle((u32)l.own, request - l.first); }

// Do all requests have `tiles` tiles? (All lanes together, 32 requests at a time.) A batch smaller than the bound counts as
// ragged, so that it gets all ranges too.
DEV bool equal_shares(const dw_params &p, const Lengths &l, int tiles) {
  if (p.batch * p.ranges != p.all_ranges) return false;
  const int lane = lane_id(), b = l.first + lane;
  bool ragged = b < p.batch && tiles_of(p, b, l.own) != tiles;
  if (p.batch > 32) {
#pragma unroll 1
    for (int b0 = 0; b0 < p.batch; b0 += 32) ragged |= b0 != l.first && b0 + lane < p.batch && tiles_of(p, b0 + lane) != tiles;
  }
  return !vote_any(ragged);
}

// Ranges of at most `longest` tiles that a request of `tiles` needs, at least 1: exact up to 2^20 tiles, since tiles - 1/2 is half a tile
// away from what would need another.
DEV int ranges_of(int tiles, float each) { return (int)(((float)tiles - 0.5f) * each) + 1; }  // each: 1 / longest
// 1 / the longest range, in tiles. With all / spare of them, rounded up, the ranges always fit, since a request has less than one more than
// its part (spare = all ranges - batch). It has no more at all where lengths suit, and half of one in the mean: that is tried before.
DEV float ranges_of_a_tile(const dw_params &p) {
  const int lane = lane_id();
  u32 all = 0;
#pragma unroll 1
  for (int b0 = 0; b0 < p.batch; b0 += 32) all += b0 + lane < p.batch ? tiles_of(p, b0 + lane) : 0;
  all = warp_sum(all);
  constexpr int TRIED = 3;
  const u32 batch = p.batch, spare = p.all_ranges - batch;
  float each[TRIED];
  int ranges[TRIED];
#pragma unroll
  for (int i = 0; i < TRIED; i++) {
    const u32 parts = spare + (i ? batch * (7 - 2 * i) / 8 + 1 : batch);  // and all, 5/8 or 3/8 of the batch
    each[i] = reciprocal_approx((float)((u32)((float)all * reciprocal_approx((float)parts) * 0.99999f) + 1));
    ranges[i] = 0;
  }
#pragma unroll 1
  for (int b0 = 0; b0 < p.batch; b0 += 32) {  // as many rounds for all lanes: else the compiler takes the roles' branches for divergent ones
    const bool real = b0 + lane < p.batch;
    const int tiles = real ? tiles_of(p, b0 + lane) : 0;
#pragma unroll
    for (int i = 0; i < TRIED; i++) ranges[i] += real ? ranges_of(tiles, each[i]) : 0;
  }
  float found = spare ? reciprocal_approx((float)((all + spare - 1) / spare)) : 0.f;
#pragma unroll
  for (int i = TRIED - 1; i >= 0; i--)
    if ((int)warp_sum(ranges[i]) <= p.all_ranges) found = each[i];
  return found;
}

// Shares by length. Finds the owner of range `number` of the batch (request < 0), or the share of `request`.
DEV Work ragged_share(const dw_params &p, int number, int request) {
  const u32 lane = lane_id();
  const float each = ranges_of_a_tile(p);
  Work w;
  w.request = -1;
  int before = 0;
#pragma unroll 1
  for (int b0 = 0; b0 < p.batch; b0 += 32) {
    const bool real = b0 + (int)lane < p.batch;
    const u32 share = real ? ranges_of(tiles_of(p, b0 + lane), each) : 0;
    const u32 end = before + warp_prefix_sum(share, lane);
    const u32 hit = vote_ballot(real && (request >= 0 ? b0 + (int)lane == request : number < (int)end));
    if (hit) {
      const u32 owner = lowest_bit(hit);
      w.request = b0 + owner;
      w.share.ranges = shuffle(share, owner);
      w.share.first_slot = shuffle(end, owner) - w.share.ranges;
      w.range = number - w.share.first_slot;
      return w;
    }
    before = shuffle(end, 31);
  }
  return w;
}

// Work of this CTA if no length had to be looked at: right in FIXED mode, for one request and for requests of equal length. Table
// entries can be asked for on the strength of it. grid (row groups, ranges, batch).
DEV Work guess_work(const dw_params &p) {
  const int request = blockIdx.z, range = blockIdx.y;
  return Work{request < p.batch ? request : -1, range, Share{p.ranges, request * p.ranges}};
}
DEV bool lengths_decide(const dw_params &p) { return !fixed_split(p) && p.all_ranges > p.ranges; }
// Was it right? `lengths` were asked for the request that was guessed, whose own is `len`.
DEV bool guess_holds(const dw_params &p, const Work &guess, const Lengths &lengths, int len) {
  return !lengths_decide(p) || (guess.request >= 0 && equal_shares(p, lengths, tiles_of(p, guess.request, len)));
}
DEV Work find_ragged(const dw_params &p) { return ragged_share(p, blockIdx.z * p.ranges + blockIdx.y, -1); }
// Partial results of a request, for the combine kernel. `lengths` were asked for it.
DEV Share find_share(const dw_params &p, const Request &r, const Lengths &lengths) {
  Share equal{p.ranges, r.index * p.ranges};
  if (lengths_decide(p)) return equal_shares(p, lengths, request_tiles(p, r)) ? equal : ragged_share(p, 0, r.index).share;
  if (fixed_split(p) && r.total < p.ranges * p.split_tokens)
    equal.ranges = r.total > 0 ? (r.total + p.split_tokens - 1) / p.split_tokens : 1;
  return equal;
}

// Of a request of `total` tokens, the first `skip` tiles of which nobody sees. A FIXED range may end within a tile of 32 tokens.
DEV Tiles find_tiles(const dw_params &p, const Work &w, int total, int skip) {
  if (fixed_split(p)) {
    const int start = w.range * p.split_tokens, end = start + p.split_tokens < total ? start + p.split_tokens : total;
    const int first = skip * TILE > start ? start + (skip * TILE - start) / TILE * TILE : start;
    return Tiles{first, TILE, end > first ? (end - first + TILE - 1) / TILE : 0, end};
  }
  const int stride = w.share.ranges, left = (total + TILE - 1) / TILE - skip - w.range;
  // Equal shares divide by multiplication: exact for all tile counts and shares that fit a launch (count x ranges < 2^32).
  const u32 up = left > 0 ? left + stride - 1 : 0;
  const u32 count = stride == 1 ? up : stride == p.ranges ? (u32)((u64)up * p.ranges_inverse >> 32) : up / stride;
  return Tiles{(skip + w.range) * TILE, stride * TILE, (int)count, total};
}
