// The HTML page of plan --html: what a run is forecast to take, with a picture of its schedule.
#pragma once

#include <string>

#include "apps/config/options.h"
#include "apps/forecast/forecast.h"
#include "parallel/cost/rates.h"

namespace megalith {

std::string plan_page(const Options& options, const Forecast& forecast, const Rates& rates);

}  // namespace megalith
