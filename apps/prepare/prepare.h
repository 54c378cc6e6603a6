// prepare: turns text into tokens for train, and shows them.
#pragma once

#include "apps/config/options.h"

namespace megalith {

// Runs prepare --input FILE... --output-prefix PREFIX.
void prepare(const Options& options);

// Runs prepare inspect PREFIX...
void inspect(const Options& options);

}  // namespace megalith
