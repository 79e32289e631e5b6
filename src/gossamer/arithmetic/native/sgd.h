// The step of the optimiser.
#pragma once
#include "plan.h"

namespace gossamer {

// One step of SGD. The rounding is that of torch's vector code, where that has one of its own.
static void descend(Param& p, double learning_rate, double momentum_share, double weight_decay, bool first) {
  const float rate = (float)-learning_rate, momentum = (float)momentum_share, decay = (float)weight_decay;
  float* __restrict__ w = p.values;
  float* __restrict__ g = p.grad;
  float* __restrict__ v = p.velocity;
  if (decay)
    for (int64_t i = 0; i < p.count; i++) g[i] += !p.mask || p.mask[i] ? decay * w[i] : 0.f;
  if (momentum == 0.f) {
    for (int64_t i = 0; i < p.count; i++) w[i] = fused(rate, g[i], w[i]);
  } else if (first) {
    for (int64_t i = 0; i < p.count; i++) v[i] = g[i], w[i] = fused(rate, g[i], w[i]);
  } else {
    for (int64_t i = 0; i < p.count; i++) v[i] = momentum * v[i] + g[i], w[i] = fused(rate, v[i], w[i]);
  }
}

}  // namespace gossamer
