#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/take_part.h"
#include "core/base/text/parse_number.h"
#include "core/tokenizer/bpe_files.h"
#include "core/tokenizer/bpe_spelling.h"

namespace megalith {

namespace {

// Decodes padded base64 (RFC 4648) to at least one byte; none for any other text.
std::optional<std::string> decode_base64(std::string_view text) {
  if (text.empty() || text.size() % 4 != 0) return std::nullopt;
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const std::size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  text.remove_suffix(padding);
  std::string bytes;
  unsigned bits = 0;
  int count = 0;
  for (const char c : text) {
    const std::size_t six = kDigits.find(c);
    if (six == std::string_view::npos) return std::nullopt;
    bits = (bits << 6 | static_cast<unsigned>(six)) & 0xffffff;
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes += static_cast<char>(bits >> count & 0xff);
  }
  return bytes;
}

std::optional<std::int32_t> parse_id(std::string_view text) {
  const std::optional<std::int32_t> id = parse_number<std::int32_t>(text);
  return id && *id >= 0 && *id <= kMaxTokenId ? id : std::nullopt;
}

using Ranks = std::unordered_map<std::string_view, std::int32_t>;  // views into vocabulary.tokens

// Adds all merges: tiktoken merges two neighbors if their joined bytes are a token.
void add_all_merges(BpeVocabulary& vocabulary, const Ranks& ranks) {
  for (const auto& [bytes, id] : vocabulary.tokens) {
    const std::string_view token = bytes;
    for (std::size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = ranks.find(token.substr(0, cut));
      if (left == ranks.end()) continue;
      const auto right = ranks.find(token.substr(cut));
      if (right != ranks.end()) {
        if (vocabulary.merges.size() == kMaxMerges) {
          refuse_tokenizer_file(vocabulary.source, fmt::format("at most {} ways to merge two tokens", kMaxMerges),
                                "more");
        }
        vocabulary.merges.push_back({.left = left->second, .right = right->second, .merged = id, .rank = id});
      }
    }
  }
}

void read_ranks(BpeVocabulary& vocabulary, const TokenizerFile& file) {
  std::string_view rest = file.text;
  for (std::int64_t number = 1; !rest.empty(); ++number) {
    std::string_view line = take_part(rest, '\n');
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    const std::size_t space = std::min(line.find(' '), line.size());
    std::optional<std::string> bytes = decode_base64(line.substr(0, space));
    const std::optional<std::int32_t> id = parse_id(line.substr(std::min(space + 1, line.size())));
    if (!bytes || !id || bytes->size() > kMaxTokenBytes) {
      refuse_tokenizer_file(fmt::format("{}:{}", file.name, number),
                            fmt::format("a token of at most {} bytes in base64, a space and its rank, at most {}",
                                        kMaxTokenBytes, kMaxTokenId),
                            described_line(line));
    }
    vocabulary.tokens.emplace_back(std::move(*bytes), *id);
  }
}

Ranks index_ranks(BpeVocabulary& vocabulary) {
  Ranks ranks;
  ranks.reserve(vocabulary.tokens.size());
  vocabulary.byte_ids.fill(-1);
  std::int32_t last = -1;
  for (const auto& [bytes, id] : vocabulary.tokens) {
    if (id == last) refuse_tokenizer_file(vocabulary.source, "one token a rank", fmt::format("two of rank {}", id));
    last = id;
    if (!ranks.emplace(bytes, id).second) {
      refuse_tokenizer_file(vocabulary.source, "each token once", quoted_bytes(bytes) + " again");
    }
    if (bytes.size() == 1) vocabulary.byte_ids[static_cast<unsigned char>(bytes[0])] = id;
  }
  check_byte_ids(vocabulary, vocabulary.source);
  return ranks;
}

void add_special_tokens(BpeVocabulary& vocabulary, std::vector<std::string> special_tokens) {
  const auto refuse = [&](const std::string& token, const std::string& expected) {
    refuse_usage("--tiktoken-special-tokens", {.expected = expected, .got = quoted_bytes(token)});
  };
  std::vector<std::int32_t> used;
  for (const auto& token : vocabulary.tokens) used.push_back(token.second);
  std::int32_t next = std::ranges::max(used) + 1;  // each byte is a token
  if (special_tokens.empty()) special_tokens = {"<|endoftext|>"};
  std::ranges::sort(used);
  for (const std::string& token : special_tokens) {
    const std::size_t equals = token.rfind('=');
    const std::optional<std::int32_t> given =
        equals == std::string::npos ? std::nullopt : parse_id(std::string_view(token).substr(equals + 1));
    const std::string name = given ? token.substr(0, equals) : token;
    const std::int32_t id = given.value_or(next);
    if (name.empty() || name.size() > kMaxTokenBytes) refuse(token, "NAME or NAME=ID");
    if (id > kMaxTokenId) refuse(token, fmt::format("ids of at most {}", kMaxTokenId));
    const auto is_same = [&](const AddedToken& other) { return other.text == name || other.id == id; };
    if (std::ranges::binary_search(used, id) || std::ranges::any_of(vocabulary.added, is_same)) {
      refuse(token, "names and ids that are not taken");
    }
    vocabulary.added.push_back({.text = name, .id = id});
    next = std::max(next, id + 1);
  }
}

}  // namespace

BpeVocabulary parse_tiktoken_file(const TokenizerFile& file, WordPattern pattern,
                                  const std::vector<std::string>& special_tokens) {
  BpeVocabulary vocabulary{.source = file.name, .pattern = pattern, .whole_words = true};
  read_ranks(vocabulary, file);
  std::ranges::sort(vocabulary.tokens, {}, &std::pair<std::string, std::int32_t>::second);
  add_all_merges(vocabulary, index_ranks(vocabulary));
  add_special_tokens(vocabulary, special_tokens);
  return vocabulary;
}

}  // namespace megalith
