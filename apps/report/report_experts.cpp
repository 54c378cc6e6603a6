#include "apps/report/report_experts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "apps/report/report_chart.h"
#include "apps/report/report_lines.h"

namespace megalith {

namespace {

constexpr std::size_t kMostColumns = 160;
constexpr int kShades = 12;
constexpr double kDarkest = 4;  // times the mean

// Some consecutive steps of one layer.
struct Cell {
  double sum = 0, entropy = 0;
  int steps = 0;
  float low = 1;

  void add(const Cell& other) {
    low = steps == 0 ? other.low : std::min(low, other.low);
    sum += other.sum;
    entropy += other.entropy;
    steps += other.steps;
  }
  void add(const LayerLoad& load) {
    add(Cell{.sum = static_cast<double>(load.max_over_mean),
             .entropy = static_cast<double>(load.entropy),
             .steps = 1,
             .low = load.min_over_mean});
  }
  // -1: of no step. Equal shades are equal ratios.
  int shade() const {
    if (steps == 0) return -1;
    const double height = std::log(std::max(sum / steps, 1.0)) / std::log(kDarkest);
    return static_cast<int>(std::lround(std::min(height, 1.0) * kShades));
  }
};

struct Column {
  std::int64_t first = 0, last = 0;  // steps
  std::map<std::int32_t, Cell> layers;
};

std::vector<Column> columns_of(const MetricsRun& run) {
  std::vector<const MetricsRecord*> steps;
  for (const MetricsRecord& record : run.records) {
    if (!record.experts.empty()) steps.push_back(&record);
  }
  const std::size_t count = std::min(steps.size(), kMostColumns);
  std::vector<Column> columns(count);
  for (std::size_t c = 0; c < count; ++c) {
    const std::size_t begin = c * steps.size() / count, end = (c + 1) * steps.size() / count;
    columns[c].first = steps[begin]->iteration;
    columns[c].last = steps[end - 1]->iteration;
    for (std::size_t i = begin; i < end; ++i) {
      for (const LayerLoad& load : steps[i]->experts) columns[c].layers[load.layer].add(load);
    }
  }
  return columns;
}

double opacity_of(int shade) { return 0.04 + 0.96 * shade / kShades; }

std::string rect(double x, double y, double width, double height, int shade, const std::string& title) {
  return fmt::format(R"(<rect class="f1" opacity="{:.2f}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}">)"
                     "<title>{}</title></rect>",
                     opacity_of(shade), x, y, width, height, title);
}

// What the shades mean, at the right above the picture.
std::string scale(double right) {
  constexpr double kWidth = 14, kHeight = 10;
  std::string out;
  double x = right - (kShades + 1) * kWidth - 34;
  out += svg_label(x - 6, kHeight, "end", "1, even");
  for (int shade = 0; shade <= kShades; ++shade, x += kWidth)
    out += rect(x, 1, kWidth, kHeight, shade,
                fmt::format("{:.2f} x the mean", std::pow(kDarkest, static_cast<double>(shade) / kShades)));
  return out + svg_label(x + 4, kHeight, "start", fmt::format("{:.0f} x +", kDarkest));
}

// One row a layer, one column for some consecutive steps; neighbours of one shade are one rectangle.
std::string load_map(const MetricsRun& run, const std::string& name) {
  constexpr double kWidth = 1060, kLeft = 52, kRight = 14, kTop = 20, kBottom = 34;
  const std::vector<Column> columns = columns_of(run);
  std::vector<std::int32_t> layers;
  for (const Column& column : columns) {
    for (const auto& [layer, cell] : column.layers) layers.push_back(layer);
  }
  std::ranges::sort(layers);
  layers.erase(std::unique(layers.begin(), layers.end()), layers.end());
  const auto rows = static_cast<double>(layers.size());
  const double height = std::clamp(360 / rows, 3.0, 24.0),
               width = (kWidth - kLeft - kRight) / static_cast<double>(columns.size());
  const double bottom = kTop + rows * height;
  std::string body = scale(kWidth - kRight);
  const std::size_t label_every = 1 + static_cast<std::size_t>(12 / height);
  for (std::size_t row = 0; row < layers.size(); ++row) {
    const double y = kTop + static_cast<double>(row) * height;
    if (row % label_every == 0)
      body += svg_label(kLeft - 8, y + height / 2 + 3.5, "end", fmt::format("{}", layers[row]));
    for (std::size_t c = 0; c < columns.size();) {
      const auto at = [&](std::size_t column) {
        const auto found = columns[column].layers.find(layers[row]);
        return found == columns[column].layers.end() ? Cell{} : found->second;
      };
      const int shade = at(c).shade();
      Cell cell;
      std::size_t end = c;
      for (; end < columns.size() && at(end).shade() == shade; ++end) cell.add(at(end));
      if (shade >= 0) {
        const std::string title = fmt::format(
            "layer {}, step {} – {}: the largest load {:.2f} x the mean, the least {:.2f} x, entropy {:.3f}",
            layers[row], columns[c].first, columns[end - 1].last, cell.sum / cell.steps, cell.low,
            cell.entropy / cell.steps);
        body += rect(kLeft + static_cast<double>(c) * width, y, static_cast<double>(end - c) * width, height - 0.5,
                     shade, title);
      }
      c = end;
    }
  }
  for (const std::size_t c : {std::size_t{0}, columns.size() / 2, columns.size() - 1}) {
    const double x = kLeft + (static_cast<double>(c) + 0.5) * width;
    body += svg_label(x, bottom + 16,
                      c == 0                    ? "start"
                      : c + 1 == columns.size() ? "end"
                                                : "middle",
                      short_number(static_cast<double>(columns[c].first)));
  }
  body += svg_label(kWidth - kRight, bottom + kBottom - 4, "end", "step");
  return fmt::format(
      "<figure><figcaption>Expert load{} <small>by layer: the expert with the most rows, over the mean</small>"
      "</figcaption>\n<svg viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"Expert load by layer\">{}</svg>"
      "</figure>\n",
      name.empty() ? "" : ": " + html_escaped(name), kWidth, bottom + kBottom, body);
}

std::optional<double> least_entropy(const MetricsRecord& record) {
  if (record.experts.empty()) return std::nullopt;
  return static_cast<double>(std::ranges::min_element(record.experts, {}, &LayerLoad::entropy)->entropy);
}

}  // namespace

std::string experts_section(const std::vector<MetricsRun>& runs, const std::vector<std::string>& names) {
  std::string maps;
  bool drops = false;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const auto has_experts = [](const MetricsRecord& record) { return !record.experts.empty(); };
    if (std::ranges::any_of(runs[i].records, has_experts))
      maps += "<div class=\"wide\">\n" + load_map(runs[i], names[i]) + "</div>\n";
    drops = drops || std::ranges::any_of(runs[i].records, [](const MetricsRecord& r) { return r.dropped_rows > 0; });
  }
  if (maps.empty()) return "";
  std::string charts =
      line_of_runs(runs, names, "Evenness of the worst layer", "entropy of the load, 1: even", least_entropy);
  charts += line_of_runs(runs, names, "Load balancing loss", "mean over layers, 1: even",
                         &MetricsRecord::load_balancing_loss);
  charts += line_of_runs(runs, names, "Router z loss", "mean over layers", &MetricsRecord::z_loss);
  charts += line_of_runs(runs, names, "Rows sent to other ranks", "a step, all layers", &MetricsRecord::rows_sent);
  charts +=
      line_of_runs(runs, names, "Room used by rows of experts", "at most on a rank, 1: all", &MetricsRecord::room_used);
  charts += line_of_runs(runs, names, "Regrows of that room", "so far", &MetricsRecord::room_regrows);
  if (drops) {
    charts += line_of_runs(runs, names, "Dropped rows", "a step, all layers",
                           [](const MetricsRecord& r) { return static_cast<double>(r.dropped_rows); });
  }
  return "<h2>Experts</h2>\n<div class=\"charts\">" + maps + charts + "</div>\n";
}

}  // namespace megalith
