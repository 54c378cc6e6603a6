#include "apps/report/report_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "core/base/text/text.h"

namespace megalith {

namespace {

constexpr double kPlotLeft = 52;
constexpr double kPlotRight = 14;
constexpr double kPlotTop = 10;
constexpr double kPlotBottom = 34;
constexpr std::size_t kBuckets = 500;

struct Extent {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  void add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool empty() const { return low > high; }
};

// Maps data to the plot's rectangle.
struct Frame {
  Extent x;
  Extent y;  // of log10(y) where `log`
  bool log = false;
  double width = 0;
  double height = 0;

  double at_x(double value) const {
    const double span = x.high - x.low;
    return kPlotLeft + (span > 0 ? (value - x.low) / span : 0.5) * (width - kPlotLeft - kPlotRight);
  }
  double at_y(double value) const {
    const double scaled = log ? std::log10(value) : value;
    return height - kPlotBottom - (scaled - y.low) / (y.high - y.low) * (height - kPlotTop - kPlotBottom);
  }
};

Frame frame_of(const Chart& chart) {
  Frame frame{.width = chart.width, .height = chart.height};
  Extent values;
  for (const Series& series : chart.series) {
    for (const ChartPoint& point : series.points) {
      frame.x.add(point.x);
      if (point.y) values.add(*point.y);
    }
  }
  for (const double x : chart.crosses) frame.x.add(x);
  if (frame.x.empty()) frame.x = {0, 1};
  if (values.empty()) values = {0, 1};
  frame.log = chart.log_scale && values.low > 0;
  if (frame.log) {
    frame.y = {std::log10(values.low), std::log10(values.high)};
  } else {
    frame.y = {chart.from_zero ? std::min(0.0, values.low) : values.low, values.high};
  }
  double margin = 0.06 * (frame.y.high - frame.y.low);
  if (margin <= 0) margin = std::max(std::abs(frame.y.high) * 0.1, 1e-12);
  if (!(chart.from_zero && frame.y.low == 0)) frame.y.low -= margin;
  frame.y.high += margin;
  return frame;
}

std::vector<double> y_ticks(const Frame& frame) {
  if (!frame.log) return nice_ticks(frame.y.low, frame.y.high, 5);
  std::vector<double> ticks;
  const bool many = frame.y.high - frame.y.low > 3;
  for (double decade = std::floor(frame.y.low); decade <= frame.y.high; ++decade) {
    for (const double digit : {1.0, 2.0, 5.0}) {
      const double place = decade + std::log10(digit);
      if (place >= frame.y.low && place <= frame.y.high && (digit == 1.0 || !many)) {
        ticks.push_back(digit * std::pow(10.0, decade));
      }
    }
  }
  return ticks;
}

std::string svg_line(const char* look, double x1, double x2, double y1, double y2) {
  return fmt::format(R"(<line class="{}" x1="{:.1f}" x2="{:.1f}" y1="{:.1f}" y2="{:.1f}"/>)", look, x1, x2, y1, y2);
}

std::string axes(const Frame& frame) {
  const double bottom = frame.height - kPlotBottom, right = frame.width - kPlotRight;
  std::string out;
  for (const double tick : y_ticks(frame)) {
    const double y = frame.at_y(tick);
    out += svg_line("grid", kPlotLeft, right, y, y) + svg_label(kPlotLeft - 8, y + 3.5, "end", short_number(tick));
  }
  for (const double tick : nice_ticks(frame.x.low, frame.x.high, frame.width > 700 ? 10 : 6)) {
    const double x = frame.at_x(tick);
    out += svg_line("axis", x, x, bottom, bottom + 4) + svg_label(x, bottom + 16, "middle", short_number(tick));
  }
  return out + svg_line("axis", kPlotLeft, right, bottom, bottom) + svg_label(right, frame.height - 4, "end", "step");
}

std::string path(const Frame& frame, const std::vector<ChartPoint>& points) {
  std::string data;
  int length = 0;  // points of the stretch being drawn
  for (const ChartPoint& point : points) {
    const bool drawable = point.y && (!frame.log || *point.y > 0);
    if (length == 1 && !drawable) data += "h0";  // a lone point is a dot
    if (drawable)
      data += fmt::format("{}{:.1f} {:.1f}", length > 0 ? 'L' : 'M', frame.at_x(point.x), frame.at_y(*point.y));
    length = drawable ? length + 1 : 0;
  }
  if (length == 1) data += "h0";
  return data;
}

std::string marks(const Frame& frame, const Series& series) {
  const std::vector<ChartPoint> points = thinned(series.points, kBuckets);
  const char* const kind = series.mark == SeriesMark::kFaintLine ? "faint"
                           : series.mark == SeriesMark::kDots    ? "dotted"
                                                                 : "line";
  std::string out = fmt::format(R"(<path class="{} c{}" d="{}"/>)", kind, series.color, path(frame, points));
  if (series.mark != SeriesMark::kDots) return out;
  const double radius = series.points.size() > 40 ? 2.5 : 4;
  for (const ChartPoint& point : series.points) {
    if (!point.y) continue;
    out += fmt::format(
        R"(<circle class="dot c{}" cx="{:.1f}" cy="{:.1f}" r="{}"><title>{}, step {}: {:.4f}</title></circle>)",
        series.color, frame.at_x(point.x), frame.at_y(*point.y), radius, html_escaped(series.name), point.x, *point.y);
  }
  return out;
}

std::string legend(const Chart& chart) {
  std::string out;
  int entries = 0;
  for (const Series& series : chart.series) {
    if (series.name.empty()) continue;
    const char* const kind = series.mark == SeriesMark::kDots ? "key-dot" : "key";
    out += fmt::format(R"(<span><i class="{} b{}"></i>{}</span>)", kind, series.color, html_escaped(series.name));
    ++entries;
  }
  if (!chart.crosses.empty()) {
    out += R"(<span><i class="key-cross">×</i>skipped step</span>)";
    entries += 2;
  }
  return entries > 1 ? "<div class=\"legend\">" + out + "</div>" : "";
}

}  // namespace

std::string chart_svg(const Chart& chart) {
  const Frame frame = frame_of(chart);
  std::string body = axes(frame);
  for (const SeriesMark layer : {SeriesMark::kFaintLine, SeriesMark::kLine, SeriesMark::kDots}) {
    for (const Series& series : chart.series) {
      if (series.mark == layer) body += marks(frame, series);
    }
  }
  for (const double x : chart.crosses) {
    body += fmt::format(
        R"(<text class="cross" x="{:.1f}" y="{:.0f}" text-anchor="middle">×<title>step {} skipped</title></text>)",
        frame.at_x(x), frame.height - kPlotBottom - 4, x);
  }
  const std::string unit = chart.unit.empty() ? "" : " <small>" + html_escaped(chart.unit) + "</small>";
  const std::string title = html_escaped(chart.title);
  return fmt::format(
      "<figure><figcaption>{}{}</figcaption>{}\n<svg viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" "
      "aria-label=\"{}\">{}</svg></figure>\n",
      title, unit, legend(chart), chart.width, chart.height, title, body);
}

std::string bar_svg(const std::vector<BarPart>& parts, std::int64_t whole) {
  constexpr double kWidth = 520;
  constexpr double kHeight = 26;
  constexpr double kGap = 2;
  std::string body;
  double x = 0;
  for (const BarPart& part : parts) {
    if (part.bytes <= 0 || whole <= 0) continue;
    const double width = kWidth * static_cast<double>(part.bytes) / static_cast<double>(whole);
    body += fmt::format(R"(<rect class="f{}" opacity="{:.2f}" x="{:.1f}" y="0" width="{:.1f}" height="{:.0f}">)",
                        part.color, part.opacity, x, std::max(width - kGap, 0.5), kHeight);
    body += fmt::format("<title>{}: {}</title></rect>", html_escaped(part.name), bytes_text(part.bytes));
    x += width;
  }
  return fmt::format(
      "<svg class=\"bar\" viewBox=\"0 0 {:.0f} {:.0f}\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"memory "
      "by category\">{}</svg>\n",
      kWidth, kHeight, body);
}

std::vector<double> nice_ticks(double low, double high, int count) {
  if (!(high > low) || !std::isfinite(low) || !std::isfinite(high)) return {low};
  const double rough = (high - low) / count;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  const double digits = rough / power;
  const double step = power * (digits < 1.5 ? 1 : digits < 3.5 ? 2 : digits < 7.5 ? 5 : 10);
  std::vector<double> ticks;
  const double first = std::ceil(low / step - 1e-9);
  for (int i = 0; i < 100; ++i) {
    const double tick = (first + i) * step;
    if (tick > high + 1e-9 * step) break;
    ticks.push_back(std::abs(tick) < 1e-9 * step ? 0.0 : tick);
  }
  return ticks;
}

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
    const std::size_t left = std::min(window / 2, i);  // the start falls steeply, so the window is symmetric there
    const std::size_t right = std::min(left, measured.size() - 1 - i);
    values.clear();
    for (std::size_t k = i - left; k <= i + right; ++k) values.push_back(*measured[k].y);
    out.push_back({measured[i].x, median(values)});
  }
  return out;
}

std::string short_number(double value) {
  const double size = std::abs(value);
  if (size >= 1e15 || (size > 0 && size < 1e-3)) return fmt::format("{:.3g}", value);
  if (size >= 1e9) return fmt::format("{:.4g}G", value * 1e-9);
  if (size >= 1e6) return fmt::format("{:.4g}M", value * 1e-6);
  if (size >= 1e4) return fmt::format("{:.4g}k", value * 1e-3);
  return fmt::format("{:.4g}", value);
}

std::string bytes_text(std::int64_t bytes) {
  double value = static_cast<double>(bytes);
  for (const char* unit : {"B", "KiB", "MiB", "GiB"}) {
    if (std::abs(value) < 1024)
      return unit[0] == 'B' ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, unit);
    value /= 1024;
  }
  return fmt::format("{:.1f} TiB", value);
}

std::string svg_label(double x, double y, const char* anchor, std::string_view text) {
  return fmt::format(R"(<text class="tick" x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>)", x, y, anchor, text);
}

std::string html_escaped(std::string_view text) {
  if (!is_utf8(text)) return "(not UTF-8)";
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

}  // namespace megalith
