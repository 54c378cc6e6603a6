// Carries out the messages of a stage's action list: tensors to and from the neighbour stages, each direction between
// two stages on a group and a stream of its own, so that no message waits behind one of another direction. The compute
// stream and the channels meet in events alone.
//
// A message is one tensor, [T, H] in the model's dtype: the output of a part, its residual added (the next part's first
// norm would add it), or the gradient of that sum.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "parallel/comm/comm_lane.h"
#include "parallel/pipeline_parallel/placement.h"
#include "parallel/pipeline_parallel/segment_runner.h"

namespace megalith {

class PipelineTransfer {
 public:
  struct Spec {
    Placement placement;
    Shape shape;  // [T, H] of a microbatch
    DType dtype = DType::kFp32;
    DeviceType device = DeviceType::kCpu;
    Instruments instruments;  // of the channels' streams
  };
  // Collective over `stages`, one rank a stage; makes the groups. All arguments outlive the object but `spec`.
  PipelineTransfer(Communicator& stages, const Context& ctx, SegmentRunner& runner, const Spec& spec);
  ~PipelineTransfer();

  // NCCL connects two ranks in their first call, in which the host waits: here, in one order on all stages. `scratch`
  // is one element, written. Collective.
  void connect(const Tensor& scratch);

  // While on, nothing is sent, and what is received is 0: for actions that load kernels. A GPU's receive that waits for
  // its peer lets no host of this process load or allocate anything, so that two stages would wait for each other.
  void rehearse(bool on) { rehearses_ = on; }
  bool has_peers() const { return !channels_.empty(); }

  void post_receive(const Action& action);
  void wait_receive(const Action& action);
  void send(const Action& action);
  void wait_send(const Action& action);
  void synchronize();

  // Since construction.
  struct Stats {
    std::int64_t sent = 0;  // messages
    std::int64_t received = 0;
    std::int64_t bytes_sent = 0;
    std::int64_t handed_over = 0;  // from chunk to chunk of this stage
  };
  const Stats& stats() const { return stats_; }
  std::vector<Communicator*> groups() const;

 private:
  struct Channel {
    std::unique_ptr<Communicator> group;  // the sender is its rank 0, the receiver rank 1
    std::unique_ptr<Stream> stream;
    int peer = 0;  // stage
    bool sends = false;
  };
  struct Flight {  // of one message
    explicit Flight(const Channel& channel) : lane(*channel.group, *channel.stream, "message") {}
    CommLane lane;
    Tensor buffer;
  };

  Channel& channel(int peer, bool sends);
  Flight& flight(const Action& action, bool sends);
  // Carries it out between the making of its buffer, or its last use, and its use.
  template <class Op>
  void start(const Action& action, Flight& flight, const Op& op);
  Tensor payload(const Action& action);

  const Context& ctx_;
  SegmentRunner& runner_;
  Spec spec_;
  std::vector<Channel> channels_;  // in the order in which all stages made them
  std::map<std::tuple<int, bool, bool, int>, Flight> flights_;
  TensorList handed_over_;  // between the two actions of a hand-over, which stand together
  Stats stats_;
  bool rehearses_ = false;
};

}  // namespace megalith
