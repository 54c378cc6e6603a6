// How streams of two GPUs wait for each other inside a graph: by words in each other's memory.
#pragma once

#include <cstdint>

#include "core/device/cuda_stream.h"

namespace megalith {

// Writes `value` to *theirs, waits until *mine is not 0, sets it to 0 again, and reports an error if it was not
// `expected`. What ran on this stream before is visible to whoever saw the value. Returns at once when *stop is not 0.
void meet_peers(CudaStream& stream, std::uint64_t* theirs, std::uint64_t value, std::uint64_t* mine,
                std::uint64_t expected, const std::uint32_t* stop);

}  // namespace megalith
