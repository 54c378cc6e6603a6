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

// Numbers the event waits of a rank in program order. The hazard checker is not told of the one with ordinal
// `suppressed`, to prove that it finds each one that is missing. It is waited for all the same: ops that read tables of
// what other memory they read would reach memory of nobody. A wait between the branches of a graph is left out: its
// capture fails, or the checker finds it at the replay, whose ops a CPU stream runs in the order of the capture.
struct WaitCounter {
  std::int64_t count = 0;
  std::int64_t suppressed = -1;
  bool tells_next() { return count++ != suppressed; }
};

// Is told of each op right before it is enqueued, except while a stream captures.
struct OpObserver {
  bool active = false;
  std::function<void(Stream&, const Access&)> before;
};

// What watches the streams of one rank. All optional and owned by the caller; they must outlive the streams.
struct Instruments {
  HazardChecker* hazards = nullptr;
  Timeline* timeline = nullptr;  // needed by plan streams
  WaitCounter* waits = nullptr;
  CaptureGuard* captures = nullptr;
  OpObserver* observer = nullptr;
  Trace* trace = nullptr;
};

// A worker thread with a FIFO: as asynchronous as a CUDA stream, so that ThreadSanitizer finds a missing event. After a
// task's exception later tasks are skipped, events still fire (and carry the error to those who wait for them), and the
// next synchronize() rethrows and clears it.
class CpuStream {
 public:
  using Task = std::function<void()>;

  CpuStream();
  ~CpuStream();  // finishes the queue; an error nobody fetched is logged
  CpuStream(const CpuStream&) = delete;
  CpuStream& operator=(const CpuStream&) = delete;

  // Appends to the queue, or to the graph while capturing.
  void enqueue(Task task);

 private:
  friend class Stream;
  friend class Graph;

  void push(Task task, bool always);  // `always`: also on a stream that failed
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
  std::function<void(Task)> capture_;  // set while capturing: takes the task instead of the queue
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

  // True when an instrument or a capture needs to know what the next op reads and writes.
  bool wants_access() const;
  // Announces the next op; launch() and communicators call it right before they enqueue, and end_op() right after.
  void announce(const Access& access);
  void end_op();
  // Host work that goes with an op, as counting: done now or, while capturing, at each replay, before what it enqueues.
  // It gets the stream that runs the op, and makes no difference to the device's memory.
  template <class Note>
  void on_each_run(Note&& note) {
    if (capture_ != nullptr) {
      add_note(std::forward<Note>(note));
    } else {
      note(*this);
    }
  }

  void record(Event& event);
  // Does nothing where is_after(event) is true. Waiting for an event that is recorded in a capture joins that capture;
  // after the capture it is an error until the event is recorded again.
  void wait(Event& event);
  // Whether what is enqueued next comes after the event's latest record without a wait: the event was never recorded,
  // or this stream recorded it, or has waited for that record or for one that comes after it. Waits inside a graph, and
  // records that a replay makes, do not count: these are always waited for. Not while this stream captures.
  bool is_after(const Event& event) const { return !event.recorded_ || clock_.covers(event.clock_); }
  // An event that fires inside a replay and is waited for outside of it (or the reverse): legal only while capturing.
  void record_external(Event& event);
  void wait_external(Event& event);

  // Blocks the host until all that was enqueued is done; rethrows the first exception of a task and clears it. Like the
  // two below it is an error while this stream captures, or any of the rank's (Instruments::captures).
  void synchronize();
  // Blocks the host until the event's latest record.
  void synchronize_host(Event& event);
  // The host itself reads or writes device-visible memory (pinned staging): tells the hazard checker.
  void announce_host(const Access& access);

  bool capturing() const { return capture_ != nullptr; }

  // Null on every other backend.
  CpuStream* cpu() { return std::get_if<CpuStream>(&backend_); }
  CudaStream* cuda() { return std::get_if<CudaStream>(&backend_); }

 private:
  friend class Graph;

  bool traced() const;
  bool tells_next_wait() { return instruments_.waits == nullptr || instruments_.waits->tells_next(); }
  void add_note(std::function<void(Stream&)> note);  // to the graph
  void enqueue_record(Event& event);                 // not on a plan, not capturing
  void enqueue_wait(Event& event);
  static void mark_recorded(Event& event);  // outside of a graph, or by a replay
  void refuse_during_capture(std::string_view act, std::string_view remedy) const;

  std::string name_;
  Instruments instruments_;
  int lane_;                  // this stream's number at the instruments
  Graph* capture_ = nullptr;  // the capture this stream takes part in
  int capture_lane_ = -1;     // and its number there
  StreamClock clock_;         // of what is enqueued next, outside of captures
  std::variant<PlanStream, CpuStream, CudaStream> backend_;
};

}  // namespace megalith
