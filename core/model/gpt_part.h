// Layers of a part of a model, and the layers that keep only their input.
#pragma once

#include <cstdint>
#include <vector>

namespace megalith {

// Consecutive layers of the model, with embedding and head if the part has them.
struct GptPart {
  std::int64_t first_layer = 0;  // counted over the full model
  std::int64_t num_layers = 0;
  bool has_embedding = false;
  bool has_head = false;  // final norm, output layer and loss
};

// Layers that keep only their input and are recomputed in backward.
struct RecomputeLayers {
  // Consecutive layers: first layer and count.
  struct Range {
    std::int64_t first = 0;
    std::int64_t count = 0;

    bool contains(std::int64_t layer) const { return first <= layer && layer < first + count; }
  };
  std::vector<Range> ranges;          // recomputed together, ascending and disjoint
  std::vector<Range> mlps;            // the MLP of each of these layers, outside of `ranges`
  std::vector<Range> moes;            // experts with their router in each of these layers, outside of `ranges`
  std::vector<Range> shared_experts;  // only the shared experts
};

}  // namespace megalith
