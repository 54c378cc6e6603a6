// Text of a user in messages and files.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace megalith {

// "text" in double quotes with escapes that TOML and JSON share.
std::string escaped(std::string_view text);
// The same for messages: cut after 80 bytes.
std::string escaped_short(std::string_view text);
bool is_utf8(std::string_view text);
// "a, b or c"
std::string alternatives(const std::vector<std::string_view>& names);
// Lines of `line` and, in the columns from `indent` to `width`, the words of `text`. They begin on the line of `line`,
// or below it where it is too long.
std::string in_columns(std::string line, std::string_view text, std::size_t indent, std::size_t width);

}  // namespace megalith
