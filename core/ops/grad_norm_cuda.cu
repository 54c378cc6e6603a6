// SumOfSquares is memory-bound, one pass; the others are single blocks that take no time. Deterministic.
#include "core/ops/cuda_sum.cuh"
#include "core/ops/grad_norm.h"

namespace megalith {

namespace {

using namespace cuda;

constexpr int kFinalizeThreads = 256;

// One block, which fetches; one thread adds, in the order of the tensors.
__global__ void finalize(const double* sums, std::int64_t count, const float* loss, double clip_grad,
                         StepParameters* step) {
  __shared__ double tile[kFinalizeThreads];
  double sum = 0;
  for (std::int64_t first = 0; first < count; first += kFinalizeThreads) {
    const std::int64_t i = first + threadIdx.x;
    if (i < count) tile[threadIdx.x] = sums[i];
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int k = 0; k < kFinalizeThreads && first + k < count; ++k) sum += tile[k];
    }
    __syncthreads();
  }
  if (threadIdx.x > 0) return;
  const double norm = sqrt(sum);
  step->loss = *loss;
  step->grad_norm = static_cast<float>(norm);
  const bool finite = isfinite(step->loss) && isfinite(step->grad_norm);
  step->skip = finite ? 0 : 1;
  step->clip_factor = finite && clip_grad > 0 ? static_cast<float>(fmin(1.0, clip_grad / (norm + 1e-6))) : 1.0f;
  if (finite) ++step->adam_count;
}

__global__ void write_step(std::int64_t iteration, float learning_rate, StepParameters* step) {
  step->iteration = iteration;
  step->learning_rate = learning_rate;
}

__global__ void write_microbatch(MicrobatchParameters value, MicrobatchParameters* out) { *out = value; }

}  // namespace

void run(CudaStream& stream, const SumOfSquares& op) {
  launch_sum<Square>(stream, op.x, {.fp64 = op.out.as<double>()});
}

void run(CudaStream& stream, const GradNormFinalize& op) {
  finalize<<<1, kFinalizeThreads, 0, stream.handle()>>>(op.sums.as<const double>(), op.sums.numel(),
                                                        op.loss.as<const float>(), op.clip_grad, op.parameters);
  MEGALITH_CUDA_CHECK(cudaGetLastError());
}

void run(CudaStream& stream, const WriteStepParameters& op) {
  write_step<<<1, 1, 0, stream.handle()>>>(op.iteration, op.learning_rate, op.parameters);
  MEGALITH_CUDA_CHECK(cudaGetLastError());
}

void run(CudaStream& stream, const WriteMicrobatchParameters& op) {
  write_microbatch<<<1, 1, 0, stream.handle()>>>(op.value, op.out);
  MEGALITH_CUDA_CHECK(cudaGetLastError());
}

}  // namespace megalith
