// What the graphs of a training step hold, by a recording of it, and the lines about the graphs of all ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/digest.h"

namespace megalith {

struct TrainingOptions;

// How a training step of one rank runs with --cuda-graph-impl; without graphs all of its ops are eager.
struct StepGraphs {
  int graphs = 0;                              // that a rank captures
  std::uint32_t modules = 0;                   // bit m: a verb of SegmentModule m is in one of them
  std::int64_t captured_ops = 0;               // in them
  std::uint64_t digest_of_ops = kEmptyDigest;  // as GraphedRunner::Stats
  std::int64_t nodes = 0;                      // likewise, as Graph::num_nodes counts: of a GPU about as many
  std::int64_t replays = 0;                    // a step
  std::int64_t eager_ops = 0;                  // a step, outside of graphs
  std::size_t bytes() const;  // of the device, as expected: what the driver takes in addition to MemoryUse
  friend bool operator==(const StepGraphs&, const StepGraphs&) = default;
};

// Error kUsage where a module of --cuda-graph-modules is in no graph of any of `ranks`, which stand for all; but for
// moe_preprocess where moe_router is, as only experts on other ranks have rows dispatched. Nothing with --skip-train.
void check_captured_modules(const TrainingOptions& train, const std::vector<StepGraphs>& ranks);

// The modules that graphs hold, on how many of `ranks`, how many graphs these have and when they are captured; empty
// without graphs: "attn, mlp on 2 of 4 ranks; 8 to 16 graphs a rank, captured after 1 warm-up step".
std::string said_graphs(const TrainingOptions& train, const std::vector<StepGraphs>& ranks);
// Lines of one rank's; empty where nothing is captured.
std::string printed(const StepGraphs& graphs, const TrainingOptions& train, const std::string& whose);

}  // namespace megalith
