// What the readers of tokenizers' files share. GPT-2's and Hugging Face's spell each byte of a token as a printable
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

// Each of the 256 bytes has to be a token.
void check_byte_ids(const BpeVocabulary& vocabulary, const std::string& place, const std::string& remedy = {});

// At most 40 bytes of a file's text, printable, in quotes.
std::string quoted_bytes(std::string_view text);

// What a line looks like, and nothing of what it says: the flag may name a file that is nobody's vocabulary.
std::string described_line(std::string_view line);

// The file's JSON; refused if it is deeper than 32, of more than 2^22 values, or none.
nlohmann::json parse_tokenizer_json(const TokenizerFile& file);

// Fills in tokens, opaque ids, byte ids and merges of a vocabulary in that spelling.
class SpelledVocabulary {
 public:
  // `vocab`: object of spelled token and id.
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
