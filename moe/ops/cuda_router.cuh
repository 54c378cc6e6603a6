// Shared code of the router's kernels. A warp processes a token, and each lane owns kOwn adjacent experts.
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

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// Loads the logits of experts from `first` on; -inf beyond the last.
template <int kOwn, bool kVector>
__device__ inline void load_logits(const float* row, int first, int experts, float (&x)[kOwn]) {
#pragma unroll
  for (int j = 0; j < kOwn; j += 4) {
    const Floats<float> pack(load_of_row<float, kVector>(row, first + j, experts));
#pragma unroll
    for (int i = 0; i < 4; ++i) x[j + i] = first + j + i < experts ? pack[i] : -INFINITY;
  }
}

struct WarpSoftmax {
  float max, inverse_sum, log_sum;
  __device__ float of(float x) const { return expf(x - max) * inverse_sum; }
};

template <int kOwn>
__device__ inline WarpSoftmax warp_softmax(const float (&x)[kOwn]) {
  float max = x[0], sum = 0;
#pragma unroll
  for (int j = 1; j < kOwn; ++j) max = fmaxf(max, x[j]);
  max = warp_reduce(max, [](float a, float b) { return fmaxf(a, b); });
#pragma unroll
  for (int j = 0; j < kOwn; ++j) sum += expf(x[j] - max);
  sum = warp_sum(sum);
  return {max, 1.0f / sum, max + logf(sum)};
}

// Loads l_e of the lane's experts; 0 beyond the last.
template <int kOwn>
__device__ inline void load_loads(const float* loads, int first, int experts, float (&load)[kOwn]) {
#pragma unroll
  for (int j = 0; j < kOwn; ++j) load[j] = first + j < experts ? loads[first + j] : 0.0f;
}

// P of the load-balancing loss for the lane's experts; returns the sum of l_e P_e over all experts.
template <int kOwn>
__device__ inline float balance_scores(RouterScore score, const float (&x)[kOwn], const float (&load)[kOwn],
                                       const WarpSoftmax& softmax, float (&p)[kOwn]) {
  if (score == RouterScore::kSigmoid) {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      p[j] = sigmoid(x[j]);
      sum += p[j];
    }
    const float inverse = 1.0f / (warp_sum(sum) + kSigmoidEpsilon);
#pragma unroll
    for (int j = 0; j < kOwn; ++j) p[j] *= inverse;
  } else {
#pragma unroll
    for (int j = 0; j < kOwn; ++j) p[j] = softmax.of(x[j]);
  }
  float loss = 0;
#pragma unroll
  for (int j = 0; j < kOwn; ++j) loss = fmaf(load[j], p[j], loss);
  return warp_sum(loss);
}

// Calls visit(kOwn, kVector), as constants. `aligned`: the first row starts at a multiple of 16 bytes.
template <class Visit>
void visit_router(std::int64_t experts, bool aligned, Visit&& visit) {
  Variants(aligned && experts % 4 == 0).visit([&](auto is_vector) {
    if (experts <= 128) return visit(std::integral_constant<int, 4>{}, is_vector);
    if (experts <= 256) return visit(std::integral_constant<int, 8>{}, is_vector);
    visit(std::integral_constant<int, kMaxExperts / 32>{}, is_vector);
  });
}

}  // namespace megalith::cuda
