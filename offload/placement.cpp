#include "offload/placement.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "core/base/error.h"
#include "offload/slot_ways.h"

namespace megalith {

namespace {

constexpr int kFar = std::numeric_limits<int>::max();

struct Distance {  // in layers; kFar: the slot stays
  int lag = kFar, ahead = kFar;
  bool moves() const { return lag < kFar; }
};

// What a step holds with slots away as long as a limit of memory needs.
class Placer {
 public:
  Placer(const std::vector<Action>& actions, const OffloadPoints& points, const std::vector<double>& alive)
      : nearest_(points), alive_(alive) {
    nearest_.lag = nearest_.ahead = 1;
    for (OffloadSlot& slot : nearest_.slots) {
      slot.lag = slot.ahead = 1;
      tighten(slot, nearest_);
    }
    ways_ = slot_ways(actions, nearest_);
    std::vector<double> least = alive_;
    for (const SlotWay& way : ways_.ways) add(least, way.left, way.reload, -bytes(way));
    least_ = *std::ranges::max_element(least);
    most_ = *std::ranges::max_element(alive_);
  }

  double least() const { return least_; }  // with all slots away as long as can be
  double most() const { return most_; }    // with none

  // Of each slot, over all microbatches: the nearest that one of them needs.
  std::vector<Distance> within(double limit) {
    held_ = alive_;
    std::vector<Distance> distances(nearest_.slots.size());
    for (Leaving& leaving : leave(limit)) {
      come_back(leaving, limit);
      Distance& of = distances[static_cast<std::size_t>(leaving.way.item)];
      of.lag = std::min(of.lag, leaving.distance.lag);
      of.ahead = std::min(of.ahead, leaving.distance.ahead);
    }
    return distances;
  }

 private:
  struct Leaving {
    SlotWay way;
    Distance distance;
  };

  const OffloadSlot& slot(const SlotWay& way) const { return nearest_.slots[static_cast<std::size_t>(way.item)]; }
  double bytes(const SlotWay& way) const { return static_cast<double>(slot(way).bytes); }
  static void add(std::vector<double>& to, std::size_t begin, std::size_t end, double bytes) {
    for (std::size_t i = begin; i < end; ++i) to[i] += bytes;
  }

  // Those that must, as late as they may; in the order in which they are needed again.
  std::vector<Leaving> leave(double limit) {
    std::vector<Leaving> all;
    std::size_t next = 0;
    int layer = -1;  // the last that ended before the action
    for (std::size_t i = 0; i < alive_.size(); ++i) {
      while (layer + 1 < std::ssize(ways_.layers) && ways_.layers[static_cast<std::size_t>(layer + 1)].end <= i) ++layer;
      for (; held_[i] > limit && next < ways_.ways.size() && ways_.ways[next].left <= i; ++next) {
        Leaving leaving{.way = ways_.ways[next], .distance = {.lag = slot(ways_.ways[next]).lag, .ahead = 0}};
        SlotWay& way = leaving.way;
        if (way.reload <= i) continue;
        if (const std::size_t end = layer < 0 ? 0 : ways_.layers[static_cast<std::size_t>(layer)].end; end > way.left) {
          way.left = end;
          leaving.distance.lag = layer - way.layer_read;
        }
        add(held_, way.left, way.reload, -bytes(way));
        all.push_back(leaving);
      }
    }
    std::ranges::stable_sort(all, {}, [](const Leaving& each) { return each.way.needed; });
    last_back_ = 0;
    return all;
  }

  void come_back(Leaving& leaving, double limit) {
    SlotWay& way = leaving.way;
    int ahead = slot(way).ahead;
    for (int layer = way.layer_needed - ahead - 1; layer >= 0; --layer) {
      const std::size_t begin = ways_.layers[static_cast<std::size_t>(layer)].begin;
      if (begin < std::max(way.left, last_back_) || begin >= way.reload) break;
      const auto from = held_.begin() + static_cast<std::ptrdiff_t>(begin);
      const auto to = held_.begin() + static_cast<std::ptrdiff_t>(way.reload);
      if (std::any_of(from, to, [&](double held) { return held + bytes(way) > limit; })) break;
      add(held_, begin, way.reload, bytes(way));
      way.reload = begin;
      ahead = way.layer_needed - layer;
    }
    last_back_ = std::max(last_back_, way.reload);
    leaving.distance.ahead = ahead;
  }

  OffloadPoints nearest_;
  const std::vector<double>& alive_;
  SlotWays ways_;
  double least_ = 0, most_ = 0;
  std::vector<double> held_;    // of each action
  std::size_t last_back_ = 0;  // where the slot needed before comes back
};

OffloadPoints placed(const OffloadPoints& points, const std::vector<Distance>& distances) {
  OffloadPoints only{.slots = {}, .layer_of_segment = points.layer_of_segment, .between_layers = points.between_layers};
  for (std::size_t i = 0; i < points.slots.size(); ++i) {
    if (!distances[i].moves()) continue;
    only.slots.push_back(points.slots[i]);
    only.slots.back().lag = distances[i].lag;
    only.slots.back().ahead = distances[i].ahead;
  }
  return only;
}

double stalls(const StepSeconds& step, const PlacementRequest& request, const OffloadPoints& points,
              const std::vector<Distance>& distances) {
  const OffloadPoints only = placed(points, distances);
  std::vector<double> bytes;
  for (std::size_t i = 0; i < distances.size(); ++i) {
    if (distances[i].moves()) bytes.push_back(request.bytes[i]);
  }
  return forecast_copies(step, only, bytes, request.rates).stalls();
}

}  // namespace

std::vector<double> bytes_alive(const OffloadRecording& recording) {
  const std::vector<Timeline::Entry>& entries = recording.timeline.entries();
  const std::vector<Arena::Recorded>& buffers = recording.arena.recorded();
  struct Life {
    std::size_t begin = 0, end = 0;  // entries; none: never touched
  };
  std::vector<Life> lives(buffers.size());
  for (std::size_t e = 0; e < entries.size(); ++e) {
    for (const AccessRange& range : entries[e].access.ranges()) {
      const std::size_t index = recording.arena.index_recorded(range.begin);
      if (index == buffers.size()) continue;
      if (lives[index].end == 0) lives[index].begin = e;
      lives[index].end = e + 1;
    }
  }
  std::vector<double> changes(entries.size() + 1);
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    changes[lives[i].begin] += static_cast<double>(buffers[i].bytes);
    changes[lives[i].end == 0 ? lives[i].begin : lives[i].end] -= static_cast<double>(buffers[i].bytes);
  }
  std::vector<double> alive(recording.actions.size());
  double now = 0;
  for (std::size_t e = 0, a = 0; e < entries.size(); ++e) {
    now += changes[e];
    while (a + 1 < alive.size() && recording.entries[a + 1] <= e) ++a;
    if (e >= recording.entries[0]) alive[a] = std::max(alive[a], now);
  }
  return alive;
}

std::vector<SlotFate> place_copies(const StepSeconds& step, const PlacementRequest& request, OffloadPoints& points) {
  require(request.alive.size() == step.actions.size(), "memory of other actions");
  Placer placer(step.actions, points, request.alive);
  const double most = request.most_stalls * std::accumulate(step.seconds.begin(), step.seconds.end(), 0.0);
  const auto at = [&](double share) { return placer.within(placer.least() + share * (placer.most() - placer.least())); };
  const auto hides = [&](const std::vector<Distance>& distances) {
    return stalls(step, request, points, distances) <= most;
  };
  // The first of some limits, and between it and the one before.
  constexpr int kLimits = 8, kHalvings = 4;
  const std::vector<Distance> nearest = at(0);
  std::vector<Distance> best = nearest;
  double share = 0, step_of_share = 1.0 / kLimits;
  while (share < 1 && !hides(best)) best = at(share += step_of_share);
  for (int n = 0; share > 0 && n < kHalvings; ++n) {
    step_of_share /= 2;
    std::vector<Distance> less = at(share - step_of_share);
    if (!hides(less)) continue;
    best = std::move(less);
    share -= step_of_share;
  }
  std::vector<SlotFate> fates;
  for (std::size_t i = 0; i < best.size(); ++i) {
    fates.push_back(best[i].moves()      ? SlotFate::kMoves
                    : nearest[i].moves() ? SlotFate::kStalls
                                         : SlotFate::kFreesNothing);
    if (!best[i].moves()) continue;
    points.slots[i].lag = best[i].lag;
    points.slots[i].ahead = best[i].ahead;
  }
  return fates;
}

}  // namespace megalith
