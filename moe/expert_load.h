// Statistics of a step's rows over the experts of each layer.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace megalith {

struct ModelConfig;

// Statistics of one layer, over the rows of the global batch.
struct ExpertLoad {
  std::int64_t layer = 0;         // index in the model
  std::int64_t min = 0, max = 0;  // rows of the least and the most loaded expert
  double mean = 0;                // over the experts
  double entropy = 0;        // of the row shares, relative to equal shares: 1 if balanced, 0 if one expert has all rows
  std::int64_t dropped = 0;  // choices without a row
  // Rows of the most loaded rank over the ranks' mean; with expert parallelism only.
  std::optional<double> rank_max_over_mean{};
  std::optional<std::int64_t> rows_sent{};  // tokens, once per remote rank; absent without expert parallelism
  std::optional<float> load_balancing_loss{}, z_loss{};  // without coefficients; absent if the loss is off

  double min_over_mean() const { return mean > 0 ? static_cast<double>(min) / mean : 1; }
  double max_over_mean() const { return mean > 0 ? static_cast<double>(max) / mean : 1; }
};

// Returns one entry per layer of experts. `sums` and `counts` are a step's results (core/layers/microbatch.h), summed
// over all ranks. `counts` holds rows per expert, then tokens sent per rank. `expert_ranks`: expert-parallel size; each
// rank holds neighboring experts.
std::vector<ExpertLoad> expert_loads(const ModelConfig& config, std::int64_t step_tokens, std::span<const float> sums,
                                     std::span<const std::int32_t> counts, std::int64_t expert_ranks = 1);

// Layer with the largest max_over_mean(); null if `loads` is empty.
const ExpertLoad* worst_load(const std::vector<ExpertLoad>& loads);

}  // namespace megalith
