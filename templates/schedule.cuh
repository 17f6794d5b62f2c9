// Which KV range of which request a CTA works on. A range is a set of 16-token tiles: first, first + stride, ...
//
// AUTO: p.all_ranges ranges for the whole batch, handed out by length. Requests of equal length (in tiles) get p.ranges each; else
// request b gets floor((all - batch) x tiles_b / all tiles) + 1. Ranges of a request interleave its tiles, so the first table
// entry depends on the block index alone.
// FIXED: ranges of p.split_tokens tokens each, whatever else is in the batch.
#pragma once

constexpr int TILE = 16;  // tokens

struct Share {     // of one request
  int ranges;      // KV ranges it is split into, at least 1
  int first_slot;  // its first row of partial results
};

struct Work {
  int request;  // -1: nothing to do
  int range;
  Share share;
};

struct Tiles {
  int first, stride, count;
};

// With a window, the first tile that any row of a request sees: no row stands before the prefix's end.
DEV int window_tile(const dw_params &p, const Request &r) {
  const int first = r.prefix - window(p) + 1;
  return window(p) && first > 0 ? first / TILE : 0;
}
DEV int all_tiles(const Request &r) { return (r.total + TILE - 1) / TILE; }
DEV int request_tiles(const dw_params &p, const Request &r) { return all_tiles(r) - window_tile(p, r); }
// Tiles of request b, whose kv_len is `len`.
DEV int tiles_of(const dw_params &p, int b, int len) {
  if (CHECKED && masked(p, b)) return 0;
  if (lengths_with_drafts(p) && !window(p)) return (len + TILE - 1) / TILE;
  return request_tiles(p, load_request(p, b, len));
}

DEV int tiles_of(const dw_params &p, int b) { return tiles_of(p, b, ldg_nc_s32(p.kv_len + b)); }

DEV u32 warp_sum(u32 v) {
#pragma unroll
  for (u32 d = 16; d; d >>= 1) v += shuffle_xor(v, d);
  return v;
}
DEV u32 warp_prefix_sum(u32 v, u32 lane) {  // inclusive
#pragma unroll
  for (u32 d = 1; d < 32; d <<= 1) {
    const u32 below = shuffle_up(v, d);
    if (lane >= d) v += below;
  }
  return v;
}

// Do all requests have `tiles` tiles? (All lanes together, 32 requests at a time.) A batch smaller than the bound counts as
// ragged, so that it gets all ranges too.
DEV bool equal_shares(const dw_params &p, int tiles) {
  if (p.batch * p.ranges != p.all_ranges) return false;
  bool ragged = false;
#pragma unroll 1
  for (int b0 = 0; b0 < p.batch; b0 += 32) {
    const int b = b0 + lane_id();
    ragged |= vote_any(tiles_of(p, b < p.batch ? b : p.batch - 1) != tiles);
  }
  return !ragged;
}

// Shares by length. Finds the owner of range `number` of the batch (request < 0), or the share of `request`.
DEV Work ragged_share(const dw_params &p, int number, int request) {
  const u32 lane = lane_id();
  u32 all = 0;
#pragma unroll 1
  for (int b0 = 0; b0 < p.batch; b0 += 32) all += warp_sum(b0 + (int)lane < p.batch ? tiles_of(p, b0 + lane) : 0);
  Work w;
  w.request = -1;
  int before = 0;
#pragma unroll 1
  for (int b0 = 0; b0 < p.batch; b0 += 32) {
    const bool real = b0 + (int)lane < p.batch;
    const u32 tiles = real ? tiles_of(p, b0 + lane) : 0;
    const u32 share = !real ? 0 : all ? (u32)(p.all_ranges - p.batch) * tiles / all + 1 : 1;
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
DEV int guess_length(const dw_params &p, const Work &guess) {
  return guess.request >= 0 ? ldg_nc_s32(p.kv_len + guess.request) : 0;
}
DEV bool lengths_decide(const dw_params &p) { return !fixed_split(p) && p.all_ranges > p.ranges; }
// `len` is kv_len of the request that was guessed.
DEV Work find_work(const dw_params &p, const Work &guess, int len) {
  if (!lengths_decide(p) || (guess.request >= 0 && equal_shares(p, tiles_of(p, guess.request, len)))) return guess;
  return ragged_share(p, blockIdx.z * p.ranges + blockIdx.y, -1);
}
// Partial results of a request, for the combine kernel.
DEV Share find_share(const dw_params &p, const Request &r) {
  Share equal{p.ranges, r.index * p.ranges};
  if (lengths_decide(p)) return equal_shares(p, request_tiles(p, r)) ? equal : ragged_share(p, 0, r.index).share;
  if (fixed_split(p) && r.total < p.ranges * p.split_tokens)
    equal.ranges = r.total > 0 ? (r.total + p.split_tokens - 1) / p.split_tokens : 1;
  return equal;
}

// Of the request's tiles, the first `skip` of which nobody sees.
DEV Tiles find_tiles(const dw_params &p, const Work &w, int all, int skip) {
  if (fixed_split(p)) {
    const int each = p.split_tokens / TILE, start = w.range * each, end = start + each < all ? start + each : all;
    const int first = start > skip ? start : skip;
    return Tiles{first, 1, end > first ? end - first : 0};
  }
  const int stride = w.share.ranges, left = all - skip - w.range;
  // Equal shares divide by multiplication: exact for all tile counts and shares that fit a launch (count x ranges < 2^32).
  const u32 up = left > 0 ? left + stride - 1 : 0;
  const u32 count = stride == 1 ? up : stride == p.ranges ? (u32)((u64)up * p.ranges_inverse >> 32) : up / stride;
  return Tiles{skip + w.range, stride, (int)count};
}
