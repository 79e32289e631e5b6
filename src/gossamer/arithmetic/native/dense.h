// Full layers in the same layout: several outputs share each load.
#pragma once
#include "convolution.h"

namespace gossamer {

#if defined(__AVX512F__)
constexpr int DENSE_OUTPUTS = 4, DENSE_PIXELS = 6;
#else
constexpr int DENSE_OUTPUTS = 3, DENSE_PIXELS = 4;
#endif

// ---- convolution ------------------------------------------------------------------------------

template <int W, int O, int X>
INLINE void dense_tile(const Pass& p, const List& taps, const float* values, const float* bias,
                       int first, int last, const float* in, float* out) {
  const long count = taps.count();
  Lanes<W> sum[O][X];
  for (int o = 0; o < O; o++)
    for (int x = 0; x < X; x++) sum[o][x] = all<W>(bias ? bias[o] : 0.f);
  for (int i = first; i < last; i++) {
    const float* row = in + i * p.in_row;
    for (int k = taps.starts[i], end = taps.starts[i + 1]; k < end; k++) {
      const float* from = row + (long)taps.offsets[k] * p.batch;
      Lanes<W> weight[O];
#pragma GCC unroll 8
      for (int o = 0; o < O; o++) weight[o] = all<W>(values[o * count + k]);
#pragma GCC unroll 8
      for (int x = 0; x < X; x++) {
        const Lanes<W> v = load<W>(from + x * p.in_step);
#pragma GCC unroll 8
        for (int o = 0; o < O; o++) add_product(sum[o][x], weight[o], v);
      }
    }
  }
  for (int o = 0; o < O; o++)
    for (int x = 0; x < X; x++) {
      float* to = out + o * p.out_channel + x * p.out_pixel;
      Lanes<W> v = sum[o][x];
      if (p.add) v = without_first(v, p.skip) + load<W>(to);
      if (p.relu) v = positive_part(v);
      store<W>(to, v);
    }
}

// `values` are [output][tap].
static void dense_pass(const Pass& p, const List& taps, const float* values, const float* bias,
                       const float* in, float* out) {
  const long count = taps.count();
  blocks<NATIVE, 1>(p.batch, [&]<int W, int N>(int b, int skip) {
    Pass block = p;
    block.skip = skip;
    for (int y = 0; y < p.height; y++)
      for (int x = 0; x < p.width;) {
        const int first = p.first(y), last = p.last(y);
        const int left = p.width - x, parts = (left + DENSE_PIXELS - 1) / DENSE_PIXELS;
        const int size = tile_size<DENSE_PIXELS>((left + parts - 1) / parts);
        const float* from = in + (long)(y * p.stride - p.pad) * p.in_row + x * p.in_step + b;
        float* to = out + y * p.out_row + x * p.out_pixel + b;
        with_tile<DENSE_PIXELS>(size, [&]<int X>() __attribute__((always_inline)) {
          int o = 0;
          for (; o + DENSE_OUTPUTS <= p.outputs; o += DENSE_OUTPUTS)
            dense_tile<W, DENSE_OUTPUTS, X>(block, taps, values + o * count, bias ? bias + o : nullptr,
                                            first, last, from, to + o * p.out_channel);
          for (; o < p.outputs; o++)
            dense_tile<W, 1, X>(block, taps, values + o * count, bias ? bias + o : nullptr, first, last,
                                from, to + o * p.out_channel);
        });
        x += size;
      }
  });
}

// Adds the products of a row of gradients to the lanes of O outputs times T taps.
template <int W, int O, int T>
INLINE void dense_gradient_tile(const Pass& p, const int32_t* offsets, const float* in,
                                const float* grad, int skip, long taps, float* sums) {
  Lanes<W> sum[O][T];
  const float* from[T];
  for (int t = 0; t < T; t++) from[t] = in + (long)offsets[t] * p.batch;
  for (int o = 0; o < O; o++)
    for (int t = 0; t < T; t++) sum[o][t] = load<W>(sums + (o * taps + t) * W);
  for (int x = 0; x < p.width; x++) {
    Lanes<W> g[O];
#pragma GCC unroll 8
    for (int o = 0; o < O; o++)
      g[o] = without_first(load<W>(grad + o * p.out_channel + x * p.out_pixel), skip);
#pragma GCC unroll 8
    for (int t = 0; t < T; t++) {
      const Lanes<W> v = load<W>(from[t] + x * p.in_step);
#pragma GCC unroll 8
      for (int o = 0; o < O; o++) add_product(sum[o][t], g[o], v);
    }
  }
  for (int o = 0; o < O; o++)
    for (int t = 0; t < T; t++) store<W>(sums + (o * taps + t) * W, sum[o][t]);
}

template <int W, int O>
INLINE void dense_gradient_row(const Pass& p, const List& taps, int y, const float* in,
                               const float* grad, int skip, float* sums) {
  constexpr int T = NATIVE == 16 ? 6 : 2;
  const long count = taps.count();
  for (int i = p.first(y); i < p.last(y); i++) {
    const float* row = in + (long)(y * p.stride + i - p.pad) * p.in_row;
    int k = taps.starts[i];
    const int end = taps.starts[i + 1];
    for (; k + T <= end; k += T)
      dense_gradient_tile<W, O, T>(p, &taps.offsets[k], row, grad, skip, count, sums + k * W);
    for (; k < end; k++)
      dense_gradient_tile<W, O, 1>(p, &taps.offsets[k], row, grad, skip, count, sums + k * W);
  }
}

// `scratch` has room for dense_gradient_floats(); `to` is [output][tap].
INLINE int dense_gradient_outputs(long taps) {
  return (int)std::max<long>(12, CACHED / taps / 12 * 12);
}
INLINE long dense_gradient_floats(long taps, int outputs) {
  return std::min(outputs, dense_gradient_outputs(taps)) * taps * LANES;
}
static void dense_gradient(const Pass& p, const List& taps, const float* in, const float* grad,
                           float* scratch, float* to) {
  const long count = taps.count();
  const int most = dense_gradient_outputs(count);
  for (int o = 0; o < p.outputs; o += most) {
    const int end = std::min(p.outputs, o + most);
    bool add = false;
    blocks<LANES, 1>(p.batch, [&]<int W, int N>(int b, int skip) {
      memset(scratch, 0, sizeof(float) * W * (size_t)((end - o) * count));
      for (int y = 0; y < p.height; y++) {
        int each = o;
        const float* row = grad + y * p.out_row + b;
        for (; each + DENSE_OUTPUTS <= end; each += DENSE_OUTPUTS)
          dense_gradient_row<W, DENSE_OUTPUTS>(p, taps, y, in + b, row + each * p.out_channel, skip,
                                               scratch + (each - o) * count * W);
        for (; each < end; each++)
          dense_gradient_row<W, 1>(p, taps, y, in + b, row + each * p.out_channel, skip,
                                   scratch + (each - o) * count * W);
      }
      reduce<W>(scratch, (end - o) * count, add, to + o * count);
      add = true;
    });
  }
}

// The kernel of a class of input pixels as [input][kernel row][output][kernel column].
static void transpose_kernel(const Geometry& g, const Class& c, const float* values, float* to) {
  for (int in = 0; in < g.inputs; in++)
    for (int r = 0; r < c.rows; r++) {
      const int i = c.first_row + (c.rows - 1 - r) * g.stride_y;
      for (int o = 0; o < g.outputs; o++)
        for (int j = c.first_column; j < g.kernel_width; j += g.stride_x)
          *to++ = values[(((long)o * g.kernel_height + i) * g.kernel_width + j) * g.inputs + in];
    }
}

// ---- linear -----------------------------------------------------------------------------------

// Y[r, :] = bias[r] + sum_k A[r * row + k * column] X[k, :] for R rows and N vectors of a batch.
struct Product {
  int rows, inner, batch;
  long row, column;  // floats between entries of A
  bool add, relu;
  int skip = 0;
};
template <int W, int R, int N>
INLINE void product_tile(const Product& p, const float* a, const float* bias, const float* x, float* y) {
  Lanes<W> sum[R][N];
  for (int r = 0; r < R; r++)
    for (int n = 0; n < N; n++) sum[r][n] = all<W>(bias ? bias[r] : 0.f);
  for (int k = 0; k < p.inner; k++) {
    Lanes<W> v[N];
#pragma GCC unroll 4
    for (int n = 0; n < N; n++) v[n] = load<W>(x + (long)k * p.batch + n * W);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
      const Lanes<W> weight = all<W>(a[r * p.row + k * p.column]);
#pragma GCC unroll 4
      for (int n = 0; n < N; n++) add_product(sum[r][n], weight, v[n]);
    }
  }
  for (int r = 0; r < R; r++)
    for (int n = 0; n < N; n++) {
      float* to = y + (long)r * p.batch + n * W;
      Lanes<W> v = sum[r][n];
      if (p.add) v = without_first(v, p.skip) + load<W>(to);
      if (p.relu) v = positive_part(v);
      store<W>(to, v);
    }
}
static void dense_product(const Product& p, const float* a, const float* bias, const float* x, float* y) {
  blocks<NATIVE, 2>(p.batch, [&]<int W, int N>(int b, int skip) {
    Product block = p;
    block.skip = skip;
    constexpr int R = NATIVE == 16 ? 8 : 4;
    int r = 0;
    for (; r + R <= p.rows; r += R)
      product_tile<W, R, N>(block, a + r * p.row, bias ? bias + r : nullptr, x + b, y + (long)r * p.batch + b);
    for (; r < p.rows; r++)
      product_tile<W, 1, N>(block, a + r * p.row, bias ? bias + r : nullptr, x + b, y + (long)r * p.batch + b);
  });
}

// A sum of outer products, with the inner side in the lanes: Y [rows][inner] is the sum over b of
// G[r * g_row + b * g_step] X[b * x_row + :]. It is a gradient that is stored, or goes straight
// into a step of SGD without momentum: Y are then the weights.
constexpr int NEAREST = 6144;  // floats: half of a first-level cache
struct Outer {
  int rows, inner, count;
  long g_row, g_step, x_row;
  bool descend = false;
  float rate = 0;  // of the step, negative
};
template <int W, int R, int N>
INLINE void outer_tile(const Outer& p, const float* g, const float* x, int skip, float* y) {
  Lanes<W> sum[R][N];
  for (int r = 0; r < R; r++)
    for (int n = 0; n < N; n++) sum[r][n] = all<W>(0);
  for (int b = 0; b < p.count; b++) {
    Lanes<W> v[N];
#pragma GCC unroll 4
    for (int n = 0; n < N; n++) v[n] = load<W>(x + b * p.x_row + n * W);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
      const Lanes<W> weight = all<W>(g[r * p.g_row + b * p.g_step]);
#pragma GCC unroll 4
      for (int n = 0; n < N; n++) add_product(sum[r][n], weight, v[n]);
    }
  }
  const Lanes<W> rate = all<W>(p.rate);
  for (int r = 0; r < R; r++)
    for (int n = 0; n < N; n++) {
      float* to = y + (long)r * p.inner + n * W;
      Lanes<W> v = sum[r][n];
      if (p.descend) {
        const Lanes<W> step = without_first(v, skip);
        v = load<W>(to);
        add_product(v, rate, step);
      }
      store<W>(to, v);
    }
}
// In pieces of the inner side, whose X stays in the nearest cache while all rows pass.
static void outer_product(const Outer& p, const float* g, const float* x, float* y) {
  const int piece = std::max(256, NEAREST / p.count / 64 * 64);
  for (int from = 0; from < p.inner; from += piece) {
    const int size = std::min(piece, p.inner - from);
    int r = 0;
    auto tiles = [&]<int R>() {
      for (; r + R <= p.rows; r += R) {
        const float* g_rows = g + r * p.g_row;
        const float* x_piece = x + from;
        float* y_rows = y + (long)r * p.inner + from;
        // Copies: what is captured by reference would be read again after every store.
        blocks<NATIVE, (NATIVE == 16 ? 4 : 2)>(size, [=]<int W, int N>(int at, int skip) __attribute__((always_inline)) {
          outer_tile<W, R, N>(p, g_rows, x_piece + at, skip, y_rows + at);
        });
      }
    };
    tiles.template operator()<4>();
    tiles.template operator()<2>();
    tiles.template operator()<1>();
  }
}

// [rows][columns] becomes [columns][rows], in squares. The last ones overlap those before them.
template <int SIDE>
INLINE void transpose_square(const float* from, long from_row, float* to, long to_row) {
  if constexpr (SIDE == 1) {
    *to = *from;
  } else if constexpr (SIDE == 8) {
    Register<8>::type row[8], half[8];
    for (int i = 0; i < 8; i++) row[i] = load_eight(from + i * from_row);
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
      half[i] = __builtin_shufflevector(row[i], row[i + 1], 0, 8, 2, 10, 4, 12, 6, 14);
      half[i + 1] = __builtin_shufflevector(row[i], row[i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 4)
      for (int j = 0; j < 2; j++) {
        row[i + j] = __builtin_shufflevector(half[i + j], half[i + j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
        row[i + j + 2] = __builtin_shufflevector(half[i + j], half[i + j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
      }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
      store_eight(to + j * to_row, __builtin_shufflevector(row[j], row[j + 4], 0, 1, 2, 3, 8, 9, 10, 11));
      store_eight(to + (j + 4) * to_row, __builtin_shufflevector(row[j], row[j + 4], 4, 5, 6, 7, 12, 13, 14, 15));
    }
  }
}
template <int SIDE>
INLINE void transpose_by(long rows, long columns, const float* from, long from_row, float* to, long to_row) {
  for (long c = 0; c < columns; c += SIDE)
    for (long r = 0; r < rows; r += SIDE) {
      const long i = std::min(r, rows - SIDE), j = std::min(c, columns - SIDE);
      transpose_square<SIDE>(from + i * from_row + j, from_row, to + j * to_row + i, to_row);
    }
}
static void transpose(long rows, long columns, const float* from, long from_row, float* to, long to_row) {
  if (rows >= 8 && columns >= 8) transpose_by<8>(rows, columns, from, from_row, to, to_row);
  else transpose_by<1>(rows, columns, from, from_row, to, to_row);
}

}  // namespace gossamer
