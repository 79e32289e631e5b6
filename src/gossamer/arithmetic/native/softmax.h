// Softmax and the cross-entropy of its logarithm.
#pragma once
#include <cmath>

#include "image.h"

namespace gossamer {

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

// The cross-entropy of examples of a batch of `whole`, over their number there, and its gradient where `grad` is given.
static double cross_entropy(const Image& logits, const int64_t* labels, float* grad, int64_t whole) {
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
    const float scale = 1.f / (sum * whole);
    for (int c = 0; c < logits.channels; c++) grad[(long)c * batch + b] *= scale;
    grad[labels[b] * batch + b] -= 1.f / whole;
  }
  return total / whole;
}

}  // namespace gossamer
