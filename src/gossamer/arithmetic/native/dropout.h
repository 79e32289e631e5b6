// Dropout, whose draws depend on a seed and a position alone.
#pragma once
#include "image.h"

namespace gossamer {

// Numbers in [0, 1) from a seed and a position: splitmix64.
INLINE float uniform(uint64_t seed, uint64_t at) {
  uint64_t z = seed + (at + 1) * 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return (float)(int32_t)((z ^ (z >> 31)) >> 40) * 0x1p-24f;  // 24 bits: an int32_t becomes a float faster
}
struct Dropout {
  float rate;
  bool channels;  // whole ones
  uint64_t seed;
  bool add;
};
// A run of numbers whose first one is at position `first`.
INLINE void drop(const Dropout& d, uint64_t first, long count, const float* __restrict__ from, float* __restrict__ to) {
  const float scale = 1 / (1 - d.rate);
  if (d.add)
    for (long i = 0; i < count; i++) to[i] += from[i] * (uniform(d.seed, first + i) >= d.rate ? scale : 0.f);
  else
    for (long i = 0; i < count; i++) to[i] = from[i] * (uniform(d.seed, first + i) >= d.rate ? scale : 0.f);
}
// Keeps a number with probability 1 - rate and scales it; the same draw serves both directions.
static void dropout(const Image& in, const Image& out, const Dropout& d) {
  const long row = in.row_floats();
  if (!d.channels && !in.halo && !out.halo) return drop(d, 0, in.channels * in.height * row, in.at, out.at);
  for (int c = 0; c < in.channels; c++)
    for (int y = 0; y < in.height; y++) {
      if (!d.channels) {
        drop(d, ((uint64_t)c * in.height + y) * row, row, in.of(c, y), out.of(c, y));
        continue;
      }
      for (int x = 0; x < in.width; x++) {
        const long at = (long)x * in.batch;
        drop(d, (uint64_t)c * in.batch, in.batch, in.of(c, y) + at, out.of(c, y) + at);
      }
    }
}

}  // namespace gossamer
