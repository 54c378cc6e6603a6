// Arithmetic of one element of the activation functions without a gate, for *_cpu.cpp files and activation.cpp.
#pragma once

#include "core/ops/elementwise/activation.h"
#include "core/ops/loops.h"

namespace megalith {

inline constexpr float kTwoSqrtTwoOverPi = 1.59576912f;

// gelu(x) = x cdf(x); its derivative is cdf(x) + x cdf'(x). In the tanh form cdf(x) = 0.5 (1 + tanh(u)) = logistic(2u):
// one exponential, and no cancellation in the lower tail. From |x| = 100 on the result no longer depends on the cubic
// term, which could overflow.
struct GeluArgument {
  F32x8 x2;
  F32x8 z;  // 2u
};

inline GeluArgument gelu_argument(F32x8 x) {
  const F32x8 x2 = _mm256_min_ps(x * x, broadcast(1e4f));
  return {x2, x * fma(x2, kTwoSqrtTwoOverPi * 0.044715f, kTwoSqrtTwoOverPi)};
}

// max(x, 0); NaN for NaN.
inline F32x8 relu(F32x8 x) { return _mm256_max_ps(_mm256_setzero_ps(), x); }

template <Pointwise kFunction>
F32x8 pointwise(F32x8 x) {
  if constexpr (kFunction == Pointwise::kGeluExact) return x * simd::normal_distribution(x).below;
  if constexpr (kFunction == Pointwise::kGeluTanh) return x * simd::logistic(gelu_argument(x).z);
  const F32x8 positive = relu(x);
  return positive * positive;
}

template <Pointwise kFunction>
F32x8 pointwise_slope(F32x8 x) {
  if constexpr (kFunction == Pointwise::kGeluExact) {
    constexpr float kInverseSqrtTwoPi = 0.398942280f;
    const simd::Normal normal = simd::normal_distribution(x);
    return fma(x, normal.gauss * kInverseSqrtTwoPi, normal.below);
  }
  if constexpr (kFunction == Pointwise::kGeluTanh) {
    const GeluArgument argument = gelu_argument(x);
    const simd::Logistic s = simd::logistic_pair(argument.z);
    const F32x8 z_slope = fma(argument.x2, 3 * kTwoSqrtTwoOverPi * 0.044715f, kTwoSqrtTwoOverPi);
    return fma(x, s.value * s.complement * z_slope, s.value);
  }
  const F32x8 positive = relu(x);
  return positive + positive;
}

}  // namespace megalith
