// Arguments, traits, shared memory and tile scheduler of the M-grouped GEMMs (grouped_gemm_hopper_mainloop.cuh). Each
// expert has a range of rows of A and C, so of M.
#pragma once

#include "moe/ops/grouped_gemm/grouped_gemm_hopper_scheduler.cuh"

namespace megalith::cuda::hopper {

enum class Epilogue { kStore, kSwiglu, kSwigluBackward };

struct MGroupedArguments {
  CUtensorMap a, b, b2;  // boxes of 64 columns by 128 rows; for an MN-major b by 64 rows
  RoutedExperts experts;
  const int* index;
  const Bf16* a_rows;  // if a is gathered
  std::int64_t a_stride;
  Bf16* c;  // kStore: c; kSwiglu: h; kSwigluBackward: dh
  std::int64_t c_stride;
  Bf16* y;                  // kSwiglu and kSwigluBackward
  const Bf16* h;            // kSwigluBackward
  const float* row_weight;  // kSwiglu and kSwigluBackward
  float* partial;           // kSwigluBackward
  int columns;              // N of one matrix of b: n or F
  int depth;                // K of one matrix
  int pair;                 // 1: b2 has the other columns (K-major b), or the other depth
  int* tile_counter;
  GatherLimits limits;  // for a gathered a
};

// SwiGLU's gradient has the longest epilogue; its narrower tile leaves registers for one more epilogue warpgroup.
template <bool kGather_, Major kMajorB_, Epilogue kEpilogue_>
struct MGroupedTraits {
  static constexpr bool kGather = kGather_;   // rows of a by index with cp.async; otherwise by TMA
  static constexpr Major kMajorB = kMajorB_;  // kK: b is [E n, k]; kMn: [E k, n]
  static constexpr Epilogue kEpilogue = kEpilogue_;
  static constexpr bool kGated = kEpilogue == Epilogue::kSwiglu;  // half of the columns from b, half from b2
  static constexpr bool kWide = kEpilogue != Epilogue::kSwigluBackward;
  static constexpr int kBlockN = kWide ? 256 : 192;
  static constexpr int kStages = kWide ? 3 : 4;  // maximum that fits into shared memory with the tile of C
  static constexpr int kThreads = (kWide ? 3 : 4) * kWarpgroupThreads;
  // Non-consumer threads: producer warps first, then epilogue warps. TMA uses one producer thread; a gather copies rows
  // with all of them.
  static constexpr int kProducerThreads = 32 * (!kGather ? 1 : kWide ? 2 : 4);
  static constexpr int kEpilogueThreads = kThreads - kConsumers * kWarpgroupThreads - kProducerThreads;
  static constexpr int kStageBytesB = kBlockN * kBlockK * static_cast<int>(sizeof(Bf16));
  // Registers of a producer or epilogue thread, set by the epilogue's row of gates, ups and gradients. The rest must
  // hold the accumulators, kBlockN / 2 per thread, and addresses.
  static constexpr int kEpilogueRegisters = kWide ? 136 : 104;
  static constexpr int kConsumerRegisters = consumer_registers(kThreads, kEpilogueRegisters);
  static_assert(kConsumerRegisters >= kBlockN / 2 + 56);

  // Index of an epilogue thread. Epilogue warpgroups are on both sides of the consumers.
  __device__ static int epilogue_thread() {
    return static_cast<int>(threadIdx.x) - kProducerThreads -
           (threadIdx.x < kWarpgroupThreads ? 0 : kConsumers * kWarpgroupThreads);
  }
};

template <class Traits>
struct MGroupedSharedStorage {
  static constexpr int kStages = Traits::kStages;
  alignas(1024) unsigned char a[kStages][kStageBytesA];
  alignas(1024) unsigned char b[kStages][Traits::kStageBytesB];
  alignas(1024) unsigned char c[Traits::kBlockN / 64][kBlockM * kSwizzleBytes];  // bf16 tile, in parts of 64 columns
  std::uint64_t full_barriers[kStages], empty_barriers[kStages];
  std::uint64_t c_full_barriers[kConsumers], c_empty_barriers[kConsumers];  // for each consumer's rows of c
  TileQueue<kStages> tile_queue;
  int m_tiles_before[kMaxExperts + 1];  // tiles of M of earlier experts
};

// The block's tiles, ordered by expert.
template <class Traits>
class MGroupedTileScheduler {
 public:
  static constexpr int kWidth = Traits::kBlockN / (Traits::kGated ? 2 : 1);  // columns of one matrix of b
  __device__ MGroupedTileScheduler(const MGroupedArguments& p, const MGroupedSharedStorage<Traits>& shared)
      : before_(shared.m_tiles_before),
        experts_(p.experts),
        n_tiles_(ceil_div(p.columns, kWidth) * (Traits::kMajorB == Major::kK && !Traits::kGated ? 1 + p.pair : 1)),
        queue_(shared.tile_queue),
        n_tiles_of_b_(ceil_div(p.columns, kWidth)) {
    next();
  }
  __device__ void next() {
    found = find(queue_.pop());
    if (!found) return;
    second = Traits::kMajorB == Major::kK && n_tile_ >= n_tiles_of_b_;
    column = (second ? n_tile_ - n_tiles_of_b_ : n_tile_) * kWidth;
  }

  bool found = false;  // false after the last tile
  int expert = 0;
  int first_row = 0, live_rows = 0;  // the tile's first row, and the expert's rows from there
  int column = 0;                    // in a matrix of b
  bool second = false;               // the matrix is b2

 private:
  __device__ bool find(int tile) {
    while (expert < experts_.count && tile >= before_[expert + 1] * n_tiles_) ++expert;
    if (expert >= experts_.count) return false;
    const int m_tiles = before_[expert + 1] - before_[expert];
    place_ = RasterPlace(tile - before_[expert] * n_tiles_, m_tiles, n_tiles_);
    n_tile_ = place_.n;
    first_row = experts_.before(expert) + place_.m() * kBlockM;
    live_rows = experts_.before(expert + 1) - first_row;
    return true;
  }

  const int* before_;  // tiles of M of earlier experts
  const RoutedExperts& experts_;
  int n_tiles_;
  int n_tile_ = 0;
  RasterPlace place_;
  TileQueueReader<Traits::kStages> queue_;
  int n_tiles_of_b_;
};

}  // namespace megalith::cuda::hopper
