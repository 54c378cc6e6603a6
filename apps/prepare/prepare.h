// prepare turns text into the tokens that train reads, and shows what is in them.
#pragma once

#include "apps/config/options.h"

namespace megalith {

// prepare --input FILE... --output-prefix PREFIX
void prepare(const Options& options);

// prepare inspect PREFIX...
void inspect(const Options& options);

}  // namespace megalith
