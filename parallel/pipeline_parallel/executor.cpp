#include "parallel/pipeline_parallel/executor.h"

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/device/trace.h"

namespace megalith {

void ActionTable::run(const std::vector<Action>& actions) const {
  for (const Action& action : actions) run_one(action);
}

void ActionTable::run_one(const Action& action) const {
  const Function& function = functions_[static_cast<std::size_t>(action.kind)];
  if (!function) fail({.subject = "no function for action " + to_string(action), .remedy = "set one for its kind"});
  function(action);
}

void SegmentRunner::set_batch(int column, const Batch& batch, const MicrobatchParameters* parameters) {
  Column& c = columns_[column];
  c.batch = batch;
  c.parameters = parameters;
  c.hidden = {};
  c.gradients = {};
  c.stashes.resize(entries_.size());
}

void SegmentRunner::forward(Column& column, int segment) {
  const auto s = static_cast<std::size_t>(segment);
  Stash& stash = column.stashes[s];
  stash.clear();
  column.hidden = entries_[s].segment->forward(ctx_, column.hidden, stash);
  if (ctx_.mode != Mode::kTrain) {
    stash.clear();
    return;
  }
  stash.for_each([this](const Stash::Slot& slot) {
    ctx_.arena.classify(slot.tensor.data, MemoryCategory::kActivations, name_of(slot.kind));
  });
}

void SegmentRunner::run(const Action& action) {
  const auto s = static_cast<std::size_t>(action.segment);
  const Entry& entry = entries_[s];
  Column& column = columns_.at(action.column);
  const Verb verb = action.kind == ActionKind::kForward        ? Verb::kForward
                    : action.kind == ActionKind::kBackwardData ? Verb::kBackwardData
                                                               : Verb::kBackwardWeight;
  ctx_.batch = column.batch;
  ctx_.microbatch = column.parameters;
  const HookContext hook{.segment = entry.name,
                         .segment_index = action.segment,
                         .chunk = action.chunk,
                         .microbatch = action.microbatch,
                         .verb = verb};
  const TraceRange range(ctx_.compute, ctx_.compute.instruments().trace, [&] {
    return fmt::format("{} {} microbatch {}", entry.name, megalith::name_of(verb), action.microbatch);
  });
  entry.hooks.run(before(verb), hook);
  ctx_.arena.begin_scope({.column = action.column, .segment = action.segment, .verb = static_cast<std::int32_t>(verb)});
  switch (verb) {
    case Verb::kForward: forward(column, action.segment); break;
    case Verb::kBackwardData:
      column.gradients = entry.segment->backward_data(ctx_, column.gradients, column.stashes[s]);
      break;
    case Verb::kBackwardWeight:
      entry.segment->backward_weight(ctx_, column.stashes[s]);
      column.stashes[s].clear();
      break;
  }
  entry.hooks.run(after(verb), hook);
}

}  // namespace megalith
