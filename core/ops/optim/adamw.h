// One AdamW step with decoupled weight decay, Loshchilov & Hutter 2019, arXiv:1711.05101, alg. 2, in the order of
// torch.optim.AdamW. With t = adam_count, g = clip_factor * grad, w = main_param:
//     w <- w (1 - lr weight_decay)
//     m <- m + (1 - beta1) (g - m)
//     v <- beta2 v + (1 - beta2) g^2
//     w <- w - lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
//     param <- w rounded to nearest even
// lr, clip_factor, skip and adam_count come from the device parameter block; with skip set no byte changes.
// All arithmetic is in fp32; the step uses m and v before they are rounded to what they are stored in. A moment in bf16
// is rounded to nearest even, so a change of less than half its last bit is lost: m keeps 8 bits, and v does not shrink
// any more where 1 - beta2 < 2^-8, so beta2 should be below 0.996 (0.95, say).
// Memory-bound; one pass over all ranges; elementwise, so any cut into ranges gives the same bits. Deterministic.
#pragma once

#include <vector>

#include "core/ops/device_parameters.h"
#include "core/ops/op_declaration.h"

namespace megalith {

// Elements that share a decay rule. All ranges of an op have the same dtypes.
struct AdamWRange {
  Tensor param;             // [n] out, bf16 | fp32: what the model computes with
  Tensor main_param;        // [n] in/out, fp32; the same memory as param is allowed when that is fp32
  Tensor grad;              // [n] bf16 | fp32
  Tensor exp_avg;           // [n] in/out, bf16 | fp32: m
  Tensor exp_avg_sq;        // [n] in/out, bf16 | fp32: v
  double weight_decay = 0;  // 0 for norms and biases
};

struct AdamW {
  MEGALITH_OP(AdamW, "adamw");
  std::vector<AdamWRange> ranges;  // any number
  double beta1 = 0.9;              // scalars are fp64: 1 - beta2 in fp32 would be off by 1e-5 of itself
  double beta2 = 0.999;
  double eps = 1e-8;
  const StepParameters* parameters = nullptr;  // device
};

}  // namespace megalith
