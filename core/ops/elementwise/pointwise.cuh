// Arithmetic of one element of the activation functions without a gate, for *_cuda.cu files.
#pragma once

#include "core/ops/cuda_math.cuh"
#include "core/ops/elementwise/activation.h"

namespace megalith::cuda {

inline constexpr float kTwoSqrtTwoOverPi = 1.59576912f;

// gelu(x) = x cdf(x). In the tanh form cdf(x) = 0.5 (1 + tanh(u)) = logistic(2u): one exponential, and no cancellation
// in the lower tail. From |x| = 100 on the result no longer depends on the cubic term, which could overflow.
struct GeluArgument {
  float x2, z;  // x^2 and 2u
};

__device__ inline GeluArgument gelu_argument(float x) {
  const float x2 = fminf(x * x, 1e4f);
  return {x2, x * fmaf(x2, kTwoSqrtTwoOverPi * 0.044715f, kTwoSqrtTwoOverPi)};
}

__device__ inline float normal_below(float x) { return 0.5f * erfcf(x * -0.707106781f); }

// max(x, 0); NaN for NaN.
__device__ inline float relu(float x) { return x <= 0 ? 0.0f : x; }

template <class T, Pointwise kFunction>
__device__ inline float pointwise(float x) {
  if constexpr (kFunction == Pointwise::kGeluExact) {
    return x * normal_below(x);
  } else if constexpr (kFunction == Pointwise::kGeluTanh) {
    return quotient<T>(x, 1.0f + exponential<T>(-gelu_argument(x).z));
  } else {
    return relu(x) * relu(x);
  }
}

template <class T, Pointwise kFunction>
__device__ inline float pointwise_slope(float x) {
  if constexpr (kFunction == Pointwise::kGeluExact) {
    return fmaf(x, 0.398942280f * exponential<T>(-0.5f * x * x), normal_below(x));
  } else if constexpr (kFunction == Pointwise::kGeluTanh) {
    const GeluArgument argument = gelu_argument(x);
    const Logistic s = logistic_pair<T>(argument.z);
    const float z_slope = fmaf(argument.x2, 3 * kTwoSqrtTwoOverPi * 0.044715f, kTwoSqrtTwoOverPi);
    return fmaf(x, s.value * s.complement * z_slope, s.value);
  } else {
    return 2 * relu(x);
  }
}

}  // namespace megalith::cuda
