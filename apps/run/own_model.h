// Requests of the programs to apps/own.cpp.
#pragma once

#include "apps/config/options.h"
#include "apps/run/model_flops.h"
#include "core/model/config.h"

namespace megalith {

// Custom options for the parsers of flags.
OwnOptions own_options();

// Counterparts of functions in core/model/config.h, with custom segments. Each element of their parameters with two or
// more dims counts as one element of a matrix product per token.
ParameterCount count_parameters(const Options& options);
double flops_per_token(const Options& options);

// Per token of samples whose documents have `pairs`, as in MarkedSamples; 0: one document.
double flops_per_token(const Options& options, double pairs);

}  // namespace megalith
