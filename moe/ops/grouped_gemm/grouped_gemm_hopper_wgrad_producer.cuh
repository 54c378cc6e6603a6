// Arguments, schedules, shared memory, tile scheduler and producer of the K-grouped GEMM
// (grouped_gemm_hopper_wgrad.cuh). An expert's rows are the K of its matrix.
#pragma once

#include "moe/ops/grouped_gemm/grouped_gemm_hopper_scheduler.cuh"

namespace megalith::cuda::hopper {

struct WgradArguments {
  CUtensorMap a, b;           // boxes of 64 columns by 64 rows
  CUtensorMap c_map, c2_map;  // fp32; dims matrix, row, column; boxes of 32 columns by 64 rows
  RoutedExperts experts;
  const int* index;
  const Bf16* a_rows;  // if a is gathered
  std::int64_t a_stride;
  void *c, *c2;
  int a_columns, b_columns;  // of one C
  bool adds;                 // otherwise overwrites C
  int* tile_counter;
  int pair;             // 1: the rows of C, then those of c2, are the columns of the operand that has them
  GatherLimits limits;  // for a gathered a
};

inline constexpr int kWgradThreads = (1 + kConsumers) * kWarpgroupThreads;

// Both consumer warpgroups multiply one tile, half of its rows each.
struct Cooperative {
  static constexpr int kConsumersOfTile = 2;
  static constexpr int kBlockN = 256, kStages = 3;
  // Named barriers: one for both consumers, and one for each; 0 is __syncthreads.
  static constexpr int kTileBarrier = 1, kWarpgroupBarrier = 2;
};
// Each consumer warpgroup has separate tiles, and multiplies while the other adds to C. Its accumulators cover all 128
// rows, so registers suffice for 192 columns.
struct PingPong {
  static constexpr int kConsumersOfTile = 1;
  static constexpr int kBlockN = 192, kStages = 4;
  static constexpr int kTileBarrier = 1, kWarpgroupBarrier = 1;  // a tile has one consumer warpgroup
};
template <class Schedule>
inline constexpr int kWgradStageBytesB = Schedule::kBlockN* kBlockK* static_cast<int>(sizeof(Bf16));

// Registers of a producer thread. A thread that only issues TMA needs few; a gathering thread holds row indices and
// addresses. PingPong has none to spare: 192 accumulators per thread, against 128 for Cooperative.
template <class Schedule, bool kGather>
inline constexpr int kWgradProducerRegisters = kGather&& Schedule::kConsumersOfTile == kConsumers ? 56 : 40;
template <class Schedule, bool kGather>
inline constexpr int kWgradConsumerRegisters = consumer_registers(kWgradThreads,
                                                                  kWgradProducerRegisters<Schedule, kGather>);

// Epilogue subtile: 64 x 64 fp32 values of C in shared memory, as two swizzled TMA boxes of 32 columns.
struct EpilogueSubtile {
  float boxes[2][64][32];
  __device__ float* at(int row, int column) {
    return &boxes[column / 32][row][(column % 32 / 4 ^ row % kSwizzleRows) * 4 + column % 4];
  }
};

template <class Schedule>
struct WgradSharedStorage {
  alignas(1024) unsigned char a[Schedule::kStages][kStageBytesA];
  alignas(1024) unsigned char b[Schedule::kStages][kWgradStageBytesB<Schedule>];
  alignas(1024) EpilogueSubtile subtiles[kConsumers][2];  // for each consumer warpgroup
  std::uint64_t full_barriers[Schedule::kStages], empty_barriers[Schedule::kStages];
  TileQueue<Schedule::kStages> tile_queue;
  int experts_before[kMaxExperts + 1];  // earlier experts with rows
  // PingPong:
  std::uint64_t loaded_barriers[kConsumers][2];  // C is loaded into the subtile
  std::uint64_t order_barriers[kConsumers];      // the other warpgroup found all stages of its tile full
};

static_assert(sizeof(WgradSharedStorage<Cooperative>) <= kMaxSharedBytes);
static_assert(sizeof(WgradSharedStorage<PingPong>) <= kMaxSharedBytes);

// The block's tiles, ordered by expert.
template <class Schedule, bool kTransposed_>
class WgradTileScheduler {
 public:
  static constexpr bool kTransposed = kTransposed_;
  __device__ WgradTileScheduler(const WgradArguments& p, const WgradSharedStorage<Schedule>& shared)
      : p_(p), before_(shared.experts_before), queue_(shared.tile_queue) {
    next();
  }
  __device__ void next() {
    const int a_tiles = ceil_div(p_.a_columns, kBlockM) * (kTransposed ? 1 : 1 + p_.pair);
    const int b_tiles = ceil_div(p_.b_columns, kBlockN) * (kTransposed ? 1 + p_.pair : 1);
    const int tiles = a_tiles * b_tiles, tile = queue_.pop();
    while (expert < p_.experts.count && tile >= before_[expert + 1] * tiles) ++expert;
    found = expert < p_.experts.count;
    if (!found) return;
    first_row = p_.experts.before(expert);
    rows = p_.experts.before(expert + 1) - first_row;
    const RasterPlace place(tile - before_[expert] * tiles, a_tiles, b_tiles);
    const int a_tile = place.m(), b_tile = place.n;
    const int of_one = ceil_div(kTransposed ? p_.b_columns : p_.a_columns, kTransposed ? kBlockN : kBlockM);
    second = (kTransposed ? b_tile : a_tile) >= of_one;
    a_column = (a_tile - (second && !kTransposed ? of_one : 0)) * kBlockM;
    b_column = (b_tile - (second && kTransposed ? of_one : 0)) * kBlockN;
  }
  // First columns in the operands.
  __device__ int a_first() const { return a_column + (second && !kTransposed ? p_.a_columns : 0); }
  __device__ int b_first() const { return b_column + (second && kTransposed ? p_.b_columns : 0); }

  bool found = false;  // false after the last tile
  int expert = 0;
  int first_row = 0, rows = 0;     // rows of the expert
  int a_column = 0, b_column = 0;  // in C or c2
  bool second = false;             // the tile belongs to c2

 private:
  static constexpr int kBlockN = Schedule::kBlockN;
  const WgradArguments& p_;
  const int* before_;  // earlier experts with rows
  TileQueueReader<Schedule::kStages> queue_;
};

// Runs the producer warpgroup. It also fills stages of the next tile while consumers multiply the current one.
template <class Schedule, bool kGather, bool kTransposed>
__device__ inline void run_wgrad_producer(const WgradArguments& p, WgradSharedStorage<Schedule>& shared,
                                          TileQueueWriter<Schedule::kStages>& tile_queue) {
  constexpr int kTimes = kBlockK / 8;  // rows per thread and k-block; a half-warp copies a row
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  if (!kGather && thread != 0) return;
  PipelineState<Schedule::kStages> pipeline;
  const int across = thread % 16, down = thread / 16;
  tile_queue.push();
  for (WgradTileScheduler<Schedule, kTransposed> tile(p, shared); tile.found; tile.next()) {
    const int column = tile.a_first() + across * 8;
    const bool inside = tile.a_column + across * 8 < p.a_columns;
    // Lanes 0 to 15 fetch the indices of the warp's rows 2 warp, 2 warp + 1, 2 warp + 8, ...
    const auto index_of = [&](int k_block) {
      const int row = k_block * kBlockK + 2 * warp + lane % 2 + lane / 2 * 8;
      return lane < 16 && row < tile.rows ? gathered_row(p.index, tile.first_row + row, p.limits) : -1;
    };
    int index = kGather ? index_of(0) : 0;
    const int k_blocks = ceil_div(tile.rows, kBlockK);
    for (int k_block = 0; k_block < k_blocks; ++k_block, pipeline.advance()) {
      tile_queue.prefetch(k_block, k_blocks);
      const unsigned full_barrier = shared_address(&shared.full_barriers[pipeline.stage]);
      const unsigned a = shared_address(shared.a[pipeline.stage]), b = shared_address(shared.b[pipeline.stage]);
      mbarrier_wait(shared_address(&shared.empty_barriers[pipeline.stage]), pipeline.phase ^ 1);
      if (thread == 0) {
        const int row = tile.first_row + k_block * kBlockK;
        mbarrier_arrive_expect_tx(full_barrier, kWgradStageBytesB<Schedule> + (kGather ? 0 : kStageBytesA));
#pragma unroll
        for (int i = 0; i < Schedule::kBlockN / kBoxColumns; ++i) {
          tma_load(b + i * kBoxBytes, &p.b, full_barrier, tile.b_first() + kBoxColumns * i, row);
        }
        if constexpr (!kGather) {
#pragma unroll
          for (int i = 0; i < kBlockM / kBoxColumns; ++i) {
            tma_load(a + i * kBoxBytes, &p.a, full_barrier, tile.a_first() + kBoxColumns * i, row);
          }
        }
      }
      if constexpr (kGather) {
        int from[kTimes];  // all shuffles precede the copies, since the compiler keeps the copies' order
#pragma unroll
        for (int i = 0; i < kTimes; ++i) from[i] = __shfl_sync(~0u, index, lane / 16 + 2 * i);
        if (k_block + 1 < k_blocks) index = index_of(k_block + 1);
        const unsigned to = a + across / 8 * kBoxBytes + swizzle_offset(down, across % 8);
#pragma unroll
        for (int i = 0; i < kTimes; ++i) {
          const bool live = inside && from[i] >= 0;
          cp_async_16(to + i * 8 * kSwizzleBytes, p.a_rows + (live ? from[i] * p.a_stride + column : 0), live);
        }
        cp_async_mbarrier_arrive(full_barrier);
      }
    }
    tile_queue.push();
  }
}

// Zeroes C of experts without rows, which have no tiles; one warpgroup of each block.
template <class C>
__device__ inline void clear_without_rows(const WgradArguments& p) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroupThreads, lane = thread % 32;
  const std::int64_t packs = std::int64_t{p.a_columns} * p.b_columns * static_cast<int>(sizeof(C)) / 16;
  const std::int64_t first = blockIdx.x * kWarpgroupThreads + thread, step = gridDim.x * kWarpgroupThreads;
  for (int base = 0; base < p.experts.count; base += 32) {
    const int mine = base + lane;
    const bool has_none = mine < p.experts.count && p.experts.before(mine + 1) <= p.experts.before(mine);
    for (unsigned left = __ballot_sync(kAllLanes, has_none); left != 0; left &= left - 1) {
      const std::int64_t expert = base + __ffs(static_cast<int>(left)) - 1;
      for (void* c : {p.c, p.c2}) {
        if (c == nullptr) continue;
        for (std::int64_t i = first; i < packs; i += step)
          static_cast<uint4*>(c)[expert * packs + i] = make_uint4(0, 0, 0, 0);
      }
    }
  }
}

// Zeroes the rows of a stage from `first` on, which belong to the next expert or to none. The tile's consumers call it.
// A gathered a has zeros there already.
template <class Schedule, bool kGather>
__device__ inline void clear_stage_rows(WgradSharedStorage<Schedule>& shared, int stage, int first) {
  constexpr int kThreads = Schedule::kConsumersOfTile * kWarpgroupThreads;
  const int thread = static_cast<int>(threadIdx.x) % kThreads, packs = (kBlockK - first) * 8;
  const auto clear = [&](unsigned char* box) {
    auto* rows = reinterpret_cast<uint4*>(box + first * kSwizzleBytes);
    for (int i = thread; i < packs; i += kThreads) rows[i] = make_uint4(0, 0, 0, 0);
  };
  for (int box = 0; !kGather && box < kBlockM / kBoxColumns; ++box) clear(shared.a[stage] + box * kBoxBytes);
  for (int box = 0; box < Schedule::kBlockN / kBoxColumns; ++box) clear(shared.b[stage] + box * kBoxBytes);
  fence_proxy_async();
}

}  // namespace megalith::cuda::hopper
