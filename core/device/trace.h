// Times of what the streams of one rank did, for a picture in Perfetto or chrome://tracing. Each op is timed by two
// events on its stream; what contains ops (a step, a segment's verb) is a range, timed likewise and on the host, where
// it lasts as long as its ops took to enqueue. The replay of a graph is a range that tells its ops; on the CPU these
// are timed as well. Costs two event records an op while it is active, 6 us of a GPU and 20 to 40 while four GPUs of a
// host copy to or from its memory; nothing otherwise.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/device/event.h"
#include "core/instruments/access.h"

namespace megalith {

class Stream;

class Trace {
 public:
  // From here on ops and ranges are timed. `stream` ties the streams' clock to the host's; it must be idle.
  void start(Stream& stream);
  // Ends it. All streams that were traced are idle.
  void stop();
  bool active() const { return clock_ != nullptr; }

  void begin_op(Stream& stream, const Access& access);
  void begin_range(Stream& stream, std::string name);
  void end(Stream& stream);  // what began last on that stream; nothing if nothing did

  // What one replay of a graph runs.
  struct Replay {
    std::string ops;  // their names
    double flops = 0;
    std::int64_t bytes = 0;
  };
  void describe(Stream& stream, Replay replay);  // the range that began last on that stream

  static constexpr int kHostLane = 0;
  struct Span {
    std::string name;
    int lane = kHostLane;
    double begin_us = 0;  // since start_us()
    double duration_us = 0;
    double flops = 0;        // of an op, as is; of a graph's replay on a GPU all of its ops'
    std::int64_t bytes = 0;  // what it says it reads and writes
    std::string ops;         // of a graph's replay
  };
  double start_us() const { return start_us_; }              // of the first start(), since 1970
  const std::vector<Span>& spans() const { return spans_; }  // what was timed until the last stop()
  std::vector<std::string> lane_names() const;               // "host", then the streams

 private:
  struct Entry {
    explicit Entry(Span begun_span) : span(std::move(begun_span)) {}
    Span span;  // without its times
    bool is_range = false;
    bool ended = false;
    Event begun{"trace begin", true};
    Event done{"trace end", true};
    std::chrono::steady_clock::time_point enqueue_begun;
    std::chrono::steady_clock::time_point enqueue_done;
  };
  struct Lane {
    std::string name;               // of the stream
    std::vector<Entry*> open = {};  // null: began under capture
  };

  Entry* add(Stream& stream, std::string name);  // null under capture
  std::size_t lane_of(const Stream& stream);

  std::unique_ptr<Event> clock_;  // recorded at the start; null: not active
  std::chrono::steady_clock::time_point host_start_;
  double start_us_ = 0;
  std::optional<std::chrono::steady_clock::time_point> first_start_;
  std::deque<Entry> entries_;
  std::vector<Lane> lanes_{{.name = "host"}};
  std::vector<Span> spans_;  // of the windows that are over
};

// A range on `stream` while this object lives, where the stream is traced.
class TraceRange {
 public:
  // `name()` is called only if the stream is traced.
  template <class Name>
  TraceRange(Stream& stream, Trace* trace, Name&& name)
      : stream_(stream), trace_(trace != nullptr && trace->active() ? trace : nullptr) {
    if (trace_ != nullptr) trace_->begin_range(stream_, name());
  }
  ~TraceRange();
  TraceRange(const TraceRange&) = delete;
  TraceRange& operator=(const TraceRange&) = delete;

 private:
  Stream& stream_;
  Trace* trace_;
};

}  // namespace megalith
