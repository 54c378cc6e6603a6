// Log, metrics, traces and profiles.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace megalith {

enum class LogFormat { kShort, kMegatron };

struct LoggingOptions {
  std::int64_t log_interval = 100;  // steps
  LogFormat log_format = LogFormat::kShort;
  bool log_throughput = false;
  bool log_params_norm = false;
  bool log_num_zeros_in_grad = false;
  std::int64_t timing_log_level = 0;
  double peak_tflops = 0;  // of a device, for MFU; 0: from its name
  std::string metrics_jsonl;
  std::string tensorboard_dir;
  std::int64_t tensorboard_log_interval = 1;  // steps; also of wandb_project
  std::string wandb_project;
  std::string wandb_exp_name;
  std::string wandb_save_dir;
  std::string wandb_entity;
  std::string trace;                     // file; records the steps of the profiler
  bool profile = false;                  // CUDA only
  std::int64_t profile_step_start = 10;  // records steps [start, end)
  std::int64_t profile_step_end = 12;
  std::vector<std::string> profile_ranks;  // empty: rank 0 with the profiler, all ranks with --trace
  bool print_actions = false;              // instead of training or forecasting
};

}  // namespace megalith
