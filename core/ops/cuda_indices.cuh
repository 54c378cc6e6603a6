// Index checks ahead of an op, so that bad data leaves its outputs unchanged. One block reads all indices, reports the
// first bad one and stores a verdict that disables the op's kernels.
#pragma once

#include <limits>

#include "core/device/cuda/fault.cuh"
#include "core/ops/cuda_launch.cuh"
#include "core/ops/cuda_reduce.cuh"
#include "core/ops/data_faults.h"

namespace megalith::cuda {

struct IndexCheck {
  const std::int32_t* index = nullptr;
  std::int64_t count = 0;
  std::int64_t low = 0, limit = 0;   // low <= index < limit
  CudaFault::Raise raise = nullptr;  // called with row, index, limit

  std::int64_t positions = -1;  // start + span must not exceed them; -1: unchecked
  std::int64_t span = 0;
  const std::int32_t* start = nullptr;  // device; null: 0
  CudaFault::Raise raise_positions = raise_bad_positions;
};

inline constexpr int kCheckThreads = 1024;

// One block; latency-bound, a few microseconds.
static __global__ void __launch_bounds__(kCheckThreads)
    check_indices_kernel(const IndexCheck check, bool vector, CudaFault* fault, std::int32_t* verdict) {
  __shared__ std::int64_t shared[32];
  start_early();
  std::int64_t first_bad = check.count;
  const auto look = [&](std::int64_t row, std::int64_t index) {
    if ((index < check.low || index >= check.limit) && row < first_bad) first_bad = row;
  };
  const std::int64_t packs = vector ? check.count / 4 : 0;
#pragma unroll 4
  for (std::int64_t p = threadIdx.x; p < packs; p += kCheckThreads) {
    const int4 four = reinterpret_cast<const int4*>(check.index)[p];
    look(4 * p, four.x);
    look(4 * p + 1, four.y);
    look(4 * p + 2, four.z);
    look(4 * p + 3, four.w);
  }
  for (std::int64_t row = 4 * packs + threadIdx.x; row < check.count; row += kCheckThreads) look(row, check.index[row]);
  first_bad = block_reduce(first_bad, check.count, shared, [](auto a, auto b) { return a < b ? a : b; });
  if (threadIdx.x > 0) return;
  const std::int64_t start = check.start == nullptr ? 0 : *check.start;
  const bool bad_index = first_bad < check.count;
  const bool bad_positions = check.positions >= 0 && (start < 0 || start + check.span > check.positions);
  *verdict = bad_index || bad_positions ? 1 : 0;
  if (bad_index) {
    report_fault(fault, check.raise, first_bad, check.index[first_bad], check.limit);
  } else if (bad_positions) {
    report_fault(fault, check.raise_positions, start, start + check.span - 1, check.positions);
  }
}

// Returns the verdict, 1 for bad data, at the start of `workspace`.
inline const std::int32_t* check_indices(CudaStream& stream, const IndexCheck& check, const Tensor& workspace) {
  auto* verdict = workspace.as<std::int32_t>();
  const bool vector = reinterpret_cast<std::uintptr_t>(check.index) % sizeof(int4) == 0;
  launch_early(stream, {1, kCheckThreads}, check_indices_kernel, check, vector, stream.fault(), verdict);
  return verdict;
}

// A label below 0 ignores its token.
inline const std::int32_t* check_labels(CudaStream& stream, const Tensor& labels, std::int64_t vocabulary,
                                        const Tensor& workspace) {
  return check_indices(stream,
                       {.index = labels.as<const std::int32_t>(),
                        .count = labels.numel(),
                        .low = std::numeric_limits<std::int32_t>::min(),
                        .limit = vocabulary,
                        .raise = raise_bad_label},
                       workspace);
}

}  // namespace megalith::cuda
