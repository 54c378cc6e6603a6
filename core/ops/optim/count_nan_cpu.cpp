#include <algorithm>
#include <cmath>

#include "core/ops/dispatch.h"
#include "core/ops/optim/count_nan.h"

namespace megalith {

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
