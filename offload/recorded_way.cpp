#include "offload/recorded_way.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <map>

#include "core/base/error.h"

namespace megalith {

void verify_recording(const Timeline& timeline, const Arena& arena, const std::vector<Action>& actions,
                      const std::vector<std::size_t>& entries, const OffloadPoints& points) {
  constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();
  // Recorded buffers of each slot and column, one for each microbatch.
  std::map<ArenaKey, std::deque<std::size_t>> allocations;
  for (const Action& a : actions) {
    if (a.kind == ActionKind::kOffload) allocations[points.slots[static_cast<std::size_t>(a.item)].key(a.column)];
  }
  const std::vector<Arena::Recorded>& recorded = arena.recorded();
  for (std::size_t i = 0; i < recorded.size(); ++i) {
    const auto found = allocations.find(recorded[i].key);
    if (found != allocations.end()) found->second.push_back(i);
  }
  struct Left {
    std::size_t entry;
    int item;
  };
  std::vector<Left> left(recorded.size(), {.entry = kNever, .item = -1});
  for (std::size_t a = 0; a < actions.size(); ++a) {
    if (actions[a].kind != ActionKind::kWaitOffload) continue;
    std::deque<std::size_t>& of =
        allocations[points.slots[static_cast<std::size_t>(actions[a].item)].key(actions[a].column)];
    require(!of.empty(), "a slot was not allocated in each microbatch");
    left[of.front()] = {.entry = a + 1 < entries.size() ? entries[a + 1] : timeline.entries().size(),
                        .item = actions[a].item};
    of.pop_front();
  }
  for (std::size_t e = 0; e < timeline.entries().size(); ++e) {
    for (const AccessRange& range : timeline.entries()[e].access.ranges()) {
      const std::size_t index = arena.index_recorded(range.begin);
      if (index == recorded.size() || e < left[index].entry) continue;
      const auto action = std::ranges::upper_bound(entries, e) - entries.begin() - 1;
      fail({.subject = fmt::format("offload: op {} in {}", timeline.entries()[e].access.name(),
                                   to_string(actions[static_cast<std::size_t>(action)])),
            .expected = "memory that is on the device",
            .got = points.slots[static_cast<std::size_t>(left[index].item)].name});
    }
  }
}

}  // namespace megalith
