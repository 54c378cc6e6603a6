// Unicode's normal form C (Unicode Standard Annex 15), for tokenizers that ask for it.
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

  // Appends `text` in normal form C of Unicode 9.0, as the Hugging Face tokenizers library has it. Bytes that are not
  // UTF-8 stay as they are.
  void append(std::string& out, std::string_view text) const;

 private:
  struct Char {
    std::uint32_t value;
    int combining_class;
  };
  void append_span(std::string& out, std::string_view span) const;
  void decompose(std::uint32_t value, std::vector<Char>& chars) const;
  std::uint32_t composed(std::uint32_t first, std::uint32_t second) const;  // 0: they do not compose

  std::vector<bool> stable_;                                   // stays, and what is before it does not matter
  std::unordered_map<std::uint32_t, int> classes_;             // of combining characters
  std::unordered_map<std::uint32_t, std::uint64_t> pairs_;     // composed -> first << 32 | second, which may be 0
  std::unordered_map<std::uint64_t, std::uint32_t> composed_;  // the other way, but for those that never compose
};

}  // namespace megalith
