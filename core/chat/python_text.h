// Methods of Python's str on UTF-8. Positions and lengths are in characters (code points).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megalith::jinja {

bool is_space(std::uint32_t code_point);  // str.isspace
std::size_t count_characters(std::string_view text);
std::vector<std::string_view> characters_of(std::string_view text);
std::size_t byte_of(std::string_view text, std::size_t character);  // offset of a character; the end beyond it

// Strips white space, or the characters in `characters`, from one or both ends.
std::string_view strip_left(std::string_view text, std::optional<std::string_view> characters = {});
std::string_view strip_right(std::string_view text, std::optional<std::string_view> characters = {});
std::string_view strip(std::string_view text, std::optional<std::string_view> characters = {});

// Splits at white space, or at `separator`, at most `max_splits` times unless negative.
std::vector<std::string_view> split(std::string_view text, std::optional<std::string_view> separator,
                                    std::int64_t max_splits);
std::vector<std::string_view> split_right(std::string_view text, std::optional<std::string_view> separator,
                                          std::int64_t max_splits);
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends);

std::string replace(std::string_view text, std::string_view from, std::string_view to, std::int64_t max_count);

// Case of ASCII. Other characters are a Problem, since their case depends on a version of Unicode.
std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string title(std::string_view text);         // str.title
std::string filter_title(std::string_view text);  // Jinja's filter: words begin after white space, -, (, {, [ and <
std::string capitalize(std::string_view text);

// Python's slice of a sequence of `length` items: the positions that start:stop:step selects.
std::vector<std::size_t> slice_positions(std::size_t length, std::optional<std::int64_t> start,
                                         std::optional<std::int64_t> stop, std::int64_t step);

}  // namespace megalith::jinja
