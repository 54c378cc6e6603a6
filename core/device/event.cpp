#include "core/device/event.h"

#include <fmt/format.h>

#include <atomic>

#include "core/base/error.h"
#include "core/device/cuda_event.h"
#include "core/device/device.h"

namespace megalith {

void CpuEventPoint::fire(std::exception_ptr cause) {
  {
    std::lock_guard lock(mutex);
    fired = true;
    error = std::move(cause);
  }
  changed.notify_all();
}

void CpuEventPoint::wait() {
  std::unique_lock lock(mutex);
  changed.wait(lock, [this] { return fired; });
  if (error) std::rethrow_exception(error);
}

Event::Event(std::string name) : name_(std::move(name)), id_(next_id()) {}

std::uint64_t Event::next_id() {
  static std::atomic<std::uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

Graph* Event::capturing() const {
  const std::shared_ptr<Graph*> token = capture_token_.lock();
  return token == nullptr ? nullptr : *token;
}

void Event::require_record_outside_graphs(std::string_view who) const {
  if (!in_graph_) return;
  fail({.subject = fmt::format("{} waits for event {}, whose latest record is inside a graph", who, name_),
        .remedy = "record it in the graph by record_external, or again outside of it"});
}

void Event::wait_on_host() const {
  require_record_outside_graphs("the host");
  if constexpr (kCudaBuilt) {
    if (cuda_ != nullptr) return cuda_->wait_on_host();
  }
  if (cpu_ != nullptr) cpu_->wait();
}

}  // namespace megalith
