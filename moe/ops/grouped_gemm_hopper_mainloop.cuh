// c_r = a_r B_e: 128 rows of one expert by 256 columns a tile (192 before SwiGLU's gradient). Bound by the tensor cores
// and by power, next by what L2 delivers. A multiplying thread keeps half as many sums as the tile has columns; k
// ascending, so deterministic. What follows the product sees it rounded to bf16 in shared memory.
#pragma once

#include "moe/ops/grouped_gemm_hopper_epilogue.cuh"

namespace megalith::cuda::hopper {

// The columns of b for one stage.
template <class Form>
__device__ inline void copy_b(const RowsArguments& p, unsigned to, unsigned barrier, const Tiles<Form>& tiles,
                              int block) {
  if constexpr (Form::kBAlongK) {
    const int row = tiles.walk.expert * p.columns + tiles.first;
    constexpr bool kBoth = Form::kGated;
    copy_box(to, tiles.second ? &p.b2 : &p.b, barrier, block * kDepth, row);
    copy_box(to + 2 * kBoxBytes, kBoth || tiles.second ? &p.b2 : &p.b, barrier, block * kDepth,
             kBoth ? row : row + 128);
  } else {
    const int blocks = p.depth / kDepth;
    const bool second = block >= blocks;
    const int row = tiles.walk.expert * p.depth + (second ? block - blocks : block) * kDepth;
#pragma unroll
    for (int i = 0; i < Form::kColumns / 64; ++i) {
      copy_box(to + i * kBoxBytes, second ? &p.b2 : &p.b, barrier, tiles.first + 64 * i, row);
    }
  }
}

// Fills stages, also those of the next tile while this one is multiplied.
template <class Form>
__device__ inline void produce(const RowsArguments& p, RowsMemory<Form>& memory, TileTaker<Form::kStages>& taker,
                               int blocks) {
  constexpr int kTimes = kRows * 8 / Form::kProducers;  // rows of a thread; eight lanes copy the 128 bytes of one
  const int thread = static_cast<int>(threadIdx.x), pack = thread % 8, down = thread / 8;
  static_assert(!Form::kGather || Form::kProducers % 64 == 0, "a thread's rows have one remainder modulo 8");
  if (!Form::kGather && thread != 0) return;
  const unsigned stride = static_cast<unsigned>(p.a_stride / 8);
  Ring<Form::kStages> ring;
  taker.hand_out();
  for (Tiles<Form> tiles(p, memory); tiles.found; tiles.next()) {
    unsigned sources[kTimes];  // where rows start, in 16 bytes
    unsigned live = 0;
    if constexpr (Form::kGather) {
#pragma unroll
      for (int i = 0; i < kTimes; ++i) {
        const int row = down + i * (Form::kProducers / 8);
        const bool is_live = row < tiles.walk.live;
        sources[i] = (is_live ? p.index[tiles.walk.first_row + row] : 0) * stride + pack;
        live |= static_cast<unsigned>(is_live) << i;
      }
    }
    for (int block = 0; block < blocks; ++block, ring.next()) {
      taker.at(block, blocks);
      const unsigned full = shared_address(&memory.full[ring.stage]), a = shared_address(memory.a[ring.stage]);
      barrier_wait(shared_address(&memory.empty[ring.stage]), ring.parity ^ 1);
      if (thread == 0) {
        barrier_arrive_expecting(full, Form::kBytesB + (Form::kGather ? 0 : kBytesA));
        copy_b(p, shared_address(memory.b[ring.stage]), full, tiles, block);
        if (!Form::kGather) copy_box(a, &p.a, full, block * kDepth, tiles.walk.first_row);
      }
      if constexpr (Form::kGather) {
        const uint4* from = reinterpret_cast<const uint4*>(p.a_rows + block * kDepth);
        const unsigned to = a + down * 128 + ((pack ^ down % 8) << 4);
#pragma unroll
        for (int i = 0; i < kTimes; ++i) {
          copy_16(to + i * (Form::kProducers / 8) * 128, from + sources[i], (live >> i & 1) != 0);
        }
        barrier_arrive_after_copies(full);
      }
    }
    taker.hand_out();
  }
}

// One warpgroup: the products of its half of the rows.
template <class Form>
__device__ inline void multiply_tiles(const RowsArguments& p, RowsMemory<Form>& memory, int blocks) {
  constexpr int kColumns = Form::kColumns;
  const int warp = static_cast<int>(threadIdx.x) / 32 - 4, half = warp / 4, lane = static_cast<int>(threadIdx.x) % 32;
  const unsigned product_full = shared_address(&memory.product_full[half]);
  const unsigned product_empty = shared_address(&memory.product_empty[half]);
  Ring<Form::kStages> ring;
  unsigned round = 0;
  for (Tiles<Form> tiles(p, memory); tiles.found; tiles.next()) {
    if (tiles.walk.live <= half * kHalf) {  // nothing of ours: only keep the stages going
      for (int block = 0; block < blocks; ++block, ring.next()) {
        barrier_wait(shared_address(&memory.full[ring.stage]), ring.parity);
        __syncwarp();
        if (lane == 0) barrier_arrive(shared_address(&memory.empty[ring.stage]));
      }
      continue;
    }
    float sum[kColumns / 2];
    unsigned before = 0;  // the stage that is still read
    for (int block = 0; block < blocks; ++block, ring.next()) {
      barrier_wait(shared_address(&memory.full[ring.stage]), ring.parity);
      if (Form::kGather) fence_async_shared();
      const auto a = operand<true>(shared_address(memory.a[ring.stage]) + half * kHalf * 128);
      const auto b = operand<Form::kBAlongK>(shared_address(memory.b[ring.stage]), kBoxBytes);
      products_begin();
#pragma unroll
      for (int i = 0; i < kDepth / 16; ++i) {
        multiply<true, Form::kBAlongK>(sum, a + i * kNext16<true>, b + i * kNext16<Form::kBAlongK>,
                                       block == 0 && i == 0);
      }
      products_commit();
      products_wait<1>();
      if (block > 0 && lane == 0) barrier_arrive(before);
      before = shared_address(&memory.empty[ring.stage]);
    }
    products_wait<0>();
    results_are_ready(sum);
    if (lane == 0) barrier_arrive(before);
    barrier_wait(product_empty, round ^ 1);
    round ^= 1;
    const int row = lane % 16, column = lane / 16;
#pragma unroll
    for (int c = 0; c < kColumns / 64; ++c) {
      const unsigned to = shared_address(memory.product[c]) + (warp * 16 + row) * 128;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* v = sum + 4 * (8 * c + 2 * i);
        store_matrices(to + ((2 * i + column ^ row % 8) << 4), packed(v[0], v[1]), packed(v[2], v[3]),
                       packed(v[4], v[5]), packed(v[6], v[7]));
      }
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(product_full);
  }
}

template <class Form>
__global__ void __launch_bounds__(Form::kThreads, 1) grouped_gemm_kernel(const __grid_constant__ RowsArguments p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // not in the code for other devices
  extern __shared__ __align__(1024) unsigned char shared[];
  auto& memory = *reinterpret_cast<RowsMemory<Form>*>(shared);
  TileTaker<Form::kStages> taker(p.counter, memory.numbers);
  if (threadIdx.x == 0) {
    memory.numbers.init();
    for (int s = 0; s < Form::kStages; ++s) {
      barrier_init(shared_address(&memory.full[s]), Form::kGather ? Form::kProducers + 1 : 1);
      barrier_init(shared_address(&memory.empty[s]), 8);
    }
    for (int half = 0; half < 2; ++half) {
      barrier_init(shared_address(&memory.product_full[half]), 4);
      barrier_init(shared_address(&memory.product_empty[half]), Form::kFinishing / 32);
    }
    barrier_init_fence();
  }
  if (threadIdx.x < 32) {
    count_tiles(memory.tiles_before, p.experts, [](int rows) { return ceil_div(rows, kRows); });
  }
  __syncthreads();
  const int blocks = p.depth / kDepth * (Form::kBAlongK ? 1 : 1 + p.pair);
  if (threadIdx.x / kWarpgroup % 3 == 0) {
    registers_down<Form::kOtherRegisters>();
    if (threadIdx.x < Form::kProducers) {
      produce(p, memory, taker, blocks);
    } else {
      finish(p, memory);
    }
  } else {
    registers_up<Form::kMultiplyRegisters>();
    multiply_tiles(p, memory, blocks);
  }
#endif
}

}  // namespace megalith::cuda::hopper
