// Properties of a step that its captured graphs depend on. If one changes, a replay would compute something else or
// access memory that it no longer owns.
#pragma once

#include <cstdint>
#include <string_view>

#include "parallel/pipeline_parallel/segment_runner.h"

namespace megalith {

struct GraphSignature {
  std::uint64_t actions = 0;       // the rank's list
  std::uint64_t plan = 0;          // the step's memory plan
  std::uint64_t addresses = 0;     // of the step's memory, parameters and gradients
  std::uint64_t microbatches = 0;  // per step
  std::uint64_t sequences = 0;     // per microbatch
  std::uint64_t seq_length = 0;    // tokens
  std::uint64_t gemms = 0;         // version of the table of GEMM algorithms
  std::uint64_t hooks = 0;         // number at each point of all segments
};

// Name of the first changed property; empty if none changed.
std::string_view difference(const GraphSignature& captured, const GraphSignature& now);

std::uint64_t digest_of_hooks(const SegmentRunner& segments);
std::uint64_t digest_of(const std::vector<Action>& actions);

}  // namespace megalith
