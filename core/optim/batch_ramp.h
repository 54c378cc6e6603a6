// The batch of each step, as a function of consumed samples.
#pragma once

#include <cstdint>
#include <vector>

namespace megalith {

struct BatchSizes {
  std::int64_t micro_batch_size = 1;   // sequences per rank and forward pass
  std::int64_t global_batch_size = 0;  // sequences per step; 0: micro_batch_size x data-parallel size
  // START, INCREMENT and SAMPLES of the batches before global_batch_size; empty: none
  std::vector<std::int64_t> rampup_batch_size;
};

// The batch of the step after `consumed_samples` samples: --global-batch-size, and before it the stages of
// --rampup-batch-size, by the arithmetic of Megatron-LM's RampupBatchsizeNumMicroBatchesCalculator. `sizes` are
// complete.
std::int64_t batch_after(const BatchSizes& sizes, std::int64_t consumed_samples);
// Steps from `consumed` samples on, each with this batch, of which the last one ends where the batch is another.
std::int64_t steps_of_stage(const BatchSizes& sizes, std::int64_t consumed, std::int64_t batch);

// Whether --rampup-batch-size leads to --global-batch-size, if there is a ramp; else check_ramp() fails with exit code
// 2 and names the flags.
bool is_ramp_sound(const BatchSizes& sizes);
void check_ramp(const BatchSizes& sizes);
// Likewise where a stage's batch is no multiple of `multiple`, the sequences of all replicas' microbatches.
void check_ramp_divides(const BatchSizes& sizes, std::int64_t multiple);

}  // namespace megalith
