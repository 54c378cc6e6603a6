#include "apps/flags/given_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "apps/flags/flags_check.h"
#include "core/base/error.h"
#include "core/base/text/edit_distance.h"
#include "core/base/text/text.h"
#include "core/flags/command_line.h"

namespace megalith {

namespace {

// Syntax of the flags of some programs, bits of App.
std::vector<FlagSyntax> syntax_of(unsigned apps, const FlagTable& table) {
  std::vector<FlagSyntax> flags;
  for (const Flag& flag : table) {
    if ((flag.apps & apps) == 0) continue;
    flags.push_back({.name = flag.name,
                     .synonym = flag.traits.synonym,
                     .binding = &flag.binding,
                     .positional = flag.traits.positional,
                     .adds = flag.traits.adds,
                     .is_whole = flag.binding.kind == ValueKind::kIntegers || flag.unit.ends_with("...")});
  }
  return flags;
}

// Words of a command line that belong to no flag of the program.
std::vector<FlagProblem> unknown_words(App app, const FlagTable& table, const std::vector<std::string>& words) {
  std::vector<std::string> own;
  for (const Flag& flag : table) {
    if (takes(flag, app) && !flag.traits.positional) own.emplace_back(flag.name);
  }
  std::vector<FlagProblem> unknown = unknown_flags(words, own);
  for (FlagProblem& entry : unknown) {
    const auto flag = std::ranges::find(table, entry.name, &Flag::name);
    if (flag == table.end() || flag->traits.positional || entry.is_word || takes(*flag, app)) continue;
    for (const App other : kApps) {
      if (takes(*flag, other) && entry.other.empty()) entry.other = name_of(other);
    }
  }
  return unknown;
}

const Flag& flag_named(const FlagTable& table, std::string_view name) {
  return *std::ranges::find_if(table, [&](const Flag& flag) { return is_named(flag, name); });
}

FlagProblem without_value(App app, const FlagTable& table, const std::string& written) {
  const Flag& flag = flag_named(table, written.substr(2));
  return {
      .name = std::string(flag.name),
      .shown = written,
      .value = {
          .expected = flag.binding.expected, .got = "no value", .remedy = fmt::format("see {} --help", name_of(app))}};
}

FlagProblem wrong_value(const Flag& flag, const RawValue& value) {
  const std::string name = "--" + value.name;
  for (const std::string& item : value.items) {
    if (const MegatronRow* const feature = megatron_feature_of(flag.name, item))
      return {.name = value.name,
              .shown = fmt::format("{} {}", name, item),
              .megatron = feature,
              .value = {.expected = flag.binding.expected}};
  }
  return {.name = value.name,
          .shown = name,
          .value = {.expected = flag.binding.expected, .got = shown(value), .remedy = remedy_for(flag, value)}};
}

// Flags that Megatron-LM accepts, and ignores, without the flag that they need.
constexpr auto kIdleAlone = std::to_array<std::string_view>({"save-interval",
                                                             "async-save",
                                                             "finetune",
                                                             "no-load-optim",
                                                             "recompute-modules",
                                                             "recompute-method",
                                                             "recompute-num-layers",
                                                             "rotary-base",
                                                             "rotary-percent",
                                                             "use-rope-scaling",
                                                             "rope-scaling-factor",
                                                             "rotary-scaling-factor",
                                                             "original-max-position-embeddings",
                                                             "beta-fast",
                                                             "beta-slow",
                                                             "mscale",
                                                             "mscale-all-dim",
                                                             "cp-comm-type",
                                                             "lr-wsd-decay-iters",
                                                             "lr-wsd-decay-samples",
                                                             "tensorboard-log-interval",
                                                             "wandb-exp-name",
                                                             "wandb-save-dir",
                                                             "wandb-entity",
                                                             "window-attn-skip-freq",
                                                             "cuda-graph-modules",
                                                             "cuda-graph-warmup-steps",
                                                             "offload-modules",
                                                             "activation-offload-fraction",
                                                             "min-offloaded-tensor-size",
                                                             "expert-tensor-parallel-size",
                                                             "profile",
                                                             "overlap-moe-expert-parallel-comm"});

// Files and options of tokenizers, and the types that read them; Megatron-LM ignores those of other types.
const std::pair<std::string_view, std::vector<std::string_view>> kTokenizerFlags[] = {
    {"vocab-file", {"GPT2BPETokenizer"}},
    {"merge-file", {"GPT2BPETokenizer"}},
    {"tokenizer-model", {"HuggingFaceTokenizer", "TikTokenizer", "Llama2Tokenizer", "GPTSentencePieceTokenizer"}},
    {"tiktoken-pattern", {"TikTokenizer"}}};

bool is_idle_alone(std::string_view flag) {
  return flag.starts_with("moe-") || std::ranges::find(kIdleAlone, flag) != kIdleAlone.end();
}

}  // namespace

std::string remedy_for(const Flag& flag, const RawValue& value) {
  const auto in_lower_case = [](std::string text) {
    std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return text;
  };
  constexpr std::size_t kLongest = 64;
  for (const std::string& choice : flag.binding.choices) {
    if (value.items.size() != 1 || value.items[0].size() > kLongest) break;
    if (3 * edit_distance(in_lower_case(value.items[0]), in_lower_case(choice)) <= choice.size()) {
      return "did you mean " + choice + "?";
    }
  }
  const bool is_number = flag.binding.kind == ValueKind::kInteger || flag.binding.kind == ValueKind::kReal;
  return is_number ? "use a number in this range" : "see --help";
}

GivenValues read_given_values(App app, const FlagTable& table, const std::vector<std::string>& arguments) {
  MegatronLine megatron = read_megatron_line(app, table, arguments);
  const bool has_train_flags = app == App::kPlan && megatron.is_megatrons;
  const unsigned apps = static_cast<unsigned>(app) | (has_train_flags ? kTrainApp : 0);
  CommandLine line = read_command_line(name_of(app), syntax_of(apps, table), megatron.words);
  std::vector<FlagProblem> problems = unknown_words(app, table, line.unknown);
  std::ranges::move(megatron.problems, std::back_inserter(problems));
  for (const std::string& flag : line.missing) problems.push_back(without_value(app, table, flag));
  for (const RawValue& value : line.values) {
    const Flag& flag = flag_named(table, value.name);
    if (!set_value(flag.binding, value)) problems.push_back(wrong_value(flag, value));
  }
  if (!problems.empty()) refuse_problems(name_of(app), problems, fmt::format("see {} --help", name_of(app)));
  MegatronNotes notes{.is_megatrons = megatron.is_megatrons, .taken = std::move(megatron.taken)};
  std::erase_if(line.values, [&](const RawValue& value) {
    const bool is_unused = !takes(flag_named(table, value.name), app);
    if (is_unused) notes.unused.push_back("--" + value.name);
    return is_unused;
  });
  return {.values = std::move(line.values), .notes = std::move(notes)};
}

std::vector<std::string> settle_megatron_line(const FlagTable& table, App app, std::vector<RawValue>& given) {
  std::vector<std::string> idle;
  const auto is_given = [&](std::string_view name) { return flag_named(table, name).origin == "command line"; };
  const auto drop = [&](const Flag& flag, const std::string& need) {
    idle.push_back(fmt::format("--{} (only with --{})", flag.name, need));
    std::erase_if(given, [&](const RawValue& value) { return is_named(flag, value.name); });
  };
  for (const Flag& flag : table) {
    if (flag.origin != "command line" || !is_idle_alone(flag.name)) continue;
    const OtherFlag* const need = unmet_need(table, flag, app);
    if (need != nullptr) drop(flag, fmt::format("{}{}{}", need->flag, need->value.empty() ? "" : " ", need->value));
  }
  if (is_given("num-query-groups") && flag_named(table, "group-query-attention").binding.get() == "false")
    drop(flag_named(table, "num-query-groups"), "group-query-attention");
  const Flag& type = flag_named(table, "tokenizer-type");
  if (!takes(type, app)) return idle;
  const bool is_gpt2 = type.origin == "default" && is_given("vocab-file") && is_given("merge-file");
  if (is_gpt2) given.push_back({.name = "tokenizer-type", .items = {"GPT2BPETokenizer"}});
  const std::string value = is_gpt2 ? "\"GPT2BPETokenizer\"" : type.binding.get();
  for (const auto& [name, types] : kTokenizerFlags) {
    const auto is_of_type = [&](std::string_view other) { return value == fmt::format("\"{}\"", other); };
    if (is_given(name) && std::ranges::none_of(types, is_of_type))
      drop(flag_named(table, name), "tokenizer-type " + alternatives({types.begin(), types.end()}));
  }
  return idle;
}

}  // namespace megalith
