// Input of prepare. The first byte selects JSON lines, or text that lines or separators cut into documents. Either may
// be compressed.
#include "core/data/document_reader.h"
#include "core/data/unpacked_file.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace megalith;
  static const fuzz::ScratchFile lines("input.jsonl");
  static const fuzz::ScratchFile text("input.txt");
  fuzz::Input input(data, size);
  const int kind = input.byte() % 4;
  const std::string_view rest = input.rest();
  const fuzz::ScratchFile& file = kind == 0 ? lines : text;
  file.assign(rest);
  DocumentOptions options;
  if (kind == 2) options.document_start = {"#", "Chapter"};
  if (kind == 3) options.document_separator = "";
  fuzz::expect_result_or_error([&] {
    std::size_t bytes = 0;
    for_each_document(file.path(), options, [&](std::string_view document) {
      if (document.empty()) fuzz::defect("an empty document");
      bytes += document.size();
    });
    const bool is_packed = compression_of(rest) != Compression::kNone;
    if (!is_packed && bytes > rest.size())
      fuzz::defect("more text than the file has");  // an escape is longer than its character
  });
  return 0;
}
