// What a person at a terminal may see of a text from anywhere: one line, in which nothing steers the terminal.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace megalith {

// \n for a line's end; \xNN for the bytes of other control characters (C0, DEL, C1), of those that end a line or turn
// the direction of writing in Unicode, and of what is not UTF-8. All else stays as it is, so twice is once.
std::string in_one_line(std::string_view text);

// The same without an allocation: as much as fits into `out`. Returns the bytes written.
std::size_t put_in_one_line(std::string_view text, std::span<char> out);

}  // namespace megalith
