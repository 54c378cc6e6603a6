// The flags of activations in host memory. For the files of apps/flags* only.
#pragma once

#include <vector>

#include "apps/flags/flags_table.h"

namespace megalith {

void add_offload(FlagTable& table, OffloadOptions& offload);
void check_offload(const Options& options);

}  // namespace megalith
