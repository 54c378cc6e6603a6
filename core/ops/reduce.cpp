#include "core/ops/reduce.h"

#include <algorithm>

namespace megalith {

std::int64_t pieces_of(const ReduceRows& op) {
  constexpr std::int64_t kBlocks = 640;  // enough for any GPU
  constexpr std::int64_t kMaxSums = std::int64_t{8} << 20;
  const std::int64_t columns = std::max<std::int64_t>(op.x.size(1), 1);
  const std::int64_t row_bytes = columns * static_cast<std::int64_t>(size_of(op.x.dtype));
  const std::int64_t stripes = (row_bytes + kStripeBytes - 1) / kStripeBytes;
  const std::int64_t pieces = std::min(kBlocks / stripes, op.x.size(0) / kMinRowsOfPiece);
  return std::clamp<std::int64_t>(pieces, 1, std::max<std::int64_t>(1, kMaxSums / columns));
}

void fields(const ReduceRows& op, Fields& f) {
  f.in(op.x, "op.x").floating().rank(2).strided_rows().bounded();
  f.out(op.out, "op.out").floating().shape({op.x.size(1)}).read_if(op.accumulate);
  f.workspace(op.workspace);
}

std::size_t workspace_bytes(const ReduceRows& op, DeviceType device) {
  const std::int64_t pieces = pieces_of(op);
  if (device != DeviceType::kCuda || pieces == 1) return 0;
  return static_cast<std::size_t>(pieces * op.x.size(1)) * sizeof(float);
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
