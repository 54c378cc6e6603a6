// Edit distance of a misspelled name to the known names of flags, keys and choices.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace megalith {

// Counts insertions, deletions, substitutions and swaps of neighbors from a to b (optimal string alignment).
std::size_t edit_distance(std::string_view a, std::string_view b);

// Returns the first of the nearest `names` at a distance below `limit`; null if there is none.
const std::string* nearest_name(std::string_view name, std::span<const std::string> names,
                                std::size_t limit = std::string_view::npos);

// Returns the first of `names` that `name` likely misspells, with at most a third of its letters different, or null.
const std::string* likely_meant(std::string_view name, std::span<const std::string> names);
// Returns "did you mean NAME?" for a likely misspelling, otherwise `fallback`.
std::string suggestion(std::string_view name, std::span<const std::string> names, std::string fallback);

}  // namespace megalith
