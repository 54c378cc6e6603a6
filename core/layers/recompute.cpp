#include "core/layers/recompute.h"

namespace megalith {

TensorList Sequential::forward(const Context& ctx, const Microbatch& mb, const TensorList& inputs, Stash& stash) const {
  TensorList tensors = inputs;
  for (std::size_t i = 0; i < segments_.size(); ++i)
    tensors = segments_[i]->forward(ctx, mb, tensors, stash.child(static_cast<int>(i)));
  return tensors;
}

TensorList Sequential::backward_data(const Context& ctx, const Microbatch& mb, const TensorList& output_gradients,
                                     Stash& stash) const {
  TensorList gradients = output_gradients;
  for (std::size_t i = segments_.size(); i-- > 0;) {
    gradients = segments_[i]->backward_data(ctx, mb, gradients, stash.child(static_cast<int>(i)));
  }
  return gradients;
}

void Sequential::backward_weight(const Context& ctx, const Microbatch& mb, Stash& stash) const {
  for (std::size_t i = segments_.size(); i-- > 0;)
    segments_[i]->backward_weight(ctx, mb, stash.child(static_cast<int>(i)));
}

TensorList Recompute::forward(const Context& ctx, const Microbatch& mb, const TensorList& inputs, Stash& stash) const {
  for (int i = 0; i < inputs.size(); ++i) stash.save(i, SlotKind::kLayerInput, inputs[i]);
  Stash dropped;
  return inner_->forward(ctx, mb, inputs, dropped);
}

TensorList Recompute::backward_data(const Context& ctx, const Microbatch& mb, const TensorList& output_gradients,
                                    Stash& stash) const {
  TensorList inputs;
  for (int i = 0; stash.has(i); ++i) inputs.push_back(stash[i]);
  inner_->forward(ctx, mb, inputs, stash.child(0));
  return inner_->backward_data(ctx, mb, output_gradients, stash.child(0));
}

void Recompute::backward_weight(const Context& ctx, const Microbatch& mb, Stash& stash) const {
  inner_->backward_weight(ctx, mb, stash.child(0));
}

}  // namespace megalith
