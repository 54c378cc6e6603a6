// Exponentials and quotients for memory-bound kernels: exact to 1 ulp where results are fp32; in bf16 the hardware's
// approximations (relative error below 2^-21), which vanish in the rounding of the result.
#pragma once

#include <cuda_runtime_api.h>

namespace megalith::cuda {

__device__ inline float approximate_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ inline float approximate_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

inline constexpr float kLog2E = 1.44269504f;

template <class T>
__device__ inline float exponential(float x) {
  if constexpr (sizeof(T) == 2) return approximate_exp2(x * kLog2E);
  return expf(x);
}

// y / x for x >= 1 or infinite.
template <class T>
__device__ inline float quotient(float y, float x) {
  if constexpr (sizeof(T) == 2) return y * approximate_reciprocal(x);
  return y / x;
}

}  // namespace megalith::cuda
