// The global gradient norm and the device parameter block. The step's decisions (skip, clip factor, Adam's count) are
// taken on the device, so the host never waits for them. Deterministic: a fixed summation tree per tensor, then fp64 in
// the order of the tensors.
// P: number of tensors.
#pragma once

#include <cstdint>
#include <vector>

#include "core/ops/device_parameters.h"
#include "core/ops/op.h"

namespace megalith {

// out[i] = sum of the squares of tensors[i], in fp64. A sum depends on its own tensor's elements alone, not on the
// other tensors of the call. Memory-bound; one pass over all tensors.
struct SumOfSquares {
  static constexpr const char* kName = "sum_of_squares";
  std::vector<Tensor> tensors;  // P, of any shapes, contiguous, all bf16 or all fp32
  Tensor out;                   // [P] out, fp64
  Tensor workspace;             // [workspace_bytes(op, device)] uint8
};

// grad_norm = sqrt(sums[0] + sums[1] + ...) in fp64, clip_factor = min(1, clip_grad / (grad_norm + 1e-6)) (Pascanu et
// al. 2013, arXiv:1211.5063, with Megatron's epsilon). A loss or norm that is not finite sets skip and leaves
// adam_count; otherwise skip is cleared and adam_count counts this step.
struct GradNormFinalize {
  static constexpr const char* kName = "grad_norm_finalize";
  Tensor sums;                           // [P] fp64
  Tensor loss;                           // [1] fp32: mean loss of the global batch
  double clip_grad = 0;                  // 0: no clipping
  StepParameters* parameters = nullptr;  // device, in/out: skip, adam_count, clip_factor, grad_norm, loss
};

// The host's part of the step's parameters. Its values are baked in by a capture, so it stays outside of graphs.
struct WriteStepParameters {
  static constexpr const char* kName = "write_step_parameters";
  std::int64_t iteration = 0;
  float learning_rate = 0;
  StepParameters* parameters = nullptr;  // device, out: iteration and learning_rate
};

// The parameters of one microbatch, likewise outside of graphs.
struct WriteMicrobatchParameters {
  static constexpr const char* kName = "write_microbatch_parameters";
  MicrobatchParameters value;
  MicrobatchParameters* out = nullptr;  // device
};

inline constexpr std::int64_t kSquareSlice = std::int64_t{1} << 14;  // elements of a partial sum on CUDA

void fields(const SumOfSquares& op, Fields& f);
std::size_t workspace_bytes(const SumOfSquares& op, DeviceType device);
void compute(const SumOfSquares& op);
void run(CudaStream& stream, const SumOfSquares& op);

void fields(const GradNormFinalize& op, Fields& f);
void compute(const GradNormFinalize& op);
void run(CudaStream& stream, const GradNormFinalize& op);

void fields(const WriteStepParameters& op, Fields& f);
void compute(const WriteStepParameters& op);
void run(CudaStream& stream, const WriteStepParameters& op);

void fields(const WriteMicrobatchParameters& op, Fields& f);
void compute(const WriteMicrobatchParameters& op);
void run(CudaStream& stream, const WriteMicrobatchParameters& op);

}  // namespace megalith
