// Sums with a fixed order: equal bits on every run, for any alignment.
#pragma once

#include <vector>

#include "core/ops/op_declaration.h"

namespace megalith {

// Each sum: out[c] = sum over r of x[r, c] (+ out[c]), in fp32, rounded once. For bias gradients and partial weight
// gradients of norms. A segment's sums are one call, which on CUDA is one launch if rows are few. The bits of a sum
// depend on its shape alone, not on the other sums of the call. Its out overlaps no other sum's memory.
struct RowSum {
  Tensor x;    // [R, C] bf16 | fp32; rows may be strided
  Tensor out;  // [C] out (in and out if accumulate), bf16 | fp32
};
struct ReduceRows {
  MEGALITH_OP_WITH_WORKSPACE(ReduceRows, "reduce_rows");
  std::vector<RowSum> sums;
  bool accumulate = false;
  Tensor workspace;  // [workspace_bytes(op, device)] uint8
};
// CUDA backend: a block adds all rows of its columns, or a piece of them if there are more rows.
inline constexpr std::int64_t kMaxRowsOfOnePass = 2048;
inline constexpr std::int64_t kMinRowsOfPiece = 256;
inline constexpr std::int64_t kStripeBytes = 128;  // bytes of a row of a piece that a block owns
std::int64_t pieces_of(const Tensor& x);           // 0: one pass
std::int64_t partial_floats(const Tensor& x);      // size of the pieces' sums in the workspace: full packs

inline constexpr int kMaxSumBlocks = 1024;  // CUDA backend: blocks, each with a sum in the workspace

// out[0] = sum of x (+ out[0]): the loss over tokens. Sums of blocks are added in fp64 and rounded once.
struct ReduceToScalar {
  MEGALITH_OP_WITH_WORKSPACE(ReduceToScalar, "reduce_to_scalar");
  Tensor x;    // [n] fp32
  Tensor out;  // [1] out (in and out if accumulate), fp32
  bool accumulate = false;
  Tensor workspace;  // [workspace_bytes(op, device)] uint8
};

}  // namespace megalith
