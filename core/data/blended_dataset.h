// Several GPT datasets drawn from in proportion to weights, in Megatron-LM's order: sample k comes from the dataset
// that lags its share most, argmax_d(weight_d max(k, 1) - drawn_d), the lowest d among equals.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/data/gpt_dataset.h"

namespace megalith {

struct BlendIndex {
  std::vector<std::uint16_t> dataset;  // of each sample
  std::vector<std::int64_t> sample;    // its number there: the samples drawn from that dataset before
};

// `weights` sum to 1; at most 32766 of them.
BlendIndex build_blend_index(std::span<const double> weights, std::int64_t size);

// Samples that a part with this share is built with for `num_samples` of the blend, 0.5 % to spare as in Megatron-LM.
std::int64_t samples_of_part(std::int64_t num_samples, double share);

class BlendedDataset {
 public:
  BlendedDataset() = default;  // empty
  // Error kUsage when a part has fewer samples than are drawn from it. `shares`: those of samples_of_part, by which the
  // parts were built; empty where they have one epoch each.
  BlendedDataset(std::vector<GptDataset> parts, std::span<const double> weights, std::int64_t size,
                 std::vector<double> shares = {});

  std::int64_t size() const { return static_cast<std::int64_t>(index_.dataset.size()); }
  void sample(std::int64_t k, std::span<std::int32_t> tokens) const;
  void check_unchanged() const;
  bool keeps_order_of(std::int64_t num_samples) const;  // as that of GptDataset

 private:
  std::vector<GptDataset> parts_;
  std::vector<double> shares_;
  BlendIndex index_;
};

}  // namespace megalith
