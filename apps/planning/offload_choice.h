// What --offload-modules and its like move of a stage's kept activations, found in the recording of a step without.
#pragma once

#include "apps/run/rank.h"
#include "apps/run/step_plan.h"
#include "offload/policy.h"

namespace megalith {

bool offloads(const Options& options);

// `recording` is of a plain training step of `plain`, which is on the plan backend.
OffloadChosen choose_offloads(const Rank& plain, const StepRecording& recording);

}  // namespace megalith
