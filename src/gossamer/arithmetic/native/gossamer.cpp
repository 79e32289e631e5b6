// The C interface of the kernels. Handles are pointers that the caller frees.
#include <algorithm>
#include <mutex>

#include "single_model.h"
#include "training_step.h"

using namespace gossamer;

extern "C" {

// The best build for this processor: 2 for AVX-512, 1 for AVX2, 0 for the plain one.
int gossamer_best_build() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  return avx2 && avx512 ? 2 : avx2 ? 1 : 0;
#else
  return 0;
#endif
}

// The bytes of all records, so that a library of other sources is not used.
int gossamer_sizes() { return sizeof(Value) + sizeof(Step) + sizeof(Param) + sizeof(Call) + sizeof(Stored); }

void* gossamer_plan(const Step* steps, int64_t step_count, const Value* values, int64_t value_count,
                    int64_t input, int64_t output, int64_t floats) {
  return make_plan(steps, step_count, values, value_count, input, output, floats);
}
void gossamer_free_plan(void* plan) { delete (Plan*)plan; }

void* gossamer_workspace() { return new Workspace; }
int64_t gossamer_workspace_bytes(void* workspace) { return (int64_t)((Workspace*)workspace)->bytes(); }
void gossamer_free_workspace(void* workspace) { delete (Workspace*)workspace; }

// The index lists of a step's mask, one byte for each weight in memory order.
void* gossamer_lists(void* plan, int64_t step, const uint8_t* mask) {
  const Plan& p = *(Plan*)plan;
  return new Lists(make_lists(p.geometry(p.steps[step]), mask));
}
int64_t gossamer_lists_count(void* lists) { return ((Lists*)lists)->forward.count(); }
// 1 if the lists are those of a mask of `count` weights.
int64_t gossamer_lists_fit(void* lists, const uint8_t* mask, int64_t count) {
  const std::vector<int32_t>& places = ((Lists*)lists)->places;
  int64_t kept = 0;
  for (int64_t i = 0; i < count; i++) kept += mask[i] != 0;
  return kept == (int64_t)places.size() && std::all_of(places.begin(), places.end(), [&](int32_t at) { return mask[at]; });
}
void gossamer_free_lists(void* lists) { delete (Lists*)lists; }

// Between all weights and those of the lists.
void gossamer_pack(void* lists, const float* weights, float* values) {
  const std::vector<int32_t>& places = ((Lists*)lists)->places;
  for (size_t k = 0; k < places.size(); k++) values[k] = weights[places[k]];
}
void gossamer_unpack(void* lists, const float* values, float* weights) {
  const std::vector<int32_t>& places = ((Lists*)lists)->places;
  for (size_t k = 0; k < places.size(); k++) weights[places[k]] = values[k];
}

// The smallest magnitude among the largest numbers: numerator / denominator of all, and one at least.
float gossamer_cut(const float* values, int64_t count, int64_t numerator, int64_t denominator) {
  Search search;
  search.take(values, count);
  return search.cut(numerator, denominator);
}

// One step of SGD on tensors whose gradients are given.
void gossamer_descend(Param* params, int64_t count, double rate, double momentum, double weight_decay, int64_t first) {
  for (int64_t p = 0; p < count; p++) descend(params[p], rate, momentum, weight_decay, first);
}

// sums += share * values, where `mask` is not null only where it is not zero. Rounded once where the processor can.
void gossamer_add(double* __restrict__ sums, const float* __restrict__ values, const uint8_t* __restrict__ mask,
                  int64_t count, double share) {
  const auto add = [&](int64_t i, double value) __attribute__((always_inline)) {
#if defined(__FMA__) || defined(__ARM_NEON)
    sums[i] = __builtin_fma(share, value, sums[i]);
#else
    sums[i] += share * value;
#endif
  };
  if (mask)
    for (int64_t i = 0; i < count; i++) {
      uint32_t bits;  // a branch, or a choice between floats, is several times slower
      memcpy(&bits, values + i, 4);
      bits &= -(uint32_t)(mask[i] != 0);
      float value;
      memcpy(&value, &bits, 4);
      add(i, (double)value);
    }
  else
    for (int64_t i = 0; i < count; i++) add(i, (double)values[i]);
}

// The sum of (values - less)^2; nothing is taken away where `less` is null. Sixteen fixed lanes, added in one order, so
// that all builds give the same bits.
double gossamer_square(const float* __restrict__ values, const float* __restrict__ less, int64_t count) {
  typedef double Eight __attribute__((vector_size(64)));
  Eight lanes[2] = {};
  const auto eight = [](const float* from) __attribute__((always_inline)) {
    return __builtin_convertvector(load_eight(from), Eight);
  };
  const auto take = [&](int64_t i) __attribute__((always_inline)) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
      const int64_t at = i + half * 8;
      const Eight change = less ? eight(values + at) - eight(less + at) : eight(values + at);
      lanes[half] += change * change;
    }
  };
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) take(i);
  for (int lane = 0; i < count; i++, lane++) {
    const double change = less ? (double)values[i] - (double)less[i] : (double)values[i];
    lanes[lane / 8][lane % 8] += change * change;
  }
  lanes[0] += lanes[1];
  for (int half = 4; half; half /= 2)
    for (int lane = 0; lane < half; lane++) lanes[0][lane] += lanes[0][lane + half];
  return lanes[0][0];
}

// Copies numbers from any address; returns whether all of them are finite.
int64_t gossamer_copy(const uint8_t* __restrict__ from, int64_t count, float* __restrict__ to) {
  const uint32_t exponent = 0x7f800000;
  uint32_t odd = 0;
  for (int64_t i = 0; i < count; i++) {
    uint32_t bits;
    memcpy(&bits, from + 4 * i, 4);
    odd |= (bits & exponent) == exponent;
    memcpy(to + i, &bits, 4);
  }
  return !odd;
}

// The indices of bytes that are not zero, in order; returns how many. `to` has room for one more. Most bytes of a
// sparse mask are zero: eight at a time are passed over.
int64_t gossamer_indices(const uint8_t* mask, int64_t count, int64_t* to) {
  int64_t* next = to;
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    uint64_t eight;
    memcpy(&eight, mask + i, 8);
    if (!eight) continue;
    for (int64_t j = i; j < i + 8; j++) {
      *next = j;  // a store that is sometimes in vain is cheaper than a branch that is hard to foresee
      next += mask[j] != 0;
    }
  }
  for (; i < count; i++)
    if (mask[i]) *next++ = i;
  return next - to;
}

// Chosen rows of bytes as inputs of a model, byte * factor + offset, rounded twice as by torch. 0, or 1 if a place is
// not one of the `stored` rows.
int64_t gossamer_scale(const uint8_t* bytes, int64_t stored, int64_t size, const int64_t* places, int64_t count,
                       const float* __restrict__ factor, const float* __restrict__ offset, float* __restrict__ to) {
  for (int64_t row = 0; row < count; row++)
    if (places[row] < 0 || places[row] >= stored) return 1;
  for (int64_t row = 0; row < count; row++, to += size) {
    const uint8_t* from = bytes + places[row] * size;
    const uint8_t* next = bytes + places[row + 1 < count ? row + 1 : row] * size;
    for (int64_t i = 0; i < size; i += 64) {
      __builtin_prefetch(next + i);  // rows are far apart
      const int64_t end = i + 64 < size ? i + 64 : size;
      for (int64_t j = i; j < end; j++) to[j] = (float)from[j] * factor[j] + offset[j];
    }
  }
  return 0;
}

// Threads that take turns: the others wait here, or compute, while the one whose turn it is does all else.
void* gossamer_turns() { return new std::mutex; }
void gossamer_free_turns(void* turns) { delete (std::mutex*)turns; }
void gossamer_take_turn(void* turns) { ((std::mutex*)turns)->lock(); }
void gossamer_end_turn(void* turns) { ((std::mutex*)turns)->unlock(); }

// 0, or 1 if a label is not a class. `turns`: of the calling thread, which has its turn again at the end; or null.
int64_t gossamer_run(void* plan, void* workspace, Call* call, void* turns) {
  if (turns) gossamer_end_turn(turns);
  const bool done = run(*(Plan*)plan, *(Workspace*)workspace, *call);
  if (turns) gossamer_take_turn(turns);
  return done ? 0 : 1;
}

// A model for one example at a time; it keeps its own copy of the weights.
void* gossamer_single(const Step* steps, int64_t step_count, const Value* values, int64_t value_count, int64_t input,
                      int64_t output, const Stored* params) {
  return make_single(steps, step_count, values, value_count, input, output, params);
}
void gossamer_free_single(void* single) { delete (Single*)single; }
void* gossamer_single_memory(void* single) { return new SingleMemory(*(Single*)single); }
void gossamer_free_single_memory(void* memory) { delete (SingleMemory*)memory; }

// `x` is [example][channel][row][pixel], `outputs` [example][class].
void gossamer_run_single(void* single, void* memory, const float* x, int64_t count, float* outputs) {
  const Single& model = *(Single*)single;
  const Frame &in = model.values[model.input], &out = model.values[model.output];
  const long pixels = (long)in.channels * in.height * in.width;
  for (int64_t i = 0; i < count; i++) run_single(model, *(SingleMemory*)memory, x + i * pixels, outputs + i * out.channels);
}

}  // extern "C"
