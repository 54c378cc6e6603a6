// The flags of layers of experts. For the files of apps/flags* only.
#pragma once

#include <vector>

#include "apps/flags/flags_table.h"

namespace megalith {

void add_moe(FlagTable& table, MoeConfig& moe);
// What of layout and memory does not go with experts; those among themselves: validate_moe of core/model.
void check_moe(const Options& options);

}  // namespace megalith
