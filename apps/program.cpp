#include "apps/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>

#include "core/base/log.h"

namespace megalith {

ExitCode report_exception(std::string_view name, std::string_view label) {
  // One line in one piece, and without an allocation, which may be what failed.
  const auto print = [&](std::string_view text) {
    const std::string_view open = label.empty() ? "" : "[", close = label.empty() ? "" : "] ";
    char line[8192];
    const auto end = fmt::format_to_n(line, sizeof(line), "{}: error: {}{}{}{}", name, open, label, close, text);
    log_last_words({line, std::min(end.size, sizeof(line))});
  };
  try {
    throw;
  } catch (const Error& error) {
    print(error.what());
    return error.code();
  } catch (const std::bad_alloc&) {
    print("out of host memory");
    return ExitCode::kOutOfMemory;
  } catch (const std::exception& error) {
    print(error.what());
    return ExitCode::kInternal;
  }
}

int run_program(std::string_view name, const std::function<ExitCode()>& work) {
  try {
    const ExitCode code = work();
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
      fail(
          {.code = ExitCode::kFileIo, .subject = "standard output", .expected = "to write to it", .show_place = false});
    }
    return static_cast<int>(code);
  } catch (...) {
    return static_cast<int>(report_exception(name, ""));
  }
}

}  // namespace megalith
