// Options of a user, by section. apps/flags/flags.cpp sets them from defaults, --config files and the command line;
// each field is named after its flag. The header of a section has its fields. A file includes only the sections that it
// reads, so that a new field rebuilds no other file.
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

// Meaning of a flag's value that differs from the value in the loaded checkpoint.
enum class OnLoad {
  kFree,       // no consequence
  kNoted,      // reported: the run does not continue exactly
  kComputes,   // rejected, with --finetune reported: the same tensors compute something else
  kTensors,    // rejected: other tensors
  kPositions,  // kTensors for learned positions, else kFree
  kTokenizer,  // the tokenizer's identity is compared instead of its flags
};

// Line of the effective configuration. `value` is valid TOML and JSON.
struct ConfigEntry {
  std::string group;  // TOML table in --print-config
  std::string name;   // without leading dashes
  std::string value;
  std::string origin;      // "default", "derived", FILE:LINE, "checkpoint" or "command line"
  bool given = false;      // not the default; with FlagTraits::at_default any value that a user gave
  bool suggested = false;  // plan --suggest chooses it
  OnLoad on_load = OnLoad::kFree;
};

// Custom flag (apps/own.cpp). The texts are literals.
struct OwnFlag {
  std::string_view name;  // without leading dashes
  std::string_view unit;  // unit of the value in --help; empty for a toggle
  std::string_view help;
  std::variant<bool, std::int64_t, double, std::string> value;  // default; in Options the value of the run
  double low = 0, high = 1e12;                                  // bounds of a number
  OnLoad on_load = OnLoad::kTensors;
};

struct OwnOptions {
  std::vector<OwnFlag> flags;
  // Rejects values that do not fit together; null: rejects nothing.
  std::function<void(const Options&)> check = nullptr;
  // True if a layer has a custom segment, whose kinds of slots only a recording knows; null: no layer has one.
  std::function<bool(const Options&, std::int64_t layer)> has_segment = nullptr;
};

struct Options {
  Options();
  Options(const Options& other);
  Options(Options&& other);  // NOLINT(performance-noexcept-move-constructor): allocates the sections
  Options& operator=(const Options& other);
  Options& operator=(Options&& other) noexcept;
  ~Options();

  bool is_default(std::string_view flag) const {
    const auto entry = std::ranges::find(effective, flag, &ConfigEntry::name);
    return entry == effective.end() || entry->origin == "default";
  }
  bool is_given(std::string_view flag) const {
    const auto entry = std::ranges::find(effective, flag, &ConfigEntry::name);
    return entry != effective.end() && entry->given;
  }
  // Value of a custom flag, of the type in its declaration; another type is an error with exit code 9.
  template <class Value>
  const Value& own_value(std::string_view flag) const {
    const Value* const value = std::get_if<Value>(&own_flag(flag).value);
    require(value != nullptr, "a custom flag is read as the type of its default");
    return *value;
  }
  // Properties of the model, for files that need nothing else of it.
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
  // Sections that this object owns; a copy owns copies.
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

// True if --fsdp-embedding-and-head leaves the sharding of embedding and head open. It is closed if bits must not
// depend on free memory.
bool may_shard_ends(const Options& options);

}  // namespace megalith
