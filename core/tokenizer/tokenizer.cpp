#include "core/tokenizer/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "core/base/error.h"
#include "core/base/files/file.h"
#include "core/base/text/parse_number.h"

namespace megalith {

namespace {

constexpr std::string_view kWhiteSpace = " \t\r\n";

constexpr TokenizerFileField kFiles[] = {
    {"vocab.json", "--vocab-file", &TokenizerOptions::vocab_file},
    {"merges.txt", "--merge-file", &TokenizerOptions::merge_file},
    {kTokenizerJson, "--tokenizer-model", &TokenizerOptions::tokenizer_model},
    {"tokenizer.tiktoken", "--tokenizer-model", &TokenizerOptions::tokenizer_model},
    {"tokenizer.model", "--tokenizer-model", &TokenizerOptions::tokenizer_model},
};

bool is_sentence_piece(std::string_view type) {
  return type == "Llama2Tokenizer" || type == "GPTSentencePieceTokenizer";
}

bool is_folder(const std::string& path) {
  const std::optional<PathInfo> info = look_at(path);
  return info && info->type == EntryType::kDirectory;
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

// Returns the type for --tokenizer-type; fails for an unknown type.
std::string known_type(const TokenizerOptions& options) {
  if (options.type == "NullTokenizer") return "null";  // Megatron's name
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

// Fails if a required flag is missing or an unsupported flag is given. Reading reports missing files.
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
  for (const TokenizerFileField& file : std::span(kFiles).first(3)) {
    const bool taken = std::ranges::any_of(files, [&](const auto& wanted) { return wanted.flag == file.flag; });
    check(file.flag, !(options.*file.path).empty(), taken);
  }
  check("--tiktoken-pattern", !options.tiktoken_pattern.empty(), is_tiktoken);
  if (is_tiktoken && options.tiktoken_pattern.empty()) refuse_without("--tiktoken-pattern", type);
  check("--tiktoken-special-tokens", !options.tiktoken_special_tokens.empty(), is_tiktoken);
  check("--eod-token", !options.eod_token.empty(), !files.empty());
}

// Returns the files that the type requires.
std::vector<const TokenizerFile*> required_files(const TokenizerOptions& options, const TokenizerTexts& texts) {
  std::vector<const TokenizerFile*> files;
  for (const TokenizerFileField& wanted : tokenizer_files(options.type)) {
    const auto found = texts.find(std::string(wanted.name));
    if (found == texts.end()) refuse_without(wanted.flag, options.type);
    files.push_back(&found->second);
  }
  return files;
}

BpeVocabulary read_vocabulary(const TokenizerOptions& options, const TokenizerTexts& texts) {
  const std::vector<const TokenizerFile*> files = required_files(options, texts);
  if (options.type == "GPT2BPETokenizer") return parse_gpt2_files(*files[0], *files[1]);
  if (options.type == "HuggingFaceTokenizer") return parse_hugging_face_file(*files[0]);
  const std::optional<WordPattern> pattern = word_pattern_of_name(options.tiktoken_pattern);
  if (!pattern) {
    refuse_usage("--tiktoken-pattern", {.expected = std::string(word_pattern_names()),
                                        .got = fmt::format("'{}'", options.tiktoken_pattern),
                                        .remedy = "the file does not say how its text was cut: its publisher does"});
  }
  return parse_tiktoken_file(*files[0], *pattern, options.tiktoken_special_tokens);
}

}  // namespace

Tokenizer Tokenizer::null(std::int64_t vocab_size) {
  if (vocab_size < 1 || vocab_size >= std::numeric_limits<std::int32_t>::max()) {
    refuse_usage("--vocab-size", {.expected = "1 to 2147483646 with --tokenizer-type null",
                                  .got = std::to_string(vocab_size),
                                  .remedy = "give the number of ids in the text, without EOD"});
  }
  Tokenizer tokenizer;
  tokenizer.is_bytes_ = false;
  tokenizer.eod_ = static_cast<std::int32_t>(vocab_size);
  return tokenizer;
}

Tokenizer::Tokenizer(BpeVocabulary vocabulary)
    : bpe_(std::make_shared<const BpeModel>(std::move(vocabulary))), eod_(bpe_->eod()) {}

Tokenizer::Tokenizer(std::shared_ptr<const SentencePieceModel> pieces, bool adds_bos)
    : pieces_(std::move(pieces)), eod_(pieces_->eod()) {
  if (!adds_bos) return;
  if (!pieces_->bos()) {
    refuse_usage("--tokenizer-type Llama2Tokenizer", {.expected = "a model with a beginning of sentence",
                                                      .got = "one without",
                                                      .remedy = "use GPTSentencePieceTokenizer"});
  }
  begin_.push_back(*pieces_->bos());
}

std::int64_t Tokenizer::vocab_size() const {
  if (pieces_) return pieces_->vocab_size();
  return bpe_ ? bpe_->vocab_size() : std::int64_t{eod_} + 1;
}

std::optional<std::int32_t> Tokenizer::bos() const {
  if (pieces_) return pieces_->bos();
  return bpe_ ? bpe_->bos() : std::nullopt;
}

std::string Tokenizer::identity() const {
  if (pieces_) return pieces_->identity();
  return bpe_ ? bpe_->identity() : fmt::format("{}-{}", is_bytes_ ? "byte" : "null", vocab_size());
}

void Tokenizer::encode(std::string_view text, std::vector<std::int32_t>& ids) const {
  BorderIds none({});
  encode(text, ids, none);
}

void Tokenizer::encode(std::string_view text, std::vector<std::int32_t>& ids, BorderIds& borders) const {
  if (bpe_) return bpe_->encode(text, ids, cache_, borders);
  if (pieces_) return pieces_->encode(text, ids, borders);
  if (!is_bytes_) return encode_ids(text, ids);
  ids.reserve(ids.size() + text.size() + 1);  // with capacity for an EOD
  for (std::size_t byte = 0; byte < text.size(); ++byte) {
    borders.reach(byte, ids.size());
    ids.push_back(static_cast<unsigned char>(text[byte]));
  }
  borders.reach(text.size(), ids.size());
}

void Tokenizer::encode_ids(std::string_view text, std::vector<std::int32_t>& ids) const {
  std::size_t at = text.find_first_not_of(kWhiteSpace);
  while (at != std::string_view::npos) {
    const std::size_t end = std::min(text.find_first_of(kWhiteSpace, at), text.size());
    const std::string_view word = text.substr(at, end - at);
    const std::optional<std::int32_t> id = parse_number<std::int32_t>(word);
    if (!id || *id < 0 || *id >= eod_) {
      refuse_format("text for --tokenizer-type null", fmt::format("token ids from 0 to {}", eod_ - 1),
                    fmt::format("'{}'", word.substr(0, 40)), "raise --vocab-size, or give a tokenizer for text");
    }
    ids.push_back(*id);
    at = text.find_first_not_of(kWhiteSpace, end);
  }
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids) const {
  std::string text;
  if (bpe_) {
    bpe_->decode(ids, text);
    return text;
  }
  if (pieces_) {
    pieces_->decode(ids, text);
    return text;
  }
  for (const std::int32_t id : ids) {
    if (id < 0 || id >= eod_) continue;
    if (is_bytes_) {
      text += static_cast<char>(id);
      continue;
    }
    if (!text.empty()) text += ' ';
    text += std::to_string(id);
  }
  return text;
}

std::span<const std::string_view> tokenizer_types() {
  static constexpr std::string_view kTypes[] = {"byte",
                                                "null",
                                                "GPT2BPETokenizer",
                                                "HuggingFaceTokenizer",
                                                "TikTokenizer",
                                                "Llama2Tokenizer",
                                                "GPTSentencePieceTokenizer"};
  return kTypes;
}

std::span<const TokenizerFileField> tokenizer_files(std::string_view type) {
  const std::span files(kFiles);
  if (type == "GPT2BPETokenizer") return files.first(2);
  if (type == "HuggingFaceTokenizer") return files.subspan(2, 1);
  if (type == "TikTokenizer") return files.subspan(3, 1);
  if (is_sentence_piece(type)) return files.subspan(4, 1);
  return {};
}

std::string tokenizer_file_path(const TokenizerFileField& file, const std::string& named) {
  return is_folder(named) ? fmt::format("{}/{}", named, file.name) : named;
}

TokenizerTexts read_tokenizer_files(const TokenizerOptions& options) {
  const std::string type = known_type(options);
  check_flags(options, type);
  TokenizerTexts texts;
  for (const TokenizerFileField& file : tokenizer_files(type)) {
    const std::string& named = options.*file.path;
    if (named.empty()) continue;
    const std::string path = tokenizer_file_path(file, named);
    texts[std::string(file.name)] = {path, is_folder(named) ? read_model_file(named, file.name, kMaxTokenizerFileBytes)
                                                            : read_whole_file(path, kMaxTokenizerFileBytes)};
    if (file.name != kTokenizerJson) continue;
    const std::string folder = is_folder(named) ? named : folder_of(named);
    for (const std::string_view name : {kTokenizerConfig, kChatTemplate}) {
      const std::string path_of_name = fmt::format("{}/{}", folder, name);
      if (look_at(path_of_name))
        texts[std::string(name)] = {path_of_name, read_model_file(folder, name, kMaxTokenizerFileBytes)};
    }
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
  if (type == "null") return Tokenizer::null(options.vocab_size);
  if (is_sentence_piece(type)) {
    const TokenizerFile& file = *required_files(options, texts)[0];
    return Tokenizer(std::make_shared<const SentencePieceModel>(file, options.eod_token), type == "Llama2Tokenizer");
  }
  BpeVocabulary vocabulary = read_vocabulary(options, texts);
  const auto config = texts.find(std::string(kTokenizerConfig));
  const SpecialTokens named = config == texts.end() ? SpecialTokens() : parse_tokenizer_config(config->second);
  vocabulary.eod = find_eod(vocabulary, options.eod_token, named);
  vocabulary.bos = find_bos(vocabulary, named);
  return Tokenizer(std::move(vocabulary));
}

std::string read_model_file(const std::string& folder, std::string_view name, std::uint64_t max_bytes) {
  constexpr std::string_view kSnapshots = "/snapshots/";
  std::vector<std::string> roots = {folder};
  const std::string real = real_path(folder);
  const std::size_t snapshots = real.rfind(kSnapshots);
  if (snapshots != std::string::npos) roots.push_back(real.substr(0, snapshots) + "/blobs");
  return read_file_below(fmt::format("{}/{}", folder, name), roots, max_bytes);
}

}  // namespace megalith
