#include "core/data/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <optional>

#include "core/base/error.h"
#include "core/base/mapped_file.h"
#include "core/data/bpe_files.h"

namespace megalith {

namespace {

constexpr std::int32_t kByteEod = 256;
constexpr std::string_view kWhiteSpace = " \t\r\n";

void encode_with(const ByteTokenizer&, std::string_view text, std::vector<std::int32_t>& ids) {
  ids.reserve(ids.size() + text.size() + 1);  // with room for an EOD
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
}

void encode_with(const NullTokenizer& tokenizer, std::string_view text, std::vector<std::int32_t>& ids) {
  std::size_t at = text.find_first_not_of(kWhiteSpace);
  while (at != std::string_view::npos) {
    const std::size_t end = std::min(text.find_first_of(kWhiteSpace, at), text.size());
    const std::string_view word = text.substr(at, end - at);
    std::int32_t id = -1;
    const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc{} || stop != word.data() + word.size() || id < 0 || id >= tokenizer.vocab_size) {
      refuse_format("text for --tokenizer-type null", fmt::format("token ids from 0 to {}", tokenizer.vocab_size - 1),
                    fmt::format("'{}'", word.substr(0, 40)), "raise --vocab-size, or give a tokenizer for text");
    }
    ids.push_back(id);
    at = text.find_first_not_of(kWhiteSpace, end);
  }
}

std::string decode_with(const ByteTokenizer&, std::span<const std::int32_t> ids) {
  std::string text;
  for (const std::int32_t id : ids) {
    if (id >= 0 && id < kByteEod) text += static_cast<char>(id);
  }
  return text;
}

std::string decode_with(const NullTokenizer& tokenizer, std::span<const std::int32_t> ids) {
  std::string text;
  for (const std::int32_t id : ids) {
    if (id < 0 || id >= tokenizer.vocab_size) continue;
    if (!text.empty()) text += ' ';
    text += std::to_string(id);
  }
  return text;
}

void encode_with(const BpeTokenizer& tokenizer, std::string_view text, std::vector<std::int32_t>& ids) {
  tokenizer.model->encode(text, ids, tokenizer.cache);
}

std::string decode_with(const BpeTokenizer& tokenizer, std::span<const std::int32_t> ids) {
  std::string text;
  tokenizer.model->decode(ids, text);
  return text;
}

std::int64_t vocab_size_of(const ByteTokenizer&) { return kByteEod + 1; }
std::int64_t vocab_size_of(const NullTokenizer& tokenizer) { return tokenizer.vocab_size + 1; }

std::int64_t vocab_size_of(const BpeTokenizer& tokenizer) { return tokenizer.model->vocab_size(); }

std::int32_t eod_of(const ByteTokenizer&) { return kByteEod; }
std::int32_t eod_of(const NullTokenizer& tokenizer) { return static_cast<std::int32_t>(tokenizer.vocab_size); }
std::int32_t eod_of(const BpeTokenizer& tokenizer) { return tokenizer.model->eod(); }

std::string identity_of(const ByteTokenizer&) { return "byte-257"; }
std::string identity_of(const NullTokenizer& tokenizer) { return fmt::format("null-{}", tokenizer.vocab_size + 1); }
std::string identity_of(const BpeTokenizer& tokenizer) { return tokenizer.model->identity(); }

constexpr TokenizerFileField kVocabFile = {"vocab.json", "--vocab-file", &TokenizerOptions::vocab_file};
constexpr TokenizerFileField kMergeFile = {"merges.txt", "--merge-file", &TokenizerOptions::merge_file};
constexpr TokenizerFileField kHuggingFaceFile = {"tokenizer.json", "--tokenizer-model",
                                                 &TokenizerOptions::tokenizer_model};
constexpr TokenizerFileField kTiktokenFile = {"tokenizer.tiktoken", "--tokenizer-model",
                                              &TokenizerOptions::tokenizer_model};

// As --tokenizer-type names it; fails for one that is unknown.
std::string known_type(const TokenizerOptions& options) {
  if (options.type == "NullTokenizer") return "null";  // as Megatron calls it
  const std::span<const std::string_view> types = tokenizer_types();
  if (std::ranges::find(types, options.type) == types.end()) {
    refuse_usage("--tokenizer-type", {.expected = fmt::format("one of {}", fmt::join(types, ", ")),
                                      .got = fmt::format("'{}'", options.type),
                                      .remedy = "--help says what each takes"});
  }
  return options.type;
}

[[noreturn]] void refuse_without(std::string_view flag, const std::string& type) {
  refuse_usage(std::string(flag), {.expected = fmt::format("one with --tokenizer-type {}", type),
                                   .got = "none",
                                   .remedy = "--help says what it is"});
}

// Each type takes the flags it needs and no other. Which files there must be is known once they are read.
void check_flags(const TokenizerOptions& options, const std::string& type) {
  const bool is_tiktoken = type == "TikTokenizer";
  const std::span<const TokenizerFileField> files = tokenizer_files(type);
  const auto check = [&](std::string_view flag, bool given, bool taken) {
    if (given && !taken) {
      refuse_usage(std::string(flag), {.expected = fmt::format("none with --tokenizer-type {}", type),
                                       .got = "one",
                                       .remedy = "remove it or name another type"});
    }
  };
  for (const TokenizerFileField& file : {kVocabFile, kMergeFile, kHuggingFaceFile}) {
    const bool taken = std::ranges::any_of(files, [&](const auto& wanted) { return wanted.flag == file.flag; });
    check(file.flag, !(options.*file.path).empty(), taken);
  }
  check("--tiktoken-pattern", !options.tiktoken_pattern.empty(), is_tiktoken);
  if (is_tiktoken && options.tiktoken_pattern.empty()) refuse_without("--tiktoken-pattern", type);
  check("--tiktoken-special-tokens", !options.tiktoken_special_tokens.empty(), is_tiktoken);
  check("--eod-token", !options.eod_token.empty(), !files.empty());
}

BpeVocabulary read_vocabulary(const TokenizerOptions& options, const TokenizerTexts& texts) {
  std::vector<TokenizerFile> files;
  for (const TokenizerFileField& wanted : tokenizer_files(options.type)) {
    const auto found = texts.find(std::string(wanted.name));
    if (found == texts.end()) refuse_without(wanted.flag, options.type);
    files.push_back({.name = found->second.path, .text = found->second.text});
  }
  if (options.type == "GPT2BPETokenizer") return parse_gpt2_files(files[0], files[1]);
  if (options.type == "HuggingFaceTokenizer") return parse_hugging_face_file(files[0]);
  const std::optional<WordPattern> pattern = word_pattern_of_name(options.tiktoken_pattern);
  if (!pattern) {
    refuse_usage("--tiktoken-pattern", {.expected = std::string(word_pattern_names()),
                                        .got = fmt::format("'{}'", options.tiktoken_pattern),
                                        .remedy = "the file does not say how its text was cut: its publisher does"});
  }
  return parse_tiktoken_file(files[0], *pattern, options.tiktoken_special_tokens);
}

}  // namespace

Tokenizer::Tokenizer(NullTokenizer tokenizer) : kind_(tokenizer) {
  if (tokenizer.vocab_size < 1 || tokenizer.vocab_size >= std::numeric_limits<std::int32_t>::max()) {
    refuse_usage("--vocab-size", {.expected = "1 to 2147483646 with --tokenizer-type null",
                                  .got = std::to_string(tokenizer.vocab_size),
                                  .remedy = "give the number of ids in the text, without EOD"});
  }
}

Tokenizer::Tokenizer(BpeVocabulary vocabulary)
    : kind_(BpeTokenizer{.model = std::make_shared<const BpeModel>(std::move(vocabulary)), .cache = {}}) {}

std::int64_t Tokenizer::vocab_size() const {
  return std::visit([](const auto& kind) { return vocab_size_of(kind); }, kind_);
}

std::int32_t Tokenizer::eod() const {
  return std::visit([](const auto& kind) { return eod_of(kind); }, kind_);
}

std::string Tokenizer::identity() const {
  return std::visit([](const auto& kind) { return identity_of(kind); }, kind_);
}

void Tokenizer::encode(std::string_view text, std::vector<std::int32_t>& ids) const {
  std::visit([&](const auto& kind) { encode_with(kind, text, ids); }, kind_);
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids) const {
  return std::visit([&](const auto& kind) { return decode_with(kind, ids); }, kind_);
}

std::span<const std::string_view> tokenizer_types() {
  static constexpr std::array<std::string_view, 5> kTypes = {"byte", "null", "GPT2BPETokenizer", "HuggingFaceTokenizer",
                                                             "TikTokenizer"};
  return kTypes;
}

std::span<const TokenizerFileField> tokenizer_files(std::string_view type) {
  static constexpr std::array kGpt2 = {kVocabFile, kMergeFile};
  static constexpr std::array kHuggingFace = {kHuggingFaceFile};
  static constexpr std::array kTiktoken = {kTiktokenFile};
  if (type == "GPT2BPETokenizer") return kGpt2;
  if (type == "HuggingFaceTokenizer") return kHuggingFace;
  if (type == "TikTokenizer") return kTiktoken;
  return {};
}

TokenizerTexts read_tokenizer_files(const TokenizerOptions& options) {
  const std::string type = known_type(options);
  check_flags(options, type);
  TokenizerTexts texts;
  for (const TokenizerFileField& file : tokenizer_files(type)) {
    const std::string& path = options.*file.path;
    if (!path.empty()) texts[std::string(file.name)] = {path, std::string(MappedFile::open(path).text())};
  }
  return texts;
}

Tokenizer make_tokenizer(const TokenizerOptions& options) {
  for (const TokenizerFileField& file : tokenizer_files(options.type)) {
    if ((options.*file.path).empty()) refuse_without(file.flag, options.type);
  }
  return make_tokenizer(options, read_tokenizer_files(options));
}

Tokenizer make_tokenizer(const TokenizerOptions& options, const TokenizerTexts& texts) {
  const std::string type = known_type(options);
  check_flags(options, type);
  if (type == "byte") return Tokenizer();
  if (type == "null") return Tokenizer(NullTokenizer{.vocab_size = options.vocab_size});
  BpeVocabulary vocabulary = read_vocabulary(options, texts);
  vocabulary.eod = find_eod(vocabulary, options.eod_token);
  return Tokenizer(std::move(vocabulary));
}

Tokenizer make_tokenizer(std::string_view type, std::int64_t vocab_size) {
  return make_tokenizer(TokenizerOptions{.type = std::string(type), .vocab_size = vocab_size});
}

}  // namespace megalith
