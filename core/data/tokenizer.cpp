#include "core/data/tokenizer.h"

#include <fmt/format.h>

#include <charconv>
#include <limits>

#include "core/base/error.h"

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
      fail({.code = ExitCode::kFormat,
            .subject = "text for --tokenizer-type null",
            .expected = fmt::format("token ids from 0 to {}", tokenizer.vocab_size - 1),
            .got = fmt::format("'{}'", word.substr(0, 40)),
            .show_place = false});
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

std::int64_t vocab_size_of(const ByteTokenizer&) { return kByteEod + 1; }
std::int64_t vocab_size_of(const NullTokenizer& tokenizer) { return tokenizer.vocab_size + 1; }

std::string name_of(const ByteTokenizer&) { return "byte"; }
std::string name_of(const NullTokenizer&) { return "null"; }

}  // namespace

Tokenizer::Tokenizer(NullTokenizer tokenizer) : kind_(tokenizer) {
  if (tokenizer.vocab_size < 1 || tokenizer.vocab_size >= std::numeric_limits<std::int32_t>::max()) {
    fail({.code = ExitCode::kUsage,
          .subject = "--vocab-size",
          .expected = "1 to 2147483646 with --tokenizer-type null",
          .got = std::to_string(tokenizer.vocab_size),
          .show_place = false});
  }
}

std::int64_t Tokenizer::vocab_size() const {
  return std::visit([](const auto& kind) { return vocab_size_of(kind); }, kind_);
}

std::int32_t Tokenizer::eod() const { return static_cast<std::int32_t>(vocab_size() - 1); }

std::string Tokenizer::identity() const {
  return std::visit([&](const auto& kind) { return fmt::format("{}-{}", name_of(kind), vocab_size_of(kind)); }, kind_);
}

void Tokenizer::encode(std::string_view text, std::vector<std::int32_t>& ids) const {
  std::visit([&](const auto& kind) { encode_with(kind, text, ids); }, kind_);
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids) const {
  return std::visit([&](const auto& kind) { return decode_with(kind, ids); }, kind_);
}

Tokenizer make_tokenizer(std::string_view type, std::int64_t vocab_size) {
  if (type == "byte") return Tokenizer();
  if (type == "null") return Tokenizer(NullTokenizer{.vocab_size = vocab_size});
  fail({.code = ExitCode::kUsage,
        .subject = "--tokenizer-type",
        .expected = "byte or null",
        .got = fmt::format("'{}'", type),
        .show_place = false});
}

}  // namespace megalith
