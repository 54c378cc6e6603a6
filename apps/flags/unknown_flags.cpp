#include "apps/flags/unknown_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/base/text/edit_distance.h"
#include "core/base/text/text.h"

namespace megalith {

namespace {

constexpr const char* kPage = "see docs/from-megatron.md";

std::string shown(const std::string& text) {
  constexpr std::size_t kLongest = 80;
  return is_utf8(text) && text.size() <= kLongest ? text : escaped_short(text);
}

// Row of a flag of Megatron-LM that a program does not accept: rather a missing feature than what is taken elsewhere.
const MegatronRow* rejecting_row(std::string_view name) {
  const std::vector<MegatronFlag> found = find_megatron_flags(name);
  return found.empty() ? nullptr : found.back().row;
}

FlagProblem explained(FlagProblem flag, const std::vector<std::string>& own) {
  std::replace(flag.name.begin(), flag.name.end(), '_', '-');
  flag.megatron = rejecting_row(flag.name);
  if (const std::string* nearest = likely_meant(flag.name, own))
    flag.nearest = (flag.place.empty() ? "--" : "") + *nearest;
  return flag;
}

bool is_feature(const FlagProblem& flag) {
  return flag.megatron != nullptr && flag.megatron->kind == MegatronKind::kFeature && flag.other.empty();
}

// What a user does instead of a flag of Megatron-LM that is no missing feature.
std::string advice(const MegatronRow& row) {
  if (row.kind == MegatronKind::kReplaced) return std::string(row.text);
  if (row.kind == MegatronKind::kSpelling) return "use " + std::string(row.text);
  return "remove it: " + std::string(row.text);
}

[[noreturn]] void refuse_one(std::string_view program, const FlagProblem& flag, const std::string& remedy) {
  const std::string name = flag.place + flag.shown;
  if (is_feature(flag))
    refuse_usage(fmt::format("{}: a feature of Megatron-LM that is not built, {}", name, flag.megatron->text),
                 {.expected = flag.value.expected, .remedy = kPage});
  if (flag.is_value()) refuse_usage(name, flag.value);
  if (flag.is_word) refuse_usage(name + ": an argument without a flag", {.remedy = remedy});
  if (!flag.other.empty())
    refuse_usage(fmt::format("{}: a flag of {}, not of {}", name, flag.other, program), {.remedy = "remove it"});
  if (flag.megatron != nullptr)
    refuse_usage(fmt::format("{}: a flag of Megatron-LM, not of {}", name, program),
                 {.remedy = advice(*flag.megatron)});
  refuse_usage(flag.place.empty() ? fmt::format("{}: unknown flag of {}", name, program)
                                  : fmt::format("{}unknown key {}", flag.place, flag.shown),
               {.remedy = flag.nearest.empty() ? remedy : fmt::format("did you mean {}?", flag.nearest)});
}

std::string in_list(const FlagProblem& flag) {
  const std::string name = flag.place + flag.shown;
  if (flag.is_value()) {
    const std::string got = flag.value.got.empty() ? "" : ", got " + flag.value.got;
    return fmt::format("{} (expected {}{})", name, flag.value.expected, got);
  }
  if (flag.is_word) return name + " (an argument without a flag)";
  if (!flag.other.empty()) return fmt::format("{} (a flag of {})", name, flag.other);
  if (flag.megatron != nullptr) return fmt::format("{} (of Megatron-LM; {})", name, advice(*flag.megatron));
  return flag.nearest.empty() ? name : fmt::format("{} (did you mean {}?)", name, flag.nearest);
}

void append(std::string& list, const std::string& text) { list += (list.empty() ? "" : ", ") + text; }

// "FP8 (--fp8-format, --fp8-recipe), multi-token prediction (--mtp-num-layers)", in the order of the command line.
std::string in_features(const std::vector<FlagProblem>& problems) {
  std::vector<std::pair<std::string_view, std::string>> features;
  for (const FlagProblem& flag : problems) {
    if (!is_feature(flag)) continue;
    const std::string_view name = flag.megatron->text;
    const auto known = std::ranges::find(features, name, &std::pair<std::string_view, std::string>::first);
    std::string& flags = known == features.end() ? features.emplace_back(name, "").second : known->second;
    append(flags, flag.place + flag.shown);
  }
  std::string list;
  for (const auto& [name, flags] : features) append(list, fmt::format("{} ({})", name, flags));
  return list;
}

}  // namespace

bool is_flag(const std::string& word) {
  return word.size() > 1 && word[0] == '-' && (word[1] < '0' || word[1] > '9') && word[1] != '.';
}

std::vector<FlagProblem> unknown_flags(const std::vector<std::string>& words, const std::vector<std::string>& own) {
  std::vector<FlagProblem> unknown;
  bool is_value = false;
  for (const std::string& word : words) {
    if (!is_flag(word)) {
      if (!is_value) unknown.push_back({.name = word, .shown = escaped_short(word), .is_word = true});
      continue;
    }
    is_value = true;  // the next words are its values
    const std::string written = word.substr(0, word.find('='));
    FlagProblem flag{.name = written.substr(std::min(written.find_first_not_of('-'), written.size())),
                     .shown = shown(written)};
    if (std::none_of(unknown.begin(), unknown.end(), [&](const FlagProblem& u) { return u.shown == flag.shown; }))
      unknown.push_back(explained(std::move(flag), own));
  }
  return unknown;
}

FlagProblem unknown_key(const std::string& key, const std::string& place, const std::vector<std::string>& own) {
  return explained({.name = key, .shown = shown(key), .place = place}, own);
}

void refuse_problems(std::string_view program, const std::vector<FlagProblem>& problems, const std::string& remedy) {
  if (problems.size() == 1) refuse_one(program, problems[0], remedy);
  const bool are_keys = !problems[0].place.empty();
  std::string unknown, values, text;
  const std::string features = in_features(problems);
  for (const FlagProblem& flag : problems)
    if (!is_feature(flag)) append(flag.is_value() ? values : unknown, in_list(flag));
  const auto add = [&text](const std::string& title, const std::string& list) {
    if (!list.empty()) text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", title, list);
  };
  add(are_keys ? "unknown keys" : fmt::format("unknown flags of {}", program), unknown);
  add("wrong values", values);
  add("features of Megatron-LM that are not built", features);
  const std::string page = features.empty() ? "" : kPage;
  const bool has_others = !unknown.empty() || !values.empty();
  refuse_usage(text, {.remedy = !has_others    ? page
                                : page.empty() ? remedy
                                               : fmt::format("{} and {}", remedy, page.substr(4))});
}

}  // namespace megalith
