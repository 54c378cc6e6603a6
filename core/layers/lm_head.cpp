#include "core/layers/lm_head.h"

#include <algorithm>

#include "core/layers/linear.h"
#include "core/ops/cross_entropy.h"
#include "core/ops/elementwise.h"
#include "core/ops/gemm.h"
#include "core/ops/reduce.h"

namespace megalith {

TensorList LmHead::generate(const Context& ctx, const Microbatch& mb, const TensorList& inputs, Stash& stash) const {
  // Only the last row of each sequence is needed: [B, S, H] -> [B, H].
  const std::int64_t last = mb.seq_length - 1;
  const auto last_rows = [&](const Tensor& x) {
    const Tensor rows = x.split_dim(0, mb.sequences).slice(1, last, 1);
    const Tensor packed = ctx.empty({mb.sequences, x.size(1)}, x.dtype, "last rows");
    launch(ctx.compute, Copy{.src = rows, .dst = packed.view({mb.sequences, 1, x.size(1)})});
    return packed;
  };
  const Tensor residual = inputs[1] ? last_rows(inputs[1]) : Tensor{};
  const Tensor normed = norm_.forward(ctx, last_rows(inputs[0]), residual, stash.child(kNorm));
  return {matmul(ctx, normed, weight_.weight, false, true)};
}

void LmHead::compute_losses(const Context& ctx, const Microbatch& mb, const Tensor& logits, const Tensor& labels,
                            const Tensor& losses) const {
  launch(ctx, CrossEntropy{.logits = logits,
                           .labels = labels,
                           .loss = losses,
                           .vocab_size = spec_.vocab_size,
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
  if (mb.mode == Mode::kGenerate) return generate(ctx, mb, inputs, stash);
  const Tensor normed = norm_.forward(ctx, inputs[0], inputs[1], stash.child(kNorm));
  const Tensor losses = ctx.empty({normed.size(0)}, DType::kFp32, "token losses");
  if (is_chunked()) {
    forward_chunks(ctx, mb, normed, losses, stash);
  } else {
    const Tensor logits = matmul(ctx, normed, weight_.weight, false, true);
    compute_losses(ctx, mb, logits, mb.labels, losses);
    if (mb.mode == Mode::kTrain) {
      stash[kInput] = normed;
      stash[kLogitsGradient] = logits;
    }
  }
  launch(ctx, ReduceToScalar{.x = losses, .out = mb.sum(StepSum::kLoss), .accumulate = true});
  return {};
}

TensorList LmHead::backward_data(const Context& ctx, const Microbatch&, const TensorList&, Stash& stash) const {
  const Tensor d_normed = is_chunked() ? stash.at(kInputGradient, "head input gradient")
                                       : matmul(ctx, stash.at(kLogitsGradient, "logits gradient"), weight_.weight);
  const Tensor d_residual = norm_.backward_data(ctx, d_normed, {}, stash.child(kNorm));
  return {d_residual, d_residual};
}

void LmHead::backward_weight(const Context& ctx, const Microbatch&, Stash& stash) const {
  if (!is_chunked()) {
    accumulate_linear_gradient(ctx, stash.at(kInput, "head input"), stash.at(kLogitsGradient, "logits gradient"),
                               weight_, nullptr);
  }
  norm_.backward_weight(ctx, stash.child(kNorm));
}

}  // namespace megalith
