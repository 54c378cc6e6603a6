// Goes through the lines of a text, the words of a line, and so on, without copies.
#pragma once

#include <algorithm>
#include <string_view>

namespace megalith {

// Takes the part before the next `separator` off `rest`, and the separator; all of it where there is none.
inline std::string_view take_part(std::string_view& rest, char separator) {
  const std::size_t end = std::min(rest.find(separator), rest.size());
  const std::string_view part = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return part;
}

}  // namespace megalith
