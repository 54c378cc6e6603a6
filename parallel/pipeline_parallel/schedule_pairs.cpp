#include <limits>

#include "parallel/pipeline_parallel/schedule.h"
#include "parallel/pipeline_parallel/simulator.h"

namespace megalith {

namespace {

// True if `second`, a backward_data, needs nothing that `first`, a forward of the same stage, makes.
bool are_independent(const Placement& placement, int stage, const Action& first, const Action& second) {
  if (first.microbatch != second.microbatch) return true;
  const int made = placement.part({.stage = stage, .chunk = first.chunk});
  const int needed = placement.part({.stage = stage, .chunk = second.chunk});
  return made != needed && made != needed + 1;
}

// Joins each forward with the backward that follows it.
void join(Schedule& schedule, int stage, bool joins) {
  std::vector<Action>& actions = schedule.stages[static_cast<std::size_t>(stage)];
  for (std::size_t i = 0; i + 1 < actions.size(); ++i) {
    if (actions[i].kind != ActionKind::kForward || actions[i + 1].kind != ActionKind::kBackwardData) continue;
    actions[i].with_next = joins && are_independent(schedule.placement, stage, actions[i], actions[i + 1]);
  }
}

double length_of(const Schedule& schedule) {
  const Simulation played = simulate(schedule, {.blocking_sends = true});
  return played.deadlock.empty() ? simulate(schedule, {}).makespan : std::numeric_limits<double>::infinity();
}

}  // namespace

Schedule pair_microbatches(ScheduleKind kind, int num_stages, int num_chunks, int num_microbatches, int group) {
  const auto with = [&](int forwards_ahead) {
    return make_schedule(kind, num_stages, num_chunks, num_microbatches, forwards_ahead, group);
  };
  if (kind == ScheduleKind::kGpipe) return with(0);
  const bool is_one = num_stages == 1 && kind == ScheduleKind::k1F1B;
  const int ahead = is_one || kind == ScheduleKind::kInterleaved ? 1 : 0;
  Schedule schedule = with(ahead);
  const double alone = length_of(with(0));
  Schedule all = schedule;
  for (int stage = 0; stage < num_stages; ++stage) join(all, stage, true);
  if (length_of(all) <= alone) return all;
  for (int stage = num_stages - 1; stage >= 0; --stage) {
    join(schedule, stage, true);
    if (length_of(schedule) > alone) join(schedule, stage, false);
  }
  return num_pairs(schedule) > 0 ? schedule : with(0);
}

int num_pairs(const Schedule& schedule) {
  int pairs = 0;
  for (const std::vector<Action>& actions : schedule.stages) {
    for (const Action& action : actions) pairs += action.kind == ActionKind::kForward && action.with_next ? 1 : 0;
  }
  return pairs;
}

}  // namespace megalith
