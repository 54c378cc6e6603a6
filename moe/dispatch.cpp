#include "moe/dispatch.h"

#include "moe/ops/rank_rows.h"
#include "moe/ops/route_rows.h"
#include "moe/routed.h"

namespace megalith {

namespace {

Dispatcher::Sizes sizes_of(const DispatchSpec& spec, const Microbatch& mb, std::int64_t tokens, const Tensor& choice) {
  return {.tokens = tokens,
          .choices = choice.size(1),
          .experts = spec.experts,
          .never_overflows = mb.mode == Mode::kGenerate};
}

// Of `rows`, those of the tokens that arrived, [C, S H].
Tensor sums_of_groups(const Context& ctx, const DispatchSpec& spec, const Tensor& rows, const Tensor& position,
                      const Tensor& choice) {
  const Tensor sums = ctx.empty({position.size(0), spec.groups() * rows.size(1)}, rows.dtype, "sums of experts' rows");
  Tensor bounded = sums;
  bounded.bound = position.bound;
  launch(ctx.compute, UnpermuteGroups{.x = rows,
                                      .position = position,
                                      .choice = choice,
                                      .y = bounded,
                                      .experts_per_group = spec.experts / spec.combine_groups,
                                      .first_expert = spec.dispatcher.first_expert(spec.experts),
                                      .groups = spec.groups()});
  return sums;
}

}  // namespace

void Dispatch::route(const Context& ctx, const Microbatch& mb, const Tensor& sends, const ExpertRoom& room,
                     Arrived& arrived) const {
  const Dispatcher& dispatcher = spec_.dispatcher;
  const Tensor ends = ctx.empty({dispatcher.ranks() + 1}, DType::kInt32, "offsets of tokens that arrived");
  const Tensor wanted = ctx.empty({1}, DType::kInt32, "tokens that wanted room");
  const Tensor wanted_rows = ctx.empty({1}, DType::kInt32, "experts' rows that wanted room");
  launch(
      ctx.compute,
      ArrivedRows{.sends = sends, .offsets = ends, .wanted = wanted, .rank = dispatcher.rank(), .room = room.arrived});
  const auto* const bound = ends.as<const std::int32_t>() + dispatcher.ranks();
  arrived.position = ctx.empty(arrived.choice.shape, DType::kInt32, "rows of tokens that arrived");
  for (Tensor* table : {&arrived.choice, &arrived.weight, &arrived.position}) table->bound = bound;
  arrived.offsets = ctx.empty({dispatcher.experts_per_rank(spec_.experts) + 1}, DType::kInt32, "expert offsets");
  arrived.token = ctx.empty({room.rows}, DType::kInt32, "tokens of routed rows");
  arrived.row_weight = ctx.empty({room.rows}, DType::kFp32, "weights of routed rows");
  launch(ctx, ExpertOffsets{.choice = arrived.choice,
                            .offsets = arrived.offsets,
                            .token = arrived.token,
                            .position = arrived.position,
                            .wanted = wanted_rows,
                            .first_expert = dispatcher.first_expert(spec_.experts),
                            .all_experts = spec_.experts});
  launch(ctx.compute,
         PermuteWeights{.weight = arrived.weight, .position = arrived.position, .row_weight = arrived.row_weight});
  if (mb.room_needed) launch(ctx.compute, RecordRoom{.arrived = wanted, .rows = wanted_rows, .needed = mb.room_needed});
}

TensorList Dispatch::forward(const Context& ctx, const Microbatch& mb, const TensorList& inputs, Stash& stash) const {
  Dispatcher& dispatcher = spec_.dispatcher;
  const Tensor &x = inputs[kTokens], &weight = inputs[kRowWeight], &choice = inputs[kSentChoice];
  const std::int64_t tokens = x.size(0), ranks = dispatcher.ranks();
  const Tensor chosen = ctx.empty({tokens, ranks}, DType::kInt32, "chosen ranks");
  const Tensor own_sends = ctx.empty({ranks + 1}, DType::kInt32, "offsets of rows that leave");
  const Tensor send_position = ctx.empty(chosen.shape, DType::kInt32, "rows of tokens that leave");
  const Dispatcher::Route route{.sends = ctx.empty({ranks, ranks + 1}, DType::kInt32, "offsets of all ranks' rows"),
                                .index = ctx.empty({chosen.numel()}, DType::kInt32, "tokens of rows that leave"),
                                .sizes = sizes_of(spec_, mb, tokens, choice)};
  launch(ctx.compute, ChosenRanks{.choice = choice,
                                  .ranks = chosen,
                                  .experts_per_rank = dispatcher.experts_per_rank(spec_.experts),
                                  .copies = dispatcher.copies(),
                                  .all = dispatcher.sends_all()});
  launch(ctx, ExpertOffsets{.choice = chosen,
                            .offsets = own_sends,
                            .token = route.index,
                            .position = send_position,
                            .all_experts = ranks});
  const ExpertRoom room = dispatcher.room(route.sizes);
  Arrived arrived{.x = ctx.empty({room.arrived, x.size(1)}, x.dtype, "tokens that arrived"),
                  .choice = ctx.empty({room.arrived, choice.size(1)}, DType::kInt32, "choices that arrived"),
                  .weight = ctx.empty({room.arrived, choice.size(1)}, DType::kFp32, "weights that arrived")};
  dispatcher.start(ctx, route, {{x, arrived.x}, {choice, arrived.choice}, {weight, arrived.weight}},
                   "rows of " + spec_.label, own_sends);
  SharedExpert::Opened opened{.x = x};
  if (spec_.shared) opened = spec_.shared->open(ctx, mb, x, stash.child(kOpen));
  dispatcher.wait(ctx);
  this->route(ctx, mb, route.sends, room, arrived);
  stash[kStashedSends] = route.sends;
  stash[kStashedSendPosition] = send_position;
  stash[kStashedPosition] = arrived.position;
  stash[kStashedChoice] = arrived.choice;
  TensorList outputs{arrived.x,        inputs[kResidual], arrived.row_weight, arrived.token, arrived.offsets,
                     arrived.position, arrived.choice,    route.sends,        route.index,   send_position,
                     opened.x};
  if (spec_.shared) {
    for (const Tensor& part : {opened.h, opened.row_weight, opened.offsets}) outputs.push_back(part);
  }
  return outputs;
}

TensorList Dispatch::backward_data(const Context& ctx, const Microbatch& mb, const TensorList& output_gradients,
                                   Stash& stash) const {
  Dispatcher& dispatcher = spec_.dispatcher;
  const Tensor &position = stash.at(kStashedPosition, "rows of tokens that arrived"), &choice = stash[kStashedChoice];
  const Tensor &send_position = stash[kStashedSendPosition], &d_rows = output_gradients[kTokens];
  const Tensor sums = sums_of_groups(ctx, spec_, d_rows, position, choice);
  const Tensor d_weight = ctx.empty(position.shape, DType::kFp32, "weights gradient");
  Tensor bounded = d_weight;
  bounded.bound = position.bound;
  launch(ctx.compute,
         UnpermuteWeightGradients{.partial = output_gradients[kRowWeight], .position = position, .d_weight = bounded});
  const std::int64_t rows = send_position.numel();
  const Tensor back = ctx.empty({rows, sums.size(1)}, sums.dtype, "gradients that came back");
  const Tensor weight_back = ctx.empty({rows, d_weight.size(1)}, DType::kFp32, "weights gradients that came back");
  const Dispatcher::Route route{.sends = stash[kStashedSends],
                                .sizes = sizes_of(spec_, mb, send_position.size(0), choice)};
  dispatcher.start_back(ctx, route, {{sums, back}, {d_weight, weight_back}}, "gradients of " + spec_.label + " back");
  if (mb.rows_sent) {  // here and not in forward, which may be recomputed
    const Tensor counts = mb.rows_sent.slice(0, spec_.expert_layer, 1).view({dispatcher.ranks()});
    launch(ctx.compute, CountSentRows{.sends = route.sends, .counts = counts, .rank = dispatcher.rank()});
  }
  Tensor d_shared;
  if (spec_.shared) {
    const SharedExpert::OpenedGradient opened{.dh = output_gradients[kSharedGradient],
                                              .partial = output_gradients[kSharedGradient + 1]};
    d_shared = spec_.shared->open_backward_data(ctx, mb, opened, stash.child(kOpen));
  } else if (output_gradients.size() > kSharedGradient) {
    d_shared = output_gradients[kSharedGradient];
  }
  dispatcher.wait_ahead(ctx);
  return {back, output_gradients[kResidual], weight_back, d_shared, send_position};
}

void Dispatch::backward_weight(const Context& ctx, const Microbatch& mb, Stash& stash) const {
  if (spec_.shared) spec_.shared->open_backward_weight(ctx, mb, stash.child(kOpen));
}

TensorList Return::forward(const Context& ctx, const Microbatch& mb, const TensorList& inputs, Stash& stash) const {
  Dispatcher& dispatcher = spec_.dispatcher;
  const Tensor &residual = inputs[kMergeResidual], &choice = inputs[kMergeChoice];
  const Tensor &send_token = inputs[handed_on(kSendToken)], &send_position = inputs[handed_on(kSendPosition)];
  const Tensor sums = sums_of_groups(ctx, spec_, inputs[kRows], inputs[kMergePosition], choice);
  const Tensor back = ctx.empty({send_position.numel(), sums.size(1)}, sums.dtype, "rows that came back");
  const Dispatcher::Route route{.sends = inputs[handed_on(kSends)],
                                .sizes = sizes_of(spec_, mb, send_position.size(0), choice)};
  dispatcher.start_back(ctx, route, {{sums, back}}, "rows of " + spec_.label + " back");
  constexpr int kFirst = handed_on(kShared);
  Tensor shared = inputs[kFirst];  // its input, for the merge
  if (spec_.shared) {
    const SharedExpert::Opened opened{
        .x = inputs[kFirst], .h = inputs[kFirst + 1], .row_weight = inputs[kFirst + 2], .offsets = inputs[kFirst + 3]};
    shared = spec_.shared->close(ctx, mb, opened, stash.child(kClose));
  }
  dispatcher.wait(ctx);
  const Tensor hidden = ctx.empty(residual.shape, residual.dtype, "merged rows");
  launch(ctx.compute, UnpermuteRows{.x = back, .position = send_position, .y = hidden});
  stash[kStashedSends] = route.sends;
  stash[kStashedSendToken] = send_token;
  stash[kStashedChoice] = choice;
  return {hidden, residual, {}, shared};
}

TensorList Return::backward_data(const Context& ctx, const Microbatch& mb, const TensorList& output_gradients,
                                 Stash& stash) const {
  Dispatcher& dispatcher = spec_.dispatcher;
  const Tensor &d_hidden = output_gradients[kRows], &choice = stash.at(kStashedChoice, "choices that arrived");
  const Dispatcher::Route route{.sends = stash[kStashedSends],
                                .index = stash[kStashedSendToken],
                                .sizes = sizes_of(spec_, mb, d_hidden.size(0), choice)};
  const Tensor dy = ctx.empty({choice.size(0), d_hidden.size(1)}, d_hidden.dtype, "gradients that arrived");
  dispatcher.start(ctx, route, {{d_hidden, dy}}, "gradients of " + spec_.label);
  TensorList gradients{dy, output_gradients[kMergeResidual], {}};
  if (spec_.shared) {
    const SharedExpert::OpenedGradient opened =
        spec_.shared->close_backward_data(ctx, mb, d_hidden, stash.child(kClose));
    gradients.push_back(opened.dh);
    gradients.push_back(opened.partial);
  } else if (output_gradients.size() > kSharedInput) {
    gradients.push_back(output_gradients[kSharedInput]);
  }
  dispatcher.wait(ctx);
  return gradients;
}

void Return::backward_weight(const Context& ctx, const Microbatch& mb, Stash& stash) const {
  if (spec_.shared) spec_.shared->close_backward_weight(ctx, mb, stash.child(kClose));
}

}  // namespace megalith
