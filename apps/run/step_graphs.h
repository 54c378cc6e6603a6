// Warmup and graphs of a step: work ahead of the first step, choice of the steps that capture and replay, signature of
// graphs, captures ahead of a step.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "apps/run/step_actions.h"

namespace megalith {

enum class Verbs : std::uint8_t { kEager, kWarmUp, kGraphs };

// Progress of a rank's warmup; calls the hooks around it.
class WarmUp {
 public:
  explicit WarmUp(const Rank& rank) : rank_(rank) {}

  // Begins the warmup if it has not begun; ends it with `ends`.
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

// Runs the lists of Step::warm_up by `run`.
void run_libraries(Rank& rank, const StepActions& actions,
                   const std::function<void(Mode, const std::vector<Action>&)>& run);

// Adds the rank's current state to the signature of the run.
GraphSignature graph_signature(const Rank& rank, GraphSignature of_run);

using CarryOut = std::function<void(const Action&)>;  // for actions other than verbs
void capture_ahead(Rank& rank, const std::vector<Action>& actions, const CarryOut& carry_out);

}  // namespace megalith
