// What a rank does in a step, as lists of actions (parallel/pipeline_parallel/schedule.h).
#pragma once

#include <vector>

#include "apps/run/rank.h"

namespace megalith {

struct StepActions {
  std::vector<Action> train;
  std::vector<Action> evaluate;
  std::vector<int> units_ahead = {};  // whose gathers both find started (fsdp/unshard_lowering.h)
};
StepActions step_actions(const Rank& rank);
}  // namespace megalith
