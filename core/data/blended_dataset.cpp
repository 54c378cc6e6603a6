#include "core/data/blended_dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/base/counted.h"
#include "core/base/error.h"

namespace megalith {

BlendIndex build_blend_index(std::span<const double> weights, std::int64_t size) {
  require(!weights.empty() && weights.size() < 32767 && size >= 0, "build_blend_index: bad arguments");
  BlendIndex index;
  index.dataset.resize(static_cast<std::size_t>(size));
  index.sample.resize(static_cast<std::size_t>(size));
  std::vector<std::int64_t> drawn(weights.size(), 0);
  for (std::size_t k = 0; k < index.dataset.size(); ++k) {
    const double share_of = std::max(static_cast<double>(k), 1.0);
    // Product and difference are rounded apart, as Megatron's are: this folder is compiled without contraction to FMA.
    const auto lag = [&](std::size_t d) { return weights[d] * share_of - static_cast<double>(drawn[d]); };
    std::size_t choice = 0;
    double largest = lag(0);
    for (std::size_t d = 1; d < weights.size(); ++d) {
      const double candidate = lag(d);
      if (candidate > largest) {
        largest = candidate;
        choice = d;
      }
    }
    index.dataset[k] = static_cast<std::uint16_t>(choice);
    index.sample[k] = drawn[choice]++;
  }
  return index;
}

std::int64_t samples_of_part(std::int64_t num_samples, double share) {
  const double wanted = std::ceil(static_cast<double>(num_samples) * share);
  return static_cast<std::int64_t>(std::ceil(wanted * (1.0 + 0.005)));
}

BlendedDataset::BlendedDataset(std::vector<GptDataset> parts, std::span<const double> weights, std::int64_t size,
                               std::vector<double> shares)
    : parts_(std::move(parts)), shares_(std::move(shares)), index_(build_blend_index(weights, size)) {
  require(parts_.size() == weights.size() && (shares_.empty() || shares_.size() == parts_.size()),
          "BlendedDataset: one weight per part");
  for (std::size_t k = 0; k < index_.dataset.size(); ++k) {
    if (index_.sample[k] < parts_[index_.dataset[k]].size()) continue;
    refuse_usage(fmt::format("--data-path: data set {} of the blend", index_.dataset[k]),
                 {.expected = "more than " + counted(index_.sample[k], "sample"),
                  .got = std::to_string(parts_[index_.dataset[k]].size()),
                  .remedy = "change the weights or the number of samples"});
  }
}

void BlendedDataset::check_unchanged() const {
  for (const GptDataset& part : parts_) part.check_unchanged();
}

bool BlendedDataset::keeps_order_of(std::int64_t num_samples) const {
  for (std::size_t i = 0; i < shares_.size(); ++i)
    if (!parts_[i].keeps_order_of(samples_of_part(num_samples, shares_[i]))) return false;
  return true;
}

void BlendedDataset::sample(std::int64_t k, std::span<std::int32_t> tokens) const {
  require(k >= 0 && k < size(), "BlendedDataset::sample: no such sample");
  const auto at = static_cast<std::size_t>(k);
  parts_[index_.dataset[at]].sample(index_.sample[at], tokens);
}

}  // namespace megalith
