#include "core/reports/series.h"

#include <algorithm>
#include <set>

namespace megalith {

std::vector<ChartPoint> thinned(const std::vector<ChartPoint>& points, std::size_t buckets) {
  if (points.size() <= 2 * buckets) return points;
  std::vector<ChartPoint> out;
  for (std::size_t b = 0; b < buckets; ++b) {
    const std::size_t begin = b * points.size() / buckets;
    const std::size_t end = (b + 1) * points.size() / buckets;
    const ChartPoint* low = nullptr;
    const ChartPoint* high = nullptr;
    const ChartPoint* gap = nullptr;
    for (std::size_t i = begin; i < end; ++i) {
      const ChartPoint& point = points[i];
      if (!point.y) gap = &point;
      if (point.y && (low == nullptr || *point.y < *low->y)) low = &point;
      if (point.y && (high == nullptr || *point.y > *high->y)) high = &point;
    }
    for (const ChartPoint* point : std::set<const ChartPoint*>{low, high, gap}) {
      if (point != nullptr) out.push_back(*point);
    }
  }
  return out;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::vector<ChartPoint> smoothed(const std::vector<ChartPoint>& points, std::size_t window) {
  std::vector<ChartPoint> measured;
  for (const ChartPoint& point : points) {
    if (point.y) measured.push_back(point);
  }
  std::vector<ChartPoint> out;
  std::vector<double> values;
  for (std::size_t i = 0; i < measured.size(); ++i) {
    const std::size_t left = std::min(window / 2, i);  // symmetric at the start, which falls steeply
    const std::size_t right = std::min(left, measured.size() - 1 - i);
    values.clear();
    for (std::size_t k = i - left; k <= i + right; ++k) values.push_back(*measured[k].y);
    out.push_back({measured[i].x, median(values)});
  }
  return out;
}

}  // namespace megalith
