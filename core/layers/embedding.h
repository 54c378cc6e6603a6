// Tokens of the batch -> hidden states, plus a learned position where the model has one, then dropout. The first
// segment: it takes nothing and returns (hidden, no residual yet). T tokens, V padded vocabulary, H hidden, M
// positions.
#pragma once

#include "core/layers/attention.h"

namespace megalith {

class Embedding : public Segment {
 public:
  struct Spec {
    std::int64_t vocab = 0;      // V
    std::int64_t hidden = 0;     // H
    std::int64_t positions = 0;  // M; 0: no learned positions
    float init_std = 0.02f;
    DropoutSpec dropout{.layer = -1};
  };

  Embedding(ParameterStore& store, const Spec& spec);
  Parameter& word_table() { return words_; }

  TensorList forward(const Context& ctx, const Microbatch& mb, const TensorList& inputs, Stash& stash) const override;
  TensorList backward_data(const Context& ctx, const Microbatch& mb, const TensorList& output_gradients,
                           Stash& stash) const override;
  void backward_weight(const Context& ctx, const Microbatch& mb, Stash& stash) const override;

 private:
  enum Slot { kTokens, kOutputGradient };

  Spec spec_;
  Parameter& words_;                // [V, H]
  Parameter* positions_ = nullptr;  // [M, H]
};

}  // namespace megalith
