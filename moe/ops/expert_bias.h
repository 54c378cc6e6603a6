// Balance of experts without a loss (Wang et al. 2024, arXiv:2408.15664; DeepSeek-V3, arXiv:2412.19437, section 2.1.2).
// A bias is added to the scores for the selection only. It rises for experts with fewer rows than the mean in a step,
// and falls for those with more. Deterministic.
//   L: layers, E: experts
#pragma once

#include "core/ops/device_parameters.h"
#include "core/ops/op_declaration.h"

namespace megalith {

// counts_e += offsets[e + 1] - offsets[e].
struct CountExpertRows {
  MEGALITH_OP(CountExpertRows, "count_expert_rows");
  Tensor offsets;  // [E + 1] int32, as from ExpertOffsets
  Tensor counts;   // [E] int32 in and out
};

// bias_e += rate sign(mean over the layer's experts of counts - counts_e), unless the step is skipped.
struct UpdateExpertBias {
  MEGALITH_OP(UpdateExpertBias, "update_expert_bias");
  Tensor counts;  // [L, E] int32
  Tensor bias;    // [L, E] fp32 in and out
  float rate = 0;
  const StepParameters* parameters = nullptr;  // device: skip
};

}  // namespace megalith
