#include "moe/ops/router_logits.h"

#include <cmath>

#include "core/ops/dispatch.h"
#include "core/ops/fields.h"

namespace megalith {

void fields(const RouterLogits& op, Fields& f) {
  f.in(op.x, "op.x").floating().rank(2);
  f.in(op.weight, "op.weight").dtype(op.x.dtype).rank(2);
  f.expect(op.weight.size(1) == op.x.size(1), "op.weight", "rows as long as those of op.x", op.weight.shape);
  f.out(op.logits, "op.logits").dtype(DType::kFp64).shape({op.x.size(0), op.weight.size(0)});
  const auto products = static_cast<double>(op.logits.numel() * op.x.size(1));
  f.cost({.flops = 2 * products});
}

void compute(const RouterLogits& op) {
  const std::int64_t experts = op.weight.size(0), hidden = op.x.size(1);
  visit_float(op.x.dtype, [&]<class T>(T) {
    for (std::int64_t i = 0; i < op.logits.numel(); ++i) {
      const T *x = op.x.as<const T>() + i / experts * hidden, *w = op.weight.as<const T>() + i % experts * hidden;
      double sum = 0;
      for (std::int64_t h = 0; h < hidden; ++h)
        sum = std::fma(static_cast<double>(to_float(x[h])), static_cast<double>(to_float(w[h])), sum);
      op.logits.as<double>()[i] = sum;
    }
  });
}

}  // namespace megalith
