// Line charts and stacked bars as inline SVG. Colours are CSS classes c0 .. c7, so that the page decides about light
// and dark.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace megalith {

inline constexpr int kChartColors = 8;

struct ChartPoint {
  double x = 0;
  std::optional<double> y{};  // none: the line has a gap
};

enum class SeriesMark { kLine, kFaintLine, kDots };

struct Series {
  std::string name;  // in the legend; empty: not in it
  std::vector<ChartPoint> points;
  int color = 0;
  SeriesMark mark = SeriesMark::kLine;
};

struct Chart {
  std::string title;
  std::string unit;  // of y, shown after the title
  std::vector<Series> series;
  bool from_zero = false;
  bool log_scale = false;         // where all values are positive
  std::vector<double> crosses{};  // x of steps that were skipped
  double height = 260;
  double width = 520;
};
std::string chart_svg(const Chart& chart);

struct BarPart {
  std::string name;
  std::int64_t bytes = 0;
  int color = 0;
  double opacity = 1;
};
// One horizontal bar, `whole` bytes being its full width.
std::string bar_svg(const std::vector<BarPart>& parts, std::int64_t whole);

// At most about `count` multiples of 1, 2 or 5 times a power of ten within [low, high].
std::vector<double> nice_ticks(double low, double high, int count);

// At most `buckets` x 2 points with the extremes of each stretch kept; gaps are kept.
std::vector<ChartPoint> thinned(const std::vector<ChartPoint>& points, std::size_t buckets);

double median(std::vector<double> values);  // 0: of none
// Median of the `window` points around each, of fewer at both ends; gaps are left out. A spike stays where it is.
std::vector<ChartPoint> smoothed(const std::vector<ChartPoint>& points, std::size_t window);

std::string short_number(double value);      // "12k", "0.0003", "3e-05"
std::string bytes_text(std::int64_t bytes);  // "12.3 MiB"
// A label of an axis; `anchor`: start, middle or end of the text is at x.
std::string svg_label(double x, double y, const char* anchor, std::string_view text);
std::string html_escaped(std::string_view text);

}  // namespace megalith
