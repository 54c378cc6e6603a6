// Exponentials and quotients for memory-bound kernels: within 1 ulp for fp32 results. For bf16 they are hardware
// approximations (relative error below 2^-21), below the rounding of the result.
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

// Returns y / x for x >= 1 or infinite.
template <class T>
__device__ inline float quotient(float y, float x) {
  if constexpr (sizeof(T) == 2) return y * approximate_reciprocal(x);
  return y / x;
}

// s = 1 / (1 + exp(-x)), and 1 - s without cancellation.
struct Logistic {
  float value, complement;
};

template <class T>
__device__ inline Logistic logistic_pair(float x) {
  const float e = exponential<T>(-fabsf(x));
  const float larger = quotient<T>(1.0f, 1.0f + e);
  const float smaller = e * larger;
  return x >= 0 ? Logistic{larger, smaller} : Logistic{smaller, larger};
}

// SwiGLU: silu(gate) up.
template <class T>
__device__ inline float gated(float gate, float up) {
  return up * quotient<T>(gate, 1.0f + exponential<T>(-gate));
}

// Gradients of SwiGLU for d of the result. d silu(g) / dg = s (1 + g (1 - s)), s = logistic(g).
struct GatedGradient {
  float gate, up;
};

template <class T>
__device__ inline GatedGradient gated_gradient(float gate, float up, float d) {
  const Logistic s = logistic_pair<T>(gate);
  const float slope = s.value * fmaf(gate, s.complement, 1.0f);
  return {d * (up * slope), d * (gate * s.value)};
}

}  // namespace megalith::cuda
