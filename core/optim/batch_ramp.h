// Batch size of each step as a function of consumed samples.
#pragma once

#include <cstdint>
#include <vector>

namespace megalith {

struct BatchSizes {
  std::int64_t micro_batch_size = 1;   // sequences per rank and forward pass
  std::int64_t global_batch_size = 0;  // sequences per step; 0: micro_batch_size x data-parallel size
  // START, INCREMENT and SAMPLES of the ramp to global_batch_size; empty: no ramp
  std::vector<std::int64_t> rampup_batch_size;
};

// Returns the batch size of the step after `consumed_samples`: --global-batch-size, or earlier a stage of
// --rampup-batch-size. The arithmetic is that of Megatron-LM's RampupBatchsizeNumMicroBatchesCalculator. `sizes` are
// complete.
std::int64_t batch_after(const BatchSizes& sizes, std::int64_t consumed_samples);
// Returns the number of steps with this batch size from `consumed` samples on; the last ends where the size changes.
std::int64_t steps_of_stage(const BatchSizes& sizes, std::int64_t consumed, std::int64_t batch);

// Returns whether the ramp, if any, reaches --global-batch-size in full increments.
// If not, check_ramp() fails with exit code 2 and reports the flags.
bool is_ramp_sound(const BatchSizes& sizes);
void check_ramp(const BatchSizes& sizes);
// Fails with exit code 2 if a stage's batch is no multiple of `multiple`: micro_batch_size x data-parallel size.
void check_ramp_divides(const BatchSizes& sizes, std::int64_t multiple);

}  // namespace megalith
