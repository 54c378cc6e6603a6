// Reaction of a run to numeric errors. It reports the first NaN or Inf of a skipped step, replicas that differ,
// accesses that no event orders, and ranks that communicate differently.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "apps/run/step.h"
#include "apps/run/step_samples.h"
#include "core/checkpoint/train_state.h"
#include "core/instruments/hazard_checker.h"
#include "core/tensor/finite_checker.h"
#include "parallel/comm/on_all_ranks.h"
#include "parallel/data_parallel/replica_check.h"

namespace megalith {

class NumericsGuard {
 public:
  NumericsGuard(const TrainingOptions& options, Communicator& world);

  // Checker for Instruments of the run's streams.
  HazardChecker* hazards() const { return hazards_.get(); }
  OpObserver* observer() { return finite_.observer(); }

  // Stores a skipped step that began after `consumed_samples`; explain() works until the next update.
  void skipped(const StepResult& result, std::int64_t consumed_samples) { skipped_ = {result, consumed_samples}; }
  bool has_skipped() const { return skipped_.has_value(); }

  // Reports the first NaN or Inf of the skipped step, if there is one. Returns the reason if its data cannot be read
  // again. This and the next functions are collective, with no step pending.
  std::optional<RankFailure> explain(Rank& rank, Step& step, StepSamples& samples);
  // Reason to end the run, or "".
  std::string over_budget(const TrainState& state) const;  // of --max-skipped-steps
  std::string difference_of_replicas(Rank& rank, std::int64_t step);
  bool found_hazards();  // with --check-hazards, on any rank; logs warnings
  // Checks after each of the first steps that all ranks communicate the same; throws EveryRankFailed.
  void check_calls(const Rank& rank);

 private:
  struct SkippedStep {
    StepResult result;
    std::int64_t consumed_samples = 0;  // ahead of the step
  };

  const TrainingOptions& options_;
  Communicator& world_;
  std::unique_ptr<HazardChecker> hazards_;  // null without --check-hazards
  FiniteChecker finite_;
  std::optional<SkippedStep> skipped_;  // not yet explained
  std::int64_t steps_checked_ = 0;
};

// Compares the data-parallel ranks' copies. Collective, with no step pending.
std::optional<ReplicaDifference> replica_difference(Rank& rank);

}  // namespace megalith
