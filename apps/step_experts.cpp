// Of a step: what the ranks count of experts and routers, and what follows from it.
#include <algorithm>

#include "apps/step.h"
#include "core/ops/expert_bias.h"

namespace megalith {

// Of the rows of all ranks.
void Step::sum_of_experts() {
  constexpr auto kFirst = static_cast<std::int64_t>(StepSum::kAuxLoss);
  const Tensor of_routers = rank_.step.sums.slice(0, kFirst, kNumStepSums - kFirst);
  rank_.layers.tensor.sum(rank_.streams.compute, of_routers, "losses of routers");
  const Tensor& counts = rank_.step.expert_counts;
  if (!counts) return;
  rank_.layers.tensor.sum(rank_.streams.compute, counts, "rows of experts");
  launch(rank_.streams.compute, AllReduce{.group = *rank_.groups.sums, .buffer = counts, .label = "rows of experts"});
}

void Step::update_expert_bias() {
  const Tensor& counts = rank_.step.expert_counts;
  if (!counts) return;
  launch(rank_.streams.compute,
         UpdateExpertBias{.counts = counts,
                          .bias = rank_.model.gpt.parameters->buffer_values().view(counts.shape),
                          .rate = static_cast<float>(rank_.options.model.moe.router_bias_update_rate),
                          .parameters = rank_.step.parameters});
}

std::optional<float> Step::loss_of_routers(const StagedStep& step, StepSum which, double coeff) const {
  const MoeConfig& moe = rank_.options.model.moe;
  if (moe.num_experts == 0 || coeff == 0) return std::nullopt;
  const std::vector<bool> layers = moe_layers(moe, rank_.options.model.num_layers);
  const double all = coeff * static_cast<double>(std::ranges::count(layers, true) * rank_.config.step_tokens());
  return static_cast<float>(static_cast<double>(step.sums[static_cast<std::size_t>(which)]) / all);
}

}  // namespace megalith
