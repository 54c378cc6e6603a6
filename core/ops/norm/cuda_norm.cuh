// Definitions of the norms' forward and backward kernels. Slower kernels handle rows of more than kMaxRowPacks packs.
#pragma once

#include "core/device/cuda/named_barrier.cuh"
#include "core/ops/cuda_launch.cuh"
#include "core/ops/cuda_pack.cuh"
#include "core/ops/cuda_reduce.cuh"
#include "core/ops/norm/norm.h"

namespace megalith::cuda {

inline constexpr int kMaxGroup = 512;  // threads of a row
// Named barriers of a block's groups larger than a warp, at most eight. 0 is the block's barrier.
inline constexpr int kFirstGroupBarrier = 1;
inline constexpr std::int64_t kMaxRowPacks = 4 * kMaxGroup;

template <class Op>
inline constexpr bool kIsLayerNorm = std::is_same_v<Op, LayerNormForward> || std::is_same_v<Op, LayerNormBackward>;

// Factors of a pack of the weight; center: 1 if the weight is around zero, else 0.
template <class T>
__device__ inline Floats<T> factors(uint4 weight, float center) {
  Floats<T> w(weight);
#pragma unroll
  for (int j = 0; j < kPack<T>; ++j) w[j] += center;
  return w;
}

inline int row_length(const Tensor& x) {
  require(x.size(-1) < kMaxIndex / 2, "a norm over more than 2^30 elements");
  return static_cast<int>(x.size(-1));
}

}  // namespace megalith::cuda
