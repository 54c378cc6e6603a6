// Sums and maxima over the threads of a warp or block, by fixed trees: every thread gets the same bits, on every run.
#pragma once

#include <cuda_runtime_api.h>

namespace megalith::cuda {

inline constexpr unsigned kAllLanes = 0xFFFFFFFFu;

// Over aligned groups of `width` lanes, a power of two.
template <class T>
__device__ inline T warp_sum(T x, int width = 32) {
  for (int step = width / 2; step > 0; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
  return x;
}

// Over the block, a whole number of warps, at most 1024 threads; `shared` has room for 32.
template <class T>
__device__ inline T block_sum(T x, T* shared) {
  x = warp_sum(x);
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  const unsigned warps = blockDim.x / 32;
  x = threadIdx.x % 32 < warps ? shared[threadIdx.x % 32] : T{};
  return warp_sum(x);
}

}  // namespace megalith::cuda
