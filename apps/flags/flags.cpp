#include "apps/flags/flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "apps/config/checkpoint_options.h"
#include "apps/config/memory_options.h"
#include "apps/config/parallel_options.h"
#include "apps/config/training_options.h"
#include "apps/flags/flags_check.h"
#include "apps/flags/flags_table.h"
#include "apps/flags/given_values.h"
#include "apps/flags/megatron_line.h"
#include "apps/flags/unknown_flags.h"
#include "apps/program/version.h"
#include "core/base/error.h"
#include "core/base/files/fault.h"
#include "core/base/files/standard_files.h"
#include "core/base/log.h"
#include "core/base/text/text.h"
#include "core/flags/values.h"
#include "core/model/config.h"

namespace megalith {

namespace {

std::string with_dashes(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

// Options in the course of parsing.
struct State {
  explicit State(OwnOptions own) : declared(std::move(own)) { check_own_defaults(declared); }
  State(const State&) = delete;  // the table refers to members
  State& operator=(const State&) = delete;

  const OwnOptions declared;
  Options options = fresh();
  Requests requests;
  std::vector<RawValue> given;  // values of the command line
  MegatronNotes megatron;       // about the command line
  FlagTable table = make_table(options, requests);
  const std::vector<std::string> defaults = values();  // in the order of the table

  std::vector<std::string> values() const {
    std::vector<std::string> texts;
    for (const Flag& flag : table) texts.push_back(flag.binding.get());
    return texts;
  }

  Options fresh() const {
    Options fresh;
    fresh.own = declared;
    return fresh;
  }

  void reset_values() {
    options = fresh();
    for (Flag& flag : table)
      if (flag.group != FlagGroup::kProgram) flag.origin = "default";
  }

  void clear() {
    reset_values();
    requests = Requests();
    given.clear();
    megatron = MegatronNotes();
    for (Flag& flag : table) flag.origin = "default";
  }
};

// Flag of a value. A file gives neither flags of the program nor positional arguments.
FlagTable::iterator flag_of(State& state, const RawValue& value) {
  const std::string name = value.file.empty() ? value.name : with_dashes(value.name);
  return std::find_if(state.table.begin(), state.table.end(),
                      [&](const Flag& flag) { return is_named(flag, name) && (value.file.empty() || is_key(flag)); });
}

void refuse_unknown_keys(State& state, App app, const std::vector<RawValue>& values) {
  std::vector<std::string> names;
  for (const Flag& flag : state.table) {
    if (is_key(flag)) names.emplace_back(flag.name);
  }
  std::vector<FlagProblem> unknown;
  for (const RawValue& value : values) {
    if (flag_of(state, value) == state.table.end()) unknown.push_back(unknown_key(value.name, prefix_of(value), names));
  }
  if (!unknown.empty()) refuse_problems(name_of(app), unknown, "use the names of flags as keys, see --help");
}

void apply(State& state, const RawValue& value) {
  const auto found = flag_of(state, value);
  if (!set_value(found->binding, value)) {
    refuse_usage(prefix_of(value) + value.name,
                 {.expected = found->binding.expected, .got = shown(value), .remedy = remedy_for(*found, value)});
  }
  found->origin = value.file.empty() ? "command line" : fmt::format("{}:{}", value.file, value.line);
}

// Applies one file. Keys that differ only in dashes, underscores, table or synonym are the same flag.
void apply_file(State& state, const std::vector<RawValue>& values) {
  std::map<std::string_view, const RawValue*> seen;
  for (const RawValue& value : values) {
    apply(state, value);
    const auto [earlier, is_new] = seen.emplace(flag_of(state, value)->name, &value);
    if (!is_new) {
      refuse_usage(prefix_of(value) + value.name,
                   {.expected = "one value",
                    .got = fmt::format("a second value after line {}", earlier->second->line),
                    .remedy = "remove one, as dashes, underscores and tables make no difference"});
    }
  }
}

void apply_files(State& state, App app, const std::vector<std::vector<RawValue>>& files) {
  std::vector<RawValue> all;
  for (const std::vector<RawValue>& values : files) all.insert(all.end(), values.begin(), values.end());
  refuse_unknown_keys(state, app, all);
  for (const std::vector<RawValue>& values : files) apply_file(state, values);
}

// Checks the options; an error also reports the line of each of its flags that a file gave.
void check_with_origins(const State& state, App app) {
  try {
    check(app, state.options);
  } catch (const Error& error) {
    std::string text = error.what();
    const std::string subject = text.substr(0, text.find(": ")) + " ";
    for (const Flag& flag : state.table) {
      const std::string name = fmt::format("--{} ", flag.name);
      if (flag.origin.find(':') != std::string::npos && subject.find(name) != std::string::npos)
        text += fmt::format("; {}is in {}", name, flag.origin);
    }
    throw Error(error.code(), text);
  }
}

constexpr const char* kCheckpointConfig = "configuration of the checkpoint";

// True for a value other than the default, and with `at_default` for any value that a user, not a checkpoint, gave.
bool is_given(const Flag& flag, std::string_view initial) {
  if (flag.origin == "default" || flag.origin == "derived") return false;
  const bool is_saved = flag.origin == "checkpoint" || flag.origin.starts_with(kCheckpointConfig);
  return flag.binding.get() != initial || (flag.traits.at_default && !is_saved);
}

// Notes flags that resolve() ignores.
void note_idle(State& state, std::string_view flag) {
  if (flag == "sequence-parallel")
    state.megatron.idle.emplace_back("--sequence-parallel (only with --tensor-model-parallel-size above 1)");
  if (flag == "moe-router-pre-softmax")
    state.megatron.idle.emplace_back("--moe-router-pre-softmax (only with --moe-router-score-function softmax)");
}

void complete(State& state, App app) {
  const std::vector<std::string> before = state.values();
  resolve(state.options);
  const std::vector<std::string> after = state.values();
  for (std::size_t i = 0; i < state.table.size(); ++i) {
    Flag& flag = state.table[i];
    // A flag may set the field of another.
    if (after[i] != before[i] && flag.origin != "default") note_idle(state, flag.name);
    if (after[i] != before[i] || (flag.origin == "default" && after[i] != state.defaults[i])) flag.origin = "derived";
  }
  for (std::size_t i = 0; i < state.table.size(); ++i) {
    const Flag& flag = state.table[i];
    if (!takes(flag, app) || flag.group == FlagGroup::kProgram) continue;
    state.options.effective.push_back({.group = std::string(title_of(flag.group)),
                                       .name = std::string(flag.name),
                                       .value = flag.binding.get(),
                                       .origin = flag.origin,
                                       .given = is_given(flag, state.defaults[i]),
                                       .suggested = is_suggested(flag),
                                       .on_load = on_load(flag)});
  }
  check_with_origins(state, app);
}

std::string toml_of(const std::map<std::string, std::string>& config) {
  std::string text;
  for (const auto& [name, value] : config) text += fmt::format("{} = {}\n", name, value);
  return text;
}

// True if --use-checkpoint-args takes the flag: of expert flags those of the model, not of its training.
bool comes_from_checkpoint(const Flag& flag) {
  return flag.group == FlagGroup::kModel || flag.group == FlagGroup::kOwn || on_load(flag) == OnLoad::kTokenizer ||
         (flag.group == FlagGroup::kMoe && on_load(flag) != OnLoad::kNoted);
}

// Applies the flags of a checkpoint over files and under the command line. Returns the values of files that it
// replaces: "--rotary-base 500000 (10000 in run.toml:3), ...".
std::string apply_checkpoint(State& state, App app, const std::map<std::string, std::string>& config) {
  std::map<std::string, std::string> taken;
  std::vector<std::pair<std::string, std::string>> before;  // values and their origins
  for (const Flag& flag : state.table) {
    before.emplace_back(flag.binding.get(), flag.origin);
    const auto found = config.find(std::string(flag.name));
    if (found != config.end() && comes_from_checkpoint(flag)) taken.insert(*found);
  }
  apply_files(state, app, {read_config_text(toml_of(taken), kCheckpointConfig)});
  for (Flag& flag : state.table) {
    if (taken.contains(std::string(flag.name))) flag.origin = "checkpoint";
  }
  for (const RawValue& value : state.given) apply(state, value);
  std::string replaced;
  for (std::size_t i = 0; i < state.table.size(); ++i) {
    const Flag& flag = state.table[i];
    const auto& [old, origin] = before[i];
    if (flag.origin != "checkpoint" || origin == "default" || flag.binding.get() == old) continue;
    replaced +=
        fmt::format("{}--{} {} ({} in {})", replaced.empty() ? "" : ", ", flag.name, flag.binding.get(), old, origin);
  }
  return replaced;
}

// Lets a sequence exceed the checkpoint's length if the model has no learned positions.
void fit_positions(State& state) {
  ModelConfig& model = state.options.model;
  if (model.position_embedding_type == PositionEmbedding::kLearnedAbsolute) return;
  const auto flag = std::ranges::find(state.table, "max-position-embeddings", &Flag::name);
  if (flag->origin == "checkpoint" && model.max_position_embeddings < model.seq_length)
    model.max_position_embeddings = 0;
}

void take_arguments(State& state, App app, const std::vector<std::string>& arguments) {
  GivenValues given = read_given_values(app, state.table, arguments);
  state.clear();  // the values apply after those of files
  state.given = std::move(given.values);
  state.megatron = std::move(given.notes);
}

// Applies files, then the command line.
void apply_run(State& state, App app, const std::vector<std::vector<RawValue>>& files) {
  apply_files(state, app, files);
  for (const RawValue& value : state.given) apply(state, value);
}

void arm(const Requests& requests, int rank) {
  if (requests.faults.empty()) return;
  if (!requests.allow_faults) {
    refuse_usage("--fault", {.expected = "--allow-faults with it",
                             .got = "--fault alone",
                             .remedy = "remove --fault, a test aid, or add --allow-faults"});
  }
  std::vector<FaultRequest> faults;
  for (const std::string& text : requests.faults) faults.push_back(parse_fault(text));
  if (requests.fault_rank == -1 || requests.fault_rank == rank) arm_faults(std::move(faults));
}

}  // namespace

struct FlagParser::Table : State {
  using State::State;
};

FlagParser::FlagParser(App app, OwnOptions own) : app_(app), table_(std::make_unique<Table>(std::move(own))) {}
FlagParser::~FlagParser() = default;

Options FlagParser::parse_text(std::string_view toml, const std::string& file) {
  State& state = *table_;
  state.clear();
  apply_files(state, app_, {read_config_text(toml, file)});
  complete(state, app_);
  return std::move(state.options);
}

Parsed parse_flags(App app, const std::vector<std::string>& arguments, int rank, OwnOptions own) {
  return FlagParser(app, std::move(own)).parse(arguments, rank);
}

Parsed FlagParser::parse(const std::vector<std::string>& arguments, int rank) {
  Parsed parsed = read(arguments, rank);
  return parsed.print.empty() ? finish() : parsed;
}

Parsed FlagParser::read(const std::vector<std::string>& arguments, int rank) {
  State& state = *table_;
  state.clear();
  if (const auto help = std::ranges::find(arguments, "--help"); help != arguments.end()) {
    const auto topic = help + 1;
    if (topic != arguments.end() && !topic->starts_with("-"))
      return {.options = {}, .print = topic_help(app_, *topic, state.declared)};
  }
  take_arguments(state, app_, arguments);
  for (const RawValue& value : state.given) {
    if (flag_of(state, value)->group == FlagGroup::kProgram) apply(state, value);
  }
  if (state.requests.help) return {.options = {}, .print = short_help(app_, state.declared)};
  if (state.requests.help_all) return {.options = {}, .print = help_text(app_, state.declared)};
  if (state.requests.version) return {.options = {}, .print = version_line(name_of(app_)) + "\n"};
  const std::vector<std::string>& faults = state.requests.faults;
  if (std::find(faults.begin(), faults.end(), "list") != faults.end()) return {.options = {}, .print = fault_list()};
  arm(state.requests, rank);
  std::vector<std::vector<RawValue>> files;
  for (const std::string& path : state.requests.config) files.push_back(read_config_file(path));
  apply_run(state, app_, files);
  if (state.megatron.is_megatrons && !state.options.checkpoint.use_checkpoint_args) {
    state.megatron.idle = settle_megatron_line(state.table, app_, state.given);
    state.reset_values();
    apply_run(state, app_, files);
  }
  return {.options = state.options};
}

std::string FlagParser::values() const {
  std::string lines;
  for (const Flag& flag : table_->table)
    if (flag.name != "config") lines += fmt::format("--{} {}\n", flag.name, flag.binding.get());
  return lines;
}

Parsed FlagParser::finish(const std::map<std::string, std::string>* checkpoint) {
  State& state = *table_;
  std::string replaced;
  if (checkpoint != nullptr) {
    try {
      replaced = apply_checkpoint(state, app_, *checkpoint);
    } catch (const Error& error) {
      throw Error(ExitCode::kFormat, error.what());
    }
    fit_positions(state);
  }
  complete(state, app_);
  check_taken(state.megatron, state.options);
  std::string print = state.requests.print_config ? print_config(app_, state.options) : "";
  std::vector<std::string> notices = notices_of(state.megatron, state.options);
  return {.options = std::move(state.options),
          .replaced = std::move(replaced),
          .print = std::move(print),
          .notices = std::move(notices)};
}

Options parse_options(App app, int argc, char** argv, OwnOptions own) {
  Parsed parsed = parse_flags(app, std::vector<std::string>(argv + std::min(argc, 1), argv + argc), 0, std::move(own));
  for (const std::string& notice : parsed.notices) log_info(notice);
  if (parsed.print.empty()) return std::move(parsed.options);
  std::fputs(parsed.print.c_str(), stdout);
  check_standard_output();
  std::exit(static_cast<int>(ExitCode::kOk));
}

void update_effective(Options& options) {
  Requests requests;
  const FlagTable table = make_table(options, requests);
  for (ConfigEntry& entry : options.effective) {
    std::string value = std::ranges::find(table, entry.name, &Flag::name)->binding.get();
    if (value != entry.value) entry.origin = "derived";
    entry.value = std::move(value);
  }
}

std::map<std::string, std::string> config_of(const Options& options) {
  std::map<std::string, std::string> config;
  for (const ConfigEntry& entry : options.effective) config[entry.name] = entry.value;
  return config;
}

Options options_from_config(App app, const std::map<std::string, std::string>& config, OwnOptions own) {
  State state(std::move(own));
  std::map<std::string, std::string> taken = config;
  for (const auto& [name, value] : config) {
    const auto flag = std::ranges::find(state.table, name, &Flag::name);
    if (flag == state.table.end()) {
      refuse_format(kCheckpointConfig, "flags of this version", escaped_short(name),
                    "load it with the version that saved it");
    }
    if (flag->traits.of_run) taken.erase(name);
  }
  try {
    apply_files(state, app, {read_config_text(toml_of(taken), kCheckpointConfig)});
    // Values equal to the default count as defaults, since a checkpoint stores every flag without its origin.
    const std::vector<std::string> values = state.values();
    for (std::size_t i = 0; i < state.table.size(); ++i) {
      if (values[i] == state.defaults[i]) state.table[i].origin = "default";
    }
    complete(state, app);
  } catch (const Error& error) {
    throw Error(ExitCode::kFormat, error.what());
  }
  return std::move(state.options);
}

}  // namespace megalith
