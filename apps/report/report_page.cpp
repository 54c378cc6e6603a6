#include "apps/report/report_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/metrics/metrics.h"
#include "apps/metrics/metrics_schema.h"
#include "core/base/text/units.h"
#include "core/reports/page.h"
#include "core/reports/series.h"

namespace megalith {

namespace {

using Json = nlohmann::ordered_json;
using Row = Metric<StepMetrics>;

constexpr std::size_t kColors = 8;
constexpr std::size_t kBuckets = 500;      // per line
constexpr std::size_t kMostColumns = 160;  // per picture of loads

std::optional<double> finite(const Row& row, const StepMetrics& step) {
  const std::optional<double> value = number_of(row, step);
  return value && std::isfinite(*value) ? value : std::nullopt;
}

const Row& row_of(std::string_view key) { return *std::ranges::find(step_schema(), key, &Row::key); }

std::vector<ChartPoint> points_of(const MetricsRun& run, const Row& row) {
  std::vector<ChartPoint> points;
  for (const StepMetrics& step : run.records)
    points.push_back({static_cast<double>(step.iteration), finite(row, step)});
  return points;
}

std::vector<double> values_of(const MetricsRun& run, std::string_view key) {
  std::vector<double> values;
  for (const ChartPoint& point : points_of(run, row_of(key)))
    if (point.y) values.push_back(*point.y);
  return values;
}

std::string in_nats(const std::optional<double>& value) { return value ? fmt::format("{:.4f}", *value) : "–"; }
std::string last_of(const std::vector<double>& values) {
  return in_nats(values.empty() ? std::nullopt : std::optional(values.back()));
}
std::string least_of(const std::vector<double>& values) {
  return in_nats(values.empty() ? std::nullopt : std::optional(*std::ranges::min_element(values)));
}

Json line_of(std::string_view name, const std::vector<ChartPoint>& points, std::size_t color, const char* mark) {
  Json all = Json::array();
  for (const ChartPoint& point : thinned(points, kBuckets))
    all.push_back(Json::array({point.x, point.y ? Json(*point.y) : Json()}));
  return {{"name", name}, {"color", color % kColors}, {"mark", mark}, {"points", all}};
}

// Adds raw values as faint lines, with their median on top if there are enough of them.
void add_line(Json& chart, const std::string& name, const std::vector<ChartPoint>& points, std::size_t color) {
  constexpr std::size_t kSmoothFrom = 60;
  const bool smooths = points.size() >= kSmoothFrom;
  const std::size_t window = std::clamp<std::size_t>(points.size() / 40, 8, 200);
  if (smooths) chart["series"].push_back(line_of("", points, color, "faint"));
  chart["series"].push_back(line_of(name, smooths ? smoothed(points, window) : points, color, "line"));
}

class Report {
 public:
  explicit Report(const std::vector<MetricsRun>& runs) : runs_(runs) {
    for (const MetricsRun& run : runs) names_.push_back(name_of(run));
  }

  std::string text() const {
    Json blocks = Json::array();
    const auto add = [&](const Json& block) {
      if (!block.is_null()) blocks.push_back(block);
    };
    add(charts("", ChartSection::kSteps));
    add(charts("Experts", ChartSection::kExperts));
    if (Table table = savings(); !table.rows.empty()) add(block_of(table));
    if (Table table = savings_of_stages(); !table.rows.empty()) add(block_of(table));
    add(charts("Copies", ChartSection::kOffload));
    add(block_of(summary()));
    add(memory());
    for (std::size_t i = 0; i < runs_.size(); ++i)
      if (!runs_[i].config.empty())
        add({{"kind", "flags"},
             {"title", single() ? "All flags of the run" : names_[i]},
             {"entries", flags(runs_[i])}});
    return page_of({{"title", "Training report"}, {"origin", origin()}, {"tiles", tiles()}, {"blocks", blocks}});
  }

 private:
  bool single() const { return runs_.size() == 1; }
  std::string label(std::size_t run, const std::string& what) const {
    return single() ? what : what.empty() ? names_[run] : names_[run] + " " + what;
  }

  // Name of the run's file, with as many folders as distinguish the runs.
  std::string name_of(const MetricsRun& run) const {
    const std::filesystem::path path(run.path);
    const auto same = std::ranges::count_if(runs_, [&](const MetricsRun& other) {
      return std::filesystem::path(other.path).filename() == path.filename();
    });
    return same > 1 ? run.path : path.filename().string();
  }

  Json origin() const {
    Json lines = Json::array();
    for (const MetricsRun& run : runs_)
      lines.push_back(run.path +
                      (run.version.empty() ? "" : fmt::format(" · megalith {} ({})", run.version, run.commit)));
    return lines;
  }

  Json tiles() const {
    Json tiles = Json::array();
    if (!single()) return tiles;
    const MetricsRun& run = runs_[0];
    const StepMetrics& last = run.records.back();
    const auto add = [&](const std::string& value, const char* what) { tiles.push_back(Json::array({value, what})); };
    add(fmt::to_string(last.iteration), "steps");
    if (const auto losses = values_of(run, "lm_loss"); !losses.empty()) add(last_of(losses), "loss of the last step");
    if (const auto validations = values_of(run, "validation_loss"); !validations.empty())
      add(least_of(validations), "best validation loss");
    add(with_unit(median(values_of(run, "tokens_per_second"))), "tokens/s, median");
    add(bytes_text(last.memory_peak_bytes), "memory peak, rank 0");
    const auto skipped = std::ranges::count_if(run.records, &StepMetrics::skipped);
    if (skipped > 0) add(fmt::to_string(skipped), "skipped steps");
    return tiles;
  }

  // Chart with one line per run; null if no step has a value other than 0.
  Json chart(const Row& row) const {
    const bool is_loss = row.key == "lm_loss";
    Json chart = {{"kind", "lines"},          {"title", row.traits.chart.title},
                  {"unit", row.unit},         {"wide", is_loss},
                  {"zero", !is_loss},         {"log", false},
                  {"crosses", Json::array()}, {"series", Json::array()}};
    std::vector<double> values;
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      std::vector<ChartPoint> points = points_of(runs_[i], row);
      if (row.traits.when != kAlways) std::erase_if(points, [](const ChartPoint& point) { return !point.y; });
      for (const ChartPoint& point : points) values.push_back(point.y.value_or(0));
      if (!points.empty()) add_line(chart, label(i, is_loss ? "training" : ""), points, i);
      for (const StepMetrics& step : runs_[i].records)
        if (is_loss && step.skipped) chart["crosses"].push_back(step.iteration);
    }
    for (std::size_t i = 0; is_loss && i < runs_.size(); ++i) {
      std::vector<ChartPoint> points = points_of(runs_[i], row_of("validation_loss"));
      std::erase_if(points, [](const ChartPoint& point) { return !point.y; });
      if (!points.empty())
        chart["series"].push_back(line_of(label(i, "validation"), points, single() ? 1 : i, "dotted"));
    }
    if (std::ranges::all_of(values, [](double value) { return value == 0; })) return {};
    constexpr double kSpike = 20;  // times the median; a larger spike would flatten the rest
    const bool is_spiky = *std::ranges::max_element(values) > kSpike * median(values);
    if (row.key == "grad_norm" && is_spiky) chart["log"] = true, chart["zero"] = false;
    return chart;
  }

  Json charts(const char* title, ChartSection section) const {
    Json figures = Json::array();
    for (std::size_t i = 0; section == ChartSection::kExperts && i < runs_.size(); ++i)
      if (Json map = loads(i); !map.is_null()) figures.push_back(map);
    for (const Row& row : step_schema()) {
      if (row.traits.chart.title.empty() || row.traits.chart.section != section) continue;
      if (Json one = chart(row); !one.is_null()) figures.push_back(one);
    }
    return figures.empty() ? Json() : Json{{"kind", "figures"}, {"title", title}, {"figures", figures}};
  }

  // Means of each layer over consecutive steps, one column each.
  Json loads(std::size_t index) const {
    std::vector<const StepMetrics*> steps;
    for (const StepMetrics& step : runs_[index].records)
      if (!step.experts.empty()) steps.push_back(&step);
    if (steps.empty()) return {};
    const std::size_t count = std::min(steps.size(), kMostColumns);
    Json columns = Json::array();
    for (std::size_t c = 0; c < count; ++c) {
      const std::size_t begin = c * steps.size() / count, end = (c + 1) * steps.size() / count;
      struct Cell {
        double most = 0, least = 1, entropy = 0, steps = 0;
      };
      std::map<std::int64_t, Cell> layers;
      for (std::size_t i = begin; i < end; ++i) {
        for (const ExpertLoad& load : steps[i]->experts) {
          Cell& cell = layers[load.layer];
          cell.most += load.max_over_mean();
          cell.least = cell.steps == 0 ? load.min_over_mean() : std::min(cell.least, load.min_over_mean());
          cell.entropy += load.entropy;
          cell.steps += 1;
        }
      }
      Json cells = Json::array();
      for (const auto& [layer, cell] : layers)
        cells.push_back(Json::array({layer, cell.most / cell.steps, cell.least, cell.entropy / cell.steps}));
      columns.push_back({{"first", steps[begin]->iteration}, {"last", steps[end - 1]->iteration}, {"layers", cells}});
    }
    const std::string name = single() ? "" : ": " + names_[index];
    return {{"kind", "loads"}, {"title", "Expert load" + name}, {"wide", true}, {"columns", columns}};
  }

  // Offload of a run's last step with activations on the host and timed copies; null without such a step.
  static const OffloadMetrics* offload_of(const MetricsRun& run, bool timed) {
    const auto last = std::find_if(run.records.rbegin(), run.records.rend(), [&](const StepMetrics& step) {
      return step.offload.has_value() && (!timed || !step.offload->stages.empty());
    });
    return last == run.records.rend() ? nullptr : &*last->offload;
  }

  Table savings() const {
    Table table{.title = "Activations on the host",
                .columns = {{.head = "run"},
                            {.head = "possible savings of devices"},
                            {.head = "saved by blocks"},
                            {.head = "R"},
                            {.head = "host memory"}}};
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      const OffloadMetrics* const offload = offload_of(runs_[i], false);
      if (offload == nullptr) continue;
      const OffloadStats& sums = offload->sums;
      table.add({single() ? "all ranks" : names_[i], bytes_text(sums.saving_bytes), bytes_text(sums.saved_bytes),
                 fmt::format("{:.4f}", sums.ratio()), bytes_text(sums.host_bytes)});
    }
    return table;
  }

  // Table of the rank in each stage that saves the least of its possible savings.
  Table savings_of_stages() const {
    Table table{.columns = {{.head = "stage"},
                            {.head = "possible savings"},
                            {.head = "saved by the block"},
                            {.head = "R"},
                            {.head = "by the driver"},
                            {.head = "R"}}};
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      const OffloadMetrics* const timed = offload_of(runs_[i], true);
      for (std::size_t s = 0; timed != nullptr && s < timed->stages.size(); ++s) {
        const OffloadStats& stage = timed->stages[s];
        if (stage.saving_bytes == 0 && stage.saved_bytes == 0) continue;  // from files of earlier versions
        const std::optional<std::int64_t>& driver = stage.saved_driver_bytes;
        table.add({label(i, fmt::format("stage {}", s)), bytes_text(stage.saving_bytes), bytes_text(stage.saved_bytes),
                   fmt::format("{:.4f}", stage.ratio()), driver ? bytes_text(*driver) : "n/a",
                   driver ? fmt::format("{:.4f}", stage.ratio(*driver)) : "n/a"});
      }
    }
    return table;
  }

  Table summary() const {
    Table table{.title = "Summary"};
    for (const char* head : {"run", "steps", "samples", "loss", "validation", "best", "ms/step", "tokens/s",
                             "TFLOP/s/device", "memory peak"})
      table.columns.push_back({.head = head});
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      const MetricsRun& run = runs_[i];
      const StepMetrics& last = run.records.back();
      const std::vector<double> validations = values_of(run, "validation_loss");
      table.add({names_[i], fmt::format("{} – {}", run.records.front().iteration, last.iteration),
                 fmt::to_string(last.consumed_samples), last_of(values_of(run, "lm_loss")), last_of(validations),
                 least_of(validations), fmt::format("{:.1f}", median(values_of(run, "step_ms"))),
                 with_unit(median(values_of(run, "tokens_per_second"))),
                 fmt::format("{:.4g}", median(values_of(run, "tflops_per_device"))),
                 bytes_text(last.memory_peak_bytes)});
    }
    return table;
  }

  Json memory() const {
    Json figures = Json::array();
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      Json parts = Json::array();
      std::int64_t whole = 0;
      for (const auto& [category, bytes] : runs_[i].memory_bytes) {
        if (bytes <= 0) continue;
        parts.push_back(Json::array({category, bytes, bytes_text(bytes)}));
        whole += bytes;
      }
      if (whole == 0) continue;
      figures.push_back({{"kind", "memory"},
                         {"title", single() ? "Rank 0" : names_[i]},
                         {"wide", single()},
                         {"total", bytes_text(whole)},
                         {"parts", parts}});
    }
    return figures.empty() ? Json() : Json{{"kind", "figures"}, {"title", "Memory by category"}, {"figures", figures}};
  }

  static Json flags(const MetricsRun& run) {
    Json entries = Json::array();
    for (const auto& [name, value] : run.config) entries.push_back(Json::array({name, value}));
    return entries;
  }

  const std::vector<MetricsRun>& runs_;
  std::vector<std::string> names_;
};

}  // namespace

std::string report_page(const std::vector<MetricsRun>& runs) { return Report(runs).text(); }

}  // namespace megalith
