// Content of a training step's graphs, from its recording, and the lines about the graphs of all ranks.
#pragma once

#include <string>
#include <vector>

#include "apps/run/step_plan.h"
#include "core/base/text/table.h"

namespace megalith {

struct Options;

// Fails with kUsage if a module of --cuda-graph-modules is in no graph of `ranks`, which represent all ranks. Exempt is
// moe_preprocess next to moe_router, as only experts on other ranks have rows dispatched. No check with --skip-train.
void check_captured_modules(const Options& options, const std::vector<StepGraphs>& ranks);

// Text about the captured modules, their ranks, the number of graphs and the time of capture; empty without graphs:
// "attn, mlp on 2 of 4 ranks; 8 to 16 graphs a rank, captured after 1 warm-up step".
std::string describe_graphs(const Options& options, const std::vector<StepGraphs>& ranks);
// Table of one rank's graphs; without rows if nothing is captured.
Table graphs_table(const StepGraphs& graphs, const Options& options, const std::string& whose);

}  // namespace megalith
