// Shared code of the router's kernels. A warp processes a token, and each lane owns kOwn adjacent experts. Real is the
// type of the logits and of the arithmetic, float or double.
#pragma once

#include <cmath>

#include "core/ops/cuda_launch.cuh"
#include "core/ops/cuda_pack.cuh"
#include "core/ops/cuda_reduce.cuh"
#include "moe/ops/router.h"

namespace megalith::cuda {

inline constexpr int kRouterWarps = 8;  // per block
inline constexpr int kChoiceLanes = 16;
static_assert(kChoiceLanes == kMaxChoices);

__device__ inline float exponential(float x) { return expf(x); }
__device__ inline double exponential(double x) { return exp(x); }
__device__ inline float logarithm(float x) { return logf(x); }
__device__ inline double logarithm(double x) { return log(x); }

template <class Real>
__device__ inline Real sigmoid(Real x) {
  return Real{1} / (Real{1} + exponential(-x));
}

// Loads the logits of experts from `first` on; -inf beyond the last.
template <int kOwn, bool kVector>
__device__ inline void load_logits(const double* row, int first, int experts, double (&x)[kOwn]) {
#pragma unroll
  for (int j = 0; j < kOwn; ++j) x[j] = first + j < experts ? row[first + j] : -INFINITY;
}
template <int kOwn, bool kVector>
__device__ inline void load_logits(const float* row, int first, int experts, float (&x)[kOwn]) {
#pragma unroll
  for (int j = 0; j < kOwn; j += 4) {
    const Floats<float> pack(load_of_row<float, kVector>(row, first + j, experts));
#pragma unroll
    for (int i = 0; i < 4; ++i) x[j + i] = first + j + i < experts ? pack[i] : -INFINITY;
  }
}

template <class Real>
struct WarpSoftmax {
  Real max, inverse_sum, log_sum;
  __device__ Real of(Real x) const { return exponential(x - max) * inverse_sum; }
};

template <class Real, int kOwn>
__device__ inline WarpSoftmax<Real> warp_softmax(const Real (&x)[kOwn]) {
  Real max = x[0], sum = 0;
#pragma unroll
  for (int j = 1; j < kOwn; ++j) max = ::fmax(max, x[j]);
  max = warp_reduce(max, [](Real a, Real b) { return ::fmax(a, b); });
#pragma unroll
  for (int j = 0; j < kOwn; ++j) sum += exponential(x[j] - max);
  sum = warp_sum(sum);
  return {max, Real{1} / sum, max + logarithm(sum)};
}

// Loads l_e of the lane's experts; 0 beyond the last.
template <int kOwn>
__device__ inline void load_loads(const float* loads, int first, int experts, float (&load)[kOwn]) {
#pragma unroll
  for (int j = 0; j < kOwn; ++j) load[j] = first + j < experts ? loads[first + j] : 0.0f;
}

// P of the load-balancing loss for the lane's experts; returns the sum of l_e P_e over all experts.
template <class Real, int kOwn>
__device__ inline Real balance_scores(RouterScore score, const Real (&x)[kOwn], const float (&load)[kOwn],
                                      const WarpSoftmax<Real>& softmax, Real (&p)[kOwn]) {
  if (score == RouterScore::kSigmoid) {
    Real sum = 0;
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      p[j] = sigmoid(x[j]);
      sum += p[j];
    }
    const Real inverse = Real{1} / (warp_sum(sum) + kSigmoidEpsilon);
#pragma unroll
    for (int j = 0; j < kOwn; ++j) p[j] *= inverse;
  } else {
#pragma unroll
    for (int j = 0; j < kOwn; ++j) p[j] = softmax.of(x[j]);
  }
  Real loss = 0;
#pragma unroll
  for (int j = 0; j < kOwn; ++j) loss = ::fma(static_cast<Real>(load[j]), p[j], loss);
  return warp_sum(loss);
}

// Calls visit(Real{}, kOwn, kVector), the latter two as constants. `aligned`: the first row starts at a multiple of 16
// bytes.
template <class Visit>
void visit_router(DType logits, std::int64_t experts, bool aligned, Visit&& visit) {
  const auto visit_own = [&](auto real, auto is_vector) {
    if (experts <= 128) return visit(real, std::integral_constant<int, 4>{}, is_vector);
    if (experts <= 256) return visit(real, std::integral_constant<int, 8>{}, is_vector);
    visit(real, std::integral_constant<int, kMaxExperts / 32>{}, is_vector);
  };
  if (logits == DType::kFp64) return visit_own(double{}, std::false_type{});
  Variants(aligned && experts % 4 == 0).visit([&](auto is_vector) { visit_own(float{}, is_vector); });
}

}  // namespace megalith::cuda
