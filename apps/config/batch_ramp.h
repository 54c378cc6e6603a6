// The batch of each step and the end of a run, as functions of consumed samples.
#pragma once

#include <cstdint>

#include "core/optim/lr_schedule.h"

namespace megalith {

struct TrainingOptions;

// The batch of the step after `consumed_samples` samples: --global-batch-size, and before it the stages of
// --rampup-batch-size, by the arithmetic of Megatron-LM's RampupBatchsizeNumMicroBatchesCalculator. `train` is
// complete.
std::int64_t batch_after(const TrainingOptions& train, std::int64_t consumed_samples);

struct RunEnd {
  RunProgress at;              // steps and samples of the whole run
  std::int64_t left_over = 0;  // of --train-samples: fewer than one batch more
  friend bool operator==(const RunEnd&, const RunEnd&) = default;
};
// Where a run ends that has come to `done`. With --train-samples it takes whole batches while these do not exceed it,
// else it takes --train-iters steps. Not before `done`.
RunEnd end_of_run(const TrainingOptions& train, const RunProgress& done);

// Whether --rampup-batch-size leads to --global-batch-size, if there is a ramp; else check_ramp() fails with exit code
// 2 and names the flags.
bool is_ramp_sound(const TrainingOptions& train);
void check_ramp(const TrainingOptions& train);
// Likewise where a stage's batch is no multiple of `multiple`, the sequences of all replicas' microbatches.
void check_ramp_divides(const TrainingOptions& train, std::int64_t multiple);

}  // namespace megalith
