// Table of all flags, one row per flag; only for the files of apps/flags*.
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

// Groups in the order of --help; the title is also the TOML table in --print-config.
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
inline constexpr auto kEvaluateApp = static_cast<unsigned>(App::kEvaluate);
inline constexpr auto kPlanApp = static_cast<unsigned>(App::kPlan);
inline constexpr auto kReportApp = static_cast<unsigned>(App::kReport);
inline constexpr auto kConvertApp = static_cast<unsigned>(App::kConvert);
inline constexpr auto kInspectApp = static_cast<unsigned>(App::kInspect);
inline constexpr auto kPrepareApp = static_cast<unsigned>(App::kPrepare);
inline constexpr unsigned kTexts = kPrepareApp | kInspectApp;
inline constexpr unsigned kShaped = kTrainApp | kPlanApp;  // programs that need the shape of the run
// Bounds of values.
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr std::int64_t kMany = 1'000'000'000'000;
inline constexpr std::int64_t kMaxWidth = 1 << 20;
inline constexpr std::int64_t kMaxLength = 1 << 28;
inline constexpr std::int64_t kMaxVocab = 1 << 24;
inline constexpr std::int64_t kMaxRanks = 1 << 20;

// Flag that another flag needs or excludes (flags_check.h).
struct OtherFlag {
  std::string_view flag;         // without leading dashes
  std::string_view value = {};   // "rope", "selective or full", "above 1"; empty: any value that enables it
  unsigned apps = ~0U;           // programs in which the rule holds
  std::string_view remedy = {};  // empty: use the needed flag, or remove one
  std::string_view got = {};     // what is given instead of the needed flag; empty: nothing
  std::string_view also = {};    // equivalent value that messages leave out
};

struct FlagTraits {
  unsigned apps = 0;                   // bits of App; 0: those of the section
  std::string_view shown = {};         // default in --help, if the field's value says little
  std::optional<OnLoad> on_load = {};  // none: on_load() of the group
  bool positional = false;
  std::string_view synonym = {};  // another name of the flag
  bool adds = false;              // each use adds to the list; otherwise the last use counts
  bool at_default = false;        // needs and excludes also hold for a given default value
  std::vector<OtherFlag> needs = {}, excludes = {};
  bool of_run = false;                 // of one run: readers of a checkpoint's configuration ignore it
  std::optional<bool> suggested = {};  // plan --suggest chooses it; none: true for parallel and memory
  std::string_view example = {};       // value other than the default, then flags it requires in addition to `needs`
};

struct Flag {
  std::string_view name;  // without leading dashes
  FlagGroup group;
  unsigned apps;          // bits of App
  std::string_view unit;  // unit of the value in --help; empty for a toggle
  Binding binding;        // refers to the Options of the table
  std::string_view help;  // meaning of the value
  FlagTraits traits = {};
  std::string origin = "default";  // origin of the value, as in ConfigEntry
};
using FlagTable = std::vector<Flag>;

// Adder of rows of one group. `shared`: apps, on_load, at_default and suggested for rows that do not set them, and
// needs of all rows.
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

// Meaning of a changed value at load. Without a trait: model flags compute, flags of training, optimizer and data are
// noted, others are free.
OnLoad on_load(const Flag& flag);

inline bool is_suggested(const Flag& flag) {
  return flag.traits.suggested.value_or(flag.group == FlagGroup::kParallel || flag.group == FlagGroup::kMemory);
}
inline bool is_named(const Flag& flag, std::string_view name) {
  return flag.name == name || (!flag.traits.synonym.empty() && flag.traits.synonym == name);
}
// True if the flag may be a key of a configuration file; prepare reads no such file.
inline bool is_key(const Flag& flag) {
  using enum FlagGroup;
  return flag.group != kProgram && flag.group != kPrepare && flag.group != kInspect && !flag.traits.positional;
}
constexpr bool takes(const Flag& flag, App app) { return (flag.apps & static_cast<unsigned>(app)) != 0; }

// Requests other than options; only on the command line.
struct Requests {
  std::vector<std::string> config;  // TOML files
  bool print_config = false;
  bool allow_faults = false;
  std::vector<std::string> faults;  // SITE:N[:KIND] of core/base/files/fault.h, or list
  std::int64_t fault_rank = -1;     // -1: all
  bool version = false;
  bool help = false;
  bool help_all = false;
};

// Adders of rows, in flags_model.cpp, flags_moe.cpp, flags_training.cpp, flags_parallel.cpp, flags_offload.cpp and
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
// Adds the custom flags of apps/own.cpp. An invalid or duplicate name is an error with exit code 9.
void add_own(FlagTable& t, Options& options);

// `options` and `requests` must outlive the table.
FlagTable make_table(Options& options, Requests& requests);

}  // namespace megalith
