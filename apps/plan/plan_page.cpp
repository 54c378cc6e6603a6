#include "apps/plan/plan_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "apps/config/parallel_options.h"
#include "apps/metrics/metrics.h"
#include "apps/plan/plan_tables.h"
#include "apps/program/version.h"
#include "core/base/counted.h"
#include "core/base/text/units.h"
#include "core/reports/page.h"

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

// The verbs of a stage.
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

Json tiles(const StepForecast& step) {
  return Json::array(
      {Json::array({fmt::format("{:.4g} ms", 1e3 * step.seconds), "a step"}),
       Json::array({with_unit(step.tokens_per_second), "tokens/s, all ranks"}),
       Json::array({fmt::format("{:.4g}", step.tflops_per_rank), "TFLOP/s a rank, of the model"}),
       Json::array({fmt::format("{:.1f} %", 100 * step.bubble_share), "bubble of the pipeline"}),
       Json::array({bytes_text(static_cast<std::int64_t>(step.most_memory)), "memory of the fullest rank"})});
}

// Of the step, or where that has more boxes than a page should, of one with fewer microbatches.
Json picture(const Forecast& forecast) {
  const PipelineLayout& pipeline = forecast.config.pipeline;
  const auto boxes_each = static_cast<std::int64_t>(3 * pipeline.placement.num_parts());
  const auto most = static_cast<std::int64_t>(kMostBoxes) / boxes_each;
  if (forecast.config.microbatches <= most) return schedule_block(forecast.config.schedule(), forecast.simulation);
  const std::int64_t stages = pipeline.placement.num_stages;
  const std::int64_t drawn = std::max(most / stages, std::int64_t{2}) * stages;
  const Schedule some = schedule_of(pipeline, std::min(drawn, forecast.config.microbatches));
  Json block = schedule_block(some, simulate(some, forecast.durations));
  block["note"] = fmt::format("Drawn with {} of {} microbatches, so its bubble is larger than the step's.",
                              some.num_microbatches, forecast.config.microbatches);
  return block;
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

std::string plan_page(const Options& options, const Forecast& forecast, const Rates& rates) {
  const ParallelOptions& parallel = options.parallel;
  const std::string origin = fmt::format(
      "{}: tensor {} x pipeline {} x data {}{} · {} · rates of {} · megalith {} ({})",
      counted(parallel.world_size, "rank"), parallel.tensor_model_parallel_size, parallel.pipeline_model_parallel_size,
      parallel.world_size / (parallel.tensor_model_parallel_size * parallel.pipeline_model_parallel_size),
      parallel.expert_ranks() > 1 ? fmt::format(", experts over {}", parallel.expert_ranks()) : "",
      counted(forecast.config.microbatches, "microbatch", "microbatches"), rates.device, program_version(),
      program_commit());
  Json blocks = Json::array({picture(forecast)});
  for (const Table& table : plan_tables(options, forecast, &rates)) blocks.push_back(block_of(table));
  return page_of({{"title", "Forecast of a training step"},
                  {"origin", Json::array({origin})},
                  {"tiles", tiles(*forecast.step)},
                  {"blocks", blocks}});
}

}  // namespace megalith
