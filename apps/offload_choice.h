// What --offload-modules and its like move of a stage's kept activations, found in the recording of a step without.
#pragma once

#include <vector>

#include "apps/rank.h"

namespace megalith {

bool offloads(const Options& options);

// Of a plain training step of `rank`, which is on the plan backend: its actions, and where in `timeline` each begins.
OffloadPoints offload_points(const Rank& rank, const Timeline& timeline, const std::vector<Action>& actions,
                             const std::vector<std::size_t>& entries);

}  // namespace megalith
