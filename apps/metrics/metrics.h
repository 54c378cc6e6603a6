// Output of a run on rank 0: log lines and a progress bar for people, one JSON object per step for programs.
// A line of --metrics-jsonl has the keys of metrics_schema.h (docs/metrics.md). The first line of a run, and of a
// resumed run, also has "run": {"megalith": VERSION, "commit": COMMIT, "config": {FLAG: VALUE}}. A run with
// --skip-train writes one line: "evaluation": "validation" with iteration, consumed_samples, validation_loss and "run".
// An evaluation of test data at the end writes the same with "test" and test_loss.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/config/logging_options.h"
#include "apps/config/options.h"
#include "apps/metrics/step_metrics.h"
#include "core/reports/append_log.h"

namespace megalith {

// Metrics of a run with --skip-train, and of test data.
struct EvaluationMetrics {
  std::string_view split = "validation";  // or "test"
  std::int64_t iteration = 0;             // steps that trained the weights
  std::int64_t consumed_samples = 0;
  double loss = 0;
};

// Line without its newline. `run` is empty or the JSON object of the key "run".
std::string to_json_line(const StepMetrics& metrics, std::string_view run = {});
std::string to_json_line(const EvaluationMetrics& metrics, std::string_view run = {});

// JSON object of the key "run".
std::string run_json(const Options& options);

// Writer of --metrics-jsonl. It first removes lines after `resumed_step` and a torn last line, so that the file keeps
// one object per step. A run from step 0 moves an existing file to FILE.1 (2, 3, ...); a run with --skip-train keeps
// all steps. Opening fails with kFileIo, or with kFormat for a foreign file. Failed writes are retried with each line.
class MetricsLog {
 public:
  MetricsLog(const std::string& path, const Options& options, std::int64_t resumed_step);
  MetricsLog(const MetricsLog&) = delete;
  MetricsLog& operator=(const MetricsLog&) = delete;

  void write(const StepMetrics& metrics);
  void write(const EvaluationMetrics& metrics);

 private:
  std::string run_;  // for the next line; then empty
  AppendLog file_;
};

// Peak TFLOP/s for the model FLOPs utilization (MFU): --peak-tflops; without it, and with --bf16, the device's peak
// (core/base/machine/peak_tflops.h); 0: unknown.
double peak_tflops_of(const Options& options, std::string_view device);

// Content of a log line.
struct LogLine {
  std::int64_t iteration = 0;
  std::int64_t train_iters = 0;
  std::vector<std::optional<double>> values;  // by row of step_schema(); none: not shown
  std::optional<ExpertLoad> worst_load{};     // of the last step, of the least balanced layer
  int ranks = 1;
  std::string_view device = "GPU";  // of a rank
  std::optional<double> mfu{};      // fraction of the devices' peak rate
  double seconds_left = 0;          // until the end of the run
};
// Log line of one step.
LogLine log_line_of(const StepMetrics& metrics);
// Megatron-LM's text, such as " [time] iteration 12/ 100 | consumed samples: 384 | ... |".
std::string format_log_line(const LogLine& line, std::string_view time);
// Text such as "12:00:00 step 12/100  loss 5.1235 ... 1h 23m left"; fields beyond 120 columns are left out.
std::string format_short_line(const LogLine& line, std::string_view time);

// Text such as "[=====>    ]  12/100 | loss 5.123 | 1.2 k tokens/s | 1:23 left".
std::string format_progress(const StepMetrics& metrics, double seconds_left);

// Printer of log lines to standard output: at the first step, at every --log-interval and at the last step. If standard
// error is a terminal, a progress bar is shown there.
class StepLog {
 public:
  struct TrainingRun {
    int ranks = 1;
    double peak_tflops = 0;  // of a device; 0: unknown
    bool on_cpu = false;
  };
  StepLog(const LoggingOptions& logging, const TrainingRun& run);
  ~StepLog();  // ends the line of the progress bar
  StepLog(const StepLog&) = delete;
  StepLog& operator=(const StepLog&) = delete;

  void step(const StepMetrics& metrics);
  void evaluation(std::string_view split, std::int64_t iteration, double loss);

 private:
  // Sums of the steps since the last line, by row of step_schema(); the value is sum / weight.
  struct Field {
    double sum = 0, weight = 0;
  };

  void add(const StepMetrics& metrics);
  LogLine line_of_window(const StepMetrics& last) const;
  void estimate(const StepMetrics& metrics);  // remaining time after this step
  static void print(const std::string& line);
  void draw(const StepMetrics& metrics);

  LoggingOptions logging_;
  TrainingRun run_;
  std::vector<Field> window_;
  bool is_first_ = true;
  bool is_terminal_;
  struct {
    std::int64_t iteration = 0;
    std::chrono::steady_clock::time_point end{};
  } first_;  // first step of this process
  double seconds_left_ = 0;
  std::chrono::steady_clock::time_point last_drawn_{};
};

}  // namespace megalith
