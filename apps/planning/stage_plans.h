// The memory of a run whose batch grows, planned before its first step.
#pragma once

#include "apps/config/options.h"
#include "apps/config/run_config.h"
#include "apps/run/step_plan.h"

namespace megalith {

// The plans of the largest stage, with room for each other stage of --rampup-batch-size: the layout of a few
// microbatches may take more than that of many. Without a ramp plan_steps().
StepPlans plan_stages(const Options& options, const RunConfig& config, int rank);
// Gives the plans of the largest stage that room.
void add_room_for_stages(const Options& options, const RunConfig& config, int rank, StepPlans& largest);

}  // namespace megalith
