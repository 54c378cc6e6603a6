// Arithmetic-bound (fp64), once a run; elementwise, so deterministic. A thread makes the four numbers of a Philox
// block.
#include "core/ops/fill_normal.h"

#include "core/base/normal.h"
#include "core/ops/cuda_launch.cuh"
#include "core/ops/cuda_pack.cuh"
#include "core/ops/cuda_philox.cuh"

namespace megalith {

namespace {

using namespace cuda;

constexpr int kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads)
    fill_normal(T* x, std::int64_t count, std::int64_t offset, float mean, float std, DeviceKey key) {
  const std::int64_t block = offset / 4 + std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const uint4 words =
      philox(make_uint4(static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32), 0, 0), key);
  const NormalBlock normals = normal_block({words.x, words.y, words.z, words.w});
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    const std::int64_t i = block * 4 + word - offset;
    if (i < 0 || i >= count) continue;
    x[i] = narrow<T>(static_cast<float>(fma(normals.value[word], double{std}, double{mean})));
  }
}

}  // namespace

void run(CudaStream& stream, const FillNormal& op) {
  const NormalNumbers& numbers = op.numbers;
  const PhiloxKey key = numbers.key();
  const std::int64_t count = op.x.numel();
  const unsigned blocks = blocks_for(ceil_divide(numbers.offset % 4 + count, 4), kThreads);
  visit_float(op.x.dtype, [&](auto type) {
    using T = decltype(type);
    fill_normal<T><<<blocks, kThreads, 0, stream.handle()>>>(op.x.as<T>(), count, numbers.offset, numbers.mean,
                                                             numbers.std, DeviceKey{{key[0], key[1]}});
  });
  MEGALITH_CUDA_CHECK(cudaGetLastError());
}

}  // namespace megalith
