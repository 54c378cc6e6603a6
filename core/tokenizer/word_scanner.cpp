#include "core/tokenizer/word_scanner.h"

#include <algorithm>
#include <span>
#include <utility>

#include "core/base/text/utf8.h"
#include "core/tokenizer/unicode_tables.h"

namespace megalith {

namespace {

constexpr unsigned bit(CharClass type) { return 1u << static_cast<unsigned>(type); }

constexpr unsigned kSpaces = bit(CharClass::kSpace) | bit(CharClass::kNewline);
constexpr unsigned kLetters = bit(CharClass::kUpper) | bit(CharClass::kLower) | bit(CharClass::kLetter);
constexpr unsigned kNumbers = bit(CharClass::kNumber);
constexpr unsigned kRest = bit(CharClass::kOther) | bit(CharClass::kMark);  // [^\s\p{L}\p{N}]
constexpr unsigned kNeitherCase = bit(CharClass::kLetter) | bit(CharClass::kMark);
constexpr unsigned kCapitals = bit(CharClass::kUpper) | kNeitherCase;
constexpr unsigned kSmalls = bit(CharClass::kLower) | kNeitherCase;
constexpr unsigned kPrefix = kRest | bit(CharClass::kSpace);  // [^\r\n\p{L}\p{N}]

constexpr bool is_in(CharClass type, unsigned types) { return (bit(type) & types) != 0; }

}  // namespace

std::vector<CharClass> char_classes() {
  std::vector<CharClass> classes;
  classes.reserve(kCodePoints + 256);
  for (const std::uint32_t run : unpacked(kCharClassRuns)) {
    const std::size_t first = classes.size();
    const bool by_turns = (run & 8) != 0;
    classes.resize(first + (run >> 4), by_turns ? CharClass::kUpper : static_cast<CharClass>(run & 7));
    for (std::size_t i = first + 1; by_turns && i < classes.size(); i += 2) classes[i] = CharClass::kLower;
  }
  classes.resize(kCodePoints + 256, CharClass::kOther);
  return classes;
}

WordScanner::WordScanner(WordPattern pattern) : rules_(rules_of(pattern)), classes_(char_classes()) {
  static_assert(bit(CharClass::kMark) <= 0xff);
  for (std::size_t byte = 0; byte < 0x80; ++byte) sets_[byte] = static_cast<std::uint8_t>(bit(classes_[byte]));
}

WordScanner::Rules WordScanner::rules_of(WordPattern pattern) {
  switch (pattern) {
    case WordPattern::kGpt2:
      return {.contraction = Contraction::kLowerCase, .any_prefix = false, .newlines_end = false};
    case WordPattern::kCl100k: return {.contraction = Contraction::kAnyCase, .max_digits = 3, .space_at_end = true};
    case WordPattern::kLlama3: return {.contraction = Contraction::kAnyCase, .max_digits = 3};
    case WordPattern::kQwen2: return {.contraction = Contraction::kAnyCase, .max_digits = 1};
    case WordPattern::kO200k:
      return {.contraction = Contraction::kSuffix, .cased = true, .max_digits = 3, .slashes_end = true};
    case WordPattern::kTikTokenV1: return {.max_digits = 1};
    case WordPattern::kTikTokenV2: return {.cased = true, .max_digits = 1, .slashes_end = true};
  }
  return {};
}

inline WordScanner::Char WordScanner::peek(std::string_view text, std::size_t at) const {
  if (at >= text.size()) return {CharClass::kEnd, 0};
  const auto byte = static_cast<unsigned char>(text[at]);
  if (byte < 0x80) return {classes_[byte], 1};
  const CodePoint code = decode_utf8(text, at);
  return {classes_[code.value], code.bytes};
}

inline std::size_t WordScanner::run(std::string_view text, std::size_t at, unsigned types) const {
  for (;;) {
    while (at < text.size() && (sets_[static_cast<unsigned char>(text[at])] & types) != 0) ++at;
    if (at == text.size() || static_cast<unsigned char>(text[at]) < 0x80) return at;
    const Char c = peek(text, at);
    if (!is_in(c.type, types)) return at;
    at += c.bytes;
  }
}

// Returns the end of 's, 't, 're, 've, 'm, 'll or 'd at `at`, or `at`. If case is ignored, the long s (U+017F) is an s.
std::size_t WordScanner::contraction(std::string_view text, std::size_t at) const {
  if (at >= text.size() || text[at] != '\'') return at;
  const bool any_case = rules_.contraction != Contraction::kLowerCase;
  const auto letter = [&](std::size_t i) {
    const char c = i < text.size() ? text[i] : '\0';
    return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  };
  const char first = letter(at + 1);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return at + 2;
  const char second = letter(at + 2);
  if ((first == 'r' || first == 'v') && second == 'e') return at + 3;
  if (first == 'l' && second == 'l') return at + 3;
  if (any_case && text.substr(at + 1, 2) == "\u017f") return at + 3;
  return at;
}

// Matches [^\r\n\p{L}\p{N}]?\p{L}+
std::size_t WordScanner::letters(std::string_view text, std::size_t at) const {
  const Char c = peek(text, at);
  const std::size_t start = is_in(c.type, kPrefix) ? at + c.bytes : at;
  const std::size_t end = run(text, start, kLetters);
  return end == start ? at : end;
}

// Matches P?U*L+|P?U+L*; P = [^\r\n\p{L}\p{N}], U = [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}], L = [\p{Ll}\p{Lm}\p{Lo}\p{M}].
// If no small letter follows U*, U* gives its last character that is in L back to L+.
std::size_t WordScanner::cased_letters(std::string_view text, std::size_t at) const {
  const Char first = peek(text, at);
  const bool prefix = is_in(first.type, kPrefix);
  for (const std::size_t start : {prefix ? at + first.bytes : at, at}) {
    std::size_t end = start;
    std::size_t taken_back = at;
    Char c = peek(text, end);
    for (; is_in(c.type, kCapitals); c = peek(text, end)) {
      end += c.bytes;
      if (is_in(c.type, kNeitherCase)) taken_back = end;
    }
    if (c.type == CharClass::kLower) return run(text, end, kSmalls);
    if (taken_back > at) return taken_back;
    if (start > at && first.type == CharClass::kMark) continue;  // the mark itself is in U and L
    return end > start ? end : at;
  }
  return at;
}

// Matches \s++$ | \s*[\r\n]+ | \s+(?!\S) | \s+, as far as the rules allow.
std::size_t WordScanner::spaces(std::string_view text, std::size_t at) const {
  std::size_t end = at;
  std::size_t last = at;      // start of the last space
  std::size_t newlines = at;  // end of the last newline
  for (Char c = peek(text, end); is_in(c.type, kSpaces); c = peek(text, end)) {
    last = end;
    end += c.bytes;
    if (c.type == CharClass::kNewline) newlines = end;
  }
  if (end == text.size() && rules_.space_at_end) return end;
  if (rules_.newlines_end && newlines > at) return newlines;
  return end == text.size() || last == at ? end : last;
}

std::size_t WordScanner::next(std::string_view text, std::size_t at) const {
  const bool leading = rules_.contraction == Contraction::kLowerCase || rules_.contraction == Contraction::kAnyCase;
  if (leading) {
    const std::size_t end = contraction(text, at);
    if (end > at) return end;
  }
  const std::size_t start = text[at] == ' ' ? at + 1 : at;
  const Char c = peek(text, start);
  if (!rules_.any_prefix) {
    for (const unsigned types : {kLetters, kNumbers, kRest}) {
      if (is_in(c.type, types)) return run(text, start + c.bytes, types);
    }
    return spaces(text, at);
  }
  if (const std::size_t end = rules_.cased ? cased_letters(text, at) : letters(text, at); end > at) {
    return rules_.contraction == Contraction::kSuffix ? contraction(text, end) : end;
  }
  if (start == at && is_in(c.type, kNumbers)) {
    std::size_t end = at + c.bytes;
    for (int digits = 1; digits < rules_.max_digits; ++digits) {
      const Char digit = peek(text, end);
      if (!is_in(digit.type, kNumbers)) break;
      end += digit.bytes;
    }
    return end;
  }
  if (is_in(c.type, kRest)) {
    std::size_t end = run(text, start + c.bytes, kRest);
    while (end < text.size() && (text[end] == '\r' || text[end] == '\n' || (rules_.slashes_end && text[end] == '/'))) {
      ++end;
    }
    return end;
  }
  return spaces(text, at);
}

// Names and spellings of the patterns; the code above defines their meaning.
namespace {

using Named = std::pair<std::string_view, WordPattern>;

constexpr Named kNames[] = {
    {"gpt2", WordPattern::kGpt2},     {"cl100k", WordPattern::kCl100k}, {"llama3", WordPattern::kLlama3},
    {"qwen2", WordPattern::kQwen2},   {"o200k", WordPattern::kO200k},   {"v1", WordPattern::kTikTokenV1},
    {"v2", WordPattern::kTikTokenV2},
};

// tiktoken's cl100k is absent: its {1,3}+ is possessive in tiktoken but differs in Hugging Face's library.
constexpr Named kSpellings[] = {
    {R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", WordPattern::kGpt2},
    {R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", WordPattern::kGpt2},
    {R"('(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s)", WordPattern::kGpt2},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
     R"(\s*[\r\n]+|\s+(?!\S)|\s+)",
     WordPattern::kLlama3},
    {R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|)"
     R"(\s*[\r\n]|\s+(?!\S)|\s+)",
     WordPattern::kLlama3},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
     R"(\s*[\r\n]+|\s+(?!\S)|\s+)",
     WordPattern::kQwen2},
    {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
     R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
     R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     WordPattern::kO200k},
    {R"([^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)", WordPattern::kTikTokenV1},
    {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
     R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
     R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     WordPattern::kTikTokenV2},
};

std::optional<WordPattern> find(std::span<const Named> known, std::string_view text) {
  const auto found = std::ranges::find(known, text, &Named::first);
  return found == known.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace

std::string_view to_string(WordPattern pattern) { return std::ranges::find(kNames, pattern, &Named::second)->first; }

std::string_view word_pattern_names() { return "gpt2, cl100k, llama3, qwen2, o200k, v1 or v2"; }

std::optional<WordPattern> word_pattern_of_name(std::string_view name) { return find(kNames, name); }

std::optional<WordPattern> word_pattern_of_regex(std::string_view regex) { return find(kSpellings, regex); }

}  // namespace megalith
