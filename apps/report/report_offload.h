// What `report` shows of activations on the host: what moved and how long that took, and what it saves.
#pragma once

#include <string>
#include <vector>

#include "apps/metrics/metrics_reader.h"

namespace megalith {

// HTML; empty where no run moves any. `names`: of the runs, empty of a single one.
std::string offload_section(const std::vector<MetricsRun>& runs, const std::vector<std::string>& names);

}  // namespace megalith
