#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>

#include "apps/flags/flags_table.h"
#include "apps/program/version.h"
#include "core/base/error.h"
#include "core/base/take_part.h"
#include "core/model/moe_config.h"

namespace megalith {

namespace {

constexpr std::size_t kIndent = 46;
constexpr std::size_t kWidth = 110;

// Words of `text` from column kIndent on, the first line continuing `line`.
std::string wrapped(std::string line, std::string_view text) {
  std::string out;
  if (line.size() + 2 > kIndent) {
    out = line + "\n";
    line.clear();
  }
  line.resize(kIndent, ' ');
  while (!text.empty()) {
    const std::string_view word = take_part(text, ' ');
    if (line.size() + word.size() > kWidth) {
      line.erase(line.find_last_not_of(' ') + 1);
      out += line + "\n";
      line.assign(kIndent, ' ');
    }
    line.append(word).append(" ");
  }
  line.erase(line.find_last_not_of(' ') + 1);
  return out + line + "\n";
}

// "[default 128; 1 to 16777216]"
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

std::string usage(App app) {
  switch (app) {
    case App::kTrain: return "Usage: mpirun -np N train --config FILE.toml [flags]\nTrains or evaluates a GPT.\n";
    case App::kGenerate: return "Usage: generate --load DIR [--prompt TEXT] [flags]\nContinues a text.\n";
    case App::kPlan:
      return "Usage: plan --config FILE.toml [--world-size RANKS] [flags]\n"
             "Forecasts layout, memory and work of a run without running it.\n";
    case App::kReport:
      return "Usage: report METRICS.jsonl... [--output FILE]\nDraws the metrics of one or more runs as an HTML page.\n";
    case App::kConvert:
      return "Usage: convert --from hf|native --load DIR --save DIR [flags]\n"
             "Converts weights of Hugging Face transformers to a checkpoint, or back.\n";
    case App::kPrepare:
      return "Usage: prepare --input FILE... --output-prefix PREFIX [flags]\n"
             "       prepare inspect PREFIX... [flags]\n"
             "Turns text into the tokens that train reads: PREFIX.bin and PREFIX.idx, Megatron-LM's indexed dataset.\n";
    case App::kInspect:
      return "Usage: prepare inspect PREFIX... [flags]\n"
             "Shows counts and the first documents of datasets, or the samples that train will read.\n";
  }
  return {};
}

// Does it belong to the model and its tokenizer?
bool is_of_model(const Flag& flag) {
  const bool counts = flag.group == FlagGroup::kModel || flag.group == FlagGroup::kMoe ||
                      flag.group == FlagGroup::kOwn || flag.group == FlagGroup::kData;
  return counts && takes(flag, App::kPlan);
}

}  // namespace

std::string_view name_of(App app) {
  constexpr std::array<std::string_view, kApps.size()> kNames = {"train",   "generate", "plan",           "report",
                                                                 "convert", "prepare",  "prepare inspect"};
  return kNames[static_cast<std::size_t>(std::ranges::find(kApps, app) - kApps.begin())];
}

std::string help_text(App app, const OwnOptions& own) {
  Options options;
  options.own = own;
  Requests requests;
  std::string out = usage(app);
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
    out += wrapped(left, plain ? std::string(flag.help) : fmt::format("{} {}", flag.help, facts(flag, app)));
  }
  return out + "\n" + exit_codes_text();
}

std::string print_config(App app, const Options& options) {
  std::string out = "# " + version_line(name_of(app)) + ": effective configuration\n";
  std::string group;
  for (const ConfigEntry& entry : options.effective) {
    if (entry.group != group) out += "\n[" + entry.group + "]\n";
    group = entry.group;
    // A default is a comment: what reads the file back would take it for given.
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
