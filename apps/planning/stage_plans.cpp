#include "apps/planning/stage_plans.h"

#include <algorithm>

#include "apps/config/options.h"
#include "apps/config/training_options.h"
#include "apps/planning/plan_steps.h"

namespace megalith {

StepPlans plan_stages(const Options& options, const RunConfig& config, int rank) {
  StepPlans plans = plan_steps(options, config, rank);
  add_room_for_stages(options, config, rank, plans);
  return plans;
}

// More microbatches than three rounds of the stages repeat a pattern, in the same memory or, under gpipe, in more.
void add_room_for_stages(const Options& options, const RunConfig& config, int rank, StepPlans& largest) {
  constexpr std::int64_t kRounds = 3, kOneByOne = 4;
  if (options.train.rampup_batch_size.empty()) return;
  const std::int64_t start = options.train.rampup_batch_size[0], increment = options.train.rampup_batch_size[1];
  const std::int64_t of_microbatch = config.sequences * config.mesh.dp;
  const std::int64_t most = std::max(kOneByOne, kRounds * config.pipeline.placement.num_stages) * of_microbatch;
  RunConfig stage = config;
  for (std::int64_t batch = start; batch < std::min(options.train.global_batch_size, most + 1); batch += increment) {
    stage.microbatches = batch / of_microbatch;
    const StepPlans plans = plan_steps(options, stage, rank, largest.offload);
    largest.train.peak_bytes = std::max(largest.train.peak_bytes, plans.train.peak_bytes);
    largest.host.peak_bytes = std::max(largest.host.peak_bytes, plans.host.peak_bytes);
  }
}

}  // namespace megalith
