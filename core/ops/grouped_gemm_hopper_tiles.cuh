// The forms of the kernel in grouped_gemm_hopper_rows.cuh: what its blocks hold, and which tiles they take.
#pragma once

#include "core/ops/cuda_experts.cuh"
#include "core/ops/grouped_gemm_hopper.cuh"

namespace megalith::cuda::hopper {

enum class Epilogue { kStore, kSwiglu, kSwigluBackward };

struct RowsArguments {
  CUtensorMap a, b, b2;  // boxes of 64 columns by 128 rows; of b not along k by 64 rows
  RoutedExperts experts;
  const int* index;
  const Bf16* a_rows;  // of a gathered a
  std::int64_t a_stride;
  Bf16* c;  // kStore: c; kSwiglu: h; kSwigluBackward: dh
  std::int64_t c_stride;
  Bf16* y;                  // both of SwiGLU
  const Bf16* h;            // kSwigluBackward
  const float* row_weight;  // both of SwiGLU
  float* partial;           // kSwigluBackward
  int columns;              // of one matrix of b: n or F
  int depth;                // k of one matrix
  int pair;                 // 1: b2 has the other columns (along k), or the other depth
};

// The gradient of SwiGLU has much to do after the product: narrower tiles leave registers to one more warpgroup for it.
template <bool kGather_, bool kBAlongK_, Epilogue kEpilogue_>
struct RowsForm {
  static constexpr bool kGather = kGather_;    // rows of a through an index
  static constexpr bool kBAlongK = kBAlongK_;  // b is [E n, k]
  static constexpr Epilogue kEpilogue = kEpilogue_;
  static constexpr bool kGated = kEpilogue == Epilogue::kSwiglu;  // half of the columns from b, half from b2
  static constexpr bool kWide = kEpilogue != Epilogue::kSwigluBackward;
  static constexpr int kColumns = kWide ? 256 : 192;
  static constexpr int kStages = kWide ? 3 : 4;
  static constexpr int kThreads = (kWide ? 3 : 4) * kWarpgroup;
  static constexpr int kProducers = 32 * (!kGather ? 1 : kWide ? 2 : 4);     // threads that fill stages
  static constexpr int kFinishing = kThreads - 2 * kWarpgroup - kProducers;  // and those after the product
  static constexpr int kBytesB = kColumns * kDepth * 2;
  static constexpr int kMultiplyRegisters = kWide ? 184 : 152, kOtherRegisters = kWide ? 136 : 104;
  // The stage during which the next tile is looked up: early where registers are left.
  __device__ static int looks_ahead(int stages) { return kWide ? 0 : stages - 1; }
  // The number of a thread among the finishing ones, which are on both sides of the multiplying warpgroups.
  __device__ static int finishing_thread() {
    return static_cast<int>(threadIdx.x) - kProducers - (threadIdx.x < kWarpgroup ? 0 : 2 * kWarpgroup);
  }
};

template <class Form>
struct RowsMemory {
  static constexpr int kStages = Form::kStages;
  alignas(1024) unsigned char a[kStages][kBytesA];
  alignas(1024) unsigned char b[kStages][Form::kBytesB];
  alignas(1024) unsigned char product[Form::kColumns / 64][kRows * 128];  // rounded, 64 columns each
  std::uint64_t full[kStages], empty[kStages];
  std::uint64_t product_full[2], product_empty[2];  // of each half of the rows
  int tiles_before[kMostExperts + 1];               // row tiles of the experts before
};

// The first warp: sums of the experts' row tiles.
__device__ inline void count_tiles(int* before, const RoutedExperts& experts) {
  const int lane = static_cast<int>(threadIdx.x);
  int sum = 0;
  for (int first = 0; first < experts.count; first += 32) {
    const int e = first + lane;
    int tiles = e < experts.count ? max(0, ceil_div(experts.before(e + 1) - experts.before(e), kRows)) : 0;
    for (int step = 1; step < 32; step *= 2) {
      const int below = __shfl_up_sync(~0u, tiles, step);
      if (lane >= step) tiles += below;
    }
    if (e < experts.count) before[e + 1] = sum + tiles;
    sum += __shfl_sync(~0u, tiles, 31);
  }
  if (lane == 0) before[0] = 0;
}

struct Tile {
  int expert, first_row, live;  // rows from the first one on that belong to the expert
  int first;                    // column of a matrix of b
  bool second;                  // of b2
};

// A block's tiles: experts in order; of an expert, groups of kGroup row tiles, in each of them column tile after column
// tile, so that what blocks read at a time is a square of both operands. To find one takes some hundred cycles.
inline constexpr int kGroup = 12;
template <class Form>
class Tiles {
 public:
  __device__ Tiles(const RowsArguments& p, const RowsMemory<Form>& memory)
      : before_(memory.tiles_before),
        experts_(p.experts),
        of_one_(ceil_div(p.columns, kWidth)),
        columns_(of_one_ * (Form::kBAlongK && !Form::kGated ? 1 + p.pair : 1)),
        at_(static_cast<int>(blockIdx.x)) {}

  // False after the last one.
  __device__ bool find() {
    while (tile.expert < experts_.count && at_ >= before_[tile.expert + 1] * columns_) ++tile.expert;
    if (tile.expert >= experts_.count) return false;
    const int row_tiles = before_[tile.expert + 1] - before_[tile.expert];
    int in = at_ - before_[tile.expert] * columns_;
    const int group = in / (kGroup * columns_);
    in -= group * kGroup * columns_;
    const int rows = min(kGroup, row_tiles - group * kGroup), column = in / rows;
    tile.first_row = experts_.before(tile.expert) + (group * kGroup + in - column * rows) * kRows;
    tile.live = experts_.before(tile.expert + 1) - tile.first_row;
    tile.second = Form::kBAlongK && column >= of_one_;
    tile.first = (tile.second ? column - of_one_ : column) * kWidth;
    return true;
  }
  __device__ bool next() {
    at_ += static_cast<int>(gridDim.x);
    return find();
  }

  Tile tile{};

 private:
  static constexpr int kWidth = Form::kColumns / (Form::kGated ? 2 : 1);
  const int* before_;
  const RoutedExperts& experts_;
  int of_one_, columns_, at_;  // column tiles of a matrix, of all; the tile's number
};

}  // namespace megalith::cuda::hopper
