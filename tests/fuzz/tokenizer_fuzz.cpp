// Files of byte-level BPE. The first byte selects vocab.json and merges.txt with a NUL between, tokenizer.json,
// tiktoken's ranks, or, if its fifth bit is set, tokenizer_config.json. If its fourth bit is set, the vocabulary gets
// the 256 tokens of one byte, so that code after their check is reached. An accepted tokenizer encodes some text, and
// decodes it to the same.
#include <nlohmann/json.hpp>

#include "core/base/text/utf8.h"
#include "core/tokenizer/bpe_files.h"
#include "core/tokenizer/tokenizer.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace megalith;

constexpr WordPattern kPatterns[] = {WordPattern::kGpt2,      WordPattern::kCl100k,     WordPattern::kLlama3,
                                     WordPattern::kQwen2,     WordPattern::kTikTokenV1, WordPattern::kO200k,
                                     WordPattern::kTikTokenV2};

// GPT-2's spelling of each byte, as members of a JSON object with ids from 0.
const std::string& spelled_bytes() {
  static const std::string* members = [] {
    auto* text = new std::string;
    std::uint32_t next = 0x100;
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
      const bool plain = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
      if (byte > 0) *text += ',';
      *text += '"';
      if (byte == '"' || byte == '\\') *text += '\\';
      append_utf8(*text, plain ? byte : next++);
      *text += "\":" + std::to_string(byte);
    }
    return text;
  }();
  return *members;
}

const std::string& base64_bytes() {
  static const std::string* lines = [] {
    constexpr const char* kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    auto* text = new std::string;
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
      *text += kDigits[byte >> 2];
      *text += kDigits[(byte & 3) << 4];
      *text += "== " + std::to_string(byte) + "\n";
    }
    return text;
  }();
  return *lines;
}

// Inserts after the first '{' that follows `key`.
std::string with_bytes(std::string text, std::string_view key) {
  const std::size_t at = text.find('{', std::min(text.find(key), text.size()));
  if (at == std::string::npos) return text;
  const bool empty = text.find_first_not_of(" \n", at + 1) == text.find('}', at);
  return text.insert(at + 1, spelled_bytes() + (empty ? "" : ","));
}

BpeVocabulary parse(int kind, bool complete, std::string_view rest) {
  if (kind == 0) {
    const std::size_t end = std::min(rest.find('\0'), rest.size());
    std::string vocab(rest.substr(0, end));
    if (complete) vocab = with_bytes(std::move(vocab), "");
    const std::string merges(rest.substr(std::min(end + 1, rest.size())));
    return parse_gpt2_files({.name = "vocab.json", .text = vocab}, {.name = "merges.txt", .text = merges});
  }
  if (kind == 1) {
    std::string json(rest);
    if (complete) json = with_bytes(std::move(json), "\"vocab\"");
    return parse_hugging_face_file({.name = "tokenizer.json", .text = json});
  }
  const std::string ranks = complete ? base64_bytes() + std::string(rest) : std::string(rest);
  const WordPattern pattern = kPatterns[rest.size() % std::size(kPatterns)];
  return parse_tiktoken_file({.name = "ranks", .text = ranks}, pattern, {});
}

// Encoded bytes decode to the same, except intended changes: added tokens, NFC, a space in front.
void use(BpeVocabulary vocabulary, std::string_view text) {
  const bool same = vocabulary.added.empty() && !vocabulary.nfc && !vocabulary.prefix_space;
  vocabulary.eod = vocabulary.tokens.front().second;
  const std::int32_t eod = vocabulary.eod;
  const Tokenizer tokenizer(std::move(vocabulary));
  std::vector<std::int32_t> ids;
  tokenizer.encode(text, ids);
  bool has_eod = false;
  for (const std::int32_t id : ids) {
    if (id < 0 || id >= tokenizer.vocab_size()) fuzz::defect("an id out of range");
    has_eod = has_eod || id == eod;
  }
  const std::string back = tokenizer.decode(ids);
  if (same && !has_eod && back != text) fuzz::defect("the text that came back is another");
  std::vector<std::int32_t> again;
  tokenizer.encode(text, again);  // out of the cache
  if (again != ids) fuzz::defect("other ids the second time");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  const int first = input.byte();
  const std::string_view rest = input.rest();
  if ((first & 16) != 0) {
    const std::string text(rest);
    fuzz::expect_result_or_error([&] { parse_tokenizer_config({.name = "tokenizer_config.json", .text = text}); });
    return 0;
  }
  fuzz::expect_result_or_error([&] { use(parse(first % 4 % 3, (first & 8) != 0, rest), rest.substr(0, 1000)); });
  return 0;
}
