// The largest of many numbers: the gradient of a layer's weights may read only these inputs (SWAT).
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "vector.h"

namespace gossamer {

// Memory of a search, used again and again.
struct Search {
  std::vector<uint32_t> magnitudes;  // as bits, which are ordered like the numbers
  std::vector<uint32_t> bins;

  void clear() { magnitudes.clear(); }
  void take(const float* from, long count) {
    const size_t before = magnitudes.size();
    magnitudes.resize(before + count);
    memcpy(magnitudes.data() + before, from, count * sizeof(float));
    for (size_t i = before; i < magnitudes.size(); i++) magnitudes[i] &= 0x7fffffff;
  }

  // The smallest magnitude among the largest: numerator / denominator of all, and one at least. The upper half of
  // the bits comes first, so that only the few numbers that share it are compared one by one.
  float cut(int64_t numerator, int64_t denominator) {
    if (magnitudes.empty()) return 0;
    const __int128 wanted = ((__int128)numerator * magnitudes.size() + denominator - 1) / denominator;
    size_t place = magnitudes.size() - (size_t)std::max<__int128>(wanted, 1);
    bins.assign(1 << 16, 0);
    for (const uint32_t each : magnitudes) bins[each >> 15]++;
    uint32_t bin = 0;
    for (; place >= bins[bin]; bin++) place -= bins[bin];
    const auto end = std::partition(magnitudes.begin(), magnitudes.end(), [&](uint32_t each) { return each >> 15 == bin; });
    std::nth_element(magnitudes.begin(), magnitudes.begin() + place, end);
    float found;
    memcpy(&found, &magnitudes[place], sizeof found);
    return found;
  }
};

// Numbers below a magnitude become zero.
static void keep_above(const float* from, long count, float least, float* to) {
  for (long i = 0; i < count; i++) to[i] = std::fabs(from[i]) < least ? 0.f : from[i];
}

}  // namespace gossamer
