// M-grouped GEMM, c_r = a_r B_e: tiles of 128 rows of one expert by 256 columns (192 for SwiGLU's gradient). Limited by
// the tensor cores and by power, next by L2 bandwidth. Cooperative: both consumer warpgroups work on a tile, 64 rows
// each. Each element sums k in ascending order, so results are deterministic. The epilogue reads the tile, rounded to
// bf16, from shared memory.
#pragma once

#include "moe/ops/grouped_gemm/grouped_gemm_hopper_epilogue.cuh"

namespace megalith::cuda::hopper {

// Issues TMA loads of b for one stage.
template <class Traits>
__device__ inline void load_b(const MGroupedArguments& p, unsigned to, unsigned full_barrier,
                              const MGroupedTileScheduler<Traits>& tile, int k_block) {
  if constexpr (Traits::kMajorB == Major::kK) {
    const int row = tile.expert * p.columns + tile.column;
    constexpr bool kBoth = Traits::kGated;
    tma_load(to, tile.second ? &p.b2 : &p.b, full_barrier, k_block * kBlockK, row);
    tma_load(to + 2 * kBoxBytes, kBoth || tile.second ? &p.b2 : &p.b, full_barrier, k_block * kBlockK,
             kBoth ? row : row + 128);
  } else {
    const int k_blocks = p.depth / kBlockK;
    const bool second = k_block >= k_blocks;
    const int row = tile.expert * p.depth + (second ? k_block - k_blocks : k_block) * kBlockK;
#pragma unroll
    for (int i = 0; i < Traits::kBlockN / kBoxColumns; ++i) {
      tma_load(to + i * kBoxBytes, second ? &p.b2 : &p.b, full_barrier, tile.column + kBoxColumns * i, row);
    }
  }
}

// Runs the producer warps. They also fill stages of the next tile while consumers multiply the current one.
template <class Traits>
__device__ inline void run_producer(const MGroupedArguments& p, MGroupedSharedStorage<Traits>& shared,
                                    TileQueueWriter<Traits::kStages>& tile_queue, int k_blocks) {
  constexpr int kTimes = kBlockM * 8 / Traits::kProducerThreads;  // rows per thread; eight lanes copy a row
  const int thread = static_cast<int>(threadIdx.x), chunk = thread % 8, down = thread / 8;
  static_assert(!Traits::kGather || Traits::kProducerThreads % 64 == 0, "a thread's rows have one remainder modulo 8");
  if (!Traits::kGather && thread != 0) return;
  const unsigned stride = static_cast<unsigned>(p.a_stride / 8);
  PipelineState<Traits::kStages> pipeline;
  tile_queue.push();
  for (MGroupedTileScheduler<Traits> tile(p, shared); tile.found; tile.next()) {
    unsigned sources[kTimes];  // start of each row, in units of 16 bytes
    unsigned live = 0;
    if constexpr (Traits::kGather) {
#pragma unroll
      for (int i = 0; i < kTimes; ++i) {
        const int row = down + i * (Traits::kProducerThreads / 8);
        const bool is_live = row < tile.live_rows;
        sources[i] = (is_live ? gathered_row(p.index, tile.first_row + row, p.limits) : 0) * stride + chunk;
        live |= static_cast<unsigned>(is_live) << i;
      }
    }
    for (int k_block = 0; k_block < k_blocks; ++k_block, pipeline.advance()) {
      tile_queue.prefetch(k_block, k_blocks);
      const unsigned full_barrier = shared_address(&shared.full_barriers[pipeline.stage]);
      const unsigned a = shared_address(shared.a[pipeline.stage]);
      mbarrier_wait(shared_address(&shared.empty_barriers[pipeline.stage]), pipeline.phase ^ 1);
      if (thread == 0) {
        mbarrier_arrive_expect_tx(full_barrier, Traits::kStageBytesB + (Traits::kGather ? 0 : kStageBytesA));
        load_b(p, shared_address(shared.b[pipeline.stage]), full_barrier, tile, k_block);
        if (!Traits::kGather) tma_load(a, &p.a, full_barrier, k_block * kBlockK, tile.first_row);
      }
      if constexpr (Traits::kGather) {
        const uint4* from = reinterpret_cast<const uint4*>(p.a_rows + k_block * kBlockK);
        const unsigned to = a + swizzle_offset(down, chunk);
#pragma unroll
        for (int i = 0; i < kTimes; ++i) {
          cp_async_16(to + i * (Traits::kProducerThreads / 8) * kSwizzleBytes, from + sources[i], (live >> i & 1) != 0);
        }
        cp_async_mbarrier_arrive(full_barrier);
      }
    }
    tile_queue.push();
  }
}

// Runs a consumer warpgroup: multiplies its 64 rows of each tile, and passes them to the epilogue.
template <class Traits>
__device__ inline void run_consumer(const MGroupedArguments& p, MGroupedSharedStorage<Traits>& shared, int k_blocks) {
  constexpr int kBlockN = Traits::kBlockN;
  const int warp = static_cast<int>(threadIdx.x) / 32 - 4, consumer = warp / 4;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const unsigned c_full_barrier = shared_address(&shared.c_full_barriers[consumer]);
  const unsigned c_empty_barrier = shared_address(&shared.c_empty_barriers[consumer]);
  PipelineState<Traits::kStages> pipeline;
  unsigned c_phase = 0;
  for (MGroupedTileScheduler<Traits> tile(p, shared); tile.found; tile.next()) {
    if (tile.live_rows <= consumer * kWgmmaM) {  // no row for this warpgroup: only frees the stages
      for (int k_block = 0; k_block < k_blocks; ++k_block, pipeline.advance()) {
        mbarrier_wait(shared_address(&shared.full_barriers[pipeline.stage]), pipeline.phase);
        __syncwarp();
        if (lane == 0) mbarrier_arrive(shared_address(&shared.empty_barriers[pipeline.stage]));
      }
      continue;
    }
    float accumulators[1][kBlockN / 2];
    unsigned unreleased = 0;
    for (int k_block = 0; k_block < k_blocks; ++k_block, pipeline.advance()) {
      mbarrier_wait(shared_address(&shared.full_barriers[pipeline.stage]), pipeline.phase);
      if (Traits::kGather) fence_proxy_async();
      const auto a =
          wgmma_descriptor<Major::kK>(shared_address(shared.a[pipeline.stage]) + consumer * kWgmmaM * kSwizzleBytes);
      const auto b = wgmma_descriptor<Traits::kMajorB>(shared_address(shared.b[pipeline.stage]), kBoxBytes);
      mainloop_step<Major::kK, Traits::kMajorB>(accumulators, a, b, k_block == 0, lane,
                                                shared_address(&shared.empty_barriers[pipeline.stage]), unreleased);
    }
    mainloop_end(accumulators, lane, unreleased);
    mbarrier_wait(c_empty_barrier, c_phase ^ 1);
    c_phase ^= 1;
    const int row = lane % 16, chunk = lane / 16;
#pragma unroll
    for (int c = 0; c < kBlockN / 64; ++c) {
      const unsigned to = shared_address(shared.c[c]) + (warp * 16 + row) * kSwizzleBytes;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* v = accumulators[0] + 4 * (8 * c + 2 * i);
        stmatrix_x4(to + ((2 * i + chunk ^ row % kSwizzleRows) << 4), pack_bf16x2(v[0], v[1]), pack_bf16x2(v[2], v[3]),
                    pack_bf16x2(v[4], v[5]), pack_bf16x2(v[6], v[7]));
      }
    }
    __syncwarp();
    if (lane == 0) mbarrier_arrive(c_full_barrier);
  }
}

// Body of all M-grouped kernels.
template <class Traits>
__device__ __forceinline__ void run_m_grouped(const MGroupedArguments& p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // excluded from the code for other devices
  extern __shared__ __align__(1024) unsigned char dynamic_shared[];
  auto& shared = *reinterpret_cast<MGroupedSharedStorage<Traits>*>(dynamic_shared);
  TileQueueWriter<Traits::kStages> tile_queue(p.tile_counter, shared.tile_queue);
  if (threadIdx.x == 0) {
    shared.tile_queue.init();
    for (int s = 0; s < Traits::kStages; ++s) {
      // Arrivals: the thread that issues TMA, and each gathering thread; one lane of each consumer warp.
      mbarrier_init(shared_address(&shared.full_barriers[s]), Traits::kGather ? Traits::kProducerThreads + 1 : 1);
      mbarrier_init(shared_address(&shared.empty_barriers[s]), kConsumers * kWarpgroupThreads / 32);
    }
    for (int consumer = 0; consumer < kConsumers; ++consumer) {
      mbarrier_init(shared_address(&shared.c_full_barriers[consumer]), kWarpgroupThreads / 32);
      mbarrier_init(shared_address(&shared.c_empty_barriers[consumer]), Traits::kEpilogueThreads / 32);
    }
    fence_mbarrier_init();
  }
  if (threadIdx.x < 32) {
    sum_tiles(shared.m_tiles_before, p.experts, [](int rows) { return ceil_div(rows, kBlockM); });
  }
  __syncthreads();
  const int k_blocks = p.depth / kBlockK * (Traits::kMajorB == Major::kK ? 1 : 1 + p.pair);
  if (threadIdx.x / kWarpgroupThreads % 3 == 0) {  // the first warpgroup, and the fourth if present
    setmaxnreg_dec<Traits::kEpilogueRegisters>();
    if (threadIdx.x < Traits::kProducerThreads) {
      run_producer(p, shared, tile_queue, k_blocks);
    } else {
      run_epilogue(p, shared);
    }
  } else {
    setmaxnreg_inc<Traits::kConsumerRegisters>();
    run_consumer(p, shared, k_blocks);
  }
#endif
}

// One kernel per op, so that a profile shows the op's name.
template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1)
    grouped_gemm_kernel(const __grid_constant__ MGroupedArguments p) {
  run_m_grouped<Traits>(p);
}
template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1)
    grouped_gemm_swiglu_kernel(const __grid_constant__ MGroupedArguments p) {
  run_m_grouped<Traits>(p);
}
template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1)
    grouped_gemm_swiglu_backward_kernel(const __grid_constant__ MGroupedArguments p) {
  run_m_grouped<Traits>(p);
}

}  // namespace megalith::cuda::hopper
