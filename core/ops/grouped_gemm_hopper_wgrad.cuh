// C_e += sum of a_r^T b_r over the expert's rows, or its transpose: 128 columns of a by 256 of b a tile, whose depth is
// the expert's rows. Only a may be gathered, which costs more than copies of boxes do. A tile belongs to one block for
// all its rows, which adds it to C once; rows ascending, so deterministic. Bound by the tensor cores and by power, next
// by L2 and by the traffic of C.
#pragma once

#include <type_traits>

#include "core/ops/grouped_gemm_hopper.cuh"

namespace megalith::cuda::hopper {

struct WgradArguments {
  CUtensorMap a, b;           // boxes of 64 columns by 64 rows
  CUtensorMap c_map, c2_map;  // of fp32: matrix, row, column; boxes of 32 columns by 64 rows
  const int *offsets, *index;
  const Bf16* a_rows;  // of a gathered a
  std::int64_t a_stride;
  void *c, *c2;
  int experts;
  int a_columns, b_columns;  // of one C
  int pair;                  // 1: the rows of C and those of c2 after them are the columns of the operand that has them
};

inline constexpr int kColumns = 256, kBytesB = kColumns * kDepth * 2;
inline constexpr int kWgradStages = 3, kWgradThreads = 3 * kWarpgroup;

// 64 x 64 values of a result: two boxes of 32 columns, rows of 128 bytes, swizzled.
struct Square {
  float boxes[2][64][32];
  __device__ float* at(int row, int column) {
    return &boxes[column / 32][row][(column % 32 / 4 ^ row % 8) * 4 + column % 4];
  }
};

struct WgradMemory {
  alignas(1024) unsigned char a[kWgradStages][kBytesA];
  alignas(1024) unsigned char b[kWgradStages][kBytesB];
  alignas(1024) Square staged[2][2];  // of each multiplying warpgroup
  std::uint64_t full[kWgradStages], empty[kWgradStages];
};

// Tiles of a block: expert by expert, groups of kWgradGroup tiles of a, in each of them tile after tile of b.
template <bool kTransposed>
class WgradWalk {
 public:
  __device__ explicit WgradWalk(const WgradArguments& p)
      : p_(p),
        a_tiles_(ceil_div(p.a_columns, kRows) * (kTransposed ? 1 : 1 + p.pair)),
        b_tiles_(ceil_div(p.b_columns, kColumns) * (kTransposed ? 1 + p.pair : 1)),
        tile_(static_cast<int>(blockIdx.x)) {}
  __device__ bool find() {
    const int tiles = a_tiles_ * b_tiles_;
    for (; tile_ < p_.experts * tiles; next()) {
      expert = tile_ / tiles;
      first_row = p_.offsets[expert];
      rows = p_.offsets[expert + 1] - first_row;
      if (rows <= 0) continue;
      int in = tile_ - expert * tiles;
      const int group = in / (kWgradGroup * b_tiles_);
      in -= group * kWgradGroup * b_tiles_;
      const int high = min(kWgradGroup, a_tiles_ - group * kWgradGroup);
      const int b_tile = in / high, a_tile = group * kWgradGroup + in - b_tile * high;
      const int of_one = ceil_div(kTransposed ? p_.b_columns : p_.a_columns, kTransposed ? kColumns : kRows);
      second = (kTransposed ? b_tile : a_tile) >= of_one;
      a_column = (a_tile - (second && !kTransposed ? of_one : 0)) * kRows;
      b_column = (b_tile - (second && kTransposed ? of_one : 0)) * kColumns;
      return true;
    }
    return false;
  }
  __device__ void next() { tile_ += static_cast<int>(gridDim.x); }
  // Columns of the operands themselves.
  __device__ int a_first() const { return a_column + (second && !kTransposed ? p_.a_columns : 0); }
  __device__ int b_first() const { return b_column + (second && kTransposed ? p_.b_columns : 0); }

  int expert = 0, first_row = 0, rows = 0;
  int a_column = 0, b_column = 0;  // of C or c2
  bool second = false;             // c2

 private:
  static constexpr int kWgradGroup = 12;
  const WgradArguments& p_;
  int a_tiles_, b_tiles_, tile_;
};

template <bool kGather, bool kTransposed>
__device__ inline void produce_wgrad(const WgradArguments& p, WgradMemory& memory) {
  constexpr int kTimes = kDepth / 8;  // rows of a thread in a block; half a warp copies one
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  if (!kGather && thread != 0) return;
  Ring<kWgradStages> ring;
  const int across = thread % 16, down = thread / 16;
  for (WgradWalk<kTransposed> walk(p); walk.find(); walk.next()) {
    const int column = walk.a_first() + across * 8;
    const bool inside = walk.a_column + across * 8 < p.a_columns;
    // Lanes 0 to 15 fetch the indices of the warp's rows 2 warp, 2 warp + 1, 2 warp + 8, ...
    const auto index_of = [&](int block) {
      const int row = block * kDepth + 2 * warp + lane % 2 + lane / 2 * 8;
      return lane < 16 && row < walk.rows ? p.index[walk.first_row + row] : -1;
    };
    int index = kGather ? index_of(0) : 0;
    const int blocks = ceil_div(walk.rows, kDepth);
    for (int block = 0; block < blocks; ++block, ring.next()) {
      const unsigned full = shared_address(&memory.full[ring.stage]);
      const unsigned a = shared_address(memory.a[ring.stage]), b = shared_address(memory.b[ring.stage]);
      barrier_wait(shared_address(&memory.empty[ring.stage]), ring.parity ^ 1);
      if (thread == 0) {
        const int row = walk.first_row + block * kDepth;
        barrier_arrive_expecting(full, kBytesB + (kGather ? 0 : kBytesA));
#pragma unroll
        for (int i = 0; i < kColumns / 64; ++i) copy_box(b + i * kBoxBytes, &p.b, full, walk.b_first() + 64 * i, row);
        if constexpr (!kGather) {
#pragma unroll
          for (int i = 0; i < kRows / 64; ++i) copy_box(a + i * kBoxBytes, &p.a, full, walk.a_first() + 64 * i, row);
        }
      }
      if constexpr (kGather) {
        int from[kTimes];  // before any copy, whose order is kept
#pragma unroll
        for (int i = 0; i < kTimes; ++i) from[i] = __shfl_sync(~0u, index, lane / 16 + 2 * i);
        if (block + 1 < blocks) index = index_of(block + 1);
        const unsigned to = a + across / 8 * kBoxBytes + down * 128 + ((across % 8 ^ down % 8) << 4);
#pragma unroll
        for (int i = 0; i < kTimes; ++i) {
          const bool live = inside && from[i] >= 0;
          copy_16(to + i * 8 * 128, p.a_rows + (live ? from[i] * p.a_stride + column : 0), live);
        }
        barrier_arrive_after_copies(full);
      }
    }
  }
}

// Rows of a stage that belong to the next expert, or to none, become zeros.
__device__ inline void clear_rows(unsigned char* boxes, int count, int first) {
  const int thread = static_cast<int>(threadIdx.x) - kWarpgroup, packs = (kDepth - first) * 8;
  for (int box = 0; box < count; ++box) {
    auto* rows = reinterpret_cast<uint4*>(boxes + box * kBoxBytes + first * 128);
    for (int i = thread; i < packs; i += 2 * kWarpgroup) rows[i] = make_uint4(0, 0, 0, 0);
  }
}

// Adds to a C of bf16: rows from `to` on, the live ones, and of them the first `columns` values.
__device__ inline void add_square(Bf16* to, std::int64_t stride, Square& square, int live, int columns) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup, column = thread % 8 * 8;
  for (int row = thread / 8; row < min(live, 64); row += kWarpgroup / 8) {
    if (column >= columns) continue;
    uint4* at = reinterpret_cast<uint4*>(to + row * stride + column);
    uint4 v = *at;
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
__device__ inline void multiply_wgrad(const WgradArguments& p, WgradMemory& memory) {
  const int warp = static_cast<int>(threadIdx.x) / 32 - 4, half = warp / 4, lane = static_cast<int>(threadIdx.x) % 32;
  constexpr bool kBulk = std::is_same_v<C, float>;
  Ring<kWgradStages> ring;
  for (WgradWalk<kTransposed> walk(p); walk.find(); walk.next()) {
    float sum[128];
    const int blocks = ceil_div(walk.rows, kDepth);
    unsigned before = 0;  // the stage that is still read
    for (int block = 0; block < blocks; ++block, ring.next()) {
      barrier_wait(shared_address(&memory.full[ring.stage]), ring.parity);
      const int live = walk.rows - block * kDepth;
      if (live < kDepth) {
        if (!kGather) clear_rows(memory.a[ring.stage], kRows / 64, live);
        clear_rows(memory.b[ring.stage], kColumns / 64, live);
        fence_async_shared();
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
    const int a_first = walk.a_column + half * kHalf, row = warp % 4 * 16 + lane / 4, column = 2 * (lane % 4);
    const bool adds = threadIdx.x % kWarpgroup == 0;
#pragma unroll
    for (int c = 0; c < kColumns / 64; ++c) {
      Square& staged = memory.staged[half][c % 2];
      if (kBulk && adds) bulk_wait_read<1>();
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
      const int b_first = walk.b_column + 64 * c;
      const int first_row = kTransposed ? b_first : a_first, first_column = kTransposed ? a_first : b_first;
      const int rows = kTransposed ? p.b_columns : p.a_columns, columns = kTransposed ? p.a_columns : p.b_columns;
      if constexpr (kBulk) {
        if (!adds) continue;
        const CUtensorMap* map = walk.second ? &p.c2_map : &p.c_map;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (first_row >= rows || first_column + 32 * i >= columns) continue;
          add_box(map, shared_address(staged.boxes[i]), first_column + 32 * i, first_row, walk.expert);
        }
        bulk_commit();
      } else {
        C* to = static_cast<C*>(walk.second ? p.c2 : p.c) + (std::int64_t{walk.expert} * rows + first_row) * columns;
        add_square(to + first_column, columns, staged, rows - first_row, columns - first_column);
      }
    }
  }
  if (kBulk) bulk_wait<0>();
}

template <bool kGather, bool kTransposed, class C>
__global__ void __launch_bounds__(kWgradThreads, 1)
    grouped_gemm_wgrad_kernel(const __grid_constant__ WgradArguments p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) unsigned char shared[];
  auto& memory = *reinterpret_cast<WgradMemory*>(shared);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kWgradStages; ++i) {
      barrier_init(shared_address(&memory.full[i]), kGather ? kWarpgroup + 1 : 1);
      barrier_init(shared_address(&memory.empty[i]), 8);
    }
    barrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    registers_down<kGather ? 56 : 40>();
    produce_wgrad<kGather, kTransposed>(p, memory);
  } else {
    registers_up<kGather ? 224 : 232>();
    multiply_wgrad<kGather, kTransposed, C>(p, memory);
  }
#endif
}

}  // namespace megalith::cuda::hopper
