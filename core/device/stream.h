// A stream orders work; events order streams. Every call that enqueues names its stream: there is no default stream.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <variant>

#include "core/device/cpu_stream.h"
#include "core/device/cuda_stream.h"
#include "core/device/device.h"
#include "core/device/event.h"
#include "core/device/instruments.h"
#include "core/instruments/access.h"

namespace megalith {

class Graph;

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
