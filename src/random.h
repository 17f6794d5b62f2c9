// A small generator of our own (splitmix64), so that a seed gives the same problem on every machine.
#ifndef DRAFTWOOD_RANDOM_H
#define DRAFTWOOD_RANDOM_H

#include <stdint.h>

static inline uint64_t dw__random(uint64_t *seed) {
  uint64_t z = *seed += 0x9E3779B97F4A7C15u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return z ^ z >> 31;
}

static inline int dw__random_below(uint64_t *seed, int n) { return (int)((dw__random(seed) >> 32) * (uint64_t)n >> 32); }

// Near enough to a normal distribution of deviation 1: the sum of four uniform numbers, cut off at 3.5.
static inline double dw__random_normal(uint64_t *seed) {
  uint64_t bits = dw__random(seed);
  double sum = 0;
  for (int i = 0; i < 4; i++) sum += (double)(bits >> (16 * i) & 0xFFFF);
  return (sum / 65536 - 2 + 2.0 / 65536) * 1.7320508075688772;
}

#endif
