// What plan, a run's start and pages say of activations that move to the host.
#pragma once

#include <string>
#include <vector>

#include "apps/step_plans.h"
#include "apps/step_times.h"

namespace megalith {

// Of device memory, against a step that keeps all.
struct OffloadSaving {
  double theory = 0;                                                   // bytes: what is alive at the fullest moments
  double realised = 0;                                                 // bytes: what the blocks take
  double ratio() const { return theory > 0 ? realised / theory : 1; }  // R
};
OffloadSaving saving_of(const StepPlans& plans);

// Layers as "0-10,12".
std::string said_layers(const std::vector<std::int64_t>& layers);

// The table of what moves and what stays, why, and what it saves; `whose` such as " of stage 1". Empty where nothing
// was asked for.
std::string printed_offload(const StepPlans& plans, const std::string& whose);
// The step's copies; with rates also their times and the waits for them. Empty where nothing moves.
std::string printed_copies(const StepPlans& plans, std::int64_t microbatches, const StepTimes* times,
                           const std::string& whose);
// One line for the start of a run: "12 slots, 96.00 MiB of a microbatch, ...".
std::string said_offload(const StepPlans& plans);

}  // namespace megalith
