#include "moe/expert_load.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/layers/microbatch.h"
#include "core/model/config.h"

namespace megalith {

namespace {

ExpertLoad load_of(std::span<const std::int32_t> rows, std::int64_t choices) {
  const std::int64_t all = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  const auto experts = static_cast<double>(rows.size());
  double entropy = 0;
  for (const std::int32_t count : rows) {
    const double share = static_cast<double>(count) / static_cast<double>(all);
    if (count > 0) entropy -= share * std::log(share);
  }
  return {.min = *std::ranges::min_element(rows),
          .max = *std::ranges::max_element(rows),
          .mean = static_cast<double>(all) / experts,
          .entropy = rows.size() > 1 ? entropy / std::log(experts) : 1,
          .dropped = choices - all};
}

double rank_max_over_mean(std::span<const std::int32_t> rows, std::int64_t ranks) {
  const auto each = rows.size() / static_cast<std::size_t>(ranks);
  std::int64_t most = 0, all = 0;
  for (; !rows.empty(); rows = rows.subspan(each)) {
    const auto of_rank = rows.first(each);
    const std::int64_t sum = std::accumulate(of_rank.begin(), of_rank.end(), std::int64_t{0});
    most = std::max(most, sum);
    all += sum;
  }
  return all == 0 ? 1 : static_cast<double>(most * ranks) / static_cast<double>(all);
}

}  // namespace

std::vector<ExpertLoad> expert_loads(const ModelConfig& config, std::int64_t step_tokens, std::span<const float> sums,
                                     std::span<const std::int32_t> counts, std::int64_t expert_ranks) {
  const MoeConfig& moe = config.moe;
  std::vector<ExpertLoad> loads;
  if (moe.num_experts == 0) return loads;
  const auto experts = static_cast<std::size_t>(moe.num_experts);
  const auto loss = [&](StepSum which, double coeff) -> std::optional<float> {
    if (coeff == 0) return std::nullopt;
    const float sum = sums[static_cast<std::size_t>(index_of(which, std::ssize(loads)))];
    return static_cast<float>(static_cast<double>(sum) / (coeff * static_cast<double>(step_tokens)));
  };
  const std::vector<bool> has_experts = moe_layers(moe, config.num_layers);
  const auto layers = static_cast<std::size_t>(std::ranges::count(has_experts, true));
  const std::span<const std::int32_t> sent = counts.subspan(layers * experts);
  const std::size_t ranks = layers == 0 ? 0 : sent.size() / layers;
  for (std::size_t layer = 0; layer < has_experts.size(); ++layer) {
    if (!has_experts[layer]) continue;
    const auto rows = counts.subspan(loads.size() * experts, experts);
    ExpertLoad load = load_of(rows, step_tokens * moe.router_topk);
    if (expert_ranks > 1) load.rank_max_over_mean = rank_max_over_mean(rows, expert_ranks);
    load.layer = static_cast<std::int64_t>(layer);
    const auto to_ranks = sent.subspan(loads.size() * ranks, ranks);
    if (ranks > 0) load.rows_sent = std::accumulate(to_ranks.begin(), to_ranks.end(), std::int64_t{0});
    load.load_balancing_loss = loss(StepSum::kAuxLoss, moe.balancing_coeff());
    load.z_loss = loss(StepSum::kZLoss, moe.z_loss_coeff);
    loads.push_back(load);
  }
  return loads;
}

const ExpertLoad* worst_load(const std::vector<ExpertLoad>& loads) {
  const auto worst = std::ranges::max_element(loads, {}, &ExpertLoad::max_over_mean);
  return worst == loads.end() ? nullptr : &*worst;
}

}  // namespace megalith
