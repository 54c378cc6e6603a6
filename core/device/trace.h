// Timings of the streams of one rank, for Perfetto or chrome://tracing. Two events on the stream time each op. A range
// (a step, a segment's verb) contains ops and is timed on the stream, and on the host for the time of its enqueues. A
// graph's replay is a range that lists its ops; on the CPU its ops are timed too. Tracing costs two event records per
// op: 6 us on a GPU, 20 to 40 us while four GPUs of a host copy to or from its memory. Inactive, it is free.
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
  // Starts timing of ops and ranges. `stream`, which must be idle, ties the streams' clock to the host's.
  void start(Stream& stream);
  // Stops timing. All traced streams must be idle.
  void stop();
  bool active() const { return clock_ != nullptr; }

  void begin_op(Stream& stream, const Access& access);
  void begin_range(Stream& stream, std::string name);
  void end(Stream& stream);  // ends the span begun last on that stream, if any

  // Work of one replay of a graph.
  struct Replay {
    std::string ops;  // their names
    double flops = 0;
    std::int64_t bytes = 0;
  };
  void describe(Stream& stream, Replay replay);  // describes the range begun last on that stream

  static constexpr int kHostLane = 0;
  struct Span {
    std::string name;
    int lane = kHostLane;
    double begin_us = 0;  // since start_us()
    double duration_us = 0;
    double flops = 0;        // per op unscaled; for a graph's replay on a GPU the sum of its ops
    std::int64_t bytes = 0;  // announced reads and writes
    std::string ops;         // names of a replay's ops
  };
  double start_us() const { return start_us_; }              // time of the first start(), since 1970
  const std::vector<Span>& spans() const { return spans_; }  // spans up to the last stop()
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
    std::string name;               // the stream's name
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
  std::vector<Span> spans_;  // spans of finished windows
};

// Traces a range on `stream` during this object's lifetime, if the stream is traced.
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
