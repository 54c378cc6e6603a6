#include "apps/generate/questions.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "apps/generate/json_lines.h"
#include "core/base/error.h"
#include "core/base/text/text.h"
#include "core/base/text/utf8.h"

namespace megalith {

namespace {

constexpr const char* kRemedy = "correct or remove the line";

// The one of `keys` that the object has. Error kFormat if it has none or several.
std::string only_key(const nlohmann::json& object, const std::vector<std::string_view>& keys,
                     const std::string& place) {
  std::vector<std::string> found;
  for (const std::string_view key : keys) {
    if (object.contains(key)) found.emplace_back(key);
  }
  if (found.size() != 1)
    refuse_format(place, fmt::format("one of the keys {}", alternatives(keys)),
                  found.empty() ? "none" : fmt::format("'{}'", fmt::join(found, "' and '")), kRemedy);
  return found[0];
}

std::vector<std::string> choices_of(const nlohmann::json& object, const std::string& place) {
  const auto member = object.find("choices");
  const bool is_list = member != object.end() && member->is_array() && !member->empty();
  if (!is_list) refuse_format(place, "a list of texts under 'choices'", "another value or none", kRemedy);
  std::vector<std::string> choices;
  for (const nlohmann::json& choice : *member) {
    if (!choice.is_string() || choice.get_ref<const std::string&>().empty())
      refuse_format(fmt::format("{}: choices[{}]", place, choices.size()), "a text that is not empty",
                    choice.is_string() ? "an empty text" : choice.type_name(), kRemedy);
    choices.push_back(choice.get<std::string>());
  }
  return choices;
}

std::size_t gold_of(const nlohmann::json& object, std::size_t choices, const std::string& place) {
  const std::string key = only_key(object, {"gold", "answer"}, place);
  const nlohmann::json& value = object.at(key);
  std::optional<std::size_t> index;
  if (value.is_number_unsigned()) {
    index = value.get<std::size_t>();
  } else if (value.is_string() && value.get_ref<const std::string&>().size() == 1) {
    const char letter = value.get_ref<const std::string&>()[0];
    if (letter >= 'A' && letter <= 'Z') index = static_cast<std::size_t>(letter - 'A');
  }
  if (!index || *index >= choices)
    refuse_format(place, fmt::format("under '{}' an index from 0 to {} or a letter from A", key, choices - 1),
                  escaped_short(value.dump()), kRemedy);
  return *index;
}

// Python's str.isspace.
bool is_space(std::uint32_t c) {
  constexpr std::array<std::uint32_t, 8> kOthers = {0x20, 0x85, 0xA0, 0x1680, 0x2028, 0x2029, 0x202F, 0x205F};
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x1F) || (c >= 0x2000 && c <= 0x200A) || c == 0x3000 ||
         std::ranges::find(kOthers, c) != kOthers.end();
}

// Bytes of the text without white space at its end.
std::size_t stripped_size(std::string_view text) {
  std::size_t end = 0;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = decode_utf8(text, at);
    at += point.bytes;
    if (!is_space(point.value)) end = at;
  }
  return end;
}

template <class Key>
std::size_t first_largest(std::size_t count, const Key& key) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < count; ++i) {
    if (key(i) > key(best)) best = i;
  }
  return best;
}

}  // namespace

std::vector<Question> read_questions(const std::string& path) {
  std::vector<Question> questions;
  for_each_line(path, [&](std::string_view line, const std::string& place) {
    const nlohmann::json object = parse_line(line, place);
    Question question{.place = place};
    question.context = text_under(object, only_key(object, {"context", "question", "query"}, place), place);
    question.choices = choices_of(object, place);
    question.gold = gold_of(object, question.choices.size(), place);
    if (const auto id = object.find("id"); id != object.end()) question.id = id->dump();
    questions.push_back(std::move(question));
  });
  if (questions.empty()) refuse_format(path, "at least one question", "none", "write one question a line");
  return questions;
}

ScoredSequence encode_pair(const Tokenizer& tokenizer, const Question& question, std::size_t choice,
                           const PairOptions& options) {
  const std::string place = fmt::format("{}: choices[{}]", question.place, choice);
  const std::string context = question.context.substr(0, stripped_size(question.context));
  const std::string joined = question.context + options.delimiter + question.choices[choice];
  ScoredSequence sequence;
  std::vector<std::int32_t> of_context;
  try {
    tokenizer.encode(context, of_context);
    tokenizer.encode(joined, sequence.tokens);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", place, error.what()));
  }
  sequence.context = std::ssize(of_context);
  if (of_context.empty()) {
    sequence.tokens.insert(sequence.tokens.begin(), tokenizer.bos().value_or(tokenizer.eod()));
    sequence.context = 1;
  }
  const std::int64_t continuation = std::ssize(sequence.tokens) - sequence.context;
  if (continuation <= 0)
    refuse_format(place, "a choice that adds a token to its context", "none", "correct or remove the question");
  if (!options.max_positions) return sequence;
  if (continuation > *options.max_positions)
    refuse_format(place, fmt::format("at most {} tokens, the learned positions of the model", *options.max_positions),
                  std::to_string(continuation), "shorten it");
  sequence.cut = std::max<std::int64_t>(0, sequence.rows() - *options.max_positions);
  sequence.tokens.erase(sequence.tokens.begin(), sequence.tokens.begin() + sequence.cut);
  sequence.context -= sequence.cut;
  return sequence;
}

QuestionScore score_question(const Question& question, std::vector<double> log_likelihoods) {
  QuestionScore score{.log_likelihoods = std::move(log_likelihoods)};
  const std::vector<double>& sums = score.log_likelihoods;
  score.best = first_largest(sums.size(), [&](std::size_t i) { return sums[i]; });
  score.best_norm = first_largest(
      sums.size(), [&](std::size_t i) { return sums[i] / static_cast<double>(question.choices[i].size()); });
  return score;
}

Accuracy accuracy_of(std::int64_t correct, std::int64_t questions) {
  const double p = static_cast<double>(correct) / static_cast<double>(questions);
  Accuracy accuracy{.mean = p};
  if (questions > 1) accuracy.standard_error = std::sqrt(p * (1 - p) / static_cast<double>(questions - 1));
  return accuracy;
}

}  // namespace megalith
