#include "apps/train/start_watch.h"

#include <errno.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "core/base/exit_record.h"

namespace megalith {

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kPeriod(50);
constexpr std::chrono::seconds kMostOfAPeriod(1);  // a longer one was suspended

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
  waited_ = {};
}

void StartWatch::end() { begin({}, std::chrono::milliseconds(0)); }

void StartWatch::watch() {
  std::unique_lock lock(mutex_);
  for (auto before = Clock::now(); !changed_.wait_for(lock, kPeriod, [this] { return stop_; });) {
    const auto now = Clock::now();
    waited_ += std::min<Clock::duration>(now - std::exchange(before, now), kMostOfAPeriod);
    if (timeout_.count() == 0 || waited_ < timeout_) continue;
    const std::string line =
        fmt::format("{}: error: {}{}: expected {} within {:.1f} s (--comm-timeout), got a timeout; {}\n",
                    program_invocation_short_name, label_.empty() ? "" : "[" + label_ + "] ", phase_.what,
                    phase_.expected, std::chrono::duration<double>(timeout_).count(), phase_.remedy);
    static_cast<void>(!write(STDERR_FILENO, line.data(), line.size()));
    record_exit_code(static_cast<int>(ExitCode::kCommunication));
    _exit(static_cast<int>(ExitCode::kCommunication));  // not by MPI, which may be what hangs
  }
}

std::chrono::milliseconds timeout_of(double comm_timeout_seconds, double distributed_timeout_minutes) {
  const double seconds = comm_timeout_seconds > 0 ? comm_timeout_seconds : 60 * distributed_timeout_minutes;
  return std::chrono::milliseconds(std::max<std::int64_t>(1, std::llround(seconds * 1000)));
}

std::chrono::milliseconds at_start(std::chrono::milliseconds timeout) {
  return std::max<std::chrono::milliseconds>(timeout, std::chrono::seconds(5));
}

std::chrono::milliseconds timeout_of(const std::vector<std::string>& arguments) {
  double seconds = 0, minutes = 10;
  const auto take = [&](std::size_t at, std::string_view flag, double& value) {
    const std::string& word = arguments[at];
    const char* text = "";
    if (word == flag && at + 1 < arguments.size()) text = arguments[at + 1].c_str();
    if (word.size() > flag.size() && word.starts_with(flag) && word[flag.size()] == '=')
      text = word.c_str() + flag.size() + 1;
    const double read = std::strtod(text, nullptr);
    if (read > 0 && read < 1e8) value = read;  // what is wrong with it, the flags will tell
  };
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    take(i, "--comm-timeout", seconds);
    take(i, "--distributed-timeout-minutes", minutes);
  }
  return timeout_of(seconds, minutes);
}

}  // namespace megalith
