// Which ops are so short that a GPU runs those of a graph side by side (Graph::spread), and how long their memory is
// kept from others for that (plan_arena).
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/instruments/access.h"

namespace megalith {

// The mean op of a graph up to which its ops run side by side. Shorter ones do not fill a GPU, and most of their time
// is the way from one kernel to the next; longer ones fill it alone.
inline constexpr double kShortOp = 15e-6;

// Roughly, for an op of so many kernels in a chain: what counts is which one is longer than which.
inline double seconds_in_chain(const Access& access, std::size_t kernels) {
  constexpr double kKernel = 3e-6;  // with hardly any work
  constexpr double kBytes = 2.5e12, kFlops = 4e14;
  const Cost cost = access.cost();
  return static_cast<double>(kernels) * kKernel + cost.bytes / kBytes + cost.flops / kFlops;
}

// Ops of a layer's gradients, roughly. An op that may run beside those of the next layer would otherwise hold up
// whichever takes its memory.
inline constexpr std::int64_t kOpsBeside = 24;

}  // namespace megalith
