// A plan: a traced model as a list of steps, run forward, backward and through the optimiser in one
// call. Plans do not depend on the batch: places in memory are counted in floats per example.
#pragma once
#include <cstdlib>
#include <memory>
#include <new>

#include "linear.h"
#include "selection.h"
#include "winograd.h"

namespace gossamer {

enum Kind : int64_t {
  CONVOLUTION, LINEAR, BATCH_NORM, GROUP_NORM, RELU, MAX_POOL, AVERAGE_POOL, ADD, FLATTEN, SUBSAMPLE,
  SOFTMAX, DROPOUT
};
constexpr int64_t NONE = -1;

// The structs below are filled in from Python: only 8-byte fields, in this order.

struct Value {  // an activation and its gradient
  int64_t channels, height, width;
  int64_t offset, halo;            // of the activation
  int64_t grad_offset, grad_halo;  // of the gradient; the offset is NONE if nobody needs it
};

struct Step {
  int64_t kind, relu;
  int64_t input, other, output;  // values; `other` is the second term of a sum
  int64_t weight, bias, mean, variance;  // parameters
  int64_t kernel_height, kernel_width, stride_y, stride_x, pad_y, pad_x;
  int64_t groups;  // of a group norm
  int64_t adds, other_adds;  // whether the input's gradient holds another consumer's part already
  int64_t whole_channels;    // of a dropout
  int64_t tiled;             // a convolution that is computed by tiles, unless it has index lists
  double epsilon, momentum, rate;
};

struct Param {
  float* values;      // all weights, or those at the non-zeros of `lists`
  float* grad;        // null: not wanted
  float* velocity;    // null: no momentum
  const float* anchor;
  int64_t count;
  const uint8_t* mask;  // of the values that are trained; null: all of them
  const Lists* lists;   // null: a full tensor
  int64_t everywhere;  // with lists: the gradient is that of all weights, also of the pruned ones
  // Of the layer's inputs its gradient reads those of at least this magnitude; null: all. If it is negative, it is
  // found, so that the given share of them is read.
  float* input_cut;
  int64_t share_numerator, share_denominator;

  int64_t gradients() const { return !grad ? 0 : lists && everywhere ? lists->geometry.weights() : count; }
};

struct Call {
  const float* x;
  int64_t stride_n, stride_c, stride_y, stride_x;  // of x, in floats
  const int64_t* labels;  // null: no loss
  int64_t batch;
  Param* params;
  int64_t param_count;
  const uint64_t* seeds;  // of the dropouts, in the order of their steps
  int64_t training, backward, update, first;
  double rate, momentum, weight_decay, clip, prox;
  float* outputs;  // [example][class]; null: not wanted
  double loss;
};

struct Plan {
  std::vector<Step> steps;
  std::vector<Value> values;
  std::vector<Taps> taps;            // of each step that is a layer with weights
  std::vector<long> kept;            // where a step keeps statistics, in floats; where it keeps choices, or rows
  int64_t input, output, floats;     // floats of all values, per example
  long statistics = 0, example_statistics = 0, choices = 0;
  long rows = 0;                     // floats of the examples as rows, for linear layers
  int64_t first = NONE;              // the linear layer that alone reads the input, flattened or not

  Geometry geometry(const Step& s) const {
    const Value &in = values[s.input], &out = values[s.output];
    const bool linear = s.kind == LINEAR;
    Geometry g;
    g.inputs = (int)in.channels, g.outputs = (int)out.channels;
    g.kernel_height = linear ? 1 : (int)s.kernel_height, g.kernel_width = linear ? 1 : (int)s.kernel_width;
    g.stride_y = linear ? 1 : (int)s.stride_y, g.stride_x = linear ? 1 : (int)s.stride_x;
    g.pad_y = linear ? 0 : (int)s.pad_y, g.pad_x = linear ? 0 : (int)s.pad_x;
    g.height = (int)in.height, g.width = (int)in.width;
    g.out_height = (int)out.height, g.out_width = (int)out.width;
    g.in_pitch = (int)(in.width + 2 * in.halo), g.grad_pitch = (int)(out.width + 2 * out.grad_halo);
    return g;
  }
};

// Floats at the boundary of a cache line; a vector that crosses one takes twice as long to load.
class Floats {
 public:
  Floats() = default;
  Floats(const Floats&) = delete;
  Floats& operator=(const Floats&) = delete;
  ~Floats() { free(at); }

  // At least `count` floats; what was there before is lost if it has to grow.
  float* room(size_t count) {
    if (count > held) {
      free(at);
      held = (count + LANES - 1) / LANES * LANES;
      at = (float*)aligned_alloc(64, held * sizeof(float));
      if (!at) throw std::bad_alloc();
    }
    return at;
  }
  float* data() const { return at; }
  size_t size() const { return held; }

 private:
  float* at = nullptr;
  size_t held = 0;
};

// Memory that one thread uses again from call to call.
struct Workspace {
  Floats arena, statistics, values, sums, rows, inputs, partial;
  Search search;
  std::vector<uint8_t> choices;
  std::vector<uint8_t> updated;  // parameters whose step of SGD is done

  size_t bytes() const {
    const size_t floats = arena.size() + statistics.size() + values.size() + sums.size() + rows.size() + inputs.size() +
                          partial.size();
    return sizeof(float) * (floats + search.magnitudes.size() + search.bins.size()) + choices.size() + updated.size();
  }
};

// The only step that reads a value, or NONE.
static int64_t reader(const Plan& plan, int64_t value) {
  int64_t found = NONE;
  for (size_t i = 0; i < plan.steps.size(); i++) {
    const Step& s = plan.steps[i];
    if (s.input != value && s.other != value) continue;
    if (found != NONE) return NONE;
    found = (int64_t)i;
  }
  return value == plan.output ? NONE : found;
}
static int64_t first_linear(const Plan& plan) {
  int64_t i = reader(plan, plan.input);
  if (i != NONE && plan.steps[i].kind == FLATTEN) i = reader(plan, plan.steps[i].output);
  return i != NONE && plan.steps[i].kind == LINEAR ? i : NONE;
}

static Plan* make_plan(const Step* steps, int64_t step_count, const Value* values, int64_t value_count,
                       int64_t input, int64_t output, int64_t floats) {
  auto plan = std::make_unique<Plan>();
  plan->steps.assign(steps, steps + step_count);
  plan->values.assign(values, values + value_count);
  plan->input = input, plan->output = output, plan->floats = floats;
  for (const Step& s : plan->steps) {
    const Value &in = plan->values[s.input], &out = plan->values[s.output];
    plan->taps.push_back(s.kind == CONVOLUTION ? make_taps(plan->geometry(s)) : Taps());
    long at = 0;
    if (s.kind == BATCH_NORM) at = plan->statistics, plan->statistics += 5 * in.channels;
    if (s.kind == GROUP_NORM) at = plan->example_statistics, plan->example_statistics += 2 * s.groups;
    if (s.kind == MAX_POOL) at = plan->choices, plan->choices += out.channels * out.height * out.width;
    if (s.kind == LINEAR) at = plan->rows, plan->rows += row_stride(in.channels);
    plan->kept.push_back(at);
  }
  plan->first = first_linear(*plan);
  return plan.release();
}

}  // namespace gossamer
