// Choice of the kept activations that --offload-modules and related flags move, from a recording without offload.
#pragma once

#include "apps/run/rank.h"
#include "apps/run/step_plan.h"
#include "offload/policy.h"

namespace megalith {

bool offloads(const Options& options);

// Chosen offloads; `recording` is a plain training step of `plain`, on the plan backend.
OffloadChosen choose_offloads(const Rank& plain, const StepRecording& recording);

}  // namespace megalith
