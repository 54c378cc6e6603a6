// Host code of CUDA kernels: grid sizes, dtype and alignment as template arguments, and division by numbers known ahead
// of the launch.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <type_traits>

#include "core/base/error.h"
#include "core/device/cuda/check.h"
#include "core/device/cuda_stream.h"
#include "core/ops/dispatch.h"
#include "core/tensor/tensor.h"

namespace megalith::cuda {

inline constexpr std::int64_t kMaxIndex = std::int64_t{1} << 31;  // bound of 32-bit item numbers

inline std::int64_t ceil_divide(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Returns the blocks for `items` items; at least one, so that every op enqueues something.
inline unsigned blocks_for(std::int64_t items, std::int64_t per_block) {
  const std::int64_t blocks = std::max<std::int64_t>(1, ceil_divide(items, per_block));
  require(blocks < kMaxIndex, "a CUDA grid of more than 2^31 blocks");
  return static_cast<unsigned>(blocks);
}

struct Grid {
  dim3 blocks;
  unsigned threads;        // threads of a block
  std::size_t shared = 0;  // dynamic, bytes per block
};

template <class... Parameters, class... Arguments>
void launch_kernel(CudaStream& stream, const Grid& grid, void (*kernel)(Parameters...), const Arguments&... arguments) {
  kernel<<<grid.blocks, grid.threads, grid.shared, stream.handle()>>>(arguments...);
  MEGALITH_CUDA_CHECK(cudaGetLastError());
}

// Launches a small kernel of a stream that starts kernels while their predecessors end (programmatic dependent launch).
// Each block calls wait_for_previous_grids ahead of its first read of others' writes, and of its first write.
template <class... Parameters, class... Arguments>
void launch_early(CudaStream& stream, const Grid& grid, void (*kernel)(Parameters...), const Arguments&... arguments) {
  if (!stream.starts_early()) return launch_kernel(stream, grid, kernel, arguments...);
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  // Two kernels share a multiprocessor only if they have the same split of its memory.
  attributes[1].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
  attributes[1].val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
  cudaLaunchConfig_t config{};
  config.gridDim = grid.blocks;
  config.blockDim = dim3(grid.threads);
  config.dynamicSmemBytes = grid.shared;
  config.stream = stream.handle();
  config.attrs = attributes;
  config.numAttrs = 2;
  MEGALITH_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...));
}

// For kernels that are launched early, or precede one.
__device__ inline void let_next_grid_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
__device__ inline void wait_for_previous_grids() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Always safe, also ahead of the wait: memory keeps its order.
__device__ inline void prefetch_to_l2(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }
__device__ inline void start_early() {
  let_next_grid_start();
  wait_for_previous_grids();
}

// Required ahead of the first launch with more than 48 KiB: a property of the kernel, equal for all launches.
template <auto kKernel>
void allow_shared_memory(int bytes) {
  static const cudaError_t raised = cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  MEGALITH_CUDA_CHECK(raised);
}

// Dtypes and flags as template arguments: Variants(dtype, flag).visit(f) calls f(T{}, std::bool_constant<...>{}).
template <class... Values>
class Variants {
 public:
  explicit Variants(Values... values) : values_(values...) {}

  template <class Visit, class... Fixed>
  void visit(const Visit& visitor, Fixed... fixed) const {
    if constexpr (sizeof...(Fixed) == sizeof...(Values)) {
      visitor(fixed...);
    } else {
      const auto value = std::get<sizeof...(Fixed)>(values_);
      const auto fix = [&](auto next) { visit(visitor, fixed..., next); };
      if constexpr (std::is_same_v<decltype(value), const DType>) {
        visit_float(value, fix);
      } else {
        value ? fix(std::true_type{}) : fix(std::false_type{});
      }
    }
  }

 private:
  std::tuple<Values...> values_;
};

// Calls launch(first row, rows) for pieces of the rows with less than 2^31 items, which kernels number in 32 bits.
template <class Launch>
void for_pieces(std::int64_t rows, std::int64_t items_per_row, Launch&& launch) {
  require(items_per_row < kMaxIndex, "rows of more than 2^31 items");
  const std::int64_t most = (kMaxIndex - 1) / std::max<std::int64_t>(1, items_per_row);
  for (std::int64_t first = 0; first == 0 || first < rows; first += most) launch(first, std::min(most, rows - first));
}

// A matrix with possibly strided rows, as a kernel's argument; null if absent.
struct Rows {
  void* data = nullptr;
  std::int64_t stride = 0;

  Rows() = default;
  explicit Rows(const Tensor& x) : data(x.data), stride(x ? x.stride(0) : 0) {}
  template <class T>
  __device__ T* at(std::int64_t row) const {
    return static_cast<T*>(data) + row * stride;
  }
};

// Computes n / divisor for 0 <= n < 2^31 by a multiplication. Granlund & Montgomery 1994, figure 4.1.
class FastDivide {
 public:
  FastDivide() = default;
  explicit FastDivide(std::int64_t divisor) : divisor_(static_cast<unsigned>(divisor)) {
    require(divisor >= 1 && divisor < kMaxIndex, "FastDivide: divisor out of range");
    shift_ = static_cast<unsigned>(std::bit_width(divisor_ - 1));
    multiplier_ = static_cast<unsigned>((((std::uint64_t{1} << shift_) - divisor_) << 32) / divisor_ + 1);
  }
  __device__ unsigned quotient(unsigned n) const { return (__umulhi(n, multiplier_) + n) >> shift_; }
  __device__ unsigned remainder(unsigned n) const { return n - quotient(n) * divisor_; }
  __device__ unsigned divide(unsigned n, unsigned& rest) const {
    const unsigned result = quotient(n);
    rest = n - result * divisor_;
    return result;
  }

 private:
  unsigned divisor_ = 1;
  unsigned multiplier_ = 1;
  unsigned shift_ = 0;
};

// Locates the rows of tensors with equal leading dims (up to three) and different strides.
struct RowIndexer {
  FastDivide middle, inner;
  std::int64_t rows = 0;                // total
  std::int64_t rows_per_outer = 1;      // rows per index of dim 0, which `bound` counts
  const std::int32_t* bound = nullptr;  // device; null: all rows are used

  RowIndexer() = default;
  explicit RowIndexer(const Tensor& x) : rows(x.numel() / std::max<std::int64_t>(x.size(-1), 1)), bound(x.bound) {
    const int leading = x.rank() - 1;
    for (int d = 1; d < leading; ++d) rows_per_outer *= x.size(d);
    require(rows < kMaxIndex, "more than 2^31 rows");
    if (rows == 0) return;
    if (leading >= 1) inner = FastDivide(leading == 1 ? x.size(0) : x.size(leading - 1));
    if (leading >= 2) middle = FastDivide(leading == 2 ? x.size(0) : x.size(1));
  }
  __device__ std::int64_t live() const { return bound == nullptr ? rows : *bound * rows_per_outer; }
};

struct RowPlace {
  unsigned at[3];
  __device__ RowPlace(const RowIndexer& index, unsigned row) {
    row = index.inner.divide(row, at[2]);
    at[0] = index.middle.divide(row, at[1]);
  }
};

// An absent tensor has a null address.
template <class T>
struct RowPointer {
  T* data = nullptr;
  std::int64_t strides[3] = {0, 0, 0};

  RowPointer() = default;
  explicit RowPointer(const Tensor& x) : data(x.as<T>()) {
    const int leading = x.rank() - 1;
    for (int d = 0; d < leading; ++d) strides[3 - leading + d] = x.stride(d);
  }
  __device__ T* at(const RowPlace& place) const {
    return data + place.at[0] * strides[0] + place.at[1] * strides[1] + place.at[2] * strides[2];
  }
};

}  // namespace megalith::cuda
