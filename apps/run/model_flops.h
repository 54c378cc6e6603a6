// FLOPs of a model by their terms.
#pragma once

namespace megalith {

struct Options;

// FLOPs of a token without its attention, and of each pair of query and key, twice as many pairs as causal ones.
struct ModelFlops {
  double per_token = 0, per_pair = 0;
};
// Returns flops_per_token() of own_model.h by these terms.
ModelFlops flops_of(const Options& options);

}  // namespace megalith
