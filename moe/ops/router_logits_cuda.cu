// A block owns 32 tokens and 32 experts, a thread two of each. Bound by fp64 arithmetic, which is small next to the
// experts' products.
#include "core/ops/cuda_launch.cuh"
#include "core/ops/cuda_pack.cuh"
#include "moe/ops/router_logits.h"

namespace megalith {

namespace {

using namespace cuda;

constexpr int kSide = 32, kThreads = 256, kDepth = 16;

template <class T>
__device__ void load_lines(const T* from, std::int64_t first, std::int64_t lines, std::int64_t depth,
                           std::int64_t hidden, double (&to)[kDepth][kSide + 1]) {
  for (int i = static_cast<int>(threadIdx.x); i < kSide * kDepth; i += kThreads) {
    const int line = i / kDepth, k = i % kDepth;
    const bool exists = first + line < lines && depth + k < hidden;
    to[k][line] = exists ? static_cast<double>(widen(from[(first + line) * hidden + depth + k])) : 0.0;
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    router_logits_kernel(const T* x, const T* weight, double* logits, std::int64_t tokens, std::int64_t experts,
                         std::int64_t hidden) {
  __shared__ double left[kDepth][kSide + 1], right[kDepth][kSide + 1];
  const std::int64_t token = std::int64_t{blockIdx.x} * kSide, expert = std::int64_t{blockIdx.y} * kSide;
  const int row = static_cast<int>(threadIdx.x) / 16, column = static_cast<int>(threadIdx.x) % 16;
  double sums[2][2] = {};
  for (std::int64_t depth = 0; depth < hidden; depth += kDepth) {
    __syncthreads();
    load_lines(x, token, tokens, depth, hidden, left);
    load_lines(weight, expert, experts, depth, hidden, right);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        sums[i / 2][i % 2] = fma(left[k][row + 16 * (i / 2)], right[k][column + 16 * (i % 2)], sums[i / 2][i % 2]);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const std::int64_t t = token + row + 16 * (i / 2), e = expert + column + 16 * (i % 2);
    if (t < tokens && e < experts) logits[t * experts + e] = sums[i / 2][i % 2];
  }
}

}  // namespace

void run(CudaStream& stream, const RouterLogits& op) {
  const std::int64_t tokens = op.x.size(0), experts = op.weight.size(0);
  if (op.logits.numel() == 0) return;
  visit_float(op.x.dtype, [&]<class T>(T) {
    const dim3 grid(blocks_for(tokens, kSide), blocks_for(experts, kSide));
    launch_kernel(stream, {grid, kThreads}, router_logits_kernel<T>, op.x.as<const T>(), op.weight.as<const T>(),
                  op.logits.as<double>(), tokens, experts, op.x.size(1));
  });
}

}  // namespace megalith
