#include "apps/run/step_clock.h"

namespace megalith {

namespace {

std::optional<StepPart> part_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::kWaitReceive:
    case ActionKind::kWaitSend:
    case ActionKind::kWaitExchange:
    case ActionKind::kTieGradients:
    case ActionKind::kFinishReduce:
    case ActionKind::kSumSharedGradients:
    case ActionKind::kCopyTiedGradients:
    case ActionKind::kReduceSums:
    case ActionKind::kReduceNorm:
    case ActionKind::kWaitParameters:
    case ActionKind::kWaitUnshard: return StepPart::kCommunication;
    case ActionKind::kWaitOffload:
    case ActionKind::kWaitReload: return StepPart::kCopies;
    case ActionKind::kForward: return StepPart::kForward;
    case ActionKind::kBackwardData:
    case ActionKind::kBackwardWeight: return StepPart::kBackward;
    case ActionKind::kOptimizerStep: return StepPart::kOptimizer;
    default: return std::nullopt;
  }
}

}  // namespace

void StepClock::begin(std::int64_t level) {
  level_ = level;
  used_ = 0;
  open_.reset();
  previous_.reset();
}

void StepClock::before(const Action& first, const Action& last, Stream& compute) {
  open_ = level_ > 0 && part_of(first.kind) == part_of(last.kind) ? part_of(first.kind) : std::nullopt;
  const bool is_wait = open_ == StepPart::kCommunication || open_ == StepPart::kCopies;
  if (level_ == 1 && !is_wait) open_.reset();
  if (open_ && open_ != previous_) {  // adjacent actions of a part share a span
    if (used_ == spans_.size()) spans_.emplace_back();
    Span& span = spans_[used_++];
    span.part = *open_;
    compute.record(span.begun);
  }
  previous_ = open_;
}

void StepClock::after(Stream& compute) {
  if (open_) compute.record(spans_[used_ - 1].done);
}

std::array<double, kNumStepParts> StepClock::read() const {
  std::array<double, kNumStepParts> seconds{};
  for (std::size_t i = 0; i < used_; ++i)
    seconds[static_cast<std::size_t>(spans_[i].part)] += seconds_between(spans_[i].begun, spans_[i].done);
  return seconds;
}

}  // namespace megalith
