// Which layers a part of a model has, and which of them keep only their input.
#pragma once

#include <cstdint>
#include <vector>

namespace megalith {

// Consecutive layers of the model, with what stands before or behind them.
struct GptPart {
  std::int64_t first_layer = 0;  // counted through the whole model
  std::int64_t num_layers = 0;
  bool has_embedding = false;
  bool has_head = false;  // final norm, output layer and loss
};

// Which layers keep only their input.
struct RecomputeLayers {
  // Consecutive layers: {first layer, how many}.
  struct Range {
    std::int64_t first = 0;
    std::int64_t count = 0;

    bool contains(std::int64_t layer) const { return first <= layer && layer < first + count; }
  };
  std::vector<Range> ranges;          // recomputed together, ascending and disjoint
  std::vector<Range> mlps;            // each MLP of these layers, where it is outside of `ranges`
  std::vector<Range> moes;            // likewise what stands in place of MLPs: experts with their router
  std::vector<Range> shared_experts;  // theirs alone
};

}  // namespace megalith
