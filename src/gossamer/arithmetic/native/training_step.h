// One call of a plan: forward, backward and a step of SGD, on one batch.
//
// A batch whose activations do not fit the caches goes through the plan in parts. Examples meet in the sums of
// gradients only, unless a step looks at the whole batch.
#pragma once
#include "execution.h"

namespace gossamer {

constexpr long PART_FLOATS = 1 << 20;  // of the activations of a part, and their gradients
constexpr int LEAST_PART = 32;         // examples

// Whether examples meet before their gradients do, or draws depend on their place in the batch.
static bool needs_whole_batch(const Plan& plan, const Call& call) {
  if (!call.training) return false;
  for (const Step& s : plan.steps)
    if (s.kind == BATCH_NORM || s.kind == DROPOUT) return true;
  for (int64_t p = 0; p < call.param_count; p++)
    if (call.params[p].input_cut) return true;
  return false;
}
// By shapes and batch alone, as sums of parts have bits of their own.
static int64_t part_size(const Plan& plan, const Call& call) {
  const int64_t size = std::max<int64_t>(LEAST_PART, PART_FLOATS / plan.floats / LEAST_PART * LEAST_PART);
  return size + LANES > call.batch || needs_whole_batch(plan, call) ? call.batch : size;
}

static bool labels_are_classes(const Plan& plan, const Call& call) {
  if (call.labels)
    for (int64_t b = 0; b < call.batch; b++)
      if (call.labels[b] < 0 || call.labels[b] >= plan.values[plan.output].channels) return false;
  return true;
}

// The gradients of one part after another are added. The last part has what is too little for one of its own.
static void pass_in_parts(const Plan& plan, Workspace& memory, Call& call, int64_t size) {
  std::vector<Param> params(call.params, call.params + call.param_count);
  Call part = call;
  part.params = params.data(), part.update = 0;
  call.loss = 0;
  for (int64_t from = 0; from < call.batch; from += part.batch) {
    const int64_t left = call.batch - from;
    part.batch = left < size + LANES ? left : size;
    part.x = call.x + from * call.stride_n;
    if (call.labels) part.labels = call.labels + from;
    if (call.outputs) part.outputs = call.outputs + from * plan.values[plan.output].channels;
    if (from && call.backward) {
      size_t floats = 0;
      for (const Param& p : params) floats += p.gradients();
      float* to = memory.partial.room(floats);
      for (Param& p : params)
        if (const int64_t count = p.gradients()) p.grad = to, to += count;
    }
    Execution(plan, memory, part).pass(call.batch);
    call.loss += part.loss;
    if (!from || !call.backward) continue;
    for (size_t p = 0; p < params.size(); p++)
      for (int64_t i = 0; i < params[p].gradients(); i++) call.params[p].grad[i] += params[p].grad[i];
  }
}

// False if a label is not a class.
static bool run(const Plan& plan, Workspace& memory, Call& call) {
  if (!labels_are_classes(plan, call)) return false;
  if (call.update) memory.updated.assign(call.param_count, false);
  const int64_t size = part_size(plan, call);
  if (size < call.batch) pass_in_parts(plan, memory, call, size);
  else Execution(plan, memory, call).pass(call.batch);
  call.loss = (float)call.loss;
  if (call.update) descend_all(call, memory.updated);
  return true;
}

}  // namespace gossamer
