// Records a step of one rank on the plan backend, before anything is allocated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "apps/config/options.h"
#include "apps/config/run_config.h"
#include "apps/run/step_plan.h"

namespace megalith {

// Records a training and an evaluation step of one rank without computing anything. `offloaded`: what moves to the
// host, where that was chosen before and is to stay; else it is chosen by a recording without.
StepPlans plan_steps(const Options& options, const RunConfig& config, int rank,
                     const std::optional<OffloadChosen>& offloaded = {});

// The plans of the largest stage, with room for each other stage of --rampup-batch-size: the layout of a few
// microbatches may take more than that of many. Without a ramp plan_steps().
StepPlans plan_stages(const Options& options, const RunConfig& config, int rank);
// Gives the plans of the largest stage that room.
void add_room_for_stages(const Options& options, const RunConfig& config, int rank, StepPlans& largest);

struct RecordSpec {
  std::int64_t most_microbatches = 0;  // a longer step is recorded with as many as show the schedule's pattern
  std::size_t most_memory = 0;         // bytes; of a step that needs more no times are asked for; 0: no limit
  bool searches = true;                // as StepRecording::searches
};
StepRecording record_step(const Options& options, const RunConfig& config, int rank, const RecordSpec& spec);

// The run with as few microbatches a step as show the schedule's pattern.
RunConfig with_few_microbatches(const RunConfig& config);

}  // namespace megalith
