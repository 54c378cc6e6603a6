// The table of all flags: one row a flag. For the files of apps/flags* only.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/config/options.h"
#include "apps/flags/flags.h"
#include "core/flags/binding.h"

namespace megalith {

struct LrSchedule;

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
  kPrepare,
  kInspect,
  kTesting,
  kProgram
};
std::string_view title_of(FlagGroup group);

inline constexpr auto kTrainApp = static_cast<unsigned>(App::kTrain);
inline constexpr auto kGenerateApp = static_cast<unsigned>(App::kGenerate);
inline constexpr auto kPlanApp = static_cast<unsigned>(App::kPlan);
inline constexpr auto kReportApp = static_cast<unsigned>(App::kReport);
inline constexpr auto kConvertApp = static_cast<unsigned>(App::kConvert);
inline constexpr auto kInspectApp = static_cast<unsigned>(App::kInspect);
inline constexpr unsigned kTexts = static_cast<unsigned>(App::kPrepare) | kInspectApp;
inline constexpr unsigned kShaped = kTrainApp | kPlanApp;  // programs that need the shape of the run
// Bounds of values.
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr std::int64_t kMany = 1'000'000'000'000;
inline constexpr std::int64_t kMaxWidth = 1 << 20;
inline constexpr std::int64_t kMaxLength = 1 << 28;
inline constexpr std::int64_t kMaxVocab = 1 << 24;
inline constexpr std::int64_t kMaxRanks = 1 << 20;

// Another flag that a flag needs or excludes (flags_check.h).
struct OtherFlag {
  std::string_view flag;         // without dashes in front
  std::string_view value = {};   // "rope", "selective or full", "above 1"; empty: any that asks for something
  unsigned apps = ~0U;           // programs that hold to it
  std::string_view remedy = {};  // in place of the usual one: to use the flag that is needed, or to remove one
  std::string_view got = {};     // what stands in place of a flag that is needed; empty: nothing
  std::string_view also = {};    // a value that means the same, which messages leave out
};

struct FlagTraits {
  unsigned apps = 0;                   // App values that take it, or-ed; 0: those of its section
  std::string_view shown = {};         // what --help shows as default where the field's own value says little
  std::optional<OnLoad> on_load = {};  // none: as on_load() says for the group
  bool positional = false;
  std::string_view synonym = {};  // another name that it takes
  bool adds = false;              // a list to which each use of the flag adds; of others the last one counts
  bool at_default = false;        // its needs and exclusions hold at its default value too, where that is given
  std::vector<OtherFlag> needs = {}, excludes = {};
  bool of_run = false;                 // of one run: what reads a checkpoint's configuration leaves it out
  std::optional<bool> suggested = {};  // does plan --suggest choose it; none: those of parallel and memory
  std::string_view example = {};       // a value other than the default, then what else it takes besides its needs
};

struct Flag {
  std::string_view name;  // without dashes in front
  FlagGroup group;
  unsigned apps;          // App values that take it, or-ed
  std::string_view unit;  // of the value, as --help shows it; empty for a toggle
  Binding binding;        // refers to the Options the table was made for
  std::string_view help;  // what it sets
  FlagTraits traits = {};
  std::string origin = "default";  // of its value, as ConfigEntry has it
};
using FlagTable = std::vector<Flag>;

// Adds rows of one group to a table. `shared`: the traits apps, on_load, at_default, needs and suggested of rows that
// do not say them.
class Section {
 public:
  Section(FlagTable& table, FlagGroup group, unsigned apps, FlagTraits shared = {})
      : table_(table), group_(group), apps_(apps), shared_(std::move(shared)) {}
  void add(std::string_view name, std::string_view unit, Binding binding, std::string_view help,
           FlagTraits traits = {});

 private:
  FlagTable& table_;
  FlagGroup group_;
  unsigned apps_;
  FlagTraits shared_;
};

// Without a word in the table: flags of the model compute, those of training, optimizer and data are noted, others
// free.
OnLoad on_load(const Flag& flag);

inline bool is_suggested(const Flag& flag) {
  return flag.traits.suggested.value_or(flag.group == FlagGroup::kParallel || flag.group == FlagGroup::kMemory);
}
inline bool is_named(const Flag& flag, std::string_view name) {
  return flag.name == name || (!flag.traits.synonym.empty() && flag.traits.synonym == name);
}
// May it be a key of a configuration file? prepare reads none.
inline bool is_key(const Flag& flag) {
  using enum FlagGroup;
  return flag.group != kProgram && flag.group != kPrepare && flag.group != kInspect && !flag.traits.positional;
}
constexpr bool takes(const Flag& flag, App app) { return (flag.apps & static_cast<unsigned>(app)) != 0; }

// Requests other than options; command line only.
struct Requests {
  std::vector<std::string> config;  // TOML files
  bool print_config = false;
  bool allow_faults = false;
  std::vector<std::string> faults;  // SITE:N[:KIND], see core/base/files/fault.h; or list
  std::int64_t fault_rank = -1;     // -1: all
  bool version = false;
  bool help = false;
};

// The rows, by file: flags_model.cpp, flags_moe.cpp, flags_training.cpp, flags_parallel.cpp, flags_offload.cpp,
// flags_programs.cpp.
void add_model(FlagTable& t, ModelConfig& m);
void add_moe(FlagTable& t, MoeConfig& m);
void add_training(FlagTable& t, Options& options);
void add_optimizer(FlagTable& t, OptimizerOptions& o, LrSchedule& s);
void add_data_and_evaluation(FlagTable& t, Options& o);
void add_checkpoint(FlagTable& t, CheckpointOptions& o);
void add_parallel(FlagTable& t, ParallelOptions& o);
void add_memory(FlagTable& t, MemoryOptions& o);
void add_offload(FlagTable& t, OffloadOptions& o);
void add_logging(FlagTable& t, LoggingOptions& o);
void add_other_programs(FlagTable& t, Options& o);
void add_prepare(FlagTable& t, Options& o);
void add_testing(FlagTable& t, TrainingOptions& o);
void add_program(FlagTable& t, Requests& r);
// Flags of a user's own, as apps/own.cpp declares them. A name that is no flag's or that another flag has is an error
// with exit code 9.
void add_own(FlagTable& t, Options& options);

// `options` and `requests` must outlive the table.
FlagTable make_table(Options& options, Requests& requests);

}  // namespace megalith
