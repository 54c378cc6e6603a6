#include "core/ops/optim/count_nan.h"

#include "core/ops/fields.h"

namespace megalith {

void fields(const CountNan& op, Fields& f) {
  f.in(op.x, "op.x").floating().any_shape().bounded();
  f.inout(op.count, "op.count").dtype(DType::kInt64).shape({1});
}

}  // namespace megalith
