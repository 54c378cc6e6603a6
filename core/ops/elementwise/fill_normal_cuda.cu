// Arithmetic-bound (fp64), once a run; elementwise, so deterministic. A thread makes the four numbers of a Philox
// block.
#include "core/ops/elementwise/fill_normal.h"

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
    fill_normal_kernel(T* x, std::int64_t rows, std::int64_t columns, std::int64_t pitch, NormalNumbers numbers,
                       bool uniform, DeviceKey key) {
  const std::int64_t blocks_of_row = columns / 4 + 2;  // for any offset of the first number
  const std::int64_t item = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const std::int64_t row = item / blocks_of_row;
  if (row >= rows) return;
  const std::int64_t offset = numbers.offset + row * pitch;
  const std::int64_t block = offset / 4 + item % blocks_of_row;
  const uint4 words =
      philox(make_uint4(static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32), 0, 0), key);
  const std::uint32_t four[4] = {words.x, words.y, words.z, words.w};
  NormalBlock drawn;
  if (uniform) {
#pragma unroll
    for (int word = 0; word < 4; ++word) drawn.value[word] = uniform_number(four[word]);
  } else {
    drawn = normal_block({words.x, words.y, words.z, words.w});
  }
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    const std::int64_t i = block * 4 + word - offset;
    if (i < 0 || i >= columns) continue;
    x[row * columns + i] =
        narrow<T>(static_cast<float>(fma(drawn.value[word], double{numbers.std}, double{numbers.mean})));
  }
}

}  // namespace

void run(CudaStream& stream, const FillNormal& op) {
  const PhiloxKey key = op.numbers.key();
  const std::int64_t rows = op.x.size(0), columns = op.x.size(1);
  Variants(op.x.dtype).visit([&](auto type) {
    using T = decltype(type);
    launch_kernel(stream, {blocks_for(rows * (columns / 4 + 2), kThreads), kThreads}, fill_normal_kernel<T>,
                  op.x.as<T>(), rows, columns, op.pitch, op.numbers, op.uniform, DeviceKey{{key[0], key[1]}});
  });
}

}  // namespace megalith
