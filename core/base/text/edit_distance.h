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

}  // namespace megalith
