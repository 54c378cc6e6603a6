// Two latency-bound kernels. In the first, a block owns an expert. It reads the weights of its rows four times and
// selects eight bits of the limit's key per pass. A last pass finds the last row with this key. Atomics only count, so
// results are deterministic. In the second, a thread owns a choice.
#include <cuda_runtime_api.h>

#include "core/device/cuda/fault.cuh"
#include "core/ops/cuda_launch.cuh"
#include "core/ops/cuda_reduce.cuh"
#include "core/ops/data_faults.h"
#include "moe/ops/expert_capacity.h"

namespace megalith {

namespace {

using namespace cuda;

constexpr int kThreads = 1024;
constexpr int kDigits = 256;
constexpr std::int32_t kLastRow = 0x7FFFFFFF;

// Key with the order of the weights.
__device__ inline std::uint32_t key_of(const float* weight, std::int64_t row) {
  if (weight == nullptr) return 0;
  const std::uint32_t bits = __float_as_uint(weight[row]);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

struct Digit {
  std::uint32_t value;
  int left;  // rows with this digit that stay
};

// Finds the digit of the `left`-th highest counted key. Runs in one warp; a lane owns eight digits, descending.
__device__ inline void find_digit(const int* count, int left, Digit* found) {
  constexpr int kOwn = kDigits / 32;
  const int lane = static_cast<int>(threadIdx.x), highest = kDigits - 1 - lane * kOwn;
  int own = 0;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) own += count[highest - i];
  int before = own;  // count of this lane and the lanes with higher digits
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(kAllLanes, before, step);
    if (lane >= step) before += other;
  }
  if (before < left || before - own >= left) return;
  left -= before - own;
  int digit = highest;
  for (; count[digit] < left; --digit) left -= count[digit];
  *found = {static_cast<std::uint32_t>(digit), left};
}

// Returns the `left`-th row with `key` to all threads of the block.
__device__ inline std::int32_t find_row(const float* weight, std::int32_t first, std::int32_t end, std::uint32_t key,
                                        int left) {
  __shared__ int of_warp[kThreads / 32];
  __shared__ std::int32_t found;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  for (std::int64_t begin = first;; begin += kThreads) {
    const std::int64_t row = begin + thread;
    const bool is_one = row < end && key_of(weight, row) == key;
    const unsigned ones = __ballot_sync(kAllLanes, is_one);
    if (lane == 0) of_warp[thread / 32] = __popc(ones);
    const int all = __syncthreads_count(is_one);
    if (all >= left || begin + kThreads >= end) {
      int number = __popc(ones & ((2u << lane) - 1));  // ordinal of this row, from 1
      for (int w = 0; w < thread / 32; ++w) number += of_warp[w];
      if (is_one && number == left) found = static_cast<std::int32_t>(row);
      break;
    }
    left -= all;
    __syncthreads();
  }
  __syncthreads();
  return found;
}

__global__ void __launch_bounds__(kThreads) limit_expert_rows_kernel(const std::int32_t* offsets, const float* weight,
                                                                     std::int32_t rows, int capacity, RowLimit* limit) {
  __shared__ int count[kDigits];
  __shared__ Digit digit;
  const int thread = static_cast<int>(threadIdx.x);
  const std::int32_t first = max(0, min(offsets[blockIdx.x], rows)), end = max(0, min(offsets[blockIdx.x + 1], rows));
  RowLimit own{0, kLastRow};
  if (end - first > capacity && weight == nullptr) own.last_row = first + capacity - 1;
  if (end - first > capacity && weight != nullptr) {
    std::uint32_t known = 0;
    if (thread == 0) digit.left = capacity;
    for (int shift = 24; shift >= 0; shift -= 8) {
      if (thread < kDigits) count[thread] = 0;
      __syncthreads();
      const int left = digit.left;
      for (std::int64_t row = std::int64_t{first} + thread; row < end; row += kThreads) {
        const std::uint32_t key = key_of(weight, row);
        if ((key & known) == own.key) atomicAdd(&count[key >> shift & (kDigits - 1)], 1);
      }
      __syncthreads();
      if (thread < 32) find_digit(count, left, &digit);
      __syncthreads();
      own.key |= digit.value << shift;
      known |= (kDigits - 1u) << shift;
    }
    own.last_row = find_row(weight, first, end, own.key, digit.left);
  }
  if (thread == 0) limit[blockIdx.x] = own;
}

__global__ void __launch_bounds__(kThreads)
    limit_expert_rows_drop_kernel(const std::int32_t* choice, const std::int32_t* position, const float* weight,
                                  const RowLimit* limit, std::int32_t* kept, std::int64_t slots, int experts,
                                  CudaFault* fault, CudaFault::Raise raise) {
  const std::int64_t slot = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (slot >= slots) return;
  std::int32_t expert = choice[slot];
  if (expert < -1 || expert >= experts) {
    report_fault(fault, raise, slot, expert, -1, experts);
    expert = -1;
  }
  if (expert >= 0) {
    const std::int32_t row = position[slot];
    if (row < 0 || row >= slots) {
      report_fault(fault, raise, slot, row, 0, slots);
      expert = -1;
    } else {
      const std::uint32_t key = key_of(weight, row);
      const RowLimit of = limit[expert];
      if (key < of.key || (key == of.key && row > of.last_row)) expert = -1;
    }
  }
  kept[slot] = expert;
}

}  // namespace

void run(CudaStream& stream, const LimitExpertRows& op) {
  const std::int64_t slots = op.choice.numel(), experts = op.offsets.numel() - 1;
  if (slots == 0) return;
  auto* const limit = op.workspace.as<RowLimit>();
  const auto* const weight = op.row_weight.as<const float>();
  launch_kernel(stream, {blocks_for(experts, 1), kThreads}, limit_expert_rows_kernel,
                op.offsets.as<const std::int32_t>(), weight, static_cast<std::int32_t>(slots),
                static_cast<int>(op.capacity), limit);
  launch_kernel(stream, {blocks_for(slots, kThreads), kThreads}, limit_expert_rows_drop_kernel,
                op.choice.as<const std::int32_t>(), op.position.as<const std::int32_t>(), weight,
                static_cast<const RowLimit*>(limit), op.kept.as<std::int32_t>(), slots, static_cast<int>(experts),
                stream.fault(), CudaFault::Raise{raise_bad_route});
}

}  // namespace megalith
