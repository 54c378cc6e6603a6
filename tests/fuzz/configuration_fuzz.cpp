// A --config file, to the end of all checks.
#include "apps/flags/flags.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace megalith;
  static FlagParser parser(App::kTrain);
  const fuzz::Input input(data, size);
  fuzz::expect_result_or_error([&] { parser.parse_text(input.rest(), "run.toml"); });
  return 0;
}
