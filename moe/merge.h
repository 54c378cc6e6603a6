// What experts made -> (hidden, residual): each token's rows are added up, and the output of a shared expert (Dai et
// al. 2024, arXiv:2401.06066), an MLP that every token passes, whose linears may be split among tensor-parallel ranks.
#pragma once

#include "core/layers/attention.h"

namespace megalith {

class Merge : public Segment {
 public:
  struct Shared {
    std::unique_ptr<Linear> fc1;  // [T, H] -> [T, 2F] = [gate | up]
    std::unique_ptr<Linear> fc2;  // [T, F] -> [T, H]
    bool recompute = false;       // keep the input alone
  };

  // Without a shared expert fc1 and fc2 are null.
  Merge(const DropoutSpec& dropout, Shared shared) : dropout_(dropout), shared_(std::move(shared)) {}

  TensorList forward(const Context& ctx, const Microbatch& mb, const TensorList& inputs, Stash& stash) const override;
  TensorList backward_data(const Context& ctx, const Microbatch& mb, const TensorList& output_gradients,
                           Stash& stash) const override;
  void backward_weight(const Context& ctx, const Microbatch& mb, Stash& stash) const override;

 private:
  enum Slot { kPreActivation, kInput };
  enum Child { kFc1, kFc2 };

  Tensor forward_shared(const Context& ctx, const Microbatch& mb, const Tensor& x, Stash& stash) const;
  Tensor backward_shared(const Context& ctx, const Microbatch& mb, const Tensor& dy, Stash& stash) const;

  DropoutSpec dropout_;
  Shared shared_;
};

}  // namespace megalith
