// Runs the training step of a full GPT on one rank as in the product. build_gpt is recorded as a step on the plan
// backend, laid out, and run from the action list through SegmentRunner. Each test varies fields of ModelCase; weights,
// tokens and dropout depend only on its seed and the model.
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
  std::int64_t loss_chunk_size = 0;  // chunk of the head
  std::int64_t sequences = 2;        // B per microbatch
  int microbatches = 3;
  int in_flight = 1;           // microbatches ahead of the first backward: order of stage 0 of as many stages
  bool delay_weights = false;  // every backward_weight after the last backward_data
  bool replay = false;         // each verb of each segment is captured and replayed
  // With it, consecutive verbs are captured together, on other tokens than those of the replay. With one microbatch in
  // flight, that is all of it.
  bool replay_whole = false;
  GptFactories factories = {};
  // Replaces `factories`: objects with dedicated streams need the compute stream of the plan or of the run.
  std::function<GptFactories(Stream& compute)> factories_on = nullptr;
  MemorySharing* shares_memory = nullptr;  // group that shares the run's memory
  Mode mode = Mode::kTrain;                // kEval: forward only
  DeviceType device = DeviceType::kCpu;
  bool deterministic = true;
  std::uint64_t seed = 1;
};

struct ModelResult {
  std::vector<float> losses;  // per microbatch: sum over its tokens
  reference::GptTensors weights, gradients;
  std::vector<int> tokens, labels;  // all microbatches
  ArenaPlan plan;
  std::size_t planned_ops = 0;
  std::size_t accessed_bytes = 0;  // read and written
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
