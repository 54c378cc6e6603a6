// A CPU stream is a worker thread with a FIFO: as asynchronous as a CUDA stream, so that ThreadSanitizer finds a
// missing event. A task's exception stops the stream: later tasks are skipped, events still fire (and carry the error
// to those who wait for them), and the next synchronize() rethrows and clears it.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "core/device/event.h"

namespace megalith {

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

}  // namespace megalith
