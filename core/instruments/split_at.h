// Byte ranges keyed by their first address, for the state of the hazard checker.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

namespace megalith {

// Splits the range that contains `at`, so that one part begins there. Range needs a member `end`.
template <class Range>
void split_at(std::map<std::uintptr_t, Range>& ranges, std::uintptr_t at) {
  auto found = ranges.upper_bound(at);
  if (found == ranges.begin()) return;
  --found;
  if (found->first == at || found->second.end <= at) return;
  Range upper = found->second;
  found->second.end = at;
  ranges.emplace(at, std::move(upper));
}

}  // namespace megalith
