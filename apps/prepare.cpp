#include "apps/prepare.h"

#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <new>

#include "core/base/cpu_check.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/mapped_file.h"

namespace megalith {

namespace {

void run_command(const PrepareCommand& command) {
  if (!command.print.empty()) {
    fmt::print("{}\n", command.print);
  } else if (command.inspect) {
    inspect(command.inspect_options);
  } else {
    prepare(command.prepare_options);
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    fail({.code = ExitCode::kFileIo,
          .subject = "standard output",
          .expected = "to write to it",
          .got = "an error",
          .show_place = false});
  }
}

int report_error(ExitCode code, const char* message) {
  log_last_words(fmt::format("prepare: error: {}", message));
  return static_cast<int>(code);
}

}  // namespace

}  // namespace megalith

int main(int argc, char** argv) {
  using megalith::ExitCode;
  megalith::require_cpu_baseline();
  megalith::end_on_lost_mappings();
  try {
    megalith::run_command(megalith::parse_prepare_command({argv + 1, argv + argc}));
    return 0;
  } catch (const megalith::Error& error) {
    return megalith::report_error(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return megalith::report_error(ExitCode::kOutOfMemory, "out of memory");
  } catch (const std::exception& error) {
    return megalith::report_error(ExitCode::kInternal, error.what());
  }
}
