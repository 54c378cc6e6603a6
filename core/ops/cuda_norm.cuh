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

// The backward also keeps sums for each of a thread's elements: as few as lets no lanes idle.
inline RowTiling tile_backward(std::int64_t row_packs, bool vector) {
  if (row_packs <= 96) return tile_short_rows(row_packs, vector);
  if (row_packs > 192 && row_packs <= 224) return tile_long_rows(row_packs, 7, kNormThreads / 2, vector);
  return tile_long_rows(row_packs, row_packs <= 2 * kMaxGroup ? 2 : 4, kNormThreads, vector);
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

// Sums over the threads of a row. `shared` is [2][16 warps][kCount] floats; `turn` alternates, so that one barrier a
// sum is enough. With groups of more than a warp all threads of the block must take part.
template <int kCount>
struct GroupSum {
  int group;
  float (*shared)[16][kCount];
  int turn = 0;

  __device__ void operator()(float (&x)[kCount]) {
    if (group < 32) {
#pragma unroll
      for (int c = 0; c < kCount; ++c) x[c] = warp_sum(x[c], group);
      return;
    }
#pragma unroll
    for (int c = 0; c < kCount; ++c) x[c] = warp_sum(x[c]);
    if (group == 32) return;
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
