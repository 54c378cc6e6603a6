#include "offload/forecast.h"

#include <algorithm>
#include <tuple>

namespace megalith {

namespace {

// An action of a slot, sorted as insert_offloads inserts it.
struct SlotEvent {
  std::size_t before = 0;  // index of the action that follows it
  ActionKind kind = ActionKind::kOffload;
  std::size_t number = 0;
  std::size_t way = 0;
  auto key() const { return std::tuple(before, kind, number); }
};

std::vector<SlotEvent> events_of(const std::vector<SlotWay>& ways) {
  std::vector<SlotEvent> events;
  events.reserve(4 * ways.size());
  for (std::size_t n = 0; n < ways.size(); ++n) {
    events.push_back({.before = ways[n].starts, .kind = ActionKind::kOffload, .number = n, .way = n});
    events.push_back({.before = ways[n].left, .kind = ActionKind::kWaitOffload, .number = n, .way = n});
    // Slots that are needed first return first.
    const std::size_t number = ways[n].needed * ways.size() + n;
    events.push_back({.before = ways[n].reload, .kind = ActionKind::kReload, .number = number, .way = n});
    events.push_back({.before = ways[n].needed, .kind = ActionKind::kWaitReload, .number = number, .way = n});
  }
  std::ranges::sort(events, {}, &SlotEvent::key);
  return events;
}

}  // namespace

// Simulates three clocks: computation, and the copies of each direction.
OffloadStats forecast_copies(const StepSeconds& step, const std::vector<SlotWay>& ways,
                             const std::vector<double>& bytes, const CopyRates& rates) {
  OffloadStats forecast{.timed = true};
  std::vector<double> copied(ways.size());  // end of the current copy
  double clock = 0, out = 0, back = 0;
  std::size_t next = 0;
  for (const SlotEvent& event : events_of(ways)) {
    for (; next < event.before; ++next) clock += step.seconds[next];
    const double size = bytes[static_cast<std::size_t>(ways[event.way].item)];
    const auto copy = [&](double rate, double& link, double& busy) {
      copied[event.way] = link = std::max(link, clock) + size / rate;
      busy += size / rate;
    };
    const auto wait = [&](double& stalls) {
      stalls += std::max(0.0, copied[event.way] - clock);
      clock = std::max(clock, copied[event.way]);
    };
    switch (event.kind) {
      case ActionKind::kOffload: copy(rates.out, out, forecast.copy_out); break;
      case ActionKind::kWaitOffload: wait(forecast.wait_out); break;
      case ActionKind::kReload: copy(rates.back, back, forecast.copy_back); break;
      default: wait(forecast.wait_back);
    }
  }
  return forecast;
}

OffloadStats forecast_copies(const StepSeconds& step, const OffloadPoints& points, const std::vector<double>& bytes,
                             const CopyRates& rates) {
  return forecast_copies(step, slot_ways(ListVerbs(step.actions, points), points), bytes, rates);
}

}  // namespace megalith
