// Forward and backward passes of a plan.
#pragma once
#include "dropout.h"
#include "norms.h"
#include "plan.h"
#include "pooling.h"
#include "sgd.h"
#include "softmax.h"

namespace gossamer {

// One pass: the batch, the parameters, and memory.
class Execution {
 public:
  Execution(const Plan& plan, Workspace& memory, Call& call) : plan(plan), memory(memory), call(call), batch((int)call.batch) {
    memory.arena.room(plan.floats * batch);
    memory.statistics.room(plan.statistics + plan.example_statistics * batch);
    memory.rows.room(row_floats());
    if (memory.choices.size() < (size_t)plan.choices * batch) memory.choices.resize((size_t)plan.choices * batch);
  }

  // Forward, and backward if it is wanted, on examples of a batch of `whole`: gradients are those of its mean loss, to
  // which these examples' share is `call.loss`.
  void pass(int64_t whole) {
    const Image logits = image(plan.output);
    if (plan.first == NONE) read_batch();
    for (size_t i = 0; i < plan.steps.size(); i++) forward(plan.steps[i], i);
    if (call.outputs) transpose(logits.channels, batch, logits.at, batch, call.outputs, logits.channels);
    if (call.labels)
      call.loss = cross_entropy(logits, call.labels, call.backward ? gradient(plan.output).at : nullptr, whole);
    if (call.backward)
      for (size_t i = plan.steps.size(); i-- > 0;) backward(plan.steps[i], i);
  }

 private:
  const Plan& plan;
  Workspace& memory;
  Call& call;
  const int batch;

  Image place(const Value& v, int64_t offset, int64_t halo) const {
    float* at = memory.arena.data() + (offset + halo) * batch;
    return {at, (int)v.channels, (int)v.height, (int)v.width, (int)halo, batch};
  }
  Image image(int64_t value) const { return place(plan.values[value], plan.values[value].offset, plan.values[value].halo); }
  // Without memory if nobody needs it.
  Image gradient(int64_t value) const {
    if (!wanted(value)) return Image{};
    return place(plan.values[value], plan.values[value].grad_offset, plan.values[value].grad_halo);
  }
  bool wanted(int64_t value) const { return plan.values[value].grad_offset != NONE; }
  Param* param(int64_t index) const { return index == NONE ? nullptr : &call.params[index]; }
  const float* values_of(int64_t index) const { return index == NONE ? nullptr : call.params[index].values; }
  float* grad_of(int64_t index) const { return index == NONE ? nullptr : call.params[index].grad; }

  void read_batch() {
    const Image in = image(plan.input);
    clear_halo(in);
    for (int c = 0; c < in.channels; c++)
      for (int y = 0; y < in.height; y++) {
        const float* from = call.x + c * call.stride_c + y * call.stride_y;
        float* to = in.of(c, y);
        if (call.stride_x == 1 && in.width > 1) {
          transpose(batch, in.width, from, call.stride_n, to, batch);
          continue;
        }
        for (int x = 0; x < in.width; x++)
          for (int b = 0; b < batch; b++) to[(long)x * batch + b] = from[b * call.stride_n + x * call.stride_x];
      }
  }

  // ---- examples as rows -----------------------------------------------------------------------

  // Rows stay from the forward to the backward pass. Larger batches need them in the first layer only.
  size_t row_floats() const {
    if (batch < ROWS_BELOW) return (size_t)plan.rows * batch;
    return plan.first == NONE ? 0 : (size_t)row_stride(plan.values[plan.steps[plan.first].input].channels) * batch;
  }
  // Whether the caller's examples are rows already.
  bool given_as_rows(const Value& in) const {
    return (in.channels == 1 || call.stride_c == in.height * in.width) &&
           (in.height == 1 || call.stride_y == in.width) && (in.width == 1 || call.stride_x == 1);
  }
  Rows rows_of(size_t index) const {
    if ((int64_t)index == plan.first && given_as_rows(plan.values[plan.input])) return {call.x, call.stride_n};
    return {own_rows(index), row_stride(plan.values[plan.steps[index].input].channels)};
  }
  float* own_rows(size_t index) const { return memory.rows.data() + plan.kept[index] * batch; }

  // The first layer takes the batch as it comes; other layers have examples in the lanes.
  void write_rows(size_t index, const Image& in) const {
    const Rows rows = rows_of(index);
    float* to = own_rows(index);
    if ((int64_t)index != plan.first) return transpose(in.channels, batch, in.at, batch, to, rows.stride);
    const Value& image = plan.values[plan.input];
    if (rows.at != to) return;
    const Strides strides{call.stride_n, call.stride_c, call.stride_y, call.stride_x};
    for (int b = 0; b < batch; b++)
      copy_example((int)image.channels, (int)image.height, (int)image.width, call.x + b * call.stride_n, strides,
                   to + b * rows.stride);
  }

  // ---- layers with weights --------------------------------------------------------------------

  Pass forward_pass(const Step& s, const Image& in, const Image& out) const {
    return {out.channels, out.height, out.width, (int)s.kernel_height, (int)s.pad_y, (int)s.stride_y,
            in.height, batch, in.row(), s.stride_x * batch, out.channel(), out.row(), batch, false, s.relu != 0};
  }
  Pass class_pass(const Step& s, const Class& c, const Image& grad, const Image& to) const {
    return {to.channels, c.height, c.width, c.rows, c.pad, 1, grad.height, batch, grad.row(), batch,
            to.channel(), s.stride_y * to.row(), s.stride_x * batch, s.adds != 0, false};
  }

  void convolve(const Step& s, size_t index) {
    const Image in = image(s.input), out = image(s.output);
    const Param& weight = *param(s.weight);
    const Pass pass = forward_pass(s, in, out);
    if (s.tiled && !weight.lists) {
      const Winograd tiles(in, out, (int)s.pad_y, (int)s.pad_x);
      return winograd_pass(tiles, in, weight.values, values_of(s.bias), s.relu, memory.sums.room(tiles.floats()), out);
    }
    if (weight.lists) sparse_pass(pass, weight.lists->forward, weight.values, values_of(s.bias), in.at, out.at);
    else dense_pass(pass, plan.taps[index].forward, weight.values, values_of(s.bias), in.at, out.at);
  }

  // The largest inputs of a layer, for the gradient of its weights. `each(take)` calls take(run, count) for all of them.
  template <class Each>
  float input_cut(Param& weight, Each each) {
    if (*weight.input_cut < 0) {
      memory.search.clear();
      each([&](const float* run, long count) { memory.search.take(run, count); });
      *weight.input_cut = memory.search.cut(weight.share_numerator, weight.share_denominator);
    }
    return *weight.input_cut;
  }
  Image largest(Param& weight, const Image& in) {
    if (!weight.input_cut || !weight.grad) return in;
    const float least = input_cut(weight, [&](auto take) {
      runs(in, in, [&](int, const float* run, const float*, long count) { take(run, count); });
    });
    const long halo = (long)in.halo * batch, count = in.channels * in.channel();
    float* to = memory.inputs.room(count);
    keep_above(in.at - halo, count, least, to);  // zeros beside the rows stay zero
    return {to + halo, in.channels, in.height, in.width, in.halo, batch};
  }
  Rows largest(Param& weight, const Rows& rows, long inputs) {
    if (!weight.input_cut) return rows;
    const float least = input_cut(weight, [&](auto take) {
      for (int b = 0; b < batch; b++) take(rows.at + b * rows.stride, inputs);
    });
    float* to = memory.inputs.room(inputs * batch);
    for (int b = 0; b < batch; b++) keep_above(rows.at + b * rows.stride, inputs, least, to + b * inputs);
    return {to, inputs};
  }

  void convolve_backward(const Step& s, size_t index) {
    const Image grad = gradient(s.output);
    Param& weight = *param(s.weight);
    const Image in = largest(weight, image(s.input));
    if (float* to = grad_of(s.bias)) bias_gradient(grad, to);
    if (s.tiled && !weight.lists) {
      const Winograd tiles(in, grad, (int)s.pad_y, (int)s.pad_x);
      return winograd_backward(tiles, in, grad, weight.values, memory.sums.room(tiles.floats()), weight.grad, s.adds,
                               gradient(s.input));
    }
    const Taps& taps = plan.taps[index];
    Pass pass = forward_pass(s, in, grad);
    if (weight.grad && weight.lists && !weight.everywhere) {
      float* sums = memory.sums.room(std::max(CACHED, weight.lists->most) * LANES);
      sparse_gradient(pass, weight.lists->forward, in.at, grad.at, sums, weight.grad);
    } else if (weight.grad) {
      float* sums = memory.sums.room(dense_gradient_floats(taps.forward.count(), pass.outputs));
      dense_gradient(pass, taps.forward, in.at, grad.at, sums, weight.grad);
    }
    if (!wanted(s.input)) return;
    const Image to = gradient(s.input);
    const std::vector<Class>& all = weight.lists ? weight.lists->backward : taps.backward;
    for (const Class& c : all) {
      float* first = to.of(0, c.first_y) + (long)c.first_x * batch;
      const Pass part = class_pass(s, c, grad, to);
      if (weight.lists) {
        sparse_pass(part, c.list, gathered(c.list, weight.values), nullptr, grad.at, first);
      } else {
        float* kernel = memory.values.room((size_t)in.channels * c.list.count());
        transpose_kernel(taps.geometry, c, weight.values, kernel);
        dense_pass(part, c.list, kernel, nullptr, grad.at, first);
      }
    }
  }

  const float* gathered(const List& list, const float* values) {
    float* to = memory.values.room(list.count());
    for (long k = 0; k < list.count(); k++) to[k] = values[list.sources[k]];
    return to;
  }

  void multiply(const Step& s, size_t index) {
    const Image in = image(s.input), out = image(s.output);
    const Param& weight = *param(s.weight);
    const bool first = (int64_t)index == plan.first, rowwise = !weight.lists && by_rows(in.channels, batch);
    if (first || rowwise) write_rows(index, in);
    const Rows rows = rows_of(index);
    if (rowwise)
      return row_product(out.channels, in.channels, batch, weight.values, values_of(s.bias), rows, s.relu != 0, out.at);
    if (first) transpose(batch, in.channels, rows.at, rows.stride, in.at, batch);
    if (weight.lists) {
      sparse_product(weight.lists->forward, out.channels, batch, weight.values, values_of(s.bias), in.at, false,
                     s.relu != 0, out.at);
    } else {
      const Product product{out.channels, in.channels, batch, in.channels, 1, false, s.relu != 0};
      dense_product(product, weight.values, values_of(s.bias), in.at, out.at);
    }
  }

  // The gradient of the input comes first, as it needs the weights before their step of SGD.
  void multiply_backward(const Step& s, size_t index) {
    const Image in = image(s.input), grad = gradient(s.output);
    const Param& weight = *param(s.weight);
    if (wanted(s.input)) {
      float* to = gradient(s.input).at;
      if (weight.lists) {
        const List& list = weight.lists->backward[0].list;
        sparse_product(list, in.channels, batch, gathered(list, weight.values), nullptr, grad.at, s.adds != 0, false, to);
      } else if (by_rows(in.channels, batch) && !s.adds) {
        float* rows = memory.sums.room((size_t)in.channels * batch);
        row_product_back(grad.channels, in.channels, batch, weight.values, grad.at, rows);
        transpose(batch, in.channels, rows, in.channels, to, batch);
      } else {
        const Product product{in.channels, grad.channels, batch, 1, in.channels, s.adds != 0, false};
        dense_product(product, weight.values, nullptr, grad.at, to);
      }
    }
    if (float* to = grad_of(s.bias)) bias_gradient(grad, to);
    if (weight.grad && weight.lists && !weight.everywhere)
      sparse_product_gradient(weight.lists->forward, grad.channels, batch, grad.at, in.at, weight.grad);
    else if (weight.grad) full_gradient(s, index, in, grad);
  }

  void full_gradient(const Step& s, size_t index, const Image& in, const Image& grad) {
    Param& weight = *param(s.weight);
    Rows rows = rows_of(index);
    if ((int64_t)index != plan.first && (weight.lists || !by_rows(in.channels, batch))) {
      rows = {memory.sums.room((size_t)in.channels * batch), in.channels};
      transpose(in.channels, batch, in.at, batch, memory.sums.data(), in.channels);
    }
    rows = largest(weight, rows, in.channels);
    const bool at_once = call.update && plain_sgd(call) && !weight.mask && !weight.lists;
    const Outer outer{grad.channels, in.channels, batch, batch, 1, rows.stride, at_once, (float)-call.rate};
    outer_product(outer, grad.at, rows.at, at_once ? weight.values : weight.grad);
    if (at_once) memory.updated[s.weight] = true;
  }

  // ---- norms ----------------------------------------------------------------------------------

  Norm norm_of(const Step& s, size_t index) const {
    const int channels = (int)plan.values[s.input].channels;
    float* at = memory.statistics.data() + plan.kept[index];
    return {values_of(s.weight), values_of(s.bias), s.epsilon, at, at + channels, at + 2 * channels, at + 3 * channels};
  }
  Groups groups_of(const Step& s, size_t index) const {
    float* at = memory.statistics.data() + plan.statistics + plan.kept[index] * batch;
    return {(int)s.groups, values_of(s.weight), values_of(s.bias), s.epsilon, at, at + s.groups * batch};
  }

  void normalise(const Step& s, size_t index) {
    const Image in = image(s.input), out = image(s.output);
    const Norm norm = norm_of(s, index);
    Param *mean = param(s.mean), *variance = param(s.variance);
    if (!call.training && mean) return affine_norm(in, out, norm, mean->values, variance->values, s.relu);
    float* measured = norm.mean + 4 * in.channels;
    batch_norm(in, out, norm, s.relu, measured);
    if (!call.training || !mean) return;
    const float momentum = (float)s.momentum, rest = (float)(1 - s.momentum);
    for (int c = 0; c < in.channels; c++) {
      mean->values[c] = momentum * norm.mean[c] + rest * mean->values[c];
      variance->values[c] = momentum * measured[c] + rest * variance->values[c];
    }
  }

  // ---- steps ----------------------------------------------------------------------------------

  Window window_of(const Step& s) const {
    return {(int)s.kernel_height, (int)s.kernel_width, (int)s.stride_y, (int)s.stride_x, (int)s.pad_y, (int)s.pad_x};
  }
  uint8_t* choices_of(size_t index) const { return memory.choices.data() + plan.kept[index] * batch; }
  Dropout dropout_of(const Step& s, size_t index, bool add) const {
    int64_t before = 0;
    for (size_t i = 0; i < index; i++) before += plan.steps[i].kind == DROPOUT;
    return {(float)s.rate, s.whole_channels != 0, call.seeds ? call.seeds[before] : 0, add};
  }

  void forward(const Step& s, size_t index) {
    const Image in = image(s.input), out = image(s.output);
    clear_halo(out);
    switch (s.kind) {
      case CONVOLUTION: return convolve(s, index);
      case LINEAR: return multiply(s, index);
      case BATCH_NORM: return normalise(s, index);
      case GROUP_NORM: return group_norm(in, out, groups_of(s, index), s.relu);
      case RELU: return relu(in, out);
      case MAX_POOL: return max_pool(in, out, window_of(s), s.relu, choices_of(index));
      case AVERAGE_POOL: return average_pool(in, out, window_of(s), s.relu);
      case ADD: return add_images(in, image(s.other), out, s.relu);
      case FLATTEN:
        if (s.input == plan.input && plan.first != NONE) return;  // that layer reads the batch itself
        return copy_rows(in, out, false);
      case SUBSAMPLE: return subsample(in, out, (int)s.stride_y);
      case SOFTMAX: return softmax(in, out);
      case DROPOUT:
        if (call.training) return dropout(in, out, dropout_of(s, index, false));
        return copy_rows(in, out, false);
    }
  }

  void backward(const Step& s, size_t index) {
    if (!wanted(s.output)) return;
    const Image grad = gradient(s.output);
    clear_halo(grad);
    if (s.relu && s.kind != MAX_POOL) mask_by_sign(image(s.output), grad);  // max_pool noted it
    switch (s.kind) {
      case CONVOLUTION: return convolve_backward(s, index);
      case LINEAR: return multiply_backward(s, index);
      case BATCH_NORM:
        return batch_norm_backward(image(s.input), grad, gradient(s.input), norm_of(s, index), s.adds,
                                   grad_of(s.weight), grad_of(s.bias));
      case GROUP_NORM:
        return group_norm_backward(image(s.input), grad, gradient(s.input), groups_of(s, index), s.adds,
                                   grad_of(s.weight), grad_of(s.bias));
      case ADD:
        if (wanted(s.input)) copy_rows(grad, gradient(s.input), s.adds);
        if (wanted(s.other)) copy_rows(grad, gradient(s.other), s.other_adds);
        return;
      default: break;
    }
    if (!wanted(s.input)) return;
    const Image to = gradient(s.input);
    switch (s.kind) {
      case RELU:
        mask_by_sign(image(s.output), grad);
        return copy_rows(grad, to, s.adds);
      case FLATTEN: return copy_rows(grad, to, s.adds);
      case SOFTMAX: return softmax_backward(image(s.output), grad, to, s.adds);
      case DROPOUT: return dropout(grad, to, dropout_of(s, index, s.adds));
      default: break;
    }
    const bool stores = s.kind == MAX_POOL && !s.adds && windows_tile(window_of(s), to, grad);
    if (!s.adds && !stores) clear(to);
    if (s.kind == MAX_POOL) max_pool_backward(grad, to, window_of(s), choices_of(index), !stores);
    if (s.kind == AVERAGE_POOL) average_pool_backward(grad, to, window_of(s));
    if (s.kind == SUBSAMPLE) subsample_backward(grad, to, (int)s.stride_y);
  }
};

}  // namespace gossamer
