// A stream orders work; events order streams. Every call that enqueues names its stream: there is no default stream.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <variant>

#include "core/device/cuda_stream.h"
#include "core/device/device.h"
#include "core/device/event.h"
#include "core/instruments/access.h"

namespace megalith {

class CaptureGuard;
class Graph;
class HazardChecker;
class Stream;
class Timeline;
class Trace;

// Numbers the event waits of a rank in program order. A test hides the wait with ordinal `suppressed` from the hazard
// checker, to prove that the checker finds each missing wait. The wait still happens: ops that read addresses from
// memory would otherwise access invalid memory. Waits between branches of a graph do not count. A missing one fails the
// capture, or the checker finds it at the replay, where a CPU stream runs ops in capture order.
struct WaitCounter {
  std::int64_t count = 0;
  std::int64_t suppressed = -1;
  bool reports_next() { return count++ != suppressed; }
};

// Called with each op right ahead of its enqueue, except while a stream captures.
struct OpObserver {
  bool active = false;
  std::function<void(Stream&, const Access&)> before;
};

// Observers of the streams of one rank. All are optional and owned by the caller; they must outlive the streams.
struct Instruments {
  HazardChecker* hazards = nullptr;
  Timeline* timeline = nullptr;  // required by plan streams
  WaitCounter* waits = nullptr;
  CaptureGuard* captures = nullptr;
  OpObserver* observer = nullptr;
  Trace* trace = nullptr;
};

// A worker thread with a FIFO: as asynchronous as a CUDA stream, so that ThreadSanitizer finds a missing event. After a
// task's exception later tasks are skipped, and events still fire and carry the error to their waiters. The next
// synchronize() rethrows and clears the error.
class CpuStream {
 public:
  using Task = std::function<void()>;

  CpuStream();
  ~CpuStream();  // finishes the queue; logs an error that was not rethrown
  CpuStream(const CpuStream&) = delete;
  CpuStream& operator=(const CpuStream&) = delete;

  // Appends to the queue, or to the graph while capturing.
  void enqueue(Task task);

 private:
  friend class Stream;
  friend class Graph;

  void push(Task task, bool always);  // `always`: also on a failed stream
  void fire(std::shared_ptr<CpuEventPoint> point);
  void await(std::shared_ptr<CpuEventPoint> point);
  void synchronize();
  void work();

  struct Item {
    Task task;
    bool always;
  };

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> queue_;
  bool busy_ = false;
  bool stop_ = false;
  std::exception_ptr error_;           // written and read by the worker under mutex_
  std::function<void(Task)> capture_;  // set while capturing: receives the task instead of the queue
  std::thread worker_;
};

// Computes nothing; Stream announces its ops to the timeline.
class PlanStream {};

class Stream {
 public:
  Stream(DeviceType device, std::string name, Instruments instruments = {});
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  DeviceType device() const;
  const std::string& name() const { return name_; }
  const Instruments& instruments() const { return instruments_; }

  // Returns whether an instrument or a capture needs the next op's reads and writes.
  bool needs_access() const;
  // Announces the next op. launch() and communicators call announce right ahead of the enqueue, end_op() after it.
  void announce(const Access& access);
  void end_op();
  // Runs host work of an op, such as counting: now or, while capturing, at each replay, ahead of the op. The work gets
  // the stream that runs the op, and does not change device memory.
  template <class Note>
  void on_each_run(Note&& note) {
    if (capture_ != nullptr) {
      add_note(std::forward<Note>(note));
    } else {
      note(*this);
    }
  }

  void record(Event& event);
  // Does nothing if is_after(event). Waiting for an event that is recorded in a capture joins that capture. After the
  // capture the wait is an error until the event is recorded again.
  void wait(Event& event);
  // Returns whether the next op comes after the event's latest record without a wait. True if the event was never
  // recorded, or this stream recorded it or waited for that record or a later one. Waits inside a graph and records of
  // a replay do not count. Not for use while this stream captures.
  bool is_after(const Event& event) const { return !event.recorded_ || clock_.covers(event.clock_); }
  // Records an event inside a replay for a wait outside of it (or the reverse); legal only while capturing.
  void record_external(Event& event);
  void wait_external(Event& event);

  // Blocks the host until all enqueued work is done; rethrows and clears the first exception of a task. Like the two
  // below, an error while any stream of the rank (Instruments::captures) captures.
  void synchronize();
  // Blocks the host until the event's latest record.
  void synchronize_host(Event& event);
  // Announces to the hazard checker that the host reads or writes device-visible memory (pinned staging).
  void announce_host(const Access& access);

  bool capturing() const { return capture_ != nullptr; }

  // Null on every other backend.
  CpuStream* cpu() { return std::get_if<CpuStream>(&backend_); }
  CudaStream* cuda() { return std::get_if<CudaStream>(&backend_); }

 private:
  friend class Graph;

  bool traced() const;
  bool reports_next_wait() { return instruments_.waits == nullptr || instruments_.waits->reports_next(); }
  void add_note(std::function<void(Stream&)> note);  // adds to the graph
  void enqueue_record(Event& event);                 // not on a plan, not capturing
  void enqueue_wait(Event& event);
  static void mark_recorded(Event& event);  // outside of a graph, or by a replay
  void refuse_during_capture(std::string_view act, std::string_view remedy) const;

  std::string name_;
  Instruments instruments_;
  int lane_;                  // number of this stream at the instruments
  Graph* capture_ = nullptr;  // capture that this stream is part of
  int capture_lane_ = -1;     // number of this stream in that capture
  StreamClock clock_;         // clock of the next enqueue, outside of captures
  std::variant<PlanStream, CpuStream, CudaStream> backend_;
};

}  // namespace megalith
