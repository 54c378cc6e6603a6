// Row ranges of experts, for kernels on rows sorted by expert. Invalid offsets cannot cause out-of-bounds accesses.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/ops/cuda_reduce.cuh"

namespace megalith::cuda {

struct RoutedExperts {
  const std::int32_t* data;  // [count + 1]
  int count;
  int capacity;  // rows

  // First row of `expert`; for `expert` = count, the number of live rows.
  __device__ int before(int expert) const { return min(max(data[expert], 0), capacity); }
  __device__ int live() const { return before(count); }
};

struct ExpertTile {
  int expert, first, rows;  // rows = 0: no such tile
};

// Finds a tile by its index among all experts' tiles of up to kRows rows of one expert. All lanes of a warp call it
// together. A capacity has at most max_tiles() tiles.
template <int kRows>
__device__ inline ExpertTile find_tile(const RoutedExperts& offsets, unsigned tile) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  unsigned before = 0;
  for (int base = 0; base < offsets.count; base += 32) {
    const int expert = base + lane;
    const int first = expert < offsets.count ? offsets.before(expert) : 0;
    const int end = expert < offsets.count ? max(first, offsets.before(expert + 1)) : 0;
    const unsigned tiles = static_cast<unsigned>(end - first + kRows - 1) / kRows;
    unsigned after = tiles;
    for (int step = 1; step < 32; step *= 2) {
      const unsigned other = __shfl_up_sync(kAllLanes, after, step);
      if (lane >= step) after += other;
    }
    after += before;
    const unsigned found = __ballot_sync(kAllLanes, after > tile);
    if (found != 0) {
      const int owner = __ffs(static_cast<int>(found)) - 1;
      const unsigned start = __shfl_sync(kAllLanes, after - tiles, owner);
      const int row = __shfl_sync(kAllLanes, first, owner) + static_cast<int>(tile - start) * kRows;
      return {base + owner, row, min(kRows, __shfl_sync(kAllLanes, end, owner) - row)};
    }
    before = __shfl_sync(kAllLanes, after, 31);
  }
  return {0, 0, 0};
}

inline std::int64_t max_tiles(std::int64_t capacity, std::int64_t experts, int rows) {
  return capacity / rows + experts;
}

}  // namespace megalith::cuda
