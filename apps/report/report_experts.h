// What `report` shows of layers of experts: a picture of their load by layer over time, and the routers' losses.
#pragma once

#include <string>
#include <vector>

#include "apps/metrics/metrics_reader.h"

namespace megalith {

// HTML; empty where no run has such layers. `names`: of the runs, empty of a single one.
std::string experts_section(const std::vector<MetricsRun>& runs, const std::vector<std::string>& names);

}  // namespace megalith
