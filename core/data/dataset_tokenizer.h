// PREFIX.tokenizer: which tokenizer made the tokens of an indexed dataset, three lines beside PREFIX.bin and
// PREFIX.idx:
//   tokenizer IDENTITY        as Tokenizer::identity() has it
//   documents N
//   tokens N                  these two say whether the file is still of the dataset beside it
// A dataset of another program has none.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace megalith {

class IndexedDataset;

struct DatasetTokenizer {
  std::string identity;
  std::int64_t documents = 0;
  std::int64_t tokens = 0;
};

std::string dataset_tokenizer_path(const std::string& prefix);

// Durable; replaces an older one. Error kFileIo.
void write_dataset_tokenizer(const std::string& prefix, const DatasetTokenizer& record);

// Strict: these lines and nothing else. Error kFormat; `subject` names the file.
DatasetTokenizer parse_dataset_tokenizer(std::string_view text, const std::string& subject);

// The tokenizer's identity where it is recorded. Error kFormat for a record that is damaged or of another dataset.
std::optional<std::string> recorded_tokenizer(const IndexedDataset& dataset);

}  // namespace megalith
