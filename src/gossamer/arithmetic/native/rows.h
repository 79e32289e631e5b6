// Full linear layers of small batches: the inputs in the lanes.
//
// With few examples, lanes that hold a batch are mostly empty. Here examples are rows
// [example][input] like those of the weights, and products are summed in sixteen lanes along both.
#pragma once
#include "dense.h"

namespace gossamer {

// Examples as rows of floats.
struct Rows {
  const float* at;
  long stride;
};

// The distance of rows in our own memory. One of 4096 bytes, or a multiple of it, would put all
// examples into the same few lines of the cache.
INLINE long row_stride(long inputs) { return (inputs + LANES - 1) / LANES * LANES + LANES; }

// A rule of shape and batch alone, as its bits differ from those of `dense_product`.
constexpr int ROWS_BELOW = 16;
INLINE bool by_rows(long inputs, int batch) { return batch < ROWS_BELOW && inputs >= 64; }

// ---- forward ----------------------------------------------------------------------------------

#if defined(__AVX512F__)
constexpr int ROW_OUTPUTS = 4, ROW_EXAMPLES = 5;
#else
constexpr int ROW_OUTPUTS = 3, ROW_EXAMPLES = 2;
#endif

INLINE Lanes<LANES> load_rest(const float* from, int count) {
  float lane[LANES] = {};
  memcpy(lane, from, count * sizeof(float));
  return load<LANES>(lane);
}

// The products of O outputs with E examples, summed into `to` [output][example].
template <int O, int E>
INLINE void row_tile(long inputs, const float* w, const float* x, long x_row, float* to) {
  Lanes<LANES> sum[O][E];
  for (int o = 0; o < O; o++)
    for (int e = 0; e < E; e++) sum[o][e] = all<LANES>(0);
  auto take = [&](auto read) __attribute__((always_inline)) {
    Lanes<LANES> weight[O];
#pragma GCC unroll 8
    for (int o = 0; o < O; o++) weight[o] = read(w + o * inputs);
#pragma GCC unroll 8
    for (int e = 0; e < E; e++) {
      const Lanes<LANES> v = read(x + e * x_row);
#pragma GCC unroll 8
      for (int o = 0; o < O; o++) add_product(sum[o][e], weight[o], v);
    }
  };
  long i = 0;
  for (; i + LANES <= inputs; i += LANES)
    take([&](const float* row) __attribute__((always_inline)) { return load<LANES>(row + i); });
  if (i < inputs)
    take([&](const float* row) { return load_rest(row + i, (int)(inputs - i)); });
  auto at = [&](int k) __attribute__((always_inline)) {
    Register<8>::type folded = {};
    if (k < O * E) fold_to<LANES>(sum[k / E][k % E], folded);
    return folded;
  };
#pragma GCC unroll 4
  for (int k = 0; k < O * E; k += 8)
    store_eight(to + k, sums_of_eight([&](int j) __attribute__((always_inline)) { return at(k + j); }));
}

// Calls finish(output, example, sum) for all products of rows of `w`, one behind the other, with rows of `x`.
template <class Finish>
INLINE void row_products(int outputs, long inputs, int batch, const float* w, Rows x, Finish finish) {
  auto tile = [&]<int O, int E>(int o, int b) {
    float sums[(O * E + 7) / 8 * 8];
    row_tile<O, E>(inputs, w + o * inputs, x.at + b * x.stride, x.stride, sums);
    for (int i = 0; i < O; i++)
      for (int e = 0; e < E; e++) finish(o + i, b + e, sums[i * E + e]);
  };
  auto outputs_from = [&]<int O>(int o) {
    int b = 0;
    for (; b + ROW_EXAMPLES <= batch; b += ROW_EXAMPLES) tile.template operator()<O, ROW_EXAMPLES>(o, b);
    for (; b + 2 <= batch; b += 2) tile.template operator()<O, 2>(o, b);
    if (b < batch) tile.template operator()<O, 1>(o, b);
  };
  int o = 0;
  for (; o + ROW_OUTPUTS <= outputs; o += ROW_OUTPUTS) outputs_from.template operator()<ROW_OUTPUTS>(o);
  for (; o < outputs; o++) outputs_from.template operator()<1>(o);
}

// y [output][example] = bias + W x.
static void row_product(int outputs, long inputs, int batch, const float* w, const float* bias, Rows x, bool relu,
                        float* y) {
  row_products(outputs, inputs, batch, w, x, [&](int o, int b, float sum) __attribute__((always_inline)) {
    const float v = sum + (bias ? bias[o] : 0.f);
    y[(long)o * batch + b] = relu && !(v > 0) ? 0.f : v;
  });
}

// ---- the gradient of the input ----------------------------------------------------------------

// Adds K outputs to all examples: the weights are read once, in the order of their memory.
template <int K>
INLINE void add_outputs(long inputs, int batch, const float* w, const float* grad, bool first, float* to) {
  auto piece = [&](long i, auto read, auto write) __attribute__((always_inline)) {
    Lanes<LANES> weight[K];
#pragma GCC unroll 8
    for (int k = 0; k < K; k++) weight[k] = read(w + k * inputs + i);
    for (int b = 0; b < batch; b++) {
      float* at = to + b * inputs + i;
      Lanes<LANES> sum = first ? all<LANES>(0) : read(at);
#pragma GCC unroll 8
      for (int k = 0; k < K; k++) add_product(sum, all<LANES>(grad[(long)k * batch + b]), weight[k]);
      write(at, sum);
    }
  };
  long i = 0;
  for (; i + LANES <= inputs; i += LANES) piece(i, load<LANES>, store<LANES>);
  const int rest = (int)(inputs - i);
  if (rest)
    piece(i, [&](const float* from) { return load_rest(from, rest); }, [&](float* at, const Lanes<LANES>& v) {
      float lane[LANES];
      store<LANES>(lane, v);
      memcpy(at, lane, rest * sizeof(float));
    });
}
// to [example][input] = the sum over outputs of grad [output][example] times W [output][input].
static void row_product_back(int outputs, long inputs, int batch, const float* w, const float* grad, float* to) {
  constexpr int K = NATIVE == 16 ? 8 : 4;
  int o = 0;
  for (; o + K <= outputs; o += K) add_outputs<K>(inputs, batch, w + o * inputs, grad + (long)o * batch, !o, to);
  for (; o < outputs; o++) add_outputs<1>(inputs, batch, w + o * inputs, grad + (long)o * batch, !o, to);
}

// ---- rows of a batch --------------------------------------------------------------------------

// An example as the caller holds it becomes one row: [channel][row][pixel].
struct Strides {
  long example, channel, row, pixel;
};
template <int CHANNELS>
INLINE void split_channels(long pixels, const float* __restrict__ from, float* __restrict__ to) {
  for (long p = 0; p < pixels; p++)
    for (int c = 0; c < CHANNELS; c++) to[c * pixels + p] = from[p * CHANNELS + c];
}
static void copy_example(int channels, int height, int width, const float* from, const Strides& s, float* to) {
  // Most images are of one or three channels, channels last.
  if (channels == 3 && s.channel == 1 && s.pixel == 3 && s.row == 3L * width)
    return split_channels<3>((long)height * width, from, to);
  for (int c = 0; c < channels; c++)
    for (int y = 0; y < height; y++)
      for (int x = 0; x < width; x++) *to++ = from[c * s.channel + y * s.row + x * s.pixel];
}

}  // namespace gossamer
