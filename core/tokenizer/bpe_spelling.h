// Shared code of the readers of tokenizer files. GPT-2 and Hugging Face spell each byte of a token as a printable
// character.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "core/tokenizer/bpe_files.h"

namespace megalith {

[[noreturn]] void refuse_tokenizer_file(const std::string& place, const std::string& expected, const std::string& got,
                                        const std::string& remedy = {});

// Fails unless each of the 256 bytes is a token.
void check_byte_ids(const BpeVocabulary& vocabulary, const std::string& place, const std::string& remedy = {});

// Quotes at most 40 bytes of a file's text in printable form.
std::string quoted_bytes(std::string_view text);

// Describes a line without its content, since a wrong flag may name a private file.
std::string described_line(std::string_view line);

// Parses the file's JSON; rejects invalid JSON, more than 32 levels and more than 2^22 values.
nlohmann::json parse_tokenizer_json(const TokenizerFile& file);

// Builder of tokens, opaque ids, byte ids and merges of a vocabulary in that spelling.
class SpelledVocabulary {
 public:
  // `vocab` is an object of spelled tokens and ids.
  SpelledVocabulary(BpeVocabulary& vocabulary, const std::string& place, const nlohmann::json& vocab);
  void add_merge(const std::string& place, std::string_view left, std::string_view right);
  std::optional<std::int32_t> id_of(std::string_view spelled) const;

 private:
  void add_token(const std::string& place, const std::string& spelled, const nlohmann::json& id);

  BpeVocabulary& vocabulary_;
  std::unordered_map<std::string, std::int32_t> ids_;
  std::string merged_;
};

}  // namespace megalith
