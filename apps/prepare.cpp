#include "apps/prepare.h"

#include <fmt/format.h>

#include "apps/program.h"
#include "core/base/cpu_check.h"
#include "core/base/mapped_file.h"

int main(int argc, char** argv) {
  using namespace megalith;
  require_cpu_baseline();
  end_on_lost_mappings();
  return run_program("prepare", [&] {
    const PrepareCommand command = parse_prepare_command({argv + 1, argv + argc});
    if (!command.print.empty()) {
      fmt::print("{}\n", command.print);
    } else if (command.inspect) {
      inspect(command.inspect_options);
    } else {
      prepare(command.prepare_options);
    }
    return ExitCode::kOk;
  });
}
