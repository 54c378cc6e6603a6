// Expected values are written as closed forms of the step, not by calling the code under test.
#include "core/optim/lr_schedule.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/base/error.h"
#include "tests/support/error_of.h"
#include "tests/support/matchers.h"

namespace megalith {
namespace {

double rate_after(const LrSchedule& schedule, std::int64_t steps) { return learning_rate(schedule, {.steps = steps}); }

LrSchedule schedule_of(LrDecayStyle style) {
  return {.lr = 1e-3, .min_lr = 1e-4, .lr_decay_style = style, .lr_decay_iters = 100, .lr_warmup_iters = 10};
}

TEST(LrSchedule, WarmsUpLinearlyFromInit) {
  LrSchedule schedule = schedule_of(LrDecayStyle::kCosine);
  schedule.lr_warmup_init = 2e-4;
  EXPECT_DOUBLE_EQ(rate_after(schedule, 0), 2e-4);
  EXPECT_DOUBLE_EQ(rate_after(schedule, 5), 6e-4);
  EXPECT_DOUBLE_EQ(rate_after(schedule, 10), 1e-3);
}

TEST(LrSchedule, FirstStepOfWarmupHasRateZeroByDefault) {
  EXPECT_EQ(rate_after(schedule_of(LrDecayStyle::kLinear), 0), 0.0);
}

TEST(LrSchedule, WithoutWarmupStartsAtTheMaximum) {
  LrSchedule schedule = schedule_of(LrDecayStyle::kLinear);
  schedule.lr_warmup_iters = 0;
  EXPECT_DOUBLE_EQ(rate_after(schedule, 0), 1e-3);
}

TEST(LrSchedule, Cosine) {
  const LrSchedule schedule = schedule_of(LrDecayStyle::kCosine);
  EXPECT_DOUBLE_EQ(rate_after(schedule, 55), (1e-3 + 1e-4) / 2);     // halfway
  EXPECT_NEAR(rate_after(schedule, 40), 1e-4 + 9e-4 * 0.75, 1e-18);  // a third: cos 60 deg
  EXPECT_NEAR(rate_after(schedule, 70), 1e-4 + 9e-4 * 0.25, 1e-18);  // two thirds
  EXPECT_NEAR(rate_after(schedule, 100), 1e-4, 1e-18);
  EXPECT_EQ(rate_after(schedule, 101), 1e-4);
}

TEST(LrSchedule, Linear) {
  const LrSchedule schedule = schedule_of(LrDecayStyle::kLinear);
  EXPECT_NEAR(rate_after(schedule, 19), 1e-3 - 9e-5, 1e-18);  // a tenth of the 90 steps
  EXPECT_NEAR(rate_after(schedule, 91), 1e-4 + 9e-5, 1e-18);
  EXPECT_EQ(rate_after(schedule, 1000), 1e-4);
}

TEST(LrSchedule, ConstantStaysAfterTheDecayToo) {
  const LrSchedule schedule = schedule_of(LrDecayStyle::kConstant);
  for (const std::int64_t step : {10, 11, 100, 101, 100000}) EXPECT_EQ(rate_after(schedule, step), 1e-3);
}

TEST(LrSchedule, DecoupledRateHasItsOwnPeakAndFloor) {
  LrSchedule schedule = schedule_of(LrDecayStyle::kLinear);
  const RunProgress half{.steps = 55};
  EXPECT_EQ(decoupled_learning_rate(schedule, half), learning_rate(schedule, half));
  schedule.decoupled_lr = 3e-3;
  EXPECT_NEAR(decoupled_learning_rate(schedule, half), (3e-3 + 1e-4) / 2, 1e-18);
  schedule.decoupled_min_lr = 0;
  EXPECT_NEAR(decoupled_learning_rate(schedule, half), 3e-3 / 2, 1e-18);
  EXPECT_EQ(rates_after(schedule, half).decoupled, static_cast<float>(decoupled_learning_rate(schedule, half)));
}

TEST(LrSchedule, WeightDecayRisesAsMegatrons) {
  LrSchedule schedule = schedule_of(LrDecayStyle::kLinear);
  EXPECT_EQ(weight_decay_scale(schedule, {.steps = 50}), 1);
  schedule.weight_decay_incr_style = WeightDecayStyle::kLinear;
  schedule.start_weight_decay = 0.02;
  schedule.end_weight_decay = 0.1;
  schedule.weight_decay_incr_length = 200;
  EXPECT_DOUBLE_EQ(weight_decay_scale(schedule, {}), 0.2);
  EXPECT_DOUBLE_EQ(weight_decay_scale(schedule, {.steps = 50}), 0.4);
  EXPECT_EQ(weight_decay_scale(schedule, {.steps = 201}), 1);
  schedule.weight_decay_incr_style = WeightDecayStyle::kCosine;
  EXPECT_DOUBLE_EQ(weight_decay_scale(schedule, {.steps = 100}), 0.6);
  EXPECT_NEAR(weight_decay_scale(schedule, {.steps = 50}), 0.2 + 0.8 * 0.5 * (1 - std::sqrt(0.5)), 1e-15);
}

TEST(LrSchedule, SkippedIterationsDoNotAdvanceIt) {
  const LrSchedule schedule = schedule_of(LrDecayStyle::kLinear);
  EXPECT_EQ(learning_rate(schedule, {.steps = 60, .passed_steps = 5}), learning_rate(schedule, {.steps = 55}));
  LrSchedule growing = schedule;
  growing.samples_per_step = 10;
  EXPECT_EQ(learning_rate(growing, {.steps = 70, .samples = 600, .passed_samples = 50}),
            learning_rate(schedule, {.steps = 55}));
}

TEST(LrSchedule, InverseSquareRoot) {
  const LrSchedule schedule = schedule_of(LrDecayStyle::kInverseSquareRoot);
  EXPECT_NEAR(rate_after(schedule, 40), 5e-4, 1e-18);        // sqrt(10 / 40)
  EXPECT_NEAR(rate_after(schedule, 90), 1e-3 / 3.0, 1e-18);  // sqrt(10 / 90)
  LrSchedule floored = schedule;
  floored.min_lr = 4e-4;
  EXPECT_EQ(rate_after(floored, 90), 4e-4);
  floored.lr_warmup_iters = 0;  // counts as one step of warm-up, and step 0 as step 1
  EXPECT_EQ(rate_after(floored, 0), 1e-3);
  EXPECT_NEAR(rate_after(floored, 4), 5e-4, 1e-18);
}

TEST(LrSchedule, WsdStaysThenDecaysInFourShapes) {
  LrSchedule schedule = schedule_of(LrDecayStyle::kWsd);
  schedule.lr_wsd_decay_iters = 20;
  for (const std::int64_t step : {10, 50, 80}) EXPECT_EQ(rate_after(schedule, step), 1e-3);
  const auto quarter = [&](WsdDecayStyle style) {  // 5 of the 20 steps
    schedule.lr_wsd_decay_style = style;
    EXPECT_NEAR(rate_after(schedule, 100), 1e-4, 1e-18);
    EXPECT_EQ(rate_after(schedule, 101), 1e-4);
    return (rate_after(schedule, 85) - 1e-4) / 9e-4;
  };
  EXPECT_NEAR(quarter(WsdDecayStyle::kLinear), 0.75, 1e-12);
  EXPECT_NEAR(quarter(WsdDecayStyle::kCosine), 0.5 + std::sqrt(2.0) / 4, 1e-12);
  EXPECT_NEAR(quarter(WsdDecayStyle::kExponential), std::sqrt(2.0 * std::sqrt(2.0)) - 1, 1e-12);
  EXPECT_NEAR(quarter(WsdDecayStyle::kMinusSqrt), 0.5, 1e-12);
}

TEST(LrSchedule, WarmupFractionIsNotRounded) {
  LrSchedule schedule = schedule_of(LrDecayStyle::kLinear);
  schedule.lr_warmup_iters = 0;
  schedule.lr_warmup_fraction = 0.025;  // 2.5 steps
  EXPECT_NEAR(rate_after(schedule, 2), 8e-4, 1e-18);
  EXPECT_NEAR(rate_after(schedule, 3), 1e-4 + 9e-4 * (97.0 / 97.5), 1e-15);
}

std::string message_of(const LrSchedule& schedule) {
  return result_of(ExitCode::kUsage, [&] {
    validate(schedule);
    return std::string("valid");
  });
}

TEST(LrSchedule, RefusesWhatContradicts) {
  EXPECT_EQ(message_of(schedule_of(LrDecayStyle::kCosine)), "valid");
  LrSchedule schedule = schedule_of(LrDecayStyle::kCosine);
  schedule.min_lr = 2e-3;
  EXPECT_EQ(message_of(schedule),
            "--min-lr and --lr: expected 0 <= --min-lr <= --lr, got --min-lr 0.002 and --lr 0.001; lower --min-lr");
  schedule = schedule_of(LrDecayStyle::kCosine);
  schedule.lr_warmup_iters = 100;
  EXPECT_THAT(message_of(schedule), HasSubstr("got --lr-warmup-iters 100 and --lr-decay-iters 100"));
  schedule.lr_warmup_iters = 10;
  schedule.lr_warmup_fraction = 0.1;
  EXPECT_EQ(message_of(schedule),
            "--lr-warmup-fraction and --lr-warmup-iters: expected one of them, got 0.1 and 10; "
            "remove one");
  schedule = schedule_of(LrDecayStyle::kWsd);
  EXPECT_EQ(message_of(schedule),
            "--lr-decay-style WSD and --lr-wsd-decay-iters: expected --lr-wsd-decay-iters from 1 to 90 "
            "(--lr-decay-iters less the warm-up), got 0; it is the length of the last phase");
  schedule.lr_wsd_decay_iters = 91;
  EXPECT_THAT(message_of(schedule), HasSubstr("got 91"));
  schedule.lr_wsd_decay_iters = 90;
  EXPECT_EQ(message_of(schedule), "valid");
  schedule.lr = std::nan("");
  EXPECT_EQ(message_of(schedule), "--lr: expected a value above 0, got nan; such as 3e-4");
}

}  // namespace
}  // namespace megalith
