#include "core/base/machine/stop_request.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <ctime>
#include <string_view>

#include "core/base/error.h"
#include "core/base/exit_record.h"
#include "core/base/files/fault.h"
#include "core/base/log.h"

namespace megalith {

namespace {

// State of the signal handler, which may use only lock-free variables.
std::atomic<StopRequest*> taken_by{nullptr};
std::atomic<std::int64_t> first_at{0};  // ms of the monotonic clock; 0: no signal yet
std::atomic<bool> reports_first{false};
std::atomic<bool> reported_repeating{false};

std::int64_t now_ms() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);  // async-signal-safe
  return static_cast<std::int64_t>(now.tv_sec) * 1000 + now.tv_nsec / 1'000'000;
}

bool repeats(int signal) { return signal != SIGINT && signal != SIGTERM && signal != SIGUSR1 && signal != SIGUSR2; }

void print_notice(bool may_repeat) {
  constexpr std::string_view kText = "\n[megalith] asked to stop: saves after the step under way";
  constexpr std::string_view kSecond = "; a second signal ends the run at once";
  const int before = errno;
  for (const std::string_view text : {kText, may_repeat ? std::string_view() : kSecond, std::string_view("\n")})
    static_cast<void>(!write(STDERR_FILENO, text.data(), text.size()));
  errno = before;
}

void handle(int signal) {
  StopRequest* const request = taken_by.load();
  if (repeats(signal)) {
    if (signal != SIGPIPE && reports_first && !reported_repeating.exchange(true)) print_notice(true);
    if (request != nullptr) request->requested.store(true);
    return;
  }
  constexpr std::int64_t kOneRequestMs = 100;
  std::int64_t first = 0;
  const std::int64_t now = now_ms();
  if (first_at.compare_exchange_strong(first, now)) {
    if (reports_first) print_notice(false);
  } else if (now - first >= kOneRequestMs) {
    record_exit_code(128 + signal);
    _exit(128 + signal);
  }
  if (request != nullptr) request->requested.store(true);
}

// Returns whether the parent ignored the signal; this program ignores only SIGPIPE and SIGXFSZ.
bool is_ignored(int signal) {
  struct sigaction action {};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

void stop_on_signal(int signal, StopRequest& request, bool reports) {
  static_assert(std::atomic<std::int64_t>::is_always_lock_free && std::atomic<StopRequest*>::is_always_lock_free);
  taken_by.store(&request);
  reports_first.store(reports);
  const bool stays = repeats(signal) && signal != SIGPIPE && is_ignored(signal);
  if (!stays) std::signal(signal, handle);
}

void StopFile::warn(const std::string& why) {
  if (!std::exchange(warned_, true)) log_warning(fmt::format("--stop-file: {}; it will not stop this run", why));
}

std::optional<NameInfo> StopFile::look() {
  if (path_.empty()) return {};
  try {
    return look_at_name(path_);
  } catch (const Error& error) {
    warn(error.what());
    return {};
  }
}

void StopFile::require_free() {
  const std::optional<NameInfo> there = look();
  if (!there) return;
  refuse_usage("--stop-file " + path_, {.expected = "a name under which there is nothing when the run starts",
                                        .got = there->kind,
                                        .remedy = "remove it if it was meant for another run, or name another file"});
}

bool StopFile::exists() {
  const std::optional<NameInfo> there = look();
  if (!there) return false;
  if (there->type == EntryType::kFile && there->is_own) return true;
  warn(fmt::format("{}: expected a regular file of the user who runs the program, got {}{}", path_, there->kind,
                   there->is_own ? "" : " of another user"));
  return false;
}

void StopFile::remove() {
  const FaultScope scope("stop_file");
  try {
    if (exists()) remove_file(path_);
  } catch (const Error& error) {
    log_warning(fmt::format("--stop-file: {}; remove it before the next run", error.what()));
  }
}

}  // namespace megalith
