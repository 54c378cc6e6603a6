#include "apps/cost/step_times.h"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>

#include "core/device/copy.h"
#include "core/ops/elementwise/copy_rows.h"
#include "fsdp/sharded_units.h"
#include "parallel/mesh/mesh_sizes.h"

namespace megalith {

namespace {

// Index of the action of an entry of the timeline; nullopt ahead of the first action and in the previous step.
std::optional<std::size_t> action_at(const StepRecording& recording, std::size_t entry) {
  const auto next = std::ranges::upper_bound(recording.entries, entry) - recording.entries.begin();
  return next == 0 ? std::nullopt : std::optional(static_cast<std::size_t>(next) - 1);
}

// Verb of the chunk that an action works for; nullopt if the action belongs to no microbatch.
std::optional<ActionKind> verb_of(const Action& action) {
  switch (action.kind) {
    case ActionKind::kLoad: return ActionKind::kForward;
    case ActionKind::kForward:
    case ActionKind::kBackwardData:
    case ActionKind::kBackwardWeight: return action.kind;
    case ActionKind::kStartExchange:
    case ActionKind::kWaitExchange:
    case ActionKind::kSend:
    case ActionKind::kWaitSend:
    case ActionKind::kPostReceive:
    case ActionKind::kWaitReceive: return action.gradient ? ActionKind::kBackwardData : ActionKind::kForward;
    default: return std::nullopt;
  }
}

// Verb that gets the compute stream's time in a unit's action: the verb that waits for the unit.
std::optional<ActionKind> verb_of_unit(const std::vector<Action>& actions, std::size_t index) {
  if (actions[index].kind == ActionKind::kBindGradients) return ActionKind::kBackwardWeight;
  if (actions[index].kind != ActionKind::kWaitUnshard) return std::nullopt;  // no verb waits there
  for (std::size_t i = index; i < actions.size(); ++i) {
    if (actions[i].segment >= 0) return verb_of(actions[i]);
  }
  return std::nullopt;
}

// Index of the verb after a slot's action, for which the compute stream waits.
std::size_t verb_after(const std::vector<Action>& actions, std::size_t index) {
  while (index < actions.size() && actions[index].segment < 0) ++index;
  return index;
}

// True for calls on gradients or weights: dp, dp_cp, dp_inner, "dp units", edp and so on.
bool is_of_replicas(const PlannedCall& call) {
  const bool of_replicas = call.group.starts_with(name_of(Axis::kDp)) || call.group.starts_with(name_of(Axis::kEdp));
  return of_replicas && !call.group.ends_with(" loss") && !call.group.ends_with(" norm");
}

// True for calls on rows of experts, but not for sums of their gradients.
bool is_of_rows(const PlannedCall& call) { return call.group == "dispatch"; }

bool is_message(const PlannedCall& call) { return call.kind == "send" || call.kind == "receive"; }

// True for actions whose communication copy engines can carry.
bool is_of_unit_copy(ActionKind kind) { return kind == ActionKind::kUnshard || kind == ActionKind::kReduceShard; }

// True for copies by a copy engine, or by a kernel that knows the number of used rows.
bool is_slots_copy(const Access& op) { return op.is_copy() || op.name() == CopyRows::kName; }

using CallOfEntry = std::unordered_map<std::size_t, const PlannedCall*>;

CallOfEntry calls_of(const StepRecording& recording) {
  CallOfEntry calls;
  for (const PlannedCall& call : recording.calls) calls.emplace(call.entry, &call);
  return calls;
}

class Player {
 public:
  // With `meetings` other stages delay this one, and spans() has the times of its actions.
  Player(const StepRecording& recording, const CostModel& costs, Meetings* meetings = nullptr, int stage = 0)
      : recording_(recording),
        costs_(costs),
        calls_(calls_of(recording)),
        graph_of_(graph_of_each(recording.actions, recording.runs)),
        lanes_(recording.timeline.lanes().size()),
        carries_rows_(lanes_.size()),
        caught_up_(lanes_.size()),
        meetings_(meetings),
        stage_(stage),
        spans_(lanes_.size()) {
    times_.action_seconds.resize(recording.actions.size());
    for (const Action& action : recording.actions) {
      if (is_of_microbatch(action.kind))
        times_.chunks.resize(std::max(times_.chunks.size(), static_cast<std::size_t>(action.chunk) + 1));
    }
  }

  StepTimes run() {
    const std::vector<Timeline::Entry>& entries = recording_.timeline.entries();
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const double before = lanes_[0];
      const std::optional<std::size_t> action = action_at(recording_, i);
      spans_.open(recording_.entries, i, before);
      const double begin = lanes_[static_cast<std::size_t>(entries[i].lane)];
      play(entries[i], i, action);
      if (action) count(*action, lanes_[0] - before, entries[i]);
      if (action && meetings_ != nullptr) log_span(*action, i, begin);
    }
    spans_.open(recording_.entries, entries.size(), lanes_[0]);
    const double microbatches = static_cast<double>(recording_.microbatches);
    for (StepTimes::Chunk& chunk : times_.chunks) {
      chunk.forward /= microbatches;
      chunk.backward_data /= microbatches;
      chunk.backward_weight /= microbatches;
    }
    const double steps = static_cast<double>(recording_.step_microbatches) / microbatches;
    for (double* seconds :
         {&times_.exposed_gathers, &times_.exposed_reductions, &times_.exposed_rows, &times_.offload.copy_out,
          &times_.offload.copy_back, &times_.offload.wait_out, &times_.offload.wait_back})
      *seconds *= steps;
    waited_ += times_.exposed_rows;
    if (!copies_units_) waited_ += times_.exposed_gathers + times_.exposed_reductions;
    collective_seconds_ += steps * rows_seconds_;
    // Collectives that overlap with kernels use memory bandwidth and multiprocessors.
    const double hidden = std::max(0.0, collective_seconds_ - waited_);
    times_.before_norm += (1 - costs_.rates().overlap) * hidden;
    return times_;
  }
  std::vector<ActionSpan> spans() const { return spans_.spans(); }

 private:
  double transfer_seconds(const PlannedCall& call) const {
    return costs_.transfer_seconds(call.bytes, call.ranks->front(), call.ranks->back());
  }

  // When a message of this call has arrived, or another call of several stages begins; `ready`: this stage is.
  double meet(const PlannedCall& call, double ready) {
    if (meetings_ == nullptr || !meetings_->has(call)) return ready;
    const std::size_t number = calls_made_[call.group]++;
    if (call.kind == "receive") return std::max(ready, meetings_->latest(call.group, number));
    if (call.kind == "send") ready += transfer_seconds(call);
    meetings_->set(call.group, stage_, number, ready);
    return call.kind == "send" ? ready : meetings_->latest(call.group, number);
  }

  void log_span(std::size_t action, std::size_t index, double begin) {
    const auto found = calls_.find(index);
    const PlannedCall* const call = found == calls_.end() ? nullptr : found->second;
    const Timeline::Entry& entry = recording_.timeline.entries()[index];
    const auto lane = static_cast<std::size_t>(entry.lane);
    if (lane != 0 && entry.kind != Timeline::Kind::kOp) return;  // only the compute stream's waits are shown
    const double end = lanes_[lane];
    if (call != nullptr && call->kind == "receive") begin = std::max(begin, end - transfer_seconds(*call));
    const bool meets = lane == 0 && call != nullptr && meetings_->has(*call);
    const double waited = entry.kind == Timeline::Kind::kWait ? end - begin
                          : meets                             ? end - begin - costs_.seconds(*call)
                                                              : 0;
    spans_.add({.action = action, .lane = lane, .start = begin, .end = end, .waited = waited, .call = call});
  }

  void play(const Timeline::Entry& entry, std::size_t index, std::optional<std::size_t> action) {
    double& clock = lanes_[static_cast<std::size_t>(entry.lane)];
    switch (entry.kind) {
      case Timeline::Kind::kRecord: {
        const auto lane = static_cast<std::size_t>(entry.lane);
        events_[entry.event] = {.at = clock + caught_up_[lane], .lane = lane};
        return;
      }
      case Timeline::Kind::kWait: {
        const auto event = events_.find(entry.event);
        if (event == events_.end()) return;
        const std::size_t lane = event->second.lane;
        double at = event->second.at - caught_up_[lane];
        if (at <= clock) return;
        if (entry.lane == 0) at -= catch_up(lane, clock, at);
        if (entry.lane == 0 && action && carries_rows_[lane]) times_.exposed_rows += at - clock;
        clock = at;
        return;
      }
      case Timeline::Kind::kOp: break;
    }
    const auto call = calls_.find(index);
    const bool sums = action && recording_.actions[*action].kind == ActionKind::kReduceShard;
    if (sums && copies_units_ && call == calls_.end()) return;  // the copies' sum includes this addition
    if (action && is_of_slot(recording_.actions[*action].kind) && is_slots_copy(entry.access)) {
      const bool to_host = recording_.actions[*action].kind == ActionKind::kOffload;
      const double seconds = costs_.link_seconds(entry.access, to_host);
      clock += seconds;
      (to_host ? times_.offload.copy_out : times_.offload.copy_back) += seconds;
    } else if (call == calls_.end()) {
      clock += costs_.seconds(entry.access, action && graph_of_[*action] >= 0);
    } else if (is_message(*call->second)) {
      if (call->second->kind == "send") times_.message_bytes = std::max(times_.message_bytes, call->second->bytes);
      clock = meet(*call->second, clock);
    } else if (is_of_replicas(*call->second) && entry.lane != 0) {
      play_replicas(*call->second, static_cast<std::size_t>(entry.lane), action);
    } else {
      const double seconds = costs_.seconds(*call->second);
      clock = meet(*call->second, clock) + seconds;
      if (!is_of_rows(*call->second)) return;
      carries_rows_[static_cast<std::size_t>(entry.lane)] = true;
      if (!action) return;
      rows_seconds_ += seconds;
      if (entry.lane == 0) times_.exposed_rows += seconds;
    }
  }

  // Lets the compute stream wait for the lane from `from` to `to`. Returns the time by which the wait is shorter.
  double catch_up(std::size_t lane, double from, double to) {
    const double gained = host_link_.catch_up(lane, from, to) + network_.catch_up(lane, from, to);
    lanes_[lane] -= gained;
    caught_up_[lane] += gained;
    collective_seconds_ -= gained;
    spans_.shorten(lane, lanes_[lane]);
    return gained;
  }

  void play_replicas(const PlannedCall& call, std::size_t lane, std::optional<std::size_t> action) {
    double& clock = lanes_[lane];
    const bool within = costs_.is_within_host(call);
    const double times = action ? static_cast<double>(recording_.stands_for[*action]) : 0;
    // Actions of the previous step are unknown.
    const bool is_unit = action ? is_of_unit_copy(recording_.actions[*action].kind) : call.group.ends_with(" units");
    CostModel::UnitSeconds seconds;
    if (is_unit) {
      seconds = costs_.unit_seconds(call, kSumRoom);
    } else {
      seconds.link = costs_.seconds(call, !action || is_concurrent(*action));
    }
    const double alone = is_unit && within ? seconds.link : costs_.seconds(call);
    const double slowed = seconds.link > 0 ? 1 - alone / seconds.link : 0;
    clock = (within ? host_link_ : network_).end_of(clock, seconds.link, lane, slowed) + seconds.tail;
    if (is_unit && within) {
      copies_units_ = true;
      times_.before_norm += seconds.sum * times;
    } else {
      collective_seconds_ += seconds.link * times;
    }
  }

  // True if verbs follow in this step or, without a wait for weights, in the next step.
  bool is_concurrent(std::size_t index) const {
    const auto follows = [&](const auto& is) {
      return std::any_of(recording_.actions.begin() + static_cast<std::ptrdiff_t>(index), recording_.actions.end(), is);
    };
    if (follows([](const Action& action) { return is_of_microbatch(action.kind); })) return true;
    return recording_.actions[index].kind == ActionKind::kGatherParameters &&
           !follows([](const Action& action) { return action.kind == ActionKind::kWaitParameters; });
  }

  void add_to_chunk(const Action& action, ActionKind verb, double seconds) {
    StepTimes::Chunk& chunk = times_.chunks[static_cast<std::size_t>(action.chunk)];
    (verb == ActionKind::kForward        ? chunk.forward
     : verb == ActionKind::kBackwardData ? chunk.backward_data
                                         : chunk.backward_weight) += seconds;
  }

  void count(std::size_t index, double seconds, const Timeline::Entry& entry) {
    const Action& action = recording_.actions[index];
    const bool is_wait = entry.kind == Timeline::Kind::kWait;
    times_.action_seconds[index] += seconds;
    if (is_of_slot(action.kind)) {
      (action.kind == ActionKind::kWaitOffload ? times_.offload.wait_out : times_.offload.wait_back) += seconds;
      const std::size_t verb = verb_after(recording_.actions, index);
      if (verb < recording_.actions.size())
        add_to_chunk(recording_.actions[verb], recording_.actions[verb].kind, seconds);
      return;
    }
    const bool is_unit = is_of_unit(action.kind);
    if (action.kind == ActionKind::kReduceNorm) norm_begun_ = true;
    const std::optional<ActionKind> verb = is_unit ? verb_of_unit(recording_.actions, index) : verb_of(action);
    if (is_unit && is_wait && verb)
      (action.kind == ActionKind::kWaitUnshard ? times_.exposed_gathers : times_.exposed_reductions) += seconds;
    if (verb) {
      add_to_chunk(action, *verb, seconds);
      return;
    }
    if (is_unit) return;  // wait after the last verb, which belongs to the next step
    if (is_wait) waited_ += seconds;
    (norm_begun_                                             ? times_.after_norm
     : is_wait && action.kind == ActionKind::kWaitParameters ? times_.wait_parameters
                                                             : times_.before_norm) += seconds;
  }

  const StepRecording& recording_;
  const CostModel& costs_;
  CallOfEntry calls_;
  std::vector<int> graph_of_;       // by action; -1: none
  std::vector<double> lanes_;       // clocks of the streams; 0 is the compute stream
  std::vector<bool> carries_rows_;  // rows of experts, by stream
  std::vector<double> caught_up_;   // by stream: time that its collectives gained while the compute stream waited
  struct Recorded {
    double at = 0;  // without the time that its lane caught up
    std::size_t lane = 0;
  };
  std::unordered_map<std::uint64_t, Recorded> events_;
  bool norm_begun_ = false;
  SharedLink host_link_{costs_.rates().left_during_copies()}, network_{0};  // for weights and gradients
  bool copies_units_ = false;                                               // within the host
  double rows_seconds_ = 0;                                                 // exchanges of experts' rows
  double collective_seconds_ = 0;  // these, and collectives of gradients and weights without copies
  double waited_ = 0;              // part of collective_seconds_ for which the compute stream waited
  Meetings* meetings_;
  int stage_;
  std::map<std::string, std::size_t> calls_made_;  // calls that several stages share, by group
  SpanLog spans_;
  StepTimes times_;
};

}  // namespace

StepTimes times_of(const StepRecording& recording, const CostModel& costs) { return Player(recording, costs).run(); }

// Each round delays a stage by what the others did in the round before, until none is delayed further.
std::vector<std::vector<ActionSpan>> spans_of_stages(const std::vector<StepRecording>& stages, const CostModel& costs,
                                                     int ranks_of_stage) {
  std::size_t max_rounds = 2;
  for (const StepRecording& stage : stages) max_rounds += stage.calls.size();
  Meetings meetings(ranks_of_stage);
  std::vector<std::vector<ActionSpan>> spans(stages.size());
  for (std::size_t round = 0; round == 0 || meetings.take_changed(); ++round) {
    require(round < max_rounds, "forecast: the stages' waits for each other do not settle");
    for (std::size_t stage = 0; stage < stages.size(); ++stage) {
      Player player(stages[stage], costs, &meetings, static_cast<int>(stage));
      player.run();
      spans[stage] = player.spans();
    }
  }
  return spans;
}

StepWork work_of(const StepRecording& recording, std::int64_t microbatches, const CostModel* costs) {
  const CallOfEntry calls = calls_of(recording);
  const std::vector<Timeline::Entry>& entries = recording.timeline.entries();
  StepWork work;
  // Counts stay integers: they are multiplied by the step's microbatches, then divided by the recorded microbatches.
  const auto add = [&](bool of_microbatch, double& to, double count) {
    to +=
        of_microbatch ? count * static_cast<double>(microbatches) : count * static_cast<double>(recording.microbatches);
  };
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const std::optional<std::size_t> index = action_at(recording, i);
    if (!index) continue;
    const ActionKind kind = recording.actions[*index].kind;
    const bool each = is_of_microbatch(kind);
    const auto times = static_cast<double>(recording.stands_for[*index]);
    if (entries[i].kind == Timeline::Kind::kOp) add(each, work.ops, times);
    add(each, work.flops, times * entries[i].access.flops());
    const auto found = calls.find(i);
    if (found == calls.end()) continue;
    const PlannedCall& call = *found->second;
    const double bytes = static_cast<double>(call.bytes);
    const auto count = [&](AxisVolume& volume) {
      add(each, volume.calls, times);
      add(each, volume.bytes, times * bytes);
      add(each, volume.sent, times * ring_bytes(call));
      if (costs == nullptr) return;
      const CostModel::UnitSeconds unit = costs->unit_seconds(call, kSumRoom);
      const bool concurrent = is_of_replicas(call) && entries[i].lane != 0;
      add(each, volume.seconds,
          times * (is_of_unit_copy(kind) ? unit.link + unit.tail : costs->seconds(call, concurrent)));
    };
    count(work.volumes[call.group.substr(0, call.group.find(' '))]);
    const bool gathers = kind == ActionKind::kUnshard || kind == ActionKind::kGatherInstances;
    if (is_of_unit(kind)) count(gathers ? work.gathers : work.reductions);
    if (!is_of_rows(call)) continue;
    StepWork::Rows& rows = kind == ActionKind::kForward ? work.forward : work.backward;
    count(call.back || call.kind == AllToAll::kName ? rows.home : rows.out);
  }
  const double recorded = static_cast<double>(recording.microbatches);
  work.flops /= recorded;
  work.ops /= recorded;
  const auto divide = [recorded](AxisVolume& volume) {
    for (double* sum : {&volume.calls, &volume.bytes, &volume.sent, &volume.seconds}) *sum /= recorded;
  };
  for (auto& [axis, volume] : work.volumes) divide(volume);
  divide(work.gathers);
  divide(work.reductions);
  for (StepWork::Rows* rows : {&work.forward, &work.backward}) {
    divide(rows->out);
    divide(rows->home);
  }
  return work;
}

}  // namespace megalith
