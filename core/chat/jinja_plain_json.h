// Reader of common JSON, several times as fast as the general one.
#pragma once

#include <optional>
#include <string_view>

#include "core/chat/jinja_value.h"

namespace megalith::jinja {

// Returns the value of a JSON text. None for invalid texts, and for rare valid ones, such as those with fractions:
// parse_json reads these and reports errors. If there is a value, it equals that of parse_json.
std::optional<Value> parse_plain_json(std::string_view text);

}  // namespace megalith::jinja
