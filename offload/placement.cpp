#include "offload/placement.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "core/base/error.h"
#include "offload/slot_ways.h"

namespace megalith {

namespace {

constexpr double kSameStalls = 0.001;  // of the step's computing
constexpr int kFar = std::numeric_limits<int>::max();

struct Distance {  // in layers; kFar: the slot stays
  int lag = kFar, ahead = kFar;
  bool moves() const { return lag < kFar; }
};

// A slot of one microbatch that leaves. Its way is as near to its readers as can be.
struct Leaving {
  SlotWay way;
  std::size_t left = 0, reload = 0;  // places in the list, as far as memory allows
  Distance far;                      // the same
  Distance hides;                    // as near to that as copies need to be over in time
};

// What a step holds with slots away as long as a limit of memory needs.
class Placer {
 public:
  Placer(const StepSeconds& step, const PlacementRequest& request, const OffloadPoints& points)
      : nearest_(points), step_(step), request_(request), clock_(step.actions.size() + 1) {
    nearest_.lag = nearest_.ahead = 1;
    for (OffloadSlot& slot : nearest_.slots) {
      slot.lag = slot.ahead = 1;
      tighten(slot, nearest_);
    }
    ways_ = slot_ways(step.actions, nearest_);
    std::vector<double> least = request.alive;
    for (const SlotWay& way : ways_.ways) add(least, way.left, way.reload, -held(way));
    least_ = *std::ranges::max_element(least);
    most_ = *std::ranges::max_element(request.alive);
  }

  double least() const { return least_; }  // with all slots away as long as can be
  double most() const { return most_; }    // with none

  // These, but no further than so many layers where they may be nearer.
  std::vector<Distance> nearer(std::vector<Distance> distances, int layers) const {
    for (std::size_t i = 0; i < distances.size(); ++i) {
      if (!distances[i].moves()) continue;
      const OffloadSlot& nearest = nearest_.slots[i];
      distances[i] = {.lag = std::min(distances[i].lag, std::max(nearest.lag, layers)),
                      .ahead = std::min(distances[i].ahead, std::max(nearest.ahead, layers))};
    }
    return distances;
  }

  // Of each slot, for all microbatches.
  std::vector<Distance> within(double limit) {
    held_ = request_.alive;
    std::vector<Leaving> all = leave(limit);
    wait_when_over(all);
    std::ranges::stable_sort(all, {}, [](const Leaving& each) { return each.way.needed; });
    std::size_t last = 0;
    for (Leaving& leaving : all) last = std::max(last, come_back(leaving, limit, last));
    start_in_time(all);
    std::vector<Distance> far(nearest_.slots.size()), hides(far.size(), {.lag = 0, .ahead = 0});
    for (const Leaving& leaving : all) {
      const auto item = static_cast<std::size_t>(leaving.way.item);
      far[item] = {.lag = std::min(far[item].lag, leaving.far.lag),
                   .ahead = std::min(far[item].ahead, leaving.far.ahead)};
      hides[item] = {.lag = std::max(hides[item].lag, leaving.hides.lag),
                     .ahead = std::max(hides[item].ahead, leaving.hides.ahead)};
    }
    for (std::size_t item = 0; item < far.size(); ++item) {
      if (!far[item].moves()) continue;
      far[item] = {.lag = std::min(far[item].lag, hides[item].lag),
                   .ahead = std::min(far[item].ahead, hides[item].ahead)};
    }
    return far;
  }

 private:
  static constexpr double kSlack = 1.1;  // copies do not always reach their rates

  const OffloadSlot& slot(const SlotWay& way) const { return nearest_.slots[static_cast<std::size_t>(way.item)]; }
  double held(const SlotWay& way) const { return static_cast<double>(slot(way).bytes); }
  double seconds(const SlotWay& way, double rate) const {
    return kSlack * request_.bytes[static_cast<std::size_t>(way.item)] / rate;
  }
  static void add(std::vector<double>& to, std::size_t begin, std::size_t end, double bytes) {
    for (std::size_t i = begin; i < end; ++i) to[i] += bytes;
  }
  const LayerVerbs& layer(int index) const { return ways_.layers[static_cast<std::size_t>(index)]; }
  // From `layer` on, which may be -1, the last one that ends before the action.
  int last_behind(int layer_before, std::size_t action) const {
    while (layer_before + 1 < std::ssize(ways_.layers) && layer(layer_before + 1).end <= action) ++layer_before;
    return layer_before;
  }

  // Those that must, as late as they may; in the order in which they are written.
  std::vector<Leaving> leave(double limit) {
    std::vector<Leaving> all;
    std::size_t next = 0;
    int behind = -1;
    for (std::size_t i = 0; i < held_.size(); ++i) {
      behind = last_behind(behind, i);
      for (; held_[i] > limit && next < ways_.ways.size() && ways_.ways[next].left <= i; ++next) {
        const SlotWay& way = ways_.ways[next];
        if (way.reload <= i) continue;
        Leaving leaving{.way = way, .left = way.left, .reload = way.reload};
        leaving.far = leaving.hides = {.lag = slot(way).lag, .ahead = slot(way).ahead};
        if (const std::size_t end = behind < 0 ? 0 : layer(behind).end; end > way.left) {
          leaving.left = end;
          leaving.far.lag = behind - way.layer_read;
        }
        add(held_, leaving.left, way.reload, -held(way));
        all.push_back(leaving);
      }
    }
    return all;
  }

  // As early as there is room; returns where.
  std::size_t come_back(Leaving& leaving, double limit, std::size_t not_before) {
    for (int index = leaving.way.layer_needed - leaving.far.ahead - 1; index >= 0; --index) {
      const std::size_t begin = layer(index).begin;
      if (begin < std::max(leaving.left, not_before) || begin >= leaving.reload) break;
      const auto from = held_.begin() + static_cast<std::ptrdiff_t>(begin);
      const auto to = held_.begin() + static_cast<std::ptrdiff_t>(leaving.reload);
      if (std::any_of(from, to, [&](double bytes) { return bytes + held(leaving.way) > limit; })) break;
      add(held_, begin, leaving.reload, held(leaving.way));
      leaving.reload = begin;
      leaving.far.ahead = leaving.way.layer_needed - index;
    }
    return leaving.reload;
  }

  // Waits behind the first layer where the copy is over, or where they have to be.
  void wait_when_over(std::vector<Leaving>& all) {
    double now = 0, out = 0;
    std::vector<double> over(all.size());
    std::size_t started = 0, waited = 0;
    int behind = -1;
    for (std::size_t i = 0; i < step_.actions.size(); ++i) {
      behind = last_behind(behind, i);
      for (; started < all.size() && all[started].way.starts <= i; ++started)
        over[started] = out = std::max(out, now) + seconds(all[started].way, request_.rates.out);
      for (; waited < started; ++waited) {
        Leaving& leaving = all[waited];
        const bool is_nearest = leaving.way.left == i, is_layers = behind >= 0 && layer(behind).end == i;
        if (i < leaving.left && (i < leaving.way.left || over[waited] > now || !(is_nearest || is_layers))) break;
        if (!is_nearest) leaving.hides.lag = std::min(behind - leaving.way.layer_read, leaving.far.lag);
        now = std::max(now, over[waited]);
      }
      clock_[i] = now;
      now += step_.seconds[i];
    }
    clock_.back() = now;
  }

  // Copies start at the last layer from which they are there in time, or where there is room.
  void start_in_time(std::vector<Leaving>& all) const {
    double start = clock_.back();
    for (std::size_t n = all.size(); n-- > 0;) {
      Leaving& leaving = all[n];
      const SlotWay& way = leaving.way;
      start = std::min(start, clock_[way.needed]) - seconds(way, request_.rates.back);
      if (clock_[way.reload] <= start) continue;
      int ahead = leaving.hides.ahead;
      while (ahead < leaving.far.ahead && clock_[layer(way.layer_needed - ahead).begin] > start) ++ahead;
      leaving.hides.ahead = ahead;
    }
  }

  OffloadPoints nearest_;
  const StepSeconds& step_;
  const PlacementRequest& request_;
  SlotWays ways_;
  double least_ = 0, most_ = 0;
  std::vector<double> held_;   // of each action
  std::vector<double> clock_;  // when each begins, with the waits for copies to the host
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
  Placer placer(step, request, points);
  const double computing = std::accumulate(step.seconds.begin(), step.seconds.end(), 0.0);
  const auto at = [&](double share) {
    return placer.within(placer.least() + share * (placer.most() - placer.least()));
  };
  const auto stalled = [&](const std::vector<Distance>& distances) { return stalls(step, request, points, distances); };
  const double most = request.most_stalls * computing;
  // The first of some limits, and between it and the one before.
  constexpr int kLimits = 8, kHalvings = 6;
  const std::vector<Distance> nearest = at(0);
  std::vector<Distance> best = nearest;
  double share = 0, less_by = 1.0 / kLimits;
  while (share < 1 && stalled(best) > most) best = at(share += less_by);
  for (int n = 0; share > 0 && n < kHalvings; ++n) {
    std::vector<Distance> less = at(share - (less_by /= 2));
    if (stalled(less) > most) continue;
    best = std::move(less);
    share -= less_by;
  }
  // Memory is laid out with fewer gaps where less is alive.
  constexpr int kNear = 4;
  const double same = stalled(best) + kSameStalls * computing;
  for (int layers = 0; layers <= kNear; ++layers) {
    std::vector<Distance> nearer = placer.nearer(best, layers);
    if (stalled(nearer) > same) continue;
    best = std::move(nearer);
    break;
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
