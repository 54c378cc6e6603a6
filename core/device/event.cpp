#include "core/device/event.h"

#include <atomic>

namespace megalith {

namespace {

std::uint64_t next_event_id() {
  static std::atomic<std::uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

Event::Event(std::string name) : name_(std::move(name)), id_(next_event_id()) {}

void Event::wait_on_host() const {
  std::unique_lock lock(cpu_->mutex);
  cpu_->fired.wait(lock, [&] { return cpu_->completed >= records_; });
  if (cpu_->error) std::rethrow_exception(cpu_->error);
}

}  // namespace megalith
