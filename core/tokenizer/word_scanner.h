// Scanner of the words that byte-level BPE merges within. Each known pre-tokenizer's regular expression is a scanner
// that never rescans a word. Expressions are only recognized, never executed.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace megalith {

// Classes of characters that the patterns distinguish.
enum class CharClass : std::uint8_t {
  kOther,    // none of the classes below
  kSpace,    // \s, except:
  kNewline,  // \r and \n
  kNumber,   // \p{N}
  kUpper,    // \p{Lu} \p{Lt}
  kLower,    // \p{Ll}
  kLetter,   // \p{Lm} \p{Lo}
  kMark,     // \p{M}
  kEnd,      // end of the text
};

// Returns the classes by code point, with 256 values for invalid bytes (decode_utf8).
std::vector<CharClass> char_classes();

// Known patterns. kGpt2: GPT-2, r50k, p50k and Hugging Face's ByteLevel pre-tokenizer. kCl100k: tiktoken's cl100k_base;
// differs from kLlama3 in white space at the end. kQwen2: kLlama3 with one word per digit; also Qwen3. kO200k:
// o200k_base, Llama 4. kTikTokenV1, kTikTokenV2: Megatron's --tiktoken-pattern v1 and v2 (Mistral's Tekken).
enum class WordPattern { kGpt2, kCl100k, kLlama3, kQwen2, kO200k, kTikTokenV1, kTikTokenV2 };

std::string_view to_string(WordPattern pattern);                           // "gpt2", "cl100k", ...
std::optional<WordPattern> word_pattern_of_name(std::string_view name);    // inverse of to_string
std::string_view word_pattern_names();                                     // "gpt2, cl100k, ... or v2", for messages
std::optional<WordPattern> word_pattern_of_regex(std::string_view regex);  // spelled as in tokenizer.json

class WordScanner {
 public:
  explicit WordScanner(WordPattern pattern);

  // Returns the end of the word at `at` < text.size(), which exceeds `at`. Bytes that are not UTF-8 count as kOther.
  std::size_t next(std::string_view text, std::size_t at) const;

 private:
  enum class Contraction { kNone, kLowerCase, kAnyCase, kSuffix };
  struct Rules {
    Contraction contraction = Contraction::kNone;
    bool any_prefix = true;     // [^\r\n\p{L}\p{N}]? ahead of letters; else a space, also ahead of numbers
    bool cased = false;         // words are capitals, then small letters, with marks
    int max_digits = 0;         // 0: unlimited
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

  Rules rules_;
  std::vector<CharClass> classes_;           // by code point
  std::array<std::uint8_t, 256> sets_ = {};  // by byte: a set of the class of ASCII, none of other bytes
};

}  // namespace megalith
