#include "offload/lowering.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>

#include "offload/slot_ways.h"
#include "parallel/pipeline_parallel/action_order.h"

namespace megalith {

namespace {

using Kind = ActionKind;

}  // namespace

std::vector<Action> insert_offloads(const std::vector<Action>& actions, const OffloadPoints& points) {
  if (points.empty()) return actions;
  std::vector<SlotWay> ways = slot_ways(ListVerbs(actions, points), points);
  // Inserted actions, keyed by the index of the next action, the kind, and the order of copies.
  std::map<std::tuple<std::size_t, Kind, std::size_t>, Action> inserted;
  // No copy stands between a verb and the start of its exchange: the exchange writes tensors of the stash whose memory
  // may be a slot's that leaves there, and a slot's views move by their addresses.
  const auto outside_start = [&](std::size_t before) {
    std::size_t start = before;
    while (start < actions.size() && actions[start].segment < 0 && actions[start].kind != Kind::kStartExchange) ++start;
    return start < actions.size() && actions[start].kind == Kind::kStartExchange ? start + 1 : before;
  };
  const auto add = [&](const SlotWay& way, std::size_t number, Kind kind, std::size_t before) {
    before = outside_start(before);
    Action action = way.load;
    action.kind = kind;
    action.item = way.item;
    inserted.emplace(std::tuple(before, kind, number), action);
  };
  for (std::size_t n = 0; n < ways.size(); ++n) {
    add(ways[n], n, Kind::kOffload, ways[n].starts);
    add(ways[n], n, Kind::kWaitOffload, ways[n].left);
  }
  std::ranges::stable_sort(ways, {}, &SlotWay::needed);
  for (std::size_t n = 0; n < ways.size(); ++n) {
    add(ways[n], n, Kind::kReload, ways[n].reload);
    add(ways[n], ways.size() - n, Kind::kWaitReload, ways[n].needed);  // a wait for the last copy covers the others
  }
  std::vector<Action> list;
  list.reserve(actions.size() + inserted.size());
  auto next = inserted.begin();
  for (std::size_t i = 0; i < actions.size(); ++i) {
    for (; next != inserted.end() && std::get<0>(next->first) == i; ++next) list.push_back(next->second);
    list.push_back(actions[i]);
  }
  verify_offloads(list, points);
  return list;
}

void verify_offloads(const std::vector<Action>& actions, const OffloadPoints& points) {
  std::vector<Action> of_microbatches;  // other actions may occur several times
  std::ranges::copy_if(actions, std::back_inserter(of_microbatches),
                       [](const Action& a) { return is_of_microbatch(a.kind); });
  const ActionOrder order(of_microbatches);
  const auto same = [](Action action, Kind kind, int segment, int item) {
    action.kind = kind;
    action.segment = segment;
    action.item = item;
    return action;
  };
  std::map<int, std::pair<int, int>> owner;  // by column: chunk, microbatch
  for (const Action& a : actions) {
    if (a.kind == Kind::kLoad) {
      owner[a.column] = {a.chunk, a.microbatch};
      for (int item = 0; item < std::ssize(points.slots); ++item) {
        if (points.slots[static_cast<std::size_t>(item)].chunk == a.chunk)
          order.require(same(a, Kind::kOffload, -1, item));
      }
    }
    if (!is_of_slot(a.kind)) continue;
    if (a.item < 0 || a.item >= std::ssize(points.slots)) fail_order(a, "refers to no slot");
    const OffloadSlot& slot = points.slots[static_cast<std::size_t>(a.item)];
    if (slot.chunk != a.chunk) fail_order(a, "refers to a slot of another chunk");
    if (owner[a.column] != std::pair(a.chunk, a.microbatch)) fail_order(a, "is in another microbatch's column");
    if (a.kind != Kind::kOffload) continue;
    const Action left = same(a, Kind::kWaitOffload, -1, a.item), back = same(a, Kind::kReload, -1, a.item),
                 here = same(a, Kind::kWaitReload, -1, a.item);
    const auto verb = [&](const SlotVerb& of) { return same(a, of.kind, of.segment, -1); };
    for (const Action& each : {left, back, here}) order.require(each);
    order.require_before(verb(slot.last_writer), a);
    order.require_before(a, left);
    order.require_before(verb(slot.last_forward_reader), left);
    order.require_before(left, verb({.kind = Kind::kBackwardData, .segment = slot.last_forward_reader.segment}));
    order.require_before(left, back);
    order.require_before(back, here);
    order.require_before(here, verb(slot.first_backward_reader));
  }
  std::deque<Action> under_way;  // copies to the host in flight
  for (const Action& a : actions) {
    if (is_of_slot(a.kind)) order.require(same(a, Kind::kOffload, -1, a.item));
    if (a.kind == Kind::kOffload) under_way.push_back(same(a, Kind::kWaitOffload, -1, a.item));
    if (a.kind != Kind::kWaitOffload) continue;
    if (under_way.front() != a) fail_order(a, "waits for a copy out of order");
    under_way.pop_front();
  }
}

}  // namespace megalith
