// What a step takes, recorded on the plan backend before anything is allocated.
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/offload_chosen.h"
#include "apps/planned_graphs.h"
#include "apps/run_config.h"
#include "core/device/arena.h"
#include "core/device/memory_pool.h"
#include "core/device/timeline.h"
#include "graphs/run.h"
#include "moe/expert_room.h"
#include "parallel/comm/plan_communicator.h"

namespace megalith {

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

// Records a training and an evaluation step of one rank without computing anything. `offloaded`: what moves to the
// host, where that was chosen before and is to stay; else it is chosen by a recording without.
StepPlans plan_steps(const Options& options, const RunConfig& config, int rank,
                     const std::optional<OffloadChosen>& offloaded = {});

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
  bool searches = true;                // for tighter layouts of memory (core/device/arena.h)
};
struct RecordSpec {
  std::int64_t most_microbatches = 0;  // a longer step is recorded with as many as show the schedule's pattern
  std::size_t most_memory = 0;         // bytes; of a step that needs more no times are asked for; 0: no limit
  bool searches = true;                // as StepRecording::searches
};
StepRecording record_step(const Options& options, const RunConfig& config, int rank, const RecordSpec& spec);

// The actions of a training step of each stage's first rank, as text.
std::string printed_actions(const Options& options, const RunConfig& config);

}  // namespace megalith
