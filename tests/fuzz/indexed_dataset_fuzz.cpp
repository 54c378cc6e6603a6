// PREFIX.idx and PREFIX.bin: two bytes say how large the .bin is, the rest is the .idx. Every token is read.
#include <algorithm>
#include <vector>

#include "core/data/indexed_dataset.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace megalith;
  static const fuzz::ScratchFile index("data.idx");
  static const fuzz::ScratchFile tokens("data.bin");
  static const std::string prefix = index.path().substr(0, index.path().size() - 4);
  fuzz::Input input(data, size);
  const std::size_t bytes = input.byte() + 256u * input.byte();
  std::string content(bytes, '\0');
  for (std::size_t i = 0; i < bytes; ++i) content[i] = static_cast<char>(i * 37 + (i >> 5));
  tokens.assign(content);
  index.assign(input.rest());
  fuzz::expect_result_or_error([&] {
    const IndexedDataset dataset = IndexedDataset::open(prefix);
    std::vector<std::int32_t> out;
    for (std::int64_t s = 0; s < dataset.num_sequences(); ++s) {
      out.resize(static_cast<std::size_t>(dataset.sequence_length(s)));
      dataset.read(s, 0, out);
    }
    for (std::int64_t d = 0; d <= dataset.num_documents(); ++d) {
      if (dataset.document_begin(d) > dataset.num_sequences()) fuzz::defect("a document beyond the last sequence");
    }
  });
  return 0;
}
