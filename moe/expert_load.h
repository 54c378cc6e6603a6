// How a step's rows were spread over the experts of each layer.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace megalith {

struct ModelConfig;

// Of one layer; rows of the global batch.
struct ExpertLoad {
  std::int64_t layer = 0;         // counted through the whole model
  std::int64_t min = 0, max = 0;  // rows of the expert that has the fewest, and the most
  double mean = 0;                // over the experts
  double entropy = 0;        // of the shares of the rows, over that of equal ones: 1 of equal ones, 0 where one has all
  std::int64_t dropped = 0;  // choices that got no row
  // Where ranks share out experts: rows of the rank that has the most, over those of all ranks' mean.
  std::optional<double> rank_max_over_mean{};
  std::optional<std::int64_t>
      rows_sent{};  // tokens, once for each other rank they went to; absent where no ranks share out experts
  std::optional<float> load_balancing_loss{}, z_loss{};  // without their coefficients; absent without such losses

  double min_over_mean() const { return mean > 0 ? static_cast<double>(min) / mean : 1; }
  double max_over_mean() const { return mean > 0 ? static_cast<double>(max) / mean : 1; }
};

// `sums` and `counts` as a step leaves them (core/layers/microbatch.h), summed over all ranks; one entry a layer of
// experts. Of `counts` those of experts come first, then those of the ranks that share them out. `expert_ranks`: the
// expert-parallel size, ranks with neighbouring experts each.
std::vector<ExpertLoad> expert_loads(const ModelConfig& config, std::int64_t step_tokens, std::span<const float> sums,
                                     std::span<const std::int32_t> counts, std::int64_t expert_ranks = 1);

// The layer whose most loaded expert is furthest above the mean; null of none.
const ExpertLoad* worst_load(const std::vector<ExpertLoad>& loads);

}  // namespace megalith
