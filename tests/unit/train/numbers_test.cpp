// Numbers that go wrong: the first NaN or Inf is named, nothing of the run's state changes, the budget of skipped steps
// and replicas that differ end the run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "core/ops/elementwise.h"
#include "tests/unit/train/training_support.h"

namespace megalith {
namespace {

using test::operator+;
using test::RunResult;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

// A hook of segment `segment` that poisons an element of the last unit's gradients, on rank 1, in its calls `calls`.
// With two microbatches a step, step 2 makes the calls 3 and 4. Where it was skipped, step 3, which is dropped, makes 5
// and 6, the second run of step 2 makes 7 and 8, and step 3 again 9 and 10. After the last step there is none to drop.
std::function<void(Trainer&, int)> poison(const std::set<int>& calls, double value = std::nan("")) {
  return [calls, value](Trainer& trainer, int rank) {
    if (rank != 1) return;
    TrainingModel& model = trainer.model();
    model.runner().hooks(1).add(HookPoint::kPostWeight, [&model, calls, value, call = 0](const HookContext&) mutable {
      if (!calls.contains(++call)) return;
      const Tensor gradient = model.gpt().parameters->units()[1].main_grads;
      launch(model.compute(), Fill{.x = gradient.slice(0, 5, 1), .value = value});
    });
  };
}

struct Told {
  RunResult result;
  std::string text;  // standard error
};

Told train(const test::RunRequest& request) {
  testing::internal::CaptureStderr();
  Told told;
  try {
    told.result = test::train(request);
  } catch (...) {
    testing::internal::GetCapturedStderr();
    throw;
  }
  told.text = testing::internal::GetCapturedStderr();
  return told;
}

const Words kConstant = {"--lr-decay-style", "constant", "--hidden-dropout", "0.1"};

TEST(Numbers, TheFirstNanIsNamed) {
  const Told told = train({.flags = kConstant, .ranks = 2, .prepare = poison({7, 11})});
  EXPECT_EQ(told.result.skipped_steps, 1);
  EXPECT_THAT(told.text, HasSubstr("[megalith] warning: step 4 was skipped (loss "));
  EXPECT_THAT(told.text, HasSubstr(", grad norm nan); the first value that is not finite: rank 1, layer 0 attention, "
                                   "backward_weight, microbatch 0: fill wrote nan to \"gradient"));
}

TEST(Numbers, AnInfIsNamedInItsMicrobatch) {
  const Told told =
      train({.flags = kConstant, .ranks = 2, .prepare = poison({4, 8}, -std::numeric_limits<double>::infinity())});
  EXPECT_EQ(told.result.skipped_steps, 1);
  EXPECT_THAT(told.text, HasSubstr("rank 1, layer 0 attention, backward_weight, microbatch 1: fill wrote -inf to"));
}

// A weight that something else damaged: the op that reads it is where it shows.
TEST(Numbers, ADamagedWeightIsNamedAsAnInput) {
  const auto damage = [](Trainer& trainer, int rank) {
    if (rank != 1) return;
    ParameterUnit& unit = trainer.model().gpt().parameters->units()[2];
    unit.weights.as<float>()[unit.parameters[0]->offset] = std::numeric_limits<float>::quiet_NaN();
  };
  const Told told = train({.flags = {"--train-iters", "1"}, .ranks = 2, .prepare = damage});
  EXPECT_THAT(told.text, HasSubstr("step 1 was skipped (loss nan, grad norm nan); the first value that is not finite: "
                                   "rank 1, layer 1 attention, forward, microbatch 0: "));
  EXPECT_THAT(told.text, HasSubstr(" read nan from \"decoder.layers.1."));
}

// A value that does not come again, in models of every kind: the second run of the step finds nothing, so no op leaves
// a value that is not finite in what it says it writes.
TEST(Numbers, WhatDoesNotRepeatIsSaid) {
  const std::vector<Words> models = {{}, test::llama_flags(), {"--bf16"}, {"--loss-chunk-size", "5"}};
  for (const Words& model : models + test::recompute_modes()) {
    const Told told =
        train({.flags = model + kConstant + Words{"--train-iters", "5"}, .ranks = 2, .prepare = poison({7})});
    EXPECT_THAT(told.text, HasSubstr("step 4 was skipped")) << testing::PrintToString(model);
    EXPECT_THAT(told.text, HasSubstr("run again, all its tensors were finite")) << testing::PrintToString(model);
  }
}

TEST(Numbers, ASkippedStepChangesNothing) {
  const RunResult one = test::train({.flags = kConstant + Words{"--train-iters", "1"}, .ranks = 2});
  const Told told = train({.flags = kConstant + Words{"--train-iters", "2"}, .ranks = 2, .prepare = poison({3, 5})});
  EXPECT_EQ(told.result.skipped_steps, 1);
  EXPECT_TRUE(told.result.state == one.state);
  // Whether the value comes again or not, the run goes on with the same bits, dropout included.
  const Told again = train({.flags = kConstant, .ranks = 2, .prepare = poison({7, 11})});
  const Told gone = train({.flags = kConstant, .ranks = 2, .prepare = poison({7})});
  test::expect_same_run(again.result, gone.result);
  EXPECT_EQ(again.result.skipped_steps, 1);
}

TEST(Numbers, MoreSkippedStepsThanTheBudgetEndTheRun) {
  const auto always = [](Trainer& trainer, int rank) {
    std::set<int> calls;
    for (int i = 1; i < 1000; ++i) calls.insert(i);
    poison(calls)(trainer, rank);
  };
  const Told told = train({.flags = {"--max-skipped-steps", "6"}, .ranks = 2, .prepare = always});
  EXPECT_EQ(told.result.code, ExitCode::kOk);
  EXPECT_EQ(told.result.skipped_steps, 6);
  for (const std::string budget : {"0", "3", "5"}) {
    try {
      train({.flags = {"--max-skipped-steps", budget}, .ranks = 2, .prepare = always});
      ADD_FAILURE() << "no error for " << budget;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kNumeric);
      EXPECT_THAT(error.what(), HasSubstr("steps with NaN or Inf: expected at most " + budget +
                                          " (--max-skipped-steps) in the run, got "));
    }
  }
}

TEST(Numbers, ReplicasThatDifferEndTheRun) {
  const auto damage = [](Trainer& trainer, int rank) {
    if (rank != 2) return;
    TrainingModel& model = trainer.model();
    model.runner().hooks(0).add(HookPoint::kPreForward, [&model, call = 0](const HookContext&) mutable {
      if (++call != 4) return;
      const Tensor moment = model.optimizer().units()[1].exp_avg_sq;
      launch(model.compute(), Fill{.x = moment.slice(0, 0, 1), .value = 3});
    });
  };
  const Words flags = {"--global-batch-size", "8", "--check-weight-hash-interval", "2", "--micro-batch-size", "2"};
  EXPECT_EQ(test::train({.flags = flags, .ranks = 4}).code, ExitCode::kOk);
  for (const Words& dtype : {Words{}, Words{"--bf16"}}) {
    try {
      test::train({.flags = flags + dtype, .ranks = 4, .prepare = damage});
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kNumeric);
      EXPECT_THAT(error.what(), HasSubstr("--check-weight-hash-interval, after step 4: "));
      EXPECT_THAT(error.what(), HasSubstr(" on rank 2"));
    }
  }
}

}  // namespace
}  // namespace megalith
