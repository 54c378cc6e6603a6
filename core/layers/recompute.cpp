#include "core/layers/recompute.h"

namespace megalith {

Stash& Sequential::part(Stash& stash, std::size_t segment) const {
  Stash& part = stash.child(static_cast<int>(segment));
  part.set_layer(layer(stash));
  return part;
}

TensorList Sequential::forward(const Context& ctx, const Microbatch& mb, const TensorList& inputs, Stash& stash) const {
  TensorList tensors = inputs;
  layer(stash).clear();
  for (std::size_t i = 0; i < segments_.size(); ++i) tensors = segments_[i]->forward(ctx, mb, tensors, part(stash, i));
  return tensors;
}

TensorList Sequential::backward_data(const Context& ctx, const Microbatch& mb, const TensorList& output_gradients,
                                     Stash& stash) const {
  TensorList gradients = output_gradients;
  for (std::size_t i = segments_.size(); i-- > 0;) {
    gradients = segments_[i]->backward_data(ctx, mb, gradients, part(stash, i));
    segments_[i]->wait_exchange(ctx);
  }
  return gradients;
}

void Sequential::backward_weight(const Context& ctx, const Microbatch& mb, Stash& stash) const {
  for (std::size_t i = segments_.size(); i-- > 0;) segments_[i]->backward_weight(ctx, mb, part(stash, i));
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
