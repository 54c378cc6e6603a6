// Compute-bound. The grid covers the capacity. A block finds its expert and rows from the offsets, so ragged experts
// need no padding and graph replays accept new routings. Deterministic: one block computes each element as one sum.
#include "moe/ops/grouped_gemm/grouped_gemm_plain_cuda.h"

#include "core/ops/cuda_launch.cuh"
#include "core/ops/gemm/cuda_product_tile.cuh"
#include "moe/ops/cuda_experts.cuh"
#include "moe/ops/cuda_gather.cuh"

namespace megalith::cuda {

namespace {

// Rows of experts, in order or by `index`.
template <class T>
struct RoutedOperand {
  const T* data;
  std::int64_t stride;
  const std::int32_t* index;  // null: none

  RoutedOperand(const Tensor& x, const Tensor& rows)
      : data(x.as<const T>()), stride(x.stride(0)), index(rows.as<const std::int32_t>()) {}
  // Lines from routed row `first` and column `column` on.
  __device__ Lines<T> from(int first, std::int64_t column, int lines, int elements) const {
    if (index != nullptr) return {data + column, stride, index + first, lines, elements};
    return {data + first * stride + column, stride, nullptr, lines, elements};
  }
};

template <class T>
__device__ inline void store_pair(T* to, bool both, float x, float y) {
  to[0] = narrow<T>(x);
  if (both) to[1] = narrow<T>(y);
}

// Stores two elements at an address that is a multiple of their size.
template <class T>
__device__ inline void store_whole_pair(T* to, float x, float y) {
  if constexpr (sizeof(T) == 2) {
    *reinterpret_cast<unsigned*>(to) = pack_pair(x, y);
  } else {
    *reinterpret_cast<float2*>(to) = make_float2(x, y);
  }
}

template <class T>
__device__ inline void add_whole_pair(T* to, float x, float y) {
  if constexpr (sizeof(T) == 2) {
    float low, high;
    unpack_pair(*reinterpret_cast<const unsigned*>(to), low, high);
    store_whole_pair(to, low + x, high + y);
  } else {
    const float2 before = *reinterpret_cast<const float2*>(to);
    store_whole_pair(to, before.x + x, before.y + y);
  }
}

template <class T>
struct GemmArguments {
  RoutedExperts offsets;
  RoutedOperand<T> a;
  const T *b, *b2;  // b2 may be null
  T* c;
  std::int64_t c_stride;
  int k, n;               // per matrix
  unsigned matrix_tiles;  // tiles of n
  unsigned column_tiles;  // of c
  GatherLimits limits;    // for a gathered a
};

// A block owns a tile of c within the rows of one expert. Tiles adjacent in N run consecutively. Therefore rows of a
// are read from memory once, and an expert's matrix stays in L2 while it fits.
template <class T, bool kTransposeB, bool kVector>
__global__ void __launch_bounds__(kTileThreads) grouped_gemm_kernel(const GemmArguments<T> a) {
  __shared__ TilePanels<T, true, kTransposeB> panels;
  const ExpertTile tile = find_tile<kTile>(a.offsets, blockIdx.x / a.column_tiles);
  if (tile.rows == 0) return;
  if (kChecksIndices && a.a.index != nullptr && a.k > 0 && !are_rows(a.a.index, tile.first, tile.rows, a.limits))
    return;
  const unsigned column_tile = blockIdx.x % a.column_tiles;
  const bool second = column_tile >= a.matrix_tiles;  // second matrix of a transposed pair
  const int column = static_cast<int>(second ? column_tile - a.matrix_tiles : column_tile) * kTile;
  const int columns = a.n - column;
  const std::int64_t matrix = std::int64_t{tile.expert} * a.k * a.n;

  TileSums<T> sums;
  const Lines<T> rows = a.a.from(tile.first, 0, tile.rows, a.k);
  if constexpr (kTransposeB) {
    const T* b = (second ? a.b2 : a.b) + matrix + std::int64_t{column} * a.k;
    multiply_tile<T, true, true, kVector>(rows, {b, a.k, nullptr, columns, a.k}, a.k, panels, sums);
  } else {
    multiply_tile<T, true, false, kVector>(rows, {a.b + matrix + column, a.n, nullptr, a.k, columns}, a.k, panels,
                                           sums);
    if (a.b2 != nullptr) {
      multiply_tile<T, true, false, kVector>(a.a.from(tile.first, a.k, tile.rows, a.k),
                                             {a.b2 + matrix + column, a.n, nullptr, a.k, columns}, a.k, panels, sums);
    }
  }

  T* c = a.c + tile.first * a.c_stride + (second ? a.n : 0) + column;
  sums.for_each_pair([&](int i, int j, float x, float y) {
    if (i >= tile.rows || j >= columns) return;
    T* to = c + i * a.c_stride + j;
    if constexpr (kVector) {
      store_whole_pair(to, x, y);
    } else {
      store_pair(to, j + 1 < columns, x, y);
    }
  });
}

template <class T, class C>
struct WgradArguments {
  RoutedExperts offsets;
  RoutedOperand<T> a, b;
  C *c, *c2;              // c2 may be null
  bool adds;              // otherwise overwrites
  int m, n;               // per matrix
  unsigned matrix_tiles;  // tiles of m
  unsigned row_tiles;     // of both matrices
  unsigned column_tiles;
  GatherLimits limits;  // for the gathered operand
};

// A block owns a tile of an expert's matrix for all rows of the expert, and adds to it or writes it once.
template <class T, class C, bool kVector>
__global__ void __launch_bounds__(kTileThreads) grouped_gemm_wgrad_kernel(const WgradArguments<T, C> a) {
  __shared__ TilePanels<T, false, false> panels;
  const unsigned row_of_tiles = blockIdx.x / a.column_tiles;
  const int expert = static_cast<int>(row_of_tiles / a.row_tiles);
  const int first = a.offsets.before(expert), count = a.offsets.before(expert + 1) - first;
  if (count <= 0 && a.adds) return;
  if constexpr (kChecksIndices) {
    const std::int32_t* const index = a.a.index != nullptr ? a.a.index : a.b.index;
    if (index != nullptr && !are_rows(index, first, count, a.limits)) return;
  }
  const unsigned row_tile = row_of_tiles % a.row_tiles;
  const bool second = row_tile >= a.matrix_tiles;
  const int row = static_cast<int>(second ? row_tile - a.matrix_tiles : row_tile) * kTile;
  const int column = static_cast<int>(blockIdx.x % a.column_tiles) * kTile;
  const int rows = a.m - row, columns = a.n - column;

  TileSums<T> sums;
  multiply_tile<T, false, false, kVector>(a.a.from(first, std::int64_t{second ? a.m : 0} + row, count, rows),
                                          a.b.from(first, column, count, columns), count, panels, sums);

  C* c = (second ? a.c2 : a.c) + (std::int64_t{expert} * a.m + row) * a.n + column;
  sums.for_each_pair([&](int i, int j, float x, float y) {
    if (i >= rows || j >= columns) return;
    C* to = c + std::int64_t{i} * a.n + j;
    if constexpr (kVector) {
      if (a.adds) {
        add_whole_pair(to, x, y);
      } else {
        store_whole_pair(to, x, y);
      }
    } else {
      const bool both = j + 1 < columns;
      store_pair(to, both, a.adds ? widen(to[0]) + x : x, a.adds && both ? widen(to[1]) + y : y);
    }
  });
}

int extent(std::int64_t size) {
  require(size < kMaxIndex / 2, "a grouped product of an extent of 2^30 or more");
  return static_cast<int>(size);
}

// Number of tiles, at least one, since kernels divide by it.
unsigned tiles_of(std::int64_t size) { return blocks_for(size, kTile); }

bool are_packs(std::int64_t elements, DType dtype) {
  return elements * static_cast<std::int64_t>(size_of(dtype)) % 16 == 0;
}

RoutedExperts experts_of(const Tensor& offsets, std::int64_t capacity) {
  return {offsets.as<const std::int32_t>(), extent(offsets.size(0) - 1), extent(capacity)};
}

}  // namespace

void run_plain(CudaStream& stream, const GroupedGemm& op) {
  const RoutedExperts offsets = experts_of(op.offsets, op.c.size(0));
  const std::int64_t k = op.transpose_b ? op.b.size(1) : op.b.size(0) / offsets.count;
  const std::int64_t n = op.transpose_b ? op.b.size(0) / offsets.count : op.b.size(1);
  const unsigned matrix_tiles = tiles_of(n), column_tiles = op.b2 && op.transpose_b ? 2 * matrix_tiles : matrix_tiles;
  const unsigned blocks = blocks_for(max_tiles(offsets.capacity, offsets.count, kTile) * column_tiles, 1);
  const bool vector = are_packs(k, op.b.dtype) && are_packs(n, op.b.dtype) && rows_aligned(op.a, op.b, op.b2, op.c);
  Variants(op.b.dtype, op.transpose_b, vector).visit([&](auto type, auto transpose_b, auto is_vector) {
    using T = decltype(type);
    const GemmArguments<T> arguments{.offsets = offsets,
                                     .a = RoutedOperand<T>(op.a, op.index),
                                     .b = op.b.as<const T>(),
                                     .b2 = op.b2.as<const T>(),
                                     .c = op.c.as<T>(),
                                     .c_stride = op.c.stride(0),
                                     .k = extent(k),
                                     .n = extent(n),
                                     .matrix_tiles = matrix_tiles,
                                     .column_tiles = column_tiles,
                                     .limits = gather_limits(stream, op.a)};
    launch_kernel(stream, {blocks, kTileThreads}, grouped_gemm_kernel<T, transpose_b(), is_vector()>, arguments);
  });
}

void run_plain(CudaStream& stream, const GroupedGemmWgrad& op) {
  const RoutedExperts offsets = experts_of(op.offsets, op.a_index ? op.b.size(0) : op.a.size(0));
  const std::int64_t m = op.c.size(0) / offsets.count, n = op.c.size(1);
  const unsigned matrix_tiles = tiles_of(m), row_tiles = op.c2 ? 2 * matrix_tiles : matrix_tiles;
  const unsigned column_tiles = tiles_of(n);
  const unsigned blocks = blocks_for(std::int64_t{offsets.count} * row_tiles * column_tiles, 1);
  const bool vector = are_packs(m, op.a.dtype) && rows_aligned(op.a, op.b, op.c, op.c2);
  Variants(op.a.dtype, op.c.dtype, vector).visit([&](auto type, auto sum_type, auto is_vector) {
    using T = decltype(type);
    using C = decltype(sum_type);
    if constexpr (sizeof(C) >= sizeof(T)) {  // check() rejects bf16 sums of fp32 terms
      const WgradArguments<T, C> arguments{.offsets = offsets,
                                           .a = RoutedOperand<T>(op.a, op.a_index),
                                           .b = RoutedOperand<T>(op.b, op.b_index),
                                           .c = op.c.as<C>(),
                                           .c2 = op.c2.as<C>(),
                                           .adds = op.accumulate,
                                           .m = extent(m),
                                           .n = extent(n),
                                           .matrix_tiles = matrix_tiles,
                                           .row_tiles = row_tiles,
                                           .column_tiles = column_tiles,
                                           .limits = gather_limits(stream, op.b_index ? op.b : op.a)};
      launch_kernel(stream, {blocks, kTileThreads}, grouped_gemm_wgrad_kernel<T, C, is_vector()>, arguments);
    }
  });
}

void run_plain(CudaStream& stream, const GroupedGemmSwiglu& op) {
  run_plain(stream, product_of(op));
  run(stream, swiglu_of(op));
}

void run_plain(CudaStream& stream, const GroupedGemmSwigluBackward& op) {
  run_plain(stream, product_of(op));
  run(stream, swiglu_of(op));
}

}  // namespace megalith::cuda
