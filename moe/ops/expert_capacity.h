// Limit of an expert's rows (--moe-expert-capacity-factor): selects the choices that get no row. Runs on the device
// after the rows are counted, without a host synchronization; deterministic.
//   T: tokens, K: choices of a token, E: experts, R = T K routed rows
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/ops/op_declaration.h"

namespace megalith {

// Keeps the `capacity` rows of an expert with the highest weights, and of equal weights the first. Without weights,
// keeps the first rows (--moe-token-drop-policy probs and position). NaN weights are ordered by their bits. Inputs come
// from ExpertOffsets and PermuteWeights; `kept` replaces `choice` for them.
struct LimitExpertRows {
  MEGALITH_OP_WITH_WORKSPACE(LimitExpertRows, "limit_expert_rows");
  Tensor choice;      // [T, K] int32; -1: none
  Tensor position;    // [T, K] int32
  Tensor offsets;     // [E + 1] int32
  Tensor row_weight;  // optional, [R] fp32
  Tensor kept;        // [T, K] int32 out: the choice, or -1
  std::int64_t capacity = 0;
  Tensor workspace;  // [workspace_bytes(op, device)] uint8
};

// Rows of an expert that stay: those with a larger key than `key`, and those with an equal key up to `last_row`.
struct RowLimit {
  std::uint32_t key;
  std::int32_t last_row;
};

}  // namespace megalith
