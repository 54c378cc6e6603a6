#include "apps/metrics.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "apps/flags_binding.h"
#include "apps/metrics_reader.h"
#include "apps/version.h"
#include "core/base/error.h"
#include "core/base/log.h"

namespace megalith {

namespace {

[[noreturn]] void fail_io(const std::string& path, const std::string& what) {
  fail({.code = ExitCode::kFileIo, .subject = "--metrics-jsonl " + path + ": " + what, .show_place = false});
}

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

// Moves an earlier run's file to the first free PATH.N.
void move_away(const std::string& path) {
  for (int n = 1;; ++n) {
    const std::string target = fmt::format("{}.{}", path, n);
    if (std::filesystem::exists(target)) continue;
    std::error_code error;
    std::filesystem::rename(path, target, error);
    if (error) fail_io(path, "cannot be moved to " + target + ": " + error.message());
    log_info("the metrics of an earlier run were moved to " + target);
    return;
  }
}

// Rewrites the file without the lines after `last_step`; through a second file, so that a crash loses nothing.
void keep_until(const std::string& path, std::int64_t last_step) {
  std::ifstream in(path, std::ios::binary);
  if (!in) fail_io(path, std::strerror(errno));
  const std::string temporary = path + ".tmp";
  std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
  std::string line;
  std::int64_t number = 0;
  while (std::getline(in, line)) {
    ++number;
    const bool is_torn = in.eof();  // no line end
    const std::optional<std::int64_t> iteration = iteration_of(line);
    if (!iteration && !is_torn) {
      std::filesystem::remove(temporary);
      fail({.code = ExitCode::kFormat,
            .subject = fmt::format("{}:{}", path, number),
            .expected = "a line of --metrics-jsonl",
            .got = escaped_short(line),
            .remedy = "the file was left as it is; name another one",
            .show_place = false});
    }
    if (!is_torn && *iteration <= last_step) out << line << '\n';
  }
  out.close();
  std::error_code error;
  if (in.bad() || !out) fail_io(path, "cannot be copied");
  std::filesystem::rename(temporary, path, error);
  if (error) fail_io(path, error.message());
}

}  // namespace

std::string to_json_line(const StepMetrics& metrics, std::string_view run) {
  std::string line = fmt::format(
      R"({{"iteration": {}, "consumed_samples": {}, "global_batch_size": {}, "lm_loss": {}, "lm_loss_hex": {}, )"
      R"("grad_norm": {}, "grad_norm_hex": {}, "learning_rate": {}, "tokens_per_second": {}, )"
      R"("tflops_per_device": {}, "step_ms": {}, "enqueue_ms": {}, "memory_peak_bytes": {}, "skipped": {}, "skipped_steps": {})",
      metrics.iteration, metrics.consumed_samples, metrics.global_batch_size, number_or_null(metrics.lm_loss),
      hex(metrics.lm_loss), number_or_null(metrics.grad_norm), hex(metrics.grad_norm),
      number_or_null(metrics.learning_rate), number_or_null(metrics.tokens_per_second),
      number_or_null(metrics.tflops_per_device), number_or_null(metrics.step_ms), number_or_null(metrics.enqueue_ms),
      metrics.memory_peak_bytes, metrics.skipped, metrics.skipped_steps);
  if (metrics.validation_loss) line += ", \"validation_loss\": " + number_or_null(*metrics.validation_loss);
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

std::string run_json(const Options& options) {
  std::string config;
  for (const ConfigEntry& entry : options.effective) {
    config += fmt::format("{}{}: {}", config.empty() ? "" : ", ", escaped(entry.name), entry.value);
  }
  return fmt::format(R"({{"megalith": {}, "commit": {}, "config": {{{}}}}})", escaped(program_version()),
                     escaped(program_commit()), config);
}

MetricsLog::MetricsLog(const std::string& path, const Options& options, std::int64_t resumed_step)
    : path_(path), run_(run_json(options)) {
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (!error && size > 0 && resumed_step == 0) move_away(path);
  if (!error && size > 0 && resumed_step > 0) keep_until(path, resumed_step);
  file_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (file_ < 0) fail_io(path, std::strerror(errno));
}

MetricsLog::~MetricsLog() {
  if (file_ >= 0) ::close(file_);
}

void MetricsLog::write(const StepMetrics& metrics) {
  if (file_ < 0) return;
  const std::string line = to_json_line(metrics, run_) + "\n";
  run_.clear();
  for (std::size_t done = 0; done < line.size();) {
    const ssize_t count = ::write(file_, line.data() + done, line.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      log_warning(fmt::format("--metrics-jsonl {}: {}; no more metrics are written", path_, std::strerror(errno)));
      ::close(file_);
      file_ = -1;
      return;
    }
    done += static_cast<std::size_t>(count);
  }
}

}  // namespace megalith
