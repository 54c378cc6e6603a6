// A file of --rates; rates that were read answer for any size.
#include "parallel/cost/rates.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace megalith;
  const fuzz::Input input(data, size);
  fuzz::expect_result_or_error([&] {
    const Rates rates = parse_rates(input.rest(), "rates.toml");
    for (const double at : {1e-3, 1.0, 4096.0, 1e12}) {
      const Rates::AttentionPoint attention = rates.attention_rate(at, at);
      if (!(rates.gemm_rate(at) > 0) || !(attention.forward > 0) || !(attention.backward > 0))
        fuzz::defect("a rate of 0");
    }
  });
  return 0;
}
