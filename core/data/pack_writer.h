// Writer of a dataset of packs (pack_record.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/files/output_file.h"
#include "core/data/indexed_dataset.h"
#include "core/data/pack_record.h"

namespace megalith {

struct PackWriterConfig {
  std::int64_t seq_length = 0;    // maximum rows of a pack
  std::int64_t pad_multiple = 1;  // of the rows of a document; a divisor of seq_length
  TokenType token_type = TokenType::kI32;
  std::string tokenizer;  // identity for PREFIX.tokenizer; empty: unknown
  const FileObserver* observer = nullptr;
};

// All files appear when commit() returns; until then an older dataset of the same prefix stays.
class PackWriter {
 public:
  PackWriter(const std::string& prefix, const PackWriterConfig& config);

  // Adds a document of at least one token to the current pack. Token i is trained if trained[i] is not 0. The mark of
  // the first token is ignored and written as 0, since no row predicts that token.
  void add_document(std::span<const std::int32_t> tokens, std::span<const std::uint8_t> trained);
  void end_pack();  // of at least one document
  void commit();

  const PackRecord& record() const { return record_; }  // of the packs so far

 private:
  std::string prefix_;
  PackRecord record_;
  IndexedDatasetWriter tokens_;
  IndexedDatasetWriter mask_;
  OutputFile record_file_;
  std::int64_t rows_ = 0;  // of the current pack
  std::vector<std::int32_t> marks_;
};

}  // namespace megalith
