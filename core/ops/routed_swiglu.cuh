// What the routed SwiGLU (grouped_gemm.h) makes of an element: for its own kernels and for those that have it behind a
// product, which so get the same bits. No product is fused with a sum.
#pragma once

#include "core/ops/cuda_math.cuh"
#include "core/ops/cuda_pack.cuh"

namespace megalith::cuda {

inline constexpr int kPartialColumns = 128;  // of a partial sum of a row weight's gradient

// s = round(silu(gate) up).
template <class T>
__device__ inline float routed_activation(float gate, float up) {
  return widen(narrow<T>(gated<T>(gate, up)));
}

// y before it is rounded.
__device__ inline float routed_output(float s, float row_weight) { return __fmul_rn(row_weight, s); }

// Before they are rounded; `dy` is a value of T.
template <class T>
__device__ inline GatedGradient routed_gradient(float gate, float up, float dy, float row_weight) {
  return gated_gradient<T>(gate, up, __fmul_rn(row_weight, dy));
}

// A term of the row weight's gradient. The sum over the columns c of a block with c / 2 % 4 = q takes them in ascending
// order, by __fadd_rn from 0 on; columns that do not exist may add 0.
__device__ inline float weight_term(float dy, float s) { return __fmul_rn(dy, s); }

// (q0 + q1) + (q2 + q3) on aligned groups of four lanes, each with the sum of its q.
__device__ inline float sum_of_quad(float sum) {
  sum = __fadd_rn(sum, __shfl_xor_sync(0xFFFFFFFFu, sum, 1));
  return __fadd_rn(sum, __shfl_xor_sync(0xFFFFFFFFu, sum, 2));
}

}  // namespace megalith::cuda
