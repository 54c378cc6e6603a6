// The list of actions that --print-actions prints.
#pragma once

#include <string>

#include "apps/config/options.h"
#include "apps/config/run_config.h"

namespace megalith {

// The actions of a training step of each stage's first rank, as text.
std::string printed_actions(const Options& options, const RunConfig& config);

}  // namespace megalith
