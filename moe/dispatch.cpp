#include "moe/dispatch.h"

#include "moe/ops/rank_rows.h"
#include "moe/ops/route_rows.h"

namespace megalith {

namespace {

Dispatcher::Sizes sizes_of(const DispatchSpec& spec, const Microbatch& mb, std::int64_t tokens, const Tensor& choice) {
  return {.tokens = tokens,
          .choices = choice.size(1),
          .experts = spec.experts,
          .never_overflows = mb.mode == Mode::kGenerate};
}

// Sums `rows` of arrived tokens by combine group: [T_arrived, S H].
Tensor sums_of_groups(const Context& ctx, const DispatchSpec& spec, const Tensor& rows, const Dispatched& at) {
  const Tensor sums =
      ctx.empty({at.position.size(0), spec.groups() * rows.size(1)}, rows.dtype, "sums of experts' rows");
  Tensor bounded = sums;
  bounded.bound = at.position.bound;
  launch(ctx.compute, UnpermuteGroups{.x = rows,
                                      .position = at.position,
                                      .choice = at.choice,
                                      .y = bounded,
                                      .experts_per_group = spec.experts / spec.combine_groups,
                                      .first_expert = spec.dispatcher.first_expert(spec.experts),
                                      .groups = spec.groups()});
  return sums;
}

}  // namespace

void Dispatch::route(const Context& ctx, const Microbatch& mb, const ExpertRoom& room, Tensor weight,
                     Dispatched& dispatched, Arrived& arrived) const {
  const Dispatcher& dispatcher = spec_.dispatcher;
  const Tensor ends = ctx.empty({dispatcher.ranks() + 1}, DType::kInt32, "offsets of tokens that arrived");
  const Tensor wanted = ctx.empty({1}, DType::kInt32, "tokens that need capacity");
  const Tensor wanted_rows = ctx.empty({1}, DType::kInt32, "experts' rows that need capacity");
  launch(ctx.compute, ArrivedRows{.sends = dispatched.sends,
                                  .offsets = ends,
                                  .wanted = wanted,
                                  .rank = dispatcher.rank(),
                                  .room = room.arrived});
  const auto* const bound = ends.as<const std::int32_t>() + dispatcher.ranks();
  dispatched.position = ctx.empty(dispatched.choice.shape, DType::kInt32, "rows of tokens that arrived");
  for (Tensor* table : {&dispatched.choice, &weight, &dispatched.position}) table->bound = bound;
  arrived.offsets = ctx.empty({dispatcher.experts_per_rank(spec_.experts) + 1}, DType::kInt32, "expert offsets");
  arrived.token = ctx.empty({room.rows}, DType::kInt32, "tokens of routed rows");
  arrived.row_weight = ctx.empty({room.rows}, DType::kFp32, "weights of routed rows");
  launch(ctx, ExpertOffsets{.choice = dispatched.choice,
                            .offsets = arrived.offsets,
                            .token = arrived.token,
                            .position = dispatched.position,
                            .wanted = wanted_rows,
                            .first_expert = dispatcher.first_expert(spec_.experts),
                            .all_experts = spec_.experts});
  launch(ctx.compute,
         PermuteWeights{.weight = weight, .position = dispatched.position, .row_weight = arrived.row_weight});
  if (mb.room_needed) launch(ctx.compute, RecordRoom{.arrived = wanted, .rows = wanted_rows, .needed = mb.room_needed});
}

TensorList Dispatch::forward(const Context& ctx, const Microbatch& mb, const TensorList& inputs, Stash& stash) const {
  Dispatcher& dispatcher = spec_.dispatcher;
  const auto routed = from_list<Routed>(inputs);
  const std::int64_t tokens = routed.x.size(0), choices = routed.choice.size(1), ranks = dispatcher.ranks();
  const Tensor chosen = ctx.empty({tokens, ranks}, DType::kInt32, "chosen ranks");
  const Tensor own_sends = ctx.empty({ranks + 1}, DType::kInt32, "offsets of rows that leave");
  Dispatched dispatched{.send_position = ctx.empty(chosen.shape, DType::kInt32, "rows of tokens that leave")};
  dispatched.sends = ctx.empty({ranks, ranks + 1}, DType::kInt32, "offsets of all ranks' rows");
  dispatched.send_token = ctx.empty({chosen.numel()}, DType::kInt32, "tokens of rows that leave");
  const Dispatcher::Route route{
      .sends = dispatched.sends, .index = dispatched.send_token, .sizes = sizes_of(spec_, mb, tokens, routed.choice)};
  launch(ctx.compute, ChosenRanks{.choice = routed.choice,
                                  .ranks = chosen,
                                  .experts_per_rank = dispatcher.experts_per_rank(spec_.experts),
                                  .copies = dispatcher.copies(),
                                  .all = dispatcher.sends_all()});
  launch(ctx, ExpertOffsets{.choice = chosen,
                            .offsets = own_sends,
                            .token = dispatched.send_token,
                            .position = dispatched.send_position,
                            .all_experts = ranks});
  const ExpertRoom room = dispatcher.room(route.sizes);
  Arrived arrived{.x = ctx.empty({room.arrived, routed.x.size(1)}, routed.x.dtype, "tokens that arrived"),
                  .residual = routed.residual};
  dispatched.choice = ctx.empty({room.arrived, choices}, DType::kInt32, "choices that arrived");
  const Tensor weight = ctx.empty({room.arrived, choices}, DType::kFp32, "weights that arrived");
  dispatcher.start(ctx, route, {{routed.x, arrived.x}, {routed.choice, dispatched.choice}, {routed.weight, weight}},
                   "rows of " + spec_.label, own_sends);
  if (spec_.shared) {
    Stash& opened = stash.layer().child(kOpened);
    hand(opened, spec_.shared->open(ctx, mb, routed.x, stash.child(kOpen)));
  }
  dispatcher.wait(ctx);
  this->route(ctx, mb, room, weight, dispatched, arrived);
  keep_dispatched(stash, dispatched);
  return list_of(arrived);
}

TensorList Dispatch::backward_data(const Context& ctx, const Microbatch& mb, const TensorList& output_gradients,
                                   Stash& stash) const {
  Dispatcher& dispatcher = spec_.dispatcher;
  const auto gradients = from_list<RowGradients>(output_gradients);
  const Dispatched at = dispatched(stash);
  const Tensor sums = sums_of_groups(ctx, spec_, gradients.rows, at);
  const Tensor d_weight = ctx.empty(at.position.shape, DType::kFp32, "weights gradient");
  Tensor bounded = d_weight;
  bounded.bound = at.position.bound;
  launch(ctx.compute,
         UnpermuteWeightGradients{.partial = gradients.weight, .position = at.position, .d_weight = bounded});
  const std::int64_t rows = at.send_position.numel();
  const RowGradients back{
      .rows = ctx.empty({rows, sums.size(1)}, sums.dtype, "gradients that came back"),
      .residual = gradients.residual,
      .weight = ctx.empty({rows, d_weight.size(1)}, DType::kFp32, "weights gradients that came back")};
  const Dispatcher::Route route{.sends = at.sends, .sizes = sizes_of(spec_, mb, at.send_position.size(0), at.choice)};
  dispatcher.start_back(ctx, route, {{sums, back.rows}, {d_weight, back.weight}},
                        "gradients of " + spec_.label + " back");
  if (mb.rows_sent) {  // not in forward, which may be recomputed
    const Tensor counts = mb.rows_sent.slice(0, spec_.expert_layer, 1).view({dispatcher.ranks()});
    launch(ctx.compute, CountSentRows{.sends = at.sends, .counts = counts, .rank = dispatcher.rank()});
  }
  if (spec_.shared) {
    Stash& layer = stash.layer();
    const auto opened = from_stash<SharedExpert::OpenedGradient>(layer.child(kOpenedGradient));
    layer.hand(kSharedGradient, spec_.shared->open_backward_data(ctx, mb, opened, stash.child(kOpen)));
  }
  return list_of(back);
}

void Dispatch::backward_weight(const Context& ctx, const Microbatch& mb, Stash& stash) const {
  if (spec_.shared) spec_.shared->open_backward_weight(ctx, mb, stash.child(kOpen));
}

TensorList Return::forward(const Context& ctx, const Microbatch& mb, const TensorList& inputs, Stash& stash) const {
  Dispatcher& dispatcher = spec_.dispatcher;
  const auto [rows, residual] = from_list<ExpertRows>(inputs);
  const Dispatched at = dispatched(stash);
  const Tensor sums = sums_of_groups(ctx, spec_, rows, at);
  const Tensor back = ctx.empty({at.send_position.numel(), sums.size(1)}, sums.dtype, "rows that came back");
  const Dispatcher::Route route{.sends = at.sends, .sizes = sizes_of(spec_, mb, at.send_position.size(0), at.choice)};
  dispatcher.start_back(ctx, route, {{sums, back}}, "rows of " + spec_.label + " back");
  if (spec_.shared) {
    Stash& layer = stash.layer();
    const auto opened = from_stash<SharedExpert::Opened>(layer.child(kOpened));
    layer.hand(kSharedOutput, spec_.shared->close(ctx, mb, opened, stash.child(kClose)));
  }
  dispatcher.wait(ctx);
  const Tensor hidden = ctx.empty(residual.shape, residual.dtype, "merged rows");
  launch(ctx.compute, UnpermuteRows{.x = back, .position = at.send_position, .y = hidden});
  return {hidden, residual};
}

TensorList Return::backward_data(const Context& ctx, const Microbatch& mb, const TensorList& output_gradients,
                                 Stash& stash) const {
  Dispatcher& dispatcher = spec_.dispatcher;
  const auto [d_hidden, d_residual] = from_list<ExpertRows>(output_gradients);
  const Dispatched at = dispatched(stash);
  const Dispatcher::Route route{
      .sends = at.sends, .index = at.send_token, .sizes = sizes_of(spec_, mb, d_hidden.size(0), at.choice)};
  const Tensor dy = ctx.empty({at.choice.size(0), d_hidden.size(1)}, d_hidden.dtype, "gradients that arrived");
  dispatcher.start(ctx, route, {{d_hidden, dy}}, "gradients of " + spec_.label);
  if (spec_.shared) {
    Stash& opened = stash.layer().child(kOpenedGradient);
    hand(opened, spec_.shared->close_backward_data(ctx, mb, d_hidden, stash.child(kClose)));
  }
  dispatcher.wait(ctx);
  return {dy, d_residual};
}

void Return::backward_weight(const Context& ctx, const Microbatch& mb, Stash& stash) const {
  if (spec_.shared) spec_.shared->close_backward_weight(ctx, mb, stash.child(kClose));
}

}  // namespace megalith
