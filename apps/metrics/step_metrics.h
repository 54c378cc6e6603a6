// Measurements of a training step; metrics_schema.h gives the key, unit and outputs of each member.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "moe/expert_load.h"
#include "offload/stats.h"

namespace megalith {

// Bytes by name.
using NamedBytes = std::vector<std::pair<std::string, std::int64_t>>;

struct OffloadMetrics {
  OffloadStats sums;                   // over all ranks, without times
  std::vector<OffloadStats> stages{};  // of a step with timed copies: worst_of_stages (apps/summary)
};

struct StepMetrics {
  std::int64_t iteration = 0;
  std::int64_t train_iters = 0;
  std::int64_t consumed_samples = 0;
  std::int64_t global_batch_size = 0;
  float lm_loss = 0;
  float grad_norm = 0;
  double learning_rate = 0;
  double tokens_per_second = 0;
  double tflops_per_device = 0;
  double step_ms = 0;
  double enqueue_ms = 0;
  std::int64_t memory_peak_bytes = 0;
  bool skipped = false;
  std::int64_t skipped_steps = 0;
  std::optional<std::int64_t> skipped_samples{};  // of --iterations-to-skip
  std::optional<std::int64_t> num_zeros{};        // in the gradients
  std::optional<double> params_norm{};
  std::optional<float> load_balancing_loss{}, z_loss{};
  std::optional<std::int64_t> trained_tokens{};  // with masked samples, as the next two
  std::optional<double> fill{}, imbalance{};
  std::optional<double> validation_loss{};
  std::optional<double> checkpoint_stall_ms{};
  std::vector<ExpertLoad> experts{};
  std::optional<double> expert_room_used{};
  std::optional<std::int64_t> expert_room_regrows{};
  // With --timing-log-level in steps with a log line, as means over ranks.
  std::optional<double> compute_ms{}, communication_ms{}, copies_ms{}, host_ms{};
  std::optional<double> forward_ms{}, backward_ms{}, optimizer_ms{};
  std::optional<OffloadMetrics> offload{};
  NamedBytes memory_bytes{};
};

}  // namespace megalith
