// A chart with a line for each run, of what some of its steps measured.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "apps/metrics/metrics_reader.h"

namespace megalith {

using MetricsField = std::function<std::optional<double>(const MetricsRecord&)>;

// HTML; empty where no run has a value. `names`: of the runs, empty of a single one.
std::string line_of_runs(const std::vector<MetricsRun>& runs, const std::vector<std::string>& names, const char* title,
                         const char* unit, const MetricsField& field);

}  // namespace megalith
