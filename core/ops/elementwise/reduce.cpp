#include "core/ops/elementwise/reduce.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/ops/dispatch.h"
#include "core/ops/fields.h"
#include "core/ops/loops.h"

namespace megalith {

std::int64_t pieces_of(const Tensor& x) {
  if (x.size(0) <= kMaxRowsOfOnePass) return 0;
  constexpr std::int64_t kBlocks = 640;  // enough for any GPU
  constexpr std::int64_t kMaxSums = std::int64_t{8} << 20;
  const std::int64_t columns = std::max<std::int64_t>(x.size(1), 1);
  const std::int64_t row_bytes = columns * static_cast<std::int64_t>(size_of(x.dtype));
  const std::int64_t stripes = (row_bytes + kStripeBytes - 1) / kStripeBytes;
  const std::int64_t pieces = std::min(kBlocks / stripes, x.size(0) / kMinRowsOfPiece);
  return std::clamp<std::int64_t>(pieces, 1, std::max<std::int64_t>(1, kMaxSums / columns));
}

namespace {

bool overlap(const Tensor& a, const Tensor& b) {
  const auto *first = static_cast<const std::byte*>(a.data), *second = static_cast<const std::byte*>(b.data);
  const std::size_t first_bytes = a.extent_bytes(), second_bytes = b.extent_bytes();
  return first < second + second_bytes && second < first + first_bytes && first_bytes != 0 && second_bytes != 0;
}

// Returns whether the sum shares no written memory with an earlier sum of the call, so that both may run concurrently.
bool is_separate(const std::vector<RowSum>& sums, std::size_t sum) {
  const RowSum& later = sums[sum];
  return std::none_of(sums.begin(), sums.begin() + static_cast<std::ptrdiff_t>(sum), [&](const RowSum& earlier) {
    return overlap(earlier.out, later.out) || overlap(earlier.x, later.out) || overlap(earlier.out, later.x);
  });
}

}  // namespace

std::int64_t partial_floats(const Tensor& x) { return (pieces_of(x) * x.size(1) + 3) / 4 * 4; }

void fields(const ReduceRows& op, Fields& f) {
  f.workspace(op.workspace);
  for (std::size_t i = 0; i < op.sums.size(); ++i) {
    const RowSum& sum = op.sums[i];
    f.next_element();
    f.in(sum.x, "sum.x").floating().rank(2).strided_rows().bounded();
    f.out(sum.out, "sum.out").floating().shape({sum.x.size(1)}).read_if(op.accumulate);
    f.expect(is_separate(op.sums, i), "sum.out", "memory that no other sum of the call uses",
             fmt::format("sum {}, which shares some", i));
  }
}

std::size_t workspace_bytes(const ReduceRows& op, DeviceType device) {
  if (device != DeviceType::kCuda) return 0;
  std::int64_t floats = 0;
  for (const RowSum& sum : op.sums) floats += partial_floats(sum.x);
  return static_cast<std::size_t>(floats) * sizeof(float);
}

void fields(const ReduceToScalar& op, Fields& f) {
  f.in(op.x, "op.x").dtype(DType::kFp32).rank(1);
  f.out(op.out, "op.out").dtype(DType::kFp32).shape({1}).read_if(op.accumulate);
  f.workspace(op.workspace);
}

std::size_t workspace_bytes(const ReduceToScalar&, DeviceType device) {
  return device == DeviceType::kCuda ? kMaxSumBlocks * sizeof(double) : 0;
}

// Memory-bound, one pass. Deterministic: eight rows are added as a tree, up to 64 trees in a chain, then the chains.
namespace {

constexpr std::int64_t kColumns = 1024;  // the sums of these columns stay in L1
constexpr std::int64_t kTree = 8;
constexpr std::int64_t kChain = 64 * kTree;

// sum += the first eight of `rows` rows; zeros replace missing rows.
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
