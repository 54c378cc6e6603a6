// Text of values as Python and json.dumps write it, and JSON read into values.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "core/chat/jinja_value.h"

namespace megalith::jinja {

// Python's str(value) and repr(value). An undefined value is empty text.
std::string str(const Value& value);
std::string repr(const Value& value);

struct JsonStyle {
  bool ascii = false;                 // other characters as \uXXXX
  std::optional<std::string> indent;  // one level; absent: one line
  std::optional<std::string> item_separator;
  std::string key_separator = ": ";
  bool sorted = false;  // keys in order
};
std::string to_json(const Value& value, const JsonStyle& style);

// Parses strict JSON: UTF-8, each name once, at most 32 levels and 2^22 values, integers of 64 bits. The order of names
// is kept. `subject` is the file and line for an Error kFormat.
Value parse_json(std::string_view text, const std::string& subject);
// The same without parse_plain_json, which tests compare to it.
Value parse_any_json(std::string_view text, const std::string& subject);

}  // namespace megalith::jinja
