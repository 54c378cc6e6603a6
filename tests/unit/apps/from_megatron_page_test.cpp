// docs/from-megatron.md is made from the table of flags and from the notes on Megatron-LM's other flags.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <regex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "apps/flags/flags_table.h"
#include "apps/flags/unknown_flags.h"
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
    "print-config rates rope-scaling-high-freq-factor rope-scaling-low-freq-factor "
    "rope-scaling-original-max-position-embeddings sft-long sft-train stop-file suppress-wait tiktoken-special-tokens "
    "trace version";

bool is_own(std::string_view name) { return std::ranges::count(split_words(kOwnFlags), std::string(name)) > 0; }

bool is_for_training(const Flag& flag) { return takes(flag, App::kTrain) || takes(flag, App::kPrepare); }

std::string dashed(std::string_view name) { return fmt::format("`--{}{}`", name, name.ends_with('-') ? "*" : ""); }

std::vector<std::string> dashed_names(std::string_view names) {
  std::vector<std::string> words = split_words(names);
  for (std::string& word : words) word = dashed(word);
  return words;
}

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

// "`--fp16`: use `--bf16`"; `names` are those whose notes begin with "use ", or those with another note.
std::string notes(bool are_replaced) {
  static const std::regex kFlag("--[a-z][a-z0-9-]*( ([a-z_:]*[0-9_][a-z0-9_:-]*|full|selective|local)\\b)?");
  constexpr std::string_view kRemove = "remove it: ";
  std::string text;
  for (const MegatronNote& entry : megatron_notes()) {
    if (entry.note.empty() || entry.note.starts_with("use ") != are_replaced) continue;
    std::string note(entry.note);
    if (note.starts_with(kRemove)) note.erase(0, kRemove.size());
    std::vector<std::string> words = dashed_names(entry.names);
    for (std::size_t i = 0; i + 1 < words.size(); ++i) words[i] += ',';
    words.back() += ':';
    for (std::string& word : split_words(std::regex_replace(note, kFlag, "`$&`"))) words.push_back(std::move(word));
    text += wrapped(words, "- ", "  ", "");
  }
  return text;
}

std::string not_built() {
  std::vector<std::string> names;
  for (const MegatronNote& entry : megatron_notes()) {
    if (!entry.note.empty()) continue;
    names = split_words(entry.names);
    std::ranges::sort(names);
  }
  for (std::string& name : names)
    if (name.ends_with('-')) name += '*';
  return fmt::format("```text\n{}```\n", wrapped(names, "", "", ""));
}

std::string megatron_page() {
  return fmt::format(
      "# From Megatron-LM\n\n"
      "Look up what each flag of a Megatron-LM command line does here. The page is made from the tables of flags by\n"
      "`{}`.\n\n"
      "`train` and `plan` reject a flag that they do not have before anything is loaded, and say which list below it\n"
      "is in. `plan` checks a command line without running it.\n\n"
      "## Same name\n\n"
      "These flags exist under Megatron-LM's name. Follow a link for default, range and effect.\n\n{}\n"
      "## Another flag\n\n"
      "Replace these flags as follows.\n\n{}\n"
      "## Leave out\n\n"
      "Remove these flags from the command line. Each entry says what happens without them.\n\n{}\n"
      "## Not built\n\n"
      "What these flags ask for does not exist here. `NAME-*` stands for all flags that begin with `NAME-`,\nexcept "
      "those of the other lists.\n\n{}",
      kMegatronUpdate, same_names(), notes(true), notes(false), not_built());
}

TEST(FromMegatronPage, HasEveryFlagOfTheTables) {
  expect_generated("from-megatron.md", megatron_page(), kMegatronUpdate);
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
