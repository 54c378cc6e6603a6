#include "parallel/pipeline_parallel/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/base/error.h"

namespace megalith {

std::string_view name_of(ActionKind kind) {
  static constexpr std::array<std::string_view, kNumActionKinds> kNames = {
      "zero_gradients", "load",   "forward",       "backward_data", "backward_weight",
      "tie_gradients",  "reduce", "finish_reduce", "reduce_loss",   "optimizer_step"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::string to_string(const Action& a) {
  std::string text(name_of(a.kind));
  if (a.kind == ActionKind::kReduce) return fmt::format("{} bucket {}", text, a.bucket);
  if (a.kind < ActionKind::kLoad || a.kind > ActionKind::kBackwardWeight) return text;
  text += fmt::format(" chunk {} microbatch {}", a.chunk, a.microbatch);
  if (a.segment >= 0) text += fmt::format(" segment {} column {}", a.segment, a.column);
  return text;
}

Schedule make_schedule(ScheduleKind kind, int num_stages, int num_chunks, int num_microbatches) {
  require(kind == ScheduleKind::k1F1B && num_chunks == 1, "1F1B has one chunk per stage");
  require(num_stages >= 1 && num_microbatches >= 1, "a schedule needs at least one stage and one microbatch");
  Schedule schedule{
      .num_stages = num_stages, .num_chunks = num_chunks, .num_microbatches = num_microbatches, .stages = {}};
  for (int stage = 0; stage < num_stages; ++stage) {
    std::vector<Action> actions;
    const int warm_up = std::min(num_stages - stage - 1, num_microbatches);
    for (int step = 0; step < num_microbatches + warm_up; ++step) {
      if (step < num_microbatches) actions.push_back({.kind = ActionKind::kForward, .microbatch = step});
      if (step < warm_up) continue;
      actions.push_back({.kind = ActionKind::kBackwardData, .microbatch = step - warm_up});
      actions.push_back({.kind = ActionKind::kBackwardWeight, .microbatch = step - warm_up});
    }
    schedule.stages.push_back(std::move(actions));
  }
  return schedule;
}

}  // namespace megalith
