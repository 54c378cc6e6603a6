// Cross-entropy over logits whose columns are split among ranks, without unsharded rows (Shoeybi et al. 2019,
// arXiv:1909.08053, section 3). Three local ops; between them the ranks reduce `max` by maximum and `sums` by sum:
//   max[t]     = max_v logits[t, v]                     over this rank's columns; -inf if none counts
//   sums[0, t] = sum_v exp(logits[t, v] - max[t]);      sums[1, t] = logits[t, labels[t]] - max[t], 0 elsewhere
//   loss[t]    = log(sums[0, t]) - sums[1, t];          logits[t, v] = loss_scale * (exp(logits[t, v] - max[t]) /
//                                                                       sums[0, t] - (v == labels[t]))
// Column v is column first_column + v of the unsharded row, whose first `vocab_size` columns count; the others are not
// read and get gradient 0. A label below 0 ignores the token: loss 0, gradient 0. The first op throws Error (kFormat)
// for a label of vocab_size or more. Memory-bound, a pass each; deterministic. T: tokens, V: this rank's columns.
#pragma once

#include <cstdint>

#include "core/ops/device_parameters.h"
#include "core/ops/op_declaration.h"

namespace megalith {

struct VocabColumns {
  std::int64_t first_column = 0;
  std::int64_t vocab_size = 0;  // columns of the unsharded row, without padding
};

struct VocabMax {
  MEGALITH_OP_WITH_WORKSPACE(VocabMax, "vocab_max");
  Tensor logits;  // [T, V] bf16 | fp32, rows may be strided
  Tensor labels;  // [T] int32
  Tensor max;     // [T] out, fp32; 0 for ignored tokens
  VocabColumns columns;
  Tensor workspace;  // [workspace_bytes(op, device)] uint8
};

struct VocabSums {
  MEGALITH_OP(VocabSums, "vocab_sums");
  Tensor logits;  // as above
  Tensor labels;  // [T] int32
  Tensor max;     // [T] fp32, over all ranks
  Tensor sums;    // [2, T] out, fp32
  VocabColumns columns;
};

struct VocabLoss {
  MEGALITH_OP(VocabLoss, "vocab_loss");
  Tensor logits;  // as above; in and out when write_gradient, otherwise neither
  Tensor labels;  // [T] int32
  Tensor max;     // [T] fp32, over all ranks
  Tensor sums;    // [2, T] fp32, over all ranks
  Tensor loss;    // [T] out, fp32, not scaled
  VocabColumns columns;
  bool write_gradient = false;
  const MicrobatchParameters* parameters = nullptr;  // device: loss_scale; required by write_gradient
};

}  // namespace megalith
