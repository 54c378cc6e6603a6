#include "core/ops/elementwise/reduce.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/ops/fields.h"

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

// Whether no earlier sum of the call reads or writes what this one writes, nor writes what it reads: they may run at
// the same time.
bool is_apart(const std::vector<RowSum>& sums, std::size_t sum) {
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
    f.expect(is_apart(op.sums, i), "sum.out", "memory that no other sum of the call uses",
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

}  // namespace megalith
