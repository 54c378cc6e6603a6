// How the norm kernels share rows out: a group of threads per row, each with kPacks packs of it, a fixed number of
// groups per block. Rows longer than kMaxRowPacks packs are left to slower kernels.
#pragma once

#include "core/ops/cuda_launch.cuh"
#include "core/ops/cuda_pack.cuh"
#include "core/ops/cuda_reduce.cuh"

namespace megalith::cuda {

inline constexpr int kMaxGroup = 512;
inline constexpr int kNormThreads = 256;  // of a block, where groups are smaller
inline constexpr std::int64_t kMaxRowPacks = 4 * kMaxGroup;

struct RowTiling {
  int packs;    // per thread
  int group;    // threads of a row: a power of two up to 32, or whole warps
  int groups;   // rows a block works on at a time
  bool vector;  // whole packs only
};

// Rows of at most 96 packs: a warp, or less.
inline RowTiling tile_short_rows(std::int64_t row_packs, bool vector) {
  RowTiling tiling{.packs = static_cast<int>(ceil_divide(row_packs, 32)), .group = 32, .groups = 1, .vector = vector};
  while (row_packs <= 16 && tiling.group / 2 >= row_packs && tiling.group > 1) tiling.group /= 2;
  tiling.groups = kNormThreads / tiling.group;
  return tiling;
}

// `packs` a thread, in whole warps.
inline RowTiling tile_long_rows(std::int64_t row_packs, int packs, int block_threads, bool vector) {
  const int group = static_cast<int>(ceil_divide(row_packs, 32 * packs) * 32);
  return {.packs = packs, .group = group, .groups = std::max(1, block_threads / group), .vector = vector};
}

inline RowTiling tile_forward(std::int64_t row_packs, bool vector) {
  if (row_packs <= 96) return tile_short_rows(row_packs, vector);
  return tile_long_rows(row_packs, row_packs > 128 && row_packs <= 224 ? 7 : 4, kNormThreads, vector);
}

template <class Visit>
void visit_packs(int packs, Visit&& visit) {
  switch (packs) {
    case 1: return visit(std::integral_constant<int, 1>{});
    case 2: return visit(std::integral_constant<int, 2>{});
    case 3: return visit(std::integral_constant<int, 3>{});
    case 4: return visit(std::integral_constant<int, 4>{});
    default: return visit(std::integral_constant<int, 7>{});
  }
}

// Sums over the threads of a row. `shared` is [2][16 warps]; `turn` alternates, so that one barrier a sum is enough.
// With groups of more than a warp all threads of the block must take part.
struct GroupSum {
  int group;
  float (*shared)[16];
  int turn = 0;

  __device__ void operator()(float& x) {
    if (group < 32) {
      x = warp_sum(x, group);
      return;
    }
    x = warp_sum(x);
    if (group == 32) return;
    const int warp = static_cast<int>(threadIdx.x) / 32, warps = group / 32;
    if (threadIdx.x % 32 == 0) shared[turn][warp] = x;
    const int first = warp / warps * warps;
    asm volatile("bar.sync %0, %1;" ::"r"(1 + first / warps), "r"(group) : "memory");
    x = shared[turn][first];
    for (int w = 1; w < warps; ++w) x += shared[turn][first + w];
    turn ^= 1;
  }
};

// Each of kCount sums over the lanes of a warp, in fewer steps than one by one: the c-th in lanes c * 32 / kCount and
// the following ones. kCount is a power of two.
template <int kCount>
__device__ inline float spread_sum(float (&x)[kCount]) {
#pragma unroll
  for (int half = kCount / 2, step = 16; half > 0; half /= 2, step /= 2) {
    const bool upper = (threadIdx.x & static_cast<unsigned>(step)) != 0;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const float kept = upper ? x[i + half] : x[i], sent = upper ? x[i] : x[i + half];
      x[i] = kept + __shfl_xor_sync(kAllLanes, sent, step);
    }
  }
#pragma unroll
  for (int step = 16 / kCount; step > 0; step /= 2) x[0] += __shfl_xor_sync(kAllLanes, x[0], step);
  return x[0];
}

// As GroupSum, kCount sums at once; `shared` is [2][16 warps][kCount].
template <int kCount>
struct GroupSums {
  int group;
  float (*shared)[16][kCount];
  int turn = 0;

  __device__ void operator()(float (&x)[kCount]) {
    constexpr int kSpread = 32 / kCount;
    if (group < 32) {
#pragma unroll
      for (int c = 0; c < kCount; ++c) x[c] = warp_sum(x[c], group);
      return;
    }
    float sum = spread_sum(x);
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    if (group > 32) {
      const int warps = group / 32, first = warp / warps * warps;
      if (lane % kSpread == 0) shared[turn][warp][lane / kSpread] = sum;
      asm volatile("bar.sync %0, %1;" ::"r"(1 + first / warps), "r"(group) : "memory");
      sum = 0;
      for (int w = lane / kCount; w < warps; w += kSpread) sum += shared[turn][first + w][lane % kCount];
#pragma unroll
      for (int step = 16; step >= kCount; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
      turn ^= 1;
    }
#pragma unroll
    for (int c = 0; c < kCount; ++c) x[c] = __shfl_sync(kAllLanes, sum, group > 32 ? c : c * kSpread);
  }
};

}  // namespace megalith::cuda
