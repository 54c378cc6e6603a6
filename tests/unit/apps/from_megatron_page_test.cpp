// docs/from-megatron.md and docs/from-megatron-flags.md are made from the tables of flags, here and in Megatron-LM.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <regex>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "apps/flags/flags_table.h"
#include "apps/flags/megatron_flags.h"
#include "tests/support/megatron_lines.h"
#include "tests/unit/apps/flags_support.h"
#include "tests/unit/apps/generated_page.h"

namespace megalith::test {
namespace {

constexpr const char* kMegatronUpdate = "MEGALITH_UPDATE_DOCS=1 unit_apps --gtest_filter='FromMegatronPage.*'";

// Flags of train and prepare that Megatron-LM of August 2026 lacks. All others have its names.
constexpr std::string_view kOwnFlags =
    "activation-func add-attn-proj-bias allow-faults check-hazards check-weight-hash-interval comm-dump "
    "comm-timeout config device document-separator document-start eod-token "
    "expert-data-parallel-sharding-strategy fault fault-rank fsdp-embedding-and-head fsdp-gradient-slots "
    "fsdp-prefetch fsdp-reduce-grads fsdp-unit-slots help help-all hf-model-type keep-last log-format loss-chunk-size "
    "max-bad-lines max-failed-saves max-skipped-steps metrics-jsonl min-offload-bytes moe-combine-groups "
    "offload-distance offload-mb-per-layer offload-slowdown pad-to-multiple peak-tflops pipeline-schedule "
    "print-actions "
    "print-config rates rope-scaling-attention-factor rope-scaling-high-freq-factor rope-scaling-low-freq-factor "
    "rope-scaling-original-max-position-embeddings sft-long sft-train stop-file suppress-wait tiktoken-special-tokens "
    "trace version";

bool is_own(std::string_view name) { return std::ranges::count(split_words(kOwnFlags), std::string(name)) > 0; }

bool is_for_training(const Flag& flag) { return takes(flag, App::kTrain) || takes(flag, App::kPrepare); }

std::string dashed(std::string_view name) { return fmt::format("`--{}{}`", name, name.ends_with('-') ? "*" : ""); }

std::string same_names() {
  Options options;
  Requests requests;
  std::vector<std::pair<std::string, std::vector<std::string>>> sections;
  for (const Flag& flag : make_table(options, requests)) {
    if (!is_for_training(flag) || is_own(flag.name)) continue;
    const std::string title(title_of(flag.group));
    if (sections.empty() || sections.back().first != title) sections.emplace_back(title, std::vector<std::string>());
    sections.back().second.push_back(dashed(flag.name));
    if (!flag.traits.synonym.empty()) sections.back().second.push_back(dashed(flag.traits.synonym));
  }
  std::string text;
  for (const auto& [title, flags] : sections)
    text += wrapped(flags, fmt::format("- [{0}](flags/{0}.md): ", title), "  ", ",");
  return text;
}

// `--flag value` in a text.
std::string with_code(std::string_view text) {
  static const std::regex kFlag(
      "--[a-z][a-z0-9-]*( ([a-z_:]*[0-9_][a-z0-9_:-]*|full|selective|local|rope|flex|optim|moe|VALUE)\\b)?");
  std::string with_value(text);
  if (const std::size_t at = with_value.find("{}"); at != std::string::npos) with_value.replace(at, 2, "VALUE");
  return std::regex_replace(with_value, kFlag, "`$&`");
}

// "`--attention-backend` auto, flash or fused" of a row; with `are_features` without values.
std::vector<std::string> flag_words(const MegatronRow& row, bool are_features) {
  std::vector<std::string> words;
  const std::vector<MegatronFlag> flags = flags_of(row);
  for (const MegatronFlag& flag : flags) {
    const bool is_covered = std::ranges::any_of(flags, [&](const MegatronFlag& other) {
      return other.name.ends_with('-') && other.name != flag.name && flag.name.starts_with(other.name);
    });
    if (is_covered) continue;
    if (!words.empty()) words.back() += are_features ? "," : ";";
    words.push_back(dashed(flag.name));
    if (flag.is_toggle() || are_features) continue;
    for (std::string& word : split_words(flag.expected())) words.push_back(std::move(word));
  }
  return words;
}

std::string rows_of(std::span<const MegatronRow> rows, MegatronKind kind) {
  std::string text;
  for (const MegatronRow& row : rows) {
    if (row.kind != kind) continue;
    const bool is_taken = kind == MegatronKind::kTaken;
    std::vector<std::string> words = is_taken ? split_words(with_code(row.text)) : flag_words(row, true);
    words.back() += ':';
    for (std::string& word : is_taken ? flag_words(row, false) : split_words(with_code(row.text)))
      words.push_back(std::move(word));
    text += wrapped(words, "- ", "  ", "");
  }
  return text;
}

// "- FP8: `--fp8-format`, ...", with values of flags that exist here.
std::string features() {
  std::string text;
  for (const MegatronRow& row : megatron_features()) {
    std::vector<std::string> words = split_words(row.text);
    words.back() += ':';
    for (std::string& word : flag_words(row, true)) words.push_back(std::move(word));
    text += wrapped(words, "- ", "  ", "");
  }
  text += "\nThese values of flags that exist here:\n\n";
  for (const MegatronRow& row : megatron_values()) {
    std::vector<std::string> words = split_words(row.text);
    words.back() += ':';
    for (const MegatronFlag& flag : flags_of(row)) {
      if (words.back().back() != ':') words.back() += ';';
      for (std::string& word : split_words(fmt::format("`--{}` {}", flag.name, flag.expected())))
        words.push_back(std::move(word));
    }
    text += wrapped(words, "- ", "  ", "");
  }
  return text;
}

// Features that the message about a line names, and the number of their flags.
std::pair<std::vector<std::string>, std::size_t> missing_features(std::string message) {
  static const std::regex kFeature("(?:^|, |: )([^,:()]+) \\(([^)]*)\\)");
  static const std::regex kOne("a feature of Megatron-LM that is not built, ([^;:]+)");
  std::pair<std::vector<std::string>, std::size_t> missing;
  if (std::smatch one; std::regex_search(message, one, kOne)) return {{one[1]}, 1};
  message = message.substr(message.find("not built"));
  for (std::sregex_iterator at(message.begin(), message.end(), kFeature), none; at != none; ++at) {
    missing.first.push_back((*at)[1]);
    const std::string flags = (*at)[2];
    missing.second += 1 + static_cast<std::size_t>(std::ranges::count(flags, ','));
  }
  return missing;
}

// Table of the edits of each line, and the features for which they are.
std::string real_lines() {
  std::string table = "| Line | GPUs | Flags | Flags to edit | Required there too (a) |\n|---|---|---|---|---|\n", list;
  const auto is_flag = [](const std::string& word) { return word.starts_with("--"); };
  for (const std::string_view name : kMegatronLines) {
    const RealLine line = real_line(name);
    const std::string said = outcome(App::kTrain, runnable(line));
    std::vector<std::string> missing, also;
    std::size_t edits = 0;
    if (said != "valid") std::tie(missing, edits) = missing_features(said);
    EXPECT_TRUE(said == "valid" || edits > 0) << name << ": " << said;
    for (const std::string& word : line.also)
      if (is_flag(word)) also.push_back(dashed(std::string_view(word).substr(2)));
    table += fmt::format("| {} | {} | {} | {} | {} |\n", name, line.world, std::ranges::count_if(line.words, is_flag),
                         edits, fmt::join(also, ", "));
    if (!missing.empty())
      list += wrapped(split_words(fmt::format("{} waits for {}", name, fmt::join(missing, ", "))), "- ", "  ", "");
  }
  return fmt::format("{}\n{}", table, list);
}

std::string megatron_page() {
  return fmt::format(
      "# From Megatron-LM\n\n"
      "Start a Megatron-LM command line here. [Flags of Megatron-LM](from-megatron-flags.md) lists those that exist\n"
      "under the same name, and the features that are not built. The pages are made from the tables of flags by\n"
      "`{}`.\n\n"
      "A command line of Megatron-LM starts unedited but for paths if its features exist here. Otherwise one message\n"
      "lists the missing features, unknown flags and wrong values of the line before anything is loaded. The banner\n"
      "of `train` lists flags without effect, and flags that are not given and have another default in Megatron-LM.\n\n"
      "## Command lines\n\n"
      "Flags of published command lines, edits that each needs, and features that it waits for. Paths of data and\n"
      "tokenizer are not counted.\n\n{}\n"
      "(a) Megatron-LM requires these flags too, which the published line leaves to another file.\n\n"
      "## Other spelling\n\n"
      "These flags mean the words after them. A toggle `--NAME` of this project also has the form `--no-NAME`.\n\n{}\n"
      "## Another flag\n\n"
      "Replace these flags, which Megatron-LM rejects or no longer has.\n\n{}\n"
      "## No effect\n\n"
      "These flags are accepted with the listed values, since they ask for what is done in any case. Any other value\n"
      "is rejected with exit code 2. `--no-NAME` also has the forms `--NAME` and `--disable-NAME`.\n\n{}",
      kMegatronUpdate, real_lines(), rows_of(megatron_spellings(), MegatronKind::kSpelling),
      rows_of(megatron_spellings(), MegatronKind::kReplaced), rows_of(megatron_taken(), MegatronKind::kTaken));
}

std::string flags_page() {
  return fmt::format(
      "# Flags of Megatron-LM\n\n"
      "Look up whether a flag or feature of Megatron-LM exists here. [From Megatron-LM](from-megatron.md) lists other\n"
      "spellings and flags without effect. The page is made from the tables of flags by\n"
      "`{}`.\n\n"
      "## Same name\n\n"
      "These flags exist under Megatron-LM's name. Follow a link for default, range and effect.\n\n{}\n"
      "## Not built\n\n"
      "These features do not exist here. `NAME-*` stands for all flags that begin with `NAME-`, except those of the\n"
      "other lists. A value that leaves the feature off, such as `--mtp-num-layers 0`, is accepted.\n\n{}",
      kMegatronUpdate, same_names(), features());
}

TEST(FromMegatronPage, HasEveryFlagOfTheTables) {
  expect_generated("from-megatron.md", megatron_page(), kMegatronUpdate);
  expect_generated("from-megatron-flags.md", flags_page(), kMegatronUpdate);
}

TEST(FromMegatronPage, OwnFlagsExist) {
  Options options;
  Requests requests;
  std::set<std::string_view> names;
  for (const Flag& flag : make_table(options, requests))
    if (is_for_training(flag)) names.insert(flag.name);
  for (const std::string& name : split_words(kOwnFlags))
    EXPECT_TRUE(names.contains(name)) << name << ": no flag has this name";
}

}  // namespace
}  // namespace megalith::test
