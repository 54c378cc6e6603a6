#include "apps/metrics/wandb.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <random>
#include <utility>

#include "apps/config/checkpoint_options.h"
#include "apps/config/training_options.h"
#include "apps/metrics/metrics_schema.h"
#include "apps/program/version.h"
#include "core/base/text/text.h"

namespace megalith {

namespace {

double wandb_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Eight letters and digits, as the client of Weights & Biases makes them.
std::string wandb_id() {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz0123456789";
  std::random_device device;
  std::string id;
  for (int i = 0; i < 8; ++i) id += kLetters[device() % kLetters.size()];
  return id;
}

WandbRun wandb_run_of(const Options& options, std::int64_t resumed_step) {
  const LoggingOptions& logging = options.logging;
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  WandbRun run{.id = wandb_id(),
               .entity = logging.wandb_entity,
               .project = logging.wandb_project,
               .name = logging.wandb_exp_name,
               .group = logging.wandb_exp_name,
               .host = host,
               .start_time = wandb_time()};
  for (const ConfigEntry& entry : options.effective) run.config.emplace_back(entry.name, entry.value);
  run.config.emplace_back("megalith", escaped(program_version()));
  run.config.emplace_back("commit", escaped(program_commit()));
  run.config.emplace_back("resumed_step", fmt::to_string(resumed_step));
  return run;
}

std::string wandb_folder_of(const Options& options) {
  if (!options.logging.wandb_save_dir.empty()) return options.logging.wandb_save_dir;
  return options.checkpoint.save.empty() ? "." : options.checkpoint.save;
}

// JSON as the client writes it, with NaN and infinities. A float has the digits of --metrics-jsonl.
template <class Number>
std::string wandb_json(Number value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  constexpr auto kMaxExact = static_cast<Number>(1e15);
  const bool is_integer = std::abs(value) < kMaxExact && value == std::floor(value);
  return is_integer ? fmt::format("{:.0f}", value) : fmt::to_string(value);
}

template <class Owner>
std::optional<std::string> wandb_json_of(const Metric<Owner>& row, const Owner& owner) {
  const std::optional<double> number = number_of(row, owner);
  if (!number) return std::nullopt;
  const bool is_float = std::holds_alternative<float Owner::*>(row.member) ||
                        std::holds_alternative<std::optional<float> Owner::*>(row.member);
  return is_float ? wandb_json(static_cast<float>(*number)) : wandb_json(*number);
}

using Values = std::vector<WandbValue>;

template <class Owner>
void add_rows(Values& values, std::span<const Metric<Owner>> schema, const Owner& owner, unsigned parts,
              const std::vector<std::string>& outer) {
  for (const Metric<Owner>& row : schema) {
    if (row.key.empty() || (row.traits.parts & parts) == 0) continue;
    std::optional<std::string> json = wandb_json_of(row, owner);
    if (!json) continue;
    std::vector<std::string> keys = outer;
    keys.emplace_back(row.key);
    values.push_back({.keys = std::move(keys), .json = std::move(*json)});
  }
}

Values wandb_values_of(const StepMetrics& metrics) {
  Values values;
  add_rows(values, step_schema(), metrics, kOfStep, {});
  for (const ExpertLoad& load : metrics.experts)
    add_rows(values, expert_schema(), load, kOfAll, {"experts", fmt::format("layer_{}", load.layer)});
  if (metrics.offload) {
    add_rows(values, offload_schema(), metrics.offload->sums, kOfSums, {"offload"});
    for (std::size_t stage = 0; stage < metrics.offload->stages.size(); ++stage)
      add_rows(values, offload_schema(), metrics.offload->stages[stage], kOfStage,
               {"offload", fmt::format("stage_{}", stage)});
  }
  for (const auto& [name, bytes] : metrics.memory_bytes)
    values.push_back({.keys = {"memory_bytes", name}, .json = fmt::to_string(bytes)});
  return values;
}

}  // namespace

WandbLog::WandbLog(const Options& options, std::int64_t resumed_step)
    : WandbLog(options, wandb_run_of(options, resumed_step)) {}

WandbLog::WandbLog(const Options& options, const WandbRun& run)
    : begun_(run.start_time),
      interval_(options.logging.tensorboard_log_interval),
      file_(wandb_folder_of(options), "--wandb-project", run, fmt::format("megalith {}", program_version())) {}

void WandbLog::write(const StepMetrics& metrics) {
  const bool is_end = std::exchange(is_first_, false) || metrics.iteration == metrics.train_iters;
  if (!is_end && !metrics.validation_loss && metrics.iteration % interval_ != 0) return;
  write(metrics.iteration, wandb_values_of(metrics));
}

void WandbLog::write(const EvaluationMetrics& metrics) {
  write(metrics.iteration, {{.keys = {"iteration"}, .json = fmt::to_string(metrics.iteration)},
                            {.keys = {"consumed_samples"}, .json = fmt::to_string(metrics.consumed_samples)},
                            {.keys = {fmt::format("{}_loss", metrics.split)}, .json = wandb_json(metrics.loss)}});
}

void WandbLog::write(std::int64_t step, std::vector<WandbValue> values) {
  const double time = wandb_time();
  values.push_back({.keys = {"_step"}, .json = fmt::to_string(step)});
  values.push_back({.keys = {"_timestamp"}, .json = fmt::to_string(time)});
  values.push_back({.keys = {"_runtime"}, .json = fmt::to_string(time - begun_)});
  file_.write_step(step, values);
}

void WandbLog::finish(int exit_code) { file_.write_exit(exit_code, static_cast<std::int64_t>(wandb_time() - begun_)); }

}  // namespace megalith
