// Memory-bound, one pass. Deterministic: eight rows are added as a tree, up to 64 trees in a chain, then the chains.
#include <algorithm>

#include "core/ops/dispatch.h"
#include "core/ops/elementwise/reduce.h"
#include "core/ops/loops.h"

namespace megalith {

namespace {

constexpr std::int64_t kColumns = 1024;  // sums of so many columns are kept in L1
constexpr std::int64_t kTree = 8;
constexpr std::int64_t kChain = 64 * kTree;

// sum += the first eight of `rows` rows; where there are fewer, zeros take the place of the others.
template <class T>
void add_tree(const T* x, std::int64_t stride, std::int64_t rows, std::int64_t columns, Row<float> sum) {
  static constexpr T kZeros[kColumns] = {};
  const auto row = [=](std::int64_t r) -> Row<const T> { return r < rows ? x + r * stride : kZeros; };
  for_each_element(columns, [=, r0 = row(0), r1 = row(1), r2 = row(2), r3 = row(3), r4 = row(4), r5 = row(5),
                             r6 = row(6), r7 = row(7)](auto j) {
    sum.set(j, sum[j] + (((r0[j] + r4[j]) + (r2[j] + r6[j])) + ((r1[j] + r5[j]) + (r3[j] + r7[j]))));
  });
}

template <class T, class Out>
void reduce_rows(const RowSum& sum, bool accumulate) {
  const std::int64_t rows = live_rows(sum.x), stride = sum.x.stride(0);
  for (std::int64_t first = 0; first < sum.x.size(1); first += kColumns) {
    const std::int64_t columns = std::min(kColumns, sum.x.size(1) - first);
    const T* x = sum.x.as<const T>() + first;
    float totals[kColumns] = {};
    const Row total = totals;
    for (std::int64_t begin = 0; begin < rows; begin += kChain) {
      float chain[kColumns] = {};
      for (std::int64_t row = begin; row < std::min(begin + kChain, rows); row += kTree) {
        add_tree(x + row * stride, stride, rows - row, columns, chain);
      }
      for_each_element(columns, [=, chain = Row(chain)](auto j) { total.set(j, total[j] + chain[j]); });
    }
    const Row out = sum.out.as<Out>() + first;
    for_each_element(columns, [&](auto j) { out.set(j, accumulate ? out[j] + total[j] : total[j]); });
  }
}

}  // namespace

void compute(const ReduceRows& op) {
  for (const RowSum& sum : op.sums) {
    visit_float(sum.x.dtype, sum.out.dtype,
                [&]<class T, class Out>(T, Out) { reduce_rows<T, Out>(sum, op.accumulate); });
  }
}

void compute(const ReduceToScalar& op) {
  constexpr std::int64_t kBlock = 2048;
  float* out = op.out.as<float>();
  double total = op.accumulate ? static_cast<double>(*out) : 0.0;
  for (std::int64_t first = 0; first < op.x.numel(); first += kBlock) {
    const Row x = op.x.as<const float>() + first;
    const std::int64_t count = std::min(kBlock, op.x.numel() - first);
    const auto [sum] = sum_elements<1>(count, [=](auto& lanes, auto i) { lanes[0] += x[i]; });
    total += static_cast<double>(sum);
  }
  *out = static_cast<float>(total);
}

}  // namespace megalith
