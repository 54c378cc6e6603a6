// What `plan` prints and its page shows: a table for each subject.
#pragma once

#include <vector>

#include "apps/config/options.h"
#include "apps/forecast/forecast.h"
#include "apps/forecast/suggest.h"
#include "core/base/text/table.h"

namespace megalith {

// `rates`: null where the machine is not known.
std::vector<Table> plan_tables(const Options& options, const Forecast& forecast, const Rates* rates);
// Experts that ranks share; no rows where each rank has all of them.
Table experts_table(const Options& options, const Forecast& forecast);
// Copies between device and host in a step.
Table copies_table(const Forecast& forecast);
// Of --suggest; `memory` in bytes, of a device.
std::vector<Table> suggestion_tables(const Options& options, const Rates& rates, double memory,
                                     const Suggestions& found);

}  // namespace megalith
