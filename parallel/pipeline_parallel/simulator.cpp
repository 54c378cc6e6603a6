#include "parallel/pipeline_parallel/simulator.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "core/base/error.h"
#include "parallel/pipeline_parallel/schedule_index.h"

namespace megalith {

namespace {

constexpr double kNotYet = std::numeric_limits<double>::infinity();

// Runs each stage's blocks in order. A message starts when it is produced, its receive is posted, and the previous
// message on its channel has arrived.
class Player {
 public:
  Player(const Schedule& schedule, const SimulationSpec& spec)
      : schedule_(schedule),
        spec_(spec),
        index_(schedule),
        messages_(messages_of(schedule, spec.receive_ahead)),
        flights_(messages_.size()),
        stages_(schedule.stages.size()) {
    require(spec.parts.size() == 1 || spec.parts.size() == static_cast<std::size_t>(schedule.placement.num_parts()),
            "durations are given for one part or for each");
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      stages_[s].events.resize(schedule.stages[s].size());
    }
    for (std::size_t m = 0; m < messages_.size(); ++m) {
      const Message& message = messages_[m];
      const bool is_new = m == 0 || messages_[m - 1].from != message.from || messages_[m - 1].to != message.to;
      if (is_new) channels_.push_back({.next = m});
      channels_.back().end = m + 1;
      stages_[stage_of(message.to)].events[message.posted].posts.push_back(m);
      stages_[stage_of(message.to)].events[message.used].reads = m;
      if (message.sent != ScheduleIndex::kNowhere)
        stages_[stage_of(message.from)].events[message.sent].sends.push_back(m);
    }
  }

  Simulation run() {
    Simulation result;
    result.stages.resize(stages_.size());
    bool moved = true;
    while (moved) {
      moved = false;
      for (std::size_t s = 0; s < stages_.size(); ++s) {
        while (advance(s, result.stages[s])) moved = true;
      }
      moved = move_messages() || moved;
    }
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      result.makespan = std::max(result.makespan, stages_[s].clock);
      const std::string reason = why_waiting(s);
      if (!reason.empty()) result.deadlock += (result.deadlock.empty() ? "" : "; ") + reason;
    }
    return result;
  }

 private:
  struct Events {                    // per action
    std::vector<std::size_t> posts;  // messages
    std::vector<std::size_t> sends;
    std::size_t reads = ScheduleIndex::kNowhere;
  };
  struct Flight {  // times of one message
    double made = kNotYet;
    double posted = kNotYet;
    double arrived = kNotYet;
  };
  struct Channel {         // from one stage to another
    std::size_t next = 0;  // message
    std::size_t end = 0;
    double free = 0;  // arrival of its last message
  };
  struct Stage {
    std::vector<Events> events;
    std::size_t next = 0;              // next action, first of a block
    double clock = 0;                  // end of the previous block
    std::vector<std::size_t> leaving;  // messages of the previous block
    std::size_t stashes = 0;
  };

  static std::size_t stage_of(int stage) { return static_cast<std::size_t>(stage); }
  const std::vector<Action>& actions_of(std::size_t s) const { return schedule_.stages[s]; }

  // Runs the stage's next block; returns false if it must wait, or if the stage is done.
  bool advance(std::size_t s, Simulation::Stage& out) {
    Stage& stage = stages_[s];
    const std::vector<Action>& actions = actions_of(s);
    if (stage.next == actions.size()) return false;
    for (const std::size_t m : stage.events[stage.next].posts) {
      flights_[m].posted = std::min(flights_[m].posted, stage.clock);
    }
    double start = stage.clock;
    if (spec_.blocking_sends) {
      for (const std::size_t m : stage.leaving) start = std::max(start, flights_[m].arrived);
    }
    const std::size_t end = end_of_block(actions, stage.next);
    for (std::size_t i = stage.next; i < end; ++i) {
      const std::size_t m = stage.events[i].reads;
      if (m != ScheduleIndex::kNowhere) start = std::max(start, flights_[m].arrived);
      if (!missing_of_own(s, i).empty()) return false;
    }
    if (start == kNotYet) return false;
    run_block(s, end, start, out);
    return true;
  }

  void run_block(std::size_t s, std::size_t end, double start, Simulation::Stage& out) {
    Stage& stage = stages_[s];
    stage.clock = start;
    stage.leaving.clear();
    for (; stage.next < end; ++stage.next) {
      const Action& a = actions_of(s)[stage.next];
      const double duration = duration_of(s, a);
      out.actions.push_back({.start = stage.clock, .end = stage.clock + duration});
      out.busy += duration;
      stage.clock += duration;
      const std::vector<std::size_t>& sends = stage.events[stage.next].sends;
      stage.leaving.insert(stage.leaving.end(), sends.begin(), sends.end());
      if (a.kind == ActionKind::kForward) out.peak_stashes = std::max(out.peak_stashes, ++stage.stashes);
      if (a.kind == ActionKind::kBackwardWeight) --stage.stashes;
    }
    for (const std::size_t m : stage.leaving) flights_[m].made = stage.clock;
  }

  bool move_messages() {
    bool moved = false;
    for (Channel& channel : channels_) {
      for (; channel.next < channel.end; ++channel.next) {
        Flight& flight = flights_[channel.next];
        const double start = std::max({flight.made, flight.posted, channel.free});
        if (start == kNotYet) break;
        flight.arrived = channel.free = start + part(messages_[channel.next].part).transfer;
        moved = true;
      }
    }
    return moved;
  }

  // Verb of the same stage that action i requires and that does not precede it; empty if there is none.
  std::string missing_of_own(std::size_t s, std::size_t i) const {
    const Action& a = actions_of(s)[i];
    const Placement& placement = schedule_.placement;
    const int own = placement.part({.stage = static_cast<int>(s), .chunk = a.chunk});
    const auto missing = [&](ActionKind verb, int needed) -> std::string {
      if (needed < 0 || needed == placement.num_parts()) return {};
      const StageChunk at = placement.at(needed);
      if (stage_of(at.stage) != s) return {};
      const std::size_t place = index_.place(verb, needed, a.microbatch);
      if (place != ScheduleIndex::kNowhere && place < i) return {};
      return to_string(Action{.kind = verb, .chunk = at.chunk, .microbatch = a.microbatch});
    };
    if (a.kind == ActionKind::kForward) return missing(ActionKind::kForward, own - 1);
    if (a.kind == ActionKind::kBackwardWeight) return missing(ActionKind::kBackwardData, own);
    const std::string forward = missing(ActionKind::kForward, own);
    return forward.empty() ? missing(ActionKind::kBackwardData, own + 1) : forward;
  }

  // Empty if the stage is done.
  std::string why_waiting(std::size_t s) const {
    const Stage& stage = stages_[s];
    const std::vector<Action>& actions = actions_of(s);
    if (spec_.blocking_sends) {
      for (const std::size_t m : stage.leaving) {
        if (flights_[m].arrived != kNotYet) continue;
        return fmt::format("stage {} after {} waits for stage {} to receive it", s,
                           to_string(actions[messages_[m].sent]), messages_[m].to);
      }
    }
    if (stage.next == actions.size()) return {};
    for (std::size_t i = stage.next; i < end_of_block(actions, stage.next); ++i) {
      const std::string start = fmt::format("stage {} at {} waits for ", s, to_string(actions[i]));
      const std::string own = missing_of_own(s, i);
      if (!own.empty()) return start + own + ", which does not stand before it";
      const std::size_t m = stage.events[i].reads;
      if (m == ScheduleIndex::kNowhere || flights_[m].arrived != kNotYet) continue;
      const Message& message = messages_[m];
      if (message.sent == ScheduleIndex::kNowhere)
        return start + fmt::format("stage {}, which does not have its input", message.from);
      return start + to_string(schedule_.stages[stage_of(message.from)][message.sent]) +
             fmt::format(" of stage {}", message.from);
    }
    return fmt::format("stage {} at {} waits", s, to_string(actions[stage.next]));
  }

  double duration_of(std::size_t s, const Action& a) const {
    const PartDurations& d = part(schedule_.placement.part({.stage = static_cast<int>(s), .chunk = a.chunk}));
    return a.kind == ActionKind::kForward        ? d.forward
           : a.kind == ActionKind::kBackwardData ? d.backward_data
                                                 : d.backward_weight;
  }
  const PartDurations& part(int index) const {
    return spec_.parts[spec_.parts.size() == 1 ? 0 : static_cast<std::size_t>(index)];
  }

  const Schedule& schedule_;
  const SimulationSpec& spec_;
  ScheduleIndex index_;
  std::vector<Message> messages_;
  std::vector<Flight> flights_;  // per message
  std::vector<Channel> channels_;
  std::vector<Stage> stages_;
};

}  // namespace

Simulation simulate(const Schedule& schedule, const SimulationSpec& spec) { return Player(schedule, spec).run(); }

double Simulation::bubble() const {
  double most = 0;
  for (const Stage& stage : stages) most = std::max(most, stage.busy);
  return makespan - most;
}

double Simulation::bubble_share() const {
  double busy = 0;
  for (const Stage& stage : stages) busy += stage.busy;
  return makespan > 0 ? 1 - busy / (makespan * static_cast<double>(stages.size())) : 0;
}

}  // namespace megalith
