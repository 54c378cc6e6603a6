// Flags that make a layout fit the memory of a device.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "apps/config/options.h"
#include "parallel/cost/rates.h"

namespace megalith {

struct FittingFlags {
  std::string flags;
  std::size_t bytes = 0;  // largest rank with these flags
};

// Finds flags with which each rank of `options` (complete) needs at most `max_memory` bytes, those that cost least time
// first. If one change is enough, the result has up to three of them, else one entry that combines several. Empty if
// no combination fits.
std::vector<FittingFlags> find_fitting_flags(const Options& options, int world, const Rates& rates,
                                             std::size_t max_memory);

}  // namespace megalith
