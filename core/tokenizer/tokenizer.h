// Conversion of text to token ids and back.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/tokenizer/bpe_files.h"
#include "core/tokenizer/sentence_piece.h"

namespace megalith {

// Tokenizer of one of four kinds. Bytes: each byte is a token of its value, and 256 ends a document (EOD). Null, for
// data that is already ids: text is decimal ids separated by white space, and EOD is the next higher id, as in
// Megatron. Byte-level BPE from user files: see bpe_files.h; SentencePiece models: see sentence_piece.h. An object is
// not thread-safe, since BPE caches words.
class Tokenizer {
 public:
  Tokenizer() = default;                           // bytes
  static Tokenizer null(std::int64_t vocab_size);  // 0 < vocab_size < 2^31 - 1, else Error kUsage
  explicit Tokenizer(BpeVocabulary vocabulary);
  // `adds_bos`: the beginning of sentence begins texts; error kUsage if the model has none.
  Tokenizer(std::shared_ptr<const SentencePieceModel> pieces, bool adds_bos);

  std::int64_t vocab_size() const;  // bound of ids, with EOD, without padding
  std::int32_t eod() const { return eod_; }
  std::optional<std::int32_t> bos() const;  // if a Hugging Face folder or a SentencePiece model defines it
  // Ids ahead of each document of `prepare` and each prompt of `generate`: Llama2Tokenizer's bos(). Chat templates
  // spell theirs.
  std::span<const std::int32_t> begin() const { return begin_; }

  // Returns the identity that checkpoints record: tokenizers with one identity give equal ids. Forms: "byte-257",
  // "null-50257", "bpe-gpt2-50257-" and a hash of tokens, merges and EOD, "sentencepiece-32000-" and a hash of the
  // model.
  std::string identity() const;

  // Appends the ids of `text`. Invalid text is an Error kFormat; bytes and BPE accept any bytes.
  void encode(std::string_view text, std::vector<std::int32_t>& ids) const;
  // The same, and finds the numbers of ids ahead of bytes of the text. Null finds none.
  void encode(std::string_view text, std::vector<std::int32_t>& ids, BorderIds& borders) const;

  // Decodes ids to text. EOD and ids of vocabulary padding decode to nothing. A character of BPE may span several ids:
  // see Utf8Stream.
  std::string decode(std::span<const std::int32_t> ids) const;

 private:
  void encode_ids(std::string_view text, std::vector<std::int32_t>& ids) const;

  bool is_bytes_ = true;                              // else null; unused with BPE
  std::shared_ptr<const BpeModel> bpe_;               // null for other kinds
  std::shared_ptr<const SentencePieceModel> pieces_;  // as well
  std::vector<std::int32_t> begin_;
  std::int32_t eod_ = 256;  // ids of text are below it, except with BPE
  mutable WordCache cache_;
};

// Values of the flags of the same names.
struct TokenizerOptions {
  std::string type = "byte";     // --tokenizer-type: one of tokenizer_types()
  std::int64_t vocab_size = 0;   // null
  std::string vocab_file;        // GPT2BPETokenizer: vocab.json
  std::string merge_file;        // GPT2BPETokenizer: merges.txt
  std::string tokenizer_model;   // HuggingFaceTokenizer: tokenizer.json, TikTokenizer: ranks, others: X.model
  std::string tiktoken_pattern;  // TikTokenizer
  std::vector<std::string> tiktoken_special_tokens;
  std::string eod_token;  // of types with files; empty: see find_eod, or the model's end of sentence
};

// Returns byte, null, GPT2BPETokenizer, HuggingFaceTokenizer, TikTokenizer, Llama2Tokenizer,
// GPTSentencePieceTokenizer.
std::span<const std::string_view> tokenizer_types();

// Content of a tokenizer's files, by their names in checkpoints: vocab.json and merges.txt; kTokenizerJson and, if its
// folder has them, kTokenizerConfig and kChatTemplate; tokenizer.tiktoken; tokenizer.model.
using TokenizerTexts = std::map<std::string, TokenizerFile>;
inline constexpr std::string_view kTokenizerJson = "tokenizer.json";
inline constexpr std::string_view kTokenizerConfig = "tokenizer_config.json";
inline constexpr std::string_view kChatTemplate = "chat_template.jinja";  // copied, not read

// File that a type requires: its name as above, its flag, and the option with its path.
struct TokenizerFileField {
  std::string_view name;
  std::string_view flag;
  std::string TokenizerOptions::*path;
};
std::span<const TokenizerFileField> tokenizer_files(std::string_view type);

// Returns the path of a file; a flag may name the folder instead.
std::string tokenizer_file_path(const TokenizerFileField& file, const std::string& named);

// Reads the files in `options`, of at most kMaxTokenizerFileBytes each. Errors: kUsage as in make_tokenizer, kFileIo,
// and kFormat for a larger file.
TokenizerTexts read_tokenizer_files(const TokenizerOptions& options);

// Builds a tokenizer; NullTokenizer means null. Error kUsage for an unknown type, or a missing or unsupported flag or
// file. The files' readers may throw too. `texts` has the files, so paths in `options` are not read.
Tokenizer make_tokenizer(const TokenizerOptions& options, const TokenizerTexts& texts);
Tokenizer make_tokenizer(const TokenizerOptions& options);  // with read_tokenizer_files

// Reads a small file of a Hugging Face transformers folder. Checkpoints and exports copy such files, so a link in an
// untrusted folder must not reach other files. A link may lead into the folder, or from CACHE/snapshots/REVISION into
// CACHE/blobs, as in the hub's cache. Error kFileIo for other links and unreadable files; kFormat for more than
// `max_bytes`.
std::string read_model_file(const std::string& folder, std::string_view name, std::uint64_t max_bytes);

}  // namespace megalith
