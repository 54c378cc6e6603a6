// What a run says about itself: Megatron's log line and a progress bar for people, one JSON object per step for
// programs. Rank 0 only.
//
// A line of --metrics-jsonl has the keys of StepMetrics. lm_loss and grad_norm come twice, as a decimal number (null
// where it is not finite) and as C99 %a of the fp32 value ("nan", "inf", "-inf"), so that runs can be compared bit for
// bit. `load_balancing_loss`, `z_loss`, `validation_loss` and `checkpoint_stall_ms` are present where they were
// measured. "experts" has what ExpertLoad (moe/expert_load.h) has, an array a field with an entry for each layer of
// experts: {"layer": [1, 2], "min": [90, 88], "max": ..., "mean", "entropy", "dropped"} and, where there are such
// losses, "load_balancing_loss" and "z_loss"; where ranks share out experts also "rank_max_over_mean" and "rows_sent",
// and beside "experts" what ExpertRoomUse has: "expert_room_used" and "expert_room_regrows". With activations on the
// host there is "offload":
// {"slots", "bytes_out", "bytes_back", "host_bytes", "saving_bytes", "saved_bytes"}, sums over all ranks: slots, what
// copies moved in the step, memory of hosts, and what moving saves of devices at best and by the planned blocks.
// Steps whose copies are timed (Trainer::times_copies) add "saved_driver_bytes", where the free memory of all GPUs
// tells it, and "stages", of the rank in each stage that waited the longest: [{"slots", "bytes_out", "bytes_back",
// "copy_out_ms", "copy_back_ms", "wait_out_ms", "wait_back_ms", "step_ms", "saving_bytes", "saved_bytes"}, ...], with
// "saved_driver_bytes" where the driver tells it; waits are of the compute stream, and what is saved is of the rank
// that saves the least of what it could. The first line of a run (and of a resumed run) also has "run": {"megalith":
// VERSION, "commit": COMMIT, "config": {FLAG: VALUE}}. A run with --skip-train writes one line: "evaluation":
// "validation" with iteration, consumed_samples, validation_loss and "run".
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/config/logging_options.h"
#include "apps/config/options.h"
#include "apps/metrics/append_log.h"
#include "moe/expert_load.h"

namespace megalith {

struct StepMetrics {
  std::int64_t iteration = 0;  // completed steps, this one included
  std::int64_t train_iters = 0;
  std::int64_t consumed_samples = 0;
  std::int64_t global_batch_size = 0;
  float lm_loss = 0;                                     // nats per token, mean over the global batch
  std::optional<float> load_balancing_loss{}, z_loss{};  // as StepResult has them (apps/run/step.h)
  float grad_norm = 0;                                   // global L2, before clipping
  double learning_rate = 0;
  double tokens_per_second = 0;  // all ranks
  double tflops_per_device = 0;  // by flops_per_token()
  double step_ms = 0;
  double enqueue_ms = 0;                    // the host's part of it; on a GPU it waits beyond 1,024 launches
  std::int64_t memory_peak_bytes = 0;       // of this rank
  std::optional<double> validation_loss{};  // measured after this step
  bool skipped = false;                     // NaN or Inf: nothing was updated
  std::int64_t skipped_steps = 0;           // in the whole run
  std::vector<std::pair<std::string, std::int64_t>> memory_bytes{};  // by category, of this rank
  std::optional<double> checkpoint_stall_ms{};  // that saving before this step held up the run's thread
  std::vector<ExpertLoad> experts{};            // of each layer of experts
  std::optional<ExpertRoomUse> expert_room{};   // where ranks share them out
  struct Offload {
    std::int64_t slots = 0;
    std::int64_t bytes_out = 0, bytes_back = 0;      // of all ranks' copies in the step, as the others
    std::int64_t host_bytes = 0;                     // pinned for them
    std::int64_t saving_bytes = 0, saved_bytes = 0;  // of devices: at best, and of the planned blocks
    std::optional<std::int64_t> saved_driver_bytes{};
    struct Stage {
      std::int64_t slots = 0, bytes_out = 0, bytes_back = 0;
      double copy_out_ms = 0, copy_back_ms = 0, wait_out_ms = 0, wait_back_ms = 0, step_ms = 0;
      std::int64_t saving_bytes = 0, saved_bytes = 0;
      std::optional<std::int64_t> saved_driver_bytes{};
    };
    std::vector<Stage> stages{};                 // of a step whose copies were timed (worst_of_stages)
    double most_ms(double Stage::*time) const {  // of any stage
      double most = 0;
      for (const Stage& stage : stages) most = std::max(most, stage.*time);
      return most;
    }
  };
  std::optional<Offload> offload{};  // of kept activations, where any move
};

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

// "512", "12.3 k", "4.56 M", "1.24 B", "3.00 T"
std::string with_unit(double value);
// "45s", "1m 23s", "2h 03m", "3d 04h"
std::string duration(double seconds);

// What a device can compute at most, the denominator of the model FLOPs utilisation (MFU), in TFLOP/s; 0: not known.
// In bf16 on tensor cores without sparsity, as NVIDIA's data sheets have it, by the name that the driver reports:
double bf16_peak_tflops(std::string_view device);
// --peak-tflops; without it, and with --bf16, that of the device.
double peak_tflops_of(const Options& options, std::string_view device);

// The numbers of one log line: loss and time are means over the steps since the last line.
struct LogLine {
  std::int64_t iteration = 0;
  std::int64_t train_iters = 0;
  std::int64_t consumed_samples = 0;
  double step_ms = 0;
  std::optional<double> tflops_per_device{};
  double learning_rate = 0;
  std::int64_t global_batch_size = 0;
  double lm_loss = 0;
  std::optional<double> load_balancing_loss{}, z_loss{};  // of the last step
  std::optional<ExpertLoad> worst_load{};                 // likewise, of the layer that is furthest from balance
  std::int64_t dropped_rows = 0;                          // likewise, of all layers
  double grad_norm = 0;
  std::int64_t skipped_iterations = 0;
  std::int64_t nan_iterations = 0;
  double tokens_per_second = 0;  // all ranks
  int ranks = 1;
  std::optional<double> mfu{};  // share of what the devices can do at most
  double seconds_left = 0;      // of the run
};
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
  struct Window {  // steps since the last line
    std::int64_t steps = 0;
    std::int64_t skipped = 0;
    std::int64_t nan = 0;
    std::int64_t losses = 0;
    double loss_sum = 0;
    double ms_sum = 0;
    double tflop_sum = 0;  // TFLOP/s x ms, and tokens/s x ms
    double token_sum = 0;
  };

  void estimate(const StepMetrics& metrics);  // the time that is left after this step
  void print(const std::string& line);
  void draw(const StepMetrics& metrics);
  void erase();

  LoggingOptions logging_;
  Run run_;
  Window window_;
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
