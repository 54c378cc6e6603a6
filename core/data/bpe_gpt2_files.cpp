// vocab.json and merges.txt, and what ends documents.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/take_part.h"
#include "core/data/bpe_files.h"
#include "core/data/bpe_spelling.h"

namespace megalith {

namespace {

std::optional<std::int32_t> id_of(const BpeVocabulary& vocabulary, std::string_view name) {
  for (const AddedToken& token : vocabulary.added) {
    if (token.text == name) return token.id;
  }
  for (const auto& [bytes, id] : vocabulary.tokens) {
    if (bytes == name) return id;
  }
  return std::nullopt;
}

}  // namespace

BpeVocabulary parse_gpt2_files(const TokenizerFile& vocab_file, const TokenizerFile& merge_file) {
  BpeVocabulary vocabulary{.source = vocab_file.name, .pattern = WordPattern::kGpt2};
  SpelledVocabulary spelled(vocabulary, vocab_file.name, parse_tokenizer_json(vocab_file));
  check_file_size(merge_file);
  std::string_view rest = merge_file.text;
  for (std::int64_t number = 1; !rest.empty(); ++number) {
    std::string_view line = take_part(rest, '\n');
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.starts_with("#version")) continue;
    const std::string place = fmt::format("{}:{}", merge_file.name, number);
    const std::size_t space = line.find(' ');
    if (space == std::string_view::npos || space == 0 || space + 1 == line.size() || line.rfind(' ') != space) {
      refuse_tokenizer_file(place, "two tokens with a space between", described_line(line));
    }
    spelled.add_merge(place, line.substr(0, space), line.substr(space + 1));
  }
  return vocabulary;
}

std::int32_t find_eod(const BpeVocabulary& vocabulary, const std::string& name) {
  const std::vector<std::string> names =
      name.empty() ? std::vector<std::string>{"<|endoftext|>", "<|end_of_text|>", "</s>"} : std::vector{name};
  for (const std::string& candidate : names) {
    if (const std::optional<std::int32_t> id = id_of(vocabulary, candidate)) return *id;
  }
  refuse_usage("--eod-token", {.expected = fmt::format("a token of {} that ends documents", vocabulary.source),
                               .got = name.empty() ? fmt::format("none, and there is no {}", fmt::join(names, ", "))
                                                   : quoted_bytes(name)});
}

}  // namespace megalith
