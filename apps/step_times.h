// Plays what a rank enqueues in a step (StepRecording) against a machine's rates: ops in the order of their stream,
// streams by their events. Messages of the pipeline take no time here: the simulator adds them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "apps/rates.h"
#include "apps/step_plans.h"
#include "core/device/access.h"
#include "parallel/comm/plan_communicator.h"

namespace megalith {

// Bytes that each rank of a ring sends: of an all-reduce 2 (n - 1) / n of the buffer, of a reduce-scatter and an
// all-gather (n - 1) / n of the whole, and the payload of sends, broadcasts and all-to-alls, whose rows are mostly for
// others. `bytes` as CommunicatorStats counts them.
double ring_bytes(std::string_view kind, double bytes, int ranks);
double ring_bytes(const PlannedCall& call);  // of rows in equal parts, what fills these up too

// How long an op or a collective takes on a machine whose rates are known (rates.h). Each op takes a kernel's time and
// what an op of its name takes however little there is to do. To that a product of matrices adds its FLOPs at the rate
// of its size, and the traffic of what is fused into it, but at least the traffic of all its memory; attention its
// FLOPs at the rate of its heads' width and length; copies between device and host take their link's rate, anything
// else its bytes at the memory's. Collectives take their ring's traffic. Exchanged rows go straight to their ranks: to
// those of other hosts at the network's rate, and beside them within the host, where kernels read them out of each
// other's memory unless they are padded.
class CostModel {
 public:
  // Of heads of `width` over sequences of `length`. `rates` outlives the model.
  struct Heads {
    double width = 0;
    double length = 0;
  };
  // `ranks` of the run, of which those of a host share its memory's links.
  CostModel(const Rates& rates, const Heads& heads, int ranks = 1) : rates_(rates), heads_(heads), ranks_(ranks) {}

  double seconds(const Access& op, bool in_graph = false) const;
  // Of an op that copies between device and host.
  double link_seconds(const Access& op, bool to_host) const;
  double seconds(const PlannedCall& call) const;
  // Of a message from one rank of the world to another.
  double transfer_seconds(std::size_t bytes, int from, int to) const;
  const Rates& rates() const { return rates_; }

 private:
  double arithmetic_seconds(const Cost& cost) const;
  int hosts_of(const std::vector<int>& ranks) const;  // of a group's, ascending
  // Of such a group: within a host, or over hosts, each of which has as many of them.
  Rates::Link link(const std::vector<int>& ranks) const;
  double exchange_seconds(const PlannedCall& call) const;

  const Rates& rates_;
  Heads heads_;
  int ranks_;
};

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
  double exposed_rows = 0;  // likewise for rows of shared out experts
  // Of a step: how long the copies of kept activations to the host and back take, and the compute stream's waits for
  // them, which are within the chunks' times.
  double to_host = 0, from_host = 0;
  double exposed_to_host = 0, exposed_from_host = 0;
  std::vector<double> action_seconds;  // of the compute stream in each recorded action
  std::size_t message_bytes = 0;       // of one message to another stage; 0: none is sent
};
StepTimes times_of(const StepRecording& recording, const CostModel& costs);

}  // namespace megalith
