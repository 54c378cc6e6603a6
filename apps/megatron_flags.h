// Megatron-LM's flags that no program here has.
#pragma once

#include <optional>
#include <string_view>

namespace megalith {

// For the name of a flag of Megatron-LM, without dashes in front: what stands in its place or why it is not needed,
// or an empty text where what it does is not built. nullopt: no such flag. Dashes and underscores are the same.
std::optional<std::string_view> note_on_megatron_flag(std::string_view name);

}  // namespace megalith
