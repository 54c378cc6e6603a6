#include "apps/metrics/metrics.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "apps/config/training_options.h"
#include "apps/metrics/metrics_reader.h"
#include "apps/program/version.h"
#include "core/base/error.h"
#include "core/base/files/fault.h"
#include "core/base/files/line_reader.h"
#include "core/base/files/output_file.h"
#include "core/base/log.h"
#include "core/base/text/text.h"

namespace megalith {

namespace {

constexpr const char* kFlag = "--metrics-jsonl";
constexpr const char* kScope = "metrics";

template <typename Float>
std::string number_or_null(Float value) {
  return std::isfinite(value) ? fmt::format("{}", value) : "null";
}

std::string hex(float value) {
  if (std::isnan(value)) return "\"nan\"";
  char text[40];
  std::snprintf(text, sizeof(text), "\"%a\"", static_cast<double>(value));
  return text;
}

template <class Write>
void add_array(std::string& out, const char* key, const std::vector<ExpertLoad>& loads, const Write& write) {
  std::string items;
  for (const ExpertLoad& load : loads) items.append(items.empty() ? "" : ", ").append(write(load));
  out += fmt::format("{}\"{}\": [{}]", out.empty() ? "" : ", ", key, items);
}

std::string experts_json(const std::vector<ExpertLoad>& loads) {
  std::string out;
  const auto counts = [&](const char* key, std::int64_t ExpertLoad::*field) {
    add_array(out, key, loads, [field](const ExpertLoad& load) { return fmt::format("{}", load.*field); });
  };
  const auto numbers = [&](const char* key, double ExpertLoad::*field) {
    add_array(out, key, loads, [field](const ExpertLoad& load) { return fmt::format("{:.6g}", load.*field); });
  };
  const auto losses = [&](const char* key, std::optional<float> ExpertLoad::*field) {
    if (!(loads.front().*field)) return;
    add_array(out, key, loads, [field](const ExpertLoad& load) { return number_or_null((load.*field).value_or(0)); });
  };
  counts("layer", &ExpertLoad::layer);
  counts("min", &ExpertLoad::min);
  counts("max", &ExpertLoad::max);
  numbers("mean", &ExpertLoad::mean);
  numbers("entropy", &ExpertLoad::entropy);
  counts("dropped", &ExpertLoad::dropped);
  if (loads.front().rank_max_over_mean) {
    add_array(out, "rank_max_over_mean", loads,
              [](const ExpertLoad& load) { return fmt::format("{:.6g}", load.rank_max_over_mean.value_or(1)); });
  }
  if (loads.front().rows_sent) {
    add_array(out, "rows_sent", loads,
              [](const ExpertLoad& load) { return fmt::format("{}", load.rows_sent.value_or(0)); });
  }
  losses("load_balancing_loss", &ExpertLoad::load_balancing_loss);
  losses("z_loss", &ExpertLoad::z_loss);
  return "{" + out + "}";
}

std::string offload_json(const StepMetrics::Offload& offload) {
  std::string out = fmt::format(
      R"("slots": {}, "bytes_out": {}, "bytes_back": {}, "host_bytes": {}, "saving_bytes": {}, "saved_bytes": {})",
      offload.slots, offload.bytes_out, offload.bytes_back, offload.host_bytes, offload.saving_bytes,
      offload.saved_bytes);
  if (offload.saved_driver_bytes) out += fmt::format(R"(, "saved_driver_bytes": {})", *offload.saved_driver_bytes);
  std::string stages;
  for (const StepMetrics::Offload::Stage& stage : offload.stages) {
    stages += fmt::format(
        R"({}{{"slots": {}, "bytes_out": {}, "bytes_back": {}, "copy_out_ms": {:.6g}, "copy_back_ms": {:.6g}, )"
        R"("wait_out_ms": {:.6g}, "wait_back_ms": {:.6g}, "step_ms": {:.6g}, "saving_bytes": {}, "saved_bytes": {})",
        stages.empty() ? "" : ", ", stage.slots, stage.bytes_out, stage.bytes_back, stage.copy_out_ms,
        stage.copy_back_ms, stage.wait_out_ms, stage.wait_back_ms, stage.step_ms, stage.saving_bytes,
        stage.saved_bytes);
    if (stage.saved_driver_bytes) stages += fmt::format(R"(, "saved_driver_bytes": {})", *stage.saved_driver_bytes);
    stages += "}";
  }
  if (!stages.empty()) out += ", \"stages\": [" + stages + "]";
  return "{" + out + "}";
}

// Moves an earlier run's file to the first free PATH.N.
void move_away(const std::string& path) {
  for (int n = 1;; ++n) {
    const std::string target = fmt::format("{}.{}", path, n);
    if (look_at(target)) continue;
    rename_file(path, target);
    log_info("the metrics of an earlier run were moved to " + target);
    return;
  }
}

// Rewrites the file without the lines after `last_step`; through a second file, so that a crash loses nothing.
void keep_until(const std::string& path, std::int64_t last_step) {
  LineReader lines(path, {.line_bytes = kMaxMetricsLineBytes});
  OutputFile out(path, kScope);
  while (const std::optional<LineReader::Line> line = lines.next()) {
    const std::optional<std::int64_t> iteration = line->is_too_long ? std::nullopt : iteration_of(line->text);
    const std::string got = iteration ? "" : escaped_short(std::string(line->text));
    if (!lines.has_end()) break;  // torn
    if (!iteration) {
      refuse_format(fmt::format("{}:{}", path, lines.number()), "a line of --metrics-jsonl", got,
                    "the file was left as it is; name another one");
    }
    if (*iteration > last_step) continue;
    out.write(line->text);
    out.write("\n");
  }
  out.commit();
}

// Does it break off within a line? It has bytes.
bool is_torn(const std::string& path) {
  const File file = File::open(path);
  std::byte last{};
  file.read_at(file.size() - 1, {&last, 1});
  return last != std::byte{'\n'};
}

File open_log(const std::string& path, bool evaluates_only, std::int64_t resumed_step) {
  const FaultScope scope(kScope);
  try {
    const std::optional<PathInfo> before = look_at(path);
    if (before && before->type == EntryType::kFile && before->size > 0) {
      if (evaluates_only) {  // a training run may be writing to the file: it must not be replaced
        if (is_torn(path)) keep_until(path, std::numeric_limits<std::int64_t>::max());
      } else if (resumed_step > 0) {
        keep_until(path, resumed_step);
      } else {
        move_away(path);
      }
    }
    return File::append(path);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kFileIo) throw;
    throw Error(error.code(), fmt::format("{}: {}", kFlag, error.what()));
  }
}

}  // namespace

std::string to_json_line(const StepMetrics& metrics, std::string_view run) {
  std::string line = fmt::format(
      R"({{"iteration": {}, "consumed_samples": {}, "global_batch_size": {}, "lm_loss": {}, "lm_loss_hex": {}, )"
      R"("grad_norm": {}, "grad_norm_hex": {}, "learning_rate": {}, "tokens_per_second": {}, )"
      R"("tflops_per_device": {}, "step_ms": {}, "enqueue_ms": {}, "memory_peak_bytes": {}, "skipped": {}, )"
      R"("skipped_steps": {})",
      metrics.iteration, metrics.consumed_samples, metrics.global_batch_size, number_or_null(metrics.lm_loss),
      hex(metrics.lm_loss), number_or_null(metrics.grad_norm), hex(metrics.grad_norm),
      number_or_null(metrics.learning_rate), number_or_null(metrics.tokens_per_second),
      number_or_null(metrics.tflops_per_device), number_or_null(metrics.step_ms), number_or_null(metrics.enqueue_ms),
      metrics.memory_peak_bytes, metrics.skipped, metrics.skipped_steps);
  if (metrics.load_balancing_loss) line += ", \"load_balancing_loss\": " + number_or_null(*metrics.load_balancing_loss);
  if (metrics.z_loss) line += ", \"z_loss\": " + number_or_null(*metrics.z_loss);
  if (metrics.validation_loss) line += ", \"validation_loss\": " + number_or_null(*metrics.validation_loss);
  if (metrics.checkpoint_stall_ms) line += ", \"checkpoint_stall_ms\": " + number_or_null(*metrics.checkpoint_stall_ms);
  if (!metrics.experts.empty()) line += ", \"experts\": " + experts_json(metrics.experts);
  if (metrics.expert_room) {
    line += fmt::format(R"(, "expert_room_used": {}, "expert_room_regrows": {})",
                        number_or_null(metrics.expert_room->used), metrics.expert_room->regrows);
  }
  if (metrics.offload) line += ", \"offload\": " + offload_json(*metrics.offload);
  if (!metrics.memory_bytes.empty()) {
    std::string items;
    for (const auto& [category, bytes] : metrics.memory_bytes) {
      items += fmt::format("{}{}: {}", items.empty() ? "" : ", ", escaped(category), bytes);
    }
    line += ", \"memory_bytes\": {" + items + "}";
  }
  if (!run.empty()) line.append(", \"run\": ").append(run);
  return line + "}";
}

std::string to_json_line(const EvaluationMetrics& metrics, std::string_view run) {
  std::string line =
      fmt::format(R"({{"iteration": {}, "evaluation": "validation", "consumed_samples": {}, "validation_loss": {})",
                  metrics.iteration, metrics.consumed_samples, number_or_null(metrics.validation_loss));
  if (!run.empty()) line.append(", \"run\": ").append(run);
  return line + "}";
}

std::string run_json(const Options& options) {
  std::string config;
  for (const ConfigEntry& entry : options.effective) {
    config += fmt::format("{}{}: {}", config.empty() ? "" : ", ", escaped(entry.name), entry.value);
  }
  return fmt::format(R"({{"megalith": {}, "commit": {}, "config": {{{}}}}})", escaped(program_version()),
                     escaped(program_commit()), config);
}

MetricsLog::MetricsLog(const std::string& path, const Options& options, std::int64_t resumed_step)
    : run_(run_json(options)), file_(open_log(path, options.train.skip_train, resumed_step), kFlag, kScope) {}

void MetricsLog::write(const StepMetrics& metrics) {
  file_.write(to_json_line(metrics, std::exchange(run_, "")) + "\n");
}

void MetricsLog::write(const EvaluationMetrics& metrics) {
  file_.write(to_json_line(metrics, std::exchange(run_, "")) + "\n");
}

}  // namespace megalith
