#include "core/layers/embedding.h"

#include "core/ops/embedding.h"

namespace megalith {

Embedding::Embedding(ParameterStore& store, const Spec& spec)
    : spec_(spec),
      words_(store.add({.parts = {{.name = "embedding.word_embeddings.weight"}},
                        .shape = {spec.vocab, spec.hidden},
                        .init_std = spec.init_std})) {
  if (spec.positions == 0) return;
  positions_ = &store.add({.parts = {{.name = "embedding.position_embeddings.weight"}},
                           .shape = {spec.positions, spec.hidden},
                           .init_std = spec.init_std});
}

TensorList Embedding::forward(const Context& ctx, const Microbatch& mb, const TensorList&, Stash& stash) const {
  const Tensor& tokens = mb.tokens;
  const Tensor hidden = ctx.empty({tokens.numel(), spec_.hidden}, words_.weight.dtype, "embedding");
  launch(ctx, EmbeddingForward{.tokens = tokens,
                               .table = words_.weight,
                               .positions = positions_ != nullptr ? positions_->weight : Tensor{},
                               .rows_per_sample = mb.seq_length,
                               .part = mb.part,
                               .start = mb.cache != nullptr ? mb.cache->start : nullptr,
                               .y = hidden});
  stash[kTokens] = tokens;
  return {apply_dropout(ctx, mb, spec_.dropout, hidden), Tensor{}};
}

TensorList Embedding::backward_data(const Context& ctx, const Microbatch& mb, const TensorList& output_gradients,
                                    Stash& stash) const {
  stash[kOutputGradient] = apply_dropout(ctx, mb, spec_.dropout, output_gradients[0]);
  return {};
}

void Embedding::backward_weight(const Context& ctx, const Microbatch& mb, Stash& stash) const {
  launch(ctx, EmbeddingBackward{.tokens = stash.at(kTokens, "tokens"),
                                .dy = stash.at(kOutputGradient, "embedding gradient"),
                                .d_table = words_.main_grad,
                                .d_positions = positions_ != nullptr ? positions_->main_grad : Tensor{},
                                .rows_per_sample = mb.seq_length,
                                .part = mb.part});
}

}  // namespace megalith
