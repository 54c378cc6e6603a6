// Limits for short ops: a GPU runs the short ops of a graph concurrently (Graph::spread), for which plan_arena keeps
// their memory longer.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/instruments/access.h"

namespace megalith {

// Largest mean seconds of a graph's ops for which they run concurrently. Shorter ops do not fill a GPU and mostly wait
// for the next kernel. Longer ops fill it alone.
inline constexpr double kShortOp = 15e-6;

// Estimates the seconds of an op of N kernels in a chain. Only the order of the estimates matters.
inline double seconds_in_chain(const Access& access, std::size_t kernels) {
  constexpr double kKernel = 3e-6;  // with hardly any work
  constexpr double kBytes = 2.5e12, kFlops = 4e14;
  const Cost cost = access.cost();
  return static_cast<double>(kernels) * kKernel + cost.bytes / kBytes + cost.flops / kFlops;
}

// Rough number of ops of a layer's gradients. Such an op may run concurrently with ops of the next layer, and would
// otherwise delay the op that reuses its memory.
inline constexpr std::int64_t kConcurrentOps = 24;

}  // namespace megalith
