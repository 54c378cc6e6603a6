// What the programs ask of apps/own.cpp.
#pragma once

#include "apps/config/options.h"
#include "core/model/config.h"

namespace megalith {

// For the parsers of flags.
OwnOptions own_options();

// As those of core/model/config.h, with the segments of the user's own. Of these each element of a parameter of two or
// more dims counts as one that a token meets in a matrix product.
ParameterCount count_parameters(const Options& options);
double flops_per_token(const Options& options);

}  // namespace megalith
