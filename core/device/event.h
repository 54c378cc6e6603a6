// A point in a stream's order. Recording again moves the point. A wait refers to the latest record ahead of the wait,
// even if the event is recorded again, on any stream, until that wait is reached.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace megalith {

// Records of all streams that precede a point in a stream's order: a vector clock (Fidge 1988, Mattern 1989). A stream
// keeps the clock of its end, an event that of its latest record, so that redundant waits are found.
class StreamClock {
 public:
  StreamClock() = default;  // clock of an unknown record
  explicit StreamClock(std::uint64_t stream) : records_{{.stream = stream}} {}

  bool known() const { return !records_.empty(); }
  void forget() { records_.clear(); }
  // Counts one more record of the stream that owns this clock.
  void advance() { ++records_.front().number; }
  // Returns whether this point comes after the record whose clock is `record`.
  bool covers(const StreamClock& record) const {
    if (!record.known()) return false;
    const Record& own = record.records_.front();
    const auto found = std::ranges::find(records_, own.stream, &Record::stream);
    return found != records_.end() && found->number >= own.number;
  }
  // Makes this point come after that record too.
  void merge(const StreamClock& record) {
    for (const Record& other : record.records_) {
      const auto found = std::ranges::find(records_, other.stream, &Record::stream);
      if (found == records_.end()) {
        records_.push_back(other);
      } else {
        found->number = std::max(found->number, other.number);
      }
    }
  }

 private:
  struct Record {
    std::uint64_t stream;     // unique in the process
    std::int64_t number = 0;  // number among the stream's records
  };
  std::vector<Record> records_;  // few; the owning stream's first
};

class CudaEvent;
class Graph;

// One record of an event on a CPU stream; fires once. Owned by the event while it is the latest record, and by the
// tasks that fire it or wait for it. The event may thus be recorded again or destroyed meanwhile.
struct CpuEventPoint {
  std::mutex mutex;
  std::condition_variable changed;
  bool fired = false;
  std::chrono::steady_clock::time_point fired_at;
  std::exception_ptr error;  // the recording stream's error ahead of the point, if any

  void fire(std::exception_ptr cause);
  void wait();  // rethrows `error`
};

class Event {
 public:
  // `timed` allows seconds_between, and makes each record slightly slower on a GPU.
  explicit Event(std::string name, bool timed = false);
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  const std::string& name() const { return name_; }
  bool recorded() const { return recorded_; }  // at least once outside of a capture, or by a replay

  // Blocks the host until the latest record is reached; rethrows the error of the recording stream. Use
  // Stream::synchronize_host, which also notifies the instruments.
  void wait_on_host() const;
  // Returns the seconds between the latest records of two timed events of one backend, both reached; 0 on plan.
  friend double seconds_between(const Event& earlier, const Event& later);

 private:
  friend class Stream;
  friend class Graph;

  static std::uint64_t next_id();
  // Returns the graph that captured the latest record. Each capture owns a token that holds its graph and dies with it.
  Graph* capturing() const;
  // Fails if the latest record is inside a graph: a wait outside is impossible.
  void require_record_outside_graphs(std::string_view who) const;

  std::string name_;
  bool timed_;
  std::uint64_t id_;  // unique in the process; identifies the event to the instruments
  bool recorded_ = false;
  bool in_graph_ = false;                // the latest record was captured
  std::weak_ptr<Graph*> capture_token_;  // token of that capture
  StreamClock clock_;                    // clock of the latest record; unknown if a capture or a replay made it
  std::shared_ptr<CpuEventPoint> cpu_;   // latest record outside of graphs, null if none
  std::shared_ptr<CudaEvent> cuda_;      // the CUDA event; one object serves all records
};

double seconds_between(const Event& earlier, const Event& later);

}  // namespace megalith
