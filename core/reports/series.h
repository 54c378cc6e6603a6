// Points of a chart's line.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace megalith {

struct ChartPoint {
  double x = 0;
  std::optional<double> y{};  // none: the line has a gap
};

// Thins the points to at most `buckets` x 3; each bucket keeps its extremes and gaps.
std::vector<ChartPoint> thinned(const std::vector<ChartPoint>& points, std::size_t buckets);

double median(std::vector<double> values);  // 0 for no values
// Medians of the `window` points around each point, of fewer points at both ends. Gaps are left out.
std::vector<ChartPoint> smoothed(const std::vector<ChartPoint>& points, std::size_t window);

}  // namespace megalith
