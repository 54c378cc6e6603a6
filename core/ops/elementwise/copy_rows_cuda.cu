// Bound by the link to the host. A few blocks leave most multiprocessors to concurrent GEMMs. Each block strides over
// the rows by the grid with kUnrolled units per thread in flight, which saturates the link. One pass; a plain copy, so
// deterministic.
#include <cstdint>

#include "core/ops/cuda_launch.cuh"
#include "core/ops/elementwise/copy_rows.h"

namespace megalith {

namespace {

using namespace cuda;

constexpr unsigned kBlocks = 8, kThreads = 512;
constexpr int kUnrolled = 8;

// Copies `row_units` units of each row. A block owns every gridDim-th piece of kThreads * kUnrolled units; the first
// one also counts.
template <class ByteUnit>
__global__ void __launch_bounds__(kThreads)
    copy_rows_kernel(const ByteUnit* __restrict__ from, ByteUnit* __restrict__ to, const std::int32_t* bound,
                     std::int64_t rows, std::int64_t row_units, std::int64_t first_row, std::int64_t* counted) {
  if (bound != nullptr) rows = max(min(rows, std::int64_t{*bound}), first_row);
  const std::int64_t units = rows * row_units;
  if (counted != nullptr && blockIdx.x == 0 && threadIdx.x == 0)
    *counted += units * static_cast<std::int64_t>(sizeof(ByteUnit));
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads * kUnrolled;
  for (std::int64_t first = first_row * row_units + std::int64_t{blockIdx.x} * kThreads * kUnrolled + threadIdx.x;
       first < units; first += step) {
    ByteUnit value[kUnrolled];
#pragma unroll
    for (int u = 0; u < kUnrolled; ++u) {
      const std::int64_t at = first + std::int64_t{u} * kThreads;
      if (at < units) value[u] = __ldcs(from + at);
    }
#pragma unroll
    for (int u = 0; u < kUnrolled; ++u) {
      const std::int64_t at = first + std::int64_t{u} * kThreads;
      if (at < units) __stcs(to + at, value[u]);
    }
  }
}

template <class ByteUnit>
void launch_copy(CudaStream& stream, const CopyRows& op, std::int64_t row_bytes) {
  const std::int64_t row_units = row_bytes / static_cast<std::int64_t>(sizeof(ByteUnit));
  const std::int64_t most = (op.src.size(0) - op.first) * row_units;
  const std::int64_t pieces = ceil_divide(most, std::int64_t{kThreads} * kUnrolled);
  const unsigned blocks = static_cast<unsigned>(std::clamp<std::int64_t>(pieces, 1, kBlocks));
  launch_kernel(stream, {.blocks = dim3(blocks), .threads = kThreads}, copy_rows_kernel<ByteUnit>,
                op.src.as<const ByteUnit>(), op.dst.as<ByteUnit>(), op.src.bound, op.src.size(0), row_units, op.first,
                op.counted.as<std::int64_t>());
}

}  // namespace

void run(CudaStream& stream, const CopyRows& op) {
  const std::int64_t rows = op.src.size(0);
  const std::int64_t row_bytes = rows == 0 ? 0 : static_cast<std::int64_t>(op.src.bytes()) / rows;
  const auto fits = [&](std::uintptr_t bytes) {
    return (reinterpret_cast<std::uintptr_t>(op.src.data) | reinterpret_cast<std::uintptr_t>(op.dst.data) |
            static_cast<std::uintptr_t>(row_bytes)) %
               bytes ==
           0;
  };
  if (fits(16)) return launch_copy<uint4>(stream, op, row_bytes);
  if (fits(4)) return launch_copy<unsigned>(stream, op, row_bytes);
  launch_copy<unsigned char>(stream, op, row_bytes);
}

}  // namespace megalith
