#include "core/data/indexed_dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "core/base/error.h"
#include "core/base/files/fault.h"
#include "core/data/data_record.h"

namespace megalith {

namespace {

static_assert(std::endian::native == std::endian::little, "the files are little-endian");

constexpr std::string_view kMagic("MMIDIDX\0\0", 9);
constexpr const char* kOutputScope = "prepare.output";
constexpr std::uint64_t kVersion = 1;
constexpr std::size_t kVersionAt = 9;
constexpr std::size_t kTypeAt = 17;
constexpr std::size_t kNumSequencesAt = 18;
constexpr std::size_t kNumDocumentIndicesAt = 26;
constexpr std::size_t kHeaderBytes = 34;

// Fields of the index are unaligned.
template <class Value>
Value load(std::span<const std::byte> bytes, std::size_t at) {
  Value value;
  std::memcpy(&value, bytes.data() + at, sizeof(Value));
  return value;
}

[[noreturn]] void refuse(const std::string& path, const std::string& place, const std::string& expected,
                         const std::string& got) {
  refuse_format(fmt::format("{}: {}", path, place), expected, got,
                "the file is damaged or not from a Megatron dataset: prepare it again");
}

std::string at_byte(std::size_t byte, std::string_view what) { return fmt::format("byte {} ({})", byte, what); }

// Adds b * c to a; returns false on overflow.
bool add_product(std::uint64_t& a, std::uint64_t b, std::uint64_t c) {
  std::uint64_t product = 0;
  return !__builtin_mul_overflow(b, c, &product) && !__builtin_add_overflow(a, product, &a);
}

// Calls `function` with a value of the C++ integer type of such tokens.
template <class Function>
auto with_stored_type(TokenType type, Function&& function) {
  switch (type) {
    case TokenType::kU8: return function(std::uint8_t{});
    case TokenType::kI8: return function(std::int8_t{});
    case TokenType::kI16: return function(std::int16_t{});
    case TokenType::kU16: return function(std::uint16_t{});
    case TokenType::kI32: return function(std::int32_t{});
    case TokenType::kI64: return function(std::int64_t{});
    default: fail({.subject = "IndexedDataset: no integer type"});
  }
}

template <class Stored>
bool widen(const std::byte* from, std::span<std::int32_t> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    Stored value;
    std::memcpy(&value, from + i * sizeof(Stored), sizeof(Stored));
    if constexpr (sizeof(Stored) > sizeof(std::int32_t)) {
      if (!std::in_range<std::int32_t>(value)) return false;
    }
    out[i] = static_cast<std::int32_t>(value);  // NOLINT(bugprone-signed-char-misuse): int8 tokens are numbers
  }
  return true;
}

template <class Stored>
void narrow(std::span<const std::int32_t> tokens, std::vector<std::byte>& out) {
  out.resize(tokens.size() * sizeof(Stored));
  bool fits = true;  // one check for all tokens, so that the loop has no branch
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    fits &= std::in_range<Stored>(tokens[i]);
    const auto value = static_cast<Stored>(tokens[i]);
    std::memcpy(out.data() + i * sizeof(Stored), &value, sizeof(Stored));
  }
  require(fits, "IndexedDatasetWriter: a token does not fit its type");
}

template <class Value>
void write_value(OutputFile& file, Value value) {
  file.write(std::as_bytes(std::span(&value, 1)));
}

}  // namespace

std::string to_string(TokenType type) {
  constexpr const char* kNames[] = {"u8", "i8", "i16", "i32", "i64", "f64", "f32", "u16"};
  return kNames[static_cast<std::size_t>(type) - 1];
}

std::int64_t token_bytes(TokenType type) {
  constexpr std::int64_t kBytes[] = {1, 1, 2, 4, 8, 8, 4, 2};
  return kBytes[static_cast<std::size_t>(type) - 1];
}

TokenType token_type_for_vocab(std::int64_t vocab_size) {
  return vocab_size < 65500 ? TokenType::kU16 : TokenType::kI32;
}

IndexedDataset IndexedDataset::open(const std::string& prefix) {
  const FaultScope index_scope("data.index");
  MappedFile index = MappedFile::open(prefix + ".idx");
  const FaultScope tokens_scope("data.tokens");
  return IndexedDataset(prefix, std::move(index), File::open(prefix + ".bin"));
}

IndexedDataset::IndexedDataset(std::string prefix, MappedFile index, File tokens)
    : prefix_(std::move(prefix)), index_(std::move(index)), tokens_(std::move(tokens)), tokens_stamp_(tokens_.stamp()) {
  check_header();
  check_sequences();
  check_documents();
}

void IndexedDataset::check_header() {
  const std::span<const std::byte> bytes = index_.bytes();
  const std::string& path = index_.path();
  if (bytes.size() < kHeaderBytes) {
    refuse(path, "size", fmt::format("a header of {} bytes", kHeaderBytes), fmt::format("{} bytes", bytes.size()));
  }
  if (index_.text().substr(0, kMagic.size()) != kMagic) {
    refuse(path, at_byte(0, "magic"), "MMIDIDX and two zero bytes", "other bytes");
  }
  const auto version = load<std::uint64_t>(bytes, kVersionAt);
  if (version != kVersion) refuse(path, at_byte(kVersionAt, "version"), "1", std::to_string(version));

  const auto code = load<std::uint8_t>(bytes, kTypeAt);
  if (code < 1 || code > 8) refuse(path, at_byte(kTypeAt, "token type"), "1 to 8", std::to_string(code));
  type_ = static_cast<TokenType>(code);
  if (type_ == TokenType::kF32 || type_ == TokenType::kF64) {
    refuse(path, at_byte(kTypeAt, "token type"), "an integer type", to_string(type_));
  }

  const auto sequences = load<std::uint64_t>(bytes, kNumSequencesAt);
  const auto documents = load<std::uint64_t>(bytes, kNumDocumentIndicesAt);
  std::uint64_t expected = kHeaderBytes;
  if (!add_product(expected, sequences, 12) || !add_product(expected, documents, 8) || expected != bytes.size()) {
    const bool multimodal = add_product(expected, sequences, 1) && expected == bytes.size();
    refuse(path, "size",
           fmt::format("34 + 12 x {} sequences (byte {}) + 8 x {} document indices (byte {}) bytes", sequences,
                       kNumSequencesAt, documents, kNumDocumentIndicesAt),
           fmt::format("{} bytes{}", bytes.size(), multimodal ? " (a multimodal index, which has no use here)" : ""));
  }
  if (documents == 0) refuse(path, at_byte(kNumDocumentIndicesAt, "document indices"), "at least 1", "0");
  // Both counts are below the file's size at this point, so they fit.
  num_sequences_ = static_cast<std::int64_t>(sequences);
  num_document_indices_ = static_cast<std::int64_t>(documents);
  lengths_at_ = kHeaderBytes;
  offsets_at_ = lengths_at_ + 4 * sequences;
  documents_at_ = offsets_at_ + 8 * sequences;
}

void IndexedDataset::check_sequences() {
  const std::span<const std::byte> bytes = index_.bytes();
  const std::int64_t item = token_bytes(type_);
  std::int64_t offset = 0;
  for (std::int64_t i = 0; i < num_sequences_; ++i) {
    const auto place = static_cast<std::size_t>(i);
    const auto length = load<std::int32_t>(bytes, lengths_at_ + 4 * place);
    if (length < 0) {
      refuse(index_.path(), at_byte(lengths_at_ + 4 * place, fmt::format("length of sequence {}", i)),
             "0 or more tokens", std::to_string(length));
    }
    const auto stored = load<std::int64_t>(bytes, offsets_at_ + 8 * place);
    if (stored != offset) {
      refuse(index_.path(), at_byte(offsets_at_ + 8 * place, fmt::format("offset of sequence {}", i)),
             fmt::format("{}, the bytes of the sequences before it", offset), std::to_string(stored));
    }
    std::int64_t sequence_bytes = 0;
    if (__builtin_mul_overflow(std::int64_t{length}, item, &sequence_bytes) ||
        __builtin_add_overflow(offset, sequence_bytes, &offset)) {
      refuse(index_.path(), at_byte(lengths_at_ + 4 * place, fmt::format("length of sequence {}", i)),
             "a sum below 2^63 bytes", std::to_string(length));
    }
  }
  if (std::cmp_greater(offset, tokens_.size())) {
    refuse(tokens_.path(), "size", fmt::format("at least {} bytes, as {} says", offset, index_.path()),
           fmt::format("{} bytes", tokens_.size()));
  }
  num_tokens_ = offset / item;
}

void IndexedDataset::check_documents() {
  std::int64_t before = 0;
  for (std::int64_t i = 0; i < num_document_indices_; ++i) {
    const std::int64_t begin = document_begin(i);
    const bool is_last = i + 1 == num_document_indices_;
    const bool in_order = i == 0 ? begin == 0 : begin >= before && begin <= num_sequences_;
    if (!in_order || (is_last && begin != num_sequences_)) {
      const std::size_t byte = documents_at_ + 8 * static_cast<std::size_t>(i);
      refuse(index_.path(), at_byte(byte, fmt::format("document index {}", i)),
             is_last  ? fmt::format("{}, the number of sequences", num_sequences_)
             : i == 0 ? "0"
                      : fmt::format("{} to {}", before, num_sequences_),
             std::to_string(begin));
    }
    before = begin;
  }
}

std::int32_t IndexedDataset::sequence_length(std::int64_t sequence) const {
  return load<std::int32_t>(index_.bytes(), lengths_at_ + 4 * static_cast<std::size_t>(sequence));
}

std::int64_t IndexedDataset::document_begin(std::int64_t document) const {
  return load<std::int64_t>(index_.bytes(), documents_at_ + 8 * static_cast<std::size_t>(document));
}

void IndexedDataset::check_unchanged() const {
  const auto check = [](const std::string& path, const FileStamp& before) {
    const std::optional<FileStamp> now = stamp_of(path);
    if (!now || *now == before) return;  // a removed file can still be read
    const bool replaced = now->device != before.device || now->inode != before.inode;
    refuse_format(path, "the file that was opened",
                  replaced
                      ? "another one in its place"
                      : fmt::format("one that was written to, of {} bytes where it had {}", now->size, before.size),
                  "keep a run's data unchanged: prepare other data under another prefix, and continue from the "
                  "last checkpoint with the old");
  };
  check(index_.path(), index_.stamp());
  check(tokens_.path(), tokens_stamp_);
}

void IndexedDataset::read(std::int64_t sequence, std::int64_t offset, std::span<std::int32_t> out) const {
  require(sequence >= 0 && sequence < num_sequences_ && offset >= 0 &&
              std::cmp_less_equal(out.size(), sequence_length(sequence) - offset),
          "IndexedDataset::read: beyond the sequence");
  if (out.empty()) return;
  const auto begin = load<std::int64_t>(index_.bytes(), offsets_at_ + 8 * static_cast<std::size_t>(sequence));
  const auto bytes = out.size() * static_cast<std::size_t>(token_bytes(type_));
  // The buffer is kept, since each thread reads many samples.
  thread_local std::vector<std::byte> buffer;
  buffer.resize(std::max(buffer.size(), bytes));
  const FaultScope scope("data.tokens");
  tokens_.read_at(static_cast<std::uint64_t>(begin + offset * token_bytes(type_)), std::span(buffer).first(bytes));
  if (!with_stored_type(type_, [&](auto stored) { return widen<decltype(stored)>(buffer.data(), out); })) {
    refuse(tokens_.path(), fmt::format("sequence {} from token {}", sequence, offset), "token ids below 2^31",
           "a larger one");
  }
}

IndexedDatasetWriter::IndexedDatasetWriter(const std::string& prefix, TokenType type, std::string tokenizer,
                                           const FileObserver* observer)
    : prefix_(prefix),
      type_(type),
      tokenizer_(std::move(tokenizer)),
      observer_(observer),
      tokens_(prefix + ".bin", kOutputScope, observer),
      index_(prefix + ".idx", kOutputScope, observer) {}

void IndexedDatasetWriter::add_sequence(std::span<const std::int32_t> tokens) {
  if (!std::in_range<std::int32_t>(tokens.size())) {
    refuse_format(fmt::format("document {}", num_documents()), "at most 2147483647 tokens",
                  std::to_string(tokens.size()), "split it into several documents");
  }
  with_stored_type(type_, [&](auto stored) { narrow<decltype(stored)>(tokens, encoded_); });
  tokens_.write(encoded_);
  lengths_.push_back(static_cast<std::int32_t>(tokens.size()));
  num_tokens_ += static_cast<std::int64_t>(tokens.size());
}

void IndexedDatasetWriter::end_document() { document_ends_.push_back(static_cast<std::int64_t>(lengths_.size())); }

void IndexedDatasetWriter::add_document(std::span<const std::int32_t> tokens) {
  add_sequence(tokens);
  end_document();
}

void IndexedDatasetWriter::stage() {
  require(!staged_ && (lengths_.empty() || document_ends_.back() == std::ssize(lengths_)),
          "IndexedDatasetWriter: staged twice, or within a document");
  staged_ = true;
  index_.write(std::as_bytes(std::span(kMagic)));
  write_value(index_, kVersion);
  write_value(index_, static_cast<std::uint8_t>(type_));
  write_value(index_, static_cast<std::uint64_t>(lengths_.size()));
  write_value(index_, static_cast<std::uint64_t>(document_ends_.size() + 1));
  index_.write(std::as_bytes(std::span(lengths_)));
  std::int64_t offset = 0;
  for (const std::int32_t length : lengths_) {
    write_value(index_, offset);
    offset += length * token_bytes(type_);
  }
  write_value(index_, std::int64_t{0});
  index_.write(std::as_bytes(std::span(document_ends_)));
  index_.sync();
  tokens_.sync();
}

void IndexedDatasetWriter::commit() {
  if (!staged_) stage();
  // A crash between the two renames must not leave new tokens with an old index, which might even look valid.
  {
    const FaultScope scope(kOutputScope);
    for (const std::string& record : {pack_record_path(prefix_), tokenizer_record_path(prefix_)})
      remove_file(record, observer_);  // also the records of other tokens
    remove_file(index_.path(), observer_);
  }
  tokens_.commit();
  index_.commit();
  if (tokenizer_.empty()) return;
  OutputFile record(tokenizer_record_path(prefix_), kOutputScope);
  record.write(fmt::format("tokenizer {}\ndocuments {}\ntokens {}\n", tokenizer_, num_documents(), num_tokens_));
  record.commit();
}

DatasetTokenizer parse_dataset_tokenizer(std::string_view text, const std::string& subject) {
  RecordLines lines(text, subject);
  DatasetTokenizer record;
  record.identity = lines.take("tokenizer");
  if (record.identity.empty()) lines.refuse("an identity after 'tokenizer'", "none");
  record.documents = lines.take_count("documents");
  record.tokens = lines.take_count("tokens");
  lines.end();
  return record;
}

std::optional<std::string> recorded_tokenizer(const IndexedDataset& dataset) {
  const std::string path = tokenizer_record_path(dataset.prefix());
  const std::optional<std::string> text = read_record(path);
  if (!text) return std::nullopt;
  DatasetTokenizer record = parse_dataset_tokenizer(*text, path);
  if (record.documents != dataset.num_documents() || record.tokens != dataset.num_tokens()) {
    RecordLines({}, path).refuse(fmt::format("{} documents and {} tokens, as {}.idx has", dataset.num_documents(),
                                             dataset.num_tokens(), dataset.prefix()),
                                 fmt::format("{} and {}", record.documents, record.tokens));
  }
  return record.identity;
}

}  // namespace megalith
