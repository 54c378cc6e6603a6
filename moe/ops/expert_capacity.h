// At most so many rows an expert (--moe-expert-capacity-factor): which choices of the tokens go without a row. Decided
// where the rows are counted, so that nobody waits for it; deterministic.
//   T: tokens, K: choices a token, E: experts, R = T K routed rows
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/ops/op_declaration.h"

namespace megalith {

// Of an expert's rows the `capacity` of the highest weight stay, of equal weights the first, and without weights just
// the first: --moe-token-drop-policy probs and position. A weight that is no number counts by its bits. The input is
// what ExpertOffsets and PermuteWeights make of the choices, the output another choice for them.
struct LimitExpertRows {
  static constexpr const char* kName = "limit_expert_rows";
  Tensor choice;      // [T, K] int32; -1: none
  Tensor position;    // [T, K] int32
  Tensor offsets;     // [E + 1] int32
  Tensor row_weight;  // optional, [R] fp32
  Tensor kept;        // [T, K] int32 out: the choice, or -1
  std::int64_t capacity = 0;
  Tensor workspace;  // [workspace_bytes(op, device)] uint8
};

// Of an expert's rows those stay whose key is above `key`, and of the same key those up to `last_row`.
struct RowLimit {
  std::uint32_t key;
  std::int32_t last_row;
};

void fields(const LimitExpertRows& op, Fields& f);
std::size_t workspace_bytes(const LimitExpertRows& op, DeviceType device);
void compute(const LimitExpertRows& op);
void run(CudaStream& stream, const LimitExpertRows& op);

}  // namespace megalith
