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

// Tensors of a forward's dispatch.
struct Leaving {
  Tensor x, residual, choice, weight;  // Routed
  Tensor arrived_x;                    // [T_arrived, H]
  Tensor arrived_choice;               // [T_arrived, K] int32
  Tensor arrived_weight;               // [T_arrived, K] fp32
  Tensor own_sends;                    // [P + 1] int32, this rank's row of Dispatched::sends
  static constexpr Tensor Leaving::*kTensors[] = {
      &Leaving::x,         &Leaving::residual,       &Leaving::choice,         &Leaving::weight,
      &Leaving::arrived_x, &Leaving::arrived_choice, &Leaving::arrived_weight, &Leaving::own_sends};
};

// Tensors of the other exchanges. The last two are of weights, which only a backward's dispatch returns.
struct Moving {
  Tensor from, to, residual;
  Tensor weight_from, weight_to;
  static constexpr Tensor Moving::*kTensors[] = {&Moving::from, &Moving::to, &Moving::residual, &Moving::weight_from,
                                                 &Moving::weight_to};
};

}  // namespace

TensorList RowsExchange::forward(const Context& ctx, const Microbatch& mb, const TensorList& inputs,
                                 Stash& stash) const {
  return run(Verb::kForward, ctx, mb, inputs, stash);
}

TensorList RowsExchange::run(Verb verb, const Context& ctx, const Microbatch& mb, const TensorList& inputs,
                             Stash& stash, bool waits) const {
  const TensorList begun = prepare(verb, ctx, mb, inputs, stash);
  start(verb, ctx, mb, begun, stash);
  if (spec_.shared) run_shared(verb, ctx, mb, begun, stash);
  if (waits) wait(verb, ctx);
  return finish(verb, ctx, mb, begun, stash);
}

TensorList RowsExchange::begin(Verb verb, const Context& ctx, const Microbatch& mb, const TensorList& inputs,
                               Stash& stash) const {
  const TensorList begun = prepare(verb, ctx, mb, inputs, stash);
  if (spec_.shared) run_shared(verb, ctx, mb, begun, stash);
  return begun;
}

TensorList Dispatch::prepare(Verb verb, const Context& ctx, const Microbatch& mb, const TensorList& inputs,
                             Stash& stash) const {
  return verb == Verb::kForward ? begin_forward(ctx, mb, inputs, stash) : begin_backward(ctx, inputs, stash);
}

TensorList Dispatch::begin_forward(const Context& ctx, const Microbatch& mb, const TensorList& inputs,
                                   Stash& stash) const {
  const Dispatcher& dispatcher = spec_.dispatcher;
  const auto routed = from_list<Routed>(inputs);
  const std::int64_t tokens = routed.x.size(0), choices = routed.choice.size(1), ranks = dispatcher.ranks();
  const ExpertRoom room = dispatcher.room(sizes_of(spec_, mb, tokens, routed.choice));
  const Tensor chosen = ctx.empty({tokens, ranks}, DType::kInt32, "chosen ranks");
  Leaving leaving{.x = routed.x,
                  .residual = routed.residual,
                  .choice = routed.choice,
                  .weight = routed.weight,
                  .own_sends = ctx.empty({ranks + 1}, DType::kInt32, "offsets of rows that leave")};
  Dispatched dispatched{.send_position = ctx.empty(chosen.shape, DType::kInt32, "rows of tokens that leave")};
  dispatched.sends = ctx.empty({ranks, ranks + 1}, DType::kInt32, "offsets of all ranks' rows");
  dispatched.send_token = ctx.empty({chosen.numel()}, DType::kInt32, "tokens of rows that leave");
  launch(ctx.compute, ChosenRanks{.choice = routed.choice,
                                  .ranks = chosen,
                                  .experts_per_rank = dispatcher.experts_per_rank(spec_.experts),
                                  .copies = dispatcher.copies(),
                                  .all = dispatcher.sends_all()});
  launch(ctx, ExpertOffsets{.choice = chosen,
                            .offsets = leaving.own_sends,
                            .token = dispatched.send_token,
                            .position = dispatched.send_position,
                            .all_experts = ranks});
  leaving.arrived_x = ctx.empty({room.arrived, routed.x.size(1)}, routed.x.dtype, "tokens that arrived");
  leaving.arrived_weight = ctx.empty({room.arrived, choices}, DType::kFp32, "weights that arrived");
  leaving.arrived_choice = ctx.empty({room.arrived, choices}, DType::kInt32, "choices that arrived");
  keep_dispatched(stash, dispatched);
  return list_of(leaving);
}

TensorList Dispatch::begin_backward(const Context& ctx, const TensorList& output_gradients, Stash& stash) const {
  const auto gradients = from_list<RowGradients>(output_gradients);
  const Dispatched at = dispatched(stash);
  const Tensor sums = sums_of_groups(ctx, spec_, gradients.rows, at);
  const Tensor d_weight = ctx.empty(at.position.shape, DType::kFp32, "weights gradient");
  Tensor bounded = d_weight;
  bounded.bound = at.position.bound;
  launch(ctx.compute,
         UnpermuteWeightGradients{.partial = gradients.weight, .position = at.position, .d_weight = bounded});
  const std::int64_t rows = at.send_position.numel();
  return list_of(
      Moving{.from = sums,
             .to = ctx.empty({rows, sums.size(1)}, sums.dtype, "gradients that came back"),
             .residual = gradients.residual,
             .weight_from = d_weight,
             .weight_to = ctx.empty({rows, d_weight.size(1)}, DType::kFp32, "weights gradients that came back")});
}

void Dispatch::exchange(Verb verb, const Context& ctx, const Microbatch& mb, const TensorList& begun, Stash& stash,
                        bool marks_begin) const {
  Dispatcher& dispatcher = spec_.dispatcher;
  const Dispatched at = dispatched(stash);
  Dispatcher::Route route{.sends = at.sends,
                          .sizes = sizes_of(spec_, mb, at.send_position.size(0),
                                            verb == Verb::kForward ? from_list<Leaving>(begun).choice : at.choice),
                          .verb = verb,
                          .marks_begin = marks_begin};
  if (verb == Verb::kForward) {
    const auto leaving = from_list<Leaving>(begun);
    route.index = at.send_token;
    dispatcher.send(ctx, route,
                    {{leaving.x, leaving.arrived_x},
                     {leaving.choice, leaving.arrived_choice},
                     {leaving.weight, leaving.arrived_weight}},
                    "rows of " + spec_.label, leaving.own_sends);
  } else {
    const auto moving = from_list<Moving>(begun);
    dispatcher.send_back(ctx, route, {{moving.from, moving.to}, {moving.weight_from, moving.weight_to}},
                         "gradients of " + spec_.label + " back");
  }
}

void Dispatch::run_shared(Verb verb, const Context& ctx, const Microbatch& mb, const TensorList& begun,
                          Stash& stash) const {
  Stash& layer = stash.layer();
  if (verb == Verb::kForward) {
    hand(layer.child(kOpened), spec_.shared->open(ctx, mb, from_list<Leaving>(begun).x, stash.child(kOpen)));
  } else {
    const auto opened = from_stash<SharedExpert::OpenedGradient>(layer.child(kOpenedGradient));
    layer.hand(kSharedGradient, spec_.shared->open_backward_data(ctx, mb, opened, stash.child(kOpen)));
  }
}

// Forward: routes arrived rows to experts by their choices and weights.
TensorList Dispatch::finish(Verb verb, const Context& ctx, const Microbatch& mb, const TensorList& begun,
                            Stash& stash) const {
  const Dispatcher& dispatcher = spec_.dispatcher;
  Dispatched at = dispatched(stash);
  if (verb == Verb::kBackwardData) {
    if (mb.rows_sent) {  // not in forward, which may be recomputed
      const Tensor counts = mb.rows_sent.slice(0, spec_.expert_layer, 1).view({dispatcher.ranks()});
      launch(ctx.compute, CountSentRows{.sends = at.sends, .counts = counts, .rank = dispatcher.rank()});
    }
    const auto moving = from_list<Moving>(begun);
    return list_of(RowGradients{.rows = moving.to, .residual = moving.residual, .weight = moving.weight_to});
  }
  auto leaving = from_list<Leaving>(begun);
  const ExpertRoom room = dispatcher.room(sizes_of(spec_, mb, leaving.x.size(0), leaving.choice));
  const Tensor ends = ctx.empty({dispatcher.ranks() + 1}, DType::kInt32, "offsets of tokens that arrived");
  at.choice = leaving.arrived_choice;
  at.position = ctx.empty(at.choice.shape, DType::kInt32, "rows of tokens that arrived");
  for (Tensor* table : {&at.choice, &at.position, &leaving.arrived_weight})
    table->bound = ends.as<const std::int32_t>() + dispatcher.ranks();
  keep_dispatched(stash, at);
  const Tensor wanted = ctx.empty({1}, DType::kInt32, "tokens that need capacity");
  const Tensor wanted_rows = ctx.empty({1}, DType::kInt32, "experts' rows that need capacity");
  launch(ctx.compute,
         ArrivedRows{
             .sends = at.sends, .offsets = ends, .wanted = wanted, .rank = dispatcher.rank(), .room = room.arrived});
  Arrived arrived{.x = leaving.arrived_x, .residual = leaving.residual};
  arrived.offsets = ctx.empty({dispatcher.experts_per_rank(spec_.experts) + 1}, DType::kInt32, "expert offsets");
  arrived.token = ctx.empty({room.rows}, DType::kInt32, "tokens of routed rows");
  arrived.row_weight = ctx.empty({room.rows}, DType::kFp32, "weights of routed rows");
  launch(ctx, ExpertOffsets{.choice = at.choice,
                            .offsets = arrived.offsets,
                            .token = arrived.token,
                            .position = at.position,
                            .wanted = wanted_rows,
                            .first_expert = dispatcher.first_expert(spec_.experts),
                            .all_experts = spec_.experts});
  launch(ctx.compute,
         PermuteWeights{.weight = leaving.arrived_weight, .position = at.position, .row_weight = arrived.row_weight});
  if (mb.room_needed) launch(ctx.compute, RecordRoom{.arrived = wanted, .rows = wanted_rows, .needed = mb.room_needed});
  return list_of(arrived);
}

// Gradients stay in flight until wait_exchange().
TensorList Dispatch::backward_data(const Context& ctx, const Microbatch& mb, const TensorList& output_gradients,
                                   Stash& stash) const {
  return run(Verb::kBackwardData, ctx, mb, output_gradients, stash, /*waits=*/false);
}

void Dispatch::backward_weight(const Context& ctx, const Microbatch& mb, Stash& stash) const {
  if (spec_.shared) spec_.shared->open_backward_weight(ctx, mb, stash.child(kOpen));
}

TensorList Return::prepare(Verb verb, const Context& ctx, const Microbatch&, const TensorList& inputs,
                           Stash& stash) const {
  const auto [rows, residual] = from_list<ExpertRows>(inputs);
  const Dispatched at = dispatched(stash);
  if (verb == Verb::kBackwardData) {
    return list_of(Moving{.from = rows,
                          .to = ctx.empty({at.choice.size(0), rows.size(1)}, rows.dtype, "gradients that arrived"),
                          .residual = residual});
  }
  const Tensor sums = sums_of_groups(ctx, spec_, rows, at);
  return list_of(Moving{.from = sums,
                        .to = ctx.empty({at.send_position.numel(), sums.size(1)}, sums.dtype, "rows that came back"),
                        .residual = residual});
}

void Return::exchange(Verb verb, const Context& ctx, const Microbatch& mb, const TensorList& begun, Stash& stash,
                      bool marks_begin) const {
  Dispatcher& dispatcher = spec_.dispatcher;
  const auto moving = from_list<Moving>(begun);
  const Dispatched at = dispatched(stash);
  Dispatcher::Route route{.sends = at.sends,
                          .sizes = sizes_of(spec_, mb, at.send_position.size(0), at.choice),
                          .verb = verb,
                          .marks_begin = marks_begin};
  if (verb == Verb::kForward) {
    dispatcher.send_back(ctx, route, {{moving.from, moving.to}}, "rows of " + spec_.label + " back");
  } else {
    route.index = at.send_token;
    dispatcher.send(ctx, route, {{moving.from, moving.to}}, "gradients of " + spec_.label);
  }
}

void Return::run_shared(Verb verb, const Context& ctx, const Microbatch& mb, const TensorList& begun,
                        Stash& stash) const {
  Stash& layer = stash.layer();
  if (verb == Verb::kForward) {
    const auto opened = from_stash<SharedExpert::Opened>(layer.child(kOpened));
    layer.hand(kSharedOutput, spec_.shared->close(ctx, mb, opened, stash.child(kClose)));
  } else {
    const Tensor d_hidden = from_list<Moving>(begun).from;
    hand(layer.child(kOpenedGradient), spec_.shared->close_backward_data(ctx, mb, d_hidden, stash.child(kClose)));
  }
}

TensorList Return::finish(Verb verb, const Context& ctx, const Microbatch&, const TensorList& begun,
                          Stash& stash) const {
  const auto moving = from_list<Moving>(begun);
  if (verb == Verb::kBackwardData) return list_of(ExpertRows{.rows = moving.to, .residual = moving.residual});
  const Tensor hidden = ctx.empty(moving.residual.shape, moving.residual.dtype, "merged rows");
  launch(ctx.compute, UnpermuteRows{.x = moving.to, .position = dispatched(stash).send_position, .y = hidden});
  return list_of(ExpertRows{.rows = hidden, .residual = moving.residual});
}

TensorList Return::backward_data(const Context& ctx, const Microbatch& mb, const TensorList& output_gradients,
                                 Stash& stash) const {
  return run(Verb::kBackwardData, ctx, mb, output_gradients, stash);
}

void Return::backward_weight(const Context& ctx, const Microbatch& mb, Stash& stash) const {
  if (spec_.shared) spec_.shared->close_backward_weight(ctx, mb, stash.child(kClose));
}

}  // namespace megalith
