// Values that vary from step to step, in device memory: captured graphs stay valid and the host never waits. Kernels
// read them, and decide on the device whether to skip.
#pragma once

#include <cstdint>

namespace megalith {

// Reasons for a step to leave weights, optimizer state and Adam's count unchanged.
inline constexpr std::int32_t kSkipNotFinite = 1;  // loss or gradients not finite
inline constexpr std::int32_t kSkipNoRoom = 2;     // arrived rows exceeded capacity: results are undefined

// Parameters of a run. The host writes the first group (through WriteStepParameters) ahead of each step,
// GradNormFinalize the rest.
struct StepParameters {
  std::int64_t iteration = 0;  // 1 is the first step
  float learning_rate = 0;
  float decoupled_learning_rate = 0;  // of embedding and head with --decoupled-lr
  double weight_decay_scale = 1;      // factor of each range's weight decay

  std::int32_t skip = 0;        // 0: the step counts; otherwise the reason
  std::int64_t adam_count = 0;  // optimizer steps taken, including this one; saved in checkpoints
  float clip_factor = 1;        // min(1, clip_grad / (grad_norm + 1e-6))
  float grad_norm = 0;          // ahead of clipping
  float loss = 0;               // mean over the tokens of the global batch, ahead of the step
  double grad_zeros = 0;        // elements of the gradients that are 0; counted only on request
  double params_norm = 0;       // of the main parameters after the step; computed only on request
};

// Parameters of a microbatch in flight, written by the host ahead of its forward.
struct MicrobatchParameters {
  std::int64_t iteration = 0;
  std::int64_t first_sample = 0;  // global index of this rank's first sample of the microbatch
  float loss_scale = 1;           // gradient of the step's loss by the loss of one trained token
  float router_scale = 1;         // gradient of the step's loss by one token's losses of a router
};

}  // namespace megalith
