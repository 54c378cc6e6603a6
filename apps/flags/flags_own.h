// Flags of a user's own, as apps/own.cpp declares them: group [own] of the table.
#pragma once

#include <vector>

#include "apps/flags/flags_table.h"

namespace megalith {

// `options` outlives the table. A name that is no flag's or that another flag has is an error with exit code 9.
void add_own(FlagTable& table, Options& options);

// A toggle that is on by default is an error with exit code 9: no flag could switch it off.
void check_own_defaults(const OwnOptions& declared);

// What the user's own code refuses, and flags that name `own` where no layer of the user's own is.
void check_own_flags(const Options& options);

}  // namespace megalith
