// Compute-bound. Blocks of op(a) [kBlockRows, kBlockDepth] and op(b) [kBlockDepth, kBlockColumns] are packed as fp32 in
// the tile kernel's order. All transposes and dtypes are therefore equally fast. Deterministic: the sum over k is cut
// at multiples of kBlockDepth only, and partial sums are never rounded to bf16.
#include <algorithm>
#include <type_traits>

#include "core/ops/dispatch.h"
#include "core/ops/gemm/gemm_unfused.h"
#include "core/ops/gemm/micro_kernel.h"
#include "core/ops/gemm/tile_pack.h"
#include "core/ops/loops.h"

namespace megalith {

namespace {

constexpr std::int64_t kBlockDepth = 256;  // one column panel of b (16 KiB) stays in L1
constexpr std::int64_t kBlockRows = 192;   // a's block (192 KiB) stays in L2
constexpr std::int64_t kBlockColumns = 1024;
constexpr std::int64_t kSumColumns = 256;  // width of the fp32 sums of a bf16 c when k > kBlockDepth

struct CpuScratch {
  alignas(64) float a[kBlockRows * kBlockDepth + kPackSlack];
  alignas(64) float b[kBlockColumns * kBlockDepth];
  alignas(64) float sums[kBlockRows * kSumColumns];
  alignas(64) float bias[kBlockColumns];
  alignas(64) float tile[kTileRows * kTileColumns];
};

// A stored matrix viewed through `transpose`: element (row, column) of op(x).
template <class T>
struct Operand {
  const T* data;
  std::int64_t stride;
  bool transpose;

  Operand(const Tensor& x, bool transposed) : data(x.as<const T>()), stride(x.stride(0)), transpose(transposed) {}
  const T* at(std::int64_t row, std::int64_t column) const {
    return transpose ? data + column * stride + row : data + row * stride + column;
  }
};

// Rows [row, row + rows) and depth [p, p + depth) of op(a) in slivers of six rows.
template <class T>
void pack_a(const Operand<T>& a, std::int64_t row, std::int64_t rows, std::int64_t p, std::int64_t depth, float* out) {
  for (std::int64_t i = 0; i < rows; i += kTileRows, out += kTileRows * depth) {
    if (a.transpose) {
      // The end is the block's, not the sliver's: a full sliver may read into its neighbor.
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
void multiply_block(const Block& block, CpuScratch& s, C* c, std::int64_t stride) {
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

// Returns `columns` of the bias as fp32, padded to whole panels; null without a bias.
template <class T>
const float* convert_bias(const Tensor& bias, std::int64_t column, std::int64_t columns, CpuScratch& s) {
  if (!bias) return nullptr;
  pack_rows(Lines<T>{bias.as<const T>() + column, 0, 1, columns}, round_up(columns, kTileColumns), s.bias, 0);
  return s.bias;
}

// Each block of b is packed once. Partial sums over k are kept in c, so that c is fp32 or k fits one block.
template <class T, class C>
void multiply_into_c(const Gemm& op, std::int64_t k, CpuScratch& s) {
  const Operand<T> a(op.a, op.transpose_a), b(op.b, op.transpose_b);
  const std::int64_t m = op.c.size(0), n = op.c.size(1), stride = op.c.stride(0);
  for (std::int64_t column = 0; column < n; column += kBlockColumns) {
    const std::int64_t columns = std::min(kBlockColumns, n - column);
    const float* bias = convert_bias<T>(op.bias, column, columns, s);
    for (std::int64_t p = 0; p == 0 || p < k; p += kBlockDepth) {
      const std::int64_t depth = std::min(kBlockDepth, k - p);
      pack_b(b, p, depth, column, columns, s.b);
      for (std::int64_t row = 0; row < m; row += kBlockRows) {
        const std::int64_t rows = std::min(kBlockRows, m - row);
        pack_a(a, row, rows, p, depth, s.a);
        const Block block{rows, columns, depth, p == 0 ? bias : nullptr, p > 0 || op.accumulate};
        multiply_block(block, s, op.c.as<C>() + row * stride + column, stride);
      }
    }
  }
}

// Partial sums over k are kept in fp32 scratch, and c is rounded once.
void multiply_by_sums(const Gemm& op, std::int64_t k, CpuScratch& s) {
  const Operand<bf16> a(op.a, op.transpose_a), b(op.b, op.transpose_b);
  const std::int64_t m = op.c.size(0), n = op.c.size(1), stride = op.c.stride(0);
  for (std::int64_t column = 0; column < n; column += kSumColumns) {
    const std::int64_t columns = std::min(kSumColumns, n - column);
    const float* bias = convert_bias<bf16>(op.bias, column, columns, s);
    for (std::int64_t row = 0; row < m; row += kBlockRows) {
      const std::int64_t rows = std::min(kBlockRows, m - row);
      for (std::int64_t p = 0; p < k; p += kBlockDepth) {
        const std::int64_t depth = std::min(kBlockDepth, k - p);
        pack_b(b, p, depth, column, columns, s.b);
        pack_a(a, row, rows, p, depth, s.a);
        multiply_block({rows, columns, depth, p == 0 ? bias : nullptr, p > 0}, s, s.sums, kSumColumns);
      }
      bf16* c = op.c.as<bf16>() + row * stride + column;
      write_sums(s.sums, kSumColumns, c, stride, rows, columns, op.accumulate);
    }
  }
}

void multiply(const Gemm& op) {
  if (op.c.numel() == 0) return;
  auto& s = thread_scratch<CpuScratch>();
  const std::int64_t k = op.a.size(op.transpose_a ? 0 : 1);
  if (op.c.dtype == DType::kBf16)
    return k > kBlockDepth ? multiply_by_sums(op, k, s) : multiply_into_c<bf16, bf16>(op, k, s);
  visit_float(op.a.dtype, [&]<class T>(T) { multiply_into_c<T, float>(op, k, s); });
}

}  // namespace

void compute(const Gemm& op) {
  multiply(product_of(op));
  if (op.pre_activation) compute(gelu_after(op));
  if (op.gelu_input) compute(gelu_before(op));
}

}  // namespace megalith
