// Index of a gathered operand. Builds with assertions (without NDEBUG) check each index that a kernel reads. Release
// builds trust indices, at no cost.
#pragma once

#include <cstdint>

#include "core/device/cuda/fault.cuh"
#include "core/ops/data_faults.h"
#include "core/tensor/tensor.h"

namespace megalith::cuda {

#ifdef NDEBUG
inline constexpr bool kChecksIndices = false;
#else
inline constexpr bool kChecksIndices = true;
#endif

// Limits that indices are checked against. This struct is the last kernel argument in all builds.
struct GatherLimits {
  int rows = 0;  // of the gathered operand
  CudaFault* fault = nullptr;
  CudaFault::Raise raise = raise_bad_route;
};

inline GatherLimits gather_limits(CudaStream& stream, const Tensor& x) {
  return {.rows = static_cast<int>(x.size(0)), .fault = stream.fault()};
}

// Row index[r] of the operand. A checked build reports an index out of range, and reads row 0 instead.
__device__ inline int gathered_row(const std::int32_t* index, int r, const GatherLimits& limits) {
  const int row = index[r];
  if constexpr (kChecksIndices) {
    if (row < 0 || row >= limits.rows) {
      report_fault(limits.fault, limits.raise, r, row, 0, limits.rows);
      return 0;
    }
  }
  return row;
}

// True if index[first] to index[first + count - 1] are in range; a checked build reports an invalid index. Each thread
// reads all of them, so all threads of a block get equal results.
__device__ inline bool are_rows(const std::int32_t* index, int first, int count, const GatherLimits& limits) {
  if constexpr (kChecksIndices) {
    for (int r = first; r < first + count; ++r) {
      if (index[r] >= 0 && index[r] < limits.rows) continue;
      report_fault(limits.fault, limits.raise, r, index[r], 0, limits.rows);
      return false;
    }
  }
  return true;
}

}  // namespace megalith::cuda
