// What the kernels of the norms' backward share.
#pragma once

#include "core/ops/norm/cuda_norm.cuh"

namespace megalith::cuda {

// kCount sums at once over the threads of a row. `shared` is [2][16 warps][kCount]; `turn` alternates, so that one
// barrier is enough. With groups of more than a warp all threads of the block must take part.
template <int kCount>
struct GroupSums {
  int group;
  float (*shared)[16][kCount];
  int turn = 0;

  __device__ void operator()(float (&x)[kCount]) {
    constexpr int kSpread = 32 / kCount;
    if (group < 32) {
#pragma unroll
      for (int c = 0; c < kCount; ++c) x[c] = warp_sum(x[c], group);
      return;
    }
    float sum = spread_sum(x);
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    if (group > 32) {
      const int warps = group / 32, first = warp / warps * warps;
      if (lane % kSpread == 0) shared[turn][warp][lane / kSpread] = sum;
      named_barrier_sync(kFirstGroupBarrier + first / warps, group);
      sum = 0;
      for (int w = lane / kCount; w < warps; w += kSpread) sum += shared[turn][first + w][lane % kCount];
#pragma unroll
      for (int step = 16; step >= kCount; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
      turn ^= 1;
    }
#pragma unroll
    for (int c = 0; c < kCount; ++c) x[c] = __shfl_sync(kAllLanes, sum, group > 32 ? c : c * kSpread);
  }
};

template <class T>
struct BackwardArguments {
  RowIndexer index;
  RowPointer<const T> dy, x, d_residual;
  RowPointer<T> dx, y;  // y: of RMSNorm, or absent
  const T* weight;
  const float *mean, *rstd;
  float *d_weight, *d_bias;  // [blocks, length]
  int length, group;
  float inverse_length;
};

}  // namespace megalith::cuda
