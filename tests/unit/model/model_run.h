// Runs the training step of a whole GPT on one rank as the product does: build_gpt, a step recorded on the plan backend
// and laid out, then run from the action list through SegmentRunner. What each test varies is a field of ModelCase;
// weights, tokens and dropout depend on its seed and on the model alone.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/memory/arena.h"
#include "core/model/config.h"
#include "core/model/gpt.h"
#include "parallel/pipeline_parallel/lowering.h"
#include "parallel/pipeline_parallel/segment_runner.h"
#include "tests/reference/gpt.h"

namespace megalith {
class MemorySharing;
}

namespace megalith::test {

struct ModelCase {
  ModelConfig config;  // resolved
  RecomputeLayers recompute = {};
  SlotPolicies policies{};
  std::int64_t loss_chunk_size = 0;  // of the head
  std::int64_t sequences = 2;        // B per microbatch
  int microbatches = 3;
  int in_flight = 1;           // the order of stage 0 of as many stages: so many microbatches before the first backward
  bool delay_weights = false;  // every backward_weight after the last backward_data
  bool replay = false;         // each verb of each segment is captured and replayed
  // With it: verbs that follow each other, with one microbatch in flight all of it, are captured together, on other
  // tokens than they are replayed with.
  bool replay_whole = false;
  GptFactories factories = {};
  // In their place, for the plan and for the run: what has streams of its own needs the plan's, or those that compute.
  std::function<GptFactories(Stream& compute)> factories_on = nullptr;
  MemorySharing* shares_memory = nullptr;  // of the run, with whom
  Mode mode = Mode::kTrain;                // kEval: forward only
  DeviceType device = DeviceType::kCpu;
  bool deterministic = true;
  std::uint64_t seed = 1;
};

struct ModelResult {
  std::vector<float> losses;  // per microbatch: sum over its tokens
  reference::GptTensors weights, gradients;
  std::vector<int> tokens, labels;  // of all microbatches
  ArenaPlan plan;
  std::size_t planned_ops = 0;
  std::size_t accessed_bytes = 0;  // by those: read and written
  std::size_t touched_bytes = 0;
  int columns = 0;
  int graphs = 0;
  int captured_ops = 0;
  std::int64_t replays = 0;
};

ModelResult run_model(const ModelCase& test);

// Every loss and gradient, bit for bit.
void expect_same_bits(const ModelResult& a, const ModelResult& b);

// Random weights of every parameter, norms and biases too, as rounded by the model's dtype.
reference::GptTensors draw_weights(Stream& stream, ParameterStore& store, std::uint64_t seed);

// The same model and the same samples for the reference.
reference::GptConfig reference_config(const ModelConfig& config);
reference::GptBatch reference_batch(const ModelCase& test, const ModelResult& result);

}  // namespace megalith::test
