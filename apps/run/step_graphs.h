// Of a step: what is run before the first one, which of them capture and replay, by what graphs know it again, and what
// is captured ahead.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "apps/run/step_actions.h"

namespace megalith {

enum class Verbs : std::uint8_t { kEager, kWarmUp, kGraphs };

// How far a rank is with its warm-up; calls the hooks around it.
class WarmUp {
 public:
  explicit WarmUp(const Rank& rank) : rank_(rank) {}

  // It begins, unless it has; with `ends` it is over.
  void pass(bool ends);
  void end() {  // if it has begun
    if (state_ == State::kUnderWay) pass(true);
  }
  Verbs next_step();  // of training
  void run_eagerly(bool on) { runs_eagerly_ = on; }

 private:
  const Rank& rank_;
  enum class State : std::uint8_t { kAhead, kUnderWay, kDone } state_ = State::kAhead;
  std::int64_t steps_ = 0;
  bool runs_eagerly_ = false;
};

// Step::warm_up's lists, which `run` enqueues.
void run_libraries(Rank& rank, const StepActions& actions,
                   const std::function<void(Mode, const std::vector<Action>&)>& run);

// Adds to what is known of the run what the rank has at this moment.
GraphSignature graph_signature(const Rank& rank, GraphSignature of_run);

using CarryOut = std::function<void(const Action&)>;  // of an action that is no verb
void capture_ahead(Rank& rank, const std::vector<Action>& actions, const CarryOut& carry_out);

}  // namespace megalith
