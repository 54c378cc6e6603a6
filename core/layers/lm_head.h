// The last segment: final norm, output layer and loss.
//   r = residual + hidden;  logits = norm(r) W^T;  loss = cross-entropy(logits, labels)
// Train and eval: adds the sum of its tokens' losses (fp32, not scaled) to the step's sums and returns nothing. Its
// gradient starts the backward pass. Generate: returns the logits of each sequence's last row, [B, V], or writes the
// losses of all tokens to Microbatch::token_losses. T tokens = B * S, H hidden, V padded vocabulary.
//
// With loss_chunk_size N, forward computes logits, loss, data gradient and weight gradient of N tokens at a time.
// Logits then exist for at most N tokens, and the stash keeps [T, H] instead of [T, V]. This is the one exception to
// the three verbs: forward adds the output layer's weight gradient, rounded to main_grad's dtype after each chunk.
// Losses and data gradients equal the unchunked ones.
//
// If tensor-parallel ranks split the vocabulary, the loss is computed without gathered logits, and every rank has the
// losses of all tokens. Generate mode does not support this.
#pragma once

#include "core/layers/norm.h"
#include "core/layers/row_exchange.h"

namespace megalith {

class LmHead : public Segment {
 public:
  struct Spec {
    std::int64_t vocab_size = 0;       // words of all ranks, without padding
    std::int64_t first_word = 0;       // first word of this rank's logits
    std::int64_t loss_chunk_size = 0;  // N, tokens; 0: all at once
  };
  // `weight` is this rank's [V / P, H]: a separate parameter or the tied word table.
  LmHead(const Spec& spec, Norm norm, Parameter& weight, RowExchange& rows)
      : spec_(spec), norm_(std::move(norm)), weight_(weight), rows_(rows) {}

  TensorList forward(const Context& ctx, const Microbatch& mb, const TensorList& inputs, Stash& stash) const override;
  TensorList backward_data(const Context& ctx, const Microbatch& mb, const TensorList& output_gradients,
                           Stash& stash) const override;
  void backward_weight(const Context& ctx, const Microbatch& mb, Stash& stash) const override;

 private:
  enum Slot { kInput, kLogitsGradient, kInputGradient };
  enum Child { kNorm };

  bool is_chunked() const { return spec_.loss_chunk_size > 0; }
  TensorList generate(const Context& ctx, const Microbatch& mb, const TensorList& inputs, Stash& stash) const;
  // Computes the losses of consecutive tokens; in train mode also their logits' gradients, in place.
  void compute_losses(const Context& ctx, const Microbatch& mb, const Tensor& logits, const Tensor& labels,
                      const Tensor& losses) const;
  void compute_split_losses(const Context& ctx, const Microbatch& mb, const Tensor& logits, const Tensor& labels,
                            const Tensor& losses) const;
  void forward_chunks(const Context& ctx, const Microbatch& mb, const Tensor& normed, const Tensor& losses,
                      Stash& stash) const;

  Spec spec_;
  Norm norm_;
  Parameter& weight_;
  RowExchange& rows_;
};

}  // namespace megalith
