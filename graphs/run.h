// Runs: the verb actions that one graph holds. A run is consecutive verbs of one microbatch in segments of the chosen
// modules, with the kWaitExchange of their returns. The start of such a verb's exchange is a separate run, captured on
// the exchange's stream. A run ends wherever any microbatch of its chunk has another action or a hook. Therefore all
// microbatches split into the same runs, and those of one column share a graph with fixed addresses.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "parallel/pipeline_parallel/segment_runner.h"

namespace megalith {

// Modules of --cuda-graph-modules.
struct GraphModules {
  bool attention = false;     // one graph for each attention
  bool mlp = false;           // one for each MLP
  bool moe_router = false;    // one for each router of experts
  bool moe_dispatch = false;  // one for each dispatch
  bool moe = false;           // one for each layer of experts, including its router
  bool own = false;           // one for each layer of your own
  bool layer = false;         // layers; consecutive layers share one graph
  // backward_data leaves work in flight that the segment's backward_weight waits for, so one graph holds both.
  bool joins_backward = false;
};

struct GraphRun {
  std::size_t first = 0;  // index of its first action
  std::size_t count = 0;
  int graph = 0;
};

struct GraphRunPlan {
  std::vector<GraphRun> runs;  // ascending
  int graphs = 0;              // distinct graphs, numbered by their first run
};

// Groups `actions`, which have columns and segments. Exit code 9 if a run leaves returns in flight that are waited for
// outside. The same for a hook between two verbs of a layer under `layer`, or of a layer of experts under `moe`. The
// error reports the hook.
GraphRunPlan group_runs(const std::vector<Action>& actions, const SegmentRunner& segments, const GraphModules& modules);
const Action& last_verb(const std::vector<Action>& actions, const GraphRun& run);
// Graph of each action of the list; -1: none.
std::vector<int> graph_of_each(const std::vector<Action>& actions, const GraphRunPlan& plan);

// "layer 0 attention forward to layer 3 mlp forward, column 2"
std::string name_of(const std::vector<Action>& actions, const GraphRun& run, const SegmentRunner& segments);

}  // namespace megalith
