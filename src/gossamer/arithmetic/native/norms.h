// Batch and group normalisation, with the ReLU that follows.
#pragma once
#include <cmath>

#include "image.h"

namespace gossamer {

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

}  // namespace gossamer
