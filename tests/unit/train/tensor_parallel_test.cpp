// Tensor and sequence parallelism of whole runs on thread ranks: the model, dropout and gradient norm of one rank.
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "tests/unit/train/layouts.h"

namespace megalith::test {
namespace {

const Words kOneStep = {"--train-iters", "1"};

const std::vector<Layout> kTensorLayouts = {{.tensor = 2},
                                            {.tensor = 2, .sequence = true},
                                            {.tensor = 4},
                                            {.tensor = 4, .sequence = true},
                                            {.tensor = 2, .sequence = true, .data = 2}};

class TensorParallel : public testing::TestWithParam<std::tuple<Family, Layout>> {
 protected:
  const Words& family() const { return std::get<0>(GetParam()).flags; }
  const Layout& layout() const { return std::get<1>(GetParam()); }
  RunResult one(const Words& flags) const { return train({.flags = family() + flags}); }
  RunResult many(const Words& flags) const { return train(family() + flags, layout()); }
};

std::string name_of_case(const testing::TestParamInfo<std::tuple<Family, Layout>>& info) {
  const auto& [family, layout] = info.param;
  return family.name + "_tp" + std::to_string(layout.tensor) + (layout.sequence ? "_sp" : "") +
         (layout.data > 1 ? "_dp" + std::to_string(layout.data) : "");
}
INSTANTIATE_TEST_SUITE_P(Layouts, TensorParallel,
                         testing::Combine(testing::ValuesIn(families()), testing::ValuesIn(kTensorLayouts)),
                         name_of_case);

TEST_P(TensorParallel, LossesAndNormsOfTwentyStepsAreThoseOfOneRank) {
  const Words flags = kDropout + Words{"--train-iters", "20", "--lr-warmup-iters", "2"};
  const RunResult want = one(flags), got = many(flags);
  ASSERT_EQ(want.loss_values.size(), 20u);
  expect_losses_near(got, want);
  for (std::size_t i = 0; i < 20; ++i) {
    EXPECT_NEAR(std::strtod(got.grad_norms[i].c_str(), nullptr) / std::strtod(want.grad_norms[i].c_str(), nullptr), 1,
                1e-4)
        << "step " << i + 1;
  }
  EXPECT_EQ(want.tensor_calls, 0);
  EXPECT_GT(got.tensor_calls, 20 * 4);
  EXPECT_TRUE(got.copies_agree);
}

TEST_P(TensorParallel, GradientsOfOneStepAreThoseOfOneRank) {
  const Words flags = kDropout + kOneStep;
  const RunResult want = one(flags), got = many(flags);
  ASSERT_EQ(want.gradients.size(), got.gradients.size());
  for (const auto& [name, values] : want.gradients) {
    const std::vector<float>& mine = got.gradients.at(name);
    ASSERT_EQ(mine.size(), values.size()) << name;
    double difference = 0, norm = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      difference += std::pow(static_cast<double>(mine[i]) - values[i], 2);
      norm += std::pow(static_cast<double>(values[i]), 2);
    }
    EXPECT_GT(norm, 0) << name;
    // Without RoPE a bias of the keys changes no attention: its gradient is what rounding leaves of 0.
    const bool is_zero = family().empty() && name.ends_with("linear_k.bias");
    EXPECT_LE(std::sqrt(difference), is_zero ? 1e-9 : 5e-6 * std::sqrt(norm)) << name;
  }
  EXPECT_TRUE(got.copies_agree);
}

TEST_P(TensorParallel, InitialWeightsAreTheSlicesOfOneRank) {
  const auto initial = [&](const Words& flags, int ranks) {
    Tensors weights;
    std::mutex mutex;
    train({.flags = family() + kOneStep + flags, .ranks = ranks, .prepare = [&](Trainer& trainer, int) {
             const std::lock_guard lock(mutex);
             EXPECT_TRUE(put_slices(trainer.rank(), &Parameter::weight, weights));
           }});
    return weights;
  };
  const Tensors want = initial({}, 1), got = initial(layout().flags(), layout().ranks());
  EXPECT_FALSE(want.empty());
  EXPECT_TRUE(want == got);
}

TEST_P(TensorParallel, RunsRepeatAndAreFreeOfHazards) {
  const Words flags =
      kDropout + Words{"--train-iters",     "2", "--check-hazards",      "--eval-interval", "1", "--eval-iters", "1",
                       "--ddp-bucket-size", "1", "--overlap-grad-reduce"};
  const RunResult first = many(flags), second = many(flags);
  expect_same_run(first, second);
  EXPECT_EQ(first.hazards, 0);
  EXPECT_EQ(first.code, ExitCode::kOk);
  EXPECT_EQ(first.arena_touched, first.arena_planned);
  EXPECT_EQ(first.pool_peak, first.planned_total);
}

class TensorParallelRecompute : public testing::TestWithParam<Words> {};
INSTANTIATE_TEST_SUITE_P(All, TensorParallelRecompute, testing::ValuesIn(recompute_modes()));

TEST_P(TensorParallelRecompute, ChangesNoBitAndSavesMemory) {
  for (const Family& family : {families()[0], families()[1]}) {
    for (const Layout& layout : {Layout{.tensor = 2}, Layout{.tensor = 2, .sequence = true}}) {
      const Words flags = family.flags + layout.flags() + kDropout + Words{"--train-iters", "2"};
      const RunResult plain = train({.flags = flags, .ranks = 2});
      const RunResult recomputed = train({.flags = flags + GetParam(), .ranks = 2});
      expect_same_run(plain, recomputed);
      EXPECT_LT(recomputed.arena_planned, plain.arena_planned) << family.name;
    }
  }
}

// On the CPU: a row of a GEMM does not depend on the others, and sums are taken in the order of a communicator's.
TEST(TensorParallelRuns, OverlapChangesNoBit) {
  for (const int ranks : {2, 4}) {
    for (const Family& family : families()) {
      for (const Words& more :
           {Words{}, Words{"--bf16"}, Words{"--recompute-granularity", "full"}, Words{"--loss-chunk-size", "3"}}) {
        SCOPED_TRACE(family.name + testing::PrintToString(more));
        const Words flags = family.flags + Layout{.tensor = ranks, .sequence = true}.flags() + kDropout + more +
                            Words{"--train-iters", "2", "--eval-interval", "2", "--eval-iters", "1"};
        const RunResult plain = train({.flags = flags, .ranks = ranks});
        const RunResult overlapped =
            train({.flags = flags + Words{"--tp-comm-overlap", "--check-hazards"}, .ranks = ranks});
        expect_same_run(plain, overlapped);
        EXPECT_TRUE(plain.gradients == overlapped.gradients);
        EXPECT_TRUE(overlapped.memory_as_planned);
        EXPECT_EQ(overlapped.hazards, 0);
        if (ranks > 2) {
          EXPECT_GT(overlapped.tensor_calls, plain.tensor_calls + 100);
        }
      }
    }
  }
}

TEST(TensorParallelRuns, SequenceParallelismKeepsLess) {
  const Words flags = {"--tensor-model-parallel-size", "2", "--train-iters", "1"};
  const RunResult whole = train({.flags = flags, .ranks = 2});
  const RunResult split = train({.flags = flags + Words{"--sequence-parallel"}, .ranks = 2});
  EXPECT_LT(split.arena_planned, whole.arena_planned);
}

TEST(TensorParallelRuns, TheLossInChunksIsThatOfTheWhole) {
  for (const Layout& layout : {Layout{.tensor = 2}, Layout{.tensor = 2, .sequence = true}}) {
    for (const Family& family : {families()[0], families()[1]}) {
      const Words flags = family.flags + layout.flags() + kEvaluations;
      const RunResult plain = train({.flags = flags, .ranks = 2});
      const RunResult chunked =
          train({.flags = flags + Words{"--loss-chunk-size", "5", "--check-hazards"}, .ranks = 2});
      EXPECT_EQ(chunked.losses[0], plain.losses[0]);
      expect_losses_near(chunked, plain);
      EXPECT_GT(chunked.tensor_calls, plain.tensor_calls);
      EXPECT_EQ(chunked.hazards, 0);
    }
  }
}

// 257 words and a multiple of 100: 300 rows on one rank, 400 on two, of which the last 100 are nobody's.
TEST(TensorParallelRuns, PaddingOfTheVocabularyDependsOnTheRanksAndChangesNothing) {
  const Words flags = {"--make-vocab-size-divisible-by", "100"};
  const RunResult one = train({.flags = flags});
  const RunResult two = train({.flags = flags + Layout{.tensor = 2, .sequence = true}.flags(), .ranks = 2});
  expect_losses_near(two, one);
  EXPECT_EQ(two.weights.at("embedding.word_embeddings.weight").size(), 300u * 32);
  EXPECT_TRUE(two.copies_agree);
}

TEST(TensorParallelRuns, InBf16) {
  for (const Layout& layout : {Layout{.tensor = 2}, Layout{.tensor = 2, .sequence = true}}) {
    const Words flags = llama_flags() + kDropout + Words{"--bf16"};
    const RunResult one = train({.flags = flags});
    const RunResult two = train({.flags = flags + layout.flags() + Words{"--main-grads-dtype", "bf16"}, .ranks = 2});
    expect_losses_near(two, one, 1e-3);
    EXPECT_TRUE(two.copies_agree);
  }
}

TEST(TensorParallelRuns, ResumeGivesTheBitsOfTheUnbrokenRun) {
  const TestFolder scratch;
  const Words flags = llama_flags() + kDropout + Layout{.tensor = 4, .sequence = true}.flags() + Words{"--bf16"};
  const RunResult unbroken = train({.flags = flags, .ranks = 4});
  const RunResult first =
      train({.flags = flags + Words{"--exit-interval", "3", "--save", scratch.path("c")}, .ranks = 4});
  const RunResult second = train({.flags = flags + Words{"--load", scratch.path("c")}, .ranks = 4});
  EXPECT_EQ(first.losses + second.losses, unbroken.losses);
  EXPECT_EQ(first.grad_norms + second.grad_norms, unbroken.grad_norms);
  EXPECT_TRUE(second.weights == unbroken.weights);
}

TEST(TensorParallelRuns, CheckpointsGoFromAnyLayoutToAnyOther) {
  const TestFolder scratch;
  const Words flags = {"--make-vocab-size-divisible-by", "100"};
  const std::vector<Layout> layouts = {
      {}, {.tensor = 2, .sequence = true}, {.tensor = 4}, {.tensor = 2, .sequence = true, .data = 2}};
  const RunResult unbroken = train({.flags = flags});
  for (std::size_t from = 0; from < layouts.size(); ++from) {
    const std::string folder = scratch.path(std::to_string(from));
    const RunResult saved = train(flags + Words{"--exit-interval", "3", "--save", folder}, layouts[from]);
    for (const Layout& to : layouts) {
      Tensors loaded;
      std::mutex mutex;
      const RunResult rest = train({.flags = flags + to.flags() + Words{"--load", folder},
                                    .ranks = to.ranks(),
                                    .prepare = [&](Trainer& trainer, int) {
                                      const std::lock_guard lock(mutex);
                                      put_slices(trainer.rank(), &Parameter::weight, loaded);
                                    }});
      EXPECT_TRUE(loaded == saved.weights);
      ASSERT_EQ(rest.loss_values.size(), 3u);
      for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(rest.loss_values[i] / unbroken.loss_values[i + 3], 1, 1e-5);
    }
  }
}

}  // namespace
}  // namespace megalith::test
