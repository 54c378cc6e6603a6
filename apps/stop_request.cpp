#include "apps/stop_request.h"

#include <fmt/format.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <string_view>

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/file.h"
#include "core/base/log.h"
#include "core/base/output_file.h"

namespace megalith {

namespace {

// Of the handler, which may use nothing that is not lock-free.
std::atomic<StopRequest*> taken_by{nullptr};
std::atomic<std::int64_t> first_at{0};  // ms of the monotonic clock; 0: no signal yet
std::atomic<bool> tells_first{false};

std::int64_t now_ms() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);  // legal in a handler
  return static_cast<std::int64_t>(now.tv_sec) * 1000 + now.tv_nsec / 1'000'000;
}

void tell() {
  constexpr std::string_view kText =
      "\n[megalith] asked to stop: saves after the step under way; a second signal ends the run at once\n";
  const int before = errno;
  static_cast<void>(!write(STDERR_FILENO, kText.data(), kText.size()));
  errno = before;
}

void handle(int signal) {
  StopRequest* const request = taken_by.load();
  if (signal == SIGPIPE) {
    if (request != nullptr) request->requested.store(true);
    return;
  }
  constexpr std::int64_t kOneRequestMs = 100;
  std::int64_t first = 0;
  const std::int64_t now = now_ms();
  if (first_at.compare_exchange_strong(first, now)) {
    if (tells_first) tell();
  } else if (now - first >= kOneRequestMs) {
    _exit(128 + signal);
  }
  if (request != nullptr) request->requested.store(true);
}

}  // namespace

void stop_on_signal(int signal, StopRequest& request, bool tells) {
  static_assert(std::atomic<std::int64_t>::is_always_lock_free && std::atomic<StopRequest*>::is_always_lock_free);
  taken_by.store(&request);
  tells_first.store(tells);
  std::signal(signal, handle);
}

bool StopFile::exists() {
  if (path_.empty()) return false;
  try {
    return look_at(path_).has_value();
  } catch (const Error& error) {
    if (!warned_) log_warning(fmt::format("--stop-file: {}; it will not stop this run", error.what()));
    warned_ = true;
    return false;
  }
}

void StopFile::remove() const {
  const FaultScope scope("stop_file");
  try {
    remove_file(path_);
  } catch (const Error& error) {
    log_warning(fmt::format("--stop-file: {}; remove it before the next run", error.what()));
  }
}

}  // namespace megalith
