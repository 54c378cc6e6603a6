// Costs and content of a rank's step as data. A recording on the plan backend makes it (plan_steps) for forecasts,
// checks, runs and output.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/digest.h"
#include "core/instruments/timeline.h"
#include "core/memory/arena.h"
#include "core/memory/memory_pool.h"
#include "graphs/run.h"
#include "moe/expert_room.h"
#include "offload/policy.h"
#include "parallel/comm/plan_communicator.h"

namespace megalith {

// Graphs of a training step of one rank with --cuda-graph-impl; without graphs all ops are eager.
struct StepGraphs {
  int graphs = 0;                              // captured by a rank
  std::uint32_t modules = 0;                   // bit m: a graph holds a verb of SegmentModule m
  std::int64_t captured_ops = 0;               // in the graphs
  std::uint64_t digest_of_ops = kEmptyDigest;  // see GraphedRunner::Stats
  std::int64_t nodes = 0;                      // as Graph::num_nodes; approximate for a GPU
  std::int64_t replays = 0;                    // per step
  std::int64_t eager_ops = 0;                  // per step, outside of graphs
  std::size_t bytes() const;                   // expected device bytes, in addition to MemoryUse
  friend bool operator==(const StepGraphs&, const StepGraphs&) = default;
};

// Memory layouts of the steps of a run.
struct StepPlans {
  ArenaPlan train;
  ArenaPlan evaluate;
  ArenaPlan host;             // of a training step: offloaded activations
  OffloadChosen offload;      // the offloaded activations
  double train_flops = 0;     // per rank and step, as ops count them (with recompute)
  std::size_t train_ops = 0;  // launched per step
  StepGraphs graphs;
  ExpertRoom room{};                   // with expert parallelism
  double capacity_factor = 0;          // of `room`
  CategoryBytes persistent{};          // outside of the arena
  std::size_t checkpoint_staging = 0;  // bytes of host memory, with --async-save and steps to save
  const ArenaPlan& largest() const { return train.peak_bytes > evaluate.peak_bytes ? train : evaluate; }
  std::size_t block_bytes() const { return largest().peak_bytes; }
};

// Bytes of one rank by owner, forecast by plan and measured by a run.
struct MemoryUse {
  CategoryBytes persistent{};  // parameters, main parameters, gradients, optimizer, ... outside of the arena
  std::size_t arena = 0;       // size of the step's block
  CategoryBytes arena_live{};  // its content at peak memory of a training step
  std::map<std::string, std::size_t> activations;  // part of arena_live: kept activations by kind
  std::size_t total() const;
  std::vector<std::pair<std::size_t, std::string_view>> owners() const;  // largest first, with the arena
};
MemoryUse memory_use(const StepPlans& plans);
// Bytes by the owners' names in metrics and plan; `persistent` is measured or forecast.
std::vector<std::pair<std::string, std::size_t>> bytes_by_owner(const CategoryBytes& persistent, const MemoryUse& use);

// Work that one rank enqueues in a training step, in order. The step may have fewer microbatches than the run's, which
// would add the same actions.
struct StepRecording {
  StepPlans plans;
  Timeline timeline;                 // of two steps with --overlap-param-gather, else of one
  std::vector<PlannedCall> calls;    // of all groups
  std::vector<Action> actions;       // of the last step
  std::vector<std::size_t> entries;  // first entry of each action in the timeline
  std::int64_t microbatches = 0;     // of the recorded step
  // Number of actions of the whole step that each recorded action of a unit stands for: more microbatches gather and
  // reduce a unit again. 1 for other actions.
  std::vector<std::int64_t> stands_for;
  std::int64_t step_microbatches = 0;  // of the whole step
  GraphRunPlan runs;                   // of the actions
  std::vector<std::string> segments;   // their names
  bool searches = true;                // for tighter memory layouts (core/memory/arena.h)
  bool only_live_bytes = false;        // the training step has no memory layout (core/memory/live_bytes.h)
};
}  // namespace megalith
