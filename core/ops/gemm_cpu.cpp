// Compute-bound. Blocks of op(a) [kBlockRows, kBlockDepth] and op(b) [kBlockDepth, kBlockColumns] are copied as fp32
// into the order in which the tile kernel reads them, which makes all transposes and dtypes equally fast.
// Deterministic: the sum over k is cut at multiples of kBlockDepth only, and partial sums are never rounded to bf16.
#include <algorithm>
#include <memory>
#include <type_traits>

#include "core/ops/activation_cpu.h"
#include "core/ops/gemm_apart.h"
#include "core/ops/loops.h"
#include "core/ops/micro_kernel.h"
#include "core/ops/tile_pack.h"

namespace megalith {

namespace {

constexpr std::int64_t kBlockDepth = 256;  // one column panel of b (16 KiB) stays in L1
constexpr std::int64_t kBlockRows = 192;   // a's block (192 KiB) stays in L2
constexpr std::int64_t kBlockColumns = 1024;
constexpr std::int64_t kSumColumns = 256;  // width of the fp32 sums of a bf16 c when k > kBlockDepth

struct Scratch {
  alignas(64) float a[kBlockRows * kBlockDepth + kPackSlack];
  alignas(64) float b[kBlockColumns * kBlockDepth];
  alignas(64) float sums[kBlockRows * kSumColumns];
  alignas(64) float bias[kBlockColumns];
  alignas(64) float tile[kTileRows * kTileColumns];
};

// One per worker thread, from its first GEMM to its end.
Scratch& scratch() {
  thread_local const std::unique_ptr<Scratch> own = std::make_unique_for_overwrite<Scratch>();
  return *own;
}

// A matrix as stored, seen through `transpose`: element (row, column) of op(x).
template <class T>
struct Operand {
  const T* data;
  std::int64_t stride;
  bool transpose;

  const T* at(std::int64_t row, std::int64_t column) const {
    return transpose ? data + column * stride + row : data + row * stride + column;
  }
};

// Rows [row, row + rows) and depth [p, p + depth) of op(a) in slivers of six rows.
template <class T>
void pack_a(const Operand<T>& a, std::int64_t row, std::int64_t rows, std::int64_t p, std::int64_t depth, float* out) {
  for (std::int64_t i = 0; i < rows; i += kTileRows, out += kTileRows * depth) {
    if (a.transpose) {
      // The block's own end, not the sliver's: a full sliver may read on into its neighbour.
      pack_along<kTileRows>(Lines<T>{a.at(row + i, p), a.stride, depth, rows - i}, out);
    } else {
      pack_across<kTileRows>(Lines<T>{a.at(row + i, p), a.stride, rows - i, depth}, out);
    }
  }
}

template <class T>
void pack_b(const Operand<T>& b, std::int64_t p, std::int64_t depth, std::int64_t column, std::int64_t columns,
            float* out) {
  for (std::int64_t j = 0; j < columns; j += kTileColumns, out += kTileColumns * depth) {
    if (b.transpose) {
      pack_across<kTileColumns>(Lines<T>{b.at(p, column + j), b.stride, columns - j, depth}, out);
    } else {
      pack_along<kTileColumns>(Lines<T>{b.at(p, column + j), b.stride, depth, columns - j}, out);
    }
  }
}

// c (=|+=) sums, converted and cut to rows x columns.
template <class C>
void write_sums(const float* sums, std::int64_t sums_stride, C* c, std::int64_t stride, std::int64_t rows,
                std::int64_t columns, bool add) {
  for (std::int64_t i = 0; i < rows; ++i) {
    const Row sum = sums + i * sums_stride;
    const Row out = c + i * stride;
    for_each_element(columns, [=](auto j) { out.set(j, add ? out[j] + sum[j] : sum[j]); });
  }
}

struct Block {
  std::int64_t rows, columns, depth;
  const float* bias;  // fp32, padded to whole panels; null for none
  bool add;
};

// One block of c from packed a and b.
template <class C>
void multiply_block(const Block& block, Scratch& s, C* c, std::int64_t stride) {
  for (std::int64_t j = 0; j < block.columns; j += kTileColumns) {
    const std::int64_t columns = std::min(kTileColumns, block.columns - j);
    const float* b = s.b + j * block.depth;
    const float* start = block.bias == nullptr ? nullptr : block.bias + j;
    for (std::int64_t i = 0; i < block.rows; i += kTileRows) {
      const std::int64_t rows = std::min(kTileRows, block.rows - i);
      const TileOperand a{s.a + i * block.depth, 1, kTileRows};
      C* out = c + i * stride + j;
      if constexpr (std::is_same_v<C, float>) {
        if (columns == kTileColumns) {
          multiply_rows(rows, block.depth, a, b, kTileColumns, start, out, stride,
                        block.add ? TileOutput::kAdd : TileOutput::kStore);
          continue;
        }
      }
      multiply_rows(rows, block.depth, a, b, kTileColumns, start, s.tile, kTileColumns, TileOutput::kStore);
      write_sums(s.tile, kTileColumns, out, stride, rows, columns, block.add);
    }
  }
}

template <class T>
struct Product {
  Operand<T> a, b;
  std::int64_t m, n, k;
  const T* bias;
  bool accumulate;
};

template <class T>
const float* convert_bias(const T* bias, std::int64_t column, std::int64_t columns, Scratch& s) {
  if (bias == nullptr) return nullptr;
  pack_rows(Lines<T>{bias + column, 0, 1, columns}, (columns + 15) / 16 * 16, s.bias, 0);
  return s.bias;
}

// Each block of b is packed once; partial sums over k stand in c, so c is fp32 or k fits one block.
template <class T, class C>
void multiply_into_c(const Product<T>& op, C* c, std::int64_t stride, Scratch& s) {
  for (std::int64_t column = 0; column < op.n; column += kBlockColumns) {
    const std::int64_t columns = std::min(kBlockColumns, op.n - column);
    const float* bias = convert_bias(op.bias, column, columns, s);
    for (std::int64_t p = 0; p == 0 || p < op.k; p += kBlockDepth) {
      const std::int64_t depth = std::min(kBlockDepth, op.k - p);
      pack_b(op.b, p, depth, column, columns, s.b);
      for (std::int64_t row = 0; row < op.m; row += kBlockRows) {
        const std::int64_t rows = std::min(kBlockRows, op.m - row);
        pack_a(op.a, row, rows, p, depth, s.a);
        const Block block{rows, columns, depth, p == 0 ? bias : nullptr, p > 0 || op.accumulate};
        multiply_block(block, s, c + row * stride + column, stride);
      }
    }
  }
}

// Partial sums over k stand in fp32 scratch, and c is rounded once.
template <class T>
void multiply_by_sums(const Product<T>& op, bf16* c, std::int64_t stride, Scratch& s) {
  for (std::int64_t column = 0; column < op.n; column += kSumColumns) {
    const std::int64_t columns = std::min(kSumColumns, op.n - column);
    const float* bias = convert_bias(op.bias, column, columns, s);
    for (std::int64_t row = 0; row < op.m; row += kBlockRows) {
      const std::int64_t rows = std::min(kBlockRows, op.m - row);
      for (std::int64_t p = 0; p < op.k; p += kBlockDepth) {
        const std::int64_t depth = std::min(kBlockDepth, op.k - p);
        pack_b(op.b, p, depth, column, columns, s.b);
        pack_a(op.a, row, rows, p, depth, s.a);
        multiply_block({rows, columns, depth, p == 0 ? bias : nullptr, p > 0}, s, s.sums, kSumColumns);
      }
      write_sums(s.sums, kSumColumns, c + row * stride + column, stride, rows, columns, op.accumulate);
    }
  }
}

template <class T, class C>
void multiply(const Gemm& op) {
  const std::int64_t k = op.transpose_a ? op.a.size(0) : op.a.size(1);
  const Product<T> product{.a = {op.a.as<const T>(), op.a.stride(0), op.transpose_a},
                           .b = {op.b.as<const T>(), op.b.stride(0), op.transpose_b},
                           .m = op.c.size(0),
                           .n = op.c.size(1),
                           .k = k,
                           .bias = op.bias.as<const T>(),
                           .accumulate = op.accumulate};
  if constexpr (std::is_same_v<C, bf16>) {
    if (k > kBlockDepth) return multiply_by_sums(product, op.c.as<bf16>(), op.c.stride(0), scratch());
  }
  multiply_into_c(product, op.c.as<C>(), op.c.stride(0), scratch());
}

void multiply(const Gemm& op) {
  if (op.c.numel() == 0) return;
  if (op.a.dtype == DType::kFp32) return multiply<float, float>(op);
  if (op.c.dtype == DType::kFp32) return multiply<bf16, float>(op);
  multiply<bf16, bf16>(op);
}

}  // namespace

void run(CpuStream& stream, const Gemm& op) {
  stream.enqueue([op] {
    multiply(product_of(op));
    if (op.pre_activation) compute(gelu_behind(op));
    if (op.gelu_input) compute(gelu_in_front(op));
  });
}

}  // namespace megalith
