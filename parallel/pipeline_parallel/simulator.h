// Plays a schedule against given durations: when each action runs, how long a step takes, who waits, and for what.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "parallel/pipeline_parallel/messages.h"
#include "parallel/pipeline_parallel/schedule.h"

namespace megalith {

// Durations in any one unit of time; results are in the same.
struct PartDurations {
  double forward = 1;
  double backward_data = 1;
  double backward_weight = 1;
  double transfer = 0;  // of its output to the next part's stage, and of that output's gradient back
};

struct SimulationSpec {
  std::vector<PartDurations> parts = {{}};  // by part of the model (placement.h), or one for all
  // Stages do not wait for what they send, which leaves on a stream of its own; true: a stage begins its next block
  // when the receivers have all of it, as with blocking calls.
  bool blocking_sends = false;
  int receive_ahead = kReceiveAhead;  // blocks; see messages_of
};

struct Simulation {
  struct ActionTime {
    double start = 0;
    double end = 0;
  };
  struct Stage {
    std::vector<ActionTime> actions;  // of the stage's list; shorter where the schedule is stuck
    double busy = 0;                  // sum of its actions
    std::size_t peak_stashes = 0;     // most (chunk, microbatch) pairs between forward and end of backward_weight
    double idle_inside() const { return actions.empty() ? 0 : actions.back().end - actions.front().start - busy; }
  };
  std::vector<Stage> stages;
  double makespan = 0;   // end of the last action
  std::string deadlock;  // empty, or for each stage that cannot go on its action and what it waits for

  double bubble() const;        // makespan less the work of the stage with the most
  double bubble_share() const;  // of all stages' time until makespan, from 0 to 1
};

Simulation simulate(const Schedule& schedule, const SimulationSpec& spec);

}  // namespace megalith
