// PREFIX.tokenizer of a dataset.
#include "core/data/indexed_dataset.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace megalith;
  const fuzz::Input input(data, size);
  fuzz::expect_result_or_error([&] {
    const DatasetTokenizer record = parse_dataset_tokenizer(input.rest(), "data.tokenizer");
    if (record.identity.empty() || record.documents < 0 || record.tokens < 0) fuzz::defect("a record without a value");
  });
  return 0;
}
