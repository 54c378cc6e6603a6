#include "apps/plan/plan_json.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "apps/config/options.h"
#include "apps/program/version.h"
#include "apps/run/own_model.h"

namespace megalith {

namespace {

using Json = nlohmann::ordered_json;

Json parameters_of(const Options& options) {
  const ParameterCount count = count_parameters(options);
  return {{"embedding", count.embedding},
          {"attention", count.attention},
          {"mlp", count.mlp},
          {"router", count.router},
          {"experts", count.experts},
          {"active_experts", count.active_experts},
          {"norms", count.norm},
          {"own", count.own},
          {"output_layer", count.output},
          {"total", count.total}};
}

Json stage_of(const StageForecast& stage) {
  const StepPlans& plans = stage.plans;
  Json memory = Json::object();
  for (const auto& [owner, bytes] : bytes_by_owner(stage.memory.persistent, stage.memory)) memory[owner] = bytes;
  Json json = {
      {"stage", stage.stage},
      {"memory_bytes", memory},
      {"memory_peak_bytes", stage.memory.total()},
      {"arena",
       {{"train", plans.train.peak_bytes}, {"evaluate", plans.evaluate.peak_bytes}, {"alive", plans.train.live_bytes}}},
      {"host_bytes", {{"activations", plans.host.peak_bytes}, {"checkpoint_staging", plans.checkpoint_staging}}},
      {"flops", stage.work.flops},
      {"ops", std::llround(stage.work.ops)}};
  const StepGraphs& graphs = plans.graphs;
  if (graphs.graphs > 0) {
    json["graphs"] = {{"graphs", graphs.graphs},   {"ops", graphs.captured_ops},    {"nodes", graphs.nodes},
                      {"replays", graphs.replays}, {"eager_ops", graphs.eager_ops}, {"expected_bytes", graphs.bytes()}};
  }
  return json;
}

}  // namespace

std::string plan_json(const Options& options, const Forecast& forecast) {
  Json json = {{"version", version_line("plan")},
               {"ranks", forecast.config.mesh.world()},
               {"microbatches", forecast.config.microbatches},
               {"sequences", forecast.config.sequences},
               {"parameters", parameters_of(options)},
               {"stages", Json::array()}};
  for (const StageForecast& stage : forecast.stages) json["stages"].push_back(stage_of(stage));
  if (const std::optional<StepForecast>& step = forecast.step) {
    json["step"] = {{"seconds", step->seconds},
                    {"tokens_per_second", step->tokens_per_second},
                    {"tflops_per_rank", step->tflops_per_rank},
                    {"pipeline_seconds", step->pipeline_seconds},
                    {"bubble_share", step->bubble_share},
                    {"host_seconds", step->host_seconds}};
  }
  return json.dump(2) + "\n";
}

}  // namespace megalith
