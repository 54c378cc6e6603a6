#include "moe/router.h"

#include <algorithm>
#include <cmath>

#include "core/base/rng.h"
#include "core/layers/linear.h"
#include "core/layers/row_sums.h"
#include "core/ops/elementwise/elementwise.h"
#include "moe/ops/expert_bias.h"
#include "moe/ops/expert_capacity.h"
#include "moe/ops/rank_rows.h"
#include "moe/ops/router_logits.h"
#include "moe/random_logits.h"

namespace megalith {

Router::Router(ParameterStore& store, const Spec& spec, const Norm& norm)
    : spec_(spec),
      losses_(spec.losses,
              {.experts = spec.experts, .score = spec.score, .expert_layer = spec.expert_layer, .split = spec.split}),
      norm_(norm),
      weight_(store.add({.parts = {spec.split.shared_between_linears(spec.name + "weight")},
                         .shape = {spec.experts, spec.hidden},
                         .init_std = spec.init_std})) {
  if (!spec.expert_bias) return;
  LogicalTensor bias = spec.split.shared(spec.name + "expert_bias", false);
  bias.rows = spec.experts;
  bias_ = &store.add_buffer(std::move(bias));
}

Tensor Router::make_logits(const Context& ctx, const Microbatch& mb, const Tensor& normed) const {
  const Shape shape{normed.size(0), spec_.experts};
  const Tensor logits = ctx.empty(shape, spec_.dtype, "router logits");
  if (spec_.dtype == DType::kFp64) {
    launch(ctx.compute, RouterLogits{.x = normed, .weight = weight_.weight, .logits = logits});
    return logits;
  }
  launch(ctx, Gemm{.a = normed, .b = weight_.weight, .c = logits, .transpose_b = true});
  if (!spec_.random_logits) return logits;
  draw_logits(ctx.compute, logits, {.seed = ctx.seed, .name_hash = hash_name(spec_.name + "random logits"), .std = 1},
              {.first = spec_.split.row_part() * logits.size(0), .seq_length = mb.seq_length, .part = mb.part});
  return logits;
}

Router::Routes Router::routes_of(const Context& ctx, const Tensor& choice, const Tensor& weight) const {
  const Shape rows{choice.numel()};
  const Routes routes{.offsets = ctx.empty({spec_.experts + 1}, DType::kInt32, "expert offsets"),
                      .token = ctx.empty(rows, DType::kInt32, "tokens of routed rows"),
                      .position = ctx.empty(choice.shape, DType::kInt32, "rows of tokens"),
                      .row_weight = ctx.empty(rows, DType::kFp32, "weights of routed rows")};
  launch(ctx, ExpertOffsets{.choice = choice,
                            .offsets = routes.offsets,
                            .token = routes.token,
                            .position = routes.position,
                            .all_experts = spec_.experts});
  launch(ctx.compute, PermuteWeights{.weight = weight, .position = routes.position, .row_weight = routes.row_weight});
  return routes;
}

Tensor Router::kept_choices(const Context& ctx, const Microbatch& mb, const Tensor& choice, const Routes& all) const {
  if (spec_.capacity_factor == 0 || mb.mode == Mode::kGenerate) return choice;
  const double mean = static_cast<double>(choice.numel()) / static_cast<double>(spec_.experts);
  const double capacity = std::ceil(mean * spec_.capacity_factor);     // evaluation order of Megatron-LM
  if (capacity >= static_cast<double>(choice.size(0))) return choice;  // a token chooses an expert at most once
  const Tensor kept = ctx.empty(choice.shape, DType::kInt32, "kept choices");
  launch(ctx, LimitExpertRows{.choice = choice,
                              .position = all.position,
                              .offsets = all.offsets,
                              .row_weight = spec_.drops_last ? Tensor{} : all.row_weight,
                              .kept = kept,
                              .capacity = static_cast<std::int64_t>(std::max(capacity, 1.0))});
  return kept;
}

// Positions of this rank's rows of the microbatch, if it has any.
Tensor Router::positions_of(const Microbatch& mb, std::int64_t rows) const {
  return mb.positions ? mb.positions.slice(0, spec_.split.row_part() * rows, rows) : Tensor{};
}

TensorList Router::forward(const Context& ctx, const Microbatch& mb, const TensorList& inputs, Stash& stash) const {
  const Tensor normed = norm_.forward(ctx, inputs[0], inputs[1], stash.child(kNorm));
  const Tensor residual = inputs[1] ? stash.child(kNorm)[Norm::kNormInput] : inputs[0];
  const Shape each_choice{normed.size(0), spec_.choices};
  const Tensor logits = make_logits(ctx, mb, normed);
  const Tensor choice = ctx.empty(each_choice, DType::kInt32, "chosen experts");
  const Tensor weight = ctx.empty(each_choice, DType::kFp32, "weights of experts");
  launch(ctx.compute, RouterTopk{.logits = logits,
                                 .expert_bias = bias_ != nullptr ? bias_->values : Tensor{},
                                 .positions = positions_of(mb, normed.size(0)),
                                 .choice = choice,
                                 .weight = weight,
                                 .score = spec_.score,
                                 .scaling_factor = spec_.scaling_factor,
                                 .num_groups = spec_.num_groups,
                                 .group_topk = spec_.group_topk});
  // The dispatch computes its own routes. Here routes serve only losses, counts and the capacity.
  const bool limits = spec_.capacity_factor != 0 && mb.mode != Mode::kGenerate;
  const bool counts = mb.mode == Mode::kTrain && (losses_.balances() || mb.expert_counts);
  Routes routes;
  if (spec_.dispatcher == nullptr || limits || counts) routes = routes_of(ctx, choice, weight);
  if (losses_.balances()) stash[kChosenOffsets] = routes.offsets;
  const Tensor kept = kept_choices(ctx, mb, choice, routes);
  if (kept.data != choice.data) routes = routes_of(ctx, kept, weight);
  stash.save(kNormed, SlotKind::kExpertFc1, normed);
  if (losses_.any() || spec_.score != RouterScore::kSoftmaxOfChosen) stash[kLogits] = logits;
  stash[kChoice] = choice;
  stash[kWeight] = weight;
  stash[kExpertOffsets] = routes.offsets;
  stash.layer().hand(kSharedInput, normed);
  if (spec_.dispatcher != nullptr) {
    stash[kSent] = kept;
    return list_of(Routed{.x = normed, .residual = residual, .weight = weight, .choice = kept});
  }
  keep_dispatched(stash, {.position = routes.position, .choice = choice});
  return list_of(Arrived{.x = normed,
                         .residual = residual,
                         .row_weight = routes.row_weight,
                         .token = routes.token,
                         .offsets = routes.offsets});
}

// Losses that average over microbatches become sums over tokens, as StepSum::kLoss: N times the loss of N tokens
// (moe/ops/router.h).
Tensor Router::backward_router(const Context& ctx, const Microbatch& mb, const Tensor& d_weight, Stash& stash) const {
  const Tensor &choice = stash.at(kChoice, "chosen experts"), &weight = stash.at(kWeight, "weights of experts");
  const Tensor logits = stash.has(kLogits) ? stash[kLogits] : Tensor{};
  const Tensor offsets = losses_.balances() ? stash.at(kChosenOffsets, "expert offsets") : Tensor{};
  const Tensor d_logits = ctx.empty({choice.size(0), spec_.experts}, DType::kFp32, "router logits gradient");
  for (const RoutingLosses::Piece& piece :
       losses_.add(ctx, mb, {.logits = logits, .choice = choice, .offsets = offsets})) {
    const auto part = [&piece](const Tensor& x) { return x ? x.slice(0, piece.first, piece.count) : x; };
    launch(ctx.compute, RouterTopkBackward{.logits = part(logits),
                                           .choice = part(choice),
                                           .weight = part(weight),
                                           .d_weight = part(d_weight),
                                           .loads = piece.loads,
                                           .parameters = mb.parameters,
                                           .d_logits = part(d_logits),
                                           .score = spec_.score,
                                           .scaling_factor = spec_.scaling_factor,
                                           .z_scale = losses_.z_coeff()});
  }
  return d_logits;
}

Tensor Router::weight_gradient(const Context& ctx, const Tensor& rows_weight, const Dispatched& at,
                               Stash& stash) const {
  const Tensor d_weight = ctx.empty(stash.at(kChoice, "chosen experts").shape, DType::kFp32, "weights gradient");
  if (spec_.dispatcher == nullptr) {
    launch(ctx.compute,
           UnpermuteWeightGradients{.partial = rows_weight, .position = at.position, .d_weight = d_weight});
  } else {
    launch(ctx.compute, SumReturnedWeights{.x = rows_weight,
                                           .choice = stash.at(kSent, "sent choices"),
                                           .position = at.send_position,
                                           .d_weight = d_weight,
                                           .experts_per_rank = spec_.dispatcher->experts_per_rank(spec_.experts),
                                           .copies = spec_.dispatcher->copies()});
  }
  return d_weight;
}

Tensor Router::normed_gradient(const Context& ctx, const Tensor& rows, const Dispatched& at,
                               std::int64_t tokens) const {
  const Tensor d_normed = ctx.empty({tokens, spec_.hidden}, rows.dtype, "norm output gradient");
  if (spec_.dispatcher != nullptr) {
    launch(ctx.compute, UnpermuteRows{.x = rows, .position = at.send_position, .y = d_normed});
  } else if (spec_.combine_groups == 1) {
    launch(ctx.compute, UnpermuteRows{.x = rows, .position = at.position, .y = d_normed});
  } else {
    launch(ctx.compute, UnpermuteGroups{.x = rows,
                                        .position = at.position,
                                        .choice = at.choice,
                                        .y = d_normed,
                                        .experts_per_group = spec_.experts / spec_.combine_groups,
                                        .first_expert = 0,
                                        .groups = spec_.combine_groups});
  }
  return d_normed;
}

TensorList Router::backward_data(const Context& ctx, const Microbatch& mb, const TensorList& output_gradients,
                                 Stash& stash) const {
  const auto [rows, residual, rows_weight] = from_list<RowGradients>(output_gradients);
  const Dispatched at = dispatched(stash);
  const Tensor d_weight = weight_gradient(ctx, rows_weight, at, stash);
  Tensor d_logits = backward_router(ctx, mb, d_weight, stash);
  if (mb.expert_counts) {  // not in forward, which may be recomputed
    const Tensor counts = mb.expert_counts.slice(0, spec_.expert_layer, 1).view({spec_.experts});
    launch(ctx.compute, CountExpertRows{.offsets = stash.at(kExpertOffsets, "expert offsets"), .counts = counts});
  }
  if (const DType dtype = rows.dtype; d_logits.dtype != dtype) {
    const Tensor rounded = ctx.empty(d_logits.shape, dtype, "router logits gradient");
    launch(ctx.compute, CastRows{.x = d_logits, .y = rounded});
    d_logits = rounded;
  }
  stash[kLogitsGradient] = d_logits;
  const Tensor d_normed = normed_gradient(ctx, rows, at, d_logits.size(0));
  launch(ctx, Gemm{.a = d_logits, .b = weight_.weight, .c = d_normed, .accumulate = true});
  if (Stash& layer = stash.layer(); layer.has(kSharedGradient))
    launch(ctx.compute, Add{.a = d_normed, .b = layer[kSharedGradient], .y = d_normed});
  const Tensor d_residual = norm_.backward_data(ctx, d_normed, residual, stash.child(kNorm));
  return {d_residual, d_residual};
}

void Router::backward_weight(const Context& ctx, const Microbatch&, Stash& stash) const {
  accumulate_linear_gradient(ctx, stash.at(kNormed, "norm output"), stash.at(kLogitsGradient, "router logits gradient"),
                             weight_, nullptr);
  norm_.backward_weight(ctx, stash.child(kNorm));
}

}  // namespace megalith
