// The step of the optimiser.
#pragma once
#include <cmath>

#include "plan.h"

namespace gossamer {

// Whether a step is -rate * gradient and nothing else, so that gradients need not be kept.
INLINE bool plain_sgd(const Call& call) { return !call.momentum && !call.weight_decay && !call.clip && !call.prox; }

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

// The step of all parameters but those that are `updated` already.
static void descend_all(Call& call, const std::vector<uint8_t>& updated) {
  const float prox = (float)call.prox;
  double squares = 0;
  for (int64_t p = 0; p < call.param_count; p++) {
    Param& each = call.params[p];
    if (!each.grad || updated[p]) continue;
    if (prox)
      for (int64_t i = 0; i < each.count; i++) each.grad[i] = fused(prox, each.values[i] - each.anchor[i], each.grad[i]);
    if (each.mask)
      for (int64_t i = 0; i < each.count; i++) each.grad[i] = each.mask[i] ? each.grad[i] : 0.f;
    if (call.clip)
      for (int64_t i = 0; i < each.count; i++) squares += (double)each.grad[i] * each.grad[i];
  }
  const float scale = call.clip ? (float)std::min(1.0, call.clip / (std::sqrt(squares) + 1e-6)) : 1.f;
  for (int64_t p = 0; p < call.param_count; p++)
    if (call.params[p].grad && !updated[p]) {
      Param& each = call.params[p];
      if (scale != 1.f)
        for (int64_t i = 0; i < each.count; i++) each.grad[i] *= scale;
      descend(each, call.rate, call.momentum, call.weight_decay, call.first);
    }
}

}  // namespace gossamer
