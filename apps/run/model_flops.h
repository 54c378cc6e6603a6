// FLOPs of a model by their terms.
#pragma once

namespace megalith {

// Of a token without its attention, and of each pair of query and key, counted twice as often as causal ones.
struct ModelFlops {
  double per_token = 0, per_pair = 0;
};

}  // namespace megalith
