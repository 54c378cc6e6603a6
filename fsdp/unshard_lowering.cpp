#include "fsdp/unshard_lowering.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "core/base/error.h"
#include "parallel/pipeline_parallel/action_hooks.h"

namespace megalith {

namespace {

using Kind = ActionKind;

int slot_of(const std::vector<int>& slots, int unit) { return slots[static_cast<std::size_t>(unit)]; }

int family_of(const UnitSlots& slots, int unit) {
  return slots.weight_family[static_cast<std::size_t>(slot_of(slots.of_weights, unit))];
}

void require_slots(const UnshardPoints& points) {
  const auto check = [](const char* flag, const std::vector<int>& units, const std::vector<int>& slots,
                        const std::vector<int>& families) {
    const auto family = [&](int unit) { return slot_of(families, slot_of(slots, unit)); };
    for (const int unit : units) {
      if (std::ranges::count_if(units, [&](int other) { return slot_of(slots, other) == slot_of(slots, unit); }) == 1)
        continue;
      const auto same_family = std::ranges::count_if(units, [&](int other) { return family(other) == family(unit); });
      refuse_usage(
          flag, {.expected = fmt::format("at least {0}: one segment uses {0} units of this size at once", same_family),
                 .got = fmt::format("{}", std::ranges::count(families, family(unit))),
                 .remedy = fmt::format("use {} {}, or recompute fewer layers together "
                                       "(--recompute-num-layers)",
                                       flag, same_family)});
    }
  };
  for (const SegmentUnits& segment : points.segments) {
    check("--fsdp-unit-slots", segment.weights, points.slots.of_weights, points.slots.weight_family);
    check(points.gradients_as_weights ? "--fsdp-unit-slots" : "--fsdp-gradient-slots", segment.gradients,
          points.slots.of_gradients, points.slots.gradient_family);
  }
}

std::vector<ActionHook> hooks_of(const UnshardPoints& points) {
  std::vector<ActionHook> hooks;
  for (int s = 0; s < static_cast<int>(points.segments.size()); ++s) {
    const auto around = [&](HookPoint before, HookPoint after, Kind begin, Kind end, int unit) {
      hooks.push_back({.segment = s, .point = before, .kind = begin, .item = unit});
      hooks.push_back({.segment = s, .point = after, .kind = end, .item = unit});
    };
    const SegmentUnits& units = points.segments[static_cast<std::size_t>(s)];
    for (const int unit : units.weights) {
      around(HookPoint::kPreForward, HookPoint::kPostForward, Kind::kWaitUnshard, Kind::kReshard, unit);
      if (units.forward_alone) continue;
      around(HookPoint::kPreBackward, HookPoint::kPostBackward, Kind::kWaitUnshard, Kind::kReshard, unit);
    }
    for (const int unit : units.gradients)
      around(HookPoint::kPreWeight, HookPoint::kPostWeight, Kind::kBindGradients, Kind::kReduceShard, unit);
  }
  return hooks;
}

// Drops the end of a use if the slot's next use is of the same unit and, for gradients, the same microbatch.
std::vector<Action> join_uses(const std::vector<Action>& actions, const UnshardPoints& points) {
  std::vector<bool> drop(actions.size(), false);
  std::map<std::pair<bool, int>, std::size_t> last_end;  // key: is gradient, slot
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const Action& a = actions[i];
    const bool gradients = a.kind == Kind::kBindGradients || a.kind == Kind::kReduceShard;
    const bool begins = a.kind == Kind::kWaitUnshard || a.kind == Kind::kBindGradients;
    if (!begins && a.kind != Kind::kReshard && a.kind != Kind::kReduceShard) continue;
    const std::pair slot{gradients, slot_of(gradients ? points.slots.of_gradients : points.slots.of_weights, a.item)};
    const auto end = last_end.find(slot);
    if (begins && end != last_end.end()) {
      const Action& before = actions[end->second];
      const bool same_sum = !gradients || (before.microbatch == a.microbatch && before.chunk == a.chunk);
      if (before.item == a.item && same_sum) drop[i] = drop[end->second] = true;
    }
    if (!begins) last_end[slot] = i;
  }
  std::vector<Action> joined;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    if (!drop[i]) joined.push_back(actions[i]);
  }
  return joined;
}

// Keeps adjacent backward verbs of a unit adjacent, so that one graph can hold them. A verb may also leave side-stream
// work for the next. Gradients are bound ahead of the first verb, and weights are resharded after the last.
std::vector<Action> around_together(std::vector<Action> actions, const UnshardPoints& points) {
  const auto joins = [&](const Action& verb, const Action& with) {
    if (verb.segment < 0 || verb.kind == Kind::kForward) return false;
    if (verb.microbatch != with.microbatch || verb.chunk != with.chunk) return false;
    const SegmentUnits& units = points.segments[static_cast<std::size_t>(verb.segment)];
    const auto has = [&](const std::vector<int>& of) { return std::ranges::find(of, with.item) != of.end(); };
    return has(units.weights) || has(units.gradients);
  };
  for (std::size_t i = 0; i < actions.size(); ++i) {
    if (actions[i].kind != Kind::kBindGradients) continue;
    const auto passes = [&](const Action& before, const Action& bind) {
      return before.kind == Kind::kReshard || joins(before, bind);
    };
    for (std::size_t at = i; at > 0 && passes(actions[at - 1], actions[at]); --at)
      std::swap(actions[at], actions[at - 1]);
  }
  for (std::size_t i = actions.size(); i-- > 0;) {
    if (actions[i].kind != Kind::kReshard || i == 0 || actions[i - 1].kind == Kind::kForward) continue;
    for (std::size_t at = i; at + 1 < actions.size() && joins(actions[at + 1], actions[at]); ++at)
      std::swap(actions[at], actions[at + 1]);
  }
  return actions;
}

std::vector<Action> sum_instances(const std::vector<Action>& actions, const UnshardPoints& points) {
  if (!points.sums_instances) return actions;
  std::map<int, std::size_t> last;  // last reduction of each unit
  for (std::size_t i = 0; i < actions.size(); ++i) {
    if (actions[i].kind == Kind::kReduceShard) last[actions[i].item] = i;
  }
  std::vector<Action> summed;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    summed.push_back(actions[i]);
    if (actions[i].kind == Kind::kReduceShard && last[actions[i].item] == i)
      summed.push_back({.kind = Kind::kSumInstances, .item = actions[i].item});
  }
  return summed;
}

std::vector<Action> with_uses(const std::vector<Action>& actions, const UnshardPoints& points) {
  return sum_instances(around_together(join_uses(insert_action_hooks(actions, hooks_of(points)), points), points),
                       points);
}

Action of_unit(Kind kind, int unit) { return {.kind = kind, .item = unit}; }

}  // namespace

std::vector<int> units_ahead(const std::vector<Action>& actions, const UnshardPoints& points) {
  std::vector<int> ahead;
  std::set<int> taken;           // slots
  std::map<int, int> of_family;  // units ahead; a value above `prefetch` closes the family
  for (const Action& action : with_uses(actions, points)) {
    if (action.kind != Kind::kWaitUnshard) continue;
    const int family = family_of(points.slots, action.item);
    if (of_family[family] > points.prefetch) continue;
    const bool is_free = taken.insert(slot_of(points.slots.of_weights, action.item)).second;
    // Gathers keep their order: none starts after one whose slot is taken.
    of_family[family] = is_free ? of_family[family] + 1 : points.prefetch + 1;
    if (is_free) ahead.push_back(action.item);
  }
  return ahead;
}

std::vector<Action> insert_unshards(const std::vector<Action>& actions, const UnshardPoints& points) {
  require_slots(points);
  std::vector<Action> used = with_uses(actions, points);
  const bool updates = std::ranges::find(actions, Kind::kOptimizerStep, &Action::kind) != actions.end();
  std::map<int, int> tenant;  // by slot: unit whose gather was started last, initially by the previous list
  for (const int unit : points.ahead) tenant[slot_of(points.slots.of_weights, unit)] = unit;
  // Gathers, keyed by the position before which they start, in order of use.
  std::multimap<std::size_t, Action> starts;
  std::map<int, std::size_t> given_up;               // position at which each slot became free
  std::map<int, std::vector<std::size_t>> waits_of;  // positions, by family
  std::size_t earliest = 0;
  for (std::size_t i = 0; i < used.size(); ++i) {
    const int unit = used[i].item;
    if (used[i].kind == Kind::kReshard) given_up[slot_of(points.slots.of_weights, unit)] = i + 1;
    if (used[i].kind != Kind::kWaitUnshard) continue;
    std::vector<std::size_t>& waits = waits_of[family_of(points.slots, unit)];
    waits.push_back(i);
    const std::size_t w = waits.size() - 1, reach = static_cast<std::size_t>(points.prefetch);
    const std::size_t wanted = w > reach ? waits[w - reach] : 0;
    const int slot = slot_of(points.slots.of_weights, unit);
    const bool is_first = !given_up.contains(slot);
    const auto started = tenant.find(slot);
    if (is_first && started != tenant.end() && started->second == unit) continue;
    if (is_first && started != tenant.end()) {
      starts.emplace(0, of_unit(Kind::kWaitUnshard, started->second));
      starts.emplace(0, of_unit(Kind::kReshard, started->second));
    }
    tenant[slot] = unit;
    earliest = std::max({earliest, wanted, is_first ? 0 : given_up[slot]});
    starts.emplace(earliest, of_unit(Kind::kUnshard, unit));
  }
  // A list restores `ahead` at its end. Weights without an update may stay in their slots.
  std::vector<std::size_t> stays;
  std::vector<Action> again;
  for (const int unit : points.ahead) {
    const int slot = slot_of(points.slots.of_weights, unit);
    if (updates || tenant.at(slot) != unit) {
      again.push_back(of_unit(Kind::kUnshard, unit));
    } else if (given_up.contains(slot)) {
      stays.push_back(given_up[slot] - 1);
    }
  }
  std::vector<Action> inserted;
  for (std::size_t i = 0; i < used.size(); ++i) {
    const auto [begin, end] = starts.equal_range(i);
    for (auto start = begin; start != end; ++start) inserted.push_back(start->second);
    if (std::ranges::find(stays, i) == stays.end()) inserted.push_back(used[i]);
  }
  for (int unit = 0; updates && points.gathers_instances && unit < std::ssize(points.slots.of_weights); ++unit)
    if (slot_of(points.slots.of_weights, unit) != UnitSlots::kResident)
      inserted.push_back(of_unit(Kind::kGatherInstances, unit));
  inserted.insert(inserted.end(), again.begin(), again.end());
  verify_units(inserted, points);
  return inserted;
}

}  // namespace megalith
