// The HTML page of `report`, and the frame that `plan --html` shares: one file, no network, light and dark.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "apps/metrics/metrics_reader.h"

namespace megalith {

// A page in the report's style; `title` and `body` are HTML, as is `origin`, which says below the title where it is
// from.
std::string html_page(const std::string& title, const std::string& origin, const std::string& body);

struct HtmlTile {
  std::string value;
  std::string what;
};
std::string html_tiles(const std::vector<HtmlTile>& tiles);

// Cells are HTML; those of the first `texts` columns are texts, the others numbers.
std::string html_table(const std::vector<std::string>& head, const std::vector<std::vector<std::string>>& rows,
                       std::size_t texts = 1);

std::string report_page(const std::vector<MetricsRun>& runs);

// Writes to a second file and renames it. Fails with kFileIo, naming the flag that the path is of.
void write_report(const std::string& path, const std::string& page, std::string_view flag = "--output");

}  // namespace megalith
