#pragma once

#include <algorithm>
#include <cstddef>
#include <string>

namespace megalith {

// Returns a bar such as "[=====>    ]" with `width` characters inside; a share outside of 0 to 1 is clamped.
inline std::string progress_bar(double share, std::size_t width) {
  std::string bar(static_cast<std::size_t>(std::clamp(share, 0.0, 1.0) * static_cast<double>(width)), '=');
  if (bar.size() < width) bar += '>';
  bar.resize(width, ' ');
  return "[" + bar + "]";
}

}  // namespace megalith
