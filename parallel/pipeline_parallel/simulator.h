// Simulation of a schedule with given durations: times of actions, duration of a step, and waits.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "parallel/pipeline_parallel/messages.h"
#include "parallel/pipeline_parallel/schedule.h"

namespace megalith {

// Durations in any unit of time; results have the same unit.
struct PartDurations {
  double forward = 1;
  double backward_data = 1;
  double backward_weight = 1;
  double transfer = 0;  // of the output to the next part's stage, and of its gradient back
};

struct SimulationSpec {
  std::vector<PartDurations> parts = {{}};  // by part of the model (placement.h), or one entry for all
  // false: sends are asynchronous. true: a stage starts its next block when receivers have all of its sends, as with
  // blocking calls.
  bool blocking_sends = false;
  int receive_ahead = kReceiveAhead;  // blocks; see messages_of
};

struct Simulation {
  struct ActionTime {
    double start = 0;
    double end = 0;
  };
  struct Stage {
    std::vector<ActionTime> actions;  // of the stage's list; shorter after a deadlock
    double busy = 0;                  // sum of the actions' durations
    std::size_t peak_stashes = 0;     // maximum of (chunk, microbatch) pairs between forward and end of backward_weight
    double idle_inside() const { return actions.empty() ? 0 : actions.back().end - actions.front().start - busy; }
  };
  std::vector<Stage> stages;
  double makespan = 0;   // end of the last action
  std::string deadlock;  // empty, or the blocked stages' actions and what each waits for

  double bubble() const;        // makespan minus the work of the busiest stage
  double bubble_share() const;  // share of all stages' time until makespan, 0 to 1
};

Simulation simulate(const Schedule& schedule, const SimulationSpec& spec);

}  // namespace megalith
