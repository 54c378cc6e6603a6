// What plan tells of experts that ranks share out; nothing where each rank has all of them.
#pragma once

#include <string>

#include "apps/config/options.h"
#include "apps/forecast/forecast.h"

namespace megalith {

std::string printed_experts(const Options& options, const Forecast& forecast);  // lines
std::string experts_on_page(const Options& options, const Forecast& forecast);  // HTML, with rates

}  // namespace megalith
