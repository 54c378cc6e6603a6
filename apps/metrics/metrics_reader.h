// Reads what apps/metrics/metrics.h writes, out of a file that may come from anywhere: at most 2 GiB, 2^22 steps, lines
// of 1 MiB, counts of 2^48, and the limits of strict_json.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace megalith {

inline constexpr std::size_t kMaxMetricsLineBytes = std::size_t{1} << 20;

// Of one layer in a step, as ExpertLoad (moe/expert_load.h) has it.
struct LayerLoad {
  std::int32_t layer = 0;
  float min_over_mean = 1, max_over_mean = 1;
  float entropy = 1;
};

// Of activations on the host in a step, as StepMetrics::Offload (apps/metrics/metrics.h) has it: bytes of all ranks,
// and milliseconds of the slowest stage where they were measured.
struct OffloadRecord {
  double bytes_out = 0, bytes_back = 0, host_bytes = 0, saving_bytes = 0, saved_bytes = 0;
  std::optional<double> copy_out_ms = {}, copy_back_ms = {}, wait_ms = {};
  struct Stage {
    double saving_bytes = 0, saved_bytes = 0;
    std::optional<double> saved_driver_bytes = {};
  };
  std::vector<Stage> stages = {};  // likewise
};

struct MetricsRecord {
  std::int64_t iteration = 0;
  std::int64_t consumed_samples = 0;
  std::optional<double> lm_loss;  // none: not finite
  std::optional<double> grad_norm;
  std::optional<double> validation_loss;
  std::optional<double> load_balancing_loss, z_loss;  // of routers
  double learning_rate = 0;
  double tokens_per_second = 0;
  double tflops_per_device = 0;
  double step_ms = 0;
  std::int64_t memory_peak_bytes = 0;
  bool skipped = false;
  std::vector<LayerLoad> experts = {};  // of each layer of experts
  std::int64_t dropped_rows = 0;        // of all of them
  // Where ranks share them out: tokens sent to other ranks, of all layers; the share of the room that was used, and
  // how often it was enlarged.
  std::optional<double> rows_sent, room_used;
  std::optional<double> room_regrows = {};  // so far
  std::optional<OffloadRecord> offload = {};
};

struct MetricsRun {
  std::string path;
  std::string version;  // empty where the file does not say
  std::string commit;
  std::vector<std::pair<std::string, std::string>> config;         // flag and value of the newest "run", by name
  std::vector<std::pair<std::string, std::int64_t>> memory_bytes;  // by category, of the last step
  std::vector<MetricsRecord> records;                              // by ascending iteration
};

// Fails with kFileIo, or with kFormat naming FILE:LINE. A last line without an end that is no JSON, as a killed run
// leaves it, is left out with a warning.
MetricsRun read_metrics(const std::string& path);

// The step of a metrics line of at most kMaxMetricsLineBytes; none where it is not one.
std::optional<std::int64_t> iteration_of(std::string_view line);

}  // namespace megalith
