#include "apps/generate/prompts.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "apps/generate/json_lines.h"
#include "core/base/error.h"
#include "core/data/document_reader.h"

namespace megalith {

namespace {

Prompt parse_prompt(std::string_view line, const std::string& place) {
  const nlohmann::json object = parse_line(line, place);
  Prompt prompt{.text = text_under(object, "prompt", place), .place = place};
  if (const auto id = object.find("id"); id != object.end()) {
    if (!id->is_string() && !id->is_number_integer())
      refuse_format(place, "a text or an integer under 'id'", id->type_name(), "correct or remove the line");
    prompt.id = id->dump();
  }
  return prompt;
}

}  // namespace

std::vector<std::int32_t> encode_prompt(const Tokenizer& tokenizer, const std::string& text,
                                        std::span<const std::int32_t> begin) {
  std::vector<std::int32_t> tokens(begin.begin(), begin.end());
  tokenizer.encode(text, tokens);
  if (tokens.empty()) tokens.push_back(tokenizer.eod());
  return tokens;
}

std::vector<Prompt> read_prompts(const std::string& path, const Tokenizer& tokenizer) {
  std::vector<Prompt> prompts;
  const bool is_json = holds_json_lines(path);
  for_each_line(path, [&](std::string_view line, const std::string& place) {
    Prompt prompt = is_json ? parse_prompt(line, place) : Prompt{.text = std::string(line), .place = place};
    prompt.shown = prompt.text;
    try {
      prompt.tokens = encode_prompt(tokenizer, prompt.text, tokenizer.begin());
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("{}: {}", place, error.what()));
    }
    prompts.push_back(std::move(prompt));
  });
  if (prompts.empty()) refuse_format(path, "at least one prompt", "blank lines or none", "write one prompt a line");
  return prompts;
}

std::vector<std::vector<std::size_t>> batches_of(const std::vector<Prompt>& prompts, std::int64_t batch_size) {
  std::vector<std::vector<std::size_t>> batches;
  std::map<std::int64_t, std::size_t> open;  // batch that has places left, by length
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const auto [found, is_new] = open.try_emplace(prompts[i].length(), batches.size());
    if (!is_new && std::ssize(batches[found->second]) == batch_size) found->second = batches.size();
    if (found->second == batches.size()) batches.emplace_back();
    batches[found->second].push_back(i);
  }
  return batches;
}

}  // namespace megalith
