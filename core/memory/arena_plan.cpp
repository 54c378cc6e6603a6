// Lifetimes and layout of a recorded step. Time is the index of an entry (op, record or wait) on lane 0, the compute
// stream. With op indices, a branch forked between an op and a wait would seem to come after the work that the wait
// joins.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <set>
#include <unordered_map>

#include "core/base/error.h"
#include "core/instruments/vector_clock.h"
#include "core/memory/arena.h"
#include "core/memory/arena_layout.h"
#include "core/memory/live_bytes.h"

namespace megalith {

namespace {

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

using Interval = Lifetime;

// Returns the interval in which each op of the timeline may run.
std::vector<Interval> op_times(const Timeline& timeline) {
  const std::size_t lanes = timeline.lanes().size();
  std::vector<Interval> times(timeline.entries().size());
  std::vector<VectorClock> clocks(lanes, VectorClock(lanes, 0));
  std::unordered_map<std::uint64_t, VectorClock> events;
  // Per lane, in order: at time `first`, lane 0 knows that the lane's entries up to `second` are finished.
  std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> joins(lanes);
  std::vector<std::pair<std::size_t, std::int64_t>> open;  // entries on other lanes, with their index there

  for (std::size_t i = 0; i < timeline.entries().size(); ++i) {
    const Timeline::Entry& entry = timeline.entries()[i];
    const auto lane = static_cast<std::size_t>(entry.lane);
    VectorClock& clock = clocks[lane];
    ++clock[lane];
    if (entry.kind == Timeline::Kind::kRecord) {
      events[entry.event] = clock;
    } else if (entry.kind == Timeline::Kind::kWait) {
      const auto event = events.find(entry.event);
      if (event == events.end()) continue;
      merge(clock, event->second);
      if (lane != 0) continue;
      for (std::size_t l = 1; l < lanes; ++l) joins[l].emplace_back(clock[0], clock[l]);
    } else if (lane == 0) {
      times[i] = {clock[0], clock[0]};
    } else {
      times[i] = {clock[0] + 1, kNever};
      open.emplace_back(i, clock[lane]);
    }
  }
  for (const auto& [entry, number] : open) {
    const auto lane = static_cast<std::size_t>(timeline.entries()[entry].lane);
    const auto join = std::partition_point(joins[lane].begin(), joins[lane].end(),
                                           [first = number](const auto& j) { return j.second < first; });
    if (join == joins[lane].end()) {
      fail({.subject = fmt::format("plan: op {} on stream {}", timeline.entries()[entry].access.name(),
                                   timeline.lanes()[lane]),
            .expected = "an event that the compute stream waits for before the step ends"});
    }
    times[entry].end = join->first;
  }
  return times;
}

struct Buffer {
  ArenaKey key;
  ArenaPlan::Slot slot;
  std::vector<Interval> lives;  // one per allocation under this key, ascending and disjoint
};

// Workspaces are large, and most ops do not touch theirs.
bool is_workspace(const Buffer& buffer) { return buffer.slot.owner == "workspace"; }

std::vector<Buffer> lifetimes(const Timeline& timeline, const Arena& recording, const std::vector<Interval>& times,
                              const ArenaPlanSpec& spec) {
  const std::vector<Arena::Recorded>& recorded = recording.recorded();
  std::vector<Interval> lives(recorded.size());
  for (std::size_t i = 0; i < timeline.entries().size(); ++i) {
    const Timeline::Entry& entry = timeline.entries()[i];
    if (entry.kind != Timeline::Kind::kOp) continue;
    for (const AccessRange& range : entry.access.ranges()) {
      const std::size_t index = recording.index_recorded(range.begin);
      if (index == recorded.size()) continue;
      const Arena::Recorded& buffer = recorded[index];
      const std::uintptr_t end = reinterpret_cast<std::uintptr_t>(range.begin) + range.bytes;
      if (end > buffer.address + buffer.bytes) {
        fail({.subject = fmt::format("plan: op {} and buffer {} of segment {}", entry.access.name(), buffer.owner,
                                     buffer.key.scope.segment),
              .expected = "an access within the buffer",
              .got = fmt::format("one {} bytes past its end", end - buffer.address - buffer.bytes)});
      }
      Interval& life = lives[index];
      life.begin = std::min(life.begin, times[i].begin);
      life.end = std::max(life.end, times[i].end);
    }
  }
  std::set<ArenaKey> same_place;
  for (std::size_t i = 0; i < spec.same_place.size(); ++i)
    if (spec.same_place[i]) same_place.insert(recorded[i].key);
  std::map<ArenaKey, Buffer> by_key;
  for (std::size_t i = 0; i < recorded.size(); ++i) {
    const Arena::Recorded& r = recorded[i];
    ArenaKey key = r.key;
    if (spec.by_use && !same_place.contains(key)) key.use = r.use;
    Buffer& buffer = by_key[key];
    if (buffer.slot.bytes == 0)
      buffer = {key, {.bytes = r.bytes, .category = r.category, .owner = r.owner}, /*lives=*/{}};
    if (buffer.slot.bytes != r.bytes) {
      fail({.subject = fmt::format("plan: {} of segment {}", r.owner, r.key.scope.segment),
            .expected = fmt::format("{} bytes in every microbatch", buffer.slot.bytes),
            .got = fmt::format("{}", r.bytes)});
    }
    if (lives[i].end < 0) continue;  // allocated and never touched
    if (!buffer.lives.empty() && buffer.lives.back().end >= lives[i].begin) {
      fail(
          {.subject = fmt::format("plan: {} of segment {} column {}", r.owner, r.key.scope.segment, r.key.scope.column),
           .expected = "one live buffer per column",
           .got = "two at once"});
    }
    if (!buffer.lives.empty() && !is_workspace(buffer)) {
      Interval& before = buffer.lives.back();
      before.end = std::min(before.end + spec.concurrent_ops, lives[i].begin - 1);
    }
    buffer.lives.push_back(lives[i]);
  }
  std::vector<Buffer> buffers;
  buffers.reserve(by_key.size());
  for (auto& [key, buffer] : by_key) {
    if (!buffer.lives.empty() && !is_workspace(buffer)) buffer.lives.back().end += spec.concurrent_ops;
    buffers.push_back(std::move(buffer));
  }
  return buffers;
}

// Largest number of buffers laid out by use: about 10 s and 0.5 GiB. Above, all uses of a scope share places.
constexpr std::size_t kMaxByUse = 300'000;

void find_live_peak(const std::vector<Buffer>& buffers, ArenaPlan& plan) {
  std::map<std::int64_t, std::int64_t> changes;
  for (const Buffer& buffer : buffers) {
    for (const Interval& life : buffer.lives) {
      changes[life.begin] += static_cast<std::int64_t>(buffer.slot.bytes);
      changes[life.end + 1] -= static_cast<std::int64_t>(buffer.slot.bytes);
    }
  }
  std::int64_t live = 0;
  std::int64_t peak = 0;
  std::int64_t peak_time = 0;
  for (const auto& [time, change] : changes) {
    live += change;
    if (live > peak) {
      peak = live;
      peak_time = time;
    }
  }
  plan.live_bytes = static_cast<std::size_t>(peak);
  for (const Buffer& buffer : buffers) {
    for (const Interval& life : buffer.lives) {
      if (life.begin > peak_time || life.end < peak_time) continue;
      plan.live_by_category[static_cast<std::size_t>(buffer.slot.category)] += buffer.slot.bytes;
      if (buffer.slot.category == MemoryCategory::kActivations)
        plan.live_activations[buffer.slot.owner] += buffer.slot.bytes;
    }
  }
}

ArenaPlan only_live(const std::vector<Buffer>& buffers, const ArenaPlanSpec& spec) {
  ArenaPlan plan{.by_use = spec.by_use};
  find_live_peak(buffers, plan);
  plan.peak_bytes = plan.live_bytes;
  return plan;
}

ArenaPlan laid_out(const std::vector<Buffer>& buffers, const ArenaPlanSpec& spec) {
  ArenaPlan plan = only_live(buffers, spec);
  std::vector<LayoutBuffer> layout;
  layout.reserve(buffers.size());
  for (const Buffer& buffer : buffers) layout.push_back({.bytes = buffer.slot.bytes, .lives = buffer.lives});
  plan.peak_bytes = lay_out(layout, plan.live_bytes, spec.searches);
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    ArenaPlan::Slot& slot = plan.slots[buffers[i].key] = buffers[i].slot;
    slot.offset = layout[i].offset;
  }
  return plan;
}

}  // namespace

ArenaPlan plan_live_bytes(const Timeline& timeline, const Arena& recording, const ArenaPlanSpec& spec) {
  return only_live(lifetimes(timeline, recording, op_times(timeline), spec), spec);
}

ArenaPlan plan_arena(const Timeline& timeline, const Arena& recording, const ArenaPlanSpec& spec) {
  require(recording.mode() == Arena::Mode::kRecording, "plan_arena needs a recording arena");
  const std::vector<Interval> times = op_times(timeline);
  ArenaPlanSpec within = spec;
  within.by_use = spec.by_use && recording.recorded().size() <= kMaxByUse;
  ArenaPlan plan = laid_out(lifetimes(timeline, recording, times, within), within);
  if (!within.by_use || spec.same_place.empty() || is_tight(plan.peak_bytes, plan.live_bytes)) return plan;
  // With many buffers in one place, the search may miss a layout in which all share places.
  within.by_use = false;
  ArenaPlan all_same_place = laid_out(lifetimes(timeline, recording, times, within), within);
  return all_same_place.peak_bytes < plan.peak_bytes ? all_same_place : plan;
}

}  // namespace megalith
