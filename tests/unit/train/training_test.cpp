// The guarantees of a run beyond those of every layout (layout_claims_test.cpp).
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "core/device/copy.h"
#include "core/ops/elementwise/elementwise.h"
#include "tests/support/error_of.h"
#include "tests/support/matchers.h"
#include "tests/unit/train/layouts.h"

namespace megalith::test {
namespace {

const Words kLlama = llama_flags();

TEST(Training, TwoRunsAreBitIdentical) {
  expect_same_run(train({.flags = kDropout, .ranks = 2}), train({.flags = kDropout, .ranks = 2}));
}

TEST(Training, ABucketPerUnitGivesTheBitsOfOneBucket) {
  const RunResult one = train({.ranks = 2});
  const RunResult many = train({.flags = {"--overlap-grad-reduce", "--ddp-bucket-size", "1"}, .ranks = 2});
  EXPECT_GT(many.buckets_reduced, one.buckets_reduced);
  expect_same_run(one, many);
}

TEST(Training, MicroBatchSizeKeepsDropoutAndLoss) {
  const RunResult small = train({.flags = kDropout + Words{"--micro-batch-size", "1"}});
  const RunResult large = train({.flags = kDropout + Words{"--micro-batch-size", "8"}});
  expect_losses_near(small, large);
}

TEST(Training, MemoryIsWhatWasPlanned) {
  RunResult result = train({.flags = kEvaluations, .ranks = 2});
  EXPECT_EQ(result.arena_touched, result.arena_planned);
  EXPECT_EQ(result.pool_peak, result.planned_total);
}

const Words kNarrowModel = words(
    "--bf16 --main-grads-dtype bf16 --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16 --adam-beta2 0.95 --lr "
    "1e-2");

TEST(Training, Bf16GradientsAndMomentsTrain) {
  const Words wide_flags = {"--bf16", "--adam-beta2", "0.95", "--lr", "1e-2"};
  for (const Words& model : {Words{}, kLlama}) {
    const Words flags = model + kNarrowModel;
    const RunResult unbroken = train({.flags = flags, .ranks = 2});
    const RunResult wide = train({.flags = model + wide_flags, .ranks = 2});
    EXPECT_EQ(unbroken.losses[0], wide.losses[0]);
    EXPECT_NE(unbroken.losses, wide.losses);
    EXPECT_LT(unbroken.loss_values[5], unbroken.loss_values[0]);
    EXPECT_NEAR(unbroken.loss_values[5], wide.loss_values[5], 0.1 * (wide.loss_values[0] - wide.loss_values[5]));
    EXPECT_EQ(unbroken.pool_peak, unbroken.planned_total);
    EXPECT_LT(unbroken.planned_total, wide.planned_total);
  }
}

// bf16 moments widen exactly, so that only later values differ; the reverse conversion rounds.
TEST(Training, MomentsOfAnotherDtypeAreConverted) {
  const TestFolder scratch;
  const Words wide = {"--bf16", "--lr-decay-style", "constant"};
  const Words narrow = wide + Words{"--exp-avg-dtype", "bf16", "--exp-avg-sq-dtype", "bf16"};
  for (const bool widen : {false, true}) {
    const Words &from = widen ? narrow : wide, &to = widen ? wide : narrow;
    const std::string folder = scratch.path(widen ? "narrow" : "wide");
    const RunResult unbroken = train({.flags = from});
    train({.flags = from + Words{"--exit-interval", "3", "--save", folder}});
    const RunResult second = train({.flags = to + Words{"--load", folder}});
    ASSERT_EQ(second.losses.size(), 3u);
    EXPECT_EQ(second.losses[0], unbroken.losses[3]);
    EXPECT_NE(second.losses, (Words(unbroken.losses.begin() + 3, unbroken.losses.end())));
    EXPECT_NEAR(second.loss_values[2], unbroken.loss_values[5], 0.01);
  }
}

TEST(Training, TheLossInChunksTrainsTheSameModelInLessMemory) {
  for (const Words& model : {Words{}, kLlama}) {
    const Words flags = model + kEvaluations;
    const RunResult plain = train({.flags = flags, .ranks = 2});
    const RunResult chunked = train({.flags = flags + Words{"--loss-chunk-size", "5", "--check-hazards"}, .ranks = 2});
    EXPECT_EQ(chunked.losses[0], plain.losses[0]);
    EXPECT_TRUE(chunked.weights != plain.weights) << "the sums' order did not change";
    expect_losses_near(chunked, plain);
    EXPECT_LT(chunked.arena_planned, plain.arena_planned);
    EXPECT_EQ(chunked.arena_touched, chunked.arena_planned);
    EXPECT_EQ(chunked.hazards, 0);
    const RunResult recomputed =
        train({.flags = flags + Words{"--loss-chunk-size", "5", "--recompute-granularity", "full"}, .ranks = 2});
    expect_same_run(chunked, recomputed);
  }
}

TEST(Training, AnotherSeedCannotContinueTheDataOrder) {
  const TestFolder scratch;
  train({.flags = {"--exit-interval", "3", "--save", scratch.path("c")}});
  EXPECT_THAT(error_of(ExitCode::kUsage,
                       [&] {
                         train({.flags = {"--load", scratch.path("c"), "--seed", "12"}});
                       }),
              HasSubstr("expected 11, got 12"));
}

TEST(Training, ALastSaveThatFailsIsNotSuccess) {
  const TestFolder scratch;
  std::ofstream(scratch.path("file")) << "not a folder";
  const RunResult result = train({.flags = {"--save", scratch.path("file/c")}});
  EXPECT_EQ(result.code, ExitCode::kFileIo);
  EXPECT_EQ(result.losses.size(), 6u);  // training itself continued
}

TEST(Training, FinetuneTakesTheWeightsAndStartsAtStepOne) {
  const TestFolder scratch;
  const RunResult first = train({.flags = {"--save", scratch.path("c"), "--lr", "1e-2"}});
  const RunResult tuned = train({.flags = {"--load", scratch.path("c"), "--finetune"}});
  ASSERT_EQ(tuned.losses.size(), 6u);
  EXPECT_LT(tuned.loss_values[0], first.loss_values[0]);
  EXPECT_NE(tuned.losses[0], first.losses[0]);
}

// A user's hook enqueues extra work: here it poisons one gradient in step 2.
TEST(Training, ANanSkipsTheStepOnAllRanks) {
  const auto poison = [](Trainer& trainer, int rank) {
    if (rank != 1) return;
    Rank& own = trainer.rank();
    const int last = own.runner.num_segments() - 1;
    own.runner.hooks(last).add(HookPoint::kPostWeight, [&own, calls = 0](const HookContext& context) mutable {
      EXPECT_EQ(context.verb, Verb::kBackwardWeight);
      if (++calls != 3) return;  // two microbatches a step: the first of step 2
      const Tensor gradient = own.model.gpt.parameters->units().back().main_grads;
      launch(own.streams.compute, Fill{.x = gradient.slice(0, 0, 1), .value = std::nan("")});
    });
  };
  const Words flags = {"--lr-decay-style", "constant"};
  expect_second_step_skipped(train({.flags = flags, .ranks = 2, .prepare = poison}),
                             train({.flags = flags, .ranks = 2}));
}

TEST(Training, NothingIsTakenFromTheSystemWithinSteps) {
  for (const std::string more : {"", "--use-distributed-optimizer", "--data-parallel-sharding-strategy optim_grads",
                                 "--data-parallel-sharding-strategy optim_grads_params",
                                 "--num-experts 4 --moe-ffn-hidden-size 32 --swiglu --disable-bias-linear "
                                 "--expert-model-parallel-size 2 --data-parallel-sharding-strategy optim"}) {
    SCOPED_TRACE(more);
    std::int64_t at_first = -1;
    const auto watch = [&](Trainer& trainer, int rank) {
      if (rank != 0) return;
      Rank& own = trainer.rank();
      own.runner.hooks(0).add(HookPoint::kPreForward, [&own, &at_first](const HookContext& context) {
        if (context.microbatch == 0) at_first = at_first < 0 ? own.memory.pool.system_allocations() : at_first;
      });
    };
    const RunResult result =
        train({.flags = words("--eval-interval 2 --eval-iters 1 " + more), .ranks = 2, .prepare = watch});
    EXPECT_GE(at_first, 0);
    EXPECT_EQ(result.system_allocations_after, at_first);
  }
}

TEST(Training, HooksRunAroundEveryVerbInOrder) {
  Words calls;
  const auto watch = [&](Trainer& trainer, int) {
    for (const HookPoint point : {HookPoint::kPreForward, HookPoint::kPostForward, HookPoint::kPreBackward,
                                  HookPoint::kPostBackward, HookPoint::kPreWeight, HookPoint::kPostWeight}) {
      trainer.rank().runner.hooks(1).add(point, [&calls, point](const HookContext& c) {
        calls.push_back(std::string(name_of(point)) + " " + std::string(c.segment) + " " +
                        std::to_string(c.microbatch));
      });
    }
  };
  train({.flags = {"--train-iters", "1", "--micro-batch-size", "4"}, .prepare = watch});
  Words want;
  for (const char* m : {"0", "1"}) {
    for (const char* point :
         {"pre_forward", "post_forward", "pre_backward", "post_backward", "pre_weight", "post_weight"}) {
      want.push_back(std::string(point) + " layer 0 attention " + m);
    }
  }
  EXPECT_EQ(calls, want);
}

TEST(Training, AHookThatThrowsNamesItsSegment) {
  const auto fail_in_hook = [](Trainer& trainer, int) {
    trainer.rank().runner.hooks(2).add(HookPoint::kPostForward,
                                       [](const HookContext&) { throw std::runtime_error("no more"); });
  };
  try {
    train({.prepare = fail_in_hook});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "hook post_forward of segment layer 0 mlp (microbatch 0): no more; an exception in a hook "
                 "ends the step: fix the hook");
  }
}

}  // namespace
}  // namespace megalith::test
