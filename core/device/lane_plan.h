// Spreads ops with dependencies over lanes, each of which runs its ops in order. A few lanes are faster than the full
// dependency graph: an edge between two lanes costs a GPU microseconds.
#pragma once

#include <cstddef>
#include <vector>

namespace megalith {

// For each op of a list, the ops that it follows; no op follows a later one.
using Dependencies = std::vector<std::vector<std::size_t>>;

struct LanePlan {
  std::vector<std::size_t> order;  // all ops, each after those that it follows
  std::vector<int> lane;           // lane of each op
  Dependencies follows;            // the given ones and the preceding op on the lane, without implied ones
};

// List scheduling by critical path (Graham 1969). The op and lane that can begin first are next. Ties go to the op with
// the longest path to the end, then to list order. `seconds`: per op; `between`: per edge between lanes.
LanePlan plan_lanes(const Dependencies& follows, const std::vector<double>& seconds, int lanes, double between);

}  // namespace megalith
