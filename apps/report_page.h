// The HTML page of `report`: one file, no network, light and dark.
#pragma once

#include <string>
#include <vector>

#include "apps/metrics_reader.h"

namespace megalith {

std::string report_page(const std::vector<MetricsRun>& runs);

// Writes to a second file and renames it. Fails with kFileIo.
void write_report(const std::string& path, const std::string& page);

}  // namespace megalith
