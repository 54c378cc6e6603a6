// Log, metrics, traces and profiles.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace megalith {

struct LoggingOptions {
  std::int64_t log_interval = 100;  // steps
  bool log_throughput = false;
  double peak_tflops = 0;  // of a device, for the MFU; 0: by its name
  std::string metrics_jsonl;
  std::string tensorboard_dir;
  std::int64_t tensorboard_log_interval = 1;  // steps
  std::string trace;                          // file; its window of steps is the profiler's
  bool profile = false;                       // CUDA only
  std::int64_t profile_step_start = 10;       // steps [start, end) are recorded
  std::int64_t profile_step_end = 12;
  std::vector<std::string> profile_ranks;  // empty: rank 0 by the profiler, all by --trace
  bool print_actions = false;              // in place of training or forecasting
};

}  // namespace megalith
