// Merge of experts' rows into (hidden, residual). Sums each token's rows, unless the return already did, and adds the
// shared expert's output.
#pragma once

#include "core/layers/attention.h"
#include "moe/shared_expert.h"

namespace megalith {

class Merge : public Segment {
 public:
  struct Spec {
    DropoutSpec dropout;
    bool returned = false;  // each token's rows are already summed (moe/dispatch.h)
    std::int64_t experts = 1;
    std::int64_t groups = 1;  // combine groups; each group's sum is rounded, then added
    bool shared_ran = false;  // the shared expert ran while rows were in flight
  };

  // `shared`: null without a shared expert, or if it ran earlier.
  Merge(const Spec& spec, std::shared_ptr<const SharedExpert> shared) : spec_(spec), shared_(std::move(shared)) {}

  TensorList forward(const Context& ctx, const Microbatch& mb, const TensorList& inputs, Stash& stash) const override;
  TensorList backward_data(const Context& ctx, const Microbatch& mb, const TensorList& output_gradients,
                           Stash& stash) const override;
  void backward_weight(const Context& ctx, const Microbatch& mb, Stash& stash) const override;

 private:
  enum Child { kOpen, kClose };

  Tensor add_rows(const Context& ctx, const Tensor& rows, const Tensor& residual, Stash& stash) const;

  Spec spec_;
  std::shared_ptr<const SharedExpert> shared_;
};

}  // namespace megalith
