// Dynamic persistent tile scheduler of Hopper's grouped GEMMs. Blocks take tile indices from a counter in global
// memory, and derive each tile's expert and position from the offsets.
#pragma once

#include "moe/ops/grouped_gemm/grouped_gemm_hopper.cuh"

namespace megalith::cuda::hopper {

// Queue of the block's tile indices, ascending, from the thread that takes them to all threads.
template <int kStages>
struct TileQueue {
  static constexpr int kMaxLag = kStages + 2;  // maximum lag of a reader: one tile per stage, and two in the epilogue
  static constexpr int kSize = 8;
  static_assert(kSize > kMaxLag);
  int tile[kSize];
  std::uint64_t full_barriers[kSize];

  __device__ void init() {
    for (std::uint64_t& barrier : full_barriers) mbarrier_init(shared_address(&barrier), 1);
  }
};

// Takes tiles for the block. The counter is shared by all blocks, so a block that starts late takes fewer tiles. All
// threads may call it; only the block's first thread acts.
template <int kStages>
class TileQueueWriter {
 public:
  // `tile_counter` is zero at kernel start.
  __device__ TileQueueWriter(int* tile_counter, TileQueue<kStages>& queue)
      : tile_counter_(tile_counter), queue_(queue) {
    take();
  }
  // Called once per k-block of a tile. Takes the next tile while the last stages of the current tile are filled. This
  // is late enough that all blocks end nearly together, and early enough to hide the atomic's latency.
  __device__ void prefetch(int k_block, int k_blocks) {
    if (k_block == max(0, k_blocks - kPrefetchStages)) take();
  }
  // Pushes the tile that was taken last.
  __device__ void push() {
    if (threadIdx.x != 0) return;
    const unsigned at = pushed_++ % queue_.kSize;
    queue_.tile[at] = taken_;
    mbarrier_arrive(shared_address(&queue_.full_barriers[at]));
  }

 private:
  static constexpr int kPrefetchStages = 4;  // filling these takes longer than the atomic
  __device__ void take() {
    if (threadIdx.x == 0) taken_ = atomicAdd(tile_counter_, 1);
  }

  int* tile_counter_;
  TileQueue<kStages>& queue_;
  unsigned pushed_ = 0;
  int taken_ = 0;
};

template <int kStages>
class TileQueueReader {
 public:
  __device__ explicit TileQueueReader(const TileQueue<kStages>& queue) : queue_(queue) {}
  __device__ int pop() {
    const unsigned at = popped_ % queue_.kSize;
    mbarrier_wait(shared_address(&queue_.full_barriers[at]), popped_ / queue_.kSize & 1);
    ++popped_;
    return queue_.tile[at];
  }

 private:
  const TileQueue<kStages>& queue_;
  unsigned popped_ = 0;
};

// For each expert, the sum of tiles_of(rows) over earlier experts; computed by the block's first warp.
template <class TilesOf>
__device__ inline void sum_tiles(int* before, const RoutedExperts& experts, const TilesOf& tiles_of) {
  const int lane = static_cast<int>(threadIdx.x);
  int sum = 0;
  for (int first = 0; first < experts.count; first += 32) {
    const int e = first + lane;
    int tiles = e < experts.count ? tiles_of(max(0, experts.before(e + 1) - experts.before(e))) : 0;
    for (int step = 1; step < 32; step *= 2) {
      const int below = __shfl_up_sync(~0u, tiles, step);
      if (lane >= step) tiles += below;
    }
    if (e < experts.count) before[e + 1] = sum + tiles;
    sum += __shfl_sync(~0u, tiles, 31);
  }
  if (lane == 0) before[0] = 0;
}

// Tiles of M in a raster group, for L2 reuse. The 132 tiles that an H200 computes at once are then 12 by 11, nearly
// square in both operands.
inline constexpr int kRasterGroup = 12;

// Position of a tile among an expert's m_tiles by n_tiles: groups of kRasterGroup tiles of M in order, and M first
// within a group.
class RasterPlace {
 public:
  RasterPlace() = default;
  __device__ RasterPlace(int tile, int m_tiles, int n_tiles) {
    group_ = tile / (kRasterGroup * n_tiles);
    in_group_ = tile - group_ * kRasterGroup * n_tiles;
    height_ = min(kRasterGroup, m_tiles - group_ * kRasterGroup);
    n = in_group_ / height_;
  }
  __device__ int m() const { return group_ * kRasterGroup + in_group_ - n * height_; }
  int n;

 private:
  int group_, in_group_, height_;
};

}  // namespace megalith::cuda::hopper
