#include "moe/ops/route_rows.h"

#include <algorithm>

#include "core/ops/fields.h"

namespace megalith {

namespace {

void check_offsets(const Tensor& offsets, Fields& f) {
  f.expect(offsets.numel() >= 2 && offsets.numel() <= kMaxExperts + 1, "op.offsets", "1 to 1024 experts plus one entry",
           offsets.shape);
}

}  // namespace

void fields(const ExpertOffsets& op, Fields& f) {
  f.in(op.choice, "op.choice").dtype(DType::kInt32).rank(2).bounded();
  f.expect(op.choice.numel() < std::int64_t{1} << 31, "op.choice", "fewer than 2^31 rows", op.choice.shape);
  f.out(op.offsets, "op.offsets").dtype(DType::kInt32).rank(1);
  check_offsets(op.offsets, f);
  const std::int64_t experts = op.offsets.numel() - 1;
  f.out(op.token, "op.token").dtype(DType::kInt32).rank(1).bounded_by(op.offsets);
  f.expect(op.wanted || op.token.size(0) >= op.choice.size(0) * std::min(op.choice.size(1), experts), "op.token",
           "capacity for all rows, or op.wanted", op.token.shape);
  f.out(op.position, "op.position").like(op.choice);
  f.out(op.wanted, "op.wanted").dtype(DType::kInt32).shape({1}).optional();
  f.expect(op.first_expert >= 0 && op.first_expert + experts < std::int64_t{1} << 31, "op.first_expert",
           "0 to 2^31 minus the experts of op.offsets", op.first_expert);
  f.expect(op.all_experts == 0 || op.all_experts >= op.first_expert + experts, "op.all_experts",
           "0, or at least the experts of op.offsets", op.all_experts);
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
  f.in(op.position, "op.position").dtype(DType::kInt32).rank(2).bounded();
  const Shape rows{op.position.size(0), op.y.size(1)};
  f.out(op.y, "op.y").dtype(op.x.dtype).shape(rows).rules.bound = op.position.bound;
  const std::int64_t width = op.x.size(1), columns = rows[1];
  f.expect(columns == 0 ? width == 0 : width >= columns && width % columns == 0, "op.x",
           "rows of one or more parts, each as wide as a row of op.y", op.x.shape);
}

void fields(const PermuteWeights& op, Fields& f) {
  f.in(op.position, "op.position").dtype(DType::kInt32).rank(2).bounded();
  f.in(op.weight, "op.weight").dtype(DType::kFp32).shape(op.position.shape).rules.bound = op.position.bound;
  f.out(op.row_weight, "op.row_weight").dtype(DType::kFp32).rank(1).bounded();
}

void fields(const UnpermuteWeightGradients& op, Fields& f) {
  f.in(op.partial, "op.partial").dtype(DType::kFp32).rank(2).bounded();
  f.in(op.position, "op.position").dtype(DType::kInt32).rank(2).bounded();
  f.out(op.d_weight, "op.d_weight").dtype(DType::kFp32).shape(op.position.shape).rules.bound = op.position.bound;
}

}  // namespace megalith
