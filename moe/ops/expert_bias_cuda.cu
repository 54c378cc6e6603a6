// Launch-bound. count_expert_rows: one expert per thread. update_expert_bias: one layer per block.
#include "core/ops/cuda_launch.cuh"
#include "moe/ops/expert_bias.h"

namespace megalith {

namespace {

using namespace cuda;

constexpr int kThreads = 256;

__global__ void count_expert_rows_kernel(const std::int32_t* offsets, std::int32_t* counts, std::int64_t experts) {
  const std::int64_t e = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (e < experts) counts[e] += offsets[e + 1] - offsets[e];
}

// The order of integer sums does not matter.
__global__ void update_expert_bias_kernel(const std::int32_t* counts, float* bias, std::int64_t experts, float rate,
                                          const StepParameters* step) {
  __shared__ unsigned long long all;
  if (step->skip != 0) return;
  if (threadIdx.x == 0) all = 0;
  __syncthreads();
  const std::int64_t first = std::int64_t{blockIdx.x} * experts;
  unsigned long long some = 0;
  for (std::int64_t e = threadIdx.x; e < experts; e += kThreads) some += static_cast<unsigned>(counts[first + e]);
  if (some > 0) atomicAdd(&all, some);
  __syncthreads();
  for (std::int64_t e = threadIdx.x; e < experts; e += kThreads) {
    const std::int64_t missing = static_cast<std::int64_t>(all) - counts[first + e] * experts;
    if (missing != 0) bias[first + e] += missing > 0 ? rate : -rate;
  }
}

}  // namespace

void run(CudaStream& stream, const CountExpertRows& op) {
  const std::int64_t experts = op.counts.numel();
  launch_kernel(stream, {blocks_for(experts, kThreads), kThreads}, count_expert_rows_kernel,
                op.offsets.as<const std::int32_t>(), op.counts.as<std::int32_t>(), experts);
}

void run(CudaStream& stream, const UpdateExpertBias& op) {
  if (op.bias.numel() == 0) return;
  launch_kernel(stream, {blocks_for(op.bias.size(0), 1), kThreads}, update_expert_bias_kernel,
                op.counts.as<const std::int32_t>(), op.bias.as<float>(), op.bias.size(1), op.rate, op.parameters);
}

}  // namespace megalith
