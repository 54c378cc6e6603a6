#include "core/base/machine/program.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "core/base/files/standard_files.h"
#include "core/base/log.h"
#include "core/base/machine/launch.h"
#include "core/base/memory_limit.h"

namespace megalith {

ExitCode report_exception(std::string_view name, std::string_view label) {
  // Prints one line with one call and without allocation, since memory may be exhausted.
  const auto print = [&](std::string_view text, const std::optional<MemoryLimit>& limit = {}) {
    const std::string_view open = label.empty() ? "" : "[", close = label.empty() ? "" : "] ";
    char line[8192];
    auto end = fmt::format_to_n(line, sizeof(line), "{}: error: {}{}{}{}", name, open, label, close, text);
    std::size_t size = std::min(end.size, sizeof(line));
    if (limit) {
      end = fmt::format_to_n(line + size, sizeof(line) - size, ": {}", LimitText(*limit).view());
      size = std::min(size + end.size, sizeof(line));
    }
    log_last_words({line, size});
  };
  try {
    throw;
  } catch (const Error& error) {
    print(error.what());
    return error.code();
  } catch (const std::bad_alloc&) {
    print("out of host memory", met_limit(kUnknownBytes));
    return ExitCode::kOutOfMemory;
  } catch (const std::system_error& error) {
    if (std::ferror(stdout) != 0) {  // thrown by fmt::print
      print(kOutputLost);
      return ExitCode::kFileIo;
    }
    if (error.code() == std::errc::resource_unavailable_try_again) {  // thrown by std::thread
      if (const std::optional<MemoryLimit> limit = met_limit_of_thread()) {
        print("no memory for the stack of a thread", limit);
        return ExitCode::kOutOfMemory;
      }
      print(
          "the system provides no more threads; raise the limit of processes (ulimit -u, or pids.max of the cgroup), "
          "or start fewer ranks on this machine");
      return ExitCode::kOutOfMemory;
    }
    print(error.what());
    return ExitCode::kInternal;
  } catch (const std::exception& error) {
    print(error.what());
    return ExitCode::kInternal;
  }
}

namespace {

std::function<void()>& end_of_process() {
  static std::function<void()> end;
  return end;
}

}  // namespace

void end_where_no_throw(std::function<void()> end) {
  end_of_process() = std::move(end);
  std::set_terminate([] {
    static std::atomic<std::thread::id> ends;
    std::thread::id none;
    const bool is_first = ends.compare_exchange_strong(none, std::this_thread::get_id());
    if (!is_first && none != std::this_thread::get_id())
      for (;;) ::pause();  // the first thread ends the process
    if (is_first && std::current_exception() && end_of_process()) end_of_process()();
    std::abort();
  });
}

int run_program(std::string_view name, const std::function<ExitCode()>& work) {
  guard_standard_files();
  end_where_no_throw([name] { std::_Exit(static_cast<int>(report_exception(name, ""))); });
  try {
    const Launch launch = launch_of(LaunchSigns::kCertain);
    if (launch.ranks > 1) {
      refuse_usage(launch.sign, {.expected = fmt::format("one process of {}", name),
                                 .got = fmt::format("{} together", launch.ranks),
                                 .remedy = fmt::format(
                                     "start {} without a launcher; if it is the only process, run env -u {} {} ...",
                                     name, launch.sign.substr(0, launch.sign.find('=')), name)});
    }
    const ExitCode code = work();
    check_standard_output();
    return static_cast<int>(code);
  } catch (...) {
    return static_cast<int>(report_exception(name, ""));
  }
}

}  // namespace megalith
