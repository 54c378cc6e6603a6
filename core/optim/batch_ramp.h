// Batch size of each step as a function of consumed samples.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace megalith {

// Batch size of the steps after `samples` consumed samples, until the next stage.
struct BatchStage {
  std::int64_t samples = 0;
  std::int64_t batch = 0;
  friend bool operator==(const BatchStage&, const BatchStage&) = default;
};

struct BatchSizes {
  std::int64_t micro_batch_size = 1;   // sequences per rank and forward pass
  std::int64_t global_batch_size = 0;  // sequences per step; 0: micro_batch_size x data-parallel size
  // START, INCREMENT and SAMPLES of the ramp to global_batch_size; empty: no ramp
  std::vector<std::int64_t> rampup_batch_size;
  std::vector<std::string> step_batch_size_schedule;  // as given: THRESHOLD:SIZE
  std::vector<BatchStage> batch_stages;               // of it; empty: none

  bool grows() const { return !rampup_batch_size.empty() || !batch_stages.empty(); }
  const char* growth_flag() const {
    return batch_stages.empty() ? "--rampup-batch-size" : "--step-batch-size-schedule";
  }
};

// Returns the stages of --step-batch-size-schedule by samples: each threshold is in tokens, with K, M, B or T for
// powers of 1000, as in Megatron-LM's StepBatchsizeNumMicroBatchesCalculator. Fails with exit code 2 for other texts,
// thresholds that do not rise from 0, and sizes that fall.
std::vector<BatchStage> batch_stages_of(const std::vector<std::string>& schedule, std::int64_t seq_length);

// Returns the batch size of the step after `consumed_samples`: --global-batch-size, or earlier a stage of
// --rampup-batch-size or --step-batch-size-schedule. The ramp's arithmetic is that of Megatron-LM's
// RampupBatchsizeNumMicroBatchesCalculator. `sizes` are complete.
std::int64_t batch_after(const BatchSizes& sizes, std::int64_t consumed_samples);
// Returns the number of steps with this batch size from `consumed` samples on; the last ends where the size changes.
std::int64_t steps_of_stage(const BatchSizes& sizes, std::int64_t consumed, std::int64_t batch);
// Returns the batch sizes of all stages below --global-batch-size, ascending.
std::vector<std::int64_t> smaller_batches(const BatchSizes& sizes);

// Returns whether the ramp, if any, reaches --global-batch-size in full increments.
// If not, check_ramp() fails with exit code 2 and reports the flags.
bool is_ramp_sound(const BatchSizes& sizes);
void check_ramp(const BatchSizes& sizes);
// Fails with exit code 2 if a stage's batch is no multiple of `multiple`: micro_batch_size x data-parallel size.
void check_ramp_divides(const BatchSizes& sizes, std::int64_t multiple);

}  // namespace megalith
