// The global gradient norm and the device parameter block. The device decides on skip, clip factor and Adam's count, so
// that the host never waits. Deterministic, with equal bits for any cut of the gradients into shards. Squares are
// summed over pieces that depend on the model alone, then per tensor, then over tensors. Each sum has a fixed order, in
// fp64. P: number of tensors.
#pragma once

#include <cstdint>
#include <vector>

#include "core/ops/device_parameters.h"
#include "core/ops/op_declaration.h"

namespace megalith {

inline constexpr std::int64_t kSquareBlock = std::int64_t{1} << 16;  // most elements of a tensor in a block

// A tensor, or a shard's part of one, cut into pieces at the block borders of its flat buffer. A part whose ends are
// ends of the tensor or of a block has pieces of the unsharded tensor.
struct SquaredTensor {
  Tensor x;                           // any shape, contiguous, all of an op bf16 or all fp32
  std::int64_t begin = 0;             // elements between the start of its first block and its start
  std::int64_t block = kSquareBlock;  // elements of a block
  Tensor pieces;                      // [num_pieces()] out, fp64

  std::int64_t num_pieces() const { return x.numel() == 0 ? 0 : (begin + x.numel() + block - 1) / block; }
};

// pieces[i] = sum of the squares of the elements of piece i, or with `zeros` the number of elements that are 0, and
// depends on these elements alone. Memory-bound; one pass over all tensors.
struct SumOfSquares {
  MEGALITH_OP(SumOfSquares, "sum_of_squares");
  std::vector<SquaredTensor> tensors;
  bool zeros = false;
};

// out[i] = pieces[ends[i - 1]] + ... + pieces[ends[i] - 1], or 0 if empty.
struct AddPieces {
  MEGALITH_OP(AddPieces, "add_pieces");
  Tensor pieces;                   // [ends.back()] fp64
  std::vector<std::int64_t> ends;  // P, ascending or equal
  Tensor out;                      // [P] out, fp64
};

// Rows under expert parallelism, against capacity: the most rows of a layer and microbatch that arrived on any rank,
// and the most rows of its experts.
struct RowRoom {
  Tensor needed;             // optional, [2] int32; absent: capacity suffices
  std::int64_t arrived = 0;  // capacity for arrived rows
  std::int64_t rows = 0;     // capacity for rows of its experts
};

// grad_norm = sqrt(sums[0] + sums[1] + ...) in fp64, clip_factor = min(1, clip_grad / (grad_norm + 1e-6)) (Pascanu et
// al. 2013, arXiv:1211.5063, with Megatron-LM's epsilon). Exceeded capacity, or a non-finite loss or norm, sets skip
// and leaves adam_count. Otherwise skip is cleared and adam_count counts this step.
struct GradNormFinalize {
  MEGALITH_OP(GradNormFinalize, "grad_norm_finalize");
  Tensor sums;           // [P] fp64
  Tensor loss;           // [1] fp32: mean loss of the global batch
  double clip_grad = 0;  // 0: no clipping
  RowRoom room = {};
  StepParameters* parameters = nullptr;  // device, in/out: skip, adam_count, clip_factor, grad_norm, loss
};

// *total = sums[0] + sums[1] + ... in fp64, or with `root` its square root.
struct StoreTotal {
  MEGALITH_OP(StoreTotal, "store_total");
  Tensor sums;  // [P] fp64
  bool root = false;
  double* total = nullptr;  // device, out
};

// The host's part of the step's parameters. A capture would freeze its values, so that it stays outside of graphs.
struct WriteStepParameters {
  MEGALITH_OP(WriteStepParameters, "write_step_parameters");
  std::int64_t iteration = 0;
  float learning_rate = 0;
  float decoupled_learning_rate = 0;
  double weight_decay_scale = 1;
  StepParameters* parameters = nullptr;  // device, out: the four values above
};

// Parameters of one microbatch, also outside of graphs.
struct WriteMicrobatchParameters {
  MEGALITH_OP(WriteMicrobatchParameters, "write_microbatch_parameters");
  MicrobatchParameters value;
  MicrobatchParameters* out = nullptr;  // device
};

}  // namespace megalith
