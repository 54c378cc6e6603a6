// C_e += sum of a_r^T b_r over the expert's rows, or its transpose: 128 columns of a by 256 or 192 of b a tile, whose
// depth is the expert's rows. Only a may be gathered, which costs more than copies of boxes do. A tile belongs to one
// block for all its rows, which adds it to C once; rows ascending, so both forms are deterministic and give the same
// bits. Where C is overwritten it is not read.
//   Together: a tile ends with additions in L2, which no products overlap and which are slower than memory. For deep
//             tiles, where power binds: these have the least traffic of L2 and shared memory for their products.
//   InTurns:  C is loaded and stored while the other warpgroup multiplies. For experts of few rows, where memory binds.
#pragma once

#include <type_traits>

#include "moe/ops/grouped_gemm_hopper_wgrad_producer.cuh"

namespace megalith::cuda::hopper {

// Adds to a C of bf16, or overwrites it: rows from `to` on, the live ones, and of them the first `columns` values.
__device__ inline void write_square(Bf16* to, std::int64_t stride, Square& square, int live, int columns, bool adds) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup, column = thread % 8 * 8;
  for (int row = thread / 8; row < min(live, 64); row += kWarpgroup / 8) {
    if (column >= columns) continue;
    uint4* at = reinterpret_cast<uint4*>(to + row * stride + column);
    uint4 v = adds ? *at : make_uint4(0, 0, 0, 0);
    const auto add = [&](unsigned& pair, int i) {
      const float2 c = unpacked(pair), x = *reinterpret_cast<const float2*>(square.at(row, column + i));
      pair = packed(c.x + x.x, c.y + x.y);
    };
    add(v.x, 0);
    add(v.y, 2);
    add(v.z, 4);
    add(v.w, 6);
    *at = v;
  }
}

template <bool kGather, bool kTransposed, class C>
__device__ inline void multiply_together(const WgradArguments& p, WgradMemory<Together>& memory) {
  constexpr int kColumns = Together::kColumns;
  const int warp = static_cast<int>(threadIdx.x) / 32 - 4, half = warp / 4, lane = static_cast<int>(threadIdx.x) % 32;
  constexpr bool kBulk = std::is_same_v<C, float>;
  Ring<Together::kStages> ring;
  for (WgradWalk<Together, kTransposed> walk(p, memory); walk.found; walk.next()) {
    float sum[kColumns / 2];
    const int blocks = ceil_div(walk.rows, kDepth);
    unsigned before = 0;  // the stage that is still read
    for (int block = 0; block < blocks; ++block, ring.next()) {
      barrier_wait(shared_address(&memory.full[ring.stage]), ring.parity);
      const int live = walk.rows - block * kDepth;
      if (live < kDepth) {
        clear_rows<Together, kGather>(memory, ring.stage, live);
        named_barrier(1, 2 * kWarpgroup);
      } else if (kGather) {
        fence_async_shared();
      }
      const auto a = operand<false>(shared_address(memory.a[ring.stage]) + half * kBoxBytes, kBoxBytes);
      const auto b = operand<false>(shared_address(memory.b[ring.stage]), kBoxBytes);
      products_begin();
#pragma unroll
      for (int i = 0; i < kDepth / 16; ++i) {
        multiply<false, false>(sum, a + i * kNext16<false>, b + i * kNext16<false>, block == 0 && i == 0);
      }
      products_commit();
      products_wait<1>();
      if (block > 0 && lane == 0) barrier_arrive(before);
      before = shared_address(&memory.empty[ring.stage]);
    }
    products_wait<0>();
    results_are_ready(sum);
    if (lane == 0) barrier_arrive(before);
    const int row = warp % 4 * 16 + lane / 4, column = 2 * (lane % 4);
    const bool writes = threadIdx.x % kWarpgroup == 0;
#pragma unroll
    for (int c = 0; c < kColumns / 64; ++c) {
      Square& staged = memory.staged[half][c % 2];
      if (kBulk && writes) bulk_wait_read<1>();
      named_barrier(2 + half, kWarpgroup);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float* v = sum + 4 * (8 * c + j);
        if constexpr (kTransposed) {
          *staged.at(8 * j + column, row) = v[0];
          *staged.at(8 * j + column + 1, row) = v[1];
          *staged.at(8 * j + column, row + 8) = v[2];
          *staged.at(8 * j + column + 1, row + 8) = v[3];
        } else {
          *reinterpret_cast<float2*>(staged.at(row, 8 * j + column)) = make_float2(v[0], v[1]);
          *reinterpret_cast<float2*>(staged.at(row + 8, 8 * j + column)) = make_float2(v[2], v[3]);
        }
      }
      if (kBulk) fence_async_shared();
      named_barrier(2 + half, kWarpgroup);
      if constexpr (kBulk) {
        if (!writes) continue;
        for_boxes(p, walk, half * kHalf, 64 * c, [&](const CUtensorMap* map, int box, int at_column, int at_row) {
          const unsigned from = shared_address(staged.boxes[box]);
          if (p.adds) {
            add_box(map, from, at_column, at_row, walk.expert);
          } else {
            store_box(map, from, at_column, at_row, walk.expert);
          }
        });
        bulk_commit();
      } else {
        const int a_first = walk.a_column + half * kHalf, b_first = walk.b_column + 64 * c;
        const int first_row = kTransposed ? b_first : a_first, first_column = kTransposed ? a_first : b_first;
        const int rows = kTransposed ? p.b_columns : p.a_columns, columns = kTransposed ? p.a_columns : p.b_columns;
        C* to = static_cast<C*>(walk.second ? p.c2 : p.c) + (std::int64_t{walk.expert} * rows + first_row) * columns;
        write_square(to + first_column, columns, staged, rows - first_row, columns - first_column, p.adds);
      }
    }
  }
  if (kBulk) bulk_wait<0>();
}

// What a warpgroup of InTurns does with squares of C: squares 0 to 5 of its tile are 64 rows of a by 64 columns of b,
// those of an even number of the first 64 rows. They are loaded, added to and stored by way of two buffers.
template <class Walk>
struct Squares {
  const WgradArguments& p;
  const Walk& walk;
  Square (&staged)[2];
  std::uint64_t (&loaded)[2];

  __device__ bool inside(int i) const {
    return walk.a_column + i % 2 * kHalf < p.a_columns && walk.b_column + i / 2 * 64 < p.b_columns;
  }
  template <class F>
  __device__ void for_boxes(int i, const F& f) const {
    hopper::for_boxes(p, walk, i % 2 * kHalf, i / 2 * 64, f);
  }
  // By one thread.
  __device__ void load(int i) const {
    if (!inside(i)) return;
    const unsigned barrier = shared_address(&loaded[i % 2]);
    unsigned bytes = 0;
    for_boxes(i, [&](const CUtensorMap*, int, int, int) { bytes += kBoxBytes; });
    barrier_arrive_expecting(barrier, bytes);
    for_boxes(i, [&](const CUtensorMap* map, int box, int column, int row) {
      copy_box(shared_address(staged[i % 2].boxes[box]), map, barrier, column, row, walk.expert);
    });
  }
  __device__ void store(int i) const {
    for_boxes(i, [&](const CUtensorMap* map, int box, int column, int row) {
      store_box(map, shared_address(staged[i % 2].boxes[box]), column, row, walk.expert);
    });
    bulk_commit();
  }
};

// Adds a thread's part of a product to a square, or puts it there, where `to` is the address of its first value.
template <bool kTransposed, bool kAdds>
__device__ inline void put_product(unsigned to, const float* v) {
#pragma unroll
  for (int j = 0; j < 8; ++j, v += 4) {
    if constexpr (kTransposed) {  // a neighbour's pack of 4 columns has a number that differs in one bit
      put_shared<kAdds>(to + j * 1024, v[0]);
      put_shared<kAdds>((to ^ 16) + j * 1024 + 128, v[1]);
      put_shared<kAdds>((to ^ 32) + j * 1024, v[2]);
      put_shared<kAdds>((to ^ 48) + j * 1024 + 128, v[3]);
    } else {
      const unsigned at = (to ^ j % 4 * 32) + j / 4 * kBoxBytes;
      put_shared<kAdds>(at, v[0], v[1]);
      put_shared<kAdds>(at + 1024, v[2], v[3]);
    }
  }
}

// Of fp32 C, which is loaded, where it is added to, while the tile is multiplied.
template <bool kGather, bool kTransposed>
__device__ inline void multiply_in_turns(const WgradArguments& p, WgradMemory<InTurns>& memory) {
  constexpr int kColumns = InTurns::kColumns;
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup, lane = thread % 32;
  const int mine = static_cast<int>(threadIdx.x) / kWarpgroup - 1, row = thread / 32 * 16 + lane / 4;
  Square(&staged)[2] = memory.staged[mine];
  const unsigned to = shared_address(kTransposed ? staged->at(2 * (lane % 4), row) : staged->at(row, 2 * (lane % 4)));
  const unsigned turn = shared_address(&memory.turn[mine]), next_turn = shared_address(&memory.turn[mine ^ 1]);
  Ring<InTurns::kStages> ring;
  unsigned round = mine ^ 1, rounds = 0;  // of turns, of the two squares; warpgroup 0 begins without having been told
  bool ours = mine == 0;
  for (WgradWalk<InTurns, kTransposed> walk(p, memory); walk.found; walk.next(), ours = !ours) {
    const int blocks = ceil_div(walk.rows, kDepth);
    if (!ours) {
      ring.skip(blocks);
      continue;
    }
    const Squares<decltype(walk)> squares{p, walk, staged, memory.loaded[mine]};
    if (thread == 0 && p.adds) {
      bulk_wait_read<0>();
      squares.load(0);
      squares.load(1);
    }
    // Without turns it could wait for a stage that is two rounds behind, whose parity is that of the round it wants.
    barrier_wait(turn, round);
    round ^= 1;
    float low[kColumns / 2], high[kColumns / 2];  // rows 0 to 63 of the tile, 64 to 127
    unsigned before = 0;                          // the stage that is still read
    for (int block = 0; block < blocks; ++block, ring.next()) {
      barrier_wait(shared_address(&memory.full[ring.stage]), ring.parity);
      const int live = walk.rows - block * kDepth;
      if (live <= kDepth && lane == 0) barrier_arrive(next_turn);
      if (live < kDepth) {
        clear_rows<InTurns, kGather>(memory, ring.stage, live);
        named_barrier(1 + mine, kWarpgroup);
      } else if (kGather) {
        fence_async_shared();
      }
      const auto a = operand<false>(shared_address(memory.a[ring.stage]), kBoxBytes);
      const auto b = operand<false>(shared_address(memory.b[ring.stage]), kBoxBytes);
      products_begin();
#pragma unroll
      for (int i = 0; i < kDepth / 16; ++i) {
        const auto a_low = a + i * kNext16<false>, b_now = b + i * kNext16<false>;
        multiply<false, false>(low, a_low, b_now, block == 0 && i == 0);
        multiply<false, false>(high, a_low + (kBoxBytes >> 4), b_now, block == 0 && i == 0);
      }
      products_commit();
      products_wait<1>();
      if (block > 0 && lane == 0) barrier_arrive(before);
      before = shared_address(&memory.empty[ring.stage]);
    }
    products_wait<0>();
    results_are_ready(low);
    results_are_ready(high);
    if (lane == 0) barrier_arrive(before);
#pragma unroll
    for (int i = 0; i < kColumns / 32; ++i) {
      if (!squares.inside(i)) continue;
      const unsigned at = to + i % 2 * sizeof(Square);
      const float* v = (i % 2 ? high : low) + i / 2 * 32;
      if (p.adds) {
        barrier_wait(shared_address(&memory.loaded[mine][i % 2]), rounds >> i % 2 & 1);
        rounds ^= 1u << i % 2;
        put_product<kTransposed, true>(at, v);
      } else {
        if (thread == 0) bulk_wait_read<0>();
        named_barrier(1 + mine, kWarpgroup);
        put_product<kTransposed, false>(at, v);
      }
      fence_async_shared();
      named_barrier(1 + mine, kWarpgroup);
      if (thread != 0) continue;
      squares.store(i);
      if (p.adds && i + 2 < kColumns / 32) {
        bulk_wait_read<0>();
        squares.load(i + 2);
      }
    }
  }
  bulk_wait<0>();
}

template <class Form, bool kGather, bool kTransposed, class C>
__global__ void __launch_bounds__(kWgradThreads, 1)
    grouped_gemm_wgrad_kernel(const __grid_constant__ WgradArguments p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) unsigned char shared[];
  auto& memory = *reinterpret_cast<WgradMemory<Form>*>(shared);
  TileTaker<Form::kStages> taker(p.counter, memory.numbers);
  if (threadIdx.x == 0) {
    memory.numbers.init();
    for (int i = 0; i < Form::kStages; ++i) {
      barrier_init(shared_address(&memory.full[i]), kGather ? kWarpgroup + 1 : 1);
      barrier_init(shared_address(&memory.empty[i]), 4 * Form::kTogether);
    }
    for (int i = 0; i < 2; ++i) {
      barrier_init(shared_address(&memory.turn[i]), 4);
      for (int j = 0; j < 2; ++j) barrier_init(shared_address(&memory.loaded[i][j]), 1);
    }
    barrier_init_fence();
  }
  if (threadIdx.x < 32) count_tiles(memory.experts_before, p.experts, [](int rows) { return rows > 0 ? 1 : 0; });
  __syncthreads();
  constexpr bool kInTurns = std::is_same_v<Form, InTurns>;
  if (threadIdx.x < kWarpgroup) {
    registers_down<kGather && !kInTurns ? 56 : 40>();
    produce_wgrad<Form, kGather, kTransposed>(p, memory, taker);
    __syncwarp();
    if (!p.adds) clear_without_rows<C>(p);
  } else {
    registers_up<kGather && !kInTurns ? 224 : 232>();
    if constexpr (kInTurns) {
      multiply_in_turns<kGather, kTransposed>(p, memory);
    } else {
      multiply_together<kGather, kTransposed, C>(p, memory);
    }
  }
#endif
}

}  // namespace megalith::cuda::hopper
