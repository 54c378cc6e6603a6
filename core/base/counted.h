// Text of counts and of long lists in messages.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <concepts>
#include <string>
#include <string_view>
#include <vector>

namespace megalith {

// Formats "1 step", "2 steps". `many` is the plural if it is not `one` with an s.
std::string counted(std::integral auto number, std::string_view one, std::string_view many = {}) {
  if (number == 1) return fmt::format("1 {}", one);
  return many.empty() ? fmt::format("{} {}s", number, one) : fmt::format("{} {}", number, many);
}

// Lists at most 12 names: "a, b and 3 more".
inline std::string first_names(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 12;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kShown); ++i) text += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > kShown) text += fmt::format(" and {} more", names.size() - kShown);
  return text;
}

}  // namespace megalith
