#include "apps/plan_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "apps/report_chart.h"
#include "apps/report_page.h"
#include "apps/schedule_chart.h"
#include "apps/version.h"
#include "core/base/counted.h"

namespace megalith {

namespace {

std::string cell(const std::string& text) { return "<td class=\"n\">" + text + "</td>"; }

std::string bytes_cell(double bytes) { return cell(bytes_text(static_cast<std::int64_t>(bytes))); }

std::string tiles(const Forecast& forecast) {
  const StepForecast& step = *forecast.step;
  return "<div class=\"tiles\">\n" + html_tile(fmt::format("{:.4g} ms", 1e3 * step.seconds), "a step") +
         html_tile(short_number(step.tokens_per_second), "tokens/s, all ranks") +
         html_tile(fmt::format("{:.4g}", step.tflops_per_rank), "TFLOP/s a rank, of the model") +
         html_tile(fmt::format("{:.1f} %", 100 * step.bubble_share), "bubble of the pipeline") +
         html_tile(bytes_text(static_cast<std::int64_t>(step.most_memory)), "memory of the fullest rank") + "</div>\n";
}

std::string memory_table(const Forecast& forecast) {
  std::vector<std::size_t> shown;  // categories in which any stage has memory
  for (std::size_t c = 0; c < std::size_t{kNumMemoryCategories}; ++c) {
    const auto has_some = [&](const StageForecast& stage) { return stage.memory.persistent[c] > 0; };
    if (std::ranges::any_of(forecast.stages, has_some)) shown.push_back(c);
  }
  std::string head = "<tr><th>stage</th>";
  for (const std::size_t c : shown)
    head += fmt::format("<th class=\"n\">{}</th>", name_of(static_cast<MemoryCategory>(c)));
  std::string rows = head + "<th class=\"n\">step arena</th><th class=\"n\">total</th></tr>\n";
  for (const StageForecast& stage : forecast.stages) {
    rows += fmt::format("<tr><td>{}</td>", stage.stage);
    for (const std::size_t c : shown) rows += bytes_cell(static_cast<double>(stage.memory.persistent[c]));
    rows += bytes_cell(static_cast<double>(stage.memory.arena)) +
            bytes_cell(static_cast<double>(stage.memory.total())) + "</tr>\n";
  }
  return "<h2>Memory of a rank</h2>\n<div class=\"card\"><table>" + rows + "</table></div>\n";
}

std::string volume_table(const Forecast& forecast) {
  std::string rows;
  for (const StageForecast& stage : forecast.stages) {
    for (const auto& [axis, volume] : stage.work.volumes) {
      rows += fmt::format("<tr><td>{}</td><td>{}</td>", stage.stage, html_escaped(axis)) +
              cell(fmt::format("{:.0f}", volume.calls)) + bytes_cell(volume.bytes) + bytes_cell(volume.sent) +
              cell(fmt::format("{:.4g}", 1e3 * volume.seconds)) + "</tr>\n";
    }
  }
  if (rows.empty()) return "";
  return "<h2>Communication of a rank in a step</h2>\n<div class=\"card\"><table><tr><th>stage</th><th>axis</th>"
         "<th class=\"n\">calls</th><th class=\"n\">payload</th><th class=\"n\">sent in a ring</th>"
         "<th class=\"n\">ms, one after the other</th></tr>\n" +
         rows + "</table></div>\n";
}

// Of the step, or where that has more boxes than a page should, of one with fewer microbatches.
std::string picture(const Forecast& forecast) {
  const PipelineLayout& pipeline = forecast.config.pipeline;
  const auto boxes_each = static_cast<std::int64_t>(3 * pipeline.placement.num_parts());
  const auto most = static_cast<std::int64_t>(kMostBoxes) / boxes_each;
  const Schedule whole = forecast.config.schedule();
  if (forecast.config.microbatches <= most) return schedule_svg(whole, forecast.simulation);
  const std::int64_t stages = pipeline.placement.num_stages;
  const std::int64_t drawn = std::max(most / stages, std::int64_t{2}) * stages;
  const Schedule some = schedule_of(pipeline, std::min(drawn, forecast.config.microbatches));
  return schedule_svg(some, simulate(some, forecast.durations)) +
         fmt::format("<p>Drawn with {} of {} microbatches, so its bubble is larger than the step's.</p>\n",
                     some.num_microbatches, forecast.config.microbatches);
}

}  // namespace

std::string plan_page(const Options& options, const Forecast& forecast, const std::string& rates) {
  const ParallelOptions& parallel = options.parallel;
  const std::string origin = html_escaped(fmt::format(
      "{}: tensor {} x pipeline {} x data {} · {} · rates of {} · megalith {} ({})",
      counted(parallel.world_size, "rank"), parallel.tensor_model_parallel_size, parallel.pipeline_model_parallel_size,
      parallel.world_size / (parallel.tensor_model_parallel_size * parallel.pipeline_model_parallel_size),
      counted(forecast.config.microbatches, "microbatch", "microbatches"), rates, program_version(), program_commit()));
  return html_page(
      "Forecast of a training step", origin,
      tiles(forecast) + "<h2>Schedule</h2>\n" + picture(forecast) + memory_table(forecast) + volume_table(forecast));
}

}  // namespace megalith
