// From the experts that each token chose to rows sorted by expert, and back. Memory-bound; deterministic: the order of
// rows is that of (expert, token, choice), and no atomic operation decides any order.
// A tensor of R rows may be bounded: by the address of offsets[E] where the op has offsets, else by any. So may those
// of T tokens where it says so: those beyond are not read, and what would be written for them is left alone. An entry
// of a table (choice, index, position) that is out of range is an Error, which surfaces at the stream's next
// synchronise.
//   T: tokens, K: choices a token, E: experts, R: room for routed rows, T K or less, H: hidden size, S: parts of a row
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/ops/op_declaration.h"

namespace megalith {

inline constexpr std::int64_t kMaxExperts = 1024;
// At most: CUDA's ExpertOffsets counts a part of the choices in each.
inline constexpr std::int64_t kExpertCountBlocks = 128;

// Counts, prefix sums and the stable order, of the E experts from first_expert on: of all, or of those that a rank has.
// Rows for which there is no room are the last ones: nobody gets them, and offsets end at R.
struct ExpertOffsets {
  static constexpr const char* kName = "expert_offsets";
  Tensor choice;    // [T, K] int32, bounded: a token's experts, all different; -1 and other experts take no row
  Tensor offsets;   // [E + 1] int32 out: rows offsets[e] to offsets[e + 1] belong to expert first_expert + e
  Tensor token;     // [R] int32 out: the token of a row; rows from offsets[E] on are left alone
  Tensor position;  // [T, K] int32 out, bounded as choice: the row of a choice; -1 for none
  Tensor wanted;    // optional, [1] int32 out: the rows that there would be with room for all
  std::int64_t first_expert = 0;
  std::int64_t all_experts = 0;  // a choice of one beyond them is an Error; 0: none is
  Tensor workspace;              // [workspace_bytes(op, device)] uint8
};

// y_r = x[index[r]] for r < offsets[E]. (The grouped products read through the index instead; this is for others.)
struct PermuteRows {
  static constexpr const char* kName = "permute_rows";
  Tensor x;        // [T, H] bf16 | fp32
  Tensor index;    // [R] int32
  Tensor offsets;  // [E + 1] int32
  Tensor y;        // [R, H] out, dtype of x
};

// y_t = sum over k, then over s, both ascending, of part s of x[position[t, k]], in fp32, rounded once; choices of -1
// add nothing. Part s of a row are its columns from s H on.
struct UnpermuteRows {
  static constexpr const char* kName = "unpermute_rows";
  Tensor x;         // [R, S H] bf16 | fp32
  Tensor position;  // [T, K] int32, bounded
  Tensor y;         // [T, H] out, dtype of x, bounded as position
};

// Each row's weight from its choice, and the way back: row_weight[position[t, k]] = weight[t, k].
struct PermuteWeights {
  static constexpr const char* kName = "permute_weights";
  Tensor weight;      // [T, K] fp32, bounded as position
  Tensor position;    // [T, K] int32, bounded
  Tensor row_weight;  // [R] fp32 out; rows without a choice are left alone
};

// d_weight[t, k] = sum over p, ascending, of partial[position[t, k], p]; 0 for a choice of -1.
struct UnpermuteWeightGradients {
  static constexpr const char* kName = "unpermute_weight_gradients";
  Tensor partial;   // [R, P] fp32 (RoutedSwigluBackward)
  Tensor position;  // [T, K] int32, bounded
  Tensor d_weight;  // [T, K] fp32 out, bounded as position
};

void fields(const ExpertOffsets& op, Fields& f);
std::size_t workspace_bytes(const ExpertOffsets& op, DeviceType device);
void compute(const ExpertOffsets& op);
void run(CudaStream& stream, const ExpertOffsets& op);

void fields(const PermuteRows& op, Fields& f);
void compute(const PermuteRows& op);
void run(CudaStream& stream, const PermuteRows& op);

void fields(const UnpermuteRows& op, Fields& f);
void compute(const UnpermuteRows& op);
void run(CudaStream& stream, const UnpermuteRows& op);

void fields(const PermuteWeights& op, Fields& f);
void compute(const PermuteWeights& op);
void run(CudaStream& stream, const PermuteWeights& op);

void fields(const UnpermuteWeightGradients& op, Fields& f);
void compute(const UnpermuteWeightGradients& op);
void run(CudaStream& stream, const UnpermuteWeightGradients& op);

}  // namespace megalith
