// The last segment: final norm, output layer and loss.
//   r = residual + hidden;  logits = norm(r) W^T;  loss = cross-entropy(logits, labels)
// Train and eval: adds the sum of its tokens' losses (fp32, not scaled) to ctx.loss_sum and returns nothing; its
// gradient starts the backward pass. Generate: returns the logits of each sequence's last row, [B, V]. T tokens = B *
// S, H hidden, V padded vocabulary.
#pragma once

#include "core/layers/norm.h"

namespace megalith {

class LmHead : public Segment {
 public:
  struct Spec {
    std::int64_t vocab = 0;       // V
    std::int64_t vocab_size = 0;  // without padding
  };
  // `weight` is [V, H]: a parameter of its own or the tied word table.
  LmHead(const Spec& spec, Norm norm, Parameter& weight) : spec_(spec), norm_(std::move(norm)), weight_(weight) {}

  TensorList forward(Context& ctx, const TensorList& inputs, Stash& stash) const override;
  TensorList backward_data(Context& ctx, const TensorList& output_gradients, Stash& stash) const override;
  void backward_weight(Context& ctx, Stash& stash) const override;

 private:
  enum Slot { kInput, kLogitsGradient };
  enum Child { kNorm };

  TensorList generate(Context& ctx, const TensorList& inputs, Stash& stash) const;

  Spec spec_;
  Norm norm_;
  Parameter& weight_;
};

}  // namespace megalith
