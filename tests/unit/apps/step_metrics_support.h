// Metrics of a step, for tests.
#pragma once

#include <cstdint>

#include "apps/metrics/metrics.h"

namespace megalith::test {

inline StepMetrics step_metrics(std::int64_t iteration, std::int64_t train_iters = 100) {
  return {.iteration = iteration,
          .train_iters = train_iters,
          .consumed_samples = 32 * iteration,
          .global_batch_size = 32,
          .lm_loss = 5.5f,
          .grad_norm = 0.1f,
          .learning_rate = 3e-4,
          .tokens_per_second = 1234.5,
          .tflops_per_device = 0.25,
          .step_ms = 12.5,
          .enqueue_ms = 0.5,
          .memory_peak_bytes = 4096};
}

}  // namespace megalith::test
