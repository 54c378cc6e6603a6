#include "apps/report/report_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>

#include "apps/program/version.h"
#include "apps/report/report_chart.h"
#include "apps/report/report_experts.h"
#include "apps/report/report_offload.h"
#include "core/base/error.h"
#include "core/base/files/fault.h"
#include "core/base/files/output_file.h"

namespace megalith {

namespace {

// Categorical colours that stay apart for colour-blind readers, in a set each for light and dark.
constexpr const char* kStyle = R"(
:root { color-scheme: light dark; --page: #f7f7f5; --card: #ffffff; --ink: #1d1d1b; --soft: #6b6a66; --line: #e4e3de;
  --c0: #2a78d6; --c1: #eb6834; --c2: #1baf7a; --c3: #eda100; --c4: #e87ba4; --c5: #4a3aa7;
  --c6: #008300; --c7: #e34948; }
@media (prefers-color-scheme: dark) { :root { --page: #161615; --card: #1f1f1e; --ink: #f1f0ec; --soft: #a3a29c;
  --line: #363633; --c0: #3987e5; --c1: #d95926; --c2: #199e70; --c3: #c98500; --c4: #d55181; --c5: #9085e9;
  --c6: #00a300; --c7: #e66767; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, "DejaVu Sans", sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 32px 24px 64px; }
h1 { font-size: 24px; margin: 0; } h2 { font-size: 17px; margin: 32px 0 12px; }
header p { margin: 4px 0 24px; color: var(--soft); overflow-wrap: anywhere; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin-bottom: 16px; }
.tile, figure, .card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
.tile { padding: 12px 16px; } .tile b { display: block; font-size: 22px; font-weight: 600; line-height: 1.25; }
.tile span { color: var(--soft); font-size: 13px; }
.charts { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 16px; } .wide { grid-column: 1 / -1; }
@media (max-width: 760px) { .charts { grid-template-columns: minmax(0, 1fr); } }
figure { margin: 0; padding: 14px 16px 8px; } .wide figure { height: 100%; }
figcaption { font-weight: 600; } figcaption small { font-weight: 400; color: var(--soft); margin-left: 6px; }
svg { display: block; width: 100%; height: auto; } figure table { margin-top: 10px; }
figcaption + svg { margin-top: 6px; } .bar { height: 26px; border-radius: 5px; }
.grid { stroke: var(--line); stroke-width: 1; } .axis { stroke: var(--soft); stroke-width: 1; }
.tick { fill: var(--soft); font-size: 11px; font-variant-numeric: tabular-nums; }
.line, .faint, .dotted { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.faint { stroke-width: 1; opacity: .38; } .dotted { stroke-width: 1.5; stroke-dasharray: 5 4; }
.dot { stroke: var(--card); stroke-width: 1.5; } .cross { fill: var(--c7); font-size: 14px; font-weight: 700; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 18px; color: var(--soft); font-size: 13px; margin: 2px 0; }
.key, .key-dot { display: inline-block; margin-right: 7px; vertical-align: middle; }
.key { width: 16px; height: 3px; border-radius: 2px; } .key-dot { width: 9px; height: 9px; border-radius: 50%; }
.swatch { display: inline-block; width: 11px; height: 11px; border-radius: 3px; margin-right: 8px;
  vertical-align: -1px; }
.bubble { fill: var(--line); } .box { stroke: var(--card); stroke-width: .5; }
.box-label { fill: #fff; font-size: 10px; pointer-events: none; }
.key-cross { color: var(--c7); font-weight: 700; font-style: normal; margin-right: 6px; }
.card { padding: 14px 16px; overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
td, th { padding: 5px 14px 5px 0; text-align: left; font-weight: 400; }
tr + tr td, tr + tr th { border-top: 1px solid var(--line); } th { color: var(--soft); font-size: 13px; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td { overflow-wrap: anywhere; } code { font: 13px/1.5 ui-monospace, "DejaVu Sans Mono", monospace; }
summary { cursor: pointer; font-weight: 600; } details + details { margin-top: 12px; }
.config { columns: 2; column-gap: 40px; margin-top: 10px; } @media (max-width: 760px) { .config { columns: 1; } }
.config div { display: flex; justify-content: space-between; gap: 16px; border-bottom: 1px solid var(--line);
  break-inside: avoid; } .config code:first-child { color: var(--soft); } .config code { overflow-wrap: anywhere; }
)";

std::string color_classes() {
  std::string out;
  for (int i = 0; i < kChartColors; ++i) {
    out += fmt::format(
        ".c{0} {{ stroke: var(--c{0}); }} .b{0} {{ background: var(--c{0}); }} "
        ".dot.c{0}, .f{0} {{ fill: var(--c{0}); }} .dot.c{0} {{ stroke: var(--card); }}\n",
        i);
  }
  return out;
}

using Field = std::function<std::optional<double>(const MetricsRecord&)>;

std::vector<ChartPoint> points_of(const MetricsRun& run, const Field& field) {
  std::vector<ChartPoint> points;
  for (const MetricsRecord& record : run.records)
    points.push_back({static_cast<double>(record.iteration), field(record)});
  return points;
}

std::vector<ChartPoint> measured(std::vector<ChartPoint> points) {
  std::erase_if(points, [](const ChartPoint& point) { return !point.y; });
  return points;
}

std::vector<double> values_of(const MetricsRun& run, const Field& field) {
  std::vector<double> values;
  for (const ChartPoint& point : measured(points_of(run, field))) values.push_back(*point.y);
  return values;
}

std::string in_nats(double value) { return fmt::format("{:.4f}", value); }

// Of values that may be missing.
std::string last_of(const std::vector<double>& values) { return values.empty() ? "–" : in_nats(values.back()); }
std::string least_of(const std::vector<double>& values) {
  return values.empty() ? "–" : in_nats(*std::ranges::min_element(values));
}

// Raw values faint and their median on top, once there are enough of them to need it.
void add_line(Chart& chart, std::string name, std::vector<ChartPoint> points, int color) {
  constexpr std::size_t kSmoothFrom = 60;
  if (points.size() < kSmoothFrom) {
    chart.series.push_back({.name = std::move(name), .points = std::move(points), .color = color});
    return;
  }
  const std::size_t window = std::clamp<std::size_t>(points.size() / 40, 8, 200);
  chart.series.push_back({.name = "", .points = points, .color = color, .mark = SeriesMark::kFaintLine});
  chart.series.push_back({.name = std::move(name), .points = smoothed(points, window), .color = color});
}

class Page {
 public:
  explicit Page(const std::vector<MetricsRun>& runs) : runs_(runs) {}

  std::string text() const {
    return html_page("Training report", origin(),
                     tiles() + charts() + sections() + "<h2>Summary</h2>\n" + summary() + memory() + configuration());
  }

 private:
  bool single() const { return runs_.size() == 1; }
  std::string label(const MetricsRun& run, const char* what) const {
    return single() ? what : name_of(run) + " " + what;
  }
  static int color(std::size_t index) { return static_cast<int>(index % kChartColors); }

  // The file's name, with as many folders as tell the runs apart.
  std::string name_of(const MetricsRun& run) const {
    const std::filesystem::path path(run.path);
    const auto same = std::count_if(runs_.begin(), runs_.end(), [&](const MetricsRun& other) {
      return std::filesystem::path(other.path).filename() == path.filename();
    });
    return same > 1 ? run.path : path.filename().string();
  }

  std::string origin() const {
    std::string out;
    for (const MetricsRun& run : runs_) {
      out += (out.empty() ? "" : "<br>") + html_escaped(run.path);
      if (!run.version.empty()) out += html_escaped(fmt::format(" · megalith {} ({})", run.version, run.commit));
    }
    return out;
  }

  std::string tiles() const {
    if (!single()) return "";
    const MetricsRun& run = runs_[0];
    const MetricsRecord& last = run.records.back();
    const std::vector<double> losses = values_of(run, &MetricsRecord::lm_loss);
    const std::vector<double> validations = values_of(run, &MetricsRecord::validation_loss);
    std::vector<HtmlTile> tiles = {{fmt::format("{}", last.iteration), "steps"}};
    if (!losses.empty()) tiles.push_back({last_of(losses), "loss of the last step"});
    if (!validations.empty()) tiles.push_back({least_of(validations), "best validation loss"});
    tiles.push_back({short_number(median(values_of(run, &MetricsRecord::tokens_per_second))), "tokens/s, median"});
    tiles.push_back({bytes_text(last.memory_peak_bytes), "memory peak, rank 0"});
    const auto skipped = std::ranges::count_if(run.records, &MetricsRecord::skipped);
    if (skipped > 0) tiles.push_back({fmt::format("{}", skipped), "skipped steps"});
    return html_tiles(tiles);
  }

  Chart loss_chart() const {
    Chart chart{.title = "Loss", .unit = "nats per token", .height = 330, .width = 1060};
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      add_line(chart, label(runs_[i], "training"), points_of(runs_[i], &MetricsRecord::lm_loss),
               single() ? 0 : color(i));
      for (const MetricsRecord& record : runs_[i].records) {
        if (record.skipped) chart.crosses.push_back(static_cast<double>(record.iteration));
      }
    }
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      std::vector<ChartPoint> points = measured(points_of(runs_[i], &MetricsRecord::validation_loss));
      if (points.empty()) continue;
      chart.series.push_back({.name = label(runs_[i], "validation"),
                              .points = std::move(points),
                              .color = single() ? 1 : color(i),
                              .mark = SeriesMark::kDots});
    }
    return chart;
  }

  // One line for each run, from zero.
  Chart line_chart(std::string title, std::string unit, const Field& field, bool smooth = true) const {
    Chart chart{.title = std::move(title), .unit = std::move(unit), .from_zero = true};
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      std::vector<ChartPoint> points = points_of(runs_[i], field);
      const std::string name = single() ? "" : name_of(runs_[i]);
      if (smooth) {
        add_line(chart, name, std::move(points), color(i));
      } else {
        chart.series.push_back({.name = name, .points = std::move(points), .color = color(i)});
      }
    }
    return chart;
  }

  Chart norm_chart() const {
    Chart chart = line_chart("Gradient norm", "global L2, before clipping", &MetricsRecord::grad_norm);
    std::vector<double> norms;
    for (const MetricsRun& run : runs_) {
      for (const double value : values_of(run, &MetricsRecord::grad_norm)) norms.push_back(value);
    }
    constexpr double kSpike = 20;  // a spike that would flatten the rest
    chart.log_scale = !norms.empty() && *std::ranges::max_element(norms) > kSpike * median(norms);
    if (chart.log_scale) chart.unit += ", logarithmic";
    chart.from_zero = !chart.log_scale;
    return chart;
  }

  std::string charts() const {
    return "<div class=\"charts\"><div class=\"wide\">\n" + chart_svg(loss_chart()) + "</div>\n" +
           chart_svg(norm_chart()) + chart_svg(line_chart("Learning rate", "", &MetricsRecord::learning_rate, false)) +
           chart_svg(line_chart("Throughput", "tokens per second, all ranks", &MetricsRecord::tokens_per_second)) +
           chart_svg(line_chart("Step time", "milliseconds", &MetricsRecord::step_ms)) + "</div>\n";
  }

  std::string sections() const {
    std::vector<std::string> names;
    for (const MetricsRun& run : runs_) names.push_back(single() ? "" : name_of(run));
    return experts_section(runs_, names) + offload_section(runs_, names);
  }

  std::string summary() const {
    std::vector<std::vector<std::string>> rows;
    for (const MetricsRun& run : runs_) {
      const MetricsRecord& last = run.records.back();
      const std::vector<double> validations = values_of(run, &MetricsRecord::validation_loss);
      rows.push_back({html_escaped(name_of(run)), fmt::format("{} – {}", run.records.front().iteration, last.iteration),
                      fmt::format("{}", last.consumed_samples), last_of(values_of(run, &MetricsRecord::lm_loss)),
                      last_of(validations), least_of(validations),
                      fmt::format("{:.1f}", median(values_of(run, &MetricsRecord::step_ms))),
                      short_number(median(values_of(run, &MetricsRecord::tokens_per_second))),
                      fmt::format("{:.4g}", median(values_of(run, &MetricsRecord::tflops_per_device))),
                      bytes_text(last.memory_peak_bytes)});
    }
    return html_table({"run", "steps", "samples", "loss", "validation", "best", "ms/step", "tokens/s", "TFLOP/s/device",
                       "memory peak"},
                      rows);
  }

  // Categories of one first word, such as the kinds of activations, share a colour and get paler one by one.
  static std::vector<BarPart> memory_parts(const MetricsRun& run) {
    constexpr double kPaler = 0.85;
    std::vector<BarPart> parts;
    struct Family {
      int color = 0;
      double opacity = 1;  // of the next member
    };
    std::map<std::string, Family> families;
    for (const auto& [category, bytes] : run.memory_bytes) {
      if (bytes <= 0) continue;
      const Family fresh{.color = color(families.size())};
      Family& family = families.try_emplace(category.substr(0, category.find(' ')), fresh).first->second;
      parts.push_back({.name = category, .bytes = bytes, .color = family.color, .opacity = family.opacity});
      family.opacity = std::max(family.opacity * kPaler, 0.25);
    }
    return parts;
  }

  std::string memory() const {
    std::string out;
    for (const MetricsRun& run : runs_) {
      const std::vector<BarPart> parts = memory_parts(run);
      std::int64_t whole = 0;
      for (const BarPart& part : parts) whole += part.bytes;
      if (whole == 0) continue;
      std::string rows;
      for (const BarPart& part : parts) {
        rows += fmt::format(
            "<tr><td><i class=\"swatch b{}\" style=\"opacity:{:.2f}\"></i>{}</td><td class=\"n\">{}</td><td "
            "class=\"n\">{:.1f} %</td></tr>\n",
            part.color, part.opacity, html_escaped(part.name), bytes_text(part.bytes),
            100.0 * static_cast<double>(part.bytes) / static_cast<double>(whole));
      }
      out += "<figure><figcaption>" + (single() ? std::string("Rank 0") : html_escaped(name_of(run))) + " <small>" +
             bytes_text(whole) + "</small></figcaption>\n" + bar_svg(parts, whole) + "<table>" + rows +
             "</table></figure>\n";
    }
    if (out.empty()) return "";
    return "<h2>Memory by category</h2>\n<div class=\"" + std::string(single() ? "wide" : "charts") + "\">" + out +
           "</div>\n";
  }

  std::string configuration() const {
    std::string out;
    for (const MetricsRun& run : runs_) {
      if (run.config.empty()) continue;
      std::string entries;
      for (const auto& [name, value] : run.config) {
        entries += "<div><code>" + html_escaped(name) + "</code><code>" + html_escaped(value) + "</code></div>\n";
      }
      out += "<details class=\"card\"><summary>" + html_escaped(single() ? "All flags of the run" : name_of(run)) +
             "</summary><div class=\"config\">\n" + entries + "</div></details>\n";
    }
    return out.empty() ? "" : "<h2>Configuration</h2>\n" + out;
  }

  const std::vector<MetricsRun>& runs_;
};

}  // namespace

std::string html_page(const std::string& title, const std::string& origin, const std::string& body) {
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\"><title>{}</title><style>{}{}</style></head>\n"
      "<body><main>\n<header><h1>{}</h1><p>{}</p></header>\n{}</main></body></html>\n",
      title, kStyle, color_classes(), title, origin, body);
}

std::string html_tiles(const std::vector<HtmlTile>& tiles) {
  std::string out;
  for (const auto& [value, what] : tiles)
    out += fmt::format("<div class=\"tile\"><b>{}</b><span>{}</span></div>\n", value, what);
  return "<div class=\"tiles\">\n" + out + "</div>\n";
}

std::string html_table(const std::vector<std::string>& head, const std::vector<std::vector<std::string>>& rows,
                       std::size_t texts) {
  const auto row = [texts](char kind, const std::vector<std::string>& cells) {
    std::string out;
    for (std::size_t i = 0; i < cells.size(); ++i)
      out += fmt::format("<t{0}{1}>{2}</t{0}>", kind, i < texts ? "" : " class=\"n\"", cells[i]);
    return "<tr>" + out + "</tr>\n";
  };
  std::string out = row('h', head);
  for (const std::vector<std::string>& cells : rows) out += row('d', cells);
  return "<div class=\"card\"><table>" + out + "</table></div>\n";
}

std::string report_page(const std::vector<MetricsRun>& runs) { return Page(runs).text(); }

void write_report(const std::string& path, const std::string& page, std::string_view flag) {
  const FaultScope scope("report.output");
  try {
    const std::optional<NameInfo> before = look_at_name(path);
    if (before &&
        before->type != EntryType::kFile) {  // a device or a link (/dev/stdout) must not be replaced by a file
      File file = File::create(path);
      file.write(page);
      file.close();
      return;
    }
    OutputFile out(path, "report.output");
    out.write(page);
    out.commit();
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", flag, error.what()));
  }
}

}  // namespace megalith
