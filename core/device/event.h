// A point in a stream's order. Recording again moves the point; a wait refers to the latest record made before the wait.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>

namespace megalith {

class Graph;

// Shared by the event and the tasks that fire it, so that an event may be destroyed while a task is pending.
struct CpuEventState {
  std::mutex mutex;
  std::condition_variable fired;
  std::uint64_t completed = 0;   // number of the latest record that was reached
  std::exception_ptr error;      // why the recording stream failed before the point, if it did
};

class Event {
 public:
  explicit Event(std::string name);
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  const std::string& name() const { return name_; }
  bool recorded() const { return records_ > 0; }

  // Blocks the host until the latest record is reached; rethrows the error of the recording stream. Use
  // Stream::synchronize_host, which also tells the instruments.
  void wait_on_host() const;

 private:
  friend class Stream;
  friend class CpuStream;
  friend class Graph;

  std::string name_;
  std::uint64_t id_;            // unique in the process: names this event to the instruments
  std::uint64_t records_ = 0;   // records enqueued so far
  Graph* captured_in_ = nullptr;  // the capture that holds the latest record, if any
  std::shared_ptr<CpuEventState> cpu_ = std::make_shared<CpuEventState>();
};

}  // namespace megalith
