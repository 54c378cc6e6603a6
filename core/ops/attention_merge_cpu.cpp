#include <algorithm>
#include <cmath>

#include "core/ops/attention_merge.h"
#include "core/ops/dispatch.h"
#include "core/ops/loops.h"

namespace megalith {

namespace {

template <class T>
void merge(const AttentionMerge& op) {
  const std::int64_t samples = op.out.size(0), rows = op.out.size(1), heads = op.out.size(2), dim = op.out.size(3);
  const auto row_of = [](const Tensor& x, std::int64_t b, std::int64_t s, std::int64_t n) {
    return b * x.stride(0) + s * x.stride(1) + n * x.stride(2);
  };
  for (std::int64_t b = 0; b < samples; ++b) {
    for (std::int64_t s = 0; s < rows; ++s) {
      for (std::int64_t n = 0; n < heads; ++n) {
        float& lse = op.lse.as<float>()[row_of(op.lse, b, n, s)];
        const float part_lse = op.part_lse.as<const float>()[row_of(op.part_lse, b, n, s)];
        const float largest = std::max(lse, part_lse);
        const float weight = std::exp(lse - largest), part_weight = std::exp(part_lse - largest);
        const float total = weight + part_weight;
        lse = largest + std::log(total);
        const float kept = weight / total, added = part_weight / total;
        const Row out = op.out.as<float>() + row_of(op.out, b, s, n);
        const Row part = op.part.as<const T>() + row_of(op.part, b, s, n);
        for_each_element(dim, [=](auto d) { out.set(d, fma(part[d], added, out[d] * kept)); });
      }
    }
  }
}

}  // namespace

void run(CpuStream& stream, const AttentionMerge& op) {
  stream.enqueue([op] { visit_float(op.part.dtype, [&op](auto type) { merge<decltype(type)>(op); }); });
}

}  // namespace megalith
