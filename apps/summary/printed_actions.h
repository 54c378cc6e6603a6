// List of actions of --print-actions.
#pragma once

#include <string>

#include "apps/config/options.h"
#include "apps/config/run_config.h"

namespace megalith {

// Text of the actions of a training step of each stage's first rank.
std::string printed_actions(const Options& options, const RunConfig& config);

}  // namespace megalith
