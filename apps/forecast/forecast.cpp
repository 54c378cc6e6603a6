#include "apps/forecast/forecast.h"

#include <algorithm>
#include <tuple>

#include "apps/config/dispatcher_choice.h"
#include "apps/config/machine_facts.h"
#include "apps/config/training_options.h"
#include "apps/planning/plan_steps.h"
#include "apps/run/own_model.h"
#include "core/base/side_by_side.h"
#include "core/model/config.h"

namespace megalith {

namespace {

// For each stage, the stage that is recorded instead of it.
std::vector<int> looked_at(const PipelineLayout& pipeline, bool one_of_equal) {
  using Shape = std::vector<std::tuple<std::int64_t, bool, bool>>;
  const int stages = pipeline.placement.num_stages;
  std::vector<Shape> shapes;
  std::vector<int> chosen;
  for (int stage = 0; stage < stages; ++stage) {
    Shape& shape = shapes.emplace_back();
    for (const GptPart& part : pipeline.parts_of(stage))
      shape.emplace_back(part.num_layers, part.has_embedding, part.has_head);
    int first = 0;
    while (shapes[static_cast<std::size_t>(first)] != shape) ++first;
    chosen.push_back(one_of_equal ? first : stage);
  }
  return chosen;
}

const StageForecast& stage_of(const Forecast& forecast, int stage) {
  return *std::find_if(forecast.stages.begin(), forecast.stages.end(),
                       [stage](const StageForecast& s) { return s.stage == stage; });
}

// Forecast of the step: stages synchronize at the sum of the norm, and end together.
StepForecast step_of(const Options& options, const Rates& rates, const Forecast& forecast,
                     const std::vector<int>& looked) {
  StepForecast step;
  step.pipeline_seconds = forecast.simulation.makespan;
  step.bubble_share = forecast.simulation.bubble_share();
  double norm = 0, rest = 0;
  for (std::size_t s = 0; s < looked.size(); ++s) {
    const StepTimes& times = stage_of(forecast, looked[s]).times;
    const std::vector<Simulation::ActionTime>& actions = forecast.simulation.stages[s].actions;
    const double begin = actions.empty() ? 0 : actions.front().start, end = actions.empty() ? 0 : actions.back().end;
    norm = std::max(norm, end + times.before_norm + std::max(0.0, times.wait_parameters - begin));
    rest = std::max(rest, times.after_norm);
  }
  step.seconds = norm + rest;
  for (const StageForecast& stage : forecast.stages) {
    const StepGraphs& graphs = stage.plans.graphs;
    step.host_seconds =
        std::max(step.host_seconds, static_cast<double>(graphs.eager_ops) * rates.launch_seconds +
                                        static_cast<double>(graphs.replays) * rates.graph_launch_seconds);
    step.max_memory = std::max(step.max_memory, stage.memory.total());
  }
  step.seconds = std::max(step.seconds, step.host_seconds);
  const double tokens = static_cast<double>(options.train.global_batch_size * options.model.seq_length);
  step.tokens_per_second = tokens / step.seconds;
  return step;
}

// Adds the evaluations' memory; without a step if a stage then exceeds the limit.
void add_evaluations(const Options& options, const ForecastSpec& spec, const RecordSpec& record, Forecast& forecast) {
  const std::int64_t ranks_of_stage = forecast.config.mesh.world() / forecast.config.mesh.pp;
  for (StageForecast& stage : forecast.stages) {
    add_evaluation(options, forecast.config, static_cast<int>(stage.stage * ranks_of_stage), record, stage.plans);
    stage.memory = memory_use(stage.plans);
    forecast.step->max_memory = std::max(forecast.step->max_memory, stage.memory.total());
    if (stage.memory.total() > spec.max_memory) return forecast.step.reset();
  }
}

}  // namespace

Options on_hosts(Options options, const MeshSizes& mesh, const Rates& rates) {
  const std::vector<int> ranks = group_of(mesh, 0, {Axis::kEtp, Axis::kEp});
  options.machine.lacks_peer_access |= ranks.back() / rates.host_ranks != ranks.front() / rates.host_ranks;
  return options;
}

CostModel cost_model(const Options& options, const Rates& rates, int world) {
  return CostModel(rates,
                   {.width = static_cast<double>(options.model.kv_channels),
                    .length = static_cast<double>(options.model.seq_length)},
                   world);
}

SimulationSpec durations_of(const PipelineLayout& pipeline, const std::vector<const StepTimes*>& stages,
                            const CostModel& costs, std::int64_t ranks_of_stage) {
  const Placement& placement = pipeline.placement;
  std::size_t bytes = 0;
  for (const StepTimes* times : stages) bytes = std::max(bytes, times->message_bytes);
  SimulationSpec spec;
  spec.parts.clear();
  for (int part = 0; part < placement.num_parts(); ++part) {
    const StageChunk at = placement.at(part);
    const auto& chunks = stages[static_cast<std::size_t>(at.stage)]->chunks;
    const StepTimes::Chunk& chunk = chunks[static_cast<std::size_t>(at.chunk)];
    PartDurations& durations = spec.parts.emplace_back(PartDurations{.forward = chunk.forward,
                                                                     .backward_data = chunk.backward_data,
                                                                     .backward_weight = chunk.backward_weight,
                                                                     .transfer = 0});
    if (part + 1 == placement.num_parts()) continue;
    const int next = placement.at(part + 1).stage;
    if (next == at.stage) continue;
    durations.transfer = costs.transfer_seconds(bytes, static_cast<int>(at.stage * ranks_of_stage),
                                                static_cast<int>(next * ranks_of_stage));
  }
  return spec;
}

Forecast make_forecast(const Options& given, int world, const ForecastSpec& spec) {
  Forecast forecast{.config = run_config(given, world)};
  const Options options = spec.rates == nullptr ? given : on_hosts(given, forecast.config.mesh, *spec.rates);
  forecast.dispatcher = dispatcher_of(options);
  const MeshSizes& mesh = forecast.config.mesh;
  const PipelineLayout& pipeline = forecast.config.pipeline;
  const std::vector<int> looked = looked_at(pipeline, spec.one_of_equal);
  const std::int64_t ranks_of_stage = mesh.world() / mesh.pp;
  std::optional<CostModel> costs;
  if (spec.rates != nullptr) costs.emplace(cost_model(options, *spec.rates, world));
  std::vector<StageForecast> stages;
  for (int stage = 0; stage < pipeline.placement.num_stages; ++stage)
    if (looked[static_cast<std::size_t>(stage)] == stage) stages.push_back({.stage = stage});
  const auto is_too_large = [&](const StageForecast& stage) {
    return spec.max_memory != 0 && stage.memory.total() > spec.max_memory;
  };
  const bool evaluates_last = spec.max_memory != 0 && spec.max_seconds != 0;
  const RecordSpec record{.max_microbatches = spec.max_recorded / mesh.pp,
                          .max_memory = spec.max_memory,
                          .searches = spec.max_memory == 0 && !spec.only_live_bytes,
                          .only_live_bytes = spec.only_live_bytes,
                          .evaluates = !evaluates_last && !spec.only_live_bytes};
  const auto rank_of = [&](const StageForecast& stage) { return static_cast<int>(stage.stage * ranks_of_stage); };
  const auto look_at = [&](StageForecast& out) {
    StepRecording recording = record_step(options, forecast.config, rank_of(out), record);
    if (spec.max_memory == 0) add_room_for_stages(options, forecast.config, rank_of(out), recording.plans);
    out.memory = memory_use(recording.plans);
    if (is_too_large(out)) return;
    out.work = work_of(recording, forecast.config.microbatches, costs ? &*costs : nullptr);
    if (costs) out.times = times_of(recording, *costs);
    out.plans = std::move(recording.plans);
  };
  if (spec.max_memory == 0) {
    side_by_side(stages.size(), kForecastsTogether, [&](std::size_t i) { look_at(stages[i]); });
    forecast.stages = std::move(stages);
  } else {
    for (StageForecast& stage : stages) {
      look_at(stage);
      forecast.stages.push_back(std::move(stage));
      if (is_too_large(forecast.stages.back())) return forecast;
    }
  }
  if (!costs) return forecast;
  std::vector<const StepTimes*> times;
  times.reserve(looked.size());
  for (const int stage : looked) times.push_back(&stage_of(forecast, stage).times);
  forecast.durations = durations_of(pipeline, times, *costs, ranks_of_stage);
  forecast.simulation = simulate(forecast.config.schedule(), forecast.durations);
  forecast.step = step_of(options, *spec.rates, forecast, looked);
  constexpr double kTera = 1e12;
  forecast.step->tflops_per_rank = flops_per_token(options, forecast.config.marks.pairs) *
                                   forecast.step->tokens_per_second / (kTera * static_cast<double>(mesh.world()));
  if (!evaluates_last || spec.only_live_bytes || forecast.step->seconds >= spec.max_seconds) return forecast;
  add_evaluations(options, spec, record, forecast);
  return forecast;
}

}  // namespace megalith
