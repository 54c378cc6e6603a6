// What a run does when numbers go wrong: names the first NaN or Inf of a step that was skipped, the rank whose copy of
// the parameters differs, accesses that no event orders, and ranks that communicate differently.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "apps/run/step.h"
#include "apps/run/step_samples.h"
#include "core/instruments/hazard_checker.h"
#include "core/tensor/finite_checker.h"
#include "parallel/comm/on_all_ranks.h"
#include "parallel/data_parallel/replica_check.h"

namespace megalith {

class NumericsGuard {
 public:
  NumericsGuard(const TrainingOptions& options, Communicator& world);

  // For Instruments of the run's streams.
  HazardChecker* hazards() const { return hazards_.get(); }
  OpObserver* observer() { return finite_.observer(); }

  // A step that was skipped began after `consumed_samples`; it can be explained until the next update.
  void skipped(const StepResult& result, std::int64_t consumed_samples) { skipped_ = {result, consumed_samples}; }
  bool has_skipped() const { return skipped_.has_value(); }

  // All collective, with no step pending.
  // Names the first NaN or Inf of the step that was skipped, if one was. Returns why its data cannot be read again.
  std::optional<RankFailure> explain(Rank& rank, Step& step, StepSamples& samples);
  // Why the run must end, or "".
  std::string over_budget(const TrainState& state) const;  // of --max-skipped-steps
  std::string difference_of_replicas(Rank& rank, std::int64_t step);
  bool found_hazards();  // under --check-hazards, on any rank; warns of its own
  // After each of the first steps: that all ranks communicate the same; throws EveryRankFailed.
  void check_calls(const Rank& rank);

 private:
  struct SkippedStep {
    StepResult result;
    std::int64_t consumed_samples = 0;  // before it
  };

  const TrainingOptions& options_;
  Communicator& world_;
  std::unique_ptr<HazardChecker> hazards_;  // null without --check-hazards
  FiniteChecker finite_;
  std::optional<SkippedStep> skipped_;  // not yet explained
  std::int64_t steps_checked_ = 0;
};

// Compares what the data-parallel ranks hold in copies. Collective; no step is pending.
std::optional<ReplicaDifference> replica_difference(Rank& rank);

}  // namespace megalith
