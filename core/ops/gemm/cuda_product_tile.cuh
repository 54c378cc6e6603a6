// A 64 x 64 tile of a matrix product, for any layout and alignment of its operands: bf16 through mma.sync (compute_80
// on), fp32 through fused multiply-adds. Each element is one fp32 sum over k, ascending, in steps of 64 bytes from 0.
// It depends on its row, its column and k alone. A block of kTileThreads owns a tile.
#pragma once

#include "core/ops/cuda_pack.cuh"

namespace megalith::cuda {

inline constexpr int kTile = 64;
inline constexpr int kTileThreads = 128;
template <class T>
inline constexpr int kTileDepth = 64 / static_cast<int>(sizeof(T));  // elements of k per step

// Source of an operand's tile: 64 lines along k, or k lines of 64 elements. Lines are rows of a matrix, in order or by
// `index`.
template <class T>
struct Lines {
  const T* data;              // first element of the tile: with an index of row 0, otherwise of the first line
  std::int64_t stride;        // elements between rows
  const std::int32_t* index;  // index of the first line; may be null
  int lines, elements;        // valid ones: the others count as 0

  __device__ const T* line(int i) const { return data + (index == nullptr ? i : index[i]) * stride; }
};

// The operand's part in shared memory that is multiplied next. Bf16 is laid out as in memory, in lines with distinct
// banks, as ldmatrix reads eight at once; fp32 always with k from line to line.
template <class T, bool kAlongK>
struct Panel {
  static constexpr bool kAsInMemory = sizeof(T) == 2;
  static constexpr int kLineLength = kAsInMemory && kAlongK ? kTileDepth<T> + 8 : kAsInMemory ? kTile + 8 : kTile + 2;
  alignas(16) T at[kAsInMemory && kAlongK ? kTile : kTileDepth<T>][kLineLength];
};

// Loads an operand from memory into its panel, two packs a thread, through registers: the next part is in flight while
// one is multiplied.
template <class T, bool kAlongK, bool kVector>
class PanelLoader {
 public:
  static constexpr int kPacksOfLine = (kAlongK ? kTileDepth<T> : kTile) / kPack<T>;

  __device__ explicit PanelLoader(const Lines<T>& lines) : lines_(lines) {
    if constexpr (kAlongK) {
#pragma unroll
      for (int u = 0; u < 2; ++u) row_[u] = line_of(u) < lines_.lines ? lines_.line(line_of(u)) : nullptr;
    }
  }

  __device__ void fetch(int k) {
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      if constexpr (kAlongK) {
        const int length = row_[u] == nullptr ? 0 : lines_.elements;
        raw_[u] = load_of_row<T, kVector>(row_[u], k + element_of(u), length);
      } else {
        const bool is_line = k + line_of(u) < lines_.lines;
        const T* row = is_line ? lines_.line(k + line_of(u)) : nullptr;
        raw_[u] = load_of_row<T, kVector>(row, element_of(u), is_line ? lines_.elements : 0);
      }
    }
  }

  __device__ void store(Panel<T, kAlongK>& panel) const {
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      if constexpr (sizeof(T) == 2) {
        store_full(&panel.at[line_of(u)][element_of(u)], raw_[u]);
      } else if constexpr (kAlongK) {
        const Floats<T> x(raw_[u]);
#pragma unroll
        for (int j = 0; j < kPack<T>; ++j) panel.at[element_of(u) + j][line_of(u)] = x[j];
      } else {
        auto* to = reinterpret_cast<uint2*>(&panel.at[line_of(u)][element_of(u)]);
        to[0] = make_uint2(raw_[u].x, raw_[u].y);
        to[1] = make_uint2(raw_[u].z, raw_[u].w);
      }
    }
  }

 private:
  __device__ static int item(int u) { return static_cast<int>(threadIdx.x) + u * kTileThreads; }
  __device__ static int line_of(int u) { return item(u) / kPacksOfLine; }
  __device__ static int element_of(int u) { return item(u) % kPacksOfLine * kPack<T>; }

  Lines<T> lines_;
  const T* row_[2] = {nullptr, nullptr};
  uint4 raw_[2];
};

// Loads four 8 x 8 matrices: 16 lines from `row`, 16 elements from `column` on. The second matrix follows the first in
// the elements if `across_first`, otherwise in the lines. A thread gets two neighbors in a line of each, or with
// kTranspose in a column.
template <bool kTranspose, int kLength>
__device__ inline void load_matrices(const bf16 (*lines)[kLength], int row, int column, bool across_first,
                                     unsigned (&out)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, matrix = lane / 8;
  const int down = across_first ? matrix / 2 : matrix % 2, right = across_first ? matrix % 2 : matrix / 2;
  const auto from =
      static_cast<unsigned>(__cvta_generic_to_shared(&lines[row + down * 8 + lane % 8][column + right * 8]));
  if constexpr (kTranspose) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(from)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(from)
                 : "memory");
  }
}

__device__ inline void multiply_add(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Accumulators of a tile, in the registers of its block.
template <class T>
class TileSums;

// A warp owns 32 x 32.
template <>
class TileSums<bf16> {
 public:
  template <bool kAAlongK, bool kBAlongK>
  __device__ void add(const Panel<bf16, kAAlongK>& a, const Panel<bf16, kBAlongK>& b) {
#pragma unroll
    for (int k = 0; k < kTileDepth<bf16>; k += 16) {
      unsigned left[2][4], right[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if constexpr (kAAlongK) {
          load_matrices<false>(a.at, row() + 16 * i, k, false, left[i]);
        } else {
          load_matrices<true>(a.at, k, row() + 16 * i, true, left[i]);
        }
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        if constexpr (kBAlongK) {
          load_matrices<false>(b.at, column() + 16 * j, k, true, right[j]);
        } else {
          load_matrices<true>(b.at, k, column() + 16 * j, false, right[j]);
        }
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j)
          multiply_add(sums_[i][j], left[i], right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1]);
      }
    }
  }

  // Calls visit(row, column, sum, sum of the next column) for the thread's sums; columns are even.
  template <class Visit>
  __device__ void for_each_pair(Visit&& visit) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int r = row() + 16 * i + lane / 4, c = column() + 8 * j + lane % 4 * 2;
        visit(r, c, sums_[i][j][0], sums_[i][j][1]);
        visit(r + 8, c, sums_[i][j][2], sums_[i][j][3]);
      }
    }
  }

 private:
  __device__ static int row() { return static_cast<int>(threadIdx.x) / 64 * 32; }
  __device__ static int column() { return static_cast<int>(threadIdx.x) / 32 % 2 * 32; }

  float sums_[2][4][4] = {};
};

// A thread owns 8 rows and in each two pairs of columns at a stride of 32.
template <>
class TileSums<float> {
 public:
  template <bool kAAlongK, bool kBAlongK>
  __device__ void add(const Panel<float, kAAlongK>& a, const Panel<float, kBAlongK>& b) {
#pragma unroll
    for (int k = 0; k < kTileDepth<float>; ++k) {
      float left[8], right[4];
#pragma unroll
      for (int i = 0; i < 8; i += 2) load_two(&a.at[k][row() + i], left[i], left[i + 1]);
#pragma unroll
      for (int j = 0; j < 2; ++j) load_two(&b.at[k][column() + 32 * j], right[2 * j], right[2 * j + 1]);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) sums_[i][j] = fmaf(left[i], right[j], sums_[i][j]);
      }
    }
  }

  template <class Visit>
  __device__ void for_each_pair(Visit&& visit) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) visit(row() + i, column() + 32 * j, sums_[i][2 * j], sums_[i][2 * j + 1]);
    }
  }

 private:
  __device__ static int row() { return static_cast<int>(threadIdx.x) / 16 * 8; }
  __device__ static int column() { return static_cast<int>(threadIdx.x) % 16 * 2; }
  __device__ static void load_two(const float* from, float& x, float& y) {
    const float2 two = *reinterpret_cast<const float2*>(from);
    x = two.x;
    y = two.y;
  }

  float sums_[8][4] = {};
};

template <class T, bool kAAlongK, bool kBAlongK>
struct TilePanels {
  Panel<T, kAAlongK> a;
  Panel<T, kBAlongK> b;
};

// sums += a b over k < depth. All threads of the block call it, with the same depth.
template <class T, bool kAAlongK, bool kBAlongK, bool kVector>
__device__ inline void multiply_tile(const Lines<T>& a, const Lines<T>& b, int depth,
                                     TilePanels<T, kAAlongK, kBAlongK>& panels, TileSums<T>& sums) {
  PanelLoader<T, kAAlongK, kVector> load_a(a);
  PanelLoader<T, kBAlongK, kVector> load_b(b);
  if (depth > 0) {
    load_a.fetch(0);
    load_b.fetch(0);
  }
  for (int k = 0; k < depth; k += kTileDepth<T>) {
    __syncthreads();  // the previous part has been read
    load_a.store(panels.a);
    load_b.store(panels.b);
    __syncthreads();
    if (k + kTileDepth<T> < depth) {
      load_a.fetch(k + kTileDepth<T>);
      load_b.fetch(k + kTileDepth<T>);
    }
    sums.add(panels.a, panels.b);
  }
}

}  // namespace megalith::cuda
