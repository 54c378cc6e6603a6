// Replay of a rank's recorded step (StepRecording) against a machine's rates: ops in the order of their stream, streams
// by their events. Pipeline messages take no time here; the simulator adds them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "apps/cost/action_spans.h"
#include "apps/run/step_plan.h"
#include "parallel/cost/cost_model.h"

namespace megalith {

// Communication of a rank in the groups of one axis in a step.
struct AxisVolume {
  double calls = 0;
  double bytes = 0;    // payload, as in CommunicatorStats
  double sent = 0;     // bytes that leave the rank in a ring
  double seconds = 0;  // of the calls in sequence; 0 without rates
  friend bool operator==(const AxisVolume&, const AxisVolume&) = default;
};

// Work of a step of `microbatches` microbatches, for any number of recorded microbatches.
struct StepWork {
  double flops = 0;  // with recompute
  double ops = 0;
  AxisVolume gathers, reductions;  // of sharded units, also part of `volumes`
  struct Rows {
    AxisVolume out, home;  // tokens to the ranks of their experts, and results back
  };
  Rows forward, backward;                     // of expert-parallel rows, part of `volumes`; recompute is backward
  std::map<std::string, AxisVolume> volumes;  // by the first word of the group's name: tp, dp, dp_inner, pp
};
StepWork work_of(const StepRecording& recording, std::int64_t microbatches, const CostModel* costs);

struct StepTimes {
  struct Chunk {  // seconds per microbatch, with tensor-parallel collectives
    double forward = 0;
    double backward_data = 0;
    double backward_weight = 0;
  };
  std::vector<Chunk> chunks;
  // Seconds of the compute stream outside of the chunks: waits for the previous step's weights, other time up to the
  // sum of the norm, and time after it.
  double wait_parameters = 0;
  double before_norm = 0;
  double after_norm = 0;
  // Seconds per step that the compute stream waits for weights of units and for slots of their gradients; part of the
  // chunks' times.
  double exposed_gathers = 0;
  double exposed_reductions = 0;
  double exposed_rows = 0;              // waits for expert-parallel rows, per step
  OffloadStats offload{.timed = true};  // times per step; its waits are part of the chunks' times
  std::vector<double> action_seconds;   // of the compute stream, by recorded action
  std::size_t message_bytes = 0;        // per message to another stage; 0: no messages
};
StepTimes times_of(const StepRecording& recording, const CostModel& costs);

// The spans of each stage, given one recording per stage: stages wait for each other's messages and in collectives of
// several stages. Each action has at least one span, which may be empty.
std::vector<std::vector<ActionSpan>> spans_of_stages(const std::vector<StepRecording>& stages, const CostModel& costs,
                                                     int ranks_of_stage);

}  // namespace megalith
