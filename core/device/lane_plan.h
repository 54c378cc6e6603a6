// Spreads ops that depend on each other over lanes, each of which runs its own one after the other. Few lanes are
// better than a graph of all dependencies alone: a GPU takes microseconds for each edge between two lanes.
#pragma once

#include <cstddef>
#include <vector>

namespace megalith {

// Of each op of a list, the ops that it follows; no op follows a later one.
using Dependencies = std::vector<std::vector<std::size_t>>;

struct LanePlan {
  std::vector<std::size_t> order;  // all ops, each behind those that it follows
  std::vector<int> lane;           // of each op
  Dependencies follows;  // the given ones and the op before on the lane, without those that another one implies
};

// Whichever op and lane can begin first are next; among equals the op with the longest way to the end, then the first
// of the list (list scheduling, Graham 1969; by critical path). `seconds`: of each op; `between`: of an edge from one
// lane to another.
LanePlan plan_lanes(const Dependencies& follows, const std::vector<double>& seconds, int lanes, double between);

}  // namespace megalith
