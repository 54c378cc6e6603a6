// Forecast of a run on each pipeline stage without running it: memory, FLOPs, communication, and with a machine's rates
// the time of a step. All ranks of a stage are equal, so one rank per stage is recorded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/config/options.h"
#include "apps/config/run_config.h"
#include "apps/cost/step_times.h"
#include "apps/run/step_plan.h"
#include "core/model/moe_config.h"
#include "parallel/cost/rates.h"
#include "parallel/pipeline_parallel/simulator.h"

namespace megalith {

// Concurrent forecasts, each with up to half a GiB; a constant, so that a search gives the same answer everywhere.
inline constexpr std::size_t kForecastsTogether = 4;

struct StageForecast {
  int stage = 0;
  StepPlans plans;
  MemoryUse memory;
  StepWork work;
  StepTimes times;  // with rates
};

struct StepForecast {
  double seconds = 0;
  double tokens_per_second = 0;
  double tflops_per_rank = 0;   // model FLOPs: causal attention, no recompute
  double pipeline_seconds = 0;  // from the first forward to the last backward
  double bubble_share = 0;      // fraction of all stages' time within pipeline_seconds
  double host_seconds = 0;      // of the busiest host
  std::size_t max_memory = 0;   // bytes, over all stages
};

struct Forecast {
  RunConfig config;
  MoeTokenDispatcher dispatcher = MoeTokenDispatcher::kAllToAll;  // of expert-parallel rows
  std::vector<StageForecast> stages = {};                         // recorded stages, ascending
  std::optional<StepForecast> step = {};                          // with rates, if all stages fit
  Simulation simulation = {};                                     // of the whole schedule, with rates
  SimulationSpec durations = {};                                  // input of the simulation
};

struct ForecastSpec {
  const Rates* rates = nullptr;
  // Records only the first of several stages with equal parts. It keeps most activations if earlier stages warm up with
  // more microbatches (not in a V schedule).
  bool one_of_equal = false;
  // Microbatches of all stages together; longer schedules are recorded in part (record_step).
  std::int64_t max_recorded = 16'384;
  std::size_t max_memory = 0;  // bytes; the first larger stage ends the forecast; 0: no limit
  // Seconds; with max_memory, a longer step ends the forecast ahead of its evaluation's memory; 0: no limit.
  double max_seconds = 0;
  bool only_live_bytes = false;  // memory without a layout and without the evaluation's: a lower bound
};
// Forecast of `options`, which are complete (complete_options).
Forecast make_forecast(const Options& options, int world, const ForecastSpec& spec);

// Options for several hosts, whose GPUs do not read each other's memory.
Options on_hosts(Options options, const MeshSizes& mesh, const Rates& rates);
CostModel cost_model(const Options& options, const Rates& rates, int world);  // `rates` outlives it

// Durations of the schedule by part of the model, from each stage's times.
SimulationSpec durations_of(const PipelineLayout& pipeline, const std::vector<const StepTimes*>& stages,
                            const CostModel& costs, std::int64_t ranks_of_stage);

}  // namespace megalith
