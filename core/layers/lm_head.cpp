#include "core/layers/lm_head.h"

#include <algorithm>

#include "core/layers/linear.h"
#include "core/ops/elementwise/elementwise.h"
#include "core/ops/elementwise/reduce.h"
#include "core/ops/gemm/gemm.h"
#include "core/ops/loss/cross_entropy.h"
#include "core/ops/loss/vocab_cross_entropy.h"

namespace megalith {

TensorList LmHead::generate(const Context& ctx, const Microbatch& mb, const TensorList& inputs, Stash& stash) const {
  require(rows_.split().ranks == 1, "generation runs on one tensor-parallel rank");
  // Only the last row of each sequence is used: [B, S, H] -> [B, H].
  const std::int64_t last = mb.seq_length - 1;
  const auto last_rows = [&](const Tensor& x) {
    if (mb.seq_length == 1) return x;
    const Tensor rows = x.split_dim(0, mb.sequences).slice(1, last, 1);
    const Tensor packed = ctx.empty({mb.sequences, x.size(1)}, x.dtype, "last rows");
    launch(ctx.compute, Copy{.src = rows, .dst = packed.view({mb.sequences, 1, x.size(1)})});
    return packed;
  };
  const Tensor residual = inputs[1] ? last_rows(inputs[1]) : Tensor{};
  const Tensor normed = norm_.forward(ctx, last_rows(inputs[0]), residual, stash.child(kNorm));
  const Tensor logits = ctx.empty({mb.sequences, weight_.shape[0]}, normed.dtype, "logits");
  launch(ctx, Gemm{.a = normed, .b = weight_.weight, .c = logits, .transpose_b = true, .b_is_constant = true});
  return {logits};
}

void LmHead::compute_losses(const Context& ctx, const Microbatch& mb, const Tensor& logits, const Tensor& labels,
                            const Tensor& losses) const {
  if (rows_.split().ranks > 1) return compute_split_losses(ctx, mb, logits, labels, losses);
  launch(ctx, CrossEntropy{.logits = logits,
                           .labels = labels,
                           .loss = losses,
                           .vocab_size = spec_.vocab_size,
                           .write_gradient = mb.mode == Mode::kTrain,
                           .parameters = mb.parameters});
}

void LmHead::compute_split_losses(const Context& ctx, const Microbatch& mb, const Tensor& logits, const Tensor& labels,
                                  const Tensor& losses) const {
  const VocabColumns columns{.first_column = spec_.first_word, .vocab_size = spec_.vocab_size};
  const Tensor max = ctx.empty(losses.shape, DType::kFp32, "softmax maximum");
  const Tensor sums = ctx.empty({2, losses.numel()}, DType::kFp32, "softmax sums");
  launch(ctx, VocabMax{.logits = logits, .labels = labels, .max = max, .columns = columns});
  rows_.maximum(ctx.compute, max, "maximum of logits");
  launch(ctx.compute, VocabSums{.logits = logits, .labels = labels, .max = max, .sums = sums, .columns = columns});
  rows_.sum(ctx.compute, sums, "sums of softmax");
  launch(ctx.compute, VocabLoss{.logits = logits,
                                .labels = labels,
                                .max = max,
                                .sums = sums,
                                .loss = losses,
                                .columns = columns,
                                .write_gradient = mb.mode == Mode::kTrain,
                                .parameters = mb.parameters});
}

void LmHead::forward_chunks(const Context& ctx, const Microbatch& mb, const Tensor& normed, const Tensor& losses,
                            Stash& stash) const {
  const std::int64_t tokens = normed.size(0);
  const Tensor chunk_logits =
      ctx.empty({std::min(spec_.loss_chunk_size, tokens), weight_.shape[0]}, normed.dtype, "logits of a chunk");
  const bool train = mb.mode == Mode::kTrain;
  if (train) stash[kInputGradient] = ctx.empty(normed.shape, normed.dtype, "head input gradient");
  for (std::int64_t first = 0; first < tokens; first += spec_.loss_chunk_size) {
    const std::int64_t count = std::min(spec_.loss_chunk_size, tokens - first);
    const Tensor x = normed.slice(0, first, count), logits = chunk_logits.slice(0, 0, count);
    launch(ctx, Gemm{.a = x, .b = weight_.weight, .c = logits, .transpose_b = true});
    compute_losses(ctx, mb, logits, mb.labels.slice(0, first, count), losses.slice(0, first, count));
    if (!train) continue;
    launch(ctx, Gemm{.a = logits, .b = weight_.weight, .c = stash[kInputGradient].slice(0, first, count)});
    accumulate_linear_gradient(ctx, x, logits, weight_, nullptr);
  }
}

TensorList LmHead::forward(const Context& ctx, const Microbatch& mb, const TensorList& inputs, Stash& stash) const {
  if (mb.mode == Mode::kGenerate && !mb.token_losses) return generate(ctx, mb, inputs, stash);
  const Tensor normed = norm_.forward(ctx, inputs[0], inputs[1], stash.child(kNorm));
  const std::int64_t tokens = rows_.whole_rows(normed.size(0));
  const Tensor losses = mb.token_losses ? mb.token_losses : ctx.empty({tokens}, DType::kFp32, "token losses");
  if (is_chunked()) {
    forward_chunks(ctx, mb, rows_.gather_rows(ctx, normed, "head input"), losses, stash);
  } else {
    const Tensor logits = ctx.empty({tokens, weight_.shape[0]}, normed.dtype, "logits");
    rows_.use_rows(ctx, normed, "head input", read_rows(ctx, {.b = weight_.weight, .c = logits, .transpose_b = true}));
    compute_losses(ctx, mb, logits, mb.labels, losses);
    if (mb.mode == Mode::kTrain) {
      stash[kInput] = normed;
      stash[kLogitsGradient] = logits;
    }
  }
  if (mb.token_losses) return {};
  launch(ctx, ReduceToScalar{.x = losses, .out = mb.sum(StepSum::kLoss), .accumulate = true});
  return {};
}

TensorList LmHead::backward_data(const Context& ctx, const Microbatch&, const TensorList&, Stash& stash) const {
  const std::string label = "head input gradient";
  Tensor d_normed;
  if (is_chunked()) {
    d_normed = rows_.sum_rows(ctx, stash.at(kInputGradient, label), label);
  } else {
    const Tensor& d_logits = stash.at(kLogitsGradient, "logits gradient");
    d_normed = rows_.sum_rows(ctx, {d_logits.size(0), weight_.shape[1]}, d_logits.dtype, label,
                              make_rows(ctx, {.a = d_logits, .b = weight_.weight}));
  }
  const Tensor d_residual = norm_.backward_data(ctx, d_normed, {}, stash.child(kNorm));
  return {d_residual, d_residual};
}

void LmHead::backward_weight(const Context& ctx, const Microbatch&, Stash& stash) const {
  if (!is_chunked()) {
    const Tensor x = rows_.gather_rows(ctx, stash.at(kInput, "head input"), "head input again");
    accumulate_linear_gradient(ctx, x, stash.at(kLogitsGradient, "logits gradient"), weight_, nullptr);
  }
  norm_.backward_weight(ctx, stash.child(kNorm));
}

}  // namespace megalith
