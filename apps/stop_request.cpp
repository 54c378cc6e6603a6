#include "apps/stop_request.h"

#include <fmt/format.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <system_error>

#include "core/base/log.h"

namespace megalith {

namespace {

// Of the handler, which may use nothing that is not lock-free.
std::atomic<StopRequest*> taken_by{nullptr};
std::atomic<std::int64_t> first_at{0};  // ms of the monotonic clock; 0: no signal yet

std::int64_t now_ms() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);  // legal in a handler
  return static_cast<std::int64_t>(now.tv_sec) * 1000 + now.tv_nsec / 1'000'000;
}

void handle(int signal) {
  constexpr std::int64_t kOneRequestMs = 100;
  std::int64_t first = 0;
  const std::int64_t now = now_ms();
  if (!first_at.compare_exchange_strong(first, now) && now - first >= kOneRequestMs) _exit(128 + signal);
  if (StopRequest* request = taken_by.load()) request->requested.store(true);
}

}  // namespace

void stop_on_signal(int signal, StopRequest& request) {
  static_assert(std::atomic<std::int64_t>::is_always_lock_free && std::atomic<StopRequest*>::is_always_lock_free);
  taken_by.store(&request);
  std::signal(signal, handle);
}

bool stop_file_exists(const std::string& file) { return !file.empty() && access(file.c_str(), F_OK) == 0; }

void remove_stop_file(const std::string& file) {
  if (unlink(file.c_str()) == 0 || errno == ENOENT) return;
  log_warning(fmt::format("--stop-file {}: could not be removed: {}; remove it before the next run", file,
                          std::generic_category().message(errno)));
}

}  // namespace megalith
