#include "offload/memory_limit.h"

#include <algorithm>

#include "offload/policy.h"

namespace megalith {

namespace {

void add(std::vector<double>& to, std::size_t begin, std::size_t end, double bytes) {
  for (std::size_t i = begin; i < end; ++i) to[i] += bytes;
}

}  // namespace

MemoryLimit::MemoryLimit(const StepSeconds& step, const PlacementRequest& request, const ListVerbs& verbs,
                         const OffloadPoints& points)
    : step_(step), request_(request), verbs_(verbs), nearest_(points), clock_(step.actions.size() + 1) {
  nearest_.lag = nearest_.ahead = std::max(request.layers, 1);
  for (OffloadSlot& slot : nearest_.slots) {
    slot.lag = slot.ahead = nearest_.lag;
    if (request.layers <= 0) tighten(slot, nearest_);
  }
  ways_ = slot_ways(verbs, nearest_);
  std::vector<double> least = request.alive;
  for (const SlotWay& way : ways_) add(least, way.left, way.reload, -held(way));
  least_ = *std::ranges::max_element(least);
  most_ = *std::ranges::max_element(request.alive);
}

std::vector<SlotDistance> MemoryLimit::within(double limit) {
  held_ = request_.alive;
  std::vector<Leaving> all = leave(limit);
  wait_when_over(all);
  std::ranges::stable_sort(all, {}, [](const Leaving& each) { return each.way.needed; });
  std::size_t last = 0;
  for (Leaving& leaving : all) last = std::max(last, come_back(leaving, limit, last));
  start_in_time(all);
  std::vector<SlotDistance> far(nearest_.slots.size()), hides(far.size(), {.lag = 0, .ahead = 0});
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

// Returns the last layer from `layer_before` on that ends before the action; `layer_before` may be -1.
int MemoryLimit::last_ended(int layer_before, std::size_t action) const {
  while (layer_before + 1 < std::ssize(verbs_.layers()) && layer(layer_before + 1).end <= action) ++layer_before;
  return layer_before;
}

// Returns the slots that must leave, as late as the limit allows, in the order of their writers.
std::vector<MemoryLimit::Leaving> MemoryLimit::leave(double limit) {
  std::vector<Leaving> all;
  std::size_t next = 0;
  int ended = -1;
  for (std::size_t i = 0; i < held_.size(); ++i) {
    ended = last_ended(ended, i);
    for (; held_[i] > limit && next < ways_.size() && ways_[next].left <= i; ++next) {
      const SlotWay& way = ways_[next];
      if (way.reload <= i) continue;
      Leaving leaving{.way = way, .left = way.left, .reload = way.reload};
      leaving.far = leaving.hides = {.lag = slot(way).lag, .ahead = slot(way).ahead};
      if (const std::size_t end = ended < 0 ? 0 : layer(ended).end; end > way.left) {
        leaving.left = end;
        leaving.far.lag = ended - way.layer_read;
      }
      add(held_, leaving.left, way.reload, -held(way));
      all.push_back(leaving);
    }
  }
  return all;
}

// Moves the reload to the earliest position that the limit allows, and returns the position.
std::size_t MemoryLimit::come_back(Leaving& leaving, double limit, std::size_t not_before) {
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

// Places each wait after the first layer at whose end the copy is complete, or where the limit requires the wait.
void MemoryLimit::wait_when_over(std::vector<Leaving>& all) {
  double now = 0, out = 0;
  std::vector<double> over(all.size());
  std::size_t started = 0, waited = 0;
  int ended = -1;
  for (std::size_t i = 0; i < step_.actions.size(); ++i) {
    ended = last_ended(ended, i);
    for (; started < all.size() && all[started].way.starts <= i; ++started)
      over[started] = out = std::max(out, now) + seconds(all[started].way, request_.rates.out);
    for (; waited < started; ++waited) {
      Leaving& leaving = all[waited];
      const bool is_nearest = leaving.way.left == i, is_layers = ended >= 0 && layer(ended).end == i;
      if (i < leaving.left && (i < leaving.way.left || over[waited] > now || !(is_nearest || is_layers))) break;
      if (!is_nearest) leaving.hides.lag = std::min(ended - leaving.way.layer_read, leaving.far.lag);
      now = std::max(now, over[waited]);
    }
    clock_[i] = now;
    now += step_.seconds[i];
  }
  clock_.back() = now;
}

// Starts each copy at the last layer from which it completes in time, or where the limit requires the start.
void MemoryLimit::start_in_time(std::vector<Leaving>& all) const {
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

}  // namespace megalith
