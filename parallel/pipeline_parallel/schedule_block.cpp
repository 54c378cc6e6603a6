#include "parallel/pipeline_parallel/schedule_block.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/base/counted.h"

namespace megalith {

namespace {

using Json = nlohmann::ordered_json;

struct Look {
  ActionKind kind;
  const char* name;
  int color;
};
constexpr Look kLooks[] = {{ActionKind::kForward, "forward", 0},
                           {ActionKind::kBackwardData, "backward, data", 2},
                           {ActionKind::kBackwardWeight, "backward, weights", 3}};

// Lane with the verbs of a stage.
Json boxes_of(const Schedule& schedule, const Simulation& simulation, std::size_t stage) {
  const std::vector<Action>& actions = schedule.stages[stage];
  const std::vector<Simulation::ActionTime>& times = simulation.stages[stage].actions;
  const int chunks = schedule.placement.num_chunks;
  Json boxes = Json::array();
  for (std::size_t i = 0; i < std::min(actions.size(), times.size()); ++i) {
    const Action& action = actions[i];
    if (times[i].end <= times[i].start) continue;
    const auto look = std::ranges::find(kLooks, action.kind, &Look::kind) - kLooks;
    const double shade = chunks == 1 ? 1 : 1 - 0.5 * action.chunk / (chunks - 1.0);
    const std::string what =
        fmt::format("microbatch {}{}", action.microbatch, chunks == 1 ? "" : fmt::format(", chunk {}", action.chunk));
    boxes.push_back(Json::array({look, 1e3 * times[i].start, 1e3 * times[i].end, action.microbatch, shade, what}));
  }
  return boxes;
}

}  // namespace

Json schedule_block(const Schedule& schedule, const Simulation& simulation) {
  Json looks = Json::array(), stages = Json::array();
  for (const Look& look : kLooks) looks.push_back(Json::array({look.name, look.color}));
  for (std::size_t stage = 0; stage < schedule.stages.size(); ++stage) {
    const double idle = simulation.makespan > 0 ? 1 - simulation.stages[stage].busy / simulation.makespan : 0;
    stages.push_back({{"idle", 100 * idle}, {"boxes", boxes_of(schedule, simulation, stage)}});
  }
  return {{"kind", "schedule"},
          {"title", fmt::format("Schedule {} of {}, {}: bubble {:.1f} %", name_of(schedule.kind),
                                counted(schedule.placement.num_stages, "stage"),
                                counted(schedule.num_microbatches, "microbatch", "microbatches"),
                                100 * simulation.bubble_share())},
          {"span", 1e3 * simulation.makespan},
          {"looks", looks},
          {"stages", stages}};
}

}  // namespace megalith
