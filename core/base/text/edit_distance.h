// How far a misspelt name is from those that exist: of flags, keys and choices.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace megalith {

// Optimal string alignment: how many insertions, deletions, substitutions and swaps of neighbours lead from a to b.
std::size_t edit_distance(std::string_view a, std::string_view b);

// The first of `names` that is nearest to `name` at a distance below `limit`; null where there is none.
const std::string* nearest_name(std::string_view name, std::span<const std::string> names,
                                std::size_t limit = std::string_view::npos);

// The first of `names` that `name` is a likely misspelling of: at most a third of its letters differ. Or null.
const std::string* likely_meant(std::string_view name, std::span<const std::string> names);
// "did you mean NAME?" for a likely misspelling, otherwise `fallback`.
std::string suggestion(std::string_view name, std::span<const std::string> names, std::string fallback);

}  // namespace megalith
