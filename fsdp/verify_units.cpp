#include <fmt/format.h>

#include <map>
#include <set>
#include <tuple>

#include "fsdp/unshard_lowering.h"
#include "parallel/pipeline_parallel/action_order.h"

namespace megalith {

namespace {

using Kind = ActionKind;

class UnitStates {
 public:
  explicit UnitStates(const UnshardPoints& points) : points_(points) {
    for (const int unit : points.ahead) start({.kind = Kind::kUnshard, .item = unit});
  }

  void pass(const Action& a) {
    switch (a.kind) {
      case Kind::kUnshard: return start(a);
      case Kind::kWaitUnshard:
        if (!started_.contains(a.item)) fail_order(a, "waits for a gather that was not started");
        whole_.insert(a.item);
        return;
      case Kind::kReshard:
        if (whole_.erase(a.item) == 0) fail_order(a, "reshards a unit that is not gathered");
        started_.erase(a.item);
        tenants_.erase(slot(a));
        return;
      case Kind::kBindGradients:
        if (!bound_.emplace(points_.slots.of_gradients[static_cast<std::size_t>(a.item)], a.item).second)
          fail_order(a, "binds a slot that is in use");
        if (!sums_.emplace(a.item, a.chunk, a.microbatch).second) fail_order(a, "starts the same sum twice");
        if (complete_.contains(a.item)) fail_order(a, "adds to a shard already summed over the instances");
        return;
      case Kind::kReduceShard:
        if (!is_bound(a.item)) fail_order(a, "reduces gradients that are not bound");
        bound_.erase(points_.slots.of_gradients[static_cast<std::size_t>(a.item)]);
        return;
      case Kind::kSumInstances:
        if (is_bound(a.item)) fail_order(a, "sums a shard over the instances before its last reduction");
        if (!complete_.insert(a.item).second) fail_order(a, "sums a shard over the instances twice");
        return;
      case Kind::kGatherInstances:
        if (!updated_) fail_order(a, "gathers a shard before its update");
        if (!gathered_.insert(a.item).second) fail_order(a, "gathers a shard twice");
        return;
      default: return pass_verb(a);
    }
  }

  void finish(const Action& last) const {
    if (!bound_.empty()) fail_order(last, "ends a list with gradients that are not reduced");
    for (const auto& [unit, chunk, microbatch] : sums_) {
      if (points_.sums_instances != complete_.contains(unit))
        fail_order(last, fmt::format("ends a list with unit {} not summed over the instances", unit));
    }
    for (int unit = 0; updated_ && unit < std::ssize(points_.slots.of_weights); ++unit) {
      if (lacks_parts(unit)) fail_order(last, fmt::format("ends a list with an incomplete shard of unit {}", unit));
    }
    for (const auto& [of, unit] : tenants_) {
      if (std::ranges::find(points_.ahead, unit) == points_.ahead.end())
        fail_order(last, fmt::format("ends a list with unit {} still gathered", unit));
    }
    if (tenants_.size() != points_.ahead.size()) fail_order(last, "ends a list without the gathers for the next list");
  }

 private:
  int slot(const Action& a) const { return points_.slots.of_weights[static_cast<std::size_t>(a.item)]; }
  bool is_bound(int unit) const {
    const auto found = bound_.find(points_.slots.of_gradients[static_cast<std::size_t>(unit)]);
    return found != bound_.end() && found->second == unit;
  }

  bool lacks_parts(int unit) const {
    const bool sharded = points_.slots.of_weights[static_cast<std::size_t>(unit)] != UnitSlots::kResident;
    return points_.gathers_instances && sharded && !gathered_.contains(unit);
  }

  void start(const Action& a) {
    if (updated_ && lacks_parts(a.item)) fail_order(a, "gathers a unit from incomplete shards");
    if (!tenants_.emplace(slot(a), a.item).second) fail_order(a, "gathers into a slot that is in use");
    started_.insert(a.item);
  }

  void pass_verb(const Action& a) {
    if (a.kind == Kind::kOptimizerStep) {
      if (!started_.empty() || !bound_.empty()) fail_order(a, "updates weights of gathered units");
      updated_ = true;
    }
    if (a.segment < 0) return;
    const SegmentUnits& units = points_.segments[static_cast<std::size_t>(a.segment)];
    if (a.kind == Kind::kBackwardWeight) {
      for (const int unit : units.gradients) {
        if (!is_bound(unit)) fail_order(a, fmt::format("writes gradients of unit {}, which are not bound", unit));
      }
    }
    if (a.kind == Kind::kBackwardWeight || (a.kind == Kind::kBackwardData && units.forward_alone)) return;
    for (const int unit : units.weights) {
      if (!whole_.contains(unit)) fail_order(a, fmt::format("reads unit {}, which is not gathered", unit));
    }
  }

  const UnshardPoints& points_;
  std::map<int, int> tenants_;     // weight slot to unit
  std::map<int, int> bound_;       // gradient slot to unit
  std::set<int> started_, whole_;  // units
  std::set<int> complete_;         // units whose shards are summed over the instances
  bool updated_ = false;
  std::set<int> gathered_;                    // units whose shards are complete since the update
  std::set<std::tuple<int, int, int>> sums_;  // unit, chunk, microbatch
};

}  // namespace

void verify_units(const std::vector<Action>& actions, const UnshardPoints& points) {
  UnitStates states(points);
  for (const Action& action : actions) states.pass(action);
  if (!actions.empty()) states.finish(actions.back());
}

}  // namespace megalith
