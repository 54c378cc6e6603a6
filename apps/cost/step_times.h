// Plays what a rank enqueues in a step (StepRecording) against a machine's rates: ops in the order of their stream,
// streams by their events. Messages of the pipeline take no time here: the simulator adds them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "apps/run/step_plan.h"
#include "parallel/cost/cost_model.h"

namespace megalith {

// What a rank puts into the groups of one axis in a step.
struct AxisVolume {
  double calls = 0;
  double bytes = 0;    // payload, as CommunicatorStats counts it
  double sent = 0;     // bytes that leave the rank where a ring carries it
  double seconds = 0;  // of the calls, one after the other; 0 without rates
  friend bool operator==(const AxisVolume&, const AxisVolume&) = default;
};

// Of a step of `microbatches` microbatches, whatever number was recorded.
struct StepWork {
  double flops = 0;  // recompute included
  double ops = 0;
  AxisVolume gathers, reductions;  // of sharded units, in the volumes too
  struct Rows {
    AxisVolume out, home;  // tokens that go to the ranks of their experts, and what comes back
  };
  Rows forward, backward;                     // of shared out experts, likewise; made again: backward's
  std::map<std::string, AxisVolume> volumes;  // by the first word of the group's name: tp, dp, dp_inner, pp
};
StepWork work_of(const StepRecording& recording, std::int64_t microbatches, const CostModel* costs);

struct StepTimes {
  struct Chunk {  // seconds of one microbatch, tensor-parallel collectives included
    double forward = 0;
    double backward_data = 0;
    double backward_weight = 0;
  };
  std::vector<Chunk> chunks;
  // Of the compute stream outside of these: waits for the weights of the step before, the rest until the norm is summed
  // over all ranks, and from there on.
  double wait_parameters = 0;
  double before_norm = 0;
  double after_norm = 0;
  // Of a step that the compute stream waits for units: for their weights, and for the slots of their gradients. Within
  // the chunks' times.
  double exposed_gathers = 0;
  double exposed_reductions = 0;
  double exposed_rows = 0;              // likewise for rows of shared out experts
  OffloadStats offload{.timed = true};  // times of a step; its waits are within the chunks' times
  std::vector<double> action_seconds;   // of the compute stream in each recorded action
  std::size_t message_bytes = 0;        // of one message to another stage; 0: none is sent
};
StepTimes times_of(const StepRecording& recording, const CostModel& costs);

}  // namespace megalith
