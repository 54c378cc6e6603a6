#include "parallel/pipeline_parallel/messages.h"

#include <algorithm>
#include <cstdlib>
#include <tuple>

#include "parallel/pipeline_parallel/schedule_index.h"

namespace megalith {

namespace {

// First action of each block of a stage.
std::vector<std::size_t> block_starts(const std::vector<Action>& actions) {
  std::vector<std::size_t> starts;
  for (std::size_t i = 0; i < actions.size(); i = end_of_block(actions, i)) starts.push_back(i);
  return starts;
}

// First action of the block `ahead` blocks before the block of action `used`.
std::size_t ahead_of(const std::vector<std::size_t>& starts, std::size_t used, int ahead) {
  const auto block = std::upper_bound(starts.begin(), starts.end(), used) - starts.begin() - 1;
  return starts[static_cast<std::size_t>(std::max<std::ptrdiff_t>(block - ahead, 0))];
}

// The action `count` actions of the same kind before the action at `used`, or the first of that kind.
std::size_t earlier_of_kind(const std::vector<Action>& actions, std::size_t used, int count) {
  std::size_t found = used;
  for (std::size_t i = used; i-- > 0 && count > 0;) {
    if (actions[i].kind != actions[used].kind) continue;
    found = i;
    --count;
  }
  return found;
}

}  // namespace

std::vector<Message> messages_of(const Schedule& schedule, int receive_ahead) {
  const Placement& placement = schedule.placement;
  const ScheduleIndex index(schedule);
  std::vector<Message> messages;
  for (int stage = 0; stage < placement.num_stages; ++stage) {
    const std::vector<Action>& actions = schedule.stages[static_cast<std::size_t>(stage)];
    const std::vector<std::size_t> starts = block_starts(actions);
    for (std::size_t i = 0; i < actions.size(); ++i) {
      const Action& a = actions[i];
      if (a.kind != ActionKind::kForward && a.kind != ActionKind::kBackwardData) continue;
      const bool is_forward = a.kind == ActionKind::kForward;
      const int part = placement.part({.stage = stage, .chunk = a.chunk});
      const int source = is_forward ? part - 1 : part + 1;
      if (source < 0 || source == placement.num_parts() || placement.at(source).stage == stage) continue;
      // Between the last stage and the first, a message of a larger group arrives while the group's others run.
      const bool wraps = std::abs(placement.at(source).stage - stage) == placement.num_stages - 1 &&
                         (is_forward ? stage == 0 : stage == placement.num_stages - 1);
      const std::size_t arrived = wraps ? earlier_of_kind(actions, i, schedule.kept_ahead) : i;
      messages.push_back({.from = placement.at(source).stage,
                          .to = stage,
                          .part = is_forward ? source : part,
                          .sent = index.place(a.kind, source, a.microbatch),
                          .used = i,
                          .posted = ahead_of(starts, arrived, receive_ahead)});
    }
  }
  std::sort(messages.begin(), messages.end(), [](const Message& a, const Message& b) {
    return std::tie(a.from, a.to, a.sent, a.used) < std::tie(b.from, b.to, b.sent, b.used);
  });
  // A receive is posted no later than the receives of the channel's later messages.
  for (std::size_t i = messages.size(); i-- > 1;) {
    Message& earlier = messages[i - 1];
    const Message& later = messages[i];
    if (earlier.from == later.from && earlier.to == later.to) earlier.posted = std::min(earlier.posted, later.posted);
  }
  return messages;
}

}  // namespace megalith
