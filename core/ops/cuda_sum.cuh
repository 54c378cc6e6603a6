// Sums of a flat fp32 array in fp64, by a fixed tree: element i always goes to the same accumulator, whatever the
// alignment and the device. Blocks own kSumSlice elements at a time; a second kernel adds the blocks' sums.
#pragma once

#include "core/ops/cuda_launch.cuh"
#include "core/ops/cuda_pack.cuh"
#include "core/ops/cuda_reduce.cuh"
#include "core/ops/reduce.h"

namespace megalith::cuda {

inline constexpr int kSumThreads = 256;
inline constexpr int kSumPacks = 8;  // loads in flight per thread
inline constexpr std::int64_t kSumSlice = std::int64_t{kSumThreads} * kSumPacks * kPack<float>;

// out[0] = total (+ out[0]).
struct SumTarget {
  float* out = nullptr;
  bool accumulate = false;

  __device__ void store(double total) const {
    *out = static_cast<float>(accumulate ? static_cast<double>(*out) + total : total);
  }
};

// One pass, memory-bound. Without a scratch there is one block.
template <bool kVector>
__global__ void __launch_bounds__(kSumThreads)
    sum_slices(const float* x, std::int64_t count, double* block_sums, SumTarget target) {
  __shared__ double shared[32];
  double sums[kPack<float>] = {};
  for (std::int64_t slice = blockIdx.x * kSumSlice; slice < count; slice += gridDim.x * kSumSlice) {
    uint4 raw[kSumPacks];
#pragma unroll
    for (int k = 0; k < kSumPacks; ++k) {
      const std::int64_t first = slice + (k * kSumThreads + static_cast<int>(threadIdx.x)) * kPack<float>;
      raw[k] = load_flat<float, kVector>(x, first, count);
    }
#pragma unroll
    for (int k = 0; k < kSumPacks; ++k) {
      float v[kPack<float>];
      unpack<float>(raw[k], v);
#pragma unroll
      for (int j = 0; j < kPack<float>; ++j) sums[j] += static_cast<double>(v[j]);
    }
  }
  const double total = block_sum((sums[0] + sums[1]) + (sums[2] + sums[3]), shared);
  if (threadIdx.x > 0) return;
  if (block_sums == nullptr) {
    target.store(total);
  } else {
    block_sums[blockIdx.x] = total;
  }
}

// One block.
static __global__ void __launch_bounds__(kSumThreads)
    add_blocks(const double* block_sums, int count, SumTarget target) {
  __shared__ double shared[32];
  double sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kSumThreads) sum += block_sums[i];
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) target.store(sum);
}

// `block_sums` has kMaxSumBlocks.
inline void launch_sum(CudaStream& stream, const Tensor& x, double* block_sums, const SumTarget& target) {
  const std::int64_t slices = ceil_divide(x.numel(), kSumSlice);
  const auto blocks = static_cast<unsigned>(std::clamp<std::int64_t>(slices, 1, kMaxSumBlocks));
  if (blocks == 1) block_sums = nullptr;
  const auto* data = x.as<const float>();
  if (starts_aligned(data)) {
    sum_slices<true><<<blocks, kSumThreads, 0, stream.handle()>>>(data, x.numel(), block_sums, target);
  } else {
    sum_slices<false><<<blocks, kSumThreads, 0, stream.handle()>>>(data, x.numel(), block_sums, target);
  }
  MEGALITH_CUDA_CHECK(cudaGetLastError());
  if (block_sums == nullptr) return;
  add_blocks<<<1, kSumThreads, 0, stream.handle()>>>(block_sums, static_cast<int>(blocks), target);
  MEGALITH_CUDA_CHECK(cudaGetLastError());
}

}  // namespace megalith::cuda
