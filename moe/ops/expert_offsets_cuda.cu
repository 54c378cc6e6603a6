// Two latency-bound kernels. Blocks, and warps within them, own consecutive ranges of the choices ("slots"). The first
// kernel counts each block's choices by expert. In the second, every block sums all counts to find the first row of
// each of its experts and warps. A slot gets the warp's next row of its expert, in lane order. Atomics only count, so
// the order is (expert, slot) in every run. The choices are read twice from memory, and once more from L1.
#include "core/ops/cuda_reduce.cuh"
#include "moe/ops/cuda_routes.cuh"
#include "moe/ops/route_rows.h"

namespace megalith {

namespace {

using namespace cuda;

constexpr int kThreads = 1024;
static_assert(kMaxExperts <= kThreads);
constexpr int kCounters = 8192;  // per block: one for each warp and expert
constexpr int kLoads = 2;        // loads in flight per thread

struct OffsetsArguments {
  const std::int32_t* choice;
  std::int32_t *offsets, *token, *position;
  std::int32_t* wanted;  // may be null
  std::int32_t* counts;  // [blocks, experts]
  LiveRows tokens;
  std::int64_t limit;  // choices are below this value
  int first_expert, experts;
  int room;         // row capacity
  int warp_slots;   // slots per warp of the second kernel, a multiple of 32
  int block_slots;  // slots per block
  int token_slots;  // slots per token
  FastDivide choices;
};

struct SlotRange {
  std::int64_t first, end;
  __device__ SlotRange(const OffsetsArguments& a, std::int64_t number, int each)
      : first(number * each), end(min(first + each, a.tokens.count() * a.token_slots)) {}
};

__device__ inline bool is_expert(std::int32_t expert, int experts) {
  return static_cast<unsigned>(expert) < static_cast<unsigned>(experts);
}

// Local index of a chosen expert; out of range for experts without rows here.
__device__ inline int expert_of(const OffsetsArguments& a, std::int32_t choice) {
  return static_cast<int>(static_cast<unsigned>(choice) - static_cast<unsigned>(a.first_expert));
}

// Loads the choices of slots first, first + step, ...; -1 from `end` on.
__device__ inline void load_choices(std::int32_t (&choice)[kLoads], const std::int32_t* from, std::int64_t first,
                                    int step, std::int64_t end) {
#pragma unroll
  for (int u = 0; u < kLoads; ++u) choice[u] = first + u * step < end ? __ldg(from + first + u * step) : -1;
}

__global__ void __launch_bounds__(kThreads)
    expert_offsets_count_kernel(const OffsetsArguments a, CudaFault* fault, CudaFault::Raise raise) {
  __shared__ int counts[kMaxExperts];
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < a.experts) counts[thread] = 0;
  __syncthreads();
  const SlotRange own(a, blockIdx.x, a.block_slots);
  for (std::int64_t slot = own.first + thread; slot < own.end; slot += kLoads * kThreads) {
    std::int32_t choice[kLoads];
    load_choices(choice, a.choice, slot, kThreads, own.end);
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      const int expert = expert_of(a, choice[u]);
      if (is_expert(expert, a.experts)) {
        atomicAdd(&counts[expert], 1);
      } else if (choice[u] < -1 || choice[u] >= a.limit) {
        report_fault(fault, raise, slot + u * kThreads, choice[u], -1, a.limit);
      }
    }
  }
  __syncthreads();
  if (thread < a.experts) a.counts[std::int64_t{blockIdx.x} * a.experts + thread] = counts[thread];
}

// Computes base[e], the first row of this block's choices of expert e. Block 0 writes the offsets. `total` is scratch.
__device__ inline void find_bases(const OffsetsArguments& a, int (&base)[kMaxExperts], int (&total)[kMaxExperts]) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int blocks = static_cast<int>(gridDim.x), experts = a.experts;
  // A thread sums counts with a distance of `items`; these belong to one expert, in every n-th block.
  const int items = max(1, min(threads / experts, blocks)) * experts;
  const int mine = static_cast<int>(blockIdx.x) * experts, count = blocks * experts;
  for (int i = thread; i < items; i += threads) {
    int before = 0, all = 0;
#pragma unroll 8
    for (int k = i; k < count; k += items) {
      const int counted = __ldg(a.counts + k);
      all += counted;
      before += k < mine ? counted : 0;
    }
    base[i] = before;
    total[i] = all;
  }
  __syncthreads();
  for (int e = thread; e < experts; e += threads) {
    int before = 0, all = 0;
    for (int i = e; i < items; i += experts) {
      before += base[i];
      all += total[i];
    }
    base[e] = before;  // no other thread reads this entry
    total[e] = all;
  }
  __syncthreads();
  if (thread < 32) {  // a lane owns `each` adjacent experts
    const int each = (experts + 31) / 32, first = thread * each, end = min(first + each, experts);
    int sum = 0;
    for (int e = first; e < end; ++e) sum += total[e];
    int row = sum;
    for (int step = 1; step < 32; step *= 2) {
      const int below = __shfl_up_sync(kAllLanes, row, step);
      if (thread >= step) row += below;
    }
    const bool writes = blockIdx.x == 0;
    if (writes && thread == 31) {
      a.offsets[experts] = min(row, a.room);
      if (a.wanted != nullptr) *a.wanted = row;
    }
    row -= sum;
    for (int e = first; e < end; ++e) {
      if (writes) a.offsets[e] = min(row, a.room);
      base[e] += row;
      row += total[e];
    }
  }
  __syncthreads();
}

__global__ void __launch_bounds__(kThreads) expert_offsets_kernel(const OffsetsArguments a) {
  __shared__ int counters[kCounters];  // [warps, experts]: counts, then the next row of each warp
  __shared__ int base[kMaxExperts], total[kMaxExperts];
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int warps = static_cast<int>(blockDim.x / 32), experts = a.experts;
  int* const next = counters + warp * experts;
  const SlotRange own(a, std::int64_t{blockIdx.x} * warps + warp, a.warp_slots);

  for (int e = lane; e < experts; e += 32) next[e] = 0;
  __syncwarp();
  for (std::int64_t first = own.first; first < own.end; first += kLoads * 32) {
    std::int32_t choice[kLoads];
    load_choices(choice, a.choice, first + lane, 32, own.end);
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      const int expert = expert_of(a, choice[u]);
      if (is_expert(expert, experts)) atomicAdd(&next[expert], 1);
    }
  }
  find_bases(a, base, total);  // contains barriers, so all warps have counted
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += static_cast<int>(blockDim.x)) {
    int row = base[e];
#pragma unroll 8
    for (int w = 0; w < warps; ++w) {
      const int counted = counters[w * experts + e];
      counters[w * experts + e] = row;
      row += counted;
    }
  }
  __syncthreads();

  const unsigned below = (1u << lane) - 1;  // mask of lower lanes
  for (std::int64_t first = own.first; first < own.end; first += kLoads * 32) {
    std::int32_t choice[kLoads];
    load_choices(choice, a.choice, first + lane, 32, own.end);
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      const std::int64_t slot = first + u * 32 + lane;
      const int expert = expert_of(a, choice[u]);
      const bool routed = is_expert(expert, experts);
      const unsigned peers = __match_any_sync(kAllLanes, routed ? expert : -1);
      const int rank = __popc(peers & below);
      const int row = routed ? next[expert] + rank : -1;
      __syncwarp();
      if (routed && rank == 0) next[expert] = row + __popc(peers);
      __syncwarp();
      const bool has_room = row < a.room;
      if (slot < own.end) a.position[slot] = has_room ? row : -1;
      if (routed && has_room) a.token[row] = static_cast<std::int32_t>(a.choices.quotient(static_cast<unsigned>(slot)));
    }
  }
}

}  // namespace

void run(CudaStream& stream, const ExpertOffsets& op) {
  const std::int64_t slots = op.choice.numel(), experts = op.offsets.numel() - 1;
  const std::int64_t warps = experts * (kThreads / 32) <= kCounters ? kThreads / 32 : kCounters / kMaxExperts;
  const std::int64_t parts = std::clamp<std::int64_t>(ceil_divide(slots, kThreads), 1, kExpertCountBlocks);
  const std::int64_t warp_slots = std::max<std::int64_t>(1, ceil_divide(slots, parts * warps * 32)) * 32;
  const unsigned blocks = blocks_for(slots, warps * warp_slots);  // at most `parts`
  const OffsetsArguments a{.choice = op.choice.as<const std::int32_t>(),
                           .offsets = op.offsets.as<std::int32_t>(),
                           .token = op.token.as<std::int32_t>(),
                           .position = op.position.as<std::int32_t>(),
                           .wanted = op.wanted.as<std::int32_t>(),
                           .counts = op.workspace.as<std::int32_t>(),
                           .tokens = LiveRows(op.choice),
                           .limit = op.all_experts > 0 ? op.all_experts : kMaxIndex,
                           .first_expert = static_cast<int>(op.first_expert),
                           .experts = static_cast<int>(experts),
                           .room = static_cast<int>(std::min(op.token.numel(), kMaxIndex - 1)),
                           .warp_slots = static_cast<int>(warp_slots),
                           .block_slots = static_cast<int>(warps * warp_slots),
                           .token_slots = static_cast<int>(op.choice.size(1)),
                           .choices = FastDivide(std::max<std::int64_t>(1, op.choice.size(1)))};
  launch_kernel(stream, {blocks, kThreads}, expert_offsets_count_kernel, a, stream.fault(), raise_bad_route);
  launch_kernel(stream, {blocks, static_cast<unsigned>(warps * 32)}, expert_offsets_kernel, a);
}

}  // namespace megalith
