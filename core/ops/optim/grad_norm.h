// The global gradient norm and the device parameter block. The step's decisions (skip, clip factor, Adam's count) are
// taken on the device, so the host never waits for them. Deterministic, and the same bits wherever the gradients are
// cut into shards: squares are summed over pieces that depend on the model alone, then the pieces of each tensor, then
// the tensors, each in one order, all in fp64. P: number of tensors.
#pragma once

#include <cstdint>
#include <vector>

#include "core/ops/device_parameters.h"
#include "core/ops/op_declaration.h"

namespace megalith {

inline constexpr std::int64_t kSquareBlock = std::int64_t{1} << 16;  // at most this many elements in a block

// A tensor, or the part of one that a shard holds, cut into pieces at the borders of the blocks of the flat buffer in
// which it lies. A part that begins and ends where the tensor or a block does has pieces of the whole tensor.
struct SquaredTensor {
  Tensor x;                           // any shape, contiguous, all of an op bf16 or all fp32
  std::int64_t begin = 0;             // elements between the start of its first block and its own
  std::int64_t block = kSquareBlock;  // elements
  Tensor pieces;                      // [num_pieces()] out, fp64

  std::int64_t num_pieces() const { return x.numel() == 0 ? 0 : (begin + x.numel() + block - 1) / block; }
};

// pieces[i] = sum of the squares of the elements of piece i. It depends on these elements alone. Memory-bound; one pass
// over all tensors.
struct SumOfSquares {
  MEGALITH_OP(SumOfSquares, "sum_of_squares");
  std::vector<SquaredTensor> tensors;
};

// out[i] = pieces[ends[i - 1]] + ... + pieces[ends[i] - 1], or 0 where there are none.
struct AddPieces {
  MEGALITH_OP(AddPieces, "add_pieces");
  Tensor pieces;                   // [ends.back()] fp64
  std::vector<std::int64_t> ends;  // P, not descending
  Tensor out;                      // [P] out, fp64
};

// Rows of experts that are spread over ranks: the most of a layer and microbatch that arrived on any rank, and of its
// own experts, against how many there is room for.
struct RowRoom {
  Tensor needed;             // optional, [2] int32; absent: there is always room
  std::int64_t arrived = 0;  // room for these
  std::int64_t rows = 0;     // and these
};

// grad_norm = sqrt(sums[0] + sums[1] + ...) in fp64, clip_factor = min(1, clip_grad / (grad_norm + 1e-6)) (Pascanu et
// al. 2013, arXiv:1211.5063, with Megatron's epsilon). Rows without room, or else a loss or norm that is not finite,
// set skip and leave adam_count; otherwise skip is cleared and adam_count counts this step.
struct GradNormFinalize {
  MEGALITH_OP(GradNormFinalize, "grad_norm_finalize");
  Tensor sums;           // [P] fp64
  Tensor loss;           // [1] fp32: mean loss of the global batch
  double clip_grad = 0;  // 0: no clipping
  RowRoom room = {};
  StepParameters* parameters = nullptr;  // device, in/out: skip, adam_count, clip_factor, grad_norm, loss
};

// The host's part of the step's parameters. Its values are baked in by a capture, so it stays outside of graphs.
struct WriteStepParameters {
  MEGALITH_OP(WriteStepParameters, "write_step_parameters");
  std::int64_t iteration = 0;
  float learning_rate = 0;
  StepParameters* parameters = nullptr;  // device, out: iteration and learning_rate
};

// The parameters of one microbatch, likewise outside of graphs.
struct WriteMicrobatchParameters {
  MEGALITH_OP(WriteMicrobatchParameters, "write_microbatch_parameters");
  MicrobatchParameters value;
  MicrobatchParameters* out = nullptr;  // device
};

}  // namespace megalith
