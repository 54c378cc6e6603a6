// c_r = a_r B_e: 128 rows of one expert by 256 columns a tile. Bound by the tensor cores and by power, next by what L2
// delivers. A multiplying thread keeps 128 sums; k ascending, so deterministic. What follows the product sees it
// rounded to bf16 in shared memory.
#pragma once

#include "core/ops/grouped_gemm_hopper.cuh"
#include "core/ops/routed_swiglu.cuh"

namespace megalith::cuda::hopper {

enum class Epilogue { kStore, kSwiglu, kSwigluBackward };

struct RowsArguments {
  CUtensorMap a, b, b2;  // boxes of 64 columns by 128 rows; of b not along k by 64 rows
  const int *offsets, *index;
  const Bf16* a_rows;  // of a gathered a
  std::int64_t a_stride;
  Bf16* c;  // kStore: c; kSwiglu: h; kSwigluBackward: dh
  std::int64_t c_stride;
  Bf16* y;                  // both of SwiGLU
  const Bf16* h;            // kSwigluBackward
  const float* row_weight;  // both of SwiGLU
  float* partial;           // kSwigluBackward
  int experts;
  int columns;  // of one matrix of b: n or F
  int depth;    // k of one matrix
  int pair;     // 1: b2 has the other columns (along k), or the other depth
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
  int tiles_before[kMostExperts + 1];               // row tiles of the experts before
};

// The first warp: sums of the experts' row tiles.
__device__ inline void count_tiles(int* before, const int* offsets, int experts) {
  const int lane = static_cast<int>(threadIdx.x);
  int sum = 0;
  for (int first = 0; first < experts; first += 32) {
    const int e = first + lane;
    int tiles = e < experts ? max(0, ceil_div(offsets[e + 1] - offsets[e], kRows)) : 0;
    for (int step = 1; step < 32; step *= 2) {
      const int below = __shfl_up_sync(~0u, tiles, step);
      if (lane >= step) tiles += below;
    }
    if (e < experts) before[e + 1] = sum + tiles;
    sum += __shfl_sync(~0u, tiles, 31);
  }
  if (lane == 0) before[0] = 0;
}

// A walk over the tiles of a block: experts in order; of an expert, groups of kGroup row tiles, in each of them column
// tile after column tile, so that what blocks read at a time is a square of both operands.
inline constexpr int kGroup = 12;
class Walk {
 public:
  __device__ Walk(const int* before, const int* offsets, int experts, int column_tiles)
      : before_(before),
        offsets_(offsets),
        experts_(experts),
        column_tiles_(column_tiles),
        tile_(static_cast<int>(blockIdx.x)) {}

  // False after the last one.
  __device__ bool find() {
    while (expert < experts_ && tile_ >= before_[expert + 1] * column_tiles_) ++expert;
    if (expert >= experts_) return false;
    const int row_tiles = before_[expert + 1] - before_[expert];
    int in = tile_ - before_[expert] * column_tiles_;
    const int group = in / (kGroup * column_tiles_);
    in -= group * kGroup * column_tiles_;
    const int rows = min(kGroup, row_tiles - group * kGroup);
    column = in / rows;
    first_row = offsets_[expert] + (group * kGroup + in - column * rows) * kRows;
    live = offsets_[expert + 1] - first_row;
    return true;
  }
  __device__ void next() { tile_ += static_cast<int>(gridDim.x); }

  int expert = 0;
  int first_row = 0, live = 0;  // of the tile: rows from the first one on that belong to the expert
  int column = 0;               // tile

 private:
  const int *before_, *offsets_;
  int experts_, column_tiles_, tile_;
};

template <class Form>
class Tiles {
 public:
  static constexpr int kWidth = Form::kColumns / (Form::kGated ? 2 : 1);
  __device__ Tiles(const RowsArguments& p, const RowsMemory<Form>& memory)
      : walk(memory.tiles_before, p.offsets, p.experts,
             ceil_div(p.columns, kWidth) * (Form::kBAlongK && !Form::kGated ? 1 + p.pair : 1)),
        tiles_(ceil_div(p.columns, kWidth)) {}
  __device__ bool find() {
    if (!walk.find()) return false;
    second = Form::kBAlongK && walk.column >= tiles_;
    first = (second ? walk.column - tiles_ : walk.column) * kWidth;
    return true;
  }

  Walk walk;
  int first = 0;        // column of a matrix of b
  bool second = false;  // of b2

 private:
  int tiles_;
};

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

template <class Form>
__device__ inline void produce(const RowsArguments& p, RowsMemory<Form>& memory, int blocks) {
  constexpr int kTimes = kRows * 8 / Form::kProducers;  // rows of a thread; eight lanes copy the 128 bytes of one
  const int thread = static_cast<int>(threadIdx.x), pack = thread % 8, down = thread / 8;
  static_assert(!Form::kGather || Form::kProducers % 64 == 0, "a thread's rows have one remainder modulo 8");
  if (!Form::kGather && thread != 0) return;
  const unsigned stride = static_cast<unsigned>(p.a_stride / 8);
  Ring<Form::kStages> ring;
  for (Tiles<Form> tiles(p, memory); tiles.find(); tiles.walk.next()) {
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
  }
}

template <class Form>
__device__ inline void multiply_tiles(const RowsArguments& p, RowsMemory<Form>& memory, int blocks) {
  constexpr int kColumns = Form::kColumns;
  const int warp = static_cast<int>(threadIdx.x) / 32 - 4, half = warp / 4, lane = static_cast<int>(threadIdx.x) % 32;
  const unsigned product_full = shared_address(&memory.product_full[half]);
  const unsigned product_empty = shared_address(&memory.product_empty[half]);
  Ring<Form::kStages> ring;
  unsigned round = 0;
  for (Tiles<Form> tiles(p, memory); tiles.find(); tiles.walk.next()) {
    if (tiles.walk.live <= half * kHalf) {  // nothing of ours: only keep the stages going
      for (int block = 0; block < blocks; ++block, ring.next()) {
        barrier_wait(shared_address(&memory.full[ring.stage]), ring.parity);
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

// Two values of w round(silu(gate) up).
__device__ inline unsigned weighted_swiglu(unsigned gate, unsigned up, float weight) {
  const float2 g = unpacked(gate), u = unpacked(up);
  return packed(routed_output(routed_activation<bf16>(g.x, u.x), weight),
                routed_output(routed_activation<bf16>(g.y, u.y), weight));
}

// Two values: dy's gradients take the places of gate and up, the forward's y that of dy.
__device__ inline void swiglu_backward(unsigned& dy, float weight, unsigned& gate, unsigned& up, float& sum) {
  const float2 g = unpacked(gate), u = unpacked(up), d = unpacked(dy);
  const RoutedGradient x = routed_gradient<bf16>(g.x, u.x, d.x, weight, sum);
  const RoutedGradient y = routed_gradient<bf16>(g.y, u.y, d.y, weight, sum);
  dy = packed(x.y, y.y);
  gate = packed(x.gate, y.gate);
  up = packed(x.up, y.up);
}

__device__ inline void store(Bf16* to, uint4 v, bool live) {
  if (live) *reinterpret_cast<uint4*>(to) = v;
}

// What follows the product of one half: eight threads share a row, 8 columns each of 64.
template <class Form>
__device__ inline void finish_half(const RowsArguments& p, const RowsMemory<Form>& memory, int half,
                                   std::int64_t first_row, int live, int first, bool second) {
  const int thread = Form::finishing_thread(), pack = thread % 8;
  const auto product = [&](int c, int row) {
    return load_shared(shared_address(memory.product[c]) + row * 128 + ((pack ^ row % 8) << 4));
  };
#pragma unroll 2
  for (int down = thread / 8; down < kHalf; down += Form::kFinishing / 8) {
    const int row = half * kHalf + down;
    const bool row_lives = row < live;
    const std::int64_t r = first_row + row;
    const auto inside = [&](int c) { return row_lives && first + 64 * c + pack * 8 < p.columns; };
    if constexpr (Form::kEpilogue == Epilogue::kStore) {
      Bf16* to = p.c + r * p.c_stride + first + (second ? p.columns : 0) + pack * 8;
#pragma unroll
      for (int c = 0; c < Form::kColumns / 64; ++c) store(to + 64 * c, product(c, row), inside(c));
    } else {
      const float weight = row_lives ? p.row_weight[r] : 0;
      Bf16* h = p.c + r * 2 * p.columns + first + pack * 8;
      Bf16* y = p.y + r * p.columns + first + pack * 8;
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const uint4 g = product(c, row), u = product(c + 2, row);
        store(h + 64 * c, g, inside(c));
        store(h + p.columns + 64 * c, u, inside(c));
        const uint4 v = {weighted_swiglu(g.x, u.x, weight), weighted_swiglu(g.y, u.y, weight),
                         weighted_swiglu(g.z, u.z, weight), weighted_swiglu(g.w, u.w, weight)};
        store(y + 64 * c, v, inside(c));
      }
    }
  }
}

// A row's part of h: 8 gates and ups in each of the tile's 64 columns.
template <int kColumns>
struct HiddenRow {
  uint4 gate[kColumns / 64], up[kColumns / 64];
  float weight = 0;

  __device__ void load(const RowsArguments& p, std::int64_t row, int first, bool lives) {
    weight = lives ? p.row_weight[row] : 0;
    const Bf16* at = p.h + row * 2 * p.columns + first;
#pragma unroll
    for (int c = 0; c < kColumns / 64; ++c) {
      gate[c] = up[c] = make_uint4(0, 0, 0, 0);
      if (!lives || first + 64 * c >= p.columns) continue;
      gate[c] = *reinterpret_cast<const uint4*>(at + 64 * c);
      up[c] = *reinterpret_cast<const uint4*>(at + p.columns + 64 * c);
    }
  }
};

template <class Form>
__device__ inline void finish_swiglu_backward(const RowsArguments& p, RowsMemory<Form>& memory, int half,
                                              unsigned round, std::int64_t first_row, int live, int first) {
  constexpr int kColumns = Form::kColumns;
  const int thread = Form::finishing_thread(), pack = thread % 8;
  constexpr int kStep = Form::kFinishing / 8, kTimes = (kHalf + kStep - 1) / kStep;
  const auto row_of = [&](int i) { return thread / 8 + i * kStep; };  // of the half
  const auto lives = [&](int i) { return row_of(i) < kHalf && half * kHalf + row_of(i) < live; };
  HiddenRow<kColumns> next;
  const auto fetch = [&](int i) { next.load(p, first_row + half * kHalf + row_of(i), first + pack * 8, lives(i)); };
  fetch(0);
  barrier_wait(shared_address(&memory.product_full[half]), round);
#pragma unroll 1
  for (int i = 0; i < kTimes; ++i) {
    HiddenRow<kColumns> now = next;
    if (i + 1 < kTimes) fetch(i + 1);
    if (row_of(i) >= kHalf) continue;
    const int row = half * kHalf + row_of(i);
    const std::int64_t r = first_row + row, at = r * 2 * p.columns + first + pack * 8;
    float sums[kColumns / 64];
#pragma unroll
    for (int c = 0; c < kColumns / 64; ++c) {
      uint4 d = load_shared(shared_address(memory.product[c]) + row * 128 + ((pack ^ row % 8) << 4));
      float sum = 0;
      swiglu_backward(d.x, now.weight, now.gate[c].x, now.up[c].x, sum);
      swiglu_backward(d.y, now.weight, now.gate[c].y, now.up[c].y, sum);
      swiglu_backward(d.z, now.weight, now.gate[c].z, now.up[c].z, sum);
      swiglu_backward(d.w, now.weight, now.gate[c].w, now.up[c].w, sum);
      const bool inside = lives(i) && first + pack * 8 + 64 * c < p.columns;
      store(p.c + at + 64 * c, now.gate[c], inside);
      store(p.c + at + p.columns + 64 * c, now.up[c], inside);
      store(p.y + r * p.columns + first + pack * 8 + 64 * c, d, inside);
      sums[c] = sum;
    }
#pragma unroll
    for (int c = 0; c < kColumns / 64; ++c) sums[c] = sum_of_packs(sums[c]);
    const int all = ceil_div(p.columns, kPartialColumns);
#pragma unroll
    for (int c = 0; c < kColumns / 64; ++c) {
      if (pack == c && lives(i) && first + 64 * c < p.columns) p.partial[r * all + first / 64 + c] = sums[c];
    }
  }
}

template <class Form>
__device__ inline void finish(const RowsArguments& p, RowsMemory<Form>& memory) {
  unsigned round[2] = {0, 0};
  for (Tiles<Form> tiles(p, memory); tiles.find(); tiles.walk.next()) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (tiles.walk.live <= half * kHalf) continue;
      if constexpr (Form::kEpilogue == Epilogue::kSwigluBackward) {
        finish_swiglu_backward(p, memory, half, round[half], tiles.walk.first_row, tiles.walk.live, tiles.first);
      } else {
        barrier_wait(shared_address(&memory.product_full[half]), round[half]);
        finish_half(p, memory, half, tiles.walk.first_row, tiles.walk.live, tiles.first, tiles.second);
      }
      round[half] ^= 1;
      __syncwarp();
      if (threadIdx.x % 32 == 0) barrier_arrive(shared_address(&memory.product_empty[half]));
    }
  }
}

template <class Form>
__global__ void __launch_bounds__(Form::kThreads, 1) grouped_gemm_kernel(const __grid_constant__ RowsArguments p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // not in the code for other devices
  extern __shared__ __align__(1024) unsigned char shared[];
  auto& memory = *reinterpret_cast<RowsMemory<Form>*>(shared);
  if (threadIdx.x == 0) {
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
  if (threadIdx.x < 32) count_tiles(memory.tiles_before, p.offsets, p.experts);
  __syncthreads();
  const int blocks = p.depth / kDepth * (Form::kBAlongK ? 1 : 1 + p.pair);
  if (threadIdx.x / kWarpgroup % 3 == 0) {
    registers_down<Form::kOtherRegisters>();
    if (threadIdx.x < Form::kProducers) {
      produce(p, memory, blocks);
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
