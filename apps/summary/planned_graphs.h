// What the graphs of a training step hold, by a recording of it, and the lines about the graphs of all ranks.
#pragma once

#include <string>
#include <vector>

#include "apps/run/step_plan.h"
#include "core/base/text/table.h"

namespace megalith {

struct Options;

// Error kUsage where a module of --cuda-graph-modules is in no graph of any of `ranks`, which stand for all; but for
// moe_preprocess where moe_router is, as only experts on other ranks have rows dispatched. Nothing with --skip-train.
void check_captured_modules(const Options& options, const std::vector<StepGraphs>& ranks);

// The modules that graphs hold, on how many of `ranks`, how many graphs these have and when they are captured; empty
// without graphs: "attn, mlp on 2 of 4 ranks; 8 to 16 graphs a rank, captured after 1 warm-up step".
std::string said_graphs(const Options& options, const std::vector<StepGraphs>& ranks);
// Of one rank; without rows where nothing is captured.
Table graphs_table(const StepGraphs& graphs, const Options& options, const std::string& whose);

}  // namespace megalith
