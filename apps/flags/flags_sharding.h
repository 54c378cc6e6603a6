// How replicas share out a model's state. For the files of apps/flags* only.
#pragma once

#include "apps/flags/flags.h"

namespace megalith {

// What of the flags of sharding does not go together.
void check_sharding(const Options& options);

}  // namespace megalith
