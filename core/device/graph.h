// Capture and replay with CUDA's rules, on the CPU and on CUDA. While a stream captures, ops are appended instead of
// run, and actions that CaptureGuard rejects are errors. A second stream joins the capture by waiting for an event
// recorded in it (fork). The capture's end requires a wait for that stream (join). An event recorded inside orders only
// work inside; record_external and wait_external cross the border.
// If one stream made a GPU graph of short ops, the ops run concurrently unless their announcements conflict.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/device/event.h"
#include "core/device/lane_plan.h"
#include "core/instruments/access.h"
#include "core/instruments/vector_clock.h"

namespace megalith {

class CaptureGuard;
class CudaEvent;
class CudaGraph;
class CudaStream;
class HazardChecker;
class Stream;

class Graph {
 public:
  explicit Graph(std::string name);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // Errors: `origin` is capturing, or this graph was captured already.
  void begin_capture(Stream& origin);
  // Captures, on `origin` and `sides`, work that shall have no effect; abort_capture() ends it. Order is irrelevant, so
  // that a wait for an outside event does nothing.
  void begin_dropped(Stream& origin, std::span<Stream* const> sides);
  // Errors, which abort the capture: a joined stream was not waited for, or an announced op with output enqueued
  // nothing. A graph without nodes is legal.
  void end_capture();
  // Drops the captured nodes and takes all streams out of the capture. Does nothing if no capture runs.
  void abort_capture();

  // Enqueues the whole graph on `stream`. The captured memory must still hold the same buffers.
  void replay(Stream& stream);

  const std::string& name() const { return name_; }
  int num_ops() const;                  // captured ops, without event nodes
  std::uint64_t digest_of_ops() const;  // digest of the op names, in capture order
  // Device work of a replay: on CUDA kernels, copies, fills and external events; on the CPU the ops.
  std::size_t num_nodes() const;
  // Bytes of GPU memory that the driver allocated at the capture's end; 0 on the CPU. The driver allocates in large
  // pieces, so that later graphs may show 0.
  std::size_t device_bytes() const;
  std::int64_t num_replays() const { return replays_; }
  double flops() const;              // floating-point operations of one replay
  std::string_view last_op() const;  // the op captured last; "" before the first
  // Fails, because `act` is illegal while this graph is being captured.
  [[noreturn]] void refuse(std::string_view act, std::string_view remedy) const;

 private:
  friend class Stream;

  enum class Kind : std::uint8_t { kOp, kRecord, kWait, kRecordExternal, kWaitExternal };
  struct Node {
    Kind kind;
    int lane;                    // 0 is the origin
    Access access{""};           // kOp
    std::function<void()> task;  // kOp
    Event* event = nullptr;      // external kinds: the event, which must outlive the graph
    std::shared_ptr<CudaEvent> cuda_event;
    std::uint64_t event_id = 0;  // id for the hazard checker; a record inside the graph has a separate id
    std::size_t cuda_nodes = 0;  // kOp
  };
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  struct Lane {
    Stream* stream;     // null after the capture
    std::string name;   // that stream's name
    VectorClock clock;  // counts nodes
    std::int64_t nodes = 0;
    std::size_t open_op = kNone;  // node announced last, while its task is pending
    std::uint64_t cuda_tail = 0;  // CudaGraph::tail when the lane was last settled
  };
  struct Recorded {
    std::uint64_t node_id;
    VectorClock clock;
  };

  int join(Stream& stream);  // adds a lane
  void announce(Stream& stream, const Access& access);
  void take(int lane, std::function<void()> task);
  // Ends the op announced last. Called ahead of each new node, to check that the op enqueued something.
  void close_op(Lane& lane);
  [[noreturn]] void fail_unannounced(const Lane& lane) const;
  void add(Node node);
  void record(Stream& stream, Event& event);
  void wait(Stream& stream, Event& event);
  void add_external(Kind kind, Stream& stream, Event& event, bool reported = true);  // to the hazard checker
  void spread();  // CUDA: plans lanes of ops, if that is faster
  void check_replay(const Stream& stream) const;
  void note_spread_replay(HazardChecker& hazards, const Stream& stream);
  void describe_replay(Stream& stream) const;                         // to the trace
  void note_replay(Node& node, Stream& stream, int instrument_lane);  // notifies the instruments and the events
  void replay_node(Node& node, Stream& stream);                       // CPU
  Lane& lane_of(const Stream& stream);
  static CudaStream& cuda_of(const Lane& lane);
  void release_streams();

  std::string name_;
  std::vector<Lane> lanes_;
  std::vector<Node> nodes_;
  std::vector<std::function<void(Stream&)>> notes_;       // Stream::on_each_run
  std::unordered_map<std::uint64_t, Recorded> recorded_;  // keyed by the event's id
  std::shared_ptr<Graph*> token_;                         // alive while capturing; events refer to it
  CaptureGuard* guard_ = nullptr;                         // while capturing: the origin's
  std::int64_t replays_ = 0;
  std::unique_ptr<CudaGraph> cuda_;  // null on the CPU
  bool has_external_events_ = false;
  bool drops_ = false;  // begin_dropped()
  // Ops of a graph that run concurrently, as indices of nodes, and their dependencies.
  std::vector<std::size_t> spread_ops_;
  LanePlan spread_;
};

}  // namespace megalith
