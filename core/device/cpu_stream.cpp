#include "core/device/cpu_stream.h"

#include <utility>

#include "core/base/error.h"
#include "core/base/log.h"

namespace megalith {

CpuStream::CpuStream() : worker_([this] { work(); }) {}

CpuStream::~CpuStream() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  worker_.join();
  if (!error_) return;
  try {
    std::rethrow_exception(error_);
  } catch (const std::exception& error) {
    log_warning(std::string("a stream ended with an error nobody waited for: ") + error.what());
  }
}

void CpuStream::enqueue(Task task) {
  if (capture_) {
    capture_(std::move(task));
  } else {
    push(std::move(task), false);
  }
}

void CpuStream::push(Task task, bool always) {
  {
    std::lock_guard lock(mutex_);
    queue_.push_back({std::move(task), always});
  }
  changed_.notify_all();
}

void CpuStream::fire(const std::shared_ptr<CpuEventState>& event, std::uint64_t record) {
  push(
      [this, event, record] {
        std::exception_ptr error;
        {
          std::lock_guard lock(mutex_);
          error = error_;
        }
        {
          std::lock_guard lock(event->mutex);
          event->completed = record;
          event->error = error;
        }
        event->fired.notify_all();
      },
      true);
}

void CpuStream::await(const std::shared_ptr<CpuEventState>& event, std::uint64_t record) {
  push(
      [event, record] {
        std::unique_lock lock(event->mutex);
        event->fired.wait(lock, [&] { return event->completed >= record; });
        if (event->error) std::rethrow_exception(event->error);
      },
      true);
}

void CpuStream::synchronize() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return queue_.empty() && !busy_; });
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void CpuStream::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stop_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Item item = std::move(queue_.front());
    queue_.pop_front();
    if (error_ && !item.always) continue;
    busy_ = true;
    lock.unlock();
    std::exception_ptr error;
    try {
      item.task();
    } catch (...) {
      error = std::current_exception();
    }
    item.task = nullptr;  // destroys captures before the stream counts as idle
    lock.lock();
    busy_ = false;
    if (error && !error_) error_ = error;
    if (queue_.empty()) changed_.notify_all();
  }
}

}  // namespace megalith
