#include "core/device/hazard_checker.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>

namespace megalith {

namespace {

using Clock = std::vector<std::int64_t>;
constexpr std::size_t kMaxKept = 100;

void merge(Clock& clock, const Clock& other) {
  clock.resize(std::max(clock.size(), other.size()), 0);
  for (std::size_t i = 0; i < other.size(); ++i) clock[i] = std::max(clock[i], other[i]);
}

struct Stamp {
  int lane = -1;  // -1: none
  std::int64_t time = 0;
  std::string_view op;
};

// What is known of the bytes [key, end): one write, and the latest read of each lane since.
struct Shadow {
  std::uintptr_t end = 0;
  Stamp write;
  std::vector<Stamp> reads;
};

}  // namespace

struct HazardChecker::State {
  std::vector<std::string> lanes{"host"};
  std::vector<Clock> clocks{Clock(1, 0)};
  std::unordered_map<std::uint64_t, Clock> events;
  std::map<std::uintptr_t, Shadow> shadows;
  std::map<std::tuple<int, int, std::string>, int> branches;
  std::vector<Hazard> hazards;
  std::set<std::tuple<std::string, std::string, std::string, std::string>> seen;
  std::int64_t count = 0;

  bool ordered(const Stamp& before, const Clock& clock) const {
    const auto lane = static_cast<std::size_t>(before.lane);
    return before.lane < 0 || (lane < clock.size() && clock[lane] >= before.time);
  }

  void report(const Stamp& first, const Stamp& second, std::uintptr_t begin, std::uintptr_t end, const char* kind) {
    ++count;
    Hazard hazard{.first_op = std::string(first.op),
                  .first_lane = lanes[static_cast<std::size_t>(first.lane)],
                  .second_op = std::string(second.op),
                  .second_lane = lanes[static_cast<std::size_t>(second.lane)],
                  .begin = reinterpret_cast<const void*>(begin),
                  .bytes = end - begin,
                  .kind = kind};
    if (!seen.emplace(hazard.first_op, hazard.first_lane, hazard.second_op, hazard.second_lane).second) return;
    if (hazards.size() < kMaxKept) hazards.push_back(std::move(hazard));
  }

  // Splits the shadow that contains `at`, so that one begins there.
  void split(std::uintptr_t at) {
    auto found = shadows.upper_bound(at);
    if (found == shadows.begin()) return;
    --found;
    if (found->first == at || found->second.end <= at) return;
    Shadow upper = found->second;
    found->second.end = at;
    shadows.emplace(at, std::move(upper));
  }

  void access(const Stamp& stamp, const Clock& clock, const AccessRange& range) {
    const auto begin = reinterpret_cast<std::uintptr_t>(range.begin);
    const std::uintptr_t end = begin + range.bytes;
    split(begin);
    split(end);
    std::uintptr_t at = begin;
    auto found = shadows.lower_bound(begin);
    while (at < end) {
      if (found == shadows.end() || found->first > at) {  // bytes never touched before
        const std::uintptr_t gap_end = found == shadows.end() ? end : std::min(end, found->first);
        found = shadows.emplace_hint(found, at, Shadow{.end = gap_end, .write = {}, .reads = {}});
      }
      touch(stamp, clock, range.write, found->first, found->second);
      at = found->second.end;
      // After a write all its bytes have the same past: one shadow is enough.
      found = range.write ? shadows.erase(found) : std::next(found);
    }
    if (range.write) shadows.emplace_hint(found, begin, Shadow{.end = end, .write = stamp, .reads = {}});
  }

  void touch(const Stamp& stamp, const Clock& clock, bool write, std::uintptr_t begin, Shadow& shadow) {
    if (!ordered(shadow.write, clock)) {
      report(shadow.write, stamp, begin, shadow.end, write ? "write after write" : "read after write");
    }
    if (write) {
      for (const Stamp& read : shadow.reads) {
        if (!ordered(read, clock)) report(read, stamp, begin, shadow.end, "write after read");
      }
    } else {
      std::erase_if(shadow.reads, [&](const Stamp& read) { return read.lane == stamp.lane; });
      shadow.reads.push_back(stamp);
    }
  }
};

std::string to_string(const Hazard& h) {
  return fmt::format("{} of {} bytes at {}: {} on {} is not ordered after {} on {}", h.kind, h.bytes, h.begin,
                     h.second_op, h.second_lane, h.first_op, h.first_lane);
}

HazardChecker::HazardChecker() : state_(std::make_unique<State>()) {}
HazardChecker::~HazardChecker() = default;

int HazardChecker::add_lane(std::string_view name) {
  state_->lanes.emplace_back(name);
  state_->clocks.emplace_back(state_->lanes.size(), 0);
  return static_cast<int>(state_->lanes.size()) - 1;
}

int HazardChecker::branch(int lane, int index, std::string_view name) {
  const auto [found, is_new] = state_->branches.try_emplace({lane, index, std::string(name)}, -1);
  if (is_new)
    found->second = add_lane(fmt::format("{} in a graph on {}", name, state_->lanes[static_cast<std::size_t>(lane)]));
  return found->second;
}

void HazardChecker::op(int lane, const Access& access) {
  const auto l = static_cast<std::size_t>(lane);
  Clock& clock = state_->clocks[l];
  merge(clock, state_->clocks[kHost]);  // the host enqueued it after all it knows
  ++clock[l];
  const Stamp stamp{.lane = lane, .time = clock[l], .op = access.name()};
  // Reads first: an op that updates a buffer must not hide its own read.
  for (const AccessRange& range : access.ranges()) {
    if (!range.write) state_->access(stamp, clock, range);
  }
  for (const AccessRange& range : access.ranges()) {
    if (range.write) state_->access(stamp, clock, range);
  }
}

void HazardChecker::record(int lane, std::uint64_t event) {
  state_->events[event] = state_->clocks[static_cast<std::size_t>(lane)];
}

void HazardChecker::wait(int lane, std::uint64_t event) {
  const auto found = state_->events.find(event);
  if (found != state_->events.end()) merge(state_->clocks[static_cast<std::size_t>(lane)], found->second);
}

void HazardChecker::join(int lane, int other) {
  const Clock clock = state_->clocks[static_cast<std::size_t>(other)];
  merge(state_->clocks[static_cast<std::size_t>(lane)], clock);
}

const std::vector<Hazard>& HazardChecker::hazards() const { return state_->hazards; }
std::int64_t HazardChecker::count() const { return state_->count; }

}  // namespace megalith
