#include "core/layers/embedding.h"

#include "core/ops/elementwise/elementwise.h"
#include "core/ops/token/embedding.h"

namespace megalith {

Parameter WordTable::parameter(std::string name) const {
  return {.parts = {{.name = std::move(name), .rows = rows, .global_shape = {vocab, hidden}, .global_row = first_row}},
          .shape = {rows, hidden},
          .init_std = init_std};
}

Embedding::Embedding(ParameterStore& store, const Spec& spec, RowExchange& rows)
    : spec_(spec), rows_(rows), words_(store.add(spec.table.parameter("embedding.word_embeddings.weight"))) {
  if (spec.positions == 0) return;
  positions_ = &store.add({.parts = {rows.split().shared("embedding.position_embeddings.weight", false)},
                           .shape = {spec.positions, spec.table.hidden},
                           .init_std = spec.table.init_std});
}

TensorList Embedding::forward(const Context& ctx, const Microbatch& mb, const TensorList&, Stash& stash) const {
  const Tensor& tokens = mb.tokens;
  const Tensor partial = ctx.empty({tokens.numel(), spec_.table.hidden}, words_.weight.dtype, "embedding");
  const TensorSplit split = rows_.split();
  const bool adds_positions = positions_ != nullptr && split.rank == 0;
  launch(ctx, EmbeddingForward{.tokens = tokens,
                               .table = words_.weight,
                               .positions = adds_positions && !mb.positions ? positions_->weight : Tensor{},
                               .first_token = spec_.table.first_row,
                               .vocabulary = spec_.table.rows * split.ranks,
                               .rows_per_sample = mb.seq_length,
                               .part = mb.part,
                               .start = mb.cache != nullptr ? mb.cache->start : nullptr,
                               .y = partial});
  if (positions_ != nullptr && mb.positions) {
    // Looked up by every rank: ranks that allocate in the same order offload the same buffers.
    const Tensor added = ctx.empty(partial.shape, partial.dtype, "position embedding");
    launch(ctx, EmbeddingForward{.tokens = mb.positions, .table = positions_->weight, .y = added});
    if (adds_positions) launch(ctx.compute, Add{.a = partial, .b = added, .y = partial});
  }
  stash[kTokens] = tokens;
  return {apply_dropout(ctx, mb, spec_.dropout, rows_.sum_rows(ctx, partial, "embedding")), Tensor{}};
}

TensorList Embedding::backward_data(const Context& ctx, const Microbatch& mb, const TensorList& output_gradients,
                                    Stash& stash) const {
  stash[kOutputGradient] = apply_dropout(ctx, mb, spec_.dropout, output_gradients[0]);
  return {};
}

void Embedding::backward_weight(const Context& ctx, const Microbatch& mb, Stash& stash) const {
  const Tensor dy = rows_.gather_rows(ctx, stash.at(kOutputGradient, "embedding gradient"), "embedding gradient");
  launch(ctx,
         EmbeddingBackward{.tokens = stash.at(kTokens, "tokens"),
                           .dy = dy,
                           .d_table = words_.main_grad,
                           .d_positions = positions_ != nullptr && !mb.positions ? positions_->main_grad : Tensor{},
                           .first_token = spec_.table.first_row,
                           .vocabulary = spec_.table.rows * rows_.split().ranks,
                           .rows_per_sample = mb.seq_length,
                           .part = mb.part});
  if (positions_ != nullptr && mb.positions)
    launch(ctx, EmbeddingBackward{.tokens = mb.positions, .dy = dy, .d_table = positions_->main_grad});
}

}  // namespace megalith
