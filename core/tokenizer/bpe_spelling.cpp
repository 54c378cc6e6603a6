#include "core/tokenizer/bpe_spelling.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/error.h"
#include "core/base/take_part.h"
#include "core/base/text/utf8.h"

namespace megalith {

namespace {

constexpr int kMaxDepth = 32;
constexpr std::int64_t kMaxValues = std::int64_t{1} << 22;  // large real files have a million

// Bytes that are printable in Latin-1 spell themselves; the others are U+0100 and up, in order. -1: not a byte.
constexpr std::array<std::int16_t, 0x144> kByteOf = [] {
  std::array<std::int16_t, 0x144> byte_of;
  byte_of.fill(-1);
  std::size_t next = 0x100;
  for (std::int16_t byte = 0; byte < 256; ++byte) {
    const bool itself = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xff && byte != 0xad);
    byte_of[itself ? static_cast<std::size_t>(byte) : next++] = byte;
  }
  return byte_of;
}();

// Returns the bytes that `spelled` encodes; none if a character encodes no byte.
std::optional<std::string> bytes_of_spelling(std::string_view spelled) {
  std::string bytes;
  for (std::size_t at = 0; at < spelled.size();) {
    const CodePoint code = decode_utf8(spelled, at);
    if (code.value >= kByteOf.size() || kByteOf[code.value] < 0) return std::nullopt;
    bytes += static_cast<char>(kByteOf[code.value]);
    at += code.bytes;
  }
  return bytes;
}

struct Extent {
  int depth = 0;            // deepest nesting of brackets outside strings; for JSON, of its values
  std::int64_t values = 1;  // commas and brackets: an upper bound of JSON's values
};

Extent extent_of(std::string_view text) {
  Extent extent;
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      extent.depth = std::max(extent.depth, ++depth);
      ++extent.values;
    } else if (c == '}' || c == ']') {
      --depth;
    } else if (c == ',') {
      ++extent.values;
    }
  }
  return extent;
}

std::optional<std::int32_t> id_of(const BpeVocabulary& vocabulary, std::string_view name) {
  for (const AddedToken& token : vocabulary.added) {
    if (token.text == name) return token.id;
  }
  for (const auto& [bytes, id] : vocabulary.tokens) {
    if (bytes == name) return id;
  }
  return std::nullopt;
}

}  // namespace

void refuse_tokenizer_file(const std::string& place, const std::string& expected, const std::string& got,
                           const std::string& remedy) {
  refuse_format(place, expected, got,
                remedy.empty() ? "check that the file is complete and what --tokenizer-type takes" : remedy);
}

std::string quoted_bytes(std::string_view text) {
  std::string out = "'";
  for (const char c : text.substr(0, 40))
    out += c >= 0x20 && c < 0x7f ? std::string(1, c) : fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return out + (text.size() > 40 ? "...'" : "'");
}

std::string described_line(std::string_view line) {
  return fmt::format("a line (bytes: {}, spaces: {})", line.size(), std::ranges::count(line, ' '));
}

void check_byte_ids(const BpeVocabulary& vocabulary, const std::string& place, const std::string& remedy) {
  const auto lacking = std::ranges::find(vocabulary.byte_ids, -1);
  if (lacking == vocabulary.byte_ids.end()) return;
  refuse_tokenizer_file(place, "a token for each of the 256 bytes",
                        fmt::format("none for byte 0x{:02x}", lacking - vocabulary.byte_ids.begin()), remedy);
}

nlohmann::json parse_tokenizer_json(const TokenizerFile& file) {
  const Extent extent = extent_of(file.text);
  if (extent.depth > kMaxDepth) {
    refuse_tokenizer_file(file.name, fmt::format("JSON of at most {} levels", kMaxDepth), std::to_string(extent.depth));
  }
  if (extent.values > kMaxValues) {
    refuse_tokenizer_file(file.name, fmt::format("JSON of at most {} values", kMaxValues),
                          std::to_string(extent.values));
  }
  try {
    return nlohmann::json::parse(file.text);
  } catch (const nlohmann::json::parse_error& error) {
    refuse_tokenizer_file(fmt::format("{}: byte {}", file.name, error.byte), "JSON", "a syntax error");
  } catch (const nlohmann::json::out_of_range&) {
    refuse_tokenizer_file(file.name, "JSON", "a number out of range");
  }
}

SpelledVocabulary::SpelledVocabulary(BpeVocabulary& vocabulary, const std::string& place, const nlohmann::json& vocab)
    : vocabulary_(vocabulary) {
  if (!vocab.is_object()) refuse_tokenizer_file(place, "an object of tokens and their ids", vocab.type_name());
  ids_.reserve(vocab.size());
  vocabulary.byte_ids.fill(-1);
  for (const auto& [token, id] : vocab.items()) add_token(place, token, id);
  std::vector<std::pair<std::int32_t, const std::string*>> by_id;
  for (const auto& [token, id] : ids_) by_id.emplace_back(id, &token);
  std::ranges::sort(by_id, {},
                    [](const auto& entry) { return std::pair(entry.first, std::string_view(*entry.second)); });
  for (std::size_t i = 1; i < by_id.size(); ++i) {
    if (by_id[i].first != by_id[i - 1].first) continue;
    refuse_tokenizer_file(place, "one token an id",
                          fmt::format("{} and {} with id {}", quoted_bytes(*by_id[i - 1].second),
                                      quoted_bytes(*by_id[i].second), by_id[i].first));
  }
  check_byte_ids(vocabulary, place, "the tokenizer is not one of bytes, or was trained without their alphabet");
}

void SpelledVocabulary::add_token(const std::string& place, const std::string& spelled, const nlohmann::json& id) {
  const auto refuse = [&](const std::string& expected, const std::string& got) {
    refuse_tokenizer_file(fmt::format("{}: token {}", place, quoted_bytes(spelled)), expected, got);
  };
  if (!id.is_number_integer()) refuse("an integer id", id.type_name());
  const auto number = id.get<std::int64_t>();  // 2^63 and more become negative
  if (number < 0 || number > kMaxTokenId) refuse(fmt::format("an id from 0 to {}", kMaxTokenId), "one out of range");
  if (spelled.empty() || spelled.size() > 2 * kMaxTokenBytes) {
    refuse(fmt::format("1 to {} bytes", kMaxTokenBytes), std::to_string(spelled.size()));
  }
  const auto small_id = static_cast<std::int32_t>(number);
  std::optional<std::string> bytes = bytes_of_spelling(spelled);
  if (!bytes) {
    vocabulary_.opaque.push_back(small_id);
  } else if (bytes->size() == 1) {
    vocabulary_.byte_ids[static_cast<unsigned char>(bytes->front())] = small_id;
  }
  vocabulary_.tokens.emplace_back(std::move(bytes).value_or(spelled), small_id);
  ids_.emplace(spelled, small_id);
}

std::optional<std::int32_t> SpelledVocabulary::id_of(std::string_view spelled) const {
  const auto found = ids_.find(std::string(spelled));
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

void SpelledVocabulary::add_merge(const std::string& place, std::string_view left, std::string_view right) {
  if (vocabulary_.merges.size() == kMaxMerges) {
    refuse_tokenizer_file(place, fmt::format("at most {} merges", kMaxMerges), "one more");
  }
  merged_ = left;
  merged_ += right;
  const auto id = [&](std::string_view token, const char* which) {
    const std::optional<std::int32_t> found = id_of(token);
    if (!found) refuse_tokenizer_file(place, "merges of tokens in the vocabulary", which);
    return *found;
  };
  vocabulary_.merges.push_back({.left = id(left, "a first one that is not"),
                                .right = id(right, "a second one that is not"),
                                .merged = id(merged_, "two that together are none"),
                                .rank = static_cast<std::int32_t>(vocabulary_.merges.size())});
}

BpeVocabulary parse_gpt2_files(const TokenizerFile& vocab_file, const TokenizerFile& merge_file) {
  BpeVocabulary vocabulary{.source = vocab_file.name, .pattern = WordPattern::kGpt2};
  SpelledVocabulary spelled(vocabulary, vocab_file.name, parse_tokenizer_json(vocab_file));
  std::string_view rest = merge_file.text;
  for (std::int64_t number = 1; !rest.empty(); ++number) {
    std::string_view line = take_part(rest, '\n');
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.starts_with("#version")) continue;
    const std::string place = fmt::format("{}:{}", merge_file.name, number);
    const std::size_t space = line.find(' ');
    if (space == std::string_view::npos || space == 0 || space + 1 == line.size() || line.rfind(' ') != space) {
      refuse_tokenizer_file(place, "two tokens with a space between", described_line(line));
    }
    spelled.add_merge(place, line.substr(0, space), line.substr(space + 1));
  }
  return vocabulary;
}

std::int32_t find_eod(const BpeVocabulary& vocabulary, const std::string& name, const SpecialTokens& named) {
  std::vector<std::string> names = {name};
  if (name.empty()) names = {"<|endoftext|>", "<|end_of_text|>", "</s>"};
  std::string got = name.empty() ? fmt::format("none, and there is no {}", fmt::join(names, ", ")) : quoted_bytes(name);
  if (name.empty() && !named.eos.empty()) {
    names.push_back(named.eos);
    got += fmt::format(", nor the eos_token {} of {}", quoted_bytes(named.eos), named.source);
  }
  for (const std::string& candidate : names) {
    if (const std::optional<std::int32_t> id = id_of(vocabulary, candidate)) return *id;
  }
  refuse_usage("--eod-token",
               {.expected = fmt::format("a token of {} that ends documents", vocabulary.source), .got = got});
}

std::optional<std::int32_t> find_bos(const BpeVocabulary& vocabulary, const SpecialTokens& named) {
  return named.bos.empty() ? std::nullopt : id_of(vocabulary, named.bos);
}

}  // namespace megalith
