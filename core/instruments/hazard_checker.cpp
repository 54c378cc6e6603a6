#include "core/instruments/hazard_checker.h"

#include <fmt/format.h>

#include "core/instruments/split_at.h"

namespace megalith {

namespace {
constexpr std::size_t kMaxKept = 100;
}  // namespace

bool HazardChecker::ordered(const Stamp& before, const VectorClock& clock) {
  const auto lane = static_cast<std::size_t>(before.lane);
  return before.lane < 0 || (lane < clock.size() && clock[lane] >= before.time);
}

void HazardChecker::report(const Stamp& first, const Stamp& second, std::uintptr_t begin, std::uintptr_t end,
                           const char* kind) {
  ++count_;
  Hazard hazard{.first_op = std::string(first.op),
                .first_lane = lanes_[static_cast<std::size_t>(first.lane)],
                .second_op = std::string(second.op),
                .second_lane = lanes_[static_cast<std::size_t>(second.lane)],
                .begin = reinterpret_cast<const void*>(begin),
                .bytes = end - begin,
                .kind = kind};
  if (!seen_.emplace(hazard.first_op, hazard.first_lane, hazard.second_op, hazard.second_lane).second) return;
  if (hazards_.size() < kMaxKept) hazards_.push_back(std::move(hazard));
}

void HazardChecker::split(std::uintptr_t at) { split_at(shadows_, at); }

void HazardChecker::access(const Stamp& stamp, const VectorClock& clock, const AccessRange& range) {
  const auto begin = reinterpret_cast<std::uintptr_t>(range.begin);
  const std::uintptr_t end = begin + range.bytes;
  split(begin);
  split(end);
  std::uintptr_t at = begin;
  auto found = shadows_.lower_bound(begin);
  while (at < end) {
    if (found == shadows_.end() || found->first > at) {  // bytes without an earlier access
      const std::uintptr_t gap_end = found == shadows_.end() ? end : std::min(end, found->first);
      found = shadows_.emplace_hint(found, at, Shadow{.end = gap_end, .write = {}, .reads = {}});
    }
    touch(stamp, clock, range.write, found->first, found->second);
    at = found->second.end;
    // After a write all bytes of the range have one state, so one shadow suffices.
    found = range.write ? shadows_.erase(found) : std::next(found);
  }
  if (range.write) shadows_.emplace_hint(found, begin, Shadow{.end = end, .write = stamp, .reads = {}});
}

void HazardChecker::touch(const Stamp& stamp, const VectorClock& clock, bool write, std::uintptr_t begin,
                          Shadow& shadow) {
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
std::string to_string(const Hazard& h) {
  return fmt::format("{} of {} bytes at {}: {} on {} is not ordered after {} on {}", h.kind, h.bytes, h.begin,
                     h.second_op, h.second_lane, h.first_op, h.first_lane);
}

int HazardChecker::add_lane(std::string_view name) {
  lanes_.emplace_back(name);
  clocks_.emplace_back(lanes_.size(), 0);
  return static_cast<int>(lanes_.size()) - 1;
}

int HazardChecker::branch(int lane, int index, std::string_view name) {
  const auto [found, is_new] = branches_.try_emplace({lane, index, std::string(name)}, -1);
  if (is_new)
    found->second = add_lane(fmt::format("{} in a graph on {}", name, lanes_[static_cast<std::size_t>(lane)]));
  return found->second;
}

void HazardChecker::op(int lane, const Access& access) {
  VectorClock& clock = clock_of(lane);
  merge(clock, clocks_[kHost]);  // the host enqueued the op after all events known to it
  const Stamp stamp{.lane = lane, .time = ++clock[static_cast<std::size_t>(lane)], .op = access.name()};
  // Reads come first: an op that updates a buffer must not hide the op's read.
  for (const AccessRange& range : access.ranges()) {
    if (!range.write) this->access(stamp, clock, range);
  }
  for (const AccessRange& range : access.ranges()) {
    if (range.write) this->access(stamp, clock, range);
  }
}

void HazardChecker::record(int lane, std::uint64_t event) { events_[event] = clock_of(lane); }

void HazardChecker::wait(int lane, std::uint64_t event) {
  const auto found = events_.find(event);
  if (found != events_.end()) merge(clock_of(lane), found->second);
}

void HazardChecker::join(int lane, int other) {
  const VectorClock clock = clock_of(other);
  merge(clock_of(lane), clock);
}

}  // namespace megalith
