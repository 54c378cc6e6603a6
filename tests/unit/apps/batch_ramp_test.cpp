// Batch, learning rate and length of a run by consumed samples, compared with Megatron-LM's arithmetic
// (RampupBatchsizeNumMicroBatchesCalculator and OptimizerParamScheduler), which is written here as the objects with
// state that it consists of, and with runs step by step.
#include "core/optim/batch_ramp.h"
#include "apps/config/run_length.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "apps/config/training_options.h"
#include "apps/flags/flags.h"
#include "core/base/error.h"
#include "tests/support/error_of.h"
#include "tests/support/matchers.h"

namespace megalith {
namespace {

using Ramp = std::vector<std::int64_t>;

TrainingOptions run_of_samples(std::int64_t samples, std::int64_t batch, const Ramp& ramp = {}) {
  TrainingOptions train;
  train.train_samples = samples;
  train.global_batch_size = batch;
  train.rampup_batch_size = ramp;
  return train;
}

struct MegatronRamp {
  double start, increment, ramp_samples, full, per_increment, current;

  MegatronRamp(const Ramp& ramp, std::int64_t to)
      : start(static_cast<double>(ramp[0])),
        increment(static_cast<double>(ramp[1])),
        ramp_samples(static_cast<double>(ramp[2])),
        full(static_cast<double>(to)),
        per_increment(ramp_samples / ((full - start) / increment)),
        current(start) {}
  void update(std::int64_t consumed) {
    const auto samples = static_cast<double>(consumed);
    current = samples > ramp_samples ? full : start + std::trunc(samples / per_increment) * increment;
  }
};

// Its steps are samples.
struct MegatronScheduler {
  double max_lr, min_lr, init_lr, warmup, decay, wsd;
  LrDecayStyle style;
  WsdDecayStyle wsd_style;
  double num_steps = 0;

  void step(std::int64_t increment) { num_steps += static_cast<double>(increment); }
  double get_lr() const {
    if (warmup > 0 && num_steps <= warmup) return init_lr + (max_lr - init_lr) * num_steps / warmup;
    if (style == LrDecayStyle::kConstant) return max_lr;
    if (num_steps > decay) return min_lr;
    if (style == LrDecayStyle::kInverseSquareRoot)
      return std::max(min_lr, max_lr * std::sqrt(std::max(warmup, 1.0)) / std::sqrt(std::max(num_steps, 1.0)));
    const double ratio = (num_steps - warmup) / (decay - warmup), delta = max_lr - min_lr;
    if (style == LrDecayStyle::kLinear) return min_lr + (1.0 - ratio) * delta;
    if (style == LrDecayStyle::kCosine) return min_lr + 0.5 * (std::cos(std::numbers::pi * ratio) + 1.0) * delta;
    const double anneal_start = decay - wsd;
    if (num_steps <= anneal_start) return min_lr + delta;
    const double anneal = (num_steps - anneal_start) / wsd;
    switch (wsd_style) {
      case WsdDecayStyle::kLinear: return min_lr + (1.0 - anneal) * delta;
      case WsdDecayStyle::kCosine: return min_lr + 0.5 * (std::cos(std::numbers::pi * anneal) + 1.0) * delta;
      case WsdDecayStyle::kExponential: return min_lr + (2.0 * std::pow(0.5, anneal) - 1.0) * delta;
      case WsdDecayStyle::kMinusSqrt: return min_lr + (1.0 - std::sqrt(anneal)) * delta;
    }
    return -1;
  }
};

const std::vector<std::pair<Ramp, std::int64_t>> kRamps{
    {{4, 4, 64}, 16},     {{2, 2, 100}, 14},        {{1, 1, 7}, 50},
    {{8, 24, 1000}, 104}, {{3, 7, 49}, 3 + 7 * 49}, {{5, 5, 1}, 20},
};

TEST(BatchRamp, HasMegatronsBatchAfterAnySamples) {
  for (const auto& [ramp, to] : kRamps) {
    const TrainingOptions train = run_of_samples(1 << 20, to, ramp);
    MegatronRamp megatron(ramp, to);
    std::int64_t last = 0;
    for (std::int64_t consumed = 0; consumed < ramp[2] + 3 * to; ++consumed) {
      megatron.update(consumed);
      const std::int64_t batch = batch_after(train, consumed);
      ASSERT_EQ(static_cast<double>(batch), megatron.current) << consumed;
      EXPECT_GE(batch, last);
      last = batch;
    }
    EXPECT_EQ(batch_after(train, 0), ramp[0]);
    EXPECT_EQ(last, to);
  }
  EXPECT_EQ(batch_after(run_of_samples(100, 10), 55), 10);
}

struct Phase {
  Ramp ramp;
  std::int64_t batch, steps;
};

// How many rates were compared, and how many of them after the end of the decay.
struct Compared {
  int rates = 0, decayed = 0;
};

// From step to step as a run does, with a batch of Megatron's size. `megatron` has begun where `done` stands.
void compare_phase(const LrSchedule& schedule, const Phase& phase, MegatronScheduler megatron, RunProgress& done,
                   Compared& compared) {
  const TrainingOptions train = run_of_samples(1 << 20, phase.batch, phase.ramp);
  for (std::int64_t i = 0; i < phase.steps; ++i, ++compared.rates) {
    // Where the compiler fuses a product and a sum, one rounding fewer.
    ASSERT_DOUBLE_EQ(learning_rate(schedule, done), megatron.get_lr()) << done.samples;
    compared.decayed += done.samples > schedule.lr_decay_samples ? 1 : 0;
    std::int64_t batch = phase.batch;
    if (!phase.ramp.empty()) {
      MegatronRamp ramp(phase.ramp, phase.batch);
      ramp.update(done.samples);
      batch = static_cast<std::int64_t>(ramp.current);
    }
    ASSERT_EQ(batch_after(train, done.samples), batch);
    ++done.steps;
    done.samples += batch;
    megatron.step(batch);
  }
}

// Runs of several phases, with another batch from each resume on.
void compare_runs(const LrSchedule& schedule, Compared& compared) {
  const std::vector<std::vector<Phase>> runs{{{{}, 4, 60}},
                                             {{{}, 4, 3}, {{}, 10, 9}, {{}, 2, 40}, {{}, 6, 30}},
                                             {{{2, 2, 100}, 14, 40}},
                                             {{{2, 2, 100}, 14, 9}, {{2, 2, 100}, 14, 40}},
                                             {{{2, 2, 100}, 14, 5}, {{}, 6, 10}, {{4, 4, 160}, 16, 20}}};
  const double decay = 190, fraction = schedule.lr_warmup_fraction;
  for (const std::vector<Phase>& phases : runs) {
    RunProgress done;
    for (const Phase& phase : phases) {
      MegatronScheduler megatron{
          .max_lr = 3e-4,
          .min_lr = 1e-5,
          .init_lr = 1e-6,
          .warmup = fraction > 0 ? fraction * decay : static_cast<double>(schedule.lr_warmup_samples),
          .decay = decay,
          .wsd = 77,
          .style = schedule.lr_decay_style,
          .wsd_style = schedule.lr_wsd_decay_style};
      megatron.step(done.samples);  // as it is loaded from a checkpoint
      ASSERT_NO_FATAL_FAILURE(compare_phase(schedule, phase, megatron, done, compared));
    }
  }
}

TEST(BatchRamp, TheRateIsMegatronsOverRampsChangesOfBatchAndResumesInAnyPhase) {
  Compared compared;
  for (const LrDecayStyle style : {LrDecayStyle::kConstant, LrDecayStyle::kLinear, LrDecayStyle::kCosine,
                                   LrDecayStyle::kWsd, LrDecayStyle::kInverseSquareRoot}) {
    for (const WsdDecayStyle wsd :
         {WsdDecayStyle::kExponential, WsdDecayStyle::kLinear, WsdDecayStyle::kCosine, WsdDecayStyle::kMinusSqrt}) {
      if (style != LrDecayStyle::kWsd && wsd != WsdDecayStyle::kLinear) continue;
      for (const auto& [warmup, fraction] : {std::pair{0, 0.0}, {30, 0.0}, {0, 0.13}}) {
        const LrSchedule schedule{.lr = 3e-4,
                                  .min_lr = 1e-5,
                                  .lr_decay_style = style,
                                  .lr_warmup_fraction = fraction,
                                  .lr_warmup_init = 1e-6,
                                  .lr_wsd_decay_style = wsd,
                                  .lr_decay_samples = 190,
                                  .lr_warmup_samples = warmup,
                                  .lr_wsd_decay_samples = 77};
        ASSERT_NO_FATAL_FAILURE(compare_runs(schedule, compared));
      }
    }
  }
  EXPECT_GT(compared.rates, 5000);
  EXPECT_GT(compared.decayed, 1000);
}

TEST(BatchRamp, StepsAloneDoNotMoveARateBySamples) {
  const LrSchedule schedule{.lr = 1, .lr_decay_iters = 7, .lr_decay_samples = 100};
  EXPECT_EQ(learning_rate(schedule, {.steps = 5, .samples = 50}), 0.5);
  EXPECT_EQ(learning_rate(schedule, {.steps = 90, .samples = 50}), 0.5);
  EXPECT_EQ(learning_rate({.lr = 1, .lr_decay_iters = 10}, {.steps = 5, .samples = 9999}), 0.5);
}

RunEnd end_step_by_step(const TrainingOptions& train, RunProgress at) {
  while (at.samples + batch_after(train, at.samples) <= train.train_samples) {
    at.samples += batch_after(train, at.samples);
    ++at.steps;
  }
  return {.at = at, .left_over = std::max<std::int64_t>(train.train_samples - at.samples, 0)};
}

TEST(BatchRamp, ARunTakesWholeBatchesAndEnds) {
  for (const auto& [ramp, to] : kRamps) {
    for (const std::int64_t samples : {1, 7, 50, 63, 64, 65, 99, 100, 101, 999, 1000, 5000, 12345}) {
      const TrainingOptions train = run_of_samples(samples, to, ramp), constant = run_of_samples(samples, to);
      // Megatron-LM's length.
      EXPECT_EQ(end_of_run(constant, {}).at, (RunProgress{.steps = samples / to, .samples = samples / to * to}));
      EXPECT_EQ(end_of_run(constant, {}).left_over, samples % to);
      for (const std::int64_t consumed : {0, 1, 5, 60, 64, 333, 6000}) {
        const RunProgress done{.steps = 3, .samples = consumed};
        EXPECT_EQ(end_of_run(train, done), end_step_by_step(train, done)) << samples << " from " << consumed;
        EXPECT_EQ(end_of_run(constant, done), end_step_by_step(constant, done)) << samples << " from " << consumed;
      }
    }
  }
}

// Batches of 4 to step 5, then of 10 and, from sample 70 on, of 2.
TEST(BatchRamp, AChangeOfBatchReadsNeitherMoreNorLess) {
  EXPECT_EQ(end_of_run(run_of_samples(80, 4), {}).at.steps, 20);
  EXPECT_EQ(end_of_run(run_of_samples(80, 10), {.steps = 5, .samples = 20}),
            (RunEnd{.at = {.steps = 11, .samples = 80}, .left_over = 0}));
  EXPECT_EQ(end_of_run(run_of_samples(80, 2), {.steps = 10, .samples = 70}),
            (RunEnd{.at = {.steps = 15, .samples = 80}, .left_over = 0}));
  EXPECT_EQ(end_of_run(run_of_samples(80, 9), {.steps = 10, .samples = 70}),
            (RunEnd{.at = {.steps = 11, .samples = 79}, .left_over = 1}));
}

// Found without a walk over the steps.
TEST(BatchRamp, LongRunsEndAtOnce) {
  constexpr std::int64_t kMany = 1'000'000'000'000;
  EXPECT_EQ(end_of_run(run_of_samples(kMany, 1), {}).at.steps, kMany);
  EXPECT_EQ(end_of_run(run_of_samples(kMany, 65'537, {1, 1, kMany}), {}).at.samples + 65'536 >= kMany, true);
  EXPECT_EQ(end_of_run(run_of_samples(kMany, 3, {1, 1, kMany}), {}).at,
            (RunProgress{.steps = kMany / 2 + kMany / 4, .samples = kMany}));
}

TEST(BatchRamp, StepsEndARunByItersAndTheirSamplesAreChecked) {
  TrainingOptions train = run_of_samples(0, 4);
  train.train_iters = 40;
  EXPECT_EQ(end_of_run(train, {.steps = 20, .samples = 30}), (RunEnd{.at = {.steps = 40, .samples = 110}}));
  EXPECT_EQ(end_of_run(train, {.steps = 50, .samples = 30}), (RunEnd{.at = {.steps = 50, .samples = 30}}));
  train.train_iters = train.global_batch_size = 1'000'000'000'000;
  EXPECT_THAT(error_of(ExitCode::kUsage, [&] { end_of_run(train, {}); }),
              HasSubstr("--train-iters and --global-batch-size: expected at most 281474976710656 samples in the run"));
}

}  // namespace
}  // namespace megalith
