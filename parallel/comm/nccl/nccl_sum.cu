#include <cuda_bf16.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/device/cuda/check.h"
#include "parallel/comm/nccl/nccl_sum.h"

namespace megalith {

namespace {

constexpr int kThreads = 512;

// Elements that a thread moves at a time.
template <class T, int kCount>
struct alignas(sizeof(T) * kCount) Pack {
  T values[kCount];
};

__device__ float widen(float x) { return x; }
__device__ float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ void narrow(float x, float& out) { out = x; }
__device__ void narrow(float x, __nv_bfloat16& out) { out = __float2bfloat16_rn(x); }

// `Out`: T, or float for __nv_bfloat16.
template <class T, class Out, int kCount, bool kAdds>
__global__ void __launch_bounds__(kThreads)
    sum_parts_kernel(const T* own, const T* others, std::int64_t pitch, int rank, int ranks, Out* out, std::int64_t n) {
  using Values = Pack<T, kCount>;
  using Sums = Pack<Out, kCount>;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kThreads * kCount;
  for (std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kCount; i < n; i += stride) {
    float sum[kCount] = {};
    for (int r = 0; r < ranks; ++r) {
      const T* from = r == rank ? own + i : others + (r < rank ? r : r - 1) * pitch + i;
      const Values part = *reinterpret_cast<const Values*>(from);
#pragma unroll
      for (int j = 0; j < kCount; ++j) sum[j] = r == 0 ? widen(part.values[j]) : sum[j] + widen(part.values[j]);
    }
    Sums* to = reinterpret_cast<Sums*>(out + i);
    Sums result;
#pragma unroll
    for (int j = 0; j < kCount; ++j) narrow(sum[j], result.values[j]);
    if constexpr (kAdds) {
      const Sums before = *to;
#pragma unroll
      for (int j = 0; j < kCount; ++j) narrow(widen(before.values[j]) + widen(result.values[j]), result.values[j]);
    }
    *to = result;
  }
}

template <class T, class Out, int kCount>
void launch_sum(CudaStream& stream, const PartSum& sum) {
  const std::int64_t n = sum.own.numel(), packs = (n + kCount - 1) / kCount;
  const auto blocks =
      static_cast<unsigned>(std::min<std::int64_t>((packs + kThreads - 1) / kThreads, 4 * stream.multiprocessors()));
  // Loads the accumulating kernel now: loading it within a step might wait for a peer that waits for this rank.
  static const cudaError_t loaded = [] {
    cudaFuncAttributes attributes{};
    return cudaFuncGetAttributes(&attributes, sum_parts_kernel<T, Out, kCount, true>);
  }();
  MEGALITH_CUDA_CHECK(loaded);
  const auto kernel = sum.accumulate ? sum_parts_kernel<T, Out, kCount, true> : sum_parts_kernel<T, Out, kCount, false>;
  kernel<<<blocks, kThreads, 0, stream.handle()>>>(sum.own.as<const T>(), sum.others.as<const T>(), sum.pitch, sum.rank,
                                                   sum.ranks, sum.out.as<Out>(), n);
  MEGALITH_CUDA_CHECK(cudaGetLastError());
}

template <class T, class Out>
void launch_sum(CudaStream& stream, const PartSum& sum) {
  constexpr int kCount = 16 / sizeof(T);
  const auto aligned = [](const Tensor& x) {
    return reinterpret_cast<std::uintptr_t>(x.data) % (kCount * size_of(x.dtype)) == 0;
  };
  if (aligned(sum.own) && aligned(sum.others) && aligned(sum.out) && sum.own.numel() % kCount == 0) {
    launch_sum<T, Out, kCount>(stream, sum);
  } else {
    launch_sum<T, Out, 1>(stream, sum);
  }
}

}  // namespace

void sum_parts(CudaStream& stream, const PartSum& sum) {
  require(sum.own.dtype == DType::kFp32 || sum.own.dtype == DType::kBf16, "sum_parts of another dtype");
  require(sum.out.dtype == sum.own.dtype || sum.out.dtype == DType::kFp32, "sum_parts into another dtype");
  if (sum.own.dtype == DType::kFp32) {
    launch_sum<float, float>(stream, sum);
  } else if (sum.out.dtype == DType::kFp32) {
    launch_sum<__nv_bfloat16, float>(stream, sum);
  } else {
    launch_sum<__nv_bfloat16, __nv_bfloat16>(stream, sum);
  }
}

}  // namespace megalith
