// The HTML page of `report`, and the frame that `plan --html` shares: one file, no network, light and dark.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "apps/metrics_reader.h"

namespace megalith {

// A page in the report's style; `title` and `body` are HTML, as is `origin`, which says below the title where it is
// from.
std::string html_page(const std::string& title, const std::string& origin, const std::string& body);
std::string html_tile(const std::string& value, const std::string& what);  // for a div of class tiles

std::string report_page(const std::vector<MetricsRun>& runs);

// Writes to a second file and renames it. Fails with kFileIo, naming the flag that the path is of.
void write_report(const std::string& path, const std::string& page, std::string_view flag = "--output");

}  // namespace megalith
