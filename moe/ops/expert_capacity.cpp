#include "moe/ops/expert_capacity.h"

#include <limits>

#include "core/ops/fields.h"
#include "moe/ops/route_rows.h"

namespace megalith {

void fields(const LimitExpertRows& op, Fields& f) {
  f.in(op.choice, "op.choice").dtype(DType::kInt32).rank(2);
  f.in(op.position, "op.position").dtype(DType::kInt32).shape(op.choice.shape);
  f.in(op.offsets, "op.offsets").dtype(DType::kInt32).rank(1);
  f.expect(op.offsets.numel() >= 2 && op.offsets.numel() <= kMaxExperts + 1, "op.offsets",
           "1 to 1024 experts plus one entry", op.offsets.shape);
  f.in(op.row_weight, "op.row_weight").dtype(DType::kFp32).shape({op.choice.numel()}).optional();
  f.out(op.kept, "op.kept").dtype(DType::kInt32).shape(op.choice.shape);
  f.expect(op.capacity >= 1 && op.capacity <= std::numeric_limits<std::int32_t>::max(), "op.capacity", "1 to 2^31 - 1",
           op.capacity);
  f.workspace(op.workspace);
}

std::size_t workspace_bytes(const LimitExpertRows& op, DeviceType) {
  return static_cast<std::size_t>(op.offsets.numel() - 1) * sizeof(RowLimit);
}

}  // namespace megalith
