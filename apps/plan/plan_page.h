// HTML page of plan --html: forecast of a run, with a chart of its schedule.
#pragma once

#include <string>

#include "apps/config/options.h"
#include "apps/forecast/forecast.h"
#include "parallel/cost/rates.h"

namespace megalith {

std::string plan_page(const Options& options, const Forecast& forecast, const Rates& rates);

}  // namespace megalith
