// Recording of a step of one rank on the plan backend, ahead of any allocation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "apps/config/options.h"
#include "apps/config/run_config.h"
#include "apps/run/step_plan.h"

namespace megalith {

// Records a training and an evaluation step of one rank without computing. `offloaded`: an earlier choice of offloads,
// which is kept; otherwise a recording without offload decides.
StepPlans plan_steps(const Options& options, const RunConfig& config, int rank,
                     const std::optional<OffloadChosen>& offloaded = {});

// Plans of the largest stage, with memory for each other stage of --rampup-batch-size: few microbatches may need more
// memory than many. Without a ramp the result is that of plan_steps().
StepPlans plan_stages(const Options& options, const RunConfig& config, int rank);
// Adds that memory to the plans of the largest stage.
void add_room_for_stages(const Options& options, const RunConfig& config, int rank, StepPlans& largest);

struct RecordSpec {
  std::int64_t max_microbatches = 0;  // a longer step is recorded with as many as show the schedule's pattern
  std::size_t max_memory = 0;         // bytes; larger steps get no times; 0: no limit
  bool searches = true;               // as StepRecording::searches
  bool only_live_bytes = false;       // as StepRecording::only_live_bytes
  bool evaluates = true;              // plans the evaluation too
};
StepRecording record_step(const Options& options, const RunConfig& config, int rank, const RecordSpec& spec);
// Plans the evaluation of a recording without one.
void add_evaluation(const Options& options, const RunConfig& config, int rank, const RecordSpec& spec,
                    StepPlans& plans);

// Run with the fewest microbatches per step that show the schedule's pattern.
RunConfig with_few_microbatches(const Options& options, const RunConfig& config);

}  // namespace megalith
