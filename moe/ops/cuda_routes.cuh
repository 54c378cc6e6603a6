// Shared code of the kernels on routed rows: threads of a row, number of rows, tables of routes.
#pragma once

#include "core/device/cuda/fault.cuh"
#include "core/ops/cuda_launch.cuh"
#include "core/ops/cuda_pack.cuh"
#include "core/ops/data_faults.h"

namespace megalith::cuda {

inline constexpr int kRouteThreads = 256;

// Distribution of threads over rows.
struct RowThreads {
  int shift = 5;  // 2^shift threads per row

  RowThreads(std::int64_t packs_of_row, std::int64_t packs_of_thread) {
    while (1 << shift < kRouteThreads && (std::int64_t{1} << shift) * packs_of_thread < packs_of_row) ++shift;
  }
  Grid grid(std::int64_t rows) const { return {blocks_for(rows, kRouteThreads >> shift), kRouteThreads}; }
  __device__ std::int64_t row() const {
    return std::int64_t{blockIdx.x} * (kRouteThreads >> shift) + static_cast<int>(threadIdx.x >> shift);
  }
  __device__ int size() const { return 1 << shift; }
  __device__ int lane() const { return static_cast<int>(threadIdx.x) & (size() - 1); }
};

// Number of live rows: the bound, or all rows.
struct LiveRows {
  std::int64_t capacity;
  const std::int32_t* bound;  // on the device; null: all rows

  explicit LiveRows(const Tensor& x) : capacity(x.size(0)), bound(x.bound) {}
  LiveRows(const Tensor& x, const Tensor& offsets)
      : capacity(x.size(0)), bound(offsets.as<const std::int32_t>() + offsets.numel() - 1) {}
  __device__ std::int64_t count() const {
    return bound == nullptr ? capacity : min(static_cast<std::int64_t>(*bound), capacity);
  }
};

struct Faults {
  CudaFault* fault;
  CudaFault::Raise raise = raise_bad_route;

  explicit Faults(CudaStream& stream) : fault(stream.fault()) {}
};

// Loads entries first .. first + kCount - 1 of a table, up to `count`; -1 beyond. Reports out-of-range entries and
// returns -1 for them.
template <int kCount>
__device__ inline void load_routes(std::int32_t (&route)[kCount], const std::int32_t* table, std::int64_t first,
                                   int count, std::int64_t low, std::int64_t limit, const Faults& faults) {
  int bad = -1;
#pragma unroll
  for (int j = 0; j < kCount; ++j) route[j] = j < count ? __ldg(table + first + j) : -1;
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    if (j >= count || (route[j] >= low && route[j] < limit)) continue;
    bad = j;
    route[j] = -1;
  }
  if (bad >= 0) report_fault(faults.fault, faults.raise, first + bad, table[first + bad], low, limit);
}
__device__ inline std::int32_t load_route(const std::int32_t* table, std::int64_t i, std::int64_t low,
                                          std::int64_t limit, const Faults& faults) {
  std::int32_t route[1];
  load_routes(route, table, i, 1, low, limit, faults);
  return route[0];
}

inline int row_length(const Tensor& x) {
  require(x.size(1) < kMaxIndex / 2, "routed rows of more than 2^30 elements");
  return static_cast<int>(x.size(1));
}

inline std::int64_t packs_of(const Tensor& x) {
  return ceil_divide(x.size(1) * static_cast<std::int64_t>(size_of(x.dtype)), sizeof(uint4));
}

}  // namespace megalith::cuda
