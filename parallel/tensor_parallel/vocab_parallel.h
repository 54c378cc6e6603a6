// The table of words and the output layer with their vocabulary split among the P ranks of a tensor-parallel group, and
// the loss on it without gathered logits. Each rank holds V / P rows, V being the vocabulary padded to a multiple of
// --make-vocab-size-divisible-by times P; rows that the model of one rank does not have are 0 and stay so. T tokens, H
// hidden.
#pragma once

#include "core/layers/embedding.h"
#include "core/layers/lm_head.h"
#include "core/model/gpt.h"
#include "parallel/tensor_parallel/tensor_group.h"

namespace megalith {

// Rows of the whole model's table that a rank holds.
struct VocabRange {
  std::int64_t rows = 0;   // V / P, padding included
  std::int64_t first = 0;  // row of the whole table
};
VocabRange vocab_range(std::int64_t vocab_size, std::int64_t divisible_by, const TensorSplit& split);

// As Embedding; the rows of other ranks' tokens come in by a sum. Learned positions are whole on every rank, and added
// by the first.
class VocabParallelEmbedding : public Segment {
 public:
  VocabParallelEmbedding(ParameterStore& store, const Embedding::Spec& spec, const VocabRange& range,
                         TensorGroup& group);
  Parameter& word_table() { return words_; }

  TensorList forward(const Context& ctx, const Microbatch& mb, const TensorList& inputs, Stash& stash) const override;
  TensorList backward_data(const Context& ctx, const Microbatch& mb, const TensorList& output_gradients,
                           Stash& stash) const override;
  void backward_weight(const Context& ctx, const Microbatch& mb, Stash& stash) const override;

 private:
  enum Slot { kTokens, kOutputGradient };

  Embedding::Spec spec_;
  VocabRange range_;
  TensorGroup& group_;
  Parameter& words_;                // [V / P, H]
  Parameter* positions_ = nullptr;  // [M, H]
};

// As LmHead, its chunks included; not for generate mode. Every rank ends with the losses of all tokens.
class VocabParallelHead : public Segment {
 public:
  // A table of its own where spec.tied is null.
  VocabParallelHead(ParameterStore& store, const HeadSpec& spec, const VocabRange& range, Norm norm,
                    TensorGroup& group);
  Parameter& table() { return weight_; }

  TensorList forward(const Context& ctx, const Microbatch& mb, const TensorList& inputs, Stash& stash) const override;
  TensorList backward_data(const Context& ctx, const Microbatch& mb, const TensorList& output_gradients,
                           Stash& stash) const override;
  void backward_weight(const Context& ctx, const Microbatch& mb, Stash& stash) const override;

 private:
  enum Slot { kInput, kLogitsGradient, kInputGradient };
  enum Child { kNorm };

  // The losses of consecutive tokens; their logits' gradients in place in train mode. `scratch` is [3 * tokens] fp32.
  void compute_losses(const Context& ctx, const Microbatch& mb, const Tensor& logits, const Tensor& labels,
                      const Tensor& losses, const Tensor& scratch) const;
  void forward_chunks(const Context& ctx, const Microbatch& mb, const Tensor& x, const Tensor& losses,
                      Stash& stash) const;
  bool is_chunked() const { return spec_.loss_chunk_size > 0; }

  LmHead::Spec spec_;
  VocabRange range_;
  Norm norm_;
  TensorGroup& group_;
  Parameter& weight_;  // [V / P, H]
};

}  // namespace megalith
