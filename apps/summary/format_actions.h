// List of actions of --print-actions.
#pragma once

#include <string>
#include <vector>

#include "apps/config/options.h"
#include "apps/config/run_config.h"
#include "graphs/run.h"

namespace megalith {

// Text of the actions of a training step of each stage's first rank.
std::string format_actions(const Options& options, const RunConfig& config);

// One line per action: its number, the name of its segment in `segments` and the number of the graph that holds it.
std::vector<std::string> action_lines(const std::vector<Action>& actions, const std::vector<std::string>& segments,
                                      const GraphRunPlan& runs);

}  // namespace megalith
