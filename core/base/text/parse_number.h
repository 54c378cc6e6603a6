#pragma once

#include <charconv>
#include <optional>
#include <string_view>

namespace megalith {

// The number that the whole of `text` is, as std::from_chars reads it; none for anything else.
template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace megalith
