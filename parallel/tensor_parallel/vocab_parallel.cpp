#include "parallel/tensor_parallel/vocab_parallel.h"

#include <algorithm>

#include "core/layers/linear.h"
#include "core/ops/embedding.h"
#include "core/ops/gemm.h"
#include "core/ops/reduce.h"
#include "core/ops/vocab_cross_entropy.h"

namespace megalith {

namespace {

Parameter table_of(std::string name, const VocabRange& range, const Shape& whole, float init_std) {
  return {.parts = {{.name = std::move(name), .rows = range.rows, .global_shape = whole, .global_row = range.first}},
          .shape = {range.rows, whole[1]},
          .init_std = init_std};
}

}  // namespace

VocabRange vocab_range(std::int64_t vocab_size, std::int64_t divisible_by, const TensorSplit& split) {
  const std::int64_t multiple = divisible_by * split.ranks;
  const std::int64_t rows = (vocab_size + multiple - 1) / multiple * divisible_by;
  return {.rows = rows, .first = split.rank * rows};
}

VocabParallelEmbedding::VocabParallelEmbedding(ParameterStore& store, const Embedding::Spec& spec,
                                               const VocabRange& range, TensorGroup& group)
    : spec_(spec),
      range_(range),
      group_(group),
      words_(store.add(table_of("embedding.word_embeddings.weight", range, {spec.vocab, spec.hidden}, spec.init_std))) {
  if (spec.positions == 0) return;
  positions_ = &store.add({.parts = {group.split().shared("embedding.position_embeddings.weight", false)},
                           .shape = {spec.positions, spec.hidden},
                           .init_std = spec.init_std});
}

TensorList VocabParallelEmbedding::forward(const Context& ctx, const Microbatch& mb, const TensorList&,
                                           Stash& stash) const {
  const Tensor& tokens = mb.tokens;
  const Tensor partial = ctx.empty({tokens.numel(), spec_.hidden}, words_.weight.dtype, "embedding");
  const TensorSplit split = group_.split();
  launch(ctx, EmbeddingForward{.tokens = tokens,
                               .table = words_.weight,
                               .positions = positions_ != nullptr && split.rank == 0 ? positions_->weight : Tensor{},
                               .first_token = range_.first,
                               .vocabulary = range_.rows * split.ranks,
                               .rows_per_sample = mb.seq_length,
                               .part = mb.part,
                               .y = partial});
  stash[kTokens] = tokens;
  return {apply_dropout(ctx, mb, spec_.dropout, group_.sum_rows(ctx, partial, "embedding")), Tensor{}};
}

TensorList VocabParallelEmbedding::backward_data(const Context& ctx, const Microbatch& mb,
                                                 const TensorList& output_gradients, Stash& stash) const {
  stash[kOutputGradient] = apply_dropout(ctx, mb, spec_.dropout, output_gradients[0]);
  return {};
}

void VocabParallelEmbedding::backward_weight(const Context& ctx, const Microbatch& mb, Stash& stash) const {
  const Tensor dy = group_.gather_rows(ctx, stash.at(kOutputGradient, "embedding gradient"), "embedding gradient");
  launch(ctx, EmbeddingBackward{.tokens = stash.at(kTokens, "tokens"),
                                .dy = dy,
                                .d_table = words_.main_grad,
                                .d_positions = positions_ != nullptr ? positions_->main_grad : Tensor{},
                                .first_token = range_.first,
                                .vocabulary = range_.rows * group_.split().ranks,
                                .rows_per_sample = mb.seq_length,
                                .part = mb.part});
}

VocabParallelHead::VocabParallelHead(ParameterStore& store, const HeadSpec& spec, const VocabRange& range, Norm norm,
                                     TensorGroup& group)
    : spec_(spec.head),
      range_(range),
      norm_(std::move(norm)),
      group_(group),
      weight_(spec.tied != nullptr
                  ? store.add_tied(*spec.tied)
                  : store.add(table_of(spec.table, range, {spec.head.vocab, spec.hidden}, spec.init_std))) {}

void VocabParallelHead::compute_losses(const Context& ctx, const Microbatch& mb, const Tensor& logits,
                                       const Tensor& labels, const Tensor& losses, const Tensor& scratch) const {
  const std::int64_t tokens = logits.size(0);
  const VocabColumns columns{.first_column = range_.first, .vocab_size = spec_.vocab_size};
  const Tensor max = scratch.slice(0, 0, tokens), sums = scratch.slice(0, tokens, 2 * tokens).view({2, tokens});
  launch(ctx, VocabMax{.logits = logits, .labels = labels, .max = max, .columns = columns});
  group_.all_reduce(ctx.compute, max, ReduceOp::kMax, "maximum of logits");
  launch(ctx.compute, VocabSums{.logits = logits, .labels = labels, .max = max, .sums = sums, .columns = columns});
  group_.all_reduce(ctx.compute, sums, ReduceOp::kSum, "sums of softmax");
  launch(ctx.compute, VocabLoss{.logits = logits,
                                .labels = labels,
                                .max = max,
                                .sums = sums,
                                .loss = losses,
                                .columns = columns,
                                .write_gradient = mb.mode == Mode::kTrain,
                                .parameters = mb.parameters});
}

void VocabParallelHead::forward_chunks(const Context& ctx, const Microbatch& mb, const Tensor& x, const Tensor& losses,
                                       Stash& stash) const {
  const std::int64_t tokens = x.size(0), most = std::min(spec_.loss_chunk_size, tokens);
  const Tensor chunk_logits = ctx.empty({most, range_.rows}, x.dtype, "logits of a chunk");
  const Tensor scratch = ctx.empty({3 * most}, DType::kFp32, "softmax sums");
  const bool train = mb.mode == Mode::kTrain;
  if (train) stash[kInputGradient] = ctx.empty(x.shape, x.dtype, "head input gradient");
  for (std::int64_t first = 0; first < tokens; first += spec_.loss_chunk_size) {
    const std::int64_t count = std::min(spec_.loss_chunk_size, tokens - first);
    const Tensor part = x.slice(0, first, count), logits = chunk_logits.slice(0, 0, count);
    launch(ctx, Gemm{.a = part, .b = weight_.weight, .c = logits, .transpose_b = true});
    compute_losses(ctx, mb, logits, mb.labels.slice(0, first, count), losses.slice(0, first, count),
                   scratch.slice(0, 0, 3 * count));
    if (!train) continue;
    launch(ctx, Gemm{.a = logits, .b = weight_.weight, .c = stash[kInputGradient].slice(0, first, count)});
    accumulate_linear_gradient(ctx, part, logits, weight_, nullptr);
  }
}

TensorList VocabParallelHead::forward(const Context& ctx, const Microbatch& mb, const TensorList& inputs,
                                      Stash& stash) const {
  require(mb.mode != Mode::kGenerate, "generation runs on one tensor-parallel rank");
  const Tensor normed = norm_.forward(ctx, inputs[0], inputs[1], stash.child(kNorm));
  const std::int64_t tokens = group_.whole_rows(normed.size(0));
  const Tensor losses = ctx.empty({tokens}, DType::kFp32, "token losses");
  if (is_chunked()) {
    forward_chunks(ctx, mb, group_.gather_rows(ctx, normed, "head input"), losses, stash);
  } else {
    const Tensor logits = ctx.empty({tokens, range_.rows}, normed.dtype, "logits");
    group_.gather_rows(ctx, normed, "head input", [&](const Tensor& rows, std::int64_t first) {
      launch(ctx, Gemm{.a = rows, .b = weight_.weight, .c = logits.slice(0, first, rows.size(0)), .transpose_b = true});
    });
    compute_losses(ctx, mb, logits, mb.labels, losses, ctx.empty({3 * tokens}, DType::kFp32, "softmax sums"));
    if (mb.mode == Mode::kTrain) {
      stash[kInput] = normed;
      stash[kLogitsGradient] = logits;
    }
  }
  launch(ctx, ReduceToScalar{.x = losses, .out = mb.sum(StepSum::kLoss), .accumulate = true});
  return {};
}

TensorList VocabParallelHead::backward_data(const Context& ctx, const Microbatch&, const TensorList&,
                                            Stash& stash) const {
  const std::string label = "head input gradient";
  Tensor d_normed;
  if (is_chunked()) {
    d_normed = group_.sum_rows(ctx, stash.at(kInputGradient, label), label);
  } else {
    const Tensor& d_logits = stash.at(kLogitsGradient, "logits gradient");
    d_normed = group_.sum_rows(
        ctx, {d_logits.size(0), weight_.shape[1]}, d_logits.dtype, label, [&](const Tensor& rows, std::int64_t first) {
          launch(ctx, Gemm{.a = d_logits.slice(0, first, rows.size(0)), .b = weight_.weight, .c = rows});
        });
  }
  const Tensor d_residual = norm_.backward_data(ctx, d_normed, {}, stash.child(kNorm));
  return {d_residual, d_residual};
}

void VocabParallelHead::backward_weight(const Context& ctx, const Microbatch&, Stash& stash) const {
  if (!is_chunked()) {
    const Tensor x = group_.gather_rows(ctx, stash.at(kInput, "head input"), "head input again");
    accumulate_linear_gradient(ctx, x, stash.at(kLogitsGradient, "logits gradient"), weight_, nullptr);
  }
  norm_.backward_weight(ctx, stash.child(kNorm));
}

}  // namespace megalith
