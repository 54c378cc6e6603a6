// Tables of `plan` and its page, one per subject.
#pragma once

#include <vector>

#include "apps/config/options.h"
#include "apps/forecast/forecast.h"
#include "apps/forecast/suggest.h"
#include "core/base/text/table.h"

namespace megalith {

// Tables of a forecast; `rates`: null for an unknown machine.
std::vector<Table> plan_tables(const Options& options, const Forecast& forecast, const Rates* rates);
// Table of expert-parallel ranks; without rows if each rank has all experts.
Table experts_table(const Options& options, const Forecast& forecast);
// Table of copies between device and host in a step.
Table copies_table(const Forecast& forecast);
// Tables of --suggest; `memory`: bytes of a device.
std::vector<Table> suggestion_tables(const Options& options, const Rates& rates, double memory,
                                     const Suggestions& found);

}  // namespace megalith
