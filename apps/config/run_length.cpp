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
  if (train.train_samples == 0 && train.grows()) {
    while (end.at.steps < train.train_iters) {
      const std::int64_t batch = batch_after(train, end.at.samples), left = train.train_iters - end.at.steps;
      const std::int64_t steps = std::min(left, steps_of_stage(train, end.at.samples, batch));
      if (steps > (kMaxSamples - end.at.samples) / batch)
        refuse_length("--train-iters and --step-batch-size-schedule", fmt::format("{} steps of {}", steps, batch));
      end.at.steps += steps;
      end.at.samples += steps * batch;
    }
    return end;
  }
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

RunProgress pass_skipped(const TrainingOptions& train, RunProgress done) {
  const auto is_skipped = [&](std::int64_t step) {
    return std::ranges::find(train.iterations_to_skip, step) != train.iterations_to_skip.end();
  };
  while (done.steps < train.train_iters && is_skipped(done.steps + 1)) {
    const std::int64_t batch = batch_after(train, done.samples);
    ++done.steps;
    ++done.passed_steps;
    done.samples += batch;
    done.passed_samples += batch;
  }
  return done;
}

std::int64_t samples_to_train(const TrainingOptions& train, const RunProgress& start) {
  if (train.train_samples > 0) return std::max(train.train_samples, start.samples);
  if (train.grows()) return end_of_run(train, start).at.samples;
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
