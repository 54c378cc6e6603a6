#include "apps/config/run_length.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/config/training_options.h"
#include "core/base/error.h"
#include "core/checkpoint/train_state.h"

namespace megalith {

namespace {

[[noreturn]] void refuse_length(const char* flags, const std::string& got) {
  refuse_usage(flags, {.expected = fmt::format("at most {} samples in the run", kMaxSamples),
                       .got = got,
                       .remedy = "lower one of them"});
}

}  // namespace

RunEnd end_of_run(const TrainingOptions& train, const RunProgress& done) {
  RunEnd end{.at = done};
  if (train.train_samples == 0) {
    end.at.samples = samples_to_train(train, done);
    end.at.steps = std::max(train.train_iters, done.steps);
    return end;
  }
  for (;;) {
    const std::int64_t batch = batch_after(train, end.at.samples);
    const std::int64_t whole = (train.train_samples - end.at.samples) / batch;
    if (whole <= 0) break;
    const std::int64_t steps = std::min(whole, steps_of_stage(train, end.at.samples, batch));
    end.at.steps += steps;
    end.at.samples += steps * batch;
  }
  end.left_over = std::max<std::int64_t>(train.train_samples - end.at.samples, 0);
  return end;
}

std::int64_t samples_to_train(const TrainingOptions& train, const RunProgress& start) {
  if (train.train_samples > 0) return std::max(train.train_samples, start.samples);
  const std::int64_t steps = std::max<std::int64_t>(train.train_iters - start.steps, 0);
  std::int64_t left = 0, all = 0;
  if (__builtin_mul_overflow(steps, train.global_batch_size, &left) ||
      __builtin_add_overflow(start.samples, left, &all) || all > kMaxSamples)
    refuse_length("--train-iters and --global-batch-size", fmt::format("{} x {}", steps, train.global_batch_size));
  return all;
}

std::int64_t samples_to_evaluate(const TrainingOptions& train) {
  const std::int64_t evaluations = train.eval_interval > 0 ? train.train_iters / train.eval_interval + 1 : 1;
  std::int64_t each = 0, all = 0;
  if (__builtin_mul_overflow(train.eval_iters, train.global_batch_size, &each) ||
      __builtin_mul_overflow(evaluations, each, &all) || all > kMaxSamples)
    refuse_length("--eval-iters and --global-batch-size",
                  fmt::format("{} evaluations x {} x {}", evaluations, train.eval_iters, train.global_batch_size));
  return all;
}

}  // namespace megalith
