// Context parallelism of whole runs on thread ranks: the model, dropout and gradients of one rank, whatever the form of
// communication and the axes beside it.
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "tests/unit/train/layouts.h"

namespace megalith::test {
namespace {

std::vector<Layout> layouts() {
  return {{.context = 2},
          {.context = 2, .communication = "a2a"},
          {.context = 2, .communication = "all_gather"},
          {.context = 4},
          {.tensor = 2, .context = 2},
          {.tensor = 2, .sequence = true, .context = 2},
          {.pipeline = 2, .context = 2},
          {.data = 2, .context = 2},
          {.tensor = 2, .sequence = true, .pipeline = 2, .context = 2}};
}

void expect_near_one_rank(const RunResult& got, const RunResult& want, double tolerance) {
  expect_losses_near(got, want, tolerance);
  EXPECT_TRUE(got.copies_agree);
  EXPECT_TRUE(got.memory_as_planned);
}

TEST(ContextParallel, LossesOfTwentyStepsAreThoseOfOneRank) {
  for (const std::size_t family : {0u, 1u}) {
    const Words flags = families()[family].flags + kDropout + Words{"--train-iters", "20", "--lr-warmup-iters", "2"};
    const RunResult want = train({.flags = flags});
    EXPECT_EQ(want.ranks[0].context_calls, 0);
    for (const Layout& layout : layouts()) {
      SCOPED_TRACE(families()[family].name + " " + layout.name());
      const RunResult got = train(flags, layout);
      expect_near_one_rank(got, want, 1e-5);
      for (const RankActivity& did : got.ranks) EXPECT_GT(did.context_calls, 20 * 2);
    }
  }
}

TEST(ContextParallel, GradientsOfOneStepAreThoseOfOneRank) {
  for (const Family& family : families()) {
    const Words flags = family.flags + kDropout + Words{"--train-iters", "1"};
    const RunResult want = train({.flags = flags});
    for (const Layout& layout : layouts()) {
      if (layout.communication == "a2a" && family.name == "qwen2") continue;  // one head of keys
      SCOPED_TRACE(family.name + " " + layout.name());
      const RunResult got = train(flags, layout);
      ASSERT_EQ(want.gradients.size(), got.gradients.size());
      for (const auto& [name, values] : want.gradients) {
        const std::vector<float>& mine = got.gradients.at(name);
        double difference = 0, norm = 0;
        for (std::size_t i = 0; i < values.size(); ++i) {
          difference += std::pow(static_cast<double>(mine[i]) - values[i], 2);
          norm += std::pow(static_cast<double>(values[i]), 2);
        }
        const bool is_zero = family.name == "gpt2" && name.ends_with("linear_k.bias");
        EXPECT_LE(std::sqrt(difference), is_zero ? 1e-8 : 5e-6 * std::sqrt(norm)) << name;
      }
      EXPECT_NEAR(number_of_hex(got.grad_norms[0]) / number_of_hex(want.grad_norms[0]), 1, 1e-5);
    }
  }
}

TEST(ContextParallel, RunsRepeatAndAreFreeOfHazards) {
  const Words flags =
      llama_flags() + kDropout + Words{"--train-iters", "2", "--check-hazards",       "--eval-interval",   "1",
                                       "--eval-iters",  "1", "--overlap-grad-reduce", "--loss-chunk-size", "5"};
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(layout.name());
    const RunResult first = train(flags, layout), second = train(flags, layout);
    expect_same_run(first, second);
    EXPECT_EQ(first.hazards, 0);
    EXPECT_EQ(first.code, ExitCode::kOk);
    EXPECT_TRUE(first.memory_as_planned);
  }
}

TEST(ContextParallel, RecomputeChangesNoBit) {
  for (const char* communication : {"p2p", "a2a"}) {
    const Layout layout{.context = 2, .communication = communication};
    const Words flags = llama_flags() + kDropout + Words{"--train-iters", "2", "--bf16"};
    const RunResult plain = train(flags, layout);
    for (const Words& recompute : recompute_modes()) {
      SCOPED_TRACE(testing::PrintToString(recompute));
      const RunResult again = train(flags + recompute, layout);
      expect_same_run(again, plain);
      EXPECT_LT(again.arena_planned, plain.arena_planned);
    }
  }
}

TEST(ContextParallel, EachRankKeepsItsPartOfTheSequence) {
  const Words flags = {"--seq-length", "64", "--train-iters", "1"};
  const RunResult one = train({.flags = flags});
  const RunResult four = train(flags, {.context = 4});
  EXPECT_LT(four.arena_planned, one.arena_planned / 2);
}

// The share of each replica counts context-parallel ranks too, and its update is that of the whole.
TEST(ContextParallel, WithADistributedOptimizer) {
  const Words flags = llama_flags() + kDropout;
  const Words shards = {"--use-distributed-optimizer",  "--overlap-grad-reduce",
                        "--overlap-param-gather",       "--check-hazards",
                        "--check-weight-hash-interval", "2"};
  const Layout layout{.data = 2, .context = 2};
  const RunResult whole = train(flags, layout), sharded = train(flags + shards, layout);
  EXPECT_EQ(sharded.code, ExitCode::kOk);
  EXPECT_EQ(sharded.hazards, 0);
  EXPECT_EQ(sharded.losses, whole.losses);
  EXPECT_TRUE(sharded.weights == whole.weights);
  EXPECT_GT(sharded.ranges_scattered, 0);
}

TEST(ContextParallel, CheckpointsGoFromAnyCutToAnyOther) {
  const TestFolder scratch;
  const std::vector<Layout> cuts = {{}, {.context = 2}, {.context = 4}, {.context = 2, .communication = "a2a"}};
  const RunResult unbroken = train({});
  for (std::size_t from = 0; from < cuts.size(); ++from) {
    const std::string folder = scratch.path(std::to_string(from));
    const RunResult saved = train(Words{"--exit-interval", "3", "--save", folder}, cuts[from]);
    for (const Layout& to : cuts) {
      SCOPED_TRACE(cuts[from].name() + " to " + to.name());
      Tensors loaded;
      std::mutex mutex;
      const RunResult rest = train(
          {.flags = to.flags() + Words{"--load", folder}, .ranks = to.ranks(), .prepare = [&](Trainer& trainer, int) {
             const std::lock_guard lock(mutex);
             put_slices(trainer.rank(), &Parameter::weight, loaded);
           }});
      EXPECT_TRUE(loaded == saved.weights);
      ASSERT_EQ(rest.loss_values.size(), 3u);
      for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(rest.loss_values[i] / unbroken.loss_values[i + 3], 1, 1e-5);
    }
  }
}

// Rank 1 of cp 2 has a weight of its own: the check names it.
TEST(ContextParallel, ReplicasThatDifferAreTold) {
  std::mutex mutex;
  std::string told;
  train({.flags = Layout{.context = 2}.flags(), .ranks = 2, .prepare = [&](Trainer& trainer, int rank) {
           EXPECT_FALSE(replica_difference(trainer.rank()));
           const Tensor weights = trainer.rank().model.gpt.parameters->units().front().weights;
           if (rank == 1) *weights.as<float>() += 1;
           const auto difference = replica_difference(trainer.rank());
           if (rank == 1) *weights.as<float>() -= 1;
           const std::lock_guard lock(mutex);
           if (difference) told = difference->message;
         }});
  EXPECT_NE(told.find("on rank 1"), std::string::npos) << told;
}

}  // namespace
}  // namespace megalith::test
