// The table of all flags. For the files of apps/flags* only.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/config/options.h"
#include "apps/flags/flags.h"
#include "apps/flags/flags_binding.h"

namespace megalith {

// In the order of --help; the title is also the TOML table that --print-config writes.
enum class FlagGroup {
  kModel,
  kMoe,
  kOwn,
  kTraining,
  kOptimizer,
  kData,
  kEvaluation,
  kCheckpoint,
  kParallel,
  kMemory,
  kLogging,
  kGenerate,
  kReport,
  kConvert,
  kForecast,
  kTesting,
  kProgram
};
std::string_view title_of(FlagGroup group);

struct Flag {
  std::string_view name;  // without dashes in front
  FlagGroup group;
  unsigned apps;                       // App values that take it, or-ed
  std::string_view unit;               // of the value, as --help shows it; empty for a toggle
  Binding binding;                     // refers to the Options the table was made for
  std::string_view help;               // what it sets
  std::string_view shown;              // what --help shows as default where the field's own value says little
  std::optional<OnLoad> on_load = {};  // none: as on_load() says for the group
  bool positional = false;
  std::string_view synonym = {};   // another name that it takes
  std::string origin = "default";  // of its value, as ConfigEntry has it
};

// Without a word in the table: flags of the model compute, those of training, optimizer and data are noted, others
// free.
OnLoad on_load(const Flag& flag);

inline bool is_named(const Flag& flag, std::string_view name) {
  return flag.name == name || (!flag.synonym.empty() && flag.synonym == name);
}
constexpr bool takes(const Flag& flag, App app) { return (flag.apps & static_cast<unsigned>(app)) != 0; }

// Requests other than options; command line only.
struct Requests {
  std::vector<std::string> config;  // TOML files
  bool print_config = false;
  bool allow_faults = false;
  std::vector<std::string> faults;  // SITE:N[:KIND], see core/base/fault.h; or list
  std::int64_t fault_rank = -1;     // -1: all
  bool version = false;
  bool help = false;
};

// `options` and `requests` must outlive the table.
std::vector<Flag> make_table(Options& options, Requests& requests);

}  // namespace megalith
