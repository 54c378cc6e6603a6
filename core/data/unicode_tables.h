// Tables made by unicode_tables.py; do not edit the .cpp files by hand.
#pragma once

#include <cstdint>
#include <span>

namespace megalith {

// What the pre-tokenizers' patterns tell apart; of Unicode 16.0, as in tokenizers 0.23 and tiktoken 0.14.
enum class CharClass : std::uint8_t {
  kOther,    // neither of the below
  kSpace,    // \s, but for:
  kNewline,  // \r and \n
  kNumber,   // \p{N}
  kUpper,    // \p{Lu} \p{Lt}
  kLower,    // \p{Ll}
  kLetter,   // \p{Lm} \p{Lo}
  kMark,     // \p{M}
  kEnd,      // of the text
};

// Runs of code points of one class: first << 3 | class; each goes on to the next one's first.
std::span<const std::uint32_t> char_class_runs();

// For NFC, of Unicode 9.0, as in tokenizers 0.23.
struct Decomposition {
  std::uint32_t composed;
  std::uint32_t first;
  std::uint32_t second;  // 0: a singleton, which is never composed again
  int excluded;          // 1: not composed again either
};
std::span<const Decomposition> canonical_decompositions();  // ascending; Hangul syllables are left out

struct CombiningRun {
  std::uint32_t first;
  std::uint32_t last;
  std::uint8_t combining_class;  // not 0
};
std::span<const CombiningRun> combining_runs();  // ascending

}  // namespace megalith
