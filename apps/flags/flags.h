// Command line and configuration files of all programs. One table (apps/flags/flags_table.cpp) has every flag with the
// field it fills, group, help, check and programs. The command line overrides --config files (TOML; later files
// override earlier ones), which override defaults.
//
// Errors have exit code 2 (3 where a file cannot be read): unknown names with the nearest valid one, values out of
// range with the valid ones, contradictions with both flags; keys with FILE:LINE:COLUMN.
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
  kInspect = 64
};
inline constexpr std::array kApps = {App::kTrain,   App::kGenerate, App::kPlan,   App::kReport,
                                     App::kConvert, App::kPrepare,  App::kInspect};
std::string_view name_of(App app);

struct Parsed {
  Options options;
  std::string replaced;  // flags of --config files that a checkpoint has other values of, for a warning
  std::string print;     // not empty: --help, --version or --print-config was asked; print it and end with exit code 0
};

// `arguments` without the program's name. Arms the faults (core/base/files/fault.h) that --fault asks of this rank,
// before any file is read. `own`: those of apps/own.cpp; without them their flags are unknown.
Parsed parse_flags(App app, const std::vector<std::string>& arguments, int rank = 0, OwnOptions own = {});

// The same for many command lines, which share one table of flags. parse_text reads a configuration file's text in
// place of a command line.
class FlagParser {
 public:
  explicit FlagParser(App app, OwnOptions own = {});
  ~FlagParser();
  FlagParser(const FlagParser&) = delete;
  FlagParser& operator=(const FlagParser&) = delete;

  Parsed parse(const std::vector<std::string>& arguments, int rank = 0);
  Options parse_text(std::string_view toml, const std::string& file);

  // parse() in two steps, between which the checkpoint of --use-checkpoint-args is looked for: read() gives the options
  // unchecked, also for timeouts and the libraries' environment, which MPI_Init needs before; or has something to
  // print. finish() takes the checkpoint's configuration, if there is one; errors in it have exit code 4.
  Parsed read(const std::vector<std::string>& arguments, int rank = 0);
  Parsed finish(const std::map<std::string, std::string>* checkpoint = nullptr);

 private:
  struct Table;

  App app_;
  std::unique_ptr<Table> table_;
};

// As parse_flags; prints what was asked for to standard output and ends the process.
Options parse_options(App app, int argc, char** argv, OwnOptions own = {});

// Brings options.effective up to date after fields were derived outside (from the tokenizer, the number of ranks).
void update_effective(Options& options);

// The effective configuration by flag name, as a checkpoint keeps it, and back, without the device, which this machine
// may not have. Values are TOML; errors in a checkpoint's have exit code 4.
std::map<std::string, std::string> config_of(const Options& options);
Options options_from_config(App app, const std::map<std::string, std::string>& config, OwnOptions own = {});

// As config_of, but of the model and its tokenizer alone, for a checkpoint that no run made; and the same as TOML for
// --config.
std::map<std::string, std::string> model_config_of(Options options);
std::string print_model_config(Options options);

// The effective configuration as TOML that --config reads back; the origin of each value is a comment.
std::string print_config(App app, const Options& options);

// Derives what was left at 0 from other fields.
void resolve(Options& options);

// Throws Error (exit code 2) for what is missing, contradictory or not built yet, naming the flags. After `resolve`.
void check(App app, const Options& options);
// Its part about batches, layout and memory: plan --suggest changes these flags alone of options that were checked.
void check_layout(const Options& options);

std::string help_text(App app, const OwnOptions& own = {});

}  // namespace megalith
