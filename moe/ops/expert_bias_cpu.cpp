#include <numeric>

#include "moe/ops/expert_bias.h"

namespace megalith {

void compute(const CountExpertRows& op) {
  const auto* offsets = op.offsets.as<const std::int32_t>();
  auto* counts = op.counts.as<std::int32_t>();
  for (std::int64_t e = 0; e < op.counts.numel(); ++e) counts[e] += offsets[e + 1] - offsets[e];
}

void compute(const UpdateExpertBias& op) {
  if (op.parameters->skip != 0) return;
  const std::int64_t experts = op.bias.size(1);
  for (std::int64_t layer = 0; layer < op.bias.size(0); ++layer) {
    const auto* counts = op.counts.as<const std::int32_t>() + layer * experts;
    auto* bias = op.bias.as<float>() + layer * experts;
    const std::int64_t all = std::accumulate(counts, counts + experts, std::int64_t{0});
    for (std::int64_t e = 0; e < experts; ++e) {
      const std::int64_t missing = all - counts[e] * experts;
      if (missing != 0) bias[e] += missing > 0 ? op.rate : -op.rate;
    }
  }
}

}  // namespace megalith
