// Text of users in messages and files.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace megalith {

// Quotes `text` in double quotes with escapes that TOML and JSON share.
std::string escaped(std::string_view text);
// Escapes for messages: cut after 80 bytes.
std::string escaped_short(std::string_view text);
bool is_utf8(std::string_view text);
// Joins as "a, b or c".
std::string alternatives(const std::vector<std::string_view>& names);
// Formats `line`, then the words of `text` in the columns from `indent` to `width`.
// `text` begins on the next line if `line` is too long.
std::string in_columns(std::string line, std::string_view text, std::size_t indent, std::size_t width);

// Escapes `text` to one line that is safe for a terminal: \n for a line feed, \xNN for bytes of other characters.
// Other characters are C0, DEL, C1, Unicode line separators, bidirectional controls and invalid UTF-8.
// The remaining text is unchanged, so a second call has no effect.
std::string in_one_line(std::string_view text);

// Escapes as much as fits into `out`, without allocation. Returns the bytes written.
std::size_t put_in_one_line(std::string_view text, std::span<char> out);

}  // namespace megalith
