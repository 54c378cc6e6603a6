// Page of `report` about runs: the charts of metrics_schema.h, figures, memory and flags.
#pragma once

#include <string>
#include <vector>

#include "apps/metrics/metrics_reader.h"

namespace megalith {

std::string report_page(const std::vector<MetricsRun>& runs);

}  // namespace megalith
