#include <fmt/format.h>

#include <algorithm>
#include <array>
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
  std::string_view usage;  // with what the program does
};

constexpr std::array<Program, kApps.size()> kPrograms = {
    {{"train",
      "Usage: mpirun -np N train --config FILE.toml [flags]\n"
      "Trains or evaluates a GPT model.\n"},
     {"generate",
      "Usage: generate --load DIR [--prompt TEXT | --prompt-file FILE] [flags]\n"
      "       generate evaluate --load DIR --questions FILE [flags]\n"
      "Generates text from a checkpoint and prompts.\n"},
     {"generate evaluate",
      "Usage: generate evaluate --load DIR --questions FILE [flags]\n"
      "Scores a checkpoint on multiple-choice questions, as lm-evaluation-harness does.\n"},
     {"plan",
      "Usage: plan --config FILE.toml [--world-size RANKS] [flags]\n"
      "Forecasts layout, memory and work of a run without running it.\n"},
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

std::string help_text(App app, const OwnOptions& own) {
  constexpr std::size_t kIndent = 46, kWidth = 110;
  Options options;
  options.own = own;
  Requests requests;
  std::string out(program_of(app).usage);
  const FlagGroup* last = nullptr;
  const FlagTable table = make_table(options, requests);
  for (const Flag& flag : table) {
    if (!takes(flag, app)) continue;
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
  return out + "\n" + exit_codes_text();
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
