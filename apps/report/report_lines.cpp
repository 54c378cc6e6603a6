#include "apps/report/report_lines.h"

#include <utility>

#include "apps/report/report_chart.h"

namespace megalith {

std::string line_of_runs(const std::vector<MetricsRun>& runs, const std::vector<std::string>& names, const char* title,
                         const char* unit, const MetricsField& field) {
  Chart chart{.title = title, .unit = unit};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    Series series{.name = names[i], .points = {}, .color = static_cast<int>(i % kChartColors)};
    for (const MetricsRecord& record : runs[i].records) {
      if (const std::optional<double> value = field(record))
        series.points.push_back({static_cast<double>(record.iteration), value});
    }
    if (!series.points.empty()) chart.series.push_back(std::move(series));
  }
  return chart.series.empty() ? "" : chart_svg(chart);
}

}  // namespace megalith
