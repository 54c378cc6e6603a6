// Megatron's indexed dataset: tokens of many sequences in PREFIX.bin, lengths and offsets in PREFIX.idx. Both files are
// little-endian; the layout of the index is
//   magic "MMIDIDX\0\0" [9], u64 version = 1, u8 token type, u64 S sequences, u64 D document indices,
//   i32 length [S], i64 byte offset in .bin [S], i64 first sequence of each document [D]; the last is S.
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

// Stored type of a token; the values are those of the file.
enum class TokenType : std::uint8_t { kU8 = 1, kI8 = 2, kI16 = 3, kI32 = 4, kI64 = 5, kF64 = 6, kF32 = 7, kU16 = 8 };

std::string to_string(TokenType type);                    // "u16"
std::int64_t token_bytes(TokenType type);                 // 2 for kU16
TokenType token_type_for_vocab(std::int64_t vocab_size);  // Megatron's choice: kU16 below 65500, else kI32

// Reader of a dataset. Opening checks every number of the index against the others and the file sizes.
// Later reads thus stay in the mapping. A violation is an Error kFormat with file, byte, expected and actual value.
// An unreadable file is an Error kFileIo. Reads are thread-safe.
class IndexedDataset {
 public:
  static IndexedDataset open(const std::string& prefix);

  const std::string& prefix() const { return prefix_; }
  TokenType token_type() const { return type_; }
  std::int64_t num_sequences() const { return num_sequences_; }
  std::int64_t num_documents() const { return num_document_indices_ - 1; }
  std::int64_t num_tokens() const { return num_tokens_; }
  std::int32_t sequence_length(std::int64_t sequence) const;  // in tokens
  std::int64_t document_begin(std::int64_t document) const;   // first sequence; num_documents() is a valid argument

  // Fails with kFormat if a file was written to or replaced since it was opened. A changed file may hold other tokens,
  // and a restarted run would read them. Costs two system calls.
  void check_unchanged() const;

  // Reads tokens [offset, offset + out.size()) of a sequence. A stored value beyond int32 is an Error kFormat.
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

// Writer of a dataset. The files appear when commit() returns; until then an older dataset of the same prefix stays.
class IndexedDatasetWriter {
 public:
  // `tokenizer` is its identity for PREFIX.tokenizer (DatasetTokenizer); empty: unknown.
  IndexedDatasetWriter(const std::string& prefix, TokenType type, std::string tokenizer = {},
                       const FileObserver* observer = nullptr);

  // Adds at most 2^31 - 1 tokens, each within the range of the token type, as a sequence of the current document.
  void add_sequence(std::span<const std::int32_t> tokens);
  void end_document();
  void add_document(std::span<const std::int32_t> tokens);  // of one sequence
  void stage();   // completes both files under temporary names and makes them durable; at most once
  void commit();  // stages if needed, and removes the records of an older dataset

  std::int64_t num_documents() const { return static_cast<std::int64_t>(document_ends_.size()); }
  std::int64_t num_tokens() const { return num_tokens_; }

 private:
  std::string prefix_;
  TokenType type_;
  std::string tokenizer_;
  const FileObserver* observer_;
  OutputFile tokens_;
  OutputFile index_;
  std::vector<std::int32_t> lengths_;
  std::vector<std::int64_t> document_ends_;  // sequences up to the end of each document
  std::vector<std::byte> encoded_;
  bool staged_ = false;
  std::int64_t num_tokens_ = 0;
};

// Content of PREFIX.tokenizer: the tokenizer of PREFIX.bin and PREFIX.idx in three lines:
//   tokenizer IDENTITY        from Tokenizer::identity()
//   documents N
//   tokens N                  both numbers identify the dataset that the record belongs to
// Datasets of other programs have no such file.
struct DatasetTokenizer {
  std::string identity;
  std::int64_t documents = 0;
  std::int64_t tokens = 0;
};

// Parses exactly these lines. Error kFormat for any other text; `subject` is the file.
DatasetTokenizer parse_dataset_tokenizer(std::string_view text, const std::string& subject);

// Returns the recorded tokenizer's identity, if any. Error kFormat for a damaged record or one of another dataset.
std::optional<std::string> recorded_tokenizer(const IndexedDataset& dataset);

}  // namespace megalith
