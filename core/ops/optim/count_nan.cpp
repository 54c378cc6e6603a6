#include "core/ops/optim/count_nan.h"

#include <algorithm>
#include <cmath>

#include "core/ops/dispatch.h"
#include "core/ops/fields.h"

namespace megalith {

void fields(const CountNan& op, Fields& f) {
  f.in(op.x, "op.x").floating().any_shape().bounded();
  f.inout(op.count, "op.count").dtype(DType::kInt64).shape({1});
}

void compute(const CountNan& op) {
  const Tensor& x = op.x;
  const std::int64_t elements =
      x.bound == nullptr ? x.numel() : x.numel() / std::max<std::int64_t>(x.size(0), 1) * *x.bound;
  visit_float(x.dtype, [&]<class T>(T) {
    const T* const first = x.as<const T>();
    *op.count.as<std::int64_t>() +=
        std::count_if(first, first + elements, [](T element) { return std::isnan(to_float(element)); });
  });
}

}  // namespace megalith
