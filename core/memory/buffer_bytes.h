// Sizes that pools and arenas reserve for a buffer.
#pragma once

#include <algorithm>
#include <cstddef>

namespace megalith {

inline constexpr std::size_t kBufferAlignment = 256;
// Larger sizes are negative ones converted to unsigned.
inline constexpr std::size_t kMaxBufferBytes = std::size_t{1} << 62;

// Returns a nonzero multiple of the alignment. `bytes` is at most kMaxBufferBytes.
constexpr std::size_t padded_bytes(std::size_t bytes) {
  return std::max(kBufferAlignment, (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment);
}

}  // namespace megalith
