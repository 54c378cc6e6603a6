#include <algorithm>
#include <map>

#include "parallel/pipeline_parallel/lowering.h"
#include "parallel/pipeline_parallel/messages.h"

namespace megalith {

namespace {

// Insertions before each action of a stage's list, and at its end.
class Insertions {
 public:
  Insertions(const Schedule& schedule, int stage)
      : schedule_(schedule), stage_(stage), actions_(schedule.stages.at(static_cast<std::size_t>(stage))) {
    for (std::size_t i = 0; i < actions_.size(); i = end_of_block(actions_, i)) starts_.push_back(i);
    starts_.push_back(actions_.size());
  }

  std::vector<Action> run() {
    for (const Message& message : messages_of(schedule_, kReceiveAhead)) {
      if (message.to == stage_) add_receive(message);
      if (message.from == stage_) add_send(message);
    }
    for (std::size_t i = 0; i < actions_.size(); ++i) add_hand_over(i);
    std::vector<Action> out;
    for (std::size_t i = 0; i <= actions_.size(); ++i) {
      for (const auto* more : {&sends_[i], &posts_[i], &waits_for_sends_[i], &waits_[i]})
        out.insert(out.end(), more->begin(), more->end());
      if (i < actions_.size()) out.push_back(actions_[i]);
    }
    return out;
  }

 private:
  Action message(ActionKind kind, std::size_t verb, int peer) const {
    const Action& a = actions_[verb];
    return {.kind = kind,
            .chunk = a.chunk,
            .microbatch = a.microbatch,
            .gradient = a.kind == ActionKind::kBackwardData,
            .peer = peer};
  }

  void add_receive(const Message& m) {
    posts_[m.posted].push_back(message(ActionKind::kPostReceive, m.used, m.from));
    waits_[m.used].push_back(message(ActionKind::kWaitReceive, m.used, m.from));
  }

  void add_send(const Message& m) {
    const auto next = std::upper_bound(starts_.begin(), starts_.end(), m.sent);  // the next block
    const auto left = std::min<std::ptrdiff_t>(kSendsAhead, starts_.end() - 1 - next);
    sends_[*next].push_back(message(ActionKind::kSend, m.sent, m.to));
    waits_for_sends_[*(next + left)].push_back(message(ActionKind::kWaitSend, m.sent, m.to));
  }

  void add_hand_over(std::size_t i) {
    const Action& a = actions_[i];
    if (a.kind != ActionKind::kForward && a.kind != ActionKind::kBackwardData) return;
    const Placement& placement = schedule_.placement;
    const int giver = placement.part({.stage = stage_, .chunk = a.chunk}) + (a.kind == ActionKind::kForward ? -1 : 1);
    if (giver < 0 || giver == placement.num_parts() || placement.at(giver).stage != stage_) return;
    Action gives = message(ActionKind::kSend, i, kThisStage);
    gives.chunk = placement.at(giver).chunk;
    waits_[i].push_back(gives);
    waits_[i].push_back(message(ActionKind::kWaitReceive, i, kThisStage));
  }

  const Schedule& schedule_;
  int stage_;
  const std::vector<Action>& actions_;
  std::vector<std::size_t> starts_;  // starts of blocks, then the length of the list
  std::map<std::size_t, std::vector<Action>> waits_for_sends_, sends_, posts_, waits_;
};

}  // namespace

std::vector<Action> insert_messages(const Schedule& schedule, int stage) { return Insertions(schedule, stage).run(); }

Schedule forwards_of(const Schedule& schedule) {
  Schedule forwards = schedule;
  for (std::vector<Action>& actions : forwards.stages) {
    std::erase_if(actions, [](const Action& a) { return a.kind != ActionKind::kForward; });
    for (Action& action : actions) action.with_next = false;
  }
  return forwards;
}

}  // namespace megalith
