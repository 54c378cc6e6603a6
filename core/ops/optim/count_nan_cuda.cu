// A block owns kPacks packs of each of its threads; one pass. Integer sums do not depend on their order.
#include <algorithm>

#include "core/ops/cuda_launch.cuh"
#include "core/ops/cuda_pack.cuh"
#include "core/ops/cuda_reduce.cuh"
#include "core/ops/optim/count_nan.h"

namespace megalith {

namespace {

using namespace cuda;

constexpr int kThreads = 256;
constexpr int kPacks = 8;

// `bound` counts rows of `row` elements; null: all `count` elements.
template <class T, bool kVector>
__global__ void __launch_bounds__(kThreads) count_nan_kernel(const T* x, std::int64_t count, const std::int32_t* bound,
                                                             std::int64_t row, unsigned long long* nans) {
  __shared__ int shared[32];
  constexpr int kStep = kThreads * kPack<T>;
  if (bound != nullptr) count = min(count, *bound * row);
  const std::int64_t first = std::int64_t{blockIdx.x} * kPacks * kStep + static_cast<int>(threadIdx.x) * kPack<T>;
  uint4 raw[kPacks];
#pragma unroll
  for (int k = 0; k < kPacks; ++k) raw[k] = load_flat<T, kVector>(x, first + k * kStep, count);
  int own = 0;
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const Floats<T> values(raw[k]);
#pragma unroll
    for (int j = 0; j < kPack<T>; ++j) own += isnan(values[j]) ? 1 : 0;
  }
  const int all = block_sum(own, shared);
  if (threadIdx.x == 0 && all > 0) atomicAdd(nans, static_cast<unsigned long long>(all));
}

}  // namespace

void run(CudaStream& stream, const CountNan& op) {
  const Tensor& x = op.x;
  const std::int64_t row = x.bound == nullptr ? 0 : x.numel() / std::max<std::int64_t>(x.size(0), 1);
  Variants(x.dtype, starts_aligned(x)).visit([&](auto type, auto is_vector) {
    using T = decltype(type);
    launch_kernel(stream, {blocks_for(x.numel(), kPacks * kThreads * kPack<T>), kThreads},
                  count_nan_kernel<T, is_vector()>, x.as<const T>(), x.numel(), x.bound, row,
                  op.count.as<unsigned long long>());
  });
}

}  // namespace megalith
