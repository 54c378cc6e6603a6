// K-grouped GEMM, C_e += sum of a_r^T b_r over the expert's rows, or its transpose: tiles of 128 columns of a by 256 or
// 192 of b, whose K is the expert's rows. Only a may be gathered, by cp.async, which costs more than TMA. One block
// processes all rows of a tile and adds the tile to C once. Rows are in ascending order, so both schedules are
// deterministic and produce equal bits. Without accumulation C is not read.
//   Cooperative: a tile ends with TMA additions in L2, which are slower than memory and overlap no wgmma. For many rows
//   per expert, limited by power: it has the least traffic of L2 and shared memory.
//   PingPong: C is loaded and stored while the other warpgroup multiplies. For few rows per expert, limited by memory.
#pragma once

#include <type_traits>

#include "moe/ops/grouped_gemm/grouped_gemm_hopper_wgrad_epilogue.cuh"

namespace megalith::cuda::hopper {

// Runs a Cooperative consumer warpgroup: 64 rows of each tile, and their epilogue.
template <bool kGather, bool kTransposed, class C>
__device__ inline void run_cooperative_consumer(const WgradArguments& p, WgradSharedStorage<Cooperative>& shared) {
  constexpr int kBlockN = Cooperative::kBlockN;
  const int warp = static_cast<int>(threadIdx.x) / 32 - 4, consumer = warp / 4,
            lane = static_cast<int>(threadIdx.x) % 32;
  constexpr bool kUsesTma = std::is_same_v<C, float>;  // bf16 is added by ordinary loads and stores
  PipelineState<Cooperative::kStages> pipeline;
  for (WgradTileScheduler<Cooperative, kTransposed> tile(p, shared); tile.found; tile.next()) {
    float accumulators[1][kBlockN / 2];
    const int k_blocks = ceil_div(tile.rows, kBlockK);
    unsigned unreleased = 0;
    for (int k_block = 0; k_block < k_blocks; ++k_block, pipeline.advance()) {
      mbarrier_wait(shared_address(&shared.full_barriers[pipeline.stage]), pipeline.phase);
      const int live = tile.rows - k_block * kBlockK;
      if (live < kBlockK) {
        clear_stage_rows<Cooperative, kGather>(shared, pipeline.stage, live);
        named_barrier_sync(Cooperative::kTileBarrier, kConsumers * kWarpgroupThreads);
      } else if (kGather) {
        fence_proxy_async();
      }
      const auto a =
          wgmma_descriptor<Major::kMn>(shared_address(shared.a[pipeline.stage]) + consumer * kBoxBytes, kBoxBytes);
      const auto b = wgmma_descriptor<Major::kMn>(shared_address(shared.b[pipeline.stage]), kBoxBytes);
      mainloop_step<Major::kMn, Major::kMn>(accumulators, a, b, k_block == 0, lane,
                                            shared_address(&shared.empty_barriers[pipeline.stage]), unreleased);
    }
    mainloop_end(accumulators, lane, unreleased);
    const int row = warp % 4 * 16 + lane / 4, column = 2 * (lane % 4);
    const bool issues_tma = threadIdx.x % kWarpgroupThreads == 0;
#pragma unroll
    for (int c = 0; c < kBlockN / 64; ++c) {
      EpilogueSubtile& subtile = shared.subtiles[consumer][c % 2];
      if (kUsesTma && issues_tma) bulk_wait_group_read<1>();
      named_barrier_sync(Cooperative::kWarpgroupBarrier + consumer, kWarpgroupThreads);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float* v = accumulators[0] + 4 * (8 * c + j);
        if constexpr (kTransposed) {
          *subtile.at(8 * j + column, row) = v[0];
          *subtile.at(8 * j + column + 1, row) = v[1];
          *subtile.at(8 * j + column, row + 8) = v[2];
          *subtile.at(8 * j + column + 1, row + 8) = v[3];
        } else {
          *reinterpret_cast<float2*>(subtile.at(row, 8 * j + column)) = make_float2(v[0], v[1]);
          *reinterpret_cast<float2*>(subtile.at(row + 8, 8 * j + column)) = make_float2(v[2], v[3]);
        }
      }
      if (kUsesTma) fence_proxy_async();
      named_barrier_sync(Cooperative::kWarpgroupBarrier + consumer, kWarpgroupThreads);
      if constexpr (kUsesTma) {
        if (!issues_tma) continue;
        for_boxes(p, tile, consumer * kWgmmaM, 64 * c, [&](const CUtensorMap* map, int box, int at_column, int at_row) {
          const unsigned from = shared_address(subtile.boxes[box]);
          if (p.adds) {
            tma_reduce_add(map, from, at_column, at_row, tile.expert);
          } else {
            tma_store(map, from, at_column, at_row, tile.expert);
          }
        });
        bulk_commit_group();
      } else {
        const int a_first = tile.a_column + consumer * kWgmmaM, b_first = tile.b_column + 64 * c;
        const int first_row = kTransposed ? b_first : a_first, first_column = kTransposed ? a_first : b_first;
        const int rows = kTransposed ? p.b_columns : p.a_columns, columns = kTransposed ? p.a_columns : p.b_columns;
        C* to = static_cast<C*>(tile.second ? p.c2 : p.c) + (std::int64_t{tile.expert} * rows + first_row) * columns;
        store_subtile(to + first_column, columns, subtile, rows - first_row, columns - first_column, p.adds);
      }
    }
  }
  if (kUsesTma) bulk_wait_group<0>();
}

// Runs a PingPong consumer warpgroup: every other tile, for fp32 C. With accumulation, the first subtiles of C are
// loaded while the tile is multiplied.
template <bool kGather, bool kTransposed>
__device__ inline void run_ping_pong_consumer(const WgradArguments& p, WgradSharedStorage<PingPong>& shared) {
  constexpr int kBlockN = PingPong::kBlockN, kSubtiles = kBlockM / 64 * kBlockN / 64;
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroupThreads, lane = thread % 32;
  const int consumer = static_cast<int>(threadIdx.x) / kWarpgroupThreads - 1, row = thread / 32 * 16 + lane / 4;
  const int warpgroup_barrier = PingPong::kWarpgroupBarrier + consumer;
  EpilogueSubtile(&buffers)[2] = shared.subtiles[consumer];
  const unsigned to = shared_address(kTransposed ? buffers->at(2 * (lane % 4), row) : buffers->at(row, 2 * (lane % 4)));
  const unsigned order_barrier = shared_address(&shared.order_barriers[consumer]);
  const unsigned other_order_barrier = shared_address(&shared.order_barriers[consumer ^ 1]);
  PipelineState<PingPong::kStages> pipeline;
  // Warpgroup 0 owns the first turn, so the first phase of its order barrier counts as complete.
  unsigned order_phase = consumer ^ 1, loaded_phases = 0;  // loaded_phases: one bit per buffer
  bool owns_tile = consumer == 0;
  for (WgradTileScheduler<PingPong, kTransposed> tile(p, shared); tile.found; tile.next(), owns_tile = !owns_tile) {
    const int k_blocks = ceil_div(tile.rows, kBlockK);
    if (!owns_tile) {
      pipeline.advance(k_blocks);
      continue;
    }
    const EpilogueSubtiles<decltype(tile)> subtiles{p, tile, buffers, shared.loaded_barriers[consumer]};
    if (thread == 0 && p.adds) {
      bulk_wait_group_read<0>();
      subtiles.load(0);
      subtiles.load(1);
    }
    // Without this order, a warpgroup could wait for a stage two rounds early, whose phase has the same parity.
    mbarrier_wait(order_barrier, order_phase);
    order_phase ^= 1;
    float accumulators[2][kBlockN / 2];  // rows 0 to 63 and 64 to 127 of the tile
    unsigned unreleased = 0;
    for (int k_block = 0; k_block < k_blocks; ++k_block, pipeline.advance()) {
      mbarrier_wait(shared_address(&shared.full_barriers[pipeline.stage]), pipeline.phase);
      const int live = tile.rows - k_block * kBlockK;
      if (live <= kBlockK && lane == 0) mbarrier_arrive(other_order_barrier);
      if (live < kBlockK) {
        clear_stage_rows<PingPong, kGather>(shared, pipeline.stage, live);
        named_barrier_sync(warpgroup_barrier, kWarpgroupThreads);
      } else if (kGather) {
        fence_proxy_async();
      }
      const auto a = wgmma_descriptor<Major::kMn>(shared_address(shared.a[pipeline.stage]), kBoxBytes);
      const auto b = wgmma_descriptor<Major::kMn>(shared_address(shared.b[pipeline.stage]), kBoxBytes);
      mainloop_step<Major::kMn, Major::kMn>(accumulators, a, b, k_block == 0, lane,
                                            shared_address(&shared.empty_barriers[pipeline.stage]), unreleased);
    }
    mainloop_end(accumulators, lane, unreleased);
#pragma unroll
    for (int i = 0; i < kSubtiles; ++i) {
      if (!subtiles.inside(i)) continue;
      const unsigned at = to + i % 2 * sizeof(EpilogueSubtile);
      const float* v = accumulators[i % 2] + i / 2 * 32;
      if (p.adds) {
        mbarrier_wait(shared_address(&shared.loaded_barriers[consumer][i % 2]), loaded_phases >> i % 2 & 1);
        loaded_phases ^= 1u << i % 2;
        store_accumulators<kTransposed, true>(at, v);
      } else {
        if (thread == 0) bulk_wait_group_read<0>();
        named_barrier_sync(warpgroup_barrier, kWarpgroupThreads);
        store_accumulators<kTransposed, false>(at, v);
      }
      fence_proxy_async();
      named_barrier_sync(warpgroup_barrier, kWarpgroupThreads);
      if (thread != 0) continue;
      subtiles.store(i);
      if (p.adds && i + 2 < kSubtiles) {
        bulk_wait_group_read<0>();
        subtiles.load(i + 2);
      }
    }
  }
  bulk_wait_group<0>();
}

template <class Schedule, bool kGather, bool kTransposed, class C>
__global__ void __launch_bounds__(kWgradThreads, 1)
    grouped_gemm_wgrad_kernel(const __grid_constant__ WgradArguments p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) unsigned char dynamic_shared[];
  auto& shared = *reinterpret_cast<WgradSharedStorage<Schedule>*>(dynamic_shared);
  TileQueueWriter<Schedule::kStages> tile_queue(p.tile_counter, shared.tile_queue);
  if (threadIdx.x == 0) {
    shared.tile_queue.init();
    for (int i = 0; i < Schedule::kStages; ++i) {
      // Arrivals: the thread that issues TMA, and each gathering thread; one lane of each consumer warp.
      mbarrier_init(shared_address(&shared.full_barriers[i]), kGather ? kWarpgroupThreads + 1 : 1);
      mbarrier_init(shared_address(&shared.empty_barriers[i]), kWarpgroupThreads / 32 * Schedule::kConsumersOfTile);
    }
    for (int i = 0; i < kConsumers; ++i) {
      mbarrier_init(shared_address(&shared.order_barriers[i]), kWarpgroupThreads / 32);
      for (int j = 0; j < 2; ++j) mbarrier_init(shared_address(&shared.loaded_barriers[i][j]), 1);
    }
    fence_mbarrier_init();
  }
  if (threadIdx.x < 32) sum_tiles(shared.experts_before, p.experts, [](int rows) { return rows > 0 ? 1 : 0; });
  __syncthreads();
  if (threadIdx.x < kWarpgroupThreads) {
    setmaxnreg_dec<kWgradProducerRegisters<Schedule, kGather>>();
    run_wgrad_producer<Schedule, kGather, kTransposed>(p, shared, tile_queue);
    __syncwarp();
    if (!p.adds) clear_without_rows<C>(p);
  } else {
    setmaxnreg_inc<kWgradConsumerRegisters<Schedule, kGather>>();
    if constexpr (std::is_same_v<Schedule, PingPong>) {
      run_ping_pong_consumer<kGather, kTransposed>(p, shared);
    } else {
      run_cooperative_consumer<kGather, kTransposed, C>(p, shared);
    }
  }
#endif
}

}  // namespace megalith::cuda::hopper
