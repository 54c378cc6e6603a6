// Text of a user in messages and files.
#pragma once

#include <cstddef>
#include <span>
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

// What a person at a terminal may see of a text from anywhere: one line, in which nothing steers the terminal.
// \n for a line's end; \xNN for the bytes of other control characters (C0, DEL, C1), of those that end a line or turn
// the direction of writing in Unicode, and of what is not UTF-8. All else stays as it is, so twice is once.
std::string in_one_line(std::string_view text);

// The same without an allocation: as much as fits into `out`. Returns the bytes written.
std::size_t put_in_one_line(std::string_view text, std::span<char> out);

}  // namespace megalith
