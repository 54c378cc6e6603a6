// What a run of given flags would take on each pipeline stage, without running it: memory, FLOPs, communication, and
// with a machine's rates the time of a step. Ranks of a stage differ in nothing, so one of each stage is looked at.
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

// At once, each of which takes up to half a GiB; a constant, so that a search's answer is the same everywhere.
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
  double tflops_per_rank = 0;   // of the model: causal attention, no recompute
  double pipeline_seconds = 0;  // from the first forward to the last backward
  double bubble_share = 0;      // of all stages' time within pipeline_seconds
  double host_seconds = 0;      // of the host that enqueues most
  std::size_t most_memory = 0;  // bytes, of all stages
};

struct Forecast {
  RunConfig config;
  MoeTokenDispatcher dispatcher = MoeTokenDispatcher::kAllToAll;  // of experts that ranks share out
  std::vector<StageForecast> stages = {};                         // those looked at, ascending
  std::optional<StepForecast> step = {};                          // with rates, where all stages fit
  Simulation simulation = {};                                     // with rates; of the whole schedule
  SimulationSpec durations = {};                                  // that it was given
};

struct ForecastSpec {
  const Rates* rates = nullptr;
  // Of stages whose parts are alike only the first, which keeps most activations where stages warm up with the more
  // microbatches the earlier they are (not in a V).
  bool one_of_alike = false;
  // Microbatches of all stages together; of longer schedules each stage is recorded in part (record_step).
  std::int64_t most_recorded = 16'384;
  std::size_t most_memory = 0;  // bytes; a stage that needs more is the last one looked at; 0: no limit
};
// `options` is complete (complete_options).
Forecast make_forecast(const Options& options, int world, const ForecastSpec& spec);

// The schedule's durations, by part of the model, given each stage's times.
SimulationSpec durations_of(const PipelineLayout& pipeline, const std::vector<const StepTimes*>& stages,
                            const CostModel& costs, std::int64_t ranks_of_stage);

}  // namespace megalith
