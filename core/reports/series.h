// The points of a chart's line.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace megalith {

struct ChartPoint {
  double x = 0;
  std::optional<double> y{};  // none: the line has a gap
};

// At most `buckets` x 3 points with the extremes of each stretch kept; gaps are kept.
std::vector<ChartPoint> thinned(const std::vector<ChartPoint>& points, std::size_t buckets);

double median(std::vector<double> values);  // 0: of none
// Median of the `window` points around each, of fewer at both ends; gaps are left out. A spike stays where it is.
std::vector<ChartPoint> smoothed(const std::vector<ChartPoint>& points, std::size_t window);

}  // namespace megalith
