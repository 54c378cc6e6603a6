// Splitter of a text into lines or words without copies.
#pragma once

#include <algorithm>
#include <string_view>

namespace megalith {

// Removes the text before the next `separator`, and the separator, from `rest`; all of `rest` without a separator.
inline std::string_view take_part(std::string_view& rest, char separator) {
  const std::size_t end = std::min(rest.find(separator), rest.size());
  const std::string_view part = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return part;
}

}  // namespace megalith
