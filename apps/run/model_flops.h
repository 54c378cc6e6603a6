// FLOPs of a model by their terms.
#pragma once

namespace megalith {

// FLOPs of a token without its attention, and of each pair of query and key, twice as many pairs as causal ones.
struct ModelFlops {
  double per_token = 0, per_pair = 0;
};

}  // namespace megalith
