// What the two forms of the kernel in grouped_gemm_hopper_wgrad.cuh share: which tiles blocks take, and how stages are
// filled.
#pragma once

#include "moe/ops/grouped_gemm_hopper.cuh"

namespace megalith::cuda::hopper {

struct WgradArguments {
  CUtensorMap a, b;           // boxes of 64 columns by 64 rows
  CUtensorMap c_map, c2_map;  // of fp32: matrix, row, column; boxes of 32 columns by 64 rows
  RoutedExperts experts;
  const int* index;
  const Bf16* a_rows;  // of a gathered a
  std::int64_t a_stride;
  void *c, *c2;
  int a_columns, b_columns;  // of one C
  bool adds;                 // or overwrites C
  int* counter;
  int pair;  // 1: the rows of C and those of c2 after them are the columns of the operand that has them
};

inline constexpr int kWgradThreads = 3 * kWarpgroup;

// Both multiplying warpgroups work on a tile, each on the half of its rows.
struct Together {
  static constexpr int kTogether = 2;  // warpgroups that multiply a stage
  static constexpr int kColumns = 256, kStages = 3, kBytesB = kColumns * kDepth * 2;
};
// Each has tiles of its own, and multiplies while the other adds to C.
struct InTurns {
  static constexpr int kTogether = 1;
  static constexpr int kColumns = 192, kStages = 4, kBytesB = kColumns * kDepth * 2;
};

// 64 x 64 values of a result: two boxes of 32 columns, rows of 128 bytes, swizzled.
struct Square {
  float boxes[2][64][32];
  __device__ float* at(int row, int column) {
    return &boxes[column / 32][row][(column % 32 / 4 ^ row % 8) * 4 + column % 4];
  }
};

template <class Form>
struct WgradMemory {
  alignas(1024) unsigned char a[Form::kStages][kBytesA];
  alignas(1024) unsigned char b[Form::kStages][Form::kBytesB];
  alignas(1024) Square staged[2][2];  // of each multiplying warpgroup
  std::uint64_t full[Form::kStages], empty[Form::kStages];
  TileNumbers<Form::kStages> numbers;
  int experts_before[kMostExperts + 1];  // that have rows
  // InTurns:
  std::uint64_t loaded[2][2];  // the square of C
  std::uint64_t turn[2];       // of a warpgroup: the other one has found all of its stages full
};

static_assert(sizeof(WgradMemory<Together>) <= kMostShared && sizeof(WgradMemory<InTurns>) <= kMostShared);

// Where tiles are: expert by expert, groups of kWgradGroup tiles of a, in each of them tile after tile of b.
template <class Form, bool kTransposed_>
class WgradWalk {
 public:
  static constexpr bool kTransposed = kTransposed_;
  __device__ WgradWalk(const WgradArguments& p, const WgradMemory<Form>& memory)
      : p_(p), before_(memory.experts_before), numbers_(memory.numbers) {
    next();
  }
  __device__ void next() {
    const int a_tiles = ceil_div(p_.a_columns, kRows) * (kTransposed ? 1 : 1 + p_.pair);
    const int b_tiles = ceil_div(p_.b_columns, kColumns) * (kTransposed ? 1 + p_.pair : 1);
    const int tiles = a_tiles * b_tiles, tile = numbers_.next();
    while (expert < p_.experts.count && tile >= before_[expert + 1] * tiles) ++expert;
    found = expert < p_.experts.count;
    if (!found) return;
    first_row = p_.experts.before(expert);
    rows = p_.experts.before(expert + 1) - first_row;
    int in = tile - before_[expert] * tiles;
    const int group = in / (kWgradGroup * b_tiles);
    in -= group * kWgradGroup * b_tiles;
    const int high = min(kWgradGroup, a_tiles - group * kWgradGroup);
    const int b_tile = in / high, a_tile = group * kWgradGroup + in - b_tile * high;
    const int of_one = ceil_div(kTransposed ? p_.b_columns : p_.a_columns, kTransposed ? kColumns : kRows);
    second = (kTransposed ? b_tile : a_tile) >= of_one;
    a_column = (a_tile - (second && !kTransposed ? of_one : 0)) * kRows;
    b_column = (b_tile - (second && kTransposed ? of_one : 0)) * kColumns;
  }
  // Columns of the operands themselves.
  __device__ int a_first() const { return a_column + (second && !kTransposed ? p_.a_columns : 0); }
  __device__ int b_first() const { return b_column + (second && kTransposed ? p_.b_columns : 0); }

  bool found = false;  // the last one is not behind
  int expert = 0, first_row = 0, rows = 0;
  int a_column = 0, b_column = 0;  // of C or c2
  bool second = false;             // c2

 private:
  static constexpr int kColumns = Form::kColumns, kWgradGroup = 12;
  const WgradArguments& p_;
  const int* before_;
  TileReader<Form::kStages> numbers_;
};

// Fills stages, also those of the next tile while this one is multiplied.
template <class Form, bool kGather, bool kTransposed>
__device__ inline void produce_wgrad(const WgradArguments& p, WgradMemory<Form>& memory,
                                     TileTaker<Form::kStages>& taker) {
  constexpr int kTimes = kDepth / 8;  // rows of a thread in a block; half a warp copies one
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  if (!kGather && thread != 0) return;
  Ring<Form::kStages> ring;
  const int across = thread % 16, down = thread / 16;
  taker.hand_out();
  for (WgradWalk<Form, kTransposed> walk(p, memory); walk.found; walk.next()) {
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
      taker.at(block, blocks);
      const unsigned full = shared_address(&memory.full[ring.stage]);
      const unsigned a = shared_address(memory.a[ring.stage]), b = shared_address(memory.b[ring.stage]);
      barrier_wait(shared_address(&memory.empty[ring.stage]), ring.parity ^ 1);
      if (thread == 0) {
        const int row = walk.first_row + block * kDepth;
        barrier_arrive_expecting(full, Form::kBytesB + (kGather ? 0 : kBytesA));
#pragma unroll
        for (int i = 0; i < Form::kColumns / 64; ++i) {
          copy_box(b + i * kBoxBytes, &p.b, full, walk.b_first() + 64 * i, row);
        }
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
    taker.hand_out();
  }
}

// C of experts without rows, which have no tiles, becomes zeros; by a warpgroup of each block.
template <class C>
__device__ inline void clear_without_rows(const WgradArguments& p) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup, lane = thread % 32;
  const std::int64_t packs = std::int64_t{p.a_columns} * p.b_columns * static_cast<int>(sizeof(C)) / 16;
  const std::int64_t first = blockIdx.x * kWarpgroup + thread, step = gridDim.x * kWarpgroup;
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

// Rows of a stage that belong to the next expert, or to none, become zeros; by the warpgroups that multiply it.
template <class Form, bool kGather>
__device__ inline void clear_rows(WgradMemory<Form>& memory, int stage, int first) {
  constexpr int kThreads = Form::kTogether * kWarpgroup;
  const int thread = static_cast<int>(threadIdx.x) % kThreads, packs = (kDepth - first) * 8;
  const auto clear = [&](unsigned char* box) {
    auto* rows = reinterpret_cast<uint4*>(box + first * 128);
    for (int i = thread; i < packs; i += kThreads) rows[i] = make_uint4(0, 0, 0, 0);
  };
  for (int box = 0; !kGather && box < kRows / 64; ++box) clear(memory.a[stage] + box * kBoxBytes);
  for (int box = 0; box < Form::kColumns / 64; ++box) clear(memory.b[stage] + box * kBoxBytes);
  fence_async_shared();
}

// The one or two boxes of a square of C that begin inside, as f(tensor map, box, column, row); from the tile's columns
// `a` and `b` on.
template <class Walk, class F>
__device__ inline void for_boxes(const WgradArguments& p, const Walk& walk, int a, int b, const F& f) {
  a += walk.a_column;
  b += walk.b_column;
  const int first_row = Walk::kTransposed ? b : a, first_column = Walk::kTransposed ? a : b;
  const int rows = Walk::kTransposed ? p.b_columns : p.a_columns;
  const int columns = Walk::kTransposed ? p.a_columns : p.b_columns;
  const CUtensorMap* map = walk.second ? &p.c2_map : &p.c_map;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (first_row < rows && first_column + 32 * i < columns) f(map, i, first_column + 32 * i, first_row);
  }
}

}  // namespace megalith::cuda::hopper
