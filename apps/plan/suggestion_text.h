// Reasons of --suggest for its fastest layout, the command that runs it, and the progress of the search.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "apps/config/options.h"
#include "apps/forecast/suggest.h"
#include "core/base/text/table.h"
#include "parallel/cost/rates.h"

namespace megalith {

// Command that trains with the layout. `program` and `arguments` are those of plan; flags of plan alone are left out.
std::string train_command(const std::string& program, const std::vector<std::string>& arguments,
                          const Suggestion& suggestion, int world, const Rates& rates);

// Table of three lines at most: memory, parts of the step, and the next layout. `memory`: bytes of a device.
Table reasons_table(const Suggestions& found, const Rates& rates, double memory);

// Writer of the status line (core/base/log.h); empty unless standard error is a terminal.
std::function<void(const char* phase, std::size_t done, std::size_t all)> progress_line();

}  // namespace megalith
