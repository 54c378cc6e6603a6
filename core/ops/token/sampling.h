// Choice of the next token among the first `vocab_size` columns. NaN logits are never chosen, and ties go to the lower
// index. A row without a logit above -inf is an Error (kNumeric) thrown by the kernel. B: rows, V: vocabulary with
// padding. Deterministic.
#pragma once

#include <cstdint>

#include "core/ops/op_declaration.h"

namespace megalith {

// Draws from softmax(logits / temperature) restricted first to the `top_k` largest logits (Fan et al. 2018,
// arXiv:1805.04833). top_p then keeps the shortest list of most probable tokens with probability, renormalized after
// top_k, of at least `top_p` (Holtzman et al. 2020, arXiv:1904.09751). The draw inverts the cumulative distribution, in
// fp64 and in index order, with one Philox number keyed by (seed, *position, stream of the row).
struct Sample {
  MEGALITH_OP_WITH_WORKSPACE(Sample, "sample");
  Tensor logits;                // [B, V] bf16 | fp32, rows may be strided
  std::int64_t vocab_size = 0;  // 1 to V
  float temperature = 1;        // 0: the largest logit
  int top_k = 0;                // 0: off
  float top_p = 0;              // 0 or 1: off
  std::uint64_t seed = 0;
  const std::int32_t* position = nullptr;  // device: position of the token to be drawn
  Tensor streams;                          // optional, [B] int32: stream of each row; absent: its index
  Tensor out;                              // [B] out, int32
  Tensor workspace;                        // [workspace_bytes(op, device)] uint8
};

// start = position, position += 1: inputs of the step that follows a draw, unknown to the host.
struct NextPosition {
  MEGALITH_OP(NextPosition, "next_position");
  std::int32_t* start = nullptr;     // device, out
  std::int32_t* position = nullptr;  // device, in and out
};

}  // namespace megalith
