#include "parallel/checkpoint/background_save.h"

#include <fmt/format.h>

#include <utility>

#include "core/base/error.h"
#include "core/base/fault.h"
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
  if (!error_) return;
  try {
    std::rethrow_exception(error_);
  } catch (const std::exception& error) {
    log_warning(fmt::format("checkpoint of step {} was not saved: {}", request_.state.step, error.what()));
  }
}

void BackgroundSave::begin(SaveRequest request, std::function<void()> data_ready) {
  require(!pending_, "BackgroundSave::begin: a save is pending");
  pending_ = true;
  {
    const std::lock_guard lock(mutex_);
    request_ = std::move(request);
    data_ready_ = std::move(data_ready);
    writing_ = true;
  }
  changed_.notify_all();
}

std::optional<SaveResult> BackgroundSave::poll() {
  if (!pending_) return std::nullopt;
  {
    const std::lock_guard lock(mutex_);
    if (writing_) return std::nullopt;
  }
  return take();
}

SaveResult BackgroundSave::wait() {
  require(pending_, "BackgroundSave::wait: no save is pending");
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !writing_; });
  }
  return take();
}

SaveResult BackgroundSave::take() {
  pending_ = false;
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  return std::move(result_);
}

void BackgroundSave::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return writing_ || stop_; });
    if (!writing_) return;
    lock.unlock();  // the caller leaves alone what a save under way uses
    try {
      data_ready_();
      fault_point("async_save.copied");
      result_ = save_checkpoint(request_);
    } catch (...) {
      error_ = std::current_exception();
    }
    lock.lock();
    writing_ = false;
    changed_.notify_all();
  }
}

}  // namespace megalith
