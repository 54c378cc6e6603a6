// Memory-bound, one pass. Deterministic: eight rows are added as a tree, up to kGroups trees in a chain, then the
// chains.
#include <algorithm>

#include "core/ops/dispatch.h"
#include "core/ops/reduce.h"
#include "core/ops/row_index.h"
#include "core/ops/simd_math.h"

namespace megalith {

namespace {

using simd::F32x8;

constexpr std::int64_t kColumns = 1024;  // sums of so many columns are kept in L1
constexpr std::int64_t kTree = 8;
constexpr std::int64_t kGroups = 64;

struct Columns {
  alignas(32) float chain[kColumns];
  alignas(32) float total[kColumns];
};

// chain += the sum of `rows` (at most 8) rows of `columns` elements.
template <class T>
void add_tree(const T* x, std::int64_t stride, std::int64_t rows, std::int64_t columns, float* chain) {
  simd::for_each_vector(columns, [&](std::int64_t j, auto load, auto) {
    F32x8 term[kTree];
    for (std::int64_t r = 0; r < kTree; ++r) term[r] = r < rows ? load(x + r * stride + j) : simd::zero();
    for (std::int64_t width = kTree / 2; width > 0; width /= 2) {
      for (std::int64_t r = 0; r < width; ++r) term[r] = _mm256_add_ps(term[r], term[r + width]);
    }
    simd::store(chain + j, _mm256_add_ps(simd::load(chain + j), term[0]));
  });
}

void add_and_clear(float* total, float* chain) {
  for (std::int64_t j = 0; j < kColumns; ++j) {
    total[j] += chain[j];
    chain[j] = 0;
  }
}

template <class T, class Out>
void reduce_rows(const ReduceRows& op) {
  const std::int64_t rows = live_rows(op.x), stride = op.x.stride(0);
  Out* out = op.out.as<Out>();
  for (std::int64_t first = 0; first < op.x.size(1); first += kColumns) {
    const std::int64_t columns = std::min(kColumns, op.x.size(1) - first);
    const T* x = op.x.as<const T>() + first;
    Columns sums{};
    std::int64_t row = 0;
    for (; row + kTree <= rows; row += kTree) {
      add_tree(x + row * stride, stride, kTree, columns, sums.chain);
      if ((row / kTree + 1) % kGroups == 0) add_and_clear(sums.total, sums.chain);
    }
    if (row < rows) add_tree(x + row * stride, stride, rows - row, columns, sums.chain);
    add_and_clear(sums.total, sums.chain);
    simd::for_each_vector(columns, [&](std::int64_t j, auto load, auto store) {
      const F32x8 sum = simd::load(sums.total + j);
      store(out + first + j, op.accumulate ? _mm256_add_ps(load(out + first + j), sum) : sum);
    });
  }
}

// The sum of up to 2048 elements: 32 chains, added as a tree.
float sum_block(const float* x, std::int64_t count) {
  F32x8 sum[4] = {simd::zero(), simd::zero(), simd::zero(), simd::zero()};
  std::int64_t i = 0;
  for (; i + 32 <= count; i += 32) {
    for (int u = 0; u < 4; ++u) sum[u] = _mm256_add_ps(sum[u], simd::load(x + i + 8 * u));
  }
  for (; i < count; i += 8)
    sum[0] = _mm256_add_ps(sum[0], simd::load_partial(x + i, std::min<std::int64_t>(8, count - i)));
  return simd::horizontal_sum(_mm256_add_ps(_mm256_add_ps(sum[0], sum[1]), _mm256_add_ps(sum[2], sum[3])));
}

void reduce_to_scalar(const ReduceToScalar& op) {
  constexpr std::int64_t kBlock = 2048;
  const float* x = op.x.as<const float>();
  float* out = op.out.as<float>();
  double total = op.accumulate ? static_cast<double>(*out) : 0.0;
  for (std::int64_t i = 0; i < op.x.numel(); i += kBlock) {
    total += static_cast<double>(sum_block(x + i, std::min(kBlock, op.x.numel() - i)));
  }
  *out = static_cast<float>(total);
}

}  // namespace

void run(CpuStream& stream, const ReduceRows& op) {
  stream.enqueue([op] {
    visit_float(op.x.dtype, [&op](auto x) {
      visit_float(op.out.dtype, [&op](auto out) { reduce_rows<decltype(x), decltype(out)>(op); });
    });
  });
}

void run(CpuStream& stream, const ReduceToScalar& op) {
  stream.enqueue([op] { reduce_to_scalar(op); });
}

}  // namespace megalith
