// Executes the messages of a stage's action list: tensors to and from neighbor stages. Each direction between two
// stages has a dedicated group and stream, so it never waits for another direction. Only events connect the compute
// stream and the channels.
// A message is one tensor, [T, H] in the model's dtype. It is the output of a part, with its residual added (which the
// next part's first norm would add), or the gradient of that sum.
// If two stages' GPUs map each other's memory, the sender's copy engine writes a message into the receiver's buffer. A
// list of actions fixes the buffers' addresses, so that share() exchanges them ahead of the steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
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
  // Collective over `stages`, one rank per stage; creates the groups. All arguments except `spec` outlive the object.
  PipelineTransfer(Communicator& stages, const Context& ctx, SegmentRunner& runner, const Spec& spec);
  ~PipelineTransfer();

  // Connects the ranks in one order on all stages, since the host waits in NCCL's first call of two ranks. Collective.
  // `scratch` is one element, written.
  void connect(const Tensor& scratch);

  // Actions of a step, and the memory layout that they run with.
  struct List {
    const std::vector<Action>& actions;
    const ArenaPlan& plan;
  };
  // Lets copy engines carry the messages of `lists` between stages whose GPUs map each other's memory, if the arena has
  // its block. Other stages, and all with MEGALITH_COPY_MESSAGES=0 in a rank's environment, use the groups' Send and
  // Receive. Collective; so is unshare(), which ends it while no message is pending, and ahead of Arena::give_back.
  void share(const std::vector<List>& lists);
  void unshare();
  // Starts one of share()'s lists, by its index.
  void begin(std::size_t list);

  // While on, sends nothing and receives zeros, for actions that load kernels. A GPU's pending receive blocks loads and
  // allocations in its process, so two stages could deadlock.
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
    std::int64_t placed = 0;       // of `sent`: written into the receiver's memory
    std::int64_t handed_over = 0;  // passed between chunks of this stage
  };
  const Stats& stats() const { return stats_; }
  std::vector<Communicator*> groups() const;

 private:
  struct Channel {
    std::unique_ptr<Communicator> group;  // rank 0 sends, rank 1 receives
    std::unique_ptr<Stream> stream;
    int peer = 0;  // stage
    bool sends = false;
    // Offsets of the receiver's buffers in its arena by list, in the order of the messages; empty: not shared.
    std::vector<std::vector<std::size_t>> places = {};
    std::size_t list = 0;  // current one
    std::size_t next = 0;  // number of its next message
  };
  struct Flight {  // of one message
    explicit Flight(const Channel& channel) : lane(*channel.group, *channel.stream, "message") {}
    CommLane lane;
    Tensor buffer;
  };

  Channel& channel(int peer, bool sends);
  std::vector<std::size_t> places_from(int peer, const List& list) const;  // of this stage's buffers
  void copy_once(const Channel& channel);
  static std::optional<std::size_t> next_place(Channel& channel);
  Flight& flight(const Action& action, bool sends);
  // Starts `op` on the channel's stream after its buffer is ready, or after its last use.
  template <class Op>
  void start(const Action& action, Flight& flight, const Op& op);
  Tensor payload(const Action& action);

  const Context& ctx_;
  SegmentRunner& runner_;
  Spec spec_;
  std::vector<Channel> channels_;  // in the creation order of all stages
  std::map<std::tuple<int, bool, bool, int>, Flight> flights_;
  TensorList handed_over_;  // between the two adjacent actions of a hand-over
  Stats stats_;
  bool rehearses_ = false;
};

}  // namespace megalith
