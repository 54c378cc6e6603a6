#include "offload/placement.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

#include "core/base/error.h"
#include "offload/memory_limit.h"
#include "offload/slot_ways.h"

namespace megalith {

namespace {

using Distances = std::vector<SlotDistance>;  // per slot

class Search {
 public:
  Search(const StepSeconds& step, const PlacementRequest& request, const OffloadPoints& points)
      : step_(step),
        request_(request),
        points_(points),
        verbs_(step.actions, points),
        limit_(step, request, verbs_, points) {
    computing_ = std::accumulate(step.seconds.begin(), step.seconds.end(), 0.0);
  }

  // Distances under the lowest limit. A slot that stays there does not lower the peak.
  Distances nearest() { return within(limit_.least()); }

  Distances best() {
    best_ = {.distances = Distances(points_.slots.size()), .peak = limit_.most()};
    try_limits();
    if (request_.layers >= 0) {
      try_uniform(0);
      return best_.distances;
    }
    for (int layers = 0; layers <= kUniform; ++layers) try_uniform(layers);
    // Smaller distances keep less memory live, which leaves fewer gaps in the arena's layout.
    for (int layers = 0; layers <= kNear; ++layers) {
      const Option near = option(no_further(best_.distances, layers));
      const double more = hides(near) || !hides(best_) ? kSameStalls * computing_ : 0;
      if (near.stalls <= best_.stalls + more) return near.distances;
    }
    return best_.distances;
  }

 private:
  struct Option {
    Distances distances;
    double peak = 0;    // bytes
    double stalls = 0;  // seconds
  };
  static constexpr int kLimits = 8, kHalvings = 6, kUniform = 3, kNear = 4, kTries = 64, kRoomLimits = 32;
  static constexpr double kSameStalls = 0.001;  // share of the step's computation

  Distances within(double limit) {
    Distances distances = limit_.within(limit);
    for (std::size_t i = 0; i < distances.size() && request_.layers >= 0; ++i) {
      if (distances[i].moves()) distances[i] = limit_.nearest(i);
    }
    return distances;
  }
  bool hides(const Option& option) const { return option.stalls <= request_.max_stalls * computing_; }

  Option option(const Distances& distances) const {
    OffloadPoints only{
        .slots = {}, .layer_of_segment = points_.layer_of_segment, .between_layers = points_.between_layers};
    std::vector<double> bytes;
    for (std::size_t i = 0; i < distances.size(); ++i) {
      if (!distances[i].moves()) continue;
      only.slots.push_back(points_.slots[i]);
      only.slots.back().lag = distances[i].lag;
      only.slots.back().ahead = distances[i].ahead;
      bytes.push_back(request_.bytes[i]);
    }
    const std::vector<SlotWay> ways = slot_ways(verbs_, only);
    std::vector<double> changes(request_.alive.size() + 1);
    for (const SlotWay& way : ways) {
      const auto held = static_cast<double>(only.slots[static_cast<std::size_t>(way.item)].bytes);
      changes[way.left] -= held;
      changes[way.reload] += held;
    }
    Option option{.distances = distances, .stalls = forecast_copies(step_, ways, bytes, request_.rates).waits()};
    double away = 0;
    for (std::size_t i = 0; i < request_.alive.size(); ++i)
      option.peak = std::max(option.peak, request_.alive[i] + (away += changes[i]));
    return option;
  }
  // Prefers placements that fit and whose stalls are allowed, by memory; then those that fit, by stalls.
  void consider(const Option& option) {
    const auto rank = [&](const Option& of) {
      const bool fits = of.peak <= request_.room;
      const int group = !fits ? 2 : hides(of) ? 0 : 1;
      return std::tuple(group, group == 1 ? of.stalls : of.peak, of.stalls);
    };
    if (rank(option) < rank(best_)) best_ = option;
  }

  // Finds the first limit whose stalls are allowed, then bisects between it and the previous limit.
  void try_limits() {
    const auto at = [&](double share) {
      const Option found = option(within(limit_.least() + share * (limit_.most() - limit_.least())));
      consider(found);
      return hides(found);
    };
    double share = 0, less_by = 1.0 / kLimits;
    while (share < 1 && !at(share)) share += less_by;
    for (int n = 0; share > 0 && n < kHalvings; ++n) {
      less_by /= 2;
      if (at(share - less_by)) share -= less_by;
    }
    if (best_.peak <= request_.room) return;
    for (double limit = request_.room; limit > limit_.least(); limit -= (limit_.most() - limit_.least()) / kRoomLimits)
      consider(option(within(limit)));
  }

  // Tries all slots at one distance, or at their minimum distance if that is larger. If the stalls are too long, tries
  // subsets with allowed stalls, in the order of bytes times time away.
  void try_uniform(int layers) {
    Distances all(points_.slots.size());
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = no_nearer(limit_.nearest(i), layers);
    const Option whole = option(all);
    consider(whole);
    if (hides(whole) || layers == kUniform) return;
    const std::vector<std::size_t> order = by_worth(all);
    Option some = option(Distances(all.size()));
    int tries = kTries;
    add_hidden(all, order, 0, order.size(), some, tries);
    consider(some);
  }
  void add_hidden(const Distances& all, const std::vector<std::size_t>& order, std::size_t begin, std::size_t end,
                  Option& some, int& tries) const {
    if (begin == end || tries-- <= 0) return;
    Distances more = some.distances;
    for (std::size_t n = begin; n < end; ++n) more[order[n]] = all[order[n]];
    if (Option found = option(more); hides(found)) {
      some = std::move(found);
    } else if (end - begin > 1) {
      const std::size_t middle = begin + (end - begin) / 2;
      add_hidden(all, order, begin, middle, some, tries);
      add_hidden(all, order, middle, end, some, tries);
    }
  }
  // Order by bytes times computation time away, without slots that are never away.
  std::vector<std::size_t> by_worth(const Distances& all) const {
    std::vector<double> clock(step_.seconds.size() + 1);
    std::partial_sum(step_.seconds.begin(), step_.seconds.end(), clock.begin() + 1);
    OffloadPoints points = points_;
    for (std::size_t i = 0; i < all.size(); ++i) {
      points.slots[i].lag = all[i].lag;
      points.slots[i].ahead = all[i].ahead;
    }
    std::vector<double> worth(all.size());
    for (const SlotWay& way : slot_ways(verbs_, points)) {
      const auto item = static_cast<std::size_t>(way.item);
      worth[item] += static_cast<double>(points.slots[item].bytes) * (clock[way.reload] - clock[way.left]);
    }
    std::vector<std::size_t> order(all.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, std::greater(), [&](std::size_t item) { return worth[item]; });
    while (!order.empty() && worth[order.back()] <= 0) order.pop_back();
    return order;
  }

  static SlotDistance no_nearer(const SlotDistance& distance, int layers) {
    return {.lag = std::max(distance.lag, layers), .ahead = std::max(distance.ahead, layers)};
  }
  Distances no_further(Distances distances, int layers) const {
    for (std::size_t i = 0; i < distances.size(); ++i) {
      if (!distances[i].moves()) continue;
      const SlotDistance least = no_nearer(limit_.nearest(i), layers);
      distances[i] = {.lag = std::min(distances[i].lag, least.lag), .ahead = std::min(distances[i].ahead, least.ahead)};
    }
    return distances;
  }

  const StepSeconds& step_;
  const PlacementRequest& request_;
  const OffloadPoints& points_;
  ListVerbs verbs_;
  MemoryLimit limit_;
  double computing_ = 0;
  Option best_;
};

}  // namespace

std::vector<double> bytes_alive(const OffloadRecording& recording) {
  const std::vector<Timeline::Entry>& entries = recording.timeline.entries();
  const std::vector<Arena::Recorded>& buffers = recording.arena.recorded();
  struct Life {
    std::size_t begin = 0, end = 0;  // entries; end 0: never accessed
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
  require(request.alive.size() == step.actions.size(), "place_copies: `alive` does not match the list of actions");
  Search search(step, request, points);
  const Distances nearest = search.nearest(), best = search.best();
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
