// Runs segments as in the product. A step is recorded on the plan backend, laid out, and run in the planned arena, once
// eagerly or with each verb captured in a graph and replayed. The recording needs parameters at other addresses, so a
// test gives a function that builds its segment into a store. Each microbatch has a separate column and stash. On CUDA
// a run on other values precedes the capture: libraries initialize in the first call.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/device/graph.h"
#include "core/layers/segment.h"
#include "core/memory/arena.h"

namespace megalith::test {

using BuildSegment = std::function<std::unique_ptr<Segment>(ParameterStore&)>;

struct SegmentCase {
  BuildSegment build;
  DType dtype = DType::kFp32;
  DType main_grads_dtype = DType::kFp32;  // or dtype
  std::vector<Shape> inputs;              // shapes of the segment's tensors; rank 0: absent
  int gradients = 1;                      // number of outputs with a gradient; absent outputs have none
  std::int64_t sequences = 1;             // B
  std::int64_t seq_length = 1;            // S
  std::int64_t vocab = 0;                 // > 0: random tokens and labels below it
  std::int64_t experts = 0;               // > 0: there are counts for a loss over all microbatches
  SlotPolicies policies{};
  Mode mode = Mode::kTrain;
  bool deterministic = true;
  DeviceType device = DeviceType::kCpu;
  std::uint64_t seed = 7;
  float weight_std = -1;  // >= 0: all weights are redrawn with it, biases and norms too
  int microbatches = 1;
  bool delay_weights = false;  // each backward_weight after the last microbatch's backward_data
};

// Lists over microbatches hold the tensors of the first, then those of the second and so on.
struct SegmentResult {
  std::vector<std::vector<float>> outputs;
  std::vector<std::vector<float>> input_gradients;
  std::vector<std::string> names;  // parameter names, with their main gradients
  std::vector<std::vector<float>> weights;
  std::vector<std::vector<float>> main_gradients;
  std::vector<std::vector<float>> inputs;  // drawn values
  std::vector<std::vector<float>> output_gradients;
  float loss = 0;
  std::vector<float> sums;  // sums of the step, the loss first
  int captured_ops = 0;
  std::int64_t replays = 0;
  std::size_t arena_bytes = 0;
  std::map<std::string, std::size_t> activations;  // bytes that forward kept, by the name of the slot's kind
};

enum class RunMode { kEager, kReplay };
SegmentResult run_segment(const SegmentCase& test, RunMode run);

// Every output, gradient and loss, bit for bit.
void expect_same_bits(const SegmentResult& a, const SegmentResult& b);

}  // namespace megalith::test
