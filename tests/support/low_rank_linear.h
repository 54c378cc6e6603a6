// y = (x A) B with rank R << min(I, O); Hu et al. 2021, arXiv:2106.09685, section 4.1. The example of CONTRIBUTING.md:
// a layer of a user's own is its three verbs and its parameters.
// T tokens, I inputs, R rank, O outputs.
#pragma once

#include "core/layers/segment.h"

namespace megalith {

class LowRankLinear : public Layer {
 public:
  struct Spec {
    std::string name;
    std::int64_t inputs = 0;
    std::int64_t rank = 0;
    std::int64_t outputs = 0;
    float init_std = 0.02f;
    TensorSplit split = {};
  };

  LowRankLinear(ParameterStore& store, const Spec& spec);

  Tensor forward(const Context& ctx, const Microbatch& mb, const Tensor& x,
                 Stash& stash) const override;  // [T, I] -> [T, O]
  Tensor backward_data(const Context& ctx, const Microbatch& mb, const Tensor& dy,
                       Stash& stash) const override;  // [T, O] -> [T, I]
  void backward_weight(const Context& ctx, const Microbatch& mb, Stash& stash) const override;

  using Layer::backward_data;
  using Layer::forward;

 private:
  enum Slot { kInput, kHidden, kHiddenGradient, kOutputGradient };

  Parameter& a_;  // [I, R]
  Parameter& b_;  // [R, O], starts at zero so that the layer starts as y = 0
};

}  // namespace megalith
