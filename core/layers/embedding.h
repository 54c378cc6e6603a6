// The first segment: tokens -> hidden states, plus a learned position if the model has one, then dropout. It has no
// inputs and returns (hidden, no residual). T tokens, V padded vocabulary, H hidden, M positions.
#pragma once

#include "core/layers/attention.h"
#include "core/layers/row_exchange.h"

namespace megalith {

// [V, H], of which each of P tensor-parallel ranks holds `rows` rows. V is padded further, to a multiple of
// --make-vocab-size-divisible-by times P. Rows beyond the vocabulary of a single rank are 0 and stay 0.
struct WordTable {
  std::int64_t vocab = 0;   // V of the model on one rank
  std::int64_t hidden = 0;  // H
  std::int64_t rows = 0;
  std::int64_t first_row = 0;
  float init_std = 0.02f;

  Parameter parameter(std::string name) const;
};

// With several ranks, a sum over ranks adds the rows of other ranks' tokens. Every rank holds all learned positions;
// the first rank adds them.
class Embedding : public Segment {
 public:
  struct Spec {
    WordTable table;
    std::int64_t positions = 0;  // M; 0: no learned positions
    DropoutSpec dropout{.layer = -1};
  };

  Embedding(ParameterStore& store, const Spec& spec, RowExchange& rows);
  Parameter& word_table() { return words_; }

  TensorList forward(const Context& ctx, const Microbatch& mb, const TensorList& inputs, Stash& stash) const override;
  TensorList backward_data(const Context& ctx, const Microbatch& mb, const TensorList& output_gradients,
                           Stash& stash) const override;
  void backward_weight(const Context& ctx, const Microbatch& mb, Stash& stash) const override;

 private:
  enum Slot { kTokens, kOutputGradient };

  Spec spec_;
  RowExchange& rows_;
  Parameter& words_;                // [V / P, H]
  Parameter* positions_ = nullptr;  // [M, H]
};

}  // namespace megalith
