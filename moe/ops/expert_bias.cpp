#include "moe/ops/expert_bias.h"

#include <limits>

#include "core/ops/fields.h"

namespace megalith {

void fields(const CountExpertRows& op, Fields& f) {
  f.inout(op.counts, "op.counts").dtype(DType::kInt32).rank(1);
  f.in(op.offsets, "op.offsets").dtype(DType::kInt32).shape({op.counts.size(0) + 1});
}

void fields(const UpdateExpertBias& op, Fields& f) {
  f.inout(op.bias, "op.bias").dtype(DType::kFp32).rank(2);
  f.in(op.counts, "op.counts").dtype(DType::kInt32).shape(op.bias.shape);
  f.in(op.parameters, "op.parameters");
  f.range(static_cast<double>(op.rate), 0, static_cast<double>(std::numeric_limits<float>::max()), "op.rate");
}

}  // namespace megalith
