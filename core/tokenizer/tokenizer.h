// Text to token ids and back.
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

namespace megalith {

// Bytes: every byte is a token of its value, 256 is the end of a document (EOD). Null, for data that are ids already:
// text is decimal ids separated by white space, and EOD is one more, as in Megatron. Byte-level BPE: out of a user's
// files, see bpe_files.h. One object is for one thread at a time, since BPE keeps the words it has seen.
class Tokenizer {
 public:
  Tokenizer() = default;                           // bytes
  static Tokenizer null(std::int64_t vocab_size);  // 0 < vocab_size < 2^31 - 1, else Error kUsage
  explicit Tokenizer(BpeVocabulary vocabulary);

  std::int64_t vocab_size() const;  // ids are below it; EOD included, padding not
  std::int32_t eod() const { return eod_; }
  std::optional<std::int32_t> bos() const;  // begins documents where a Hugging Face folder says so; text has none

  // What checkpoints record: two tokenizers with one identity give the same ids. "byte-257", "null-50257",
  // "bpe-gpt2-50257-" and a hash of tokens, merges and EOD.
  std::string identity() const;

  // Appends the ids of `text`. Text that the tokenizer cannot take is an Error kFormat; bytes and BPE take any bytes.
  void encode(std::string_view text, std::vector<std::int32_t>& ids) const;

  // Ids that stand for no text (EOD, those a model adds to pad its vocabulary) give none. With BPE the bytes of
  // a character may come from several ids: see Utf8Stream.
  std::string decode(std::span<const std::int32_t> ids) const;

 private:
  void encode_ids(std::string_view text, std::vector<std::int32_t>& ids) const;

  bool is_bytes_ = true;                 // or null, where it is not BPE
  std::shared_ptr<const BpeModel> bpe_;  // null for the others
  std::int32_t eod_ = 256;               // but for BPE, ids of text are below it
  mutable WordCache cache_;
};

// What the flags say, each field as the flag of its name.
struct TokenizerOptions {
  std::string type = "byte";     // --tokenizer-type: one of tokenizer_types()
  std::int64_t vocab_size = 0;   // null
  std::string vocab_file;        // GPT2BPETokenizer: vocab.json
  std::string merge_file;        // GPT2BPETokenizer: merges.txt
  std::string tokenizer_model;   // HuggingFaceTokenizer: tokenizer.json, TikTokenizer: ranks
  std::string tiktoken_pattern;  // TikTokenizer
  std::vector<std::string> tiktoken_special_tokens;
  std::string eod_token;  // of all three; empty: see find_eod
};

// byte, null, GPT2BPETokenizer, HuggingFaceTokenizer, TikTokenizer.
std::span<const std::string_view> tokenizer_types();

// A tokenizer's files, read, by the names under which checkpoints keep them: vocab.json and merges.txt; kTokenizerJson
// and, where its folder has one, kTokenizerConfig; tokenizer.tiktoken.
using TokenizerTexts = std::map<std::string, TokenizerFile>;
inline constexpr std::string_view kTokenizerJson = "tokenizer.json";
inline constexpr std::string_view kTokenizerConfig = "tokenizer_config.json";

// The files that a type takes: their names as above, and the fields that say where they are.
struct TokenizerFileField {
  std::string_view name;
  std::string_view flag;
  std::string TokenizerOptions::*path;
};
std::span<const TokenizerFileField> tokenizer_files(std::string_view type);

// Where the file is: a flag may name its folder instead.
std::string tokenizer_file_path(const TokenizerFileField& file, const std::string& named);

// Those that `options` names, of at most kMaxTokenizerFileBytes each. Error kUsage as make_tokenizer's; kFileIo;
// kFormat for a larger one.
TokenizerTexts read_tokenizer_files(const TokenizerOptions& options);

// NullTokenizer is null. Error kUsage for a type that is unknown, lacks a flag or a file or takes none of the kind;
// what the files' readers throw. `texts` has the files whatever the options say of their paths.
Tokenizer make_tokenizer(const TokenizerOptions& options, const TokenizerTexts& texts);
Tokenizer make_tokenizer(const TokenizerOptions& options);  // with read_tokenizer_files

// A small file of a folder in which Hugging Face transformers keep a model. Such a file goes into checkpoints and
// exports, so a link in a folder from a stranger must not reach other files: it may lead to below the folder, or, as in
// the hub's cache, from CACHE/snapshots/REVISION to below CACHE/blobs. Error kFileIo for others and for what cannot be
// read; kFormat for more than `max_bytes`.
std::string read_model_file(const std::string& folder, std::string_view name, std::uint64_t max_bytes);

}  // namespace megalith
