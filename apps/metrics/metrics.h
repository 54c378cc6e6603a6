// What a run says about itself: Megatron's log line and a progress bar for people, one JSON object per step for
// programs. Rank 0 only.
// A line of --metrics-jsonl has the keys of metrics_schema.h (docs/metrics.md). The first line of a run (and of a
// resumed run) also has "run": {"megalith": VERSION, "commit": COMMIT, "config": {FLAG: VALUE}}. A run with
// --skip-train writes one line: "evaluation": "validation" with iteration, consumed_samples, validation_loss and "run".
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

// Of a run with --skip-train.
struct EvaluationMetrics {
  std::int64_t iteration = 0;  // that the weights were trained for
  std::int64_t consumed_samples = 0;
  double validation_loss = 0;
};

// One line without its end. `run` is empty or the JSON object of the key "run".
std::string to_json_line(const StepMetrics& metrics, std::string_view run = {});
std::string to_json_line(const EvaluationMetrics& metrics, std::string_view run = {});

// The JSON object of the key "run".
std::string run_json(const Options& options);

// Appends to --metrics-jsonl. First removes lines after `resumed_step` and a torn last line, so that the file keeps one
// object per step; a run from step 0 moves an existing file to FILE.1 (2, 3, ...), one with --skip-train keeps all
// steps. Opening fails with kFileIo, or kFormat for a file of something else; failed writes are retried with each line.
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

// The denominator of the model FLOPs utilization (MFU), in TFLOP/s: --peak-tflops; without it, and with --bf16, that of
// the device (core/base/machine/peak_tflops.h); 0: not known.
double peak_tflops_of(const Options& options, std::string_view device);

// What one log line shows.
struct LogLine {
  std::int64_t iteration = 0;
  std::int64_t train_iters = 0;
  std::vector<std::optional<double>> values;  // by row of step_schema(); none: not shown
  std::optional<ExpertLoad> worst_load{};     // of the last step, of the layer that is furthest from balance
  int ranks = 1;
  std::optional<double> mfu{};  // share of what the devices can do at most
  double seconds_left = 0;      // of the run
};
// The line of one step.
LogLine log_line_of(const StepMetrics& metrics);
// " [time] iteration 12/ 100 | consumed samples: 384 | ... |"
std::string format_log_line(const LogLine& line, std::string_view time);

// "[=====>    ]  12/100 | loss 5.123 | 1.2 k tokens/s | 1:23 left"
std::string format_progress(const StepMetrics& metrics, double seconds_left);

// Prints the log line to standard output at the first step, at every --log-interval and at the last step; where
// standard error is a terminal, a progress bar there.
class StepLog {
 public:
  struct Run {
    int ranks = 1;
    double peak_tflops = 0;  // of a device; 0: not known
  };
  StepLog(const LoggingOptions& logging, const Run& run);
  ~StepLog();  // ends the progress bar's line
  StepLog(const StepLog&) = delete;
  StepLog& operator=(const StepLog&) = delete;

  void step(const StepMetrics& metrics);
  void evaluation(std::string_view split, std::int64_t iteration, double loss);

 private:
  // Steps since the last line, by row of step_schema(): a value is sum / weight.
  struct Field {
    double sum = 0, weight = 0;
  };

  void add(const StepMetrics& metrics);
  LogLine line_of_window(const StepMetrics& last) const;
  void estimate(const StepMetrics& metrics);  // the time that is left after this step
  void print(const std::string& line);
  void draw(const StepMetrics& metrics);
  void erase();

  LoggingOptions logging_;
  Run run_;
  std::vector<Field> window_;
  bool is_first_ = true;
  bool is_terminal_;
  bool is_drawn_ = false;
  struct {
    std::int64_t iteration = 0;
    std::chrono::steady_clock::time_point end{};
  } first_;  // step of this process
  double seconds_left_ = 0;
  std::chrono::steady_clock::time_point last_drawn_{};
};

}  // namespace megalith
