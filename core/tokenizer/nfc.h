// Unicode's normal form C (Unicode Standard Annex 15) for tokenizers that require it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace megalith {

class NfcNormalizer {
 public:
  NfcNormalizer();

  // Whether all characters are below U+0300, which are in normal form; their bytes are below 0xcc.
  static bool keeps(std::string_view text) {
    bool has_higher = false;
    for (const char c : text) has_higher |= static_cast<unsigned char>(c) >= 0xcc;
    return !has_higher;
  }

  // Appends `text` in normal form C of Unicode 9.0, as in the Hugging Face tokenizers library. Bytes that are not UTF-8
  // are unchanged.
  void append(std::string& out, std::string_view text) const;

 private:
  struct Char {
    std::uint32_t value;
    int combining_class;
  };
  void append_span(std::string& out, std::string_view span) const;
  void decompose(std::uint32_t value, std::vector<Char>& chars) const;
  std::uint32_t composed(std::uint32_t first, std::uint32_t second) const;  // 0: they do not compose

  std::vector<bool> stable_;                                   // unchanged, regardless of preceding characters
  std::unordered_map<std::uint32_t, int> classes_;             // of combining characters
  std::unordered_map<std::uint32_t, std::uint64_t> pairs_;     // composed -> first << 32 | second, which may be 0
  std::unordered_map<std::uint64_t, std::uint32_t> composed_;  // inverse of pairs_, without pairs that never compose
};

}  // namespace megalith
