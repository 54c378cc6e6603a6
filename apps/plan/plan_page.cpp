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
#include "parallel/pipeline_parallel/schedule_block.h"

namespace megalith {

namespace {

using Json = nlohmann::ordered_json;

Json tiles(const StepForecast& step) {
  return Json::array(
      {Json::array({fmt::format("{:.4g} ms", 1e3 * step.seconds), "per step"}),
       Json::array({with_unit(step.tokens_per_second), "tokens/s, all ranks"}),
       Json::array({fmt::format("{:.4g}", step.tflops_per_rank), "model TFLOP/s per rank"}),
       Json::array({fmt::format("{:.1f} %", 100 * step.bubble_share), "pipeline bubble"}),
       Json::array({bytes_text(static_cast<std::int64_t>(step.max_memory)), "peak memory, largest rank"})});
}

// Schedule of the step, or of fewer microbatches if the step has too many boxes for a page.
Json picture(const Forecast& forecast) {
  const PipelineLayout& pipeline = forecast.config.pipeline;
  const std::int64_t boxes_each = std::int64_t{3} * pipeline.placement.num_parts();
  const auto most = static_cast<std::int64_t>(kMaxBoxes) / boxes_each;
  if (forecast.config.microbatches <= most) return schedule_block(forecast.config.schedule(), forecast.simulation);
  const std::int64_t round = pipeline.round();
  const std::int64_t drawn = std::max(most / round, std::int64_t{2}) * round;
  const Schedule some = schedule_of(pipeline, std::min(drawn, forecast.config.microbatches));
  Json block = schedule_block(some, simulate(some, forecast.durations));
  block["note"] = fmt::format("The chart shows {} of {} microbatches, so its bubble is larger than the step's.",
                              some.num_microbatches, forecast.config.microbatches);
  return block;
}

}  // namespace

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
