// Which buffers of a step captured graphs need at one place: a graph keeps the addresses of what its ops access, and of
// what a column's lists held when it was captured, for every microbatch that it is replayed for.
#pragma once

#include <cstddef>
#include <vector>

#include "core/instruments/timeline.h"
#include "core/memory/arena.h"
#include "graphs/run.h"

namespace megalith {

// Of each buffer that the arena recorded; empty: nothing is captured. Free are those that belong to segments which are
// neighbours and all run eagerly, that nobody else accesses or keeps, and that are in no list where a graph begins or
// ends. `entries`: where in the timeline each action begins.
std::vector<bool> held_by_graphs(const Timeline& timeline, const Arena& recording, const std::vector<Action>& actions,
                                 const std::vector<std::size_t>& entries, const RunPlan& plan);

}  // namespace megalith
