// Actions of a rank in a step, as lists (parallel/pipeline_parallel/schedule.h).
#pragma once

#include <vector>

#include "apps/run/rank.h"

namespace megalith {

struct StepActions {
  std::vector<Action> train;
  std::vector<Action> evaluate;
  std::vector<int> units_ahead = {};  // units whose gathers both lists find started (fsdp/unshard_lowering.h)
};
StepActions step_actions(const Rank& rank);
}  // namespace megalith
