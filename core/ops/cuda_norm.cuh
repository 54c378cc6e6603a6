// How the norm kernels share rows out: a group of threads per row, each with kPacks packs of it, a fixed number of groups
// per block. Rows longer than kMaxRowPacks packs are left to slower kernels.
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

// `most_of_warp`: the longest row, in packs, that a single warp takes: 96 or 256.
inline RowTiling tile_rows(std::int64_t row_packs, std::int64_t most_of_warp, bool vector) {
  RowTiling tiling{.packs = 1, .group = 32, .groups = 1, .vector = vector};
  if (row_packs <= 16) {
    while (tiling.group / 2 >= row_packs && tiling.group > 1) tiling.group /= 2;
  } else if (row_packs <= most_of_warp) {
    tiling.packs = static_cast<int>(ceil_divide(row_packs, 32));
    if (tiling.packs > 4) tiling.packs = 8;
  } else {
    tiling.packs = row_packs <= 2 * kMaxGroup ? 2 : 4;
    tiling.group = static_cast<int>(ceil_divide(row_packs, 32 * tiling.packs) * 32);
  }
  tiling.groups = std::max(1, kNormThreads / tiling.group);
  return tiling;
}

template <class Visit>
void visit_packs(int packs, Visit&& visit) {
  switch (packs) {
    case 1: return visit(std::integral_constant<int, 1>{});
    case 2: return visit(std::integral_constant<int, 2>{});
    case 3: return visit(std::integral_constant<int, 3>{});
    case 4: return visit(std::integral_constant<int, 4>{});
    default: return visit(std::integral_constant<int, 8>{});
  }
}

// Sums over the threads of a row. `shared` is [2][16 warps][kCount] floats; `turn` alternates, so that one barrier a
// sum is enough. With groups of more than a warp all threads of the block must take part.
template <int kCount>
struct GroupSum {
  int group;
  float (*shared)[16][kCount];
  int turn = 0;

  __device__ void operator()(float (&x)[kCount]) {
#pragma unroll
    for (int c = 0; c < kCount; ++c) x[c] = warp_sum(x[c], min(group, 32));
    if (group <= 32) return;
    const int warp = static_cast<int>(threadIdx.x) / 32, warps = group / 32;
    if (threadIdx.x % 32 == 0) {
#pragma unroll
      for (int c = 0; c < kCount; ++c) shared[turn][warp][c] = x[c];
    }
    const int first = warp / warps * warps;
    asm volatile("bar.sync %0, %1;" ::"r"(1 + first / warps), "r"(group) : "memory");
#pragma unroll
    for (int c = 0; c < kCount; ++c) x[c] = shared[turn][first][c];
    for (int w = 1; w < warps; ++w) {
#pragma unroll
      for (int c = 0; c < kCount; ++c) x[c] += shared[turn][first + w][c];
    }
    turn ^= 1;
  }
};

}  // namespace megalith::cuda
