// The names and the spellings of the patterns; word_scanner.cpp is what they mean.
#include <algorithm>
#include <span>
#include <utility>

#include "core/tokenizer/word_scanner.h"

namespace megalith {

namespace {

using Named = std::pair<std::string_view, WordPattern>;

constexpr Named kNames[] = {
    {"gpt2", WordPattern::kGpt2},     {"cl100k", WordPattern::kCl100k}, {"llama3", WordPattern::kLlama3},
    {"qwen2", WordPattern::kQwen2},   {"o200k", WordPattern::kO200k},   {"v1", WordPattern::kTikTokenV1},
    {"v2", WordPattern::kTikTokenV2},
};

// Without tiktoken's cl100k: its {1,3}+ is possessive there, but means another thing to Hugging Face's library.
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
