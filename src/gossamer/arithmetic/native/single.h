// One example at a time: lanes are pixels, where the other kernels have examples.
//
// An image is one long run of floats, with zeros between its rows and between its channels. A
// kernel's tap is then a shift of the whole run, and an output channel is a sum of shifted runs:
// no lane is lost at the end of a row, however narrow the image is.
#pragma once
#include <cmath>

#include "plan.h"

namespace gossamer {

// [channel][row][pixel]. The gap behind a row is also the one before the next row.
struct Frame {
  int channels, height, width;
  int gap_y = 0, gap_x = 0;  // zero rows between channels, zero pixels between rows
  long offset = 0;           // of the first pixel in the arena

  long pitch() const { return width + gap_x; }
  long plane() const { return (height + gap_y) * pitch(); }
  long lead() const { return gap_y * pitch() + gap_x; }
  long floats() const { return lead() + channels * plane() + gap_x; }
};

// A frame at its place in memory.
struct Pixels {
  Frame frame;
  float* at;
  float* of(int c, int y) const { return at + c * frame.plane() + y * frame.pitch(); }
};

// The non-zeros of a layer, output by output; `shared` where no weight is zero: then all outputs
// have the same offsets, stored once.
struct Weights {
  bool shared = false;
  std::vector<int32_t> starts, offsets;
  std::vector<float> values, bias;
};

// A tensor as a file holds it: all numbers, or those that `bits` marks, in memory order.
struct Stored {  // filled in from Python, as the structs of a plan
  const float* values;
  const uint8_t* bits;  // null: all numbers are there
  int64_t sparse;       // whether a layer is computed at the non-zeros
};

// What a step needs beside its values.
struct SingleStep {
  Step step;
  Weights weights;
  Frame source;  // what a convolution reads: its input, or the phases of it
  std::vector<float> scale, shift;  // of a norm, for each channel
};

struct Single {
  std::vector<SingleStep> steps;
  std::vector<Frame> values;
  int64_t input, output;
  long floats = 0;
};

// ---- convolution ------------------------------------------------------------------------------

constexpr int MOST_VECTORS = REGISTERS > 20 ? 20 : REGISTERS;  // of pixels in a tile
constexpr int SHARING = 4;  // outputs that share a load

// Sums of few vectors wait for each other, so they are split into chains.
template <int T>
constexpr int chains() { return T == 1 ? 4 : T <= 3 ? 2 : 1; }

template <int T>
INLINE void sparse_run(const int32_t* offsets, const float* values, int k, int end, const float* in, float bias, bool relu,
                       float* out) {
  constexpr int C = chains<T>();
  Lanes<NATIVE> sum[C][T];
  for (int c = 0; c < C; c++)
    for (int t = 0; t < T; t++) sum[c][t] = all<NATIVE>(c ? 0.f : bias);
  auto take = [&](int c, int k) __attribute__((always_inline)) {
    const float* from = in + offsets[k];
    const Lanes<NATIVE> weight = all<NATIVE>(values[k]);
#pragma GCC unroll 24
    for (int t = 0; t < T; t++) add_product(sum[c][t], weight, load<NATIVE>(from + t * NATIVE));
  };
  for (; k + C <= end; k += C)
#pragma GCC unroll 4
    for (int c = 0; c < C; c++) take(c, k + c);
  if constexpr (C > 1)
    for (; k < end; k++) take(0, k);
  for (int t = 0; t < T; t++) {
    Lanes<NATIVE> v = sum[0][t];
    for (int c = 1; c < C; c++) v = v + sum[c][t];
    store<NATIVE>(out + t * NATIVE, relu ? positive_part(v) : v);
  }
}

// Four full outputs at once: `stride` is the number of taps, and of floats between results.
template <int T>
INLINE void shared_run(const Weights& w, int o, const float* in, bool relu, float* out, long stride) {
  const long taps = (long)w.offsets.size();
  const float* values = w.values.data() + o * taps;
  Lanes<NATIVE> sum[SHARING][T];
  for (int s = 0; s < SHARING; s++)
    for (int t = 0; t < T; t++) sum[s][t] = all<NATIVE>(w.bias[o + s]);
  for (long k = 0; k < taps; k++) {
    const float* from = in + w.offsets[k];
    Lanes<NATIVE> x[T];
#pragma GCC unroll 8
    for (int t = 0; t < T; t++) x[t] = load<NATIVE>(from + t * NATIVE);
#pragma GCC unroll 4
    for (int s = 0; s < SHARING; s++) {
      const Lanes<NATIVE> weight = all<NATIVE>(values[s * taps + k]);
#pragma GCC unroll 8
      for (int t = 0; t < T; t++) add_product(sum[s][t], weight, x[t]);
    }
  }
  for (int s = 0; s < SHARING; s++)
    for (int t = 0; t < T; t++)
      store<NATIVE>(out + s * stride + t * NATIVE, relu ? positive_part(sum[s][t]) : sum[s][t]);
}

template <int MOST, class Work>
INLINE void with_vectors(int count, Work work) {
  auto call = [&]<int... T>(std::integer_sequence<int, T...>) __attribute__((always_inline)) {
    ((count == T + 1 ? work.template operator()<T + 1>() : void()), ...);
  };
  call(std::make_integer_sequence<int, MOST>());
}

// Whole rows of an image, or a part of one, that fit into the registers.
struct Block {
  int y, x, rows, columns;
  long pitch;
  int vectors() const { return (int)(((rows - 1) * pitch + columns + NATIVE - 1) / NATIVE); }
};

// Calls work(block) for blocks of about equal size, of at most `most` vectors, that cover an image.
template <class Work>
INLINE void row_blocks(int height, int width, long pitch, int most, Work work) {
  const int room = most * NATIVE;
  const int fit = width > room ? 1 : std::min<int>(height, 1 + (int)((room - width) / pitch));
  const int parts = (height + fit - 1) / fit, rows = (height + parts - 1) / parts;
  const int columns = std::min(width, room);
  for (int y = 0; y < height; y += rows)
    for (int x = 0; x < width; x += columns)
      work(Block{y, x, std::min(rows, height - y), std::min(columns, width - x), pitch});
}

// Results of a block, row by row without what was computed between rows.
INLINE void put_rows(const Block& b, const float* from, const Pixels& out, int o) {
  for (int r = 0; r < b.rows; r++)
    memcpy(out.of(o, b.y + r) + b.x, from + r * b.pitch, (size_t)b.columns * sizeof(float));
}

static void convolve_single(const SingleStep& s, const float* in, const Pixels& out) {
  const Weights& w = s.weights;
  const long pitch = s.source.pitch();
  const int outputs = out.frame.channels;
  const bool relu = s.step.relu;
  alignas(64) float results[SHARING * MOST_VECTORS * NATIVE];
  const int together = w.shared ? outputs / SHARING * SHARING : 0;
  constexpr int FEW = MOST_VECTORS / SHARING;
  if (together)
    row_blocks(out.frame.height, out.frame.width, pitch, FEW, [&](const Block& b) {
      const float* from = in + b.y * pitch + b.x;
      with_vectors<FEW>(b.vectors(), [&]<int T>() {
        for (int o = 0; o < together; o += SHARING) {
          shared_run<T>(w, o, from, relu, results, FEW * NATIVE);
          for (int each = 0; each < SHARING; each++) put_rows(b, results + each * FEW * NATIVE, out, o + each);
        }
      });
    });
  if (together == outputs) return;
  const long taps = (long)w.offsets.size();
  row_blocks(out.frame.height, out.frame.width, pitch, MOST_VECTORS, [&](const Block& b) {
    const float* from = in + b.y * pitch + b.x;
    with_vectors<MOST_VECTORS>(b.vectors(), [&]<int T>() {
      for (int o = together; o < outputs; o++) {
        const float* values = w.values.data() + (w.shared ? o * taps : 0);
        const int first = w.shared ? 0 : w.starts[o], end = w.shared ? (int)taps : w.starts[o + 1];
        sparse_run<T>(w.offsets.data(), values, first, end, from, w.bias[o], relu, results);
        put_rows(b, results, out, o);
      }
    });
  });
}

// A strided convolution is one of stride one on the phases of its input: pixels whose row and
// column leave the same remainders. They are copied beside each other, with their zeros.
static void split_phases(const Step& s, const Pixels& in, const Pixels& to) {
  const int rows = (int)std::min(s.stride_y, s.kernel_height), columns = (int)std::min(s.stride_x, s.kernel_width);
  for (int c = 0; c < in.frame.channels; c++)
    for (int y = 0; y < in.frame.height; y++) {
      const int py = (int)((y + s.pad_y) % s.stride_y), row = (int)((y + s.pad_y) / s.stride_y);
      if (py >= rows || row >= to.frame.height) continue;
      const float* from = in.of(c, y);
      for (int px = 0; px < columns; px++) {
        const int first = (int)((px - s.pad_x % s.stride_x + s.stride_x) % s.stride_x);
        float* line = to.of((c * rows + py) * columns + px, row) + (first + s.pad_x) / s.stride_x;
        const int room = to.frame.width - (int)((first + s.pad_x) / s.stride_x);
        for (int i = 0, x = first; x < in.frame.width && i < room; i++, x += (int)s.stride_x) line[i] = from[x];
      }
    }
}

// ---- linear layers ----------------------------------------------------------------------------

static void multiply_single(const Weights& w, int outputs, int inputs, const float* in, bool relu, float* out) {
  for (int o = 0; o < outputs; o++) {
    float total;
    if (w.shared) {
      const float* row = w.values.data() + (long)o * inputs;
      Lanes<NATIVE> sums[4] = {all<NATIVE>(0), all<NATIVE>(0), all<NATIVE>(0), all<NATIVE>(0)};
      int k = 0;
      for (; k + 4 * NATIVE <= inputs; k += 4 * NATIVE)
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++) add_product(sums[c], load<NATIVE>(row + k + c * NATIVE), load<NATIVE>(in + k + c * NATIVE));
      for (; k + NATIVE <= inputs; k += NATIVE) add_product(sums[0], load<NATIVE>(row + k), load<NATIVE>(in + k));
      total = w.bias[o] + sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
      for (; k < inputs; k++) total = fused(row[k], in[k], total);
    } else {
      float sums[8] = {w.bias[o]};
      int k = w.starts[o];
      const int end = w.starts[o + 1];
      for (; k + 8 <= end; k += 8)
#pragma GCC unroll 8
        for (int c = 0; c < 8; c++) sums[c] = fused(w.values[k + c], in[w.offsets[k + c]], sums[c]);
      for (; k < end; k++) sums[0] = fused(w.values[k], in[w.offsets[k]], sums[0]);
      total = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
    }
    out[o] = relu && !(total > 0) ? 0.f : total;
  }
}

// ---- what stands between layers ---------------------------------------------------------------

INLINE float kept(float v, bool relu) { return relu && !(v > 0) ? 0.f : v; }

// Calls work(from, to) for each row of two images of one shape.
template <class Work>
INLINE void each_row(const Pixels& in, const Pixels& out, Work work) {
  for (int c = 0; c < out.frame.channels; c++)
    for (int y = 0; y < out.frame.height; y++) work(c, in.of(c, y), out.of(c, y));
}

static void affine_single(const SingleStep& s, const Pixels& in, const Pixels& out) {
  const int width = out.frame.width;
  each_row(in, out, [&](int c, const float* x, float* to) {
    const float scale = s.scale[c], shift = s.shift[c];
    for (int i = 0; i < width; i++) to[i] = kept(fused(x[i], scale, shift), s.step.relu);
  });
}

static void group_norm_single(const SingleStep& s, const Pixels& in, const Pixels& out) {
  const int channels = in.frame.channels / (int)s.step.groups, height = in.frame.height, width = in.frame.width;
  const double numbers = (double)channels * height * width;
  for (int first = 0; first < in.frame.channels; first += channels) {
    auto total = [&](auto term) {
      double sums = 0;
      for (int c = first; c < first + channels; c++)
        for (int y = 0; y < height; y++)
          for (int x = 0; x < width; x++) sums += term(in.of(c, y)[x]);
      return sums;
    };
    const double mean = total([](double v) { return v; }) / numbers;
    const double variance = total([&](double v) { return (v - mean) * (v - mean); }) / numbers;
    const double inverse = 1 / std::sqrt(variance + s.step.epsilon);
    for (int c = first; c < first + channels; c++) {
      const float scale = (float)(s.scale[c] * inverse), shift = (float)(s.shift[c] - s.scale[c] * inverse * mean);
      for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x++) out.of(c, y)[x] = kept(fused(in.of(c, y)[x], scale, shift), s.step.relu);
    }
  }
}

// The usual pooling, whose windows do not overlap.
INLINE void pool_pairs(const float* a, const float* b, float* to, int width, bool relu) {
  for (int x = 0; x < width; x++) {
    const float p = a[2 * x] > a[2 * x + 1] ? a[2 * x] : a[2 * x + 1];
    const float q = b[2 * x] > b[2 * x + 1] ? b[2 * x] : b[2 * x + 1];
    to[x] = kept(p > q ? p : q, relu);
  }
}

static void pool_single(const Step& s, const Pixels& in, const Pixels& out) {
  const bool largest = s.kind == MAX_POOL;
  const bool pairs = largest && s.kernel_height == 2 && s.kernel_width == 2 && s.stride_y == 2 && s.stride_x == 2 &&
                     !s.pad_y && !s.pad_x;
  const float share = 1.f / (float)(s.kernel_height * s.kernel_width);
  for (int c = 0; c < out.frame.channels; c++)
    for (int y = 0; y < out.frame.height; y++) {
      float* to = out.of(c, y);
      if (pairs) {
        pool_pairs(in.of(c, 2 * y), in.of(c, 2 * y + 1), to, out.frame.width, s.relu);
        continue;
      }
      const int top = (int)(y * s.stride_y - s.pad_y);
      const int first_row = std::max(0, top), last_row = std::min(in.frame.height, top + (int)s.kernel_height);
      for (int x = 0; x < out.frame.width; x++) {
        const int left = (int)(x * s.stride_x - s.pad_x);
        const int first = std::max(0, left), last = std::min(in.frame.width, left + (int)s.kernel_width);
        float v = largest ? in.of(c, first_row)[first] : 0.f;
        for (int i = first_row; i < last_row; i++)
          for (int j = first; j < last; j++) {
            const float each = in.of(c, i)[j];
            v = !largest ? v + each : each > v ? each : v;
          }
        to[x] = kept(largest ? v : v * share, s.relu);
      }
    }
}

static void subsample_single(const Step& s, const Pixels& in, const Pixels& out) {
  for (int c = 0; c < out.frame.channels; c++)
    for (int y = 0; y < out.frame.height; y++)
      for (int x = 0; x < out.frame.width; x++)
        out.of(c, y)[x] = c < in.frame.channels ? in.of(c, (int)(y * s.stride_y))[x * s.stride_x] : 0.f;
}

static void softmax_single(const Pixels& in, const Pixels& out) {
  const int count = in.frame.channels;
  float most = in.at[0];
  for (int i = 1; i < count; i++) most = std::max(most, in.at[i]);
  double total = 0;
  for (int i = 0; i < count; i++) total += out.at[i] = std::exp(in.at[i] - most);
  for (int i = 0; i < count; i++) out.at[i] = (float)(out.at[i] / total);
}

}  // namespace gossamer
