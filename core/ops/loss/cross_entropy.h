// Softmax cross-entropy of each row and, in place, its gradient:
//   loss[t]      = log(sum_v exp(logits[t, v])) - logits[t, labels[t]]
//   logits[t, v] = loss_scale * (softmax(logits[t])[v] - (v == labels[t]))
// over the first `vocab_size` columns; the padding columns are not read and get gradient 0. A label below 0 ignores the
// token: loss 0, gradient 0. The kernel throws Error (kFormat) for a label of vocab_size or more. The running maximum
// of Milakov & Gimelshein 2018, arXiv:1805.02867, needs two passes over a row: one for maximum and sum, one for the
// gradient. Memory-bound if a row fits in cache; deterministic. T: tokens, V: vocabulary with padding.
#pragma once

#include <cstdint>

#include "core/ops/device_parameters.h"
#include "core/ops/op_declaration.h"

namespace megalith {

struct CrossEntropy {
  MEGALITH_OP_WITH_WORKSPACE(CrossEntropy, "cross_entropy");
  Tensor logits;                // [T, V] bf16 | fp32, rows may be strided; in, and out when write_gradient
  Tensor labels;                // [T] int32
  Tensor loss;                  // [T] out, fp32, not scaled
  std::int64_t vocab_size = 0;  // 1 to V: columns that count
  bool write_gradient = false;
  const MicrobatchParameters* parameters = nullptr;  // device: loss_scale; required by write_gradient
  Tensor workspace;                                  // [workspace_bytes(op, device)] uint8
};

}  // namespace megalith
