// The forms of the kernel in grouped_gemm_hopper_mainloop.cuh: what its blocks hold, and which tiles they take.
#pragma once

#include "moe/ops/grouped_gemm_hopper.cuh"

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
  int* counter;
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
  TileNumbers<kStages> numbers;
  int tiles_before[kMostExperts + 1];  // row tiles of the experts before
};

// Where a tile is: experts in order; of an expert, groups of kGroup row tiles, in each of them column tile after column
// tile, so that what blocks read at a time is a square of both operands.
inline constexpr int kGroup = 12;
class Walk {
 public:
  __device__ Walk(const int* before, const RoutedExperts& experts, int column_tiles)
      : before_(before), experts_(experts), column_tiles_(column_tiles) {}

  // Of ascending numbers. False after the last one.
  __device__ bool find(int tile) {
    while (expert < experts_.count && tile >= before_[expert + 1] * column_tiles_) ++expert;
    if (expert >= experts_.count) return false;
    const int row_tiles = before_[expert + 1] - before_[expert];
    int in = tile - before_[expert] * column_tiles_;
    const int group = in / (kGroup * column_tiles_);
    in -= group * kGroup * column_tiles_;
    const int rows = min(kGroup, row_tiles - group * kGroup);
    column = in / rows;
    first_row = experts_.before(expert) + (group * kGroup + in - column * rows) * kRows;
    live = experts_.before(expert + 1) - first_row;
    return true;
  }

  int expert = 0;
  int first_row = 0, live = 0;  // of the tile: rows from the first one on that belong to the expert
  int column = 0;               // tile

 private:
  const int* before_;
  const RoutedExperts& experts_;
  int column_tiles_;
};

template <class Form>
class Tiles {
 public:
  static constexpr int kWidth = Form::kColumns / (Form::kGated ? 2 : 1);
  __device__ Tiles(const RowsArguments& p, const RowsMemory<Form>& memory)
      : walk(memory.tiles_before, p.experts,
             ceil_div(p.columns, kWidth) * (Form::kBAlongK && !Form::kGated ? 1 + p.pair : 1)),
        numbers_(memory.numbers),
        tiles_(ceil_div(p.columns, kWidth)) {
    next();
  }
  __device__ void next() {
    found = walk.find(numbers_.next());
    if (!found) return;
    second = Form::kBAlongK && walk.column >= tiles_;
    first = (second ? walk.column - tiles_ : walk.column) * kWidth;
  }

  bool found = false;  // the last one is not behind
  Walk walk;
  int first = 0;        // column of a matrix of b
  bool second = false;  // of b2

 private:
  TileReader<Form::kStages> numbers_;
  int tiles_;
};

}  // namespace megalith::cuda::hopper
