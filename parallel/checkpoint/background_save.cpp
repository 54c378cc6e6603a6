#include "parallel/checkpoint/background_save.h"

#include <fmt/format.h>

#include <utility>

#include "core/base/error.h"
#include "core/base/files/fault.h"
#include "core/base/log.h"

namespace megalith {

BackgroundSave::BackgroundSave() : thread_([this] { work(); }) {}

BackgroundSave::~BackgroundSave() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
  if (!pending()) return;
  try {
    result_.get();
  } catch (const std::exception& error) {
    log_warning(fmt::format("checkpoint of step {} was not saved: {}", step_, error.what()));
  }
}

void BackgroundSave::begin(SaveRequest request, std::function<void()> data_ready) {
  require(!pending(), "BackgroundSave::begin: a save is pending");
  step_ = request.state.step;
  {
    const std::lock_guard lock(mutex_);
    next_ = std::packaged_task<SaveResult()>([request = std::move(request), data_ready = std::move(data_ready)] {
      data_ready();
      fault_point("async_save.copied");
      return save_checkpoint(request);
    });
    result_ = next_.get_future();
  }
  changed_.notify_all();
}

std::optional<SaveResult> BackgroundSave::poll() {
  if (!pending() || result_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return std::nullopt;
  return result_.get();
}

SaveResult BackgroundSave::wait() {
  require(pending(), "BackgroundSave::wait: no save is pending");
  return result_.get();
}

void BackgroundSave::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return next_.valid() || stop_; });
    if (!next_.valid()) return;
    std::packaged_task<SaveResult()> save = std::move(next_);
    lock.unlock();
    save();
    lock.lock();
  }
}

}  // namespace megalith
