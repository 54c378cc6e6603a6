#include "apps/config/run_length.h"

#include <gtest/gtest.h>

#include "apps/config/training_options.h"
#include "core/base/error.h"
#include "tests/support/error_of.h"
#include "tests/support/matchers.h"

namespace megalith {
namespace {

TrainingOptions run_of(std::int64_t steps, std::int64_t batch) {
  TrainingOptions train;
  train.train_iters = steps;
  train.global_batch_size = batch;
  return train;
}

TEST(RunLength, IsWhatWasConsumedAndWhatIsLeft) {
  EXPECT_EQ(samples_to_train(run_of(40, 4), {}), 160);
  EXPECT_EQ(samples_to_train(run_of(40, 1), {.steps = 20, .samples = 80}), 100);
  EXPECT_EQ(samples_to_train(run_of(40, 4), {.steps = 20, .samples = 20}), 100);
  EXPECT_EQ(samples_to_train(run_of(40, 4), {.steps = 50, .samples = 70}), 70);
  TrainingOptions by_samples = run_of(0, 4);
  by_samples.train_samples = 150;
  EXPECT_EQ(samples_to_train(by_samples, {}), 150);
  EXPECT_EQ(samples_to_train(by_samples, {.steps = 20, .samples = 100}), 150);
  EXPECT_EQ(samples_to_train(by_samples, {.steps = 20, .samples = 170}), 170);
}

TEST(RunLength, EvaluationsComeAfterEachIntervalAndAtTheEnd) {
  TrainingOptions train = run_of(100, 32);
  train.eval_interval = 30;
  train.eval_iters = 5;
  EXPECT_EQ(samples_to_evaluate(train), 4 * 5 * 32);
  train.eval_interval = 0;
  EXPECT_EQ(samples_to_evaluate(train), 5 * 32);
  train.eval_iters = 0;
  EXPECT_EQ(samples_to_evaluate(train), 0);
}

TEST(RunLength, ProductsAreChecked) {
  constexpr std::int64_t kMany = 1'000'000'000'000;
  const auto train_error = [](std::int64_t steps, std::int64_t batch, std::int64_t consumed) {
    return error_of(ExitCode::kUsage,
                    [&] { samples_to_train(run_of(steps, batch), {.steps = 0, .samples = consumed}); });
  };
  EXPECT_THAT(train_error(kMany, kMany, 0), HasSubstr("--train-iters and --global-batch-size: expected at most "
                                                      "281474976710656 samples in the run, got 1000000000000 x"));
  EXPECT_THAT(train_error(std::int64_t{1} << 32, std::int64_t{1} << 32, 0), HasSubstr("4294967296 x 4294967296"));
  EXPECT_THAT(train_error(1, 1, std::int64_t{1} << 48), HasSubstr("1 x 1"));
  EXPECT_EQ(samples_to_train(run_of(1, 1), {.steps = 0, .samples = (std::int64_t{1} << 48) - 1}),
            std::int64_t{1} << 48);
  TrainingOptions train = run_of(kMany, kMany);
  train.eval_interval = 1;
  train.eval_iters = kMany;
  EXPECT_THAT(error_of(ExitCode::kUsage, [&] { samples_to_evaluate(train); }),
              HasSubstr("--eval-iters and --global-batch-size: expected at most 281474976710656 samples"));
}

}  // namespace
}  // namespace megalith
