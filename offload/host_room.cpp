#include "offload/host_room.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace megalith {

std::vector<bool> with_room_on_host(const StepSeconds& step, const OffloadPoints& points, double room) {
  std::vector<double> clock(step.seconds.size() + 1);
  std::partial_sum(step.seconds.begin(), step.seconds.end(), clock.begin() + 1);
  std::vector<std::vector<SlotWay>> ways(points.slots.size());  // per slot, one for each microbatch
  std::vector<double> away(points.slots.size());
  for (const SlotWay& way : slot_ways(ListVerbs(step.actions, points), points)) {
    const auto item = static_cast<std::size_t>(way.item);
    ways[item].push_back(way);
    away[item] += clock[way.needed] - clock[way.starts];
  }
  std::vector<std::size_t> order(points.slots.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater(), [&](std::size_t item) { return away[item]; });
  std::vector<double> held(step.actions.size() + 1);  // bytes on the host during and ahead of each action
  std::vector<bool> fits(points.slots.size());
  for (const std::size_t item : order) {
    const auto bytes = static_cast<double>(points.slots[item].bytes);
    const auto add = [&](double more) {
      for (const SlotWay& way : ways[item])
        for (std::size_t i = way.starts; i <= way.needed; ++i) held[i] += more;
    };
    add(bytes);
    fits[item] = *std::ranges::max_element(held) <= room;
    if (!fits[item]) add(-bytes);
  }
  return fits;
}

}  // namespace megalith
