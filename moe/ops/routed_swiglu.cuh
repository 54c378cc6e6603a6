// Arithmetic of one element of the routed SwiGLU (grouped_gemm.h). Its own kernels and the epilogues of grouped GEMMs
// share it, so results are bitwise equal. Multiplications are not fused with additions.
#pragma once

#include "core/ops/cuda_math.cuh"
#include "core/ops/cuda_pack.cuh"
#include "moe/ops/grouped_gemm/grouped_gemm.h"

namespace megalith::cuda {

// In bf16, 1 - s may be inexact: a small 1 - s is added to a number near 1.
template <class T>
__device__ inline Logistic routed_logistic(float x) {
  if constexpr (sizeof(T) != 2) return logistic_pair<T>(x);
  const float s = approximate_reciprocal(1.0f + exponential<T>(-x));
  return {s, 1.0f - s};
}

// s = round(silu(gate) up).
template <class T>
__device__ inline float routed_activation(float gate, float up) {
  return widen(narrow<T>(up * (gate * routed_logistic<T>(gate).value)));
}

// y before rounding.
__device__ inline float routed_output(float s, float row_weight) { return __fmul_rn(row_weight, s); }

// Results before rounding.
struct RoutedGradient {
  float gate, up, y;
};

// Gradients of one element. `dy` is a value of T; dy s is added to `sum`.
template <class T>
__device__ inline RoutedGradient routed_gradient(float gate, float up, float dy, float row_weight, float& sum) {
  const Logistic logistic = routed_logistic<T>(gate);
  const float silu = gate * logistic.value, d = __fmul_rn(row_weight, dy), s = widen(narrow<T>(up * silu));
  sum = __fadd_rn(sum, __fmul_rn(dy, s));
  return {d * (up * fmaf(silu, logistic.complement, logistic.value)), d * silu, routed_output(s, row_weight)};
}

// Sum over eight adjacent lanes, each with the sum of one pack. Adjacent lanes are added first.
__device__ inline float sum_of_packs(float sum) {
  const unsigned lanes = 0xFFu << (threadIdx.x % 32 / 8 * 8);
#pragma unroll
  for (int step = 1; step < 8; step *= 2) sum = __fadd_rn(sum, __shfl_xor_sync(lanes, sum, step));
  return sum;
}

}  // namespace megalith::cuda
