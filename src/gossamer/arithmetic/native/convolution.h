// Convolutions at the non-zeros, batch innermost: activations are [channel][row][pixel][example].
//
// Rows of the input have zero pixels at both sides, so a kernel may look beyond them. A tile of
// output pixels times a block of the batch stays in registers while all non-zeros of an output are
// added to it: one load for each multiplication, none for the sums.
#pragma once
#include "lists.h"
#include "vector.h"

namespace gossamer {

// One pass over an image: where output pixels are, and which input rows they see.
struct Pass {
  int outputs, height, width;  // of the output
  int rows, pad, stride;       // kernel rows; kernel row i at output row y is input row y*stride+i-pad
  int in_height, batch;
  long in_row, in_step;                  // floats between input rows, and between pixels read
  long out_channel, out_row, out_pixel;  // floats between outputs
  bool add, relu;                        // to what is there; keep what is positive
  int skip = 0;                          // lanes that an earlier block of the batch has written

  // Kernel rows that meet the image at output row y.
  int first(int y) const { return std::max(0, pad - y * stride); }
  int last(int y) const { return std::max(first(y), std::min(rows, in_height + pad - y * stride)); }
};

template <int W, int X, int N>
struct Tile {
  Lanes<W> at[X][N];

  INLINE void finish(const Pass& p, const Tile& tile, float* out) {
    for (int x = 0; x < X; x++)
      for (int n = 0; n < N; n++) {
        float* to = out + x * p.out_pixel + n * W;
        Lanes<W> v = tile.at[x][n];
        if (p.add) v = without_first(v, p.skip) + load<W>(to);
        if (p.relu) v = positive_part(v);
        store<W>(to, v);
      }
  }
};

// STEP: the constant value of p.in_step for the usual batches, or 0. Constant distances between
// pixels become displacements of the loads.
template <int W, int X, int N, int STEP>
INLINE void sparse_tile(const Pass& p, const int32_t* starts, const int32_t* offsets,
                        const float* values, int first, int last, const float* in, float bias,
                        float* out) {
  const long step = STEP ? STEP : p.in_step;
  Tile<W, X, N> sum;
  for (int x = 0; x < X; x++)
    for (int n = 0; n < N; n++) sum.at[x][n] = all<W>(bias);
  for (int i = first; i < last; i++) {
    const float* row = in + i * p.in_row;
    for (int k = starts[i], end = starts[i + 1]; k < end; k++) {
      const float* from = row + (long)offsets[k] * p.batch;
      const Lanes<W> weight = all<W>(values[k]);
#pragma GCC unroll 24
      for (int x = 0; x < X; x++)
#pragma GCC unroll 4
        for (int n = 0; n < N; n++)
          add_product(sum.at[x][n], weight, load<W>(from + x * step + n * W));
    }
  }
  Tile<W, X, N>::finish(p, sum, out);
}

// Sizes of tiles, chosen so that the tiles of a row are about equal.
template <int CAP>
INLINE int tile_size(int left) {
  const int tiles = (left + CAP - 1) / CAP, even = (left + tiles - 1) / tiles;
  constexpr int sizes[] = {1, 2, 3, 4, 6, 8, 12};
  int best = 1;
  for (int size : sizes)
    if (size <= even && size <= CAP) best = size;
  return best;
}
template <int CAP, class Work>
INLINE void with_tile(int size, Work work) {
  switch (size) {
#define SIZE(N) \
  case N:       \
    if constexpr (N <= CAP) work.template operator()<N>(); \
    break;
    SIZE(1) SIZE(2) SIZE(3) SIZE(4) SIZE(6) SIZE(8) SIZE(12)
#undef SIZE
  }
}

template <int W, int N>
constexpr int tile_cap() {
  const int cap = (W >= NATIVE ? REGISTERS : 4) / (N * Lanes<W>::parts);
  return cap > 12 ? 12 : cap < 1 ? 1 : cap;
}

// Calls work<X, STEP>(y, x) for the tiles of an image.
template <int W, int N, class Work>
INLINE void tiles(const Pass& p, Work work) {
  constexpr int CAP = tile_cap<W, N>();
  auto with_step = [&]<int STEP>() __attribute__((always_inline)) {
    for (int y = 0; y < p.height; y++)
      for (int x = 0; x < p.width;) {
        const int size = tile_size<CAP>(p.width - x);
        with_tile<CAP>(size, [&]<int X>() __attribute__((always_inline)) {
          work.template operator()<X, STEP>(y, x);
        });
        x += size;
      }
  };
  constexpr bool common = W * N >= NATIVE;
  if (common && p.in_step == W * N) with_step.template operator()<common ? W * N : 0>();
  else with_step.template operator()<0>();
}

static void sparse_pass(const Pass& p, const List& list, const float* values, const float* bias,
                        const float* in, float* out) {
  blocks<NATIVE, 4>(p.batch, [&]<int W, int N>(int b, int skip) {
    Pass block = p;
    block.skip = skip;
    tiles<W, N>(p, [&]<int X, int STEP>(int y, int x) __attribute__((always_inline)) {
      const int first = p.first(y), last = p.last(y);
      const float* from = in + (long)(y * p.stride - p.pad) * p.in_row + x * p.in_step + b;
      float* to = out + y * p.out_row + x * p.out_pixel + b;
      for (int o = 0; o < p.outputs; o++)
        sparse_tile<W, X, N, STEP>(block, &list.starts[(long)o * p.rows], list.offsets.data(), values,
                                   first, last, from, bias ? bias[o] : 0.f, to + o * p.out_channel);
    });
  });
}

// ---- weight gradients -------------------------------------------------------------------------

// A tile of the output's gradient stays in registers; each non-zero adds its lanes to `sums`.
template <int W, int X, int N, int STEP>
INLINE void sparse_gradient_tile(const Pass& p, const int32_t* starts, const int32_t* offsets,
                                 int first, int last, const float* in, const float* grad, int skip,
                                 float* sums) {
  const long step = STEP ? STEP : p.in_step;
  Tile<W, X, N> g;
  for (int x = 0; x < X; x++)
    for (int n = 0; n < N; n++)
      g.at[x][n] = without_first(load<W>(grad + x * p.out_pixel + n * W), skip);
  for (int i = first; i < last; i++) {
    const float* row = in + i * p.in_row;
    for (int k = starts[i], end = starts[i + 1]; k < end; k++) {
      const float* from = row + (long)offsets[k] * p.batch;
      Lanes<W> total = load<W>(sums + (long)k * W);
#pragma GCC unroll 24
      for (int x = 0; x < X; x++)
#pragma GCC unroll 4
        for (int n = 0; n < N; n++)
          add_product(total, g.at[x][n], load<W>(from + x * step + n * W));
      store<W>(sums + (long)k * W, total);
    }
  }
}

// The sums of `count` vectors of lanes: written to `to`, or added to it.
template <int W>
INLINE void reduce(const float* lanes, long count, bool add, float* to) {
  long k = 0;
  if constexpr (W >= 8) {
    for (; k + 8 <= count; k += 8) {
      auto at = [&](int j) __attribute__((always_inline)) {
        Register<8>::type folded;
        fold_to<W>(load<W>(lanes + (k + j) * W), folded);
        return folded;
      };
      const Register<8>::type sums = sums_of_eight(at);
      store_eight(to + k, add ? load_eight(to + k) + sums : sums);
    }
  }
  for (; k < count; k++) {
    const float one = sum(load<W>(lanes + k * W));
    to[k] = add ? to[k] + one : one;
  }
}

constexpr long CACHED = 4096;  // non-zeros whose lanes stay in the second-level cache

// `scratch` has room for max(CACHED, non-zeros of an output) times LANES floats.
static void sparse_gradient(const Pass& p, const List& list, const float* in, const float* grad,
                            float* scratch, float* to) {
  for (int o = 0, end; o < p.outputs; o = end) {
    const long from = list.starts[(long)o * p.rows];
    for (end = o + 1; end < p.outputs && list.starts[(long)(end + 1) * p.rows] - from <= CACHED;) end++;
    const long count = list.starts[(long)end * p.rows] - from;
    if (!count) continue;
    bool add = false;
    blocks<LANES, 4>(p.batch, [&]<int W, int N>(int b, int skip) {
      memset(scratch, 0, sizeof(float) * W * (size_t)count);
      tiles<W, N>(p, [&]<int X, int STEP>(int y, int x) __attribute__((always_inline)) {
        const int first = p.first(y), last = p.last(y);
        const float* read = in + (long)(y * p.stride - p.pad) * p.in_row + x * p.in_step + b;
        const float* g = grad + y * p.out_row + x * p.out_pixel + b;
        for (int each = o; each < end; each++) {
          const int32_t* starts = &list.starts[(long)each * p.rows];
          if (starts[first] < starts[last])
            sparse_gradient_tile<W, X, N, STEP>(p, starts, list.offsets.data(), first, last, read,
                                                g + each * p.out_channel, skip, scratch - from * W);
        }
      });
      reduce<W>(scratch, count, add, to + from);
      add = true;
    });
  }
}

}  // namespace gossamer
