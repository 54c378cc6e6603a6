#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>

#include "apps/config/logging_options.h"
#include "apps/metrics/metrics.h"
#include "apps/metrics/metrics_schema.h"
#include "core/base/log.h"
#include "core/base/machine/peak_tflops.h"
#include "core/base/text/progress_bar.h"
#include "core/base/text/units.h"

namespace megalith {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kBarWidth = 30;
constexpr auto kRedrawEvery = std::chrono::milliseconds(100);

// Local time in full, or of the day.
std::string local_time(LogFormat format) {
  const std::tm now = fmt::localtime(std::time(nullptr));
  return format == LogFormat::kShort ? fmt::format("{:%H:%M:%S}", now) : fmt::format("{:%Y-%m-%d %H:%M:%S}", now);
}

std::string expert_text(const ExpertLoad& load) {
  std::string out = fmt::format(" expert load max/mean: {:.2f}, min/mean: {:.2f}, entropy: {:.3f}",
                                load.max_over_mean(), load.min_over_mean(), load.entropy);
  if (load.rank_max_over_mean) out += fmt::format(", by rank max/mean: {:.2f}", *load.rank_max_over_mean);
  return out + fmt::format(" (layer {}) |", load.layer);
}

std::size_t index_of(std::string_view key) {
  const std::span<const Metric<StepMetrics>> schema = step_schema();
  return static_cast<std::size_t>(std::ranges::find(schema, key, &Metric<StepMetrics>::key) - schema.begin());
}

}  // namespace

double peak_tflops_of(const Options& options, std::string_view device) {
  if (options.logging.peak_tflops > 0) return options.logging.peak_tflops;
  return options.params_dtype() == DType::kBf16 ? bf16_peak_tflops(device) : 0;
}

std::string format_log_line(const LogLine& line, std::string_view time) {
  std::string out = fmt::format(" [{}] iteration {}/ {} |", time, line.iteration, line.train_iters);
  for (const Metric<StepMetrics>* const row : in_order(step_schema(), &MetricTraits::log)) {
    if (row->key == "experts" && line.worst_load) out += expert_text(*line.worst_load);
    const LogField& field = row->traits.log;
    const std::optional<double> value = line.values.at(static_cast<std::size_t>(row - step_schema().data()));
    if (value && field.show != nullptr) out += fmt::format(" {}: {} |", field.name, field.show(*value));
  }
  // Fields beyond Megatron's line come last.
  if (const std::optional<double> tokens = line.values.at(index_of("tokens_per_second")); tokens && line.ranks > 1)
    out += fmt::format(" tokens/s/{}: {} |", line.device, token_rate(*tokens / line.ranks));
  if (line.mfu) out += fmt::format(" MFU: {:.1f}% |", 100 * *line.mfu);
  out += fmt::format(" ETA: {} |", duration(line.seconds_left));
  return out;
}

std::string format_short_line(const LogLine& line, std::string_view time) {
  constexpr std::size_t kColumns = 120;
  const std::string end = fmt::format("  {} left", duration(line.seconds_left));
  std::string out = fmt::format("{} step {}/{}", time, line.iteration, line.train_iters);
  const auto add = [&](const std::string& field) {
    if (!field.empty() && out.size() + 2 + field.size() + end.size() <= kColumns) out += "  " + field;
  };
  const auto value_of = [&](const Metric<StepMetrics>& row) {
    return line.values.at(static_cast<std::size_t>(&row - step_schema().data()));
  };
  for (const Metric<StepMetrics>* const row : in_order(step_schema(), &MetricTraits::brief)) {
    const ShortField& field = row->traits.brief;
    std::string value;
    if (row->key == "experts" && line.worst_load) value = fmt::format("{:.2f}", line.worst_load->max_over_mean());
    if (const std::optional<double> number = value_of(*row); number && field.show != nullptr)
      value = field.show(*number);
    if (!value.empty()) add(fmt::format(fmt::runtime(field.name), value));
  }
  if (const std::optional<double> tokens = line.values.at(index_of("tokens_per_second")))
    add(fmt::format("{} tok/s/{}", token_rate(*tokens / line.ranks), line.device));
  if (line.mfu) add(fmt::format("MFU {:.1f}%", 100 * *line.mfu));
  if (const std::optional<double> tflops = line.values.at(index_of("tflops_per_device")))
    add(fmt::format("{:.{}f} TFLOP/s", *tflops, *tflops < 10 ? 3 : 0));
  return out + end;
}

LogLine log_line_of(const StepMetrics& metrics) {
  LogLine line{.iteration = metrics.iteration, .train_iters = metrics.train_iters, .values = {}};
  for (const Metric<StepMetrics>& row : step_schema()) line.values.push_back(number_of(row, metrics));
  if (const ExpertLoad* const worst = worst_load(metrics.experts)) line.worst_load = *worst;
  return line;
}

std::string format_progress(const StepMetrics& metrics, double seconds_left) {
  const double steps = static_cast<double>(metrics.train_iters);
  const double share = steps > 0 ? static_cast<double>(metrics.iteration) / steps : 1.0;
  const std::string total = fmt::format("{}", metrics.train_iters);
  return fmt::format("{} {:>{}}/{} | loss {:.3f} | {} tokens/s | {} left", progress_bar(share, kBarWidth),
                     metrics.iteration, total.size(), total, metrics.lm_loss, with_unit(metrics.tokens_per_second),
                     duration(seconds_left));
}

StepLog::StepLog(const LoggingOptions& logging, const TrainingRun& run)
    : logging_(logging), run_(run), is_terminal_(isatty(STDERR_FILENO) == 1) {}

StepLog::~StepLog() { end_status(); }

void StepLog::step(const StepMetrics& metrics) {
  add(metrics);
  estimate(metrics);
  if (is_first_ || metrics.iteration % logging_.log_interval == 0 || metrics.iteration == metrics.train_iters) {
    const LogLine line = line_of_window(metrics);
    const std::string time = local_time(logging_.log_format);
    print(logging_.log_format == LogFormat::kShort ? format_short_line(line, time) : format_log_line(line, time));
    window_.clear();
  }
  is_first_ = false;
  if (is_terminal_) draw(metrics);
}

void StepLog::add(const StepMetrics& metrics) {
  const std::span<const Metric<StepMetrics>> schema = step_schema();
  window_.resize(schema.size());
  for (std::size_t i = 0; i < schema.size(); ++i) {
    const Over over = schema[i].traits.log.over;
    const double value = number_of(schema[i], metrics).value_or(0);
    if (over == Over::kLast || !std::isfinite(value)) continue;
    const double weight = over == Over::kMeanOverTime ? metrics.step_ms : 1;
    window_[i].sum += value * weight;
    window_[i].weight += weight;
  }
}

LogLine StepLog::line_of_window(const StepMetrics& last) const {
  LogLine line = log_line_of(last);
  const std::span<const Metric<StepMetrics>> schema = step_schema();
  for (std::size_t i = 0; i < schema.size(); ++i) {
    const auto& [sum, weight] = window_[i];
    if (schema[i].traits.log.over == Over::kSum) line.values[i] = sum;
    if (schema[i].traits.log.over == Over::kMean || schema[i].traits.log.over == Over::kMeanOverTime)
      line.values[i] = weight > 0 ? sum / weight : std::nan("");
  }
  std::optional<double>& tflops = line.values.at(index_of("tflops_per_device"));
  if (run_.peak_tflops > 0) line.mfu = tflops.value_or(0) / run_.peak_tflops;
  if (!logging_.log_throughput && logging_.log_format == LogFormat::kMegatron) tflops.reset();
  line.ranks = run_.ranks;
  line.device = run_.on_cpu ? "CPU" : "GPU";
  line.seconds_left = seconds_left_;
  return line;
}

// Estimates from the time since the first step, which includes evaluations and saves between steps.
void StepLog::estimate(const StepMetrics& metrics) {
  if (is_first_) first_ = {metrics.iteration, Clock::now()};
  const std::int64_t steps = metrics.iteration - first_.iteration;
  const double seconds =
      steps > 0 ? std::chrono::duration<double>(Clock::now() - first_.end).count() / static_cast<double>(steps)
                : metrics.step_ms * 1e-3;
  seconds_left_ = static_cast<double>(metrics.train_iters - metrics.iteration) * seconds;
}

void StepLog::evaluation(std::string_view split, std::int64_t iteration, double loss) {
  const double perplexity = std::exp(loss);
  print(logging_.log_format == LogFormat::kShort
            ? fmt::format("{} step {}  {} loss {:.4f}  perplexity {:.4g}", local_time(LogFormat::kShort), iteration,
                          split, loss, perplexity)
            : fmt::format(" {} loss at iteration {} | lm loss value: {} | lm loss PPL: {} |", split, iteration,
                          scientific(loss), scientific(perplexity)));
}

void StepLog::print(const std::string& line) {
  erase_status();
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);
}

void StepLog::draw(const StepMetrics& metrics) {
  const Clock::time_point now = Clock::now();
  if (now - last_drawn_ < kRedrawEvery && metrics.iteration < metrics.train_iters) return;
  last_drawn_ = now;
  show_status(format_progress(metrics, seconds_left_));
}

}  // namespace megalith
