// Command line and configuration files of all programs. The table of flags (apps/flags/flags_table.cpp) gives each flag
// its field, group, help, check and programs. The command line overrides --config files (TOML; later files override
// earlier files), which override defaults.
//
// Errors have exit code 2, or 3 if a file cannot be read. They report unknown names with the nearest valid name, values
// with the valid range, and contradictions with both flags; keys have FILE:LINE:COLUMN.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "apps/config/options.h"

namespace megalith {

enum class App : unsigned {
  kTrain = 1,
  kGenerate = 2,
  kPlan = 4,
  kReport = 8,
  kConvert = 16,
  kPrepare = 32,
  kInspect = 64,
  kEvaluate = 128
};
inline constexpr std::array kApps = {App::kTrain,  App::kGenerate, App::kEvaluate, App::kPlan,
                                     App::kReport, App::kConvert,  App::kPrepare,  App::kInspect};
std::string_view name_of(App app);

struct Parsed {
  Options options;
  std::string replaced;  // flags of --config files that a checkpoint overrides, for a warning
  std::string print;  // output of --help, --version or --print-config; if not empty, print it and end with exit code 0
  std::vector<std::string> notices = {};  // about flags of Megatron-LM, for the banner
};

// Parses `arguments` (without the program's name). Arms the faults (core/base/files/fault.h) that --fault requests for
// this rank ahead of any file access. `own`: flags of apps/own.cpp; without `own` these flags are unknown.
Parsed parse_flags(App app, const std::vector<std::string>& arguments, int rank = 0, OwnOptions own = {});

// Parser of several command lines with one table of flags. parse_text reads the text of a configuration file instead of
// a command line.
class FlagParser {
 public:
  explicit FlagParser(App app, OwnOptions own = {});
  ~FlagParser();
  FlagParser(const FlagParser&) = delete;
  FlagParser& operator=(const FlagParser&) = delete;

  Parsed parse(const std::vector<std::string>& arguments, int rank = 0);
  Options parse_text(std::string_view toml, const std::string& file);

  // Two steps of parse(), between which the caller finds the checkpoint of --use-checkpoint-args. read() returns
  // unchecked options, which MPI_Init needs for timeouts and the environment, or a text to print. finish() applies the
  // checkpoint's configuration, if any; errors in it have exit code 4.
  Parsed read(const std::vector<std::string>& arguments, int rank = 0);
  Parsed finish(const std::map<std::string, std::string>* checkpoint = nullptr);
  // Lines "--name VALUE" after read(), without --config; equal on all ranks of a run.
  std::string values() const;

 private:
  struct Table;

  App app_;
  std::unique_ptr<Table> table_;
};

// Calls parse_flags; prints a requested text to standard output and ends the process.
Options parse_options(App app, int argc, char** argv, OwnOptions own = {});

// Updates options.effective after other code derived fields (from the tokenizer, the number of ranks).
void update_effective(Options& options);

// Effective configuration by flag name, as a checkpoint stores it, and its inverse. The device is left out, since this
// machine may not have it. Values are TOML; errors in a checkpoint's values have exit code 4.
std::map<std::string, std::string> config_of(const Options& options);
Options options_from_config(App app, const std::map<std::string, std::string>& config, OwnOptions own = {});

// Configuration of the model and its tokenizer only, for a checkpoint without a run; as a map, and as TOML for
// --config.
std::map<std::string, std::string> model_config_of(Options options);
std::string print_model_config(Options options);

// Effective configuration as TOML that --config accepts; a comment gives the origin of each value.
std::string print_config(App app, const Options& options);

// Derives fields that are 0 from other fields.
void resolve(Options& options);

// Fails with exit code 2 for missing, contradictory or unsupported flags, and reports them. Call it after `resolve`.
void check(App app, const Options& options);
// Checks batches, layout and memory only: plan --suggest changes only these flags of checked options.
void check_layout(const Options& options);

// --help-all: every flag of the program.
std::string help_text(App app, const OwnOptions& own = {});
// --help: examples and the flags of every day; all flags if a program has few.
std::string short_help(App app, const OwnOptions& own = {});
// --help TOPIC: the flags of a group (its title) or those whose name has the topic. An unknown topic is a usage error.
std::string topic_help(App app, std::string_view topic, const OwnOptions& own = {});

}  // namespace megalith
