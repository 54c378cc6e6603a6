// What a step of one rank takes and does, as data: made by a recording on the plan backend (plan_steps), read by all
// who forecast, check, run or print it.
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

// Memory layouts of the steps of a run.
struct StepPlans {
  ArenaPlan train;
  ArenaPlan evaluate;
  ArenaPlan host;             // of a training step: kept activations that are moved there
  OffloadChosen offload;      // which these are
  double train_flops = 0;     // per rank and step, as the ops count them (recompute included)
  std::size_t train_ops = 0;  // launched per step
  StepGraphs graphs;
  ExpertRoom room{};                   // where ranks share out experts
  double capacity_factor = 0;          // that gave it
  CategoryBytes persistent{};          // outside of the arena
  std::size_t checkpoint_staging = 0;  // bytes of host memory, with --async-save and steps to save
  const ArenaPlan& largest() const { return train.peak_bytes > evaluate.peak_bytes ? train : evaluate; }
  std::size_t block_bytes() const { return largest().peak_bytes; }
};

// Bytes of one rank by owner: what plan forecasts and what a run measures.
struct MemoryUse {
  CategoryBytes persistent{};  // parameters, main parameters, gradients, optimizer, ... outside the arena
  std::size_t arena = 0;       // size of the step's block
  CategoryBytes arena_live{};  // its content at the fullest moment of a training step
  std::map<std::string, std::size_t> activations;  // of these, kept activations by kind
  std::size_t total() const;
  std::vector<std::pair<std::size_t, std::string_view>> owners() const;  // the largest first; the arena is one
};
MemoryUse memory_use(const StepPlans& plans);
// The same bytes by the names that metrics and plan give their owners, `persistent` as they are or are forecast.
std::vector<std::pair<std::string, std::size_t>> bytes_by_owner(const CategoryBytes& persistent, const MemoryUse& use);

// What one rank enqueues in a training step, in the order in which it does. The step may have fewer microbatches than
// the run's, which would add the same actions once more.
struct StepRecording {
  StepPlans plans;
  Timeline timeline;                 // of two steps with --overlap-param-gather, else of one
  std::vector<PlannedCall> calls;    // of all groups
  std::vector<Action> actions;       // of the last step
  std::vector<std::size_t> entries;  // where in the timeline each of them begins
  std::int64_t microbatches = 0;     // of the recorded step
  // Of each action how many of the whole step's it stands for, where it is a unit's: more microbatches gather and
  // reduce a unit again; 1 for all others.
  std::vector<std::int64_t> stands_for;
  std::int64_t step_microbatches = 0;  // of the whole step
  RunPlan runs;                        // of the actions
  bool searches = true;                // for tighter layouts of memory (core/memory/arena.h)
};
}  // namespace megalith
