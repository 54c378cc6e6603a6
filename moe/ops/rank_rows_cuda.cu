// Memory-bound, one pass; small ops are launch-bound. Deterministic: one thread computes each sum, in the order of
// rank_rows.h.
#include <array>

#include "core/ops/cuda_reduce.cuh"
#include "moe/ops/cuda_routes.cuh"
#include "moe/ops/rank_rows.h"
#include "moe/ops/route_rows.h"
#include "moe/ops/router.h"

namespace megalith {

namespace {

using namespace cuda;

constexpr int kThreads = kRouteThreads;
constexpr int kLoads = 8;  // packs in flight per thread
static_assert(kMaxChoices <= 32);

struct ChosenArguments {
  const std::int32_t* choice;
  std::int32_t* ranks;
  unsigned items;
  FastDivide token_items, copies;
  int choices, rank_experts, experts;
  bool all;
};

// A thread owns kRanks adjacent ranks of a token. Choices are read from memory once, then from L1.
template <int kRanks>
__global__ void __launch_bounds__(kThreads) chosen_ranks_kernel(const ChosenArguments a, const Faults faults) {
  const unsigned item = blockIdx.x * kThreads + threadIdx.x;
  if (item >= a.items) return;
  unsigned first_rank = 0;
  const std::int64_t token = a.token_items.divide(item, first_rank);
  first_rank *= kRanks;
  unsigned first_expert[kRanks];
  std::int32_t chosen[kRanks];
#pragma unroll
  for (int i = 0; i < kRanks; ++i) {
    first_expert[i] = a.copies.quotient(first_rank + i) * static_cast<unsigned>(a.rank_experts);
    chosen[i] = a.all ? static_cast<std::int32_t>(first_rank + i) : -1;
  }
  const std::int64_t slot = token * a.choices;
  for (int k = 0; k < a.choices && !a.all; ++k) {
    const std::int32_t expert = load_route(a.choice, slot + k, -1, a.experts, faults);
#pragma unroll
    for (int i = 0; i < kRanks; ++i) {
      const bool is_one = expert >= 0 && static_cast<unsigned>(expert) - first_expert[i] < a.rank_experts;
      if (is_one) chosen[i] = static_cast<std::int32_t>(first_rank + i);
    }
  }
  std::int32_t* const to = a.ranks + std::int64_t{item} * kRanks;
  if constexpr (kRanks == 4) {
    *reinterpret_cast<int4*>(to) = make_int4(chosen[0], chosen[1], chosen[2], chosen[3]);
  } else {
    *to = chosen[0];
  }
}

// Number of rows that rank `from` sends to rank `to`.
__device__ inline std::int32_t rows_sent(const std::int32_t* sends, int ranks, int from, int to, const Faults& faults) {
  const std::int64_t at = std::int64_t{from} * (ranks + 1) + to;
  const std::int32_t first = load_route(sends, at, 0, kMaxIndex, faults);
  const std::int32_t end = load_route(sends, at + 1, max(first, 0), kMaxIndex, faults);
  return first < 0 || end < 0 ? 0 : end - first;
}

struct ArrivedArguments {
  const std::int32_t* sends;
  std::int32_t *offsets, *wanted;
  int ranks, rank;
  std::int64_t room;
};

// One block; a thread owns a rank.
__global__ void __launch_bounds__(kMaxExperts) arrived_rows_kernel(const ArrivedArguments a, const Faults faults) {
  __shared__ std::int64_t of_warp[kMaxExperts / 32];
  const int s = static_cast<int>(threadIdx.x), lane = s % 32;
  std::int64_t end = s < a.ranks ? rows_sent(a.sends, a.ranks, s, a.rank, faults) : 0;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const std::int64_t below = __shfl_up_sync(kAllLanes, end, step);
    if (lane >= step) end += below;
  }
  if (lane == 31) of_warp[s / 32] = end;
  __syncthreads();
  for (int w = 0; w < s / 32; ++w) end += of_warp[w];
  if (s >= a.ranks) return;
  if (s == 0) a.offsets[0] = 0;
  a.offsets[s + 1] = static_cast<std::int32_t>(min(end, a.room));
  if (s + 1 == a.ranks) *a.wanted = static_cast<std::int32_t>(end);
}

template <class T>
struct GroupsArguments {
  const T* x;
  const std::int32_t *position, *choice;
  T* y;
  LiveRows live, tokens;
  RowThreads threads;
  int choices, columns, groups;
  std::int64_t first_expert, end_expert;
  FastDivide group_experts;
};

struct GroupedChoice {
  std::int32_t row;  // -1: none
  int group;
};

// Sorts a token's choices by group, then by order; those without a row come last. All lanes of a warp call it.
template <class T>
__device__ inline void sort_choices(GroupedChoice* sorted, const GroupsArguments<T>& a, std::int64_t token,
                                    const Faults& faults) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  GroupedChoice own{-1, a.groups};
  if (lane < a.choices) {
    const std::int64_t slot = token * a.choices + lane;
    const std::int32_t row = load_route(a.position, slot, -1, a.live.count(), faults);
    if (row >= 0) {
      const std::int32_t choice = load_route(a.choice, slot, a.first_expert, a.end_expert, faults);
      if (choice >= 0) own = {row, static_cast<int>(a.group_experts.quotient(choice - a.first_expert))};
    }
  }
  int before = 0;
  for (int other = 0; other < a.choices; ++other) {
    const int group = __shfl_sync(kAllLanes, own.group, other);
    before += group < own.group || (group == own.group && other < lane) ? 1 : 0;
  }
  if (lane < a.choices) sorted[before] = own;
  __syncwarp();
}

// kChoices: rows that a thread loads at once, kPacks packs of each.
template <int kChoices>
inline constexpr int kPacks = kChoices < kLoads ? 2 : 1;

// One to eight warps own a token; each has the token's choices in shared memory. A thread rounds a group's sum when the
// next group begins. Three blocks per multiprocessor, as unpermute_rows_kernel.
template <class T, bool kVector, bool kSeparate, int kChoices>
__global__ void __launch_bounds__(kThreads, 3)
    unpermute_groups_kernel(const GroupsArguments<T> a, const Faults faults) {
  constexpr int kWidth = kPack<T>;
  __shared__ GroupedChoice all_sorted[kThreads / 32][kMaxChoices];
  const std::int64_t token = a.threads.row();
  if (token >= a.tokens.count()) return;
  GroupedChoice* const sorted = all_sorted[threadIdx.x / 32];
  sort_choices(sorted, a, token, faults);
  T* const to = a.y + token * a.columns * (kSeparate ? a.groups : 1);
  const int step = a.threads.size() * kWidth;
  for (int first = a.threads.lane() * kWidth; first < a.columns; first += kPacks<kChoices> * step) {
    Floats<T> sum[kPacks<kChoices>], total[kPacks<kChoices>];
    int group = 0;
    const auto finish_before = [&](int next) {
      while (group < next) {
#pragma unroll
        for (int u = 0; u < kPacks<kChoices>; ++u) {
          const uint4 rounded = sum[u].packed();
          if constexpr (kSeparate) {
            store_of_row<T, kVector>(to + std::int64_t{group} * a.columns, first + u * step, a.columns, rounded);
          } else {
            total[u] += Floats<T>(rounded);
          }
          sum[u] = Floats<T>();
        }
        group = kSeparate ? group + 1 : next;  // empty groups do not change the total
      }
    };
    for (int k = 0; k < a.choices; k += kChoices) {
      GroupedChoice of[kChoices];
      uint4 raw[kPacks<kChoices>][kChoices];
#pragma unroll
      for (int j = 0; j < kChoices; ++j) of[j] = k + j < a.choices ? sorted[k + j] : GroupedChoice{-1, a.groups};
#pragma unroll
      for (int u = 0; u < kPacks<kChoices>; ++u) {
#pragma unroll
        for (int j = 0; j < kChoices; ++j) {
          const T* const from = a.x + std::int64_t{of[j].row} * a.columns;
          raw[u][j] = load_of_row<T, kVector>(from, first + u * step, of[j].row >= 0 ? a.columns : 0);
        }
      }
#pragma unroll
      for (int j = 0; j < kChoices; ++j) {  // choices without a row add 0, after all groups
        finish_before(of[j].group);
#pragma unroll
        for (int u = 0; u < kPacks<kChoices>; ++u) sum[u] += Floats<T>(raw[u][j]);
      }
    }
    finish_before(a.groups);
    if constexpr (!kSeparate) {
#pragma unroll
      for (int u = 0; u < kPacks<kChoices>; ++u)
        store_of_row<T, kVector>(to, first + u * step, a.columns, total[u].packed());
    }
  }
}

template <int kChoices>
void unpermute(CudaStream& stream, const UnpermuteGroups& op) {
  const RowThreads threads(packs_of(op.x), std::max(2, kPacks<kChoices>));
  const bool separate = op.y.size(1) != op.x.size(1);
  Variants(op.x.dtype, rows_aligned(op.x, op.y), separate).visit([&](auto type, auto is_vector, auto is_separate) {
    using T = decltype(type);
    const GroupsArguments<T> a{.x = op.x.as<const T>(),
                               .position = op.position.as<const std::int32_t>(),
                               .choice = op.choice.as<const std::int32_t>(),
                               .y = op.y.as<T>(),
                               .live = LiveRows(op.x),
                               .tokens = LiveRows(op.position),
                               .threads = threads,
                               .choices = static_cast<int>(op.position.size(1)),
                               .columns = row_length(op.x),
                               .groups = static_cast<int>(op.groups),
                               .first_expert = op.first_expert,
                               .end_expert = op.first_expert + op.groups * op.experts_per_group,
                               .group_experts = FastDivide(op.experts_per_group)};
    launch_kernel(stream, threads.grid(op.position.size(0)),
                  unpermute_groups_kernel<T, is_vector(), is_separate(), kChoices>, a, Faults(stream));
  });
}

struct ReturnedArguments {
  const float* x;
  const std::int32_t *choice, *position;
  float* d_weight;
  LiveRows live;
  unsigned slots;
  FastDivide choices, rank_experts;
  std::int64_t token_choices;
  int ranks, copies, experts;
};

// A thread owns a choice; adjacent threads read adjacent values of a row.
__global__ void __launch_bounds__(kThreads)
    sum_returned_weights_kernel(const ReturnedArguments a, const Faults faults) {
  const unsigned slot = blockIdx.x * kThreads + threadIdx.x;
  if (slot >= a.slots) return;
  unsigned k = 0;
  const std::int64_t token = a.choices.divide(slot, k), rows = a.live.count();
  const std::int32_t expert = load_route(a.choice, slot, -1, a.experts, faults);
  float sum = 0;
  if (expert >= 0) {
    const std::int64_t first = token * a.ranks + std::int64_t{a.rank_experts.quotient(expert)} * a.copies;
    for (int j = 0; j < a.copies; ++j) {
      const std::int32_t row = load_route(a.position, first + j, -1, rows, faults);
      if (row >= 0) sum += __ldg(a.x + row * a.token_choices + k);
    }
  }
  a.d_weight[slot] = sum;
}

// Two threads.
__global__ void record_room_kernel(const std::int32_t* arrived, const std::int32_t* rows, std::int32_t* needed) {
  const std::int32_t wanted = threadIdx.x == 0 ? *arrived : *rows;
  needed[threadIdx.x] = max(needed[threadIdx.x], wanted);
}

// A thread owns a rank.
__global__ void __launch_bounds__(kThreads)
    count_sent_rows_kernel(const std::int32_t* sends, std::int32_t* counts, int ranks, int rank, const Faults faults) {
  const int p = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (p < ranks) counts[p] += rows_sent(sends, ranks, rank, p, faults);
}

}  // namespace

void run(CudaStream& stream, const ChosenRanks& op) {
  const std::int64_t ranks = op.ranks.size(1);
  const bool in_fours = ranks % 4 == 0 && starts_aligned(op.ranks);
  const std::int64_t items = in_fours ? op.ranks.numel() / 4 : op.ranks.numel();
  const ChosenArguments a{.choice = op.choice.as<const std::int32_t>(),
                          .ranks = op.ranks.as<std::int32_t>(),
                          .items = static_cast<unsigned>(items),
                          .token_items = FastDivide(in_fours ? ranks / 4 : ranks),
                          .copies = FastDivide(op.copies),
                          .choices = static_cast<int>(op.choice.size(1)),
                          .rank_experts = static_cast<int>(op.experts_per_rank),
                          .experts = static_cast<int>(ranks / op.copies * op.experts_per_rank),
                          .all = op.all};
  const Grid grid{blocks_for(items, kThreads), kThreads};
  launch_kernel(stream, grid, in_fours ? chosen_ranks_kernel<4> : chosen_ranks_kernel<1>, a, Faults(stream));
}

void run(CudaStream& stream, const ArrivedRows& op) {
  const std::int64_t ranks = op.sends.size(0);
  const ArrivedArguments a{.sends = op.sends.as<const std::int32_t>(),
                           .offsets = op.offsets.as<std::int32_t>(),
                           .wanted = op.wanted.as<std::int32_t>(),
                           .ranks = static_cast<int>(ranks),
                           .rank = op.rank,
                           .room = op.room};
  launch_kernel(stream, {1, static_cast<unsigned>(ceil_divide(ranks, 32) * 32)}, arrived_rows_kernel, a,
                Faults(stream));
}

void run(CudaStream& stream, const UnpermuteGroups& op) {
  const std::int64_t choices = op.position.size(1);
  if (choices <= 1) return unpermute<1>(stream, op);
  if (choices <= 2) return unpermute<2>(stream, op);
  if (choices <= 4) return unpermute<4>(stream, op);
  unpermute<8>(stream, op);
}

void run(CudaStream& stream, const SumReturnedWeights& op) {
  const std::int64_t slots = op.choice.numel(), ranks = op.position.size(1);
  const ReturnedArguments a{.x = op.x.as<const float>(),
                            .choice = op.choice.as<const std::int32_t>(),
                            .position = op.position.as<const std::int32_t>(),
                            .d_weight = op.d_weight.as<float>(),
                            .live = LiveRows(op.x),
                            .slots = static_cast<unsigned>(slots),
                            .choices = FastDivide(std::max<std::int64_t>(1, op.choice.size(1))),
                            .rank_experts = FastDivide(op.experts_per_rank),
                            .token_choices = op.choice.size(1),
                            .ranks = static_cast<int>(ranks),
                            .copies = static_cast<int>(op.copies),
                            .experts = static_cast<int>(ranks / op.copies * op.experts_per_rank)};
  launch_kernel(stream, {blocks_for(slots, kThreads), kThreads}, sum_returned_weights_kernel, a, Faults(stream));
}

void run(CudaStream& stream, const RecordRoom& op) {
  launch_kernel(stream, {1, 2}, record_room_kernel, op.arrived.as<const std::int32_t>(),
                op.rows.as<const std::int32_t>(), op.needed.as<std::int32_t>());
}

void run(CudaStream& stream, const CountSentRows& op) {
  const std::int64_t ranks = op.sends.size(0);
  launch_kernel(stream, {blocks_for(ranks, kThreads), kThreads}, count_sent_rows_kernel,
                op.sends.as<const std::int32_t>(), op.counts.as<std::int32_t>(), static_cast<int>(ranks), op.rank,
                Faults(stream));
}

}  // namespace megalith
