// Ops from the experts that tokens chose to rows sorted by expert, and back. Memory-bound. Deterministic: rows are in
// the order (expert, token, choice), independent of atomics. A tensor of R rows may be bounded, by the address of
// offsets[E] if the op has offsets. Tensors of T tokens may be bounded where stated. Rows beyond the bound are neither
// read nor written. An out-of-range table entry (choice, index, position) is an Error at the next synchronization of
// the stream.
//   T: tokens, K: choices of a token, E: experts, R: capacity for routed rows, at most T K, H: hidden size, S: parts of
//   a row
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/ops/op_declaration.h"

namespace megalith {

inline constexpr std::int64_t kMaxExperts = 1024;
// Maximum number of blocks in CUDA's ExpertOffsets; each counts a part of the choices.
inline constexpr std::int64_t kExpertCountBlocks = 128;

// Counts, prefix sums and the stable order of rows for the E experts from first_expert on: all experts, or a rank's.
// Rows beyond the capacity R are dropped from the end, and offsets end at R.
struct ExpertOffsets {
  MEGALITH_OP_WITH_WORKSPACE(ExpertOffsets, "expert_offsets");
  Tensor choice;    // [T, K] int32, bounded: distinct experts of a token; -1 and other experts get no row
  Tensor offsets;   // [E + 1] int32 out: rows offsets[e] to offsets[e + 1] belong to expert first_expert + e
  Tensor token;     // [R] int32 out: token of each row; not written from offsets[E] on
  Tensor position;  // [T, K] int32 out, bounded as choice: row of each choice; -1: none
  Tensor wanted;    // optional, [1] int32 out: number of rows without the capacity limit
  std::int64_t first_expert = 0;
  std::int64_t all_experts = 0;  // larger choices are an Error; 0: no check
  Tensor workspace;              // [workspace_bytes(op, device)] uint8
};

// y_r = x[index[r]] for r < offsets[E]. The grouped GEMMs gather through the index instead.
struct PermuteRows {
  MEGALITH_OP(PermuteRows, "permute_rows");
  Tensor x;        // [T, H] bf16 | fp32
  Tensor index;    // [R] int32
  Tensor offsets;  // [E + 1] int32
  Tensor y;        // [R, H] out, dtype of x
};

// y_t = sum over k, then over s, both ascending, of part s of x[position[t, k]], in fp32, rounded once. Position -1
// adds nothing. Part s of a row is its columns from s H on.
struct UnpermuteRows {
  MEGALITH_OP(UnpermuteRows, "unpermute_rows");
  Tensor x;         // [R, S H] bf16 | fp32
  Tensor position;  // [T, K] int32, bounded
  Tensor y;         // [T, H] out, dtype of x, bounded as position
};

// Row weights from choices: row_weight[position[t, k]] = weight[t, k].
struct PermuteWeights {
  MEGALITH_OP(PermuteWeights, "permute_weights");
  Tensor weight;      // [T, K] fp32, bounded as position
  Tensor position;    // [T, K] int32, bounded
  Tensor row_weight;  // [R] fp32 out; rows without a choice are not written
};

// d_weight[t, k] = sum over p, ascending, of partial[position[t, k], p]; 0 for position -1.
struct UnpermuteWeightGradients {
  MEGALITH_OP(UnpermuteWeightGradients, "unpermute_weight_gradients");
  Tensor partial;   // [R, P] fp32, from RoutedSwigluBackward
  Tensor position;  // [T, K] int32, bounded
  Tensor d_weight;  // [T, K] fp32 out, bounded as position
};

}  // namespace megalith
