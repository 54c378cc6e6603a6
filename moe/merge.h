// What experts made -> (hidden, residual): each token's rows are added up, where that is not done already, and the
// output of a shared expert.
#pragma once

#include "core/layers/attention.h"
#include "moe/shared_expert.h"

namespace megalith {

class Merge : public Segment {
 public:
  struct Spec {
    DropoutSpec dropout;
    bool returned = false;  // the rows come added up (moe/dispatch.h)
    std::int64_t experts = 1;
    std::int64_t groups = 1;  // of neighbouring experts: sums of each one's rows are rounded, then added
    bool shared_ran = false;  // the shared expert, while rows travelled
  };

  // `shared` is null where there is none, or where it ran.
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
