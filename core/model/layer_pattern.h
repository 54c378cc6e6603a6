// Layers that a flag selects, in the grammar of Megatron-LM: a number, or a list of 0 and 1 such as "[0]*3+[1]*26".
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megalith {

// Returns whether the text is meant as a list, not as a number.
bool is_layer_pattern(std::string_view text);
// Parses sum = term {+ term}, term = list [* N], list = [0,1,...] or (sum), as in "[0]*3+([1]*2+[0])*4". Empty if the
// text is no such list.
std::vector<bool> parse_layer_pattern(std::string_view text);
// Parses a number above 0.
std::optional<std::size_t> parse_layer_frequency(std::string_view text);

// Formats layers as "[0]*3+[1]*45".
std::string layer_pattern(const std::vector<bool>& layers);

}  // namespace megalith
