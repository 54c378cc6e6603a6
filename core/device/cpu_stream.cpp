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
  } catch (...) {
    log_warning("a stream ended with an unknown error nobody waited for");
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

void CpuStream::fire(std::shared_ptr<CpuEventPoint> point) {
  push(
      [this, point = std::move(point)] {
        std::exception_ptr error;
        {
          std::lock_guard lock(mutex_);
          error = error_;
        }
        point->fire(std::move(error));
      },
      true);
}

void CpuStream::await(std::shared_ptr<CpuEventPoint> point) {
  push([point = std::move(point)] { point->wait(); }, true);
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
    const bool skipped = error_ && !item.always;
    busy_ = true;
    lock.unlock();
    std::exception_ptr error;
    try {
      if (!skipped) item.task();
    } catch (...) {
      error = std::current_exception();
    }
    item.task = nullptr;  // destroys what the task holds before the stream counts as idle
    lock.lock();
    busy_ = false;
    if (error && !error_) error_ = std::move(error);
    if (queue_.empty()) changed_.notify_all();
  }
}

}  // namespace megalith
