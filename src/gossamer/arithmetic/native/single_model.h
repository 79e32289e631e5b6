// A model for one example at a time: made from a plan's steps and stored weights, and run.
#pragma once
#include "single.h"

namespace gossamer {

// Offsets of the taps of a layer, in the order input, kernel row, kernel column; `visit` also gets
// the place of the tap among an output's weights, which lie as [kernel row][kernel column][input].
template <class Visit>
INLINE void each_tap(const Step& s, const Frame& source, int inputs, Visit visit) {
  const bool strided = s.stride_y > 1 || s.stride_x > 1;
  const int rows = (int)std::min(s.stride_y, s.kernel_height), columns = (int)std::min(s.stride_x, s.kernel_width);
  for (int c = 0; c < inputs; c++)
    for (int i = 0; i < s.kernel_height; i++)
      for (int j = 0; j < s.kernel_width; j++) {
        const long phase = (c * rows + i % s.stride_y) * columns + j % s.stride_x;
        const long offset = strided ? phase * source.plane() + i / s.stride_y * source.pitch() + j / s.stride_x
                                    : c * source.plane() + (i - s.pad_y) * source.pitch() + j - s.pad_x;
        visit((int32_t)offset, (i * s.kernel_width + j) * inputs + c);
      }
}

// Unpacks a tensor piece by piece, so that it is never whole in memory.
class Unpacking {
 public:
  explicit Unpacking(const Stored& from) : values(from.values), bits(from.bits) {}

  void next(long count, float* to) {
    for (long i = 0; i < count; i++, at++) to[i] = !bits || bits[at / 8] >> at % 8 & 1 ? *values++ : 0.f;
  }

 private:
  const float* values;
  const uint8_t* bits;
  long at = 0;
};

static Weights make_weights(const Step& s, const Frame& source, int inputs, int outputs, const Stored& weights,
                            const float* bias) {
  Weights w;
  const bool sparse = weights.sparse;
  w.shared = !sparse;
  w.bias.assign(outputs, 0.f);
  if (bias) w.bias.assign(bias, bias + outputs);
  const long taps = (long)inputs * s.kernel_height * s.kernel_width;
  w.starts.push_back(0);
  std::vector<float> own(taps);
  Unpacking unpacking(weights);
  for (int o = 0; o < outputs; o++) {
    unpacking.next(taps, own.data());
    each_tap(s, source, inputs, [&](int32_t offset, long place) {
      if (sparse && own[place] == 0.f) return;
      if (sparse || !o) w.offsets.push_back(offset);
      w.values.push_back(own[place]);
    });
    w.starts.push_back((int32_t)w.values.size());
  }
  return w;
}

static Single* make_single(const Step* steps, int64_t step_count, const Value* values, int64_t value_count, int64_t input,
                           int64_t output, const Stored* params) {
  auto single = std::make_unique<Single>();
  single->input = input, single->output = output;
  for (int64_t v = 0; v < value_count; v++)
    single->values.push_back({(int)values[v].channels, (int)values[v].height, (int)values[v].width});
  auto strided = [](const Step& s) { return s.stride_y > 1 || s.stride_x > 1; };
  for (int64_t i = 0; i < step_count; i++)
    if (steps[i].kind == CONVOLUTION && !strided(steps[i])) {
      Frame& in = single->values[steps[i].input];
      in.gap_y = std::max(in.gap_y, (int)steps[i].pad_y), in.gap_x = std::max(in.gap_x, (int)steps[i].pad_x);
    }
  auto place = [&](Frame& frame) {
    frame.offset = single->floats + frame.lead();
    single->floats += (frame.floats() + LANES - 1) / LANES * LANES;
  };
  for (Frame& frame : single->values) place(frame);
  long beyond = 0;  // a block may read past its image
  for (int64_t i = 0; i < step_count; i++) {
    SingleStep each{steps[i], {}, {}, {}, {}};
    Step& s = each.step;
    const Frame &in = single->values[s.input], &out = single->values[s.output];
    std::vector<float> small[4];
    auto tensor = [&](int64_t index, int which, int count) -> const float* {
      if (index == NONE) return nullptr;
      small[which].resize(count);
      Unpacking(params[index]).next(count, small[which].data());
      return small[which].data();
    };
    each.source = in;
    if (s.kind == LINEAR) s.kernel_height = s.kernel_width = s.stride_y = s.stride_x = 1, s.pad_y = s.pad_x = 0;
    if (s.kind == CONVOLUTION && strided(s)) {
      const int phases = (int)(std::min(s.stride_y, s.kernel_height) * std::min(s.stride_x, s.kernel_width));
      each.source = {in.channels * phases, (int)((in.height + 2 * s.pad_y + s.stride_y - 1) / s.stride_y),
                     (int)((in.width + 2 * s.pad_x + s.stride_x - 1) / s.stride_x)};
      place(each.source);
    }
    if (s.kind == CONVOLUTION || s.kind == LINEAR) {
      each.weights = make_weights(s, each.source, in.channels, out.channels, params[s.weight], tensor(s.bias, 1, out.channels));
      beyond = std::max<long>(beyond, (s.kernel_height + 1) * each.source.pitch() + s.kernel_width);
    }
    if (s.kind == BATCH_NORM || s.kind == GROUP_NORM) {
      const int count = in.channels;
      const float *weight = tensor(s.weight, 0, count), *bias = tensor(s.bias, 1, count);
      const float *mean = tensor(s.mean, 2, count), *variance = tensor(s.variance, 3, count);
      for (int c = 0; c < in.channels; c++) {
        const double inverse = variance ? 1 / std::sqrt((double)variance[c] + s.epsilon) : 1;
        const double scale = (weight ? weight[c] : 1) * inverse;
        each.scale.push_back((float)scale);
        each.shift.push_back((float)((bias ? bias[c] : 0) - scale * (mean ? mean[c] : 0)));
      }
    }
    single->steps.push_back(std::move(each));
  }
  single->floats += beyond + LANES;
  return single.release();
}

// Memory for one thread. It starts as zeros, and gaps stay zero because nothing is written there.
struct SingleMemory {
  Floats arena;
  explicit SingleMemory(const Single& single) { memset(arena.room(single.floats), 0, single.floats * sizeof(float)); }
};

static void run_single(const Single& single, SingleMemory& memory, const float* x, float* outputs) {
  auto pixels = [&](const Frame& frame) { return Pixels{frame, memory.arena.data() + frame.offset}; };
  const Pixels first = pixels(single.values[single.input]);
  for (int c = 0; c < first.frame.channels; c++)
    for (int y = 0; y < first.frame.height; y++, x += first.frame.width)
      memcpy(first.of(c, y), x, first.frame.width * sizeof(float));
  for (const SingleStep& each : single.steps) {
    const Step& s = each.step;
    const Pixels in = pixels(single.values[s.input]), out = pixels(single.values[s.output]);
    const int width = out.frame.width;
    switch (s.kind) {
      case CONVOLUTION: {
        const Pixels source = pixels(each.source);
        if (s.stride_y > 1 || s.stride_x > 1) split_phases(s, in, source);
        convolve_single(each, source.at, out);
        break;
      }
      case LINEAR: multiply_single(each.weights, out.frame.channels, in.frame.channels, in.at, s.relu, out.at); break;
      case BATCH_NORM: affine_single(each, in, out); break;
      case GROUP_NORM: group_norm_single(each, in, out); break;
      case RELU:
      case DROPOUT:  // does nothing in inference
        each_row(in, out, [&](int, const float* from, float* to) {
          for (int i = 0; i < width; i++) to[i] = kept(from[i], s.kind == RELU);
        });
        break;
      case MAX_POOL:
      case AVERAGE_POOL: pool_single(s, in, out); break;
      case ADD: {
        const Pixels other = pixels(single.values[s.other]);
        for (int c = 0; c < out.frame.channels; c++)
          for (int y = 0; y < out.frame.height; y++)
            for (int i = 0; i < width; i++) out.of(c, y)[i] = kept(in.of(c, y)[i] + other.of(c, y)[i], s.relu);
        break;
      }
      case FLATTEN:
        for (int c = 0, at = 0; c < in.frame.channels; c++)
          for (int y = 0; y < in.frame.height; y++, at += in.frame.width)
            memcpy(out.at + at, in.of(c, y), in.frame.width * sizeof(float));
        break;
      case SUBSAMPLE: subsample_single(s, in, out); break;
      case SOFTMAX: softmax_single(in, out); break;
    }
  }
  const Pixels last = pixels(single.values[single.output]);
  memcpy(outputs, last.at, last.frame.channels * sizeof(float));
}

}  // namespace gossamer
