#include "core/checkpoint/train_state.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/checkpoint/hash.h"
#include "core/checkpoint/strict_json.h"

namespace megalith {
namespace {

constexpr std::int64_t kMaxStep = std::int64_t{1} << 40;
constexpr std::size_t kMaxText = std::size_t{1} << 16;

}  // namespace

std::string config_hash(const std::map<std::string, std::string>& config) {
  std::string text;
  for (const auto& [key, value] : config) text += fmt::format("{}:{}={}:{}\n", key.size(), key, value.size(), value);
  return to_hex(hash_of(text));
}

std::string to_json(const TrainState& state) {
  nlohmann::json value = {{"step", state.step},
                          {"consumed_samples", state.consumed_samples},
                          {"consumed_validation_samples", state.consumed_validation_samples},
                          {"data_order_samples", state.data_order_samples},
                          {"skipped_steps", state.skipped_steps},
                          {"adam_count", state.adam_count},
                          {"seed", state.seed},
                          {"schedule", state.schedule},
                          {"tokenizer", state.tokenizer},
                          {"program_version", state.program_version},
                          {"program_commit", state.program_commit},
                          {"config", state.config},
                          {"config_hash", config_hash(state.config)},
                          {"gemm_algorithms", state.gemm_algorithms}};
  if (state.passed_steps > 0) {
    value["passed_steps"] = state.passed_steps;
    value["passed_samples"] = state.passed_samples;
  }
  std::string text = value.dump(2) + "\n";
  train_state_from_json(text, "the training state to save");
  return text;
}

TrainState train_state_from_json(std::string_view text, const std::string& subject) {
  const nlohmann::json value = parse_strict_json(text, subject);
  JsonObject object(value, subject);
  TrainState state;
  state.step = object.integer("step", 0, kMaxStep);
  state.consumed_samples = object.integer("consumed_samples", 0, kMaxSamples);
  state.consumed_validation_samples = object.integer("consumed_validation_samples", 0, kMaxSamples);
  if (object.has("data_order_samples"))  // absent in checkpoints of earlier versions
    state.data_order_samples = object.integer("data_order_samples", 0, kMaxSamples);
  if (object.has("passed_steps")) {  // only after skipped iterations
    state.passed_steps = object.integer("passed_steps", 0, kMaxStep);
    state.passed_samples = object.integer("passed_samples", 0, kMaxSamples);
  }
  state.skipped_steps = object.integer("skipped_steps", 0, kMaxStep);
  state.adam_count = object.integer("adam_count", 0, kMaxStep);
  state.seed = object.unsigned_integer("seed");
  state.schedule = object.texts("schedule");
  state.tokenizer = object.text("tokenizer", kMaxText);
  state.program_version = object.text("program_version", kMaxText);
  state.program_commit = object.text("program_commit", kMaxText);
  state.config = object.texts("config");
  state.gemm_algorithms = object.texts("gemm_algorithms");
  const std::string stored = object.text("config_hash", 32);
  object.finish();
  if (stored != config_hash(state.config)) {
    refuse_format(subject + ": config_hash", config_hash(state.config), stored);
  }
  return state;
}

}  // namespace megalith
