// What varies from step to step lives in device memory, so that a captured graph never bakes it in and the host need
// not wait: kernels read it, and the skip decision is taken on the device.
#pragma once

#include <cstdint>

namespace megalith {

// Why a step leaves weights, optimizer state and Adam's count as they are.
inline constexpr std::int32_t kSkipNotFinite = 1;  // loss or gradients
inline constexpr std::int32_t kSkipNoRoom = 2;     // rows had none: what they computed means nothing

// One per run. The first group is written by the host (through WriteStepParameters) before each step, the rest by
// GradNormFinalize.
struct StepParameters {
  std::int64_t iteration = 0;  // 1 is the first step
  float learning_rate = 0;

  std::int32_t skip = 0;        // 0: the step counts; else why not
  std::int64_t adam_count = 0;  // optimizer steps really taken, this one included; saved in checkpoints
  float clip_factor = 1;        // min(1, clip_grad / (grad_norm + 1e-6))
  float grad_norm = 0;          // before clipping
  float loss = 0;               // mean over the tokens of the global batch, before the step
};

// One per microbatch in flight, written by the host before its forward.
struct MicrobatchParameters {
  std::int64_t iteration = 0;
  std::int64_t first_sample = 0;  // global index of this rank's first sample of the microbatch
  float loss_scale = 1;           // gradient of the step's loss by one token's loss: 1 / tokens of the global batch
};

}  // namespace megalith
