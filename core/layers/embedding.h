// Tokens of the batch -> hidden states, plus a learned position where the model has one, then dropout. The first
// segment: it takes nothing and returns (hidden, no residual yet). T tokens, V padded vocabulary, H hidden, M
// positions.
#pragma once

#include "core/layers/attention.h"
#include "core/layers/row_exchange.h"

namespace megalith {

// [V, H], of which each of P tensor-parallel ranks holds `rows` rows. The vocabulary is then padded further, to a
// multiple of --make-vocab-size-divisible-by times P; rows that the model of one rank does not have are 0 and stay so.
struct WordTable {
  std::int64_t vocab = 0;   // V, of the model of one rank
  std::int64_t hidden = 0;  // H
  std::int64_t rows = 0;
  std::int64_t first_row = 0;
  float init_std = 0.02f;

  Parameter parameter(std::string name) const;
};

// With several ranks the rows of others' tokens come in by a sum. Learned positions are whole on every rank, and added
// by the first.
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
