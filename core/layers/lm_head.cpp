#include "core/layers/lm_head.h"

#include "core/layers/linear.h"
#include "core/ops/cross_entropy.h"
#include "core/ops/elementwise.h"
#include "core/ops/reduce.h"

namespace megalith {

TensorList LmHead::generate(Context& ctx, const TensorList& inputs, Stash& stash) const {
  // Only the last row of each sequence is needed: [B, S, H] -> [B, H].
  const std::int64_t last = ctx.batch.seq_length - 1;
  const auto last_rows = [&](const Tensor& x) {
    const Tensor rows = x.split_dim(0, ctx.batch.sequences).slice(1, last, 1);
    const Tensor packed = ctx.empty({ctx.batch.sequences, x.size(1)}, x.dtype, "last rows");
    launch(ctx.compute, Copy{.src = rows, .dst = packed.view({ctx.batch.sequences, 1, x.size(1)})});
    return packed;
  };
  const Tensor residual = inputs[1] ? last_rows(inputs[1]) : Tensor{};
  const Tensor normed = norm_.forward(ctx, last_rows(inputs[0]), residual, stash.child(kNorm));
  return {matmul(ctx, normed, weight_.weight, false, true)};
}

TensorList LmHead::forward(Context& ctx, const TensorList& inputs, Stash& stash) const {
  if (ctx.mode == Mode::kGenerate) return generate(ctx, inputs, stash);
  const bool train = ctx.mode == Mode::kTrain;
  const Tensor normed = norm_.forward(ctx, inputs[0], inputs[1], stash.child(kNorm));
  const Tensor logits = matmul(ctx, normed, weight_.weight, false, true);
  const Tensor loss = ctx.empty({logits.size(0)}, DType::kFp32, "token losses");
  launch(ctx.compute, CrossEntropy{.logits = logits,
                                   .labels = ctx.batch.labels,
                                   .loss = loss,
                                   .vocab_size = spec_.vocab_size,
                                   .write_gradient = train,
                                   .parameters = ctx.microbatch});
  launch(ctx.compute, ReduceToScalar{.x = loss, .out = ctx.loss_sum, .accumulate = true});
  if (train) {
    stash[kInput] = normed;
    stash[kLogitsGradient] = logits;
  }
  return {};
}

TensorList LmHead::backward_data(Context& ctx, const TensorList&, Stash& stash) const {
  const Tensor d_normed = matmul(ctx, stash.at(kLogitsGradient, "logits gradient"), weight_.weight);
  const Tensor d_residual = norm_.backward_data(ctx, d_normed, {}, stash.child(kNorm));
  return {d_residual, d_residual};
}

void LmHead::backward_weight(Context& ctx, Stash& stash) const {
  accumulate_linear_gradient(ctx, stash.at(kInput, "head input"), stash.at(kLogitsGradient, "logits gradient"), weight_,
                             nullptr);
  norm_.backward_weight(ctx, stash.child(kNorm));
}

}  // namespace megalith
