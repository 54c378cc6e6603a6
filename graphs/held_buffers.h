// Buffers of a step that need a fixed address. A graph keeps the addresses that its ops access, and those in the
// column's lists at capture. All replays of the graph use them.
#pragma once

#include <cstddef>
#include <vector>

#include "core/instruments/timeline.h"
#include "core/memory/arena.h"
#include "graphs/run.h"

namespace megalith {

// One flag for each buffer that the arena recorded; empty if nothing is captured. A buffer is not held if all its
// accesses and stash entries belong to one block of adjacent eager segments. It must also be in no list where a graph
// begins or ends. `entries`: timeline position at which each action begins.
std::vector<bool> held_by_graphs(const Timeline& timeline, const Arena& recording, const std::vector<Action>& actions,
                                 const std::vector<std::size_t>& entries, const GraphRunPlan& plan);

}  // namespace megalith
