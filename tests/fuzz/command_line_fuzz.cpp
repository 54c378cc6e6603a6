// The command line of each program: the first byte selects the program, the rest are the arguments, separated by NUL.
#include <array>
#include <vector>

#include "apps/flags/flags.h"
#include "core/base/files/fault.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace megalith;
  static std::array<FlagParser, kApps.size()> parsers = {
      FlagParser(App::kTrain),   FlagParser(App::kGenerate), FlagParser(App::kPlan),    FlagParser(App::kReport),
      FlagParser(App::kConvert), FlagParser(App::kPrepare),  FlagParser(App::kInspect), FlagParser(App::kEvaluate)};
  fuzz::Input input(data, size);
  FlagParser& parser = parsers[input.byte() % parsers.size()];
  std::vector<std::string> arguments(1);
  for (const char c : input.rest()) {
    if (c == '\0') {
      arguments.emplace_back();
    } else {
      arguments.back() += c;
    }
  }
  // Skips --config, which would read a file of the machine; the next target tests a file's text.
  for (const std::string& argument : arguments) {
    if (argument.starts_with("--config")) return 0;
  }
  // Each argument, which may be a byte and a NUL, is compared with each flag.
  fuzz::expect_result_or_error([&] { parser.parse(arguments); }, 20);
  disarm_faults();
  return 0;
}
