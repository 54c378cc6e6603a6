// Runs: which of a rank's verb actions one graph holds. A run is consecutive verbs of one microbatch in segments of the
// chosen modules, and the kWaitReturn of what they leave on its way. It ends wherever, in any microbatch of its chunk,
// another action stands or a hook does, so that runs of all microbatches are cut alike and those in one column share a
// graph: it reads and writes the same addresses.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "parallel/pipeline_parallel/segment_runner.h"

namespace megalith {

// Of --cuda-graph-modules.
struct GraphModules {
  bool attention = false;     // a graph for each attention,
  bool mlp = false;           // for each MLP
  bool moe_router = false;    // for each router of experts,
  bool moe_dispatch = false;  // for each dispatch to their ranks,
  bool moe = false;           // and for each layer of experts, its router included
  bool own = false;           // for each layer of your own
  bool layer = false;         // whole layers, as many in one graph as stand together
  // A segment's backward_data leaves work under way that its backward_weight waits for: both are in one graph.
  bool weights_behind = false;
};

struct Run {
  std::size_t first = 0;  // action
  std::size_t count = 0;
  int graph = 0;
};

struct RunPlan {
  std::vector<Run> runs;  // ascending
  int graphs = 0;         // distinct ones, numbered by their first run
};

// `actions` with columns and segments. A run that leaves something on its way which is waited for outside, and a hook
// between two verbs of a layer, where whole layers were asked for, or of a layer of experts, where these were, is an
// error with exit code 9 that names it.
RunPlan group_runs(const std::vector<Action>& actions, const SegmentRunner& segments, const GraphModules& modules);
const Action& last_verb(const std::vector<Action>& actions, const Run& run);
// Of each of the list's actions the graph that holds it; -1: none.
std::vector<int> graph_of_each(const std::vector<Action>& actions, const RunPlan& plan);

// "layer 0 attention forward to layer 3 mlp forward, column 2"
std::string name_of(const std::vector<Action>& actions, const Run& run, const SegmentRunner& segments);

}  // namespace megalith
