// Text to token ids and back.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace megalith {

// Every byte is a token of its value; 256 is the end of a document (EOD).
struct ByteTokenizer {};

// For data that are ids already: text is decimal ids separated by white space. As Megatron's, it adds one id, the EOD,
// to the vocabulary it is given.
struct NullTokenizer {
  std::int64_t vocab_size = 0;
};

class Tokenizer {
 public:
  Tokenizer() = default;                        // bytes
  explicit Tokenizer(NullTokenizer tokenizer);  // 0 < vocab_size < 2^31 - 1, else Error kUsage

  std::int64_t vocab_size() const;  // ids are below it; EOD included, padding not
  std::int32_t eod() const;

  // What checkpoints record: two tokenizers with one identity give the same ids. "byte-257", "null-50257".
  std::string identity() const;

  // Appends the ids of `text`. Text that the tokenizer cannot take is an Error kFormat.
  void encode(std::string_view text, std::vector<std::int32_t>& ids) const;

  // Ids that stand for no text (EOD, those a model adds to pad its vocabulary) give none.
  std::string decode(std::span<const std::int32_t> ids) const;

 private:
  std::variant<ByteTokenizer, NullTokenizer> kind_;
};

// `type` as --tokenizer-type takes it: byte or null; `vocab_size` is for null. Error kUsage for another one.
Tokenizer make_tokenizer(std::string_view type, std::int64_t vocab_size = 0);

}  // namespace megalith
