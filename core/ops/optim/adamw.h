// One AdamW step with decoupled weight decay, Loshchilov & Hutter 2019, arXiv:1711.05101, alg. 2, in the order of
// torch.optim.AdamW. With t = adam_count, g = clip_factor * grad, w = main_param:
//   w <- w (1 - lr weight_decay)
//   m <- m + (1 - beta1) (g - m)
//   v <- beta2 v + (1 - beta2) g^2
//   w <- w - lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
//   param <- w rounded to nearest even
// lr, clip_factor, skip, adam_count and the scale of weight_decay come from the device parameter block; if skip is set,
// no byte changes.
// Arithmetic is fp32; the step uses m and v ahead of their rounding to the stored dtype. A bf16 moment is rounded to
// nearest even, so that a change below half its last bit is lost: m keeps 8 bits. v stops shrinking if 1 - beta2 <
// 2^-8, so that beta2 should be below 0.996 (e.g. 0.95). Memory-bound; one pass over all ranges; elementwise, so that
// any cut into ranges gives equal bits. Deterministic.
#pragma once

#include <vector>

#include "core/ops/device_parameters.h"
#include "core/ops/op_declaration.h"

namespace megalith {

// Elements with one decay rule. All ranges of an op have the same dtypes.
struct AdamWRange {
  Tensor param;             // [n] out, bf16 | fp32: the model's weights
  Tensor main_param;        // [n] in/out, fp32; may be the memory of an fp32 param
  Tensor grad;              // [n] bf16 | fp32
  Tensor exp_avg;           // [n] in/out, bf16 | fp32: m
  Tensor exp_avg_sq;        // [n] in/out, bf16 | fp32: v
  double weight_decay = 0;  // 0 for norms and biases
  bool decoupled = false;   // lr is decoupled_learning_rate
};

struct AdamW {
  MEGALITH_OP(AdamW, "adamw");
  std::vector<AdamWRange> ranges;  // any number of ranges
  double beta1 = 0.9;              // scalars are fp64: 1 - beta2 in fp32 would have a relative error of 1e-5
  double beta2 = 0.999;
  double eps = 1e-8;
  const StepParameters* parameters = nullptr;  // device
};

}  // namespace megalith
