#include "parallel/watch/start_watch.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "core/base/error.h"
#include "core/base/exit_record.h"

namespace megalith {

namespace {

using Clock = AwakeTime::Clock;
constexpr std::chrono::milliseconds kPeriod(50);

}  // namespace

StartWatch::StartWatch(std::string label) : label_(std::move(label)) {
  thread_ = std::thread([this] { watch(); });
}

StartWatch::~StartWatch() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void StartWatch::begin(Phase phase, std::chrono::milliseconds timeout) {
  const std::lock_guard lock(mutex_);
  phase_ = std::move(phase);
  timeout_ = timeout;
  begun_ = Clock::now();
}

void StartWatch::end() { begin({}, std::chrono::milliseconds(0)); }

void StartWatch::watch() {
  AwakeTime awake;
  awake.look(Clock::now());
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kPeriod, [this] { return stop_; })) {
    awake.look(Clock::now());
    if (timeout_.count() == 0 || awake.since(begun_) < timeout_) continue;
    const std::string line =
        fmt::format("{}: error: {}{}: expected {} within {:.1f} s (--comm-timeout), got a timeout; {}\n",
                    program_invocation_short_name, label_.empty() ? "" : "[" + label_ + "] ", phase_.what,
                    phase_.expected, std::chrono::duration<double>(timeout_).count(), phase_.remedy);
    static_cast<void>(!write(STDERR_FILENO, line.data(), line.size()));
    record_exit_code(static_cast<int>(ExitCode::kCommunication));
    _exit(static_cast<int>(ExitCode::kCommunication));  // bypasses MPI, which may be the part that hangs
  }
}

}  // namespace megalith
