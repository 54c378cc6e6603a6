#include "apps/plan/plan_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "apps/config/parallel_options.h"
#include "apps/plan/plan_experts.h"
#include "apps/program/version.h"
#include "apps/report/report_chart.h"
#include "apps/report/report_page.h"
#include "apps/summary/offload_report.h"
#include "core/base/counted.h"

namespace megalith {

namespace {

constexpr double kLeft = 64;
constexpr double kWidth = 1060;
constexpr double kLane = 26;  // height of a stage, with the gap
constexpr double kBox = 20;
constexpr double kAxis = 24;
constexpr double kLetter = 6.5;  // width of a digit

struct Look {
  ActionKind kind;
  const char* name;
  int color;
};
constexpr Look kLooks[] = {{ActionKind::kForward, "forward", 0},
                           {ActionKind::kBackwardData, "backward, data", 2},
                           {ActionKind::kBackwardWeight, "backward, weights", 3}};

// The verbs of a stage; `pixels` to a second.
std::string boxes_of(const Schedule& schedule, const Simulation& simulation, int stage, double pixels) {
  const std::vector<Action>& actions = schedule.stages[static_cast<std::size_t>(stage)];
  const std::vector<Simulation::ActionTime>& times = simulation.stages[static_cast<std::size_t>(stage)].actions;
  const int chunks = schedule.placement.num_chunks;
  const double y = kLane * stage + (kLane - kBox) / 2;
  std::string out;
  for (std::size_t i = 0; i < std::min(actions.size(), times.size()); ++i) {
    const Action& action = actions[i];
    const double seconds = times[i].end - times[i].start;
    const double x = kLeft + pixels * times[i].start, width = pixels * seconds;
    if (width <= 0) continue;
    const Look& look = *std::ranges::find(kLooks, action.kind, &Look::kind);
    const double opacity = chunks == 1 ? 1 : 1 - 0.5 * action.chunk / (chunks - 1.0);
    out += fmt::format(
        "<rect class=\"box f{}\" x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.0f}\" "
        "opacity=\"{:.2f}\"><title>"
        "{} of microbatch {}{}, {:.3g} ms</title></rect>\n",
        look.color, x, y, width, kBox, opacity, look.name, action.microbatch,
        chunks == 1 ? "" : fmt::format(", chunk {}", action.chunk), 1e3 * seconds);
    const std::string label = fmt::format("{}", action.microbatch);
    if (width >= kLetter * static_cast<double>(label.size()) + 2) {
      out += fmt::format(R"(<text class="box-label" x="{:.2f}" y="{:.1f}" text-anchor="middle">{}</text>)",
                         x + width / 2, y + kBox - 6, label);
    }
  }
  return out;
}

std::string bytes_cell(double bytes) { return bytes_text(static_cast<std::int64_t>(bytes)); }

std::string tiles(const StepForecast& step) {
  return html_tiles({{fmt::format("{:.4g} ms", 1e3 * step.seconds), "a step"},
                     {short_number(step.tokens_per_second), "tokens/s, all ranks"},
                     {fmt::format("{:.4g}", step.tflops_per_rank), "TFLOP/s a rank, of the model"},
                     {fmt::format("{:.1f} %", 100 * step.bubble_share), "bubble of the pipeline"},
                     {bytes_cell(static_cast<double>(step.most_memory)), "memory of the fullest rank"}});
}

std::string memory_table(const Forecast& forecast) {
  std::vector<std::size_t> shown;  // categories in which any stage has memory
  std::vector<std::string> head = {"stage"};
  for (std::size_t c = 0; c < std::size_t{kNumMemoryCategories}; ++c) {
    const auto has_some = [&](const StageForecast& stage) { return stage.memory.persistent[c] > 0; };
    if (!std::ranges::any_of(forecast.stages, has_some)) continue;
    shown.push_back(c);
    head.emplace_back(name_of(static_cast<MemoryCategory>(c)));
  }
  head.insert(head.end(), {"step arena", "total"});
  std::vector<std::vector<std::string>> rows;
  for (const StageForecast& stage : forecast.stages) {
    std::vector<std::string>& row = rows.emplace_back(1, fmt::format("{}", stage.stage));
    for (const std::size_t c : shown) row.push_back(bytes_cell(static_cast<double>(stage.memory.persistent[c])));
    row.push_back(bytes_cell(static_cast<double>(stage.memory.arena)));
    row.push_back(bytes_cell(static_cast<double>(stage.memory.total())));
  }
  return "<h2>Memory of a rank</h2>\n" + html_table(head, rows);
}

std::string volume_table(const Forecast& forecast) {
  std::vector<std::vector<std::string>> rows;
  for (const StageForecast& stage : forecast.stages) {
    for (const auto& [axis, volume] : stage.work.volumes) {
      rows.push_back({fmt::format("{}", stage.stage), html_escaped(axis), fmt::format("{:.0f}", volume.calls),
                      bytes_cell(volume.bytes), bytes_cell(volume.sent), fmt::format("{:.4g}", 1e3 * volume.seconds)});
    }
  }
  if (rows.empty()) return "";
  return "<h2>Communication of a rank in a step</h2>\n" +
         html_table({"stage", "axis", "calls", "payload", "sent in a ring", "ms, one after the other"}, rows,
                    /*texts=*/2);
}

std::string offload_table(const Forecast& forecast) {
  std::vector<std::vector<std::string>> rows, sums;
  for (const StageForecast& stage : forecast.stages) {
    const StepPlans& plans = stage.plans;
    if (plans.offload.rows.empty()) continue;
    const std::string number = fmt::format("{}", stage.stage);
    for (const OffloadChosen::Row& row : plans.offload.rows) {
      rows.push_back({number, std::string(name_of(row.kind)), row.reason.empty() ? "moves" : "stays: " + row.reason,
                      said_layers(row.layers), fmt::format("{}", row.slots),
                      bytes_cell(static_cast<double>(row.bytes))});
    }
    const OffloadSaving saving = saving_of(plans);
    const StepTimes& times = stage.times;
    sums.push_back({number, bytes_cell(saving.theory), bytes_cell(saving.realised),
                    fmt::format("{:.4f}", saving.ratio()), bytes_cell(static_cast<double>(plans.host.peak_bytes)),
                    fmt::format("{:.4g}", 1e3 * times.to_host), fmt::format("{:.4g}", 1e3 * times.from_host),
                    fmt::format("{:.4g}", 1e3 * times.exposed_to_host),
                    fmt::format("{:.4g}", 1e3 * times.exposed_from_host)});
  }
  if (rows.empty()) return "";
  return "<h2>Kept activations of a microbatch</h2>\n" +
         html_table({"stage", "kind", "where", "layers", "slots", "bytes"}, rows, /*texts=*/4) +
         "<h2>Activations on the host</h2>\n" +
         html_table({"stage", "saved, fullest moment", "saved, arena", "R", "host memory", "ms to the host", "ms back",
                     "exposed to the host", "exposed back"},
                    sums);
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

std::string schedule_svg(const Schedule& schedule, const Simulation& simulation) {
  const int stages = schedule.placement.num_stages;
  const double bottom = kLane * stages;
  const double pixels = simulation.makespan > 0 ? (kWidth - kLeft) / simulation.makespan : 0;
  std::string body;
  for (int stage = 0; stage < stages; ++stage) {
    const auto s = static_cast<std::size_t>(stage);
    const double share = simulation.makespan > 0 ? 1 - simulation.stages[s].busy / simulation.makespan : 0;
    body += fmt::format(
        "<rect class=\"bubble\" x=\"{:.0f}\" y=\"{:.1f}\" width=\"{:.0f}\" height=\"{:.0f}\"><title>stage {} waits "
        "{:.1f} % of the time</title></rect>\n<text class=\"tick\" x=\"0\" y=\"{:.1f}\">stage {}</text>\n",
        kLeft, kLane * stage + (kLane - kBox) / 2, kWidth - kLeft, kBox, stage, 100 * share,
        kLane * stage + kLane / 2 + 4, stage);
    body += boxes_of(schedule, simulation, stage, pixels);
  }
  for (const double tick : nice_ticks(0, 1e3 * simulation.makespan, 10)) {
    body += svg_label(kLeft + pixels * tick / 1e3, bottom + 16, "middle", short_number(tick));
  }
  std::string legend;
  for (const Look& look : kLooks)
    legend += fmt::format("<span><i class=\"swatch b{}\"></i>{}</span>", look.color, look.name);
  const std::string title =
      fmt::format("Schedule {} of {}, {}: bubble {:.1f} %", name_of(schedule.kind), counted(stages, "stage"),
                  counted(schedule.num_microbatches, "microbatch", "microbatches"), 100 * simulation.bubble_share());
  return fmt::format(
      "<figure><figcaption>{}<small>milliseconds</small></figcaption><div class=\"legend\">{}</div>\n"
      "<svg viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"{}\">\n{}</svg></figure>\n",
      title, legend, kWidth + 12, bottom + kAxis, title, body);
}

std::string plan_page(const Options& options, const Forecast& forecast, const std::string& rates) {
  const ParallelOptions& parallel = options.parallel;
  const std::string origin = html_escaped(fmt::format(
      "{}: tensor {} x pipeline {} x data {}{} · {} · rates of {} · megalith {} ({})",
      counted(parallel.world_size, "rank"), parallel.tensor_model_parallel_size, parallel.pipeline_model_parallel_size,
      parallel.world_size / (parallel.tensor_model_parallel_size * parallel.pipeline_model_parallel_size),
      parallel.expert_ranks() > 1 ? fmt::format(", experts over {}", parallel.expert_ranks()) : "",
      counted(forecast.config.microbatches, "microbatch", "microbatches"), rates, program_version(), program_commit()));
  return html_page("Forecast of a training step", origin,
                   tiles(*forecast.step) + "<h2>Schedule</h2>\n" + picture(forecast) + memory_table(forecast) +
                       offload_table(forecast) + volume_table(forecast) + experts_on_page(options, forecast));
}

}  // namespace megalith
