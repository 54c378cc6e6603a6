// What pools and arenas take for a buffer.
#pragma once

#include <algorithm>
#include <cstddef>

namespace megalith {

inline constexpr std::size_t kBufferAlignment = 256;
// Larger sizes are negative ones turned unsigned.
inline constexpr std::size_t kMaxBufferBytes = std::size_t{1} << 62;

// A multiple of the alignment, and not zero. `bytes` is at most kMaxBufferBytes.
constexpr std::size_t padded_bytes(std::size_t bytes) {
  return std::max(kBufferAlignment, (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment);
}

}  // namespace megalith
