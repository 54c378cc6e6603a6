// The HTML page of plan --html: what a run is forecast to take, with a picture of its schedule.
#pragma once

#include <string>

#include "apps/forecast.h"
#include "apps/options.h"

namespace megalith {

// With rates; `rates` is what they are of.
std::string plan_page(const Options& options, const Forecast& forecast, const std::string& rates);

}  // namespace megalith
