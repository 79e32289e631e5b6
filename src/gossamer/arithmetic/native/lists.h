// Where the non-zeros of a layer are: index lists, made from a mask by counting.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "vector.h"

namespace gossamer {

// A convolution, or a linear layer as one of 1 x 1 on an image of one pixel. Weights lie in memory
// as [output][kernel row][kernel column][input], which is torch's channels-last order.
struct Geometry {
  int inputs, outputs, kernel_height, kernel_width;
  int stride_y, stride_x, pad_y, pad_x;
  int height, width, out_height, out_width;
  int in_pitch;    // pixels from row to row of the input, with its zero columns
  int grad_pitch;  // the same for the gradient of the output

  long taps() const { return (long)kernel_height * kernel_width * inputs; }
  long weights() const { return outputs * taps(); }
};

// For each group of weights, where its factors are. Groups are (output, kernel row): all weights
// of a group read the same row, so padding above and below is a range of groups.
struct List {
  std::vector<int32_t> starts;   // of the groups, and the end
  std::vector<int32_t> offsets;  // of the factors, in pixels
  std::vector<int32_t> sources;  // of the weights, among the values in forward order

  long count() const { return (long)offsets.size(); }
};

// The input gradient of a strided convolution falls into stride_y x stride_x classes of pixels.
// Each is a convolution of its own, with the kernel rows and columns that meet its pixels.
struct Class {
  int first_y, first_x;        // of its pixels
  int height, width;           // in pixels of the class
  int rows, pad;               // kernel rows, and how many of them lie above the first pixel
  int first_row, first_column; // of the kernel
  List list;
};

INLINE int parity(int pixel, int pad, int stride) { return (pixel + pad) % stride; }
INLINE int floor_divide(int a, int b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }

static std::vector<Class> classes(const Geometry& g) {
  std::vector<Class> all;
  for (int y = 0; y < std::min(g.stride_y, g.height); y++)
    for (int x = 0; x < std::min(g.stride_x, g.width); x++) {
      Class c;
      c.first_y = y, c.first_x = x;
      c.first_row = parity(y, g.pad_y, g.stride_y), c.first_column = parity(x, g.pad_x, g.stride_x);
      c.height = (g.height - y + g.stride_y - 1) / g.stride_y;
      c.width = (g.width - x + g.stride_x - 1) / g.stride_x;
      c.rows = std::max(0, (g.kernel_height - c.first_row + g.stride_y - 1) / g.stride_y);
      c.pad = c.rows - 1 - (y + g.pad_y - c.first_row) / g.stride_y;
      all.push_back(c);
    }
  return all;
}

// Forward and input-gradient lists of the non-zeros of a mask.
struct Lists {
  Geometry geometry;
  List forward;
  std::vector<int32_t> places;  // of the non-zeros in the weights' memory
  std::vector<Class> backward;
  long most = 0;  // non-zeros of the fullest output
};

// Turns counts of groups into starts; `next` is then where each group's next entry goes.
INLINE std::vector<int32_t> starts_of(std::vector<int32_t>& counts) {
  std::vector<int32_t> starts(counts.size() + 1, 0);
  for (size_t i = 0; i < counts.size(); i++) starts[i + 1] = starts[i] + counts[i];
  std::copy(starts.begin(), starts.end() - 1, counts.begin());
  return starts;
}

// `mask` has one byte for each weight, in memory order.
static Lists make_lists(const Geometry& g, const uint8_t* mask) {
  Lists lists;
  lists.geometry = g;
  List& forward = lists.forward;
  const long row_taps = (long)g.kernel_width * g.inputs;
  forward.starts.assign((size_t)g.outputs * g.kernel_height + 1, 0);
  long count = 0;
  for (long at = 0; at < g.weights(); at++) count += mask[at] != 0;
  forward.offsets.reserve(count), lists.places.reserve(count);
  std::vector<int16_t> column;  // of the kernel
  std::vector<int32_t> input;
  column.reserve(count), input.reserve(count);
  for (long group = 0; group < (long)g.outputs * g.kernel_height; group++) {
    const uint8_t* row = mask + group * row_taps;
    for (int j = 0, at = 0; j < g.kernel_width; j++)
      for (int c = 0; c < g.inputs; c++, at++)
        if (row[at]) {
          forward.offsets.push_back(c * g.height * g.in_pitch + j - g.pad_x);
          lists.places.push_back((int32_t)(group * row_taps + at));
          column.push_back((int16_t)j), input.push_back(c);
        }
    forward.starts[group + 1] = (int32_t)forward.count();
  }
  for (int o = 0; o < g.outputs; o++) {
    const int32_t* start = &forward.starts[(size_t)o * g.kernel_height];
    lists.most = std::max<long>(lists.most, start[g.kernel_height] - start[0]);
  }
  lists.backward = classes(g);
  for (Class& c : lists.backward) {
    // Groups of a class: (input, kernel row from the last to the first).
    auto each = [&](auto visit) {
      for (int o = 0; o < g.outputs; o++)
        for (int i = c.first_row, r = c.rows - 1; i < g.kernel_height; i += g.stride_y, r--) {
          const size_t group = (size_t)o * g.kernel_height + i;
          for (int k = forward.starts[group]; k < forward.starts[group + 1]; k++)
            if (g.stride_x == 1 || column[k] % g.stride_x == c.first_column)
              visit(o, k, (long)input[k] * c.rows + r);
        }
    };
    std::vector<int32_t> next((size_t)g.inputs * c.rows, 0);
    each([&](int, int, long group) { next[group]++; });
    c.list.starts = starts_of(next);
    c.list.offsets.resize(c.list.starts.back()), c.list.sources.resize(c.list.starts.back());
    each([&](int o, int k, long group) {
      const int to = next[group]++;
      c.list.offsets[to] = o * g.out_height * g.grad_pitch +
                           floor_divide(c.first_x + g.pad_x - column[k], g.stride_x);
      c.list.sources[to] = k;
    });
  }
  return lists;
}

// The lists of a full layer: all outputs read the same places, so one group list serves them all.
struct Taps {
  Geometry geometry;
  List forward;
  std::vector<Class> backward;
};

static Taps make_taps(const Geometry& g) {
  Taps taps;
  taps.geometry = g;
  for (int i = 0; i < g.kernel_height; i++) {
    taps.forward.starts.push_back((int32_t)taps.forward.count());
    for (int j = 0; j < g.kernel_width; j++)
      for (int c = 0; c < g.inputs; c++)
        taps.forward.offsets.push_back(c * g.height * g.in_pitch + j - g.pad_x);
  }
  taps.forward.starts.push_back((int32_t)taps.forward.count());
  taps.backward = classes(g);
  for (Class& c : taps.backward) {
    for (int r = 0; r < c.rows; r++) {
      c.list.starts.push_back((int32_t)c.list.count());
      for (int o = 0; o < g.outputs; o++)  // outside: pixels of neighbouring columns are read again at once
        for (int j = c.first_column; j < g.kernel_width; j += g.stride_x)
          c.list.offsets.push_back(o * g.out_height * g.grad_pitch +
                                   floor_divide(c.first_x + g.pad_x - j, g.stride_x));
    }
    c.list.starts.push_back((int32_t)c.list.count());
  }
  return taps;
}

}  // namespace gossamer
