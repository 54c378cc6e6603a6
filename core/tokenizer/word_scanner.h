// Cuts text into the words that byte-level BPE merges within: the regular expressions of the known pre-tokenizers, each
// as a scanner that never goes back over a word. An expression is only ever recognised, never executed.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace megalith {

// What the patterns tell apart.
enum class CharClass : std::uint8_t {
  kOther,    // none of the below
  kSpace,    // \s, but for:
  kNewline,  // \r and \n
  kNumber,   // \p{N}
  kUpper,    // \p{Lu} \p{Lt}
  kLower,    // \p{Ll}
  kLetter,   // \p{Lm} \p{Lo}
  kMark,     // \p{M}
  kEnd,      // of the text
};

// By code point, with the 256 values of bytes that are no code points (decode_utf8).
std::vector<CharClass> char_classes();

// kGpt2: GPT-2, r50k, p50k and the ByteLevel pre-tokenizer of Hugging Face. kCl100k: cl100k_base as tiktoken has it;
// differs from kLlama3 in white space at the end of the text. kQwen2: as kLlama3, but each digit is a word; Qwen3 too.
// kO200k: o200k_base, Llama 4. kTikTokenV1, kTikTokenV2: Megatron's --tiktoken-pattern v1 and v2 (Mistral's Tekken).
enum class WordPattern { kGpt2, kCl100k, kLlama3, kQwen2, kO200k, kTikTokenV1, kTikTokenV2 };

std::string_view to_string(WordPattern pattern);                           // "gpt2", "cl100k", ...
std::optional<WordPattern> word_pattern_of_name(std::string_view name);    // as to_string gives it
std::string_view word_pattern_names();                                     // "gpt2, cl100k, ... or v2", for messages
std::optional<WordPattern> word_pattern_of_regex(std::string_view regex);  // spelled as in tokenizer.json

class WordScanner {
 public:
  explicit WordScanner(WordPattern pattern);

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

  Rules rules_;
  std::vector<CharClass> classes_;  // by code point
};

}  // namespace megalith
