// Everything a user can set, by section. apps/flags/flags.cpp fills it from defaults, --config files and the command
// line; every field is named after its flag. A section's fields are in the header named after it: a file includes
// those of the sections that it reads, and a new field rebuilds no other.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/base/error.h"
#include "core/device/device.h"
#include "core/tensor/dtype.h"

namespace megalith {

struct CheckpointOptions;
struct ConvertOptions;
struct DataOptions;
struct ForecastOptions;
struct GenerateOptions;
struct LoggingOptions;
struct MachineFacts;
struct MemoryOptions;
struct ModelConfig;
struct MoeConfig;
struct OffloadOptions;
struct OptimizerOptions;
struct ParallelOptions;
struct PrepareOptions;
struct ReportOptions;
struct TrainingOptions;
struct Options;

// What a flag's value that differs from the one in the loaded checkpoint means.
enum class OnLoad {
  kFree,       // nothing
  kNoted,      // the run does not continue exactly: reported
  kComputes,   // the same tensors compute something else: refused, with --finetune reported
  kTensors,    // other tensors: refused
  kPositions,  // kTensors where positions are learned, else kFree
  kTokenizer,  // its identity is compared in place of its flags
};

// One line of the effective configuration. `value` is valid both as TOML and as JSON.
struct ConfigEntry {
  std::string group;  // TOML table that --print-config puts it in
  std::string name;   // flag without dashes in front
  std::string value;
  std::string origin;      // "default", "derived", FILE:LINE, "checkpoint" or "command line"
  bool given = false;      // another value than the default; of some (FlagTraits::at_default) any that a user gave
  bool suggested = false;  // plan --suggest chooses it
  OnLoad on_load = OnLoad::kFree;
};

// A flag of a user's own (apps/own.cpp). The texts are literals.
struct OwnFlag {
  std::string_view name;  // without dashes in front
  std::string_view unit;  // of the value, as --help shows it; empty for a toggle
  std::string_view help;
  std::variant<bool, std::int64_t, double, std::string> value;  // the default; in Options that of the run
  double low = 0, high = 1e12;                                  // bounds of a number
  OnLoad on_load = OnLoad::kTensors;
};

struct OwnOptions {
  std::vector<OwnFlag> flags;
  // Refuses what does not fit together; null: nothing is refused.
  std::function<void(const Options&)> check = nullptr;
  // Whether a layer has a segment of the user's own, whose kinds of slots only a recording knows; null: none has.
  std::function<bool(const Options&, std::int64_t layer)> has_segment = nullptr;
};

struct Options {
  Options();
  Options(const Options& other);
  Options(Options&& other);
  Options& operator=(const Options& other);
  Options& operator=(Options&& other);
  ~Options();

  bool is_default(std::string_view flag) const {
    const auto entry = std::ranges::find(effective, flag, &ConfigEntry::name);
    return entry == effective.end() || entry->origin == "default";
  }
  bool is_given(std::string_view flag) const {
    const auto entry = std::ranges::find(effective, flag, &ConfigEntry::name);
    return entry != effective.end() && entry->given;
  }
  // The value of a flag of one's own, of the type that its declaration has; else an error with exit code 9.
  template <class Value>
  const Value& own_value(std::string_view flag) const {
    const Value* const value = std::get_if<Value>(&own_flag(flag).value);
    require(value != nullptr, "a flag of one's own is read as the type of its default");
    return *value;
  }
  // Of the model, for files that need no more of it.
  const MoeConfig& moe() const;
  std::int64_t num_layers() const;
  DType params_dtype() const;
  bool ties_embeddings() const;

 private:
  const OwnFlag& own_flag(std::string_view flag) const;

  struct Sections;
  explicit Options(std::unique_ptr<Sections> sections);
  std::unique_ptr<Sections> sections_;

 public:
  // This object's own; a copy has copies.
  ModelConfig& model;
  TrainingOptions& train;
  OptimizerOptions& optimizer;
  MemoryOptions& memory;
  OffloadOptions& offload;
  DataOptions& data;
  CheckpointOptions& checkpoint;
  ParallelOptions& parallel;
  LoggingOptions& logging;
  GenerateOptions& generate;
  ReportOptions& report;
  ForecastOptions& forecast;
  ConvertOptions& convert;
  PrepareOptions& prepare;
  MachineFacts& machine;

  DeviceType device = default_device();
  bool deterministic_mode = false;
  OwnOptions own;
  std::vector<ConfigEntry> effective;  // every flag of the program, in the order of --help
};

// Whether --fsdp-embedding-and-head leaves open what becomes of these. It does not where bits must not depend on what
// memory is free.
bool may_shard_ends(const Options& options);

}  // namespace megalith
