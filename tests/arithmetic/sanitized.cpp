// Runs plans through the C interface under the sanitizers: random weights, masks and batches.
//
// The plans come from a file that test_sanitizers.py writes. Every tensor has a heap block of its
// exact size, so that the address sanitizer sees each step beyond it. The memory of activations is
// one block: it is filled with NaN, and numbers that depend on what was never written show up.
#include <cstdio>
#include <limits>
#include <random>

#include "gossamer.cpp"

namespace {

struct Header {
  int64_t steps, values, input, output, floats, params, trained;
};

struct Model {
  Header header;
  std::vector<Step> steps;
  std::vector<Value> values;
  std::vector<int64_t> counts;  // of the parameters

  bool read(FILE* file) {
    if (fread(&header, sizeof header, 1, file) != 1) return false;
    return take(file, steps, header.steps) && take(file, values, header.values) && take(file, counts, header.params);
  }
  template <class T>
  static bool take(FILE* file, std::vector<T>& to, int64_t count) {
    to.resize((size_t)count);
    return fread(to.data(), sizeof(T), to.size(), file) == to.size();
  }
};

enum MaskKind { NO_MASK, EMPTY, EMPTY_ROWS, RANDOM, FULL, MASK_KINDS };

std::mt19937 engine(1);
std::vector<float> numbers(size_t count, float least = -1, float most = 1) {
  std::uniform_real_distribution<float> draw(least, most);
  std::vector<float> all(count);
  for (float& each : all) each = draw(engine);
  return all;
}

std::vector<uint8_t> mask_of(MaskKind kind, size_t count, size_t row) {
  std::vector<uint8_t> mask(count);
  for (size_t i = 0; i < count; i++)
    mask[i] = kind == FULL || (kind == RANDOM && engine() % 4 == 0) || (kind == EMPTY_ROWS && i / row % 2 && engine() % 2);
  return mask;
}

bool finite(const std::vector<float>& all) {
  return std::all_of(all.begin(), all.end(), [](float each) { return std::isfinite(each); });
}

// Whether a mask has as many indices as its lists, with no more room than they need.
bool indices_fit(void* lists, const std::vector<uint8_t>& mask) {
  std::vector<int64_t> indices((size_t)gossamer_lists_count(lists) + 1);
  return gossamer_indices(mask.data(), (int64_t)mask.size(), indices.data()) + 1 == (int64_t)indices.size();
}

// Trains and evaluates a model once; false if a result is not a number.
bool run(const Model& model, void* plan, MaskKind kind, int64_t batch, bool everywhere) {
  const Header& h = model.header;
  std::vector<void*> lists((size_t)h.params, nullptr);
  std::vector<std::vector<float>> values, grads, velocity, anchors;
  std::vector<std::vector<uint8_t>> marks;
  for (int64_t p = 0; p < h.params; p++) {
    size_t count = (size_t)model.counts[p];
    for (int64_t s = 0; s < h.steps; s++)
      if (model.steps[s].weight == p && (model.steps[s].kind == CONVOLUTION || model.steps[s].kind == LINEAR) && kind) {
        const size_t row = count / (size_t)model.values[model.steps[s].output].channels;
        const std::vector<uint8_t> mask = mask_of(kind, count, row);
        lists[p] = gossamer_lists(plan, s, mask.data());
        if (!gossamer_lists_fit(lists[p], mask.data(), (int64_t)count) || !indices_fit(lists[p], mask)) return false;
      }
    const std::vector<float> full = numbers(count, p < h.trained ? -1.f : .5f, 1);  // variances are positive
    std::vector<float> packed(lists[p] ? (size_t)gossamer_lists_count(lists[p]) : count);
    if (lists[p]) gossamer_pack(lists[p], full.data(), packed.data());
    values.push_back(lists[p] ? packed : full);
    grads.push_back(std::vector<float>(everywhere ? count : packed.size()));
    velocity.push_back(std::vector<float>(packed.size()));
    anchors.push_back(numbers(packed.size()));
    marks.push_back(mask_of(RANDOM, packed.size(), 1));
  }
  std::vector<Param> params;
  std::vector<float> cuts((size_t)h.params, -1.f);
  for (int64_t p = 0; p < h.params; p++)
    params.push_back({values[p].data(), p < h.trained ? grads[p].data() : nullptr, velocity[p].data(), anchors[p].data(),
                      (int64_t)values[p].size(), p % 2 ? marks[p].data() : nullptr, (Lists*)lists[p], everywhere,
                      everywhere ? &cuts[p] : nullptr, 1, 3});

  const Value& input = model.values[h.input];
  const int64_t classes = model.values[h.output].channels, pixels = input.height * input.width;
  const std::vector<float> x = numbers((size_t)(batch * input.channels * pixels));
  std::vector<int64_t> labels((size_t)batch);
  for (int64_t& label : labels) label = (int64_t)(engine() % classes);
  const std::vector<uint64_t> seeds(model.steps.size(), 7);
  std::vector<float> outputs((size_t)(batch * classes));
  Call call{};
  call.x = x.data(), call.labels = labels.data(), call.batch = batch;
  if (engine() % 2) call.stride_n = input.channels * pixels, call.stride_c = pixels, call.stride_y = input.width, call.stride_x = 1;
  else call.stride_n = input.channels * pixels, call.stride_c = 1, call.stride_y = input.width * input.channels, call.stride_x = input.channels;
  call.params = params.data(), call.param_count = h.params, call.seeds = seeds.data();
  call.training = call.backward = call.first = 1;
  call.update = !everywhere;  // SGD wants gradients where it has values
  call.rate = .01, call.momentum = .9, call.weight_decay = .001, call.clip = 1, call.prox = .1;
  call.outputs = outputs.data();

  Workspace memory;
  auto spoil = [&] {
    float* arena = memory.arena.room((size_t)(h.floats * batch));
    std::fill(arena, arena + memory.arena.size(), std::numeric_limits<float>::quiet_NaN());
    std::fill(memory.sums.data(), memory.sums.data() + memory.sums.size(), std::numeric_limits<float>::quiet_NaN());
  };
  void* turns = gossamer_turns();
  gossamer_take_turn(turns);
  bool good = true;
  for (int step = 0; step < 2; step++, call.first = 0) {
    spoil();
    good = good && !gossamer_run(plan, &memory, &call, turns) && std::isfinite(call.loss) && finite(outputs);
    for (const auto& each : grads) good = good && finite(each);
  }
  call.training = call.backward = call.update = 0, call.labels = nullptr;
  spoil();
  good = good && !gossamer_run(plan, &memory, &call, turns) && finite(outputs);
  labels[0] = classes, call.labels = labels.data();
  good = good && gossamer_run(plan, &memory, &call, turns) == 1;
  gossamer_end_turn(turns);
  gossamer_free_turns(turns);
  for (int64_t p = 0; p < h.params; p++)
    if (lists[p]) {
      std::vector<float> full((size_t)model.counts[p]);
      gossamer_unpack(lists[p], values[p].data(), full.data());
      gossamer_free_lists(lists[p]);
    }
  return good;
}

// Evaluates a model one example at a time, from weights as a file holds them.
bool run_alone(const Model& model, MaskKind kind, bool sparse) {
  const Header& h = model.header;
  std::vector<std::vector<float>> values;
  std::vector<std::vector<uint8_t>> bits;
  std::vector<Stored> params;
  for (int64_t p = 0; p < h.params; p++) {
    const size_t count = (size_t)model.counts[p];
    const std::vector<uint8_t> mask = mask_of(kind, count, 3);
    values.push_back(numbers(kind ? (size_t)std::count(mask.begin(), mask.end(), 1) : count, .5f, 1));
    bits.push_back(std::vector<uint8_t>(kind ? (count + 7) / 8 : 0));
    if (kind)
      for (size_t i = 0; i < count; i++) bits[p][i / 8] |= (uint8_t)(mask[i] << i % 8);
  }
  for (int64_t p = 0; p < h.params; p++) params.push_back({values[p].data(), kind ? bits[p].data() : nullptr, sparse});
  const Value &input = model.values[h.input], &output = model.values[h.output];
  const std::vector<float> x = numbers((size_t)(3 * input.channels * input.height * input.width));
  std::vector<float> outputs((size_t)(3 * output.channels), std::numeric_limits<float>::quiet_NaN());
  void* single = gossamer_single(model.steps.data(), h.steps, model.values.data(), h.values, h.input, h.output, params.data());
  void* memory = gossamer_single_memory(single);
  gossamer_run_single(single, memory, x.data(), 3, outputs.data());
  gossamer_free_single_memory(memory), gossamer_free_single(single);
  return finite(outputs);
}

}  // namespace

int main(int, char** arguments) {
  FILE* file = fopen(arguments[1], "rb");
  int bad = 0, runs = 0, number = 0;
  for (Model model; model.read(file); number++) {
    void* plan = gossamer_plan(model.steps.data(), model.header.steps, model.values.data(), model.header.values,
                               model.header.input, model.header.output, model.header.floats);
    for (int kind = 0; kind < MASK_KINDS; kind++)
      for (int64_t batch : {1, 3, 7, 10, 37, 50})
        for (bool everywhere : {false, true}) {
          runs++;
          if (run(model, plan, (MaskKind)kind, batch, everywhere)) continue;
          bad++;
          printf("model %d, masks %d, batch %d, everywhere %d: not a number\n", number, kind, (int)batch, everywhere);
        }
    gossamer_free_plan(plan);
    for (int kind = 0; kind < MASK_KINDS; kind++)
      for (bool sparse : {false, true}) {
        runs++;
        if (run_alone(model, (MaskKind)kind, sparse)) continue;
        bad++;
        printf("model %d, masks %d, sparse %d: not a number\n", number, kind, sparse);
      }
  }
  fclose(file);
  printf("%d runs\n", runs);
  return bad ? 1 : 0;
}
