// Cuts text into the words that byte-level BPE merges within: the regular expressions of the known pre-tokenizers, each
// as a scanner that never goes back over a word. An expression is only ever recognised, never executed.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "core/data/unicode_tables.h"

namespace megalith {

// kGpt2: GPT-2, r50k, p50k and the ByteLevel pre-tokenizer of Hugging Face. kCl100k: cl100k_base as tiktoken has it;
// differs from kLlama3 in white space at the end of the text. kQwen2: as kLlama3, but each digit is a word; Qwen3 too.
// kO200k: o200k_base, Llama 4. kTikTokenV1, kTikTokenV2: Megatron's --tiktoken-pattern v1 and v2 (Mistral's Tekken).
enum class WordPattern { kGpt2, kCl100k, kLlama3, kQwen2, kO200k, kTikTokenV1, kTikTokenV2 };

std::string_view to_string(WordPattern pattern);                           // "gpt2", "cl100k", ...
std::optional<WordPattern> word_pattern_of_name(std::string_view name);    // as to_string gives it
std::string_view word_pattern_names();                                     // "gpt2, cl100k, ... or v2", for messages
std::optional<WordPattern> word_pattern_of_regex(std::string_view regex);  // spelled as in tokenizer.json

// The class of each code point, by two look-ups.
class CharClasses {
 public:
  static const CharClasses& shared();  // unpacked from the tables at the first call

  CharClass ascii(unsigned char byte) const { return blocks_[byte]; }  // byte < 128
  CharClass of(std::uint32_t value) const { return blocks_[block_of_[value >> 8] << 8 | (value & 0xff)]; }

 private:
  CharClasses();

  std::array<std::uint16_t, 0x1101> block_of_{};  // one more for the bytes of no code point, see decode_utf8
  std::vector<CharClass> blocks_;                 // 256 code points each
};

class WordScanner {
 public:
  explicit WordScanner(WordPattern pattern);

  WordPattern pattern() const { return pattern_; }

  // End of the word that begins at `at` < text.size(); more than `at`. Bytes that are not UTF-8 count as kOther.
  std::size_t next(std::string_view text, std::size_t at) const;

 private:
  enum class Contraction { kNone, kLowerCase, kAnyCase, kSuffix };
  struct Rules {
    Contraction contraction = Contraction::kNone;
    bool any_prefix = true;     // [^\r\n\p{L}\p{N}]? before letters; else a space, before numbers too
    bool cased = false;         // a word goes from capitals to small letters, with marks
    int most_digits = 0;        // 0: as many as there are
    bool newlines_end = true;   // [\r\n]* after punctuation, \s*[\r\n]+
    bool slashes_end = false;   // [\r\n/]* after punctuation
    bool space_at_end = false;  // \s++$
  };
  struct Char {
    CharClass type;
    std::uint32_t bytes;
  };
  static Rules rules_of(WordPattern pattern);

  Char peek(std::string_view text, std::size_t at) const;
  std::size_t run(std::string_view text, std::size_t at, unsigned types) const;
  std::size_t contraction(std::string_view text, std::size_t at) const;
  std::size_t letters(std::string_view text, std::size_t at) const;
  std::size_t cased_letters(std::string_view text, std::size_t at) const;
  std::size_t spaces(std::string_view text, std::size_t at) const;

  WordPattern pattern_;
  Rules rules_;
  const CharClasses& classes_;
};

}  // namespace megalith
