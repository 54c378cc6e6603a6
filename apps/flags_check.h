// Rules that concern more than one flag. For the files of apps/flags* only.
#pragma once

#include "apps/flags.h"
#include "apps/options.h"

namespace megalith {

// Derives what was left at 0 from other fields.
void resolve(Options& options);

// Throws Error (exit code 2) for what is missing, contradictory or not built yet, naming the flags. After `resolve`.
void check(App app, const Options& options);

}  // namespace megalith
