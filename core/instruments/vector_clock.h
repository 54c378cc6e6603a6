// Vector clock: number of entries per lane that are known to be complete (Fidge 1988, Mattern 1989).
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace megalith {

using VectorClock = std::vector<std::int64_t>;

inline void merge(VectorClock& clock, const VectorClock& other) {
  clock.resize(std::max(clock.size(), other.size()), 0);
  for (std::size_t i = 0; i < other.size(); ++i) clock[i] = std::max(clock[i], other[i]);
}

}  // namespace megalith
