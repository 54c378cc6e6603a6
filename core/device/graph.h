// Capture and replay with CUDA's rules, on the CPU. While a stream captures, ops are appended instead of run; allocating
// from the system, synchronising, or reading device data on the host is an error. A second stream joins the capture when
// it waits for an event recorded in it (fork) and must be waited for in turn before the capture ends (join).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/device/access.h"
#include "core/device/event.h"

namespace megalith {

class Stream;

class Graph {
 public:
  explicit Graph(std::string name);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void begin_capture(Stream& origin);
  // Errors: a joined stream that was not waited for, or nothing was captured from `origin`.
  void end_capture();
  // Drops what was captured so far and takes all streams out of the capture. Safe to call at any time.
  void abort_capture();

  // Enqueues the whole graph on `stream`; the captured memory must still hold the same buffers.
  void replay(Stream& stream);

  const std::string& name() const { return name_; }
  int num_ops() const;               // captured ops, without event nodes
  std::int64_t num_replays() const { return replays_; }
  double flops() const;              // of one replay

 private:
  friend class Stream;

  enum class Kind : std::uint8_t { kOp, kRecord, kWait, kRecordExternal, kWaitExternal };
  struct Node {
    Kind kind;
    int lane;                       // 0 is the origin
    Access access{""};              // kOp
    std::function<void()> task;     // kOp
    Event* event = nullptr;         // external kinds: the event itself, which must outlive the graph
    std::uint64_t event_id = 0;
    std::shared_ptr<CpuEventState> cpu_event;
  };
  struct Lane {
    Stream* stream;
    std::vector<std::int64_t> clock;  // per lane: the number of its nodes known to be finished
    std::int64_t nodes = 0;
    int instrument_lane = -1;         // number at the hazard checker, for replays
  };
  struct Recorded {
    std::uint64_t event_id;
    std::vector<std::int64_t> clock;
  };

  int join(Stream& stream);  // adds a lane
  void add(Node node);
  void record(Stream& stream, Event& event, bool external);
  void wait(Stream& stream, Event& event, bool external);
  void release_streams();

  std::string name_;
  std::vector<Lane> lanes_;
  std::vector<Node> nodes_;
  std::vector<Recorded> recorded_;
  std::vector<Event*> marked_;  // events whose captured_in_ points here
  bool capturing_ = false;
  std::int64_t replays_ = 0;
};

}  // namespace megalith
