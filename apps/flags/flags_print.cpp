#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <functional>
#include <map>
#include <string>

#include "apps/flags/flags_table.h"
#include "apps/program/version.h"
#include "core/base/error.h"
#include "core/base/text/text.h"
#include "core/model/moe_config.h"

namespace megalith {

namespace {

// Text such as "[default 128; 1 to 16777216]".
std::string facts(const Flag& flag, App app) {
  const bool goes_with_another = std::ranges::any_of(
      flag.traits.needs, [app](const OtherFlag& need) { return (need.apps & static_cast<unsigned>(app)) != 0; });
  std::string value = flag.binding.get();
  if (value.size() > 1 && value.front() == '"') value = value.substr(1, value.size() - 2);
  std::string out;
  if (flag.binding.kind == ValueKind::kToggle) {
    out = "default off";
  } else if (flag.traits.shown == "required" && goes_with_another) {
    out = "default none";
  } else if (!flag.traits.shown.empty()) {
    out = flag.traits.shown == "required" || flag.traits.shown.ends_with("is required")
              ? std::string(flag.traits.shown)
              : "default " + std::string(flag.traits.shown);
  } else {
    out = "default " + value;
  }
  if (!flag.binding.range.empty()) out += "; " + flag.binding.range;
  return "[" + out + "]";
}

struct Program {
  std::string_view name;
  std::string_view usage;     // with what the program does
  std::string_view examples;  // of --help
  std::string_view everyday;  // flags of --help; none: all flags of the program
};

constexpr std::array<Program, kApps.size()> kPrograms = {
    {{"train",
      "Usage: mpirun -np N train --config FILE.toml [flags]\n"
      "Trains or evaluates a GPT model.\n",
      "  mpirun -np 8 train --config configs/llama3_8b.toml --data-path my --use-distributed-optimizer --save runs/a\n"
      "  mpirun -np 8 train --config configs/llama3_8b.toml --data-path my --load runs/a --save runs/a\n"
      "  mpirun -np 2 train --config base/model.toml --load base --finetune --sft --data-path chats --save tuned\n",
      "config data-path mock-data tokenizer-type tokenizer-model seq-length micro-batch-size global-batch-size "
      "train-iters lr lr-decay-style lr-warmup-iters bf16 sft finetune load save save-interval eval-interval "
      "tensor-model-parallel-size pipeline-model-parallel-size context-parallel-size expert-model-parallel-size "
      "use-distributed-optimizer data-parallel-sharding-strategy recompute-granularity cuda-graph-impl log-interval "
      "metrics-jsonl print-config"},
     {"generate",
      "Usage: generate --load DIR [--prompt TEXT | --prompt-file FILE] [flags]\n"
      "       generate evaluate --load DIR --questions FILE [flags]\n"
      "Generates text from a checkpoint and prompts.\n"},
     {"generate evaluate",
      "Usage: generate evaluate --load DIR --questions FILE [flags]\n"
      "Scores a checkpoint on multiple-choice questions, as lm-evaluation-harness does.\n"},
     {"plan",
      "Usage: plan --config FILE.toml [--world-size RANKS] [flags]\n"
      "Forecasts layout, memory and work of a run without running it.\n",
      "  plan --config configs/llama3_8b.toml --world-size 8 --use-distributed-optimizer\n"
      "  plan --config configs/llama3_8b.toml --world-size 8 --rates h200.json --suggest\n"
      "  plan --config configs/llama3_8b.toml --world-size 8 --rates h200.json --timeline step.html\n",
      "config world-size rates suggest timeline json seq-length micro-batch-size global-batch-size bf16 "
      "tensor-model-parallel-size pipeline-model-parallel-size context-parallel-size expert-model-parallel-size "
      "use-distributed-optimizer data-parallel-sharding-strategy recompute-granularity recompute-modules "
      "offload-modules cuda-graph-impl print-actions print-config"},
     {"report",
      "Usage: report METRICS.jsonl... [--output FILE]\n"
      "Writes an HTML page with charts of the metrics of one or more runs.\n"},
     {"convert",
      "Usage: convert --from hf|native --load DIR --save DIR [flags]\n"
      "Converts weights of Hugging Face transformers to a checkpoint, or a checkpoint to these weights.\n"},
     {"prepare",
      "Usage: prepare --input FILE... --output-prefix PREFIX [flags]\n"
      "       prepare inspect PREFIX... [flags]\n"
      "Tokenizes text for train into PREFIX.bin and PREFIX.idx, Megatron-LM's indexed dataset.\n"},
     {"prepare inspect",
      "Usage: prepare inspect PREFIX... [flags]\n"
      "Shows counts and the first documents of datasets, or the samples that train reads.\n"}}};

const Program& program_of(App app) {
  return kPrograms[static_cast<std::size_t>(std::ranges::find(kApps, app) - kApps.begin())];
}

// True for flags of the model and its tokenizer.
bool is_of_model(const Flag& flag) {
  const bool counts = flag.group == FlagGroup::kModel || flag.group == FlagGroup::kMoe ||
                      flag.group == FlagGroup::kOwn || flag.group == FlagGroup::kData;
  return counts && takes(flag, App::kPlan);
}

}  // namespace

std::string_view name_of(App app) { return program_of(app).name; }

namespace {

// Flags of the program that are `chosen`, in groups.
std::string flags_text(App app, const OwnOptions& own, const std::function<bool(const Flag&)>& chosen) {
  constexpr std::size_t kIndent = 46, kWidth = 110;
  Options options;
  options.own = own;
  Requests requests;
  std::string out;
  const FlagGroup* last = nullptr;
  const FlagTable table = make_table(options, requests);
  for (const Flag& flag : table) {
    if (!takes(flag, app) || !chosen(flag)) continue;
    if (last == nullptr || *last != flag.group) {
      std::string title(title_of(flag.group));
      title[0] = static_cast<char>(title[0] - 'a' + 'A');
      out += "\n" + title + ":\n";
    }
    last = &flag.group;
    std::string left =
        flag.traits.positional ? fmt::format("  {}", flag.unit) : fmt::format("  --{} {}", flag.name, flag.unit);
    if (flag.unit.empty()) left.pop_back();
    const bool plain = flag.group == FlagGroup::kProgram;
    out += in_columns(left, plain ? std::string(flag.help) : fmt::format("{} {}", flag.help, facts(flag, app)), kIndent,
                      kWidth);
  }
  return out;
}

// Titles of the groups of the program's flags.
std::vector<std::string> titles_of(App app) {
  Options options;
  Requests requests;
  std::vector<std::string> titles;
  for (const Flag& flag : make_table(options, requests)) {
    const std::string title(title_of(flag.group));
    if (takes(flag, app) && std::ranges::find(titles, title) == titles.end()) titles.push_back(title);
  }
  return titles;
}

}  // namespace

std::string help_text(App app, const OwnOptions& own) {
  const auto all = [](const Flag&) { return true; };
  return std::string(program_of(app).usage) + flags_text(app, own, all) + "\n" + exit_codes_text();
}

std::string short_help(App app, const OwnOptions& own) {
  const Program& program = program_of(app);
  if (program.everyday.empty()) return help_text(app, own);
  const std::string names = fmt::format(" {} ", program.everyday);
  const auto is_chosen = [&](const Flag& flag) {
    return flag.group == FlagGroup::kOwn || names.find(fmt::format(" {} ", flag.name)) != names.npos;
  };
  constexpr std::size_t kIndent = 8, kWidth = 110;
  const std::string groups = in_columns("Groups:", fmt::format("{}", fmt::join(titles_of(app), ", ")), kIndent, kWidth);
  return fmt::format(
      "{}\nExamples:\n{}{}\n{} --help-all prints all flags, {} --help TOPIC those of a group or word.\n{}\n{}",
      program.usage, program.examples, flags_text(app, own, is_chosen), program.name, program.name, groups,
      exit_codes_text());
}

std::string topic_help(App app, std::string_view topic, const OwnOptions& own) {
  std::string word(topic);
  std::ranges::transform(word, word.begin(), [](unsigned char c) { return c == '_' ? '-' : std::tolower(c); });
  std::string text = flags_text(app, own, [&](const Flag& flag) { return title_of(flag.group) == word; });
  if (text.empty())
    text = flags_text(app, own, [&](const Flag& flag) { return flag.name.find(word) != std::string_view::npos; });
  if (!text.empty()) return text.substr(1);  // without the blank line of the first group
  refuse_usage("--help",
               {.expected = fmt::format("a group ({}) or part of a flag's name", fmt::join(titles_of(app), ", ")),
                .got = std::string(topic),
                .remedy = fmt::format("use {} --help-all", name_of(app))});
}

std::string print_config(App app, const Options& options) {
  std::string out = "# " + version_line(name_of(app)) + ": effective configuration\n";
  std::string group;
  for (const ConfigEntry& entry : options.effective) {
    if (entry.group != group) out += "\n[" + entry.group + "]\n";
    group = entry.group;
    // A default is printed as a comment; a reader of the file would otherwise treat the value as given.
    const bool is_default = entry.origin == "default";
    const std::string assignment = fmt::format("{}{} = {}", is_default ? "# " : "", entry.name, entry.value);
    out += fmt::format("{:<47} # {}\n", assignment, entry.origin);
  }
  return out;
}

std::map<std::string, std::string> model_config_of(Options options) {
  Requests requests;
  std::map<std::string, std::string> config;
  for (const Flag& flag : make_table(options, requests)) {
    if (is_of_model(flag)) config[std::string(flag.name)] = flag.binding.get();
  }
  return config;
}

std::string print_model_config(Options options) {
  Requests requests;
  std::string text, group;
  for (const Flag& flag : make_table(options, requests)) {
    const std::string value = flag.binding.get();
    if (!is_of_model(flag) || value == "\"\"" || value == "[]") continue;
    if (flag.group == FlagGroup::kMoe && options.moe().num_experts == 0) continue;
    if (title_of(flag.group) != group) text += fmt::format("\n[{}]\n", title_of(flag.group));
    group = title_of(flag.group);
    text += fmt::format("{} = {}\n", flag.name, value);
  }
  return text;
}

}  // namespace megalith
