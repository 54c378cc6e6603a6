#include "core/device/event.h"

#include <fmt/format.h>

#include <atomic>

#include "core/base/error.h"
#include "core/device/cuda_stream.h"

namespace megalith {

void CpuEventPoint::fire(std::exception_ptr cause) {
  {
    std::lock_guard lock(mutex);
    fired = true;
    fired_at = std::chrono::steady_clock::now();
    error = std::move(cause);
  }
  changed.notify_all();
}

void CpuEventPoint::wait() {
  std::unique_lock lock(mutex);
  changed.wait(lock, [this] { return fired; });
  if (error) std::rethrow_exception(error);
}

Event::Event(std::string name, bool timed) : name_(std::move(name)), timed_(timed), id_(next_id()) {}

double seconds_between(const Event& earlier, const Event& later) {
  require(earlier.timed_ && later.timed_ && earlier.recorded_ && later.recorded_,
          "seconds_between needs two timed events that were recorded");
  if (earlier.cuda_ && later.cuda_) return later.cuda_->seconds_since(*earlier.cuda_);
  if (!earlier.cpu_ || !later.cpu_) return 0;
  earlier.cpu_->wait();
  later.cpu_->wait();
  return std::chrono::duration<double>(later.cpu_->fired_at - earlier.cpu_->fired_at).count();
}

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
  if (cuda_ != nullptr) return cuda_->wait_on_host();
  if (cpu_ != nullptr) cpu_->wait();
}

}  // namespace megalith
