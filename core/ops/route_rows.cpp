#include "core/ops/route_rows.h"

namespace megalith {

namespace {

void check_offsets(const Tensor& offsets, Fields& f) {
  f.expect(offsets.numel() >= 2 && offsets.numel() <= kMaxExperts + 1, "op.offsets",
           "those of 1 to 1024 experts, and the end", offsets.shape);
}

}  // namespace

void fields(const ExpertOffsets& op, Fields& f) {
  f.in(op.choice, "op.choice").dtype(DType::kInt32).rank(2);
  f.expect(op.choice.numel() < std::int64_t{1} << 31, "op.choice", "fewer than 2^31 rows", op.choice.shape);
  f.out(op.offsets, "op.offsets").dtype(DType::kInt32).rank(1);
  check_offsets(op.offsets, f);
  f.out(op.token, "op.token").dtype(DType::kInt32).shape({op.choice.numel()}).bounded_by(op.offsets);
  f.out(op.position, "op.position").dtype(DType::kInt32).shape(op.choice.shape);
  f.workspace(op.workspace);
}

std::size_t workspace_bytes(const ExpertOffsets& op, DeviceType device) {
  if (device != DeviceType::kCuda) return 0;
  return static_cast<std::size_t>(kExpertCountBlocks * op.offsets.numel()) * sizeof(std::int32_t);
}

void fields(const PermuteRows& op, Fields& f) {
  f.in(op.x, "op.x").floating().rank(2);
  f.in(op.offsets, "op.offsets").dtype(DType::kInt32).rank(1);
  check_offsets(op.offsets, f);
  f.in(op.index, "op.index").dtype(DType::kInt32).rank(1).bounded_by(op.offsets);
  f.out(op.y, "op.y").dtype(op.x.dtype).shape({op.index.size(0), op.x.size(1)}).bounded_by(op.offsets);
}

void fields(const UnpermuteRows& op, Fields& f) {
  f.in(op.x, "op.x").floating().rank(2).bounded();
  f.in(op.position, "op.position").dtype(DType::kInt32).rank(2);
  f.out(op.y, "op.y").dtype(op.x.dtype).shape({op.position.size(0), op.x.size(1)});
}

void fields(const PermuteWeights& op, Fields& f) {
  f.in(op.weight, "op.weight").dtype(DType::kFp32).rank(2);
  f.in(op.position, "op.position").dtype(DType::kInt32).shape(op.weight.shape);
  f.out(op.row_weight, "op.row_weight").dtype(DType::kFp32).rank(1).bounded();
}

void fields(const UnpermuteWeightGradients& op, Fields& f) {
  f.in(op.partial, "op.partial").dtype(DType::kFp32).rank(2).bounded();
  f.in(op.position, "op.position").dtype(DType::kInt32).rank(2);
  f.out(op.d_weight, "op.d_weight").dtype(DType::kFp32).shape(op.position.shape);
}

}  // namespace megalith
