// What stands between convolutions and linear layers: norms, activations, pooling, the loss.
#pragma once
#include <cmath>

#include "vector.h"

namespace gossamer {

// An image in memory: [channel][row][pixel][example], with `halo` zero pixels beside each row.
// `at` is its first pixel.
struct Image {
  float* at;
  int channels, height, width, halo, batch;

  long row() const { return (long)(width + 2 * halo) * batch; }
  long channel() const { return height * row(); }
  long row_floats() const { return (long)width * batch; }
  long pixels() const { return (long)height * width; }
  float* of(int c, int y) const { return at + c * channel() + y * row(); }
};

static void clear_halo(const Image& image) {
  if (!image.halo) return;
  const size_t side = (size_t)image.halo * image.batch;
  for (long r = 0; r < (long)image.channels * image.height; r++) {
    float* row = image.at + r * image.row();
    memset(row - side, 0, side * sizeof(float));
    memset(row + image.row_floats(), 0, side * sizeof(float));
  }
}

// Runs of floats without gaps: whole channels where there is no halo, otherwise rows.
template <class Work>
INLINE void runs(const Image& a, const Image& b, Work work) {
  const bool whole = !a.halo && !b.halo;
  const long count = whole ? a.height * a.row_floats() : a.row_floats();
  for (int c = 0; c < a.channels; c++)
    for (int y = 0; y < (whole ? 1 : a.height); y++) work(c, a.of(c, y), b.of(c, y), count);
}

// Calls work(first, count) for pieces of at most sixteen floats.
template <class Work>
INLINE void pieces(long count, Work work) {
  long i = 0;
  for (; i + LANES <= count; i += LANES) work(i, LANES);
  if (i < count) work(i, (int)(count - i));
}
INLINE Lanes<LANES> load_piece(const float* from, int count) {
  if (count == LANES) return load<LANES>(from);
  float lane[LANES] = {};
  for (int i = 0; i < count; i++) lane[i] = from[i];
  return load<LANES>(lane);
}
INLINE void store_piece(float* to, const Lanes<LANES>& v, int count) {
  if (count == LANES) return store<LANES>(to, v);
  float lane[LANES];
  store<LANES>(lane, v);
  for (int i = 0; i < count; i++) to[i] = lane[i];
}
INLINE Lanes<LANES> first_lanes(const Lanes<LANES>& v, int count) {
  if (count == LANES) return v;
  float lane[LANES];
  store<LANES>(lane, v);
  for (int i = count; i < LANES; i++) lane[i] = 0;
  return load<LANES>(lane);
}

// ---- elementwise ------------------------------------------------------------------------------

static void relu(const Image& in, const Image& out) {
  runs(in, out, [](int, const float* x, float* y, long count) {
    pieces(count, [&](long i, int n) { store_piece(y + i, positive_part(load_piece(x + i, n)), n); });
  });
}

// Zeroes the gradient where an activation is zero; reads and writes in place.
static void mask_by_sign(const Image& out, const Image& grad) {
  runs(out, grad, [](int, const float* y, float* g, long count) {
    pieces(count, [&](long i, int n) {
      store_piece(g + i, where_positive(load_piece(y + i, n), load_piece(g + i, n)), n);
    });
  });
}

static void add_images(const Image& a, const Image& b, const Image& out, bool with_relu) {
  for (int c = 0; c < out.channels; c++)
    for (int y = 0; y < out.height; y++) {
      const float *p = a.of(c, y), *q = b.of(c, y);
      float* to = out.of(c, y);
      pieces(out.row_floats(), [&](long i, int n) {
        const Lanes<LANES> v = load_piece(p + i, n) + load_piece(q + i, n);
        store_piece(to + i, with_relu ? positive_part(v) : v, n);
      });
    }
}

// Copies an image, or adds it to another; also turns an image into a vector and back, whose
// order of numbers is the same.
static void copy_rows(const Image& from, const Image& to, bool add) {
  const Image& rows = from.channels < to.channels ? from : to;  // the one that is not flattened
  const long count = rows.row_floats();
  long at = 0;
  for (int c = 0; c < rows.channels; c++)
    for (int y = 0; y < rows.height; y++, at += count) {
      const float* x = from.channels == rows.channels ? from.of(c, y) : from.at + at;
      float* t = to.channels == rows.channels ? to.of(c, y) : to.at + at;
      if (!add) memcpy(t, x, count * sizeof(float));
      else
        for (long i = 0; i < count; i++) t[i] += x[i];
    }
}

// Every stride-th pixel; channels that the input does not have are zero.
static void subsample(const Image& in, const Image& out, int stride) {
  for (int c = 0; c < out.channels; c++)
    for (int y = 0; y < out.height; y++)
      for (int x = 0; x < out.width; x++) {
        float* to = out.of(c, y) + (long)x * out.batch;
        const size_t size = out.batch * sizeof(float);
        if (c < in.channels) memcpy(to, in.of(c, y * stride) + (long)x * stride * in.batch, size);
        else memset(to, 0, size);
      }
}
static void subsample_backward(const Image& grad, const Image& to, int stride) {
  for (int c = 0; c < to.channels; c++)
    for (int y = 0; y < grad.height; y++)
      for (int x = 0; x < grad.width; x++) {
        const float* g = grad.of(c, y) + (long)x * grad.batch;
        float* t = to.of(c, y * stride) + (long)x * stride * to.batch;
        for (int b = 0; b < to.batch; b++) t[b] += g[b];
      }
}

static void clear(const Image& image) {
  for (int c = 0; c < image.channels; c++)
    for (int y = 0; y < image.height; y++)
      memset(image.of(c, y), 0, image.row_floats() * sizeof(float));
}

// ---- sums over a channel ----------------------------------------------------------------------

// In lanes along each row, then in double over the rows: a fixed order, and precise.
template <class Term>
INLINE double channel_sum(const Image& image, Term term) {
  double total = 0;
  for (int y = 0; y < image.height; y++) {
    Lanes<LANES> even = all<LANES>(0), odd = even;
    const long count = image.row_floats();
    long i = 0;
    for (; i + 2 * LANES <= count; i += 2 * LANES) {
      even = even + term(y, i, LANES);
      odd = odd + term(y, i + LANES, LANES);
    }
    pieces(count - i, [&](long at, int n) { even = even + term(y, i + at, n); });
    total += sum(even + odd);
  }
  return total;
}

static void bias_gradient(const Image& grad, float* to) {
  for (int c = 0; c < grad.channels; c++)
    to[c] = (float)channel_sum(grad, [&](int y, long i, int n) { return load_piece(grad.of(c, y) + i, n); });
}

// ---- batch normalisation ----------------------------------------------------------------------

struct Norm {
  const float *weight, *bias;  // null: one and zero
  double epsilon;
  float *mean, *scale, *shift, *inverse;  // of each channel, kept for the backward pass
};

INLINE void affine_channel(const Image& in, const Image& out, int c, float scale, float shift, bool with_relu) {
  const Lanes<LANES> factor = all<LANES>(scale), term = all<LANES>(shift);
  for (int y = 0; y < in.height; y++) {
    const float* x = in.of(c, y);
    float* to = out.of(c, y);
    pieces(in.row_floats(), [&](long i, int n) {
      Lanes<LANES> v = term;
      add_product(v, load_piece(x + i, n), factor);
      store_piece(to + i, with_relu ? positive_part(v) : v, n);
    });
  }
}

// Normalises by the batch; `variance` receives the unbiased one.
static void batch_norm(const Image& in, const Image& out, const Norm& norm, bool with_relu, float* variance) {
  const double count = (double)in.pixels() * in.batch;
  for (int c = 0; c < in.channels; c++) {
    const double mean =
        channel_sum(in, [&](int y, long i, int n) { return load_piece(in.of(c, y) + i, n); }) / count;
    const Lanes<LANES> centre = all<LANES>((float)mean);
    const double square = channel_sum(in, [&](int y, long i, int n) {
      const Lanes<LANES> d = first_lanes(load_piece(in.of(c, y) + i, n) - centre, n);
      return d * d;
    }) / count;
    const float inverse = (float)(1 / std::sqrt(square + norm.epsilon));
    const float scale = (norm.weight ? norm.weight[c] : 1.f) * inverse;
    const float shift = (norm.bias ? norm.bias[c] : 0.f) - (float)mean * scale;
    norm.mean[c] = (float)mean, norm.inverse[c] = inverse;
    norm.scale[c] = scale, norm.shift[c] = shift;
    variance[c] = (float)(square * count / (count > 1 ? count - 1 : 1));
    affine_channel(in, out, c, scale, shift, with_relu);
  }
}

// Normalises by running statistics.
static void affine_norm(const Image& in, const Image& out, const Norm& norm, const float* mean,
                        const float* variance, bool with_relu) {
  for (int c = 0; c < in.channels; c++) {
    const float inverse = (float)(1 / std::sqrt((double)variance[c] + norm.epsilon));
    const float scale = (norm.weight ? norm.weight[c] : 1.f) * inverse;
    affine_channel(in, out, c, scale, (norm.bias ? norm.bias[c] : 0.f) - mean[c] * scale, with_relu);
  }
}

// The gradient of `in` from that of the output; ReLU's part of it has been applied.
static void batch_norm_backward(const Image& in, const Image& grad, const Image& to, const Norm& norm,
                                bool add, float* weight_gradient, float* bias_gradient) {
  const double count = (double)in.pixels() * in.batch;
  for (int c = 0; c < in.channels; c++) {
    const Lanes<LANES> centre = all<LANES>(norm.mean[c]);
    const double sum = channel_sum(grad, [&](int y, long i, int n) { return load_piece(grad.of(c, y) + i, n); });
    const double product = norm.inverse[c] * channel_sum(grad, [&](int y, long i, int n) {
      return load_piece(grad.of(c, y) + i, n) * (load_piece(in.of(c, y) + i, n) - centre);
    });
    if (weight_gradient) weight_gradient[c] = (float)product;
    if (bias_gradient) bias_gradient[c] = (float)sum;
    if (!to.at) continue;  // the norm of a model's input
    const Lanes<LANES> first = all<LANES>((float)(sum / count));
    const Lanes<LANES> second = all<LANES>((float)(product / count) * norm.inverse[c]);
    const Lanes<LANES> scale = all<LANES>(norm.scale[c]);
    for (int y = 0; y < in.height; y++) {
      const float *x = in.of(c, y), *g = grad.of(c, y);
      float* t = to.of(c, y);
      pieces(in.row_floats(), [&](long i, int n) {
        Lanes<LANES> v = load_piece(g + i, n) - first - (load_piece(x + i, n) - centre) * second;
        v = v * scale;
        store_piece(t + i, add ? v + load_piece(t + i, n) : v, n);
      });
    }
  }
}

// ---- group normalisation: statistics of each example, so lanes never meet ----------------------

struct Groups {
  int count;
  const float *weight, *bias;
  double epsilon;
  float *mean, *inverse;  // [group][example]
};

template <class Work>
INLINE void group_pixels(const Image& image, int first, int channels, Work work) {
  for (int c = first; c < first + channels; c++)
    for (int y = 0; y < image.height; y++)
      for (int x = 0; x < image.width; x++) work(c, y, (long)x * image.batch);
}

static void group_norm(const Image& in, const Image& out, const Groups& norm, bool with_relu) {
  const int channels = in.channels / norm.count;
  const float numbers = (float)channels * in.pixels();
  for (int g = 0; g < norm.count; g++)
    pieces(in.batch, [&](long b, int n) {
      Lanes<LANES> total = all<LANES>(0), square = total;
      group_pixels(in, g * channels, channels, [&](int c, int y, long x) {
        total = total + load_piece(in.of(c, y) + x + b, n);
      });
      const Lanes<LANES> mean = total * all<LANES>(1 / numbers);
      group_pixels(in, g * channels, channels, [&](int c, int y, long x) {
        const Lanes<LANES> d = load_piece(in.of(c, y) + x + b, n) - mean;
        add_product(square, d, d);
      });
      float lane[LANES];
      store<LANES>(lane, square);
      for (int i = 0; i < LANES; i++) lane[i] = (float)(1 / std::sqrt(lane[i] / (double)numbers + norm.epsilon));
      const Lanes<LANES> inverse = load<LANES>(lane);
      store_piece(norm.mean + (long)g * in.batch + b, mean, n);
      store_piece(norm.inverse + (long)g * in.batch + b, inverse, n);
      group_pixels(in, g * channels, channels, [&](int c, int y, long x) {
        Lanes<LANES> v = all<LANES>(norm.bias ? norm.bias[c] : 0.f);
        const Lanes<LANES> d = load_piece(in.of(c, y) + x + b, n) - mean;
        add_product(v, d * inverse, all<LANES>(norm.weight ? norm.weight[c] : 1.f));
        store_piece(out.of(c, y) + x + b, with_relu ? positive_part(v) : v, n);
      });
    });
}

static void group_norm_backward(const Image& in, const Image& grad, const Image& to, const Groups& norm,
                                bool add, float* weight_gradient, float* bias_gradient) {
  const int channels = in.channels / norm.count;
  const float numbers = (float)channels * in.pixels();
  for (int c = 0; c < in.channels; c++) {
    if (weight_gradient) weight_gradient[c] = 0;
    if (bias_gradient) bias_gradient[c] = 0;
  }
  for (int g = 0; g < norm.count; g++)
    pieces(in.batch, [&](long b, int n) {
      const Lanes<LANES> mean = load_piece(norm.mean + (long)g * in.batch + b, n);
      const Lanes<LANES> inverse = load_piece(norm.inverse + (long)g * in.batch + b, n);
      Lanes<LANES> sums = all<LANES>(0), products = sums;  // over the group, weighted
      for (int c = g * channels; c < (g + 1) * channels; c++) {
        Lanes<LANES> sum_c = all<LANES>(0), product_c = sum_c;
        group_pixels(in, c, 1, [&](int, int y, long x) {
          const Lanes<LANES> v = load_piece(grad.of(c, y) + x + b, n);
          sum_c = sum_c + v;
          add_product(product_c, v, (load_piece(in.of(c, y) + x + b, n) - mean) * inverse);
        });
        if (weight_gradient) weight_gradient[c] += sum(product_c);
        if (bias_gradient) bias_gradient[c] += sum(sum_c);
        const Lanes<LANES> weight = all<LANES>(norm.weight ? norm.weight[c] : 1.f);
        add_product(sums, sum_c, weight);
        add_product(products, product_c, weight);
      }
      if (!to.at) return;  // the norm of a model's input
      const Lanes<LANES> first = sums * all<LANES>(1 / numbers), second = products * all<LANES>(1 / numbers);
      group_pixels(in, g * channels, channels, [&](int c, int y, long x) {
        const Lanes<LANES> unit = (load_piece(in.of(c, y) + x + b, n) - mean) * inverse;
        const Lanes<LANES> weight = all<LANES>(norm.weight ? norm.weight[c] : 1.f);
        Lanes<LANES> v = load_piece(grad.of(c, y) + x + b, n) * weight - first - unit * second;
        v = v * inverse;
        float* t = to.of(c, y) + x + b;
        store_piece(t, add ? v + load_piece(t, n) : v, n);
      });
    });
}

// ---- pooling ----------------------------------------------------------------------------------

struct Window {
  int height, width, stride_y, stride_x, pad_y, pad_x;

  // The part of a window that lies within the image.
  int first(int at, int stride, int pad) const { return std::max(0, pad - at * stride); }
  int last(int at, int stride, int pad, int size, int image) const {
    return std::min(size, image + pad - at * stride);
  }
};

// Vectors of the processor's own width and less, and the choices of their lanes.
template <int W>
struct Pooled {
  typedef typename Register<W>::type Vector;
  typedef typename Register<W>::memory Memory;
  typedef int32_t Choice __attribute__((vector_size(W * 4)));
  typedef uint8_t Bytes __attribute__((vector_size(W)));
  typedef uint8_t BytesMemory __attribute__((vector_size(W), aligned(1), may_alias));
};
template <>
struct Pooled<1> {
  typedef float Vector;
  typedef Register<1>::memory Memory;
  typedef int32_t Choice;
};

constexpr int CUT = 255;  // instead of a place in the window: ReLU made the output zero

// Where an output pixel's window lies in the image.
struct Covered {
  int top, bottom, left, right;

  Covered(const Window& w, int y, int x, int height, int width)
      : top(w.first(y, w.stride_y, w.pad_y)), bottom(w.last(y, w.stride_y, w.pad_y, w.height, height)),
        left(w.first(x, w.stride_x, w.pad_x)), right(w.last(x, w.stride_x, w.pad_x, w.width, width)) {}
};

template <int W>
INLINE void pool_lanes(const float* from, long row, long pixel, const Window& w, const Covered& in, bool with_relu,
                       float* to, uint8_t* place) {
  typedef Pooled<W> P;
  typename P::Vector best = *(const typename P::Memory*)(from + in.top * row + in.left * pixel);
  typename P::Choice where = typename P::Choice{} + (in.top * w.width + in.left);
  for (int i = in.top; i < in.bottom; i++)
    for (int j = in.left; j < in.right; j++) {
      const typename P::Vector v = *(const typename P::Memory*)(from + i * row + j * pixel);
      const auto larger = v > best;
      best = larger ? v : best;
      where = larger ? typename P::Choice{} + (i * w.width + j) : where;
    }
  if (with_relu) {
    const auto keep = best > 0.f;
    best = keep ? best : typename P::Vector{};
    where = keep ? where : typename P::Choice{} + CUT;
  }
  *(typename P::Memory*)to = best;
  if constexpr (W == 1) *place = (uint8_t)where;
  else *(typename P::BytesMemory*)place = __builtin_convertvector(where, typename P::Bytes);
}

// The largest of each window; `chosen` receives its place, for the backward pass.
static void max_pool(const Image& in, const Image& out, const Window& w, bool with_relu, uint8_t* chosen) {
  const int batch = in.batch;
  for (int c = 0; c < out.channels; c++)
    for (int y = 0; y < out.height; y++)
      for (int x = 0; x < out.width; x++) {
        const Covered covered(w, y, x, in.height, in.width);
        const float* from = in.of(c, 0) + (long)(y * w.stride_y - w.pad_y) * in.row() + (long)(x * w.stride_x - w.pad_x) * batch;
        float* to = out.of(c, y) + (long)x * batch;
        uint8_t* place = chosen + (((long)c * out.height + y) * out.width + x) * batch;
        blocks<NATIVE, 1>(batch, [&]<int W, int N>(int b, int) __attribute__((always_inline)) {
          pool_lanes<W>(from + b, in.row(), batch, w, covered, with_relu, to + b, place + b);
        });
      }
}

template <int W>
INLINE void pool_lanes_back(const float* grad, const uint8_t* place, const Window& w, const Covered& in, bool add, int skip,
                            long row, long pixel, float* to) {
  typedef Pooled<W> P;
  const Lanes<W> v = without_first(load<W>(grad), add ? skip : 0);
  typename P::Choice where;
  if constexpr (W == 1) where = *place;
  else where = __builtin_convertvector(*(const typename P::BytesMemory*)place, typename P::Choice);
  for (int i = in.top; i < in.bottom; i++)
    for (int j = in.left; j < in.right; j++) {
      typename P::Memory& at = *(typename P::Memory*)(to + i * row + j * pixel);
      const typename P::Vector part = where == i * w.width + j ? v.part[0] : typename P::Vector{};
      at = add ? at + part : part;
    }
}

// Whether every pixel of an image lies in one window, so that gradients need not be added up.
INLINE bool windows_tile(const Window& w, const Image& image, const Image& pooled) {
  return !w.pad_y && !w.pad_x && w.stride_y == w.height && w.stride_x == w.width &&
         pooled.height * w.height == image.height && pooled.width * w.width == image.width;
}

// With `add`, `to` is cleared before or holds other gradients; without it, windows must tile the image.
static void max_pool_backward(const Image& grad, const Image& to, const Window& w, const uint8_t* chosen, bool add) {
  const int batch = to.batch;
  for (int c = 0; c < grad.channels; c++)
    for (int y = 0; y < grad.height; y++)
      for (int x = 0; x < grad.width; x++) {
        const Covered covered(w, y, x, to.height, to.width);
        const float* g = grad.of(c, y) + (long)x * batch;
        float* t = to.of(c, 0) + (long)(y * w.stride_y - w.pad_y) * to.row() + (long)(x * w.stride_x - w.pad_x) * batch;
        const uint8_t* place = chosen + (((long)c * grad.height + y) * grad.width + x) * batch;
        blocks<NATIVE, 1>(batch, [&]<int W, int N>(int b, int skip) __attribute__((always_inline)) {
          pool_lanes_back<W>(g + b, place + b, w, covered, add, skip, to.row(), batch, t + b);
        });
      }
}

static void average_pool(const Image& in, const Image& out, const Window& w, bool with_relu) {
  const Lanes<LANES> share = all<LANES>(1.f / (w.height * w.width));
  for (int c = 0; c < out.channels; c++)
    for (int y = 0; y < out.height; y++)
      for (int x = 0; x < out.width; x++)
        pieces(in.batch, [&](long b, int n) {
          Lanes<LANES> total = all<LANES>(0);
          for (int i = 0; i < w.height; i++)
            for (int j = 0; j < w.width; j++)
              total = total + load_piece(in.of(c, y * w.stride_y + i) + (long)(x * w.stride_x + j) * in.batch + b, n);
          total = total * share;
          store_piece(out.of(c, y) + (long)x * out.batch + b, with_relu ? positive_part(total) : total, n);
        });
}

static void average_pool_backward(const Image& grad, const Image& to, const Window& w) {
  const Lanes<LANES> share = all<LANES>(1.f / (w.height * w.width));
  for (int c = 0; c < grad.channels; c++)
    for (int y = 0; y < grad.height; y++)
      for (int x = 0; x < grad.width; x++)
        pieces(to.batch, [&](long b, int n) {
          const Lanes<LANES> v = load_piece(grad.of(c, y) + (long)x * to.batch + b, n) * share;
          for (int i = 0; i < w.height; i++)
            for (int j = 0; j < w.width; j++) {
              float* t = to.of(c, y * w.stride_y + i) + (long)(x * w.stride_x + j) * to.batch + b;
              store_piece(t, load_piece(t, n) + v, n);
            }
        });
}

// ---- softmax and cross-entropy ----------------------------------------------------------------

// e^x by a polynomial, so that every build has the same bits; the relative error is below 2e-7.
INLINE float exponential(float x) {
  if (x < -87.f) return 0.f;
  if (x > 88.f) x = 88.f;
  const float steps = __builtin_floorf(fused(x, 1.44269504f, 0.5f));
  float r = fused(steps, -0.693359375f, x);
  r = fused(steps, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  for (float c : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
    p = fused(p, r, c);
  p = fused(p * r, r, r) + 1.f;
  const int32_t bits = ((int32_t)steps + 127) << 23;
  float power;
  memcpy(&power, &bits, 4);
  return p * power;
}

// Softmax over the channels of each example; returns nothing of the maximum, which cancels.
static void softmax(const Image& in, const Image& out) {
  for (int b = 0; b < in.batch; b++) {
    float most = in.at[b], total = 0;
    for (int c = 1; c < in.channels; c++) most = std::max(most, in.at[(long)c * in.batch + b]);
    for (int c = 0; c < in.channels; c++) {
      const float e = exponential(in.at[(long)c * in.batch + b] - most);
      out.at[(long)c * in.batch + b] = e;
      total += e;
    }
    for (int c = 0; c < in.channels; c++) out.at[(long)c * in.batch + b] /= total;
  }
}
static void softmax_backward(const Image& out, const Image& grad, const Image& to, bool add) {
  for (int b = 0; b < out.batch; b++) {
    float dot = 0;
    for (int c = 0; c < out.channels; c++) dot += out.at[(long)c * out.batch + b] * grad.at[(long)c * out.batch + b];
    for (int c = 0; c < out.channels; c++) {
      const long i = (long)c * out.batch + b;
      const float v = out.at[i] * (grad.at[i] - dot);
      to.at[i] = add ? to.at[i] + v : v;
    }
  }
}

// The mean cross-entropy, and its gradient where `grad` is given.
static float cross_entropy(const Image& logits, const int64_t* labels, float* grad) {
  const int batch = logits.batch;
  double total = 0;
  for (int b = 0; b < batch; b++) {
    float most = logits.at[b], sum = 0;
    for (int c = 1; c < logits.channels; c++) most = std::max(most, logits.at[(long)c * batch + b]);
    for (int c = 0; c < logits.channels; c++) {
      const float e = exponential(logits.at[(long)c * batch + b] - most);
      if (grad) grad[(long)c * batch + b] = e;
      sum += e;
    }
    total += std::log((double)sum) - (logits.at[labels[b] * batch + b] - most);
    if (!grad) continue;
    const float scale = 1.f / (sum * batch);
    for (int c = 0; c < logits.channels; c++) grad[(long)c * batch + b] *= scale;
    grad[labels[b] * batch + b] -= 1.f / batch;
  }
  return (float)(total / batch);
}

// ---- dropout ----------------------------------------------------------------------------------

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
