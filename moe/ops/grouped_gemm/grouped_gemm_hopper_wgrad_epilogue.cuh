// Epilogue of the K-grouped GEMM: moves accumulators to C by 64 x 64 subtiles through shared memory.
#pragma once

#include "moe/ops/grouped_gemm/grouped_gemm_hopper_wgrad_producer.cuh"

namespace megalith::cuda::hopper {

// Calls f(tensor map, box, column, row) for each of a subtile's two boxes that begins inside of C. The subtile begins
// at the tile's columns `a` and `b`.
template <class Tile, class F>
__device__ inline void for_boxes(const WgradArguments& p, const Tile& tile, int a, int b, const F& f) {
  a += tile.a_column;
  b += tile.b_column;
  const int first_row = Tile::kTransposed ? b : a, first_column = Tile::kTransposed ? a : b;
  const int rows = Tile::kTransposed ? p.b_columns : p.a_columns;
  const int columns = Tile::kTransposed ? p.a_columns : p.b_columns;
  const CUtensorMap* map = tile.second ? &p.c2_map : &p.c_map;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (first_row < rows && first_column + 32 * i < columns) f(map, i, first_column + 32 * i, first_row);
  }
}

// Adds a subtile to a bf16 C, or overwrites C: up to `rows` rows from `to` on, and their first `columns` values.
__device__ inline void store_subtile(Bf16* to, std::int64_t stride, EpilogueSubtile& subtile, int rows, int columns,
                                     bool adds) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroupThreads, column = thread % 8 * 8;
  for (int row = thread / 8; row < min(rows, 64); row += kWarpgroupThreads / 8) {
    if (column >= columns) continue;
    uint4* at = reinterpret_cast<uint4*>(to + row * stride + column);
    uint4 v = adds ? *at : make_uint4(0, 0, 0, 0);
    const auto add = [&](unsigned& pair, int i) {
      const float2 c = unpack_bf16x2(pair), x = *reinterpret_cast<const float2*>(subtile.at(row, column + i));
      pair = pack_bf16x2(c.x + x.x, c.y + x.y);
    };
    add(v.x, 0);
    add(v.y, 2);
    add(v.z, 4);
    add(v.w, 6);
    *at = v;
  }
}

// Subtiles of a PingPong tile: loaded from C, added to, and stored through two buffers. Subtiles 0 to 5 are 64 rows of
// a by 64 columns of b; even ones have the tile's first 64 rows.
template <class Tile>
struct EpilogueSubtiles {
  const WgradArguments& p;
  const Tile& tile;
  EpilogueSubtile (&buffers)[2];
  std::uint64_t (&loaded_barriers)[2];

  __device__ bool inside(int i) const {
    return tile.a_column + i % 2 * kWgmmaM < p.a_columns && tile.b_column + i / 2 * 64 < p.b_columns;
  }
  template <class F>
  __device__ void for_boxes(int i, const F& f) const {
    hopper::for_boxes(p, tile, i % 2 * kWgmmaM, i / 2 * 64, f);
  }
  // load() and store() are called by one thread.
  __device__ void load(int i) const {
    if (!inside(i)) return;
    const unsigned barrier = shared_address(&loaded_barriers[i % 2]);
    unsigned bytes = 0;
    for_boxes(i, [&](const CUtensorMap*, int, int, int) { bytes += kBoxBytes; });
    mbarrier_arrive_expect_tx(barrier, bytes);
    for_boxes(i, [&](const CUtensorMap* map, int box, int column, int row) {
      tma_load(shared_address(buffers[i % 2].boxes[box]), map, barrier, column, row, tile.expert);
    });
  }
  __device__ void store(int i) const {
    for_boxes(i, [&](const CUtensorMap* map, int box, int column, int row) {
      tma_store(map, shared_address(buffers[i % 2].boxes[box]), column, row, tile.expert);
    });
    bulk_commit_group();
  }
};

// Adds a thread's 32 accumulators to a subtile, or overwrites it; `to` is the address of the first element. XOR with
// 16, 32 and 48 selects adjacent 16-byte chunks of swizzled rows.
template <bool kTransposed, bool kAdds>
__device__ inline void store_accumulators(unsigned to, const float* v) {
  constexpr int kEightRows = 8 * kSwizzleBytes;
#pragma unroll
  for (int j = 0; j < 8; ++j, v += 4) {
    if constexpr (kTransposed) {
      store_shared<kAdds>(to + j * kEightRows, v[0]);
      store_shared<kAdds>((to ^ 16) + j * kEightRows + kSwizzleBytes, v[1]);
      store_shared<kAdds>((to ^ 32) + j * kEightRows, v[2]);
      store_shared<kAdds>((to ^ 48) + j * kEightRows + kSwizzleBytes, v[3]);
    } else {
      const unsigned at = (to ^ j % 4 * 32) + j / 4 * kBoxBytes;
      store_shared<kAdds>(at, v[0], v[1]);
      store_shared<kAdds>(at + kEightRows, v[2], v[3]);
    }
  }
}

}  // namespace megalith::cuda::hopper
