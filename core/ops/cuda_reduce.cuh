// Sums and maxima over the threads of a warp or block, by fixed trees: every thread gets equal bits, on every run.
#pragma once

#include <cuda_runtime_api.h>

namespace megalith::cuda {

inline constexpr unsigned kAllLanes = 0xFFFFFFFFu;

// Reduces over aligned groups of `width` lanes, a power of two.
template <class T, class Combine>
__device__ inline T warp_reduce(T x, const Combine& combine, int width = 32) {
  for (int step = width / 2; step > 0; step /= 2) x = combine(x, __shfl_xor_sync(kAllLanes, x, step));
  return x;
}
template <class T>
__device__ inline T warp_sum(T x, int width = 32) {
  return warp_reduce(
      x, [](T a, T b) { return a + b; }, width);
}

// Computes kCount sums over the lanes of a warp with equal index modulo kApart, in fewer steps than separately. The
// c-th is in lanes c * 32 / kCount and following. kCount and kApart are powers of two.
template <int kStride = 1, int kCount>
__device__ inline float spread_sum(float (&x)[kCount]) {
  static_assert(kCount * kStride <= 32);
#pragma unroll
  for (int half = kCount / 2, step = 16; half > 0; half /= 2, step /= 2) {
    const bool upper = (threadIdx.x & static_cast<unsigned>(step)) != 0;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const float kept = upper ? x[i + half] : x[i], sent = upper ? x[i] : x[i + half];
      x[i] = kept + __shfl_xor_sync(kAllLanes, sent, step);
    }
  }
#pragma unroll
  for (int step = 16 / kCount; step >= kStride; step /= 2) x[0] += __shfl_xor_sync(kAllLanes, x[0], step);
  return x[0];
}

// Reduces over the block, at most 1024 threads in complete warps; `shared` has 32 elements.
template <class T, class Combine>
__device__ inline T block_reduce(T x, T identity, T* shared, const Combine& combine) {
  x = warp_reduce(x, combine);
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  return warp_reduce(threadIdx.x % 32 < blockDim.x / 32 ? shared[threadIdx.x % 32] : identity, combine);
}
template <class T>
__device__ inline T block_sum(T x, T* shared) {
  return block_reduce(x, T{}, shared, [](T a, T b) { return a + b; });
}

}  // namespace megalith::cuda
