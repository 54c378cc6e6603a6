#include "parallel/pipeline_parallel/segment_runner.h"

#include <fmt/format.h>

#include "core/device/trace.h"

namespace megalith {

void SegmentRunner::begin(int column, const Microbatch& microbatch) {
  Column& c = columns_[column];
  c.microbatch = microbatch;
  c.hidden = {};
  c.gradients = {};
  if (!c.stashes.empty()) return;
  for (const Entry& entry : entries_) c.stashes.emplace_back(entry.policies);
}

void SegmentRunner::forward(Column& column, int segment) {
  const auto s = static_cast<std::size_t>(segment);
  Stash& stash = column.stashes[s];
  stash.clear();
  column.hidden = entries_[s].segment->forward(ctx_, column.microbatch, column.hidden, stash);
  if (column.microbatch.mode != Mode::kTrain) {
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
      column.gradients = entry.segment->backward_data(ctx_, column.microbatch, column.gradients, column.stashes[s]);
      break;
    case Verb::kBackwardWeight:
      entry.segment->backward_weight(ctx_, column.microbatch, column.stashes[s]);
      column.stashes[s].clear();
      break;
  }
  entry.hooks.run(after(verb), hook);
}

}  // namespace megalith
