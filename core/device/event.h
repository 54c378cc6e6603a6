// A point in a stream's order. Recording again moves the point; a wait refers to the latest record made before the
// wait, also when the event is recorded again, on whichever stream, before that wait is reached.
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

// The records, of any stream, that a point in a stream's order comes after: a vector clock (Fidge 1988, Mattern 1989).
// A stream keeps one of its end, an event one of its latest record, so that a wait that orders nothing is known.
class StreamClock {
 public:
  StreamClock() = default;  // of a record that nobody knows
  explicit StreamClock(std::uint64_t stream) : records_{{.stream = stream}} {}

  bool known() const { return !records_.empty(); }
  void forget() { records_.clear(); }
  // The stream that this is the clock of records once more.
  void advance() { ++records_.front().number; }
  // Whether this point comes after the record that `record` is the clock of.
  bool covers(const StreamClock& record) const {
    if (!record.known()) return false;
    const Record& own = record.records_.front();
    const auto found = std::ranges::find(records_, own.stream, &Record::stream);
    return found != records_.end() && found->number >= own.number;
  }
  // From here on this point comes after that record too.
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
    std::int64_t number = 0;  // of its records
  };
  std::vector<Record> records_;  // a few, the stream's own first
};

class CudaEvent;
class Graph;

// One record of an event on a CPU stream; it fires once. Owned by the event while it is its latest record, and by the
// tasks that fire it and wait for it, so that the event may be recorded again or destroyed while they are pending.
struct CpuEventPoint {
  std::mutex mutex;
  std::condition_variable changed;
  bool fired = false;
  std::chrono::steady_clock::time_point fired_at;
  std::exception_ptr error;  // why the recording stream failed before the point, if it did

  void fire(std::exception_ptr cause);
  void wait();  // rethrows `error`
};

class Event {
 public:
  // Timed: seconds_between can be asked, which costs the GPU a little at each record.
  explicit Event(std::string name, bool timed = false);
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  const std::string& name() const { return name_; }
  bool recorded() const { return recorded_; }  // at least once outside of a capture, or by a replay

  // Blocks the host until the latest record is reached; rethrows the error of the recording stream. Use
  // Stream::synchronize_host, which also tells the instruments.
  void wait_on_host() const;
  // Between the latest records of two timed events of one backend, both reached; 0 on the plan backend.
  friend double seconds_between(const Event& earlier, const Event& later);

 private:
  friend class Stream;
  friend class Graph;

  static std::uint64_t next_id();
  // Each capture owns a token that holds its graph and dies with the capture.
  Graph* capturing() const;
  // Fails if the latest record is inside a graph, where nobody outside can wait for it.
  void require_record_outside_graphs(std::string_view who) const;

  std::string name_;
  bool timed_;
  std::uint64_t id_;  // unique in the process: names this event to the instruments
  bool recorded_ = false;
  bool in_graph_ = false;                // the latest record was captured
  std::weak_ptr<Graph*> capture_token_;  // of that capture
  StreamClock clock_;                    // of the latest record; unknown where a capture or a replay made it
  std::shared_ptr<CpuEventPoint> cpu_;   // the latest record outside of graphs, null before the first
  std::shared_ptr<CudaEvent> cuda_;      // the same on CUDA, where one object serves all records
};

double seconds_between(const Event& earlier, const Event& later);

}  // namespace megalith
