#include "moe/router.h"

#include <algorithm>

#include "core/base/rng.h"
#include "core/layers/linear.h"
#include "core/layers/row_sums.h"
#include "core/ops/elementwise.h"
#include "core/ops/expert_bias.h"
#include "core/ops/fill_normal.h"
#include "moe/routed.h"

namespace megalith {

Router::Router(ParameterStore& store, const Spec& spec, const Norm& norm)
    : spec_(spec),
      norm_(norm),
      weight_(store.add({.parts = {spec.split.shared_between_linears(spec.name + "weight")},
                         .shape = {spec.experts, spec.hidden},
                         .init_std = spec.init_std})) {
  require(spec.aux_coeff == 0 || spec.sharers == 1 || spec.sum_counts, "Router: several sharers without sum_counts");
  if (!spec.expert_bias) return;
  LogicalTensor bias = spec.split.shared(spec.name + "expert_bias", false);
  bias.rows = spec.experts;
  bias_ = &store.add_buffer(std::move(bias));
}

Tensor Router::make_logits(const Context& ctx, const Tensor& normed) const {
  const Shape shape{normed.size(0), spec_.experts};
  const Tensor logits = ctx.empty(shape, DType::kFp32, "router logits");
  launch(ctx, Gemm{.a = normed, .b = weight_.weight, .c = logits, .transpose_b = true});
  if (!spec_.random_logits) return logits;
  launch(ctx.compute, FillNormal{.x = logits,
                                 .numbers = {.seed = ctx.seed,
                                             .name_hash = hash_name(spec_.name + "random logits"),
                                             .offset = spec_.split.row_part() * logits.numel(),
                                             .std = 1},
                                 .pitch = spec_.experts});
  return logits;
}

TensorList Router::forward(const Context& ctx, const Microbatch&, const TensorList& inputs, Stash& stash) const {
  const Tensor normed = norm_.forward(ctx, inputs[0], inputs[1], stash.child(kNorm));
  const Tensor residual = inputs[1] ? stash.child(kNorm)[Norm::kNormInput] : inputs[0];
  const std::int64_t tokens = normed.size(0), rows = tokens * spec_.choices;
  const Shape each_choice{tokens, spec_.choices};
  const Tensor logits = make_logits(ctx, normed);
  const Tensor choice = ctx.empty(each_choice, DType::kInt32, "chosen experts");
  const Tensor weight = ctx.empty(each_choice, DType::kFp32, "weights of experts");
  launch(ctx.compute, RouterTopk{.logits = logits,
                                 .expert_bias = bias_ != nullptr ? bias_->values : Tensor{},
                                 .choice = choice,
                                 .weight = weight,
                                 .score = spec_.score,
                                 .scaling_factor = spec_.scaling_factor,
                                 .num_groups = spec_.num_groups,
                                 .group_topk = spec_.group_topk});
  const Tensor offsets = ctx.empty({spec_.experts + 1}, DType::kInt32, "expert offsets");
  const Tensor token = ctx.empty({rows}, DType::kInt32, "tokens of routed rows");
  const Tensor position = ctx.empty(each_choice, DType::kInt32, "rows of tokens");
  const Tensor row_weight = ctx.empty({rows}, DType::kFp32, "weights of routed rows");
  launch(ctx, ExpertOffsets{.choice = choice, .offsets = offsets, .token = token, .position = position});
  launch(ctx.compute, PermuteWeights{.weight = weight, .position = position, .row_weight = row_weight});
  stash.save(kNormed, SlotKind::kExpertFc1, normed);
  if (has_losses() || spec_.score != RouterScore::kSoftmaxOfChosen) stash[kLogits] = logits;
  stash[kChoice] = choice;
  stash[kWeight] = weight;
  stash[kPositions] = position;
  stash[kExpertOffsets] = offsets;
  return {normed, residual, row_weight, token, offsets, position};
}

std::vector<Router::Piece> Router::pieces(const Context& ctx, const Microbatch& mb, Stash& stash) const {
  const Tensor& choice = stash.at(kChoice, "chosen experts");
  const std::int64_t tokens = choice.size(0), entries = spec_.experts + 1;
  if (!spec_.aux_per_sequence) {
    Piece all{.count = tokens, .offsets = stash.at(kExpertOffsets, "expert offsets"), .tokens = tokens * spec_.sharers};
    if (spec_.sharers > 1) {
      const Tensor own = all.offsets;
      all.offsets = ctx.empty(own.shape, own.dtype, "expert counts");
      launch(ctx.compute, Copy{.src = own, .dst = all.offsets});
      spec_.sum_counts(ctx, all.offsets);
    }
    return {all};
  }
  // This rank's rows of a sequence lie together; under sequence parallelism they may be none.
  const Tensor counts = ctx.empty({mb.sequences * entries}, DType::kInt32, "expert counts");
  std::vector<Piece> pieces;
  for (std::int64_t sequence = 0; sequence < mb.sequences; ++sequence) {
    const std::int64_t begin = sequence * mb.seq_length - spec_.split.row_part() * tokens;
    const std::int64_t first = std::clamp<std::int64_t>(begin, 0, tokens);
    const std::int64_t end = std::clamp<std::int64_t>(begin + mb.seq_length, 0, tokens);
    Piece piece{.first = first,
                .count = end - first,
                .offsets = counts.slice(0, sequence * entries, entries),
                .tokens = tokens * spec_.sharers / mb.sequences};
    const Shape of_piece{piece.count, spec_.choices};
    launch(ctx, ExpertOffsets{.choice = choice.slice(0, first, piece.count),
                              .offsets = piece.offsets,
                              .token = ctx.empty({of_piece.numel()}, DType::kInt32, "tokens of routed rows"),
                              .position = ctx.empty(of_piece, DType::kInt32, "rows of tokens")});
    pieces.push_back(piece);
  }
  if (spec_.sharers > 1) spec_.sum_counts(ctx, counts);
  return pieces;
}

// A loss of the mean over microbatches is a sum over tokens, as StepSum::kLoss is: times N, over what the loss of N
// tokens would be (core/ops/router.h).
Tensor Router::backward_router(const Context& ctx, const Microbatch& mb, const Tensor& d_weight, Stash& stash) const {
  const Tensor &choice = stash.at(kChoice, "chosen experts"), &weight = stash.at(kWeight, "weights of experts");
  const Tensor logits = stash.has(kLogits) ? stash[kLogits] : Tensor{};
  const Tensor d_logits = ctx.empty({choice.size(0), spec_.experts}, DType::kFp32, "router logits gradient");
  const std::vector<Piece> all =
      spec_.aux_coeff != 0 ? pieces(ctx, mb, stash) : std::vector<Piece>{{.count = choice.size(0), .tokens = 0}};
  for (const Piece& piece : all) {
    const auto part = [&piece](const Tensor& x) { return x ? x.slice(0, piece.first, piece.count) : x; };
    const float aux_scale = spec_.aux_coeff == 0
                                ? 0
                                : spec_.aux_coeff * static_cast<float>(spec_.experts) /
                                      (static_cast<float>(spec_.choices) * static_cast<float>(piece.tokens));
    if (has_losses()) {
      launch(ctx, RouterLosses{.logits = part(logits),
                               .offsets = piece.offsets,
                               .aux = aux_scale != 0 ? mb.sum(StepSum::kAuxLoss, spec_.expert_layer) : Tensor{},
                               .z = spec_.z_coeff != 0 ? mb.sum(StepSum::kZLoss, spec_.expert_layer) : Tensor{},
                               .score = spec_.score,
                               .aux_scale = aux_scale,
                               .z_scale = spec_.z_coeff});
    }
    launch(ctx.compute, RouterTopkBackward{.logits = part(logits),
                                           .choice = part(choice),
                                           .weight = part(weight),
                                           .d_weight = part(d_weight),
                                           .offsets = piece.offsets,
                                           .parameters = mb.parameters,
                                           .d_logits = part(d_logits),
                                           .score = spec_.score,
                                           .scaling_factor = spec_.scaling_factor,
                                           .aux_scale = aux_scale,
                                           .z_scale = spec_.z_coeff});
  }
  return d_logits;
}

TensorList Router::backward_data(const Context& ctx, const Microbatch& mb, const TensorList& output_gradients,
                                 Stash& stash) const {
  const Tensor &d_rows = output_gradients[kTokens], &position = stash.at(kPositions, "rows of tokens");
  const Tensor d_weight = ctx.empty(position.shape, DType::kFp32, "weights gradient");
  launch(ctx.compute,
         UnpermuteWeightGradients{.partial = output_gradients[kRowWeight], .position = position, .d_weight = d_weight});
  Tensor d_logits = backward_router(ctx, mb, d_weight, stash);
  if (mb.expert_counts) {  // here and not in forward, which may be recomputed
    const Tensor counts = mb.expert_counts.slice(0, spec_.expert_layer, 1).view({spec_.experts});
    launch(ctx.compute, CountExpertRows{.offsets = stash.at(kExpertOffsets, "expert offsets"), .counts = counts});
  }
  if (d_logits.dtype != d_rows.dtype) {
    const Tensor rounded = ctx.empty(d_logits.shape, d_rows.dtype, "router logits gradient");
    launch(ctx.compute, CastRows{.x = d_logits, .y = rounded});
    d_logits = rounded;
  }
  stash[kLogitsGradient] = d_logits;
  const Tensor d_normed = ctx.empty({position.size(0), spec_.hidden}, d_rows.dtype, "norm output gradient");
  launch(ctx.compute, UnpermuteRows{.x = d_rows, .position = position, .y = d_normed});
  launch(ctx, Gemm{.a = d_logits, .b = weight_.weight, .c = d_normed, .accumulate = true});
  if (output_gradients.size() > kToken && output_gradients[kToken]) {
    launch(ctx.compute, Add{.a = d_normed, .b = output_gradients[kToken], .y = d_normed});
  }
  const Tensor d_residual = norm_.backward_data(ctx, d_normed, output_gradients[kResidual], stash.child(kNorm));
  return {d_residual, d_residual};
}

void Router::backward_weight(const Context& ctx, const Microbatch&, Stash& stash) const {
  accumulate_linear_gradient(ctx, stash.at(kNormed, "norm output"), stash.at(kLogitsGradient, "router logits gradient"),
                             weight_, nullptr);
  norm_.backward_weight(ctx, stash.child(kNorm));
}

}  // namespace megalith
