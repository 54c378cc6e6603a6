// Megatron's indexed dataset: tokens of many sequences in PREFIX.bin, their lengths and places in PREFIX.idx. Both are
// little-endian; the layout of the index is
//   magic "MMIDIDX\0\0" [9], u64 version = 1, u8 token type, u64 S sequences, u64 D document indices,
//   i32 length [S], i64 byte offset in .bin [S], i64 first sequence of each document [D], whose last is S.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/files/file.h"
#include "core/base/files/mapped_file.h"
#include "core/base/files/output_file.h"

namespace megalith {

// How a token is stored; the numbers are those of the file.
enum class TokenType : std::uint8_t { kU8 = 1, kI8 = 2, kI16 = 3, kI32 = 4, kI64 = 5, kF64 = 6, kF32 = 7, kU16 = 8 };

std::string to_string(TokenType type);                    // "u16"
std::int64_t token_bytes(TokenType type);                 // 2 for kU16
TokenType token_type_for_vocab(std::int64_t vocab_size);  // Megatron's choice: kU16 below 65500, else kI32

// Reads a dataset. Opening checks every number of the index against the others and the files' sizes, so that no later
// read leaves the mapping; a violation is an Error kFormat that names file, byte, expected and got. A file that cannot
// be read is an Error kFileIo. Reads may run on many threads at once.
class IndexedDataset {
 public:
  static IndexedDataset open(const std::string& prefix);

  const std::string& prefix() const { return prefix_; }
  TokenType token_type() const { return type_; }
  std::int64_t num_sequences() const { return num_sequences_; }
  std::int64_t num_documents() const { return num_document_indices_ - 1; }
  std::int64_t num_tokens() const { return num_tokens_; }
  std::int32_t sequence_length(std::int64_t sequence) const;  // in tokens
  std::int64_t document_begin(std::int64_t document) const;   // its first sequence; num_documents() is a valid argument

  // Error kFormat for a file that was written to, or another in its place, since it was opened: it may hold other
  // tokens, or the run that is started again would read others. Two calls of the system.
  void check_unchanged() const;

  // Tokens [offset, offset + out.size()) of a sequence. A stored value beyond int32 is an Error kFormat.
  void read(std::int64_t sequence, std::int64_t offset, std::span<std::int32_t> out) const;

 private:
  IndexedDataset(std::string prefix, MappedFile index, File tokens);
  void check_header();
  void check_sequences();
  void check_documents();

  std::string prefix_;
  MappedFile index_;
  File tokens_;  // read, not mapped: an error of the disk is then an Error, not a signal
  FileStamp tokens_stamp_;
  TokenType type_ = TokenType::kU8;
  std::int64_t num_sequences_ = 0;
  std::int64_t num_document_indices_ = 0;
  std::int64_t num_tokens_ = 0;
  std::size_t lengths_at_ = 0;  // byte offsets in the index
  std::size_t offsets_at_ = 0;
  std::size_t documents_at_ = 0;
};

// Writes a dataset in which each sequence is a document. Its files appear when commit() returns, not before; an older
// dataset of the same prefix stays until then.
class IndexedDatasetWriter {
 public:
  // `tokenizer`: its identity, recorded beside the tokens (DatasetTokenizer); empty: not known.
  IndexedDatasetWriter(const std::string& prefix, TokenType type, std::string tokenizer = {},
                       const FileObserver* observer = nullptr);

  // At most 2^31 - 1 tokens, each within the range of the token type.
  void add_document(std::span<const std::int32_t> tokens);
  void commit();

  std::int64_t num_documents() const { return static_cast<std::int64_t>(lengths_.size()); }
  std::int64_t num_tokens() const { return num_tokens_; }

 private:
  std::string prefix_;
  TokenType type_;
  std::string tokenizer_;
  const FileObserver* observer_;
  OutputFile tokens_;
  OutputFile index_;
  std::vector<std::int32_t> lengths_;
  std::vector<std::byte> encoded_;
  std::int64_t num_tokens_ = 0;
};

// PREFIX.tokenizer: which tokenizer made the tokens, three lines beside PREFIX.bin and PREFIX.idx:
//   tokenizer IDENTITY        as Tokenizer::identity() has it
//   documents N
//   tokens N                  these two say whether the file is still of the dataset beside it
// A dataset of another program has none.
struct DatasetTokenizer {
  std::string identity;
  std::int64_t documents = 0;
  std::int64_t tokens = 0;
};

// Strict: these lines and nothing else. Error kFormat; `subject` names the file.
DatasetTokenizer parse_dataset_tokenizer(std::string_view text, const std::string& subject);

// The tokenizer's identity where it is recorded. Error kFormat for a record that is damaged or of another dataset.
std::optional<std::string> recorded_tokenizer(const IndexedDataset& dataset);

}  // namespace megalith
