#include "core/ops/optim/adamw.h"

#include <cmath>
#include <limits>

#include "core/ops/fields.h"

namespace megalith {

void fields(const AdamW& op, Fields& f) {
  constexpr double kMax = std::numeric_limits<double>::max();
  const double below_one = std::nextafter(1.0, 0.0);
  f.range(op.beta1, 0, below_one, "op.beta1");
  f.range(op.beta2, 0, below_one, "op.beta2");
  f.range(op.eps, 0, kMax, "op.eps");
  f.in(op.parameters, "op.parameters");
  for (const AdamWRange& range : op.ranges) {
    const AdamWRange& first = op.ranges.front();
    const bool is_first = &range == &first;
    const auto alike = [is_first](const Tensor& tensor) { return is_first ? kFloatTypes : DTypeSet{tensor.dtype}; };
    f.next_element();
    f.out(range.param, "range.param").rank(1).dtype(alike(first.param));
    f.inout(range.main_param, "range.main_param").shape(range.param.shape).dtype(DType::kFp32).may_be(range.param);
    f.in(range.grad, "range.grad").shape(range.param.shape).dtype(alike(first.grad));
    f.inout(range.exp_avg, "range.exp_avg").shape(range.param.shape).dtype(alike(first.exp_avg));
    f.inout(range.exp_avg_sq, "range.exp_avg_sq").shape(range.param.shape).dtype(alike(first.exp_avg_sq));
    f.range(range.weight_decay, 0, kMax, "range.weight_decay");
  }
}

}  // namespace megalith
