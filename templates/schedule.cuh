// Which KV range of which request a CTA works on. A range is a set of 16-token tiles: first, first + stride, ...
//
// AUTO: p.slots ranges in flight for the whole batch, handed out by length. Requests of equal length (in tiles) get equal shares;
// else request b gets floor((slots - batch) x tiles_b / all tiles) + 1. Ranges of a request interleave its tiles, so the first
// table entry depends on the block index alone.
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

DEV int tiles_of(const dw_params &p, int b) {
  const int len = ldg_nc_s32(p.kv_len + b);
  const int drafts = p.lengths_include_drafts ? 0 : p.qo_indptr ? ldg_nc_s32(p.qo_indptr + b + 1) - ldg_nc_s32(p.qo_indptr + b)
                                                                : p.width;
  return (len + drafts + TILE - 1) / TILE;
}

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

// AUTO for a batch: walks the requests 32 at a time, all lanes together. Finds the owner of `slot` (request < 0), or the share of
// `request`. `equal` is the answer for requests of equal length.
DEV Work auto_share(const dw_params &p, const Work &equal, int slot, int request) {
  const u32 lane = lane_id();
  u32 all = 0;
  bool ragged = false;
  const int tiles0 = tiles_of(p, 0);
  for (int b0 = 0; b0 < p.batch; b0 += 32) {
    const int tiles = b0 + (int)lane < p.batch ? tiles_of(p, b0 + lane) : 0;
    ragged |= vote_any(b0 + (int)lane < p.batch && tiles != tiles0);
    all += warp_sum(tiles);
  }
  if (!ragged) return equal;
  Work w;
  w.request = -1;
  int before = 0;
  for (int b0 = 0; b0 < p.batch; b0 += 32) {
    const bool real = b0 + (int)lane < p.batch;
    const u32 tiles = real ? tiles_of(p, b0 + lane) : 0;
    const u32 share = real ? (u32)(p.slots - p.batch) * tiles / all + 1 : 0;
    const u32 end = before + warp_prefix_sum(share, lane);
    const u32 hit = vote_ballot(real && (request >= 0 ? b0 + (int)lane == request : slot < (int)end));
    if (hit) {
      const u32 owner = lowest_bit(hit);
      w.request = b0 + owner;
      w.share.ranges = shuffle(share, owner);
      w.share.first_slot = shuffle(end, owner) - w.share.ranges;
      w.range = slot - w.share.first_slot;
      return w;
    }
    before = shuffle(end, 31);
  }
  return w;
}

// Work of this CTA if no length had to be looked at: right in FIXED mode, for one request and for requests of equal length. Table
// entries can be asked for on the strength of it.
DEV Work guess_work(const dw_params &p) {
  if (p.split_mode == DW_P_SPLIT_FIXED)
    return Work{(int)blockIdx.z, (int)blockIdx.y, Share{p.slots, (int)blockIdx.z * p.slots}};
  if (p.batch == 1) return Work{0, (int)blockIdx.y, Share{p.slots, 0}};
  const int each = p.slots / p.batch, request = blockIdx.y / each;
  return Work{request < p.batch ? request : -1, (int)blockIdx.y - request * each, Share{each, request * each}};
}
DEV Work find_work(const dw_params &p, const Work &guess) {
  return p.split_mode == DW_P_SPLIT_FIXED || p.batch == 1 ? guess : auto_share(p, guess, blockIdx.y, -1);
}
// Partial results of a request, for the combine kernel.
DEV Share find_share(const dw_params &p, const Request &r) {
  if (p.split_mode == DW_P_SPLIT_FIXED) {
    const int ranges = (r.total + p.split_tokens - 1) / p.split_tokens;
    return Share{ranges > 0 ? ranges : 1, r.index * p.slots};
  }
  if (p.batch == 1) return Share{p.slots, 0};
  const int each = p.slots / p.batch;
  return auto_share(p, Work{r.index, 0, Share{each, r.index * each}}, 0, r.index).share;
}

DEV Tiles find_tiles(const dw_params &p, const Work &w, int total) {
  const int all = (total + TILE - 1) / TILE;
  if (p.split_mode == DW_P_SPLIT_FIXED) {
    const int each = p.split_tokens / TILE, first = w.range * each;
    const int left = all - first;
    return Tiles{first, 1, left < 0 ? 0 : left < each ? left : each};
  }
  const int stride = w.share.ranges, left = all - w.range;
  return Tiles{w.range, stride, left > 0 ? (left + stride - 1) / stride : 0};
}
