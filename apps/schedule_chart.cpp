#include "apps/schedule_chart.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/report_chart.h"
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
  const char* name;
  const char* fill;
};

Look look_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward: return {"forward", "f0"};
    case ActionKind::kBackwardData: return {"backward, data", "f2"};
    default: return {"backward, weights", "f3"};
  }
}

std::string milliseconds(double seconds) { return fmt::format("{:.3g} ms", 1e3 * seconds); }

struct Lane {
  const std::vector<Action>& actions;
  const std::vector<Simulation::ActionTime>& times;
  int stage;
  int num_chunks;
  double pixels;  // of a second
};

std::string boxes_of(const Lane& lane) {
  const double y = kLane * lane.stage + (kLane - kBox) / 2;
  std::string out;
  for (std::size_t i = 0; i < std::min(lane.actions.size(), lane.times.size()); ++i) {
    const Action& action = lane.actions[i];
    const double x = kLeft + lane.pixels * lane.times[i].start;
    const double width = lane.pixels * (lane.times[i].end - lane.times[i].start);
    if (width <= 0) continue;
    const Look look = look_of(action.kind);
    const double opacity = lane.num_chunks == 1 ? 1 : 1 - 0.5 * action.chunk / (lane.num_chunks - 1.0);
    out += fmt::format(
        "<rect class=\"box {}\" x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.0f}\" opacity=\"{:.2f}\"><title>"
        "{} of microbatch {}{}, {}</title></rect>\n",
        look.fill, x, y, width, kBox, opacity, look.name, action.microbatch,
        lane.num_chunks == 1 ? "" : fmt::format(", chunk {}", action.chunk),
        milliseconds(lane.times[i].end - lane.times[i].start));
    const std::string label = fmt::format("{}", action.microbatch);
    if (width >= kLetter * static_cast<double>(label.size()) + 2) {
      out += fmt::format(R"(<text class="box-label" x="{:.2f}" y="{:.1f}" text-anchor="middle">{}</text>)",
                         x + width / 2, y + kBox - 6, label);
    }
  }
  return out;
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
    body += boxes_of({.actions = schedule.stages[s],
                      .times = simulation.stages[s].actions,
                      .stage = stage,
                      .num_chunks = schedule.placement.num_chunks,
                      .pixels = pixels});
  }
  for (const double tick : nice_ticks(0, 1e3 * simulation.makespan, 10)) {
    body += fmt::format("<text class=\"tick\" x=\"{:.1f}\" y=\"{:.0f}\" text-anchor=\"middle\">{}</text>\n",
                        kLeft + pixels * tick / 1e3, bottom + 16, short_number(tick));
  }
  std::string legend;
  for (const auto& [color, kind] :
       {std::pair{0, ActionKind::kForward}, {2, ActionKind::kBackwardData}, {3, ActionKind::kBackwardWeight}})
    legend += fmt::format("<span><i class=\"swatch b{}\"></i>{}</span>", color, look_of(kind).name);
  const std::string title =
      fmt::format("Schedule {} of {}, {}: bubble {:.1f} %", name_of(schedule.kind), counted(stages, "stage"),
                  counted(schedule.num_microbatches, "microbatch", "microbatches"), 100 * simulation.bubble_share());
  return fmt::format(
      "<figure><figcaption>{}<small>milliseconds</small></figcaption><div class=\"legend\">{}</div>\n"
      "<svg viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"{}\">\n{}</svg></figure>\n",
      title, legend, kWidth + 12, bottom + kAxis, title, body);
}

}  // namespace megalith
