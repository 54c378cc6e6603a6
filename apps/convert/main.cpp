// convert --from hf|native: converts weights of transformers to a checkpoint of train, or back.
#include <cstdio>

#include "apps/convert/converter.h"
#include "apps/flags/flags.h"
#include "core/base/files/mapped_file.h"
#include "core/base/machine/cpu_check.h"
#include "core/base/machine/program.h"

int main(int argc, char** argv) {
  using namespace megalith;
  require_cpu_baseline();
  end_on_lost_mappings();
  return run_program("convert", [&] {
    const Options options = parse_options(App::kConvert, argc, argv);
    std::printf("%s\n", convert(options).c_str());
    return ExitCode::kOk;
  });
}
