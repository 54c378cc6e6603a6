#include <algorithm>
#include <cmath>

#include "core/ops/attention/attention_merge.h"
#include "core/ops/dispatch.h"
#include "core/ops/loops.h"

namespace megalith {

void compute(const AttentionMerge& op) {
  const Rows<float> outs(op.out);
  visit_float(op.part.dtype, [&]<class T>(T) {
    const Rows<const T> parts(op.part);
    for_each_row(op.out, [&](std::int64_t, const RowIndex& at) {
      const auto statistic = [b = at[0], s = at[1], n = at[2]](const Tensor& x) -> float& {
        return x.as<float>()[b * x.stride(0) + n * x.stride(1) + s * x.stride(2)];
      };
      float& lse = statistic(op.lse);
      const float part_lse = statistic(op.part_lse), largest = std::max(lse, part_lse);
      const float weight = std::exp(lse - largest), part_weight = std::exp(part_lse - largest);
      const float total = weight + part_weight, kept = weight / total, added = part_weight / total;
      lse = largest + std::log(total);
      for_each_element(op.out.size(3), [=, out = outs[at], part = parts[at]](auto d) {
        out.set(d, fma(part[d], added, out[d] * kept));
      });
    });
  });
}

}  // namespace megalith
