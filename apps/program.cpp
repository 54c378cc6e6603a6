#include "apps/program.h"

#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <new>

namespace megalith {

ExitCode report_exception(std::string_view name, std::string_view label) {
  const std::string prefix =
      label.empty() ? fmt::format("{}: error: ", name) : fmt::format("{}: error: [{}] ", name, label);
  const auto print = [&](const char* text) { fmt::print(stderr, "{}{}\n", prefix, text); };
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
