#include "parallel/pipeline_parallel/segment_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "core/base/error.h"
#include "core/device/trace.h"

namespace megalith {

namespace {

std::span<const Tensor> view_of(const TensorList& list) {
  if (list.size() == 0) return {};
  return {&list[0], static_cast<std::size_t>(list.size())};
}

}  // namespace

Verb verb_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward: return Verb::kForward;
    case ActionKind::kBackwardData: return Verb::kBackwardData;
    default: require(kind == ActionKind::kBackwardWeight, "an action that is no verb"); return Verb::kBackwardWeight;
  }
}

void SegmentRunner::begin(int column, const Microbatch& microbatch) {
  Column& c = columns_[column];
  c.microbatch = microbatch;
  c.hidden = {};
  c.gradients = {};
  if (!c.stashes.empty()) return;
  for (const Entry& entry : entries_) c.stashes.emplace_back(entry.policies);
  for (int s = 0; s < num_segments(); ++s) {
    if (is_of_experts(s)) c.stashes[static_cast<std::size_t>(s)].set_layer(c.layers[entry(s).unit]);
  }
}

bool SegmentRunner::is_of_experts(int segment) const {
  const SegmentModule module = entry(segment).module;
  return module == SegmentModule::kMoeRouter || module == SegmentModule::kMoeDispatch || module == SegmentModule::kMoe;
}

bool SegmentRunner::share_experts(int a, int b) const {
  const auto is_one = [this](int s) { return s >= 0 && s < num_segments() && is_of_experts(s); };
  return is_one(a) && is_one(b) && entry(a).unit == entry(b).unit;
}

bool SegmentRunner::begins_experts(int segment) const {
  return is_of_experts(segment) && !share_experts(segment - 1, segment);
}

bool SegmentRunner::ends_experts(int segment) const {
  return is_of_experts(segment) && !share_experts(segment, segment + 1);
}

void SegmentRunner::classify(const Stash& stash) const {
  stash.for_each([this](const Stash::Slot& slot) {
    ctx_.arena.classify(slot.tensor.data, MemoryCategory::kActivations, name_of(slot.kind),
                        slot.tensor.bound != nullptr, slot.never_offload);
  });
}

const ExchangingSegment& SegmentRunner::exchanging(int segment) const {
  const ExchangingSegment* const exchanging = entry(segment).segment->exchanging();
  require(exchanging != nullptr, "an action refers to the exchange of a segment that has none");
  return *exchanging;
}

void SegmentRunner::start_exchange(const Action& action) {
  start_exchange(action, [&](Stream&) { enqueue_exchange(action); });
}

void SegmentRunner::start_exchange(const Action& action, const std::function<void(Stream&)>& enqueue) {
  const ExchangingSegment& segment = exchanging(action.item);
  const Verb verb = action.gradient ? Verb::kBackwardData : Verb::kForward;
  segment.open(verb, ctx_);
  enqueue(segment.exchange_stream());
  segment.close(verb);
  segment.wait_begin(verb, ctx_);
}

void SegmentRunner::enqueue_exchange(const Action& action) {
  const Verb verb = action.gradient ? Verb::kBackwardData : Verb::kForward;
  Column& column = columns_.at(action.column);
  const TensorList& begun = action.gradient ? column.gradients : column.hidden;
  ctx_.arena.begin_scope(
      {.column = action.column, .segment = action.item, .verb = kExchangeScope + static_cast<std::int32_t>(verb)});
  exchanging(action.item)
      .exchange(verb, ctx_, column.microbatch, begun, column.stashes[static_cast<std::size_t>(action.item)],
                /*marks_begin=*/true);
}

void SegmentRunner::wait_exchange(const Action& action) const {
  if (action.gradient) return entry(action.item).segment->wait_exchange(ctx_);
  exchanging(action.item).wait(Verb::kForward, ctx_);
}

void SegmentRunner::finish_exchange(Column& column, const Action& action) {
  const bool forward = action.kind == ActionKind::kForward;
  const int from = action.segment + (forward ? -1 : 1);
  TensorList& list = forward ? column.hidden : column.gradients;
  Stash& stash = column.stashes[static_cast<std::size_t>(from)];
  list = exchanging(from).finish(verb_of(action.kind), ctx_, column.microbatch, list, stash);
}

TensorList SegmentRunner::run_or_begin(Column& column, const Action& action, const TensorList& inputs) {
  const auto s = static_cast<std::size_t>(action.segment);
  const Verb verb = verb_of(action.kind);
  Stash& stash = column.stashes[s];
  if (action.leaves_exchange) return exchanging(action.segment).begin(verb, ctx_, column.microbatch, inputs, stash);
  const Segment& segment = *entries_[s].segment;
  return verb == Verb::kForward ? segment.forward(ctx_, column.microbatch, inputs, stash)
                                : segment.backward_data(ctx_, column.microbatch, inputs, stash);
}

void SegmentRunner::forward(Column& column, const Action& action) {
  const int segment = action.segment;
  Stash& stash = column.stashes[static_cast<std::size_t>(segment)];
  stash.clear();
  if (begins_experts(segment)) stash.layer().clear();
  column.hidden = run_or_begin(column, action, column.hidden);
  if (column.microbatch.mode != Mode::kTrain) {
    stash.clear();
    if (ends_experts(segment)) stash.layer().clear();
    return;
  }
  classify(stash);
  if (is_of_experts(segment)) classify(stash.layer());
}

void SegmentRunner::run(const Action& action, Phase phase) {
  const Verb verb = verb_of(action.kind);
  const TraceRange range(ctx_.compute, ctx_.compute.instruments().trace, [&] {
    return fmt::format("{} {} microbatch {}", entry(action.segment).name, megalith::name_of(verb), action.microbatch);
  });
  run_hooks(before(verb), action, phase);
  run_verb(action);
  const bool hooked = entry(action.segment).hooks.size(after(verb)) > 0;
  if (hooked && verb == Verb::kBackwardData)
    entry(action.segment).segment->wait_exchange(ctx_);  // hooks read gradients
  run_hooks(after(verb), action, phase);
}

void SegmentRunner::run_hooks(HookPoint point, const Action& action, Phase phase) const {
  const Entry& of = entry(action.segment);
  if (of.hooks.size(point) == 0) return;
  const Verb verb = verb_of(action.kind);
  const bool inside = point == after(verb) ? action.leaves_exchange : action.finishes_exchange && point == before(verb);
  require(!inside, "a hook was added where the step's list has an exchange in flight; add hooks ahead of the step");
  const Column& column = columns_.at(action.column);
  HookContext context{.segment = of.name,
                      .segment_index = action.segment,
                      .chunk = action.chunk,
                      .column = action.column,
                      .microbatch = action.microbatch,
                      .verb = verb,
                      .phase = phase,
                      .ctx = &ctx_};
  switch (point) {
    case HookPoint::kPreForward: context.inputs = view_of(column.hidden); break;
    case HookPoint::kPostForward: context.outputs = view_of(column.hidden); break;
    case HookPoint::kPreBackward:
    case HookPoint::kPostBackward: context.gradients = view_of(column.gradients); break;
    case HookPoint::kPreWeight:
    case HookPoint::kPostWeight: break;
  }
  of.hooks.run(point, context);
}

void SegmentRunner::run_verb(const Action& action) {
  const auto s = static_cast<std::size_t>(action.segment);
  const Segment& segment = *entries_[s].segment;
  Column& column = columns_.at(action.column);
  const Verb verb = verb_of(action.kind);
  ctx_.arena.begin_scope({.column = action.column, .segment = action.segment, .verb = static_cast<std::int32_t>(verb)});
  if (action.finishes_exchange) finish_exchange(column, action);
  switch (verb) {
    case Verb::kForward: forward(column, action); break;
    case Verb::kBackwardData:
      column.gradients = run_or_begin(column, action, column.gradients);
      if (begins_experts(action.segment)) column.stashes[s].layer().clear();  // last use in this microbatch
      break;
    case Verb::kBackwardWeight:
      segment.backward_weight(ctx_, column.microbatch, column.stashes[s]);
      column.stashes[s].clear();
      return;
  }
  const TensorList& list = verb == Verb::kForward ? column.hidden : column.gradients;
  for (int i = 0; i < list.size(); ++i) ctx_.arena.mark_passed(list[i].data);
}

bool SegmentRunner::has_hooks() const {
  return std::any_of(entries_.begin(), entries_.end(), [](const Entry& entry) { return !entry.hooks.empty(); });
}

void SegmentRunner::set_hooks(std::vector<HookTable> hooks) {
  if (hooks.size() != entries_.size()) {
    fail({.subject = "hooks of the segments",
          .expected = fmt::format("{} lists, one a segment", entries_.size()),
          .got = fmt::format("{}", hooks.size()),
          .remedy = "give an empty list to a segment without hooks"});
  }
  for (std::size_t s = 0; s < hooks.size(); ++s) entries_[s].hooks = std::move(hooks[s]);
}

int SegmentRunner::rebind(int column, const void* begin, std::size_t bytes, void* to) {
  Column& c = columns_.at(column);
  int views = 0;
  for (Stash& stash : c.stashes) views += stash.rebind(begin, bytes, to);
  for (auto& [unit, stash] : c.layers) views += stash.rebind(begin, bytes, to);
  return views;
}

SegmentRunner::HostState SegmentRunner::host_state(int column, int first, int segments) const {
  const Column& c = columns_.at(column);
  const auto begin = c.stashes.begin() + first;
  HostState state{.hidden = c.hidden, .gradients = c.gradients, .first = first, .stashes = {begin, begin + segments}};
  for (int s = first; s < first + segments; ++s) {
    if (is_of_experts(s)) state.layers.emplace(entry(s).unit, c.layers.at(entry(s).unit));
  }
  return state;
}

void SegmentRunner::restore(int column, const HostState& state) {
  Column& c = columns_.at(column);
  c.hidden = state.hidden;
  c.gradients = state.gradients;
  std::copy(state.stashes.begin(), state.stashes.end(), c.stashes.begin() + state.first);
  for (const auto& [unit, stash] : state.layers) c.layers[unit] = stash;
}

}  // namespace megalith
